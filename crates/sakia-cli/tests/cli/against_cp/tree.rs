//! Trees: their creation, and their contents.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::{self, Display};
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};

/// Initial times are before this; times that a copy sets by itself are after it.
const OLD: i64 = 1_500_000_000;
/// Files that are shorter need not have holes.
const HOLES_FROM: u64 = 512 << 10;

/// A step in making a tree. A step that fails, since an earlier one was left out, does nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Directory(String),
    /// A file of this size, filled with this byte's pattern.
    File(String, usize, u8),
    /// A file of this size that has one page of data.
    Sparse(String, u64),
    Link(String, String),
    /// An existing name, and another one.
    Name(String, String),
    Fifo(String),
    Socket(String),
    Null(String),
    Mode(String, u32),
    Owner(String, u32, u32),
    Attribute(String, &'static str, Vec<u8>),
    Time(String, i64, i64),
}

/// The directories of a case: the main one, and a place on another file system, whose paths begin with `O/`.
/// In links `@/` stands for the first one.
#[derive(Clone, Debug)]
pub struct Roots {
    pub here: PathBuf,
    pub other: PathBuf,
}

impl Roots {
    pub fn path(&self, name: &str) -> PathBuf {
        match name.strip_prefix("O/") {
            Some(rest) => self.other.join(rest),
            None => self.here.join(name),
        }
    }

    /// Makes both directories anew; they belong to `user`.
    pub fn make(&self, user: u32) {
        clear(self.here.parent().expect("the directory of a case is in one of its own"));
        for root in [&self.here, &self.other] {
            clear(root);
            if fs::create_dir_all(root).is_err() {
                // Blocks of removed files may be freed late.
                rustix::fs::sync();
                fs::create_dir_all(root).unwrap();
            }
            fs::set_permissions(root, fs::Permissions::from_mode(0o755)).unwrap();
            rustix::fs::chown(root, Some(Uid::from_raw(user)), Some(Gid::from_raw(user))).ok();
        }
    }
}

/// Returns whether both trees have the same entries, of the same kinds and lengths.
pub fn is_alike(one: &Tree, other: &Tree) -> bool {
    let shape = |facts: &Facts| (facts.kind, facts.contents.len, facts.names.1);
    one.len() == other.len()
        && one
            .iter()
            .zip(other)
            .all(|(one, other)| one.0 == other.0 && shape(one.1) == shape(other.1))
}

/// Removes a tree, whatever its modes.
///
/// `cp` may have copied a directory into itself up to the longest possible path: `std` has too few
/// descriptors to remove that.
pub fn clear(root: &Path) {
    if fs::remove_dir_all(root).is_err() && fs::symlink_metadata(root).is_ok() {
        let removed = Command::new("rm").arg("-rf").arg(root).status();
        assert!(removed.is_ok_and(|status| status.success()), "{} is left", root.display());
    }
}

impl Step {
    pub fn path(&self) -> &str {
        match self {
            Self::Directory(path)
            | Self::File(path, ..)
            | Self::Sparse(path, _)
            | Self::Link(path, _)
            | Self::Name(_, path)
            | Self::Fifo(path)
            | Self::Socket(path)
            | Self::Null(path)
            | Self::Mode(path, _)
            | Self::Owner(path, ..)
            | Self::Attribute(path, ..)
            | Self::Time(path, ..) => path,
        }
    }

    /// Performs the step; new entries belong to `user`.
    pub fn apply(&self, roots: &Roots, user: u32) {
        let path = roots.path(self.path());
        if self.try_apply(roots, &path).is_ok() && !matches!(self, Self::Owner(..)) && user != 0 {
            let is_new = !matches!(
                self,
                Self::Mode(..) | Self::Attribute(..) | Self::Time(..) | Self::Name(..)
            );
            if is_new {
                chown(&path, user, user).ok();
            }
        }
    }

