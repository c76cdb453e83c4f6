//! A host that lies about events.

use rustix::io::Errno;
use rustix::net::RecvFlags;
use sakia_socket::{EpollEvent, Events, When};

use crate::{NOW, event, layer, read_ahead, ready, send, tcp, wait};

#[test]
fn more_events_than_asked_for_are_an_error() {
    let (layer, state) = layer(When::Always, When::Never);
    let (a, b) = tcp(&layer);
    let set = layer.epoll().expect("a set");
    set.add(&b, event(Events::IN, 1)).expect("an entry");
    for count in [3, 100, usize::MAX] {
        *state.lie.lock().expect("no panic") = Some((Vec::new(), count));
        assert_eq!(set.wait(&mut [EpollEvent::default()], NOW), Err(Errno::IO));
    }
    send(&a, &b, 10);
    assert_eq!(ready(&set), [(1, Events::IN)]);
}

#[test]
fn events_of_no_entry_are_not_reported() {
    let (layer, state) = layer(When::Always, When::Never);
    let (_a, b) = tcp(&layer);
    let (_c, d) = tcp(&layer);
    let set = layer.epoll().expect("a set");
    let mut old = Vec::new();
    // The numbers of the host's entries are those of places and generations.
    for generation in 0..3 {
        set.add(&b, event(Events::IN, 1)).expect("an entry");
        set.remove(&b).expect("an entry");
        old.push(generation << 32);
    }
    set.add(&d, event(Events::IN, 2)).expect("an entry");
    set.add(&b, event(Events::IN, 1)).expect("an entry");
    let others = [7, u64::from(u32::MAX), 1 << 63, u64::MAX - 1, u64::MAX];
    for number in old.into_iter().chain(others) {
        *state.lie.lock().expect("no panic") = Some((vec![event(Events(u32::MAX), number)], 1));
        assert_eq!(ready(&set), [], "{number:x}");
    }
}

#[test]
fn only_events_that_were_asked_for_are_reported() {
    let (layer, state) = layer(When::Always, When::Never);
    let (_a, b) = tcp(&layer);
    let set = layer.epoll().expect("a set");
    set.add(&b, event(Events::IN, 1)).expect("an entry");
    *state.lie.lock().expect("no panic") = Some((vec![event(Events(u32::MAX), 0); 2], 2));
    assert_eq!(ready(&set), [(1, Events::IN | Events::ERR | Events::HUP)]);
}

#[test]
fn a_full_answer_of_nothing_ends_and_hides_no_memory() {
    let (layer, state) = layer(When::Always, When::Never);
    let (a, b) = tcp(&layer);
    let set = layer.epoll().expect("a set");
    set.add(&b, event(Events::IN, 1)).expect("an entry");
    send(&a, &b, 10);
    read_ahead(&b);
    let nothing = vec![event(Events::NONE, 99); 2];
    *state.lie.lock().expect("no panic") = Some((nothing.clone(), 2));
    assert_eq!(wait(&set, 1, None), [(1, Events::IN)]);
    assert_eq!(b.recv(&mut [0; 10], RecvFlags::DONTWAIT), Ok(9));
    *state.lie.lock().expect("no panic") = Some((nothing, 2));
    assert_eq!(wait(&set, 1, NOW), []);
}
