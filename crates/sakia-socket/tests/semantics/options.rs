//! Socket options.

use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use sakia_socket::sockopt::{
    IPPROTO_TCP, SO_ERROR, SO_KEEPALIVE, SO_LINGER, SO_OOBINLINE, SO_RCVBUF, SO_RCVLOWAT,
    SO_RCVTIMEO, SO_SNDBUF, SO_SNDTIMEO, TCP_CORK, TCP_NODELAY,
};
use sakia_socket::{Layer, Socket, When};

use crate::support::watched::Watched;
use crate::support::{
    MODES, at_once, byte, connect, delayed, fill, layer, listener, options, read_ahead, recv,
    recv_all, send, tcp, unix,
};

const SHORT: Option<Duration> = Some(Duration::from_millis(20));
/// `TCP_ULP`.
const ULP: i32 = 31;

/// The timeout is for the whole call, not for each of its waits, and the bytes received so far count.
#[test]
fn a_receive_of_all_ends_with_its_time() {
    for mode in MODES {
        let layer = layer(options(mode));
        let (a, b) = tcp(&layer);
        b.set_option(SO_RCVTIMEO, SHORT).expect("an option");
        assert_eq!(recv(&b, RecvFlags::empty()), Err(Errno::AGAIN));
        assert_eq!(recv(&b, RecvFlags::WAITALL), Err(Errno::AGAIN));
        send(&a, b"abc");
        assert_eq!(recv(&b, RecvFlags::WAITALL), Ok(b"abc".into()), "{mode:?}");
        send(&a, b"defg");
        layer.flush();
        read_ahead(&b);
        assert_eq!(recv(&b, RecvFlags::WAITALL), Ok(b"efg".into()), "{mode:?}");
        assert_eq!(recv(&b, RecvFlags::PEEK | RecvFlags::WAITALL), Err(Errno::AGAIN));
        // A writer that sends single bytes again and again does not prolong the receive. The first is there
        // before its thread runs, which may be late.
        send(&a, b".");
        layer.flush();
        let dribble = a.clone();
        let thread = std::thread::spawn(move || {
            while dribble.send(b".", SendFlags::NOSIGNAL).is_ok() {
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let mut buffer = [0; 100_000];
        let count = b.recv(&mut buffer, RecvFlags::WAITALL).expect("some came");
        assert!((1..buffer.len()).contains(&count), "{mode:?}: {count}");
        drop((a, b));
        thread.join().expect("no panic");
    }
}

/// A time that the kernel's structure has no room for.
#[test]
fn a_time_that_has_no_form_is_refused_and_changes_nothing() {
    let layer = layer(options(MODES[0]));
    let (_a, b) = tcp(&layer);
    for option in [SO_RCVTIMEO, SO_SNDTIMEO] {
        b.set_option(option, SHORT).expect("an option");
        let before = b.option(option);
        assert_eq!(b.set_option(option, Some(Duration::MAX)), Err(Errno::DOM));
        assert_eq!(b.option(option), before);
    }
    assert_eq!(recv(&b, RecvFlags::empty()), Err(Errno::AGAIN));
}

#[test]
fn a_look_for_all_waits_behind_the_bytes_in_memory() {
    let layer = layer(options((When::Always, When::Never)));
    let (a, b) = tcp(&layer);
    send(&a, b"12");
    assert_eq!(read_ahead(&b), b'1');
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(5));
        send(&a, b"34");
        a
    });
    let mut buffer = [0; 3];
    assert_eq!(b.recv(&mut buffer, RecvFlags::PEEK | RecvFlags::WAITALL), Ok(3));
    assert_eq!(&buffer, b"234");
    let a = thread.join().expect("no panic");
    a.shutdown(Shutdown::Write).expect("a connection");
    assert_eq!(recv(&b, RecvFlags::PEEK | RecvFlags::WAITALL), Ok(b"234".into()), "the end");
    assert_eq!(recv_all(&b), (b"234".into(), None));
}

