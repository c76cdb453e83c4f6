//! Durability, and the disk after a crash.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;

use rustix::fs::OFlags;
use rustix::io::Errno;
use sakia_ring::{AT_FDCWD, Opcode, Sqe};

use super::super::kernel::Kernel;
use super::super::random::Random;
use super::super::tree::{InodeId, Last, Place, Time, Tree};
use super::super::{Disk, Fault, FaultKind, Routes, Sim, SimBuilder, Target};
use super::{Lendable, Loop, SEEDS, calls, err, read, write};
use crate::call::Function;

const RWF_DSYNC: u32 = 0x2;
const RWF_SYNC: u32 = 0x4;
/// The size of a page in bytes.
const PAGE: usize = 4096;

fn inline(builder: SimBuilder) -> Loop {
    Loop::new(builder.routes(Routes::INLINE))
}

fn path(name: &str) -> CString {
    CString::new(name).unwrap()
}

fn create(ring: &mut Loop, name: &str) -> i32 {
    let fd = ring.open(&path(name), OFlags::RDWR | OFlags::CREATE);
    assert!(fd >= 0, "{fd}");
    fd
}

/// Opens the root directory.
fn root(ring: &mut Loop) -> i32 {
    ring.open(c"/", OFlags::RDONLY | OFlags::DIRECTORY)
}

fn fsync(ring: &mut Loop, fd: i32) {
    assert_eq!(ring.run(Sqe::fsync(fd, false)), 0);
}

fn put(ring: &mut Loop, fd: i32, bytes: &[u8], offset: u64) {
    let bytes = Lendable::new(bytes);
    assert_eq!(ring.run(write(fd, &bytes, offset)), bytes.len() as i32);
}

fn rename(ring: &mut Loop, from: &str, to: &str) {
    let (from, to) = (path(from), path(to));
    let sqe = Sqe::renameat(AT_FDCWD, from.as_ptr().cast(), AT_FDCWD, to.as_ptr().cast(), 0);
    assert_eq!(ring.run(sqe), 0);
}

fn unlink(ring: &mut Loop, name: &str) {
    let name = path(name);
    assert_eq!(ring.run(Sqe::unlinkat(AT_FDCWD, name.as_ptr().cast(), 0)), 0);
}

/// Returns the names in the root, and the files' first bytes.
fn listing(disk: &Disk) -> String {
    let names = disk.names("/").unwrap().into_iter().map(|name| {
        let content = disk.contents(&name).unwrap_or_default();
        let first = content.first().map(|&byte| char::from(byte)).unwrap_or('-');
        format!("{}{first}", String::from_utf8(name).unwrap())
    });
    names.collect::<Vec<_>>().join(" ")
}

/// Returns the possible states after a crash now.
fn outcomes<T: Ord>(ring: &Loop, look: impl Fn(&Disk) -> T) -> BTreeSet<T> {
    (0..200).map(|_| look(&ring.handle.crash())).collect()
}

#[test]
fn what_a_test_sets_up_is_there() {
    let ring = Loop::inline();
    ring.handle.create_directory("d");
    ring.handle.create_file("d/file", "content");
    let contents = outcomes(&ring, |disk| disk.contents("d/file"));
    assert_eq!(contents, BTreeSet::from([Some(b"content".to_vec())]));
    assert_eq!(ring.handle.crash().names("d").unwrap(), [b"file"]);
    assert_eq!(ring.handle.crash().names("d/file"), None);
    assert_eq!(ring.handle.crash().contents("d"), None);
}

#[test]
fn a_new_file_needs_its_own_sync_and_that_of_its_directory() {
    let mut ring = Loop::inline();
    let (root, fd) = (root(&mut ring), create(&mut ring, "f"));
    put(&mut ring, fd, b"x", 0);
    assert_eq!(outcomes(&ring, listing), ["", "f-", "fx", "f\0"].map(String::from).into());
    fsync(&mut ring, fd);
    assert_eq!(outcomes(&ring, listing), ["", "fx"].map(String::from).into());
    fsync(&mut ring, root);
    assert_eq!(outcomes(&ring, listing), ["fx"].map(String::from).into());

    // The other way round, and with the lesser sync.
    let fd = create(&mut ring, "g");
    put(&mut ring, fd, b"y", 0);
    assert_eq!(ring.run(Sqe::fsync(root, true)), 0);
    assert_eq!(outcomes(&ring, listing), ["fx g-", "fx gy", "fx g\0"].map(String::from).into());
    assert_eq!(ring.run(Sqe::fsync(fd, true)), 0);
    assert_eq!(outcomes(&ring, listing), ["fx gy"].map(String::from).into());
}

