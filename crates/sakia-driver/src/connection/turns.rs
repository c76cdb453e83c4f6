//! Whose turn it is in one direction of a connection.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use super::Inner;

/// One direction: busy with an operation, or free.
#[derive(Debug, Default)]
pub(super) struct Turns {
    is_busy: Cell<bool>,
    /// Who is next.
    waiter: RefCell<Option<Waker>>,
}

/// The right to have an operation in flight in one direction, which the operation keeps until the kernel is
/// done with it. Dropping it passes it on.
#[derive(Debug)]
pub(super) struct Turn {
    inner: Rc<Inner>,
    direction: fn(&Inner) -> &Turns,
}

impl Turns {
    /// Waits until nothing is in flight in this direction, without taking the turn.
    pub(super) async fn free(&self) {
        poll_fn(|cx| {
            if !self.is_busy.get() {
                return Poll::Ready(());
            }
            // Cloning and dropping wakers runs users' code, so neither happens within a borrow.
            let fresh = Some(cx.waker().clone());
            let old = std::mem::replace(&mut *self.waiter.borrow_mut(), fresh);
            drop(old);
            Poll::Pending
        })
        .await;
    }
}

impl Turn {
    /// Waits for the turn of the sends.
    pub(super) async fn to_send(inner: &Rc<Inner>) -> Self {
        Self::take(inner, |inner| &inner.sends).await
    }

    /// Waits for the turn of the receives.
    pub(super) async fn to_receive(inner: &Rc<Inner>) -> Self {
        Self::take(inner, |inner| &inner.receives).await
    }

    async fn take(inner: &Rc<Inner>, direction: fn(&Inner) -> &Turns) -> Self {
        let turns = direction(inner);
        turns.free().await;
        turns.is_busy.set(true);
        Self { inner: Rc::clone(inner), direction }
    }

    /// The connection's shared part.
    pub(super) fn inner(&self) -> &Inner {
        &self.inner
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let turns = (self.direction)(&self.inner);
        turns.is_busy.set(false);
        let waiter = turns.waiter.borrow_mut().take();
        if let Some(waiter) = waiter {
            waiter.wake();
        }
    }
}
