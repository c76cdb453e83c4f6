//! The simulated file system: directories, files and symbolic links, and the names between them.
//!
//! There is one file system without permissions, as root sees it; the working directory is its root. Inodes
//! are never removed, so that one without names can still be used through an open descriptor.
//!
//! Inodes have the programs' side, and the disk's side: the names in a directory, attributes, the [`Content`]
//! of a file. Every change of names or attributes also goes to the [`Journal`]; [`disk`](super::disk) has the
//! rules of durability and of crashes.
//!
//! Sources: `path_resolution(7)`, `openat2(2)`, `rename(2)` and the manual page of each call.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use linux_raw_sys::general as abi;
use linux_raw_sys::general::{RENAME_EXCHANGE, RENAME_NOREPLACE};
use rustix::fs::FileType;
use rustix::io::Errno;

use super::content::Content;
use super::journal::{Change, Journal};

pub(super) const NAME_BYTES_MAX: usize = abi::NAME_MAX as usize;
/// `MAXSYMLINKS`: maximum number of symbolic links followed while resolving one path.
const LINKS_MAX: u32 = 40;
/// Positions in a directory of `.` and `..`; those of entries come after.
const POSITION_SELF: u64 = 1;
const POSITION_PARENT: u64 = 2;

/// `RESOLVE_*` of `openat2(2)`.
pub(super) mod resolve {
    use linux_raw_sys::general as abi;

    pub(crate) const NO_SYMLINKS: u64 = abi::RESOLVE_NO_SYMLINKS as u64;
    pub(crate) const BENEATH: u64 = abi::RESOLVE_BENEATH as u64;
    pub(crate) const IN_ROOT: u64 = abi::RESOLVE_IN_ROOT as u64;
    /// Everything is in memory, so this has no effect on lookups.
    pub(crate) const CACHED: u64 = abi::RESOLVE_CACHED as u64;
    /// There is one mount, and no `/proc`, so these have no effect.
    pub(crate) const WITHOUT_EFFECT: u64 =
        (abi::RESOLVE_NO_XDEV | abi::RESOLVE_NO_MAGICLINKS) as u64;
    pub(crate) const KNOWN: u64 = NO_SYMLINKS | BENEATH | IN_ROOT | CACHED | WITHOUT_EFFECT;
}

/// Names an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct InodeId(pub(super) usize);

impl InodeId {
    /// The root, and the working directory.
    pub(super) const ROOT: Self = Self(0);

    /// Returns the number that `statx` reports.
    pub(super) fn number(self) -> u64 {
        self.0 as u64 + 1
    }
}

/// A point in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Time {
    pub(super) seconds: i64,
    pub(super) nanos: u32,
}

impl From<Duration> for Time {
    fn from(time: Duration) -> Self {
        Self { seconds: time.as_secs() as i64, nanos: time.subsec_nanos() }
    }
}

/// A file, a directory or a symbolic link.
#[derive(Clone, Debug)]
pub(super) struct Inode {
    pub(super) node: Node,
    pub(super) attributes: Attributes,
    /// The number of names of this inode. A directory has one in its parent, one in itself, and one in each
    /// directory in it; none once it was removed.
    pub(super) links: u32,
    /// The attributes that the disk has.
    pub(super) stored: Attributes,
    /// The number of the last operation in the journal when the disk got them; older ones do not change them.
    pub(super) stored_as_of: u64,
}

/// The attributes of an inode besides its kind, its size and its names.
#[derive(Clone, Debug, Default)]
pub(super) struct Attributes {
    /// Permission bits.
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) accessed: Time,
    /// Last change of the contents.
    pub(super) modified: Time,
    /// Last change of the inode.
    pub(super) changed: Time,
    /// Extended attributes.
    pub(super) extended: BTreeMap<Vec<u8>, Vec<u8>>,
}

#[derive(Clone, Debug)]
pub(super) enum Node {
    File(Content),
    Directory(Directory),
    Symlink(Vec<u8>),
}

