//! A context, and what is in flight in it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::request::{Memory, Part, Request};
use super::sys::{self, ContextId, Event, Iocb};
use super::trace::{CallKind, Calls};

/// Completions that one call takes out of a context.
const EVENTS: usize = 128;

/// A context of the kernel, with room for a number of requests.
///
/// A request is [pushed](Context::push) with a tag, which comes back with what it came to; then it is
/// [submitted](Context::submit) with the others, and [reaped](Context::reap). From push to reap its slot
/// owns its memory and keeps its descriptor open.
///
/// Dropping a context cancels its polls and waits for everything else. Should the kernel refuse that, all
/// memory in flight is leaked.
#[derive(Debug)]
pub struct Context<T> {
    id: ContextId,
    room: usize,
    slots: Vec<Slot<T>>,
    free: Vec<usize>,
    /// Slots that are to be submitted, in order.
    queued: VecDeque<usize>,
    /// What the kernel refused, to be reaped.
    refused: Vec<Completion<T>>,
    in_flight: usize,
    events: Vec<Event>,
    /// Completions are added to it.
    event_fd: Option<Arc<OwnedFd>>,
    pub(super) calls: Calls,
}

#[derive(Debug)]
struct Slot<T> {
    /// In memory of its own: its address is its name with the kernel.
    iocb: Box<Iocb>,
    state: State<T>,
}

#[derive(Debug)]
enum State<T> {
    Free,
    /// Ours still: pushed, and not submitted.
    Queued(Owned<T>),
    /// The kernel's.
    InFlight(Owned<T>),
}

/// All that a request needs until its completion.
#[derive(Debug)]
struct Owned<T> {
    request: Request,
    tag: T,
    _parts: Box<[Part]>,
}

/// What became of a request.
#[derive(Debug)]
pub struct Completion<T> {
    /// What it was pushed with.
    pub tag: T,
    /// Bytes transferred, or the events of a poll.
    pub result: io::Result<usize>,
    /// Its memory.
    pub memory: Memory,
}

impl<T> Context<T> {
    /// A context with room for `room` requests.
    ///
    /// # Errors
    /// `EAGAIN`: `fs.aio-max-nr` has not as much left. Otherwise as `io_setup(2)`.
    pub fn new(room: u32) -> io::Result<Self> {
        Self::with(room, None, Calls::default())
    }

    /// Its completions are added to `event_fd`.
    pub(super) fn with(
        room: u32,
        event_fd: Option<Arc<OwnedFd>>,
        mut calls: Calls,
    ) -> io::Result<Self> {
        let begin = calls.begin();
        let id = sys::io_setup(room);
        calls.end(begin, CallKind::Setup, room.into());
        Ok(Self {
            id: id?,
            room: room as usize,
            slots: Vec::new(),
            free: Vec::new(),
            queued: VecDeque::new(),
            refused: Vec::new(),
            in_flight: 0,
            events: vec![Event::default(); EVENTS],
            event_fd,
            calls,
        })
    }

    /// Whether a request can be pushed.
    pub fn has_room(&self) -> bool {
        !self.free.is_empty() || self.slots.len() < self.room
    }

    /// Requests that the kernel has.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Requests that were pushed, and not reaped.
    pub fn live(&self) -> usize {
        self.slots.len() - self.free.len() + self.refused.len()
    }

