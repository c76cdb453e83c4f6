//! Operations that are performed as plain calls: their kinds, their number in a turn, and the handling of
//! those that are deferred to the next turn. Slow file systems, and ones that lie, are simulated: see
//! `sim/tests/bypass.rs`.

use std::any::Any;
use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Advice, FileType, Mode, OFlags, fadvise};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::process::{Resource, Rlimit, setrlimit};
use sakia_driver::{
    Auto, Bypass, CURRENT_POSITION, Driver, Fd, FileKind, KindCounters, Op, OpKind, Policy, Read,
    Rule, Rules, Support, Wait, WholeFile,
};
use sakia_ring::Ring;

use crate::arena::{arena, register};
use crate::children;
use crate::support::{
    Buf, DropCounter, TempDir, Watch, content, errno, finish, identity, open_direct, skip,
    turn_until,
};

const RDONLY: u32 = OFlags::RDONLY.bits();

/// The number of small calls that a turn makes at once.
const TURN: usize = 64;
/// The number of deferred calls that a turn makes.
const LATER: usize = 8;

pub fn c(path: impl AsRef<Path>) -> CString {
    CString::new(path.as_ref().as_os_str().as_encoded_bytes()).unwrap()
}

/// Makes a driver with the default rules on this backend.
pub fn ruled(policy: Policy) -> Driver {
    let (backend, _) = Auto::new(policy, Ring::builder()).unwrap();
    let driver = Driver::new(backend);
    driver.set_bypass(Bypass::Rules(Rules::default()));
    driver
}

/// Runs a test on each backend that acts on real files.
pub fn each(test: impl Fn(Driver)) {
    test(ruled(Policy::Uring));
    test(ruled(Policy::Poll));
}

fn is_uring(driver: &Driver) -> bool {
    driver.with_backend(|backend| matches!(backend, Auto::Uring(_))).unwrap()
}

fn of(driver: &Driver, kind: OpKind) -> KindCounters {
    driver.counters().of(kind)
}

fn adopt(driver: &Driver, path: impl AsRef<Path>) -> Fd {
    let file = File::options().read(true).write(true).open(path.as_ref());
    driver.adopt(file.unwrap().into())
}

/// Opens a file without read-ahead: pages that are still being read when the cache is dropped would stay.
fn adopt_without_read_ahead(driver: &Driver, path: &Path) -> Fd {
    let fd = adopt(driver, path);
    fadvise(&fd, 0, None, Advice::Random).unwrap();
    fd
}

fn assert_content(bytes: &[u8], offset: usize) {
    let wrong = bytes.iter().enumerate().find(|&(i, &byte)| byte != content(offset + i));
    assert_eq!(wrong, None);
}

/// Uses up the plain calls that a turn may make.
fn use_up(driver: &Driver, fd: &Fd) {
    for _ in 0..TURN {
        drop(driver.read(fd, vec![0; 1], 0));
    }
    assert!(!driver.has_deferred());
}

pub fn fifo(folder: &TempDir) -> std::path::PathBuf {
    let path = folder.join("fifo");
    let mode = Mode::RUSR | Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, mode, 0).unwrap();
    path
}

pub fn is_nonblocking(fd: impl AsFd) -> bool {
    rustix::fs::fcntl_getfl(fd).unwrap().contains(OFlags::NONBLOCK)
}

// ---- reads and writes --------------------------------------------------------------------------

#[test]
fn small_hot_reads_are_done_at_once_and_large_ones_queued() {
    let folder = TempDir::new();
    let path = folder.file("file", 256 << 10);
    each(|driver| {
        let fd = adopt(&driver, &path);
        for (count, len) in [1, 4096, 64 << 10].into_iter().enumerate() {
            let mut read = driver.read(&fd, vec![0; len], 4000);
            let (result, buf) = read.try_take().expect("done at once");
            assert_eq!(result.unwrap(), len);
            assert_content(&buf, 4000);
            let read = of(&driver, OpKind::Read);
            assert_eq!((read.inline, read.submitted), (count as u64 + 1, 0));
            assert_eq!(driver.counters().enters, 0);
        }
        let mut read = driver.read(&fd, vec![0; (64 << 10) + 1], 0);
        assert!(read.try_take().is_none());
        assert_eq!(of(&driver, OpKind::Read).submitted, 1);
        let (result, buf) = finish(&driver, &mut read);
        assert_content(&buf[..result.unwrap()], 0);
        drop(read);
        assert_eq!(driver.live_operations(), 0);
    });
}

/// Returns zeroed buffers of these lengths.
fn parts(lens: &[usize]) -> Vec<Vec<u8>> {
    lens.iter().map(|&len| vec![0; len]).collect()
}

#[test]
fn small_hot_reads_into_parts_are_done_at_once_and_large_ones_queued() {
    let folder = TempDir::new();
    let path = folder.file("file", 256 << 10);
    each(|driver| {
        let fd = adopt(&driver, &path);
        let small: [&[usize]; 4] = [&[1], &[10, 0, 4096], &[32 << 10; 2], &[64; 1024]];
        for (count, lens) in (1..).zip(small) {
            let mut read = driver.read_vectored(&fd, parts(lens), 4000);
            let (result, bufs) = read.try_take().expect("done at once");
            assert_eq!(result.unwrap(), lens.iter().sum::<usize>());
            assert_content(&bufs.concat(), 4000);
            let read = of(&driver, OpKind::Read);
            assert_eq!((read.inline, read.submitted), (count, 0));
            assert_eq!(driver.counters().enters, 0);
        }
        // The sum of the lengths counts, not a single length; and only as many buffers as the kernel takes.
        let mut read = driver.read_vectored(&fd, parts(&[32 << 10, 32 << 10, 1]), 0);
        assert!(read.try_take().is_none());
        assert_eq!(of(&driver, OpKind::Read).submitted, 1);
        let (result, bufs) = finish(&driver, &mut read);
        assert_content(&bufs.concat()[..result.unwrap()], 0);
        let mut read = driver.read_vectored(&fd, parts(&[64; 1025]), 0);
        let (result, bufs) = read.try_take().expect("done at once");
        assert_eq!((result.unwrap(), bufs.len()), (64 << 10, 1025));
        // 4 GiB in all, in a write that the kernel refuses.
        let large: &'static [u8] = vec![0; 64 << 20].leak();
        let read_only = driver.adopt(File::open(&path).unwrap().into());
        let mut write = driver.write_vectored(&read_only, vec![large; 64], 0);
        assert!(write.try_take().is_none());
        assert_eq!(errno(finish(&driver, &mut write).0), Errno::BADF);
        assert_eq!(of(&driver, OpKind::Write).inline, 0);
        drop(read);
        assert_eq!(driver.live_operations(), 0);
    });
}

