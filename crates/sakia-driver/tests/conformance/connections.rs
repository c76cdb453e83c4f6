//! Connections: they keep the order of a stream, and lose none of its bytes.

use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rustix::io::Errno;
use sakia_driver::{
    Connection, ControlMessage, ControlMessages, Domain, Driver, Incoming, PollEvents, RecvBuf,
    ShutdownHow, SocketType, Wait,
};

use crate::sockets::{DOMAINS, connected};
use crate::stage::{Stage, errno, settle, turn_until, wait};

/// Returns both ends of a new connection.
pub fn connection(stage: &Stage, driver: &Driver, domain: Domain) -> (Connection, Connection) {
    let (near, far) = connected(stage, driver, domain);
    (driver.connection(near), driver.connection(far))
}

/// Polls a future once, with a waker that does nothing.
pub fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Takes turns until a future is ready.
#[track_caller]
pub fn run<F: Future>(driver: &Driver, future: F) -> F::Output {
    let mut future = pin!(future);
    let mut output = None;
    turn_until(driver, || {
        if let Poll::Ready(ready) = poll(future.as_mut()) {
            output = Some(ready);
        }
        output.is_some()
    });
    output.unwrap()
}

/// Takes turns until a future is ready. Returns `None` after 50 turns: then nothing more happens that could
/// make it ready.
fn attempt<F: Future>(driver: &Driver, mut future: Pin<&mut F>) -> Option<F::Output> {
    for _ in 0..50 {
        if let Poll::Ready(ready) = poll(future.as_mut()) {
            return Some(ready);
        }
        driver.turn(Wait::For(Duration::from_millis(1))).unwrap();
    }
    None
}

#[track_caller]
fn send_all(driver: &Driver, connection: &Connection, bytes: &[u8]) {
    let mut sent = 0;
    while sent < bytes.len() {
        sent += run(driver, connection.send(bytes[sent..].to_vec())).0.unwrap();
    }
}

/// Returns `len` bytes of a stream from position `from`; each byte differs from its neighbors.
pub fn pattern(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(|at| (at % 251) as u8 ^ (at >> 12) as u8).collect()
}

pub fn pieces_arrive_in_order(stage: &Stage) {
    let driver = stage.driver();
    for domain in DOMAINS {
        let (near, far) = connection(stage, &driver, domain);
        for (from, to) in [(&near, &far), (&far, &near)] {
            for text in ["one", "two", "three"] {
                send_all(&driver, from, text.as_bytes());
                let mut bytes = Vec::new();
                while bytes.len() < text.len() {
                    let buf = run(&driver, to.recv()).unwrap();
                    assert!(!buf.is_empty());
                    bytes.extend_from_slice(&buf);
                }
                assert_eq!(bytes, text.as_bytes());
            }
        }
    }
}

/// A receive that is dropped at any moment leaves its descriptors together with its bytes.
pub fn a_dropped_receive_keeps_its_descriptors(stage: &Stage) {
    let driver = stage.driver();
    let (near, far) = connection(stage, &driver, Domain::UNIX);
    let room = ControlMessage::space(4);
    for round in 0..20 {
        let passed = wait(&driver, driver.socket(Domain::UNIX, SocketType::STREAM, 0)).unwrap();
        let mut receiving = Box::pin(far.recv_message(vec![0; 5], room));
        assert!(poll(receiving.as_mut()).is_pending());
        let control = ControlMessages::new().descriptor(&passed);
        drop(passed);
        assert_eq!(run(&driver, near.send_message("hello", control)).0.unwrap(), 5);
        if round % 2 == 0 {
            settle(&driver);
        }
        drop(receiving);
        if round % 3 == 0 {
            settle(&driver);
        }
        if round % 4 == 3 {
            // A read of the bytes that ignores the descriptors closes them.
            let (result, buf) = run(&driver, far.read(vec![0; 5]));
            assert_eq!((result.unwrap(), &buf[..]), (5, &b"hello"[..]), "{round}");
        } else {
            let ((count, control), buf) = {
                let (result, buf) = run(&driver, far.recv_message(vec![0; 2], room));
                (result.unwrap(), buf)
            };
            assert_eq!((count, &buf[..]), (2, &b"he"[..]), "{round}");
            assert_eq!((control.descriptors.len(), control.is_truncated), (1, false), "{round}");
            let (result, buf) = run(&driver, far.recv_message(vec![0; 9], room));
            let (count, control) = result.unwrap();
            assert_eq!((&buf[..count], control.descriptors.len()), (&b"llo"[..], 0), "{round}");
        }
    }
    let (result, _) = run(&driver, far.recv_message(Vec::new(), room));
    assert_eq!(errno(result), Errno::INVAL);
}

