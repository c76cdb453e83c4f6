//! Operations that no ring has: plain calls on a thread of a lane.

use std::collections::BTreeMap;
use std::ffi::CString;

use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;
use sakia_driver::{
    CURRENT_POSITION, DirectoryEntries, Driver, EntryKind, Fd, OpKind, SetTime, StatxTime,
};

use crate::names::directory;
use crate::stage::{Stage, errno, settle, turn_until, wait};

const NOFOLLOW: u32 = AtFlags::SYMLINK_NOFOLLOW.bits();
const LOCK_SH: u32 = 1;
const LOCK_EX: u32 = 2;
const LOCK_NB: u32 = 4;
const LOCK_UN: u32 = 8;

fn name(name: &str) -> CString {
    CString::new(name).unwrap()
}

/// Returns all entries of a directory, read with a buffer of `buf_len` bytes.
fn list(driver: &Driver, fd: &Fd, buf_len: usize) -> BTreeMap<Vec<u8>, EntryKind> {
    let mut entries = BTreeMap::new();
    let mut buf = vec![0; buf_len];
    loop {
        let (result, back) = wait(driver, driver.read_directory(fd, buf));
        buf = back;
        let len = result.unwrap();
        if len == 0 {
            return entries;
        }
        for entry in DirectoryEntries::new(&buf[..len]) {
            let previous = entries.insert(entry.name.to_vec(), entry.kind);
            assert_eq!(previous, None, "an entry came twice");
        }
    }
}

pub fn a_directory_is_listed(stage: &Stage) {
    let driver = stage.driver();
    let open = directory(stage, &driver, "d");
    stage.create("d/file", b"");
    wait(&driver, driver.mkdir(Some(&open), name("sub"), 0o755)).unwrap();
    wait(&driver, driver.symlink(name("file"), Some(&open), name("link"))).unwrap();
    for number in 0..100 {
        stage.create(&format!("d/{number}-{}", "x".repeat(number)), b"");
    }
    let entries = list(&driver, &open, 512);
    assert_eq!(entries.len(), 105);
    for (name, kind) in [
        (&b"."[..], EntryKind::Directory),
        (b"..", EntryKind::Directory),
        (b"file", EntryKind::File),
        (b"sub", EntryKind::Directory),
        (b"link", EntryKind::Symlink),
    ] {
        let found = entries[name];
        assert!(found == kind || found == EntryKind::Unknown, "{name:?} is a {found:?}");
    }
    assert!(list(&driver, &open, 512).is_empty(), "the position is at the end");
}

pub fn a_directory_can_be_emptied_while_it_is_listed(stage: &Stage) {
    let driver = stage.driver();
    let open = directory(stage, &driver, "d");
    for number in 0..100 {
        stage.create(&format!("d/{number}"), b"");
    }
    let mut buf = vec![0; 512];
    let mut removed = 0;
    loop {
        let (result, back) = wait(&driver, driver.read_directory(&open, buf));
        buf = back;
        let len = result.unwrap();
        if len == 0 {
            break;
        }
        let names = DirectoryEntries::new(&buf[..len]).map(|entry| entry.name.to_vec());
        for name in names.filter(|name| !name.starts_with(b".")) {
            let name = CString::new(name).unwrap();
            wait(&driver, driver.unlink(Some(&open), name, 0)).unwrap();
            removed += 1;
        }
    }
    assert_eq!(removed, 100);
    let flags = AtFlags::REMOVEDIR.bits();
    wait(&driver, driver.unlink(None, stage.path("d"), flags)).unwrap();
    let (result, _) = wait(&driver, driver.read_directory(&open, buf));
    assert_eq!(errno(result), Errno::NOENT, "the directory is gone");
}

pub fn what_cannot_be_listed_is_refused(stage: &Stage) {
    let driver = stage.driver();
    let file = stage.file(&driver, "file", b"");
    let (result, buf) = wait(&driver, driver.read_directory(&file, vec![7; 512]));
    assert_eq!((errno(result), buf.len()), (Errno::NOTDIR, 512));
    let open = directory(stage, &driver, "d");
    let (result, _) = wait(&driver, driver.read_directory(&open, vec![0; 8]));
    assert_eq!(errno(result), Errno::INVAL, "no entry fits");
}

