//! A descriptor keeps its number until the last operation on it has ended.

use std::ffi::CString;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use rustix::io::Errno;
use sakia_driver::{
    CURRENT_POSITION, ControlMessages, PollEvents, SetTime, ShutdownHow, SocketAddress, SyncRange,
    Wait,
};
use sakia_ring::Opcode;

use crate::children;
use crate::scripted::{Cancels, FILE, PIPE, scripted};
use crate::support::{
    Buf, DropCounter, TempDir, assert_unread, counting_waker, drain, driver, errno, finish,
    identity, panic_of, pipe, poll_once, poll_with, turn_until, write_all,
};

#[test]
fn dropping_the_descriptor_leaves_the_number_to_the_read() {
    let driver = driver();
    let (fd, write) = pipe(&driver);
    let (raw, ours) = (fd.raw(), identity(fd.raw()));
    let mut read = driver.read(&fd, vec![0; 5], CURRENT_POSITION);
    driver.turn(Wait::Poll).unwrap();
    drop(fd);
    driver.turn(Wait::Poll).unwrap();
    assert_eq!(identity(raw), ours);
    let others: Vec<_> = (0..50).map(|_| pipe(&driver)).collect();
    for (_, write) in &others {
        write_all(write, b"other");
    }
    write_all(&write, b"first");
    let (result, buf) = finish(&driver, &mut read);
    assert_eq!((result.unwrap(), &buf[..]), (5, &b"first"[..]));
    // The read was the last user.
    turn_until(&driver, || identity(raw) != ours);
}

#[test]
fn a_second_pipe_never_feeds_the_first_read() {
    for submitted in [false, true] {
        let driver = driver();
        let (fd, write) = pipe(&driver);
        let (raw, ours) = (fd.raw(), identity(fd.raw()));
        let mut read = driver.read(&fd, vec![0; 5], CURRENT_POSITION);
        if submitted {
            driver.turn(Wait::Poll).unwrap();
        }
        let mut close = driver.close(fd);
        assert_eq!(identity(raw), ours, "closed under a read");
        let others: Vec<_> = (0..50).map(|_| pipe(&driver)).collect();
        for (_, write) in &others {
            write_all(write, b"other");
        }
        assert_eq!(errno(finish(&driver, &mut read).0), Errno::CANCELED);
        finish(&driver, &mut close).unwrap();
        assert_ne!(identity(raw), ours);
        assert_unread(&write);
    }
}

#[test]
fn closing_cancels_and_awaits_what_is_under_way() {
    let driver = driver();
    let (fd, _write) = pipe(&driver);
    let (other, other_write) = pipe(&driver);
    let mut reads: Vec<_> =
        (0..10).map(|_| driver.read(&fd, vec![0; 8], CURRENT_POSITION)).collect();
    let mut polls: Vec<_> = (0..10).map(|_| driver.poll(&fd, PollEvents::READABLE)).collect();
    let mut unrelated = driver.read(&other, vec![0; 8], CURRENT_POSITION);
    for (token, read) in (0..).zip(&mut reads) {
        read.set_token(token);
    }
    for (token, poll) in (10..).zip(&mut polls) {
        poll.set_token(token);
    }
    driver.turn(Wait::Poll).unwrap();
    let mut close = driver.close(fd);
    close.set_token(99);
    let mut canceled = 0;
    turn_until(&driver, || {
        while let Some(token) = driver.next_done() {
            match token {
                0..10 => {
                    let (result, _) = reads[token as usize].try_take().unwrap();
                    assert_eq!(errno(result), Errno::CANCELED);
                    canceled += 1;
                }
                10..20 => {
                    let result = polls[token as usize - 10].try_take().unwrap();
                    assert_eq!(errno(result), Errno::CANCELED);
                    canceled += 1;
                }
                _ => {
                    assert_eq!(canceled, 20, "closed before the last operation had ended");
                    close.try_take().unwrap().unwrap();
                    return true;
                }
            }
        }
        false
    });
    assert!(unrelated.try_take().is_none(), "another descriptor's read was canceled");
    write_all(&other_write, b"x");
    assert_eq!(finish(&driver, &mut unrelated).0.unwrap(), 1);
}