/// Calls that do not wait succeed next to operations that do.
pub fn what_need_not_wait_is_done_at_once(stage: &Stage) {
    let driver = stage.driver();
    for domain in DOMAINS {
        let (near, far) = connection(stage, &driver, domain);
        let would_block = |result: io::Result<usize>| errno(result) == Errno::AGAIN;
        let mut buf = [0; 6];
        assert!(would_block(far.try_recv(&mut buf)));
        // Bytes that were received ahead come first.
        send_all(&driver, &near, b"one");
        assert!(run(&driver, far.recv()).unwrap().starts_with(b"o"));
        assert!(far.is_receiving());
        send_all(&driver, &near, b"two");
        settle(&driver);
        run(&driver, far.receives_settled());
        assert!(!far.is_receiving() && !near.is_sending());
        let slices = [&b"th"[..], b"", b"ree"].map(IoSlice::new);
        assert_eq!(near.try_send(&slices).unwrap(), 5);
        let mut got = Vec::new();
        while !got.ends_with(b"three") {
            match far.try_recv(&mut buf) {
                Ok(count) => got.extend_from_slice(&buf[..count]),
                Err(error) => {
                    assert_eq!(Errno::from_io_error(&error), Some(Errno::AGAIN));
                    wait(&driver, driver.poll(far.fd(), PollEvents::READABLE)).unwrap();
                }
            }
        }
        assert!(b"onetwothree".ends_with(&got), "{got:?}");
        // The call would block while another receive is in flight.
        let mut read = Box::pin(far.read(vec![0; 1]));
        assert!(poll(read.as_mut()).is_pending());
        assert!(far.is_receiving() && would_block(far.try_recv(&mut buf)));
        drop(read);
        run(&driver, far.receives_settled());
        // Sends succeed until there is no room; the next one follows a dropped send.
        let piece = pattern(0, 60_000);
        let mut sent = 0;
        let full = loop {
            match near.try_send(&[IoSlice::new(&piece)]) {
                Ok(count) => sent += count,
                Err(error) => break error,
            }
        };
        assert_eq!(Errno::from_io_error(&full), Some(Errno::AGAIN));
        let mut send = Box::pin(near.send(vec![0; 1]));
        if poll(send.as_mut()).is_pending() {
            assert!(near.is_sending() && would_block(near.try_send(&[IoSlice::new(b"x")])));
        }
        drop(send);
        run(&driver, near.sends_settled());
        assert!(!near.is_sending() && sent > 0);
        run(&driver, near.shutdown(ShutdownHow::Sends)).unwrap();
        let mut received = 0;
        loop {
            match far.try_recv(&mut [0; 5000]) {
                Ok(0) => break,
                Ok(count) => received += count,
                Err(error) => {
                    assert_eq!(Errno::from_io_error(&error), Some(Errno::AGAIN));
                    wait(&driver, driver.poll(far.fd(), PollEvents::READABLE)).unwrap();
                }
            }
        }
        // The dropped send may still have found room.
        assert!((sent..=sent + 1).contains(&received), "{received} of {sent}");
        assert_eq!(errno(near.try_send(&[IoSlice::new(b"x")])), Errno::PIPE);
    }
}

pub fn what_was_received_can_be_sent_on(stage: &Stage) {
    let driver = stage.driver();
    let (near, far) = connection(stage, &driver, Domain::INET);
    send_all(&driver, &near, b"there");
    let buf = run(&driver, far.recv()).unwrap();
    let len = buf.len();
    let (result, mut buf) = run(&driver, far.send(buf));
    assert_eq!(result.unwrap(), len);
    buf.advance(1);
    assert_eq!(&buf[..], &b"there"[1..len]);
    assert_eq!(&run(&driver, near.recv()).unwrap()[..1], b"t");
}

