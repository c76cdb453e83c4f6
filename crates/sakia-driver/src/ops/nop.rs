//! No-ops through the queue.

use sakia_ring::Sqe;

use crate::call::Call;
use crate::counters::OpKind;
use crate::decide::{CallMode, Route, Rules};
use crate::handle::{Handle, Op};
use crate::operation::{Class, Operation};

/// See [`Handle::nop`].
#[derive(Debug)]
pub struct Nop(());

impl Handle {
    /// Does nothing, through the kernel.
    ///
    /// # Examples
    /// With `run` of [`Driver`](crate::Driver#examples):
    /// ```
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
    /// run(&driver, driver.nop())??;
    /// assert_eq!(driver.counters().finished, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Kernel
    /// 5.1. Source: `io_uring_prep_nop(3)`.
    #[inline(always)]
    pub fn nop(&self) -> Op<Nop> {
        self.start(Nop(()))
    }
}

// SAFETY: the entry names no memory and no descriptor.
unsafe impl Operation for Nop {
    const KIND: OpKind = OpKind::Nop;

    #[inline(always)]
    fn class(&self) -> Class {
        Class::Bounded
    }

    #[inline(always)]
    fn entry(&mut self) -> Option<Sqe> {
        Some(Sqe::nop())
    }

    #[inline(always)]
    fn call(&mut self) -> Call {
        Call::Nop
    }

    no_output!();
}

/// See [`Handle::next_turn`].
#[derive(Debug)]
pub struct NextTurn;

impl Handle {
    /// Waits until plain calls may be made: not at all if this turn has budget left, otherwise until a later
    /// turn, behind earlier waiters.
    ///
    /// # Examples
    /// Before plain calls of one's own, so that other work has its turn:
    /// ```
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
    /// for part in std::fs::read("Cargo.toml")?.chunks(100) {
    ///     run(&driver, driver.next_turn())??;
    ///     assert!(driver.has_inline_budget() && !part.is_empty());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn next_turn(&self) -> Op<NextTurn> {
        self.start(NextTurn)
    }
}

// SAFETY: the entry names neither memory nor a descriptor.
unsafe impl Operation for NextTurn {
    const KIND: OpKind = OpKind::Nop;

    fn class(&self) -> Class {
        Class::Bounded
    }

    fn entry(&mut self) -> Option<Sqe> {
        Some(Sqe::nop())
    }

    fn call(&mut self) -> Call {
        Call::Nop
    }

    no_output!();

    fn route(&self, _: &Rules) -> Route {
        Route::Now(CallMode::NonBlocking)
    }
}