#[test]
fn names_change_in_order_and_renames_at_once() {
    let mut ring = Loop::inline();
    for name in ["a", "b"] {
        ring.handle.create_file(name, name);
    }
    rename(&mut ring, "a", "b");
    rename(&mut ring, "b", "c");
    unlink(&mut ring, "c");
    let expected = ["aa bb", "ba", "ca", ""].map(String::from);
    assert_eq!(outcomes(&ring, listing), expected.into());
    let root = root(&mut ring);
    fsync(&mut ring, root);
    assert_eq!(outcomes(&ring, listing), [String::new()].into());
}

#[test]
fn a_sync_of_a_directory_is_for_what_came_before_too() {
    let mut ring = Loop::inline();
    for name in ["d", "e"] {
        ring.handle.create_directory(name);
    }
    let d = ring.open(c"d", OFlags::RDONLY | OFlags::DIRECTORY);
    create(&mut ring, "e/before");
    create(&mut ring, "d/new");
    create(&mut ring, "e/after");
    fsync(&mut ring, d);
    let names = outcomes(&ring, |disk| (disk.names("d"), disk.names("e").unwrap().len()));
    let new = Some(vec![b"new".to_vec()]);
    assert_eq!(names, BTreeSet::from([(new.clone(), 1), (new, 2)]));
}

#[test]
fn a_durable_write_is_durable_and_nothing_else() {
    for flags in [RWF_DSYNC, RWF_SYNC] {
        let mut ring = Loop::inline();
        ring.handle.create_file("f", [b'o'; 2 * PAGE]);
        let fd = ring.open(c"f", OFlags::RDWR);
        put(&mut ring, fd, &[b'x'; PAGE], 0);
        let bytes = Lendable::new(&[b'y'; 10]);
        assert_eq!(ring.run(write(fd, &bytes, PAGE as u64).op_flags(flags)), 10);
        let firsts = outcomes(&ring, |disk| {
            let content = disk.contents("f").unwrap();
            assert_eq!(content[PAGE..PAGE + 10], [b'y'; 10]);
            content[0]
        });
        assert_eq!(firsts, BTreeSet::from([b'o', b'x']));
    }
}

#[test]
fn a_sync_of_a_range_is_for_its_bytes() {
    let mut ring = Loop::inline();
    ring.handle.create_file("f", [b'o'; 3 * PAGE]);
    let fd = ring.open(c"f", OFlags::RDWR);
    put(&mut ring, fd, &[b'x'; 3 * PAGE], 0);
    assert_eq!(ring.run(Sqe::fsync_range(fd, PAGE as u64, 10)), 0);
    let bytes = outcomes(&ring, |disk| {
        let content = disk.contents("f").unwrap();
        [content[0], content[PAGE], content[2 * PAGE]]
    });
    let expected = [[b'o', b'o'], [b'o', b'x'], [b'x', b'o'], [b'x', b'x']];
    assert_eq!(bytes, expected.map(|[first, last]| [first, b'x', last]).into());
    assert_eq!(ring.run(Sqe::fsync_range(fd, 0, 0)), 0);
    assert_eq!(outcomes(&ring, |disk| disk.contents("f")), [Some(vec![b'x'; 3 * PAGE])].into());
}

