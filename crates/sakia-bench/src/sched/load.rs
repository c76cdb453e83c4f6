//! The load of a run: operations, the threads that do them, and the bytes they touch.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::computation::{Computation, compute};

/// The size of a file's area that is not written is rounded up to a multiple of this; writes come after it.
const AREA_BYTES: u64 = 1 << 20;
/// The byte in dense files before the first write: none of the bytes of [`pattern`].
pub(super) const UNWRITTEN: u8 = 255;

/// The operations of a run.
///
/// Those of one kind use the files in turn; the k-th on a file begins at `k * step`. Writes go after the area
/// that is read, so that every byte is known. Thread `i % threads` does the i-th operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Load {
    pub threads: usize,
    pub reads: Share,
    pub writes: Share,
    /// Relative to the working directory, unless absolute.
    pub files: Vec<PathBuf>,
    /// Set if reads and writes alternate, in the ratio of their numbers. Otherwise a thread's reads come
    /// first.
    pub mix: bool,
    /// Set if the page cache is bypassed.
    pub direct: bool,
    /// Set if operations do not go from the beginning of a file to its end, so that nothing is read ahead.
    pub scattered: bool,
    /// The computation with each block that is read, if there is one.
    pub computation: Option<Computation>,
}

/// The operations of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Share {
    pub count: u64,
    /// Bytes of each operation.
    pub size: usize,
    /// Bytes from the beginning of one operation to that of the next on the same file.
    pub step: u64,
}

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Operation {
    pub is_write: bool,
    /// The index of the file.
    pub file: usize,
    pub offset: u64,
}

impl Share {
    /// Returns the number of operations on a file.
    fn of_file(&self, file: usize, files: usize) -> u64 {
        let (file, files) = (file as u64, files as u64);
        self.count / files + u64::from(file < self.count % files)
    }

    /// Returns the bytes from the first to the last of `count` operations on a file.
    fn span(&self, count: u64) -> u64 {
        count.checked_sub(1).map_or(0, |last| last * self.step + self.size as u64)
    }

    /// Returns the bytes of memory of a thread for these operations.
    pub fn buffer_bytes(&self) -> usize {
        if self.count > 0 { self.size } else { 0 }
    }

    /// Returns the number of different places of these operations in a file.
    fn places(&self, count: u64) -> u64 {
        if self.step == 0 { count.min(1) } else { count }
    }
}

impl Load {
    /// Returns the number of operations.
    pub fn operations(&self) -> u64 {
        self.reads.count + self.writes.count
    }

    /// Returns the number of bytes that they move.
    pub fn bytes(&self) -> u64 {
        [self.reads, self.writes].iter().map(|share| share.count * share.size as u64).sum()
    }

    /// Returns the bytes of memory of all threads for them.
    pub fn memory_bytes(&self) -> u64 {
        let of_each = self.reads.buffer_bytes() + self.writes.buffer_bytes();
        let buffers = self.computation.map_or(1, |computation| computation.buffers());
        (self.threads * buffers * of_each) as u64
    }

    /// Returns the part of a read in the sum of a run: its [`sample`], and the result of the computation.
    #[inline]
    pub fn value(&self, block: &[u8]) -> u64 {
        let computed =
            self.computation.map_or(0, |Computation { steps, .. }| compute(block, steps));
        sample(block).wrapping_add(computed)
    }

    /// Returns the offset in each file at which writes begin.
    pub fn writes_begin(&self) -> u64 {
        self.reads.span(self.reads.of_file(0, self.files.len())).next_multiple_of(AREA_BYTES)
    }

    /// Returns the bytes of a file that are written, gaps included.
    pub fn written_bytes(&self, file: usize) -> u64 {
        self.writes.span(self.writes.of_file(file, self.files.len()))
    }

    /// Returns the required length of a file.
    pub fn file_bytes(&self, file: usize) -> u64 {
        let files = self.files.len();
        match self.written_bytes(file) {
            0 => self.reads.span(self.reads.of_file(file, files)),
            written => self.writes_begin() + written,
        }
    }

    /// Returns the sum of the bytes that a file must hold in the written area.
    pub fn written_sum(&self, file: usize, is_sparse: bool) -> u64 {
        let places = self.writes.places(self.writes.of_file(file, self.files.len()));
        let of_one: u64 = pattern(self.writes.size).iter().map(|&byte| u64::from(byte)).sum();
        let gaps = self.written_bytes(file) - places * self.writes.size as u64;
        places * of_one + if is_sparse { 0 } else { gaps * u64::from(UNWRITTEN) }
    }

    /// Returns the operations of a thread, in order.
    pub fn of_thread(&self, thread: usize) -> impl Iterator<Item = Operation> {
        (thread as u64..self.operations()).step_by(self.threads).map(|index| self.operation(index))
    }

    /// Returns the number of operations of a thread.
    pub fn count_of_thread(&self, thread: usize) -> u64 {
        (self.operations() + self.threads as u64 - 1 - thread as u64) / self.threads as u64
    }

    fn operation(&self, index: u64) -> Operation {
        let (reads, all) = (self.reads.count, self.operations());
        if self.mix {
            // The number of reads before the i-th operation is its share of them, rounded down.
            let before =
                |index: u64| (u128::from(index) * u128::from(reads) / u128::from(all)) as u64;
            let read = before(index);
            let is_write = before(index + 1) == read;
            self.place(is_write, if is_write { index - read } else { read })
        } else {
            let is_write = index >= reads;
            self.place(is_write, if is_write { index - reads } else { index })
        }
    }

