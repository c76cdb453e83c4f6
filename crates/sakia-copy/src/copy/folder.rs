//! Directories: made before their contents, completed after.

use std::ffi::{CStr, OsStr};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::apart::Apart;
use super::{Copy, EntryError, Facts, Learned, Spot, attributes, mark};
use crate::crew::{Crew, Fiber, Folder, Next, Tally};
use crate::options::Follow;
use crate::place::{Id, OpenDir, Place, flags_of_directory};
use crate::{kernel, sys};

/// The bits of a mode that `mkdir(2)` takes.
const MKDIR: u32 = 0o1777;
/// What the copy itself needs of a directory.
const OWNER: u32 = 0o700;
/// What a new directory does not let others do until it is complete.
const OTHERS_WRITE: u32 = 0o022;
/// What is made in a directory with this bit gets its group, and directories the bit, too.
const SET_GROUP: u32 = 0o2000;

/// Open directories of the source and of the copy, the latter not in a dry run.
type Ends = (Arc<OpenDir>, Option<Arc<OpenDir>>);

/// A directory of the copy.
struct Made {
    place: Arc<Place>,
    /// Its file system.
    device: u64,
    gives_group: bool,
    sets_group: bool,
    /// It was not there.
    is_made: bool,
    /// It was not there, or not completed.
    is_new: bool,
    /// It can be seen that it is not complete.
    is_marked: bool,
    mode: Option<u32>,
    has_default_acl: bool,
    is_unreadable: bool,
    is_apart: bool,
}

impl Copy {
    pub(super) async fn enter_folder(
        &self,
        fiber: &mut Fiber<Self>,
        above: Option<&Arc<Folder<Self>>>,
        name: &CStr,
    ) -> Option<Arc<Folder<Self>>> {
        let worker = fiber.worker();
        let crew = worker.crew();
        let (source, target) = match self.open_both(crew, above, name) {
            Ok(both) => both,
            Err((path, error)) => {
                fiber.fail("open directory of", path, error);
                return None;
            }
        };
        let nothing = Learned::default();
        let spot = Spot {
            folder: above,
            source: &source,
            target: target.as_ref(),
            name,
            to: if above.is_some() { name } else { &self.to },
            learned: above.map_or(&nothing, |folder| &folder.facts.learned),
        };
        // It may have become one meanwhile.
        if above.is_none()
            && !self.is_directory(&spot)
            && self.copy_entry(fiber, &spot, FileType::Unknown).await != Next::Enter
        {
            return None;
        }
        match self.try_enter(fiber, crew, &spot).await {
            Ok(folder) => {
                fiber.tally.counts.directories += 1;
                // Of one that was there only its contents are copied.
                if folder.facts.is_new || folder.facts.to.is_none() {
                    self.tell(crew, &spot);
                }
                Some(folder)
            }
            Err(wrong) => {
                self.fail(fiber, &spot, wrong);
                None
            }
        }
    }

    /// Opens the directory that `name` is in, and the one that its copy is to be in: none in a dry run.
    pub(super) fn open_both(
        &self,
        crew: &Crew<Self>,
        above: Option<&Arc<Folder<Self>>>,
        name: &CStr,
    ) -> Result<Ends, (PathBuf, io::Error)> {
        let current = Place::current();
        let source = above.map_or(current, |folder| &folder.place);
        let source = crew.places.open(source).map_err(|error| (source.path_of(name), error))?;
        let target = match above {
            Some(folder) => folder.facts.to.as_ref(),
            None => (!self.options.dry_run).then_some(current),
        };
        let open = |place: &Arc<Place>| {
            crew.places.open(place).map_err(|error| (place.path_of(name), error))
        };
        Ok((source, target.map(open).transpose()?))
    }

    /// Whether the root is a directory, or a link to one where links are followed.
    fn is_directory(&self, spot: &Spot<'_>) -> bool {
        let stat = self.stat_source(spot);
        stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
    }

