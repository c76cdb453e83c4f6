//! A file with several names: copied under one of them; the others become links.

use std::ffi::CStr;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use rustix::fs::{AtFlags, CWD, FileType, OFlags, Stat};
use rustix::io::Errno;

use super::entry::Outcome;
use super::existing::remove_existing;
use super::links::{Claim, Waiting};
use super::{At, Copy, EntryError, Learned, Result, Spot, attributes};
use crate::crew::{Crew, End, Fiber, Next};
use crate::options::{Existing, Follow};
use crate::place::{Id, Name, OpenDir};
use crate::sys::lock;
use crate::{kernel, sys};

impl Copy {
    /// Returns whether other names of it may have to become links.
    pub(super) fn has_links(&self, stat: Option<&Stat>) -> bool {
        self.options.preserve.links && stat.is_none_or(|stat| self.is_claimed(stat))
    }

    /// Returns whether it may be found under another name: each followed link is one.
    pub(super) fn is_claimed(&self, stat: &Stat) -> bool {
        let follows = self.options.follow == Follow::Always;
        self.options.preserve.links && (follows || stat.st_nlink > 1)
    }

    /// Returns how often it may be found: with followed links or overlapping trees, more often than it has
    /// names.
    fn names_of(&self, stat: &Stat) -> u64 {
        match self.options.follow {
            Follow::Never if self.is_single => stat.st_nlink,
            _ => u64::MAX,
        }
    }

    /// Copies a file by `copy`, unless another name of it was copied.
    pub(super) async fn copy_once(
        &self,
        spot: &mut Spot<'_>,
        stat: &Stat,
        mut copy: impl AsyncFnMut(&mut Spot<'_>) -> Result<Outcome>,
    ) -> Result<Outcome> {
        if !self.is_claimed(stat) {
            return copy(spot).await;
        }
        match self.links.claim(Id::of(stat), self.names_of(stat), || Waiting::of(spot)) {
            Claim::Wait => Ok(Outcome::Later),
            Claim::Link(name) => self.link(spot, stat, name),
            Claim::Copy => {
                let result = copy(spot).await;
                if let Ok(Outcome::Aside) = result {
                    self.put_names_aside(spot.fiber, Id::of(stat));
                } else {
                    self.settle_links(spot, stat, &result, copy).await;
                }
                result
            }
        }
    }

    /// Handles the names that wait for a file, which was copied with this result. If that left no copy,
    /// `copy` makes one under another name.
    async fn settle_links(
        &self,
        spot: &mut Spot<'_>,
        stat: &Stat,
        result: &Result<Outcome>,
        mut copy: impl AsyncFnMut(&mut Spot<'_>) -> Result<Outcome>,
    ) {
        let (id, keeps) = (Id::of(stat), self.options.existing == Existing::Keep);
        let copied_to = |spot: &mut Spot<'_>, result: &Result<Outcome>| {
            let is_new = matches!(result, Ok(Outcome::Copied));
            self.has_copy(spot, stat, result).then(|| (Waiting::of(spot), keeps && is_new))
        };
        let mut copied = copied_to(spot, result);
        // In sequence, since this is rare.
        while copied.is_none()
            && let Some(waiting) = self.links.failed(id)
        {
            let act = async |spot: &mut Spot<'_>| {
                let result = copy(spot).await;
                copied = copied_to(spot, &result);
                result
            };
            if self.settle(&mut *spot.fiber, &waiting, End::Done, act).await == Next::Aside {
                return self.put_names_aside(spot.fiber, id);
            }
        }
        let Some((first, may_change)) = copied else { return };
        let name = first.name();
        for waiting in self.links.copied(id, first, may_change) {
            let name = name.clone();
            let link = async |spot: &mut Spot<'_>| self.link(spot, stat, name);
            self.settle(&mut *spot.fiber, &waiting, End::Done, link).await;
        }
    }

    /// Returns whether a copy exists that other names can link to. A kept file counts only if its time and
    /// size are the source's: then an earlier copy created it. Another name of the source does not count.
    fn has_copy(&self, spot: &mut Spot<'_>, stat: &Stat, result: &Result<Outcome>) -> bool {
        match result {
            Ok(Outcome::Skipped) => {
                let is_copy = |there: &Stat| is_alike(there, stat) && Id::of(there) != Id::of(stat);
                let there = self.stat_target(spot).ok().flatten().filter(is_copy);
                if self.is_identified(spot, stat) {
                    spot.made = there.as_ref().map(Id::of);
                }
                there.is_some()
            }
            Ok(Outcome::Aside) => false,
            result => result.is_ok(),
        }
    }

