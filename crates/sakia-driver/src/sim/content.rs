//! The bytes of a regular file: the side of readers, and the side of the disk.
//!
//! Readers see the page cache. The disk has the bytes that were synced or written back; the pages in which it
//! may differ are *dirty*. As on a disk, the file's length is stored apart from its pages: a crash may keep a
//! length without the bytes, which are zeros then, or bytes without the length.
//!
//! A truncation is an entry of the [`Journal`](super::journal::Journal). Bytes written into space that it has
//! freed go into new blocks, so that the disk has them only after the truncation: no crash leaves a file of
//! which one half is older than its truncation and the other half newer.
//!
//! Pages that were dirty when a sync failed are clean afterwards, and the disk gets them only if they are
//! written again. The failure is reported once to each open file; see [`Failures`].

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::random::Random;

/// The unit of transfers between the cache and the disk.
pub(super) const PAGE_BYTES: usize = 4096;
/// The unit that a disk writes atomically.
const SECTOR_BYTES: usize = 512;

/// A regular file.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    /// The bytes in the page cache, which readers see.
    cached: Vec<u8>,
    /// The bytes on the disk.
    stored: Vec<u8>,
    /// Pages that the disk may not have, each with the number of the truncation that has to reach the disk
    /// before it; 0 for none.
    dirty: BTreeMap<usize, u64>,
    /// Truncations that the disk may not have, oldest first: the number in the journal, and the length.
    cuts: Vec<(u64, usize)>,
    /// Pages that take space on the disk.
    allocated: BTreeSet<usize>,
    pub(super) failures: Failures,
}

/// Write-back failures, as the kernel's `errseq_t`: each is reported once to each file that was open, and to
/// the first one opened later if it was not reported before.
#[derive(Clone, Debug, Default)]
pub(super) struct Failures {
    count: u64,
    /// The last failure was reported to some file.
    is_told: bool,
}

impl Failures {
    pub(super) fn add(&mut self) {
        self.count += 1;
        self.is_told = false;
    }

    /// Returns the last failure reported to a file that is opened now.
    pub(super) fn sample(&self) -> u64 {
        self.count - u64::from(self.count > 0 && !self.is_told)
    }

    /// Returns whether there is a failure after `told`, and marks it as reported.
    pub(super) fn tell(&mut self, told: &Cell<u64>) -> bool {
        let is_new = told.replace(self.count) != self.count;
        self.is_told |= is_new;
        is_new
    }
}

/// The effect of a crash on unsynced data of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Lost,
    KeepAlive,
    /// Chance decides for each page.
    Pages,
    /// Chance decides for each sector.
    Sectors,
}

impl Content {
    /// Returns a file that is on the disk.
    pub(super) fn stored(bytes: Vec<u8>) -> Self {
        let allocated = (0..bytes.len().div_ceil(PAGE_BYTES)).collect();
        Self { stored: bytes.clone(), cached: bytes, allocated, ..Self::default() }
    }

