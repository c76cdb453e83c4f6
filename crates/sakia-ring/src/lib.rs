//! The io_uring kernel interface of Linux: set up and map a ring, fill entries, enter, reap,
//! register.
//!
//! This crate moves submission entries ([`Sqe`]) to the kernel and completions ([`Cqe`]) back. It does not
//! know operations: the caller has to keep the memory that an entry names, which is why [`Ring::push`] is
//! unsafe. The crate `sakia-driver` takes that over.
//!
//! # Examples
//! Reads a file:
//! ```
//! use std::os::fd::AsRawFd;
//!
//! use sakia_ring::{Cqe, Ring, Sqe};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let file = std::fs::File::open("Cargo.toml")?;
//!     let mut ring = Ring::builder().build()?;
//!     let buf = Box::leak(Box::new([0; 9]));
//!     let read = Sqe::read(file.as_raw_fd(), buf.as_mut_ptr(), 9, 0).user_data(7);
//!     // SAFETY: the memory is never freed, and looked at after the completion only. The file is closed
//!     // after the ring, which has given the entry to the kernel by then or never will.
//!     unsafe { ring.push(read) }.ok_or("the queue is full")?;
//!     ring.enter(1, None)?;
//!
//!     let mut completions = [Cqe::default(); 4];
//!     assert_eq!(ring.reap(&mut completions), 1);
//!     assert_eq!((completions[0].user_data, completions[0].result()?), (7, 9));
//!     assert_eq!(buf, b"[package]");
//!     Ok(())
//! }
//! ```
//!
//! # Contents
//! - [`Builder`] finds the best ring that the kernel grants, by trying, and records each refused feature
//!   ([`SetupReport`]).
//! - [`Ring`] belongs to one thread; a [`DisabledRing`] can be sent to it.
//! - [`SignalMask`] is the set of signals that a wait blocks.
//! - [`BufRing`] is a queue of buffers that the kernel picks from.
//! - [`Host`] makes the system calls, so that an embedder can replace them.
//! - [`CancelTarget`], [`Probe`], [`IowqMaxWorkers`] and others are for methods of [`Ring`] that register.

mod buf_ring;
mod cqe;
mod fork;
mod host;
mod register;
mod ring;
mod setup;
mod shared;
mod signal_mask;
mod sqe;
mod sys;
mod wait;

pub use buf_ring::BufRing;
pub use cqe::{Cqe, CqeFlags};
pub use fork::{PerProcess, Process, Sentinel as ProcessSentinel, may_be_forked};
pub use host::{Host, Kernel};
pub use register::{CancelTarget, IoVec, IowqMaxWorkers, Probe, send_message};
pub use ring::{DisabledRing, Entered, Position, Ring};
pub use setup::{Builder, Restriction, SetupError, SetupReport, SetupStep, disabled_sysctl};
pub use signal_mask::SignalMask;
pub use sqe::{AT_FDCWD, CURRENT_POSITION, Opcode, Sqe, sqe_flags};
pub use sys::{PAGE_BYTES_MAX, Params, system_call};
pub use wait::Timespec;
