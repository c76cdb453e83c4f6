//! Rules and bookkeeping of a socket whose bytes may wait in user space.
//!
//! A layer between a program and the kernel can save calls in two ways. It reads ahead: one call fetches
//! more than the program asked for, and later reads are served from memory ([`ReadAhead`]). It gathers:
//! small writes are put into a queue, and one call sends them ([`WriteQueue`]). Both cost a copy, so both
//! begin only on evidence that they pay, and end with it. As long as bytes wait in memory, the kernel's
//! answers to `poll`, `select` and `epoll_wait` have to be corrected ([`InMemory`], [`Selection`],
//! [`Watch`]).
//!
//! # Examples
//! A read of a socket that has proved to have a backlog:
//! ```
//! use sakia_socket_core::{ReadAhead, ReadPlan};
//!
//! let mut ahead = ReadAhead::new();
//! // 32 small reads, each of which found its buffer's worth.
//! for _ in 0..32 {
//!     assert_eq!(ahead.plan(4), ReadPlan::Direct);
//!     ahead.direct_ended(4, Some(4));
//! }
//! // The next one gives the kernel a second buffer after the caller's.
//! assert_eq!(ahead.plan(4), ReadPlan::Ahead);
//! ahead.begin(vec![0; 8192]);
//! let room = ahead.room();
//! room[..6].copy_from_slice(b"second"); // what `recvmsg` put there: 4 bytes for the caller, 6 here
//! assert_eq!(ahead.ended(4, Some(10)), Ok(4));
//!
//! let mut buffer = [0; 4];
//! assert_eq!(ahead.take(&mut buffer), 4);
//! assert_eq!(&buffer, b"seco");
//! assert_eq!(ahead.len(), 2);
//! ```
//!
//! # Contents
//! - [`ReadAhead`] and its [`ReadPlan`]: reads from memory.
//! - [`WriteQueue`], [`WritePlan`], [`QueueLimits`]: gathered writes. A [`Fifo`] holds the bytes.
//! - [`Events`], [`InMemory`], [`Selection`], [`Watch`], [`Trigger`]: readiness, of the host and in memory.
//!
//! # The caller
//! This crate has the rules only. It makes no system call, takes no lock, allocates no memory and has no
//! dependency, so that a library operating system and a signal handler can use it alike. The caller
//! - keeps each value under a lock of its own, one for each direction,
//! - gives memory when a rule asks for it, and gets it back,
//! - makes the calls that a plan names, without the lock if they may block, and reports their results,
//! - passes the time, as a [`Duration`](core::time::Duration) since any moment that stays the same.
//!
//! The results are not trusted: a count that cannot be true is [`Impossible`], and the connection is to be
//! treated as reset.

#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod ahead;
mod fifo;
mod gather;
mod select;
mod watch;

pub use ahead::{ReadAhead, ReadPlan};
pub use fifo::Fifo;
pub use gather::{QueueLimits, WritePlan, WriteQueue};
pub use select::Selection;
pub use watch::{Events, InMemory, Trigger, Watch};

/// The error for an impossible count of the host: more bytes than there was room for, or than were given to
/// it. The connection is to be treated as reset; nothing was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Impossible;

impl core::fmt::Display for Impossible {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the host reported more bytes than it was given or had room for")
    }
}

impl core::error::Error for Impossible {}
