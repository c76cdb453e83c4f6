//! Requests with several outcomes.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

use rustix::net::SocketFlags;
use sakia_ring::Sqe;

use crate::call::{Call, SocketCall, Verb};
use crate::counters::OpKind;
use crate::fd::Fd;
use crate::operation::{Completion, Delivered, Operation};
use crate::ops::acts_on;

/// Outcomes that are not their request's last: connections with the tokens of their requests, oldest first.
#[derive(Default)]
pub(crate) struct Deliveries {
    list: RefCell<VecDeque<(u64, Fd)>>,
    len: Cell<usize>,
}

impl Deliveries {
    fn push(&self, token: u64, connection: Fd) {
        self.list.borrow_mut().push_back((token, connection));
        self.len.set(self.len.get() + 1);
    }

    pub(crate) fn pop(&self) -> Option<(u64, Fd)> {
        let oldest = self.list.borrow_mut().pop_front()?;
        self.len.set(self.len.get() - 1);
        Some(oldest)
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.len.get()
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// See [`Request::AcceptMany`](super::Request::AcceptMany).
pub(crate) struct AcceptMany {
    pub(crate) fd: Fd,
    pub(crate) token: u64,
    pub(crate) deliveries: Rc<Deliveries>,
}

impl AcceptMany {
    /// # Safety
    ///
    /// - As for [`Fd::socket`].
    unsafe fn connection(&self, raw: i32) -> Fd {
        // SAFETY: the caller's duties are the same.
        unsafe { Fd::socket(raw, Rc::clone(self.fd.owner()), self.fd.may_linger()) }
    }
}

// SAFETY: the entry names no memory, and a descriptor that the value keeps open.
unsafe impl Operation for AcceptMany {
    type Output = io::Result<Fd>;
    const KIND: OpKind = OpKind::Accept;

    fn entry(&mut self) -> Option<Sqe> {
        Some(Sqe::accept_multishot(self.fd.raw(), SocketFlags::CLOEXEC.bits()))
    }

    fn call(&mut self) -> Call {
        let (raw, flags) = (self.fd.raw(), SocketFlags::CLOEXEC.bits());
        Call::AcceptMany(SocketCall { raw, verb: Verb::Accept, args: [0; 2], flags })
    }

    fn deliver(&self, completion: Completion) -> Delivered {
        if completion.res >= 0 {
            // SAFETY: the kernel has just made the descriptor for this operation; it has no other owner.
            let connection = unsafe { self.connection(completion.res) };
            self.deliveries.push(self.token, connection);
        }
        Delivered::default()
    }

    fn complete(self, completion: Completion) -> Self::Output {
        let raw = completion.result()? as i32;
        // SAFETY: as above.
        Ok(unsafe { self.connection(raw) })
    }

    acts_on!(Waiting, fd);
}
