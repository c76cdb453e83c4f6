//! Sources and sinks in memory that behave as descriptors rarely do.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, poll_fn};
use std::io;
use std::marker::Unpin;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

use proptest::prelude::*;
use sakia::Runtime;
use sakia::io::{
    AsyncRead, AsyncReadAt, AsyncWrite, AsyncWriteAt, BufResult, IoBuf, IoBufMut, Level,
};

pub const EIO: i32 = 5;

/// The behavior of one operation.
#[derive(Clone, Debug)]
pub enum Turn {
    /// Moves at most this number of bytes.
    Short(usize),
    /// Fails with `ErrorKind::Interrupted`.
    Interrupted,
    /// Waits for this number of polls, then behaves as the next turn says.
    Wait(usize),
}

/// Returns random behaviors of a mock's operations.
pub fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let turn = prop_oneof![
        4 => (1usize..9).prop_map(Turn::Short),
        2 => (9usize..80).prop_map(Turn::Short),
        1 => Just(Turn::Interrupted),
        2 => (1usize..4).prop_map(Turn::Wait),
    ];
    prop::collection::vec(turn, 0..60)
}

/// The bytes of a mock, and its behavior. Clones share them.
#[derive(Clone, Default)]
pub struct Mock {
    pub bytes: Rc<RefCell<Vec<u8>>>,
    /// The behavior of the next operations. Operations after these move all bytes.
    pub turns: Rc<RefCell<VecDeque<Turn>>>,
    /// The offsets at which reads and writes fail with `EIO`, and the number of failures of each.
    pub failures: Rc<RefCell<BTreeMap<usize, usize>>>,
    /// The number of operations begun.
    pub operations: Rc<Cell<usize>>,
    /// The maximum number of positional reads in flight at a time.
    pub in_flight_max: Rc<Cell<usize>>,
    in_flight: Rc<Cell<usize>>,
    /// The position of sequential reads and writes.
    position: Rc<Cell<usize>>,
    pub syncs: Rc<Cell<usize>>,
    pub is_closed: Rc<Cell<bool>>,
    /// If not 0, the offsets and lengths of reads are multiples of this.
    pub aligned_to: Rc<Cell<usize>>,
}

impl Mock {
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self { bytes: Rc::new(RefCell::new(bytes.into())), ..Self::default() }
    }

    /// Determines the behavior of the next operation on `offset..offset + len`: the polls to wait, and its
    /// result.
    fn begin(&self, offset: usize, len: usize) -> (usize, io::Result<usize>) {
        self.operations.set(self.operations.get() + 1);
        let mut polls = 0;
        let mut len_max = len;
        loop {
            match self.turns.borrow_mut().pop_front() {
                Some(Turn::Wait(more)) => {
                    polls += more;
                    continue;
                }
                Some(Turn::Interrupted) => {
                    return (polls, Err(io::ErrorKind::Interrupted.into()));
                }
                Some(Turn::Short(count)) => {
                    let count = count.next_multiple_of(self.aligned_to.get().max(1));
                    len_max = len_max.min(count);
                }
                None => {}
            }
            break;
        }
        let mut failures = self.failures.borrow_mut();
        let next = failures.range_mut(offset..).find(|(_, times)| **times > 0);
        match next {
            Some((at, times)) if *at == offset && len > 0 => {
                *times -= 1;
                (polls, Err(io::Error::from_raw_os_error(EIO)))
            }
            Some((at, _)) => (polls, Ok(len_max.min(at - offset))),
            None => (polls, Ok(len_max)),
        }
    }

    fn copy_out<T: IoBufMut>(&self, offset: usize, count: usize, buf: &mut T) -> usize {
        let bytes = self.bytes.borrow();
        let bytes = bytes.get(offset..).unwrap_or(&[]);
        let count = count.min(bytes.len());
        buf.as_bytes_mut()[..count].copy_from_slice(&bytes[..count]);
        count
    }

    fn copy_in(&self, offset: usize, from: &[u8]) {
        let mut bytes = self.bytes.borrow_mut();
        let len = bytes.len().max(offset + from.len());
        bytes.resize(len, 0);
        bytes[offset..offset + from.len()].copy_from_slice(from);
    }

    async fn write_from<T: IoBuf>(&self, buf: &T, offset: usize) -> io::Result<usize> {
        let (polls, result) = self.begin(offset, buf.bytes_len());
        pause(polls).await;
        let count = result?;
        self.copy_in(offset, &buf.as_bytes()[..count]);
        Ok(count)
    }
}