#[test]
fn closing_ends_what_waits_for_room() {
    let (driver, stage) = scripted(4, 4);
    stage.state().cancels = Cancels::Fail;
    let fd = stage.open(&driver, FILE);
    let counter = DropCounter::new();
    let mut reads: Vec<_> = (0..6).map(|_| driver.read(&fd, Buf::new(8, &counter), 0)).collect();
    driver.turn(Wait::Poll).unwrap();
    assert_eq!(stage.in_flight(Opcode::READ).len(), 3); // limited by the credits
    let mut close = driver.close(fd);
    for _ in 0..3 {
        stage.complete_read(b"12345678");
    }
    drain(&driver);
    for read in &mut reads[..3] {
        assert_eq!(read.try_take().unwrap().0.unwrap(), 8);
    }
    for read in &mut reads[3..] {
        assert_eq!(errno(read.try_take().unwrap().0), Errno::CANCELED);
    }
    finish(&driver, &mut close).unwrap();
    assert_eq!(stage.state().closed, [FILE]);
    counter.assert_each_dropped_once();
}

/// The result of an operation, with or without its buffer.
trait Outcome {
    fn errno(self) -> Option<Errno>;
}

impl<T> Outcome for std::io::Result<T> {
    fn errno(self) -> Option<Errno> {
        self.err().and_then(|error| Errno::from_io_error(&error))
    }
}

impl<T, B> Outcome for (std::io::Result<T>, B) {
    fn errno(self) -> Option<Errno> {
        self.0.errno()
    }
}

/// Each operation names its descriptor.
#[test]
fn closing_ends_each_operation_that_waits_for_room() {
    /// Returns futures of the errors, with the texts of the operations.
    macro_rules! errors {
        ($($operation:expr,)*) => {
            vec![$((stringify!($operation), {
                let operation = $operation;
                Box::pin(async { operation.await.errno() }) as Pin<Box<dyn Future<Output = _>>>
            })),*]
        };
    }
    let (driver, stage) = scripted(4, 64);
    stage.state().cancels = Cancels::Fail;
    let fd = stage.open(&driver, PIPE);
    let (name, nowhere) = (|| CString::from(c"name"), SocketAddress::UNNAMED);
    let (near, messages) = (driver.connection(fd.clone()), ControlMessages::new);
    let (incoming, datagrams) =
        (driver.incoming(fd.clone()), driver.datagrams(fd.clone(), Default::default()));
    stage.state().consume_max = 0;
    let nops: Vec<_> = (0..4).map(|_| driver.nop()).collect();
    let mut waiting = errors![
        driver.read(&fd, vec![0; 8], 0),
        driver.poll(&fd, PollEvents::READABLE),
        driver.write(&fd, "x", 0),
        driver.read_vectored(&fd, vec![vec![0; 8]], 0),
        driver.write_vectored(&fd, vec!["x"], 0),
        driver.fsync(&fd, true),
        driver.fsync_range(&fd, 0, 8),
        driver.sync_file_range(&fd, 0, 8, SyncRange::WRITE),
        driver.syncfs(&fd),
        driver.statx_fd(&fd),
        driver.statfs(&fd),
        driver.fallocate(&fd, 0, 0, 8),
        driver.truncate(&fd, 8),
        driver.advise(&fd, 0, 8, 0),
        driver.flock(&fd, 0),
        driver.get_xattr(&fd, name(), vec![0; 8]),
        driver.set_xattr(&fd, name(), vec![0; 8], 0),
        driver.list_xattr(&fd, vec![0; 8]),
        driver.remove_xattr(&fd, name()),
        driver.chmod_fd(&fd, 0),
        driver.chown_fd(&fd, None, None),
        driver.utimens_fd(&fd, SetTime::Now, SetTime::Now),
        driver.read_directory(&fd, vec![0; 64]),
        driver.copy_file_range(&fd, 0, &fd, 0, 8),
        driver.open(Some(&fd), name(), 0, 0),
        driver.mkdir(Some(&fd), name(), 0),
        driver.recv(&fd, vec![0; 8], 0),
        driver.recv_vectored(&fd, vec![vec![0; 8]], 0),
        driver.recv_from(&fd, vec![0; 8], 0),
        driver.recv_message(&fd, vec![0; 8], 64, 0),
        driver.send(&fd, "x", 0),
        driver.send_vectored(&fd, vec!["x"], 0),
        driver.send_to(&fd, "x", &nowhere, 0),
        driver.send_message(&fd, "x", &nowhere, messages(), 0),
        driver.connect(&fd, &nowhere),
        driver.accept(&fd),
        driver.bind(&fd, &nowhere),
        driver.listen(&fd, 8),
        driver.shutdown_socket(&fd, ShutdownHow::Both),
        near.peek(vec![0; 8]),
        near.send("x"),
        incoming.accept(),
        datagrams.recv(),
    ];
    let mut context = Context::from_waker(Waker::noop());
    for (name, operation) in &mut waiting {
        assert!(operation.as_mut().poll(&mut context).is_pending(), "{name}");
    }
    let begun = stage.state().consumed.len();
    let mut close = driver.close(fd);
    stage.state().consume_max = usize::MAX;
    for _ in 0..8 {
        driver.turn(Wait::Poll).unwrap();
    }
    for (name, operation) in &mut waiting {
        let end = operation.as_mut().poll(&mut context);
        assert_eq!(end, Poll::Ready(Some(Errno::CANCELED)), "{name}");
    }
    let all = stage.state().consumed[begun..].iter().map(|sqe| sqe.opcode).collect::<Vec<_>>();
    assert!(all.iter().all(|&opcode| [Opcode::NOP, Opcode::ASYNC_CANCEL].contains(&opcode)));
    assert!(stage.state().laned.is_empty());
    drop((nops, waiting));
    drop((near, incoming, datagrams));
    finish(&driver, &mut close).unwrap();
}

