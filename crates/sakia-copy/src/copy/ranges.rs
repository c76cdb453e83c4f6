//! The ranges of a file, taken one after the other, and by several workers if some are idle.
//!
//! The fiber that has created the file takes its ranges in their order. While another worker is idle, it
//! offers the rest: a helper then takes ranges of the same [`Rest`]. The first fiber waits until no helper is
//! left, and completes the file. An error of any of them ends the others after their current ranges. The end
//! of a file that became shorter is the least one that a fiber has found, so that the copy is a prefix of
//! what was read.
//!
//! The kernel locks a file while it is written to, and its waiting writers spin. So contents of a shared file
//! are read into buffers, which takes no lock, and written by one fiber at a time.

use std::convert::Infallible;
use std::ffi::{CStr, CString};
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard};

use async_channel::{Receiver, Sender};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::{At, Copy, EntryError, Result, Spot};
use crate::crew::{Folder, Tally};
use crate::kernel::{self, OwnedFd};
use crate::place::Place;
use crate::stopped;
use crate::sys::lock;

/// Ranges begin at multiples of this, or at the begin of data, and smaller ones are the last ones.
const UNIT: u64 = 1 << 20;
/// A smaller rest is not offered: a helper would hardly have begun.
const OFFERED_MIN: u64 = 8 * UNIT;
/// A range of a shared file is at most this part of the rest, so that all fibers end at about the same time.
const SHARE: u64 = 4;

/// The part of a file that no fiber has taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rest {
    next: u64,
    /// The end of the data at `next`.
    data_end: u64,
    /// The end of the file, as far as it is known.
    pub(super) end: u64,
    /// Data after `data_end` is to be looked for.
    pub(super) has_holes: bool,
    /// The file became shorter, and the copy ends here.
    pub(super) is_short: bool,
    /// Nothing more is to be taken.
    is_over: bool,
}

impl Rest {
    /// Returns a file of `size` bytes.
    pub(super) fn of(size: u64, has_holes: bool) -> Self {
        let data_end = if has_holes { 0 } else { size };
        Self { next: 0, data_end, end: size, has_holes, is_short: false, is_over: false }
    }

    /// Returns the end of what was taken, or of the file.
    pub(super) fn reached(&self) -> u64 {
        if self.is_short { self.end } else { self.end.max(self.next) }
    }

    /// Takes the next range, of about `most` bytes at most. `None`: nothing is left.
    fn take(
        &mut self,
        most: u64,
        source: BorrowedFd<'_>,
        tally: &mut Tally,
    ) -> Result<Option<Range<u64>>> {
        if self.next >= self.data_end && self.next < self.end && !self.is_over {
            tally.counters.plain_calls += 2;
            self.find(source)?;
        }
        if self.is_over || self.next >= self.data_end {
            return Ok(None);
        }
        let begin = self.next;
        let end = (begin + most.max(UNIT)) / UNIT * UNIT;
        self.next = end.min(self.data_end);
        Ok(Some(begin..self.next))
    }

    /// Looks for the next data.
    fn find(&mut self, source: BorrowedFd<'_>) -> Result<()> {
        match kernel::seek(source, SeekFrom::Data(self.next)) {
            // Only a hole is left, or the file became shorter.
            Err(Errno::NXIO) => {
                let end = kernel::seek(source, SeekFrom::End(0)).at_source("seek")?;
                self.end = self.end.min(end);
                self.is_over = true;
            }
            // The file system does not report holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) if self.next == 0 => {
                (self.data_end, self.has_holes) = (self.end, false);
            }
            begin => {
                self.next = begin.at_source("seek")?;
                let end = kernel::seek(source, SeekFrom::Hole(self.next));
                self.data_end = end.at_source("seek")?;
            }
        }
        Ok(())
    }

    /// Records that the file ends within a range that was taken.
    fn ends_at(&mut self, end: u64) {
        self.end = self.end.min(end);
        (self.is_short, self.is_over) = (true, true);
    }
}

/// The ranges of a file, for one of the fibers that copy it.
pub(super) struct Ranges {
    own: Rest,
    /// In place of `own`, once it was offered.
    shared: Option<Arc<Shared>>,
    /// It has created the file, and this ends with the last helper.
    helpers: Option<Receiver<Infallible>>,
}

impl Ranges {
    pub(super) fn new(rest: Rest) -> Self {
        Self { own: rest, shared: None, helpers: None }
    }

    fn with<T>(&mut self, act: impl FnOnce(&mut Rest) -> T) -> T {
        match &self.shared {
            Some(shared) => act(&mut lock(&shared.state).rest),
            None => act(&mut self.own),
        }
    }

