//! Copies of entries of every kind are killed at each call, and completed by one that keeps or updates what
//! is there: the result is that of an undisturbed copy.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};

use super::sim::{self, Plan};
use super::tests::{Folder, copy, options};
use crate::{Existing, Options, Preserve};

/// The facts that a copy keeps: kind and mode, owner, time, device and size, contents, attributes, and the
/// first of its names.
type Facts = (u32, (u32, u32), (i64, i64), (u64, u64), Vec<u8>, Vec<Vec<u8>>, PathBuf);

const ATTRIBUTES: [&str; 4] =
    ["user.a", "system.posix_acl_access", "system.posix_acl_default", "trusted.a"];

fn facts(path: &Path, stat: &fs::Metadata) -> Facts {
    let kind = stat.mode() & 0o170_000;
    let contents = match kind {
        0o100_000 => fs::read(path).unwrap(),
        0o120_000 => fs::read_link(path).unwrap().into_os_string().into_encoded_bytes(),
        _ => Vec::new(),
    };
    let attribute = |name| {
        let mut value = [0; 256];
        let len = rustix::fs::lgetxattr(path, name, &mut value).unwrap_or(0);
        value[..len].to_vec()
    };
    let has_size = kind == 0o100_000;
    let device = (stat.rdev(), if has_size { stat.len() } else { 0 });
    let (owner, modified) = ((stat.uid(), stat.gid()), (stat.mtime(), stat.mtime_nsec()));
    let attributes = ATTRIBUTES.map(attribute).to_vec();
    (stat.mode(), owner, modified, device, contents, attributes, PathBuf::new())
}

fn tree(root: &Path, has_times: bool) -> BTreeMap<PathBuf, Facts> {
    let (mut found, mut inodes) = (BTreeMap::new(), HashMap::new());
    let mut left = vec![PathBuf::new()];
    while let Some(relative) = left.pop() {
        let path =
            if relative.as_os_str().is_empty() { root.to_owned() } else { root.join(&relative) };
        let Ok(stat) = fs::symlink_metadata(&path) else { continue };
        if stat.is_dir() {
            let entries = fs::read_dir(&path).unwrap();
            left.extend(entries.map(|entry| relative.join(entry.unwrap().file_name())));
        }
        inodes.insert(relative.clone(), stat.ino());
        let mut facts = facts(&path, &stat);
        if !has_times {
            facts.2 = (0, 0);
        }
        found.insert(relative, facts);
    }
    let mut names = HashMap::new();
    for (relative, facts) in &mut found {
        facts.6.clone_from(names.entry(inodes[relative]).or_insert(relative.clone()));
    }
    found
}

