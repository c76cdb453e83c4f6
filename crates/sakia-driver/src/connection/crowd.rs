//! The tasks that wait for what a multishot operation brings.
//!
//! Each change wakes all of them: a task that was woken may have a future that it does not poll, so its wake
//! must not be the only one. The futures under way are counted, whether polled or not: a caller that ends
//! the multishot operation has to know whether others still want it.

use std::cell::{Cell, RefCell};
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::wakers::united;

/// Waiting tasks.
#[derive(Default)]
pub(super) struct Crowd {
    waiting: RefCell<Vec<(u64, Waker)>>,
    /// The number of the next wait.
    next: Cell<u64>,
    /// The number of members under way.
    members: Cell<usize>,
}

impl Crowd {
    /// Returns whether it has members.
    pub(super) fn has_members(&self) -> bool {
        self.members.get() > 0
    }

    /// Counts a caller until the value is dropped.
    pub(super) fn join(&self) -> Member<'_> {
        self.members.set(self.members.get() + 1);
        Member { crowd: self }
    }

    /// Waits for the next change.
    pub(super) fn change(&self) -> Change<'_> {
        Change { crowd: self, number: None }
    }

    /// Takes the wakers of all waiting tasks, as one waker: a change has happened.
    pub(super) fn tell(&self) -> Option<Waker> {
        let mut waiting = self.waiting.borrow_mut();
        match waiting.len() {
            0 | 1 => waiting.pop().map(|(_, waker)| waker),
            _ => united(waiting.drain(..).map(|(_, waker)| waker)),
        }
    }
}

/// A caller that wants what the multishot operation brings.
pub(super) struct Member<'a> {
    crowd: &'a Crowd,
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        self.crowd.members.set(self.crowd.members.get() - 1);
        // Callers that are no members may now end the multishot operation.
        if !self.crowd.has_members()
            && let Some(waker) = self.crowd.tell()
        {
            waker.wake();
        }
    }
}

/// A wait for a change.
pub(super) struct Change<'a> {
    crowd: &'a Crowd,
    number: Option<u64>,
}

impl Future for Change<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // Cloning and dropping wakers runs users' code, so neither happens within a borrow.
        let crowd = self.crowd;
        let Some(number) = self.number else {
            let number = crowd.next.get();
            crowd.next.set(number + 1);
            self.number = Some(number);
            let waker = cx.waker().clone();
            crowd.waiting.borrow_mut().push((number, waker));
            return Poll::Pending;
        };
        let fresh = cx.waker().clone();
        let mut waiting = crowd.waiting.borrow_mut();
        let Some((_, waker)) = waiting.iter_mut().find(|(other, _)| *other == number) else {
            return Poll::Ready(());
        };
        let old = mem::replace(waker, fresh);
        drop(waiting);
        drop(old);
        Poll::Pending
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let mut waiting = self.crowd.waiting.borrow_mut();
        let found = waiting.iter().position(|(other, _)| *other == number);
        let gone = found.map(|at| waiting.remove(at));
        drop(waiting);
        drop(gone);
    }
}