pub fn a_dropped_receive_of_a_connection_loses_nothing(stage: &Stage) {
    let driver = stage.driver();
    let (near, far) = connection(stage, &driver, Domain::INET);
    let mut got = Vec::new();
    for round in 0..40 {
        let mut read = Box::pin(far.read(vec![0; 3]));
        let mut recv = Box::pin(far.recv());
        // The read is begun first in every other round. Both are dropped before, while or after bytes arrive;
        // only one is in flight at a time.
        let first = if round % 2 == 0 { poll(read.as_mut()).map(drop) } else { Poll::Pending };
        assert!(first.is_pending(), "{round}");
        assert!(poll(recv.as_mut()).is_pending());
        if round % 4 < 2 {
            settle(&driver);
        }
        send_all(&driver, &near, &pattern(round * 5, 5));
        if round % 3 == 0 {
            settle(&driver);
        }
        drop(read);
        drop(recv);
        while got.len() < (round + 1) * 5 {
            if round % 5 == 0 {
                got.extend_from_slice(&run(&driver, far.recv()).unwrap());
            } else {
                let (result, buf) = run(&driver, far.read(vec![0; 2]));
                got.extend_from_slice(&buf[..result.unwrap()]);
            }
        }
    }
    assert_eq!(got, pattern(0, 200));
}

pub fn a_peek_shows_what_the_next_receive_brings(stage: &Stage) {
    let driver = stage.driver();
    let (near, far) = connection(stage, &driver, Domain::INET);
    send_all(&driver, &near, b"abc");
    let (result, buf) = run(&driver, far.peek(vec![0; 2]));
    assert_eq!((result.unwrap(), &buf[..]), (2, &b"ab"[..]));
    assert_eq!(&run(&driver, far.recv()).unwrap()[..], b"abc");
    // The same with the driver's own receive in flight.
    send_all(&driver, &near, b"defg");
    let (result, buf) = run(&driver, far.peek(vec![0; 8]));
    assert_eq!(&buf[..result.unwrap()], b"defg");
    let (result, buf) = run(&driver, far.read(vec![0; 1]));
    assert_eq!((result.unwrap(), &buf[..]), (1, &b"d"[..]));
    assert_eq!(&run(&driver, far.recv()).unwrap()[..], b"efg");
}

pub fn a_connection_tells_its_end_after_its_bytes(stage: &Stage) {
    let driver = stage.driver();
    for domain in DOMAINS {
        for receives_in_pieces in [false, true] {
            let (near, far) = connection(stage, &driver, domain);
            if receives_in_pieces {
                let mut recv = Box::pin(far.recv());
                assert!(poll(recv.as_mut()).is_pending());
                settle(&driver);
            }
            send_all(&driver, &near, b"last");
            run(&driver, near.shutdown(ShutdownHow::Sends)).unwrap();
            let mut bytes = Vec::new();
            loop {
                let buf = if receives_in_pieces {
                    run(&driver, far.recv()).unwrap().to_vec()
                } else {
                    let (result, buf) = run(&driver, far.read(vec![0; 16]));
                    buf[..result.unwrap()].to_vec()
                };
                if buf.is_empty() {
                    break;
                }
                bytes.extend(buf);
            }
            assert_eq!(bytes, b"last");
            // The other direction still works.
            send_all(&driver, &far, b"answer");
            assert_eq!(&run(&driver, near.recv()).unwrap()[..], b"answer");
        }
    }
}

pub fn a_connection_that_was_broken_off_says_so(stage: &Stage) {
    let driver = stage.driver();
    let (near, far) = connection(stage, &driver, Domain::INET);
    let mut recv = Box::pin(near.recv());
    assert!(poll(recv.as_mut()).is_pending());
    send_all(&driver, &near, b"nobody reads this");
    settle(&driver);
    run(&driver, far.close()).unwrap();
    assert_eq!(errno(run(&driver, recv)), Errno::CONNRESET);
    let error = loop {
        match run(&driver, near.send("more")).0 {
            Ok(_) => settle(&driver),
            Err(error) => break error,
        }
    };
    assert_eq!(Errno::from_io_error(&error), Some(Errno::PIPE));
}

