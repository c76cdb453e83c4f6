//! The identity of a child process: its pidfd, which stays that child's after the child was reaped, when its
//! number may belong to another process.
//!
//! Other code of the process may reap a child at any time, by `waitpid(-1)` or by ignoring `SIGCHLD`. So a
//! number is used only where the kernel has no pidfds (before 5.4, or refused), and only for a process that
//! is still a child of this one.
//!
//! Source: `pidfd_open(2)`, `pidfd_send_signal(2)`, `waitid(2)`.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::sync::Arc;

use rustix::io::{Errno, retry_on_intr};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process, pidfd_open,
    pidfd_send_signal, waitid,
};

/// A child process, by its pidfd if possible.
#[derive(Clone, Debug)]
pub(super) enum Identity {
    /// The child's pidfd.
    Pidfd(Arc<OwnedFd>),
    /// The number of the child, which stays the child's as long as this process has not reaped it.
    Number(Pid),
    /// Other code had reaped the child before its pidfd was opened.
    Reaped,
}

impl Identity {
    /// Identifies a child that was just started.
    pub(super) fn of(child: &Child) -> Self {
        let raw = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = raw.expect("the kernel numbers processes from 1, far below 2^31");
        match pidfd_open(pid, PidfdFlags::empty()) {
            // The number may have been reused before: then the pidfd is not that of a child.
            Ok(pidfd) => match look(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::NOWAIT) {
                Ok(_) => Self::Pidfd(Arc::new(pidfd)),
                Err(Errno::CHILD) => Self::Reaped,
                Err(_) => Self::Number(pid), // Linux 5.3, which opens pidfds and does not wait by them
            },
            Err(Errno::SRCH) => Self::Reaped,
            // An old kernel, a filter, no descriptors left.
            Err(_) => Self::Number(pid),
        }
    }

    /// Returns the pidfd, which is readable after the child's end.
    pub(super) fn pidfd(&self) -> Option<&Arc<OwnedFd>> {
        match self {
            Self::Pidfd(pidfd) => Some(pidfd),
            Self::Number(_) | Self::Reaped => None,
        }
    }

    fn wait_id(&self) -> Result<WaitId<'_>, Errno> {
        match self {
            Self::Pidfd(pidfd) => Ok(WaitId::PidFd(pidfd.as_fd())),
            Self::Number(pid) => Ok(WaitId::Pid(*pid)),
            Self::Reaped => Err(Errno::CHILD),
        }
    }

    /// Reaps the child and returns its exit status, if it has ended.
    ///
    /// # Errors
    /// `ECHILD`: other code has reaped it, or it is another process's child.
    pub(super) fn try_reap(&self) -> io::Result<Option<ExitStatus>> {
        let status = look(self.wait_id()?, WaitIdOptions::empty())?;
        Ok(status.as_ref().map(exit_status))
    }

    /// Blocks until the child has ended, and leaves it to be reaped. Any error means that there is no child
    /// to wait for any more, which a later request for the status reports.
    pub(super) fn wait(&self) {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let _ = retry_on_intr(|| waitid(self.wait_id()?, options));
    }

    /// Sends the child a signal.
    ///
    /// # Errors
    /// `ESRCH`: it was reaped. `EPERM`: it has changed its user.
    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        match self {
            Self::Pidfd(pidfd) => pidfd_send_signal(pidfd, signal)?,
            Self::Number(pid) => {
                look(WaitId::Pid(*pid), WaitIdOptions::NOWAIT).map_err(|_| Errno::SRCH)?;
                kill_process(*pid, signal)?;
            }
            Self::Reaped => return Err(Errno::SRCH.into()),
        }
        Ok(())
    }
}

/// Returns the status of a child that has ended, without blocking.
fn look(id: WaitId<'_>, options: WaitIdOptions) -> Result<Option<WaitIdStatus>, Errno> {
    waitid(id, options | WaitIdOptions::EXITED | WaitIdOptions::NOHANG)
}

/// Returns a child's status as `wait(2)` encodes it.
fn exit_status(status: &WaitIdStatus) -> ExitStatus {
    const DUMPED: i32 = 0x80;
    let ended = status.exit_status().map(|code| (code & 0xff) << 8);
    let killed = status.terminating_signal().unwrap_or_default();
    let dumped = if status.dumped() { DUMPED } else { 0 };
    ExitStatus::from_raw(ended.unwrap_or(killed | dumped))
}
