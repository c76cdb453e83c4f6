//! Accepting one connection after the other.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use rustix::io::Errno;
use rustix::net::SocketFlags;
use sakia_ring::Sqe;

use super::permits::{Permit, Permits, WithPermit};
use crate::call::{Call, SocketCall, Verb};
use crate::counters::OpKind;
use crate::fd::{Fd, Owner};
use crate::handle::Handle;
use crate::key::Key;
use crate::operation::{Class, Completion, Delivered, Operation};
use crate::ops::Accept;

/// Connections that may have been accepted before anybody asked for them. Further ones stay with the kernel.
const ARRIVALS_MAX: usize = 64;

/// The connections of a socket that listens. Dropping it closes those that nobody has taken.
pub struct Incoming {
    fd: Fd,
    driver: Handle,
    arrivals: Rc<AcceptQueue>,
}

/// What came and was not taken yet.
#[derive(Default)]
struct AcceptQueue {
    accepts: Permits,
    connections: RefCell<VecDeque<Fd>>,
    /// Why accepting has ended, to be told once.
    error: RefCell<Option<io::Error>>,
    /// Who waits.
    acceptor: Cell<Option<Waker>>,
    /// The accept in flight that brings more and more.
    armed: Cell<Option<Key>>,
    /// It was told to stop, since enough has come.
    is_paused: Cell<bool>,
    /// The kernel accepts one at a time only.
    is_single: Cell<bool>,
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming").field("fd", &self.fd).finish_non_exhaustive()
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if let Some(key) = self.arrivals.armed.get() {
            self.driver.shared.cancel_by_key(key);
        }
    }
}

impl Handle {
    /// The connections that come to `fd`, which [listens](Handle::listen).
    ///
    /// # Panics
    /// When the descriptor belongs to another driver.
    pub fn incoming(&self, fd: Fd) -> Incoming {
        self.check(&fd);
        Incoming { fd, driver: self.clone(), arrivals: Rc::default() }
    }
}

impl Incoming {
    /// The descriptor that listens.
    pub fn fd(&self) -> &Fd {
        &self.fd
    }

    /// Waits for a connection. Dropping the future loses none: one that comes for it goes to the next call.
    ///
    /// From the first call on the kernel accepts without being asked again, up to 64 connections that nobody
    /// has taken.
    ///
    /// # Errors
    /// As [`Handle::accept`]. The next call tries again.
    ///
    /// # Kernel
    /// 5.5; 5.19 to accept several with one entry. Source: `io_uring_prep_multishot_accept(3)`.
    pub async fn accept(&self) -> io::Result<Fd> {
        self.take(true).await
    }

    /// As [`accept`](Incoming::accept), but the kernel accepts this connection and no others ahead: they stay
    /// where they are, and have no descriptor here.
    ///
    /// # Errors
    /// As [`accept`](Incoming::accept).
    ///
    /// # Kernel
    /// 5.5. Source: `io_uring_prep_accept(3)`.
    pub async fn accept_one(&self) -> io::Result<Fd> {
        self.take(false).await
    }

    async fn take(&self, ahead: bool) -> io::Result<Fd> {
        let arrivals = &self.arrivals;
        let permit = Permit::take(arrivals, |arrivals| &arrivals.accepts).await;
        loop {
            if let Some(connection) = arrivals.connections.borrow_mut().pop_front() {
                return Ok(connection);
            }
            if let Some(error) = arrivals.error.take() {
                return Err(error);
            }
            if self.fd.is_closing() {
                return Err(Errno::CANCELED.into());
            }
            match arrivals.armed.get() {
                None if !ahead || arrivals.is_single.get() => {
                    let keep = |arrivals: &AcceptQueue, accepted: io::Result<_>| {
                        if let Ok((connection, _)) = accepted {
                            arrivals.connections.borrow_mut().push_back(connection);
                        }
                    };
                    let accept = WithPermit::new(Accept::new(self.fd.clone()), permit, keep);
                    return self.driver.start(accept).await.map(|(connection, _)| connection);
                }
                None => self.arm(),
                Some(key) if !ahead => {
                    arrivals.is_paused.set(true);
                    self.driver.shared.cancel_by_key(key);
                }
                Some(_) => {}
            }
            poll_fn(|cx| arrivals.poll_ready(cx)).await;
        }
    }

