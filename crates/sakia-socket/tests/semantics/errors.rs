//! Errors: each is reported once, and nothing follows lost bytes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketType};
use sakia_socket::sockopt::{SO_LINGER, SO_SNDBUF};
use sakia_socket::{BrokenPipe, Events, Host, Kernel, Layer, PollEntry, Socket, When};

use crate::support::watched::Watched;
use crate::support::{
    MODES, PLAIN, delayed, fill, layer, listener, options, read_ahead, recv, recv_all, send, tcp,
    unix,
};

fn ready<H: Host>(layer: &Layer<H>, socket: &Socket<H>) -> Events {
    let mut entries = [PollEntry::new(socket, Events::IN | Events::OUT | Events::RDHUP)];
    layer.poll(&mut entries, Some(Duration::ZERO)).expect("a poll");
    entries[0].ready()
}

#[test]
fn an_error_of_delayed_bytes_has_one_reporter() {
    for reporter in 0..4 {
        let layer = layer(delayed());
        let (a, b) = unix(&layer);
        drop(b);
        send(&a, b"lost");
        layer.flush();
        assert!(ready(&layer, &a).contains(Events::ERR));
        match reporter {
            0 => assert_eq!(a.send(b"x", SendFlags::empty()), Err(Errno::PIPE)),
            1 => assert_eq!(recv(&a, RecvFlags::empty()), Err(Errno::PIPE)),
            2 => assert_eq!(a.take_error(), Ok(Some(Errno::PIPE))),
            _ => assert_eq!(a.flush(), Err(Errno::PIPE)),
        }
        assert_eq!(a.take_error(), Ok(None), "{reporter}");
        assert!(!ready(&layer, &a).contains(Events::ERR));
        assert_eq!(recv(&a, RecvFlags::empty()), Ok(vec![]));
        assert_eq!(a.send(b"x", SendFlags::empty()), Err(Errno::PIPE));
        assert_eq!(a.take_error(), Ok(None));
    }
}

/// Bytes that arrived before the error are received before it, as with the kernel.
#[test]
fn received_bytes_come_before_an_error() {
    let layer = layer(delayed());
    let (a, b) = unix(&layer);
    send(&a, b"lost");
    send(&b, b"arrived");
    b.shutdown(Shutdown::Read).expect("a connection");
    b.flush().expect("room");
    layer.flush();
    assert_eq!(recv(&a, RecvFlags::empty()), Ok(b"arrived".into()));
    assert_eq!(recv(&a, RecvFlags::empty()), Err(Errno::PIPE));
    assert_eq!(recv(&a, RecvFlags::DONTWAIT), Err(Errno::AGAIN));
}

/// A hole in a stream would be worse than its end.
#[test]
fn nothing_follows_lost_bytes() {
    let layer = Layer::new(Watched::default(), delayed());
    let (a, b) = tcp(&layer);
    send(&a, b"lost");
    layer.host().fails.store(Errno::TIMEDOUT.raw_os_error() as u32, Ordering::Relaxed);
    assert_eq!(a.flush(), Err(Errno::TIMEDOUT));
    for _ in 0..2 {
        assert_eq!(a.send(b"more", SendFlags::empty()), Err(Errno::PIPE));
        assert_eq!(a.hand_back().err(), None, "it is empty");
    }
    drop(a);
    assert_eq!(recv_all(&b), (vec![], None));
}

#[test]
fn a_host_without_memory_has_it_later() {
    let layer = Layer::new(Watched::default(), delayed());
    let (a, b) = tcp(&layer);
    send(&a, b"kept");
    layer.host().fails.store(Errno::NOBUFS.raw_os_error() as u32, Ordering::Relaxed);
    assert_eq!(a.flush(), Err(Errno::NOBUFS));
    assert_eq!(a.delayed(), 4);
    send(&a, b" and more");
    a.flush().expect("memory");
    assert_eq!(recv(&b, RecvFlags::empty()), Ok(b"kept and more".into()));
}

