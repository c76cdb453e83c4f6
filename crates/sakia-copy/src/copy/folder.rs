//! Directories: created before their contents, completed after.

use std::ffi::CStr;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{CWD, FileType, Mode, Stat};
use rustix::io::Errno;

use super::apart::Apart;
use super::existing::refused;
use super::ranges::Shared;
use super::stage::{self, Others, Stage};
use super::{At, Copy, EntryError, Facts, Learned, Result, Spot, Target, attributes, mark};
use crate::crew::{Crew, Fiber, Folder, Found, Job, Next, Unit};
use crate::kernel::{self, OwnedFd};
use crate::options::{Existing, Follow};
use crate::place::{Id, OpenDir, Place, flags_of_directory};
use crate::sys::{self, lock};

/// The mode bits that `mkdir(2)` accepts.
const MKDIR: u32 = 0o1777;
/// The owner's rights that the copy itself needs.
const OWNER: u32 = 0o700;
/// The rights of others that are withheld until a new directory is complete.
const OTHERS_WRITE: u32 = 0o022;
/// Entries created in a directory with this bit inherit its group, and directories the bit.
pub(super) const SET_GROUP: u32 = 0o2000;

impl Job for Copy {
    type Facts = Facts;
    type Rest = Arc<Shared>;

    async fn enter(&self, fiber: &mut Fiber<Self>, unit: &Unit<Self>) -> Option<Arc<Folder<Self>>> {
        let (above, name) = (unit.above.as_ref(), &*unit.name);
        let (source, target) = self.open_both(fiber, above, name)?;
        let nothing = Learned::default();
        let mut spot = Spot {
            fiber,
            folder: above,
            source: &source,
            target: target.as_ref(),
            name,
            to: if above.is_some() { name } else { &self.to },
            learned: above.map_or(&nothing, |folder| &folder.facts.target.learned),
            made: None,
        };
        let is_directory = |stat: Stat| sys::kind(&stat) == FileType::Directory;
        // It may have become a directory meanwhile.
        if above.is_none()
            && !self.stat_source(&spot).is_ok_and(is_directory)
            && self.copy_entry(&mut spot, FileType::Unknown).await != Next::Enter
        {
            return None;
        }
        let entered = self.try_enter(&mut spot).await;
        let folder = entered.map_err(|wrong| self.fail(&mut spot, wrong)).ok()??;
        spot.fiber.tally.counts.directories += 1;
        // Of an existing directory only the contents are copied.
        if folder.facts.target.is_new || folder.facts.target.place.is_none() {
            self.tell(&spot);
        }
        Some(folder)
    }

    async fn help(&self, fiber: &mut Fiber<Self>, rest: Arc<Shared>) {
        self.help_with(fiber, &rest).await;
    }

    async fn do_asides(&self, fiber: &mut Fiber<Self>) {
        self.do_each_aside(fiber).await;
    }

    async fn entry(&self, fiber: &mut Fiber<Self>, found: Found<'_, Self>) -> Next {
        let Found { frame, name, kind } = found;
        let folder = &frame.folder;
        let mut target = None;
        if let Some(place) = &folder.facts.target.place {
            target = fiber.open_place(place, name);
            if target.is_none() {
                return Next::Done;
            }
        }
        let mut spot = Spot {
            fiber,
            folder: Some(folder),
            source: &frame.source,
            target: target.as_ref(),
            name,
            to: name,
            learned: &folder.facts.target.learned,
            made: None,
        };
        self.copy_entry(&mut spot, kind).await
    }

    fn is_read(&self, folder: &Folder<Self>) -> bool {
        !folder.facts.is_empty
    }

    fn leave(&self, fiber: &mut Fiber<Self>, folder: &Arc<Folder<Self>>) {
        let Some(place) = &folder.facts.target.place else { return };
        // A failure leaves the private directory to the next copy.
        self.end_stage(&fiber.crew().places, folder).ok();
        for step in [Self::end_apart, Self::complete_folder, Self::sync_folder] {
            if let Err(wrong) = step(self, fiber, folder) {
                fiber.fail(wrong.operation, place.path(), wrong.error);
            }
        }
        if let Some(id) = place.id()
            && folder.facts.target.is_new
        {
            self.unfinished.remove(id);
        }
        let places = &fiber.crew().places;
        places.return_above(&folder.place);
        places.return_above(place);
    }

