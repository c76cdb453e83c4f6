//! Operations on names and on open files, as entries.

use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;
use sakia_ring::{AT_FDCWD, Sqe};

use super::super::{Routes, Sim};
use super::{Lendable, Loop, calls, err};
use crate::backend::Backend;

fn path(name: &str) -> Lendable {
    Lendable::new(format!("{name}\0").as_bytes())
}

#[test]
fn paths_are_copied_when_the_entry_is_consumed() {
    let mut ring = Loop::routed(Routes::DEFERRED);
    ring.handle.create_file("a", "kept");
    let (from, to) = (path("a"), path("b"));
    ring.push(1, Sqe::renameat(AT_FDCWD, from.ptr(), AT_FDCWD, to.ptr(), 0));
    assert_eq!(ring.submit(), []);
    drop((from, to)); // a driver must not; the kernel has copied them
    assert_eq!(ring.enter(1), [(1, 0)]);
    assert_eq!(ring.handle.contents("b").unwrap(), b"kept");
    assert_eq!(ring.handle.contents("a"), None);
}

#[test]
fn names_are_removed_at_once_for_destructors() {
    let mut ring = Loop::routed(Routes::DEFERRED);
    for name in ["d", "d/e"] {
        ring.handle.create_directory(name);
    }
    ring.handle.create_file("d/f", "");
    ring.push(1, Sqe::openat(AT_FDCWD, c"d".as_ptr().cast(), OFlags::DIRECTORY.bits(), 0));
    let (_, directory) = ring.enter(1)[0];
    let calls = ring.sim.calls();
    // SAFETY: a number of the simulated kernel.
    unsafe { calls.unlink(directory, c"f") }.unwrap();
    assert_eq!(ring.handle.contents("d/f"), None);
    for (raw, name, errno) in
        [(directory, c"f", Errno::NOENT), (directory, c"e", Errno::ISDIR), (99, c"f", Errno::BADF)]
    {
        // SAFETY: as above.
        let error = unsafe { calls.unlink(raw, name) }.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(errno.raw_os_error()));
    }
}

/// By such a descriptor a directory's names can be used, but not listed.
#[test]
fn a_directory_is_opened_as_a_path_only() {
    let mut ring = Loop::inline();
    ring.handle.create_directory("d");
    ring.handle.create_file("f", "");
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let directory = ring.open(c"d", flags | OFlags::CLOEXEC);
    assert!(directory > 0);
    let (name, buf) = (path("e"), Lendable::zeroed(128));
    assert_eq!(ring.run(Sqe::mkdirat(directory, name.ptr(), 0o700)), 0);
    assert_eq!(ring.run(calls::getdents(directory, buf.ptr(), 128)), err(Errno::BADF));
    let again = ring.open(c"d", OFlags::PATH);
    assert!(again > 0);
    assert_eq!(ring.run(calls::getdents(again, buf.ptr(), 128)), err(Errno::BADF));
    assert_eq!(ring.open(c"f", flags), err(Errno::NOTDIR));
    assert_eq!(ring.open(c"d", flags | OFlags::CREATE), err(Errno::INVAL));
    assert_eq!(ring.open(c"f", OFlags::PATH), err(Errno::INVAL), "not simulated");
}

#[test]
fn null_is_a_fault_where_there_should_be_a_path() {
    let mut ring = Loop::inline();
    let (null, some) = (std::ptr::null(), path("x"));
    for sqe in [
        Sqe::mkdirat(AT_FDCWD, null, 0),
        Sqe::unlinkat(AT_FDCWD, null, 0),
        Sqe::renameat(AT_FDCWD, some.ptr(), AT_FDCWD, null, 0),
        Sqe::linkat(AT_FDCWD, null, AT_FDCWD, some.ptr(), 0),
        Sqe::symlinkat(null, AT_FDCWD, some.ptr()),
        Sqe::openat2(AT_FDCWD, some.ptr(), std::ptr::null::<u64>(), 24),
    ] {
        assert_eq!(ring.run(sqe), err(Errno::FAULT), "{sqe:?}");
    }
    let readlink = calls::readlink(AT_FDCWD, some.ptr(), std::ptr::null_mut(), 1);
    assert_eq!(ring.run(readlink), err(Errno::FAULT));
    for (len, errno) in [(23, Errno::INVAL), (25, Errno::TOOBIG)] {
        let how = Lendable::zeroed(32);
        let sqe = Sqe::openat2(AT_FDCWD, some.ptr(), how.ptr(), len);
        assert_eq!(ring.run(sqe), err(errno), "{len}");
    }
}

