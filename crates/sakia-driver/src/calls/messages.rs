//! Transfers of a socket that refuse to wait: those with `MSG_DONTWAIT`.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::net::sockopt::socket_type;
use rustix::net::{RecvFlags, SendFlags, SocketType};

use crate::decide::{Attempt, limits};
use crate::sys::retry;

/// Receives what has arrived. `flags` are `MSG_*`.
///
/// # Errors
/// As `recv(2)`, except what [`Attempt`] says.
pub(crate) fn recv_nowait(
    fd: BorrowedFd<'_>,
    buf: &mut [u8],
    flags: u32,
) -> Result<Attempt<usize>, Errno> {
    let flags = RecvFlags::from_bits_retain(flags) | RecvFlags::DONTWAIT;
    let len = len_at_once(fd, buf.len());
    let received = retry(|| rustix::net::recv(fd, &mut buf[..len], flags));
    unless_it_waits(received.map(|(count, _)| count))
}

/// Sends what there is room for, and raises no `SIGPIPE`. `flags` are `MSG_*`.
///
/// # Errors
/// As `send(2)`, except what [`Attempt`] says.
pub(crate) fn send_nowait(
    fd: BorrowedFd<'_>,
    buf: &[u8],
    flags: u32,
) -> Result<Attempt<usize>, Errno> {
    let flags = SendFlags::from_bits_retain(flags) | SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let len = len_at_once(fd, buf.len());
    unless_it_waits(retry(|| rustix::net::send(fd, &buf[..len], flags)))
}

/// Returns the bytes of one call. A message cannot be cut, and is no longer than the socket's buffer.
#[inline]
fn len_at_once(fd: BorrowedFd<'_>, len: usize) -> usize {
    if len > limits::CALLER_BYTES && socket_type(fd) == Ok(SocketType::STREAM) {
        return limits::CALLER_BYTES;
    }
    len
}

/// Classifies a result. Unlike a file, a socket has such calls, and all other errors are its own.
fn unless_it_waits(result: Result<usize, Errno>) -> Result<Attempt<usize>, Errno> {
    match result {
        Err(Errno::AGAIN) => Ok(Attempt::WouldBlock),
        result => result.map(Attempt::Done),
    }
}
