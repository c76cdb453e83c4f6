//! Pipes: operations that wait.

use rustix::io::Errno;
use sakia_driver::{CURRENT_POSITION, PollEvents, SocketType};

use crate::stage::{Stage, errno, settle, turn_until, wait};

pub fn a_read_waits_for_a_write(stage: &Stage) {
    let driver = stage.driver();
    let (receiver, sender) = stage.pipe(&driver);
    let mut read = driver.read(&receiver, vec![0; 16], CURRENT_POSITION);
    settle(&driver);
    assert!(read.try_take().is_none());
    assert_eq!(wait(&driver, driver.write(&sender, "hello", CURRENT_POSITION)).0.unwrap(), 5);
    let (result, buf) = wait(&driver, read);
    assert_eq!(&buf[..result.unwrap()], b"hello");
}

pub fn streams_have_no_offsets(stage: &Stage) {
    let driver = stage.driver();
    let (receiver, sender) = stage.pipe(&driver);
    let (near, far) = driver.socket_pair(SocketType::STREAM).unwrap();
    for (reader, writer) in [(&receiver, &sender), (&far, &near)] {
        for (offset, expected) in [
            (0, Errno::SPIPE),
            (5, Errno::SPIPE),
            (i64::MAX as u64, Errno::SPIPE),
            (1 << 63, Errno::INVAL),
        ] {
            let (result, _) = wait(&driver, driver.write(writer, "lost", offset));
            assert_eq!(errno(result), expected, "{offset:#x}");
            let (result, _) = wait(&driver, driver.write_vectored(writer, vec!["lost"], offset));
            assert_eq!(errno(result), expected, "{offset:#x}");
            let (result, _) = wait(&driver, driver.read(reader, vec![0; 16], offset));
            assert_eq!(errno(result), expected, "{offset:#x}");
            let (result, _) = wait(&driver, driver.read_with(reader, vec![0; 16], offset, 0));
            assert_eq!(errno(result), expected, "{offset:#x}");
            // The next operation goes on as before.
            let write = driver.write(writer, "next", CURRENT_POSITION);
            assert_eq!(wait(&driver, write).0.unwrap(), 4);
            let (result, buf) = wait(&driver, driver.read(reader, vec![0; 16], CURRENT_POSITION));
            assert_eq!(&buf[..result.unwrap()], b"next");
        }
    }
    // A pipe has a wrong end.
    for (offset, expected) in [(0, Errno::SPIPE), (CURRENT_POSITION, Errno::BADF)] {
        assert_eq!(errno(wait(&driver, driver.read(&sender, vec![0; 1], offset)).0), expected);
        assert_eq!(errno(wait(&driver, driver.write(&receiver, "x", offset)).0), expected);
    }
}

pub fn a_write_waits_for_room(stage: &Stage) {
    let driver = stage.driver();
    let (receiver, sender) = stage.pipe(&driver);
    let mut left = stage.pipe_bytes();
    let mut read_bytes = 0;
    let mut write = driver.write(&sender, vec![7; left], CURRENT_POSITION);
    while left > 0 || read_bytes < stage.pipe_bytes() {
        let (result, buf) =
            wait(&driver, driver.read(&receiver, vec![0; 65_536], CURRENT_POSITION));
        let len = result.unwrap();
        assert!(len > 0 && buf[..len].iter().all(|&byte| byte == 7));
        read_bytes += len;
        settle(&driver);
        if let Some((result, _)) = write.try_take() {
            left -= result.unwrap();
            write = driver.write(&sender, vec![7; left], CURRENT_POSITION);
            if left == 0 {
                wait(&driver, write).0.unwrap();
                write = driver.write(&sender, Vec::new(), CURRENT_POSITION);
            }
        }
    }
    assert_eq!(read_bytes, stage.pipe_bytes());
}

pub fn a_pipe_without_writers_is_at_its_end(stage: &Stage) {
    let driver = stage.driver();
    let (receiver, sender) = stage.pipe(&driver);
    let mut read = driver.read(&receiver, vec![0; 16], CURRENT_POSITION);
    settle(&driver);
    assert!(read.try_take().is_none());
    wait(&driver, driver.close(sender)).unwrap();
    assert_eq!(wait(&driver, read).0.unwrap(), 0);
}