    /// Takes a request in, to be submitted.
    ///
    /// # Errors
    /// Gives it back: there is no room.
    pub fn push(&mut self, mut request: Request, tag: T) -> Result<(), (Request, T)> {
        if !self.has_room() {
            return Err((request, tag));
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { iocb: Box::default(), state: State::Free });
            self.slots.len() - 1
        });
        match request.prepare(index as u64, self.event_fd.as_deref()) {
            Ok((iocb, parts)) => {
                let slot = &mut self.slots[index];
                *slot.iocb = iocb;
                slot.state = State::Queued(Owned { request, tag, _parts: parts });
                self.queued.push_back(index);
            }
            Err(error) => {
                self.free.push(index);
                let memory = request.into_memory();
                self.refused.push(Completion { tag, result: Err(error), memory });
            }
        }
        Ok(())
    }

    /// Submits what was pushed, as much as the kernel takes, and returns how many are in flight since. One
    /// that it refuses is reaped with its errno; the others go on. What it has no memory for stays, as long
    /// as something is in flight.
    pub fn submit(&mut self) -> usize {
        let before = self.in_flight;
        while !self.queued.is_empty() {
            let slots = &mut self.slots;
            let mut iocbs: Vec<*mut Iocb> =
                self.queued.iter().map(|&index| &raw mut *slots[index].iocb).collect();
            let begin = self.calls.begin();
            // SAFETY: each request lies in memory of its own, which only this value has. What it names is
            // owned by its slot, as are memory and descriptor, until `reap` has its completion; or for
            // ever, see `drop`.
            let taken = unsafe { sys::io_submit(self.id, &mut iocbs) };
            let count = *taken.as_ref().unwrap_or(&0);
            self.calls.end(begin, CallKind::Submit, count as u64);
            match taken {
                Ok(0) => break,
                Ok(count) => self.taken(count),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::EAGAIN) if self.in_flight > 0 => break,
                    _ => self.refuse(error),
                },
            }
        }
        self.in_flight - before
    }

    /// The first `count` in the queue are the kernel's now.
    fn taken(&mut self, count: usize) {
        for index in self.queued.drain(..count) {
            let slot = &mut self.slots[index];
            slot.state = match std::mem::replace(&mut slot.state, State::Free) {
                State::Queued(owned) => State::InFlight(owned),
                other => other,
            };
            self.in_flight += 1;
        }
    }

    /// The first in the queue is none that the kernel does.
    fn refuse(&mut self, error: io::Error) {
        let Some(index) = self.queued.pop_front() else { return };
        let state = std::mem::replace(&mut self.slots[index].state, State::Free);
        self.free.push(index);
        if let State::Queued(Owned { request, tag, .. }) = state {
            let memory = request.into_memory();
            self.refused.push(Completion { tag, result: Err(error), memory });
        }
    }

    /// Adds to `done` what is done, and returns how many. With `wait` it sleeps until that is one at least,
    /// unless nothing is in flight.
    ///
    /// # Errors
    /// As `io_getevents(2)`: none is known. Never `EINTR`.
    pub fn reap(&mut self, wait: bool, done: &mut Vec<Completion<T>>) -> io::Result<usize> {
        let before = done.len();
        done.append(&mut self.refused);
        while self.in_flight > 0 {
            let wait = wait && done.len() == before;
            let begin = self.calls.begin();
            let count = sys::io_getevents(self.id, wait, &mut self.events);
            self.calls.end(begin, CallKind::GetEvents, *count.as_ref().unwrap_or(&0) as u64);
            let count = match count {
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

    /// `None`: the completion of nothing that is in flight.
    fn complete(&mut self, event: Event) -> Option<Completion<T>> {
        let index = usize::try_from(event.data).ok()?;
        let slot = self.slots.get_mut(index)?;
        if !matches!(slot.state, State::InFlight(_)) {
            return None;
        }
        let State::InFlight(Owned { request, tag, .. }) =
            std::mem::replace(&mut slot.state, State::Free)
        else {
            return None;
        };
        self.in_flight -= 1;
        self.free.push(index);
        let result = match event.result {
            // No event: it was canceled.
            0 if request.is_poll() => Err(io::Error::from_raw_os_error(libc::ECANCELED)),
            0.. => Ok(event.result as usize),
            negative => Err(io::Error::from_raw_os_error((-negative) as i32)),
        };
        Some(Completion { tag, result, memory: request.into_memory() })
    }

    /// Asks for every poll in flight to be canceled. They are reaped as ever.
    pub fn cancel_polls(&mut self) {
        for slot in &mut self.slots {
            if matches!(&slot.state, State::InFlight(owned) if owned.request.is_poll()) {
                // SAFETY: the pointer is the one that was submitted; the slot has the request since.
                // It says that it is being canceled, or that it is late.
                let _ = unsafe { sys::io_cancel(self.id, &raw mut *slot.iocb) };
            }
        }
    }
}

impl<T> Drop for Context<T> {
    fn drop(&mut self) {
        // It returns when nothing is in flight any more. In a forked child, which has no contexts, it fails.
        if sys::io_destroy(self.id).is_err() && self.in_flight > 0 {
            std::mem::forget(std::mem::take(&mut self.slots));
        }
    }
}
