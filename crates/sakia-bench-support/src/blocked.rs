//! Whether a thread waits in the kernel, without guessing from time.
//!
//! A test that stalls a disk must know that a writer stands still before it opens the gate. The
//! kernel says so: the thread's state is `D`, a sleep that waits for storage.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

/// How long a test waits for what must happen, before it fails.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A thread of this process, as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadId(u32);

impl ThreadId {
    /// The calling thread.
    pub fn current() -> Self {
        let raw = rustix::thread::gettid().as_raw_nonzero().get();
        Self(u32::try_from(raw).expect("a thread's number is positive"))
    }

    /// The letter of the thread's state: `R` running, `S` asleep, `D` in a wait for storage.
    ///
    /// # Errors
    /// `ENOENT`: the thread has ended.
    pub fn state(self) -> io::Result<char> {
        let stat = fs::read_to_string(format!("/proc/self/task/{}/stat", self.0))?;
        // The name before it, in parentheses, may hold anything.
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        state.ok_or_else(|| io::Error::other(format!("a state without letter: {stat}")))
    }

    /// The kernel function the thread sleeps in, where this kernel tells.
    pub fn wait_channel(self) -> Option<String> {
        let name = fs::read_to_string(format!("/proc/self/task/{}/wchan", self.0)).ok()?;
        (name != "0" && !name.is_empty()).then_some(name)
    }

    /// Waits until the thread sleeps in the kernel function `within`; where this kernel does not
    /// tell functions, until the thread waits for storage.
    ///
    /// # Panics
    /// When the thread ended, or after [`PATIENCE`].
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