/// The target of each name, and the entry's position.
pub(super) type Names = BTreeMap<Vec<u8>, (InodeId, u64)>;

#[derive(Clone, Debug)]
pub(super) struct Directory {
    pub(super) names: Names,
    /// The names by position, which is never reused: a listing sees each name that stays exactly once,
    /// despite concurrent changes.
    pub(super) positions: BTreeMap<u64, Vec<u8>>,
    pub(super) parent: InodeId,
    /// The position of the entry that was added last.
    last_position: u64,
    /// The names on the disk.
    pub(super) stored: Names,
}

impl Inode {
    pub(super) fn kind(&self) -> FileType {
        match self.node {
            Node::File(_) => FileType::RegularFile,
            Node::Directory(_) => FileType::Directory,
            Node::Symlink(_) => FileType::Symlink,
        }
    }

    /// Returns the bytes of a regular file.
    pub(super) fn content(&self) -> Option<&[u8]> {
        match &self.node {
            Node::File(content) => Some(content.bytes()),
            _ => None,
        }
    }

    /// Returns the size that `statx` reports.
    pub(super) fn size(&self) -> u64 {
        match &self.node {
            Node::File(content) => content.bytes().len() as u64,
            Node::Symlink(target) => target.len() as u64,
            Node::Directory(directory) => 4096 + 32 * directory.names.len() as u64,
        }
    }
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) id: InodeId,
    pub(super) kind: FileType,
    pub(super) position: u64,
    pub(super) name: Vec<u8>,
}

/// A path and the directory where it begins.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) start: InodeId,
    pub(super) path: Vec<u8>,
}

/// The treatment of a path's last part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Last {
    /// A symbolic link is followed.
    Follow,
    /// A symbolic link is not followed, unless a slash comes after it.
    NoFollow,
    /// The name itself is acted on.
    Name,
}

/// The result of walking a path.
#[derive(Clone, Debug)]
pub(super) struct Found {
    /// The directory that has, or would have, the last name.
    parent: InodeId,
    /// The last name; none if the path ends with `.` or `..`, or is the root.
    pub(super) name: Option<Vec<u8>>,
    /// The inode of that name.
    pub(super) id: Option<InodeId>,
    /// A slash comes after the name.
    pub(super) has_slash: bool,
    /// The end of a path without a last name.
    end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Name,
    Dot,
    DotDot,
    Root,
}

/// All inodes.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    pub(super) inodes: Vec<Inode>,
    pub(super) journal: Journal,
    /// Changes by the operation in progress that are not in the journal yet.
    changes: Vec<Change>,
}

impl Tree {
    pub(super) fn new() -> Self {
        let (inodes, changes) = (Vec::new(), Vec::new());
        let mut tree = Self { inodes, journal: Journal::default(), changes };
        tree.add(Node::directory(InodeId::ROOT), 0o755, Time::default());
        tree
    }

    fn add(&mut self, node: Node, mode: u32, now: Time) -> InodeId {
        let links = if matches!(node, Node::Directory(_)) { 2 } else { 1 };
        let id = InodeId(self.inodes.len());
        let attributes = Attributes {
            mode,
            accessed: now,
            modified: now,
            changed: now,
            ..Attributes::default()
        };
        let stored = attributes.clone();
        self.inodes.push(Inode { node, attributes, links, stored, stored_as_of: 0 });
        id
    }

    pub(super) fn inode(&self, id: InodeId) -> &Inode {
        &self.inodes[id.0]
    }

    pub(super) fn inode_mut(&mut self, id: InodeId) -> &mut Inode {
        &mut self.inodes[id.0]
    }

    /// Returns the bytes of an inode that is open as a regular file.
    pub(super) fn content(&self, id: InodeId) -> &[u8] {
        self.inode(id).content().expect("an inode open as a file is a file")
    }