    /// Puts all names aside that wait for a file.
    fn put_names_aside(&self, fiber: &mut Fiber<Self>, id: Id) {
        while let Some(waiting) = self.links.failed(id) {
            let folder = waiting.folder.clone();
            lock(&self.asides).push(waiting);
            fiber.end_part(folder.as_ref(), End::Aside);
        }
    }

    /// Does the entries that were put aside, one after the other.
    pub(super) async fn do_each_aside(&self, fiber: &mut Fiber<Self>) {
        self.is_last.store(true, Ordering::Relaxed);
        let asides = std::mem::take(&mut *lock(&self.asides));
        for waiting in asides {
            if fiber.go_on().is_err() {
                return;
            }
            fiber.tally.counters.asides += 1;
            let act =
                async |spot: &mut Spot<'_>| match self.try_entry(spot, FileType::Unknown).await {
                    Ok(Outcome::Enter) => Err(EntryError::source("copy", Errno::ISDIR)),
                    result => result,
                };
            self.settle(fiber, &waiting, End::DoneLate, act).await;
        }
    }

    /// Does the postponed work, and records its end, unless it was put aside.
    async fn settle(
        &self,
        fiber: &mut Fiber<Self>,
        waiting: &Waiting,
        mut end: End,
        act: impl AsyncFnOnce(&mut Spot<'_>) -> Result<Outcome>,
    ) -> Next {
        let folder = waiting.folder.as_ref();
        let mut next = Next::Done;
        if let Some((source, target)) = self.open_both(fiber, folder, &waiting.name) {
            let nothing = Learned::default();
            let mut spot = Spot {
                fiber: &mut *fiber,
                folder,
                source: &source,
                target: target.as_ref(),
                name: &waiting.name,
                to: &waiting.to,
                learned: folder.map_or(&nothing, |folder| &folder.facts.target.learned),
                made: None,
            };
            let result = act(&mut spot).await;
            next = self.conclude(&mut spot, result);
        }
        if next == Next::Aside {
            end = End::Aside;
        }
        fiber.end_part(folder, end);
        next
    }

    /// Creates another name of a copied file: `source` is the status of its source.
    fn link(&self, spot: &mut Spot<'_>, source: &Stat, mut first: Name) -> Result<Outcome> {
        let worker = spot.fiber.worker();
        let crew = &worker.crew;
        let Some(target) = spot.target else {
            spot.fiber.tally.counts.hard_links += 1;
            return Ok(Outcome::Copied);
        };
        let id = Id::of(source);
        let mut result = link(crew, &first, target, spot.to);
        spot.fiber.tally.counters.plain_calls += 1;
        if result == Err(Errno::NOENT)
            && let Some(now) = self.links.name(id)
        {
            // It is about to become a name of an earlier copy.
            first = now;
            result = link(crew, &first, target, spot.to);
        }
        if result == Err(Errno::EXIST) {
            let there = self.stat_target(spot)?;
            let new = id_of(crew, &first).at_target("link")?;
            if there.is_some_and(|there| Id::of(&there) == new) {
                return Ok(Outcome::Skipped);
            }
            let written = self.stat_overwritten(spot, sys::kind(source))?;
            if let Some(written) = written.filter(|written| Id::of(written) == id) {
                self.is_itself(spot, source, &written)?;
                return Ok(Outcome::Skipped);
            }
            if self.options.existing == Existing::Keep
                && let Some(there) = there
                && !self.is_unfinished(spot, source, &there)
            {
                if is_alike(&there, source) {
                    let id_kept = self.is_identified(spot, source).then(|| Id::of(&there));
                    let kept = Waiting { id: id_kept, ..Waiting::of(spot) };
                    self.become_one(crew, id, &first, new, &kept).at_target("link")?;
                }
                return Ok(Outcome::Skipped);
            }
            // The file of an earlier copy becomes a name of this one.
            if self.options.existing == Existing::Update
                && there.is_some_and(|there| !is_alike(&there, source))
                && self.is_up_to_date(spot, source)?
            {
                return Ok(Outcome::Skipped);
            }
            let pin = self.pin(spot)?;
            let (dir, name) = pin.as_ref().map_or((target, spot.to), |(dir, name)| (dir, name));
            remove_existing(dir, name, there.as_ref())?;
            result = link(crew, &first, dir, name);
        }
        if result.is_ok() && self.options.existing == Existing::Keep {
            self.catch_up(spot, id, &first).at_target("link")?;
        }
        result.at_target("link")?;
        spot.fiber.tally.counts.hard_links += 1;
        Ok(Outcome::Copied)
    }

    /// Merges a kept file and the one that `first` names, both copies of the source. If this copy created
    /// the latter, its names become names of the kept one.
    fn become_one(
        &self,
        crew: &Crew<Self>,
        id: Id,
        first: &Name,
        new: Id,
        kept: &Waiting,
    ) -> sys::Result<()> {
        let Some(made) = self.links.found(id, kept.name()) else {
            // A killed earlier copy has created both.
            return self.relink(crew, kept, first);
        };
        for made in made {
            let name = made.name();
            let dir = crew.places.open(&name.place)?;
            // A missing name is about to be created, as a link to the file of that time.
            if sys::stat_name(dir.as_fd(), &name.name).is_ok_and(|stat| Id::of(&stat) == new) {
                self.relink(crew, &made, &kept.name())?;
            }
        }
        Ok(())
    }

    /// Repairs a name that was linked to the file that `first` names, if another worker has found an earlier
    /// copy meanwhile, and had listed the names to change before this one existed.
    fn catch_up(&self, spot: &Spot<'_>, id: Id, first: &Name) -> sys::Result<()> {
        let crew = spot.fiber.crew();
        let Some(now) = self.links.name(id).filter(|now| !now.is(first)) else { return Ok(()) };
        let Some(target) = spot.target else { return Ok(()) };
        let kept = id_of(crew, &now)?;
        match sys::stat_name(target.as_fd(), spot.to) {
            Ok(made) if Id::of(&made) != kept => self.relink(crew, &Waiting::of(spot), &now),
            _ => Ok(()),
        }
    }

    /// Turns a created name into a link to the file with the name `kept`.
    fn relink(&self, crew: &Crew<Self>, made: &Waiting, kept: &Name) -> sys::Result<()> {
        let dir = crew.places.open(&made.name().place)?;
        let from = crew.places.open(&kept.place)?;
        sys::unlink(&*dir, &made.to)?;
        link_from(crew, &from, kept, &dir, &made.to)?;
        // The directory may have been completed before.
        if self.options.preserve.timestamps
            && let Some(folder) = &made.folder
        {
            let times = attributes::times_of(&folder.facts.stat);
            sys::retry(|| kernel::futimens(&dir, &times))?;
        }
        Ok(())
    }
}