pub fn a_pipe_without_readers_is_broken(stage: &Stage) {
    let driver = stage.driver();
    let (receiver, sender) = stage.pipe(&driver);
    wait(&driver, driver.close(receiver)).unwrap();
    assert_eq!(errno(wait(&driver, driver.write(&sender, "x", CURRENT_POSITION)).0), Errno::PIPE);
}

pub fn a_canceled_read_says_so(stage: &Stage) {
    let driver = stage.driver();
    let (receiver, _sender) = stage.pipe(&driver);
    let mut read = driver.read(&receiver, vec![5; 16], CURRENT_POSITION);
    settle(&driver);
    read.cancel();
    let (result, buf) = wait(&driver, read);
    assert_eq!((errno(result), buf), (Errno::CANCELED, vec![5; 16]));
}

pub fn a_stream_is_read_into_capacity(stage: &Stage) {
    let driver = stage.driver();
    let (receiver, sender) = stage.pipe(&driver);
    let mut canceled = driver.read(&receiver, Vec::with_capacity(16), CURRENT_POSITION);
    settle(&driver);
    canceled.cancel();
    let (result, buf) = wait(&driver, canceled);
    assert_eq!((errno(result), buf.len()), (Errno::CANCELED, 0));
    let mut read = driver.read(&receiver, buf, CURRENT_POSITION);
    settle(&driver);
    assert!(read.try_take().is_none());
    wait(&driver, driver.write(&sender, "hello", CURRENT_POSITION)).0.unwrap();
    let (result, buf) = wait(&driver, read);
    assert_eq!((result.unwrap(), &buf[..]), (5, &b"hello"[..]));
    wait(&driver, driver.write(&sender, "more", CURRENT_POSITION)).0.unwrap();
    wait(&driver, driver.close(sender)).unwrap();
    let bufs = vec![Vec::with_capacity(2), Vec::with_capacity(64)];
    let first = bufs[0].capacity();
    let (result, bufs) = wait(&driver, driver.read_vectored(&receiver, bufs, CURRENT_POSITION));
    assert_eq!((result.unwrap(), bufs[0].len(), bufs.concat()), (4, first, b"more".to_vec()));
    let (result, buf) =
        wait(&driver, driver.read(&receiver, Vec::with_capacity(4), CURRENT_POSITION));
    assert_eq!((result.unwrap(), buf.len()), (0, 0), "the end");
}

pub fn a_read_without_room_does_not_wait(stage: &Stage) {
    let driver = stage.driver();
    let (receiver, sender) = stage.pipe(&driver);
    for is_there in [false, true] {
        if is_there {
            wait(&driver, driver.write(&sender, "x", CURRENT_POSITION)).0.unwrap();
        }
        let (result, _) = wait(&driver, driver.read(&receiver, Vec::new(), CURRENT_POSITION));
        assert_eq!(errno(result), Errno::INVAL);
        let (result, _) =
            wait(&driver, driver.read_vectored(&receiver, vec![vec![]; 2], CURRENT_POSITION));
        assert_eq!(errno(result), Errno::INVAL);
    }
    assert_eq!(wait(&driver, driver.read(&receiver, vec![0; 4], CURRENT_POSITION)).0.unwrap(), 1);
}

pub fn a_canceled_write_says_so(stage: &Stage) {
    let driver = stage.driver();
    let (_receiver, sender) = stage.pipe(&driver);
    // The first write fills the pipe.
    let filling = driver.write(&sender, vec![1; stage.pipe_bytes()], CURRENT_POSITION);
    settle(&driver);
    let mut write = driver.write(&sender, vec![2; stage.pipe_bytes()], CURRENT_POSITION);
    settle(&driver);
    write.cancel();
    assert_eq!(errno(wait(&driver, write).0), Errno::CANCELED);
    drop(filling);
}

pub fn a_dropped_read_takes_nothing_along(stage: &Stage) {
    let driver = stage.driver();
    let (receiver, sender) = stage.pipe(&driver);
    let read = driver.read(&receiver, vec![0; 16], CURRENT_POSITION);
    settle(&driver);
    drop(read);
    turn_until(&driver, || driver.live_operations() == 0);
    wait(&driver, driver.write(&sender, "kept", CURRENT_POSITION)).0.unwrap();
    let (result, buf) = wait(&driver, driver.read(&receiver, vec![0; 16], CURRENT_POSITION));
    assert_eq!(&buf[..result.unwrap()], b"kept");
}