#[test]
fn the_end_of_a_file_is_zero_in_parts_too() {
    let folder = TempDir::new();
    let path = folder.file("file", 5000);
    each(|driver| {
        let fd = adopt(&driver, &path);
        for (offset, expected) in [(4990, 10), (5000, 0), (0, 5000)] {
            let mut read = driver.read_vectored(&fd, parts(&[7, 8192]), offset);
            let (result, bufs) = read.try_take().expect("done at once");
            assert_eq!(result.unwrap(), expected, "{offset}");
            assert_content(&bufs.concat()[..expected], offset as usize);
        }
        // The same at the file's own position.
        for expected in [4000, 1000, 0] {
            let mut read = driver.read_vectored(&fd, parts(&[1000, 3000]), CURRENT_POSITION);
            assert_eq!(read.try_take().expect("done at once").0.unwrap(), expected);
        }
        let mut write = driver.write_vectored(&fd, vec![vec![1; 4]], CURRENT_POSITION);
        assert_eq!(finish(&driver, &mut write).0.unwrap(), 4);
        assert_eq!(fs::metadata(&path).unwrap().len(), 5004);
        File::options().write(true).open(&path).unwrap().set_len(5000).unwrap();
        for parts in [vec![], vec![vec![]; 3]] {
            let mut nothing = driver.read_vectored(&fd, parts, 0);
            let (result, _) = nothing.try_take().expect("done at once");
            assert_eq!(errno(result), Errno::INVAL, "no room, no read");
        }
        assert_ne!(driver.mounts()[0].nowait_read, Support::Lies, "a real end is no lie");
        // A read of a pipe, which has no end, is never waited for on this thread.
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let (reader, inline) = (driver.adopt(reader), of(&driver, OpKind::Read).inline);
        let mut read = driver.read_vectored(&reader, parts(&[2, 2]), CURRENT_POSITION);
        driver.turn(Wait::Poll).unwrap();
        assert!(read.try_take().is_none());
        rustix::io::write(&writer, b"late").unwrap();
        assert_eq!(finish(&driver, &mut read).1.concat(), b"late");
        if is_uring(&driver) {
            assert_eq!(of(&driver, OpKind::Read).inline, inline);
        }
    });
}

#[test]
fn parts_are_written_at_once() {
    let folder = TempDir::new();
    let path = folder.join("file");
    File::create(&path).unwrap();
    each(|driver| {
        let fd = adopt(&driver, &path);
        for index in 0..10_u8 {
            let parts = vec![vec![index; 96], vec![index; 4000]];
            let mut write = driver.write_vectored(&fd, parts, u64::from(index) * 4096);
            let (result, bufs) = finish(&driver, &mut write);
            assert_eq!((result.unwrap(), bufs.len()), (4096, 2));
        }
        let write = of(&driver, OpKind::Write);
        // Less is inline if a write was refused, or if the machine was so slow that plain writes were
        // stopped.
        assert!(write.inline + write.submitted >= 10 && write.inline > 0, "{write:?}");
        let bytes = fs::read(&path).unwrap();
        assert!(bytes.iter().enumerate().all(|(i, &byte)| usize::from(byte) == i / 4096));
    });
}

#[test]
fn the_end_of_a_file_is_zero_and_what_is_before_it_short() {
    let folder = TempDir::new();
    let path = folder.file("file", 5000);
    each(|driver| {
        let fd = adopt(&driver, &path);
        for (offset, expected) in [(4990, 10), (5000, 0), (1 << 40, 0), (0, 5000)] {
            let mut read = driver.read(&fd, vec![0; 8192], offset);
            let (result, buf) = read.try_take().expect("done at once");
            assert_eq!(result.unwrap(), expected, "{offset}");
            assert_content(&buf[..expected], offset as usize);
        }
        let mut nothing = driver.read(&fd, vec![0; 0], 0);
        assert_eq!(errno(finish(&driver, &mut nothing).0), Errno::INVAL, "no room, no read");
        // Reads at the file's own position.
        for expected in [4000, 1000, 0] {
            let mut read = driver.read(&fd, vec![0; 4000], CURRENT_POSITION);
            assert_eq!(finish(&driver, &mut read).0.unwrap(), expected);
        }
        // Reads at the end of the file do not count as a lie of the file system.
        let support = driver.mounts()[0].nowait_read;
        assert_ne!(support, Support::Lies, "a real end is no lie");
    });
}

#[test]
fn what_is_wrong_is_told_as_by_the_queue() {
    let folder = TempDir::new();
    let path = folder.file("file", 10);
    each(|driver| {
        let write_only = File::options().write(true).open(&path).unwrap();
        let fd = driver.adopt(write_only.into());
        let mut read = driver.read(&fd, vec![0; 4], 0);
        assert_eq!(errno(finish(&driver, &mut read).0), Errno::BADF);
        let directory = driver.adopt(File::open(folder.path()).unwrap().into());
        let mut read = driver.read(&directory, vec![0; 4], 0);
        assert_eq!(errno(finish(&driver, &mut read).0), Errno::ISDIR);
        let fd = adopt(&driver, &path);
        let mut read = driver.read(&fd, vec![0; 4], i64::MAX as u64 + 2);
        assert_eq!(errno(finish(&driver, &mut read).0), Errno::INVAL);
        let mut write = driver.write(&fd, vec![0; 4], i64::MAX as u64 + 2);
        assert_eq!(errno(finish(&driver, &mut write).0), Errno::INVAL);
        // These errors leave the record of the file system as it is.
        let mut read = driver.read(&fd, vec![0; 4], 0);
        assert_eq!(read.try_take().expect("done at once").0.unwrap(), 4);
    });
}

#[test]
fn direct_io_is_never_done_at_once() {
    let folder = TempDir::new();
    let path = folder.file("file", 8192);
    let driver = ruled(Policy::Uring);
    let Some(direct) = open_direct(&path) else { return };
    let counter = DropCounter::new();
    let adopted = driver.adopt(direct);
    // The driver knows the flag of files that it opened, and asks the kernel about others.
    let flags = (OFlags::RDONLY | OFlags::DIRECT).bits();
    let opened = finish(&driver, &mut driver.open(None, c(&path), flags, 0)).unwrap();
    for fd in [adopted, opened] {
        let mut read = driver.read(&fd, Buf::new(4096, &counter), 4096);
        assert!(read.try_take().is_none(), "not waited for here");
        let (result, buf) = finish(&driver, &mut read);
        assert_eq!(result.unwrap(), 4096);
        assert_content(buf.bytes(), 4096);
        let mut read = driver.read_vectored(&fd, vec![buf], 0);
        assert!(read.try_take().is_none(), "not waited for here");
        let (result, bufs) = finish(&driver, &mut read);
        assert_eq!(result.unwrap(), 4096);
        assert_content(bufs[0].bytes(), 0);
    }
    let read = of(&driver, OpKind::Read);
    assert_eq!((read.inline, read.would_block, read.submitted), (0, 0, 4));
}

