//! Sleeping threads learn of changes that other threads make to memory.

use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use sakia_socket::{Events, Options, PollEntry, SelectEntry, Selection, When, sockopt};
use sakia_testkit::settings;

use crate::{NOW, event, layer, layer_of, read_ahead, ready, send, tcp, unix, wait};

const EDGE_IN: Events = Events(Events::IN.0 | Events::EDGE.0);
const ALL: Selection = Selection { readable: true, writable: false, exceptional: true };

#[test]
fn a_wait_is_woken_by_bytes_that_another_thread_reads_ahead() {
    for events in [Events::IN, EDGE_IN, Events::IN | Events::ONE_SHOT] {
        let (layer, state) = layer(When::Always, When::Never);
        let (a, b) = tcp(&layer);
        let set = layer.epoll().expect("a set");
        set.add(&b, event(events, 7)).expect("an entry");
        for round in 1..=3 {
            let door = state.close_door();
            thread::scope(|scope| {
                let sleeper = scope.spawn(|| wait(&set, 8, None));
                let go = door.recv().expect("it is about to sleep");
                send(&a, &b, 10);
                // The kernel has none of the bytes any more.
                read_ahead(&b);
                // The wait may find nothing first, if the host wakes it early.
                state.open_door();
                go.send(()).expect("it waits");
                assert_eq!(sleeper.join().expect("no panic"), [(7, Events::IN)]);
            });
            assert_eq!(state.signals.load(Ordering::SeqCst), round);
            assert_eq!(b.recv(&mut [0; 10], RecvFlags::DONTWAIT), Ok(9));
            set.modify(&b, event(events, 7)).expect("an entry");
        }
    }
}

#[test]
fn a_poll_and_a_select_are_woken_by_bytes_that_another_thread_reads_ahead() {
    for is_select in [false, true] {
        let (layer, state) = layer(When::Always, When::Never);
        let (a, b) = tcp(&layer);
        let (_c, d) = tcp(&layer);
        for round in 1..=2 {
            let door = state.close_door();
            thread::scope(|scope| {
                let sleeper = scope.spawn(|| {
                    if is_select {
                        let mut entries = [SelectEntry::new(&d, ALL), SelectEntry::new(&b, ALL)];
                        assert_eq!(layer.select(&mut entries, None), Ok(1));
                        assert_eq!(entries[0].ready(), Selection::default());
                        assert_eq!(
                            entries[1].ready(),
                            Selection { readable: true, ..Selection::default() }
                        );
                    } else {
                        let mut entries = [&d, &b].map(|end| PollEntry::new(end, Events::IN));
                        assert_eq!(layer.poll(&mut entries, None), Ok(1));
                        assert_eq!(entries[0].ready(), Events::NONE);
                        assert_eq!(entries[1].ready(), Events::IN);
                    }
                });
                let go = door.recv().expect("it is about to sleep");
                send(&a, &b, 10);
                read_ahead(&b);
                state.open_door();
                go.send(()).expect("it waits");
                sleeper.join().expect("no panic");
            });
            // The next round uses the same event descriptor.
            assert_eq!(b.recv(&mut [0; 10], RecvFlags::DONTWAIT), Ok(9));
            assert_eq!(state.signals.load(Ordering::SeqCst), round);
        }
    }
}

#[test]
fn sets_within_sets_wake_those_that_sleep_in_the_outer_one() {
    let (layer, state) = layer(When::Always, When::Never);
    let (a, b) = tcp(&layer);
    let [inner, middle, outer] = [(); 3].map(|()| layer.epoll().expect("a set"));
    inner.add(&b, event(EDGE_IN, 1)).expect("an entry");
    middle.add(&inner, event(Events::IN, 2)).expect("an entry");
    outer.add(&middle, event(EDGE_IN, 3)).expect("an entry");
    for polls in [false, true] {
        let door = state.close_door();
        thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                if polls {
                    let mut entries = [PollEntry::new(&outer, Events::IN)];
                    assert_eq!(layer.poll(&mut entries, None), Ok(1));
                    assert_eq!(entries[0].ready(), Events::IN);
                } else {
                    assert_eq!(wait(&outer, 1, None), [(3, Events::IN)]);
                }
            });
            let go = door.recv().expect("it is about to sleep");
            send(&a, &b, 10);
            read_ahead(&b);
            state.open_door();
            go.send(()).expect("it waits");
            sleeper.join().expect("no panic");
        });
        if polls {
            assert_eq!(ready(&outer), [(3, Events::IN)]);
        }
        assert_eq!(ready(&outer), [], "an edge");
        assert_eq!(ready(&middle), [(2, Events::IN)]);
        assert_eq!(ready(&middle), [(2, Events::IN)], "level");
        assert_eq!(ready(&inner), [(1, Events::IN)]);
        assert_eq!((ready(&inner), ready(&middle)), (vec![], vec![]));
        assert_eq!(b.recv(&mut [0; 10], RecvFlags::DONTWAIT), Ok(9));
    }
}

