//! Nothing, asked of the kernel.

use std::io;

use sakia_ring::Sqe;

use crate::backend::Backend;
use crate::handle::Handle;
use crate::op::{Class, Completion, Op, Operation};

/// See [`Handle::nop`].
#[derive(Debug)]
pub struct Nop(());

impl<B: Backend> Handle<B> {
    /// Does nothing, by way of the kernel.
    ///
    /// # Kernel
    /// 5.1. Source: `io_uring_prep_nop(3)`.
    #[inline(always)]
    pub fn nop(&self) -> Op<Nop, B> {
        self.start(Nop(()))
    }
}

// SAFETY: the entry names no memory and no descriptor.
unsafe impl Operation for Nop {
    type Output = io::Result<()>;

    #[inline(always)]
    fn class(&self) -> Class {
        Class::Bounded
    }

    #[inline(always)]
    fn entry(&mut self) -> Sqe {
        Sqe::nop()
    }

    #[inline(always)]
    fn complete(self, completion: Completion) -> Self::Output {
        completion.result().map(|_| ())
    }
}
