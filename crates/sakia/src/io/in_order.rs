//! Operations of dropped futures on a stream of bytes: the next operation waits for them.
//!
//! A dropped future cancels its operation, which ends a little later. A read that began meanwhile could get
//! bytes that follow those of the dropped one, and a write could put its bytes before them. So the dropped
//! operation stays with the stream until it has ended. The bytes, the end or the error that a dropped read
//! brings are the next read's.
//!
//! A stream has one read and one write under way, since both need a `&mut`.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use rustix::io::Errno;
use sakia_driver::{BufResult, IoBuf, IoBufMut, Op, Operation};

/// An operation of a dropped future. Resolves to its result.
type Dropped = Pin<Box<dyn Future<Output = Earlier>>>;

/// The part of a dropped operation's result that the next one needs.
enum Earlier {
    /// None: it is a write, or a read that took nothing.
    Nothing,
    Bytes(Vec<u8>),
    End,
    Failed(io::Error),
}

/// The reads or the writes of a stream.
#[derive(Default)]
pub(super) struct InOrder {
    /// Set if there is an operation of a dropped future, or something left from one.
    has_earlier: Cell<bool>,
    dropped: RefCell<Option<Dropped>>,
    left: RefCell<Option<Earlier>>,
}

impl fmt::Debug for InOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InOrder").field("has_earlier", &self.has_earlier).finish_non_exhaustive()
    }
}

impl InOrder {
    /// Makes a future of a read, which stays here if the future is dropped.
    pub(super) fn read<O, T>(&self, op: Op<O>) -> InFlight<'_, O>
    where
        O: Operation<Output = BufResult<usize, T>>,
        T: IoBuf,
    {
        let keep = |(result, buf): BufResult<usize, T>| match result {
            Ok(0) => Earlier::End,
            Ok(count) => Earlier::Bytes(buf.as_bytes()[..count].to_vec()),
            Err(error) if says_nothing(&error) => Earlier::Nothing,
            Err(error) => Earlier::Failed(error),
        };
        InFlight { op: Some(op), line: self, keep }
    }

    /// Makes a future of a write, which stays here if the future is dropped.
    pub(super) fn write<O: Operation>(&self, op: Op<O>) -> InFlight<'_, O> {
        InFlight { op: Some(op), line: self, keep: |_| Earlier::Nothing }
    }

    /// Waits for the operation of a dropped future, if there is one.
    pub(super) async fn settled(&self) {
        if !self.has_earlier.get() {
            return;
        }
        poll_fn(|cx| {
            let Some(mut dropped) = self.dropped.take() else { return Poll::Ready(()) };
            match dropped.as_mut().poll(cx) {
                Poll::Ready(Earlier::Nothing) => {
                    self.has_earlier.set(false);
                    Poll::Ready(())
                }
                Poll::Ready(earlier) => {
                    *self.left.borrow_mut() = Some(earlier);
                    Poll::Ready(())
                }
                Poll::Pending => {
                    *self.dropped.borrow_mut() = Some(dropped);
                    Poll::Pending
                }
            }
        })
        .await;
    }

    /// Returns the result of a dropped read as that of a read into `buf`, if there is one.
    pub(super) fn take<T: IoBufMut>(&self, buf: &mut T) -> Option<io::Result<usize>> {
        if !self.has_earlier.get() || buf.bytes_room() == 0 {
            return None;
        }
        let earlier = self.left.take()?;
        self.has_earlier.set(false);
        match earlier {
            Earlier::Nothing => None,
            Earlier::End => Some(Ok(0)),
            Earlier::Failed(error) => Some(Err(error)),
            Earlier::Bytes(mut bytes) => {
                let count = buf.fill_from(&bytes);
                bytes.drain(..count);
                if !bytes.is_empty() {
                    *self.left.borrow_mut() = Some(Earlier::Bytes(bytes));
                    self.has_earlier.set(true);
                }
                Some(Ok(count))
            }
        }
    }
}

/// An operation under way.
pub(super) struct InFlight<'a, O: Operation> {
    op: Option<Op<O>>,
    line: &'a InOrder,
    keep: fn(O::Output) -> Earlier,
}

impl<O: Operation> Future for InFlight<'_, O> {
    type Output = O::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let op = self.op.as_mut().expect("an operation is not polled again after it was ready");
        let output = std::task::ready!(Pin::new(op).poll(cx));
        self.op = None;
        Poll::Ready(output)
    }
}

impl<O: Operation> Drop for InFlight<'_, O> {
    fn drop(&mut self) {
        let Some(mut op) = self.op.take() else { return };
        op.cancel();
        let keep = self.keep;
        *self.line.dropped.borrow_mut() = Some(Box::pin(async move { keep(op.await) }));
        self.line.has_earlier.set(true);
    }
}

/// Returns whether an error says that a read took nothing.
fn says_nothing(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::CANCELED | Errno::INTR | Errno::AGAIN))
}