/// Creates `to` in `dir` as a link to the file `first`.
fn link(crew: &Crew<Copy>, first: &Name, dir: &OpenDir, to: &CStr) -> sys::Result<()> {
    link_from(crew, &*crew.places.open(&first.place)?, first, dir, to)
}

/// Creates `to` in `dir` as a link to `first`, a name in `from`.
///
/// `ESTALE`: another user has put another file there.
fn link_from(
    crew: &Crew<Copy>,
    from: &OpenDir,
    first: &Name,
    dir: &OpenDir,
    to: &CStr,
) -> sys::Result<()> {
    let Some(id) = first.id else { return sys::link(from, &first.name, dir, to) };
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = crew.places.with_room(|| sys::open(from.as_fd(), &first.name, flags))?;
    if Id::of(&sys::stat(&file)?) != id {
        return Err(Errno::STALE);
    }
    // By the descriptor, whatever the name is now. `AT_EMPTY_PATH` would take a capability.
    let path = attributes::magic_file(file.as_fd());
    sys::retry(|| kernel::linkat(CWD, &path, dir, to, AtFlags::SYMLINK_FOLLOW))
}

/// Returns the identity of the file that the name had, or has.
fn id_of(crew: &Crew<Copy>, name: &Name) -> sys::Result<Id> {
    if let Some(id) = name.id {
        return Ok(id);
    }
    let stat = sys::stat_name(crew.places.open(&name.place)?.as_fd(), &name.name)?;
    Ok(Id::of(&stat))
}

/// Returns whether one is a copy of the other, judged without reading.
fn is_alike(one: &Stat, other: &Stat) -> bool {
    let facts = |stat: &Stat| (sys::kind(stat), stat.st_size, stat.st_mtime, stat.st_mtime_nsec);
    facts(one) == facts(other)
}
