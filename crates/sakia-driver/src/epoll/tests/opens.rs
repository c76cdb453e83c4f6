//! Opens: those that never wait, those that may, and paths that do not exist.

use std::os::unix::fs::symlink;

use rustix::fs::fcntl_getfl;

use super::*;
use crate::{Lane, StuckWorker};

#[test]
fn files_are_opened_as_asked_for() {
    let (dir, mut test) = (TempDir::new(), Loop::new());
    let path = dir.file("file", b"abc");
    symlink(&path, dir.join("link")).unwrap();
    for (name, flags) in [
        ("file", OFlags::RDONLY),
        ("file", OFlags::RDWR | OFlags::APPEND),
        ("link", OFlags::RDONLY),
        ("new", OFlags::WRONLY | OFlags::CREATE),
        ("new", OFlags::WRONLY | OFlags::CREATE),
        ("newer", OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL),
        ("file", OFlags::RDONLY | OFlags::NONBLOCK),
        ("", OFlags::RDONLY | OFlags::DIRECTORY),
        ("", OFlags::RDONLY),
    ] {
        let ours = test.open(&dir.join(name), flags).unwrap();
        let theirs = rustix::fs::open(dir.join(name), flags - OFlags::EXCL, 0o640.into()).unwrap();
        assert_eq!(fcntl_getfl(&ours), fcntl_getfl(&theirs), "{name} {flags:?}");
    }
    assert_eq!(test.epoll.statistics(Lane::Elastic).threads_peak, 0, "nothing here can wait");
    drop(test.open(&path, OFlags::WRONLY | OFlags::TRUNC).unwrap());
    assert_eq!(std::fs::read(&path).unwrap(), b"");
}

#[test]
fn opens_fail_as_the_calls_do() {
    let (dir, mut test) = (TempDir::new(), Loop::new());
    let path = dir.file("file", b"abc");
    symlink("loop", dir.join("loop")).unwrap();
    symlink("missing", dir.join("dangling")).unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(dir.join("socket")).unwrap();
    let long = "x".repeat(256);
    for (name, flags) in [
        ("missing", OFlags::RDONLY),
        ("dangling", OFlags::RDONLY),
        ("loop", OFlags::RDONLY),
        ("loop", OFlags::RDONLY | OFlags::NOFOLLOW),
        ("file/x", OFlags::RDONLY),
        ("file", OFlags::RDONLY | OFlags::DIRECTORY),
        ("file", OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL),
        ("", OFlags::WRONLY),
        ("socket", OFlags::RDONLY),
        (&long, OFlags::RDONLY),
        ("missing/x", OFlags::WRONLY | OFlags::CREATE),
    ] {
        let theirs = rustix::fs::open(dir.join(name), flags, 0o640.into()).unwrap_err();
        let ours = test.open(&dir.join(name), flags).unwrap_err();
        assert_eq!(ours, theirs, "{name} {flags:?}");
    }
    let relative = Lendable::new(b"x\0");
    let bad_dir = Sqe::openat(-1, relative.ptr(), 0, 0);
    assert_eq!(test.run(bad_dir), err(Errno::BADF));
    let file = test.open(&path, OFlags::RDONLY).unwrap();
    let not_dir = Sqe::openat(file.as_raw_fd(), relative.ptr(), 0, 0);
    assert_eq!(test.run(not_dir), err(Errno::NOTDIR));
    let empty = Lendable::new(b"\0");
    assert_eq!(test.run(Sqe::openat(AT_FDCWD, empty.ptr(), 0, 0)), err(Errno::NOENT));
    let mut direct = Sqe::openat(AT_FDCWD, empty.ptr(), 0, 0);
    direct.file_index = 1;
    assert_eq!(test.run(direct), err(Errno::INVAL));
}

#[test]
fn a_created_file_has_its_mode_and_dangling_links_are_followed() {
    use std::os::unix::fs::PermissionsExt;
    let (dir, mut test) = (TempDir::new(), Loop::new());
    symlink("target", dir.join("dangling")).unwrap();
    drop(test.open(&dir.join("dangling"), OFlags::CREATE | OFlags::WRONLY).unwrap());
    let mode = std::fs::metadata(dir.join("target")).unwrap().permissions().mode();
    assert_eq!(mode & 0o700, 0o600, "whatever the mask took away of the rest");
}

/// The reader's open must not return before there is a writer, nor make a writer's open return too early.
#[test]
fn opening_a_fifo_waits_for_the_other_side_and_delays_nothing() {
    let (dir, mut test) = (TempDir::new(), Loop::new());
    let (fifo, path) = (dir.fifo("fifo"), dir.file("file", b"abc"));
    let lent = Lendable::path(&fifo);
    test.push(1, Sqe::openat(AT_FDCWD, lent.ptr(), OFlags::CLOEXEC.bits(), 0));
    test.turn_until(|test| test.epoll.statistics(Lane::Elastic).running == 1);
    let file = test.open(&path, OFlags::RDONLY).unwrap();
    let buffer = Lendable::zeroed(3);
    assert_eq!(test.run(read(&file, &buffer, 0)), 3);
    let early = rustix::fs::open(&fifo, OFlags::WRONLY | OFlags::NONBLOCK, 0.into());
    assert_eq!(early.map(|_| ()), Ok(()), "the waiting open counts as a reader");
    let opened = test.enter(1);
    // SAFETY: the operation has just opened it.
    drop(unsafe { OwnedFd::from_raw_fd(opened[0].1) });
}

