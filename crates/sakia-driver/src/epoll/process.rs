//! The identity of the current process.

use rustix::process::Pid;
use sakia_ring::ProcessSentinel;

/// The process in which it was made.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Process {
    /// Compares a word of memory that forked children find zeroed.
    Sentinel(ProcessSentinel),
    /// Asks the kernel each time. Sandboxes without `MADV_WIPEONFORK` often have no ring either, and so need
    /// this backend.
    Id(Pid),
}

impl Process {
    pub(crate) fn current() -> Self {
        match ProcessSentinel::new() {
            Ok(sentinel) => Self::Sentinel(sentinel),
            Err(_) => Self::Id(rustix::process::getpid()),
        }
    }

    /// Returns true in the process that made it, false in every child.
    #[inline]
    pub(crate) fn is_intact(&self) -> bool {
        match self {
            Self::Sentinel(sentinel) => sentinel.is_intact(),
            Self::Id(id) => rustix::process::getpid() == *id,
        }
    }
}