#[test]
fn files_opened_to_be_durable_are() {
    for flag in [OFlags::DSYNC, OFlags::SYNC] {
        let mut ring = Loop::inline();
        ring.handle.create_file("from", "copied");
        ring.handle.create_file("f", "");
        let (from, fd) = (ring.open(c"from", OFlags::RDONLY), ring.open(c"f", OFlags::RDWR | flag));
        put(&mut ring, fd, b"written ", 0);
        assert_eq!(ring.run(calls::copy_file_range(from, 0, fd, 8, 6)), 6);
        let contents = outcomes(&ring, |disk| disk.contents("f").unwrap());
        assert_eq!(contents, BTreeSet::from([b"written copied".to_vec()]));
    }
}

#[test]
fn everything_that_changes_a_file_needs_a_sync() {
    type Change = fn(&mut Loop, i32) -> i32;
    let changes: [(&str, Change); 5] = [
        ("truncation", |ring, fd| ring.run(Sqe::ftruncate(fd, 1))),
        ("growth", |ring, fd| ring.run(Sqe::ftruncate(fd, 9))),
        ("allocation", |ring, fd| ring.run(Sqe::fallocate(fd, 0, 0, 9))),
        ("hole", |ring, fd| ring.run(Sqe::fallocate(fd, 0x1 | 0x2, 0, 2))),
        ("copy", |ring, fd| ring.run(calls::copy_file_range(fd, 0, fd, 3, 3)) - 3),
    ];
    for (name, change) in changes {
        let mut ring = Loop::inline();
        ring.handle.create_file("f", "abc");
        let fd = ring.open(c"f", OFlags::RDWR);
        assert_eq!(change(&mut ring, fd), 0, "{name}");
        let seen = ring.handle.contents("f").unwrap();
        let before = outcomes(&ring, |disk| disk.contents("f").unwrap());
        assert!(before.contains(&b"abc"[..]) && before.contains(&seen), "{name}: {before:?}");
        fsync(&mut ring, fd);
        let after = outcomes(&ring, |disk| disk.contents("f").unwrap());
        assert_eq!(after, BTreeSet::from([seen]), "{name}");
    }
    let mut ring = Loop::inline();
    ring.handle.create_file("f", "abc");
    ring.open(c"f", OFlags::RDWR | OFlags::TRUNC);
    let contents = outcomes(&ring, |disk| disk.contents("f").unwrap());
    assert_eq!(contents, BTreeSet::from([b"abc".to_vec(), Vec::new()]));
}

/// Returns the permission bits of the file `f` after a crash.
fn mode(disk: &Disk) -> u32 {
    let ring = inline(Sim::builder(0).disk(disk.clone()));
    let machine = ring.sim.machine.borrow();
    machine.kernel.tree.inode(machine.kernel.lookup(b"f").unwrap()).attributes.mode
}

#[test]
fn attributes_need_the_full_sync_and_those_synced_stay() {
    let mut ring = Loop::inline();
    ring.handle.create_file("f", "abc");
    let fd = ring.open(c"f", OFlags::RDWR);
    let name = path("f");
    let chmod = |ring: &mut Loop, mode| {
        let sqe = calls::chmod(AT_FDCWD, name.as_ptr().cast(), mode as usize);
        assert_eq!(ring.run(sqe), 0);
    };
    chmod(&mut ring, 0o600);
    chmod(&mut ring, 0o400);
    assert_eq!(ring.run(Sqe::fsync(fd, true)), 0);
    assert_eq!(outcomes(&ring, mode), BTreeSet::from([0o644, 0o600, 0o400]));
    fsync(&mut ring, fd);
    assert_eq!(outcomes(&ring, mode), BTreeSet::from([0o400]));
    chmod(&mut ring, 0o444);
    assert_eq!(outcomes(&ring, mode), BTreeSet::from([0o400, 0o444]));
}

#[test]
fn syncfs_is_for_everything() {
    let mut ring = Loop::inline();
    let root = root(&mut ring);
    for name in ["a", "b"] {
        let fd = create(&mut ring, name);
        put(&mut ring, fd, name.as_bytes(), 0);
    }
    assert_eq!(ring.run(calls::syncfs(root)), 0);
    assert_eq!(outcomes(&ring, listing), ["aa bb".to_owned()].into());
}

