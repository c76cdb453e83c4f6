//! Everything but directories.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use sakia::fs::AlignedBuf;

use super::links::{Claim, Name, Waiting};
use super::{Copy, EntryError, Learned, Result, Spot, attributes, mark};
use crate::crew::{Fiber, Next};
use crate::options::{Existing, Follow};
use crate::place::{Id, OpenDir};
use crate::source::Source;
use crate::{kernel, sys};

/// Files of fewer bytes are read before they are made, if the buffer has room for them. For larger ones it is
/// cheaper to have the kernel copy.
pub(super) const SMALL: u64 = 128 << 10;
/// Of so many files made the time of one is taken.
const TIMED: u64 = 8;

/// A file of the copy, to be filled.
pub(super) struct Made {
    pub(super) fd: OwnedFd,
    /// The mode it is to have at the end, if it has another one.
    pub(super) mode: Option<u32>,
    pub(super) is_new: bool,
    /// It was there, and removing this name of it would not remove it.
    pub(super) has_names: bool,
}

impl Made {
    pub(super) fn new(fd: OwnedFd, mode: Option<u32>) -> Self {
        Self { fd, mode, is_new: true, has_names: false }
    }
}

/// What becomes of an entry.
pub(super) enum Outcome {
    Copied,
    /// What is there stays.
    Skipped,
    Enter,
    Later,
}

impl Copy {
    /// Copies what is no directory; of an unknown kind it is found out what it is.
    pub(super) async fn copy_entry(
        &self,
        fiber: &mut Fiber<Self>,
        spot: &Spot<'_>,
        kind: FileType,
    ) -> Next {
        match self.try_entry(fiber, spot, kind).await {
            Ok(Outcome::Copied) => self.tell(fiber, spot),
            Ok(Outcome::Skipped) => fiber.tally.counts.skipped += 1,
            Ok(Outcome::Enter) => return Next::Enter,
            Ok(Outcome::Later) => return Next::Later,
            Err(wrong) => self.fail(fiber, spot, wrong),
        }
        Next::Done
    }

    async fn try_entry(
        &self,
        fiber: &mut Fiber<Self>,
        spot: &Spot<'_>,
        kind: FileType,
    ) -> Result<Outcome> {
        let follows = self.options.follow == Follow::Always;
        let (kind, stat) = match kind {
            FileType::RegularFile => (kind, None),
            kind if kind != FileType::Unknown && kind != FileType::Symlink && follows => {
                (kind, None)
            }
            _ => {
                let stat = self.stat_source(spot)?;
                fiber.tally.counters.plain_calls += 1;
                (FileType::from_raw_mode(stat.st_mode), Some(stat))
            }
        };
        let may_be_partial = spot.folder.is_some_and(|folder| folder.facts.was_unfinished);
        if self.options.existing == Existing::Keep
            && kind != FileType::Directory
            && !may_be_partial
            && self.is_there(spot, kind)?
            && !self.has_links(stat.as_ref())
        {
            return Ok(Outcome::Skipped);
        }
        match kind {
            FileType::Directory => Ok(Outcome::Enter),
            FileType::RegularFile => self.copy_file(fiber, spot).await,
            kind if self.is_read(kind) => self.copy_stream(fiber, spot).await,
            _ => {
                let stat = match stat {
                    Some(stat) => stat,
                    None => self.stat_source(spot)?,
                };
                self.copy_special(fiber, spot, &stat).await
            }
        }
    }

    /// Whether other names of it may have to become links.
    fn has_links(&self, stat: Option<&Stat>) -> bool {
        self.options.preserve.links && stat.is_none_or(|stat| self.is_claimed(stat))
    }

    /// Whether it may be found under another name: where links are followed, each of them is one.
    fn is_claimed(&self, stat: &Stat) -> bool {
        let follows = self.options.follow == Follow::Always;
        self.options.preserve.links && (follows || stat.st_nlink > 1)
    }