#[test]
fn each_of_several_sleepers_gets_an_event() {
    let (layer, state) = layer(When::Always, When::Never);
    let pairs = [tcp(&layer), tcp(&layer), tcp(&layer)];
    let set = layer.epoll().expect("a set");
    for (number, (_, b)) in pairs.iter().enumerate() {
        set.add(b, event(EDGE_IN, number as u64)).expect("an entry");
    }
    let door = state.close_door();
    thread::scope(|scope| {
        let sleepers: Vec<_> = pairs.iter().map(|_| scope.spawn(|| wait(&set, 1, None))).collect();
        let doors: Vec<_> =
            pairs.iter().map(|_| door.recv().expect("it is about to sleep")).collect();
        for (a, b) in &pairs {
            send(a, b, 10);
            read_ahead(b);
        }
        state.open_door();
        drop(doors);
        let mut found: Vec<_> =
            sleepers.into_iter().flat_map(|one| one.join().expect("no panic")).collect();
        found.sort_by_key(|&(number, _)| number);
        assert_eq!(found, [(0, Events::IN), (1, Events::IN), (2, Events::IN)]);
    });
}

#[test]
fn a_wait_is_woken_by_an_error_of_delayed_bytes() {
    for polls in [false, true] {
        let (layer, state) = layer(When::Never, When::Always);
        let (a, _b) = unix(&layer);
        let set = layer.epoll().expect("a set");
        set.add(&a, event(Events::IN, 7)).expect("an entry");
        let door = state.close_door();
        thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                if polls {
                    let mut entries = [PollEntry::new(&a, Events::IN)];
                    assert_eq!(layer.poll(&mut entries, None), Ok(1));
                    assert_eq!(entries[0].ready(), Events::ERR);
                } else {
                    assert_eq!(wait(&set, 8, None), [(7, Events::ERR)]);
                }
            });
            let go = door.recv().expect("it is about to sleep");
            state.send_error.store(Errno::CONNRESET.raw_os_error(), Ordering::SeqCst);
            assert_eq!(a.send(b"lost", SendFlags::NOSIGNAL), Ok(4));
            state.open_door();
            go.send(()).expect("it waits");
            sleeper.join().expect("no panic");
        });
        assert_eq!(ready(&set), [(7, Events::ERR)], "level");
        assert_eq!(a.take_error(), Ok(Some(Errno::CONNRESET)));
        assert_eq!(ready(&set), []);
    }
}

#[test]
fn room_in_the_queue_is_an_edge_that_wakes() {
    let mut options = Options::default();
    options.gather = When::Always;
    // Less than the kernel has room for, so it sees no edge.
    options.limits.bytes = 8000;
    let (layer, state) = layer_of(options);
    let (a, b) = unix(&layer);
    let set = layer.epoll().expect("a set");
    set.add(&a, event(Events::OUT | Events::EDGE, 7)).expect("an entry");
    assert_eq!(ready(&set), [(7, Events::OUT)]);
    state.send_error.store(Errno::AGAIN.raw_os_error(), Ordering::SeqCst);
    let mut sent = 0;
    let error = loop {
        match a.send(&[1; 1000], SendFlags::NOSIGNAL) {
            Ok(count) => sent += count,
            Err(errno) => break errno,
        }
    };
    assert_eq!(error, Errno::AGAIN);
    assert_eq!(ready(&set), []);
    let mut entries = [PollEntry::new(&a, Events::OUT)];
    assert_eq!(layer.poll(&mut entries, NOW), Ok(0));
    let door = state.close_door();
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| wait(&set, 8, None));
        let go = door.recv().expect("it is about to sleep");
        state.open_door();
        go.send(()).expect("it waits");
        state.send_error.store(0, Ordering::SeqCst);
        // The pump looks for room.
        assert_eq!(sleeper.join().expect("no panic"), [(7, Events::OUT)]);
    });
    assert_eq!(layer.poll(&mut entries, NOW), Ok(1));
    layer.flush();
    let mut bytes = vec![0; sent + 1];
    let count = b.recv(&mut bytes, RecvFlags::DONTWAIT);
    assert_eq!(count, Ok(sent), "none was lost");
}

