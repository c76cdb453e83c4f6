//! Sockets with the semantics of POSIX, as a library: for library operating systems and sandboxes, which
//! implement the system calls of unchanged programs.
//!
//! A [`Socket`] behaves as a socket of the kernel does, from any thread, and is one. What the library adds
//! saves calls of a program that moves small pieces:
//! - it *reads ahead*: after small reads that each found a full buffer's worth, one call fetches up to 64
//!   KiB more, and later reads are served from memory;
//! - it *gathers* small writes, if [`Options::gather`] says so: after 8 of them without a wait in between,
//!   more are sent by one call, before the program waits and at most 100 microseconds later.
//!
//! # Examples
//! A server and its client, on sockets of a toy enclave that counts their calls. The server reads 4 bytes at
//! a time: from the 33rd read on most of them are served from memory.
//! ```
//! use std::net::SocketAddr;
//! use std::time::Duration;
//!
//! use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketType};
//! use sakia_socket::{HostCall, Kernel, Layer, Options, ToyEnclave};
//!
//! # fn main() -> rustix::io::Result<()> {
//! let layer = Layer::new(ToyEnclave::new(Kernel, Duration::ZERO), Options::default());
//! let listener = layer.socket(AddressFamily::INET, SocketType::STREAM, None)?;
//! listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())?;
//! listener.listen(16)?;
//!
//! let client = layer.socket(AddressFamily::INET, SocketType::STREAM, None)?;
//! client.connect(&listener.local_address()?)?;
//! let (server, _) = listener.accept()?;
//!
//! client.send(&[7; 4000], SendFlags::empty())?;
//! client.shutdown(Shutdown::Write)?;
//! let mut number = [0; 4];
//! let mut numbers = 0;
//! while server.recv(&mut number, RecvFlags::WAITALL)? == 4 {
//!     numbers += 1;
//! }
//! assert_eq!(numbers, 1000);
//! let calls = layer.host().counts().of(HostCall::Receive);
//! assert!(calls < 50, "{calls} instead of 1001");
//! # Ok(())
//! # }
//! ```
//!
//! # Contents
//! - [`Layer`] makes sockets on a host, as its [`Options`] say. A [`Socket`] is one, and [`sockopt`] has its
//!   options; [`Control`] and [`SendControl`] are control messages.
//! - [`Epoll`], [`PollEntry`], [`SelectEntry`]: waiting for several of them.
//! - [`Host`] makes the calls: [`Kernel`] at once, [`ToyEnclave`] at a cost.
//!
//! The chapter `docs/guide/library-os.md` of the guide has a table of descriptors, and a host of one's own.
//!
//! # Reading ahead and gathering
//! Both stop when they do not pay. Bytes are never reordered, lost or read twice. A program can tell the
//! difference by two things only: bytes that were gathered are lost when the process is killed before they
//! are due, and an error of sending them is reported by the next call.
//!
//! Every call to the kernel goes through a [`Host`]: [`Kernel`] makes it at once, and a library operating
//! system leaves its enclave or sandbox there. Its results are checked, since a host may lie: after a count
//! that cannot be true the connection is reset, for the program and for the peer. [`ToyEnclave`] shows on any
//! machine how many calls leave, and what that costs.
//!
//! # Rules
//! - Sockets of streams that are not of TCP read nothing ahead, since descriptors may come with their bytes.
//! - An error is reported once, by a call or as `SO_ERROR`, behind the bytes that arrived before it. Bytes
//!   that a failed send lost end the stream: a later write is `EPIPE`.
//! - `SO_RCVTIMEO`, `SO_SNDTIMEO` and `SO_LINGER` hold where the library waits or closes, too. Bytes that a
//!   call took stay so, whatever its time.
//! - Bytes are delayed on a connection only, never with flags but `MSG_DONTWAIT` and `MSG_NOSIGNAL`, and
//!   never behind a call with control messages: what is delayed is sent before it.
//! - A flag or an [option](sockopt) that is not known to leave bytes as they are gives the socket to the
//!   kernel for good, behind the bytes in memory. [`Socket::hand_back`] does the same before a call that
//!   this library does not have, such as `sendfile(2)`.
//! - A connection whose peer reads nothing is looked at by the background thread ever less often, up to 64
//!   milliseconds apart, and by no wait of the program unless that asks for room.
//! - A wait that a signal ends is `EINTR` if no byte was moved. Where the library waits itself, for room
//!   behind delayed bytes for one, it does not begin again, whatever `SA_RESTART` says: the implementation of
//!   signals makes the call again.
//! - `SIGPIPE` is raised only if [`Options::broken_pipe`] says so.
//! - Nothing of this library runs in a signal handler, and it installs none.
//!
//! # Readiness
//! [`Layer::poll`], [`Layer::select`] and [`Epoll`] sets know of bytes, errors and delayed writes in memory,
//! which the host does not see. Delayed bytes are sent before each wait. `EPOLLOUT` is for room in the host
//! and in the write queue. A thread that sleeps in one of them is woken when another thread changes what is
//! in memory, by an event descriptor of the host; a read or a write makes no call for that while no thread
//! sleeps.
//!
//! A set of this library has one of the host with the same entries. Each wait asks it, also when an entry
//! is ready in memory, so that neither kind of entry waits for the other. Compared with the kernel alone,
//! an entry with edge trigger may be reported more often, never less; see [`Epoll`].

#![forbid(unsafe_code)]

mod close;
mod control;
mod enclave;
mod epoll;
mod host;
mod kernel;
mod kernel_messages;
mod kernel_options;
mod layer;
mod message;
mod open;
mod option_calls;
mod options;
mod pieces;
mod poll;
mod pump;
mod receive;
mod select;
mod send;
mod set;
mod settings;
mod socket;
pub mod sockopt;
mod wake;

pub use control::{Control, Credentials, Received, ReceivedMessage, SendControl, control_space};
pub use enclave::{EnclaveFd, HostCall, HostCounts, ToyEnclave};
pub use epoll::{Epoll, Pollable};
pub use host::{Entry, EpollChange, EpollEvent, Host};
pub use kernel::Kernel;
pub use layer::Layer;
pub use options::{BrokenPipe, Options, When};
pub use poll::PollEntry;
pub use sakia_socket_core::{Events, QueueLimits, Selection};
pub use select::SelectEntry;
pub use socket::Socket;

/// The guide, whose programs run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/library-os.md")]
mod guide {}
