//! Threads beside a ring: their operations, the way back of results, and the end of the threads. Also: an
//! operation on a file system whose server does not answer, or on a stalled disk, holds up no other.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use sakia_driver::{
    Auto, CURRENT_POSITION, Driver, Fd, FileKind, KindCounters, Lane, LaneStatistics, MountFacts,
    Op, OpKind, Open, Policy, Wait, WholeFile,
};
use sakia_ring::{Host, Kernel};
use sakia_testkit::available;
use sakia_testkit::blocked::ThreadId;
use sakia_testkit::fuse::{Fuse, Opcode, Rule, pattern};
use sakia_testkit::throttled::ThrottledDisk;

use crate::arena::arena;
use crate::bypass::{c, each, fifo, is_nonblocking, ruled};
use crate::children;
use crate::support::{Buf, DropCounter, TempDir, Watch, errno, finish, skip, turn_until};

const RDONLY: u32 = OFlags::RDONLY.bits();
/// The number of threads in the elastic lane.
const ELASTIC: usize = 64;

fn elastic(driver: &Driver) -> LaneStatistics {
    let statistics = driver.with_backend(|backend| match backend {
        Auto::Uring(uring) => uring.lane_statistics(Lane::Elastic),
        Auto::Epoll(epoll) => epoll.statistics(Lane::Elastic),
        _ => LaneStatistics::default(),
    });
    statistics.unwrap()
}

fn open_waiting(driver: &Driver, path: &Path) -> Op<Open> {
    driver.open_waiting(None, c(path), RDONLY, 0)
}

/// Takes turns until threads perform at least `count` operations.
fn until_running(driver: &Driver, count: usize) {
    let watch = Watch::new();
    while elastic(driver).running < count as u64 {
        driver.turn(Wait::Poll).unwrap();
        thread::yield_now();
        watch.check(|| format!("{count} running, not {:?}", elastic(driver)));
    }
}

/// Waits until no descriptor writes to a FIFO. A dropped one lasts in a child that another test has just
/// started, until that child executes its program.
fn until_no_writer(path: &Path) {
    let reader = File::options().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path);
    let (mut reader, watch) = (reader.unwrap(), Watch::new());
    while reader.read(&mut [0]).is_err() {
        thread::yield_now();
        watch.check(|| "the writers to be gone".to_owned());
    }
}

fn open_writer(path: &Path) -> File {
    File::options().write(true).open(path).unwrap()
}

/// Opens the other end of a FIFO once this thread sleeps in a turn, and returns the result of `open`.
fn opened_from_a_sleep(driver: &Driver, open: &mut Op<Open>, path: &Path) -> Fd {
    let sleeper = ThreadId::current();
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            while sleeper.state().unwrap() != 'S' {
                thread::yield_now();
            }
            open_writer(path)
        });
        let fd = loop {
            driver.turn(Wait::Forever).unwrap();
            if let Some(result) = open.try_take() {
                break result.unwrap();
            }
        };
        drop(writer.join().unwrap());
        fd
    })
}

/// Returns the number of jobs that the elastic lane has finished, when it has no other.
fn finished_when_idle(driver: &Driver) -> u64 {
    turn_until(driver, || elastic(driver).running == 0);
    elastic(driver).finished
}

/// Asserts that other operations complete while something is stalled.
fn assert_goes_on(driver: &Driver) {
    for _ in 0..3 {
        finish(driver, &mut driver.nop()).unwrap();
    }
}

// ---- lanes -------------------------------------------------------------------------------------

#[test]
fn a_result_wakes_a_turn_that_sleeps() {
    let folder = TempDir::new();
    let path = fifo(&folder);
    each(|driver| {
        let mut open = open_waiting(&driver, &path);
        until_running(&driver, 1);
        assert!(!is_nonblocking(opened_from_a_sleep(&driver, &mut open, &path)));
        assert_eq!(of_open(&driver).lane, 1);
        drop(open);
        turn_until(&driver, || driver.live_operations() == 0);
        assert_eq!(driver.in_flight(), 0);
    });
}