#[test]
fn closing_waits_for_other_clones() {
    let driver = driver();
    let (fd, _write) = pipe(&driver);
    let (raw, ours) = (fd.raw(), identity(fd.raw()));
    let clone = fd.clone();
    let (waker, wakes) = counting_waker();
    let mut close = driver.close(fd);
    assert!(poll_with(&mut close, &waker).is_pending());
    drain(&driver);
    assert!(poll_with(&mut close, &waker).is_pending());
    assert_eq!(identity(raw), ours);
    // The clone can still be used, and the close waits for its operations.
    let mut late = driver.read(&clone, vec![0; 8], CURRENT_POSITION);
    drop(clone);
    late.cancel();
    assert_eq!(errno(finish(&driver, &mut late).0), Errno::CANCELED);
    turn_until(&driver, || wakes.get() == 1);
    close.try_take().unwrap().unwrap();
    assert_ne!(identity(raw), ours);
}

#[test]
fn closing_a_second_clone_is_refused_and_harms_nothing() {
    let (driver, stage) = scripted(8, 16);
    stage.state().cancels = Cancels::Work;
    let fd = stage.open(&driver, PIPE);
    let clone = fd.clone();
    let mut first = driver.close(fd);
    let mut second = driver.close(clone);
    assert_eq!(errno(second.try_take().expect("refused at once")), Errno::BADF);
    finish(&driver, &mut first).unwrap();
    assert_eq!(stage.state().closed, [PIPE]);
    assert_eq!(driver.live_operations(), 0);
}

