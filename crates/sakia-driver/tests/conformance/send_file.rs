//! Files that are sent on streams within the kernel.

use std::io;
use std::os::fd::AsFd;
use std::task::Poll;

use rustix::fs::{Advice, OFlags, fadvise, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use sakia_driver::{
    Bypass, CURRENT_POSITION, Connection, ControlMessages, Domain, Driver, Fd, OpKind, PollEvents,
    Rule, Rules, SEND_FILE_BYTES_MAX,
};

use crate::connections::{connection, pattern, poll, run};
use crate::sockets::{DOMAINS, connected};
use crate::stage::{Stage, errno, settle, wait};

fn send(driver: &Driver, to: &Connection, file: &Fd, offset: u64, len: usize) -> io::Result<usize> {
    run(driver, to.send_file(file, offset, len))
}

/// Receives `len` bytes, by several receives if needed.
fn receive(driver: &Driver, from: &Connection, len: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < len {
        let (result, buf) = run(driver, from.read(vec![0; len - bytes.len()]));
        let count = result.unwrap();
        assert!(count > 0, "it ended after {} of {len}", bytes.len());
        bytes.extend_from_slice(&buf[..count]);
    }
    bytes
}

pub fn a_range_of_a_file_is_sent(stage: &Stage) {
    let driver = stage.driver();
    for domain in DOMAINS {
        let file = stage.file(&driver, "file", b"0123456789");
        let (near, far) = connection(stage, &driver, domain);
        for (offset, len, expected) in [
            (0, 10, "0123456789"),
            (3, 4, "3456"),
            (8, 100, "89"),
            (0, 0, ""),
            (10, 1, ""),
            (1 << 40, 1, ""),
            (9, usize::MAX, "9"),
        ] {
            let count = send(&driver, &near, &file, offset, len).unwrap();
            assert_eq!(count, expected.len(), "{offset} {len}");
            assert_eq!(receive(&driver, &far, count), expected.as_bytes());
        }
        // The file's own position stays the same.
        let (result, buf) = wait(&driver, driver.read(&file, vec![0; 4], u64::MAX));
        assert_eq!((result.unwrap(), &buf[..]), (4, &b"0123"[..]));
    }
}

pub fn much_of_a_file_is_sent_piece_by_piece(stage: &Stage) {
    let driver = stage.driver();
    let bytes = pattern(0, 3 * SEND_FILE_BYTES_MAX + 4321);
    let file = stage.file(&driver, "file", &bytes);
    for domain in DOMAINS {
        let (near, far) = connection(stage, &driver, domain);
        let (mut sent, mut received) = (0, Vec::new());
        while sent < bytes.len() {
            match send(&driver, &near, &file, sent as u64, bytes.len() - sent) {
                Ok(count) => {
                    assert!(0 < count && count <= SEND_FILE_BYTES_MAX, "{count}");
                    sent += count;
                }
                full => {
                    assert_eq!(errno(full), Errno::AGAIN);
                    assert!(sent > received.len(), "a full stream holds no bytes");
                    let ready = driver.poll(near.fd(), PollEvents::WRITABLE);
                    received.extend(receive(&driver, &far, sent - received.len()));
                    wait(&driver, ready).unwrap();
                }
            }
        }
        received.extend(receive(&driver, &far, sent - received.len()));
        assert!(received == bytes, "other bytes came");
    }
    assert!(driver.counters().of(OpKind::SendFile).submitted > 0 || stage.bypasses());
}

pub fn a_full_stream_refuses_a_file(stage: &Stage) {
    let driver = stage.driver();
    let (near, far) = connection(stage, &driver, Domain::UNIX);
    let file = stage.file(&driver, "file", &[b'x'; 1 << 16]);
    let mut filled = 0;
    let full = loop {
        match send(&driver, &near, &file, 0, 1 << 16) {
            Ok(count) => filled += count,
            full => break full,
        }
    };
    assert_eq!(errno(full), Errno::AGAIN);
    assert_eq!(receive(&driver, &far, filled), vec![b'x'; filled]);
    assert_eq!(send(&driver, &near, &file, 0, 5).unwrap(), 5);
}

/// Returns whether a descriptor is in non-blocking mode, without lending it.
fn is_nonblocking(fd: &Fd) -> bool {
    const NONBLOCK: u64 = OFlags::NONBLOCK.bits() as u64;
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.raw())).unwrap();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
    u64::from_str_radix(flags.trim(), 8).unwrap() & NONBLOCK != 0
}