/// Calls `f` with the runtime of the test's thread, so that hundreds of cases need not build one each.
pub fn with_runtime<T>(f: impl FnOnce(&Runtime) -> T) -> T {
    thread_local! {
        static RUNTIME: Runtime = Runtime::new().unwrap();
    }
    RUNTIME.with(f)
}

/// Runs `future` on the runtime of the test's thread.
pub fn run<F: Future>(future: F) -> F::Output {
    with_runtime(|runtime| runtime.block_on(future))
}

/// Waits for this number of polls.
pub async fn pause(mut polls: usize) {
    poll_fn(|cx| {
        if polls == 0 {
            return Poll::Ready(());
        }
        polls -= 1;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Polls `future` at most this number of times, then drops it.
pub async fn at_most<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

impl AsyncRead for Mock {
    async fn read<T: IoBufMut>(&mut self, mut buf: T) -> BufResult<usize, T> {
        let (polls, result) = self.begin(self.position.get(), buf.bytes_len());
        pause(polls).await;
        let result = result.map(|count| {
            let count = self.copy_out(self.position.get(), count, &mut buf);
            self.position.set(self.position.get() + count);
            count
        });
        (result, buf)
    }
}

impl AsyncReadAt for Mock {
    type ReadAt<T: IoBufMut> = MockRead<T>;

    fn start_read_at<T: IoBufMut>(&self, mut buf: T, offset: u64) -> MockRead<T> {
        let offset = usize::try_from(offset).unwrap();
        if self.aligned_to.get() > 0 {
            assert_eq!(offset % self.aligned_to.get(), 0);
            assert_eq!(buf.bytes_len() % self.aligned_to.get(), 0);
        }
        let (polls, result) = self.begin(offset, buf.bytes_len());
        let result = result.map(|count| self.copy_out(offset, count, &mut buf));
        let in_flight = self.in_flight.get() + 1;
        self.in_flight.set(in_flight);
        self.in_flight_max.set(self.in_flight_max.get().max(in_flight));
        MockRead { polls, done: Some((result, buf)), in_flight: Rc::clone(&self.in_flight) }
    }

    fn read_alignment(&self) -> usize {
        self.aligned_to.get()
    }
}

/// A read that is complete after some polls.
pub struct MockRead<T> {
    polls: usize,
    done: Option<BufResult<usize, T>>,
    in_flight: Rc<Cell<usize>>,
}

impl<T> Unpin for MockRead<T> {}

impl<T> Future for MockRead<T> {
    type Output = BufResult<usize, T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.polls > 0 {
            self.polls -= 1;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(self.done.take().expect("polled again when done"))
    }
}

impl<T> Drop for MockRead<T> {
    fn drop(&mut self) {
        self.in_flight.set(self.in_flight.get() - 1);
    }
}

impl AsyncWrite for Mock {
    async fn write<T: IoBuf>(&mut self, buf: T) -> BufResult<usize, T> {
        let result = self.write_from(&buf, self.position.get()).await;
        self.position.set(self.position.get() + result.as_ref().map_or(0, |&count| count));
        (result, buf)
    }

    async fn close(self) -> io::Result<()> {
        self.is_closed.set(true);
        Ok(())
    }
}

impl AsyncWriteAt for Mock {
    async fn write_at<T: IoBuf>(&self, buf: T, offset: u64) -> BufResult<usize, T> {
        let offset = usize::try_from(offset).unwrap();
        (self.write_from(&buf, offset).await, buf)
    }

    async fn write_vectored_at<T: IoBuf>(
        &self,
        bufs: Vec<T>,
        offset: u64,
    ) -> BufResult<usize, Vec<T>> {
        let all: Vec<u8> = bufs.iter().flat_map(|buf| buf.as_bytes()).copied().collect();
        let (result, _) = self.write_at(all, offset).await;
        (result, bufs)
    }

    async fn sync_data(&self) -> io::Result<()> {
        self.syncs.set(self.syncs.get() + 1);
        Ok(())
    }

    async fn close(self) -> io::Result<()> {
        self.is_closed.set(true);
        Ok(())
    }
}

/// A sequential sink that can sync.
pub struct Syncing(pub Mock);

impl AsyncWrite for Syncing {
    async fn write<T: IoBuf>(&mut self, buf: T) -> BufResult<usize, T> {
        AsyncWrite::write(&mut self.0, buf).await
    }

    async fn sync(&mut self) -> io::Result<Level> {
        self.0.sync_data().await.map(|()| Level::Durable)
    }

    async fn close(self) -> io::Result<()> {
        AsyncWrite::close(self.0).await
    }
}