    async fn try_enter(
        &self,
        fiber: &mut Fiber<Self>,
        crew: &Crew<Self>,
        spot: &Spot<'_>,
    ) -> Result<Arc<Folder<Self>>, EntryError> {
        let follows = self.options.follow == Follow::Always;
        let flags = flags_of_directory(follows || spot.folder.is_none());
        let fd = fiber.open_directory(spot.source, spot.name, flags).await;
        let fd = fd.map_err(EntryError::source("open directory"))?;
        let stat = sys::stat(&fd).map_err(EntryError::source("stat"))?;
        fiber.tally.counters.plain_calls += 1;
        self.refuse_cycles(spot, &stat)?;
        if spot.folder.is_none() {
            self.refuse_descent(&stat)?;
        }
        let above = spot.folder.map_or(Place::current(), |folder| &folder.place);
        let follows = follows || spot.folder.is_none();
        let place = crew.places.adopt(above, spot.name, fd, Some(&stat), follows);
        let is_empty = self.options.one_file_system
            && spot.folder.is_some_and(|above| above.facts.stat.st_dev != stat.st_dev);
        let Some(made) = self.make_folder(fiber, crew, spot, &stat)? else {
            return Ok(Folder::new(spot.folder, place, self.dry_facts(stat, is_empty)));
        };
        let above = spot.folder.map(|above| &above.facts);
        let is_mount = above.is_none_or(|above| above.device != made.device);
        let learned = match above {
            Some(above) if !is_mount && above.stat.st_dev == stat.st_dev => {
                Arc::clone(&above.learned)
            }
            _ => self.learned(stat.st_dev, made.device),
        };
        let facts = Facts {
            stat,
            to: Some(made.place),
            is_new: made.is_new,
            is_marked: made.is_marked,
            was_unfinished: made.is_new && !made.is_made,
            mode: made.mode,
            has_default_acl: made.has_default_acl,
            device: made.device,
            gives_group: made.gives_group,
            sets_group: made.sets_group,
            learned,
            is_mount,
            is_empty,
            is_unreadable: made.is_unreadable,
            apart: Apart::new(made.is_apart, made.is_made, made.is_new && !made.is_made),
        };
        Ok(Folder::new(spot.folder, place, facts))
    }

    /// A tree that leads into itself has no end.
    fn refuse_cycles(&self, spot: &Spot<'_>, stat: &Stat) -> Result<(), EntryError> {
        let id = Id::of(stat);
        let wrong = |text: &str| EntryError {
            operation: "copy directory",
            is_target: false,
            error: io::Error::new(io::ErrorKind::InvalidInput, text.to_owned()),
        };
        if self.root.get() == Some(&id) {
            return Err(wrong("it is the copy itself, which was made in what is copied"));
        }
        if self.options.follow == Follow::Always
            && let Some(above) = spot.folder
            && above.place.lineage().any(|place| place.id() == Some(id))
        {
            return Err(wrong("a link in it leads back to it"));
        }
        Ok(())
    }

