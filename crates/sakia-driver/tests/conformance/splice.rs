//! Splices: bytes that pass through a pipe within the kernel.

use std::pin::Pin;
use std::task::Poll;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use sakia_driver::{CURRENT_POSITION, Domain, Driver, Fd, Splice, SpliceFlags};

use crate::connections::{poll, run};
use crate::sockets::{DOMAINS, connected};
use crate::stage::{Stage, errno, settle, turn_until, wait};

const NONE: SpliceFlags = SpliceFlags(0);
/// The offset of a pipe or a socket, or of a file that is used at its own position.
const HERE: u64 = CURRENT_POSITION;

fn write(driver: &Driver, fd: &Fd, bytes: &[u8]) {
    assert_eq!(wait(driver, driver.write(fd, bytes.to_vec(), HERE)).0.unwrap(), bytes.len());
}

/// Reads `len` bytes, by several reads if needed.
fn read(driver: &Driver, fd: &Fd, len: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < len {
        let (result, buf) = wait(driver, driver.read(fd, vec![0; len - bytes.len()], HERE));
        let count = result.unwrap();
        assert!(count > 0, "it ended after {} of {len}", bytes.len());
        bytes.extend_from_slice(&buf[..count]);
    }
    bytes
}

/// Fills a pipe or a socket, and returns the number of bytes it took.
fn fill(driver: &Driver, fd: &Fd) -> usize {
    let mut count = 0;
    loop {
        let mut filling = driver.write(fd, vec![b'f'; 1 << 16], HERE);
        settle(driver);
        match filling.try_take() {
            Some((result, _)) => count += result.unwrap(),
            None => {
                filling.cancel();
                let (result, _) = wait(driver, filling);
                return count + result.unwrap_or(0);
            }
        }
    }
}

/// Asserts that a splice keeps waiting.
#[track_caller]
fn assert_waits(driver: &Driver, splice: &mut Splice) {
    for _ in 0..3 {
        settle(driver);
        assert!(poll(Pin::new(&mut *splice)).is_pending(), "it has to wait");
    }
}

pub fn a_pipe_is_spliced_to_a_file(stage: &Stage) {
    let driver = stage.driver();
    let file = stage.file(&driver, "file", b"0123456789");
    let (receiver, sender) = stage.pipe(&driver);
    write(&driver, &sender, b"abcdef");
    assert_eq!(run(&driver, driver.splice(&receiver, HERE, &file, 3, 2, NONE)).unwrap(), 2);
    assert_eq!(stage.contents("file"), b"012ab56789");
    // At the file's own position, which the offset did not move; with a length beyond the pipe's content.
    let more = SpliceFlags::MOVE | SpliceFlags::MORE;
    let rest = driver.splice(&receiver, HERE, &file, HERE, usize::MAX, more);
    assert_eq!(run(&driver, rest).unwrap(), 4);
    assert_eq!(stage.contents("file"), b"cdefb56789");
    assert_eq!(read(&driver, &file, 2), b"b5", "the position moved");
    let mut splice = driver.splice(&receiver, HERE, &file, 20, 9, NONE);
    assert_waits(&driver, &mut splice);
    write(&driver, &sender, b"late");
    assert_eq!(run(&driver, splice).unwrap(), 4);
    assert_eq!(stage.contents("file")[20..], *b"late");
    wait(&driver, driver.close(sender)).unwrap();
    assert_eq!(run(&driver, driver.splice(&receiver, HERE, &file, 0, 9, NONE)).unwrap(), 0);
}

pub fn a_file_is_spliced_to_a_pipe(stage: &Stage) {
    let driver = stage.driver();
    let file = stage.file(&driver, "file", b"0123456789");
    let (receiver, sender) = stage.pipe(&driver);
    assert_eq!(run(&driver, driver.splice(&file, 7, &sender, HERE, 100, NONE)).unwrap(), 3);
    assert_eq!(run(&driver, driver.splice(&file, HERE, &sender, HERE, 2, NONE)).unwrap(), 2);
    assert_eq!(run(&driver, driver.splice(&file, HERE, &sender, HERE, 2, NONE)).unwrap(), 2);
    assert_eq!(read(&driver, &receiver, 7), b"7890123");
    for begin in [10, 1 << 40] {
        assert_eq!(run(&driver, driver.splice(&file, begin, &sender, HERE, 2, NONE)).unwrap(), 0);
    }
    assert_eq!(run(&driver, driver.splice(&file, 0, &sender, HERE, 0, NONE)).unwrap(), 0);
}

