//! Requests that go on after an outcome: readiness that lasts, and streams of received bytes.
//!
//! Each is a row with a future of the driver, which wakes the row by its number. A turn of the driver, and
//! the submission, are followed by a [run](Lasting::run) of the rows that were woken, which gives their
//! outcomes.
//!
//! Readiness has level semantics: a row that has told of it starts its poll again before the next turn, which
//! tells of it again if nothing has changed.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use rustix::io::Errno;
use slab::Slab;

use super::told::Told;
use crate::connection::{RecvBuf, Streamed};
use crate::fd::Fd;
use crate::handle::{Handle, Op};
use crate::ops::PollEvents;
use crate::ops::poll::Poll as PollOperation;

/// The most pieces that one run takes from a stream: the others have their turn.
const PIECES_MAX: usize = 16;

/// Names a row while its request goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RowTicket {
    pub(super) index: u32,
    pub(super) generation: u32,
}

impl RowTicket {
    /// The bits of an index: it and a generation fit into a number, with room for marks.
    const INDEX_BITS: u32 = 24;

    /// Returns the ticket as a number whose lowest eight bits are zero.
    pub(super) fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index) << (32 - Self::INDEX_BITS)
    }

    /// Returns the ticket with this number, whatever its lowest eight bits are.
    pub(super) fn from_bits(bits: u64) -> Self {
        let index = bits as u32 >> (32 - Self::INDEX_BITS);
        Self { index, generation: (bits >> 32) as u32 }
    }
}

/// A piece of news of a request.
pub(super) enum News {
    /// Events are ready. More will follow.
    Ready(PollEvents),
    /// Bytes have come. More will follow.
    Bytes(RecvBuf),
    /// The last outcome.
    End(io::Result<usize>),
}

/// The rows.
#[derive(Default)]
pub(super) struct Lasting {
    rows: Slab<Row>,
    fired: Arc<Fired>,
    /// Rows whose poll starts again before the next turn.
    due: Vec<u32>,
    generations: u32,
}

struct Row {
    token: u64,
    generation: u32,
    waker: Waker,
    work: Work,
}

enum Work {
    /// Readiness. The operation is `None` between two polls.
    Ready {
        fd: Fd,
        events: PollEvents,
        poll: Option<Op<PollOperation>>,
        is_canceled: bool,
    },
    Stream {
        claim: Rc<Streamed>,
        run: Pin<Box<dyn Future<Output = io::Result<()>>>>,
        piece: Piece,
    },
    /// A stream that was canceled, and gives the bytes that have come.
    Stopping(Pin<Box<dyn Future<Output = io::Result<Vec<u8>>>>>),
}

/// The place of bytes that have come.
type Piece = Rc<Cell<Option<RecvBuf>>>;

/// Rows that were woken.
#[derive(Default)]
struct Fired {
    rows: Mutex<Vec<u32>>,
    has_some: AtomicBool,
    /// Woken with them: the task of an executor.
    asker: Mutex<Option<Waker>>,
}

/// Of other threads only because a [`Wake`] is for all threads.
struct Firing {
    row: u32,
    fired: Arc<Fired>,
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Wake for Firing {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        lock(&self.fired.rows).push(self.row);
        self.fired.has_some.store(true, Ordering::Release);
        self.fired.wake_asker();
    }
}

impl Fired {
    fn wake_asker(&self) {
        let asker = lock(&self.asker).take();
        if let Some(asker) = asker {
            asker.wake();
        }
    }
}

impl Lasting {
    /// Returns whether rows were woken.
    #[inline(always)]
    pub(super) fn has_fired(&self) -> bool {
        self.fired.has_some.load(Ordering::Acquire)
    }

    /// Returns whether polls are to be started again.
    #[inline(always)]
    pub(super) fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Wakes `waker`, and no other, with the next row.
    pub(super) fn ask(&self, waker: &Waker) {
        let fresh = waker.clone();
        let previous = lock(&self.fired.asker).replace(fresh);
        drop(previous); // users' code, which may give the driver a turn
    }

    /// Wakes the one who [asks](Self::ask).
    pub(super) fn wake_asker(&self) {
        self.fired.wake_asker();
    }

