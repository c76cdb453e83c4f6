//! Routes of operations: the queue of the backend, a plain system call inline, or a thread of a lane.
//!
//! A ring is not always the cheaper way. One plain call reads cached data for less than the cost of an entry
//! and its completion, and operations that the kernel gives to its workers anyway (buffered writes on most
//! file systems, everything on a file system in memory, metadata queries) cost several times as much on a
//! ring. So for each kind of operation a [`Rule`] names the first attempt. A plain call is made only if it
//! does not wait for a device: either it fails instead of blocking (`RWF_NOWAIT`, `RESOLVE_CACHED`), or it is
//! not known to block, and is timed.
//!
//! The driver learns from calls:
//! - per *file*, in two bits, whether reads find their bytes in the page cache ([`FileHint`]);
//! - per *mount*, from the file system's type and its results, whether it supports non-blocking calls, and
//!   whether plain calls have lately been slow ([`Mount`], [`Breaker`]);
//! - per *thread of a copy*, how long calls took that it made in place of another thread ([`Delays`]).
//!
//! The plain calls of a turn are bounded ([`InlineBudget`]), in number and, while tasks are polled, in time;
//! further ones wait for the next turns, in order.
//!
//! A value belongs to one thread, except a [`FileHint`] and a [`Breaker`], which threads may share.

mod breaker;
mod budget;
mod chooser;
mod crowd;
mod delays;
mod hint;
pub mod limits;
mod mount;
mod streams;

use std::fmt;

use rustix::io::Errno;

pub(crate) use self::breaker::{Breaker, Timing};
pub(crate) use self::budget::InlineBudget;
pub(crate) use self::crowd::Crowd;
pub use self::crowd::CrowdFigures;
pub use self::delays::Delays;
pub use self::hint::{CallSupport, FileHint};
pub(crate) use self::mount::{Mount, Mounts, Place, SharedPlaces, local_route};
pub use self::mount::{MountFacts, Support};
pub(crate) use self::streams::StreamState;
pub use self::streams::Streams;
use crate::counters::OpKind;

/// The choice between plain calls and the queue.
///
/// # Examples
/// See [`Handle::set_bypass`](crate::Handle::set_bypass).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "a driver has one, which is looked at and not moved")]
pub enum Bypass {
    /// No plain calls, as long as the queue can do the operation. Streams have a setting of their own:
    /// [`Streams`].
    #[default]
    Never,
    /// By a rule for each kind of operation.
    Rules(Rules),
}

/// The first attempt at operations of one kind.
///
/// # Examples
/// See [`Handle::set_bypass`](crate::Handle::set_bypass).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// A plain call is tried before the queue.
    pub tries_now: bool,
    /// Maximum number of bytes for a plain call: the copy of more would delay other tasks.
    pub bytes_max: u32,
}

impl Rule {
    /// Always the queue.
    pub const QUEUE: Self = Self { tries_now: false, bytes_max: 0 };
    /// Always a plain call first.
    pub const NOW: Self = Self { tries_now: true, bytes_max: u32::MAX };
    /// A plain call first for up to 64 KiB.
    pub const SMALL: Self = Self { tries_now: true, bytes_max: limits::CALL_BYTES as u32 };

    /// Returns the route of a call that is always short.
    pub(crate) fn route_short_call(self) -> Route {
        if self.tries_now { Route::Now(CallMode::Blocking) } else { Route::Queue }
    }
}

/// Returns whether a durable write is made in two steps, a plain write and a sync of its range.
/// `makes_calls`: the backend makes calls on threads. `is_file`: writes to the descriptor end by themselves.
///
/// A ring's kernel performs the writes of a file that it gives to its workers one after the other, and so
/// each durable one waits for its own commit of the file system; several syncs at once share one. Threads
/// make several durable writes of a file at once, by one call each.
pub(crate) fn splits_durable_writes(makes_calls: bool, is_file: bool) -> bool {
    !makes_calls && is_file
}

