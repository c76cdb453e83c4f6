//! Closing a descriptor after its last use.

use std::io;
use std::rc::Rc;

use sakia_ring::Sqe;

use crate::call::{Call, Victims};
use crate::counters::OpKind;
use crate::decide::{CallMode, Lane, Route, Rules};
use crate::fd::{CloseWay, Fd, Owner};
use crate::handle::{Handle, Op};
use crate::operation::{Class, Completion, Operation};

/// See [`Handle::close`].
#[derive(Debug)]
pub struct Close {
    /// The number, which only this operation uses once it is no longer parked.
    raw: i32,
    way: CloseWay,
    owner: Rc<dyn Owner>,
}

impl Close {
    /// # Safety
    ///
    /// - When the operation is performed or disposed of, the descriptor is open, the driver's own, and used
    ///   by no operation and no [`Fd`]; nothing else closes it.
    pub(crate) unsafe fn new(raw: i32, way: CloseWay, owner: Rc<dyn Owner>) -> Self {
        Self { raw, way, owner }
    }

    /// Closes the descriptor itself if the operation never reached the kernel. Otherwise the number counts as
    /// closed, whatever the result: `close(2)` frees it before it can fail, and a second call might close the
    /// next file with that number.
    fn settle(&self, completion: Completion) -> Completion {
        if completion.is_unstarted {
            // SAFETY: the promise of `new`; the kernel has not closed it.
            return unsafe { self.owner.close_now(self.raw, self.way) };
        }
        completion
    }
}

/// A request to cancel all operations in flight on a descriptor. It keeps the descriptor open, as every
/// operation does: when the kernel looks the number up, it still means the same file.
pub(crate) struct CancelFd {
    fd: Fd,
}

impl CancelFd {
    pub(crate) fn new(fd: Fd) -> Self {
        Self { fd }
    }
}

impl Handle {
    /// Closes `fd`: cancels the operations in flight on it, waits for them, then closes. It also waits until
    /// all other clones are gone; an operation whose result was not taken has one. The kernel cancels by
    /// file, so operations on a duplicate of the descriptor are canceled as well.
    ///
    /// The descriptor is closed even if the handle is dropped; the result is lost then, and a failure
    /// counted. A close cannot be canceled. If a server has to be notified (FUSE, NFS), or the file system
    /// is not known to need none, a thread of the elastic lane closes the file.
    ///
    /// # Errors
    /// As `close(2)`, and any error of a file server. The descriptor is gone in any case. `EBADF`: another
    /// clone is closing it already. `EBUSY`: the driver ended before, and had to give up operations that may
    /// still use it.
    ///
    /// # Examples
    /// See [`Handle::open`].
    ///
    /// # Kernel
    /// 5.6. Source: `io_uring_prep_close(3)`.
    pub fn close(&self, fd: Fd) -> Op<Close> {
        self.start_close(fd)
    }
}

// SAFETY: the entry names no memory, and a descriptor that no operation and no `Fd` uses any more.
unsafe impl Operation for Close {
    type Output = io::Result<()>;
    const KIND: OpKind = OpKind::Close;

    fn class(&self) -> Class {
        Class::Bounded
    }

    fn entry(&mut self) -> Option<Sqe> {
        Some(Sqe::close(self.raw))
    }

    fn call(&mut self) -> Call {
        Call::Close { raw: self.raw }
    }

    fn complete(self, completion: Completion) -> Self::Output {
        self.settle(completion).result().map(|_| ())
    }

    fn route(&self, rules: &Rules) -> Route {
        match self.way {
            CloseWay::Now if rules.of(OpKind::Close).tries_now => Route::Now(CallMode::Blocking),
            CloseWay::Plain | CloseWay::AtOnce => Route::Now(CallMode::Blocking),
            CloseWay::Now | CloseWay::Queue => Route::Queue,
            CloseWay::Lane => Route::Lane(Lane::Elastic),
        }
    }

    const IS_CANCELABLE: bool = false;

    fn dispose(self, completion: Completion) {
        if self.settle(completion).res < 0 {
            self.owner.note_close_error();
        }
    }
}

// SAFETY: the entry names no memory, and a descriptor that the value keeps open.
unsafe impl Operation for CancelFd {
    type Output = ();
    const KIND: OpKind = OpKind::Cancel;

    /// Ends at once, but must find room even in a full queue.
    fn class(&self) -> Class {
        Class::Waiting
    }

    fn entry(&mut self) -> Option<Sqe> {
        Some(Sqe::cancel_fd(self.fd.raw()))
    }

    fn call(&mut self) -> Call {
        Victims::Descriptor(self.fd.raw()).call()
    }

    fn complete(self, _: Completion) {}

    const IS_CANCELABLE: bool = false;
}