/// The kernel may end the poll by which the ring learns of results. This test makes it do so.
#[test]
fn the_poll_for_results_is_begun_again_when_it_has_ended() {
    let folder = TempDir::new();
    let path = fifo(&folder);
    let driver = ruled(Policy::Uring);
    let mut open = open_waiting(&driver, &path);
    until_running(&driver, 1);
    // One enter begins the poll, and the next one reports its end.
    finish(&driver, &mut driver.nop()).unwrap();
    driver.with_backend(|backend| match backend {
        Auto::Uring(uring) => cancel_all(uring.ring().as_fd()),
        _ => panic!("not on a ring"),
    });
    finish(&driver, &mut driver.nop()).unwrap();
    drop(opened_from_a_sleep(&driver, &mut open, &path));
}

/// Cancels all operations of a ring (`IORING_REGISTER_SYNC_CANCEL`, since 6.0).
fn cancel_all(ring: BorrowedFd<'_>) {
    const REGISTER_SYNC_CANCEL: u32 = 24;
    const ALL_AND_ANY: u32 = 1 | 4;
    /// `struct io_uring_sync_cancel_reg`.
    #[repr(C)]
    struct Request {
        addr: u64,
        fd: i32,
        flags: u32,
        timeout: [i64; 2],
        rest: [u64; 4],
    }
    let mut request =
        Request { addr: 0, fd: -1, flags: ALL_AND_ANY, timeout: [-1; 2], rest: [0; 4] };
    let arg = (&raw mut request).cast();
    // SAFETY: the request has the kernel's layout, and outlives the call.
    let ended = unsafe { Kernel.register(ring.as_raw_fd(), REGISTER_SYNC_CANCEL, arg, 1) };
    assert!(ended.is_ok(), "{ended:?}");
}

fn of_open(driver: &Driver) -> KindCounters {
    driver.counters().of(OpKind::Open)
}

#[test]
fn a_result_comes_to_turns_that_never_sleep() {
    let folder = TempDir::new();
    let path = fifo(&folder);
    each(|driver| {
        for _ in 0..3 {
            let mut open = open_waiting(&driver, &path);
            until_running(&driver, 1);
            let writer = open_writer(&path);
            let watch = Watch::new();
            let fd = loop {
                driver.turn(Wait::Poll).unwrap();
                if let Some(result) = open.try_take() {
                    break result.unwrap();
                }
                thread::yield_now();
                watch.check(|| "the result of a lane".into());
            };
            assert_eq!(fd.kind(), FileKind::Waiting);
            rustix::io::write(&writer, b"hello").unwrap();
            drop(writer);
            for expected in [&b"hello"[..], b""] {
                let (result, buf) =
                    finish(&driver, &mut driver.read(&fd, vec![0; 9], CURRENT_POSITION));
                assert_eq!(&buf[..result.unwrap()], expected);
            }
        }
    });
}

#[test]
fn what_waits_for_a_thread_can_be_canceled_and_dropped() {
    let folder = TempDir::new();
    let path = fifo(&folder);
    each(|driver| {
        let fd = open_fifo(&driver, &path);
        let mut running: Vec<_> = (0..ELASTIC).map(|_| driver.await_writer(&fd)).collect();
        until_running(&driver, ELASTIC);
        let mut waits = open_waiting(&driver, &path);
        let dropped = open_waiting(&driver, &path);
        driver.turn(Wait::Poll).unwrap();
        assert_eq!(elastic(&driver).queued, 2);
        waits.cancel();
        assert_eq!(errno(finish(&driver, &mut waits)), Errno::CANCELED);
        drop(dropped);
        turn_until(&driver, || driver.live_operations() == ELASTIC as u32);
        // A running operation cannot be canceled, and ends by itself.
        running[0].cancel();
        assert_goes_on(&driver);
        let writer = open_writer(&path);
        for wait in &mut running {
            finish(&driver, wait).unwrap();
        }
        drop((writer, running, waits, fd));
        turn_until(&driver, || driver.live_operations() == 0);
        assert_eq!(driver.counters().stale, 0);
    });
}

