//! Operations on a ring, and the ownership of their memory.
//!
//! A [`Driver`] performs operations for one thread: reads, writes, opens and so on, each started through a
//! [`Handle`] and awaited as an [`Op`]. It needs no executor: an [`Op`] is a future, and a loop without an
//! executor can ask it directly.
//!
//! # Examples
//! Reads a file, on a ring or, where the machine offers none, on epoll and threads:
//! ```
//! use sakia_driver::{Auto, Driver, Wait};
//!
//! fn main() -> std::io::Result<()> {
//!     let (backend, choice) = Auto::detect()?;
//!     println!("{choice}");
//!     let driver = Driver::new(backend);
//!     let file = driver.adopt(std::fs::File::open("Cargo.toml")?.into());
//!     let mut read = driver.read(&file, vec![0; 9], 0);
//!     let (result, buf) = loop {
//!         driver.turn(Wait::Forever)?;
//!         if let Some(output) = read.try_take() {
//!             break output;
//!         }
//!     };
//!     assert_eq!((result?, &buf[..]), (9, &b"[package]"[..]));
//!     Ok(())
//! }
//! ```
//!
//! # Contents
//! - [`Driver`], [`Handle`], [`Op`], [`Wait`]: operations, and the turns in which they are done.
//! - [`Fd`]: descriptors that stay open as long as an operation needs them.
//! - [`IoBuf`], [`IoBufMut`], [`BufResult`], [`Slice`], [`Room`], [`Converted`]: buffers. [`AlignedBuf`] is
//!   for direct I/O, an [`Arena`] for registered memory.
//! - [`Connection`], [`Incoming`], [`DatagramReceiver`]: streams, listeners and datagrams of which nothing is
//!   lost. [`SocketAddress`] and [`ControlMessages`] go with them.
//! - [`Auto`], [`Uring`], [`Epoll`]: backends. [`Backend`] and [`call`] are for others.
//! - [`Bypass`], [`Rules`], [`MountTable`]: plain calls in place of the queue.
//! - [`calls`], [`FileCalls`], [`PathCalls`]: plain calls that refuse to wait, for code without a driver.
//! - [`Counters`], [`Metrics`], [`Observer`]: what a driver does and did.
//!
//! # Guarantees
//! To safe code, whenever a value is dropped, forgotten or closed:
//! - Memory that the kernel may access is released only after the operation's last completion. If that
//!   does not come before the driver ends, the memory is leaked.
//! - A descriptor stays open, and its number its own, as long as an operation in flight uses it.
//! - An unwanted result is disposed of: if the caller is gone, a newly opened descriptor is closed.
//! - A completion that the driver does not know changes nothing.
//!
//! # Backends
//! The core of it ([`Driver`], slots, admission, cancellation) makes no system call. It runs on a
//! [`Backend`]: [`Uring`] is the kernel's ring, [`Epoll`] is epoll and threads, and [`Auto`] picks the one
//! that the machine offers. The feature `sim` adds a kernel in memory for tests.
//!
//! # Ways
//!
//! Each operation takes one of three ways, and a counter per way counts it ([`KindCounters`]):
//! - The *queue*: an entry of the ring; without a ring, a thread or a wait in epoll. Receives of streams that
//!   go by [readiness](Streams) wait in epoll beside a ring, too.
//! - A *plain call*: a system call, made by the driver's thread at once. A driver makes none until
//!   [`set_bypass`](Handle::set_bypass) sets a [`Rule`] for each kind of operation. The default [`Rules`]
//!   read bytes that the page cache holds, and look up names that the name cache holds, by calls that fail
//!   instead of blocking. On a file system without such calls they are timed, and suspended for a while after
//!   slow ones. A turn makes a limited number of plain calls; further operations go to the queue or wait.
//!   [`without_bypass`](Handle::without_bypass) ignores the rules.
//! - A *lane* of threads ([`Lane`]): the bounded lane for operations that no ring has, the elastic lane for
//!   operations that may wait for ever, such as on network file systems and FUSE. A driver on a ring starts
//!   lanes when it first needs them.
//!
//! [`mounts`](Handle::mounts) has facts about the file systems in use, a [`MountTable`] all mounts of the
//! process. An operation performed as a plain call is done when its start returns: call
//! [`try_take`](Op::try_take) before a turn that may sleep.