#[test]
fn both_sides_of_a_fifo_meet() {
    let (dir, mut test) = (TempDir::new(), Loop::new());
    let lent = Lendable::path(&dir.fifo("fifo"));
    let flags = |access: OFlags| (access | OFlags::CLOEXEC).bits();
    test.push(1, Sqe::openat(AT_FDCWD, lent.ptr(), flags(OFlags::RDONLY), 0));
    test.push(2, Sqe::openat(AT_FDCWD, lent.ptr(), flags(OFlags::WRONLY), 0));
    let mut ends = test.enter(2);
    ends.sort_unstable();
    // SAFETY: the operations have just opened them.
    let [reader, writer] = [0, 1].map(|index| unsafe { OwnedFd::from_raw_fd(ends[index].1) });
    for end in [&reader, &writer] {
        assert!(!fcntl_getfl(end).unwrap().contains(OFlags::NONBLOCK));
    }
    let (out, back) = (Lendable::new(b"hi"), Lendable::zeroed(2));
    assert_eq!(test.run(send(&writer, &out)), 2);
    assert_eq!(test.run(receive(&reader, &back)), 2);
    assert_eq!(back.copy(), b"hi");
}

#[test]
fn a_full_elastic_lane_queues_its_own_and_nothing_else() {
    let dir = TempDir::new();
    let mut test = Loop::with(EpollOptions::new().threads_max(Lane::Elastic, 1));
    let fifos: Vec<_> = (0..3).map(|index| dir.fifo(&index.to_string())).collect();
    let paths: Vec<_> = fifos.iter().map(|path| Lendable::path(path)).collect();
    for (index, path) in paths.iter().enumerate() {
        test.push(index as u64, Sqe::openat(AT_FDCWD, path.ptr(), OFlags::CLOEXEC.bits(), 0));
    }
    test.turn_until(|test| {
        let elastic = test.epoll.statistics(Lane::Elastic);
        (elastic.running, elastic.queued, elastic.threads) == (1, 2, 1)
    });
    let path = dir.file("file", b"abc");
    for _ in 0..100 {
        drop(test.open(&path, OFlags::RDONLY).unwrap());
    }
    // The opens run one after another, in the order of admission or of arrival from the bounded lane.
    let ends: Vec<_> = fifos.iter().map(|path| open_both_ends(path)).collect();
    let mut opened = test.enter(3);
    opened.sort_unstable();
    for (index, &(user_data, raw)) in opened.iter().enumerate() {
        assert_eq!(user_data, index as u64);
        // SAFETY: the operation has just opened it.
        drop(unsafe { OwnedFd::from_raw_fd(raw) });
    }
    drop(ends);
    let elastic = test.epoll.statistics(Lane::Elastic);
    assert_eq!((elastic.finished, elastic.threads_peak), (3, 1));
}

#[test]
fn a_stuck_open_is_found_once() {
    const LIMIT: Duration = Duration::from_millis(5);
    let (dir, mut test) = (TempDir::new(), Loop::new());
    let mut found: Vec<StuckWorker> = Vec::new();
    assert_eq!(test.epoll.find_stuck(LIMIT, &mut found), None, "nothing could get stuck");
    let fifo = dir.fifo("fifo");
    let lent = Lendable::path(&fifo);
    test.push(7, Sqe::openat(AT_FDCWD, lent.ptr(), OFlags::CLOEXEC.bits(), 0));
    // On a slow machine the job may first be reported as stuck on the bounded lane, too.
    let mut next = None;
    let count = |found: &[StuckWorker], user_data| {
        let its =
            |stuck: &&StuckWorker| (stuck.lane, stuck.user_data) == (Lane::Elastic, user_data);
        found.iter().filter(its).count()
    };
    while count(&found, 7) == 0 {
        test.epoll.enter(1, Some(next.unwrap_or(LIMIT)), None).unwrap();
        next = test.epoll.find_stuck(LIMIT, &mut found);
    }
    let stuck = *found.last().unwrap();
    assert_eq!((stuck.user_data, stuck.kind), (7, crate::OpKind::Open));
    assert_eq!(next, None, "nothing else could get stuck");
    let elastic = test.epoll.statistics(Lane::Elastic);
    assert_eq!((elastic.stuck, elastic.running), (1, 1));
    assert!(elastic.oldest_running.unwrap() >= stuck.running_for);
    // The first job would have been reported again before another one is stuck.
    let other = dir.fifo("other");
    let lent_too = Lendable::path(&other);
    test.push(8, Sqe::openat(AT_FDCWD, lent_too.ptr(), OFlags::CLOEXEC.bits(), 0));
    while count(&found, 8) == 0 {
        test.epoll.enter(1, Some(LIMIT), None).unwrap();
        test.epoll.find_stuck(LIMIT, &mut found);
    }
    assert_eq!((count(&found, 7), count(&found, 8)), (1, 1), "once is enough");
    let _ends = [open_both_ends(&fifo), open_both_ends(&other)];
    for (_, raw) in test.enter(2) {
        // SAFETY: the operation has just opened it.
        drop(unsafe { OwnedFd::from_raw_fd(raw) });
    }
}