#[test]
fn registered_memory_is_transferred_at_once_too() {
    let folder = TempDir::new();
    let path = folder.file("file", 256 << 10);
    let memory_file = TempDir::in_memory().map(|folder| (folder.file("file", 64 << 10), folder));
    for policy in [Policy::Uring, Policy::Poll] {
        let driver = ruled(policy);
        let arena = arena!(&driver, 16, 64 << 10);
        let block = || arena.block().unwrap();
        let fd = adopt(&driver, &path);
        let mut read = driver.read_fixed(&fd, block(), 4000);
        let (result, mut buf) = read.try_take().expect("done at once");
        assert_eq!(result.unwrap(), 64 << 10);
        assert_content(&buf, 4000);
        let mut at_end = driver.read_fixed(&fd, block(), 256 << 10);
        assert_eq!(at_end.try_take().expect("done at once").0.unwrap(), 0);
        let KindCounters { inline, submitted, .. } = of(&driver, OpKind::Read);
        assert_eq!((inline, submitted), (2, 0));
        buf.fill(7);
        let mut write = driver.write_fixed(&fd, buf, 256 << 10);
        assert_eq!(finish(&driver, &mut write).0.unwrap(), 64 << 10);
        let written = of(&driver, OpKind::Write);
        // Neither if the file system could refuse the plain write, and did.
        assert!(written.inline + written.would_block > 0, "{written:?}");
        assert!(fs::read(&path).unwrap()[256 << 10..].iter().all(|&byte| byte == 7));
        File::options().write(true).open(&path).unwrap().set_len(256 << 10).unwrap();
        if let Some((path, _folder)) = &memory_file {
            // The limit of a turn in bytes is that of other memory.
            undisturbed((8, 1), || {
                let driver = ruled(policy);
                let arena = register(&driver, 16, 64 << 10).expect("as much as before");
                let fd = adopt(&driver, path);
                let read = |_| driver.read_fixed(&fd, arena.block().unwrap(), 0);
                let reads: Vec<_> = (0..9).map(read).collect();
                let made = (of(&driver, OpKind::Read).inline, driver.counters().deferred);
                drop(reads);
                made
            });
        }
        let Some(direct) = open_direct(&path) else { continue };
        let (direct, before) = (driver.adopt(direct), of(&driver, OpKind::Read).submitted);
        let mut read = driver.read_fixed(&direct, block(), 0);
        assert!(read.try_take().is_none(), "not waited for here");
        let (result, buf) = finish(&driver, &mut read);
        assert_eq!(result.unwrap(), 64 << 10);
        assert_content(&buf, 0);
        assert_eq!(of(&driver, OpKind::Read).submitted, before + 1);
    }
}

#[test]
fn registered_memory_of_another_driver_is_refused_as_by_the_queue() {
    let folder = TempDir::new();
    let path = folder.file("file", 100);
    let other = ruled(Policy::Uring);
    let foreign = arena!(&other, 2, 4096);
    let blocks = || [foreign.block().unwrap(), foreign.block().unwrap()];
    each(|ours| {
        let fd = adopt(&ours, &path);
        for has_arena in [false, true] {
            let _arena = has_arena.then(|| ours.register_arena(1, 4096).unwrap());
            for offset in [0, CURRENT_POSITION] {
                let [to, from] = blocks();
                let read = &mut ours.read_fixed(&fd, to, offset);
                assert_eq!(errno(finish(&ours, read).0), Errno::FAULT);
                let write = &mut ours.write_fixed(&fd, from, offset);
                assert_eq!(errno(finish(&ours, write).0), Errno::FAULT);
            }
        }
    });
}

#[test]
fn durable_writes_are_never_done_at_once() {
    let folder = TempDir::new();
    let path = folder.file("file", 100);
    let driver = ruled(Policy::Uring);
    let fd = adopt(&driver, &path);
    for flags in [ReadWriteFlags::DSYNC, ReadWriteFlags::SYNC] {
        let mut write = driver.write_with(&fd, vec![1; 10], 0, flags.bits());
        assert!(write.try_take().is_none(), "not waited for here");
        assert_eq!(finish(&driver, &mut write).0.unwrap(), 10);
        let mut write = driver.write_vectored_with(&fd, vec![vec![1; 5]; 2], 0, flags.bits());
        assert!(write.try_take().is_none(), "not waited for here");
        assert_eq!(finish(&driver, &mut write).0.unwrap(), 10);
    }
    for flags in [OFlags::DSYNC, OFlags::SYNC] {
        let flags = (OFlags::RDWR | flags).bits();
        let fd = finish(&driver, &mut driver.open(None, c(&path), flags, 0)).unwrap();
        let mut write = driver.write(&fd, vec![1; 10], 0);
        assert!(write.try_take().is_none(), "not waited for here");
        assert_eq!(finish(&driver, &mut write).0.unwrap(), 10);
        // A read has no durability to wait for.
        assert_eq!(driver.read(&fd, vec![0; 10], 0).try_take().expect("done at once").1, [1; 10]);
    }
    let KindCounters { inline, would_block, submitted, .. } = of(&driver, OpKind::Write);
    assert_eq!((inline, would_block, submitted), (0, 0, 6));
    assert_eq!(driver.mounts()[0].nowait_write, Support::Unknown);
}

#[test]
fn a_cold_read_is_refused_and_then_queued() {
    let folder = TempDir::new();
    let path = folder.file("file", 1 << 20);
    let file = File::open(&path).unwrap();
    let driver = ruled(Policy::Uring);
    let fd = adopt_without_read_ahead(&driver, &path);
    // The kernel is free to ignore the advice to drop pages.
    for round in 0..200_usize {
        driver.turn(Wait::Poll).unwrap(); // a new budget of plain calls, since reads also queue without one
        file.sync_all().unwrap();
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        let offset = round * 5000;
        let mut read = driver.read(&fd, vec![0; 4096], offset as u64);
        let (result, buf) = finish(&driver, &mut read);
        assert_eq!(result.unwrap(), 4096);
        assert_content(&buf, offset);
        let read = of(&driver, OpKind::Read);
        if read.would_block > 0 {
            assert_eq!(read.submitted, read.would_block, "what is refused goes into the queue");
            assert_eq!(read.inline, round as u64);
            return;
        }
    }
    // The kernel decides this, and no feature is missing; refusals are also tested on the simulated kernel.
    eprintln!("SKIP: nothing drops the cached pages of {}", path.display());
}

