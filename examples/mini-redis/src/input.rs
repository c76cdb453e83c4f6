//! The bytes received but not parsed yet.

/// The initial size, restored once a large command is parsed.
const BYTES: usize = 16 << 10;

/// A buffer that grows with the bytes received, not with the length a client announces. Its parser enforces
/// the limit.
pub(crate) struct Input {
    /// All of it is initialized, so that a read can borrow its end.
    bytes: Vec<u8>,
    /// The start of the bytes not parsed yet.
    start: usize,
    /// The end of these bytes.
    end: usize,
}

impl Input {
    pub(crate) fn new() -> Self {
        Self { bytes: vec![0; BYTES], start: 0, end: 0 }
    }

    /// Returns the bytes not parsed yet.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Drops `count` parsed bytes.
    pub(crate) fn consume(&mut self, count: usize) {
        self.start += count;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Returns the room for the next read, which is never empty.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        if self.end == 0 && self.bytes.len() > BYTES {
            self.bytes = vec![0; BYTES];
        }
        if self.end == self.bytes.len() {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            if self.end > self.bytes.len() / 2 {
                self.bytes.resize(self.bytes.len() * 2, 0);
            }
        }
        &mut self.bytes[self.end..]
    }

    /// Records that a read filled `count` bytes.
    pub(crate) fn filled(&mut self, count: usize) {
        self.end += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_stay_in_order_and_memory_is_given_back() {
        let mut input = Input::new();
        let mut next = (0..u8::MAX).cycle();
        let mut expected = next.clone();
        let mut unparsed = 0;
        for round in 0..20 {
            let room = input.room();
            assert!(!room.is_empty());
            room.fill_with(|| next.next().expect("a cycle has no end"));
            let count = room.len();
            input.filled(count);
            unparsed += count;
            // Consumes a part, so that the buffer grows at first, and later all of it.
            let count = if round < 5 { unparsed / 3 } else { unparsed };
            let expected: Vec<u8> = expected.by_ref().take(count).collect();
            assert!(input.bytes()[..count] == expected);
            input.consume(count);
            unparsed -= count;
            assert_eq!(input.bytes().len(), unparsed);
        }
        assert_eq!(input.room().len(), BYTES);
    }
}