/// The second part of a receive of all bytes meets the error, and the next call reports it.
#[test]
fn an_error_behind_bytes_is_kept() {
    for mode in MODES {
        let layer = layer(options(mode));
        let (a, b) = tcp(&layer);
        let thread = std::thread::spawn(move || recv(&b, RecvFlags::WAITALL).map(|got| (got, b)));
        send(&a, b"some");
        layer.flush();
        while a.unread().is_ok() && ready(&layer, &a).contains(Events::HUP) {}
        // The reset comes after the bytes were read, or before.
        std::thread::sleep(Duration::from_millis(2));
        a.set_option(SO_LINGER, Some(Duration::ZERO)).expect("an option");
        drop(a);
        match thread.join().expect("no panic") {
            Ok((got, b)) => {
                assert_eq!(got, b"some", "{mode:?}");
                assert_eq!(recv(&b, RecvFlags::empty()), Err(Errno::CONNRESET), "{mode:?}");
                assert_eq!(recv(&b, RecvFlags::empty()), Ok(vec![]));
            }
            // The reset came first.
            Err(errno) => assert_eq!(errno, Errno::CONNRESET),
        }
    }
}

#[test]
fn a_write_after_the_end_is_refused_while_bytes_are_left_before_it() {
    let layer = layer(delayed());
    for (a, b) in [unix(&layer), tcp(&layer)] {
        a.set_option(SO_SNDBUF, 5000).expect("an option");
        let sent = fill(&a);
        assert!(a.delayed() > 0);
        a.shutdown(Shutdown::Write).expect("a connection");
        assert!(a.delayed() > 0, "the end is behind them");
        for _ in 0..2 {
            assert_eq!(a.send(b"overtakes", SendFlags::empty()), Err(Errno::PIPE));
            assert_eq!(a.send(b"overtakes", SendFlags::OOB), Err(Errno::PIPE));
        }
        // The two directions are independent.
        send(&b, b"answer");
        b.flush().expect("room");
        assert_eq!(recv(&a, RecvFlags::empty()), Ok(b"answer".into()));
        let reader = std::thread::spawn(move || recv_all(&b));
        while a.flush().is_ok_and(|left| left > 0) {
            std::thread::yield_now();
        }
        let (found, error) = reader.join().expect("no panic");
        assert_eq!((found.len() as u64, error), (sent, None));
        assert_eq!(a.send(b"x", SendFlags::empty()), Err(Errno::PIPE));
    }
}

#[test]
fn a_signal_comes_with_each_broken_pipe_that_asks_for_it() {
    let mut raising = delayed();
    raising.broken_pipe = BrokenPipe::Raise;
    for (options, expected) in [(delayed(), [0, 0]), (raising, [1, 2])] {
        let layer = Layer::new(Watched::default(), options);
        let (a, b) = unix(&layer);
        drop(b);
        send(&a, b"lost");
        layer.flush();
        let signals = || layer.host().signals.load(Ordering::Relaxed);
        assert_eq!(signals(), 0, "a call reports it");
        assert_eq!(a.send(b"x", SendFlags::empty()), Err(Errno::PIPE));
        assert_eq!(signals(), expected[0]);
        assert_eq!(a.send(b"x", SendFlags::NOSIGNAL), Err(Errno::PIPE));
        assert_eq!(signals(), expected[0]);
        assert_eq!(a.send(b"x", SendFlags::empty()), Err(Errno::PIPE));
        assert_eq!(signals(), expected[1]);
    }
}

/// No other test of this program raises the signal.
#[test]
fn the_kernels_signal_is_raised_or_not() {
    let seen = Arc::new(AtomicBool::new(false));
    let id = signal_hook::flag::register(libc::SIGPIPE, Arc::clone(&seen)).expect("a handler");
    for (broken_pipe, gather) in [
        (BrokenPipe::Never, When::Never),
        (BrokenPipe::Never, When::Always),
        (BrokenPipe::Raise, When::Never),
        (BrokenPipe::Raise, When::Always),
    ] {
        let mut options = options((When::Never, gather));
        options.broken_pipe = broken_pipe;
        let layer = layer(options);
        let (a, b) = unix(&layer);
        drop(b);
        seen.store(false, Ordering::Relaxed);
        let mut results = [(); 3].map(|()| {
            let result = a.send(b"x", SendFlags::empty());
            layer.flush();
            result
        });
        // The first write may be delayed.
        results.rotate_left(1);
        assert_eq!(results[..2], [Err(Errno::PIPE); 2]);
        assert_eq!(seen.load(Ordering::Relaxed), broken_pipe == BrokenPipe::Raise);
    }
    seen.store(false, Ordering::Relaxed);
    Kernel.raise_broken_pipe();
    assert!(seen.load(Ordering::Relaxed));
    signal_hook::low_level::unregister(id);
}