/// A rule for each kind of operation.
///
/// # Examples
/// See [`Handle::set_bypass`](crate::Handle::set_bypass).
#[derive(Clone, PartialEq, Eq)]
pub struct Rules {
    by_kind: [Rule; OpKind::COUNT],
}

/// The measured rules; see `PLATFORM.md` for their effect by file system. Kinds without a rule here go to the
/// queue.
const MEASURED: &[(OpKind, Rule)] = &[
    // Cached data is copied for less than the cost of an entry. Uncached data is refused, with read-ahead
    // begun.
    (OpKind::Read, Rule::SMALL),
    // A ring gives these to a worker, unless the file system supports non-blocking calls.
    (OpKind::Write, Rule::SMALL),
    // The lookup succeeds from the cache, or fails at once.
    (OpKind::Open, Rule::NOW),
    // A ring always gives queries to a worker.
    (OpKind::Statx, Rule::NOW),
    // A ring always gives these to a worker, too. In memory they are short.
    (OpKind::Mkdir, Rule::NOW),
    (OpKind::Copy, Rule::SMALL),
    // Closing is the same work on the same thread either way.
    (OpKind::Close, Rule::NOW),
    // No ring has an entry for listing.
    (OpKind::List, Rule::NOW),
    (OpKind::SendFile, Rule::NOW),
    // A ring gives some advice to a worker; all of it is short.
    (OpKind::Advise, Rule::NOW),
    // Short, and independent of other programs.
    (OpKind::Socket, Rule::NOW),
    // Batches of datagrams, by one call for many. All other receives go to the queue, whatever this rule
    // says.
    (OpKind::Recv, Rule::NOW),
    (OpKind::Send, Rule::NOW),
];

impl Default for Rules {
    /// Returns the measured rules.
    fn default() -> Self {
        let mut by_kind = [Rule::QUEUE; OpKind::COUNT];
        for &(kind, rule) in MEASURED {
            by_kind[kind as usize] = rule;
        }
        Self { by_kind }
    }
}

impl Rules {
    /// Returns the rule for one kind.
    ///
    /// # Examples
    /// See [`Rules::with`].
    #[inline(always)]
    pub fn of(&self, kind: OpKind) -> Rule {
        self.by_kind[kind as usize]
    }

    /// Replaces the rule of one kind.
    ///
    /// # Examples
    /// ```
    /// use sakia_driver::{OpKind, Rule, Rules};
    ///
    /// let rules = Rules::default().with(OpKind::Write, Rule::QUEUE).with(OpKind::Read, Rule::SMALL);
    /// assert!(!rules.of(OpKind::Write).tries_now);
    /// assert_eq!(rules.of(OpKind::Read).bytes_max, 64 << 10);
    /// ```
    #[must_use]
    pub fn with(mut self, kind: OpKind, rule: Rule) -> Self {
        self.by_kind[kind as usize] = rule;
        self
    }

    /// Rules that send all operations to the queue.
    pub(crate) const NONE: Self = Self { by_kind: [Rule::QUEUE; OpKind::COUNT] };
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = OpKind::ALL.iter().map(|&kind| (kind.name(), self.of(kind)));
        f.debug_map().entries(kinds).finish()
    }
}

/// Permission of a plain call to block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallMode {
    /// It fails if it would have to wait: for a device, or for another program.
    NonBlocking,
    /// It may block.
    Blocking,
}

/// The result of a plain call: that of a completion, or another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt<T = i32> {
    /// The call was made, with this result.
    Done(T),
    /// The call would have blocked; nothing was done.
    WouldBlock,
    /// The kernel, the file or the backend has no such call; nothing was done.
    Unsupported,
}

