//! A context, and its requests in flight.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use slab::Slab;

use super::buf::Buf;
use super::request::Request;
use super::sys::{self, ContextId, Event, Iocb};
use super::trace::{CallKind, Log};

/// The largest number of completions that one call reaps.
const EVENTS: usize = 128;

/// A context of the kernel, with room for a number of requests.
///
/// A request is [pushed](Context::push) with a tag, which its completion returns; then it is
/// [submitted](Context::submit) together with others, and [reaped](Context::reap). From push to reap its
/// slot owns its memory and keeps its descriptor open.
///
/// Dropping a context cancels its polls and waits for everything else. If the kernel refuses that, all
/// memory in flight is leaked.
#[derive(Debug)]
pub struct Context<T> {
    id: ContextId,
    room: usize,
    /// Indexed by the number that the kernel returns with a completion.
    slots: Slab<Slot<T>>,
    /// Slots to be submitted, in order. All others are in flight.
    queued: VecDeque<usize>,
    /// Requests that the kernel refused, to be reaped.
    refused: Vec<Completion<T>>,
    events: Vec<Event>,
    /// The kernel adds completions to it.
    event_fd: Option<Arc<OwnedFd>>,
    log: Arc<Log>,
}

/// A request with everything that it needs until its completion.
#[derive(Debug)]
struct Slot<T> {
    /// In an allocation of its own: the kernel identifies it by its address.
    iocb: Box<Iocb>,
    request: Request,
    tag: T,
}

impl<T> Slot<T> {
    fn complete(self, result: io::Result<usize>) -> Completion<T> {
        Completion { tag: self.tag, result, memory: self.request.into_memory() }
    }
}

/// The result of a request.
#[derive(Debug)]
pub struct Completion<T> {
    /// The tag of its push.
    pub tag: T,
    /// Bytes transferred, or the events of a poll.
    pub result: io::Result<usize>,
    /// Its memory, if it has any.
    pub memory: Option<Buf>,
}

impl<T> Context<T> {
    /// Makes a context with room for `room` requests.
    ///
    /// # Errors
    /// `EAGAIN`: `fs.aio-max-nr` has not enough left. Otherwise as `io_setup(2)`.
    pub fn new(room: u32) -> io::Result<Self> {
        Self::with(room, None, Arc::default())
    }

    /// Makes a context whose completions are added to `event_fd` and whose calls are added to `log`.
    pub(super) fn with(
        room: u32,
        event_fd: Option<Arc<OwnedFd>>,
        log: Arc<Log>,
    ) -> io::Result<Self> {
        let mut id = ContextId::default();
        log.call(CallKind::Setup, || {
            id = sys::io_setup(room)?;
            Ok(0)
        })?;
        Ok(Self {
            id,
            room: room as usize,
            slots: Slab::new(),
            queued: VecDeque::new(),
            refused: Vec::new(),
            events: vec![Event::default(); EVENTS],
            event_fd,
            log,
        })
    }

    /// Returns whether a request can be pushed.
    pub fn has_room(&self) -> bool {
        self.slots.len() < self.room
    }

    /// Returns the number of requests in the kernel.
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.queued.len()
    }

    /// Returns the number of requests that were pushed and not reaped.
    pub fn live(&self) -> usize {
        self.slots.len() + self.refused.len()
    }

    /// Adds a request, to be submitted later.
    ///
    /// # Errors
    /// Returns the request: there is no room.
    pub fn push(&mut self, mut request: Request, tag: T) -> Result<(), (Request, T)> {
        if !self.has_room() {
            return Err((request, tag));
        }
        let vacant = self.slots.vacant_entry();
        let iocb = request.prepare(vacant.key() as u64, self.event_fd.as_deref());
        self.queued.push_back(vacant.key());
        vacant.insert(Slot { iocb: Box::new(iocb), request, tag });
        Ok(())
    }

    /// Submits the pushed requests, as many as the kernel takes, and returns the number in flight. A request
    /// that it refuses is reaped with its errno; the others continue. Requests for which it has no memory
    /// stay, as long as something is in flight.
    pub fn submit(&mut self) -> usize {
        let before = self.in_flight();
        while !self.queued.is_empty() {
            let slots = &mut self.slots;
            let mut iocbs: Vec<*mut Iocb> =
                self.queued.iter().map(|&index| &raw mut *slots[index].iocb).collect();
            // SAFETY: each request lies in an allocation of its own, owned by this value. Its slot owns the
            // memory and the descriptor that it names until `reap` has its completion; or for ever, see
            // `drop`.
            let submit = || unsafe { sys::io_submit(self.id, &mut iocbs) };
            match self.log.call(CallKind::Submit, submit) {
                Ok(0) => break,
                // The kernel owns them now.
                Ok(count) => drop(self.queued.drain(..count)),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::EAGAIN) if self.in_flight() > 0 => break,
                    _ => {
                        // The kernel refuses the first in the queue.
                        let refused = self.queued.pop_front().map(|index| self.slots.remove(index));
                        self.refused.extend(refused.map(|slot| slot.complete(Err(error))));
                    }
                },
            }
        }
        self.in_flight() - before
    }

    /// Appends the finished requests to `done` and returns their number. With `wait` it sleeps until there
    /// is at least one, unless nothing is in flight.
    ///
    /// # Errors
    /// As `io_getevents(2)`: none is known. Never `EINTR`.
    pub fn reap(&mut self, wait: bool, done: &mut Vec<Completion<T>>) -> io::Result<usize> {
        let before = done.len();
        done.append(&mut self.refused);
        while self.in_flight() > 0 {
            let wait = wait && done.len() == before;
            let get = || sys::io_getevents(self.id, wait, &mut self.events);
            let count = match self.log.call(CallKind::GetEvents, get) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                count => count?.min(EVENTS),
            };
            for event in 0..count {
                done.extend(self.complete(self.events[event]));
            }
            if count < EVENTS {
                break;
            }
        }
        Ok(done.len() - before)
    }

    /// Returns `None` for a completion that belongs to no request here.
    fn complete(&mut self, event: Event) -> Option<Completion<T>> {
        let slot = self.slots.try_remove(usize::try_from(event.data).ok()?)?;
        let result = match event.result {
            // No event: the poll was canceled.
            0 if slot.request.is_poll() => Err(io::Error::from_raw_os_error(libc::ECANCELED)),
            0.. => Ok(event.result as usize),
            negative => Err(io::Error::from_raw_os_error((-negative) as i32)),
        };
        Some(slot.complete(result))
    }

    /// Requests the cancellation of every poll in flight. They are reaped as usual.
    pub fn cancel_polls(&mut self) {
        for (_, slot) in self.slots.iter_mut().filter(|(_, slot)| slot.request.is_poll()) {
            // SAFETY: the pointer is the submitted one; the slot owns the request. The kernel reports that
            // it is being canceled, that it is too late, or that it is not submitted yet.
            let _ = unsafe { sys::io_cancel(self.id, &raw mut *slot.iocb) };
        }
    }
}

impl<T> Drop for Context<T> {
    fn drop(&mut self) {
        // It returns when nothing is in flight. In a forked child, which has no contexts, it fails.
        if sys::io_destroy(self.id).is_err() && self.in_flight() > 0 {
            std::mem::forget(std::mem::take(&mut self.slots));
        }
    }
}