pub fn a_slow_reader_holds_its_peer_back(stage: &Stage) {
    const PIECE: usize = 64 << 10;
    let driver = stage.driver();
    let (near, far) = connection(stage, &driver, Domain::INET);
    // From now on the driver receives by itself.
    send_all(&driver, &near, &pattern(0, 1));
    let mut got = run(&driver, far.recv()).unwrap().to_vec();
    let mut sent = 1;
    // The last send finds no room; some of it may be sent all the same.
    while let Some((count, _)) = attempt(&driver, pin!(near.send(pattern(sent, PIECE)))) {
        sent += count.unwrap();
        assert!(sent < stage.socket_bytes(), "the driver receives without bound");
    }
    while let Some(buf) = attempt(&driver, pin!(far.recv())) {
        let buf = buf.unwrap();
        assert!(!buf.is_empty());
        got.extend_from_slice(&buf);
    }
    assert!(got.len() >= sent, "{} of {sent} bytes", got.len());
    assert_eq!(got, pattern(0, got.len()));
}

pub fn buffers_grow_with_what_comes(stage: &Stage) {
    const BYTES: usize = 4 << 20;
    let driver = stage.driver();
    let (near, far) = connection(stage, &driver, Domain::INET);
    let bytes = pattern(0, BYTES);
    let send = async {
        let mut sent = 0;
        while sent < BYTES {
            sent += near.send(bytes[sent..].to_vec()).await.0.unwrap();
        }
    };
    let mut send = Box::pin(send);
    let (mut is_sent, mut longest, mut got) = (false, 0, Vec::new());
    while got.len() < BYTES {
        let mut recv = Box::pin(far.recv());
        let both = std::future::poll_fn(|cx| {
            is_sent = is_sent || send.as_mut().poll(cx).is_ready();
            recv.as_mut().poll(cx)
        });
        let buf: RecvBuf = run(&driver, both).unwrap();
        longest = longest.max(buf.len());
        got.extend_from_slice(&buf);
    }
    assert!(got == bytes);
    assert!(longest > 2 << 10, "{longest} bytes at once");
}

pub fn receives_go_on_when_all_buffers_are_held(stage: &Stage) {
    /// More buffers than the driver has.
    const HELD: usize = 1100;
    let driver = stage.driver();
    let (near, far) = connection(stage, &driver, Domain::INET);
    let mut held = Vec::new();
    for at in 0..HELD {
        send_all(&driver, &near, &pattern(at, 1));
        held.push(run(&driver, far.recv()).unwrap());
    }
    let bytes: Vec<u8> = held.iter().flat_map(|buf| buf.to_vec()).collect();
    assert_eq!(bytes, pattern(0, HELD));
    drop(held);
    send_all(&driver, &near, b"on");
    assert_eq!(&run(&driver, far.recv()).unwrap()[..], b"on");
}

pub fn sends_wait_for_the_one_before(stage: &Stage) {
    let driver = stage.driver();
    let (near, far) = connection(stage, &driver, Domain::INET);
    // One send finds no room, and is dropped while the kernel has it.
    let mut sent = 0;
    while let Some((count, _)) = attempt(&driver, pin!(near.send(pattern(sent, 256 << 10)))) {
        sent += count.unwrap();
    }
    let mut next = Box::pin(near.send(vec![0xff; 1]));
    let mut got = Vec::new();
    while poll(next.as_mut()).is_pending() {
        let (result, buf) = run(&driver, far.read(vec![0; 64 << 10]));
        got.extend_from_slice(&buf[..result.unwrap()]);
    }
    run(&driver, near.shutdown(ShutdownHow::Sends)).unwrap();
    loop {
        let (result, buf) = run(&driver, far.read(vec![0; 64 << 10]));
        match result.unwrap() {
            0 => break,
            count => got.extend_from_slice(&buf[..count]),
        }
    }
    // The byte comes after all bytes that were sent for the dropped send, however many these were.
    assert_eq!(got.pop(), Some(0xff));
    assert!(got.len() >= sent);
    assert!(got == pattern(0, got.len()));
}

