//! The possible contents of a file while operations on it are in flight.
//!
//! A write that has begun may or may not have happened, and one whose handle was dropped may happen at any
//! time until the kernel is done with it. So the model keeps, for each byte, the set of values that a reader
//! may find, and a range for the size.

use std::ops::Range;

/// A set of byte values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByteSet([u64; 4]);

impl ByteSet {
    /// Returns a set of one value.
    pub fn one(value: u8) -> Self {
        let mut set = Self::default();
        set.insert(value);
        set
    }

    /// Adds a value.
    pub fn insert(&mut self, value: u8) {
        self.0[usize::from(value >> 6)] |= 1 << (value & 63);
    }

    /// Adds all of another set.
    pub fn extend(&mut self, other: Self) {
        for (word, more) in self.0.iter_mut().zip(other.0) {
            *word |= more;
        }
    }

    /// Returns whether the value is in the set.
    pub fn contains(self, value: u8) -> bool {
        self.0[usize::from(value >> 6)] & 1 << (value & 63) != 0
    }
}

/// The possible contents of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// The possible values of each position below [`size_max`](Content::size_max).
    values: Vec<ByteSet>,
    size_min: usize,
}

impl Content {
    /// Returns content that is exactly these bytes.
    pub fn exactly(bytes: &[u8]) -> Self {
        Self {
            values: bytes.iter().map(|&byte| ByteSet::one(byte)).collect(),
            size_min: bytes.len(),
        }
    }

    /// Returns the smallest possible size of the file, in bytes.
    pub fn size_min(&self) -> usize {
        self.size_min
    }

    /// Returns the largest possible size of the file, in bytes.
    pub fn size_max(&self) -> usize {
        self.values.len()
    }

    /// Puts these bytes at `at`, after zeros if the file ends earlier.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let end = at + bytes.len();
        // At an uncertain end, both stay possible: the bytes of a longer file, and the zeros of a shorter
        // one.
        let size_min = self.size_min;
        for set in self.values.iter_mut().take(at).skip(size_min) {
            set.insert(0);
        }
        if self.values.len() < end {
            self.values.resize(end, ByteSet::one(0));
        }
        for (set, &byte) in self.values[at..end].iter_mut().zip(bytes) {
            *set = ByteSet::one(byte);
        }
        self.size_min = size_min.max(end);
    }

    /// Sets the size to `len`; a longer file gets zeros.
    pub fn truncate(&mut self, len: usize) {
        let size_min = self.size_min;
        for set in self.values.iter_mut().take(len).skip(size_min) {
            set.insert(0);
        }
        self.values.resize(len, ByteSet::one(0));
        self.size_min = len;
    }

    /// Makes the file at least `len` long, with zeros after its former end.
    pub fn extend_to(&mut self, len: usize) {
        if self.size_min < len {
            let values = self.values.len().max(len);
            let size_min = self.size_min;
            for set in self.values.iter_mut().take(len).skip(size_min) {
                set.insert(0);
            }
            self.values.resize(values, ByteSet::one(0));
            self.size_min = len;
        }
    }

    /// Restores the possible values in a range from another content; both have the range.
    pub fn restore(&mut self, range: Range<usize>, before: &Self) {
        self.values[range.clone()].copy_from_slice(&before.values[range]);
    }

    /// Adds the possible values and sizes of another content.
    pub fn or(&mut self, other: &Self) {
        if self.values.len() < other.values.len() {
            self.values.resize(other.values.len(), ByteSet::default());
        }
        for (set, more) in self.values.iter_mut().zip(&other.values) {
            set.extend(*more);
        }
        self.size_min = self.size_min.min(other.size_min);
    }

    /// Checks that a read at `at` into a buffer of `len` may have returned these bytes. A read that may be
    /// short may return fewer bytes than the file has, but not none.
    ///
    /// # Errors
    /// The contradiction.
    pub fn check_read(
        &self,
        at: usize,
        len: usize,
        bytes: &[u8],
        may_be_short: bool,
    ) -> Result<(), String> {
        let count = bytes.len();
        let most = self.size_max().saturating_sub(at).min(len);
        let least = self.size_min.saturating_sub(at).min(len);
        let least = if may_be_short { least.min(1) } else { least };
        if !(least..=most).contains(&count) {
            return Err(format!("{count} bytes at {at}, where {least} to {most} are possible"));
        }
        let wrong = bytes
            .iter()
            .zip(self.values.iter().skip(at))
            .position(|(&byte, set)| !set.contains(byte));
        match wrong {
            Some(index) => Err(format!("the byte at {} cannot be {}", at + index, bytes[index])),
            None => Ok(()),
        }
    }

    /// Checks that the file may hold exactly these bytes.
    ///
    /// # Errors
    /// The contradiction.
    pub fn check_whole(&self, bytes: &[u8]) -> Result<(), String> {
        if !(self.size_min..=self.size_max()).contains(&bytes.len()) {
            let (min, max) = (self.size_min, self.size_max());
            return Err(format!("{} bytes, where {min} to {max} are possible", bytes.len()));
        }
        self.check_read(0, bytes.len(), bytes, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_certain_is_all_that_a_read_may_bring() {
        let mut content = Content::exactly(b"abc");
        assert_eq!(content.check_read(1, 9, b"bc", false), Ok(()));
        for (bytes, may_be_short) in
            [(&b"bd"[..], true), (b"b", false), (b"", true), (b"bcd", true)]
        {
            assert!(content.check_read(1, 9, bytes, may_be_short).is_err(), "{bytes:?}");
        }
        assert_eq!(content.check_read(1, 9, b"b", true), Ok(()));
        assert_eq!(content.check_read(3, 9, b"", false), Ok(()));
        content.write(5, b"x");
        assert_eq!(content.check_whole(b"abc\0\0x"), Ok(()));
        content.truncate(2);
        content.extend_to(3);
        assert_eq!(content.check_whole(b"ab\0"), Ok(()));
    }

    #[test]
    fn either_of_two_contents_is_possible_after_or() {
        let mut content = Content::exactly(b"abc");
        let mut after = content.clone();
        after.write(2, b"XY");
        content.or(&after);
        for bytes in [&b"abc"[..], b"abXY", b"abX", b"abcY"] {
            assert_eq!(content.check_whole(bytes), Ok(()), "{bytes:?}");
        }
        assert!(content.check_whole(b"ab").is_err());
        assert!(content.check_whole(b"aXXY").is_err());
        content.write(4, b"z");
        assert_eq!((content.size_min(), content.size_max()), (5, 5));
        assert_eq!(content.check_whole(b"abc\0z"), Ok(()), "the gap of the shorter one");
        assert_eq!(content.check_whole(b"abXYz"), Ok(()));
    }
}
