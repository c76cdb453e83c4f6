//! Directories: made before their contents, completed after.

use std::ffi::{CStr, OsStr};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::apart::Apart;
use super::{Copy, EntryError, Facts, Learned, Result, Spot, attributes, mark};
use crate::crew::{Fiber, Folder, Next, Tally, Unit};
use crate::options::Follow;
use crate::place::{Id, OpenDir, Place, Places, flags_of_directory};
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

impl Copy {
    pub(super) async fn enter_folder(
        &self,
        fiber: &mut Fiber<Self>,
        unit: &Unit<Self>,
    ) -> Option<Arc<Folder<Self>>> {
        let (above, name) = (unit.above.as_ref(), &*unit.name);
        let (source, target) = self.open_both(fiber, above, name)?;
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
        match self.try_enter(fiber, &spot).await {
            Ok(folder) => {
                fiber.tally.counts.directories += 1;
                // Of one that was there only its contents are copied.
                if folder.facts.is_new || folder.facts.to.is_none() {
                    self.tell(fiber, &spot);
                }
                Some(folder)
            }
            Err(wrong) => {
                self.fail(fiber, &spot, wrong);
                None
            }
        }
    }

    /// Opens the directory that `name` is in, and the one that its copy is to be in: none in a dry run. Tells
    /// of a failure.
    pub(super) fn open_both(
        &self,
        fiber: &mut Fiber<Self>,
        above: Option<&Arc<Folder<Self>>>,
        name: &CStr,
    ) -> Option<Ends> {
        let current = Place::current();
        let source = fiber.open_place(above.map_or(current, |folder| &folder.place), name)?;
        let target = match above {
            Some(folder) => folder.facts.to.as_ref(),
            None => (!self.options.dry_run).then_some(current),
        };
        Some(match target {
            Some(place) => (source, Some(fiber.open_place(place, name)?)),
            None => (source, None),
        })
    }

    /// Whether the root is a directory, or a link to one where links are followed.
    fn is_directory(&self, spot: &Spot<'_>) -> bool {
        let stat = self.stat_source(spot);
        stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
    }

    async fn try_enter(
        &self,
        fiber: &mut Fiber<Self>,
        spot: &Spot<'_>,
    ) -> Result<Arc<Folder<Self>>> {
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
        let place = fiber.crew().places.adopt(above, spot.name, fd, Some(&stat), follows);
        let is_empty = self.options.one_file_system
            && spot.folder.is_some_and(|above| above.facts.stat.st_dev != stat.st_dev);
        // Those of a dry run.
        let facts = Facts {
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
        };
        Ok(Folder::new(spot.folder, place, self.make_folder(fiber, spot, facts)?))
    }