    /// Returns the content of a regular file, for a change.
    pub(super) fn content_mut(&mut self, id: InodeId, now: Time) -> &mut Content {
        let inode = self.inode_mut(id);
        (inode.attributes.modified, inode.attributes.changed) = (now, now);
        match &mut inode.node {
            Node::File(content) => content,
            _ => unreachable!("an inode open as a file is a file"),
        }
    }

    /// Performs `truncate(2)`.
    pub(super) fn resize(&mut self, id: InodeId, len: usize, now: Time) {
        if len < self.content(id).len() {
            let number = self.log(vec![Change::Cut { id }]);
            self.content_mut(id, now).cut(len, number);
        } else {
            self.content_mut(id, now).extend(len);
        }
    }

    /// Changes attributes of an inode, as one operation.
    pub(super) fn change(&mut self, id: InodeId, now: Time, change: impl FnOnce(&mut Attributes)) {
        let attributes = &mut self.inode_mut(id).attributes;
        change(attributes);
        attributes.changed = now;
        let attributes = attributes.clone();
        self.log(vec![Change::Attributes { id, attributes }]);
    }

    fn directory(&self, id: InodeId) -> Result<&Directory, Errno> {
        match &self.inode(id).node {
            Node::Directory(directory) => Ok(directory),
            _ => Err(Errno::NOTDIR),
        }
    }

    pub(super) fn is_directory(&self, id: InodeId) -> bool {
        self.directory(id).is_ok()
    }

    // Paths.

    /// Resolves a path. `bounds` are the `RESOLVE_*`.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ENAMETOOLONG`, `ELOOP`; `EXDEV` out of bounds. A missing last name is no error.
    pub(super) fn walk(&self, place: &Place, last: Last, bounds: u64) -> Result<Found, Errno> {
        let Place { start, path } = place;
        if path.is_empty() {
            return Err(Errno::NOENT);
        }
        let mut walk = Walk {
            scope: *start,
            bounds,
            current: *start,
            queue: VecDeque::new(),
            has_slash: false,
            links_left: LINKS_MAX,
        };
        walk.prepend(path)?;
        let mut end = if path.starts_with(b"/") { End::Root } else { End::Dot };
        while let Some(name) = walk.queue.pop_front() {
            let is_last = walk.queue.is_empty();
            let directory = self.directory(walk.current)?;
            if name.len() > NAME_BYTES_MAX {
                return Err(Errno::NAMETOOLONG);
            }
            match &name[..] {
                b"." => end = End::Dot,
                b".." => {
                    end = End::DotDot;
                    walk.climb(directory.parent)?;
                }
                _ => match directory.names.get(&name) {
                    None if !is_last => return Err(Errno::NOENT),
                    Some(&(id, _)) if let Some(target) = self.link_to_follow(id, last, &walk) => {
                        walk.follow(target)?;
                        end = if target.starts_with(b"/") { End::Root } else { End::Dot };
                    }
                    Some(&(id, _)) if !is_last => walk.current = id,
                    found => {
                        let (parent, id) = (walk.current, found.map(|&(id, _)| id));
                        let has_slash = walk.has_slash;
                        return Ok(Found {
                            parent,
                            name: Some(name),
                            id,
                            has_slash,
                            end: End::Name,
                        });
                    }
                },
            }
        }
        let id = Some(walk.current);
        Ok(Found { parent: walk.current, name: None, id, has_slash: true, end })
    }

    /// Returns the target of a symbolic link, if the walk follows it.
    fn link_to_follow(&self, id: InodeId, last: Last, walk: &Walk) -> Option<&[u8]> {
        let Node::Symlink(target) = &self.inode(id).node else { return None };
        let is_followed = !walk.queue.is_empty()
            || last == Last::Follow
            || last == Last::NoFollow && walk.has_slash;
        is_followed.then_some(&target[..])
    }

