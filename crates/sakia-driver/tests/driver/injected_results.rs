//! Results that the kernel returns for every entry instead of performing it: each errno becomes the errno of
//! an error, counts do not exceed the requested length, and memory comes back once.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use rustix::io::Errno;
use sakia_driver::{
    CURRENT_POSITION, ControlMessages, Driver, Fd, Op, Operation, PollEvents, Received,
    ReceivedControl, SocketAddress, SpliceFlags, Wait,
};
use sakia_ring::CqeFlags;

use crate::hosts::{Rig, rigged};
use crate::scripted::{FILE, PIPE, scripted};
use crate::support::{Buf, DropCounter, TempDir, content, finish, skip};

type Rigs = (Driver, std::rc::Rc<Rig>);

/// Makes a rigged driver. Returns `None` if the kernel's no-op takes no results (before 6.10).
fn injecting() -> Option<Rigs> {
    let (driver, rig) = rigged(8, 16);
    rig.injects.set(Some(-77));
    let result = finish(&driver, &mut driver.nop());
    rig.injects.set(None);
    result.is_err_and(|error| error.raw_os_error() == Some(77)).then_some((driver, rig))
}

/// Returns the errno that an error must have: restart codes stand for an interruption.
fn expected(errno: i32) -> Option<i32> {
    Some(if [512, 513, 514, 516].contains(&errno) { Errno::INTR.raw_os_error() } else { errno })
}

#[track_caller]
fn assert_errno<T>(result: std::io::Result<T>, errno: i32, what: &str) {
    let Err(error) = result else { panic!("{what}: -{errno} is no error") };
    assert_eq!(error.raw_os_error(), expected(errno), "{what}");
}

#[test]
fn negative_results_are_errors() {
    let Some((driver, rig)) = injecting() else { skip!("no injected results") };
    let folder = TempDir::new();
    let file = driver
        .adopt(File::options().read(true).write(true).open(folder.file("f", 100)).unwrap().into());
    let (read_end, _write) = rustix::pipe::pipe().unwrap();
    let read_end = driver.adopt(read_end);
    let path = CString::new("/").unwrap();
    let counter = DropCounter::new();
    let buf = || Buf::filled(1, 100, &counter);
    for errno in (1..=530).chain([1000, 4094, 4095]) {
        rig.injects.set(Some(-errno));
        assert_errno(end(&driver, driver.read(&file, buf(), 0)).0, errno, "read");
        assert_errno(
            end(&driver, driver.read(&read_end, buf(), CURRENT_POSITION)).0,
            errno,
            "read of a pipe",
        );
        assert_errno(end(&driver, driver.write(&file, buf(), 0)).0, errno, "write");
        let parts = vec![buf(), buf()];
        assert_errno(end(&driver, driver.read_vectored(&file, parts, 0)).0, errno, "parts");
        assert_errno(end(&driver, driver.fsync(&file, true)), errno, "fsync");
        assert_errno(end(&driver, driver.poll(&read_end, PollEvents::READABLE)), errno, "poll");
        assert_errno(end(&driver, driver.statx(None, path.clone(), 0)), errno, "statx");
        assert_errno(end(&driver, driver.open(None, path.clone(), 0, 0)), errno, "open");
        assert_errno(end(&driver, driver.mkdir(None, path.clone(), 0)), errno, "mkdir");
    }
    counter.assert_each_dropped_once();
    // None of these operations was performed, and all of them can be performed now.
    rig.injects.set(None);
    let (result, bytes) = end(&driver, driver.read(&file, buf(), 0));
    assert_eq!(result.unwrap(), 100);
    assert!(bytes.bytes().iter().enumerate().all(|(at, &byte)| byte == content(at)));
    drop(bytes);
    counter.assert_each_dropped_once();
    let counters = driver.counters();
    assert_eq!((counters.stale, counters.leaked, driver.live_operations()), (0, 0, 0));
}