#[test]
fn reads_of_a_cold_file_are_not_tried_every_time() {
    let folder = TempDir::new();
    let path = folder.file("file", 1 << 20);
    let file = File::open(&path).unwrap();
    let driver = ruled(Policy::Uring);
    let fd = adopt_without_read_ahead(&driver, &path);
    let mut refused_in_a_row = 0;
    for round in 0..40_usize {
        file.sync_all().unwrap();
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        let before = of(&driver, OpKind::Read);
        let mut read = driver.read(&fd, vec![0; 512], (round * 8192) as u64);
        finish(&driver, &mut read).0.unwrap();
        let after = of(&driver, OpKind::Read);
        let was_tried = after.would_block > before.would_block;
        refused_in_a_row = if was_tried { refused_in_a_row + 1 } else { 0 };
        assert!(refused_in_a_row < 3, "each cold read is tried");
    }
    // A disk may be so fast that its bytes are in the cache when a read is tried.
    let read = of(&driver, OpKind::Read);
    assert_eq!(read.inline + read.submitted, 40, "{read:?}");
}

#[test]
fn writes_are_done_at_once() {
    let folder = TempDir::new();
    let path = folder.join("file");
    File::create(&path).unwrap();
    each(|driver| {
        let fd = adopt(&driver, &path);
        for index in 0..10_u8 {
            let mut write = driver.write(&fd, vec![index; 4096], u64::from(index) * 4096);
            let (result, buf) = finish(&driver, &mut write);
            assert_eq!((result.unwrap(), buf.len()), (4096, 4096));
        }
        let write = of(&driver, OpKind::Write);
        // Less is inline if a write was refused, or if the machine was so slow that plain writes were
        // stopped.
        assert!(write.inline + write.submitted >= 10 && write.inline > 0, "{write:?}");
        let bytes = fs::read(&path).unwrap();
        assert!(bytes.iter().enumerate().all(|(i, &byte)| usize::from(byte) == i / 4096));
    });
}

#[test]
fn a_file_system_that_cannot_refuse_is_learned_once() {
    let Ok(directory) = fs::metadata("/dev/shm") else {
        skip!("no /dev/shm");
    };
    assert!(directory.is_dir());
    let path = format!("/dev/shm/sakia-driver-{}", std::process::id());
    let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
    let Ok(file) = file else { skip!("/dev/shm cannot be written to") };
    fs::remove_file(&path).unwrap();
    rustix::io::write(&file, &[7; 8192]).unwrap();
    let mut byte = [0];
    let mut io = [rustix::io::IoSliceMut::new(&mut byte)];
    let asked = rustix::io::preadv2(&file, &mut io, 0, ReadWriteFlags::NOWAIT);
    let expected = if asked == Err(Errno::OPNOTSUPP) { Support::No } else { Support::Yes };
    each(|driver| {
        let fd = driver.adopt(file.try_clone().unwrap().into());
        for count in 1..=5 {
            let mut read = driver.read(&fd, vec![0; 4096], 4096);
            let (result, buf) = read.try_take().expect("done at once");
            assert_eq!((result.unwrap(), buf), (4096, vec![7; 4096]));
            assert_eq!(of(&driver, OpKind::Read).inline, count);
        }
        let mounts = driver.mounts();
        assert_eq!(mounts.len(), 1);
        assert_eq!(mounts[0].nowait_read, expected);
        assert_eq!(mounts[0].nowait_write, Support::Unknown);
        assert!(!mounts[0].is_remote && !mounts[0].file_system.is_empty());
    });
}

#[test]
fn who_asks_for_the_queue_gets_it() {
    let folder = TempDir::new();
    let path = folder.file("file", 4096);
    let driver = ruled(Policy::Uring);
    let fd = adopt(&driver, &path);
    let handle = driver.without_bypass();
    let mut read = handle.read(&fd, vec![0; 10], 0);
    assert!(read.try_take().is_none());
    finish(&driver, &mut read).0.unwrap();
    finish(&driver, &mut handle.write(&fd, vec![content(0)], 0)).0.unwrap();
    finish(&driver, &mut handle.statx_fd(&fd)).unwrap();
    drop(finish(&driver, &mut handle.open(None, c(&path), RDONLY, 0)).unwrap());
    assert!(matches!(handle.read_file_now(&c(&path), 100).unwrap(), WholeFile::NotNow));
    driver.set_bypass(Bypass::Never);
    finish(&driver, &mut driver.read(&fd, vec![0; 10], 0)).0.unwrap();
    finish(&driver, &mut driver.statx_fd(&fd)).unwrap();
    assert!(matches!(driver.read_file_now(&c(&path), 100).unwrap(), WholeFile::NotNow));
    for kind in [OpKind::Read, OpKind::Write, OpKind::Statx, OpKind::Open] {
        let KindCounters { inline, would_block, submitted, .. } = of(&driver, kind);
        assert_eq!((inline, would_block), (0, 0), "{}", kind.name());
        assert!(submitted > 0, "{}", kind.name());
    }
    // One kind alone can be switched off.
    driver.set_bypass(Bypass::Rules(Rules::default().with(OpKind::Read, Rule::QUEUE)));
    assert!(driver.read(&fd, vec![0; 10], 0).try_take().is_none());
    assert!(driver.statx_fd(&fd).try_take().is_some());
}

#[test]
fn a_limit_on_the_size_of_files_is_an_error_and_no_signal() {
    children::run("file_size_limit");
}

pub fn scene_file_size_limit() {
    let folder = TempDir::new();
    let path = folder.file("file", 100);
    let limit = Rlimit { current: Some(8192), maximum: Some(8192) };
    setrlimit(Resource::Fsize, limit).unwrap();
    each(|driver| {
        let fd = adopt(&driver, &path);
        finish(&driver, &mut driver.write(&fd, vec![1; 4096], 0)).0.unwrap();
        let mut write = driver.write(&fd, vec![1; 4096], 16 << 10);
        assert_eq!(errno(finish(&driver, &mut write).0), Errno::FBIG);
        let mut write = driver.write_vectored(&fd, vec![vec![1; 4096]], 16 << 10);
        assert_eq!(errno(finish(&driver, &mut write).0), Errno::FBIG);
        assert_eq!(fs::metadata(&path).unwrap().len(), 4096);
        // The limit does not apply to reads.
        assert!(driver.read(&fd, vec![0; 10], 0).try_take().is_some());
    });
}

// ---- turns -------------------------------------------------------------------------------------

/// Reads that can refuse to wait go to the ring, where many cost less; if that happens to many, the inline
/// budget shrinks. Only reads of files in memory, which cannot refuse, are deferred.
#[test]
fn a_crowd_of_cached_reads_goes_to_the_ring() {
    let folder = TempDir::new();
    let path = folder.file("file", 4096);
    let driver = ruled(Policy::Uring);
    let fd = adopt(&driver, &path);
    let mut reads: Vec<_> =
        (0..TURN + 36).map(|at| driver.read(&fd, vec![0; 16], at as u64)).collect();
    let counts = || (of(&driver, OpKind::Read).inline, of(&driver, OpKind::Read).submitted);
    assert_eq!((counts(), driver.counters().deferred), ((TURN as u64, 36), 0));
    while driver.in_flight() > 0 {
        driver.turn(Wait::Forever).unwrap();
    }
    for (at, read) in reads.iter_mut().enumerate() {
        let (result, buf) = read.try_take().expect("done");
        assert_eq!(result.unwrap(), 16);
        assert_content(&buf, at);
    }
    let before = counts();
    let more: Vec<_> = (0..TURN).map(|_| driver.read(&fd, vec![0; 16], 0)).collect();
    let (inline, submitted) = counts();
    assert!(inline - before.0 < TURN as u64 && submitted > before.1, "{before:?}");
    drop(more);
}

