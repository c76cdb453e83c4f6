//! Closing a descriptor, once nothing uses it any more.

use std::io;
use std::rc::Rc;

use sakia_ring::Sqe;

use crate::backend::Backend;
use crate::bypass::{Now, Route, Rules};
use crate::counters::OpKind;
use crate::fd::{Fd, Owner};
use crate::handle::Handle;
use crate::op::{Class, Completion, Op, Operation};

/// See [`Handle::close`].
pub struct Close {
    /// The number, which is this operation's alone once it is no longer parked.
    raw: i32,
    /// A plain call may do it: closing asks nobody but this machine's kernel, and no entry names the number.
    may_close_now: bool,
    owner: Rc<dyn Owner>,
}

impl Close {
    /// # Safety
    ///
    /// - When the operation is performed or disposed of, the descriptor is open, the driver's own, and used
    ///   by no operation and no [`Fd`]; nothing else closes it.
    pub(crate) unsafe fn new(raw: i32, may_close_now: bool, owner: Rc<dyn Owner>) -> Self {
        Self { raw, may_close_now, owner }
    }

    /// Closes the descriptor with a plain call if the kernel was kept from it.
    fn settle(&self, completion: Completion) -> Completion {
        if completion == Completion::CANCELED {
            // SAFETY: the promise of `new`; the kernel was kept from closing it.
            return unsafe { self.owner.close_now(self.raw) };
        }
        completion
    }
}

impl<B: Backend> Handle<B> {
    /// Closes `fd`: cancels the operations under way on it, waits for them, then closes. While other
    /// clones exist it waits for their end too, and an operation whose result was not taken has one.
    /// The kernel cancels by file: operations on a duplicate of the descriptor are hit as well.
    ///
    /// The descriptor is closed even if the handle is dropped; the result is lost then, and a failure
    /// counted.
    ///
    /// # Errors
    /// As `close(2)`. The descriptor is gone in any case. `EBADF`: it is being closed already, by way
    /// of another clone. `EBUSY`: the driver ended before, and had to give up operations that may
    /// still use it.
    ///
    /// # Kernel
    /// 5.6. Source: `io_uring_prep_close(3)`.
    pub fn close(&self, fd: Fd) -> Op<Close, B> {
        self.start_close(fd)
    }
}

// SAFETY: the entry names no memory, and a descriptor that no operation and no `Fd` uses any more.
unsafe impl Operation for Close {
    type Output = io::Result<()>;

    fn class(&self) -> Class {
        Class::Bounded
    }

    fn entry(&mut self) -> Sqe {
        Sqe::close(self.raw)
    }

    fn complete(self, completion: Completion) -> Self::Output {
        self.settle(completion).result().map(|_| ())
    }

    fn route(&self, rules: &Rules) -> Route {
        let tries_now = self.may_close_now && rules.of(OpKind::Close).tries_now;
        if tries_now { Route::Now(Now::Plain) } else { Route::Queue }
    }

    fn dispose(self, completion: Completion) {
        if self.settle(completion).res < 0 {
            self.owner.note_close_error();
        }
    }
}

impl std::fmt::Debug for Close {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Close({})", self.raw)
    }
}
