//! The mode in which streams receive and send: by the queue, or by readiness and plain calls.
//!
//! A ring receives when bytes come, and sends with its next enter: two thirtieths of a system call for each
//! message of 64 connections. An epoll set reports which connections are ready, and each message is two plain
//! calls. The queue is the default: of its processor time per message, readiness took 0.87 to 1.39 on the
//! processors that were measured, and learning which is cheaper cost more than it won, since each connection
//! changes its mode for each comparison.
//!
//! A connection changes its mode when its next message comes.

use std::cell::Cell;

/// The mode in which the connections of a driver receive and send.
///
/// # Examples
/// See [`Handle::set_streams`](crate::Handle::set_streams).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Streams {
    /// By operations of the queue.
    #[default]
    Queue,
    /// By an epoll set, which reports connections that are ready, and plain calls. Only beside a ring of the
    /// kernel; elsewhere as `Queue`.
    Readiness,
}

impl Streams {
    /// Both modes, in the order of their numbers.
    pub(crate) const ALL: [Self; 2] = [Self::Queue, Self::Readiness];

    /// Returns the mode with this name: `queue` or `readiness`.
    ///
    /// # Examples
    /// ```
    /// use sakia_driver::Streams;
    ///
    /// assert_eq!(Streams::from_name("readiness"), Some(Streams::Readiness));
    /// assert_eq!(Streams::from_name("fast"), None);
    /// ```
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|streams| streams.name() == name)
    }

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Readiness => "readiness",
        }
    }
}

/// The mode of a driver's streams, and what its pools of buffers share beside it.
#[derive(Debug, Default)]
pub(crate) struct StreamState {
    /// The mode of new receives.
    pub(crate) mode: Cell<Streams>,
    /// Set if there are free buffers that the backend could have.
    pub(crate) has_work: Cell<bool>,
    /// The number of turns of the driver, which wraps around.
    pub(crate) turn: Cell<u32>,
}