mod address;
mod aligned;
mod arena;
mod auto;
mod backend;
mod batch;
mod board;
mod buf;
pub mod call;
pub mod calls;
mod connection;
mod core;
mod counters;
mod decide;
mod descriptors;
mod driver;
mod epoll;
mod event_loop;
mod fd;
mod file_calls;
mod groups;
mod handle;
pub mod inherited;
mod key;
#[doc(hidden)] // for `sakia`, which has its threads for blocking code from here
pub mod lanes;
mod last;
mod later;
mod live;
mod metrics;
mod mounts;
mod observe;
mod operation;
mod ops;
mod path_calls;
mod pool;
mod queue;
mod readable;
mod refusal;
mod request;
#[doc(hidden)] // for `sakia`, which has its signals from here
pub mod signals;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
mod slab;
#[cfg(feature = "startup")]
pub mod startup;
mod stat;
mod sys;
mod transfer;
mod uring;
mod wakers;
mod whole;

pub use address::{Credentials, Domain, ShutdownHow, SocketAddress, SocketType};
pub use aligned::AlignedBuf;
pub use arena::{Arena, FixedBuf, RegisteredBuf};
pub use auto::{Auto, Choice, NoBackend, Policy};
pub use backend::{
    Backend, Calls, Destination, Features, Figures, FileFacts, FileKind, RemoteWake, Takes,
};
pub use board::{Doing, DriverStatus, ObservedOperation, OperationState, TaskOrigin};
pub use buf::{
    Attached, BufResult, BufResultExt, Converted, IoBuf, IoBufMut, MAX_RW_BYTES, Room, Slice,
};
pub use connection::{Connection, Datagram, DatagramOptions, DatagramReceiver, Incoming, RecvBuf};
pub use core::{Attention, Overdue, PlainCall, Wait, WatchLimits};
pub use counters::{Counters, KindCounters, OpKind};
#[doc(hidden)] // for `sakia-copy`, which has no rules of its own
pub use decide::Delays;
#[doc(hidden)] // for the crates above, which take their limits from here
pub use decide::limits;
pub use decide::{
    Attempt, Bypass, CallMode, CallSupport, CrowdFigures, FileHint, Lane, MountFacts, Retry, Route,
    Rule, Rules, Streams, Support,
};
pub use driver::{Drained, Driver};
pub use epoll::{Epoll, EpollOptions, EpollWake, LaneStatistics, StuckWorker};
pub use event_loop::{Full, Loop, LoopWaker, Requests, RequestsEnd, Ticket};
pub use fd::Fd;
pub use file_calls::FileCalls;
pub use handle::{Begun, Handle, Op};
pub use key::Key;
pub use last::LastFd;
pub use later::{LateChoice, Later};
pub use live::{LiveOperation, Stage};
pub use metrics::{Histogram, Metrics};
pub use mounts::{MountEntry, MountTable, RemoteMounts};
pub use observe::Observer;
pub use operation::{Class, Completion, Delivered, Operation};
pub use ops::*;
pub use path_calls::PathCalls;
pub use request::{Buffer, FileHandle, Foreign, Lent, Outcome, Request, Target, Value};
pub use sakia_ring::{CURRENT_POSITION, SignalMask};
#[doc(hidden)] // for `sakia-c`, whose threads block what those of lanes block
pub use sys::signals::without_signals;
pub use transfer::{read_plainly, read_vectored_plainly};
pub use uring::Uring;
#[doc(hidden)] // for `sakia`, which has the same to promise of wakers
pub use wakers::wake_all;
pub use whole::WholeFile;