pub fn a_splice_waits_for_bytes_and_for_their_end(stage: &Stage) {
    let driver = stage.driver();
    let ((receiver, sender), (last, middle)) = (stage.pipe(&driver), stage.pipe(&driver));
    let mut splice = driver.splice(&receiver, HERE, &middle, HERE, 3, NONE);
    assert_waits(&driver, &mut splice);
    write(&driver, &sender, b"abcde");
    assert_eq!(run(&driver, splice).unwrap(), 3);
    assert_eq!(run(&driver, driver.splice(&receiver, HERE, &middle, HERE, 9, NONE)).unwrap(), 2);
    assert_eq!(read(&driver, &last, 5), b"abcde");
    let mut splice = driver.splice(&receiver, HERE, &middle, HERE, 3, NONE);
    assert_waits(&driver, &mut splice);
    wait(&driver, driver.close(sender)).unwrap();
    assert_eq!(run(&driver, splice).unwrap(), 0);
}

pub fn a_splice_waits_for_room(stage: &Stage) {
    let driver = stage.driver();
    let ((receiver, sender), (last, middle)) = (stage.pipe(&driver), stage.pipe(&driver));
    let file = stage.file(&driver, "file", b"from a file");
    let filled = fill(&driver, &middle);
    write(&driver, &sender, b"from a pipe");
    let mut splices = [
        driver.splice(&receiver, HERE, &middle, HERE, 100, NONE),
        driver.splice(&file, 0, &middle, HERE, 100, NONE),
    ];
    for splice in &mut splices {
        assert_waits(&driver, splice);
    }
    assert_eq!(read(&driver, &last, filled), vec![b'f'; filled]);
    for splice in splices {
        assert_eq!(run(&driver, splice).unwrap(), 11);
    }
    let mut both = read(&driver, &last, 22);
    both.sort_unstable();
    let mut expected = b"from a filefrom a pipe".to_vec();
    expected.sort_unstable();
    assert_eq!(both, expected);
}

pub fn a_splice_goes_to_sockets_and_comes_from_them(stage: &Stage) {
    let driver = stage.driver();
    for domain in DOMAINS {
        for is_nonblocking in [false, true] {
            let (near, far) = connected(stage, &driver, domain);
            if is_nonblocking && !near.is_simulated() {
                for socket in [&near, &far] {
                    fcntl_setfl(socket, fcntl_getfl(socket).unwrap() | OFlags::NONBLOCK).unwrap();
                }
            }
            let ((receiver, sender), (last, middle)) = (stage.pipe(&driver), stage.pipe(&driver));
            let mut there = driver.splice(&receiver, HERE, &near, HERE, 100, NONE);
            let mut on = driver.splice(&far, HERE, &middle, HERE, 100, NONE);
            assert_waits(&driver, &mut there);
            assert_waits(&driver, &mut on);
            write(&driver, &sender, b"hello");
            assert_eq!(run(&driver, there).unwrap(), 5);
            assert_eq!(run(&driver, on).unwrap(), 5);
            assert_eq!(read(&driver, &last, 5), b"hello");
            // The end of the source stream is the end of the splice.
            let mut on = driver.splice(&far, HERE, &middle, HERE, 100, NONE);
            assert_waits(&driver, &mut on);
            wait(&driver, driver.close(near)).unwrap();
            assert_eq!(run(&driver, on).unwrap(), 0);
        }
    }
}