pub fn a_link_tells_where_it_points_to(stage: &Stage) {
    let driver = stage.driver();
    let open = directory(stage, &driver, "d");
    wait(&driver, driver.symlink(name("some/where"), Some(&open), name("link"))).unwrap();
    let readlink =
        |path: &str, len| wait(&driver, driver.readlink(Some(&open), name(path), vec![b'.'; len]));
    let (result, buf) = readlink("link", 16);
    assert_eq!((result.unwrap(), &buf[..]), (10, &b"some/where......"[..]));
    let (result, buf) = readlink("link", 4);
    assert_eq!((result.unwrap(), &buf[..]), (4, &b"some"[..]));
    assert_eq!(errno(readlink("link", 0).0), Errno::INVAL);
    assert_eq!(errno(readlink("none", 4).0), Errno::NOENT);
    assert_eq!(errno(readlink(".", 4).0), Errno::INVAL);
}

pub fn permissions_are_set(stage: &Stage) {
    let driver = stage.driver();
    let file = stage.file(&driver, "file", b"");
    let mode = || wait(&driver, driver.statx_fd(&file)).unwrap().mode & 0o7777;
    wait(&driver, driver.chmod(None, stage.path("file"), 0o640, 0)).unwrap();
    assert_eq!(mode(), 0o640);
    wait(&driver, driver.chmod_fd(&file, 0o4701)).unwrap();
    assert_eq!(mode(), 0o4701);
    wait(&driver, driver.symlink(name("file"), None, stage.path("link"))).unwrap();
    wait(&driver, driver.chmod(None, stage.path("link"), 0o600, 0)).unwrap();
    assert_eq!(mode(), 0o600, "the link was followed");
    let itself = wait(&driver, driver.chmod(None, stage.path("link"), 0o600, NOFOLLOW));
    assert_eq!(errno(itself), Errno::OPNOTSUPP, "a link has none");
    let missing = wait(&driver, driver.chmod(None, stage.path("none"), 0o600, 0));
    assert_eq!(errno(missing), Errno::NOENT);
    let nonsense = wait(&driver, driver.chmod(None, stage.path("file"), 0o600, 1));
    assert!(matches!(errno(nonsense), Errno::INVAL | Errno::OPNOTSUPP), "before Linux 6.6");
}

pub fn owners_are_kept_or_set(stage: &Stage) {
    let driver = stage.driver();
    let file = stage.file(&driver, "file", b"");
    let owners = || {
        let stat = wait(&driver, driver.statx_fd(&file)).unwrap();
        (stat.uid, stat.gid)
    };
    let (uid, gid) = owners();
    wait(&driver, driver.chown(None, stage.path("file"), None, None, 0)).unwrap();
    wait(&driver, driver.chown_fd(&file, Some(uid), Some(gid))).unwrap();
    wait(&driver, driver.chown_fd(&file, None, Some(gid))).unwrap();
    assert_eq!(owners(), (uid, gid));
    // Only root may give a file away.
    match wait(&driver, driver.chown_fd(&file, Some(uid + 1), None)) {
        Ok(()) => assert_eq!(owners(), (uid + 1, gid)),
        result => assert_eq!((errno(result), owners()), (Errno::PERM, (uid, gid))),
    }
    wait(&driver, driver.symlink(name("none"), None, stage.path("link"))).unwrap();
    wait(&driver, driver.chown(None, stage.path("link"), None, None, NOFOLLOW)).unwrap();
    let dangling = wait(&driver, driver.chown(None, stage.path("link"), None, None, 0));
    assert_eq!(errno(dangling), Errno::NOENT);
}

