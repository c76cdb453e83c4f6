//! Detects that a thread is blocked in the kernel, without guessing from time.
//!
//! A test that stalls a disk must know that a writer is blocked before it opens the gate. The kernel reports
//! it: the thread's state is `D`, an uninterruptible sleep that waits for storage.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

/// The longest wait of a test for an event that must happen.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A thread of this process, by its kernel id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadId(u32);

impl ThreadId {
    /// Returns the calling thread.
    pub fn current() -> Self {
        let raw = rustix::thread::gettid().as_raw_nonzero().get();
        Self(u32::try_from(raw).expect("a thread's number is positive"))
    }

    /// Returns the letter of the thread's state: `R` running, `S` asleep, `D` waiting for storage.
    ///
    /// # Errors
    /// `ENOENT`: the thread has ended.
    pub fn state(self) -> io::Result<char> {
        let stat = fs::read_to_string(format!("/proc/self/task/{}/stat", self.0))?;
        // The name before it, in parentheses, may contain any character.
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        state.ok_or_else(|| io::Error::other(format!("a state without letter: {stat}")))
    }

    /// Returns the kernel function that the thread sleeps in; `None` if this kernel does not show it.
    pub fn wait_channel(self) -> Option<String> {
        let name = fs::read_to_string(format!("/proc/self/task/{}/wchan", self.0)).ok()?;
        (name != "0" && !name.is_empty()).then_some(name)
    }

    /// Waits until the thread sleeps in the kernel function `within`; if this kernel does not show
    /// functions, until the thread waits for storage.
    ///
    /// # Panics
    /// If the thread has ended, or after [`PATIENCE`].
    #[track_caller]
    pub fn wait_until_in(self, within: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let state = self.state().expect("the thread must still wait, and has ended");
            let channel = self.wait_channel();
            if state == 'D' && channel.as_ref().is_none_or(|name| name.contains(within)) {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "the thread is in state {state} and {channel:?}, not in {within}"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_state_is_running() {
        assert_eq!(ThreadId::current().state().unwrap(), 'R');
    }

    #[test]
    fn ended_threads_are_told() {
        let ended = std::thread::spawn(ThreadId::current).join().unwrap();
        let deadline = Instant::now() + PATIENCE;
        while ended.state().is_ok() {
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
    }
}