/// A ring would not take the lock on the file's position.
#[test]
fn a_crowd_of_reads_at_the_position_goes_to_threads() {
    let folder = TempDir::new();
    let path = folder.file("file", 16 * (TURN + 36));
    let driver = ruled(Policy::Uring);
    let fd = adopt(&driver, &path);
    let mut reads: Vec<_> =
        (0..TURN + 36).map(|_| driver.read(&fd, vec![0; 16], CURRENT_POSITION)).collect();
    let mut came: Vec<Vec<u8>> = reads
        .iter_mut()
        .map(|read| {
            let (result, buf) = finish(&driver, read);
            assert_eq!(result.unwrap(), 16);
            buf
        })
        .collect();
    let counts = of(&driver, OpKind::Read);
    assert_eq!((counts.inline, counts.lane), (TURN as u64, 36));
    let mut expected: Vec<Vec<u8>> =
        (0..TURN + 36).map(|part| (16 * part..16 * (part + 1)).map(content).collect()).collect();
    came.sort_unstable();
    expected.sort_unstable();
    assert!(came == expected);
}

/// The entries of such reads do not tell how large they are, so these reads are deferred.
#[test]
fn a_crowd_of_reads_into_parts_waits_for_the_next_turns() {
    let folder = TempDir::new();
    let path = folder.file("file", 4096);
    each(|driver| {
        let fd = adopt(&driver, &path);
        let mut reads: Vec<_> = (0..TURN + LATER)
            .map(|at| driver.read_vectored(&fd, parts(&[8, 8]), at as u64))
            .collect();
        assert_eq!(driver.counters().deferred, LATER as u64);
        driver.turn(Wait::Poll).unwrap();
        assert_eq!(of(&driver, OpKind::Read).inline, (TURN + LATER) as u64);
        for (at, read) in reads.iter_mut().enumerate() {
            let (result, bufs) = read.try_take().expect("done");
            assert_eq!(result.unwrap(), 16);
            assert_content(&bufs.concat(), at);
        }
    });
}

#[test]
fn what_exceeds_a_turn_is_done_in_the_next_ones_in_order() {
    let Some(folder) = TempDir::in_memory() else { skip!("/dev/shm cannot be written to") };
    let path = folder.file("file", 4096);
    each(|driver| {
        let fd = adopt(&driver, &path);
        let mut reads: Vec<_> = (0..TURN + 36)
            .map(|index| {
                let mut read = driver.read(&fd, vec![0; 16], index as u64);
                read.set_token(index as u64);
                read
            })
            .collect();
        assert_eq!(driver.counters().deferred, 36);
        assert_eq!(of(&driver, OpKind::Read).inline, TURN as u64);
        let tokens = || std::iter::from_fn(|| driver.next_done()).collect::<Vec<_>>();
        assert_eq!(tokens(), (0..TURN as u64).collect::<Vec<_>>());
        let mut next = TURN as u64;
        for expected in [LATER, LATER, LATER, LATER, 4] {
            assert!(driver.has_deferred());
            // The turn does not sleep, though nothing is in flight.
            assert_eq!(driver.turn(Wait::Forever).unwrap() as usize, expected);
            let end = next + expected as u64;
            assert_eq!(tokens(), (next..end).collect::<Vec<_>>());
            next = end;
        }
        assert!(!driver.has_deferred());
        assert_eq!(driver.counters().enters, 0);
        for (index, read) in reads.iter_mut().enumerate() {
            let (result, buf) = read.try_take().expect("done");
            assert_eq!(result.unwrap(), 16);
            assert_content(&buf, index);
        }
        drop(reads);
        assert_eq!(driver.live_operations(), 0);
        // The next turn has the whole budget again.
        driver.turn(Wait::Poll).unwrap();
        use_up(&driver, &fd);
        drop(driver.read(&fd, vec![0; 1], 0));
        assert_eq!(driver.counters().deferred, 37);
    });
}

/// The time for plain calls is over at the latest when the clock is read.
#[test]
fn what_comes_too_late_in_a_turn_is_done_in_the_next_one() {
    let Some(folder) = TempDir::in_memory() else { skip!("/dev/shm cannot be written to") };
    let path = folder.file("file", 4096);
    each(|driver| {
        let fd = adopt(&driver, &path);
        let inline = || of(&driver, OpKind::Read).inline;
        for round in 1..=20 {
            let begin = driver.now();
            driver.attention().begin_tasks(begin);
            while driver.now() - begin < Duration::from_millis(1) {}
            let before = inline();
            let reads: Vec<_> = (0..40).map(|_| driver.read(&fd, vec![0; 16], 0)).collect();
            let done = inline() - before;
            assert!(done <= if round == 1 { 32 } else { 1 }, "{done} in round {round}");
            assert!(driver.has_deferred() && !driver.has_inline_budget());
            assert_eq!(driver.plain_calls(), TURN as u32);
            assert!(matches!(driver.read_file_now(&c(&path), 9).unwrap(), WholeFile::NotNow));
            turn_until(&driver, || !driver.has_deferred());
            drop(reads);
        }
        // With no tasks polled, the budget is as before. The late reads did not count as a crowd.
        driver.turn(Wait::Poll).unwrap();
        use_up(&driver, &fd);
        let deferred = driver.counters().deferred;
        drop(driver.read(&fd, vec![0; 1], 0));
        assert_eq!(driver.counters().deferred, deferred + 1);
    });
}

/// Repeats `made` until it returns `expected`, and asserts that it never makes more plain calls than that. It
/// makes fewer if its thread has to wait for a processor, since the calls then seem to be slow.
#[track_caller]
fn undisturbed(expected: (u64, u64), made: impl Fn() -> (u64, u64)) {
    let watch = Watch::new();
    loop {
        let made = made();
        assert!(made.0 <= expected.0, "{made:?} of {expected:?}");
        if made == expected {
            return;
        }
        watch.check(|| format!("{expected:?}; at last {made:?}"));
    }
}

