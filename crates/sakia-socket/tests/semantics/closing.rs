//! Half-closed and closed connections.

use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use sakia_socket::When;
use sakia_socket::sockopt::{SO_LINGER, SO_RCVBUF, SO_SNDBUF};

use crate::support::{
    MODES, PLAIN, at_once, delayed, fill, layer, options, read_ahead, recv, recv_all, send, tcp,
    unix,
};

#[test]
fn unread_bytes_reset_the_connection() {
    for mode in [PLAIN].into_iter().chain(MODES) {
        let layer = layer(options(mode));
        for clones in 0..2 {
            let (a, b) = tcp(&layer);
            send(&a, b"1234");
            layer.flush();
            read_ahead(&b);
            // Delayed bytes are dropped with the connection.
            let _ = b.send(b"dropped", SendFlags::empty());
            let clone = (clones == 1).then(|| b.clone());
            drop(b);
            if let Some(clone) = clone {
                assert_eq!(recv(&clone, RecvFlags::empty()), Ok(b"234".into()));
                drop(clone);
                assert_eq!(recv_all(&a).1, None, "{mode:?}");
            } else {
                let (found, error) = recv_all(&a);
                // The kernel also drops bytes that the peer has not read, if the reset overtakes them.
                assert!(found.is_empty() || found == b"dropped", "{mode:?}");
                assert_eq!(error, Some(Errno::CONNRESET), "{mode:?}");
            }
        }
    }
}

#[test]
fn without_time_to_linger_delayed_bytes_are_dropped() {
    let layer = layer(delayed());
    let (a, b) = tcp(&layer);
    send(&a, b"arrives");
    a.flush().expect("a connection");
    assert_eq!(recv(&b, RecvFlags::empty()), Ok(b"arrives".into()));
    send(&a, b"dropped");
    a.set_option(SO_LINGER, Some(Duration::ZERO)).expect("an option");
    drop(a);
    assert_eq!(recv_all(&b), (vec![], Some(Errno::CONNRESET)));
    // Other streams have no reset, and lose nothing.
    let (a, b) = unix(&layer);
    send(&a, b"arrives");
    a.set_option(SO_LINGER, Some(Duration::ZERO)).expect("an option");
    drop(a);
    assert_eq!(recv_all(&b), (b"arrives".into(), None));
}

#[test]
fn delayed_bytes_arrive_after_the_close() {
    // The close sends in the background, or lingers, for long enough or not.
    let lingers = [None, Some(Duration::from_secs(60)), Some(Duration::from_secs(1))];
    at_once(lingers, |linger| {
        let mut options = options((When::Never, When::Always));
        options.limits.bytes = 50_000;
        let layer = layer(options);
        let (a, b) = tcp(&layer);
        a.set_option(SO_SNDBUF, 5000).expect("an option");
        b.set_option(SO_RCVBUF, 5000).expect("an option");
        let sent = fill(&a);
        assert!(a.delayed() > 1000);
        a.set_option(SO_LINGER, linger).expect("an option");
        let is_short = linger == Some(Duration::from_secs(1));
        let reader = std::thread::spawn(move || {
            if is_short {
                std::thread::sleep(Duration::from_millis(1200));
            }
            recv_all(&b)
        });
        drop(a);
        let (found, error) = reader.join().expect("no panic");
        assert_eq!((found.len() as u64, error), (sent, None), "{linger:?}");
    });
}