    /// The root's copy must not be made in the root, nor be it.
    fn refuse_descent(&self, source: &Stat) -> Result<(), EntryError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let is_there = sys::open(CWD, &self.to, flags);
        // Where nothing can be opened, nothing can be made either, for which there is a better message.
        const INSIDE: &str = "it is inside its source";
        let mut text = if is_there.is_ok() { "it is the source itself" } else { INSIDE };
        let Ok(mut dir) = is_there.or_else(|_| self.open_parent(flags)) else { return Ok(()) };
        loop {
            let id = Id::of(&sys::stat(&dir).map_err(EntryError::target("stat"))?);
            if id == Id::of(source) {
                let error = io::Error::new(io::ErrorKind::InvalidInput, text);
                return Err(EntryError::target("copy to")(error));
            }
            text = INSIDE;
            let Ok(above) = sys::open(dir.as_fd(), c"..", flags) else { return Ok(()) };
            if Id::of(&sys::stat(&above).map_err(EntryError::target("stat"))?) == id {
                return Ok(());
            }
            dir = above;
        }
    }

    /// Opens the directory that the root's copy is in, or is to be in.
    pub(super) fn open_parent(&self, flags: OFlags) -> io::Result<OwnedFd> {
        let path = Path::new(OsStr::from_bytes(self.to.to_bytes()));
        let parent = path.parent().filter(|path| !path.as_os_str().is_empty());
        let parent = parent.unwrap_or_else(|| ".".as_ref());
        sys::retry(|| kernel::open(parent, flags, Mode::empty()))
    }

    fn dry_facts(&self, stat: Stat, is_empty: bool) -> Facts {
        Facts {
            stat,
            to: None,
            is_new: false,
            is_marked: false,
            was_unfinished: false,
            mode: None,
            has_default_acl: false,
            device: 0,
            gives_group: false,
            sets_group: false,
            learned: Arc::default(),
            is_mount: false,
            is_empty,
            is_unreadable: false,
            apart: Apart::default(),
        }
    }

    /// Makes the directory, or takes the one that is there. `None` in a dry run.
    fn make_folder(
        &self,
        fiber: &mut Fiber<Self>,
        crew: &Crew<Self>,
        spot: &Spot<'_>,
        source: &Stat,
    ) -> Result<Option<Made>, EntryError> {
        let Some(target) = spot.target else { return Ok(None) };
        let permissions = source.st_mode & sys::PERMISSIONS;
        let inherits = self.inherits(spot);
        let withheld =
            if self.options.preserve.ownership { attributes::OTHERS } else { OTHERS_WRITE };
        let (first, last) = if inherits {
            // The list and the mode are made from each other: there is no going back from another mode.
            (permissions & MKDIR & !withheld | OWNER, None)
        } else {
            (mark::DIRECTORY, Some(permissions & MKDIR & !self.mask))
        };
        let is_apart = spot.folder.is_some_and(|above| {
            let (facts, making) = (&above.facts, crew.pace().making());
            facts.apart.put(target, facts.device, making, spot.learned, &mut fiber.tally)
        });
        let made = sys::retry(|| kernel::mkdirat(target, spot.to, Mode::from_raw_mode(first)));
        fiber.tally.counters.plain_calls += 2;
        let is_made = match made {
            Ok(()) => true,
            Err(error) if sys::is(&error, Errno::EXIST) => false,
            Err(error) => return Err(EntryError::target("create directory")(error)),
        };
        let (fd, is_unreadable) = self.open_target(crew, spot, is_made)?;
        let place = |fd, stat| {
            let above = spot.folder.and_then(|folder| folder.facts.to.as_ref());
            let above = above.unwrap_or(Place::current());
            crew.places.adopt(above, spot.to, fd, stat, spot.folder.is_none())
        };
        if let Some(above) = spot.folder.map(|folder| &folder.facts)
            && is_made
            && let Some(mode) = last
            && !above.gives_group
            && !above.sets_group
        {
            // Of such a one all is known.
            return Ok(Some(Made {
                place: place(fd, None),
                device: above.device,
                gives_group: false,
                sets_group: false,
                is_made,
                is_new: true,
                is_marked: true,
                mode: Some(mode),
                has_default_acl: false,
                is_unreadable,
                is_apart,
            }));
        }
        let stat = sys::stat(&fd).map_err(EntryError::target("stat"))?;
        fiber.tally.counters.plain_calls += 1;
        if Id::of(&stat) == Id::of(source) {
            let error = io::Error::new(io::ErrorKind::InvalidInput, "it is the source itself");
            return Err(EntryError::target("copy to")(error));
        }
        self.root.get_or_init(|| Id::of(&stat));
        let is_new = is_made || mark::is_unfinished(&stat, self.user);
        // The list may have taken what the copy itself needs.
        let is_usable = !is_made || stat.st_mode & OWNER == OWNER;
        if !is_usable {
            let mode = Mode::from_raw_mode(stat.st_mode & sys::PERMISSIONS | OWNER);
            sys::retry(|| kernel::chmodat(target, spot.to, mode, AtFlags::empty()))
                .map_err(EntryError::target("set mode of"))?;
        }
        let mode = match last {
            _ if !is_new => None,
            // One that was not completed gets what it would have got.
            None if !is_made => Some(permissions & MKDIR & !self.mask),
            // The group may have been handed down, and with it that it is.
            Some(mode) => Some(mode | stat.st_mode & SET_GROUP),
            None => {
                // All but what only the copy needs, and what others may have when it is complete.
                let mode = stat.st_mode & sys::PERMISSIONS;
                let exact = mode & !(OWNER & !permissions) | permissions & withheld & !self.mask;
                (exact != mode || !is_usable).then_some(exact)
            }
        };
        let is_marked = if is_made { first == mark::DIRECTORY } else { is_new };
        let has_default_acl =
            if is_made { inherits } else { attributes::has_default_acl(fd.as_fd()) };
        Ok(Some(Made {
            place: place(fd, Some(&stat)),
            device: stat.st_dev,
            gives_group: stat.st_gid != self.group,
            sets_group: stat.st_mode & SET_GROUP != 0,
            is_made,
            is_new,
            is_marked,
            mode,
            has_default_acl,
            is_unreadable,
            is_apart,
        }))
    }

    /// Opens the directory of the copy, and says whether it cannot be read. A link at its place is followed
    /// at the root only, where the caller has named it.
    fn open_target(
        &self,
        crew: &Crew<Self>,
        spot: &Spot<'_>,
        is_new: bool,
    ) -> Result<(OwnedFd, bool), EntryError> {
        let Some(target) = spot.target else {
            return Err(EntryError::target("open")(Errno::BADF.into()));
        };
        let flags = flags_of_directory(spot.folder.is_none() && !is_new);
        let open = |flags| crew.places.with_room(|| sys::open(target.as_fd(), spot.to, flags));
        let opened = match open(flags) {
            // To make entries in it, it need not be read.
            Err(error) if sys::is(&error, Errno::ACCESS) => {
                open(sys::unread(flags)).map(|fd| (fd, true)).map_err(|_| error)
            }
            opened => opened.map(|fd| (fd, false)),
        };
        opened.map_err(|error| {
            let is_other = [Errno::NOTDIR, Errno::LOOP].iter().any(|&no| sys::is(&error, no));
            let error = if is_other {
                let text = "a directory cannot take the place of what is there";
                io::Error::new(io::ErrorKind::AlreadyExists, text)
            } else {
                error
            };
            EntryError::target("copy directory to")(error)
        })
    }

    pub(super) fn leave_folder(
        &self,
        crew: &Crew<Self>,
        folder: &Arc<Folder<Self>>,
        tally: &mut Tally,
    ) {
        let facts = &folder.facts;
        let Some(to) = &facts.to else { return };
        if facts.apart.is_top()
            && let Err(error) = crew.places.open(to).and_then(|open| Apart::end(&open, tally))
        {
            crew.fail(tally, "set flags of", to.path(), error);
        }
        if self.options.preserve.has_attributes()
            && let Err((operation, error)) = self.complete_folder(crew, folder, to, tally)
        {
            crew.fail(tally, operation, to.path(), error);
        } else if let Some(mode) = facts.mode
            && !self.options.preserve.has_attributes()
            && let Err(error) = crew.places.open(to).and_then(|open| {
                tally.counters.plain_calls += 1;
                set_mode(&open, facts, mode)
            })
        {
            crew.fail(tally, "set mode of", to.path(), error);
        }
        // What is read again must have left the page cache.
        if (self.options.durable || self.options.verify)
            && facts.is_mount
            && let Err(error) = crew.places.open(to).and_then(|open| sync(&open, facts))
        {
            crew.fail(tally, "sync file system of", to.path(), error);
        }
        crew.places.return_above(&folder.place);
        crew.places.return_above(to);
    }

    fn complete_folder(
        &self,
        crew: &Crew<Self>,
        folder: &Folder<Self>,
        to: &Arc<Place>,
        tally: &mut Tally,
    ) -> Result<(), (&'static str, io::Error)> {
        let facts = &folder.facts;
        let source = crew.places.open(&folder.place).map_err(|error| ("open directory", error))?;
        let target = crew.places.open(to).map_err(|error| ("open directory", error))?;
        let (target, mode) = if facts.is_unreadable {
            let (target, old) = readable(&target).map_err(|error| ("open directory", error))?;
            (target, facts.mode.or(Some(old)))
        } else {
            (target, facts.mode)
        };
        let of = attributes::Of {
            stat: &facts.stat,
            mode,
            is_directory: true,
            has_inherited_acl: !facts.is_new || facts.has_default_acl,
            may_have_owner: facts.is_new && !facts.gives_group,
        };
        self.set_attributes(source.as_fd(), target.as_fd(), of, tally)
    }
}

