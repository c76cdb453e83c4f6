//! The progress on a terminal.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Faster work shows no bar.
const DELAY: Duration = Duration::from_millis(300);
/// The interval of the bar's updates.
const INTERVAL: Duration = Duration::from_millis(100);

/// The templates of a bar with an unknown and a known total.
type Look = [&'static str; 2];

/// For files that are read.
const READING: Look = [
    "{spinner} {binary_bytes}, {binary_bytes_per_sec}",
    "{wide_bar} {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, {eta}",
];
/// For a copy, before and after its sources are counted.
pub const COPYING: Look = [
    "{spinner} {binary_bytes}, {msg}, {binary_bytes_per_sec}",
    "{wide_bar} {binary_bytes} of {binary_total_bytes}, {msg}, {binary_bytes_per_sec}, {eta}",
];

/// A bar on standard error, which appears after a delay, and disappears when it is dropped.
#[derive(Debug)]
pub struct Bar {
    bar: ProgressBar,
    look: Look,
    begin: Instant,
}

impl Bar {
    pub fn new(look: Look) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        Self { bar, look, begin: Instant::now() }
    }

    /// Shows the bytes done, of the total if it is known; a pipe, or a file that grew, has more than the
    /// total.
    pub fn show(&self, bytes: u64, total: Option<u64>, message: impl Into<Cow<'static, str>>) {
        if self.begin.elapsed() < DELAY {
            return;
        }
        if self.bar.is_hidden() {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        let style = |look| ProgressStyle::with_template(look).expect("the looks are well-formed");
        let [endless, bounded] = self.look;
        match total.filter(|&total| total >= bytes) {
            Some(total) => {
                self.bar.set_style(style(bounded));
                self.bar.set_length(total);
            }
            None => {
                self.bar.set_style(style(endless));
                self.bar.unset_length();
            }
        }
        self.bar.set_message(message);
        self.bar.set_position(bytes);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// The progress of reading: a bar, or nothing.
#[derive(Debug)]
pub struct Progress {
    bar: Option<Bar>,
    /// The time of the next update.
    next: Instant,
    bytes: u64,
    /// The known total, including the bytes done.
    total: u64,
}

impl Progress {
    /// Returns a progress with a bar, if `enabled`: standard error is a terminal, and the output is not
    /// quiet.
    pub fn new(enabled: bool) -> Self {
        let bar = enabled.then(|| Bar::new(READING));
        Self { bar, next: Instant::now() + DELAY, bytes: 0, total: 0 }
    }

    /// Adds to the known total.
    pub fn expect(&mut self, bytes: u64) {
        self.total = self.total.saturating_add(bytes);
    }

    /// Adds to the bytes done.
    #[inline]
    pub fn advance(&mut self, bytes: u64) {
        self.bytes += bytes;
        if self.bar.is_some() {
            self.look();
        }
    }

    fn look(&mut self) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.next = now + INTERVAL;
        if let Some(bar) = &self.bar {
            bar.show(self.bytes, Some(self.total), "");
        }
    }

    /// Lets `f` write to the terminal, with the bar hidden.
    pub fn aside<T>(&self, f: impl FnOnce() -> T) -> T {
        match &self.bar {
            Some(bar) => bar.bar.suspend(f),
            None => f(),
        }
    }

    /// Removes the bar.
    pub fn clear(&mut self) {
        self.bar = None;
    }
}