pub fn a_splice_waits_for_room_in_a_socket(stage: &Stage) {
    let driver = stage.driver();
    // The buffers of TCP grow while the peer does not receive.
    let (near, far) = connected(stage, &driver, Domain::UNIX);
    let (receiver, sender) = stage.pipe(&driver);
    let filled = fill(&driver, &near);
    write(&driver, &sender, b"hello");
    let mut splice = driver.splice(&receiver, HERE, &near, HERE, 100, NONE);
    assert_waits(&driver, &mut splice);
    assert_eq!(read(&driver, &far, filled).len(), filled);
    assert_eq!(run(&driver, splice).unwrap(), 5);
    assert_eq!(read(&driver, &far, 5), b"hello");
}

pub fn a_canceled_splice_moves_nothing(stage: &Stage) {
    let driver = stage.driver();
    let ((receiver, sender), (_last, middle)) = (stage.pipe(&driver), stage.pipe(&driver));
    let file = stage.file(&driver, "file", b"");
    let (near, _far) = connected(stage, &driver, DOMAINS[0]);
    fill(&driver, &middle);
    let targets = [&middle, &file, &near];
    for to in targets {
        let mut splice = driver.splice(&receiver, HERE, to, HERE, 9, NONE);
        assert_waits(&driver, &mut splice);
        splice.cancel();
        assert_eq!(errno(run(&driver, splice)), Errno::CANCELED);
        let mut splice = driver.splice(&receiver, HERE, to, HERE, 9, NONE);
        assert_waits(&driver, &mut splice);
        drop(splice);
    }
    // A splice that waits for its target can be canceled as well.
    write(&driver, &sender, b"hello");
    let mut splice = driver.splice(&receiver, HERE, &middle, HERE, 9, NONE);
    assert_waits(&driver, &mut splice);
    splice.cancel();
    assert_eq!(errno(run(&driver, splice)), Errno::CANCELED);
    turn_until(&driver, || driver.live_operations() == 0);
    assert_eq!(read(&driver, &receiver, 5), b"hello");
}

pub fn a_close_ends_a_splice(stage: &Stage) {
    let driver = stage.driver();
    let ((receiver, _sender), (_last, middle)) = (stage.pipe(&driver), stage.pipe(&driver));
    let mut splice = driver.splice(&receiver, HERE, &middle, HERE, 9, NONE);
    assert_waits(&driver, &mut splice);
    let mut close = driver.close(receiver);
    assert_eq!(errno(run(&driver, splice)), Errno::CANCELED);
    turn_until(&driver, || close.try_take().is_some());
}

pub fn the_end_of_the_driver_ends_a_splice(stage: &Stage) {
    let driver = stage.driver();
    let ((receiver, _sender), (_last, middle)) = (stage.pipe(&driver), stage.pipe(&driver));
    let mut waiting = driver.splice(&receiver, HERE, &middle, HERE, 9, NONE);
    assert_waits(&driver, &mut waiting);
    let handle = driver.handle().clone();
    drop(driver);
    let late = handle.splice(&receiver, HERE, &middle, HERE, 9, NONE);
    for mut splice in [waiting, late] {
        let Poll::Ready(result) = poll(Pin::new(&mut splice)) else { panic!("it has ended") };
        assert_eq!(errno(result), Errno::CANCELED);
    }
}

