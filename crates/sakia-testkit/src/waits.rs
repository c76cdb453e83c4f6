//! Waits for events that must happen, limited by the [patience](settings::patience) of the test run.

use std::env;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::settings;

/// The longest wait of this process so far, in milliseconds, and 1; 0 if there was none.
static LONGEST_MS: AtomicU64 = AtomicU64::new(0);

/// A wait from its beginning until it is dropped.
///
/// If `SAKIA_TEST_WAITS` is in the environment, it is the path of a file, which gets a line for each wait
/// that is longer than all before: its milliseconds. They tell how patient a test must be, if all waits that
/// its patience limits are such values.
///
/// # Examples
/// ```
/// use std::sync::atomic::{AtomicBool, Ordering};
///
/// use sakia_testkit::waits::LimitedWait;
///
/// static IS_DONE: AtomicBool = AtomicBool::new(false);
/// std::thread::spawn(|| IS_DONE.store(true, Ordering::Relaxed));
/// let wait = LimitedWait::begin();
/// while !IS_DONE.load(Ordering::Relaxed) {
///     assert!(!wait.is_over());
///     std::thread::yield_now();
/// }
/// ```
#[derive(Debug)]
pub struct LimitedWait {
    begin: Instant,
    limit: Duration,
}

impl LimitedWait {
    /// Begins a wait.
    pub fn begin() -> Self {
        Self { begin: Instant::now(), limit: settings::patience() }
    }

    /// Returns whether the wait was longer than the test is patient.
    pub fn is_over(&self) -> bool {
        self.begin.elapsed() > self.limit
    }
}

impl Drop for LimitedWait {
    fn drop(&mut self) {
        let Some(path) = env::var_os("SAKIA_TEST_WAITS") else { return };
        let noted = note(&LONGEST_MS, self.begin.elapsed(), path.as_ref());
        noted.unwrap_or_else(|error| panic!("SAKIA_TEST_WAITS: {error}"));
    }
}

/// Adds a line for a wait, if it is the longest so far.
fn note(longest_ms: &AtomicU64, took: Duration, path: &Path) -> io::Result<()> {
    let ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX - 1);
    if longest_ms.fetch_max(ms + 1, Ordering::Relaxed) > ms {
        return Ok(());
    }
    writeln!(File::options().create(true).append(true).open(path)?, "{ms}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longer_waits_are_noted() {
        let path = env::temp_dir().join(format!("sakia-testkit-waits-{}", std::process::id()));
        let longest = AtomicU64::new(0);
        for ms in [0, 0, 7, 3, 7, 80, 79] {
            note(&longest, Duration::from_millis(ms), &path).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "0\n7\n80\n");
        std::fs::remove_file(path).unwrap();
    }
}
