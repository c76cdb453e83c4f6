//! Operations on sockets that may wait: accepting, connecting, sending, receiving.
//!
//! A send or a receive is tried with `MSG_DONTWAIT`. An accept and a connect have no such flag, and depend
//! on the mode of the socket, which belongs to all its users:
//! - In non-blocking mode they are tried unchanged. A connect within the machine without room then fails
//!   with `EAGAIN`, as in the kernel.
//! - A socket made by this backend is put into that mode for the moment of the call. A user with a copy of
//!   its descriptor might see that; it matters little for a socket without any data sent yet.
//! - Any other is left unchanged: an accept waits until epoll reports a connection, and a thread of the
//!   elastic lane takes it; a connect runs on such a thread from the beginning.
//!
//! A connect that was begun continues by itself. Repeating the call then returns its state: `EALREADY`, or
//! its result.
//!
//! Source: `accept(2)`, `connect(2)`, `send(2)`, `recv(2)`.

use std::os::fd::{FromRawFd, OwnedFd};

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::sockopt;

use super::job::Outcome;
use super::transfer::{FileClass, Try, try_to_wait};
use crate::call::{SocketCall, Verb, failed};
use crate::sys::{self, DONT_WAIT, Direction, NO_SIGNAL, abi, borrow, register, retry};

impl SocketCall {
    /// Accepts without blocking, until there is no connection left or `post`, which gets the descriptors,
    /// returns that it takes no more. The socket's mode is changed once at most.
    ///
    /// # Safety
    ///
    /// - The descriptor is lent.
    pub(super) unsafe fn accept_all(&self, is_own: bool, mut post: impl FnMut(i32) -> bool) -> Try {
        let accept = || {
            loop {
                // SAFETY: the caller's promise; it names no memory, since the peer's address is not asked
                // for.
                let raw = unsafe { self.call(self.flags) }?;
                if !post(raw as i32) {
                    return Err(Errno::AGAIN);
                }
            }
        };
        // SAFETY: the caller's promise.
        unsafe { self.without_waiting(is_own, accept) }.map_or_else(|unable| unable, Try::of)
    }

    /// Tries on the calling thread. `is_own` says that this backend made the socket.
    ///
    /// # Safety
    ///
    /// - The memory is lent, and so is the descriptor.
    pub(super) unsafe fn try_now(&self, is_own: bool) -> Try {
        let result = match self.verb {
            Verb::Accept | Verb::Connect => {
                // SAFETY: the caller's promise.
                unsafe { self.without_waiting(is_own, || self.call(self.flags)) }
            }
            // SAFETY: as above.
            _ => Ok(retry(|| unsafe { self.call(self.flags | DONT_WAIT) })),
        };
        match (self.verb, result) {
            (_, Err(unable)) => unable,
            (Verb::Connect, Ok(Err(Errno::INPROGRESS | Errno::ALREADY))) => Try::WouldBlock,
            // No event reports that the queue of connections has become shorter.
            (Verb::Connect, Ok(Err(Errno::AGAIN))) => Try::Unable,
            (_, Ok(result)) => Try::of(result),
        }
    }

    /// Makes a call that depends on the socket's mode, without blocking.
    ///
    /// # Errors
    /// The result of the try if the call is not made.
    ///
    /// # Safety
    ///
    /// - The descriptor is lent.
    unsafe fn without_waiting(
        &self,
        is_own: bool,
        mut call: impl FnMut() -> Result<usize, Errno>,
    ) -> Result<Result<usize, Errno>, Try> {
        let refused = |errno| Try::Done(failed(errno));
        // SAFETY: the caller's promise.
        let fd = unsafe { borrow(self.raw) }.map_err(refused)?;
        let mode = rustix::fs::fcntl_getfl(fd).map_err(refused)?;
        if mode.contains(OFlags::PATH) {
            return Err(refused(Errno::BADF));
        }
        let fails_at_once =
            || self.verb == Verb::Accept && sockopt::socket_acceptconn(fd) != Ok(true);
        if mode.contains(OFlags::NONBLOCK) {
            return match retry(call) {
                Err(Errno::AGAIN) if self.verb == Verb::Connect => Err(refused(Errno::AGAIN)),
                result => Ok(result),
            };
        }
        if is_own {
            rustix::fs::fcntl_setfl(fd, mode | OFlags::NONBLOCK).map_err(refused)?;
            let result = retry(call);
            rustix::fs::fcntl_setfl(fd, mode).map_err(refused)?;
            return Ok(result);
        }
        // SAFETY: as above.
        match unsafe { FileClass::of_descriptor(self.raw) } {
            Ok(FileClass::Socket) if fails_at_once() => Ok(call()),
            Ok(FileClass::Socket) => Err(Try::Unable),
            Ok(_) => Err(refused(Errno::NOTSOCK)),
            Err(errno) => Err(refused(errno)),
        }
    }

    /// Performs an operation that could not be tried, on a thread of the elastic lane. An accept first
    /// checks for a connection, and blocks if another thread takes it in between; a connect blocks.
    ///
    /// # Safety
    ///
    /// - The memory is lent, and so is the descriptor.
    pub(super) unsafe fn wait(&self) -> Outcome {
        if self.verb == Verb::Accept {
            // SAFETY: the caller's promise.
            if let Some(tried) = unsafe { try_to_wait(self.raw, Direction::Read) } {
                return tried.into();
            }
        }
        // SAFETY: the caller's promise.
        match retry(|| unsafe { self.call(self.flags) }) {
            // SAFETY: a descriptor that the kernel has just created for this call.
            Ok(raw) if self.verb == Verb::Accept => unsafe {
                Outcome::Opened(OwnedFd::from_raw_fd(raw as i32))
            },
            result => Try::of(result).into(),
        }
    }

    /// Makes the system call with these `MSG_*` flags in place of its own.
    ///
    /// # Safety
    ///
    /// - The memory is lent, and so is the descriptor.
    pub(crate) unsafe fn call(&self, flags: u32) -> Result<usize, Errno> {
        let (raw, [first, second]) = (register(self.raw), self.args);
        let quiet = (flags | NO_SIGNAL) as usize;
        let flags = flags as usize;
        let (number, args) = match self.verb {
            Verb::Accept => (abi::__NR_accept4, [raw, first, second, flags, 0, 0]),
            Verb::Connect => (abi::__NR_connect, [raw, first, second, 0, 0, 0]),
            Verb::Send => (abi::__NR_sendto, [raw, first, second, quiet, 0, 0]),
            Verb::Recv => (abi::__NR_recvfrom, [raw, first, second, flags, 0, 0]),
            Verb::SendMessage => (abi::__NR_sendmsg, [raw, first, quiet, 0, 0, 0]),
            Verb::RecvMessage => (abi::__NR_recvmsg, [raw, first, flags, 0, 0, 0]),
        };
        // SAFETY: the arguments name memory and a descriptor that are lent, by the caller's promise.
        unsafe { sys::shared_syscall(number, args) }
    }
}