pub fn a_splice_is_refused_where_it_makes_no_sense(stage: &Stage) {
    let driver = stage.driver();
    let (receiver, sender) = stage.pipe(&driver);
    let file = stage.file(&driver, "file", b"0123");
    let (near, far) = connected(stage, &driver, DOMAINS[0]);
    let appending = stage.open(&driver, "file", OFlags::WRONLY | OFlags::APPEND);
    let unreadable = stage.open(&driver, "file", OFlags::WRONLY);
    let unwritable = stage.open(&driver, "file", OFlags::RDONLY);
    // The pipe is empty: a splice that is not refused would wait.
    for (from, from_offset, to, to_offset, len, flags, expected) in [
        (&file, 0, &file, 2, 1, 0, Errno::INVAL),
        (&near, HERE, &far, HERE, 1, 0, Errno::INVAL),
        (&file, HERE, &near, HERE, 1, 0, Errno::INVAL),
        (&receiver, HERE, &sender, HERE, 1, 0, Errno::INVAL),
        (&receiver, HERE, &appending, HERE, 1, 0, Errno::INVAL),
        (&receiver, HERE, &sender, HERE, 1, 16, Errno::INVAL),
        (&receiver, HERE, &file, HERE, 1, 16, Errno::INVAL),
        (&receiver, HERE, &file, 1 << 63, 1, 0, Errno::INVAL),
        (&file, 1 << 63, &sender, HERE, 1, 0, Errno::INVAL),
        (&near, 0, &sender, HERE, 1, 0, Errno::INVAL),
        (&receiver, HERE, &near, 0, 1, 0, Errno::INVAL),
        (&receiver, 0, &file, 0, 1, 0, Errno::SPIPE),
        (&file, 0, &sender, 0, 1, 0, Errno::SPIPE),
        (&near, HERE, &sender, 0, 1, 0, Errno::SPIPE),
        (&receiver, HERE, &unwritable, 0, 1, 0, Errno::BADF),
        (&unreadable, 0, &sender, HERE, 1, 0, Errno::BADF),
        (&sender, HERE, &file, 0, 1, 0, Errno::BADF),
        (&file, 0, &receiver, HERE, 1, 0, Errno::BADF),
        (&near, HERE, &receiver, HERE, 1, 0, Errno::BADF),
    ] {
        let splice = driver.splice(from, from_offset, to, to_offset, len, SpliceFlags(flags));
        eprintln!("    {from:?} {from_offset:#x} {to:?} {to_offset:#x} {flags}");
        assert_eq!(errno(run(&driver, splice)), expected);
    }
    wait(&driver, driver.close(receiver)).unwrap();
    let broken = driver.splice(&file, 0, &sender, HERE, 1, NONE);
    assert_eq!(errno(run(&driver, broken)), Errno::PIPE);
    assert_eq!(stage.contents("file"), b"0123");
}

mod workers {
    use sakia_driver::{Bypass, OpKind};

    use super::*;
    use crate::stage::Kind;

    /// Counts the kernel's workers for rings of the calling thread, which are named after it.
    fn workers() -> usize {
        let name = format!("iou-wrk-{}", rustix::thread::gettid().as_raw_nonzero());
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let names = tasks
            .filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
        names.filter(|its| its.trim_end() == name).count()
    }

    fn splices_that_wait() {
        const COUNT: usize = 300;
        let stage = match Stage::new(Kind::Uring, Bypass::Never, "workers") {
            Ok(stage) => stage,
            Err(reason) => {
                let denied = std::env::var_os("SAKIA_DENY_SKIPS").is_some();
                assert!(!denied, "skips are denied: {reason}");
                return eprintln!("SKIP uring: {reason}");
            }
        };
        let driver = stage.driver_of(512, 2048);
        let ((receiver, sender), (last, middle)) = (stage.pipe(&driver), stage.pipe(&driver));
        let (near, _far) = connected(&stage, &driver, DOMAINS[0]);
        let file = stage.file(&driver, "file", b"");
        let before = (workers(), driver.counters().of(OpKind::Copy));
        let mut splices: Vec<Splice> = Vec::new();
        for to in [&middle, &near, &file] {
            for _ in 0..COUNT {
                splices.push(driver.splice(&receiver, HERE, to, HERE, 1, NONE));
            }
        }
        for _ in 0..3 {
            settle(&driver);
            assert!(splices.iter_mut().all(|splice| poll(Pin::new(splice)).is_pending()));
        }
        let copies = driver.counters().of(OpKind::Copy);
        assert_eq!(workers(), before.0, "a worker of the kernel waits");
        assert_eq!(copies.submitted, before.1.submitted, "a thread waits");
        splices.truncate(COUNT);
        write(&driver, &sender, &vec![b'x'; COUNT]);
        for splice in splices {
            assert_eq!(run(&driver, splice).unwrap(), 1);
            assert_eq!(read(&driver, &last, 1), b"x", "a pipe holds few pieces");
        }
        assert_eq!(workers(), before.0);
    }

    #[test]
    fn splices_that_wait_take_no_worker_and_no_thread() {
        // Workers are named after the thread that owns the ring: a new thread has none yet.
        std::thread::spawn(splices_that_wait).join().unwrap();
    }
}
