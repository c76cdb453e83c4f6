//! Entries other than directories: their kinds, and the creation of links, FIFOs, sockets and devices.

use std::ffi::CString;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::existing::is_directory;
use super::links::Waiting;
use super::{At, Copy, EntryError, Result, Spot, attributes};
use crate::crew::Next;
use crate::options::{Existing, Follow};
use crate::place::{Id, OpenDir};
use crate::source::Source;
use crate::sys::lock;
use crate::{kernel, sys};

/// The outcome of an entry.
pub(super) enum Outcome {
    Copied,
    /// The existing entry stays.
    Skipped,
    Enter,
    Later,
    /// A file of it is in use: it is to be done when nothing else is left.
    Aside,
}

impl Copy {
    /// Copies an entry that is no directory; an unknown kind is looked up first.
    pub(super) async fn copy_entry(&self, spot: &mut Spot<'_>, kind: FileType) -> Next {
        let result = self.try_entry(spot, kind).await;
        self.conclude(spot, result)
    }

    /// Reports the outcome of an entry.
    pub(super) fn conclude(&self, spot: &mut Spot<'_>, result: Result<Outcome>) -> Next {
        match result {
            Ok(Outcome::Copied) => self.tell(spot),
            Ok(Outcome::Skipped) => spot.fiber.tally.counts.skipped += 1,
            Ok(Outcome::Enter) => return Next::Enter,
            Ok(Outcome::Later) => return Next::Later,
            Ok(Outcome::Aside) => {
                lock(&self.asides).push(Waiting::of(spot));
                return Next::Aside;
            }
            Err(wrong) => self.fail(spot, wrong),
        }
        Next::Done
    }

    pub(super) async fn try_entry(&self, spot: &mut Spot<'_>, kind: FileType) -> Result<Outcome> {
        let is_known = match kind {
            FileType::RegularFile => true,
            FileType::Unknown | FileType::Symlink => false,
            _ => self.options.follow == Follow::Always,
        };
        let (kind, stat) = if is_known {
            (kind, None)
        } else {
            let stat = self.stat_source(spot)?;
            spot.fiber.tally.counters.plain_calls += 1;
            (sys::kind(&stat), Some(stat))
        };
        let may_be_partial = spot.folder.is_some_and(|folder| folder.facts.target.was_unfinished);
        let is_kept = self.options.existing == Existing::Keep
            && kind != FileType::Directory
            && !may_be_partial
            && self.is_there(spot, kind)?;
        if ![FileType::RegularFile, FileType::Directory].contains(&kind) {
            note_special(spot);
        }
        if is_kept && !self.has_links(stat.as_ref()) {
            return Ok(Outcome::Skipped);
        }
        match kind {
            FileType::Directory => Ok(Outcome::Enter),
            FileType::RegularFile => match self.copy_file(spot).await {
                // Opened only to learn its other names.
                Err(wrong) if is_kept && !wrong.is_target && wrong.operation == "open" => {
                    Ok(Outcome::Skipped)
                }
                result => result,
            },
            kind if self.is_read(kind) => self.copy_stream(spot).await,
            _ => {
                let stat = stat.map_or_else(|| self.stat_source(spot), Ok)?;
                self.copy_special(spot, &stat).await
            }
        }
    }

    pub(super) fn stat_source(&self, spot: &Spot<'_>) -> Result<Stat> {
        let flags = self.options.follow.flags();
        sys::retry(|| kernel::statat(spot.source, spot.name, flags)).at_source("stat")
    }