pub fn readiness_comes_with_data(stage: &Stage) {
    let driver = stage.driver();
    let (receiver, sender) = stage.pipe(&driver);
    let mut poll = driver.poll(&receiver, PollEvents::READABLE);
    settle(&driver);
    assert!(poll.try_take().is_none());
    wait(&driver, driver.write(&sender, "x", CURRENT_POSITION)).0.unwrap();
    let both = PollEvents::READABLE | PollEvents::WRITABLE;
    // Readiness is reported again for as long as it lasts.
    for poll in [poll, driver.poll(&receiver, both)] {
        let events = wait(&driver, poll).unwrap();
        assert!(events.contains(PollEvents::READABLE), "{events:?}");
        assert!(!events.contains(PollEvents::HANG_UP), "{events:?}");
    }
}

pub fn readiness_to_write_is_there(stage: &Stage) {
    let driver = stage.driver();
    let (_receiver, sender) = stage.pipe(&driver);
    let events = wait(&driver, driver.poll(&sender, PollEvents::WRITABLE)).unwrap();
    assert_eq!(events, PollEvents::WRITABLE);
}

pub fn a_hang_up_is_reported(stage: &Stage) {
    let driver = stage.driver();
    let (receiver, sender) = stage.pipe(&driver);
    let poll = driver.poll(&receiver, PollEvents::READABLE);
    wait(&driver, driver.close(sender)).unwrap();
    assert!(wait(&driver, poll).unwrap().contains(PollEvents::HANG_UP));
}

pub fn a_canceled_poll_says_so(stage: &Stage) {
    let driver = stage.driver();
    let (receiver, _sender) = stage.pipe(&driver);
    let mut poll = driver.poll(&receiver, PollEvents::READABLE);
    settle(&driver);
    poll.cancel();
    assert_eq!(errno(wait(&driver, poll)), Errno::CANCELED);
}

pub fn a_close_ends_what_waits(stage: &Stage) {
    let driver = stage.driver();
    let (receiver, _sender) = stage.pipe(&driver);
    let identity = stage.identify(&receiver);
    let reads: Vec<_> =
        (0..3).map(|_| driver.read(&receiver, vec![0; 16], CURRENT_POSITION)).collect();
    settle(&driver);
    let mut close = driver.close(receiver);
    // A result that was not taken still uses the descriptor.
    for read in reads {
        assert!(close.try_take().is_none() && stage.is_open(&identity));
        assert_eq!(errno(wait(&driver, read).0), Errno::CANCELED);
    }
    wait(&driver, close).unwrap();
    assert!(!stage.is_open(&identity));
}

pub fn reads_of_one_pipe_are_served_in_order(stage: &Stage) {
    let driver = stage.driver();
    let (receiver, sender) = stage.pipe(&driver);
    let reads: Vec<_> =
        (0..4).map(|_| driver.read(&receiver, vec![0; 1], CURRENT_POSITION)).collect();
    settle(&driver);
    for byte in b"abcd" {
        wait(&driver, driver.write(&sender, vec![*byte], CURRENT_POSITION)).0.unwrap();
        settle(&driver);
    }
    let mut got: Vec<u8> = reads.into_iter().map(|read| wait(&driver, read).1[0]).collect();
    got.sort_unstable();
    assert_eq!(got, b"abcd", "each byte goes to one read");
}

pub fn many_waiters_keep_no_file_read_out(stage: &Stage) {
    let driver = stage.driver_of(8, 16);
    let file = stage.file(&driver, "file", b"0123456789");
    let pipes: Vec<_> = (0..20).map(|_| stage.pipe(&driver)).collect();
    let waiters: Vec<_> =
        (0..400).map(|number| driver.read(&pipes[number % pipes.len()].0, vec![0; 1], 0)).collect();
    for _ in 0..50 {
        assert_eq!(wait(&driver, driver.read(&file, vec![0; 10], 0)).0.unwrap(), 10);
    }
    drop(waiters);
    turn_until(&driver, || driver.live_operations() == 0);
}