#[test]
fn failure_to_close_is_told_or_counted() {
    let (driver, stage) = scripted(8, 16);
    let fds: Vec<_> = (0..4).map(|number| stage.open(&driver, FILE + number)).collect();
    stage.state().close_error = Some(Errno::IO);
    let mut fds = fds.into_iter();
    let mut next = || fds.next().unwrap();

    let mut told = driver.close(next());
    assert_eq!(errno(finish(&driver, &mut told)), Errno::IO);
    assert_eq!(driver.counters().close_errors, 0);
    // Errors of a close without a waiter are counted.
    drop(driver.close(next()));
    drop(next());
    drain(&driver);
    assert_eq!(driver.counters().close_errors, 2);
    // Errors of a close after the end of the driver are counted.
    let handle = driver.handle().clone();
    drop(driver);
    drop(next());
    assert_eq!(handle.counters().close_errors, 3);
    assert_eq!(stage.state().closed, [FILE, FILE + 1, FILE + 2, FILE + 3]);
}

#[test]
fn the_last_clone_closes_with_the_next_turn() {
    let driver = driver();
    let (fd, write) = pipe(&driver);
    let clone = fd.clone();
    drop(fd);
    driver.turn(Wait::Poll).unwrap();
    write_all(&write, b"still read by somebody");
    drop(clone);
    driver.turn(Wait::Poll).unwrap();
    assert_unread(&write);
    assert_eq!(driver.in_flight(), 0);
}

#[test]
fn a_dropped_close_still_closes() {
    // Dropped before the entry is submitted: at once, or while the descriptor is in use.
    for in_use in [false, true] {
        let driver = driver();
        let (fd, write) = pipe(&driver);
        let mut read = in_use.then(|| driver.read(&fd, vec![0; 8], CURRENT_POSITION));
        if in_use {
            driver.turn(Wait::Poll).unwrap();
        }
        drop(driver.close(fd));
        if let Some(read) = &mut read {
            assert_eq!(errno(finish(&driver, read).0), Errno::CANCELED);
        }
        driver.turn(Wait::Poll).unwrap();
        assert_unread(&write);
        assert_eq!(driver.live_operations(), 0);
    }
}

#[test]
fn a_result_that_was_not_taken_is_a_user_too() {
    let driver = driver();
    let (fd, _write) = pipe(&driver);
    let mut read = driver.read(&fd, vec![0; 8], CURRENT_POSITION);
    driver.turn(Wait::Poll).unwrap();
    let mut close = driver.close(fd);
    drain(&driver);
    assert!(close.try_take().is_none());
    assert_eq!(errno(read.try_take().unwrap().0), Errno::CANCELED);
    finish(&driver, &mut close).unwrap();
}

#[test]
fn after_the_driver_is_gone_descriptors_close_directly() {
    let driver = driver();
    let (dropped, dropped_write) = pipe(&driver);
    let (closed, closed_write) = pipe(&driver);
    let (shared, shared_write) = pipe(&driver);
    let handle = driver.handle().clone();
    drop(driver);
    drop(dropped);
    assert_unread(&dropped_write);
    let mut close = handle.close(closed);
    close.try_take().expect("nothing to wait for").unwrap();
    assert_unread(&closed_write);

    let clone = shared.clone();
    let mut close = handle.close(shared);
    assert!(poll_once(&mut close).is_pending(), "a clone exists");
    write_all(&shared_write, b"x");
    drop(clone);
    close.try_take().unwrap().unwrap();
    assert_unread(&shared_write);
}

#[test]
fn a_close_under_way_when_the_driver_ends_closes() {
    let driver = driver();
    let (queued, queued_write) = pipe(&driver);
    let (in_use, in_use_write) = pipe(&driver);
    let (shared, shared_write) = pipe(&driver);
    let clone = shared.clone();
    let mut read = driver.read(&in_use, vec![0; 8], CURRENT_POSITION);
    driver.turn(Wait::Poll).unwrap();
    let mut closes = [queued, in_use, shared].map(|fd| driver.close(fd));
    drop(driver);
    assert_eq!(errno(read.try_take().unwrap().0), Errno::CANCELED);
    for close in &mut closes[..2] {
        close.try_take().unwrap().unwrap();
    }
    assert_unread(&queued_write);
    assert_unread(&in_use_write);
    // The clone stays usable for its owner.
    assert!(closes[2].try_take().is_none());
    write_all(&shared_write, b"x");
    drop(clone);
    closes[2].try_take().unwrap().unwrap();
    assert_unread(&shared_write);
}

