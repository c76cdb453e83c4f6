//! Random trees, with every kind of entry.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, Timespec, Timestamps, Uid};

use crate::support::{bytes, set_attribute, some_acl};

#[derive(Clone, Debug)]
pub enum Kind {
    Empty,
    File(usize),
    /// The size, and the offsets of 10,000 bytes of data.
    Sparse(u64, Vec<u64>),
    /// The same with 3,000,000 bytes at each offset, so that several workers copy the file.
    Large(u64, Vec<u64>),
    Directory,
    /// A link to a missing name, or to the name of an entry.
    Link(Option<prop::sample::Index>),
    /// Another name of an entry.
    HardLink(prop::sample::Index),
    Fifo,
    Socket,
    Character,
    Block,
}

#[derive(Clone, Debug)]
pub struct Item {
    folder: prop::sample::Index,
    name: Vec<u8>,
    kind: Kind,
    mode: u32,
    owner: (u32, u32),
    time: (i64, i64),
    user_attribute: Option<u16>,
    has_trusted: bool,
    has_acl: bool,
    has_default_acl: bool,
}

fn kind() -> impl Strategy<Value = Kind> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        1 => Just(Kind::Empty),
        4 => (1..9000_usize).prop_map(Kind::File),
        1 => (250_000..900_000_usize).prop_map(Kind::File),
        2 => (1..3_000_000_u64, prop::collection::vec(0..2_000_000_u64, 0..4))
            .prop_map(|(size, places)| Kind::Sparse(size, places)),
        1 => (5_000_000..30_000_000_u64, prop::collection::vec(0..25_000_000_u64, 0..4))
            .prop_map(|(size, places)| Kind::Large(size, places)),
        6 => Just(Kind::Directory),
        1 => Just(Kind::Link(None)),
        2 => index().prop_map(|index| Kind::Link(Some(index))),
        4 => index().prop_map(Kind::HardLink),
        1 => Just(Kind::Fifo),
        1 => Just(Kind::Socket),
        1 => Just(Kind::Character),
        1 => Just(Kind::Block),
    ]
}

fn item() -> impl Strategy<Value = Item> {
    let mode = prop_oneof![
        8 => prop::sample::select(vec![0o644, 0o755, 0o600, 0o700]),
        4 => prop::sample::select(vec![0, 0o555, 0o1777, 0o2755, 0o4755, 0o6711, 0o1200, 0o277]),
        1 => 0..0o10000_u32,
    ];
    let owner = prop_oneof![
        4 => Just((0, 0)),
        1 => prop::sample::select(vec![(1, 2), (65534, 0), (0, 4_000_000_000), (1234, 1234)]),
    ];
    let time = (
        prop::sample::select(vec![0, -1, -1_000_000_000, 1_600_000_000, 4_000_000_000]),
        prop::sample::select(vec![0, 1, 999_999_999, 123_456_789]),
    );
    let names = prop::collection::vec(any::<u8>(), 0..12);
    let rare = || prop::bool::weighted(0.15);
    (
        (any::<prop::sample::Index>(), names, kind(), mode, owner, time),
        (prop::option::weighted(0.2, 0..2000_u16), rare(), rare(), rare()),
    )
        .prop_map(|((folder, name, kind, mode, owner, time), rest)| {
            let (user_attribute, has_trusted, has_acl, has_default_acl) = rest;
            Item {
                folder,
                name,
                kind,
                mode,
                owner,
                time,
                user_attribute,
                has_trusted,
                has_acl,
                has_default_acl,
            }
        })
}