pub fn times_are_set(stage: &Stage) {
    let driver = stage.driver();
    let file = stage.file(&driver, "file", b"");
    let times = || {
        let stat = wait(&driver, driver.statx_fd(&file)).unwrap();
        [stat.accessed, stat.modified].map(|time| (time.seconds, time.nanoseconds))
    };
    let to = |seconds, nanoseconds| SetTime::To(StatxTime::new(seconds, nanoseconds));
    let set = driver.utimens(None, stage.path("file"), to(1, 2), to(3, 999_999_999), 0);
    wait(&driver, set).unwrap();
    assert_eq!(times(), [(1, 2), (3, 999_999_999)]);
    wait(&driver, driver.utimens_fd(&file, SetTime::Keep, to(5, 6))).unwrap();
    assert_eq!(times(), [(1, 2), (5, 6)]);
    wait(&driver, driver.utimens_fd(&file, SetTime::Keep, SetTime::Now)).unwrap();
    let [accessed, modified] = times();
    assert!(accessed == (1, 2) && modified != (5, 6));
    let nonsense = wait(&driver, driver.utimens_fd(&file, to(0, 1_000_000_000), SetTime::Now));
    assert_eq!(errno(nonsense), Errno::INVAL);
    wait(&driver, driver.symlink(name("file"), None, stage.path("link"))).unwrap();
    let set = driver.utimens(None, stage.path("link"), to(7, 0), to(7, 0), NOFOLLOW);
    wait(&driver, set).unwrap();
    assert_eq!(times()[0], (1, 2), "the link's own");
    let set = driver.utimens(None, stage.path("none"), SetTime::Now, SetTime::Now, 0);
    assert_eq!(errno(wait(&driver, set)), Errno::NOENT);
}

pub fn bytes_are_copied_from_file_to_file(stage: &Stage) {
    let driver = stage.driver();
    let from = stage.file(&driver, "from", b"0123456789");
    let to = stage.file(&driver, "to", b"abcdef");
    let copy = |from_offset, to_offset, len| {
        wait(&driver, driver.copy_file_range(&from, from_offset, &to, to_offset, len))
    };
    assert_eq!(copy(2, 1, 3).unwrap(), 3);
    assert_eq!(stage.contents("to"), b"a234ef");
    assert_eq!(copy(8, 6, 100).unwrap(), 2, "it ends there");
    assert_eq!(stage.contents("to"), b"a234ef89");
    assert_eq!(copy(10, 0, 1).unwrap(), 0);
    for expected in [b"0134ef89", b"0123ef89"] {
        assert_eq!(copy(CURRENT_POSITION, CURRENT_POSITION, 2).unwrap(), 2);
        assert_eq!(stage.contents("to"), expected);
    }
    assert_eq!(errno(copy(1 << 63, 0, 1)), Errno::INVAL);
}

pub fn a_copy_is_refused_where_it_makes_no_sense(stage: &Stage) {
    let driver = stage.driver();
    let file = stage.file(&driver, "file", b"0123456789");
    let reader = stage.open(&driver, "file", OFlags::RDONLY);
    let appender = stage.open(&driver, "file", OFlags::WRONLY | OFlags::APPEND);
    let directory = directory(stage, &driver, "d");
    let (receiver, _sender) = stage.pipe(&driver);
    let copy = |from: &Fd, to: &Fd, to_offset| {
        errno(wait(&driver, driver.copy_file_range(from, 0, to, to_offset, 4)))
    };
    assert_eq!(copy(&file, &file, 2), Errno::INVAL, "the ranges overlap");
    assert_eq!(copy(&file, &reader, 8), Errno::BADF);
    assert_eq!(copy(&appender, &file, 8), Errno::BADF);
    assert_eq!(copy(&file, &appender, 8), Errno::BADF);
    assert_eq!(copy(&directory, &file, 0), Errno::ISDIR);
    assert_eq!(copy(&receiver, &file, 0), Errno::INVAL);
    let copied = driver.copy_file_range(&file, 0, &file, 4, 4);
    assert_eq!(wait(&driver, copied).unwrap(), 4);
    assert_eq!(stage.contents("file"), b"0123012389");
}

pub fn a_file_system_is_synced_and_described(stage: &Stage) {
    let driver = stage.driver();
    let file = stage.file(&driver, "file", b"");
    wait(&driver, driver.syncfs(&file)).unwrap();
    let statfs = wait(&driver, driver.statfs(&file)).unwrap();
    assert!(statfs.magic != 0 && statfs.block_size > 0 && statfs.blocks > 0);
    assert_eq!(statfs.name_bytes_max, 255);
    let directory = directory(stage, &driver, "d");
    assert_eq!(wait(&driver, driver.statfs(&directory)).unwrap().magic, statfs.magic);
}

