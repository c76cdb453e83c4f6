//! What happened, in order, folded into one number.
//!
//! Two runs did the same if and only if, up to a collision of 64 bits, their hashes are equal. The
//! hash is taken over the very text that can be kept, so a difference can always be looked at. No
//! address, no real time and nothing else that a rerun would change goes in.

use std::fmt::{self, Write as _};
use std::time::Duration;

/// The event log of one simulated kernel.
#[derive(Debug)]
pub(super) struct Log {
    hash: Fnv,
    /// The events, a line each, when they are kept.
    text: Option<String>,
}

impl Log {
    pub(super) fn new(keep_text: bool) -> Self {
        Self { hash: Fnv::new(), text: keep_text.then(String::new) }
    }

    /// Adds an event that happened at `now`.
    pub(super) fn note(&mut self, now: Duration, event: fmt::Arguments<'_>) {
        let now = now.as_nanos();
        // Neither a hash nor a string fails to take text.
        writeln!(self.hash, "{now} {event}").ok();
        if let Some(text) = &mut self.text {
            writeln!(text, "{now} {event}").ok();
        }
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash.finish()
    }

    pub(super) fn text(&self) -> &str {
        self.text.as_deref().unwrap_or_default()
    }
}

/// FNV-1a, 64 bits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fnv(u64);

impl Fnv {
    pub(super) const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    pub(super) fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    pub(super) fn finish(self) -> u64 {
        self.0
    }

    /// The hash of `bytes` alone.
    pub(super) fn of(bytes: &[u8]) -> u64 {
        let mut hash = Self::new();
        hash.add(bytes);
        hash.finish()
    }
}

impl fmt::Write for Fnv {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.add(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_fnv_1a_of_the_text() {
        assert_eq!(Fnv::of(b"foobar"), 0x8594_4171_f739_67e8);
        let mut log = Log::new(true);
        log.note(Duration::from_micros(1), format_args!("nop {}", 7));
        assert_eq!(log.text(), "1000 nop 7\n");
        assert_eq!(log.hash(), Fnv::of(b"1000 nop 7\n"));
    }

    #[test]
    fn text_is_kept_on_demand_only_and_the_hash_does_not_care() {
        let (mut with, mut without) = (Log::new(true), Log::new(false));
        for log in [&mut with, &mut without] {
            log.note(Duration::ZERO, format_args!("a"));
        }
        assert_eq!(without.text(), "");
        assert_eq!(with.hash(), without.hash());
    }
}
