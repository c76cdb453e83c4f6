//! Signals that end the program, told to its loop.
//!
//! The loop sleeps in the kernel until an operation completes. A flag alone would not do: a signal
//! that comes between the look at the flag and the sleep would be noticed only with the next
//! completion, perhaps never. So the handler also writes to a socket, and the loop keeps a poll of
//! its other end in flight.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

/// The signals that end the program.
const ENDING: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// Watches for signals that end the program, for the rest of its life.
#[derive(Debug)]
pub struct Signals {
    /// The last one that came; 0 when none has.
    received: Arc<AtomicUsize>,
}

impl Signals {
    /// Begins to watch. The descriptor becomes readable when a signal has come. A second signal
    /// kills the program at once.
    ///
    /// Signals that the program was started to ignore (`nohup`, a shell's `&`) stay ignored.
    ///
    /// # Errors `EMFILE`: no descriptor left.
    pub fn watch() -> io::Result<(Self, OwnedFd)> {
        let (reader, writer) = UnixStream::pair()?;
        let received = Arc::new(AtomicUsize::new(0));
        let armed = Arc::new(AtomicBool::new(false));
        let ignored = ignored();
        for signal in ENDING.into_iter().filter(|signal| ignored & 1 << (signal - 1) == 0) {
            // In this order: the first signal finds the flag down, and raises it.
            flag::register_conditional_default(signal, Arc::clone(&armed))?;
            flag::register(signal, Arc::clone(&armed))?;
            flag::register_usize(signal, Arc::clone(&received), signal as usize)?;
            low_level::pipe::register(signal, writer.try_clone()?)?;
        }
        Ok((Self { received }, reader.into()))
    }

    /// The last signal that came.
    pub fn received(&self) -> Option<i32> {
        let signal = self.received.load(Ordering::SeqCst);
        (signal != 0).then_some(signal as i32)
    }
}

/// The mask of ignored signals; none where `/proc` does not say.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