    /// Stops if there is no room for more.
    fn failed(&self, crew: &Crew<Self>, error: &io::Error) {
        if let Some(Errno::NOSPC | Errno::DQUOT) = Errno::from_io_error(error) {
            self.is_full.store(true, Ordering::Relaxed);
            crew.stop();
        }
    }
}

impl Copy {
    /// Opens the directory of `name`, and that of its copy: none in a dry run. Reports a failure.
    pub(super) fn open_both(
        &self,
        fiber: &mut Fiber<Self>,
        above: Option<&Arc<Folder<Self>>>,
        name: &CStr,
    ) -> Option<(Arc<OpenDir>, Option<Arc<OpenDir>>)> {
        let current = Place::current();
        let source = fiber.open_place(above.map_or(current, |folder| &folder.place), name)?;
        let target = match above {
            Some(folder) => folder.facts.target.place.as_ref(),
            None => (!self.options.dry_run).then_some(current),
        };
        Some(match target {
            Some(place) => (source, Some(fiber.open_place(place, name)?)),
            None => (source, None),
        })
    }

    /// Returns `None` if the copy would be the directory itself, and existing entries are kept.
    async fn try_enter(&self, spot: &mut Spot<'_>) -> Result<Option<Arc<Folder<Self>>>> {
        let follows = self.options.follow == Follow::Always || spot.folder.is_none();
        let flags = flags_of_directory(follows);
        let fd = spot.fiber.open_directory(spot.source, spot.name, flags).await;
        let fd = fd.at_source("open directory")?;
        let stat = sys::stat(&fd).at_source("stat")?;
        spot.fiber.tally.counters.plain_calls += 1;
        self.refuse_cycles(spot, &stat)?;
        if spot.folder.is_none() && self.refuse_descent(&stat)? {
            spot.fiber.tally.counts.skipped += 1;
            return Ok(None);
        }
        let above = spot.folder.map_or(Place::current(), |folder| &folder.place);
        let place = spot.fiber.crew().places.adopt(above, spot.name, fd, Some(&stat), follows);
        let is_empty = self.options.one_file_system
            && spot.folder.is_some_and(|above| above.facts.stat.st_dev != stat.st_dev);
        let target = match spot.target {
            Some(dir) => self.make_folder(spot, dir, &stat)?,
            None => Target::default(),
        };
        Ok(Some(Folder::new(spot.folder, place, Facts { stat, is_empty, target })))
    }

    /// Returns an error if a directory contains itself, through followed links.
    fn refuse_cycles(&self, spot: &Spot<'_>, stat: &Stat) -> Result<()> {
        let id = Id::of(stat);
        let wrong = |text| Err(EntryError::source("copy directory", invalid(text)));
        if self.root.get() == Some(&id) || self.is_made_now(spot, stat) {
            return wrong("it is the copy itself, which was created inside the source");
        }
        if self.options.follow == Follow::Always
            && let Some(above) = spot.folder
            && above.place.lineage().any(|place| place.id() == Some(id))
        {
            return wrong("a link in it leads back to it");
        }
        Ok(())
    }

    /// Returns whether a directory of the source is one that this copy has created and not completed: it
    /// would be copied into itself, and its copy again, without end.
    fn is_made_now(&self, spot: &Spot<'_>, stat: &Stat) -> bool {
        let is_above = |folder: &Folder<Self>| {
            let target = &folder.facts.target;
            let id = target.place.as_ref().and_then(|place| place.id());
            target.is_new && id == Some(Id::of(stat))
        };
        self.may_be_copy()
            && (self.is_marked(stat, stat) && self.unfinished.has(Id::of(stat))
                || spot.folder.is_some_and(|folder| folder.lineage().any(is_above)))
    }

    /// Returns an error if the root's copy is the root, or would be created in it. Returns true if it is the
    /// root and is kept.
    fn refuse_descent(&self, source: &Stat) -> Result<bool> {
        let is_there = sys::open(CWD, &self.to, sys::SEARCHED);
        // If nothing can be opened, nothing can be created either, which has a better message.
        const INSIDE: &str = "it is inside its source";
        let mut is_same = is_there.is_ok();
        let Ok(mut dir) = is_there.or_else(|_| self.open_parent()) else { return Ok(false) };
        loop {
            let id = Id::of(&sys::stat(&dir).at_target("stat")?);
            if id == Id::of(source) {
                if is_same && self.options.existing == Existing::Keep {
                    return Ok(true);
                }
                let text = if is_same { "it is the source itself" } else { INSIDE };
                return Err(EntryError::target("copy to", invalid(text)));
            }
            is_same = false;
            let Ok(above) = sys::open(dir.as_fd(), c"..", sys::SEARCHED) else { return Ok(false) };
            if Id::of(&sys::stat(&above).at_target("stat")?) == id {
                return Ok(false);
            }
            dir = above;
        }
    }