#[test]
fn large_copies_use_a_turn_up_sooner() {
    let Some(folder) = TempDir::in_memory() else { skip!("/dev/shm cannot be written to") };
    let path = folder.file("file", 64 << 10);
    let made = |count: usize, start: &dyn Fn(&Driver, &Fd) -> Box<dyn Any>| {
        let driver = ruled(Policy::Uring);
        let fd = adopt(&driver, &path);
        let reads: Vec<_> = (0..=count).map(|_| start(&driver, &fd)).collect();
        let made = (of(&driver, OpKind::Read).inline, driver.counters().deferred);
        drop(reads);
        // Those that the queue got, since calls seemed to be slow, stay until their completions.
        assert_eq!(driver.live_operations(), driver.in_flight());
        made
    };
    let whole = |driver: &Driver, fd: &Fd| -> Box<dyn Any> {
        Box::new(driver.read(fd, vec![0; 64 << 10], 0))
    };
    undisturbed((8, 1), || made(8, &whole));
    // The same in parts; bytes that were asked for but not there cost nothing.
    for (offset, count) in [(0, 8), (32 << 10, 13), ((64 << 10) - 1, TURN)] {
        let half = vec![0; 32 << 10];
        let parts = move |driver: &Driver, fd: &Fd| -> Box<dyn Any> {
            Box::new(driver.read_vectored(fd, vec![half.clone(), half.clone()], offset))
        };
        undisturbed((count as u64, 1), || made(count, &parts));
    }
}

/// Runs a test on a driver whose turn is used up, with a read of `Buf` that is deferred to the next.
fn with_deferred(path: &Path, counter: &DropCounter, test: impl Fn(Driver, Fd, DeferredRead)) {
    each(|driver| {
        let fd = adopt(&driver, path);
        use_up(&driver, &fd);
        let read = driver.read(&fd, Buf::new(64, counter), 0);
        assert!(driver.has_deferred());
        assert_eq!(driver.live_operations(), 1);
        test(driver, fd, read);
    });
    counter.assert_each_dropped_once();
}

type DeferredRead = Op<Read<Buf>>;

#[test]
fn a_deferred_read_that_is_dropped_is_disposed_of() {
    let Some(folder) = TempDir::in_memory() else { skip!("/dev/shm cannot be written to") };
    let counter = DropCounter::new();
    with_deferred(&folder.file("file", 64), &counter, |driver, _fd, read| {
        let (made, dropped) = (of(&driver, OpKind::Read).inline, counter.dropped());
        drop(read);
        assert_eq!(counter.dropped(), dropped + 1);
        assert_eq!(driver.live_operations(), 0);
        assert!(!driver.has_deferred());
        driver.turn(Wait::Poll).unwrap();
        assert_eq!(of(&driver, OpKind::Read).inline, made);
        let counters = driver.counters();
        assert_eq!(counters.started, counters.finished);
        assert_eq!(counters.orphaned, 1);
    });
}

#[test]
fn a_deferred_read_that_is_canceled_says_so_once() {
    let Some(folder) = TempDir::in_memory() else { skip!("/dev/shm cannot be written to") };
    let counter = DropCounter::new();
    with_deferred(&folder.file("file", 64), &counter, |driver, _fd, mut read| {
        read.set_token(7);
        read.cancel();
        read.cancel();
        assert_eq!((driver.next_done(), driver.next_done()), (Some(7), None));
        assert_eq!(errno(read.try_take().expect("over").0), Errno::CANCELED);
        assert!(!driver.has_deferred());
        driver.turn(Wait::Poll).unwrap();
        let counters = driver.counters();
        assert_eq!((counters.started, counters.cancels), (counters.finished, 0));
    });
}

#[test]
fn closing_a_descriptor_cancels_its_deferred_reads() {
    let Some(folder) = TempDir::in_memory() else { skip!("/dev/shm cannot be written to") };
    let counter = DropCounter::new();
    with_deferred(&folder.file("file", 64), &counter, |driver, fd, mut read| {
        let raw = fd.raw();
        let mut close = driver.close(fd);
        assert_eq!(errno(finish(&driver, &mut read).0), Errno::CANCELED);
        drop(read);
        finish(&driver, &mut close).unwrap();
        assert_ne!(identity(raw), Some(folder.join("file")));
        drop(close);
        assert_eq!(driver.live_operations(), 0);
    });
}

#[test]
fn the_end_of_the_driver_cancels_deferred_reads() {
    let Some(folder) = TempDir::in_memory() else { skip!("/dev/shm cannot be written to") };
    let counter = DropCounter::new();
    with_deferred(&folder.file("file", 64), &counter, |driver, fd, mut read| {
        let (raw, handle) = (fd.raw(), driver.handle().clone());
        let dropped = driver.read(&fd, Buf::new(64, &counter), 0);
        drop(fd);
        drop(dropped);
        assert_eq!(driver.shutdown(Duration::from_secs(3600)).leaked, 0);
        assert_eq!(errno(read.try_take().expect("over").0), Errno::CANCELED);
        drop(read);
        assert_ne!(identity(raw), Some(folder.join("file")));
        assert_eq!(handle.live_operations(), 0);
    });
}

#[test]
fn what_was_deferred_goes_to_the_queue_when_the_rules_change() {
    let Some(folder) = TempDir::in_memory() else { skip!("/dev/shm cannot be written to") };
    let counter = DropCounter::new();
    with_deferred(&folder.file("file", 64), &counter, |driver, _fd, mut read| {
        driver.set_bypass(Bypass::Never);
        let (result, buf) = finish(&driver, &mut read);
        assert_eq!(result.unwrap(), 64);
        assert_content(buf.bytes(), 0);
        assert_eq!(of(&driver, OpKind::Read).submitted, 1);
    });
}

#[test]
fn a_deferred_close_closes_in_the_next_turn_or_at_the_end() {
    let folder = TempDir::new();
    let path = folder.file("file", 64);
    for ends in [false, true] {
        each(|driver| {
            let fd = adopt(&driver, &path);
            use_up(&driver, &fd);
            let raw = fd.raw();
            drop(fd);
            assert!(driver.has_deferred() && identity(raw).is_some());
            if ends {
                assert_eq!(driver.shutdown(Duration::from_secs(3600)).leaked, 0);
            } else {
                driver.turn(Wait::Poll).unwrap();
                assert_eq!(driver.live_operations(), 0);
            }
            assert_ne!(identity(raw), Some(folder.join("file")));
        });
    }
}

#[test]
fn a_deferred_close_that_is_waited_for_closes_too() {
    let folder = TempDir::new();
    let path = folder.file("file", 64);
    for end in ["turn", "cancel", "drop", "shutdown"] {
        each(|driver| {
            let fd = adopt(&driver, &path);
            use_up(&driver, &fd);
            let raw = fd.raw();
            let mut close = driver.close(fd);
            assert!(driver.has_deferred() && close.try_take().is_none(), "{end}");
            assert_eq!(identity(raw), Some(path.clone()));
            match end {
                "turn" => drop(driver.turn(Wait::Poll)),
                "cancel" => close.cancel(),
                "shutdown" => assert_eq!(driver.shutdown(Duration::from_secs(3600)).leaked, 0),
                _ => {}
            }
            if end == "drop" {
                drop(close);
            } else {
                close.try_take().expect("over").unwrap();
            }
            assert_eq!(open_descriptors(&path), 0, "{end}");
        });
    }
}

