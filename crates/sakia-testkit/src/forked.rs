//! Forked children of a test's process, which has other threads.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use crate::settings::patience;

/// The exit status of a child that panicked.
const PANICKED: i32 = 101;
/// That of a child that cannot start threads of `std`.
const STRANDED: i32 = 102;
/// A thread of `std` begins within this time, or is taken for one that never does.
const BEGIN_MAX: Duration = Duration::from_secs(3);

/// Forks, and returns when the child has run `child` and ended. The child is killed if it does not end within
/// the [patience] of the tests, and with this thread.
///
/// Only the calling thread exists in the child. `child` may allocate, for which the C library provides, and
/// must not wait for locks that other threads may have held; a message of a panic waits for that of standard
/// error. Nor may it start threads by `std`, see [`run_with_threads`].
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
    end_of(child).and_then(told)
}

/// As [`run`], for a `child` that starts threads of `std`.
///
/// Each of these takes a lock of `std` when it begins and ends. If another thread held it at the fork, it
/// stays locked in the child: threads that are started there never begin. So the child starts one first,
/// and there is another child if that does not begin.
///
/// # Errors
/// As [`run`].
///
/// # Panics
/// As [`run`].
///
/// # Examples
/// ```
/// use sakia_testkit::forked::run_with_threads;
///
/// assert_eq!(run_with_threads(|| std::thread::spawn(|| ()).join().unwrap()), Ok(()));
/// ```
pub fn run_with_threads(mut child: impl FnMut()) -> Result<(), String> {
    loop {
        let status = end_of(|| {
            let (begun, begins) = mpsc::channel();
            let probe = thread::spawn(move || begun.send(()));
            if begins.recv_timeout(BEGIN_MAX).is_err() {
                // SAFETY: as in `end_of`.
                unsafe { libc::_exit(STRANDED) };
            }
            drop(probe.join());
            child();
        })?;
        if status != STRANDED {
            return told(status);
        }
    }
}

/// Says how a child with this exit status ended.
fn told(status: i32) -> Result<(), String> {
    match status {
        0 => Ok(()),
        PANICKED => Err("the child panicked".into()),
        other => Err(format!("the child ended with status {other}")),
    }
}

/// Returns the exit status of a child, or says how it ended otherwise.
fn end_of(child: impl FnOnce()) -> Result<i32, String> {
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
                (_, true, status) => Ok(status),
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
    use std::sync::atomic::{AtomicBool, Ordering};

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

    #[test]
    fn a_child_starts_threads_while_its_parent_does() {
        let is_over = AtomicBool::new(false);
        let ended: Vec<_> = thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    thread::spawn(|| ()).join().unwrap();
                }
            });
            let starts = || thread::spawn(|| ()).join().unwrap();
            let ended = (0..200).map(|_| run_with_threads(starts)).collect();
            is_over.store(true, Ordering::Relaxed);
            ended
        });
        assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    }
}