    /// Creates the directory in `dir`, or uses the existing one. Returns the facts about it.
    fn make_folder(
        &self,
        spot: &mut Spot<'_>,
        dir: &Arc<OpenDir>,
        source: &Stat,
    ) -> Result<Target> {
        let permissions = source.st_mode & sys::PERMISSIONS;
        let default_mask = self.default_mask(spot);
        let mask = default_mask.unwrap_or(self.mask);
        // As with `cp`, the umask takes the place of an inherited list for permissions that are given last.
        let withheld =
            if self.options.preserve.ownership { attributes::OTHERS } else { OTHERS_WRITE };
        let last = permissions & MKDIR & !(mask & !withheld | self.mask & withheld);
        let above = spot.folder.map(|folder| &folder.facts);
        let is_apart = above.is_some_and(|Facts { target, .. }| {
            let making = spot.fiber.crew().pace.making();
            target.apart.put(dir, target.device, making, spot.learned, &mut spot.fiber.tally)
        });
        spot.fiber.tally.counters.plain_calls += 2;
        let creating = self.may_be_copy().then(|| self.unfinished.create());
        let created = self.create_folder(spot, dir, mask)?;
        let is_made = created.is_some();
        let (mut fd, mut is_unreadable) = match created {
            Some(created) => created,
            None => open_target(spot, dir, spot.to, false)?,
        };
        let is_known = is_made && default_mask.is_none();
        let known = above
            .map(|above| &above.target)
            .filter(|above| is_known && !above.gives_group && !above.sets_group)
            .filter(|_| creating.is_none());
        let (stat, made) = if let Some(above) = known {
            let (device, mode) = (above.device, Some(last));
            (None, Target { device, is_new: true, is_marked: true, mode, ..Target::default() })
        } else {
            let stat = sys::stat(&fd).at_target("stat")?;
            spot.fiber.tally.counters.plain_calls += 1;
            if Id::of(&stat) == Id::of(source) {
                return Err(EntryError::target("copy to", invalid("it is the source itself")));
            }
            self.root.get_or_init(|| Id::of(&stat));
            let is_new = is_made || self.is_marked(source, &stat);
            if above.is_none() && !is_made {
                self.is_into_existing.store(true, Ordering::Relaxed);
            }
            // The mask may have taken rights that the copy itself needs.
            let is_usable = !is_new || stat.st_mode & OWNER == OWNER;
            if !is_usable {
                let mode = stat.st_mode & sys::PERMISSIONS | OWNER;
                if !is_unreadable {
                    sys::set_mode(&fd, mode).at_target("set mode of")?;
                } else {
                    set_mode_by_path(&fd, mode).at_target("set mode of")?;
                    fd = sys::open(fd.as_fd(), c".", sys::DIRECTORY).at_target("open directory")?;
                    is_unreadable = false;
                }
            }
            // The group may be inherited, and with it the bit.
            let mode = is_new.then_some(last | stat.st_mode & SET_GROUP);
            let made = Target {
                device: stat.st_dev,
                gives_group: stat.st_gid != self.group,
                sets_group: stat.st_mode & SET_GROUP != 0,
                is_new,
                is_marked: is_new,
                mode,
                default_mask: match is_made {
                    true => default_mask,
                    false => attributes::default_mask(fd.as_fd()),
                },
                ..Target::default()
            };
            (Some(stat), made)
        };
        let was_unfinished = made.is_new && !is_made;
        let is_mount = above.is_none_or(|above| above.target.device != made.device);
        let learned = match above {
            Some(above) if !is_mount && above.stat.st_dev == source.st_dev => {
                Arc::clone(&above.target.learned)
            }
            _ => Arc::clone(lock(&self.learned).entry((source.st_dev, made.device)).or_default()),
        };
        let others_above = above.map(|above| &above.target.others);
        let place = above.and_then(|above| above.target.place.as_ref());
        let place = place.unwrap_or(Place::current());
        let (places, is_root) = (&spot.fiber.crew().places, above.is_none());
        let place = Some(places.adopt(place, spot.to, fd, stat.as_ref(), is_root));
        let apart = Apart::new(is_apart, is_made, was_unfinished);
        let others = Others::new(self, others_above, source, stat.as_ref(), &made);
        if let (Some(_), true, Some(stat)) = (creating, made.is_new, &stat) {
            self.unfinished.add(Id::of(stat));
        }
        Ok(Target {
            place,
            was_unfinished,
            learned,
            is_mount,
            is_unreadable,
            apart,
            others,
            ..made
        })
    }