#[test]
fn counts_are_no_larger_than_what_was_asked_for() {
    let Some((driver, rig)) = injecting() else { skip!("no injected results") };
    let folder = TempDir::new();
    let file = driver.adopt(File::open(folder.file("f", 100)).unwrap().into());
    for count in [0, 1, 99, 100, 101, 5000, i32::MAX] {
        rig.injects.set(Some(count));
        let at_most = (count as usize).min(100);
        let (result, bytes) = end(&driver, driver.read(&file, vec![7; 100], 0));
        assert_eq!((result.unwrap(), bytes.len()), (at_most, 100));
        let (result, _) = end(&driver, driver.write(&file, vec![7; 100], 0));
        assert_eq!(result.unwrap(), at_most);
        let (result, _) = end(&driver, driver.read_vectored(&file, vec![vec![7; 50]; 2], 0));
        assert_eq!(result.unwrap(), at_most);
    }
}

/// Returns an empty vector whose memory holds old bytes, as freed memory may.
fn used_capacity(len: usize) -> Vec<u8> {
    let mut used = vec![b'!'; len];
    used.clear();
    used
}

#[test]
fn what_a_host_says_that_it_has_read_is_no_larger_than_the_capacity_and_shows_no_old_memory() {
    let Some((driver, rig)) = injecting() else { skip!("no injected results") };
    let folder = TempDir::new();
    let file = driver.adopt(File::open(folder.file("f", 100)).unwrap().into());
    for count in [0, 1, 40, 100, 101, 5000, i32::MAX] {
        rig.injects.set(Some(count));
        let buf = used_capacity(100);
        let at_most = (count as usize).min(buf.capacity());
        let (result, buf) = end(&driver, driver.read(&file, buf, 0));
        assert_eq!((result.unwrap(), buf), (at_most, vec![0; at_most]));
        let bufs = vec![used_capacity(40), vec![7; 10], used_capacity(50)];
        let most = bufs.iter().map(|buf| buf.capacity()).sum::<usize>();
        let at_most = (count as usize).min(most);
        let (result, bufs) = end(&driver, driver.read_vectored(&file, bufs, 0));
        assert_eq!(result.unwrap(), at_most);
        let lens: Vec<usize> = bufs.iter().map(Vec::len).collect();
        assert_eq!(lens, [at_most.min(40), 10, at_most.saturating_sub(50)]);
        assert!(bufs.concat().iter().all(|&byte| byte == 0 || byte == 7), "{bufs:?}");
    }
    rig.injects.set(Some(-Errno::IO.raw_os_error()));
    let (result, buf) = end(&driver, driver.read(&file, used_capacity(100), 0));
    assert_eq!((result.is_err(), buf.len(), buf.capacity() >= 100), (true, 0, true));
}

fn end<O: Operation>(driver: &Driver, mut op: sakia_driver::Op<O>) -> O::Output {
    finish(driver, &mut op)
}

