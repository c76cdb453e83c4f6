//! Accepting connections one after the other.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::rc::Rc;
use std::task::Waker;

use rustix::io::Errno;
use rustix::net::SocketFlags;
use sakia_ring::Sqe;

use super::crowd::Crowd;
use super::multishot::Multishot;
use super::permits::{Permit, Permits, WithPermit};
use crate::call::{Call, SocketCall, Verb};
use crate::counters::OpKind;
use crate::fd::Fd;
use crate::handle::Handle;
use crate::operation::{Completion, Delivered, Operation};
use crate::ops::{Accept, acts_on};

/// Maximum number of connections accepted ahead of a caller. Further ones stay with the kernel.
const ARRIVALS_MAX: usize = 64;

/// The connections of a listening socket. Dropping it closes those that were accepted but not taken.
///
/// # Examples
/// With `run` of [`Driver`](crate::Driver#examples):
/// ```
/// use std::net::{SocketAddr, TcpListener, TcpStream};
///
/// # use std::future::Future;
/// # fn run<F: Future>(driver: &sakia_driver::Driver, future: F) -> std::io::Result<F::Output> {
/// #     let mut future = std::pin::pin!(future);
/// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
/// #     loop {
/// #         if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut context) {
/// #             return Ok(output);
/// #         }
/// #         driver.turn(sakia_driver::Wait::Forever)?;
/// #     }
/// # }
/// # fn main() -> std::io::Result<()> {
/// # let driver = sakia_driver::Driver::new(sakia_driver::Auto::detect()?.0);
/// let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
/// let address = listener.local_addr()?;
/// let incoming = driver.incoming(driver.adopt(listener.into()));
/// for _ in 0..2 {
///     let client = TcpStream::connect(address)?;
///     let connection = run(&driver, incoming.accept())??;
///     let peer = driver.peer_address(&connection)?;
///     assert_eq!(peer.inet(), Some(client.local_addr()?));
/// }
/// # Ok(())
/// # }
/// ```
pub struct Incoming {
    fd: Fd,
    driver: Handle,
    arrivals: Rc<AcceptQueue>,
}

/// Connections that were accepted and not taken yet.
#[derive(Default)]
struct AcceptQueue {
    accepts: Permits,
    connections: RefCell<VecDeque<Fd>>,
    /// The reason why accepting has ended, to be reported once.
    error: RefCell<Option<io::Error>>,
    /// The multishot accept that brings them.
    multishot: Multishot,
    /// The callers that the multishot accept serves.
    crowd: Crowd,
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming").field("fd", &self.fd).finish_non_exhaustive()
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.arrivals.multishot.cancel(&self.driver);
        self.driver.shared.withdraw(&self.fd);
    }
}

impl Handle {
    /// Returns the connections that come to `fd`, which [listens](Handle::listen).
    ///
    /// # Panics
    /// When the descriptor belongs to another driver.
    ///
    /// # Examples
    /// See [`Incoming`](crate::Incoming#examples).
    pub fn incoming(&self, fd: Fd) -> Incoming {
        self.check(&fd);
        Incoming { fd, driver: self.clone(), arrivals: Rc::default() }
    }
}

impl Incoming {
    /// Returns the listening descriptor.
    pub fn fd(&self) -> &Fd {
        &self.fd
    }

    /// Waits for a connection. Several tasks may wait.
    ///
    /// From the first call on the kernel accepts ahead, until 64 accepted connections wait to be taken.
    ///
    /// # Cancel safety
    /// Dropping the future loses no connection: one that comes for it goes to the next call.
    ///
    /// # Errors
    /// As [`Handle::accept`]. The next call tries again.
    ///
    /// # Examples
    /// See [`Incoming`](Incoming#examples).
    ///
    /// # Kernel
    /// 5.5; 5.19 to accept several with one entry. Source: `io_uring_prep_multishot_accept(3)`.
    pub async fn accept(&self) -> io::Result<Fd> {
        self.take(true).await
    }

    /// As [`accept`](Incoming::accept), but the kernel accepts only this connection and none ahead: further
    /// ones stay in the kernel's queue, without a descriptor here. While a task waits in
    /// [`accept`](Incoming::accept), the kernel goes on accepting ahead.
    ///
    /// # Cancel safety
    /// As [`accept`](Incoming::accept).
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
        let multishot = &arrivals.multishot;
        let _member = ahead.then(|| arrivals.crowd.join());
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
            // Others may want connections ahead. Of these one may have a future that it does not poll, so
            // each caller starts the accept that serves all.
            let ahead = arrivals.crowd.has_members();
            if arrivals.accepts.is_busy() {
                arrivals.accepts.free().await;
                continue;
            }
            if multishot.is_armed() {
                if !ahead {
                    multishot.pause(&self.driver);
                }
            } else if ahead && !multishot.is_single() {
                let (fd, arrivals) = (self.fd.clone(), Rc::clone(arrivals));
                multishot.start(&self.driver, MultiAccept { fd, arrivals });
            } else {
                let permit = Permit::take(arrivals, |arrivals| &arrivals.accepts).await;
                let keep = |arrivals: &AcceptQueue, accepted: io::Result<_>| {
                    if let Ok((connection, _)) = accepted {
                        arrivals.connections.borrow_mut().push_back(connection);
                    }
                };
                let accept = WithPermit::new(Accept::new(self.fd.clone()), permit, keep);
                return self.driver.start(accept).await.map(|(connection, _)| connection);
            }
            // A driver that has ended gives the operation up at once.
            if multishot.is_armed() {
                arrivals.crowd.change().await;
            }
        }
    }
}

/// A multishot accept. See [`Incoming::accept`].
struct MultiAccept {
    fd: Fd,
    arrivals: Rc<AcceptQueue>,
}

impl MultiAccept {
    /// # Safety
    ///
    /// - As for [`Fd::socket`].
    unsafe fn add(&self, raw: i32) {
        let may_linger = self.fd.may_linger();
        // SAFETY: the caller's duties are the same.
        let connection = unsafe { Fd::socket(raw, Rc::clone(self.fd.owner()), may_linger) };
        self.arrivals.connections.borrow_mut().push_back(connection);
    }
}

// SAFETY: the entry names no memory, and a descriptor that the value keeps open.
unsafe impl Operation for MultiAccept {
    type Output = ();
    const KIND: OpKind = OpKind::Accept;

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
        // SAFETY: the kernel has just made the descriptor for this operation; it has no other owner.
        unsafe { self.add(completion.res) };
        let is_enough = self.arrivals.connections.borrow().len() >= ARRIVALS_MAX;
        let delivered = self.arrivals.multishot.deliver(is_enough);
        Delivered { waker: self.arrivals.crowd.tell(), ..delivered }
    }

    fn complete(self, completion: Completion) -> Self::Output {
        let (result, _) = self.arrivals.multishot.end(completion);
        match result {
            // SAFETY: as above.
            Ok(Some(raw)) => unsafe { self.add(raw as i32) },
            Ok(None) => {}
            Err(error) => *self.arrivals.error.borrow_mut() = Some(error),
        }
        if let Some(waiting) = self.arrivals.crowd.tell() {
            waiting.wake();
        }
    }

    fn lose(&self) -> Option<Waker> {
        self.arrivals.multishot.lose();
        self.arrivals.crowd.tell()
    }

    acts_on!(Waiting, fd);
}