    /// Creates a directory in `dir` and opens it; returns also whether it is unreadable. `None`: there is an
    /// entry of that name.
    fn create_folder(
        &self,
        spot: &Spot<'_>,
        dir: &Arc<OpenDir>,
        mask: u32,
    ) -> Result<Option<(OwnedFd, bool)>> {
        let parent = match spot.folder {
            Some(folder) => folder.facts.target.others.may_rename.then(|| Arc::clone(dir)),
            None => self.open_parent_of_others(),
        };
        let name = if spot.folder.is_none() { self.name_in_parent(spot) } else { None };
        let to = name.as_deref().filter(|_| parent.is_some()).unwrap_or(spot.to);
        let make = |dir: &OpenDir| {
            sys::retry(|| kernel::mkdirat(dir, to, Mode::from_raw_mode(mark::DIRECTORY)))
        };
        let make_usable = |dir: &OpenDir| {
            make(dir)?;
            // Rights that only filling it needs.
            if mask & OWNER != 0 {
                let inherited = sys::stat_name(dir.as_fd(), to)?.st_mode & SET_GROUP;
                sys::set_mode_of(dir, to, mark::DIRECTORY | inherited)?;
            }
            Ok(())
        };
        if let Some(parent) = &parent {
            if sys::stat_name(parent.as_fd(), to).is_ok() {
                return Ok(None);
            }
            let staged = self.staged(spot, parent, to, make_usable);
            if let Some(stage) = staged.at_target("create directory")? {
                return self.open_staged(spot, stage, parent, to);
            }
        }
        let made = match &parent {
            Some(parent) => make(parent),
            None => make_usable(dir),
        };
        match made {
            Err(Errno::EXIST) => return Ok(None),
            made => made.at_target("create directory")?,
        }
        let opened = open_target(spot, parent.as_ref().unwrap_or(dir), to, true)?;
        // On a file system without owners it is not this user's; a directory of this user is another one.
        if parent.is_some() && sys::stat(&opened.0).at_target("stat")?.st_uid == self.user {
            return Err(refused("another user has replaced it meanwhile"));
        }
        Ok(Some(opened))
    }

    /// Opens a directory in a private one, and gives it its name in `dir`.
    fn open_staged(
        &self,
        spot: &Spot<'_>,
        stage: Stage,
        dir: &OpenDir,
        to: &CStr,
    ) -> Result<Option<(OwnedFd, bool)>> {
        let opened = open_target(spot, &stage.dir, to, true);
        let named = opened.and_then(|opened| match stage.publish(to, dir, to) {
            Err(Errno::EXIST) => Ok(None),
            named => named.map(|()| Some(opened)).at_target("create directory"),
        });
        if !matches!(named, Ok(Some(_))) {
            stage.remove(to);
        }
        stage.end(spot, dir);
        named
    }

    /// Returns the directory of the root's copy, if others may rename its entries.
    fn open_parent_of_others(&self) -> Option<Arc<OpenDir>> {
        // If it cannot be opened, nothing can be created there, which has a better message.
        let dir = self.open_parent().ok()?;
        let stat = sys::stat(&dir).ok()?;
        let may_rename = stage::may_rename(stat.st_uid, stat.st_mode, self.user);
        may_rename.then(|| Arc::new(OpenDir::of(dir)))
    }

    /// Clears the flag that spreads the directories in it.
    fn end_apart(&self, fiber: &mut Fiber<Self>, folder: &Folder<Self>) -> Result<()> {
        let target = &folder.facts.target;
        if !target.apart.is_top() {
            return Ok(());
        }
        let open = target.open(&fiber.crew().places);
        open.and_then(|open| Apart::end(&open, &mut fiber.tally)).at_target("set flags of")
    }