    fn try_apply(&self, roots: &Roots, path: &Path) -> io::Result<()> {
        let node = |kind, device| {
            Ok(rustix::fs::mknodat(CWD, path, kind, Mode::from_raw_mode(0o644), device)?)
        };
        match self {
            Self::Directory(_) => fs::create_dir(path),
            Self::File(_, len, byte) => File::create_new(path)?.write_all_at(&vec![*byte; *len], 0),
            Self::Sparse(_, size) => {
                let file = File::create_new(path)?;
                file.set_len(*size)?;
                file.write_all_at(&[7; 4096], (*size / 2) & !4095)
            }
            Self::Link(_, target) => {
                let here = roots.here.to_str().unwrap();
                std::os::unix::fs::symlink(target.replace('@', here), path)
            }
            Self::Name(old, _) => {
                Ok(rustix::fs::linkat(CWD, roots.path(old), CWD, path, AtFlags::empty())?)
            }
            Self::Fifo(_) => node(FileType::Fifo, 0),
            Self::Socket(_) => node(FileType::Socket, 0),
            Self::Null(_) => node(FileType::CharacterDevice, rustix::fs::makedev(1, 3)),
            Self::Mode(_, mode) if !path.is_symlink() => {
                fs::set_permissions(path, fs::Permissions::from_mode(*mode))
            }
            Self::Mode(..) => Ok(()),
            Self::Owner(_, user, group) => chown(path, *user, *group),
            Self::Attribute(_, name, value) => {
                Ok(rustix::fs::lsetxattr(path, *name, value, XattrFlags::empty())?)
            }
            Self::Time(_, seconds, nanoseconds) => {
                let time = Timespec { tv_sec: *seconds, tv_nsec: *nanoseconds };
                let times = Timestamps { last_access: time, last_modification: time };
                Ok(rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
            }
        }
    }
}

fn chown(path: &Path, user: u32, group: u32) -> io::Result<()> {
    let (user, group) = (Some(Uid::from_raw(user)), Some(Gid::from_raw(group)));
    Ok(rustix::fs::chownat(CWD, path, user, group, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Shows the step as shell commands. `$O` is the place on another file system.
impl Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |path: &str| path.replace("O/", "$O/").replace('@', "$PWD");
        let path = shown(self.path());
        match self {
            Self::Directory(_) => write!(f, "mkdir {path}"),
            Self::File(_, len, byte) => {
                write!(f, "head -c {len} /dev/zero | tr '\\0' '\\{byte:o}' > {path}")
            }
            Self::Sparse(_, size) => write!(
                f,
                "truncate -s {size} {path}; head -c 4096 /dev/zero | tr '\\0' '\\7' | \
                 dd conv=notrunc status=none bs=4096 seek={} of={path}",
                size / 2 / 4096
            ),
            Self::Link(_, target) => write!(f, "ln -s {} {path}", shown(target)),
            Self::Name(old, _) => write!(f, "ln -P {} {path}", shown(old)),
            Self::Fifo(_) => write!(f, "mkfifo {path}"),
            Self::Socket(_) => write!(f, "nc -lU {path} & sleep .1; kill $!"),
            Self::Null(_) => write!(f, "mknod {path} c 1 3"),
            Self::Mode(_, mode) => write!(f, "chmod {mode:o} {path}"),
            Self::Owner(_, user, group) => write!(f, "chown -h {user}:{group} {path}"),
            Self::Attribute(_, name, value) => {
                write!(f, "setfattr -h -n {name} -v 0x")?;
                value.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
                write!(f, " {path}")
            }
            Self::Time(_, seconds, nanoseconds) => {
                write!(f, "touch -h -d @{seconds}.{nanoseconds:09} {path}")
            }
        }
    }
}

/// The compared facts about an entry.
#[derive(Clone, PartialEq, Eq)]
pub struct Facts {
    pub kind: char,
    pub mode: u32,
    pub owner: (u32, u32),
    /// `None`: now.
    pub modified: Option<(i64, i64)>,
    /// The same, for entries that are certainly new.
    pub accessed: Option<Option<(i64, i64)>>,
    pub device: u64,
    /// The bytes of a file, the target of a link, the bytes written to a FIFO.
    pub contents: Contents,
    pub has_holes: bool,
    pub attributes: BTreeMap<String, Vec<u8>>,
    /// The first of its names, and how many it has.
    pub names: (String, u64),
    pub inode: u64,
    /// For a link: the inode of its target, if it exists.
    pub behind: Option<u64>,
}

/// The contents of a file, or the target of a link. A tree that is copied into itself until its paths are too
/// long has gigabytes of them: only a hash stays in memory.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Contents {
    pub len: usize,
    start: Vec<u8>,
    hash: u64,
}

impl Contents {
    /// The number of bytes at the start that are shown.
    const SHOWN: usize = 60;

    fn new(bytes: &[u8]) -> Self {
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        let start = bytes[..bytes.len().min(Self::SHOWN)].to_vec();
        Self { len: bytes.len(), start, hash: hasher.finish() }
    }
}

impl fmt::Display for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes {:?}", self.len, String::from_utf8_lossy(&self.start))
    }
}