    /// Returns the bytes that readers see.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.cached
    }

    /// Returns the number of pages that the disk may not have.
    pub(super) fn dirty_pages(&self) -> usize {
        self.dirty.len()
    }

    /// Returns the number of pages that take space on the disk.
    pub(super) fn allocated_pages(&self) -> usize {
        self.allocated.len()
    }

    // Changes.

    /// Replaces the whole content, on the disk too.
    pub(super) fn replace(&mut self, bytes: Vec<u8>) {
        let failures = std::mem::take(&mut self.failures);
        *self = Self { failures, ..Self::stored(bytes) };
    }

    /// Writes bytes, and extends the file if needed.
    pub(super) fn write(&mut self, begin: usize, bytes: &[u8]) {
        let end = begin + bytes.len();
        if self.cached.len() < end {
            self.cached.resize(end, 0);
        }
        self.cached[begin..end].copy_from_slice(bytes);
        self.allocated.extend(pages(&(begin..end)));
        self.soil(begin..end);
    }

    /// Extends the file with zeros.
    pub(super) fn extend(&mut self, len: usize) {
        self.cached.resize(len.max(self.cached.len()), 0);
    }

    /// Truncates the file. `number` is that of the truncation in the journal.
    pub(super) fn cut(&mut self, len: usize, number: u64) {
        self.cached.truncate(len);
        self.cuts.push((number, len));
        let first_gone = len.div_ceil(PAGE_BYTES);
        self.dirty.split_off(&first_gone);
        self.allocated.split_off(&first_gone);
    }

    /// Zeroes a range within the file; whole pages of it then take no space.
    pub(super) fn punch(&mut self, range: Range<usize>) {
        let end = range.end.min(self.cached.len());
        let begin = range.start.min(end);
        self.cached[begin..end].fill(0);
        self.soil(begin..end);
        let inner = range.start.div_ceil(PAGE_BYTES)..range.end / PAGE_BYTES;
        self.allocated.retain(|page| !inner.contains(page));
    }

    /// Allocates space for later bytes.
    pub(super) fn reserve(&mut self, range: Range<usize>) {
        self.allocated.extend(pages(&range));
    }

    /// Returns how many of the bytes in `range`, from its begin on, fit if `free_pages` pages are free.
    pub(super) fn fitting(&self, range: Range<usize>, mut free_pages: u64) -> usize {
        for page in pages(&range).filter(|page| !self.allocated.contains(page)) {
            if free_pages == 0 {
                return (page * PAGE_BYTES).saturating_sub(range.start);
            }
            free_pages -= 1;
        }
        range.len()
    }

    fn soil(&mut self, range: Range<usize>) {
        for page in pages(&range) {
            let cuts = self.cuts.iter().filter(|&&(_, len)| len <= page * PAGE_BYTES);
            let after = cuts.map(|&(number, _)| number).max().unwrap_or(0);
            self.dirty.entry(page).or_insert(after);
        }
    }

    // The disk.

    /// Stores the truncations up to this number.
    pub(super) fn store_cuts(&mut self, number: u64) {
        let count = self.cuts.partition_point(|&(its, _)| its <= number);
        for (_, len) in self.cuts.drain(..count) {
            self.stored.truncate(len);
        }
    }

    /// Stores the length, and the dirty pages among those of `range`. Returns the number of pages stored.
    pub(super) fn sync(&mut self, range: Range<usize>) -> usize {
        self.store_cuts(u64::MAX);
        self.stored.resize(self.cached.len(), 0);
        let count = self.dirty.len();
        for page in self.dirty_among(range) {
            self.dirty.remove(&page);
            self.store(page);
        }
        self.dirty.values_mut().for_each(|after| *after = 0);
        count - self.dirty.len()
    }

    /// Returns whether a dirty page may be stored now: truncations come first.
    pub(super) fn may_write_back(&self) -> bool {
        !self.dirty.is_empty() && self.cuts.is_empty()
    }

    /// Stores one of the dirty pages, and as much of the length as it needs.
    pub(super) fn write_back(&mut self, random: &mut Random) {
        let index = random.below(self.dirty.len() as u64) as usize;
        let page = self.dirty.keys().nth(index).copied().expect("the index is below their number");
        self.dirty.remove(&page);
        let end = self.cached.len().min((page + 1) * PAGE_BYTES);
        self.stored.resize(end.max(self.stored.len()), 0);
        self.store(page);
    }

    /// Fails a sync of the pages of `range`: they become clean, and the disk does not have them. Returns
    /// their number.
    pub(super) fn lose(&mut self, range: Range<usize>) -> usize {
        self.failures.add();
        let pages = self.dirty_among(range);
        for page in &pages {
            self.dirty.remove(page);
        }
        pages.len()
    }

    /// Returns the dirty pages that have bytes of the range.
    fn dirty_among(&self, range: Range<usize>) -> Vec<usize> {
        let first = range.start / PAGE_BYTES;
        let end = range.end.div_ceil(PAGE_BYTES).max(first);
        self.dirty.range(first..end).map(|(&page, _)| page).collect()
    }

    /// Copies a page to the disk, up to the end of the file there.
    fn store(&mut self, page: usize) {
        let end = ((page + 1) * PAGE_BYTES).min(self.stored.len()).min(self.cached.len());
        let begin = (page * PAGE_BYTES).min(end);
        self.stored[begin..end].copy_from_slice(&self.cached[begin..end]);
    }

    /// Returns the content after a crash, in which no more truncations reach the disk.
    pub(super) fn after_crash(self, random: &mut Random) -> Self {
        let fate = match random.below(4) {
            0 => Fate::Lost,
            1 => Fate::KeepAlive,
            2 => Fate::Pages,
            _ => Fate::Sectors,
        };
        let (mut bytes, allocated) = (self.stored, self.allocated);
        // A length set after a truncation does not reach the disk before the truncation.
        if self.cuts.is_empty() {
            bytes.resize(surviving_len(fate, bytes.len(), self.cached.len(), random), 0);
        }
        let first_lost = self.cuts.first().map_or(u64::MAX, |&(number, _)| number);
        let possible = self.dirty.iter().filter(|&(_, &after)| after < first_lost);
        for (&page, _) in possible {
            let is_kept = fate == Fate::KeepAlive || fate == Fate::Pages && random.chance(1 << 15);
            for sector in (page * PAGE_BYTES..(page + 1) * PAGE_BYTES).step_by(SECTOR_BYTES) {
                if is_kept || fate == Fate::Sectors && random.chance(1 << 15) {
                    copy_padded(&self.cached, &mut bytes, sector);
                }
            }
        }
        let allocated = allocated_after(&bytes, &allocated);
        Self { cached: bytes.clone(), stored: bytes, allocated, ..Self::default() }
    }
}