pub fn a_lock_keeps_others_out(stage: &Stage) {
    let driver = stage.driver();
    let file = stage.file(&driver, "file", b"");
    let [other, third] = [0, 1].map(|_| stage.open(&driver, "file", OFlags::RDONLY));
    let lock = |fd: &Fd, operation| wait(&driver, driver.flock(fd, operation));
    lock(&file, LOCK_SH).unwrap();
    lock(&other, LOCK_SH).unwrap();
    assert_eq!(errno(lock(&third, LOCK_EX | LOCK_NB)), Errno::AGAIN);
    lock(&other, LOCK_UN).unwrap();
    lock(&file, LOCK_EX).unwrap();
    assert_eq!(errno(lock(&third, LOCK_SH | LOCK_NB)), Errno::AGAIN);
    assert_eq!(errno(lock(&file, 0)), Errno::INVAL);
    let mut waiting = driver.flock(&third, LOCK_EX);
    settle(&driver);
    assert!(waiting.try_take().is_none());
    // The lock that waits holds up no other operation.
    assert_eq!(wait(&driver, driver.write(&file, "x", 0)).0.unwrap(), 1);
    wait(&driver, driver.close(file)).unwrap();
    wait(&driver, waiting).unwrap();
    assert_eq!(errno(lock(&other, LOCK_SH | LOCK_NB)), Errno::AGAIN);
}

pub fn a_dropped_lock_ends_with_its_descriptor(stage: &Stage) {
    let driver = stage.driver();
    let file = stage.file(&driver, "file", b"");
    let other = stage.open(&driver, "file", OFlags::RDONLY);
    wait(&driver, driver.flock(&file, LOCK_EX)).unwrap();
    let waiting = driver.flock(&other, LOCK_EX);
    settle(&driver);
    drop(waiting);
    drop(other);
    settle(&driver);
    wait(&driver, driver.flock(&file, LOCK_UN)).unwrap();
    turn_until(&driver, || driver.live_operations() == 0);
    wait(&driver, driver.flock(&file, LOCK_EX)).unwrap();
}

pub fn extended_attributes_are_kept(stage: &Stage) {
    let driver = stage.driver();
    let file = stage.file(&driver, "file", b"");
    let set = |value: &str, flags| {
        let value = value.as_bytes().to_vec();
        wait(&driver, driver.set_xattr(&file, name("user.sakia"), value, flags))
    };
    let get = |attribute: &str, len| {
        wait(&driver, driver.get_xattr(&file, name(attribute), vec![b'.'; len]))
    };
    let (create, replace) = (1, 2);
    match set("x", replace) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::OPNOTSUPP) => {
            let denied = std::env::var_os("SAKIA_DENY_SKIPS").is_some();
            assert!(!denied, "skips are denied, and the file system has no extended attributes");
            return eprintln!("SKIP: the file system has no extended attributes");
        }
        result => assert_eq!(errno(result), Errno::NODATA),
    }
    set("value", create).unwrap();
    assert_eq!(errno(set("again", create)), Errno::EXIST);
    set("other", replace).unwrap();
    let (result, buf) = get("user.sakia", 8);
    assert_eq!((result.unwrap(), &buf[..]), (5, &b"other..."[..]));
    assert_eq!(get("user.sakia", 0).0.unwrap(), 5);
    assert_eq!(errno(get("user.sakia", 4).0), Errno::RANGE);
    assert_eq!(errno(get("user.none", 8).0), Errno::NODATA);
    let (result, buf) = wait(&driver, driver.list_xattr(&file, vec![0; 512]));
    let listed = &buf[..result.unwrap()];
    assert!(listed.split(|&byte| byte == 0).any(|found| found == b"user.sakia"));
    let remove = || wait(&driver, driver.remove_xattr(&file, name("user.sakia")));
    remove().unwrap();
    assert_eq!(errno(remove()), Errno::NODATA);
}