// ---- names -------------------------------------------------------------------------------------

#[test]
fn a_cached_path_is_opened_at_once_and_a_new_file_made_by_the_queue() {
    let folder = TempDir::new();
    let path = folder.file("file", 10);
    let driver = ruled(Policy::Uring);
    let fd = driver.open(None, c(&path), RDONLY, 0).try_take().expect("done at once").unwrap();
    assert_eq!(identity(fd.raw()), Some(path.clone()));
    assert_eq!(of(&driver, OpKind::Open).inline, 1);
    let directory = driver.adopt(File::open(folder.path()).unwrap().into());
    let mut open = driver.open(Some(&directory), c("file"), RDONLY, 0);
    drop(open.try_take().expect("done at once").unwrap());
    for flags in [OFlags::CREATE, OFlags::TRUNC] {
        let before = of(&driver, OpKind::Open);
        let flags = (flags | OFlags::RDWR).bits();
        let mut open = driver.open(None, c(&path), flags, 0o600);
        assert!(open.try_take().is_none());
        drop(finish(&driver, &mut open).unwrap());
        let after = of(&driver, OpKind::Open);
        assert_eq!((after.inline, after.submitted), (before.inline, before.submitted + 1));
    }
    let mut open = driver.open(None, c(folder.join("file/below")), RDONLY, 0);
    assert_eq!(errno(finish(&driver, &mut open)), Errno::NOTDIR);
    let mut open = driver.open(None, c(folder.join("missing")), RDONLY, 0);
    assert_eq!(errno(finish(&driver, &mut open)), Errno::NOENT);
}

#[test]
fn a_fifo_that_is_opened_at_once_waits_for_nobody_and_later_for_bytes() {
    let folder = TempDir::new();
    let path = fifo(&folder);
    each(|driver| {
        let mut open = driver.open(None, c(&path), OFlags::WRONLY.bits(), 0);
        assert_eq!(errno(finish(&driver, &mut open)), Errno::NXIO);
        let fd = finish(&driver, &mut driver.open(None, c(&path), RDONLY, 0)).unwrap();
        assert_eq!(fd.kind(), FileKind::Waiting);
        assert!(!is_nonblocking(&fd), "the flag is taken off");
        let writer = File::options().write(true).open(&path).unwrap();
        let inline = of(&driver, OpKind::Read).inline;
        let mut read = driver.read(&fd, vec![0; 4], CURRENT_POSITION);
        for _ in 0..3 {
            driver.turn(Wait::Poll).unwrap();
            assert!(read.try_take().is_none(), "nothing was written");
        }
        assert_eq!(of(&driver, OpKind::Read).inline, inline);
        rustix::io::write(&writer, b"late").unwrap();
        assert_eq!(finish(&driver, &mut read).1, b"late");
    });
}

#[test]
fn questions_about_cached_files_are_answered_at_once() {
    let folder = TempDir::new();
    let path = folder.file("file", 123);
    std::os::unix::fs::symlink("file", folder.join("link")).unwrap();
    each(|driver| {
        let fd = adopt(&driver, &path);
        let by_fd = driver.statx_fd(&fd).try_take().expect("done at once").unwrap();
        let by_path = driver.statx(None, c(&path), 0).try_take().expect("at once").unwrap();
        assert_eq!((by_fd.size, by_fd.inode), (123, by_path.inode));
        let link = c(folder.join("link"));
        let followed = finish(&driver, &mut driver.statx(None, link.clone(), 0)).unwrap();
        assert_eq!(followed.inode, by_path.inode);
        let nofollow = rustix::fs::AtFlags::SYMLINK_NOFOLLOW.bits();
        let itself = finish(&driver, &mut driver.statx(None, link, nofollow)).unwrap();
        assert!(itself.inode != by_path.inode && !itself.is_file());
        let missing = finish(&driver, &mut driver.statx(None, c("/no/where"), 0));
        assert_eq!(errno(missing), Errno::NOENT);
        assert!(of(&driver, OpKind::Statx).inline >= 2);
    });
}

// ---- whole files -------------------------------------------------------------------------------

#[test]
fn a_small_file_is_read_as_a_whole() {
    let folder = TempDir::new();
    let path = folder.file("file", 5000);
    each(|driver| {
        for expected in [5000, 5001, 60_000] {
            match driver.read_file_now(&c(&path), expected).unwrap() {
                WholeFile::Read(bytes) => {
                    assert_eq!(bytes.len(), 5000);
                    assert_content(&bytes, 0);
                }
                other => panic!("{other:?}"),
            }
            assert_eq!(open_descriptors(&path), 0);
        }
        assert_eq!((driver.live_operations(), driver.counters().enters), (0, 0));
        let kinds = [OpKind::Open, OpKind::Read, OpKind::Close];
        assert_eq!(kinds.map(|kind| of(&driver, kind).inline), [3; 3]);
    });
}

#[test]
fn small_files_in_memory_are_read_as_a_whole() {
    let Some(memory) = TempDir::in_memory() else { skip!("/dev/shm cannot be written to") };
    let disk = TempDir::new();
    let paths = [memory.file("file", 5000), disk.file("file", 5000), memory.file("other", 5000)];
    each(|driver| {
        for path in paths.iter().cycle().take(12) {
            match driver.read_file_now(&c(path), 5000).unwrap() {
                WholeFile::Read(bytes) => {
                    assert_eq!(bytes.len(), 5000);
                    assert_content(&bytes, 0);
                }
                other => panic!("{}: {other:?}", path.display()),
            }
            assert_eq!(open_descriptors(path), 0);
        }
        assert_eq!(of(&driver, OpKind::Read).inline, 12);
        assert_eq!((driver.live_operations(), driver.counters().enters), (0, 0));
    });
}

/// Counts the descriptors of this process that refer to the file.
fn open_descriptors(path: &Path) -> usize {
    let targets = fs::read_dir("/proc/self/fd").unwrap();
    let targets = targets.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
    targets.filter(|target| target == path).count()
}