    /// Starts the accept that goes on by itself.
    fn arm(&self) {
        let (fd, arrivals) = (self.fd.clone(), Rc::clone(&self.arrivals));
        let owner = Rc::clone(fd.owner());
        let shared = &self.driver.shared;
        let mut core = shared.core.borrow_mut();
        let key = core.start_detached(MultiAccept { fd, owner, arrivals });
        self.arrivals.armed.set(Some(key));
        drop(core);
        shared.settle_later();
    }
}

impl AcceptQueue {
    fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<()> {
        let is_empty = self.connections.borrow().is_empty();
        if !is_empty || self.armed.get().is_none() {
            return Poll::Ready(());
        }
        let old = self.acceptor.replace(Some(cx.waker().clone()));
        drop(old); // users' code
        Poll::Pending
    }
}

/// An accept that goes on by itself. See [`Incoming::accept`].
struct MultiAccept {
    fd: Fd,
    owner: Rc<dyn Owner>,
    arrivals: Rc<AcceptQueue>,
}

impl MultiAccept {
    /// # Safety
    ///
    /// - As for [`Fd::socket`].
    unsafe fn add(&self, raw: i32) {
        // SAFETY: the caller's duties are the same.
        let connection = unsafe { Fd::socket(raw, Rc::clone(&self.owner)) };
        self.arrivals.connections.borrow_mut().push_back(connection);
    }
}

// SAFETY: the entry names no memory, and a descriptor that the value keeps open.
unsafe impl Operation for MultiAccept {
    type Output = ();
    const KIND: OpKind = OpKind::Accept;

    fn class(&self) -> Class {
        Class::Waiting
    }

    fn entry(&mut self) -> Option<Sqe> {
        Some(Sqe::accept_multishot(self.fd.raw(), SocketFlags::CLOEXEC.bits()))
    }

    fn call(&mut self) -> Call {
        let (raw, flags) = (self.fd.raw(), SocketFlags::CLOEXEC.bits());
        Call::AcceptMany(SocketCall { raw, verb: Verb::Accept, args: [0; 2], flags })
    }

    fn deliver(&self, completion: Completion) -> Delivered {
        if completion.res < 0 {
            return Delivered::default();
        }
        // SAFETY: the kernel has just made it for this operation, and nobody else knows of it.
        unsafe { self.add(completion.res) };
        let is_enough = self.arrivals.connections.borrow().len() >= ARRIVALS_MAX;
        if is_enough {
            self.arrivals.is_paused.set(true);
        }
        Delivered { waker: self.arrivals.acceptor.take(), is_enough }
    }

    fn complete(self, completion: Completion) -> Self::Output {
        let arrivals = &self.arrivals;
        arrivals.armed.set(None);
        let is_paused = arrivals.is_paused.take();
        match completion.result() {
            // SAFETY: as above.
            Ok(raw) => unsafe { self.add(raw as i32) },
            Err(error) => match Errno::from_io_error(&error) {
                // To go on is the next call's decision.
                Some(Errno::INTR | Errno::AGAIN) => {}
                Some(Errno::CANCELED) if is_paused => {}
                Some(Errno::INVAL) if !arrivals.is_single.replace(true) => {}
                _ => *arrivals.error.borrow_mut() = Some(error),
            },
        }
        if let Some(acceptor) = arrivals.acceptor.take() {
            acceptor.wake();
        }
    }

    fn lose(&self) -> Option<Waker> {
        self.arrivals.armed.set(None);
        self.arrivals.acceptor.take()
    }

    fn descriptor(&self) -> Option<&Fd> {
        Some(&self.fd)
    }
}