/// The bytes between the end of each name and the next record. Inode numbers and positions, which the kernel
/// chooses, are left out: they may hold any byte.
fn gaps(records: &[u8]) -> Vec<u8> {
    const NAME: usize = 19;
    let mut rest = records;
    let mut gaps = Vec::new();
    while !rest.is_empty() {
        let length = usize::from(u16::from_ne_bytes([rest[16], rest[17]]));
        let (record, after) = rest.split_at(length);
        let end = record[NAME..].iter().position(|&byte| byte == 0).expect("a name ends");
        gaps.extend_from_slice(&record[NAME + end..]);
        rest = after;
    }
    gaps
}

pub fn names_and_links_are_read_into_capacity(stage: &Stage) {
    let driver = stage.driver();
    let open = directory(stage, &driver, "d");
    wait(&driver, driver.symlink(name("some/where"), Some(&open), name("link"))).unwrap();
    let readlink = |buf| wait(&driver, driver.readlink(Some(&open), name("link"), buf));
    let (result, buf) = readlink(Vec::with_capacity(64));
    assert_eq!((result.unwrap(), &buf[..]), (10, &b"some/where"[..]));
    assert_eq!(errno(readlink(Vec::new()).0), Errno::INVAL);
    let (result, _) = wait(&driver, driver.read_directory(&open, Vec::new()));
    assert_eq!(errno(result), Errno::INVAL);
    let mut used = vec![0xee; 512];
    used.clear();
    let (result, buf) = wait(&driver, driver.read_directory(&open, used));
    assert_eq!(result.unwrap(), buf.len());
    assert!(!gaps(&buf).contains(&0xee), "the gaps between records show what was there before");
    assert!(DirectoryEntries::new(&buf).any(|entry| entry.name == b"link"));
    let file = stage.file(&driver, "file", b"");
    let set = driver.set_xattr(&file, name("user.sakia"), b"value".to_vec(), 0);
    if let Err(error) = wait(&driver, set) {
        assert_eq!(Errno::from_io_error(&error), Some(Errno::OPNOTSUPP));
        return; // the case of extended attributes reports the skip
    }
    let get = |buf| wait(&driver, driver.get_xattr(&file, name("user.sakia"), buf));
    let (result, buf) = get(Vec::with_capacity(64));
    assert_eq!((result.unwrap(), &buf[..]), (5, &b"value"[..]));
    let (result, buf) = get(Vec::new());
    assert_eq!((result.unwrap(), buf.len()), (5, 0), "without room the call returns the length");
    let (result, buf) = wait(&driver, driver.list_xattr(&file, Vec::with_capacity(512)));
    assert_eq!(result.unwrap(), buf.len());
    assert!(buf.split(|&byte| byte == 0).any(|found| found == b"user.sakia"));
}

pub fn plain_calls_have_counts(stage: &Stage) {
    let driver = stage.driver();
    let file = stage.file(&driver, "file", b"");
    wait(&driver, driver.flock(&file, LOCK_SH)).unwrap();
    wait(&driver, driver.syncfs(&file)).unwrap();
    wait(&driver, driver.statfs(&file)).unwrap();
    wait(&driver, driver.chmod_fd(&file, 0o600)).unwrap();
    wait(&driver, driver.chown_fd(&file, None, None)).unwrap();
    wait(&driver, driver.utimens_fd(&file, SetTime::Now, SetTime::Now)).unwrap();
    wait(&driver, driver.copy_file_range(&file, 0, &file, 8, 1)).unwrap();
    let open = directory(stage, &driver, "d");
    list(&driver, &open, 512);
    let (result, _) = wait(&driver, driver.readlink(None, stage.path("file"), vec![0; 8]));
    assert_eq!(errno(result), Errno::INVAL);
    let counters = driver.counters();
    for (kind, expected) in [
        (OpKind::Lock, 1),
        (OpKind::Fsync, 1),
        (OpKind::Statx, 1),
        (OpKind::Attribute, 3),
        (OpKind::Copy, 1),
        (OpKind::List, 2),
        (OpKind::Readlink, 1),
        (OpKind::Other, 0),
    ] {
        stage.assert_count(kind, counters.of(kind), expected);
        if stage.counts_ways() && !stage.bypasses() {
            assert_eq!(counters.of(kind).lane, expected, "{}", kind.name());
        }
    }
}