/// Returns the pages that take space after a crash that has left `bytes`: a hole stays a hole, and pages
/// freed by a lost truncation are there again.
fn allocated_after(bytes: &[u8], before: &BTreeSet<usize>) -> BTreeSet<usize> {
    let is_filled = |page: &[u8]| page.iter().any(|&byte| byte != 0);
    let pages = bytes.chunks(PAGE_BYTES).enumerate();
    let taken = pages.filter(|(page, bytes)| before.contains(page) || is_filled(bytes));
    taken.map(|(page, _)| page).collect()
}

/// Copies the sector at `begin`, padded with zeros after the end of `from`, up to the end of `to`.
fn copy_padded(from: &[u8], to: &mut [u8], begin: usize) {
    let end = (begin + SECTOR_BYTES).min(to.len());
    let begin = begin.min(end);
    let known = from.get(begin..end.min(from.len())).unwrap_or_default();
    to[begin..begin + known.len()].copy_from_slice(known);
    to[begin + known.len()..end].fill(0);
}

/// Returns the length, after a crash, of a file that has grown.
fn surviving_len(fate: Fate, old: usize, new: usize, random: &mut Random) -> usize {
    match (fate, random.below(3)) {
        (Fate::Lost, _) => old,
        (Fate::KeepAlive, _) => new,
        (_, 0) => old,
        (_, 1) => new,
        _ => {
            let pages = (old / PAGE_BYTES) as u64..=(new / PAGE_BYTES) as u64;
            let page = pages.start() + random.below(pages.end() - pages.start() + 1);
            (page as usize * PAGE_BYTES).clamp(old, new)
        }
    }
}