#[test]
fn a_descriptor_of_another_driver_is_refused() {
    let (ours, other) = (driver(), driver());
    let (fd, _write) = pipe(&other);
    let message = panic_of(|| ours.read(&fd, vec![0; 8], CURRENT_POSITION));
    assert!(message.contains("another driver"), "{message}");
    let message = panic_of(|| ours.close(fd.clone()));
    assert!(message.contains("another driver"), "{message}");
    assert_eq!(ours.live_operations(), 0);
}

#[test]
fn nothing_leaks() {
    children::run("descriptors");
}

/// Counts descriptors, alone in its process: no descriptor is leaked.
pub fn scene() {
    let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let folder = TempDir::new();
    let path = CString::new(folder.file("file", 8192).into_os_string().into_encoded_bytes());
    let path = path.unwrap();
    let before = count();
    for round in 0..200 {
        let driver = driver();
        let handle = driver.handle().clone();
        let mut opens: Vec<_> = (0..8).map(|_| driver.open(None, path.clone(), 0, 0)).collect();
        if round % 2 == 0 {
            driver.turn(Wait::Poll).unwrap();
        }
        drop(opens.split_off(4)); // their results come late
        let files: Vec<_> = opens.iter_mut().map(|open| finish(&driver, open).unwrap()).collect();
        let (fd, _write) = pipe(&driver);
        let mut reads: Vec<_> =
            (0..4).map(|_| driver.read(&fd, vec![0; 8], CURRENT_POSITION)).collect();
        reads.extend(files.iter().map(|file| driver.read(file, vec![0; 8], 0)));
        if round % 3 == 0 {
            driver.turn(Wait::Poll).unwrap();
        }
        drop(driver.close(fd));
        let mut files = files.into_iter();
        drop(files.next());
        let mut close = handle.close(files.next().unwrap());
        match round % 5 {
            0 => drop(reads),
            1 => {
                drop(reads);
                finish(&driver, &mut close).unwrap();
            }
            2 => drop(handle.close(files.next().unwrap())),
            3 => drain(&driver),
            _ => {}
        }
        drop(driver);
    }
    assert_eq!(count(), before);
}

/// A close finds no room for its request to cancel, and no longer needs it once there is room. The late
/// request still precedes the close of the descriptor.
#[test]
fn a_request_to_cancel_that_comes_late_finds_the_number_in_place() {
    let (driver, stage) = scripted(2, 16);
    stage.state().cancels = Cancels::Fail;
    let fd = stage.open(&driver, PIPE);
    let mut read = driver.read(&fd, vec![0; 4], 0);
    driver.turn(Wait::Poll).unwrap();
    stage.state().consume_max = 0;
    let mut nops = [driver.nop(), driver.nop()];
    let mut close = driver.close(fd);
    driver.turn(Wait::Poll).unwrap();
    stage.complete(Opcode::READ, 4);
    driver.turn(Wait::Poll).unwrap();
    assert_eq!(read.try_take().expect("it is done").0.unwrap(), 4);
    assert_eq!(stage.state().closed, [0; 0]);
    stage.state().consume_max = usize::MAX;
    finish(&driver, &mut close).unwrap();
    nops.iter_mut().for_each(|nop| drop(finish(&driver, nop)));
    assert_eq!(stage.state().closed, [PIPE]);
    let place = |opcode| stage.state().consumed.iter().position(|sqe| sqe.opcode == opcode);
    let (request, close) = (place(Opcode::ASYNC_CANCEL), place(Opcode::CLOSE));
    assert!(request.is_some() && request < close, "{request:?} {close:?}");
}