    /// Returns whether it was offered.
    pub(super) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Waits for the turn to write, if other fibers write to the file, too.
    pub(super) fn turn(&self) -> Option<MutexGuard<'_, ()>> {
        self.shared.as_ref().map(|shared| lock(&shared.turn))
    }

    /// Takes the next range, of about `most` bytes at most. `None`: nothing is left.
    pub(super) fn take(
        &mut self,
        most: u64,
        source: BorrowedFd<'_>,
        tally: &mut Tally,
    ) -> Result<Option<Range<u64>>> {
        let is_shared = self.is_shared();
        self.with(|rest| {
            let share = rest.end.saturating_sub(rest.next) / SHARE;
            rest.take(if is_shared { most.min(share) } else { most }, source, tally)
        })
    }

    /// Records that the file ends within a range that was taken.
    pub(super) fn ends_at(&mut self, end: u64) {
        self.with(|rest| rest.ends_at(end));
    }

    /// Offers the rest to a helper. `None`: it is too small, or was offered just now, or there are no
    /// descriptors.
    pub(super) fn offer(
        &mut self,
        entry: Entry<'_>,
        source: BorrowedFd<'_>,
        target: BorrowedFd<'_>,
    ) -> Option<Arc<Shared>> {
        if self.with(|rest| rest.is_over || rest.end.saturating_sub(rest.next) < OFFERED_MIN) {
            return None;
        }
        let is_offered = |shared: &Arc<Shared>| lock(&shared.state).offered.is_some();
        if self.shared.as_ref().is_some_and(is_offered) {
            return None;
        }
        let files = Files::of(source, target).ok()?;
        if let Some(shared) = &self.shared {
            lock(&shared.state).offered = Some(files);
            return Some(Arc::clone(shared));
        }
        let (alive, helpers) = async_channel::bounded(1);
        let state = State {
            rest: self.own,
            offered: Some(files),
            alive: Some(alive),
            error: None,
            told: 0,
        };
        let (folder, name) = (entry.folder.cloned(), entry.name.to_owned());
        let (state, turn) = (Mutex::new(state), Mutex::new(()));
        let shared = Arc::new(Shared { folder, name, state, turn });
        (self.shared, self.helpers) = (Some(Arc::clone(&shared)), Some(helpers));
        Some(shared)
    }

    /// Ends the work on a file that was offered; then the receiver ends with the last helper. `None`: it was
    /// not offered.
    pub(super) fn close(&mut self, result: &mut Result<()>) -> Option<Receiver<Infallible>> {
        let (shared, helpers) = (self.shared.as_ref()?, self.helpers.take()?);
        let result = std::mem::replace(result, Ok(()));
        lock(&shared.state).close(result);
        Some(helpers)
    }

    /// Returns the rest, the bytes that helpers have reported, and the first error.
    pub(super) fn outcome(&mut self) -> (Rest, u64, Result<()>) {
        let Some(shared) = &self.shared else { return (self.own, 0, Ok(())) };
        let mut state = lock(&shared.state);
        (state.rest, state.told, state.error.take().map_or(Ok(()), Err))
    }
}

impl Drop for Ranges {
    /// After a panic of the fiber that created the file, helpers end by themselves.
    fn drop(&mut self) {
        if self.helpers.is_some() {
            self.close(&mut Err(unfinished()));
        }
    }
}

/// The place of a file.
#[derive(Clone, Copy)]
pub(super) struct Entry<'a> {
    folder: Option<&'a Arc<Folder<Copy>>>,
    name: &'a CStr,
}

impl<'a> Entry<'a> {
    pub(super) fn of(spot: &Spot<'a>) -> Self {
        Self { folder: spot.folder, name: spot.name }
    }
}

/// A file that several fibers copy.
pub(crate) struct Shared {
    pub(super) folder: Option<Arc<Folder<Copy>>>,
    pub(super) name: CString,
    state: Mutex<State>,
    /// The turn to write.
    turn: Mutex<()>,
}

impl Shared {
    /// Returns its directory.
    pub(super) fn place(&self) -> &Arc<Place> {
        self.folder.as_ref().map_or(Place::current(), |folder| &folder.place)
    }
}

struct State {
    rest: Rest,
    /// Descriptors of the next helper.
    offered: Option<Files>,
    /// Each helper has a clone. `None`: no more helpers.
    alive: Option<Sender<Infallible>>,
    /// The first one.
    error: Option<EntryError>,
    /// Bytes that helpers have reported to the progress.
    told: u64,
}

impl State {
    /// Lets no more helpers begin. After an error the others end.
    fn close(&mut self, result: Result<()>) {
        (self.alive, self.offered) = (None, None);
        self.end(result);
    }

    fn end(&mut self, result: Result<()>) {
        if let Err(error) = result {
            self.rest.is_over = true;
            self.error.get_or_insert(error);
        }
    }
}

