//! The multishot operation of a listener (accept) or of a connection (receive).

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
    /// The operation in flight.
    armed: Cell<Option<Key>>,
    /// It was canceled because enough has come, or because its buffers have an unsuitable size.
    is_paused: Cell<bool>,
    /// The kernel supports single operations only.
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

    /// Starts the operation, which is in flight from now on.
    pub(super) fn start<O: Operation>(&self, driver: &Handle, operation: O) {
        let key = driver.shared.core.borrow_mut().start_detached(operation);
        self.armed.set(Some(key));
        driver.shared.settle_later();
    }

    /// Gives up multishot operations: no more are started.
    pub(super) fn give_up(&self) {
        self.is_single.set(true);
    }

    /// Cancels the operation in flight, if there is one.
    pub(super) fn cancel(&self, driver: &Handle) {
        if let Some(key) = self.armed.get() {
            driver.shared.cancel_by_key(key);
        }
    }

    /// Cancels the operation in flight, whose end is then no error.
    pub(super) fn pause(&self, driver: &Handle) {
        self.is_paused.set(true);
        self.cancel(driver);
    }

    /// Waits until there is something to take (`is_ready`), or the operation in flight ends.
    pub(super) fn poll_ready(&self, is_ready: bool, cx: &mut Context<'_>) -> Poll<()> {
        if is_ready || !self.is_armed() {
            return Poll::Ready(());
        }
        let old = self.waiter.replace(Some(cx.waker().clone()));
        drop(old); // a waker: users' code
        Poll::Pending
    }

    /// Handles a result, which may be enough for now.
    pub(super) fn deliver(&self, is_enough: bool) -> Delivered {
        if is_enough {
            self.is_paused.set(true);
        }
        Delivered { waker: self.waiter.take(), is_enough }
    }

    /// Handles the last completion. Returns its result (none if the next call decides whether to continue),
    /// and the waker of the waiting task.
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

    /// Records that the operation in flight was given up. Returns the waker of the waiting task.
    pub(super) fn lose(&self) -> Option<Waker> {
        self.armed.set(None);
        self.waiter.take()
    }
}