/// The entries in both places, by path.
pub type Tree = BTreeMap<String, Facts>;

/// Open FIFOs, so that a program that writes to one does not wait for a reader.
pub struct Fifos(HashMap<String, File>);

impl Fifos {
    pub fn open(roots: &Roots, tree: &Tree) -> Self {
        let fifos = tree.iter().filter(|(_, facts)| facts.kind == 'p');
        let open = |path: &str| {
            let mut options = File::options();
            options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
            options.open(roots.path(path)).ok()
        };
        Self(fifos.filter_map(|(path, _)| Some((path.clone(), open(path)?))).collect())
    }

    /// Adds the bytes written to the FIFOs to the tree.
    pub fn drain(&self, tree: &mut Tree) {
        for (path, mut fifo) in &self.0 {
            let mut bytes = vec![0; 1 << 16];
            if let Ok(count) = fifo.read(&mut bytes)
                && let Some(facts) = tree.get_mut(path)
            {
                facts.contents = Contents::new(&bytes[..count]);
            }
        }
    }
}

/// Returns all entries. The access times of the inodes in `before` are not compared.
pub fn look(roots: &Roots, before: &HashSet<u64>) -> Tree {
    let mut tree = Tree::new();
    for (root, prefix) in [(&roots.here, ""), (&roots.other, "O/")] {
        let mut left = vec![String::new()];
        while let Some(relative) = left.pop() {
            let path = root.join(&relative);
            let Ok(stat) = fs::symlink_metadata(if relative.is_empty() { root } else { &path })
            else {
                continue;
            };
            if stat.is_dir() {
                for entry in fs::read_dir(&path).into_iter().flatten().flatten() {
                    let name = entry.file_name().into_string().unwrap();
                    left.push(if relative.is_empty() {
                        name
                    } else {
                        format!("{relative}/{name}")
                    });
                }
            }
            tree.insert(format!("{prefix}{relative}"), facts(&path, &stat, before));
        }
    }
    let mut names: HashMap<(u64, bool), String> = HashMap::new();
    for (path, facts) in &mut tree {
        let key = (facts.inode, path.starts_with("O/"));
        facts.names.0 = names.entry(key).or_insert_with(|| path.clone()).clone();
    }
    tree
}

fn facts(path: &Path, stat: &fs::Metadata, before: &HashSet<u64>) -> Facts {
    let kind = stat.file_type();
    let letter = match kind {
        kind if kind.is_dir() => 'd',
        kind if kind.is_file() => 'f',
        kind if kind.is_symlink() => 'l',
        kind if kind.is_fifo() => 'p',
        kind if kind.is_socket() => 's',
        kind if kind.is_char_device() => 'c',
        _ => 'b',
    };
    let contents = match letter {
        'f' => match fs::read(path) {
            Ok(bytes) => Contents::new(&bytes),
            Err(error) => Contents::new(error.to_string().as_bytes()),
        },
        'l' => Contents::new(fs::read_link(path).unwrap().as_os_str().as_bytes()),
        _ => Contents::default(),
    };
    let old = |seconds: i64, nanoseconds| (seconds < OLD).then_some((seconds, nanoseconds));
    let is_new = !before.contains(&stat.ino());
    Facts {
        kind: letter,
        mode: stat.mode() & 0o7777,
        owner: (stat.uid(), stat.gid()),
        modified: old(stat.mtime(), stat.mtime_nsec()),
        accessed: (is_new && letter != 'l').then(|| old(stat.atime(), stat.atime_nsec())),
        device: if "cb".contains(letter) { stat.rdev() } else { 0 },
        contents,
        has_holes: letter == 'f' && stat.len() >= HOLES_FROM && stat.blocks() * 1024 < stat.len(),
        attributes: attributes(path),
        names: (String::new(), if letter == 'd' { 0 } else { stat.nlink() }),
        inode: stat.ino(),
        behind: if letter == 'l' { path.metadata().ok().map(|stat| stat.ino()) } else { None },
    }
}

fn attributes(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut names = vec![0; 4096];
    let Ok(len) = rustix::fs::llistxattr(path, &mut names[..]) else { return BTreeMap::new() };
    let names = names[..len].split(|&byte| byte == 0).filter(|name| !name.is_empty());
    let value = |name: &[u8]| {
        let mut value = vec![0; 4096];
        let len = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap_or(0);
        value.truncate(len);
        value
    };
    names.map(|name| (String::from_utf8_lossy(name).into_owned(), value(name))).collect()
}