    /// Adds a request that tells of readiness. It is woken.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub(super) fn add_poll(
        &mut self,
        token: u64,
        fd: Fd,
        events: PollEvents,
    ) -> Result<RowTicket, Errno> {
        self.add(token, Work::Ready { fd, events, poll: None, is_canceled: false })
    }

    /// Adds a request that tells of the bytes of a stream. It is woken.
    ///
    /// # Errors
    /// `EBUSY`: another one has the stream. The end of either would wait for the other's.
    pub(super) fn add_stream(
        &mut self,
        token: u64,
        fd: Fd,
        driver: &Handle,
    ) -> Result<RowTicket, Errno> {
        let own = driver.connection(fd);
        let claim = Rc::new(Streamed::claim(&own).ok_or(Errno::BUSY)?);
        let piece = Piece::default();
        let place = Rc::clone(&piece);
        let run = Box::pin(async move {
            loop {
                let bytes = own.recv().await?;
                if bytes.is_empty() {
                    return Ok(());
                }
                place.set(Some(bytes));
                std::future::poll_fn(|_| take_turn(&place)).await;
            }
        });
        self.add(token, Work::Stream { claim, run, piece })
    }

    /// Adds a row, which is woken, and wakes the one who [asks](Self::ask).
    ///
    /// # Errors
    /// `ENOMEM`: there are 2^24 rows.
    fn add(&mut self, token: u64, work: Work) -> Result<RowTicket, Errno> {
        let place = self.rows.vacant_entry();
        if place.key() >> RowTicket::INDEX_BITS != 0 {
            return Err(Errno::NOMEM);
        }
        let row = place.key() as u32;
        let waker: Waker = Arc::new(Firing { row, fired: Arc::clone(&self.fired) }).into();
        waker.wake_by_ref();
        self.generations = self.generations.wrapping_add(1);
        place.insert(Row { token, generation: self.generations, waker, work });
        Ok(RowTicket { index: row, generation: self.generations })
    }

    /// Starts polls again that are due, for the next turn.
    pub(super) fn start_polls(&mut self, driver: &Handle, told: &mut Told) {
        for index in mem::take(&mut self.due) {
            self.step(index, driver, told);
        }
    }

    /// Goes on with the rows that were woken.
    #[cold]
    #[inline(never)]
    pub(super) fn run(&mut self, driver: &Handle, told: &mut Told) {
        // Those that wake themselves have their turn later.
        self.fired.has_some.store(false, Ordering::Release);
        let rows = mem::take(&mut *lock(&self.fired.rows));
        for index in rows {
            self.step(index, driver, told);
        }
    }

    fn step(&mut self, index: u32, driver: &Handle, told: &mut Told) {
        let Some(row) = self.rows.get_mut(index as usize) else { return };
        let (token, mut cx) = (row.token, Context::from_waker(&row.waker));
        match &mut row.work {
            Work::Ready { fd, events, poll, is_canceled } => {
                if poll.is_none() && fd.is_closing() {
                    return self.end(index, Err(Errno::CANCELED.into()), told);
                }
                let op = poll.get_or_insert_with(|| driver.poll(fd, *events));
                let Poll::Ready(result) = Pin::new(op).poll(&mut cx) else { return };
                *poll = None;
                match result {
                    Ok(ready) if !*is_canceled => {
                        self.due.push(index);
                        told.tell(token, News::Ready(ready));
                    }
                    result => self.end(index, result.map(|ready| ready.0 as usize), told),
                }
            }
            Work::Stream { run, piece, .. } => {
                for _ in 0..PIECES_MAX {
                    let poll = run.as_mut().poll(&mut cx);
                    match (piece.take(), poll) {
                        (Some(bytes), _) => told.tell(token, News::Bytes(bytes)),
                        (None, Poll::Pending) => return,
                        (None, Poll::Ready(result)) => {
                            return self.end(index, result.map(|()| 0), told);
                        }
                    }
                }
                row.waker.wake_by_ref();
            }
            Work::Stopping(stop) => {
                let Poll::Ready(result) = stop.as_mut().poll(&mut cx) else { return };
                if let Ok(bytes) = result
                    && !bytes.is_empty()
                {
                    told.tell(token, News::Bytes(RecvBuf::owned(bytes)));
                }
                self.end(index, Err(Errno::CANCELED.into()), told);
            }
        }
    }

    fn end(&mut self, index: u32, result: io::Result<usize>, told: &mut Told) {
        let Row { token, .. } = self.rows.remove(index as usize);
        told.tell(token, News::End(result));
    }

    /// Cancels the request of a ticket, if it goes on.
    pub(super) fn cancel(&mut self, ticket: RowTicket, told: &mut Told) {
        let row = self.rows.get_mut(ticket.index as usize);
        let Some(row) = row.filter(|row| row.generation == ticket.generation) else { return };
        match &mut row.work {
            Work::Ready { poll: Some(op), is_canceled, .. } => {
                *is_canceled = true;
                op.cancel();
            }
            Work::Ready { poll: None, .. } => {
                self.end(ticket.index, Err(Errno::CANCELED.into()), told);
            }
            Work::Stream { claim, .. } => {
                let claim = Rc::clone(claim);
                let stop = async move { claim.connection().stop_receiving().await };
                // Drops the receive first, which loses nothing.
                row.work = Work::Stopping(Box::pin(stop));
                row.waker.wake_by_ref();
            }
            Work::Stopping(_) => {}
        }
    }

    /// Ends all of them.
    pub(super) fn end_all(&mut self, told: &mut Told) {
        self.due.clear();
        let rows = mem::take(&mut self.rows);
        for (_, Row { token, work, .. }) in rows {
            drop(work);
            told.tell(token, News::End(Err(Errno::CANCELED.into())));
        }
    }
}

/// Completes once the place is empty.
fn take_turn(place: &Piece) -> Poll<()> {
    let piece = place.take();
    let is_taken = piece.is_none();
    place.set(piece);
    if is_taken { Poll::Ready(()) } else { Poll::Pending }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_all_of_a_ticket() {
        for index in [0, 1, (1 << RowTicket::INDEX_BITS) - 1] {
            for generation in [0, 1, u32::MAX] {
                let ticket = RowTicket { index, generation };
                assert_eq!(RowTicket::from_bits(ticket.to_bits() | 0xff), ticket);
            }
        }
    }
}