/// Returns the pages that have bytes of the range.
fn pages(range: &Range<usize>) -> Range<usize> {
    if range.is_empty() {
        return 0..0;
    }
    range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEDS: u64 = if cfg!(miri) { 2 } else { 60 };
    const STEPS: u8 = if cfg!(miri) { 6 } else { 40 };

    /// The content, and every version of its bytes since the disk had all of them.
    struct Story {
        content: Content,
        versions: Vec<Vec<u8>>,
        /// Truncations so far; this test keeps them in order as the journal does.
        cuts: u64,
    }

    impl Story {
        fn step(&mut self, random: &mut Random, value: u8) {
            let place = |random: &mut Random| random.below(3 * PAGE_BYTES as u64 + 700) as usize;
            let (a, b) = (place(random), place(random));
            let range = a.min(b)..a.max(b);
            let content = &mut self.content;
            match random.below(8) {
                0..3 => content.write(range.start, &vec![value; range.len()]),
                3 if a < content.bytes().len() => {
                    self.cuts += 1;
                    content.cut(a, self.cuts);
                }
                4 => content.extend(a),
                5 => content.punch(range),
                6 if content.may_write_back() => content.write_back(random),
                7 => content.store_cuts(random.below(self.cuts + 1)),
                _ => return,
            }
            self.versions.push(self.content.bytes().to_vec());
        }

        fn sync(&mut self) {
            self.content.sync(0..usize::MAX);
            self.versions = vec![self.content.bytes().to_vec()];
        }

        /// Checks that the content after a crash consists of sectors from before.
        fn check(&self, random: &mut Random) -> Vec<u8> {
            let left = self.content.clone().after_crash(random).bytes().to_vec();
            let lens = self.versions.iter().map(Vec::len);
            assert!(lens.clone().min().unwrap() <= left.len());
            assert!(left.len() <= lens.max().unwrap());
            for (index, sector) in left.chunks(SECTOR_BYTES).enumerate() {
                let begin = index * SECTOR_BYTES;
                let is_version = |version: &Vec<u8>| {
                    let byte = |at: usize| version.get(begin + at).copied().unwrap_or(0);
                    sector.iter().enumerate().all(|(at, &its)| its == byte(at))
                };
                // A length without its bytes, or a tail that a truncation has zeroed.
                let is_empty = sector.iter().all(|&byte| byte == 0);
                let is_cut = |version: &Vec<u8>| {
                    let end = sector.iter().rposition(|&byte| byte != 0).map_or(0, |at| at + 1);
                    version.get(begin..begin + end) == Some(&sector[..end])
                };
                assert!(is_empty || self.versions.iter().any(|its| is_version(its) || is_cut(its)));
            }
            left
        }
    }

    #[test]
    fn a_crash_leaves_sectors_of_before_and_a_sync_all_of_them() {
        let mut changed = 0;
        for seed in 0..SEEDS {
            let mut random = Random::new(seed);
            let content = Content::stored(vec![0xff; random.below(9000) as usize]);
            let versions = vec![content.bytes().to_vec()];
            let mut story = Story { content, versions, cuts: 0 };
            for step in 1..STEPS {
                story.step(&mut random, step);
                changed += usize::from(story.check(&mut random) != story.content.bytes());
                if random.below(6) == 0 {
                    story.sync();
                    assert_eq!(story.check(&mut random), story.content.bytes(), "seed {seed}");
                }
            }
        }
        assert!(changed > 40 || cfg!(miri), "only {changed} crashes lost something");
    }

    #[test]
    fn each_fate_of_a_page_is_met() {
        let (old, new) = (vec![1; 2 * PAGE_BYTES], vec![2; 2 * PAGE_BYTES]);
        let mut content = Content::stored(old.clone());
        content.write(0, &new);
        let [mut lost, mut kept, mut halved, mut torn] = [0; 4];
        for seed in 0..200 {
            let left = content.clone().after_crash(&mut Random::new(seed));
            let is_torn = |page: &[u8]| page.iter().any(|&byte| byte != page[0]);
            match left.bytes() {
                left if left == old => lost += 1,
                left if left == new => kept += 1,
                left if left.chunks(PAGE_BYTES).any(is_torn) => torn += 1,
                _ => halved += 1,
            }
        }
        assert!(lost.min(kept).min(halved).min(torn) > 10, "{lost} {kept} {halved} {torn}");
    }

    #[test]
    fn what_comes_after_a_truncation_is_not_there_before_it() {
        let old = vec![1; 3 * PAGE_BYTES];
        let mut content = Content::stored(old.clone());
        content.cut(PAGE_BYTES, 7);
        content.write(PAGE_BYTES, &[2; PAGE_BYTES]);
        for seed in 0..100 {
            let left = content.clone().after_crash(&mut Random::new(seed));
            assert_eq!(left.bytes(), old, "the truncation and all later changes are lost");
        }
        content.store_cuts(7);
        let lens = (0..100).map(|seed| {
            let left = content.clone().after_crash(&mut Random::new(seed));
            assert!(left.bytes()[PAGE_BYTES..].iter().all(|&byte| byte != 1));
            left.bytes().len()
        });
        assert_eq!(lens.collect::<BTreeSet<_>>(), BTreeSet::from([PAGE_BYTES, 2 * PAGE_BYTES]));
    }

    #[test]
    fn what_a_failed_sync_has_lost_comes_back_only_by_being_written() {
        let mut content = Content::stored(Vec::new());
        content.write(0, &[1; 2 * PAGE_BYTES]);
        assert_eq!((content.lose(0..PAGE_BYTES), content.dirty_pages()), (1, 1));
        assert_eq!(content.sync(0..usize::MAX), 1);
        assert_eq!(content.bytes(), [1; 2 * PAGE_BYTES]);
        let expected = [[0; PAGE_BYTES], [1; PAGE_BYTES]].concat();
        assert_eq!(content.clone().after_crash(&mut Random::new(0)).bytes(), expected);
        content.write(5, b"!");
        content.sync(0..usize::MAX);
        assert_eq!(content.clone().after_crash(&mut Random::new(0)).bytes(), content.bytes());
    }

    #[test]
    fn failures_are_told_once_and_not_to_those_who_come_after() {
        let mut failures = Failures::default();
        let before = Cell::new(failures.sample());
        failures.add();
        let untold = Cell::new(failures.sample());
        assert!(failures.tell(&before) && !failures.tell(&before));
        let after = Cell::new(failures.sample());
        assert!(failures.tell(&untold), "the failure was not reported when it was opened");
        assert!(!failures.tell(&after));
    }

    #[test]
    fn room_is_taken_by_pages() {
        let mut content = Content::stored(vec![0; 10]);
        assert_eq!(content.allocated_pages(), 1);
        assert_eq!(content.fitting(0..PAGE_BYTES, 0), PAGE_BYTES);
        assert_eq!(content.fitting(10..3 * PAGE_BYTES, 0), PAGE_BYTES - 10);
        assert_eq!(content.fitting(5 * PAGE_BYTES + 1..6 * PAGE_BYTES, 0), 0);
        content.write(5 * PAGE_BYTES, b"x");
        content.extend(9 * PAGE_BYTES);
        assert_eq!(content.allocated_pages(), 2, "holes take none");
        content.reserve(PAGE_BYTES - 1..2 * PAGE_BYTES + 1);
        assert_eq!(content.allocated_pages(), 4);
        content.punch(1..2 * PAGE_BYTES);
        assert_eq!(content.allocated_pages(), 3);
        content.cut(2 * PAGE_BYTES, 1);
        assert_eq!(content.allocated_pages(), 1);
    }
}