#[test]
fn what_is_no_small_file_is_left_to_operations() {
    let folder = TempDir::new();
    let large = folder.file("large", 5000);
    let empty = folder.file("empty", 0);
    let fifo = fifo(&folder);
    each(|driver| {
        let now = |path: &Path, expected| driver.read_file_now(&c(path), expected);
        let opened = |path: &Path, expected| match now(path, expected).unwrap() {
            WholeFile::Opened(fd, bytes) => (fd, bytes),
            other => panic!("{}: {other:?}", path.display()),
        };
        let (fd, bytes) = opened(&large, 99);
        assert!((100..=5000).contains(&bytes.len()), "{}", bytes.len());
        assert_content(&bytes, 0);
        let mut read = driver.read(&fd, vec![0; 10_000], bytes.len() as u64);
        let (result, rest) = finish(&driver, &mut read);
        assert_eq!(bytes.len() + result.unwrap(), 5000);
        assert_content(&rest[..5000 - bytes.len()], bytes.len());

        let (fd, bytes) = opened(&empty, 99);
        assert!(bytes.is_empty());
        assert_eq!(finish(&driver, &mut driver.read(&fd, vec![0; 9], 0)).0.unwrap(), 0);

        let (fd, bytes) = opened(folder.path(), 99);
        assert!(bytes.is_empty());
        let mut read = driver.read(&fd, vec![0; 9], 0);
        assert_eq!(errno(finish(&driver, &mut read).0), Errno::ISDIR);

        let (fd, bytes) = opened(&fifo, 99);
        assert!(bytes.is_empty());
        assert_eq!(fd.kind(), FileKind::Waiting);
        assert!(!is_nonblocking(&fd));

        match now(&folder.join("missing"), 99) {
            Err(error) => assert_eq!(Errno::from_io_error(&error), Some(Errno::NOENT)),
            Ok(WholeFile::NotNow) => {}
            Ok(other) => panic!("{other:?}"),
        }
        // A file that does not tell its size.
        match now(Path::new("/proc/self/stat"), 9999).unwrap() {
            WholeFile::Opened(fd, bytes) => {
                let mut read = driver.read(&fd, vec![0; 9999], bytes.len() as u64);
                let (result, rest) = finish(&driver, &mut read);
                let whole = [&bytes[..], &rest[..result.unwrap()]].concat();
                assert!(whole.ends_with(b"\n"), "{whole:?}");
            }
            WholeFile::NotNow => {}
            WholeFile::Read(bytes) => panic!("a size of {} bytes", bytes.len()),
        }
        drop((fd, bytes));
        turn_until(&driver, || driver.live_operations() == 0);
    });
}

#[test]
fn a_file_for_which_there_is_no_memory_is_closed() {
    let folder = TempDir::new();
    let path = folder.file("file", 5000);
    each(|driver| {
        let result = driver.read_file_now(&c(&path), usize::MAX);
        assert_eq!(errno(result), Errno::NOMEM);
        assert_eq!(open_descriptors(&path), 0);
    });
}

#[test]
fn no_file_is_read_when_the_turn_is_used_up() {
    let folder = TempDir::new();
    let path = folder.file("file", 100);
    let driver = ruled(Policy::Uring);
    let fd = adopt(&driver, &path);
    use_up(&driver, &fd);
    assert!(matches!(driver.read_file_now(&c(&path), 100).unwrap(), WholeFile::NotNow));
    driver.turn(Wait::Poll).unwrap();
    assert!(matches!(driver.read_file_now(&c(&path), 100).unwrap(), WholeFile::Read(_)));
}

#[test]
fn who_waited_for_a_turn_may_read_a_file_whatever_others_do_before() {
    let folder = TempDir::new();
    let path = folder.file("file", 100);
    each(|driver| {
        let fd = adopt(&driver, &path);
        use_up(&driver, &fd);
        let mut turn = driver.next_turn();
        assert!(turn.try_take().is_none());
        let given_up = driver.next_turn();
        drop(given_up);
        finish(&driver, &mut turn).unwrap();
        while driver.has_inline_budget() {
            drop(driver.read(&fd, vec![0; 1], 0));
        }
        let now = || driver.read_file_now(&c(&path), 100).unwrap();
        assert!(matches!(now(), WholeFile::Read(bytes) if bytes.len() == 100));
        assert!(matches!(now(), WholeFile::NotNow), "once");
        drop((turn, fd));
        turn_until(&driver, || driver.live_operations() == 0);
    });
}

#[test]
fn a_file_that_is_not_in_use_is_closed_at_once() {
    let folder = TempDir::new();
    let path = folder.file("file", 256 << 10);
    let used = |driver: &Driver| {
        let fd = adopt(driver, &path);
        driver.read(&fd, vec![0; 1], 0).try_take().expect("done at once").0.unwrap();
        fd
    };
    each(|driver| {
        let fd = used(&driver);
        let raw = fd.raw();
        driver.close(fd).try_take().expect("done at once").unwrap();
        assert_ne!(identity(raw), Some(path.clone()));
        drop(driver.close(used(&driver)));
        assert_eq!(open_descriptors(&path), 0);
        let close = of(&driver, OpKind::Close);
        assert_eq!((close.inline, close.submitted, driver.counters().enters), (2, 0, 0));
        turn_until(&driver, || driver.live_operations() == 0);
    });
    // A file that was in use is closed in the same way after its last use, and so is one that was never used.
    // A descriptor that is no file is closed by the queue.
    let driver = ruled(Policy::Uring);
    let closed = |inline, queued| {
        let close = of(&driver, OpKind::Close);
        assert_eq!((close.inline, close.submitted), (inline, queued));
    };
    let fd = used(&driver);
    let mut read = driver.read(&fd, vec![0; 256 << 10], 0);
    let mut close = driver.close(fd);
    // The close may have canceled the read, or not.
    let _ = finish(&driver, &mut read).0;
    finish(&driver, &mut close).unwrap();
    closed(1, 0);
    let fd = used(&driver);
    let clone = fd.clone();
    let mut close = driver.close(fd);
    assert!(close.try_take().is_none());
    drop(clone);
    finish(&driver, &mut close).unwrap();
    closed(2, 0);
    let close = &mut driver.without_bypass().close(used(&driver));
    finish(&driver, close).unwrap();
    closed(2, 1);
    finish(&driver, &mut driver.close(adopt(&driver, &path))).unwrap();
    closed(3, 1);
    let (reader, _writer) = rustix::pipe::pipe().unwrap();
    let reader = driver.adopt(reader);
    assert_eq!(reader.kind(), FileKind::Waiting);
    finish(&driver, &mut driver.close(reader)).unwrap();
    closed(3, 2);
    assert_eq!((open_descriptors(&path), driver.live_operations()), (0, 0));
}

#[test]
fn an_adopted_file_is_closed_once() {
    let folder = TempDir::new();
    let path = folder.file("file", 100);
    let driver = ruled(Policy::Uring);
    let file: OwnedFd = File::open(&path).unwrap().into();
    let raw = file.as_raw_fd();
    let fd = driver.adopt(file);
    driver.read(&fd, vec![0; 1], 0).try_take().expect("done at once").0.unwrap();
    let mut close = driver.close(fd);
    finish(&driver, &mut close).unwrap();
    assert_ne!(identity(raw), Some(path));
    let close = of(&driver, OpKind::Close);
    assert_eq!(close.inline + close.submitted, 1);
}