/// After the timeout, bytes that were taken stay accepted, and arrive.
#[test]
fn a_send_ends_with_its_time_and_loses_nothing() {
    let wires = MODES.into_iter().flat_map(|mode| [(mode, false), (mode, true)]);
    at_once(wires, |(mode, is_tcp)| {
        let mut options = options(mode);
        options.limits.bytes = 3000;
        let layer = layer(options);
        let (a, b) = if is_tcp { tcp(&layer) } else { unix(&layer) };
        a.set_option(SO_SNDBUF, 5000).expect("an option");
        b.set_option(SO_RCVBUF, 5000).expect("an option");
        a.set_option(SO_SNDTIMEO, SHORT).expect("an option");
        let mut sent = 0;
        let mut bytes: Vec<u8> = (0..900).map(byte).collect();
        let mut is_partial = false;
        loop {
            match a.send(&bytes, SendFlags::NOSIGNAL) {
                Ok(count) => {
                    is_partial |= count < bytes.len();
                    sent += count as u64;
                    bytes = (sent..).map(byte).take(900).collect();
                }
                Err(errno) => {
                    assert_eq!(errno, Errno::AGAIN, "{mode:?}");
                    break;
                }
            }
        }
        assert!(sent > 0 && (is_partial || !is_tcp || sent.is_multiple_of(900)));
        let reader = std::thread::spawn(move || recv_all(&b));
        a.shutdown(Shutdown::Write).expect("a connection");
        let (found, error) = reader.join().expect("no panic");
        assert_eq!(error, None);
        assert!(found.iter().copied().eq((0..sent).map(byte)), "{mode:?}, {sent}, {}", found.len());
    });
}

#[test]
fn reads_from_memory_make_no_call() {
    let layer = Layer::new(Watched::default(), options((When::Always, When::Never)));
    let (a, b) = tcp(&layer);
    b.set_option(SO_RCVTIMEO, Some(Duration::from_secs(100))).expect("an option");
    send(&a, &[7; 50]);
    read_ahead(&b);
    let before = layer.host().calls();
    for _ in 0..49 {
        read_ahead(&b);
    }
    assert_eq!(layer.host().calls(), before);
}

#[test]
fn a_connection_inherits_what_its_listener_has() {
    let layer = layer(options((When::Always, When::Always)));
    let listener = listener(&layer);
    listener.set_option(SO_RCVTIMEO, SHORT).expect("an option");
    listener.set_option(SO_LINGER, Some(Duration::ZERO)).expect("an option");
    let a = connect(&layer, &listener);
    let (b, _) = listener.accept().expect("a connection");
    assert_eq!(b.option(SO_RCVTIMEO), listener.option(SO_RCVTIMEO));
    assert!(!b.is_nonblocking());
    send(&a, b"ab");
    assert_eq!(recv(&b, RecvFlags::WAITALL), Ok(b"ab".into()), "it does not wait for ever");
    drop(b);
    assert_eq!(recv(&a, RecvFlags::empty()), Err(Errno::CONNRESET));
}

/// These options do not concern delayed bytes, so those are sent first.
#[test]
fn pushing_options_send_what_is_delayed() {
    for option in [TCP_NODELAY, TCP_CORK] {
        let layer = layer(delayed());
        let (a, b) = tcp(&layer);
        send(&a, b"before");
        assert_eq!(a.delayed(), 6);
        a.set_option(SO_KEEPALIVE, true).expect("an option");
        assert_eq!(a.delayed(), 6, "it concerns no byte");
        a.set_option(option, true).expect("an option");
        assert_eq!(a.delayed(), 0);
        assert_eq!(recv(&b, RecvFlags::empty()), Ok(b"before".into()));
    }
}

