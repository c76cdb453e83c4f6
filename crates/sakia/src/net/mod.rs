//! Network connections: the names and the meaning of [`std::net`], and additions for asynchronous programs.
//!
//! - [`TcpListener`] accepts connections, [`TcpStream`] is one; [`ListenOptions`] and [`ConnectOptions`] have
//!   their settings. [`serve`] runs a handler for each connection, with bounds and an orderly end.
//! - [`UnixListener`] and [`UnixStream`] are the same within the machine, and pass descriptors and
//!   credentials as [`ControlMessages`].
//! - [`OwnedReadHalf`] and [`OwnedWriteHalf`] are a stream's directions, for two tasks, or for a
//!   [`Reader`](crate::io::Reader) and a [`Writer`](crate::io::Writer); [`ReadHalf`] and [`WriteHalf`] borrow
//!   the stream.
//! - [`TcpStream::send_file`], and the same method of the others, sends a file without reading it.
//! - [`UdpSocket`] and [`UnixDatagram`] send and receive datagrams, one by one or in batches, and with
//!   control messages. [`UdpOptions`] has the settings for binding.
//! - [`lookup_host`] and [`ToSocketAddrs`]: addresses, and names that are looked up on other threads.
//! - [`Activation`]: sockets that a service manager opened.
//!
//! Buffers go in by value and come back with the result, on error too: the kernel has them meanwhile, even if
//! the future is dropped. [`TcpStream::recv`] and [`UdpSocket::recv_datagram`] need none: their results lie
//! in memory of the runtime.
//!
//! An operation on an address or a name fails with an [`Error`], the same as in [`fs`](crate::fs), that names
//! both; `?` turns it into an [`std::io::Error`]. Errors of an open connection are the kernel's.
//! [`os_error`] finds the errno in either.
//!
//! All of it belongs to the runtime thread on which it was made, and never blocks that thread.
//!
//! On the [simulated kernel](crate::sim) there is a loopback network, without options: setting an option that
//! changes the speed of transfers, or the time at which an absent peer is noticed (`nodelay`, `reuse_addr`,
//! `keepalive`, `ttl`, sizes of buffers and the like), has no effect there. Setting any other option, or
//! reading one, fails with `EOPNOTSUPP`.

mod activation;
mod datagram;
mod kept;
mod listener;
mod lookup;
mod options;
mod received;
mod send_file;
mod sends;
mod serve;
mod socket;
mod sockopt;
mod split;
mod stream;
mod transfer;
mod udp;
mod udp_errors;
mod udp_options;
mod unix;
mod unix_datagram;

pub use activation::Activation;
pub use listener::{Listener, TcpListener};
pub use lookup::{ToSocketAddrs, lookup_host};
pub use options::{ConnectOptions, ListenOptions};
pub use received::{Datagram, Received};
pub use sakia_driver::{ControlMessage, ControlMessages, PacketInfo, ReceivedControl, RecvBuf};
pub use serve::{ServeError, ServeFailed, ServeOptions, Served, serve};
pub use socket::Stream;
use socket::private::Address;
pub use sockopt::Keepalive;
pub(crate) use split::into_halves;
pub use split::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, WriteHalf};
pub use stream::TcpStream;
use transfer::{addresses, async_read, async_writes, readers, writers};
pub use udp::UdpSocket;
pub use udp_errors::{UdpError, UdpErrorOrigin};
pub use udp_options::UdpOptions;
pub use unix::{UCred, UnixListener, UnixStream};
pub use unix_datagram::UnixDatagram;

pub use crate::error::{Error, Result, os_error};
