//! Reading what was written again, and comparing it with its source.
//!
//! A second look at the whole tree, when the first one is over and the file system was synced: what is read
//! of the copy is dropped from the page cache before, so that it comes from the disk.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::{Advice, FileType, Stat};
use sakia::fs::AlignedBuf;

use super::{Copier, Learned};
use crate::crew::{Crew, Fiber, Folder, Frame, Job, Next, Size, Unit};
use crate::options::{Existing, Follow, Options};
use crate::place::{OpenDir, Place, flags_of_directory};
use crate::progress::Progress;
use crate::source::Source;
use crate::{kernel, stopped, sys};

/// The job.
pub(super) struct Verify {
    options: Options,
    to: CString,
    /// What was changed earlier was there before, and was to stay.
    since: Option<i128>,
    learned: Learned,
}

/// Where both are.
struct Pair<'a> {
    source: &'a Arc<OpenDir>,
    place: &'a Arc<Place>,
    target: Arc<OpenDir>,
    name: &'a CStr,
    to: &'a CStr,
}

/// Compares the copy at `to` with `from`. Differences are failures told to `progress`. `begin`: nanoseconds
/// since 1970 at which the copy began.
pub(super) async fn verify(
    copier: &Copier,
    from: CString,
    to: CString,
    begin: i128,
    size: Size,
    progress: &Arc<Progress>,
) {
    let keeps = copier.options.existing != Existing::Overwrite;
    let job = Verify {
        options: copier.options.clone(),
        to,
        since: keeps.then_some(begin),
        learned: Learned::default(),
    };
    let (budget, token) = (copier.budget.clone(), &copier.token);
    Crew::run(job, from, size, budget, Arc::clone(progress), token).await;
}

impl Verify {
    /// Compares what is no directory.
    async fn compare(
        &self,
        fiber: &mut Fiber<Self>,
        pair: &Pair<'_>,
    ) -> Result<Next, (&'static str, io::Error)> {
        let follows = self.options.follow.flags();
        let source = sys::retry(|| kernel::statat(pair.source, pair.name, follows));
        let source = source.map_err(|error| ("stat source of", error))?;
        let target = sys::stat_name(pair.target.as_fd(), pair.to);
        let target = target.map_err(|error| ("stat", error))?;
        if self.since.is_some_and(|since| changed(&target) < since) {
            return Ok(Next::Done);
        }
        let kinds = [&source, &target].map(|stat| FileType::from_raw_mode(stat.st_mode));
        let is_same = match kinds {
            [FileType::Directory, FileType::Directory] => return Ok(Next::Enter),
            [FileType::RegularFile, FileType::RegularFile] => {
                source.st_size == target.st_size && self.compare_files(fiber, pair).await?
            }
            [FileType::Symlink, FileType::Symlink] => {
                let read = |dir: &OpenDir, name: &CStr| {
                    sys::retry(|| kernel::readlinkat(dir, name, Vec::new()))
                        .map_err(|error| ("read link", error))
                };
                read(pair.source, pair.name)? == read(&pair.target, pair.to)?
            }
            [one, other] => one == other && source.st_rdev == target.st_rdev,
        };
        if is_same {
            Ok(Next::Done)
        } else {
            Err(("verify", io::Error::other("it differs from its source")))
        }
    }

    async fn compare_files(
        &self,
        fiber: &mut Fiber<Self>,
        pair: &Pair<'_>,
    ) -> Result<bool, (&'static str, io::Error)> {
        let mut flags = sys::SOURCE;
        let target = fiber.open_source(&pair.target, pair.to, flags).await;
        let mut target = target.map_err(|error| ("open", error))?;
        if self.options.follow == Follow::Always {
            flags -= rustix::fs::OFlags::NOFOLLOW;
        }
        let source = fiber.open_source(pair.source, pair.name, flags).await;
        let mut source = source.map_err(|error| ("open source of", error))?;
        // What cannot be dropped is compared all the same.
        kernel::fadvise(target.as_fd(), 0, None, Advice::DontNeed).ok();
        let mut buf = fiber.take_buf();
        let result = self.compare_contents(fiber, &mut source, &mut target, &mut buf).await;
        fiber.give_buf(buf);
        result
    }

    async fn compare_contents(
        &self,
        fiber: &mut Fiber<Self>,
        source: &mut Source,
        target: &mut Source,
        buf: &mut AlignedBuf,
    ) -> Result<bool, (&'static str, io::Error)> {
        let half = buf.len() / 2;
        let mut offset = 0;
        loop {
            if fiber.crew().is_stopped() {
                return Err(("verify", stopped::error()));
            }
            let (learned, size) = (&self.learned, u64::MAX);
            let count = fiber.read_range(source, buf, 0..half, offset, size, learned).await;
            let count = count.map_err(|error| ("read source of", error))?;
            let range = half..2 * half;
            let other = fiber.read_range(target, buf, range, offset, size, learned).await;
            let other = other.map_err(|error| ("read", error))?;
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
        match self.compare(fiber, pair).await {
            Ok(next) => next,
            Err((operation, error)) => {
                fiber.fail(operation, pair.place.path_of(pair.to), error);
                Next::Done
            }
        }
    }
}

/// When its inode was last changed, in nanoseconds since 1970.
fn changed(stat: &Stat) -> i128 {
    i128::from(stat.st_ctime) * 1_000_000_000 + i128::from(stat.st_ctime_nsec)
}

impl Job for Verify {
    /// The directory of the copy.
    type Facts = Arc<Place>;

    async fn enter(&self, fiber: &mut Fiber<Self>, unit: &Unit<Self>) -> Option<Arc<Folder<Self>>> {
        let (above, name) = (unit.above.as_ref(), &*unit.name);
        let places = (unit.place(), above.map_or(Place::current(), |folder| &folder.facts));
        let to = if above.is_some() { name } else { &*self.to };
        let follows = self.options.follow == Follow::Always || above.is_none();
        let entered = async {
            let open = |place| fiber.crew().places.open(place);
            let (source, target) = (open(places.0)?, open(places.1)?);
            if above.is_none() {
                let pair = Pair {
                    source: &source,
                    place: places.1,
                    target: Arc::clone(&target),
                    name,
                    to,
                };
                if self.compare_and_tell(fiber, &pair).await == Next::Done {
                    return Ok(None);
                }
            }
            let from = fiber.open_directory(&source, name, flags_of_directory(follows)).await?;
            let flags = flags_of_directory(above.is_none());
            let onto = fiber.open_directory(&target, to, flags).await?;
            let place = fiber.crew().places.adopt(places.0, name, from, None, follows);
            let onto = fiber.crew().places.adopt(places.1, to, onto, None, above.is_none());
            Ok(Some((place, onto)))
        };
        match entered.await {
            Ok(Some((place, to))) => Some(Folder::new(above, place, to)),
            Ok(None) => None,
            Err(error) => {
                fiber.fail("verify directory", places.1.path_of(to), error);
                None
            }
        }
    }

    async fn entry(
        &self,
        fiber: &mut Fiber<Self>,
        frame: &Frame<Self>,
        name: &CStr,
        _: FileType,
    ) -> Next {
        let place = &frame.folder.facts;
        let Some(target) = fiber.open_place(place, name) else { return Next::Done };
        let pair = Pair { source: &frame.source, place, target, name, to: name };
        self.compare_and_tell(fiber, &pair).await
    }

    fn leave(&self, fiber: &mut Fiber<Self>, folder: &Arc<Folder<Self>>) {
        fiber.crew().places.return_above(&folder.place);
        fiber.crew().places.return_above(&folder.facts);
    }
}