/// The descriptors of a helper.
pub(super) struct Files {
    pub(super) source: OwnedFd,
    pub(super) target: OwnedFd,
}

impl Files {
    fn of(source: BorrowedFd<'_>, target: BorrowedFd<'_>) -> io::Result<Self> {
        let (source, target) = (source.try_clone_to_owned()?, target.try_clone_to_owned()?);
        Ok(Self { source: source.into(), target: target.into() })
    }
}

/// A helper's part in a file. If it is dropped before its end, the file cannot be completed.
pub(super) struct Help {
    shared: Arc<Shared>,
    is_ended: bool,
    _alive: Sender<Infallible>,
}

impl Help {
    /// Begins. `None`: the file needs no helper any more.
    pub(super) fn begin(shared: &Arc<Shared>) -> Option<(Files, Self)> {
        let mut state = lock(&shared.state);
        let _alive = state.alive.clone()?;
        let files = state.offered.take()?;
        Some((files, Self { shared: Arc::clone(shared), is_ended: false, _alive }))
    }

    /// Returns the ranges to take.
    pub(super) fn ranges(&self) -> Ranges {
        let own = Rest::of(0, false);
        Ranges { own, shared: Some(Arc::clone(&self.shared)), helpers: None }
    }

    /// Ends, after reporting this many bytes to the progress.
    pub(super) fn end(mut self, result: Result<()>, told: u64) {
        let mut state = lock(&self.shared.state);
        state.told += told;
        state.end(result);
        drop(state);
        self.is_ended = true;
    }
}

impl Drop for Help {
    fn drop(&mut self) {
        if !self.is_ended {
            lock(&self.shared.state).end(Err(unfinished()));
        }
    }
}

