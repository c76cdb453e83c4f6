//! The bytes of a regular file: what readers see, and what the disk has of it.
//!
//! Readers see the page cache. The disk has what was synced or written back; the pages in which it may differ
//! are *dirty*. Where the file ends is known apart from its pages, as on a disk: a crash may keep a length
//! without the bytes, which are zeros then, or bytes without the length.
//!
//! A truncation is an entry of the [`Journal`](super::journal::Journal). What is written into room that it has
//! freed goes into new blocks, so that the disk has it only after the truncation: there is no file of which
//! one half is older than its truncation and the other half newer.
//!
//! Pages that were dirty when a sync failed are clean afterwards, and the disk does not get them unless they
//! are written again. The failure is told once to each open file; see [`Failures`].

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::random::Random;

/// What the cache and the disk exchange.
pub(super) const PAGE_BYTES: usize = 4096;
/// What a disk writes whole or not at all.
const SECTOR_BYTES: usize = 512;

/// A regular file.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    /// What readers see.
    cached: Vec<u8>,
    /// What the disk has.
    stored: Vec<u8>,
    /// Pages that the disk may not have, each with the number of the truncation that has to be there before
    /// it; 0 for none.
    dirty: BTreeMap<usize, u64>,
    /// Truncations that the disk may not have, oldest first: number in the journal, and length.
    cuts: Vec<(u64, usize)>,
    /// Pages that take room on the disk.
    allocated: BTreeSet<usize>,
    pub(super) failures: Failures,
}

/// Failures to make durable, as the kernel's `errseq_t`: each is told once to each file that was open, and to
/// the first that is opened later if nobody was told before.
#[derive(Clone, Debug, Default)]
pub(super) struct Failures {
    count: u64,
    /// Somebody was told of the last one.
    is_told: bool,
}

impl Failures {
    pub(super) fn add(&mut self) {
        self.count += 1;
        self.is_told = false;
    }

    /// What a file that is opened now has been told.
    pub(super) fn sample(&self) -> u64 {
        self.count - u64::from(self.count > 0 && !self.is_told)
    }

    /// Whether there is a failure of which `told` does not know. It does then.
    pub(super) fn tell(&mut self, told: &Cell<u64>) -> bool {
        let is_new = told.replace(self.count) != self.count;
        self.is_told |= is_new;
        is_new
    }
}

/// What a crash does to what was not synced of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Lost,
    Kept,
    /// Chance decides for each page.
    Pages,
    /// Chance decides for each sector.
    Sectors,
}

impl Content {
    /// A file that is on the disk.
    pub(super) fn stored(bytes: Vec<u8>) -> Self {
        let allocated = (0..bytes.len().div_ceil(PAGE_BYTES)).collect();
        Self { stored: bytes.clone(), cached: bytes, allocated, ..Self::default() }
    }

