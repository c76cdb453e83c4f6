//! Bytes in memory and closed sockets, in one thread.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use sakia_socket::{EpollEvent, Events, PollEntry, SelectEntry, Selection, When};

use crate::{NOW, event, layer, read_ahead, ready, send, tcp, unix, wait};

#[test]
fn few_places_go_round_among_memory_and_kernel() {
    let (layer, _) = layer(When::Always, When::Never);
    let pairs: Vec<_> = (0..6).map(|_| tcp(&layer)).collect();
    let set = layer.epoll().expect("a set");
    for (number, (a, b)) in pairs.iter().enumerate() {
        set.add(b, event(Events::IN, number as u64)).expect("an entry");
        send(a, b, 10);
        if number < 3 {
            read_ahead(b);
        }
    }
    for max in [1, 2, 5] {
        let mut seen = [0; 6];
        for _ in 0..60 {
            let before = seen;
            for (number, events) in wait(&set, max, NOW) {
                assert_eq!(events, Events::IN);
                seen[number as usize] += 1;
                assert_ne!(seen[number as usize], before[number as usize] + 2, "{number} twice");
            }
        }
        let fair = 60 * max / 6;
        assert!(seen.iter().all(|&count| count > fair / 3), "{max}: {seen:?}");
    }
}

#[test]
fn an_event_that_had_no_place_is_asked_for_again() {
    let (layer, _) = layer(When::Always, When::Never);
    let pairs: Vec<_> = (0..4).map(|_| tcp(&layer)).collect();
    let set = layer.epoll().expect("a set");
    for (number, (a, b)) in pairs.iter().enumerate() {
        set.add(b, event(Events::IN, number as u64)).expect("an entry");
        send(a, b, 10);
    }
    read_ahead(&pairs[0].1);
    assert_eq!(wait(&set, 1, NOW).len(), 1);
    // The kernel has reported sockets that the layer did not report yet, and that now have nothing to read.
    for (_, b) in &pairs {
        assert!(b.recv(&mut [0; 10], RecvFlags::DONTWAIT).is_ok());
    }
    assert_eq!(ready(&set), []);
}

#[test]
fn one_event_has_what_the_kernel_and_memory_know() {
    let (layer, _) = layer(When::Always, When::Never);
    let (a, b) = tcp(&layer);
    let others: Vec<_> = (0..4).map(|_| unix(&layer)).collect();
    let set = layer.epoll().expect("a set");
    for (_, other) in &others {
        set.add(other, event(Events::OUT, 0)).expect("an entry");
    }
    set.add(&b, event(Events::IN | Events::OUT | Events::ONE_SHOT, 7)).expect("an entry");
    send(&a, &b, 10);
    read_ahead(&b);
    // With few places, the kernel may have no chance to report the room.
    let mut found = Vec::new();
    for _ in 0..20 {
        found.extend(wait(&set, 1, NOW).into_iter().filter(|&(number, _)| number == 7));
    }
    assert_eq!(found, [(7, Events::IN | Events::OUT)]);
}

#[test]
fn a_modified_entry_reports_again_with_its_new_number() {
    let (layer, _) = layer(When::Always, When::Never);
    let (a, b) = tcp(&layer);
    let set = layer.epoll().expect("a set");
    let events = Events::IN | Events::EDGE | Events::ONE_SHOT;
    set.add(&b, event(events, 1)).expect("an entry");
    send(&a, &b, 10);
    read_ahead(&b);
    assert_eq!(ready(&set), [(1, Events::IN)]);
    assert_eq!(ready(&set), []);
    set.modify(&b, event(events, 2)).expect("an entry");
    assert_eq!(ready(&set), [(2, Events::IN)]);
    set.modify(&b, event(Events::OUT, 3)).expect("an entry");
    assert_eq!(ready(&set), [(3, Events::OUT)]);
    set.remove(&b).expect("an entry");
    assert_eq!(ready(&set), []);
}