    /// How often it may be found: where links are followed or trees overlap, more often than it has names.
    fn names_of(&self, stat: &Stat) -> u64 {
        match self.options.follow {
            Follow::Never if self.is_single => stat.st_nlink,
            _ => u64::MAX,
        }
    }

    pub(super) fn stat_source(&self, spot: &Spot<'_>) -> Result<Stat> {
        let flags = self.options.follow.flags();
        sys::retry(|| kernel::statat(spot.source, spot.name, flags))
            .map_err(EntryError::source("stat"))
    }

    /// Whether a new entry got an access control list.
    pub(super) fn inherits(&self, spot: &Spot<'_>) -> bool {
        match (spot.folder, &spot.target) {
            (Some(folder), _) => folder.facts.has_default_acl,
            (None, Some(_)) => {
                let parent =
                    self.open_parent(sys::unread(sys::DIRECTORY.difference(OFlags::NOFOLLOW)));
                parent.is_ok_and(|fd| attributes::has_default_acl(fd.as_fd()))
            }
            (None, None) => false,
        }
    }

    async fn copy_file(&self, fiber: &mut Fiber<Self>, spot: &Spot<'_>) -> Result<Outcome> {
        let mut flags = sys::SOURCE;
        if self.options.follow == Follow::Always {
            flags -= OFlags::NOFOLLOW;
        }
        let mut source = match fiber.open_source(spot.source, spot.name, flags).await {
            Ok(source) => source,
            // It has become a link.
            Err(error) if sys::is(&error, Errno::LOOP) => {
                let stat = self.stat_source(spot)?;
                return self.copy_special(fiber, spot, &stat).await;
            }
            // What need not be copied need not be read.
            Err(error) if self.options.existing == Existing::Update => {
                let stat = self.stat_source(spot);
                return match stat.map(|stat| self.is_up_to_date(spot, &stat)) {
                    Ok(Ok(true)) => Ok(Outcome::Skipped),
                    _ => Err(EntryError::source("open")(error)),
                };
            }
            Err(error) => return Err(EntryError::source("open")(error)),
        };
        let stat = sys::stat(&source).map_err(EntryError::source("stat"))?;
        fiber.tally.counters.plain_calls += 2;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {}
            FileType::Directory => return Ok(Outcome::Enter),
            kind if self.is_read(kind) => return self.copy_stream(fiber, spot).await,
            _ => return self.copy_special(fiber, spot, &stat).await,
        }
        if !self.is_claimed(&stat) {
            return self.fill_new(fiber, spot, &mut source, &stat).await;
        }
        match self.links.claim(Id::of(&stat), self.names_of(&stat), || Waiting::of(spot)) {
            Claim::Wait => Ok(Outcome::Later),
            Claim::Link(name) => self.link(fiber, spot, &stat, name),
            Claim::Copy => {
                let result = self.fill_new(fiber, spot, &mut source, &stat).await;
                let copy =
                    async |fiber: &mut _, spot: &Spot<'_>| self.copy_again(fiber, spot).await;
                self.settle_links(fiber, spot, &stat, &result, copy).await;
                result
            }
        }
    }

    /// Whether a copy is there of which other names can be made. What was kept is one only if it is as old
    /// and as long as the source: an earlier copy has made it then. Another name of the source is none.
    fn has_copy(&self, spot: &Spot<'_>, stat: &Stat, result: &Result<Outcome>) -> bool {
        match result {
            Ok(Outcome::Skipped) => {
                let is_copy = |there: &Stat| is_alike(there, stat) && Id::of(there) != Id::of(stat);
                matches!(self.stat_target(spot), Ok(Some(there)) if is_copy(&there))
            }
            result => result.is_ok(),
        }
    }

    /// Deals with the names that wait for a file, which was copied with this result. If that left no copy,
    /// `copy` makes one of another name.
    async fn settle_links(
        &self,
        fiber: &mut Fiber<Self>,
        spot: &Spot<'_>,
        stat: &Stat,
        result: &Result<Outcome>,
        copy: impl AsyncFn(&mut Fiber<Self>, &Spot<'_>) -> Result<Outcome>,
    ) {
        let id = Id::of(stat);
        let keeps = self.options.existing == Existing::Keep;
        let copied_to = |spot: &Spot<'_>, result: &Result<Outcome>| {
            let is_new = matches!(result, Ok(Outcome::Copied));
            self.has_copy(spot, stat, result).then(|| (Waiting::of(spot), keeps && is_new))
        };
        let mut copied = copied_to(spot, result);
        // One after the other: this is rare.
        while copied.is_none()
            && let Some(waiting) = self.links.failed(id)
        {
            let act = async |fiber: &mut _, spot: &Spot<'_>| {
                let result = copy(fiber, spot).await;
                copied = copied_to(spot, &result);
                result
            };
            self.settle(fiber, &waiting, act).await;
        }
        let Some((first, may_change)) = copied else { return };
        let name = first.name();
        for waiting in self.links.copied(id, first, may_change) {
            let name = name.clone();
            let link = async |fiber: &mut _, spot: &Spot<'_>| self.link(fiber, spot, stat, name);
            self.settle(fiber, &waiting, link).await;
        }
    }

    /// Does what was left to be done later, and says that it is done.
    async fn settle(
        &self,
        fiber: &mut Fiber<Self>,
        waiting: &Waiting,
        act: impl AsyncFnOnce(&mut Fiber<Self>, &Spot<'_>) -> Result<Outcome>,
    ) {
        let folder = waiting.folder.as_ref();
        if let Some((source, target)) = self.open_both(fiber, folder, &waiting.name) {
            let nothing = Learned::default();
            let spot = Spot {
                folder,
                source: &source,
                target: target.as_ref(),
                name: &waiting.name,
                to: &waiting.to,
                learned: folder.map_or(&nothing, |folder| &folder.facts.learned),
            };
            match act(fiber, &spot).await {
                Ok(Outcome::Skipped) => fiber.tally.counts.skipped += 1,
                Ok(_) => self.tell(fiber, &spot),
                Err(wrong) => self.fail(fiber, &spot, wrong),
            }
        }
        fiber.done(folder);
    }

    /// Copies a file by a name that waited for another one, which could not be copied.
    async fn copy_again(&self, fiber: &mut Fiber<Self>, spot: &Spot<'_>) -> Result<Outcome> {
        let opened = sys::open(spot.source.as_fd(), spot.name, sys::SOURCE);
        let mut source = Source::Plain(opened.map_err(EntryError::source("open"))?);
        let stat = sys::stat(&source).map_err(EntryError::source("stat"))?;
        self.fill_new(fiber, spot, &mut source, &stat).await
    }

    /// Makes another name of a file that has been copied: `source` is what the source says of it.
    fn link(
        &self,
        fiber: &mut Fiber<Self>,
        spot: &Spot<'_>,
        source: &Stat,
        mut first: Name,
    ) -> Result<Outcome> {
        let worker = fiber.worker();
        let crew = worker.crew();
        let Some(target) = spot.target else {
            fiber.tally.counts.hard_links += 1;
            return Ok(Outcome::Copied);
        };
        let wrong = EntryError::target("link");
        let id = Id::of(source);
        let link = |first: &Name, target: &OpenDir, to: &CStr| {
            let (dir, name): (_, &CStr) = (crew.places.open(&first.place)?, &first.name);
            sys::retry(|| kernel::linkat(&dir, name, target, to, AtFlags::empty()))
        };
        let mut result = link(&first, target, spot.to);
        fiber.tally.counters.plain_calls += 1;
        if result.as_ref().is_err_and(|error| sys::is(error, Errno::NOENT))
            && let Some(now) = self.links.name(id)
        {
            // It is about to become a name of an earlier copy.
            first = now;
            result = link(&first, target, spot.to);
        }
        if result.as_ref().is_err_and(|error| sys::is(error, Errno::EXIST)) {
            let there = self.stat_target(spot)?;
            let dir = crew.places.open(&first.place).map_err(&wrong)?;
            let new = Id::of(&sys::stat_name(dir.as_fd(), &first.name).map_err(&wrong)?);
            if there.is_some_and(|there| Id::of(&there) == new) {
                return Ok(Outcome::Skipped);
            }
            let written = self.stat_overwritten(spot, FileType::from_raw_mode(source.st_mode))?;
            if let Some(written) = written.filter(|written| Id::of(written) == id) {
                self.is_itself(spot, source, &written)?;
                return Ok(Outcome::Skipped);
            }
            let is_kept = |there: &Stat| !mark::is_unfinished(there, self.user);
            if self.options.existing == Existing::Keep && there.as_ref().is_some_and(is_kept) {
                if there.is_some_and(|there| is_alike(&there, source)) {
                    let kept = Waiting::of(spot);
                    let one = self.become_one(crew, id, &first, new, &kept);
                    one.map_err(&wrong)?;
                }
                return Ok(Outcome::Skipped);
            }
            let pin = self.pin(spot)?;
            let (dir, name) = pin.as_ref().map_or((target, spot.to), |(dir, name)| (dir, name));
            self.remove_existing(&Spot { target: Some(dir), to: name, ..*spot }, there.as_ref())?;
            result = link(&first, dir, name);
        }
        if result.is_ok() && self.options.existing == Existing::Keep {
            self.catch_up(crew, spot, id, &first).map_err(&wrong)?;
        }
        result.map_err(&wrong)?;
        fiber.tally.counts.hard_links += 1;
        Ok(Outcome::Copied)
    }

    /// Copies a regular file that has not been copied under another name.
    async fn fill_new(
        &self,
        fiber: &mut Fiber<Self>,
        spot: &Spot<'_>,
        source: &mut Source,
        stat: &Stat,
    ) -> Result<Outcome> {
        if self.is_up_to_date(spot, stat)? {
            return Ok(Outcome::Skipped);
        }
        if spot.target.is_none() {
            fiber.tally.counts.files += 1;
            fiber.tally.counts.bytes += u64::try_from(stat.st_size).unwrap_or(0);
            return Ok(Outcome::Copied);
        }
        let mut buf = fiber.take_buf();
        let result = self.fill_with(fiber, spot, source, stat, &mut buf).await;
        fiber.give_buf(buf);
        fiber.tally.counts.files += u64::from(result.is_ok());
        result.map(|()| Outcome::Copied)
    }

    /// Whether what is there is to stay.
    pub(super) fn is_up_to_date(&self, spot: &Spot<'_>, stat: &Stat) -> Result<bool> {
        if self.options.existing == Existing::Overwrite {
            return Ok(false);
        }
        let kind = FileType::from_raw_mode(stat.st_mode);
        let Some(there) = self.stat_compared(spot, kind)? else { return Ok(false) };
        if mark::is_unfinished(&there, self.user) || self.is_partial(spot, stat, &there) {
            return Ok(false);
        }
        // That it is the source itself is an error, and not up to date.
        if self.options.existing == Existing::Update && Id::of(&there) == Id::of(stat) {
            return Ok(false);
        }
        let modified = |stat: &Stat| (stat.st_mtime, stat.st_mtime_nsec);
        Ok(self.options.existing == Existing::Keep || modified(&there) >= modified(stat))
    }

    /// Whether a copy that was killed left the beginning of the file, or a file that has nothing yet. Going
    /// on from there loses nothing, whoever made it.
    fn is_partial(&self, spot: &Spot<'_>, stat: &Stat, there: &Stat) -> bool {
        let is_file = |stat: &Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let may_be = spot.folder.is_some_and(|folder| folder.facts.was_unfinished)
            && is_file(stat)
            && is_file(there)
            && there.st_uid == self.user
            && there.st_size < stat.st_size
            && there.st_size <= self.options.buffer.max(4096) as i64;
        let Some(target) = spot.target.filter(|_| may_be) else { return false };
        let len = usize::try_from(there.st_size).unwrap_or(0);
        let read = |dir: &OpenDir, name: &CStr| -> io::Result<Vec<u8>> {
            let file = sys::open(dir.as_fd(), name, sys::SOURCE)?;
            let mut bytes = vec![0; len];
            let count = sys::read_at(file.as_fd(), &mut bytes, 0)?;
            bytes.truncate(count);
            Ok(bytes)
        };
        match (read(spot.source, spot.name), read(target, spot.to)) {
            (Ok(source), Ok(target)) => source.len() == len && source == target,
            _ => false,
        }
    }

    async fn fill_with(
        &self,
        fiber: &mut Fiber<Self>,
        spot: &Spot<'_>,
        source: &mut Source,
        stat: &Stat,
        buf: &mut AlignedBuf,
    ) -> Result<()> {
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let is_small =
            size < SMALL.min(buf.len() as u64) && !self.has_holes(stat) && !self.may_share(spot);
        let read = if is_small {
            let range = 0..buf.len();
            let read = fiber.read_range(source, buf, range, 0, size, spot.learned).await;
            Some(read.map_err(EntryError::source("read"))?)
        } else {
            None
        };
        let is_whole = read.is_some_and(|count| count < buf.len());
        let Some(made) = self.make(fiber, spot, stat, is_whole)? else {
            return self.write_to_named(fiber, spot, source.as_fd()).await;
        };
        let filled = match read {
            // All of it is there.
            Some(count) if count < buf.len() => {
                fiber.tally.counters.plain_calls += 1;
                let written = sys::write_all_at(made.fd.as_fd(), &buf[..count], 0);
                fiber.tally.counts.bytes += if written.is_ok() { count as u64 } else { 0 };
                written.map(|()| count as u64).map_err(EntryError::target("write"))
            }
            _ => self.fill_large(fiber, spot, source, &made.fd, stat, buf).await,
        };
        let count = self.complete(fiber, spot, source.as_fd(), stat, &made, filled)?;
        if count == size || size == 0 {
            return Ok(());
        }
        let text = format!("it changed while it was copied: {count} bytes instead of {size}");
        Err(EntryError::source("copy")(io::Error::other(text)))
    }

    /// What others may do with a file only when it has its owner.
    fn withheld(&self) -> u32 {
        let preserve = self.options.preserve;
        if preserve.ownership && !preserve.mode { attributes::OTHERS } else { 0 }
    }

    /// Removes what could not be completed.
    ///
    /// A file that was there and has other names stays under all of them, and shows that it is not complete:
    /// a later copy fills it again.
    pub(super) fn discard(&self, spot: &Spot<'_>, made: &Made) {
        if let Some(target) = spot.target
            && (made.has_names || sys::unlink(target, spot.to).is_err())
        {
            // Most are marked already.
            let mode = Mode::from_raw_mode(mark::FILE);
            sys::retry(|| kernel::fchmod(&made.fd, mode)).ok();
        }
    }

    /// Makes the file, or empties the one that is there.
    ///
    /// What is written by one call, in a directory that is marked as not complete, has its own mode at once:
    /// at worst it is a beginning of its source, which a later copy finds there.
    ///
    /// `None`: the caller has named a device or a FIFO, which is to be written to.
    pub(super) fn make(
        &self,
        fiber: &mut Fiber<Self>,
        spot: &Spot<'_>,
        stat: &Stat,
        is_whole: bool,
    ) -> Result<Option<Made>> {
        let Some(target) = spot.target else {
            return Err(EntryError::target("create")(Errno::BADF.into()));
        };
        let permissions = stat.st_mode & 0o777;
        let (first, last) = if self.inherits(spot) {
            // The list and the mode are made from each other: there is no going back from another mode.
            let withheld = permissions & self.withheld();
            // Attributes are set on what its owner may write to.
            let added = if self.options.preserve.xattrs { 0o200 & !permissions } else { 0 };
            let is_other = withheld & !self.mask != 0 || added != 0;
            let last = is_other.then_some(permissions & !self.mask);
            (permissions & !withheld | added, last)
        } else if is_whole
            && !self.options.preserve.has_attributes()
            && spot.folder.is_some_and(|folder| folder.facts.is_marked)
        {
            (permissions, None)
        } else {
            (mark::FILE, Some(permissions & !self.mask))
        };
        let counters = &mut fiber.tally.counters;
        counters.plain_calls += 1;
        counters.creates += 1;
        let begin = counters.creates.is_multiple_of(TIMED).then(Instant::now);
        let created = sys::create(target.as_fd(), spot.to, first);
        if let Some(begin) = begin {
            counters.creates_timed += 1;
            counters.create_time += begin.elapsed();
        }
        match created {
            Ok(fd) => Ok(Some(Made::new(fd, last))),
            Err(error) if sys::is(&error, Errno::EXIST) => {
                let again = |is_new_mode: u32| sys::create(target.as_fd(), spot.to, is_new_mode);
                self.overwrite(spot, stat, last, || again(first))
            }
            Err(error) => Err(EntryError::target("create")(error)),
        }
    }

    /// Gives a file all else when it has its contents, which were so many bytes. What cannot be completed is
    /// removed, but that a file which was there keeps its owner, mode or times.
    pub(super) fn complete(
        &self,
        fiber: &mut Fiber<Self>,
        spot: &Spot<'_>,
        source: BorrowedFd<'_>,
        stat: &Stat,
        made: &Made,
        filled: Result<u64>,
    ) -> Result<u64> {
        let mut is_whole = false;
        let completed = filled.and_then(|count| {
            // A tree is synced as a whole.
            let is_synced = spot.folder.is_none() && (self.options.durable || self.options.verify);
            let set = self.set_all(fiber, spot, source, stat, made);
            if is_synced {
                sys::retry(|| kernel::fsync(&made.fd)).map_err(EntryError::target("sync"))?;
            }
            is_whole = true;
            set.map(|()| count)
        });
        if completed.is_err() && is_whole && !made.is_new {
            if let Some(mode) = made.mode {
                sys::retry(|| kernel::fchmod(&made.fd, Mode::from_raw_mode(mode))).ok();
            }
        } else if completed.is_err() {
            self.discard(spot, made);
        }
        completed
    }

    fn set_all(
        &self,
        fiber: &mut Fiber<Self>,
        spot: &Spot<'_>,
        source: BorrowedFd<'_>,
        stat: &Stat,
        made: &Made,
    ) -> Result<()> {
        if !self.options.preserve.has_attributes() {
            let Some(mode) = made.mode else { return Ok(()) };
            fiber.tally.counters.plain_calls += 1;
            return sys::retry(|| kernel::fchmod(&made.fd, Mode::from_raw_mode(mode)))
                .map_err(EntryError::target("set mode of"));
        }
        let gives_group = spot.folder.is_none_or(|folder| folder.facts.gives_group);
        let of = attributes::Of {
            stat,
            mode: made.mode,
            is_directory: false,
            // It has an older one if it was there.
            has_inherited_acl: !made.is_new || self.inherits(spot),
            may_have_owner: made.is_new && !gives_group,
        };
        self.set_attributes(source, made.fd.as_fd(), of, &mut fiber.tally)
            .map_err(|(operation, error)| EntryError::target(operation)(error))
    }

    /// Copies a link, a FIFO, a socket or a device.
    async fn copy_special(
        &self,
        fiber: &mut Fiber<Self>,
        spot: &Spot<'_>,
        stat: &Stat,
    ) -> Result<Outcome> {
        if !self.is_claimed(stat) {
            return self.make_special(fiber, spot, stat);
        }
        match self.links.claim(Id::of(stat), self.names_of(stat), || Waiting::of(spot)) {
            Claim::Wait => Ok(Outcome::Later),
            Claim::Link(name) => self.link(fiber, spot, stat, name),
            Claim::Copy => {
                let result = self.make_special(fiber, spot, stat);
                let make =
                    async |fiber: &mut _, spot: &Spot<'_>| self.make_special(fiber, spot, stat);
                self.settle_links(fiber, spot, stat, &result, make).await;
                result
            }
        }
    }

    fn make_special(
        &self,
        fiber: &mut Fiber<Self>,
        spot: &Spot<'_>,
        stat: &Stat,
    ) -> Result<Outcome> {
        let pin = self.pin(spot)?;
        let pinned = pin.as_ref().map(|(dir, name)| Spot { target: Some(dir), to: name, ..*spot });
        let spot = pinned.as_ref().unwrap_or(spot);
        // That it is the source itself is an error, and not up to date.
        if self.options.existing == Existing::Update
            && let Some(there) = self.stat_target(spot)?
            && self.is_itself(spot, stat, &there)?
        {
            return Ok(Outcome::Skipped);
        }
        if self.is_up_to_date(spot, stat)? {
            return Ok(Outcome::Skipped);
        }
        let kind = FileType::from_raw_mode(stat.st_mode);
        let is_symlink = kind == FileType::Symlink;
        let counts = &mut fiber.tally.counts;
        *(if is_symlink { &mut counts.symlinks } else { &mut counts.others }) += 1;
        let Some(target) = spot.target else { return Ok(Outcome::Copied) };
        fiber.tally.counters.plain_calls += 2;
        let result = if is_symlink {
            let content = read_link(spot).map_err(EntryError::source("read link"))?;
            self.make_name(spot, stat, || kernel::symlinkat(&content, target, spot.to))
        } else {
            let mode = Mode::from_raw_mode(stat.st_mode & self.bits_of_nodes());
            self.make_name(spot, stat, || {
                kernel::mknodat(target, spot.to, kind, mode, stat.st_rdev)
            })
        };
        let result = result.and_then(|is_made| {
            if !is_made || !self.options.preserve.has_attributes() {
                return Ok(is_made);
            }
            let set = self.set_attributes_of_name(spot, stat, is_symlink, &mut fiber.tally);
            set.map(|()| true).map_err(|(operation, error)| {
                // A later copy could not tell that it is not complete.
                sys::unlink(target, spot.to).ok();
                EntryError::target(operation)(error)
            })
        });
        if !matches!(result, Ok(true)) {
            let counts = &mut fiber.tally.counts;
            *(if is_symlink { &mut counts.symlinks } else { &mut counts.others }) -= 1;
        }
        result.map(|is_made| if is_made { Outcome::Copied } else { Outcome::Skipped })
    }

    /// Of the source's mode, what a FIFO, a socket or a device is made with. If it gets another owner, or
    /// exactly that mode, nobody else may use it before.
    fn bits_of_nodes(&self) -> u32 {
        match (self.options.preserve.mode, self.options.preserve.ownership) {
            (true, _) => 0o700,
            (false, true) => sys::PERMISSIONS & !attributes::OTHERS,
            (false, false) => sys::PERMISSIONS,
        }
    }

    /// Whether the file's blocks may be shared with the copy's.
    pub(super) fn may_share(&self, spot: &Spot<'_>) -> bool {
        use crate::options::Reflink;
        match self.options.reflink {
            Reflink::Never => false,
            Reflink::Always => true,
            Reflink::Auto => !spot.learned.no_clone.load(Ordering::Relaxed),
        }
    }
}

/// Whether one is a copy of the other, as far as can be told without reading.
fn is_alike(one: &Stat, other: &Stat) -> bool {
    let facts = |stat: &Stat| {
        let kind = FileType::from_raw_mode(stat.st_mode);
        (kind, stat.st_size, stat.st_mtime, stat.st_mtime_nsec)
    };
    facts(one) == facts(other)
}

fn read_link(spot: &Spot<'_>) -> io::Result<CString> {
    sys::retry(|| kernel::readlinkat(spot.source, spot.name, Vec::new()))
}