/// Sets the mode, also of one that could not be opened to be read.
fn set_mode(dir: &OpenDir, facts: &Facts, mode: u32) -> io::Result<()> {
    let mode = Mode::from_raw_mode(mode);
    if facts.is_unreadable {
        let path = attributes::magic_path(dir.as_fd(), c"");
        return sys::retry(|| kernel::chmodat(CWD, &path, mode, AtFlags::empty()));
    }
    sys::retry(|| kernel::fchmod(dir, mode))
}

/// Syncs the file system that a directory is on.
fn sync(dir: &OpenDir, facts: &Facts) -> io::Result<()> {
    if !facts.is_unreadable {
        return sys::retry(|| kernel::syncfs(dir));
    }
    let (readable, mode) = readable(dir)?;
    let synced = sys::retry(|| kernel::syncfs(&readable));
    set_mode(dir, facts, mode).and(synced)
}

/// Opens a directory again by which it can be changed, and returns its mode: for that its owner, and nobody
/// else, lets itself read it.
fn readable(dir: &OpenDir) -> io::Result<(Arc<OpenDir>, u32)> {
    let mode = sys::stat(dir)?.st_mode & sys::PERMISSIONS;
    let path = attributes::magic_path(dir.as_fd(), c"");
    let readable = Mode::from_raw_mode(mode | OWNER);
    sys::retry(|| kernel::chmodat(CWD, &path, readable, AtFlags::empty()))?;
    let opened = sys::open(dir.as_fd(), c".", sys::DIRECTORY);
    if opened.is_err() {
        let mode = Mode::from_raw_mode(mode);
        sys::retry(|| kernel::chmodat(CWD, &path, mode, AtFlags::empty())).ok();
    }
    Ok((Arc::new(OpenDir::of(opened?)), mode))
}