    fn complete_folder(&self, fiber: &mut Fiber<Self>, folder: &Folder<Self>) -> Result<()> {
        let (stat, target) = (&folder.facts.stat, &folder.facts.target);
        let (places, preserve) = (&fiber.crew().places, self.options.preserve);
        let mut mode = target.mode;
        if !preserve.has_attributes() {
            let Some(mode) = mode else { return Ok(()) };
            let open = target.open(places).at_target("set mode of")?;
            fiber.tally.counters.plain_calls += 1;
            return set_mode(&open, target, mode).at_target("set mode of");
        }
        let source = places.open(&folder.place).at_target("open directory")?;
        let mut open = target.open(places).at_target("open directory")?;
        if target.is_unreadable {
            let (readable, old) = match readable(&open) {
                // Only its owner may change it, and users' copies need not have the source's.
                Err(Errno::PERM)
                    if !(preserve.mode || preserve.timestamps || preserve.all_xattrs) =>
                {
                    return Ok(());
                }
                opened => opened.at_target("open directory")?,
            };
            open = readable;
            mode = mode.or(Some(old));
        }
        let of = attributes::Of {
            stat,
            mode,
            may_have_acl: preserve.mode && (!target.is_new || target.default_mask.is_some()),
            may_have_owner: target.is_new && !target.gives_group,
        };
        let lost = self.set_attributes(source.as_fd(), open.as_fd(), &of, &mut fiber.tally)?;
        if let Some(place) = &target.place
            && !lost.is_empty()
        {
            attributes::report_lost(fiber, &place.path(), lost);
        }
        Ok(())
    }

    /// Syncs its file system, if it is the first directory there.
    fn sync_folder(&self, fiber: &mut Fiber<Self>, folder: &Folder<Self>) -> Result<()> {
        let target = &folder.facts.target;
        // Verification needs contents that are not in the page cache.
        if !(self.options.durable || self.options.verify) || !target.is_mount {
            return Ok(());
        }
        let open = target.open(&fiber.crew().places);
        open.and_then(|open| sync(&open, target)).at_target("sync file system of")
    }
}

/// Opens the directory of the copy; returns also whether it is unreadable. A link at its place is followed
/// only at the root, which the caller has named.
fn open_target(spot: &Spot<'_>, dir: &OpenDir, to: &CStr, is_new: bool) -> Result<(OwnedFd, bool)> {
    let flags = flags_of_directory(spot.folder.is_none() && !is_new);
    let places = &spot.fiber.crew().places;
    let open = |flags| places.with_room(|| sys::open(dir.as_fd(), to, flags));
    let opened = match open(flags) {
        // Creating entries in it does not need read permission.
        Err(Errno::ACCESS) => {
            open(sys::unread(flags)).map(|fd| (fd, true)).map_err(|_| Errno::ACCESS)
        }
        opened => opened.map(|fd| (fd, false)),
    };
    if let Err(Errno::NOTDIR | Errno::LOOP) = opened {
        let text = "a directory cannot replace an existing non-directory";
        let error = io::Error::new(io::ErrorKind::AlreadyExists, text);
        return Err(EntryError::target("copy directory to", error));
    }
    opened.at_target("copy directory to")
}

fn invalid(text: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

/// Sets the mode, even of a directory that could not be opened for reading.
fn set_mode(dir: &OpenDir, target: &Target, mode: u32) -> sys::Result<()> {
    if target.is_unreadable { set_mode_by_path(dir, mode) } else { sys::set_mode(dir, mode) }
}

pub(super) fn set_mode_by_path(dir: impl AsFd, mode: u32) -> sys::Result<()> {
    sys::set_mode_of(CWD, &*attributes::magic_path(dir.as_fd(), c""), mode)
}

/// Syncs the file system of a directory.
fn sync(dir: &OpenDir, target: &Target) -> sys::Result<()> {
    if !target.is_unreadable {
        return sys::retry(|| kernel::syncfs(dir));
    }
    let (readable, mode) = readable(dir)?;
    let synced = sys::retry(|| kernel::syncfs(&readable));
    set_mode_by_path(dir, mode).and(synced)
}

/// Opens a directory again so that it can be changed, and returns its mode: for that its owner grants
/// itself, and no other user, the right to read it.
fn readable(dir: &OpenDir) -> sys::Result<(Arc<OpenDir>, u32)> {
    let mode = sys::stat(dir)?.st_mode & sys::PERMISSIONS;
    set_mode_by_path(dir, mode | OWNER)?;
    let opened = sys::open(dir.as_fd(), c".", sys::DIRECTORY);
    if opened.is_err() {
        set_mode_by_path(dir, mode).ok();
    }
    Ok((Arc::new(OpenDir::of(opened?)), mode))
}