impl<T> Attempt<T> {
    /// Classifies the result of a call that refuses to wait. One that a signal interrupted has done nothing,
    /// and counts as one that would block. A refusal by the kernel, a file or a filter may concern the way of
    /// the call, so another way has to tell whether it concerns the operation.
    ///
    /// # Errors
    /// Those of the operation itself.
    ///
    /// # Examples
    /// ```
    /// use rustix::io::Errno;
    /// use sakia_driver::Attempt;
    ///
    /// assert_eq!(Attempt::of(Ok(9)), Ok(Attempt::Done(9)));
    /// assert_eq!(Attempt::<usize>::of(Err(Errno::AGAIN)), Ok(Attempt::WouldBlock));
    /// assert_eq!(Attempt::<usize>::of(Err(Errno::OPNOTSUPP)), Ok(Attempt::Unsupported));
    /// assert_eq!(Attempt::<usize>::of(Err(Errno::IO)), Err(Errno::IO));
    /// ```
    #[inline]
    pub fn of(result: Result<T, Errno>) -> Result<Self, Errno> {
        match result {
            Ok(value) => Ok(Self::Done(value)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(Self::WouldBlock),
            Err(
                Errno::OPNOTSUPP
                | Errno::NOSYS
                | Errno::INVAL
                | Errno::PERM
                | Errno::SPIPE
                | Errno::TOOBIG,
            ) => Ok(Self::Unsupported),
            Err(errno) => Err(errno),
        }
    }

    /// Returns the result of a call that was made.
    #[inline]
    pub(crate) fn done(self) -> Option<T> {
        if let Self::Done(value) = self { Some(value) } else { None }
    }

    /// Returns the next attempt: the queue, unless the call was made.
    pub(crate) fn or_queue(self) -> Retry {
        if matches!(self, Self::Done(_)) { Retry::No } else { Retry::InQueue }
    }

    /// Converts the result of a call that was made.
    ///
    /// # Examples
    /// ```
    /// use sakia_driver::Attempt;
    ///
    /// assert_eq!(Attempt::Done(9).map(|count| count > 0), Attempt::Done(true));
    /// ```
    #[inline]
    pub fn map<U>(self, convert: impl FnOnce(T) -> U) -> Attempt<U> {
        match self {
            Self::Done(value) => Attempt::Done(convert(value)),
            Self::WouldBlock => Attempt::WouldBlock,
            Self::Unsupported => Attempt::Unsupported,
        }
    }
}

/// The next attempt after a plain call that has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// None: the operation has its result.
    No,
    /// The operation goes into the queue.
    InQueue,
    /// Another plain call is made.
    Call(CallMode),
}

/// The route of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Into the backend's queue.
    Queue,
    /// A plain call.
    Now(CallMode),
    /// To a thread.
    Lane(Lane),
    /// To the backend's epoll set, which reports when plain calls will not block.
    Readiness,
    /// Nowhere: the file refuses it, whatever its memory.
    #[doc(hidden)]
    Refused(Refusal),
}

/// The errno with which a file refuses a transfer.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// `ESPIPE`: it has no positions.
    Offset,
    /// `EBADF`: it was not opened for it.
    Access,
    /// `EINVAL`: it has no such transfers, or no file has such an offset.
    Kind,
}

impl Refusal {
    /// Returns the refusal with this errno, which is one of the three.
    pub(crate) fn of(errno: Errno) -> Self {
        match errno {
            Errno::SPIPE => Self::Offset,
            Errno::BADF => Self::Access,
            _ => Self::Kind,
        }
    }

    pub(crate) fn errno(self) -> Errno {
        match self {
            Self::Offset => Errno::SPIPE,
            Self::Access => Errno::BADF,
            Self::Kind => Errno::INVAL,
        }
    }
}

/// A queue of work with its own threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// For work that ends by itself: files, metadata.
    Bounded = 0,
    /// For work that may block for ever: opening FIFOs and terminals, waiting for locks.
    Elastic = 1,
}

impl Lane {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Bounded, Self::Elastic];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_can_be_changed_one_by_one() {
        let rules = Rules::default().with(OpKind::Write, Rule::QUEUE);
        assert!(rules.of(OpKind::Read).tries_now);
        assert!(!rules.of(OpKind::Write).tries_now);
        assert!(!rules.of(OpKind::Fsync).tries_now);
    }
}
