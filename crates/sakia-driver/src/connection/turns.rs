//! Whose turn it is, where one operation at a time is to be in flight.
//!
//! Two types: [`Turns`] are busy or free, and a [`Turn`] is the right to have an operation in flight. It is
//! part of that operation, as [`InTurn`], so that it passes on when the kernel is done, also where the future
//! is long gone.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use sakia_ring::Sqe;

use crate::fd::Fd;
use crate::op::{Class, Completion, Operation};
use crate::wakers::wake_all;

/// Busy with an operation, or free.
#[derive(Debug, Default)]
pub(super) struct Turns {
    is_busy: Cell<bool>,
    /// Who waits for it to be free; few, if any.
    waiters: RefCell<Vec<Waker>>,
}

/// The right to have an operation in flight, which the operation keeps until the kernel is done with it.
/// Dropping it passes it on. It keeps a `T`, which has the turns.
pub(super) struct Turn<T> {
    of: Rc<T>,
    turns: fn(&T) -> &Turns,
}

impl Turns {
    /// Waits until nothing is in flight, without taking the turn.
    pub(super) async fn free(&self) {
        poll_fn(|cx| {
            if !self.is_busy.get() {
                return Poll::Ready(());
            }
            // Cloning and dropping wakers runs users' code, so neither happens within a borrow.
            if !self.waiters.borrow().iter().any(|waiter| waiter.will_wake(cx.waker())) {
                let fresh = cx.waker().clone();
                self.waiters.borrow_mut().push(fresh);
            }
            Poll::Pending
        })
        .await;
    }
}

impl<T> Turn<T> {
    /// Waits for the turn.
    pub(super) async fn take(of: &Rc<T>, turns: fn(&T) -> &Turns) -> Self {
        if turns(of).is_busy.get() && !mutant!("turns_not_taken") {
            turns(of).free().await;
        }
        turns(of).is_busy.set(true);
        Self { of: Rc::clone(of), turns }
    }

    /// Passes it on although the operation is not over: there will be no other one that it could meet.
    /// Answers with who is next.
    pub(super) fn give_up(&self) -> Option<Waker> {
        let turns = (self.turns)(&self.of);
        turns.is_busy.set(false);
        turns.waiters.borrow_mut().pop()
    }
}

impl<T> Drop for Turn<T> {
    fn drop(&mut self) {
        let turns = (self.turns)(&self.of);
        turns.is_busy.set(false);
        if turns.waiters.borrow().is_empty() {
            return;
        }
        // All of them: one whose future is gone would keep the turn from the others.
        let waiters = std::mem::take(&mut *turns.waiters.borrow_mut());
        wake_all(waiters);
    }
}

impl<T> fmt::Debug for Turn<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn").finish_non_exhaustive()
    }
}

/// An operation in its turn. `K` is told what it came to when nobody waits for it any more.
#[derive(Debug)]
pub(super) struct InTurn<T, O, K> {
    operation: O,
    turn: Turn<T>,
    keep: K,
}

impl<T: 'static, O: Operation, K: FnOnce(&T, O::Output) + 'static> InTurn<T, O, K> {
    #[inline(always)]
    pub(super) fn new(operation: O, turn: Turn<T>, keep: K) -> Self {
        Self { operation, turn, keep }
    }
}

// SAFETY: the entry, the class and the descriptor are those of `operation`, whose promise this is: it stays
// where it is as long as the value does, and nothing else here reaches its memory.
unsafe impl<T, O, K> Operation for InTurn<T, O, K>
where
    T: 'static,
    O: Operation,
    K: FnOnce(&T, O::Output) + 'static,
{
    type Output = O::Output;

    #[inline(always)]
    fn class(&self) -> Class {
        self.operation.class()
    }

    #[inline(always)]
    fn entry(&mut self) -> Sqe {
        self.operation.entry()
    }

    #[inline(always)]
    fn has_room(&self) -> bool {
        self.operation.has_room()
    }

    fn initialize(&mut self) {
        self.operation.initialize();
    }

    #[inline(always)]
    fn complete(self, completion: Completion) -> Self::Output {
        self.operation.complete(completion)
    }

    fn dispose(self, completion: Completion) {
        let Self { operation, turn, keep } = self;
        // Nobody waits for news while the turn is taken.
        keep(&turn.of, operation.complete(completion));
    }

    fn lose(&self) -> Option<Waker> {
        self.turn.give_up()
    }

    fn descriptor(&self) -> Option<&Fd> {
        self.operation.descriptor()
    }
}