    /// Returns the inode at a path.
    ///
    /// # Errors
    /// As [`walk`](Tree::walk), and `ENOENT` if the name does not exist.
    pub(super) fn lookup(&self, place: &Place, last: Last) -> Result<InodeId, Errno> {
        self.existing(&self.walk(place, last, 0)?)
    }

    /// Returns the inode of a walk's result.
    ///
    /// # Errors
    /// `ENOENT` if there is none, `ENOTDIR` if a slash follows the name of a non-directory.
    pub(super) fn existing(&self, found: &Found) -> Result<InodeId, Errno> {
        let id = found.id.ok_or(Errno::NOENT)?;
        let is_right = !found.has_slash || self.is_directory(id);
        if is_right { Ok(id) } else { Err(Errno::NOTDIR) }
    }

    /// Resolves the path of a name that is to be created.
    ///
    /// # Errors
    /// `EEXIST`; as [`walk`](Tree::walk); `ENOENT` if its directory was removed, or if a slash follows the
    /// name and no directory is to be created.
    fn vacant(&self, place: &Place, is_directory: bool) -> Result<(InodeId, Vec<u8>), Errno> {
        let found = self.walk(place, Last::Name, 0)?;
        let (None, Some(name)) = (found.id, found.name) else { return Err(Errno::EXIST) };
        if found.has_slash && !is_directory || self.inode(found.parent).links == 0 {
            return Err(Errno::NOENT);
        }
        Ok((found.parent, name))
    }

    // Entries.

    /// Gives an inode a name, which replaces the name's previous inode.
    fn enter(&mut self, parent: InodeId, name: Vec<u8>, id: InodeId, now: Time) {
        self.remove_entry(parent, &name, now);
        if self.is_directory(id) {
            self.inode_mut(parent).links += 1;
        }
        let inode = self.inode_mut(id);
        inode.attributes.changed = now;
        if let Node::Directory(directory) = &mut inode.node {
            directory.parent = parent;
        }
        let inode = self.inode_mut(parent);
        let Node::Directory(directory) = &mut inode.node else {
            unreachable!("a path leads through directories")
        };
        directory.last_position += 1;
        let position = directory.last_position;
        directory.positions.insert(position, name.clone());
        directory.names.insert(name.clone(), (id, position));
        self.changes.push(Change::Link { parent, name, id, position });
    }

    /// Removes a name. Its inode keeps its count of links.
    fn remove_entry(&mut self, parent: InodeId, name: &[u8], now: Time) -> Option<InodeId> {
        let inode = self.inode_mut(parent);
        (inode.attributes.modified, inode.attributes.changed) = (now, now);
        let Node::Directory(directory) = &mut inode.node else { return None };
        let (id, position) = directory.names.remove(name)?;
        directory.positions.remove(&position);
        self.changes.push(Change::Unlink { parent, name: name.to_vec() });
        if self.is_directory(id) {
            self.inode_mut(parent).links -= 1;
        }
        Some(id)
    }

    /// Counts the loss of one of an inode's names; a directory's only one.
    fn lose_name(&mut self, id: InodeId, now: Time) {
        let is_directory = self.is_directory(id);
        let inode = self.inode_mut(id);
        inode.links = if is_directory { 0 } else { inode.links - 1 };
        inode.attributes.changed = now;
    }

    /// Ends the operation in progress: its changes become an entry of the journal.
    fn end(&mut self) {
        let mut changes = std::mem::take(&mut self.changes);
        let mut inodes = BTreeSet::new();
        for change in &changes {
            match change {
                Change::Link { parent, id, .. } => inodes.extend([*parent, *id]),
                Change::Unlink { parent, .. } => inodes.extend([*parent]),
                Change::Attributes { .. } | Change::Cut { .. } => {}
            }
        }
        for id in inodes {
            let attributes = self.inode(id).attributes.clone();
            changes.push(Change::Attributes { id, attributes });
        }
        self.log(changes);
    }