#[test]
fn a_bad_descriptor_is_one_for_every_operation_that_takes_one() {
    let mut ring = Loop::inline();
    let (name, buf) = (path("user.x"), Lendable::zeroed(128));
    for sqe in [
        Sqe::mkdirat(9, name.ptr(), 0),
        Sqe::symlinkat(name.ptr(), 9, name.ptr()),
        Sqe::fallocate(9, 0, 0, 1),
        Sqe::ftruncate(9, 0),
        Sqe::fadvise(9, 0, 0, 0),
        Sqe::fgetxattr(9, name.ptr(), buf.ptr(), 1),
        Sqe::fsetxattr(9, name.ptr(), buf.ptr(), 1, 0),
    ] {
        assert_eq!(ring.run(sqe), err(Errno::BADF), "{sqe:?}");
    }
    for call in [
        calls::getdents(9, buf.ptr(), 128),
        calls::chmod(9, std::ptr::null(), 0),
        calls::chown(9, name.ptr(), 0, 0),
        calls::copy_file_range(9, 0, 9, 0, 1),
        calls::syncfs(9),
        calls::flock(9, 1),
        calls::statfs(9, buf.ptr()),
        calls::flistxattr(9, buf.ptr(), 1),
        calls::fremovexattr(9, name.ptr()),
    ] {
        assert_eq!(ring.run(call), err(Errno::BADF), "{call:?}");
    }
}

#[test]
fn a_lock_that_waits_can_be_canceled_and_goes_on_when_the_holder_is_gone() {
    let mut ring = Loop::inline();
    let open = |ring: &mut Loop| ring.open(c"f", OFlags::RDWR | OFlags::CREATE);
    let [a, b, c] = [open(&mut ring), open(&mut ring), open(&mut ring)];
    assert_eq!(ring.run(calls::flock(a, 2)), 0);
    ring.push(1, calls::flock(b, 2));
    ring.push(2, calls::flock(c, 1));
    assert_eq!(ring.submit(), []);
    ring.push(3, Sqe::cancel(1));
    let mut ended = ring.turn();
    ended.extend(ring.turn());
    ended.sort_unstable();
    assert_eq!(ended, [(1, err(Errno::CANCELED)), (3, 0)]);
    ring.push(4, Sqe::close(a));
    let mut ended = ring.turn();
    ended.extend(ring.turn());
    ended.sort_unstable();
    assert_eq!(ended, [(2, 0), (4, 0)]);
    assert_eq!(ring.run(calls::flock(b, 1 | 4)), 0);
}

#[test]
fn a_copy_can_be_short() {
    use super::super::{Fault, Target};
    let mut ring = Loop::inline();
    ring.handle.create_directory("d");
    ring.handle.create_file("d/from", "0123456789");
    let (from, to) =
        (ring.open(c"d/from", OFlags::RDONLY), ring.open(c"to", OFlags::WRONLY | OFlags::CREATE));
    ring.handle.script(Target::copy_file_range(), Fault::Short(3));
    assert_eq!(ring.run(calls::copy_file_range(from, 1, to, 0, 8)), 3);
    assert_eq!(ring.handle.contents("to").unwrap(), b"123");
}

#[test]
fn the_same_calls_give_the_same_log_wherever_their_memory_lies() {
    let run = |pad: usize| {
        let _elsewhere = vec![0_u8; pad];
        let mut ring = Loop::new(Sim::builder(5).keep_log(true));
        ring.handle.advance(Duration::from_secs(1));
        let (a, b, buf) = (path("a"), path("b"), Lendable::zeroed(pad));
        let _ = ring.run(Sqe::mkdirat(AT_FDCWD, a.ptr(), 0o755));
        let _ = ring.run(Sqe::symlinkat(a.ptr(), AT_FDCWD, b.ptr()));
        let _ = ring.run(Sqe::linkat(AT_FDCWD, b.ptr(), AT_FDCWD, path("c").ptr(), 0));
        let _ = ring.run(Sqe::renameat(AT_FDCWD, a.ptr(), AT_FDCWD, b.ptr(), 2));
        let _ = ring.run(calls::readlink(AT_FDCWD, a.ptr(), buf.ptr(), 64));
        let times = Box::new([0_i64; 4]);
        let _ = ring.run(calls::utimens(AT_FDCWD, a.ptr(), times.as_ptr()));
        let how = Box::new([0_u64; 3]);
        let _ = ring.run(Sqe::openat2(AT_FDCWD, b.ptr(), how.as_ptr(), 24));
        let _ = ring.run(calls::statfs(3, buf.ptr()));
        (ring.handle.log_hash(), ring.handle.log_text())
    };
    assert_eq!(run(128), run(1 << 20));
}
