//! Waits with the default policy, where only the host wakes.

use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::RecvFlags;
use sakia_socket::{Events, PollEntry, Socket, When};

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