#[test]
fn the_last_handle_takes_a_socket_out_of_its_sets_though_bytes_are_delayed() {
    let (layer, state) = layer(When::Never, When::Always);
    let (a, b) = unix(&layer);
    let sets = [(); 2].map(|()| layer.epoll().expect("a set"));
    for set in &sets {
        set.add(&a, event(Events::IN | Events::OUT, 7)).expect("an entry");
    }
    state.send_error.store(Errno::AGAIN.raw_os_error(), Ordering::SeqCst);
    assert_eq!(a.send(b"delayed", SendFlags::NOSIGNAL), Ok(7));
    let clone = a.clone();
    drop(a);
    for set in &sets {
        assert_eq!(ready(set), [(7, Events::OUT)], "a clone keeps it");
        assert_eq!(set.add(&clone, event(Events::IN, 8)), Err(Errno::EXIST));
    }
    drop(clone);
    // The host's descriptor is still open, and would report events.
    b.shutdown(Shutdown::Both).expect("an open connection");
    for set in &sets {
        assert_eq!(ready(set), []);
    }
    state.send_error.store(0, Ordering::SeqCst);
}

#[test]
fn sets_leave_sets_and_sockets_when_they_are_closed() {
    let (layer, _) = layer(When::Always, When::Never);
    let (a, b) = tcp(&layer);
    let outer = layer.epoll().expect("a set");
    let inner = layer.epoll().expect("a set");
    inner.add(&b, event(Events::IN, 1)).expect("an entry");
    outer.add(&inner, event(Events::IN, 2)).expect("an entry");
    send(&a, &b, 10);
    read_ahead(&b);
    assert_eq!(ready(&outer), [(2, Events::IN)]);
    let clone = inner.clone();
    drop(inner);
    assert_eq!(ready(&outer), [(2, Events::IN)]);
    drop(clone);
    assert_eq!(ready(&outer), []);
    outer.add(&b, event(Events::IN, 3)).expect("an entry");
    drop(outer);
    // The closed sets do not listen any more.
    assert_eq!(b.recv(&mut [0; 9], RecvFlags::DONTWAIT), Ok(9));
    send(&a, &b, 10);
    read_ahead(&b);
}

#[test]
fn errors_are_those_of_the_kernel() {
    let (layer, _) = layer(When::Always, When::Always);
    let (_a, b) = tcp(&layer);
    let set = layer.epoll().expect("a set");
    let events = event(Events::IN, 1);
    assert_eq!(set.modify(&b, events), Err(Errno::NOENT));
    assert_eq!(set.remove(&b), Err(Errno::NOENT));
    assert_eq!(set.add(&b, events), Ok(()));
    assert_eq!(set.add(&b, events), Err(Errno::EXIST));
    assert_eq!(set.wait(&mut [], NOW), Err(Errno::INVAL));
    assert_eq!(set.add(&set, events), Err(Errno::INVAL));
    assert_eq!(set.modify(&set, events), Err(Errno::INVAL));
    assert_eq!(set.remove(&set), Err(Errno::INVAL));
    let exclusive = event(Events::IN | Events::EXCLUSIVE, 1);
    assert_eq!(set.modify(&b, exclusive), Err(Errno::INVAL));
    set.remove(&b).expect("an entry");
    assert_eq!(set.add(&b, exclusive), Ok(()));
    assert_eq!(set.modify(&b, events), Err(Errno::INVAL));
    let other = layer.epoll().expect("a set");
    assert_eq!(other.add(&set, exclusive), Err(Errno::INVAL));
    // Three sets form a loop.
    let third = layer.epoll().expect("a set");
    assert_eq!(other.add(&set, events), Ok(()));
    assert_eq!(third.add(&other, events), Ok(()));
    assert_eq!(set.add(&third, events), Err(Errno::LOOP));
    let (foreign, _) = crate::layer(When::Never, When::Never);
    let (socket, _peer) = unix(&foreign);
    assert_eq!(
        set.add(&socket, events),
        Err(Errno::INVAL),
        "its bytes are flushed by another layer"
    );
}

