//! Watching a driver: its own thread's side, and the other threads'.

use std::sync::Arc;
use std::time::Duration;

use crate::board::{Board, Doing, DriverStatus, ObservedOperation};
use crate::core::{Overdue, PlainCall, WatchLimits};
use crate::driver::Driver;

/// Reads the state that a driver shows, on any thread, also while the driver's own thread is stuck in users'
/// code or in a system call. From [`Driver::watch`].
///
/// Nothing here waits, and the driver's thread does not notice. After the driver's end it shows the last
/// state.
///
/// # Examples
/// See [`Driver::watch`](crate::Driver::watch).
#[derive(Clone, Debug)]
pub struct Observer {
    board: Arc<Board>,
    is_of_this_process: bool,
}

impl Observer {
    /// The operations that are under way, oldest first. Each is as it was at one moment, but not all at the
    /// same.
    ///
    /// # Examples
    /// See [`Driver::watch`](crate::Driver::watch).
    pub fn operations(&self) -> Vec<ObservedOperation> {
        self.board.operations().0
    }

    /// The same, and how many others changed so often meanwhile that they could not be read.
    pub fn operations_and_unread(&self) -> (Vec<ObservedOperation>, u32) {
        self.board.operations()
    }

    /// Returns the thread's activity and its age, as its loop has set it by [`Driver::set_doing`]. `None` if
    /// that changes during each attempt to read it.
    pub fn doing(&self) -> Option<(Doing, Duration)> {
        self.board.doing()
    }

    /// The driver's numbers as of its last turn. `None` when they change all the time.
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
    /// Has the driver show its activity to others from now on, and report operations that take longer than
    /// `limits`; see [`find_overdue`](Driver::find_overdue). Operations that were started before are not
    /// shown. Called again it changes the limits.
    ///
    /// It costs time: two looks at the clock for each operation, and some more.
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
        let is_of_this_process = shared.descriptors.are_of_this_process();
        let board = shared.core.borrow_mut().watch(limits, !is_of_this_process);
        Observer { board, is_of_this_process }
    }

    /// Notes the thread's activity from now on, and the task for which operations are started, if the driver
    /// is watched. `now` is [the driver's time](Driver::now).
    pub fn set_doing(&self, doing: Doing, now: Duration) {
        self.handle().shared.core.borrow_mut().set_doing(doing, now);
    }

    /// Shows others the driver's numbers, if it is watched, and which entries the kernel was given. To be
    /// called before and after a turn.
    ///
    /// # Examples
    /// See [`Driver::watch`](crate::Driver::watch).
    pub fn publish(&self) {
        self.handle().shared.core.borrow_mut().publish();
    }

    /// The driver's numbers as they are. [`turns_total`](DriverStatus::turns_total) is that of watched
    /// drivers only.
    pub fn status(&self) -> DriverStatus {
        self.handle().shared.core.borrow().status()
    }

    /// The plain call that took longest since this was last asked for, if the driver is watched.
    pub fn longest_plain_call(&self) -> Option<PlainCall> {
        self.handle().shared.core.borrow_mut().longest_plain_call()
    }

    /// Adds the operations to `found` that have become overdue by the limits given to
    /// [`watch`](Driver::watch), each once for each limit. Returns how long it takes until another may be,
    /// so that a turn sleeps no longer than that; `None` while nothing is under way that could.
    pub fn find_overdue(&self, found: &mut Vec<Overdue>) -> Option<Duration> {
        self.handle().shared.core.borrow_mut().find_overdue(found)
    }
}