    /// Returns the entries of a directory after a position, oldest first.
    ///
    /// # Errors
    /// `ENOENT` if it was removed.
    pub(super) fn list(
        &self,
        id: InodeId,
        after: u64,
    ) -> Result<impl Iterator<Item = Entry> + '_, Errno> {
        let directory = self.directory(id)?;
        if self.inode(id).links == 0 {
            return Err(Errno::NOENT);
        }
        let dots = [(POSITION_SELF, id, &b"."[..]), (POSITION_PARENT, directory.parent, b"..")];
        let dots = dots.into_iter().filter(move |&(position, ..)| position > after);
        let first = after.max(POSITION_PARENT).saturating_add(1);
        let named = directory
            .positions
            .range(first..)
            .map(|(&position, name)| (position, directory.names[name].0, &name[..]));
        Ok(dots.chain(named).map(|(position, id, name)| {
            let (kind, name) = (self.inode(id).kind(), name.to_vec());
            Entry { id, kind, position, name }
        }))
    }

    // Calls.

    /// Creates a regular file where a walk has found none.
    ///
    /// # Errors
    /// `ENOENT` if the directory was removed, `EISDIR` if a slash follows the name.
    pub(super) fn create(&mut self, found: Found, mode: u32, now: Time) -> Result<InodeId, Errno> {
        let Found { parent, name: Some(name), id: None, has_slash, .. } = found else {
            return Err(Errno::EXIST);
        };
        if has_slash {
            return Err(Errno::ISDIR);
        }
        if self.inode(parent).links == 0 {
            return Err(Errno::NOENT);
        }
        let id = self.add(Node::File(Content::default()), mode, now);
        self.enter(parent, name, id, now);
        self.end();
        Ok(id)
    }

    /// Performs `mkdir(2)`.
    pub(super) fn mkdir(&mut self, place: &Place, mode: u32, now: Time) -> Result<(), Errno> {
        let (parent, name) = self.vacant(place, true)?;
        let id = self.add(Node::directory(parent), mode & 0o1777, now);
        self.enter(parent, name, id, now);
        self.end();
        Ok(())
    }

    /// Performs `symlink(2)`.
    pub(super) fn symlink(&mut self, target: &[u8], place: &Place, now: Time) -> Result<(), Errno> {
        if target.is_empty() {
            return Err(Errno::NOENT);
        }
        let (parent, name) = self.vacant(place, false)?;
        let id = self.add(Node::Symlink(target.to_vec()), 0o777, now);
        self.enter(parent, name, id, now);
        self.end();
        Ok(())
    }

    /// Performs `readlink(2)`. Returns the target of the symbolic link at the path.
    pub(super) fn readlink(&self, place: &Place) -> Result<&[u8], Errno> {
        match &self.inode(self.lookup(place, Last::NoFollow)?).node {
            Node::Symlink(target) => Ok(target),
            _ => Err(Errno::INVAL),
        }
    }

    /// Performs `link(2)`: gives an inode one more name.
    pub(super) fn link(&mut self, id: InodeId, place: &Place, now: Time) -> Result<(), Errno> {
        let (parent, name) = self.vacant(place, false)?;
        if self.is_directory(id) {
            return Err(Errno::PERM);
        }
        if self.inode(id).links == 0 {
            return Err(Errno::NOENT);
        }
        self.inode_mut(id).links += 1;
        self.enter(parent, name, id, now);
        self.end();
        Ok(())
    }

    /// Performs `unlink(2)`.
    pub(super) fn unlink(&mut self, place: &Place, now: Time) -> Result<(), Errno> {
        let found = self.walk(place, Last::Name, 0)?;
        let Some(name) = &found.name else { return Err(Errno::ISDIR) };
        let id = found.id.ok_or(Errno::NOENT)?;
        if self.is_directory(id) {
            return Err(Errno::ISDIR);
        }
        self.existing(&found)?;
        self.remove_entry(found.parent, name, now);
        self.lose_name(id, now);
        self.end();
        Ok(())
    }

    /// Performs `rmdir(2)`.
    pub(super) fn rmdir(&mut self, place: &Place, now: Time) -> Result<(), Errno> {
        let found = self.walk(place, Last::Name, 0)?;
        let name = match (&found.name, found.end) {
            (Some(name), _) => name,
            (None, End::DotDot) => return Err(Errno::NOTEMPTY),
            (None, End::Root) => return Err(Errno::BUSY),
            (None, _) => return Err(Errno::INVAL),
        };
        let id = found.id.ok_or(Errno::NOENT)?;
        if !self.directory(id)?.names.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        self.remove_entry(found.parent, name, now);
        self.lose_name(id, now);
        self.end();
        Ok(())
    }

    /// Performs `renameat2(2)`.
    pub(super) fn rename(
        &mut self,
        from: &Place,
        to: &Place,
        flags: u32,
        now: Time,
    ) -> Result<(), Errno> {
        let (replaces, exchanges) = (flags & RENAME_NOREPLACE == 0, flags & RENAME_EXCHANGE != 0);
        if flags & !(RENAME_NOREPLACE | RENAME_EXCHANGE) != 0 || exchanges && !replaces {
            return Err(Errno::INVAL);
        }
        let from = self.walk(from, Last::Name, 0)?;
        let to = self.walk(to, Last::Name, 0)?;
        let from_name = from.name.as_ref().ok_or(Errno::BUSY)?;
        let to_name = to.name.as_ref().ok_or(if replaces { Errno::BUSY } else { Errno::EXIST })?;
        let id = from.id.ok_or(Errno::NOENT)?;
        match to.id {
            Some(_) if !replaces => return Err(Errno::EXIST),
            None if exchanges => return Err(Errno::NOENT),
            Some(other) if exchanges && to.has_slash && !self.is_directory(other) => {
                return Err(Errno::NOTDIR);
            }
            _ => {}
        }
        let is_directory = self.is_directory(id);
        if !is_directory && (from.has_slash || to.has_slash && !exchanges) {
            return Err(Errno::NOTDIR);
        }
        if self.is_within(to.parent, id) {
            return Err(Errno::INVAL);
        }
        if let Some(other) = to.id {
            if self.is_within(from.parent, other) {
                return Err(if exchanges { Errno::INVAL } else { Errno::NOTEMPTY });
            }
            if other == id {
                return Ok(());
            }
            if !exchanges {
                self.check_replaced(other, is_directory)?;
            }
        }
        if self.inode(to.parent).links == 0 {
            return Err(Errno::NOENT);
        }
        self.remove_entry(from.parent, from_name, now);
        match self.remove_entry(to.parent, to_name, now) {
            Some(other) if exchanges => self.enter(from.parent, from_name.clone(), other, now),
            Some(other) => self.lose_name(other, now),
            None => {}
        }
        self.enter(to.parent, to_name.clone(), id, now);
        self.end();
        Ok(())
    }

    /// Checks that an entry may replace the existing one of its new name.
    fn check_replaced(&self, other: InodeId, is_directory: bool) -> Result<(), Errno> {
        match (is_directory, self.directory(other)) {
            (true, Err(errno)) => Err(errno),
            (true, Ok(directory)) if !directory.names.is_empty() => Err(Errno::NOTEMPTY),
            (false, Ok(_)) => Err(Errno::ISDIR),
            _ => Ok(()),
        }
    }

    /// Returns whether a directory is `outer`, or lies in it.
    fn is_within(&self, mut inner: InodeId, outer: InodeId) -> bool {
        while inner != outer {
            match self.directory(inner) {
                Ok(directory) if inner != InodeId::ROOT => inner = directory.parent,
                _ => return false,
            }
        }
        true
    }
}