/// Adds entries of the other kinds to the tree, and gives all of them owners, modes, lists and times.
fn make(from: &Path) {
    let node = |name: &str, kind, device| {
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(CWD, from.join(name), kind, mode, device).unwrap();
    };
    let is_root = rustix::process::geteuid().is_root();
    node("inner/socket", FileType::Socket, 0);
    node("inner/deep/fifo", FileType::Fifo, 0);
    if is_root {
        node("inner/null", FileType::CharacterDevice, rustix::fs::makedev(1, 3));
        node("zero", FileType::CharacterDevice, rustix::fs::makedev(1, 5));
    }
    symlink("inner", from.join("link")).unwrap();
    fs::hard_link(from.join("inner/deep/fifo"), from.join("empty/fifo")).unwrap();
    fs::hard_link(from.join("inner/link"), from.join("empty/link")).unwrap();
    let acl = acl();
    for name in ["large", "fifo", "inner/deep"] {
        let set = rustix::fs::setxattr(from.join(name), ATTRIBUTES[1], &acl, XattrFlags::empty());
        // If the file system supports them.
        set.ok();
    }
    for (number, path) in tree(from, true).into_keys().rev().enumerate() {
        let path = from.join(path);
        let is_link = path.is_symlink();
        if is_root {
            let owner = Some([0, 1000, 1001][number % 3]);
            std::os::unix::fs::lchown(&path, owner, owner).unwrap();
        }
        if !is_link && number % 2 == 0 {
            let mode = [0o644, 0o755, 0o640, 0o777][number / 2 % 4];
            let mode = if path.is_dir() { mode | 0o700 } else { mode };
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        }
        let time = Timespec { tv_sec: 1_000_000_000 + number as i64, tv_nsec: 7 };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
}

fn acl() -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    let none = u32::MAX;
    for (tag, rights, id) in
        [(1u16, 7u16, none), (2, 6, 1234), (4, 5, none), (0x10, 7, none), (0x20, 1, none)]
    {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(rights.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// Destinations of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    New,
    /// The directories are there.
    Existing,
    /// Others may write to them.
    Shared,
    /// New entries inherit an access control list.
    Inheriting,
}

const PLACES: [Place; 4] = [Place::New, Place::Existing, Place::Shared, Place::Inheriting];

impl Place {
    /// Makes it; returns false if the file system does not support it.
    fn make(self, to: &Path) -> bool {
        if self == Self::New {
            return true;
        }
        for name in ["", "inner", "empty"] {
            let dir = to.join(name);
            fs::create_dir(&dir).unwrap();
            let mode = if self == Self::Shared { 0o777 } else { 0o755 };
            fs::set_permissions(&dir, Permissions::from_mode(mode)).unwrap();
            if self == Self::Inheriting
                && rustix::fs::setxattr(&dir, ATTRIBUTES[2], &acl(), XattrFlags::empty()).is_err()
            {
                return false;
            }
        }
        true
    }
}

/// Kills copies at each call that `chosen` returns true for, and completes them.
fn check(name: &str, options: &Options, chosen: impl Fn(usize) -> bool) {
    let folder = Folder::in_memory(name);
    make(&folder.from());
    for place in PLACES {
        let fresh = || {
            let to = folder.to();
            place.make(&to).then_some(to)
        };
        let Some(to) = fresh() else { continue };
        let (report, calls) = sim::run(None, || copy(&folder.from(), &to, options));
        assert!(report.is_complete(), "{report:#?}");
        let expected = tree(&to, options.preserve.timestamps);
        for number in (0..calls.len()).filter(|number| chosen(*number)) {
            let existing = [Existing::Keep, Existing::Update][(number + place as usize) % 2];
            let to = fresh().unwrap();
            sim::run(Some(Plan::Killed(number)), || copy(&folder.from(), &to, options));
            let left = tree(&to, options.preserve.timestamps);
            let again = Options { existing, ..options.clone() };
            let report = copy(&folder.from(), &to, &again);
            let case =
                format!("{place:?}, {existing:?}, killed before {number}, {}", calls[number]);
            assert!(report.is_complete(), "{case}: {report:#?}");
            let is = tree(&to, options.preserve.timestamps);
            for path in expected.keys().chain(is.keys()) {
                let (is, expected) = (is.get(path), expected.get(path));
                let was = left.get(path);
                assert!(
                    is == expected,
                    "{case}: {path:?} is\n{is:x?}, not\n{expected:x?}\nwas {was:x?}"
                );
            }
        }
    }
}

#[test]
fn entries_of_every_kind_are_completed() {
    check("kinds", &options(true), |_| true);
}

/// With some of the attributes, or none.
#[test]
fn entries_with_some_attributes_are_completed() {
    let none = Preserve::NONE;
    let some = [
        none,
        Preserve { mode: true, ..none },
        Preserve { ownership: true, ..none },
        Preserve { timestamps: true, ..none },
        // An earlier copy is known by its time.
        Preserve { links: true, xattrs: true, timestamps: true, ..none },
    ];
    for (case, preserve) in some.into_iter().enumerate() {
        let options = Options { preserve, ..options(false) };
        check("some", &options, |number| number % 5 == case);
    }
}