    /// What readers see.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.cached
    }

    /// How many pages the disk may not have.
    pub(super) fn dirty_pages(&self) -> usize {
        self.dirty.len()
    }

    /// How many pages take room on the disk.
    pub(super) fn allocated_pages(&self) -> usize {
        self.allocated.len()
    }

    // Changes.

    /// Replaces all of it, on the disk too.
    pub(super) fn replace(&mut self, bytes: Vec<u8>) {
        let failures = std::mem::take(&mut self.failures);
        *self = Self { failures, ..Self::stored(bytes) };
    }

    /// Puts bytes in, and makes the file longer if need be.
    pub(super) fn write(&mut self, begin: usize, bytes: &[u8]) {
        let end = begin + bytes.len();
        if self.cached.len() < end {
            self.cached.resize(end, 0);
        }
        self.cached[begin..end].copy_from_slice(bytes);
        self.allocated.extend(pages(&(begin..end)));
        self.soil(begin..end);
    }

    /// Makes the file longer, by zeros.
    pub(super) fn extend(&mut self, len: usize) {
        self.cached.resize(len.max(self.cached.len()), 0);
    }

    /// Cuts the file off. `number` is that of the truncation in the journal.
    pub(super) fn cut(&mut self, len: usize, number: u64) {
        self.cached.truncate(len);
        self.cuts.push((number, len));
        let first_gone = len.div_ceil(PAGE_BYTES);
        self.dirty.split_off(&first_gone);
        self.allocated.split_off(&first_gone);
    }

    /// Zeros within the file, which take no room where they fill pages.
    pub(super) fn punch(&mut self, range: Range<usize>) {
        let end = range.end.min(self.cached.len());
        let begin = range.start.min(end);
        self.cached[begin..end].fill(0);
        self.soil(begin..end);
        let inner = range.start.div_ceil(PAGE_BYTES)..range.end / PAGE_BYTES;
        self.allocated.retain(|page| !inner.contains(page));
    }

    /// Takes room for bytes that may come.
    pub(super) fn reserve(&mut self, range: Range<usize>) {
        self.allocated.extend(pages(&range));
    }

    /// How many of the bytes in `range`, from its begin on, find room when there is some for so many pages.
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

    /// The disk has the truncations up to this number.
    pub(super) fn store_cuts(&mut self, number: u64) {
        let count = self.cuts.partition_point(|&(its, _)| its <= number);
        for (_, len) in self.cuts.drain(..count) {
            self.stored.truncate(len);
        }
    }

    /// The disk has the length, and the dirty pages among those of `range`. Returns how many these were.
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

    /// Whether there is a dirty page that the disk may get now: truncations come before.
    pub(super) fn may_write_back(&self) -> bool {
        !self.dirty.is_empty() && self.cuts.is_empty()
    }

    /// The disk gets one of the dirty pages, and as much of the length as that takes.
    pub(super) fn write_back(&mut self, random: &mut Random) {
        let index = random.below(self.dirty.len() as u64) as usize;
        let page = self.dirty.keys().nth(index).copied().expect("the index is below their number");
        self.dirty.remove(&page);
        let end = self.cached.len().min((page + 1) * PAGE_BYTES);
        self.stored.resize(end.max(self.stored.len()), 0);
        self.store(page);
    }

    /// A sync of the pages of `range` fails: they are clean now, and the disk does not have them. Returns how
    /// many these were.
    pub(super) fn lose(&mut self, range: Range<usize>) -> usize {
        self.failures.add();
        let pages = self.dirty_among(range);
        for page in &pages {
            self.dirty.remove(page);
        }
        pages.len()
    }

    /// Dirty pages that have bytes of the range.
    fn dirty_among(&self, range: Range<usize>) -> Vec<usize> {
        let first = range.start / PAGE_BYTES;
        let end = range.end.div_ceil(PAGE_BYTES).max(first);
        self.dirty.range(first..end).map(|(&page, _)| page).collect()
    }

    /// Copies a page to the disk, as far as the file goes there.
    fn store(&mut self, page: usize) {
        let end = ((page + 1) * PAGE_BYTES).min(self.stored.len()).min(self.cached.len());
        let begin = (page * PAGE_BYTES).min(end);
        self.stored[begin..end].copy_from_slice(&self.cached[begin..end]);
    }

    /// What is there after a crash, when the disk has got no more truncations.
    pub(super) fn after_crash(self, random: &mut Random) -> Self {
        if self.dirty.is_empty() && self.cuts.is_empty() && self.stored.len() == self.cached.len() {
            return Self::stored(self.stored);
        }
        let fate = match random.below(4) {
            0 => Fate::Lost,
            1 => Fate::Kept,
            2 => Fate::Pages,
            _ => Fate::Sectors,
        };
        let mut bytes = self.stored;
        // A length that came after a truncation does not come before it.
        if self.cuts.is_empty() {
            bytes.resize(surviving_len(fate, bytes.len(), self.cached.len(), random), 0);
        }
        let first_lost = self.cuts.first().map_or(u64::MAX, |&(number, _)| number);
        let possible = self.dirty.iter().filter(|&(_, &after)| after < first_lost);
        for (&page, _) in possible {
            let is_kept = fate == Fate::Kept || fate == Fate::Pages && random.chance(1 << 15);
            for sector in (page * PAGE_BYTES..(page + 1) * PAGE_BYTES).step_by(SECTOR_BYTES) {
                if is_kept || fate == Fate::Sectors && random.chance(1 << 15) {
                    let end = (sector + SECTOR_BYTES).min(bytes.len()).min(self.cached.len());
                    let begin = sector.min(end);
                    bytes[begin..end].copy_from_slice(&self.cached[begin..end]);
                }
            }
        }
        Self::stored(bytes)
    }
}

/// The length of a file that has grown, after a crash.
fn surviving_len(fate: Fate, old: usize, new: usize, random: &mut Random) -> usize {
    match (fate, random.below(3)) {
        (Fate::Lost, _) => old,
        (Fate::Kept, _) => new,
        (_, 0) => old,
        (_, 1) => new,
        _ => {
            let pages = (old / PAGE_BYTES) as u64..=(new / PAGE_BYTES) as u64;
            let page = pages.start() + random.below(pages.end() - pages.start() + 1);
            (page as usize * PAGE_BYTES).clamp(old, new)
        }
    }
}

/// The pages that have bytes of the range.
fn pages(range: &Range<usize>) -> Range<usize> {
    if range.is_empty() {
        return 0..0;
    }
    range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES)
}