pub fn items(count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Item>> {
    prop::collection::vec(item(), count)
}

/// Makes the tree, including its root.
pub fn make(root: &Path, items: &[Item]) {
    fs::create_dir(root).unwrap();
    let mut folders = vec![root.to_owned()];
    let mut made: Vec<(PathBuf, &Item)> = Vec::new();
    for (number, item) in items.iter().enumerate() {
        let folder = item.folder.get(&folders);
        let allowed = |byte: &&u8| **byte != 0 && **byte != b'/';
        let mut name = format!("{number}-").into_bytes();
        name.extend(item.name.iter().filter(allowed));
        let path = folder.join(OsString::from_vec(name));
        if make_entry(&path, item, number as u64, &made) {
            if matches!(item.kind, Kind::Directory) {
                folders.push(path.clone());
            }
            made.push((path, item));
        }
    }
    for (path, item) in made.iter().rev() {
        set_attributes(path, item);
    }
    // Creating entries in a directory changes its times.
    for (path, item) in made.iter().rev() {
        set_time(path, item.time);
    }
    set_time(root, (1_000_000_000, 5));
}

/// Creates an entry. Returns false if it does not count: a link to a kind without hard links.
fn make_entry(path: &Path, item: &Item, seed: u64, made: &[(PathBuf, &Item)]) -> bool {
    match &item.kind {
        Kind::Empty => drop(File::create_new(path).unwrap()),
        Kind::File(len) => fs::write(path, bytes(*len, seed)).unwrap(),
        Kind::Sparse(size, places) => make_sparse(path, *size, places, &bytes(10_000, seed)),
        Kind::Large(size, places) => make_sparse(path, *size, places, &bytes(3_000_000, seed)),
        Kind::Directory => fs::create_dir(path).unwrap(),
        Kind::Link(index) => {
            let target = match index {
                Some(index) if !made.is_empty() => index.get(made).0.clone(),
                _ => PathBuf::from("nowhere/\u{e4}"),
            };
            std::os::unix::fs::symlink(target, path).unwrap();
        }
        Kind::HardLink(index) => {
            let mut others =
                made.iter().filter(|(_, item)| !matches!(item.kind, Kind::Directory)).peekable();
            if others.peek().is_none() {
                return false;
            }
            let others: Vec<_> = others.collect();
            fs::hard_link(&index.get(&others).0, path).unwrap();
            return false;
        }
        Kind::Fifo => make_node(path, FileType::Fifo, 0),
        Kind::Socket => make_node(path, FileType::Socket, 0),
        Kind::Character => make_node(path, FileType::CharacterDevice, rustix::fs::makedev(1, 3)),
        Kind::Block => make_node(path, FileType::BlockDevice, rustix::fs::makedev(259, 70_000)),
    }
    true
}

fn make_sparse(path: &Path, size: u64, places: &[u64], data: &[u8]) {
    let file = File::create_new(path).unwrap();
    file.set_len(size).unwrap();
    for place in places.iter().filter(|&place| place + (data.len() as u64) < size) {
        file.write_all_at(data, *place).unwrap();
    }
}

pub fn make_node(path: &Path, kind: FileType, device: u64) {
    rustix::fs::mknodat(CWD, path, kind, Mode::from_raw_mode(0o600), device).unwrap();
}

fn set_attributes(path: &Path, item: &Item) {
    let is_link = matches!(item.kind, Kind::Link(_));
    let (user, group) = (Uid::from_raw(item.owner.0), Gid::from_raw(item.owner.1));
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    rustix::fs::chownat(CWD, path, Some(user), Some(group), flags).unwrap();
    if item.has_trusted {
        set_attribute(path, "trusted.test", b"\0\xff");
    }
    let is_directory = matches!(item.kind, Kind::Directory);
    let has_contents =
        matches!(item.kind, Kind::Empty | Kind::File(_) | Kind::Sparse(..) | Kind::Large(..));
    if let Some(len) = item.user_attribute
        && (is_directory || has_contents)
    {
        set_attribute(path, "user.test", &bytes(len.into(), 3));
        set_attribute(path, "user.other", b"");
    }
    if is_link {
        return;
    }
    let mode = Mode::from_raw_mode(item.mode);
    rustix::fs::chmodat(CWD, path, mode, AtFlags::empty()).unwrap();
    if item.has_acl {
        set_attribute(path, "system.posix_acl_access", &some_acl());
    }
    if item.has_default_acl && is_directory {
        set_attribute(path, "system.posix_acl_default", &some_acl());
    }
}

pub fn set_time(path: &Path, (seconds, nanoseconds): (i64, i64)) {
    let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}