    /// Returns the operation of a kind with this number.
    fn place(&self, is_write: bool, number: u64) -> Operation {
        let (share, begin) =
            if is_write { (&self.writes, self.writes_begin()) } else { (&self.reads, 0) };
        let files = self.files.len() as u64;
        let (file, index) = ((number % files) as usize, number / files);
        let count = share.of_file(file, self.files.len());
        let index = if self.scattered { scatter(index, count) } else { index };
        Operation { is_write, file, offset: begin + index * share.step }
    }
}

/// Returns a permutation of the numbers below `count`, in which consecutive ones seldom follow each other.
fn scatter(index: u64, count: u64) -> u64 {
    let mut stride = (count as f64 * 0.618) as u64 | 1;
    while gcd(stride, count) != 1 {
        stride += 2;
    }
    (u128::from(index) * u128::from(stride) % u128::from(count.max(1))) as u64
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Returns bytes to write: none is [`UNWRITTEN`], and none equals its neighbor.
pub(super) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index % 251) as u8).collect()
}

/// Returns the sum of those bytes of a read that are added while time is measured: its two ends, which cost
/// next to nothing.
#[inline]
pub(super) fn sample(bytes: &[u8]) -> u64 {
    let word = |part: &[u8; 8]| u64::from_le_bytes(*part);
    match (bytes.first_chunk(), bytes.last_chunk()) {
        (Some(first), Some(last)) => word(first).wrapping_add(word(last)),
        _ => bytes.iter().map(|&byte| u64::from(byte)).sum(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn load(threads: usize, reads: Share, writes: Share, files: usize, mix: bool) -> Load {
        let files = (0..files).map(|file| PathBuf::from(file.to_string())).collect();
        Load {
            threads,
            reads,
            writes,
            files,
            mix,
            direct: false,
            scattered: false,
            computation: None,
        }
    }

    fn share(count: u64, size: usize, step: u64) -> Share {
        Share { count, size, step }
    }

    #[test]
    fn every_operation_is_done_once_whatever_the_number_of_threads() {
        for (threads, mix) in [(1, false), (3, true), (16, false), (7, true)] {
            let load = load(threads, share(10, 100, 100), share(25, 50, 60), 2, mix);
            let all: Vec<_> = (0..threads).flat_map(|thread| load.of_thread(thread)).collect();
            assert_eq!(all.len() as u64, load.operations());
            let places: BTreeSet<_> =
                all.iter().map(|one| (one.is_write, one.file, one.offset)).collect();
            assert_eq!(places.len(), all.len(), "{threads}");
            for thread in 0..threads {
                let count = load.of_thread(thread).count() as u64;
                assert_eq!(count, load.count_of_thread(thread), "{thread} of {threads}");
            }
        }
    }

    /// After each operation, the numbers of reads and writes have the requested ratio to within one
    /// operation. The order is neither random nor in blocks.
    #[test]
    fn mix_has_the_ratio_of_the_numbers() {
        for (reads, writes) in [(30, 10), (10, 30), (1, 99), (7, 7), (5, 0)] {
            let load = load(1, share(reads, 1, 0), share(writes, 1, 0), 1, true);
            let mut seen = 0;
            for (index, operation) in load.of_thread(0).enumerate() {
                seen += u64::from(!operation.is_write);
                let exact = (index + 1) as f64 * reads as f64 / (reads + writes) as f64;
                assert!((seen as f64 - exact).abs() < 1.0, "{reads} {writes} {index} {seen}");
            }
            assert_eq!(seen, reads);
        }
    }

    #[test]
    fn reads_come_first_unless_mixed() {
        let load = load(1, share(2, 10, 0), share(2, 10, 0), 1, false);
        let writes: Vec<_> = load.of_thread(0).map(|operation| operation.is_write).collect();
        assert_eq!(writes, [false, false, true, true]);
    }

    #[test]
    fn operations_lie_where_the_steps_say_and_writes_behind_reads() {
        let load = load(1, share(5, 100, 1000), share(3, 50, 0), 2, false);
        let places: Vec<_> = load.of_thread(0).map(|one| (one.file, one.offset)).collect();
        let begin = AREA_BYTES;
        let expected =
            [(0, 0), (1, 0), (0, 1000), (1, 1000), (0, 2000), (0, begin), (1, begin), (0, begin)];
        assert_eq!(places, expected);
        assert_eq!((load.file_bytes(0), load.file_bytes(1)), (begin + 50, begin + 50));
        assert_eq!((load.bytes(), load.memory_bytes()), (650, 150));
        // Steps leave gaps; without steps, all writes go to the same place.
        assert_eq!(load.written_sum(0, false), (0..50).sum::<u64>());
        let load = super::tests::load(1, Share::default(), share(3, 2, 10), 1, false);
        assert_eq!((load.writes_begin(), load.file_bytes(0)), (0, 22));
        assert_eq!(load.written_sum(0, true), 3);
        assert_eq!(load.written_sum(0, false), 3 + 16 * 255);
    }

    #[test]
    fn scattered_places_are_the_same_ones() {
        for count in [1, 2, 3, 10, 97, 1000] {
            let places: Vec<_> = (0..count).map(|index| scatter(index, count)).collect();
            let all: BTreeSet<_> = places.iter().copied().collect();
            assert!(all.into_iter().eq(0..count), "{count}");
            let in_line = places.windows(2).filter(|pair| pair[0] + 1 == pair[1]).count();
            assert!(count < 10 || in_line < places.len() / 4, "{count} {in_line}");
        }
    }

    #[test]
    fn sample_tells_ends_apart() {
        assert_eq!(sample(&[1, 2, 3]), 6);
        assert_eq!(sample(&[]), 0);
        let bytes = pattern(100);
        let first = u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7]);
        let last = u64::from_le_bytes([92, 93, 94, 95, 96, 97, 98, 99]);
        assert_eq!(sample(&bytes), first.wrapping_add(last));
    }
}
