//! The calls of a core.

use std::any::Any;
use std::rc::Rc;
use std::time::Duration;

use crate::backend::{Calls, Features};
use crate::call::Call;
use crate::calls;
use crate::decide::{Attempt, CallMode};
use crate::descriptors::KernelCalls;
use crate::sys;

/// The calls that perform operations instead of a backend.
pub(super) enum PlainCalls {
    /// None: all operations go through the queue. So it is on an embedder's host, and after the driver's end.
    None,
    /// Those of this process's kernel, without the detour by an object.
    Kernel,
    /// Those of another kernel.
    Other(Rc<dyn Calls>),
}

impl PlainCalls {
    /// Returns the driver's calls, if the backend has operations performed by them.
    pub(super) fn of(features: &Features, calls: &Rc<dyn Calls>) -> Self {
        let any: &dyn Any = &**calls;
        match features.plain_calls {
            false => Self::None,
            true if any.is::<KernelCalls>() => Self::Kernel,
            true => Self::Other(Rc::clone(calls)),
        }
    }

    /// See [`Calls::try_now`].
    ///
    /// # Safety
    ///
    /// - As there.
    #[inline(always)]
    pub(super) unsafe fn try_now(&self, call: Call, mode: CallMode) -> Attempt {
        match self {
            // SAFETY: the caller's duties are the same.
            Self::Kernel => unsafe { calls::try_now(call, mode) },
            // SAFETY: likewise.
            _ => unsafe { self.try_elsewhere(call, mode) },
        }
    }

    /// # Safety
    ///
    /// - As [`try_now`](PlainCalls::try_now).
    #[cold]
    #[inline(never)]
    unsafe fn try_elsewhere(&self, call: Call, mode: CallMode) -> Attempt {
        match self {
            // SAFETY: the caller's duties are the same.
            Self::Other(calls) => unsafe { calls.try_now(call, mode) },
            Self::None | Self::Kernel => Attempt::Unsupported,
        }
    }

    /// See [`Calls::waits`].
    pub(super) fn waits(&self) -> u64 {
        match self {
            Self::None => 0,
            Self::Kernel => sys::voluntary_switches(),
            Self::Other(calls) => calls.waits(),
        }
    }

    /// See [`Calls::processor_time`].
    pub(super) fn processor_time(&self) -> Duration {
        match self {
            Self::None => Duration::ZERO,
            Self::Kernel => sys::processor_time(),
            Self::Other(calls) => calls.processor_time(),
        }
    }
}
