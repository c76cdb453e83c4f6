//! Watching a driver: the driver's own thread's side, and the side of other threads.

use std::sync::Arc;
use std::time::Duration;

use crate::board::{Board, Doing, DriverStatus, ObservedOperation};
use crate::core::{Overdue, PlainCall, WatchLimits};
use crate::driver::Driver;

/// Reads a watched driver's state, on any thread, even while the driver's own thread is stuck in users' code
/// or in a system call. From [`Driver::watch`].
///
/// No method waits, or disturbs the driver's thread. After the driver's end they return the last state.
///
/// # Examples
/// See [`Driver::watch`](crate::Driver::watch).
#[derive(Clone, Debug)]
pub struct Observer {
    board: Arc<Board>,
    is_of_this_process: bool,
}

impl Observer {
    /// Returns the operations that are under way, oldest first. Each is as of one moment, but different ones
    /// may be as of different moments.
    ///
    /// # Examples
    /// See [`Driver::watch`](crate::Driver::watch).
    pub fn operations(&self) -> Vec<ObservedOperation> {
        self.board.operations().0
    }

    /// Returns the operations, and the number of others that changed too often to be read.
    pub fn operations_and_unread(&self) -> (Vec<ObservedOperation>, u32) {
        self.board.operations()
    }

    /// Returns the thread's activity and its age, as its loop has set it by [`Driver::set_doing`]. `None` if
    /// it changes during each attempt to read it.
    pub fn doing(&self) -> Option<(Doing, Duration)> {
        self.board.doing()
    }

    /// Returns the driver's numbers as of its last turn. `None` if they change during each attempt to read
    /// them.
    pub fn status(&self) -> Option<DriverStatus> {
        self.board.status()
    }

    /// Returns whether descriptors are those of this process; the simulated kernel has its own numbers.
    pub fn descriptors_are_of_this_process(&self) -> bool {
        self.is_of_this_process
    }

    /// Returns whether the driver has ended.
    pub fn has_ended(&self) -> bool {
        self.board.has_ended()
    }
}

impl Driver {
    /// Makes the driver show its activity to other threads from now on, and report operations that take
    /// longer than `limits`; see [`find_overdue`](Driver::find_overdue). Operations that were started before
    /// are not shown. A second call changes the limits.
    ///
    /// It costs two readings of the clock for each operation, and a little more.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// use sakia_driver::{Driver, Epoll, OperationState, Wait, WatchLimits};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let driver = Driver::new(Epoll::new()?);
    /// let observer = driver.watch(WatchLimits::default());
    /// let (reader, _writer) = std::io::pipe()?;
    /// let reader = driver.adopt(reader.into());
    /// let read = driver.read(&reader, vec![0; 1], sakia_driver::CURRENT_POSITION);
    /// driver.turn(Wait::Poll)?;
    /// driver.publish();
    /// let seen = std::thread::spawn(move || observer.operations()).join().expect("no panic");
    /// assert_eq!(seen.len(), 1);
    /// assert_eq!(seen[0].state, OperationState::Submitted);
    /// assert!(!seen[0].is_bounded, "a pipe may wait for ever");
    /// # drop(read);
    /// # Ok(())
    /// # }
    /// ```
    pub fn watch(&self, limits: WatchLimits) -> Observer {
        let shared = &self.handle().shared;
        let is_of_this_process = shared.calls.are_of_this_process();
        let board = shared.core.borrow_mut().watch(limits, !is_of_this_process);
        Observer { board, is_of_this_process }
    }

    /// Notes the thread's activity from now on, and the task for which operations are started, if the driver
    /// is watched. `now` is [the driver's time](Driver::now).
    pub fn set_doing(&self, doing: Doing, now: Duration) {
        self.handle().shared.core.borrow_mut().set_doing(doing, now);
    }

    /// Publishes the driver's numbers and the progress of its queue, if it is watched. To be called before
    /// and after a turn.
    ///
    /// # Examples
    /// See [`Driver::watch`](crate::Driver::watch).
    pub fn publish(&self) {
        self.handle().shared.core.borrow_mut().publish();
    }

    /// Returns the driver's numbers as of now. Only watched drivers count
    /// [`turns_total`](DriverStatus::turns_total).
    pub fn status(&self) -> DriverStatus {
        self.handle().shared.core.borrow().status()
    }

    /// Returns the longest plain call since the last call of this method, if the driver is watched.
    pub fn longest_plain_call(&self) -> Option<PlainCall> {
        self.handle().shared.core.borrow_mut().longest_plain_call()
    }

    /// Adds the operations to `found` that have become overdue by the limits given to
    /// [`watch`](Driver::watch), each once for each limit. Returns the time until another may become overdue,
    /// so that a turn sleeps no longer than that; `None` if none under way can.
    pub fn find_overdue(&self, found: &mut Vec<Overdue>) -> Option<Duration> {
        self.handle().shared.core.borrow_mut().find_overdue(found)
    }
}