#[test]
fn room_in_the_queue_is_no_event_while_the_kernel_is_full() {
    let (layer, _) = layer(When::Never, When::Always);
    let (a, b) = unix(&layer);
    let set = layer.epoll().expect("a set");
    set.add(&a, event(Events::OUT | Events::EDGE, 7)).expect("an entry");
    assert_eq!(ready(&set), [(7, Events::OUT)]);
    let mut sent = 0;
    while let Ok(count) = a.send(&[1; 1000], SendFlags::NOSIGNAL) {
        sent += count;
    }
    assert_eq!(ready(&set), []);
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| wait(&set, 8, None));
        let mut got = 0;
        while got < sent {
            got += b.recv(&mut [0; 20_000], RecvFlags::DONTWAIT).unwrap_or(0);
            thread::yield_now();
        }
        assert_eq!(sleeper.join().expect("no panic"), [(7, Events::OUT)]);
    });
    assert!(a.send(&[1; 1000], SendFlags::NOSIGNAL).is_ok());
}

#[test]
fn no_call_is_made_for_news_while_no_thread_sleeps() {
    let (layer, state) = layer(When::Always, When::Never);
    let (a, b) = tcp(&layer);
    let set = layer.epoll().expect("a set");
    set.add(&b, event(Events::IN, 7)).expect("an entry");
    for _ in 0..10 {
        send(&a, &b, 10);
        assert_eq!(ready(&set), [(7, Events::IN)]);
        let before = state.calls.load(Ordering::SeqCst);
        for _ in 0..10 {
            read_ahead(&b);
        }
        assert_eq!(state.calls.load(Ordering::SeqCst), before + 1);
        assert_eq!(ready(&set), []);
    }
    assert_eq!(state.signals.load(Ordering::SeqCst), 0);
}

#[test]
fn a_timeout_ends_a_wait_with_nothing() {
    let (layer, state) = layer(When::Always, When::Always);
    let (_a, b) = tcp(&layer);
    let set = layer.epoll().expect("a set");
    set.add(&b, event(Events::IN, 7)).expect("an entry");
    let timeout = Some(Duration::from_micros(1500));
    let before = state.calls.load(Ordering::SeqCst);
    assert_eq!(wait(&set, 1, timeout), []);
    assert_eq!(layer.poll(&mut [PollEntry::new(&b, Events::IN)], timeout), Ok(0));
    assert_eq!(layer.select(&mut [SelectEntry::new(&b, ALL)], timeout), Ok(0));
    assert_eq!(state.calls.load(Ordering::SeqCst), before + 3, "each by one call");
    assert_eq!(layer.select(&mut [], timeout), Ok(0));
}

/// These receives wait in the host, where they would not see bytes that are in memory.
#[test]
fn nothing_is_read_ahead_while_another_thread_looks() {
    for flags in [RecvFlags::PEEK, RecvFlags::PEEK | RecvFlags::WAITALL, RecvFlags::WAITALL] {
        let (layer, state) = layer(When::Always, When::Never);
        let (a, b) = tcp(&layer);
        b.set_nonblocking(false).expect("a mode");
        let time = Some(Duration::from_secs(1000));
        b.set_option(sockopt::SO_RCVTIMEO, time).expect("an option");
        if flags != RecvFlags::PEEK {
            send(&a, &b, 2);
            read_ahead(&b);
        }
        let door = state.close_door();
        let (ended, end) = mpsc::channel();
        let looker = b.clone();
        thread::spawn(move || ended.send(looker.recv(&mut [0; 3], flags)));
        let go = door.recv().expect("it is about to sleep");
        send(&a, &b, 10);
        // Another thread takes the bytes in memory, and one byte of the host's.
        let count = if flags == RecvFlags::PEEK | RecvFlags::WAITALL { 2 } else { 1 };
        for _ in 0..count {
            read_ahead(&b);
        }
        state.open_door();
        go.send(()).expect("it waits");
        let found = end.recv_timeout(settings::patience()).expect("it sees the bytes");
        assert_eq!(found, Ok(3), "{flags:?}");
    }
}
