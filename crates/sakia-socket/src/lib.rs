//! Sockets with the semantics of POSIX, as a library: for whoever implements the system calls of unchanged
//! programs, in a library operating system or a sandbox.
//!
//! A [`Socket`] behaves as a socket of the kernel does, from any thread, and is one. What the library adds
//! saves calls of a program that moves small pieces:
//! - it *reads ahead*: after small reads that each found a full buffer's worth, one call fetches up to 64
//!   KiB more, and later reads are served from memory;
//! - it *gathers* small writes, if [`Options::gather`] says so: after 8 of them without a wait in between,
//!   more are sent by one call, before the program waits and at most 100 microseconds later.
//!
//! Both stop when they do not pay. Bytes are never reordered, lost or read twice. A program can tell the
//! difference by two things only: bytes that were gathered are lost when the process is killed before they
//! are due, and an error of sending them is reported by the next call.
//!
//! Every call to the kernel goes through a [`Host`]: [`Kernel`] makes it at once, and a library operating
//! system leaves its enclave or sandbox there. The results are checked, since a host may lie: a count that
//! cannot be true is `ECONNRESET`. [`ToyEnclave`] shows on any machine how many calls leave, and what that
//! costs.
//!
//! Sockets of streams that are not of TCP read nothing ahead, since descriptors may come with their bytes.
//! Control messages, `epoll` sets and `sendfile` are calls of the host: [`Socket::hand_back`] prepares a
//! socket for them.
//!
//! # Examples
//! ```
//! use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType};
//! use sakia_socket::{Kernel, Layer, Options};
//!
//! # fn main() -> rustix::io::Result<()> {
//! let layer = Layer::new(Kernel, Options::default());
//! let (a, b) = layer.pair(AddressFamily::UNIX, SocketType::STREAM)?;
//! a.send(b"hello", SendFlags::empty())?;
//! let mut buffer = [0; 16];
//! assert_eq!(b.recv(&mut buffer, RecvFlags::empty())?, 5);
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod enclave;
mod host;
mod kernel;
mod layer;
mod open;
mod options;
mod poll;
mod pump;
mod receive;
mod send;
mod socket;

pub use enclave::{EnclaveFd, HostCall, HostCounts, ToyEnclave};
pub use host::{Entry, Host, Received};
pub use kernel::Kernel;
pub use layer::Layer;
pub use options::{Options, When};
pub use poll::PollEntry;
pub use sakia_socket_core::{Events, QueueLimits};
pub use socket::Socket;
