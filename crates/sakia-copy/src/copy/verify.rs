//! Verification: reads the copy again, and compares it with its source.
//!
//! It is a second walk over the whole tree, after the copy and a sync of the file system: each file of the
//! copy is dropped from the page cache first, so that it comes from the disk.

use std::convert::Infallible;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::{Advice, FileType, OFlags, Stat};
use sakia::fs::AlignedBuf;
use sakia_driver::FileHint;

use super::{At, Copier, EntryError, Result};
use crate::crew::{Fiber, Folder, Found, Job, Next, Unit};
use crate::options::{Existing, Follow, Options};
use crate::place::{OpenDir, Place, flags_of_directory};
use crate::source::Source;
use crate::{kernel, sys};

/// The job: compares a copy with its source. Differences are failures.
pub(super) struct Verify {
    options: Options,
    to: CString,
    /// Entries changed before this time existed before, and were to stay.
    since: Option<i128>,
    reads: FileHint,
}

/// The places of both.
struct Pair<'a> {
    source: &'a Arc<OpenDir>,
    place: &'a Arc<Place>,
    target: &'a Arc<OpenDir>,
    name: &'a CStr,
    to: &'a CStr,
}

impl Verify {
    /// Returns the verification of a copy at `to`, begun at this time in nanoseconds since 1970.
    pub(super) fn new(copier: &Copier, to: CString, begin: i128) -> Self {
        let options = copier.options.clone();
        let keeps = options.existing != Existing::Overwrite;
        Self { options, to, since: keeps.then_some(begin), reads: FileHint::default() }
    }

    /// Compares entries other than directories. All errors are reported with the path of the copy.
    async fn compare(&self, fiber: &mut Fiber<Self>, pair: &Pair<'_>) -> Result<Next> {
        let follows = self.options.follow.flags();
        let source = sys::retry(|| kernel::statat(pair.source, pair.name, follows));
        let source = source.at_target("stat source of")?;
        let target = sys::stat_name(pair.target.as_fd(), pair.to).at_target("stat")?;
        if self.since.is_some_and(|since| changed(&target) < since) {
            return Ok(Next::Done);
        }
        let is_same = match [&source, &target].map(sys::kind) {
            [FileType::Directory, FileType::Directory] => return Ok(Next::Enter),
            [FileType::RegularFile, FileType::RegularFile] => {
                self.compare_files(fiber, pair).await?
            }
            [FileType::Symlink, FileType::Symlink] => {
                let source = sys::read_link(pair.source, pair.name).at_target("read link")?;
                source == sys::read_link(pair.target, pair.to).at_target("read link")?
            }
            [one, other] => one == other && source.st_rdev == target.st_rdev,
        };
        if is_same {
            Ok(Next::Done)
        } else {
            Err(EntryError::target("verify", io::Error::other("it differs from its source")))
        }
    }

    async fn compare_files(&self, fiber: &mut Fiber<Self>, pair: &Pair<'_>) -> Result<bool> {
        let mut flags = sys::SOURCE;
        let target = fiber.open_source(pair.target, pair.to, flags).await;
        let mut target = target.at_target("open")?;
        flags.set(OFlags::NOFOLLOW, self.options.follow == Follow::Never);
        let source = fiber.open_source(pair.source, pair.name, flags).await;
        let mut source = source.at_target("open source of")?;
        // A file that cannot be dropped is compared all the same.
        kernel::fadvise(target.as_fd(), 0, None, Advice::DontNeed).ok();
        let mut buf = std::mem::take(&mut fiber.kit.buf);
        let result = self.compare_contents(fiber, &mut source, &mut target, &mut buf).await;
        fiber.kit.buf = buf;
        result
    }

    async fn compare_contents(
        &self,
        fiber: &mut Fiber<Self>,
        source: &mut Source,
        target: &mut Source,
        buf: &mut AlignedBuf,
    ) -> Result<bool> {
        let half = buf.len() / 2;
        let mut offset = 0;
        loop {
            fiber.go_on().at_target("verify")?;
            let (reads, size) = (&self.reads, u64::MAX);
            let count = fiber.read_range(source, buf, 0..half, offset, size, reads).await;
            let count = count.at_target("read source of")?;
            let other = fiber.read_range(target, buf, half..2 * half, offset, size, reads).await;
            let other = other.at_target("read")?;
            if count != other || buf[..count] != buf[half..half + other] {
                return Ok(false);
            }
            if count < half {
                return Ok(true);
            }
            offset += count as u64;
            sakia::yield_now().await;
        }
    }

    async fn compare_and_tell(&self, fiber: &mut Fiber<Self>, pair: &Pair<'_>) -> Next {
        self.compare(fiber, pair).await.unwrap_or_else(|wrong| {
            fiber.fail(wrong.operation, pair.place.path_of(pair.to), wrong.error);
            Next::Done
        })
    }
}

/// Returns the inode's change time, in nanoseconds since 1970.
fn changed(stat: &Stat) -> i128 {
    i128::from(stat.st_ctime) * 1_000_000_000 + i128::from(stat.st_ctime_nsec)
}

impl Job for Verify {
    /// The directory of the copy.
    type Facts = Arc<Place>;
    type Rest = Infallible;

    async fn enter(&self, fiber: &mut Fiber<Self>, unit: &Unit<Self>) -> Option<Arc<Folder<Self>>> {
        let (above, name) = (unit.above.as_ref(), &*unit.name);
        let places = (unit.place(), above.map_or(Place::current(), |folder| &folder.facts));
        let to = if above.is_some() { name } else { &*self.to };
        let follows = self.options.follow == Follow::Always || above.is_none();
        let entered = async {
            let open = |place| fiber.crew().places.open(place);
            let (source, target) = (open(places.0)?, open(places.1)?);
            if above.is_none() {
                let pair = Pair { source: &source, place: places.1, target: &target, name, to };
                if self.compare_and_tell(fiber, &pair).await == Next::Done {
                    return io::Result::Ok(None);
                }
            }
            let from = fiber.open_directory(&source, name, flags_of_directory(follows)).await?;
            let flags = flags_of_directory(above.is_none());
            let onto = fiber.open_directory(&target, to, flags).await?;
            let place = fiber.crew().places.adopt(places.0, name, from, None, follows);
            let onto = fiber.crew().places.adopt(places.1, to, onto, None, above.is_none());
            Ok(Some((place, onto)))
        };
        let entered = entered.await;
        let (place, onto) =
            fiber.ok_or_fail("verify directory", || places.1.path_of(to), entered)??;
        Some(Folder::new(above, place, onto))
    }

    async fn entry(&self, fiber: &mut Fiber<Self>, found: Found<'_, Self>) -> Next {
        let Found { frame, name, .. } = found;
        let place = &frame.folder.facts;
        let Some(target) = fiber.open_place(place, name) else { return Next::Done };
        let pair = Pair { source: &frame.source, place, target: &target, name, to: name };
        self.compare_and_tell(fiber, &pair).await
    }

    fn leave(&self, fiber: &mut Fiber<Self>, folder: &Arc<Folder<Self>>) {
        fiber.crew().places.return_above(&folder.place);
        fiber.crew().places.return_above(&folder.facts);
    }
}