/// The error of a file of which a fiber has left its range, in a panic or at the end of the runtime.
fn unfinished() -> EntryError {
    EntryError::source("copy", stopped::error())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use super::*;

    /// Returns a file with these data ranges, in units, and its name removed.
    fn file(size: u64, data: &[Range<u64>]) -> File {
        let path = std::env::temp_dir().join(format!(
            "sakia-ranges-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        file.set_len(size * UNIT).unwrap();
        for range in data {
            let len = (range.end - range.start) * UNIT;
            file.write_all_at(&vec![1; len as usize], range.start * UNIT).unwrap();
        }
        file
    }

    fn take(ranges: &mut Ranges, most: u64, file: &File) -> Option<(u64, u64)> {
        let range = ranges.take(most * UNIT, file.as_fd(), &mut Tally::default());
        range.ok().unwrap().map(|range| (range.start, range.end))
    }

    fn all(ranges: &mut Ranges, most: u64, file: &File) -> Vec<(u64, u64)> {
        std::iter::from_fn(|| take(ranges, most, file)).collect()
    }

    fn offer(ranges: &mut Ranges, file: &File) -> Option<Arc<Shared>> {
        let entry = Entry { folder: None, name: c"file" };
        ranges.offer(entry, file.as_fd(), file.as_fd())
    }

    #[test]
    fn ranges_cover_a_file_and_begin_at_units() {
        let file = file(0, &[]);
        let mut ranges = Ranges::new(Rest::of(5 * UNIT + 7, false));
        assert_eq!(take(&mut ranges, 0, &file), Some((0, UNIT)));
        assert_eq!(take(&mut ranges, 2, &file), Some((UNIT, 3 * UNIT)));
        assert_eq!(take(&mut ranges, 8, &file), Some((3 * UNIT, 5 * UNIT + 7)));
        assert_eq!(take(&mut ranges, 8, &file), None);
        assert_eq!(ranges.outcome().0.reached(), 5 * UNIT + 7);
    }

    #[test]
    fn holes_are_left_out() {
        let file = file(100, &[3..8, 40..41]);
        for size in [100 * UNIT, 50 * UNIT] {
            let mut ranges = Ranges::new(Rest::of(size, true));
            let expected = [(3, 7), (7, 8), (40, 41)].map(|(a, b)| (a * UNIT, b * UNIT));
            assert_eq!(all(&mut ranges, 4, &file), expected);
            let rest = ranges.outcome().0;
            assert_eq!((rest.end, rest.reached(), rest.has_holes), (size, size, true));
        }
        // It became shorter before the last data were found.
        file.set_len(20 * UNIT).unwrap();
        let mut ranges = Ranges::new(Rest::of(100 * UNIT, true));
        assert_eq!(all(&mut ranges, 8, &file), [(3 * UNIT, 8 * UNIT)]);
        assert_eq!(ranges.outcome().0.reached(), 20 * UNIT);
    }

    #[test]
    fn a_shared_rest_is_taken_once() {
        let file = file(0, &[]);
        let mut ranges = Ranges::new(Rest::of(64 * UNIT, false));
        assert_eq!(take(&mut ranges, 8, &file), Some((0, 8 * UNIT)));
        let shared = offer(&mut ranges, &file).unwrap();
        assert!(offer(&mut ranges, &file).is_none(), "the first offer is open");
        let (_, help) = Help::begin(&shared).unwrap();
        assert!(Help::begin(&shared).is_none(), "it is an offer to one helper");
        let mut theirs = help.ranges();
        let mut taken = vec![(0, 8 * UNIT)];
        // The ranges become smaller and smaller.
        while let Some(range) = take(&mut theirs, 100, &file) {
            taken.push(range);
            taken.extend(take(&mut ranges, 100, &file));
        }
        assert_eq!(taken[1..3], [(8, 22), (22, 32)].map(|(a, b)| (a * UNIT, b * UNIT)));
        assert!(taken.is_sorted() && taken.windows(2).all(|two| two[0].1 == two[1].0));
        assert_eq!(taken.last().unwrap().1, 64 * UNIT);
        // The file is completed after its end.
        let helpers = ranges.close(&mut Ok(())).unwrap();
        assert!(!helpers.is_closed());
        help.end(Ok(()), 5 * UNIT);
        assert!(helpers.is_closed());
        let (_, told, result) = ranges.outcome();
        assert_eq!((told, result.is_ok()), (5 * UNIT, true));
    }

    #[test]
    fn a_small_rest_is_not_offered() {
        let file = file(0, &[]);
        let mut ranges = Ranges::new(Rest::of(OFFERED_MIN + UNIT, false));
        take(&mut ranges, 2, &file);
        assert!(offer(&mut ranges, &file).is_none());
        assert!(ranges.close(&mut Ok(())).is_none());
    }

    #[test]
    fn an_offer_ends_with_the_file() {
        let file = file(0, &[]);
        let mut ranges = Ranges::new(Rest::of(64 * UNIT, false));
        let shared = offer(&mut ranges, &file).unwrap();
        assert!(ranges.close(&mut Ok(())).unwrap().is_closed());
        assert!(lock(&shared.state).offered.is_none(), "its descriptors are closed");
        assert!(Help::begin(&shared).is_none());
        let mut ranges = Ranges::new(Rest::of(64 * UNIT, false));
        let shared = offer(&mut ranges, &file).unwrap();
        drop(ranges);
        assert!(Help::begin(&shared).is_none());
    }

    /// The first error fails the file and ends the work of the other fibers.
    #[test]
    fn an_error_of_any_fiber_fails_the_file() {
        let failed = || EntryError::target("write", Errno::IO);
        let file = file(0, &[]);
        for case in ["helper", "owner", "panic"] {
            let mut ranges = Ranges::new(Rest::of(64 * UNIT, false));
            let (_, help) = Help::begin(&offer(&mut ranges, &file).unwrap()).unwrap();
            let mut theirs = help.ranges();
            let mut result = Ok(());
            match case {
                "helper" => {
                    help.end(Err(failed()), 0);
                    assert_eq!(take(&mut ranges, 1, &file), None);
                    result = Err(EntryError::target("write", Errno::NOSPC));
                    ranges.close(&mut result).unwrap();
                }
                "owner" => {
                    result = Err(failed());
                    ranges.close(&mut result).unwrap();
                    assert_eq!(take(&mut theirs, 1, &file), None);
                    help.end(Err(EntryError::target("write", Errno::NOSPC)), 0);
                }
                _ => {
                    take(&mut theirs, 1, &file);
                    drop(help);
                    ranges.close(&mut result).unwrap();
                }
            }
            assert!(result.is_ok(), "the error is in the outcome");
            let error = ranges.outcome().2.unwrap_err().error;
            let expected = (case != "panic").then_some(Errno::IO.raw_os_error());
            assert_eq!(error.raw_os_error(), expected, "{case}");
            assert_eq!(stopped::is_error(&error), case == "panic");
        }
    }

    #[test]
    fn a_file_ends_where_the_first_fiber_has_found_its_end() {
        let file = file(0, &[]);
        let mut ranges = Ranges::new(Rest::of(64 * UNIT, false));
        let (_, help) = Help::begin(&offer(&mut ranges, &file).unwrap()).unwrap();
        let mut theirs = help.ranges();
        take(&mut ranges, 4, &file);
        take(&mut theirs, 4, &file);
        theirs.ends_at(5 * UNIT);
        assert_eq!(take(&mut ranges, 4, &file), None);
        ranges.ends_at(3 * UNIT + 1);
        theirs.ends_at(6 * UNIT);
        let rest = ranges.outcome().0;
        assert_eq!((rest.reached(), rest.is_short), (3 * UNIT + 1, true));
    }
}
