//! How far it has come, on a terminal.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Work that is done sooner shows no bar.
const DELAY: Duration = Duration::from_millis(300);
/// Time between two looks of the bar.
const INTERVAL: Duration = Duration::from_millis(100);

/// What a bar looks like where it is not known how much there is, and where it is.
type Look = [&'static str; 2];

/// Of files that are read.
const READING: Look = [
    "{spinner} {binary_bytes}, {binary_bytes_per_sec}",
    "{wide_bar} {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, {eta}",
];
/// Of a copy, whose sources are not all counted, and then are.
pub const COPYING: Look = [
    "{spinner} {binary_bytes}, {msg}, {binary_bytes_per_sec}",
    "{wide_bar} {binary_bytes} of {binary_total_bytes}, {msg}, {binary_bytes_per_sec}, {eta}",
];

/// A bar on standard error, which shows itself after a while, and goes away when it is dropped.
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

    /// So much is done, of so much if that is known; a pipe, or a file that grew, has more than was known.
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

/// How far reading has come: a bar, or nothing.
#[derive(Debug)]
pub struct Progress {
    bar: Option<Bar>,
    /// When to look again.
    next: Instant,
    bytes: u64,
    /// What is known of the bytes to come, those done included.
    total: u64,
}

impl Progress {
    /// With a bar, if `enabled`: standard error is a terminal, and nobody asked for silence.
    pub fn new(enabled: bool) -> Self {
        let bar = enabled.then(|| Bar::new(READING));
        Self { bar, next: Instant::now() + DELAY, bytes: 0, total: 0 }
    }

    /// More bytes are known to come.
    pub fn expect(&mut self, bytes: u64) {
        self.total = self.total.saturating_add(bytes);
    }

    /// More bytes are done.
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

    /// Lets `f` write to the terminal, with the bar out of its way.
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