/// No operation that derives a count or a length from its result believes a backend that reports too much.
#[test]
fn no_operation_believes_a_count() {
    /// Ends an operation with each result, and checks the count it returns.
    fn check<O: Operation>(
        name: &str,
        at_most: usize,
        start: impl Fn(&Driver, &Fd) -> Op<O>,
        count: impl Fn(O::Output) -> std::io::Result<usize>,
    ) {
        for raw in [FILE, PIPE] {
            let (driver, stage) = scripted(4, 8);
            driver.register_arena(1, 4096).unwrap();
            let fd = stage.open(&driver, raw);
            for res in [0, 1, at_most as i32, at_most as i32 + 1, 70_000, i32::MAX] {
                let mut op = start(&driver, &fd);
                driver.turn(Wait::Poll).unwrap();
                let sqe = stage.state().in_flight.pop().expect("it was pushed");
                stage.post(sqe.user_data, res, CqeFlags(0));
                driver.turn(Wait::Poll).unwrap();
                let output = op.try_take().unwrap_or_else(|| panic!("{name} is done"));
                let expected = (res as usize).min(at_most);
                assert_eq!(count(output).unwrap(), expected, "{name}: {res}");
            }
        }
    }
    type Count<B> = (std::io::Result<usize>, B);
    let first = |(count, _): Count<Vec<u8>>| count;
    let parts = || vec![vec![7; 4], vec![7; 6]];
    let of_parts = |(count, _): Count<Vec<Vec<u8>>>| count;
    let path = || c"path".to_owned();
    let buf = || vec![7; 10];
    check("read", 10, |driver, fd| driver.read(fd, buf(), 0), first);
    check("read_with", 10, |driver, fd| driver.read_with(fd, buf(), 0, 2), first);
    check("read_vectored", 10, |driver, fd| driver.read_vectored(fd, parts(), 0), of_parts);
    check("write", 10, |driver, fd| driver.write(fd, buf(), 0), first);
    check("write_with", 10, |driver, fd| driver.write_with(fd, buf(), 0, 2), first);
    check("write_vectored", 10, |driver, fd| driver.write_vectored(fd, parts(), 0), of_parts);
    check("recv", 10, |driver, fd| driver.recv(fd, buf(), 0), first);
    check("recv_vectored", 10, |driver, fd| driver.recv_vectored(fd, parts(), 0), of_parts);
    check("send", 10, |driver, fd| driver.send(fd, buf(), 0), first);
    check("send_vectored", 10, |driver, fd| driver.send_vectored(fd, parts(), 0), of_parts);
    let address = || SocketAddress::from(std::net::SocketAddr::from(([127, 0, 0, 1], 7)));
    check("send_to", 10, |driver, fd| driver.send_to(fd, buf(), &address(), 0), first);
    let received = |(received, _): (std::io::Result<Received>, Vec<u8>)| received.map(|r| r.len);
    check("recv_from", 10, |driver, fd| driver.recv_from(fd, buf(), 0), received);
    let none = ControlMessages::new;
    let send = |driver: &Driver, fd: &Fd| driver.send_message(fd, buf(), &address(), none(), 0);
    check("send_message", 10, send, first);
    let received = |(received, _): (std::io::Result<(Received, ReceivedControl)>, Vec<u8>)| {
        // The backend has reported no descriptors.
        received.map(|(received, control)| (received.len, control)).map(|(len, control)| {
            assert!(control.descriptors.is_empty() && control.process.is_none());
            assert_eq!(control.messages().count(), 0);
            len
        })
    };
    for room in [0, 16, 128, 4096] {
        let recv = |driver: &Driver, fd: &Fd| driver.recv_message(fd, buf(), room, 0);
        check("recv_message", 10, recv, received);
    }
    check("get_xattr", 10, |driver, fd| driver.get_xattr(fd, path(), buf()), first);
    check("list_xattr", 10, |driver, fd| driver.list_xattr(fd, buf()), first);
    // An empty buffer asks for a length, for which the kernel has a maximum.
    let (most, none) = (1 << 16, Vec::new);
    check("a length", most, |driver, fd| driver.get_xattr(fd, path(), none()), first);
    check("a length of names", most, |driver, fd| driver.list_xattr(fd, none()), first);
    check("read_directory", 10, |driver, fd| driver.read_directory(fd, buf()), first);
    check("readlink", 10, |driver, _| driver.readlink(None, path(), buf()), first);
    check("copy", 10, |driver, fd| driver.copy_file_range(fd, 0, fd, 0, 10), |count| count);
}

/// The same holds for futures around calls.
#[test]
fn no_splice_and_no_send_of_a_file_believes_a_count() {
    let (driver, stage) = scripted(4, 8);
    let fd = stage.open(&driver, FILE);
    let connection = driver.connection(fd.clone());
    for (res, expected) in [(0, 0), (9, 9), (10, 10), (11, 10), (i32::MAX, 10)] {
        let splice = driver.splice(&fd, 0, &fd, 0, 10, SpliceFlags::default());
        let sending = connection.send_file(&fd, 0, 10);
        let futures: [Pin<Box<dyn Future<Output = io::Result<usize>>>>; 2] =
            [Box::pin(splice), Box::pin(sending)];
        for mut future in futures {
            let mut cx = Context::from_waker(Waker::noop());
            assert!(future.as_mut().poll(&mut cx).is_pending());
            driver.turn(Wait::Poll).unwrap();
            let sqe = stage.state().in_flight.pop().expect("it was pushed");
            stage.post(sqe.user_data, res, CqeFlags(0));
            driver.turn(Wait::Poll).unwrap();
            match future.as_mut().poll(&mut cx) {
                Poll::Ready(result) => assert_eq!(result.unwrap(), expected, "{res}"),
                Poll::Pending => panic!("it is done"),
            }
        }
    }
}
