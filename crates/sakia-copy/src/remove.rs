//! Removing a tree.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;
use sakia::{Budget, CancellationToken};

use crate::crew::{Crew, Fiber, Folder, Frame, Job, Next, Size, Tally};
use crate::options::Options;
use crate::place::Place;
use crate::progress::Progress;
use crate::report::{Failure, Report};
use crate::{kernel, sys};

/// Removes what is at `path`, a directory with all that is in it, or anything else. Links are removed
/// themselves, not what they point to.
///
/// The calling runtime's threads do it, each a directory at a time. What cannot be removed is told to
/// `progress`, kept in the report together with the directories that it is in, and the rest is removed. What
/// others add meanwhile may be left, which keeps its directory. Canceling the token leaves the rest.
///
/// # Errors
/// The path has a zero byte. All else is in the report: see [`Report::is_complete`].
///
/// # Panics
/// Outside of a runtime.
pub async fn remove_tree(
    path: impl AsRef<Path>,
    progress: &Arc<Progress>,
    token: &CancellationToken,
) -> io::Result<Report> {
    let path = CString::new(named(path.as_ref()).as_os_str().as_bytes())?;
    let before = progress.counts();
    let workers = sakia::thread_count();
    let size = Size { workers, depth: Options::LIMIT.div_ceil(workers), buffer: 0 };
    let budget = Budget::from_limits();
    let crew = Crew::run(Remove, path, size, budget, Arc::clone(progress), token).await;
    Ok(Report::new(progress, &before, crew.counters(), token.is_canceled()))
}

/// A link that is named with a slash behind it, without: the kernel would take what it points to.
fn named(path: &Path) -> &Path {
    let bytes = path.as_os_str().as_bytes();
    let end = bytes.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    let bare = Path::new(OsStr::from_bytes(&bytes[..end]));
    if bare.is_symlink() { bare } else { path }
}

struct Remove;

impl Remove {
    fn unlink(
        &self,
        crew: &Crew<Self>,
        tally: &mut Tally,
        place: &Arc<Place>,
        name: &CStr,
        flags: AtFlags,
    ) -> io::Result<()> {
        tally.counters.plain_calls += 1;
        let dir = crew.places.open(place)?;
        match sys::retry(|| kernel::unlinkat(dir.as_fd(), name, flags)) {
            // Somebody else was quicker.
            Err(error) if sys::is(&error, Errno::NOENT) && !place.is_current() => Ok(()),
            result => result,
        }
    }

    fn remove(
        &self,
        crew: &Crew<Self>,
        tally: &mut Tally,
        place: &Arc<Place>,
        name: &CStr,
        kind: FileType,
    ) -> Next {
        match self.unlink(crew, tally, place, name, AtFlags::empty()) {
            Ok(()) => tally.counts.add_entry(kind),
            // The file system did not tell, or somebody has put a directory in its place.
            Err(error) if sys::is(&error, Errno::ISDIR) => return Next::Enter,
            Err(error) => fail(crew, tally, "remove", place.path_of(name), error),
        }
        Next::Done
    }
}

fn fail(
    crew: &Crew<Remove>,
    tally: &mut Tally,
    operation: &'static str,
    path: std::path::PathBuf,
    error: io::Error,
) {
    crew.fail(tally, Failure::new(operation, path, error));
}

impl Job for Remove {
    type Facts = ();

    async fn enter(
        &self,
        fiber: &mut Fiber<Self>,
        above: Option<&Arc<Folder<Self>>>,
        name: &CStr,
    ) -> Option<Arc<Folder<Self>>> {
        let worker = fiber.worker();
        let crew = worker.crew();
        let place = Arc::clone(above.map_or(Place::current(), |folder| &folder.place));
        let opened = async {
            let above = crew.places.open(&place)?;
            fiber.open_directory(&above, name, sys::DIRECTORY).await
        };
        match opened.await {
            Ok(fd) => {
                let place = crew.places.adopt(&place, name, fd, None, false);
                Some(Folder::new(above, place, ()))
            }
            Err(error) if sys::is(&error, Errno::NOTDIR) || sys::is(&error, Errno::LOOP) => {
                self.remove(crew, &mut fiber.tally, &place, name, FileType::Unknown);
                None
            }
            // Somebody else was quicker.
            Err(error) if error.kind() == io::ErrorKind::NotFound && above.is_some() => None,
            Err(error) => {
                fail(crew, &mut fiber.tally, "open directory", place.path_of(name), error);
                None
            }
        }
    }

    async fn entry(
        &self,
        fiber: &mut Fiber<Self>,
        frame: &Frame<Self>,
        name: &CStr,
        kind: FileType,
    ) -> Next {
        let worker = fiber.worker();
        let crew = worker.crew();
        self.remove(crew, &mut fiber.tally, &frame.folder.place, name, kind)
    }

    fn leave(&self, crew: &Crew<Self>, folder: &Arc<Folder<Self>>, tally: &mut Tally) {
        let Some((above, name)) = folder.place.above() else { return };
        crew.places.return_above(&folder.place);
        match self.unlink(crew, tally, above, name, AtFlags::REMOVEDIR) {
            Ok(()) => tally.counts.directories += 1,
            Err(error) => fail(crew, tally, "remove directory", folder.place.path(), error),
        }
    }

    fn unreadable(&self, fiber: &mut Fiber<Self>, folder: &Folder<Self>, error: io::Error) {
        let worker = fiber.worker();
        let crew = worker.crew();
        fail(crew, &mut fiber.tally, "read directory", folder.place.path(), error);
    }
}
