//! Shared helpers of the tests: folders, runtimes, and the contents of trees.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use sakia_copy::{Options, Progress, Report, copy_tree};

/// A private directory of a test, removed at its end.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        Self::below(Path::new(env!("CARGO_TARGET_TMPDIR")))
    }

    /// Makes it on a file system in memory, if the machine has one.
    pub fn in_memory() -> Self {
        let place = Path::new("/dev/shm");
        if place.is_dir() { Self::below(place) } else { Self::new() }
    }

    /// Makes it accessible to every user.
    pub fn for_all() -> Self {
        let folder = Self::below(&std::env::temp_dir());
        fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o755)).unwrap();
        folder
    }

    pub fn below(place: &Path) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = place.join(format!("sakia-copy-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn root(&self) -> &Path {
        &self.0
    }

    pub fn file(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, contents).unwrap();
        path
    }

    pub fn dir(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(&path).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // `rm` also removes paths that are too long for one call, and does not use the library under test.
        Command::new("rm").arg("-rf").arg(&self.0).status().ok();
    }
}

/// Ends the calling test if it needs root and does not have it.
macro_rules! needs_root {
    () => {
        if !rustix::process::geteuid().is_root() {
            sakia_testkit::skip!("root, to make devices and to give files away");
        }
    };
}
pub(crate) use needs_root;

pub fn runtime() -> sakia::Runtime {
    sakia::Runtime::builder().threads(2).build().unwrap()
}

/// Copies on two threads.
pub fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>, options: &Options) -> Report {
    let progress = Arc::new(Progress::new());
    runtime().block_on(copy_tree(from, to, options, &progress)).unwrap()
}

/// Copies on two threads and asserts success.
#[track_caller]
pub fn copy_all(from: impl AsRef<Path>, to: impl AsRef<Path>, options: &Options) -> Report {
    let report = copy(from, to, options);
    assert!(report.is_complete(), "{report:#?}");
    report
}

/// Returns the only failure.
#[track_caller]
pub fn failure(report: &Report) -> String {
    assert_eq!((report.counts.failures, report.failures.len()), (1, 1), "{report:#?}");
    report.failures[0].to_string()
}

/// Runs a program, and asserts success.
#[track_caller]
pub fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

pub fn bytes(count: usize, seed: u64) -> Vec<u8> {
    let word = |index: usize| (index as u64 / 8 + 1 + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..count).map(|index| word(index).to_le_bytes()[index % 8]).collect()
}

/// Random numbers that are the same in each run.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(2).wrapping_add(1))
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// Files shorter than this need not have holes.
const BLOCK: u64 = 4096;

/// The compared facts about an entry.
#[derive(Clone, PartialEq, Eq)]
pub struct Facts {
    pub mode: u32,
    pub owner: (u32, u32),
    pub modified: (i64, i64),
    pub device: u64,
    /// The bytes of a file, the target of a link.
    pub contents: Vec<u8>,
    /// The data ranges of a file, if it is long enough for holes.
    pub data: Vec<(u64, u64)>,
    pub attributes: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The number of its names, and the first of these in the tree.
    pub names: (u64, PathBuf),
}

impl Debug for Facts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { mode, owner, modified, device, contents, data, attributes, names } = self;
        let shown: Vec<_> = contents.iter().take(20).collect();
        write!(f, "mode {mode:o} owner {owner:?} modified {modified:?} device {device:x} ")?;
        write!(f, "{} bytes {shown:?} data {data:?} ", contents.len())?;
        write!(f, "attributes {attributes:x?} names {names:?}")
    }
}

/// The entries of a tree, by path.
pub type Tree = BTreeMap<PathBuf, Facts>;

/// Returns the entries of a tree, or of another kind of root.
pub fn tree(root: &Path) -> Tree {
    let mut found = Tree::new();
    let mut names = HashMap::new();
    let mut left = vec![PathBuf::new()];
    while let Some(relative) = left.pop() {
        let path = if relative.as_os_str().is_empty() { root.into() } else { root.join(&relative) };
        let stat = fs::symlink_metadata(&path).unwrap();
        if stat.is_dir() {
            let names = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name());
            left.extend(names.map(|name| relative.join(name)));
        }
        found.insert(relative, facts(&path, &stat));
    }
    for (relative, facts) in &mut found {
        let stat = fs::symlink_metadata(root.join(relative))
            .unwrap_or_else(|_| fs::symlink_metadata(root).unwrap());
        if !stat.is_dir() {
            let first = names.entry((stat.dev(), stat.ino())).or_insert_with(|| relative.clone());
            facts.names = (stat.nlink(), first.clone());
        }
    }
    found
}

fn facts(path: &Path, stat: &fs::Metadata) -> Facts {
    let kind = stat.file_type();
    let contents = if kind.is_file() {
        fs::read(path).unwrap()
    } else if kind.is_symlink() {
        fs::read_link(path).unwrap().as_os_str().as_bytes().to_vec()
    } else {
        Vec::new()
    };
    let is_device = kind.is_char_device() || kind.is_block_device();
    Facts {
        mode: stat.mode(),
        owner: (stat.uid(), stat.gid()),
        modified: (stat.mtime(), stat.mtime_nsec()),
        device: if is_device { stat.rdev() } else { 0 },
        contents,
        data: if kind.is_file() && stat.len() >= BLOCK { data(path) } else { Vec::new() },
        attributes: attributes(path),
        names: (0, PathBuf::new()),
    }
}

/// Returns the data ranges of a file.
fn data(path: &Path) -> Vec<(u64, u64)> {
    let file = File::open(path).unwrap();
    let mut found = Vec::new();
    let mut offset = 0;
    loop {
        match rustix::fs::seek(&file, SeekFrom::Data(offset)) {
            Ok(begin) => {
                offset = rustix::fs::seek(&file, SeekFrom::Hole(begin)).unwrap();
                found.push((begin, offset));
            }
            Err(Errno::NXIO) => return found,
            Err(errno) => panic!("{errno}"),
        }
    }
}

pub fn attributes(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 70_000];
    let Ok(len) = rustix::fs::llistxattr(path, &mut names[..]) else { return BTreeMap::new() };
    let names = names[..len].split(|&byte| byte == 0).filter(|name| !name.is_empty());
    let value = |name: &[u8]| {
        let mut value = vec![0; 70_000];
        let len = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
        value.truncate(len);
        value
    };
    names.map(|name| (name.to_vec(), value(name))).collect()
}

/// Compares trees, and reports the differences.
#[track_caller]
pub fn assert_same(is: &Tree, expected: &Tree) {
    let names: std::collections::BTreeSet<_> = is.keys().chain(expected.keys()).collect();
    for name in names {
        let (is, expected) = (is.get(name), expected.get(name));
        assert!(is == expected, "{name:?}\nis       {is:?}\nexpected {expected:?}");
    }
}

/// Returns the tree without facts that are not compared: times, owners, holes.
pub fn without(mut tree: Tree, forget: impl Fn(&mut Facts)) -> Tree {
    tree.values_mut().for_each(forget);
    tree
}

/// Returns a list of access control entries in the kernel's format.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// Returns a list with rights for the user 1234.
pub fn some_acl() -> Vec<u8> {
    const NOBODY: u32 = u32::MAX;
    acl(&[(1, 7, NOBODY), (2, 6, 1234), (4, 5, NOBODY), (0x10, 7, NOBODY), (0x20, 1, NOBODY)])
}

pub fn set_attribute(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, rustix::fs::XattrFlags::empty()).unwrap();
}