impl Node {
    fn directory(parent: InodeId) -> Self {
        Self::Directory(Directory {
            names: BTreeMap::new(),
            positions: BTreeMap::new(),
            parent,
            last_position: POSITION_PARENT,
            stored: BTreeMap::new(),
        })
    }
}

/// A path that is being resolved.
#[derive(Debug)]
struct Walk {
    /// The directory where the path begins.
    scope: InodeId,
    /// `RESOLVE_*`.
    bounds: u64,
    current: InodeId,
    /// The remaining names.
    queue: VecDeque<Vec<u8>>,
    /// A slash follows the last of them.
    has_slash: bool,
    links_left: u32,
}

impl Walk {
    /// Puts a path in front of the remaining names.
    fn prepend(&mut self, path: &[u8]) -> Result<(), Errno> {
        if path.starts_with(b"/") {
            if self.bounds & resolve::BENEATH != 0 {
                return Err(Errno::XDEV);
            }
            let is_confined = self.bounds & resolve::IN_ROOT != 0;
            self.current = if is_confined { self.scope } else { InodeId::ROOT };
        }
        if self.queue.is_empty() {
            self.has_slash |= path.ends_with(b"/");
        }
        let names = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty());
        for name in names.rev() {
            self.queue.push_front(name.to_vec());
        }
        Ok(())
    }

    fn follow(&mut self, target: &[u8]) -> Result<(), Errno> {
        if self.bounds & resolve::NO_SYMLINKS != 0 || self.links_left == 0 {
            return Err(Errno::LOOP);
        }
        self.links_left -= 1;
        self.prepend(target)
    }

    /// Goes to the parent directory.
    fn climb(&mut self, parent: InodeId) -> Result<(), Errno> {
        let is_edge = self.current == self.scope;
        if is_edge && self.bounds & resolve::BENEATH != 0 {
            return Err(Errno::XDEV);
        }
        if !is_edge || self.bounds & resolve::IN_ROOT == 0 {
            self.current = parent;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time { seconds: 1, nanos: 0 };

    fn at(path: &str) -> Place {
        Place { start: InodeId::ROOT, path: path.as_bytes().to_vec() }
    }

    fn touch(tree: &mut Tree, path: &str) -> InodeId {
        let found = tree.walk(&at(path), Last::Follow, 0).unwrap();
        tree.create(found, 0o600, NOW).unwrap()
    }

    fn links(tree: &Tree, path: &str) -> u32 {
        tree.inode(tree.lookup(&at(path), Last::NoFollow).unwrap()).links
    }

    #[test]
    fn a_directory_has_a_link_from_each_directory_in_it() {
        let mut tree = Tree::new();
        for path in ["a", "a/b", "a/c", "d"] {
            tree.mkdir(&at(path), 0o755, NOW).unwrap();
        }
        touch(&mut tree, "a/file");
        assert_eq!((links(&tree, "/"), links(&tree, "a"), links(&tree, "d")), (4, 4, 2));
        tree.rename(&at("a/b"), &at("d/b"), 0, NOW).unwrap();
        assert_eq!((links(&tree, "a"), links(&tree, "d")), (3, 3));
        // A directory and a file exchange their names.
        tree.rename(&at("a/file"), &at("d/b"), RENAME_EXCHANGE, NOW).unwrap();
        assert_eq!((links(&tree, "a"), links(&tree, "d")), (4, 2));
        tree.rename(&at("a/c"), &at("a/file"), 0, NOW).unwrap();
        assert_eq!((links(&tree, "a"), links(&tree, "a/file")), (3, 2));
        tree.rmdir(&at("a/file"), NOW).unwrap();
        assert_eq!(links(&tree, "a"), 2);
        assert_eq!(tree.lookup(&at("a/.."), Last::Follow), Ok(InodeId::ROOT));
    }

    #[test]
    fn positions_are_never_used_twice() {
        let mut tree = Tree::new();
        for path in ["a", "b", "c"] {
            touch(&mut tree, path);
        }
        let list = |tree: &Tree, after| {
            let entries = tree.list(InodeId::ROOT, after).unwrap();
            entries.map(|entry| (entry.position, entry.name)).collect::<Vec<_>>()
        };
        let names = |list: &[(u64, Vec<u8>)]| {
            list.iter().map(|(_, name)| name.clone()).collect::<Vec<_>>().join(&b' ')
        };
        let all = list(&tree, 0);
        assert_eq!(names(&all), b". .. a b c");
        let after_a = all[2].0;
        for path in ["a", "b"] {
            tree.unlink(&at(path), NOW).unwrap();
        }
        touch(&mut tree, "a");
        assert_eq!(names(&list(&tree, after_a)), b"c a", "the rest once, and the new name");
        assert_eq!(list(&tree, u64::MAX), []);
    }

    #[test]
    fn what_was_removed_is_empty_for_good() {
        let mut tree = Tree::new();
        tree.mkdir(&at("d"), 0o755, NOW).unwrap();
        let id = tree.lookup(&at("d"), Last::Follow).unwrap();
        let inside = |path: &[u8]| Place { start: id, path: path.to_vec() };
        tree.rmdir(&at("d"), NOW).unwrap();
        assert_eq!(tree.mkdir(&inside(b"x"), 0o755, NOW), Err(Errno::NOENT));
        assert_eq!(tree.symlink(b"x", &inside(b"y"), NOW), Err(Errno::NOENT));
        let found = tree.walk(&inside(b"x"), Last::Follow, 0).unwrap();
        assert_eq!(tree.create(found, 0o600, NOW), Err(Errno::NOENT));
        touch(&mut tree, "file");
        assert_eq!(tree.rename(&at("file"), &inside(b"x"), 0, NOW), Err(Errno::NOENT));
        assert!(tree.list(id, 0).is_err());
        assert_eq!(tree.lookup(&inside(b".."), Last::Follow), Ok(InodeId::ROOT));
    }

    #[test]
    fn a_file_without_names_gets_no_new_one() {
        let mut tree = Tree::new();
        let id = touch(&mut tree, "file");
        tree.link(id, &at("again"), NOW).unwrap();
        for path in ["file", "again"] {
            tree.unlink(&at(path), NOW).unwrap();
        }
        assert_eq!(tree.inode(id).links, 0);
        assert_eq!(tree.link(id, &at("late"), NOW), Err(Errno::NOENT));
    }

    #[test]
    fn the_last_part_of_a_path_counts() {
        let mut tree = Tree::new();
        tree.mkdir(&at("d"), 0o755, NOW).unwrap();
        tree.symlink(b"d", &at("l"), NOW).unwrap();
        let file = touch(&mut tree, "//d/./file");
        let directory = tree.lookup(&at("d"), Last::Follow).unwrap();
        for path in ["l/file", "d/../l/file", "/l//file"] {
            assert_eq!(tree.lookup(&at(path), Last::NoFollow), Ok(file), "{path}");
        }
        for path in ["l/", "l/.", "l/./", "d/."] {
            assert_eq!(tree.lookup(&at(path), Last::NoFollow), Ok(directory), "{path}");
        }
        assert_ne!(tree.lookup(&at("l"), Last::NoFollow), Ok(directory));
        for path in ["d/file/", "d/file/.", "d/file/.."] {
            assert_eq!(tree.lookup(&at(path), Last::Follow), Err(Errno::NOTDIR), "{path}");
        }
        // The operations act on the symbolic link itself, even with a slash.
        assert_eq!(tree.unlink(&at("l/"), NOW), Err(Errno::NOTDIR));
        assert_eq!(tree.rmdir(&at("l/"), NOW), Err(Errno::NOTDIR));
        assert_eq!(tree.mkdir(&at("l/"), 0, NOW), Err(Errno::EXIST));
        assert_eq!(tree.rmdir(&at("/"), NOW), Err(Errno::BUSY));
        assert_eq!(tree.unlink(&at("d/.."), NOW), Err(Errno::ISDIR));
    }
}