#[test]
fn an_option_that_changes_reads_gives_the_socket_back_behind_its_bytes() {
    let layer = Layer::new(Watched::default(), delayed());
    let (a, b) = tcp(&layer);
    send(&a, b"12345");
    a.flush().expect("a connection");
    assert_eq!(read_ahead(&b), b'1');
    assert_eq!(b.set_option(SO_RCVLOWAT, 1), Ok(()));
    assert_eq!(b.set_option(SO_OOBINLINE, true), Ok(()));
    // Urgent data keeps its place behind delayed bytes.
    send(&a, b"67");
    assert_eq!(a.send(b"!", SendFlags::OOB), Ok(1));
    send(&a, b"8");
    a.flush().expect("a connection");
    assert_eq!(b.is_at_mark(), Ok(false));
    assert_eq!(recv(&b, RecvFlags::empty()), Ok(b"2345".into()), "from memory");
    assert_eq!(recv(&b, RecvFlags::empty()), Ok(b"67".into()), "up to the mark");
    assert_eq!(b.is_at_mark(), Ok(true));
    let mut buffer = [0; 2];
    assert_eq!(b.recv(&mut buffer, RecvFlags::WAITALL), Ok(2));
    assert_eq!(&buffer, b"!8");
    // No bytes are read ahead any more.
    send(&a, b"9a");
    a.flush().expect("a connection");
    read_ahead(&b);
    let before = layer.host().calls();
    read_ahead(&b);
    assert_eq!(layer.host().calls(), before + 1);
}

#[test]
fn nothing_is_read_ahead_after_an_option_that_changes_reads() {
    let layer = Layer::new(Watched::default(), delayed());
    let (a, b) = tcp(&layer);
    assert_eq!(b.set_option(SO_OOBINLINE, true), Ok(()));
    send(&a, b"12");
    a.flush().expect("a connection");
    assert_eq!(read_ahead(&b), b'1');
    let before = layer.host().calls();
    assert_eq!(read_ahead(&b), b'2');
    assert_eq!(layer.host().calls(), before + 1);
}

/// The option would change how the kernel treats bytes that are already in memory.
#[test]
fn an_option_for_all_bytes_waits_until_they_are_read() {
    let layer = Layer::new(Watched::default(), delayed());
    let (a, b) = tcp(&layer);
    send(&a, b"12");
    a.flush().expect("a connection");
    read_ahead(&b);
    assert_eq!(b.set_option_raw(IPPROTO_TCP, ULP, b"tls"), Err(Errno::BUSY));
    assert!(layer.host().set.lock().expect("no panic").iter().all(|set| set.1 != ULP));
    read_ahead(&b);
    // This kernel may support the option or not.
    let _ = b.set_option_raw(IPPROTO_TCP, ULP, b"tls");
    assert!(layer.host().set.lock().expect("no panic").contains(&(IPPROTO_TCP, ULP)));
    // Delayed bytes are sent before the option is set.
    send(&a, b"3");
    assert_eq!(a.delayed(), 1);
    let _ = a.set_option_raw(IPPROTO_TCP, ULP, b"none");
    assert_eq!(a.delayed(), 0);
}

#[test]
fn bytes_in_memory_are_counted() {
    let layer = Layer::new(Watched::default(), delayed());
    let (a, b) = tcp(&layer);
    send(&a, b"12345");
    assert_eq!((a.delayed(), a.unsent()), (5, Ok(5)));
    a.flush().expect("a connection");
    read_ahead(&b);
    assert_eq!(b.unread(), Ok(4));
    let stuck = fill(&a);
    assert_eq!(a.unsent().map(|count| count > stuck / 2), Ok(true));
    let plain = self::layer(delayed());
    let a = tcp(&plain).0;
    assert_eq!(a.unsent(), Err(Errno::NOTTY));
}

#[test]
fn a_pending_error_is_an_option_too() {
    let layer = layer(delayed());
    let (a, b) = tcp(&layer);
    b.set_option(SO_LINGER, Some(Duration::ZERO)).expect("an option");
    drop(b);
    let error = |socket: &Socket| socket.option(SO_ERROR);
    assert_eq!(error(&a), Ok(Errno::CONNRESET.raw_os_error()));
    assert_eq!(error(&a), Ok(0));
}
