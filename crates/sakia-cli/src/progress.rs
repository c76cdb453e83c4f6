//! How far it has come, on a terminal.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Work that is done sooner shows no bar.
const DELAY: Duration = Duration::from_millis(300);
/// Time between two looks of the bar.
const INTERVAL: Duration = Duration::from_millis(100);

/// Where it is known how much there is, and where not.
const BOUNDED: &str =
    "{wide_bar} {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, {eta}";
const ENDLESS: &str = "{spinner} {binary_bytes}, {binary_bytes_per_sec}";

/// A copy, whose sources are not all counted, and then are.
const COPYING: &str = "{spinner} {binary_bytes}, {msg}, {binary_bytes_per_sec}";
const COPYING_OF: &str =
    "{wide_bar} {binary_bytes} of {binary_total_bytes}, {msg}, {binary_bytes_per_sec}, {eta}";

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the templates are well-formed")
}

/// A bar on standard error, or nothing.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
    /// When to look again.
    next: Instant,
    bytes: u64,
    /// What is known of the bytes to come, those done included.
    total: u64,
}

impl Progress {
    /// With a bar, if `enabled`: standard error is a terminal, and nobody asked for silence.
    pub fn new(enabled: bool) -> Self {
        let hidden = || ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        let bar = enabled.then(|| hidden().with_style(style(ENDLESS)));
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
            if bar.is_hidden() {
                bar.set_draw_target(ProgressDrawTarget::stderr());
            }
            if self.bytes > self.total {
                bar.set_style(style(ENDLESS)); // a pipe, or a file that grew
                bar.unset_length();
            } else {
                bar.set_style(style(BOUNDED));
                bar.set_length(self.total);
            }
            bar.set_position(self.bytes);
        }
    }

    /// Lets `f` write to the terminal, with the bar out of its way.
    pub fn aside<T>(&self, f: impl FnOnce() -> T) -> T {
        match &self.bar {
            Some(bar) => bar.suspend(f),
            None => f(),
        }
    }

    /// Removes the bar.
    pub fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// The bar of a copy, on standard error; it goes away when it is dropped.
#[derive(Debug)]
pub struct Copying {
    bar: ProgressBar,
    begin: Instant,
}

impl Copying {
    /// One that shows itself after a while.
    pub fn new() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        Self { bar: bar.with_style(style(COPYING)), begin: Instant::now() }
    }

    /// So much is done, of so much if that is known.
    pub fn show(&self, bytes: u64, files: u64, total: Option<u64>) {
        if self.begin.elapsed() < DELAY {
            return;
        }
        if self.bar.is_hidden() {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        if let Some(total) = total.filter(|&total| total >= bytes && self.bar.length().is_none()) {
            self.bar.set_style(style(COPYING_OF));
            self.bar.set_length(total);
        }
        self.bar.set_message(format!("{files} files"));
        self.bar.set_position(bytes);
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