/// A stream of the driver stays in non-blocking mode until a use that depends on the mode.
pub fn a_stream_that_sends_a_file_has_its_mode_when_that_matters(stage: &Stage) {
    type Use = fn(&Driver, &Connection, &Connection);
    let uses: [Use; 4] = [
        |_, near, _| {
            if !near.fd().is_simulated() {
                near.fd().as_fd();
            }
        },
        |driver, near, far| {
            let mut read = driver.read(near.fd(), vec![0; 5], CURRENT_POSITION);
            settle(driver);
            assert!(read.try_take().is_none(), "it was told to wait");
            wait(driver, driver.send(far.fd(), "hello", 0)).0.unwrap();
            assert_eq!(wait(driver, read).0.unwrap(), 5);
        },
        |driver, near, _| {
            wait(driver, driver.write_vectored(near.fd(), vec!["x"], CURRENT_POSITION)).0.unwrap();
        },
        |_, near, _| drop(ControlMessages::new().descriptor(near.fd())),
    ];
    let driver = stage.driver();
    let file = stage.file(&driver, "file", b"hello");
    for using in uses {
        let (near, far) = connection(stage, &driver, DOMAINS[0]);
        let is_real = !near.fd().is_simulated();
        for _ in 0..2 {
            assert_eq!(send(&driver, &near, &file, 0, 5).unwrap(), 5);
            assert_eq!(is_real, is_real && is_nonblocking(near.fd()));
        }
        using(&driver, &near, &far);
        for _ in 0..2 {
            assert!(!is_real || !is_nonblocking(near.fd()));
            assert_eq!(send(&driver, &near, &file, 0, 5).unwrap(), 5);
        }
        assert!(!is_real || !is_nonblocking(near.fd()));
    }
    let (near, far) = connection(stage, &driver, DOMAINS[0]);
    assert_eq!(send(&driver, &near, &file, 0, 5).unwrap(), 5);
    let fd = near.fd().clone();
    drop((near, far));
    settle(&driver);
    if !fd.is_simulated() {
        let owned = fd.into_owned().expect("nothing else has it");
        assert!(!fcntl_getfl(owned).unwrap().contains(OFlags::NONBLOCK));
    }
}

/// A receive that waits on the stream does not notice that the mode has changed.
pub fn a_stream_that_sends_a_file_keeps_its_mode(stage: &Stage) {
    let driver = stage.driver();
    let file = stage.file(&driver, "file", &[b'x'; 1 << 16]);
    for domain in DOMAINS {
        let (near, far) = connection(stage, &driver, domain);
        let mut answer = Box::pin(near.read(vec![0; 5]));
        assert!(poll(answer.as_mut()).is_pending());
        for _ in 0..20 {
            let count = send(&driver, &near, &file, 0, 1 << 16).unwrap();
            receive(&driver, &far, count);
            assert!(poll(answer.as_mut()).is_pending(), "it was told something");
        }
        if !near.fd().is_simulated() {
            assert!(!fcntl_getfl(near.fd()).unwrap().contains(OFlags::NONBLOCK));
        }
        assert_eq!(run(&driver, far.send("hello")).0.unwrap(), 5);
        let (result, buf) = run(&driver, answer);
        assert_eq!((result.unwrap(), &buf[..]), (5, &b"hello"[..]));
    }
}

pub fn a_stream_of_others_is_sent_to_as_it_is(stage: &Stage) {
    let driver = stage.driver();
    let file = stage.file(&driver, "file", b"hello");
    let (near, far) = connected(stage, &driver, Domain::UNIX);
    if near.is_simulated() {
        return; // all sockets there belong to the driver
    }
    let theirs = driver.connection(driver.adopt(near.as_fd().try_clone_to_owned().unwrap()));
    let far = driver.connection(far);
    assert_eq!(errno(send(&driver, &theirs, &file, 0, 5)), Errno::OPNOTSUPP);
    fcntl_setfl(&near, fcntl_getfl(&near).unwrap() | OFlags::NONBLOCK).unwrap();
    assert_eq!(send(&driver, &theirs, &file, 0, 5).unwrap(), 5);
    assert_eq!(receive(&driver, &far, 5), b"hello");
    assert!(fcntl_getfl(&near).unwrap().contains(OFlags::NONBLOCK));
}

pub fn a_pipe_is_sent_on_a_stream(stage: &Stage) {
    let driver = stage.driver();
    let (near, far) = connection(stage, &driver, DOMAINS[0]);
    let (receiver, sender) = stage.pipe(&driver);
    assert_eq!(errno(send(&driver, &near, &receiver, 7, 5)), Errno::AGAIN);
    wait(&driver, driver.write(&sender, b"hello".to_vec(), u64::MAX)).0.unwrap();
    assert_eq!(send(&driver, &near, &receiver, 7, 3).unwrap(), 3);
    assert_eq!(send(&driver, &near, &receiver, 0, 100).unwrap(), 2);
    assert_eq!(receive(&driver, &far, 5), b"hello");
    wait(&driver, driver.close(sender)).unwrap();
    assert_eq!(send(&driver, &near, &receiver, 0, 1).unwrap(), 0);
}

