//! Signals end waits, and no byte is lost.

use std::os::unix::thread::JoinHandleExt;
use std::sync::Once;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use sakia_socket::sockopt::{SO_RCVBUF, SO_RCVTIMEO, SO_SNDBUF};
use sakia_socket::{EpollEvent, Events, PollEntry, SelectEntry, Selection};

use crate::support::{
    MODES, PLAIN, at_once, byte, fill, layer, listener, options, recv, recv_all, send, tcp, unix,
};

extern "C" fn do_nothing(_: libc::c_int) {}

/// Installs a handler without `SA_RESTART`.
fn handle() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: all zeros are a valid action; the handler does nothing, so it may run at any time.
        let result = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = do_nothing as extern "C" fn(libc::c_int) as usize;
            libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut())
        };
        assert_eq!(result, 0);
    });
}

/// Runs `call` on a thread that gets signals until it ends. Returns its result.
fn interrupted<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    handle();
    let thread: JoinHandle<T> = thread::spawn(call);
    while !thread.is_finished() {
        thread::sleep(Duration::from_millis(1));
        // SAFETY: the thread was not joined yet, so its number is still its own.
        unsafe { libc::pthread_kill(thread.as_pthread_t(), libc::SIGUSR2) };
    }
    thread.join().expect("no panic")
}

#[test]
fn a_signal_ends_each_wait() {
    at_once([PLAIN].into_iter().chain(MODES), |mode| {
        let layer = layer(options(mode));
        let (a, b) = tcp(&layer);
        for flags in [RecvFlags::empty(), RecvFlags::WAITALL, RecvFlags::PEEK] {
            let reader = b.clone();
            assert_eq!(interrupted(move || recv(&reader, flags)), Err(Errno::INTR), "{mode:?}");
        }
        // A wait with a timeout, which the layer counts itself, ends as well.
        b.set_option(SO_RCVTIMEO, Some(Duration::from_secs(1000))).expect("an option");
        let reader = b.clone();
        let result = interrupted(move || recv(&reader, RecvFlags::WAITALL));
        assert_eq!(result, Err(Errno::INTR), "{mode:?}");
        let (poller, polled) = (layer.clone(), b.clone());
        let result =
            interrupted(move || poller.poll(&mut [PollEntry::new(&polled, Events::IN)], None));
        assert_eq!(result, Err(Errno::INTR));
        let (poller, polled) = (layer.clone(), b.clone());
        let result = interrupted(move || {
            let sets = Selection { readable: true, ..Selection::default() };
            poller.select(&mut [SelectEntry::new(&polled, sets)], None)
        });
        assert_eq!(result, Err(Errno::INTR));
        let set = layer.epoll().expect("a set");
        set.add(&b, EpollEvent { events: Events::IN, data: 1 }).expect("an entry");
        let result = interrupted(move || set.wait(&mut [EpollEvent::default()], None));
        assert_eq!(result, Err(Errno::INTR));
        let accepting = listener(&layer);
        assert_eq!(interrupted(move || accepting.accept().err()), Some(Errno::INTR));
        // None of these calls has taken a byte.
        send(&a, b"whole");
        layer.flush();
        assert_eq!(recv(&b, RecvFlags::empty()), Ok(b"whole".into()));
    });
}

/// Bytes that were received or taken before the signal count.
#[test]
fn a_signal_leaves_the_bytes_that_were_moved() {
    at_once([PLAIN].into_iter().chain(MODES), |mode| {
        let mut options = options(mode);
        options.limits.bytes = 3000;
        let layer = layer(options);
        for timeout in [None, Some(Duration::from_secs(1000))] {
            let (a, b) = tcp(&layer);
            b.set_option(SO_RCVTIMEO, timeout).expect("an option");
            send(&a, b"some");
            layer.flush();
            while b.unread() != Ok(4) {
                thread::yield_now();
            }
            let result = interrupted(move || recv(&b, RecvFlags::WAITALL));
            assert_eq!(result, Ok(b"some".into()), "{mode:?}");
        }
        for (a, b) in [unix(&layer), tcp(&layer)] {
            a.set_option(SO_SNDBUF, 5000).expect("an option");
            b.set_option(SO_RCVBUF, 5000).expect("an option");
            let mut sent = fill(&a);
            let writer = a.clone();
            let first = sent;
            let result = interrupted(move || {
                let bytes: Vec<u8> = (first..).map(byte).take(1_000_000).collect();
                writer.send(&bytes, SendFlags::empty())
            });
            match result {
                Ok(count) => sent += count as u64,
                Err(errno) => assert_eq!(errno, Errno::INTR, "{mode:?}"),
            }
            let reader = thread::spawn(move || recv_all(&b));
            drop(a);
            let (found, error) = reader.join().expect("no panic");
            assert_eq!(error, None);
            assert!(found.iter().copied().eq((0..sent).map(byte)), "{mode:?}, {sent}");
        }
    });
}
