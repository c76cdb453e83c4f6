//! A few words that one thread writes and any thread reads, as they were at one moment.
//!
//! The words are atomics, so that a read beside a write is no data race. A count tells whether the words that
//! were read belong together (a sequence lock):
//! 1. The only writer makes the count odd, writes the words, and makes the count even again.
//! 2. A reader reads the count, the words, and the count again. If the count was even and has not changed, no
//!    write was under way meanwhile, and the words are those of one write.
//! 3. Otherwise the reader has nothing, and may try again. The writer never waits.
//!
//! A reader that has read one word of a write sees that write's count, because the writer's release fence
//! lies between the odd count and the words, and the reader's acquire fence between the words and its second
//! read of the count. Reading a word of the write makes the two fences pair, so the second read sees at least
//! the odd count. The acquire of the first read pairs with the release of the even count: the reader sees no
//! words older than that count.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Words with a count of their writes.
#[derive(Debug)]
pub(super) struct Record<const N: usize> {
    /// Odd while the words are being written.
    count: AtomicU64,
    words: [AtomicU64; N],
}

impl<const N: usize> Record<N> {
    /// Returns a record whose words are all zero.
    pub(super) fn new() -> Self {
        Self { count: AtomicU64::new(0), words: std::array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Replaces all words. Only the thread that writes the record may call this.
    pub(super) fn write(&self, values: [u64; N]) {
        let count = self.count.load(Ordering::Relaxed);
        self.count.store(count.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release); // pairs with the fence in `try_read`
        for (word, value) in self.words.iter().zip(values) {
            word.store(value, Ordering::Relaxed);
        }
        self.count.store(count.wrapping_add(2), Ordering::Release); // pairs with the first look
    }

    /// Returns the words, on the thread that writes the record.
    pub(super) fn own(&self) -> [u64; N] {
        self.copy()
    }

    /// Returns the words of one write, on any thread. `None` if a write was under way meanwhile.
    pub(super) fn try_read(&self) -> Option<[u64; N]> {
        let before = self.count.load(Ordering::Acquire); // pairs with the end of `write`
        let values = self.copy();
        fence(Ordering::Acquire); // pairs with the fence in `write`
        let after = self.count.load(Ordering::Relaxed);
        (before == after && before.is_multiple_of(2)).then_some(values)
    }

    fn copy(&self) -> [u64; N] {
        std::array::from_fn(|index| self.words[index].load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_last_is_read() {
        let record = Record::<3>::new();
        assert_eq!(record.try_read(), Some([0; 3]));
        record.write([1, 2, 3]);
        record.write([4, 5, 6]);
        assert_eq!((record.try_read(), record.own()), (Some([4, 5, 6]), [4, 5, 6]));
    }

    #[test]
    fn a_record_that_is_being_written_is_not_read() {
        let record = Record::<1>::new();
        record.count.store(7, Ordering::Relaxed);
        assert_eq!(record.try_read(), None);
    }

    #[test]
    fn no_copy_mixes_two_writes() {
        let (record, writes) = (Record::<4>::new(), if cfg!(miri) { 50 } else { 100_000 });
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut last = 0;
                while last < writes {
                    if let Some(values) = record.try_read() {
                        assert!(values == [values[0]; 4] && values[0] >= last, "{values:?}");
                        last = values[0];
                    }
                    std::thread::yield_now();
                }
            });
            (1..=writes).for_each(|value| record.write([value; 4]));
            reader.join().expect("the reader does not panic");
        });
    }
}