#[test]
fn the_kernel_writes_back_by_itself() {
    let mut seen = BTreeSet::new();
    for seed in 0..SEEDS {
        let mut ring = inline(Sim::builder(seed).write_back(1 << 12));
        let fd = create(&mut ring, "f");
        for step in 0..10 {
            put(&mut ring, fd, &[b'0' + step; 2 * PAGE], 0);
        }
        for _ in 0..20 {
            let content = ring.handle.crash().contents("f").unwrap_or_default();
            seen.extend(content.chunks_exact(PAGE).map(|page| page[0]));
        }
    }
    assert!(seen.len() > 5, "older versions of pages: {seen:?}");

    let mut ring = inline(Sim::builder(1).write_back(u16::MAX));
    let fd = create(&mut ring, "f");
    put(&mut ring, fd, &[b'x'; 2 * PAGE], 0);
    for _ in 0..100 {
        assert_eq!(ring.run(Sqe::nop()), 0);
    }
    let contents = outcomes(&ring, |disk| disk.contents("f").unwrap());
    assert_eq!(contents, BTreeSet::from([vec![b'x'; 2 * PAGE]]), "all of it, after a while");
}

#[test]
fn a_failed_sync_says_so_once_and_has_lost_what_it_was_for() {
    let mut ring = Loop::inline();
    ring.handle.create_file("f", "old");
    let (first, second) = (ring.open(c"f", OFlags::RDWR), ring.open(c"f", OFlags::RDWR));
    put(&mut ring, first, b"new", 0);
    ring.handle.script(Target::opcode(Opcode::FSYNC), Fault::FsyncFailed);
    assert_eq!(ring.run(Sqe::fsync(first, false)), err(Errno::IO));
    let third = ring.open(c"f", OFlags::RDWR);
    assert_eq!(ring.run(Sqe::fsync(first, false)), 0, "reported already");
    assert_eq!(ring.run(Sqe::fsync(second, true)), err(Errno::IO));
    assert_eq!(ring.run(Sqe::fsync(second, true)), 0);
    assert_eq!(ring.run(Sqe::fsync(third, false)), 0, "opened after the failure was reported");
    assert_eq!(ring.run(calls::syncfs(second)), err(Errno::IO), "of the file system");
    assert_eq!(ring.run(calls::syncfs(second)), 0);
    assert_eq!(ring.handle.injected(FaultKind::FsyncFailed), 1);

    let buffer = Lendable::zeroed(3);
    assert_eq!((ring.run(read(third, &buffer, 0)), buffer.copy()), (3, b"new".to_vec()));
    let contents = outcomes(&ring, |disk| disk.contents("f").unwrap());
    assert_eq!(contents, BTreeSet::from([b"old".to_vec()]));
    put(&mut ring, third, b"N", 0);
    fsync(&mut ring, third);
    assert_eq!(ring.handle.crash().contents("f").unwrap(), b"New", "the page was written again");
}

#[test]
fn durable_writes_and_syncs_of_everything_fail_likewise() {
    let mut ring = Loop::inline();
    ring.handle.create_file("f", "old");
    let (fd, root) = (ring.open(c"f", OFlags::RDWR), root(&mut ring));
    let bytes = Lendable::new(b"new");
    ring.handle.script(Target::opcode(Opcode::WRITE), Fault::FsyncFailed);
    assert_eq!(ring.run(write(fd, &bytes, 0).op_flags(RWF_DSYNC)), err(Errno::IO));
    assert_eq!(ring.handle.contents("f").unwrap(), b"new");
    assert_eq!(ring.run(Sqe::fsync(fd, false)), 0);
    assert_eq!(ring.handle.crash().contents("f").unwrap(), b"old");
    assert_eq!(ring.run(calls::syncfs(root)), err(Errno::IO));

    put(&mut ring, fd, b"NEW", 0);
    create(&mut ring, "g");
    ring.handle.script(Target::function(Function::Syncfs), Fault::FsyncFailed);
    assert_eq!(ring.run(calls::syncfs(root)), err(Errno::IO));
    assert_eq!(ring.run(calls::syncfs(root)), 0);
    assert_eq!(ring.run(Sqe::fsync(fd, false)), err(Errno::IO), "it lost something");
    assert_eq!(listing(&ring.handle.crash()), "fo g-");

    // Names are not lost, but they are not durable either.
    create(&mut ring, "h");
    ring.handle.script(Target::opcode(Opcode::FSYNC), Fault::FsyncFailed);
    assert_eq!(ring.run(Sqe::fsync(root, false)), err(Errno::IO));
    assert_eq!(outcomes(&ring, listing), ["fo g-", "fo g- h-"].map(String::from).into());
    fsync(&mut ring, root);
    assert_eq!(listing(&ring.handle.crash()), "fo g- h-");
    assert_eq!(ring.handle.injected(FaultKind::FsyncFailed), 3);
    // A write that is not durable does not fail for this reason.
    ring.handle.script(Target::opcode(Opcode::WRITE), Fault::FsyncFailed);
    put(&mut ring, fd, b"xyz", 0);
    assert_eq!(ring.handle.injected(FaultKind::FsyncFailed), 3);
}

