//! The operation that goes on by itself: the accept of a listener, the receive of a connection.

use std::cell::Cell;
use std::io;
use std::task::{Context, Poll, Waker};

use rustix::io::Errno;

use crate::handle::Handle;
use crate::key::Key;
use crate::operation::{Completion, Delivered, Operation};

/// The multishot operation in flight, and the waker of the task that waits for its results.
#[derive(Default)]
pub(super) struct Multishot {
    /// The one in flight.
    armed: Cell<Option<Key>>,
    /// It was told to stop, since enough has come, or in an unsuitable size.
    is_paused: Cell<bool>,
    /// The kernel does one at a time only.
    is_single: Cell<bool>,
    /// The waker of the task that waits for data.
    waiter: Cell<Option<Waker>>,
}

impl Multishot {
    pub(super) fn is_armed(&self) -> bool {
        self.armed.get().is_some()
    }

    pub(super) fn is_single(&self) -> bool {
        self.is_single.get()
    }

    /// Starts it. From now on it is in flight.
    pub(super) fn start<O: Operation>(&self, driver: &Handle, operation: O) {
        let key = driver.shared.core.borrow_mut().start_detached(operation);
        self.armed.set(Some(key));
        driver.shared.settle_later();
    }

    /// None is started any more.
    pub(super) fn give_up(&self) {
        self.is_single.set(true);
    }

    /// Cancels the one in flight, if there is one.
    pub(super) fn cancel(&self, driver: &Handle) {
        if let Some(key) = self.armed.get() {
            driver.shared.cancel_by_key(key);
        }
    }

    /// The same, and its end is no error then. One is in flight.
    pub(super) fn pause(&self, driver: &Handle) {
        self.is_paused.set(true);
        self.cancel(driver);
    }

    /// Waits until there is something to take, which the caller says, or the one in flight ends.
    pub(super) fn poll_ready(&self, is_ready: bool, cx: &mut Context<'_>) -> Poll<()> {
        if is_ready || !self.is_armed() {
            return Poll::Ready(());
        }
        let old = self.waiter.replace(Some(cx.waker().clone()));
        drop(old); // users' code
        Poll::Pending
    }

    /// Something has come, perhaps enough for now.
    pub(super) fn deliver(&self, is_enough: bool) -> Delivered {
        if is_enough {
            self.is_paused.set(true);
        }
        Delivered { waker: self.waiter.take(), is_enough }
    }

    /// The last completion has come. Returns its result, which is none if the next call decides whether to go
    /// on, and the waker of the waiting task.
    pub(super) fn end(&self, completion: Completion) -> (io::Result<Option<u32>>, Option<Waker>) {
        let is_paused = self.is_paused.take();
        let failed = |error| match Errno::from_io_error(&error) {
            Some(Errno::INTR | Errno::AGAIN) => Ok(None),
            Some(Errno::CANCELED) if is_paused => Ok(None),
            Some(Errno::INVAL) if !self.is_single.replace(true) => Ok(None),
            _ => Err(error),
        };
        (completion.result().map(Some).or_else(failed), self.lose())
    }

    /// None is in flight any more. Returns the waker of the waiting task.
    pub(super) fn lose(&self) -> Option<Waker> {
        self.armed.set(None);
        self.waiter.take()
    }
}
