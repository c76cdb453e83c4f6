//! Regular files: created, filled and completed.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::fs::Stat;
use rustix::io::Errno;
use sakia::fs::AlignedBuf;

use super::entry::Outcome;
use super::in_use::Hold;
use super::{At, Copy, EntryError, Result, Spot, attributes, mark};
use crate::kernel::OwnedFd;
use crate::options::{Existing, Reflink};
use crate::source::Source;
use crate::{kernel, sys};

/// Smaller files are read before they are created, if the buffer has room. For larger ones a copy within the
/// kernel is cheaper.
pub(super) const SMALL: u64 = 128 << 10;
/// One in this many creations is timed.
const TIMED: u64 = 8;

/// The place of contents.
pub(super) enum Opened<'a> {
    File(Made<'a>),
    /// The caller has named a device or a FIFO, to be written to.
    Named,
    /// The file is in use, and the entry is to be put aside.
    InUse,
}

/// A file of the copy, to be filled.
pub(super) struct Made<'a> {
    pub(super) fd: OwnedFd,
    /// The mode to set at the end, if it has another one until then.
    pub(super) mode: Option<u32>,
    pub(super) is_new: bool,
    /// It existed before and has other names, so removing this one would not remove it.
    pub(super) has_names: bool,
    /// It existed before, and is as it was.
    pub(super) is_untouched: bool,
    /// It is an existing file, which no other entry may use meanwhile.
    pub(super) _hold: Option<Hold<'a>>,
}

impl Made<'_> {
    pub(super) fn new(fd: OwnedFd, mode: Option<u32>) -> Self {
        let (is_new, has_names, is_untouched) = (true, false, false);
        Self { fd, mode, is_new, has_names, is_untouched, _hold: None }
    }
}

impl Copy {
    /// Copies a regular file that was not copied under another name.
    pub(super) async fn fill_new(
        &self,
        spot: &mut Spot<'_>,
        source: &mut Source,
        stat: &Stat,
    ) -> Result<Outcome> {
        // A file that is being changed has no final time yet.
        if self.options.existing == Existing::Update
            && spot.target.is_some()
            && !self.is_alone(spot)
            && self.stat_target(spot)?.is_some_and(|there| self.is_changing(spot, &there))
        {
            return Ok(Outcome::Aside);
        }
        if self.is_up_to_date(spot, stat)? {
            return Ok(Outcome::Skipped);
        }
        if spot.target.is_none() {
            spot.fiber.tally.counts.bytes += sys::size(stat);
        } else {
            let mut buf = std::mem::take(&mut spot.fiber.kit.buf);
            let filled = self.fill_with(spot, source, stat, &mut buf).await;
            spot.fiber.kit.buf = buf;
            if !filled? {
                return Ok(Outcome::Aside);
            }
        }
        spot.fiber.tally.counts.files += 1;
        Ok(Outcome::Copied)
    }

    /// Returns false if the entry is to be put aside.
    async fn fill_with(
        &self,
        spot: &mut Spot<'_>,
        source: &mut Source,
        stat: &Stat,
        buf: &mut AlignedBuf,
    ) -> Result<bool> {
        let size = sys::size(stat);
        let mut whole = None;
        if size < SMALL.min(buf.len() as u64) && !self.has_holes(stat) && !self.may_share(spot) {
            let range = 0..buf.len();
            let read =
                spot.fiber.read_range(source, buf, range, 0, size, &spot.learned.reads).await;
            whole = Some(read.at_source("read")?).filter(|&count| count < buf.len());
        }
        let made = match self.make(spot, source.as_fd(), stat, whole.is_some())? {
            Opened::File(made) => made,
            Opened::Named => {
                self.write_to_named(spot, source.as_fd()).await?;
                return Ok(true);
            }
            Opened::InUse => return Ok(false),
        };
        let filled = match whole {
            Some(count) => {
                spot.fiber.tally.counters.plain_calls += 1;
                let written = sys::write_all_at(made.fd.as_fd(), &buf[..count], 0);
                spot.fiber.tally.counts.bytes += if written.is_ok() { count as u64 } else { 0 };
                written.map(|()| count as u64).at_target("write")
            }
            None => self.fill_large(spot, source, &made.fd, stat, buf).await,
        };
        let count = self.complete(spot, source.as_fd(), stat, &made, filled)?;
        // A file that grew was copied to its end.
        if count >= size {
            return Ok(true);
        }
        // The size of some files, as of those in `/sys`, is not the length of their contents.
        let now = sys::size(&sys::stat(source.as_fd()).at_source("stat")?);
        if now >= size {
            return Ok(true);
        }
        let text = format!("it changed while it was copied: {count} bytes instead of {size}");
        Err(EntryError::source("copy", std::io::Error::other(text)))
    }

    /// Returns whether the file's blocks may be shared with the copy's.
    pub(super) fn may_share(&self, spot: &Spot<'_>) -> bool {
        match self.options.reflink {
            Reflink::Never => false,
            Reflink::Always => true,
            Reflink::Auto => !spot.learned.no_clone.load(Ordering::Relaxed),
        }
    }