pub fn a_file_is_not_sent_where_that_makes_no_sense(stage: &Stage) {
    let driver = stage.driver();
    let file = stage.file(&driver, "file", &[b'x'; 1 << 16]);
    for domain in DOMAINS {
        let (near, far) = connection(stage, &driver, domain);
        let unreadable = stage.open(&driver, "file", OFlags::WRONLY);
        for (from, offset, expected) in [
            (&unreadable, 0, Errno::BADF),
            (&file, 1 << 63, Errno::INVAL),
            (&file, u64::MAX, Errno::INVAL),
            (far.fd(), 0, Errno::SPIPE),
            (near.fd(), 0, Errno::SPIPE),
        ] {
            let result = send(&driver, &near, from, offset, 1);
            assert_eq!(errno(result), expected, "{from:?} {offset:#x}");
        }
        run(&driver, far.close()).unwrap();
        // Sends to a closed peer fail with an error after a while, and raise no signal.
        let mut errors = (0..1000).filter_map(|_| {
            settle(&driver);
            send(&driver, &near, &file, 0, 1 << 16).err()
        });
        let error = errors.next().map(|error| errno(Err::<(), _>(error)));
        assert!(matches!(error, Some(Errno::PIPE | Errno::CONNRESET)), "{error:?}");
        assert_eq!(errno(send(&driver, &near, &file, 0, 1)), Errno::PIPE);
    }
}

/// A dropped future keeps the order of the stream, and its descriptors stay open while they are used.
pub fn a_dropped_send_of_a_file_is_sent_before_the_next(stage: &Stage) {
    let driver = stage.driver();
    driver.set_bypass(Bypass::Never); // a thread makes the call
    for round in 0..20_usize {
        let (near, far) = connection(stage, &driver, DOMAINS[round % 2]);
        let file = stage.file(&driver, "file", b"hello");
        let mut sending = Box::pin(near.send_file(&file, 0, 5));
        assert!(poll(sending.as_mut()).is_pending());
        drop(sending);
        drop(file);
        assert!(near.is_sending(), "it has not ended yet");
        assert_eq!(run(&driver, near.send("world")).0.unwrap(), 5);
        settle(&driver);
        run(&driver, near.close()).unwrap();
        let (mut bytes, mut count) = (Vec::new(), 1);
        while count > 0 {
            let (result, buf) = run(&driver, far.read(vec![0; 10]));
            count = result.unwrap();
            bytes.extend_from_slice(&buf[..count]);
        }
        // The operation may have been taken back before a thread began it.
        assert!(bytes == b"helloworld" || bytes == b"world", "{bytes:?}");
    }
}

/// After the end of the driver a new send is canceled.
pub fn no_file_is_sent_after_the_end(stage: &Stage) {
    let driver = stage.driver();
    let file = stage.file(&driver, "file", b"hello");
    let (near, _far) = connection(stage, &driver, DOMAINS[0]);
    drop(driver);
    let mut late = Box::pin(near.send_file(&file, 0, 5));
    let Poll::Ready(result) = poll(late.as_mut()) else { panic!("it has ended") };
    assert_eq!(errno(result), Errno::CANCELED);
}

/// A cached range is sent by a call on this thread, any other by a thread of a lane.
pub fn a_file_is_sent_in_place_if_it_is_cached(stage: &Stage) {
    let driver = stage.driver();
    if !stage.bypasses() {
        return; // a thread makes each call
    }
    let bytes = pattern(0, 64 << 10);
    let file = stage.file(&driver, "file", &bytes);
    let (near, far) = connection(stage, &driver, Domain::UNIX);
    let ways = || {
        let count = driver.counters().of(OpKind::SendFile);
        (count.inline, count.would_block)
    };
    assert_eq!(send(&driver, &near, &file, 10, 1000).unwrap(), 1000);
    assert_eq!(receive(&driver, &far, 1000), bytes[10..1010]);
    assert_eq!(ways(), (1, 0));
    if file.is_simulated() {
        return; // the simulated kernel reports nothing about its cache
    }
    wait(&driver, driver.fsync(&file, false)).unwrap();
    fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    // Another range, since the first one counts as cached until the clock's next tick.
    assert_eq!(send(&driver, &near, &file, 20_000, 1000).unwrap(), 1000);
    assert_eq!(receive(&driver, &far, 1000), bytes[20_000..21_000]);
    if ways() == (2, 0) {
        let denied = std::env::var_os("SAKIA_DENY_SKIPS").is_some();
        assert!(!denied, "skips are denied, and the file system kept the file in memory");
        return eprintln!("SKIP: the file system kept the file in memory, or does not tell");
    }
    assert_eq!(ways(), (1, 1));
    // With a rule to queue it, the operation goes to a thread as well.
    let queued = Rules::default().with(OpKind::SendFile, Rule::QUEUE);
    driver.set_bypass(Bypass::Rules(queued));
    assert_eq!(send(&driver, &near, &file, 10, 1000).unwrap(), 1000);
    assert_eq!(ways(), (1, 1));
}
