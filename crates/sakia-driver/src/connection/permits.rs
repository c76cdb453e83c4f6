//! Permits for one operation at a time.
//!
//! [`Permits`] has one permit, which is taken or free. A [`Permit`] is the right to have an operation in
//! flight. The operation holds the permit, as [`WithPermit`]. So the permit is given back when the kernel is
//! done with the operation, even if the future was dropped before.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use sakia_ring::Sqe;

use crate::call::Call;
use crate::counters::OpKind;
use crate::decide::{Attempt, CallMode, Mount, Retry, Route, Rules};
use crate::fd::Fd;
use crate::operation::{Class, Completion, Operation};
use crate::wakers::{united, wake_all};

/// A permit: taken by an operation, or free.
#[derive(Default)]
pub(super) struct Permits {
    is_busy: Cell<bool>,
    /// Wakers of tasks that wait for the permit; few, if any.
    waiters: RefCell<Vec<Waker>>,
}

/// The right to have an operation in flight, which the operation keeps until the kernel is done with it.
/// Dropping it gives it back. It keeps a `T`, which has the permits.
pub(super) struct Permit<T> {
    of: Rc<T>,
    permits: fn(&T) -> &Permits,
}

impl Permits {
    pub(super) fn is_busy(&self) -> bool {
        self.is_busy.get()
    }

    /// Waits until nothing is in flight, without taking the permit.
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

impl<T> Permit<T> {
    /// Takes the permit if it is free. Callers try this before they await [`take`](Permit::take), which costs
    /// a state of their future.
    #[inline(always)]
    pub(super) fn try_take(of: &Rc<T>, permits: fn(&T) -> &Permits) -> Option<Self> {
        let was_busy = permits(of).is_busy.replace(true);
        (!was_busy).then(|| Self { of: Rc::clone(of), permits })
    }

    /// Waits for the permit.
    pub(super) async fn take(of: &Rc<T>, permits: fn(&T) -> &Permits) -> Self {
        loop {
            match Self::try_take(of, permits) {
                Some(permit) => return permit,
                None => permits(of).free().await,
            }
        }
    }

    /// Gives the permit back although the operation has not ended: no later operation will overlap with
    /// it. Returns a waker that wakes all waiting tasks: the future of one may be gone.
    pub(super) fn give_up(&self) -> Option<Waker> {
        united(self.give_back())
    }

    /// Returns the wakers of all waiting tasks: one whose future is gone would keep the permit from the
    /// others.
    fn give_back(&self) -> Vec<Waker> {
        let permits = (self.permits)(&self.of);
        permits.is_busy.set(false);
        permits.waiters.take()
    }
}

impl<T> Drop for Permit<T> {
    fn drop(&mut self) {
        let waiters = self.give_back();
        if !waiters.is_empty() {
            wake_all(waiters);
        }
    }
}

/// An operation with its permit. `K` receives the result if the caller is gone.
pub(super) struct WithPermit<T, O, K> {
    operation: O,
    permit: Permit<T>,
    keep: K,
}

impl<T: 'static, O: Operation, K: FnOnce(&T, O::Output) + 'static> WithPermit<T, O, K> {
    #[inline(always)]
    pub(super) fn new(operation: O, permit: Permit<T>, keep: K) -> Self {
        Self { operation, permit, keep }
    }
}

// SAFETY: the entry, the class and the descriptor are those of `operation`, whose promise this is: it stays
// in place as long as the value does, and nothing else here reaches its memory.
unsafe impl<T, O, K> Operation for WithPermit<T, O, K>
where
    T: 'static,
    O: Operation,
    K: FnOnce(&T, O::Output) + 'static,
{
    type Output = O::Output;
    const KIND: OpKind = O::KIND;

    #[inline(always)]
    fn class(&self) -> Class {
        self.operation.class()
    }

    #[inline(always)]
    fn entry(&mut self) -> Option<Sqe> {
        self.operation.entry()
    }

    #[inline(always)]
    fn call(&mut self) -> Call {
        self.operation.call()
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
        let Self { operation, permit, keep } = self;
        // No task waits for readiness while the permit is taken.
        keep(&permit.of, operation.complete(completion));
    }

    fn lose(&self) -> Option<Waker> {
        self.permit.give_up()
    }

    fn descriptor(&self) -> Option<&Fd> {
        self.operation.descriptor()
    }

    #[inline(always)]
    fn route(&self, rules: &Rules) -> Route {
        self.operation.route(rules)
    }

    fn classify(&self, mode: CallMode, attempt: Attempt) -> Retry {
        self.operation.classify(mode, attempt)
    }

    fn mount(&self) -> Option<&Rc<Mount>> {
        self.operation.mount()
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::{Context, Wake};

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
        let permits = Rc::new(Permits::default());
        permits.is_busy.set(true);
        let permit = Permit { of: Rc::clone(&permits), permits: |permits| permits };
        let counts: [Arc<Count>; 3] = Default::default();
        let wakers = counts.clone().map(Waker::from);
        let mut waits = pin!(permits.free());
        assert!(waits.as_mut().poll(&mut Context::from_waker(&wakers[0])).is_pending());
        for waker in &wakers[1..] {
            // A future that is dropped at once, with a waker that stays.
            assert!(pin!(permits.free()).poll(&mut Context::from_waker(waker)).is_pending());
        }
        permit.give_up().expect("there are some").wake();
        assert_eq!(counts[0].0.load(Ordering::Relaxed), 1);
        assert!(waits.poll(&mut Context::from_waker(&wakers[0])).is_ready());
        assert!(permit.give_up().is_none());
    }
}