#[test]
fn syncs_fail_by_chance() {
    let mut ring = inline(Sim::builder(3).fault(FaultKind::FsyncFailed, 1 << 15));
    let fd = create(&mut ring, "f");
    let results = (0..50).map(|_| ring.run(Sqe::fsync(fd, false)));
    let failed = results.filter(|&result| result == err(Errno::IO)).count() as u64;
    assert!((10..40).contains(&failed), "{failed}");
    assert_eq!(ring.handle.injected(FaultKind::FsyncFailed), failed);
}

#[test]
fn a_full_disk_takes_what_it_can() {
    let mut ring = inline(Sim::builder(1).disk_bytes_max(3 * PAGE as u64));
    let (a, b) = (create(&mut ring, "a"), create(&mut ring, "b"));
    put(&mut ring, a, &[1; PAGE + 1], 0);
    let bytes = Lendable::new(&[2; 2 * PAGE]);
    assert_eq!(ring.run(write(b, &bytes, 0)), PAGE as i32, "as much as there is room for");
    assert_eq!(ring.run(write(b, &bytes, PAGE as u64)), err(Errno::NOSPC));
    assert_eq!(ring.run(Sqe::fallocate(a, 0, 0, 3 * PAGE as u64)), err(Errno::NOSPC));
    assert_eq!(ring.run(calls::copy_file_range(b, 0, a, 2 * PAGE as u64, 5)), err(Errno::NOSPC));
    put(&mut ring, a, &[3; PAGE], PAGE as u64); // in pages that the file has
    assert_eq!(ring.handle.contents("a").unwrap().len(), 2 * PAGE);
    assert_eq!(ring.run(Sqe::ftruncate(b, 1 << 20)), 0, "a hole takes no room");

    unlink(&mut ring, "a");
    assert_eq!(
        ring.run(write(b, &bytes, PAGE as u64)),
        err(Errno::NOSPC),
        "a descriptor has it open"
    );
    assert_eq!(ring.run(Sqe::close(a)), 0);
    assert_eq!(ring.run(write(b, &bytes, PAGE as u64)), 2 * PAGE as i32);
    let punch = Sqe::fallocate(b, 0x1 | 0x2, 0, PAGE as u64);
    assert_eq!(ring.run(punch), 0);
    // After a crash there is as much space as before.
    assert_eq!(ring.run(Sqe::fsync(b, false)), 0);
    let next = Sim::builder(1).disk(ring.handle.crash()).disk_bytes_max(3 * PAGE as u64);
    let mut next = inline(next);
    let fd = create(&mut next, "b");
    assert_eq!(next.run(write(fd, &bytes, 1 << 20)), PAGE as i32);

    let statfs = Lendable::zeroed(120);
    assert_eq!(ring.run(calls::statfs(b, statfs.ptr())), 0);
    let field = |index: usize| statfs.copy()[index * 8];
    assert_eq!((field(2), field(3), field(4)), (3, 1, 1));
    put(&mut ring, b, &[4; PAGE], 9 * PAGE as u64);
}