#[test]
fn sets_are_nested_as_deep_as_the_kernel_allows() {
    use rustix::event::epoll;

    let (layer, _) = layer(When::Always, When::Never);
    let sets: Vec<_> = (0..12).map(|_| layer.epoll().expect("a set")).collect();
    let plain: Vec<_> =
        (0..12).map(|_| epoll::create(epoll::CreateFlags::CLOEXEC).expect("a set")).collect();
    for number in 1..12 {
        let expected = epoll::add(
            &plain[number],
            &plain[number - 1],
            epoll::EventData::new_u64(0),
            epoll::EventFlags::IN,
        );
        assert_eq!(sets[number].add(&sets[number - 1], event(Events::IN, 0)), expected, "{number}");
    }
}

#[test]
fn urgent_data_is_exceptional_and_a_hang_up_is_not() {
    let (layer, state) = layer(When::Always, When::Never);
    let (a, b) = tcp(&layer);
    let exceptional = Selection { exceptional: true, ..Selection::default() };
    a.send(b"!", SendFlags::OOB | SendFlags::NOSIGNAL).expect("an open connection");
    let mut entries = [SelectEntry::new(&b, exceptional)];
    assert_eq!(layer.select(&mut entries, None), Ok(1));
    assert_eq!(entries[0].ready(), exceptional);

    let (c, d) = unix(&layer);
    drop(c);
    let mut entries = [SelectEntry::new(&d, exceptional)];
    let before = state.waits.load(Ordering::SeqCst);
    assert_eq!(layer.select(&mut entries, Some(Duration::from_millis(50))), Ok(0));
    // The call still sleeps, and looks again from time to time.
    assert!(state.waits.load(Ordering::SeqCst) - before <= 16);
    let both = Selection { readable: true, ..exceptional };
    let mut entries = [SelectEntry::new(&d, both)];
    assert_eq!(layer.select(&mut entries, None), Ok(1));
    assert_eq!(entries[0].ready(), Selection { readable: true, ..Selection::default() });
}

#[test]
fn an_event_in_memory_does_not_hide_those_of_the_kernel() {
    let (layer, _) = layer(When::Always, When::Never);
    let (a, b) = tcp(&layer);
    let (c, d) = unix(&layer);
    let set = layer.epoll().expect("a set");
    set.add(&b, event(Events::IN, 1)).expect("an entry");
    set.add(&d, event(Events::IN, 2)).expect("an entry");
    send(&a, &b, 10);
    read_ahead(&b);
    send(&c, &d, 1);
    let both = [(1, Events::IN), (2, Events::IN)];
    assert_eq!(ready(&set), both);
    assert_eq!(wait(&set, 8, None), both);
    let mut entries = [&b, &d].map(|end| PollEntry::new(end, Events::IN));
    assert_eq!(layer.poll(&mut entries, None), Ok(2));
    // The places beyond the count are not filled.
    let mut events = [EpollEvent::default(); 3];
    assert_eq!(set.wait(&mut events, NOW), Ok(2));
    assert_eq!(events[2], EpollEvent::default());
}

/// A set is reported at an edge if it is ready for any reason, as by the kernel.
#[test]
fn an_edge_of_a_set_that_memory_brought_outlasts_what_was_there() {
    let (layer, _) = layer(When::Always, When::Never);
    let (a, b) = tcp(&layer);
    let (c, d) = unix(&layer);
    let [inner, outer] = [(); 2].map(|()| layer.epoll().expect("a set"));
    inner.add(&d, event(Events::IN, 1)).expect("an entry");
    outer.add(&inner, event(Events::IN | Events::EDGE, 2)).expect("an entry");
    send(&c, &d, 1);
    assert_eq!(ready(&outer), [(2, Events::IN)]);
    assert_eq!(ready(&outer), []);
    send(&a, &b, 10);
    read_ahead(&b);
    inner.add(&b, event(Events::IN, 3)).expect("an entry");
    assert_eq!(b.recv(&mut [0; 10], RecvFlags::DONTWAIT), Ok(9));
    assert_eq!(ready(&outer), [(2, Events::IN)]);
    assert_eq!(ready(&outer), []);
}