#[test]
fn closing_ends_what_waits_for_a_thread() {
    let folder = TempDir::new();
    let path = fifo(&folder);
    each(|driver| {
        let (fd, other) = (open_fifo(&driver, &path), open_fifo(&driver, &path));
        let mut running: Vec<_> = (0..ELASTIC).map(|_| driver.await_writer(&fd)).collect();
        until_running(&driver, ELASTIC);
        let mut waits = driver.await_writer(&other);
        driver.turn(Wait::Poll).unwrap();
        assert_eq!(elastic(&driver).queued, 1);
        let mut close = driver.close(other);
        assert_eq!(errno(finish(&driver, &mut waits)), Errno::CANCELED);
        finish(&driver, &mut close).unwrap();
        let writer = open_writer(&path);
        for wait in &mut running {
            finish(&driver, wait).unwrap();
        }
        drop((writer, running));
    });
}

#[test]
fn the_end_does_not_wait_for_what_runs_and_counts_it() {
    let folder = TempDir::new();
    let path = fifo(&folder);
    each(|driver| {
        let fd = open_fifo(&driver, &path);
        let mut wait = driver.await_writer(&fd);
        until_running(&driver, 1);
        wait.cancel();
        let handle = driver.handle().clone();
        assert_eq!(driver.shutdown(Duration::from_millis(5)).leaked, 1);
        assert_eq!(handle.counters().leaked, 1);
        drop((wait, fd));
        // The thread that is left behind ends now; the descriptor is leaked.
        drop(open_writer(&path));
    });
}

#[test]
fn a_forked_child_leaves_its_parents_threads_alone() {
    children::run("fork_with_lanes");
}