#[test]
fn another_kernel_goes_on_from_the_disk() {
    let mut ring = Loop::inline();
    for name in ["d", "d/e", "gone"] {
        ring.handle.create_directory(name);
    }
    ring.handle.create_file("d/e/f", "content");
    let (from, to) = (path("d/e/f"), path("link"));
    let at = AT_FDCWD;
    assert_eq!(ring.run(Sqe::linkat(at, from.as_ptr().cast(), at, to.as_ptr().cast(), 0)), 0);
    assert_eq!(ring.run(Sqe::symlinkat(c"d/e".as_ptr().cast(), at, c"s".as_ptr().cast())), 0);
    assert_eq!(ring.run(Sqe::unlinkat(at, c"gone".as_ptr().cast(), 0x200)), 0);
    rename(&mut ring, "d/e", "e");
    let root_fd = root(&mut ring);
    fsync(&mut ring, root_fd);
    let disk = ring.handle.crash();

    let mut ring = inline(Sim::builder(9).disk(disk));
    let links = |ring: &Loop, name: &str| {
        let machine = ring.sim.machine.borrow();
        machine.kernel.tree.inode(machine.kernel.lookup(name.as_bytes()).unwrap()).links
    };
    assert_eq!(["/", "d", "e", "link"].map(|name| links(&ring, name)), [4, 2, 2, 2]);
    assert_eq!(ring.handle.contents("e/../link").unwrap(), b"content");
    assert_eq!(ring.open(c"s", OFlags::RDONLY), err(Errno::NOENT), "it leads to the old place");
    // The tree is complete: names can be created, removed and listed, and a crash changes nothing.
    create(&mut ring, "e/new");
    unlink(&mut ring, "link");
    assert_eq!(links(&ring, "e/f"), 1);
    let root = root(&mut ring);
    assert_eq!(ring.run(calls::syncfs(root)), 0);
    let names = ring.handle.crash().names("e").unwrap();
    assert_eq!(names, [&b"f"[..], b"new"]);
    assert_eq!(ring.handle.open_descriptors(), 2);
}

/// Performs a finite run. Returns its loop, with the log.
fn program(builder: SimBuilder) -> Loop {
    let mut ring = inline(builder.keep_log(true));
    let (root, fd) = (root(&mut ring), create(&mut ring, "f"));
    put(&mut ring, fd, &[1; 3 * PAGE], 0);
    rename(&mut ring, "f", "g");
    fsync(&mut ring, fd);
    fsync(&mut ring, root);
    ring
}

#[test]
fn the_power_can_fail_at_every_event() {
    let whole = program(Sim::builder(5));
    assert_eq!(whole.handle.log_text().lines().count() as u64, whole.handle.events());
    assert!(whole.handle.crashed().is_none());
    let mut stages = Vec::new();
    for event in 1..=whole.handle.events() {
        let ring = program(Sim::builder(5).crash_at(event));
        let disk = ring.handle.crashed().unwrap();
        let (f, g) = (disk.contents("f"), disk.contents("g"));
        let stage = match (&f, &g) {
            (None, None) => "nothing",
            (Some(_), None) => "old name",
            (None, Some(_)) => "new name",
            _ => panic!("both names"),
        };
        if event == whole.handle.events() {
            assert_eq!(g.unwrap(), [1; 3 * PAGE]);
        }
        stages.push(stage);
    }
    stages.dedup();
    let kinds: BTreeSet<_> = stages.iter().copied().collect();
    assert_eq!(kinds.len(), 3, "{stages:?}");
    assert_eq!(stages.last(), Some(&"new name"));
}

#[test]
fn a_seed_decides_what_is_left() {
    let run = |seed| {
        let mut ring = inline(Sim::builder(seed).write_back(1 << 14));
        let fd = create(&mut ring, "f");
        put(&mut ring, fd, &[7; 9 * PAGE], 0);
        rename(&mut ring, "f", "g");
        let disks = (0..5).map(|_| {
            let disk = ring.handle.crash();
            (disk.contents("f"), disk.contents("g"))
        });
        (disks.collect::<Vec<_>>(), ring.handle.log_hash())
    };
    for seed in 0..10 {
        assert_eq!(run(seed), run(seed));
    }
    assert_ne!(run(1), run(2));
}