    async fn copy_file(&self, spot: &mut Spot<'_>) -> Result<Outcome> {
        let mut flags = sys::SOURCE;
        flags.set(OFlags::NOFOLLOW, self.options.follow == Follow::Never);
        let mut source = match spot.fiber.open_source(spot.source, spot.name, flags).await {
            Ok(source) => source,
            // It has become a link.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::LOOP) => {
                let stat = self.stat_source(spot)?;
                return self.copy_special(spot, &stat).await;
            }
            Err(error) => {
                // The source is not read if it will not be copied.
                if self.options.existing == Existing::Update
                    && let Ok(stat) = self.stat_source(spot)
                    && let Ok(true) = self.is_up_to_date(spot, &stat)
                {
                    return Ok(Outcome::Skipped);
                }
                return Err(EntryError::source("open", error));
            }
        };
        let stat = sys::stat(&source).at_source("stat")?;
        spot.fiber.tally.counters.plain_calls += 2;
        match sys::kind(&stat) {
            FileType::RegularFile => {}
            FileType::Directory => return Ok(Outcome::Enter),
            kind if self.is_read(kind) => return self.copy_stream(spot).await,
            _ => return self.copy_special(spot, &stat).await,
        }
        let Ok(hold) = self.hold_source(spot, &stat) else { return Ok(Outcome::Aside) };
        if !self.is_claimed(&stat) {
            return self.fill_new(spot, &mut source, &stat).await;
        }
        let mut opened = Some((source, stat, hold));
        let copy = async |spot: &mut Spot<'_>| {
            let (mut source, stat, _hold) = match opened.take() {
                Some(opened) => opened,
                // Through a name that waited for another one.
                None => {
                    let (source, stat) = open_again(spot)?;
                    let Ok(hold) = self.hold_source(spot, &stat) else {
                        return Ok(Outcome::Aside);
                    };
                    (source, stat, hold)
                }
            };
            self.fill_new(spot, &mut source, &stat).await
        };
        self.copy_once(spot, &stat, copy).await
    }

    /// Copies a link, a FIFO, a socket or a device.
    async fn copy_special(&self, spot: &mut Spot<'_>, stat: &Stat) -> Result<Outcome> {
        let make = async |spot: &mut Spot<'_>| self.make_special(spot, stat);
        self.copy_once(spot, stat, make).await
    }

    fn make_special(&self, spot: &mut Spot<'_>, stat: &Stat) -> Result<Outcome> {
        let mut pin = self.pin(spot)?;
        if spot.folder.is_none()
            && spot.target.is_some()
            && self.is_staged(spot, stat)
            && let (None, Some(name)) = (&pin, self.name_in_parent(spot))
            && let Ok(dir) = self.open_parent()
        {
            pin = Some((Arc::new(OpenDir::of(dir)), name));
        }
        let pinned = pin.as_ref().map(|(dir, name)| (Some(dir), &**name));
        let (target, to) = pinned.unwrap_or((spot.target, spot.to));
        let mut inner = Spot { target, to, fiber: &mut *spot.fiber, ..*spot };
        let result = self.make_special_at(&mut inner, stat);
        spot.made = inner.made;
        result
    }

    fn make_special_at(&self, spot: &mut Spot<'_>, stat: &Stat) -> Result<Outcome> {
        // A target that is the source itself is an error, and not up to date.
        if self.options.existing == Existing::Update
            && let Some(there) = self.stat_target(spot)?
            && self.is_itself(spot, stat, &there)?
        {
            return Ok(Outcome::Skipped);
        }
        if self.is_up_to_date(spot, stat)? {
            return Ok(Outcome::Skipped);
        }
        let Some(target) = spot.target else {
            spot.fiber.tally.counts.add_entry(sys::kind(stat));
            return Ok(Outcome::Copied);
        };
        spot.fiber.tally.counters.plain_calls += 2;
        let (kind, device) = (sys::kind(stat), stat.st_rdev);
        let content = match kind {
            FileType::Symlink => sys::read_link(spot.source, spot.name).at_source("read link")?,
            _ => CString::default(),
        };
        let (to, mode) = (spot.to, Mode::from_raw_mode(stat.st_mode & self.bits_of_nodes()));
        let create = |dir: &OpenDir| match kind {
            FileType::Symlink => kernel::symlinkat(&content, dir, to),
            _ => kernel::mknodat(dir, to, kind, mode, device),
        };
        let is_staged = self.is_staged(spot, stat);
        // Else the attempt to create it fails.
        let may_be_made = !is_staged
            || self.stat_target(spot)?.is_none_or(|there| {
                !is_directory(&there)
                    && Id::of(&there) != Id::of(stat)
                    && self.may_replace(spot, stat, &there)
            });
        let stage =
            if is_staged && may_be_made { self.staged(spot, target, to, create) } else { Ok(None) };
        let is_made = match stage.at_target("create")? {
            Some(stage) => self.complete_staged(spot, stat, stage, target)?,
            None => {
                self.make_name(spot, stat, || create(target))? && {
                    self.complete_special(spot, stat, is_staged)?;
                    true
                }
            }
        };
        if !is_made {
            return Ok(Outcome::Skipped);
        }
        spot.fiber.tally.counts.add_entry(sys::kind(stat));
        Ok(Outcome::Copied)
    }

    /// Sets the attributes of a special file that has its name already. If others may have renamed it, it
    /// keeps those that it has.
    fn complete_special(&self, spot: &mut Spot<'_>, stat: &Stat, may_rename: bool) -> Result<()> {
        if may_rename {
            spot.fiber.tally.counters.attributes_lost += 1;
            return Ok(());
        }
        if self.options.preserve.has_attributes() {
            match self.set_attributes_of_name(spot, stat) {
                Ok(lost) => self.report_lost(spot, lost),
                Err(wrong) => {
                    // A later copy could not detect that it is not complete.
                    sys::unlink(spot.target_dir()?, spot.to).ok();
                    return Err(wrong);
                }
            }
        }
        self.note_name(spot, stat)
    }

    /// Returns the mode bits with which a FIFO, a socket or a device is created. If its owner or its exact
    /// mode is set later, others may not use it before.
    fn bits_of_nodes(&self) -> u32 {
        match (self.options.preserve.mode, self.options.preserve.ownership) {
            (true, _) => 0o700,
            (false, true) => sys::PERMISSIONS & !attributes::OTHERS,
            (false, false) => sys::PERMISSIONS,
        }
    }
}

/// Notes that a directory of the copy has special files: if it is not new, a killed copy may have left a
/// private directory beside them, which need not be used again.
fn note_special(spot: &Spot<'_>) {
    if let Some(folder) = spot.folder
        && !folder.facts.target.is_new
    {
        folder.facts.target.others.note_stage();
    }
}

/// Opens a file whose copy under another name left none.
fn open_again(spot: &Spot<'_>) -> Result<(Source, Stat)> {
    let file = sys::open(spot.source.as_fd(), spot.name, sys::SOURCE).at_source("open")?;
    let stat = sys::stat(&file).at_source("stat")?;
    Ok((Source::Plain(file), stat))
}