    /// Creates the file, or truncates the existing one.
    ///
    /// A file written by one call, in a directory that is marked as not complete, gets its final mode at
    /// once: at worst it is a prefix of its source, which a later copy finds there.
    pub(super) fn make(
        &self,
        spot: &mut Spot<'_>,
        source: BorrowedFd<'_>,
        stat: &Stat,
        is_whole: bool,
    ) -> Result<Opened<'_>> {
        let target = spot.target_dir()?;
        let permissions = stat.st_mode & 0o777;
        // An inherited access control list and the mode are derived from each other: a change of the mode
        // changes its entries.
        let inherited = self.default_mask(spot);
        let mask = inherited.unwrap_or(self.mask);
        let (first, last) = if is_whole
            && !self.options.preserve.has_attributes()
            && spot.folder.is_some_and(|folder| folder.facts.target.is_marked)
        {
            (permissions, None)
        } else {
            (mark::FILE, Some(self.last_mode(permissions, inherited)))
        };
        let counters = &mut spot.fiber.tally.counters;
        counters.plain_calls += 1;
        counters.creates += 1;
        let begin = counters.creates.is_multiple_of(TIMED).then(Instant::now);
        let to = spot.to;
        let create = || {
            let fd = sys::create(target.as_fd(), to, first)?;
            // The mask may make the mark another mode, with which attributes cannot be set.
            if last.is_some() && mask & first != 0 {
                sys::set_mode(&fd, first)?;
            }
            Ok(fd)
        };
        let created = create();
        if let Some(begin) = begin {
            counters.creates_timed += 1;
            counters.create_time += begin.elapsed();
        }
        let made = match created {
            Err(Errno::EXIST) => self.overwrite(spot, source, stat, last, create)?,
            created => Opened::File(Made::new(created.at_target("create")?, last)),
        };
        if let Opened::File(made) = &made {
            self.note_file(spot, stat, &made.fd)?;
        }
        Ok(made)
    }

    /// Returns the mode of a complete file, if the source's is not preserved.
    fn last_mode(&self, permissions: u32, inherited: Option<u32>) -> u32 {
        let preserve = self.options.preserve;
        // As with `cp`, the umask takes the place of an inherited list if the mode is set at the end: because
        // others get permissions only after the change of owner, or attributes need a file that its owner may
        // write to, which root need not.
        let is_withheld = preserve.ownership && permissions & attributes::OTHERS & !self.mask != 0;
        let is_added = preserve.xattrs && permissions & 0o200 == 0 && self.user != 0;
        let never = if preserve.ownership { attributes::OTHERS } else { 0 };
        let mask = inherited.filter(|_| !is_withheld && !is_added).map(|mask| mask | never);
        permissions & !mask.unwrap_or(self.mask)
    }

    /// Sets the attributes of a file that has its contents, of this many bytes. A file that cannot be
    /// completed is removed; a failure to set attributes of an existing file is no reason for that.
    pub(super) fn complete(
        &self,
        spot: &mut Spot<'_>,
        source: BorrowedFd<'_>,
        stat: &Stat,
        made: &Made<'_>,
        filled: Result<u64>,
    ) -> Result<u64> {
        if made.is_untouched && filled.is_err() {
            return filled;
        }
        let preserve = self.options.preserve;
        let mut is_whole = false;
        let completed = filled.and_then(|count| {
            let of = attributes::Of {
                stat,
                mode: made.mode,
                // An existing file may have an older one.
                may_have_acl: preserve.mode && (!made.is_new || self.inherits(spot)),
                may_have_owner: made.is_new
                    && spot.folder.is_some_and(|folder| !folder.facts.target.gives_group),
            };
            let set = match made.mode {
                None if !preserve.has_attributes() => Ok(attributes::Lost::new()),
                _ => self.set_attributes(source, made.fd.as_fd(), &of, &mut spot.fiber.tally),
            };
            // A tree is synced as a whole.
            if spot.folder.is_none() && (self.options.durable || self.options.verify) {
                sys::retry(|| kernel::fsync(&made.fd)).at_target("sync")?;
            }
            is_whole = true;
            set.map(|lost| (count, lost))
        });
        if completed.is_err() && is_whole && !made.is_new {
            if let Some(mode) = made.mode {
                sys::set_mode(&made.fd, mode).ok();
            }
        } else if completed.is_err() {
            self.discard(spot, made);
        }
        let (count, lost) = completed?;
        self.report_lost(spot, lost);
        Ok(count)
    }

    /// Removes a file that could not be completed.
    ///
    /// A file that existed and has other names stays under all of them, marked as not complete: a later copy
    /// fills it again.
    fn discard(&self, spot: &Spot<'_>, made: &Made<'_>) {
        if let Some(target) = spot.target
            && (made.has_names || sys::unlink(target, spot.to).is_err())
        {
            // Most are marked already.
            sys::set_mode(&made.fd, mark::FILE).ok();
        }
    }
}
