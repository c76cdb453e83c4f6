//! Forked children of a test's process, which has other threads.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::settings::patience;

/// The exit status of a child that panicked.
const PANICKED: i32 = 101;

/// Forks, and returns when the child has run `child` and ended. The child is killed if it does not end within
/// the [patience] of the tests, and with this thread.
///
/// Only the calling thread exists in the child. `child` may allocate, for which the C library provides, and
/// must not wait for locks that other threads may have held; a message of a panic waits for that of standard
/// error.
///
/// # Errors
/// The child panicked, was killed, or did not end.
///
/// # Panics
/// There can be no child.
///
/// # Examples
/// ```
/// use sakia_testkit::forked::run;
///
/// assert_eq!(run(|| assert_eq!(1 + 1, 2)), Ok(()));
/// assert_eq!(run(|| std::process::exit(3)), Err("the child ended with status 3".into()));
/// ```
pub fn run(child: impl FnOnce()) -> Result<(), String> {
    let parent = std::process::id();
    // SAFETY: the child's code is written for a process of this one thread, as the documentation demands, and
    // it ends by `_exit`.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", io::Error::last_os_error());
    if pid == 0 {
        // SAFETY: takes numbers only.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        let is_orphan = std::os::unix::process::parent_id() != parent;
        let is_well = !is_orphan && catch_unwind(AssertUnwindSafe(child)).is_ok();
        // SAFETY: ends the child at once, without what the parent has registered for its exit.
        unsafe { libc::_exit(if is_well { 0 } else { PANICKED }) };
    }
    let begin = Instant::now();
    let mut status = 0;
    loop {
        let is_late = begin.elapsed() > patience();
        if is_late {
            // SAFETY: takes numbers only; the child was not waited for, so the number is its own.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        // SAFETY: writes one integer.
        let waited = unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) };
        if waited == pid {
            return match (is_late, libc::WIFEXITED(status), libc::WEXITSTATUS(status)) {
                (true, ..) => Err("the child did not end".into()),
                (_, true, 0) => Ok(()),
                (_, true, PANICKED) => Err("the child panicked".into()),
                (_, true, other) => Err(format!("the child ended with status {other}")),
                _ => Err(format!("the child was killed by signal {}", libc::WTERMSIG(status))),
            };
        }
        assert!(waited == 0, "waitpid: {}", io::Error::last_os_error());
        sleep(Duration::from_micros(200));
    }
}

#[cfg(not(miri))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_child_is_told() {
        assert_eq!(run(|| ()), Ok(()));
        // Not `panic!`, which prints.
        let panicked = run(|| std::panic::resume_unwind(Box::new("in the child")));
        assert_eq!(panicked, Err("the child panicked".into()));
        let killed = run(|| {
            // SAFETY: ends the child.
            let _ = unsafe { libc::raise(libc::SIGKILL) };
        });
        assert_eq!(killed, Err("the child was killed by signal 9".into()));
    }
}
