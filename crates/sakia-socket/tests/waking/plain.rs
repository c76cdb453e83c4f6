//! Waits with the default policy, where only the host wakes.

use std::io::IoSlice;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use sakia_socket::{Events, PollEntry, SendControl, Socket, When};

use crate::host::Doored;
use crate::{layer, send, tcp};

fn recv_one(socket: &Socket<Doored>) -> Result<usize, Errno> {
    socket.recv(&mut [0], RecvFlags::empty())
}

/// A read of one byte must not bring the second one to memory: the host would not see it there.
#[test]
fn a_poll_hears_of_bytes_of_which_another_thread_reads_one() {
    let (layer, _) = layer(When::OnEvidence, When::Never);
    let (a, b) = tcp(&layer);
    b.set_nonblocking(true).expect("a mode");
    // After this number of small reads the next ones may read ahead.
    for _ in 0..100 {
        send(&a, &b, 2);
        while recv_one(&b).is_err() {}
        while recv_one(&b).is_err() {}
    }
    for _ in 0..300 {
        thread::scope(|scope| {
            let polling = scope.spawn(|| {
                let mut entries = [PollEntry::new(&b, Events::IN)];
                layer.poll(&mut entries, Some(Duration::from_secs(20))).expect("a poll")
            });
            send(&a, &b, 2);
            while recv_one(&b).is_err() {}
            assert_eq!(polling.join().expect("no panic"), 1, "the second byte is there");
            while recv_one(&b).is_err() {}
        });
    }
}

/// The host of these tests has only the calls that a host must have, and those of sets.
#[test]
fn what_a_host_lacks_is_refused() {
    let (layer, _) = layer(When::OnEvidence, When::OnEvidence);
    let (a, b) = tcp(&layer);
    let control = [SendControl::TransmitTime(1)];
    let sent = a.send_message(&[IoSlice::new(b"x")], &control, SendFlags::NOSIGNAL, None);
    assert_eq!(sent, Err(Errno::OPNOTSUPP));
    assert_eq!(a.disconnect(), Err(Errno::OPNOTSUPP));
    assert_eq!(a.unsent(), Err(Errno::NOTTY));
    assert_eq!(b.is_at_mark(), Err(Errno::NOTTY));
    // It is still connected.
    send(&a, &b, 1);
    assert_eq!(recv_one(&b), Ok(1));
}