pub fn scene_fork() {
    let folder = TempDir::new();
    let path = fifo(&folder);
    let driver = ruled(Policy::Uring);
    let mut open = open_waiting(&driver, &path);
    until_running(&driver, 1);
    let mut both = Some((driver, open));
    // SAFETY: the child goes on with this thread alone. The others belong to the lane and wait in the kernel,
    // so they hold no lock that the child needs.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    if pid == 0 {
        let ended_well = catch_unwind(AssertUnwindSafe(|| {
            let (driver, mut open) = both.take().unwrap();
            let error = driver.turn(Wait::Poll).unwrap_err();
            assert!(error.to_string().contains("forked child"), "{error}");
            let mut late = driver.open_waiting(None, c("/"), RDONLY, 0);
            let error = late.try_take().expect("refused at once").unwrap_err();
            assert!(error.to_string().contains("forked child"), "{error}");
            open.cancel();
            drop(open);
            assert_eq!(driver.shutdown(Duration::from_secs(3600)).leaked, 1);
            let own = ruled(Policy::Uring);
            let mut open = own.open_waiting(None, c("/"), RDONLY, 0);
            drop(finish(&own, &mut open).unwrap());
        }));
        // SAFETY: ends the child at once, without the exit handlers that the parent has registered.
        unsafe { libc::_exit(if ended_well.is_ok() { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: writes one integer.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!((waited, status), (pid, 0), "the child failed");
    let driver;
    (driver, open) = both.take().unwrap();
    let writer = open_writer(&path);
    drop(finish(&driver, &mut open).unwrap());
    drop(writer);
    assert_eq!(driver.shutdown(Duration::from_secs(10)).leaked, 0);
}

// ---- writers of a FIFO -------------------------------------------------------------------------

fn open_fifo(driver: &Driver, path: &Path) -> Fd {
    until_no_writer(path);
    finish(driver, &mut driver.open(None, c(path), RDONLY, 0)).unwrap()
}

#[test]
fn a_writer_that_has_come_and_gone_was_there() {
    let folder = TempDir::new();
    let path = fifo(&folder);
    each(|driver| {
        for bytes in [&b"all"[..], b""] {
            let fd = open_fifo(&driver, &path);
            let writer = open_writer(&path);
            rustix::io::write(&writer, bytes).unwrap();
            drop(writer);
            finish(&driver, &mut driver.await_writer(&fd)).unwrap();
            let (result, buf) =
                finish(&driver, &mut driver.read(&fd, vec![0; 9], CURRENT_POSITION));
            assert_eq!(&buf[..result.unwrap()], bytes);
        }
    });
}

#[test]
fn a_writer_that_says_nothing_is_there() {
    let folder = TempDir::new();
    let path = fifo(&folder);
    each(|driver| {
        let fd = open_fifo(&driver, &path);
        let writer = open_writer(&path);
        finish(&driver, &mut driver.await_writer(&fd)).unwrap();
        drop(writer);

        let fd = open_fifo(&driver, &path);
        let mut wait = driver.await_writer(&fd);
        until_running(&driver, 1);
        assert_goes_on(&driver);
        assert!(wait.try_take().is_none(), "there is no writer");
        let writer = open_writer(&path);
        finish(&driver, &mut wait).unwrap();
        drop(writer);
    });
}

#[test]
fn only_a_fifo_has_a_writer_to_wait_for() {
    let folder = TempDir::new();
    let path = folder.file("file", 10);
    each(|driver| {
        let fd = driver.adopt(File::open(&path).unwrap().into());
        assert_eq!(errno(finish(&driver, &mut driver.await_writer(&fd))), Errno::INVAL);
    });
}

// ---- file systems that may never answer --------------------------------------------------------

/// An offset beyond the kernel's read-ahead.
const FAR: usize = 900 << 10;

#[test]
fn reads_and_writes_of_a_remote_file_are_for_a_lane() {
    let fuse = available!(Fuse::builder().file("a", pattern(1_000_000)).mount());
    let counter = DropCounter::new();
    each(|driver| {
        let flags = OFlags::RDWR.bits();
        let fd = finish(&driver, &mut driver.open(None, c(fuse.join("a")), flags, 0)).unwrap();
        let (result, _) = finish(&driver, &mut driver.read(&fd, vec![0; 10], 0));
        assert_eq!((result.unwrap(), driver.counters().of(OpKind::Read).inline), (10, 0));
        let before = finished_when_idle(&driver);
        let gate = fuse.hold(Rule::on(Opcode::READ));
        let mut read = driver.read(&fd, Buf::new(4096, &counter), FAR as u64);
        assert!(read.try_take().is_none());
        until_running(&driver, 1);
        gate.wait_held(1);
        assert_goes_on(&driver);
        assert!(read.try_take().is_none());
        gate.open();
        let (result, buf) = finish(&driver, &mut read);
        assert_eq!(result.unwrap(), 4096);
        assert_eq!(buf.bytes(), &pattern(FAR + 4096)[FAR..]);
        drop(buf);

        let gate = fuse.hold(Rule::on(Opcode::WRITE));
        let mut write = driver.write(&fd, pattern(4096), 0);
        let mut vectored = driver.write_vectored(&fd, vec![pattern(10)], 0);
        until_running(&driver, 2);
        gate.wait_held(1);
        assert_goes_on(&driver);
        assert!(write.try_take().is_none() && vectored.try_take().is_none());
        gate.open();
        assert_eq!(finish(&driver, &mut write).0.unwrap(), 4096);
        assert_eq!(finish(&driver, &mut vectored).0.unwrap(), 10);
        for (kind, count) in [(OpKind::Read, 2), (OpKind::Write, 2)] {
            let ways = driver.counters().of(kind);
            assert_eq!((ways.inline, ways.would_block, ways.lane), (0, 0, count));
        }
        assert_eq!(finished_when_idle(&driver), before + 3);
        let mounts = driver.mounts();
        assert!(mounts.iter().any(|mount| mount.is_remote), "{mounts:?}");
        fuse.release();
    });
    counter.assert_each_dropped_once();
}

/// A file system in memory, mounted until the drop.
struct InMemory(TempDir);

impl InMemory {
    fn mount() -> Option<Self> {
        let folder = TempDir::new();
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("sakia-test", folder.path(), "ramfs", flags, None).is_ok().then_some(Self(folder))
    }
}

impl Drop for InMemory {
    fn drop(&mut self) {
        unmount(self.0.path(), UnmountFlags::DETACH).unwrap();
    }
}

#[test]
fn a_file_system_with_the_device_of_an_earlier_one_is_another() {
    const TRIES: u32 = 100;
    let fuse = || Fuse::builder().file("a", pattern(4)).mount();
    drop(available!(fuse()));
    if InMemory::mount().is_none() {
        skip!("no privilege to mount a file system");
    }
    each(|driver| {
        let read = |path: &Path| {
            let fd = finish(&driver, &mut driver.open(None, c(path), RDONLY, 0)).unwrap();
            let (count, bytes) = finish(&driver, &mut driver.read(&fd, vec![0; 4], 0));
            assert_eq!((count.unwrap(), bytes), (4, pattern(4)));
            let device = fs::metadata(path).unwrap().dev();
            let of_device = |facts: &MountFacts| facts.device == device;
            driver.mounts().into_iter().find(of_device).expect("it was met")
        };
        let meets_both = || {
            let first = InMemory::mount().unwrap();
            let path = first.0.path().join("a");
            fs::write(&path, pattern(4)).unwrap();
            let before = read(&path);
            assert!(!before.is_remote);
            drop(first);
            let after = read(&fuse().unwrap().join("a"));
            assert!(after.is_remote && after.file_system == "fuse", "{after:?}");
            before.device == after.device
        };
        let is_reused = (0..TRIES).any(|_| meets_both());
        assert!(is_reused, "the kernel gives no device number again");
    });
}

#[test]
fn closing_a_remote_file_is_for_a_lane() {
    let fuse = available!(Fuse::builder().file("a", pattern(100)).mount());
    let released_so_far = std::cell::Cell::new(0);
    each(|driver| {
        let (queued, released) = (driver.without_bypass(), released_so_far.get());
        for round in 0..8 {
            // Neither the driver's knowledge of the descriptor nor the rules make a difference.
            let (is_dropped, is_known, is_ruled) = (round & 1 != 0, round & 2 != 0, round & 4 != 0);
            let handle = if is_ruled { driver.handle() } else { &queued };
            let flags = OFlags::RDWR.bits();
            let fd = finish(&driver, &mut handle.open(None, c(fuse.join("a")), flags, 0)).unwrap();
            if is_known {
                let (result, _) = finish(&driver, &mut handle.read(&fd, vec![0; 10], 0));
                assert_eq!(result.unwrap(), 10);
            }
            let before = finished_when_idle(&driver);
            let gate = fuse.hold(Rule::on(Opcode::FLUSH));
            let mut close = None;
            if is_dropped {
                drop(fd);
            } else {
                close = Some(handle.close(fd));
            }
            until_running(&driver, 1);
            gate.wait_held(1);
            assert_goes_on(&driver);
            gate.open();
            if let Some(close) = &mut close {
                finish(&driver, close).unwrap();
            }
            turn_until(&driver, || driver.live_operations() == 0);
            assert_eq!(finished_when_idle(&driver), before + 1);
            // Flushes may be more: one of a child that another test has just started.
            turn_until(&driver, || fuse.count(Opcode::RELEASE) > released + round);
            assert_eq!(fuse.count(Opcode::RELEASE), released + round + 1);
        }
        let ways = driver.counters().of(OpKind::Close);
        assert_eq!((ways.inline, ways.submitted, ways.lane), (0, 8, 8));
        released_so_far.set(fuse.count(Opcode::RELEASE));
    });
}

#[test]
fn the_end_does_not_wait_for_a_server_to_close() {
    let fuse = available!(Fuse::builder().file("a", pattern(100)).mount());
    each(|driver| {
        let path = c(fuse.join("a"));
        let fd = finish(&driver, &mut driver.open(None, path.clone(), RDONLY, 0)).unwrap();
        let late = finish(&driver, &mut driver.open(None, path, RDONLY, 0)).unwrap();
        let gate = fuse.hold(Rule::on(Opcode::FLUSH));
        drop(fd);
        until_running(&driver, 1);
        let handle = driver.handle().clone();
        assert_eq!(driver.shutdown(Duration::from_millis(5)).leaked, 1);
        // No more turns are taken.
        drop(late);
        gate.wait_held(2);
        gate.open();
        drop(handle);
    });
}

#[test]
fn registered_memory_of_a_remote_file_is_transferred_by_a_lane() {
    let fuse = available!(Fuse::builder().file("a", pattern(4096)).mount());
    for policy in [Policy::Uring, Policy::Poll] {
        let driver = ruled(policy);
        let arena = arena!(&driver, 1, 4096);
        let flags = OFlags::RDWR.bits();
        let fd = finish(&driver, &mut driver.open(None, c(fuse.join("a")), flags, 0)).unwrap();
        let mut read = driver.read_fixed(&fd, arena.block().unwrap(), 0);
        let (result, mut block) = finish(&driver, &mut read);
        assert_eq!((result.unwrap(), &block[..]), (4096, &pattern(4096)[..]));
        block[0] = 7;
        let mut write = driver.write_fixed(&fd, block, 0);
        assert_eq!(finish(&driver, &mut write).0.unwrap(), 4096);
        assert_eq!(fuse.content("a")[0], 7);
        fuse.edit("a", |bytes| *bytes = pattern(4096));
        for kind in [OpKind::Read, OpKind::Write] {
            let ways = driver.counters().of(kind);
            assert_eq!((ways.inline, ways.would_block, ways.lane), (0, 0, 1), "{}", kind.name());
        }
    }
}

#[test]
fn a_remote_path_is_opened_and_asked_about_by_a_lane() {
    let fuse = available!(Fuse::builder().file("a", pattern(100)).mount());
    let path = fuse.join("a");
    each(|driver| {
        // The name is cached, which does not tell how long its open takes.
        fs::metadata(&path).unwrap();
        let gate = fuse.hold(Rule::on(Opcode::OPEN));
        let mut open = driver.open(None, c(&path), RDONLY, 0);
        let dropped = driver.open(None, c(&path), RDONLY, 0);
        assert!(open.try_take().is_none());
        assert!(matches!(driver.read_file_now(&c(&path), 100).unwrap(), WholeFile::NotNow));
        until_running(&driver, 2);
        gate.wait_held(2);
        assert_goes_on(&driver);
        drop(dropped);
        assert_goes_on(&driver);
        gate.open();
        let fd = finish(&driver, &mut open).unwrap();
        finish(&driver, &mut driver.statx(None, c(&path), 0)).unwrap();
        finish(&driver, &mut driver.statx_fd(&fd)).unwrap();
        for (kind, count) in [(OpKind::Open, 2), (OpKind::Statx, 2)] {
            let ways = driver.counters().of(kind);
            assert_eq!((ways.inline, ways.lane), (0, count), "{}", kind.name());
        }
        drop((fd, open));
        turn_until(&driver, || driver.live_operations() == 0);
        fuse.release();
    });
}

#[test]
fn a_remote_file_is_not_read_as_a_whole() {
    let fuse = available!(Fuse::builder().file("a", pattern(100)).mount());
    let driver = ruled(Policy::Uring);
    // The name is cached.
    fs::metadata(fuse.join("a")).unwrap();
    let reads = fuse.count(Opcode::READ);
    match driver.read_file_now(&c(fuse.join("a")), 100).unwrap() {
        WholeFile::Opened(fd, bytes) => {
            assert!(bytes.is_empty());
            let (result, buf) = finish(&driver, &mut driver.read(&fd, vec![0; 100], 0));
            assert_eq!((result.unwrap(), buf), (100, pattern(100)));
        }
        WholeFile::NotNow => assert_eq!(fuse.count(Opcode::READ), reads),
        other => panic!("{other:?}"),
    }
    assert_eq!(driver.counters().of(OpKind::Read).inline, 0);
}

// ---- a stalled disk ----------------------------------------------------------------------------

#[test]
fn a_disk_that_stands_still_stops_plain_writes() {
    let disk = available!(ThrottledDisk::builder().build());
    let driver = ruled(Policy::Uring);
    let path = disk.path().join("file");
    let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
    let fd = driver.adopt(file.unwrap().into());
    let writer = ThreadId::current();
    disk.delay_writes(Duration::from_millis(20));
    // One write after the other, as from one task, until the driver gives up plain writes.
    let mut offset = 0;
    let watch = Watch::new();
    let facts = || driver.mounts().into_iter().find(|mount| !mount.is_remote).unwrap();
    let mut inline = 0;
    loop {
        let mut write = driver.write(&fd, vec![7; 4096], offset);
        finish(&driver, &mut write).0.unwrap();
        offset += 4096;
        if facts().is_slow {
            break;
        }
        inline = driver.counters().of(OpKind::Write).inline;
        if offset > 32 << 20 {
            disk.release();
            // The kernel decides this, and no feature is missing.
            eprintln!("SKIP: the kernel lets a writer go on however slow the disk is");
            return;
        }
        watch.check(|| "a write that stands still".into());
    }
    assert_eq!(facts().slow_count, 1);
    let ways = driver.counters().of(OpKind::Write);
    assert!(ways.inline <= inline + 1, "{ways:?}");

    // Now the disk stalls altogether. Only a trial may run into that.
    let gate = disk.hold_writes();
    let (done, is_done) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let gate = &gate;
        let helper = scope.spawn(move || {
            let mut stalls = 0;
            while is_done.recv_timeout(Duration::from_millis(5))
                == Err(mpsc::RecvTimeoutError::Timeout)
            {
                let is_stalled = writer.state().is_ok_and(|state| state == 'D');
                if is_stalled && stalls == 0 {
                    stalls += 1;
                    gate.open();
                }
            }
            stalls
        });
        // While plain writes are given up, only a trial is made, after a pause. The length of the pause
        // depends on the load of the machine; the trial ends it, or begins another.
        driver.turn(Wait::Poll).unwrap(); // earlier writes may have used up the turn's budget
        let mut has_tried = false;
        let all_before = driver.counters().of(OpKind::Write);
        let start = |index: u64| {
            let (before, inline) = (facts(), driver.counters().of(OpKind::Write).inline);
            let write = driver.write(&fd, vec![8; 4096], offset + index * 4096);
            let (after, ways) = (facts(), driver.counters().of(OpKind::Write));
            let is_trial = !after.is_slow || after.slow_count > before.slow_count;
            assert!(!before.is_slow || is_trial || ways.inline == inline, "no trial: {ways:?}");
            has_tried |= ways.inline > inline;
            write
        };
        let mut writes: Vec<_> = (0..16).map(start).collect();
        let submitted = driver.counters().of(OpKind::Write).submitted - all_before.submitted;
        assert!(has_tried || submitted == 16, "{submitted}");
        assert_goes_on(&driver);
        gate.open();
        disk.release();
        for write in &mut writes {
            assert_eq!(finish(&driver, write).0.unwrap(), 4096);
        }
        drop(done);
        assert!(helper.join().unwrap() <= 1);
    });
    assert!(facts().slow_count <= 3, "{:?}", facts());
    drop(fd);
    assert_eq!(driver.shutdown(Duration::from_secs(60)).leaked, 0);
}
