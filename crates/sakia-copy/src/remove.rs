//! Removing a tree.

use std::convert::Infallible;
use std::ffi::{CStr, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;
use sakia::CancellationToken;

use crate::crew::{Fiber, Folder, Found, Job, Next, Unit};
use crate::place::{Name, Place};
use crate::progress::Progress;
use crate::report::Report;
use crate::{kernel, sys, walk};

/// Removes `path`, a directory with its contents or any other entry. Links are removed themselves, not their
/// targets.
///
/// The calling runtime's threads do the work, each a directory at a time. A failed removal is reported to
/// `progress` and kept in the report, as are the directories that stay for that reason, and the rest is
/// removed. Entries that other programs add meanwhile may be left, which keeps their directory. Canceling
/// the token leaves the rest.
///
/// # Cancel safety
/// Dropping the future has the effect of canceling the token, without a report: the threads end by
/// themselves, soon after.
///
/// # Errors
/// The path has a zero byte. All other errors are in the report: see [`Report::is_complete`].
///
/// # Panics
/// Outside of a runtime.
///
/// # Examples
/// ```
/// use sakia::CancellationToken;
/// use sakia_copy::{Progress, remove_tree};
///
/// # let dir = std::env::temp_dir().join(format!("sakia-copy-remove-{}", std::process::id()));
/// # std::fs::create_dir(&dir)?;
/// let tree = dir.join("tree");
/// std::fs::create_dir_all(tree.join("with/branches"))?;
/// std::fs::write(tree.join("leaf"), "")?;
/// let (progress, token) = (Progress::new().into(), CancellationToken::new());
/// let report = sakia::block_on(remove_tree(&tree, &progress, &token))?;
/// assert!(report.is_complete() && !tree.exists());
/// assert_eq!((report.counts.directories, report.counts.files), (3, 1));
/// # std::fs::remove_dir_all(&dir)?;
/// # std::io::Result::Ok(())
/// ```
pub async fn remove_tree(
    path: impl AsRef<Path>,
    progress: &Arc<Progress>,
    token: &CancellationToken,
) -> io::Result<Report> {
    walk::run(Remove, named(path.as_ref()), progress, token).await
}

/// Returns the path without a final slash, which would lead the kernel to a link's target.
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
        fiber: &mut Fiber<Self>,
        place: &Arc<Place>,
        name: &CStr,
        flags: AtFlags,
    ) -> sys::Result<()> {
        fiber.tally.counters.plain_calls += 1;
        let dir = fiber.crew().places.open(place)?;
        match sys::retry(|| kernel::unlinkat(&dir, name, flags)) {
            // Another program removed it first.
            Err(Errno::NOENT) if !place.is_current() => Ok(()),
            result => result,
        }
    }

    fn remove(
        &self,
        fiber: &mut Fiber<Self>,
        place: &Arc<Place>,
        name: &CStr,
        kind: FileType,
    ) -> Next {
        match self.unlink(fiber, place, name, AtFlags::empty()) {
            Ok(()) => fiber.tally.counts.add_entry(kind),
            // The file system does not report kinds, or another program has put a directory in its place.
            Err(Errno::ISDIR) => return Next::Enter,
            Err(error) => fiber.fail("remove", place.path_of(name), error.into()),
        }
        Next::Done
    }
}

impl Job for Remove {
    type Facts = ();
    type Rest = Infallible;

    async fn enter(&self, fiber: &mut Fiber<Self>, unit: &Unit<Self>) -> Option<Arc<Folder<Self>>> {
        let (above, name, place) = (unit.above.as_ref(), &*unit.name, unit.place());
        let opened = async {
            let above = fiber.crew().places.open(place)?;
            fiber.open_directory(&above, name, sys::DIRECTORY).await
        };
        let opened = opened.await;
        if let Err(error) = &opened {
            if let Some(Errno::NOTDIR | Errno::LOOP) = Errno::from_io_error(error) {
                self.remove(fiber, place, name, FileType::Unknown);
                return None;
            }
            // Another program removed it first.
            if error.kind() == io::ErrorKind::NotFound && above.is_some() {
                return None;
            }
        }
        let fd = fiber.ok_or_fail("open directory", || place.path_of(name), opened)?;
        let place = fiber.crew().places.adopt(place, name, fd, None, false);
        Some(Folder::new(above, place, ()))
    }

    async fn entry(&self, fiber: &mut Fiber<Self>, found: Found<'_, Self>) -> Next {
        self.remove(fiber, &found.frame.folder.place, found.name, found.kind)
    }

    fn leave(&self, fiber: &mut Fiber<Self>, folder: &Arc<Folder<Self>>) {
        let Some(Name { place: above, name, .. }) = folder.place.above() else { return };
        fiber.crew().places.return_above(&folder.place);
        match self.unlink(fiber, above, name, AtFlags::REMOVEDIR) {
            Ok(()) => fiber.tally.counts.directories += 1,
            Err(error) => fiber.fail("remove directory", folder.place.path(), error.into()),
        }
    }
}