pub fn parts_are_sent_in_order(stage: &Stage) {
    let driver = stage.driver();
    let (near, far) = connection(stage, &driver, Domain::INET);
    let parts = vec![b"one ".to_vec(), Vec::new(), b"two ".to_vec(), b"three".to_vec()];
    let (result, parts) = run(&driver, near.send_vectored(parts));
    assert_eq!((result.unwrap(), parts.len()), (13, 4));
    let mut bytes = Vec::new();
    while bytes.len() < 13 {
        bytes.extend_from_slice(&run(&driver, far.recv()).unwrap());
    }
    assert_eq!(bytes, b"one two three");
}

pub fn a_dropped_wait_for_a_connection_loses_none(stage: &Stage) {
    let driver = stage.driver();
    let (listener, address) = stage.listener(&driver, Domain::INET);
    let incoming: Incoming = driver.incoming(listener);
    for round in 0..12_u8 {
        let accept = async || match round % 4 {
            0..2 => incoming.accept().await,
            _ => incoming.accept_one().await,
        };
        let mut accept = Box::pin(accept());
        assert!(poll(accept.as_mut()).is_pending());
        if round % 2 == 0 {
            settle(&driver);
        }
        let near = stage.socket(&driver, Domain::INET, sakia_driver::SocketType::STREAM);
        wait(&driver, driver.connect(&near, &address)).unwrap();
        if round % 3 == 0 {
            settle(&driver);
        }
        drop(accept);
        let far = driver.connection(run(&driver, incoming.accept()).unwrap());
        send_all(&driver, &driver.connection(near), &[round]);
        assert_eq!(&run(&driver, far.recv()).unwrap()[..], [round]);
    }
}

pub fn one_connection_is_accepted_and_the_others_wait(stage: &Stage) {
    let driver = stage.driver();
    let (listener, address) = stage.listener(&driver, Domain::INET);
    // Another queue on the same socket takes the connections that the first one leaves.
    let (incoming, other) = (driver.incoming(listener.clone()), driver.incoming(listener));
    let connect = || {
        let near = stage.socket(&driver, Domain::INET, sakia_driver::SocketType::STREAM);
        wait(&driver, driver.connect(&near, &address)).unwrap();
        near
    };
    let mut ahead = Box::pin(incoming.accept());
    assert!(poll(ahead.as_mut()).is_pending());
    settle(&driver);
    drop(ahead);
    // `accept_one` ends the accept that was begun ahead.
    let mut one = Box::pin(incoming.accept_one());
    assert!(poll(one.as_mut()).is_pending());
    settle(&driver);
    let clients = [connect(), connect(), connect()];
    let mut taken = vec![run(&driver, one).unwrap()];
    settle(&driver);
    taken.extend((1..clients.len()).map(|_| run(&driver, other.accept_one()).unwrap()));
    for (client, taken) in clients.into_iter().zip(taken) {
        send_all(&driver, &driver.connection(client), b"here");
        assert_eq!(&run(&driver, driver.connection(taken).recv()).unwrap()[..], b"here");
    }
}

pub fn connections_that_nobody_takes_are_closed(stage: &Stage) {
    let driver = stage.driver();
    let (listener, address) = stage.listener(&driver, Domain::INET);
    let incoming = driver.incoming(listener);
    let mut accept = Box::pin(incoming.accept());
    assert!(poll(accept.as_mut()).is_pending());
    let near = stage.socket(&driver, Domain::INET, sakia_driver::SocketType::STREAM);
    wait(&driver, driver.connect(&near, &address)).unwrap();
    settle(&driver);
    drop(accept);
    drop(incoming);
    let near = driver.connection(near);
    match run(&driver, near.recv()) {
        Ok(buf) => assert!(buf.is_empty()),
        Err(error) => assert_eq!(Errno::from_io_error(&error), Some(Errno::CONNRESET)),
    }
    drop(near);
    turn_until(&driver, || driver.in_flight() == 0);
    assert_eq!(driver.live_operations(), 0);
}

pub fn a_failed_accept_is_told_and_the_next_tries_again(stage: &Stage) {
    let driver = stage.driver();
    let socket = stage.socket(&driver, Domain::INET, sakia_driver::SocketType::STREAM);
    let incoming = driver.incoming(socket);
    for _ in 0..2 {
        assert_eq!(errno(run(&driver, incoming.accept())), Errno::INVAL);
    }
}

