//! An ordered log of events, with one hash over all of them.
//!
//! An event is a template and the numbers in it. The hash covers both, with the time. They are formatted as
//! text only if the log is kept, since a run has many events and few readers. Up to a collision of 64 bits,
//! two runs were identical if and only if their hashes are equal. Addresses, real times and other values that
//! differ in a rerun are left out.

use std::fmt::Write as _;
use std::time::Duration;

use rustix::io::Errno;

use super::entry::Name;

/// The event log of one simulated kernel.
#[derive(Debug)]
pub(super) struct Log {
    digest: Digest,
    /// The number of events so far.
    events: u64,
    /// The events, one line each, if the log is kept.
    text: Option<String>,
}

impl Log {
    pub(super) fn new(keep_text: bool) -> Self {
        Self { digest: Digest::new(), events: 0, text: keep_text.then(String::new) }
    }

    /// Adds an event that happened at `now`, one line of text. In the template `{}` stands for the next
    /// number, `{x}` for the number in hexadecimal, `{op}` for the name of the operation with that number.
    pub(super) fn note(&mut self, now: Duration, template: &str, numbers: &[i64]) {
        self.events += 1;
        self.digest.add_number(nanos(now) as u64);
        self.digest.add(template.as_bytes());
        for &number in numbers {
            self.digest.add_number(number as u64);
        }
        if let Some(text) = &mut self.text {
            write!(text, "{} ", nanos(now)).expect("a string takes all text");
            render(text, template, numbers);
            text.push('\n');
        }
    }

    /// Adds an event with a name in it.
    pub(super) fn note_name(&mut self, now: Duration, label: &str, name: &[u8]) {
        self.note(now, label, &[]);
        self.digest.add(name);
        if let Some(text) = &mut self.text {
            text.pop();
            text.push(' ');
            text.push_str(&String::from_utf8_lossy(name));
            text.push('\n');
        }
    }

    pub(super) fn events(&self) -> u64 {
        self.events
    }

    pub(super) fn hash(&self) -> u64 {
        self.digest.finish()
    }

    pub(super) fn text(&self) -> &str {
        self.text.as_deref().unwrap_or_default()
    }
}

/// Returns a time as a number of the log.
pub(super) fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

/// Returns a result as a number of the log: a count, or a negated errno.
pub(super) fn code(result: Result<usize, Errno>) -> i64 {
    result.map_or_else(|errno| -i64::from(errno.raw_os_error()), |count| count as i64)
}

fn render(text: &mut String, template: &str, numbers: &[i64]) {
    let mut numbers = numbers.iter();
    let mut parts = template.split('{');
    text.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let (format, rest) = part.split_once('}').expect("a template's braces are paired");
        let number = *numbers.next().expect("a template has a number for each pair of braces");
        match format {
            "x" => write!(text, "{number:#x}"),
            "op" => write!(text, "{}", Name(number as u16)),
            _ => write!(text, "{number}"),
        }
        .expect("a string takes all text");
        text.push_str(rest);
    }
    assert!(numbers.next().is_none(), "the template {template} has no place for a number");
}

/// A hash of bytes and numbers, eight bytes at a time. Not for secrets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Digest(u64);

impl Digest {
    const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn add_number(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    fn add(&mut self, bytes: &[u8]) {
        self.add_number(bytes.len() as u64);
        let (words, rest) = bytes.as_chunks();
        for &word in words {
            self.add_number(u64::from_le_bytes(word));
        }
        let mut word = [0; 8];
        word[..rest.len()].copy_from_slice(rest);
        self.add_number(u64::from_le_bytes(word));
    }

    /// Spreads the last words over all bits.
    fn finish(self) -> u64 {
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns the hash of `bytes` alone.
    pub(super) fn of(bytes: &[u8]) -> u64 {
        let mut digest = Self::new();
        digest.add(bytes);
        digest.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_become_lines() {
        let mut log = Log::new(true);
        let read = i64::from(sakia_ring::Opcode::READ.0);
        log.note(Duration::from_micros(1), "#{} {op} {x}: {}", &[7, read, 255, -4]);
        log.note_name(Duration::ZERO, "open", b"a/b");
        log.note(Duration::ZERO, "{op}", &[250]);
        assert_eq!(log.text(), "1000 #7 READ 0xff: -4\n0 open a/b\n0 op 250\n");
    }

    #[test]
    fn everything_counts_but_whether_text_is_kept() {
        let hash = |keep_text, now, template: &str, numbers: &[i64], name: &[u8]| {
            let mut log = Log::new(keep_text);
            log.note(Duration::from_nanos(now), template, numbers);
            log.note_name(Duration::ZERO, "name", name);
            log.hash()
        };
        let reference = hash(false, 1, "a {}", &[2], b"n");
        assert_eq!(hash(true, 1, "a {}", &[2], b"n"), reference);
        for other in [
            hash(false, 2, "a {}", &[2], b"n"),
            hash(false, 1, "b {}", &[2], b"n"),
            hash(false, 1, "a {}", &[3], b"n"),
            hash(false, 1, "a {}", &[2], b"m"),
        ] {
            assert_ne!(other, reference);
        }
    }

    #[test]
    fn bytes_and_their_number_count() {
        let all: [&[u8]; 6] = [b"", b"\0", b"\0\0", b"12345678", b"123456789", b"923456781"];
        let mut hashes = all.map(Digest::of);
        hashes.sort_unstable();
        assert!(hashes.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