    /// A tree that leads into itself has no end.
    fn refuse_cycles(&self, spot: &Spot<'_>, stat: &Stat) -> Result<()> {
        let id = Id::of(stat);
        let wrong = |text: &str| {
            let error = io::Error::new(io::ErrorKind::InvalidInput, text.to_owned());
            EntryError::source("copy directory")(error)
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
    fn refuse_descent(&self, source: &Stat) -> Result<()> {
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

    /// Makes the directory, or takes the one that is there, unless this is a dry run. Returns what is known
    /// of it then.
    fn make_folder(&self, fiber: &mut Fiber<Self>, spot: &Spot<'_>, facts: Facts) -> Result<Facts> {
        let Some(target) = spot.target else { return Ok(facts) };
        let source = facts.stat;
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
            let (above, making) = (&above.facts, fiber.crew().pace.making());
            above.apart.put(target, above.device, making, spot.learned, &mut fiber.tally)
        });
        let made = sys::retry(|| kernel::mkdirat(target, spot.to, Mode::from_raw_mode(first)));
        fiber.tally.counters.plain_calls += 2;
        let is_made = match made {
            Ok(()) => true,
            Err(error) if sys::is(&error, Errno::EXIST) => false,
            Err(error) => return Err(EntryError::target("create directory")(error)),
        };
        let (fd, is_unreadable) = self.open_target(fiber, spot, is_made)?;
        let worker = fiber.worker();
        let above = spot.folder.map(|folder| &folder.facts);
        let place = |fd, stat| {
            let place = above.and_then(|above| above.to.as_ref()).unwrap_or(Place::current());
            let places = &worker.crew().places;
            Some(places.adopt(place, spot.to, fd, stat, spot.folder.is_none()))
        };
        let finish = |made: Facts| {
            let was_unfinished = made.is_new && !is_made;
            let is_mount = above.is_none_or(|above| above.device != made.device);
            let learned = match above {
                Some(above) if !is_mount && above.stat.st_dev == source.st_dev => {
                    Arc::clone(&above.learned)
                }
                _ => self.learned(source.st_dev, made.device),
            };
            let apart = Apart::new(is_apart, is_made, was_unfinished);
            Facts { was_unfinished, learned, is_mount, is_unreadable, apart, ..made }
        };
        if let Some(above) = above
            && is_made
            && let Some(mode) = last
            && !above.gives_group
            && !above.sets_group
        {
            // Of such a one all is known.
            return Ok(finish(Facts {
                to: place(fd, None),
                device: above.device,
                is_new: true,
                is_marked: true,
                mode: Some(mode),
                ..facts
            }));
        }
        let stat = sys::stat(&fd).map_err(EntryError::target("stat"))?;
        fiber.tally.counters.plain_calls += 1;
        if Id::of(&stat) == Id::of(&source) {
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
        Ok(finish(Facts {
            to: place(fd, Some(&stat)),
            device: stat.st_dev,
            gives_group: stat.st_gid != self.group,
            sets_group: stat.st_mode & SET_GROUP != 0,
            is_new,
            is_marked,
            mode,
            has_default_acl,
            ..facts
        }))
    }

    /// Opens the directory of the copy, and says whether it cannot be read. A link at its place is followed
    /// at the root only, where the caller has named it.
    fn open_target(
        &self,
        fiber: &Fiber<Self>,
        spot: &Spot<'_>,
        is_new: bool,
    ) -> Result<(OwnedFd, bool)> {
        let Some(target) = spot.target else {
            return Err(EntryError::target("open")(Errno::BADF.into()));
        };
        let flags = flags_of_directory(spot.folder.is_none() && !is_new);
        let places = &fiber.crew().places;
        let open = |flags| places.with_room(|| sys::open(target.as_fd(), spot.to, flags));
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

    pub(super) fn leave_folder(&self, fiber: &mut Fiber<Self>, folder: &Arc<Folder<Self>>) {
        let worker = fiber.worker();
        let places = &worker.crew().places;
        let facts = &folder.facts;
        let Some(to) = &facts.to else { return };
        if facts.apart.is_top()
            && let Err(error) = places.open(to).and_then(|open| Apart::end(&open, &mut fiber.tally))
        {
            fiber.fail("set flags of", to.path(), error);
        }
        if self.options.preserve.has_attributes()
            && let Err((operation, error)) =
                self.complete_folder(places, folder, to, &mut fiber.tally)
        {
            fiber.fail(operation, to.path(), error);
        } else if let Some(mode) = facts.mode
            && !self.options.preserve.has_attributes()
            && let Err(error) = places.open(to).and_then(|open| {
                fiber.tally.counters.plain_calls += 1;
                set_mode(&open, facts, mode)
            })
        {
            fiber.fail("set mode of", to.path(), error);
        }
        // What is read again must have left the page cache.
        if (self.options.durable || self.options.verify)
            && facts.is_mount
            && let Err(error) = places.open(to).and_then(|open| sync(&open, facts))
        {
            fiber.fail("sync file system of", to.path(), error);
        }
        places.return_above(&folder.place);
        places.return_above(to);
    }

    fn complete_folder(
        &self,
        places: &Places,
        folder: &Folder<Self>,
        to: &Arc<Place>,
        tally: &mut Tally,
    ) -> Result<(), (&'static str, io::Error)> {
        let facts = &folder.facts;
        let source = places.open(&folder.place).map_err(|error| ("open directory", error))?;
        let target = places.open(to).map_err(|error| ("open directory", error))?;
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
