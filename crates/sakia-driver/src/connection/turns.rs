//! Whose turn it is, where one operation at a time is to be in flight.
//!
//! Two types: [`Turns`] are busy or free, and a [`Turn`] is the right to have an operation in flight. It is
//! part of that operation, as [`InTurn`], so that it passes on when the kernel is done, also where the future
//! is long gone.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Wake, Waker};

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
        if turns(of).is_busy.get() {
            turns(of).free().await;
        }
        turns(of).is_busy.set(true);
        Self { of: Rc::clone(of), turns }
    }

    /// Passes it on although the operation is not over: there will be no other one that it could meet.
    /// Answers with what wakes all that wait: the future of one may be gone.
    pub(super) fn give_up(&self) -> Option<Waker> {
        let turns = (self.turns)(&self.of);
        turns.is_busy.set(false);
        let waiters = std::mem::take(&mut *turns.waiters.borrow_mut());
        (!waiters.is_empty()).then(|| Waker::from(Arc::new(All(waiters))))
    }
}

/// Several wakers as one.
struct All(Vec<Waker>);

impl Wake for All {
    fn wake(self: Arc<Self>) {
        wake_all(self.0.iter().cloned());
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

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Context;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_turn_that_is_given_up_wakes_those_that_still_wait() {
        let turns = Rc::new(Turns::default());
        turns.is_busy.set(true);
        let turn = Turn { of: Rc::clone(&turns), turns: |turns| turns };
        let counts: [Arc<Count>; 3] = Default::default();
        let wakers = counts.clone().map(Waker::from);
        let mut waits = pin!(turns.free());
        assert!(waits.as_mut().poll(&mut Context::from_waker(&wakers[0])).is_pending());
        for waker in &wakers[1..] {
            // Gone at once, and with a waker that stays.
            assert!(pin!(turns.free()).poll(&mut Context::from_waker(waker)).is_pending());
        }
        turn.give_up().expect("there are some").wake();
        assert_eq!(counts[0].0.load(Ordering::Relaxed), 1);
        assert!(waits.poll(&mut Context::from_waker(&wakers[0])).is_ready());
        assert!(turn.give_up().is_none());
    }
}
