//! Making a socket.

use std::io;
use std::rc::Rc;

use sakia_ring::Sqe;

use crate::address::{Domain, SocketType};
use crate::call::{Call, Function, System};
use crate::counters::OpKind;
use crate::decide::{Route, Rules};
use crate::fd::{Fd, Owner};
use crate::handle::{Handle, Op};
use crate::operation::{Class, Completion, Operation};

/// `SOCK_CLOEXEC`: descriptors of a driver are not inherited by programs that the process starts.
pub(super) const CLOEXEC: u32 = rustix::net::SocketFlags::CLOEXEC.bits();

/// See [`Handle::socket`].
#[derive(Debug)]
pub struct Socket {
    domain: Domain,
    kind: SocketType,
    /// `IPPROTO_*`.
    protocol: u32,
    owner: Rc<dyn Owner>,
}

impl Handle {
    /// Makes a socket. `protocol` is one of the kernel's `IPPROTO_*`, 0 for the usual one.
    ///
    /// If the handle was dropped, a newly made descriptor is closed.
    ///
    /// # Errors
    /// - `EMFILE`, `ENFILE`, `ENOBUFS`, `ENOMEM`: no descriptor or memory left.
    /// - `EAFNOSUPPORT`, `EPROTONOSUPPORT`, `EINVAL`: no such sockets here. Otherwise as `socket(2)`.
    ///
    /// # Examples
    /// See [`Handle::accept`].
    ///
    /// # Kernel
    /// 5.19. Source: `io_uring_prep_socket(3)`.
    pub fn socket(&self, domain: Domain, kind: SocketType, protocol: u32) -> Op<Socket> {
        self.start(Socket { domain, kind, protocol, owner: self.owner() })
    }
}

// SAFETY: the entry names no memory and no descriptor.
unsafe impl Operation for Socket {
    type Output = io::Result<Fd>;
    const KIND: OpKind = OpKind::Socket;

    fn class(&self) -> Class {
        Class::Bounded
    }

    fn entry(&mut self) -> Option<Sqe> {
        Some(Sqe::socket(self.domain.0.into(), self.kind.0 | CLOEXEC, self.protocol))
    }

    fn call(&mut self) -> Call {
        let kind = (self.kind.0 | CLOEXEC) as usize;
        System::of(Function::Socket, [self.domain.0.into(), kind, self.protocol as usize])
    }

    fn complete(self, completion: Completion) -> Self::Output {
        // SAFETY: the kernel has just made it for this operation; it has no other owner.
        completion.result().map(|raw| unsafe { Fd::socket(raw as i32, self.owner, false) })
    }

    fn route(&self, rules: &Rules) -> Route {
        rules.of(OpKind::Socket).route_short_call()
    }
}