#[test]
fn a_connection_is_made_without_waiting() {
    for mode in [PLAIN].into_iter().chain(MODES) {
        let layer = layer(options(mode));
        let listener = listener(&layer);
        listener.set_nonblocking(true).expect("a mode");
        assert_eq!(listener.accept().err(), Some(Errno::AGAIN));
        let to = listener.local_address().expect("an address");
        let a = layer.socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        a.set_nonblocking(true).expect("a mode");
        // No byte is delayed before there is a peer.
        assert_eq!(a.send(b"early", SendFlags::empty()), Err(Errno::PIPE), "{mode:?}");
        assert_eq!(recv(&a, RecvFlags::empty()), Err(Errno::NOTCONN));
        assert_eq!(a.connect(&to), Err(Errno::INPROGRESS));
        let mut entries = [PollEntry::new(&a, Events::OUT)];
        assert_eq!(layer.poll(&mut entries, None), Ok(1));
        assert_eq!(a.take_error(), Ok(None));
        assert!(matches!(a.connect(&to), Ok(()) | Err(Errno::ISCONN)));
        assert_eq!(a.connect(&to), Err(Errno::ISCONN));
        let mut entries = [PollEntry::new(&listener, Events::IN)];
        assert_eq!(layer.poll(&mut entries, None), Ok(1));
        let (b, peer) = listener.accept().expect("a connection");
        assert_eq!(peer, a.local_address().ok());
        assert!(!b.is_nonblocking() && a.is_nonblocking());
        assert_eq!(b.peer_address(), a.local_address().map(Some));
        assert_eq!(recv(&b, RecvFlags::DONTWAIT), Err(Errno::AGAIN));
        // After a reset the peer has no name.
        b.set_option(SO_LINGER, Some(Duration::ZERO)).expect("an option");
        drop(b);
        let mut entries = [PollEntry::new(&a, Events::IN)];
        assert_eq!(layer.poll(&mut entries, None), Ok(1));
        assert_eq!(a.peer_address(), Err(Errno::NOTCONN));
        assert_eq!(a.take_error(), Ok(Some(Errno::CONNRESET)));
        // A port without a listener; a bound socket keeps other tests from using it.
        let bound = layer.socket(AddressFamily::INET, SocketType::STREAM, None).expect("one");
        bound.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a port");
        let to = bound.local_address().expect("an address");
        let refused = layer.socket(AddressFamily::INET, SocketType::STREAM, None).expect("one");
        refused.set_nonblocking(true).expect("a mode");
        assert_eq!(refused.connect(&to), Err(Errno::INPROGRESS));
        let mut entries = [PollEntry::new(&refused, Events::OUT)];
        assert_eq!(layer.poll(&mut entries, None), Ok(1));
        assert_eq!(refused.take_error(), Ok(Some(Errno::CONNREFUSED)));
    }
}

#[test]
fn without_a_peer_nothing_is_left_of_the_connection() {
    let layer = layer(delayed());
    let (a, b) = tcp(&layer);
    send(&b, b"12");
    b.flush().expect("a connection");
    read_ahead(&a);
    send(&a, b"delayed");
    a.disconnect().expect("a connection");
    assert_eq!((a.delayed(), a.unread()), (0, Ok(0)));
    assert_eq!(a.take_error(), Ok(Some(Errno::CONNRESET)), "the kernel's");
    assert_eq!(recv(&a, RecvFlags::empty()), Err(Errno::NOTCONN));
    assert_eq!(a.send(b"x", SendFlags::empty()), Err(Errno::PIPE));
    assert_eq!(recv_all(&b), (vec![], Some(Errno::CONNRESET)));
    // The socket gets another peer.
    let listener = listener(&layer);
    a.connect(&listener.local_address().expect("an address")).expect("a connection");
    let b = listener.accept().expect("a connection").0;
    send(&a, b"new");
    a.flush().expect("a connection");
    assert_eq!(recv(&b, RecvFlags::empty()), Ok(b"new".into()));

    let datagrams = || {
        let socket = layer.socket(AddressFamily::INET, SocketType::DGRAM, None).expect("a socket");
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a port");
        socket
    };
    let (a, b) = (datagrams(), datagrams());
    a.connect(&b.local_address().expect("an address")).expect("a peer");
    assert_eq!(a.send(b"x", SendFlags::empty()), Ok(1));
    a.disconnect().expect("a peer");
    assert_eq!(a.send(b"x", SendFlags::empty()), Err(Errno::DESTADDRREQ));
    assert_eq!(a.peer_address(), Err(Errno::NOTCONN));
}