#[test]
fn a_long_journal_is_stored_in_part() {
    let mut ring = Loop::inline();
    let count = 1100;
    for number in 0..count {
        let fd = create(&mut ring, &format!("{number:04}"));
        assert_eq!(ring.run(Sqe::close(fd)), 0);
    }
    let fewest = outcomes(&ring, |disk| disk.names("/").unwrap().len());
    let fewest = *fewest.first().unwrap();
    assert!((76..count).contains(&fewest), "{fewest}");
}

/// Returns every path, and the number of its inode.
fn paths(tree: &Tree) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    let mut directories = vec![(String::new(), InodeId::ROOT)];
    while let Some((path, id)) = directories.pop() {
        for entry in tree.list(id, 2).unwrap() {
            let path = format!("{path}/{}", String::from_utf8(entry.name).unwrap());
            found.insert(path.clone(), entry.id.number());
            if tree.is_directory(entry.id) {
                directories.push((path, entry.id));
            }
        }
    }
    found
}

/// Changes some names, if that is possible.
fn change_names(tree: &mut Tree, random: &mut Random) {
    let mut place = || {
        let names = ["a", "b", "a/c", "a/d", "b/c", "b/d", "a/c/e"];
        let path = names[random.below(names.len() as u64) as usize];
        Place { start: InodeId::ROOT, path: path.as_bytes().to_vec() }
    };
    let (first, second, now) = (place(), place(), Time::default());
    match random.below(8) {
        0 | 1 => drop(tree.mkdir(&first, 0o755, now)),
        2 => {
            if let Ok(found) = tree.walk(&first, Last::Follow, 0) {
                tree.create(found, 0o644, now).ok();
            }
        }
        3 => drop(tree.unlink(&first, now)),
        4 => drop(tree.rmdir(&first, now)),
        5 => drop(tree.rename(&first, &second, 0, now)),
        6 => drop(tree.rename(&first, &second, 2, now)),
        _ => {
            if let Ok(id) = tree.lookup(&first, Last::NoFollow) {
                tree.link(id, &second, now).ok();
            }
        }
    }
}

#[test]
fn names_are_those_of_some_moment_since_the_last_sync() {
    let mut differences = 0;
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let mut kernel = Kernel::new(&Sim::builder(seed));
        // The names at each moment, beginning with the durable one.
        let mut moments = vec![paths(&kernel.tree)];
        for _ in 0..40 {
            change_names(&mut kernel.tree, &mut random);
            moments.push(paths(&kernel.tree));
            if random.below(10) == 0 {
                kernel.tree.store_names();
                moments.drain(..moments.len() - 1);
            }
            let disk = kernel.crash();
            let left = paths(&disk.tree());
            assert!(moments.contains(&left), "seed {seed}: {left:?}");
            differences += u32::from(left != *moments.last().unwrap());
            // A kernel that starts with this disk finds a consistent tree.
            assert_eq!(links_by_counting(&disk.tree()), links(&disk.tree()), "seed {seed}");
        }
    }
    assert!(differences > 1000, "{differences}");
}

/// Returns the link counts in the inodes, by path.
fn links(tree: &Tree) -> BTreeMap<u64, u32> {
    let ids = paths(tree).into_keys().map(|path| {
        let place = Place { start: InodeId::ROOT, path: path.into_bytes() };
        tree.lookup(&place, Last::NoFollow).unwrap()
    });
    ids.map(|id| (id.number(), tree.inode(id).links)).collect()
}

fn links_by_counting(tree: &Tree) -> BTreeMap<u64, u32> {
    let mut links = BTreeMap::new();
    for (path, number) in paths(tree) {
        let place = Place { start: InodeId::ROOT, path: path.clone().into_bytes() };
        let id = tree.lookup(&place, Last::NoFollow).unwrap();
        *links.entry(number).or_default() += 1 + u32::from(tree.is_directory(id));
        let above = Place { start: id, path: b"..".to_vec() };
        if tree.is_directory(id) {
            let parent = tree.lookup(&above, Last::NoFollow).unwrap();
            if parent != InodeId::ROOT {
                *links.entry(parent.number()).or_default() += 1;
            }
        }
    }
    links
}