pub fn the_end_of_the_driver_ends_connections(stage: &Stage) {
    let driver = stage.driver();
    let (near, far) = connection(stage, &driver, Domain::INET);
    let (listener, _) = stage.listener(&driver, Domain::INET);
    let incoming = driver.incoming(listener);
    let mut recv = Box::pin(far.recv());
    let mut accept = Box::pin(incoming.accept());
    assert!(poll(recv.as_mut()).is_pending() && poll(accept.as_mut()).is_pending());
    settle(&driver);
    assert_eq!(driver.shutdown(Duration::from_secs(60)).leaked, 0);
    let Poll::Ready(Err(error)) = poll(recv.as_mut()) else { panic!("it still waits") };
    assert_eq!(Errno::from_io_error(&error), Some(Errno::CANCELED));
    let Poll::Ready(Err(error)) = poll(accept.as_mut()) else { panic!("it still waits") };
    assert_eq!(Errno::from_io_error(&error), Some(Errno::CANCELED));
    drop(near);
}

pub fn a_close_ends_a_receive(stage: &Stage) {
    let driver = stage.driver();
    let (_near, far) = connection(stage, &driver, Domain::INET);
    let other = far.clone();
    let mut recv = Box::pin(other.recv());
    assert!(poll(recv.as_mut()).is_pending());
    settle(&driver);
    let mut close = Box::pin(far.close());
    assert!(poll(close.as_mut()).is_pending(), "a clone uses the descriptor");
    assert_eq!(errno(run(&driver, recv)), Errno::CANCELED);
    drop(other);
    run(&driver, close).unwrap();
}

pub fn a_connection_is_read_into_capacity(stage: &Stage) {
    let driver = stage.driver();
    for domain in DOMAINS {
        let (near, far) = connection(stage, &driver, domain);
        // Bytes that were received for a dropped read go into the capacity of the next one.
        {
            let mut read = pin!(far.read(Vec::with_capacity(16)));
            assert!(attempt(&driver, read.as_mut()).is_none());
            send_all(&driver, &near, b"one");
        }
        for is_peek in [true, false] {
            let buf = Vec::with_capacity(16);
            let (result, buf) = run(&driver, async {
                if is_peek { far.peek(buf).await } else { far.read(buf).await }
            });
            assert_eq!((result.unwrap(), &buf[..]), (3, &b"one"[..]));
        }
        // Bytes that were received ahead are read into several buffers.
        {
            let mut ahead = pin!(far.recv());
            assert!(attempt(&driver, ahead.as_mut()).is_none());
            send_all(&driver, &near, b"ahead");
            settle(&driver);
        }
        let mut came = Vec::new();
        while came.len() < 5 {
            let bufs = vec![vec![b'.'], Vec::new(), Vec::with_capacity(2), Vec::with_capacity(16)];
            let (result, mut bufs) = run(&driver, far.read_vectored(bufs));
            let count = result.unwrap();
            assert!(count > 0);
            bufs[0].truncate(count);
            assert_eq!(bufs.concat().len(), count);
            came.extend(bufs.concat());
        }
        assert_eq!(came, b"ahead");
        for is_there in [false, true] {
            if is_there {
                send_all(&driver, &near, b"x");
            }
            assert_eq!(errno(run(&driver, far.read(Vec::new())).0), Errno::INVAL);
            assert_eq!(errno(run(&driver, far.peek(Vec::new())).0), Errno::INVAL);
            assert_eq!(errno(run(&driver, far.read_vectored(vec![vec![]; 2])).0), Errno::INVAL);
        }
        assert_eq!(run(&driver, near.send(Vec::new())).0.unwrap(), 0);
        run(&driver, near.shutdown(ShutdownHow::Sends)).unwrap();
        assert_eq!(run(&driver, far.read(vec![0; 9])).0.unwrap(), 1);
        let (result, buf) = run(&driver, far.read(Vec::with_capacity(9)));
        assert_eq!((result.unwrap(), buf.len()), (0, 0));
    }
}
