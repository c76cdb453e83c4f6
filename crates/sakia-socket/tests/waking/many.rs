//! A thousand connections, of which some are ready in the kernel and some in memory.

use sakia_socket::{Events, PollEntry, SelectEntry, Selection, When};

use crate::{NOW, event, layer, read_ahead, ready, send, tcp, unix, wait};

const CONNECTIONS: usize = 1000;

#[test]
fn a_thousand_connections_are_waited_for_in_each_way() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, ..limit };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).expect("a limit");
    let (layer, _) = layer(When::Always, When::Never);
    let set = layer.epoll().expect("a set");
    let pairs: Vec<_> = (0..CONNECTIONS)
        .map(|number| if number % 2 == 0 { tcp(&layer) } else { unix(&layer) })
        .collect();
    for (number, (_, b)) in pairs.iter().enumerate() {
        set.add(b, event(Events::IN, number as u64)).expect("an entry");
    }
    assert_eq!(ready(&set), []);
    let mut expected = Vec::new();
    for (number, (a, b)) in pairs.iter().enumerate() {
        if number % 7 == 0 {
            send(a, b, 10);
            if number % 2 == 0 {
                read_ahead(b);
            }
            expected.push((number as u64, Events::IN));
        }
    }
    assert_eq!(wait(&set, CONNECTIONS, None), expected);
    assert_eq!(wait(&set, 3 * CONNECTIONS, NOW), expected);

    let mut entries: Vec<_> = pairs.iter().map(|(_, b)| PollEntry::new(b, Events::IN)).collect();
    assert_eq!(layer.poll(&mut entries, None), Ok(expected.len()));
    let polled = entries.iter().map(PollEntry::ready).enumerate();
    let polled = polled.filter(|(_, events)| !events.is_empty());
    assert!(polled.map(|(number, events)| (number as u64, events)).eq(expected.iter().copied()));

    let readable = Selection { readable: true, ..Selection::default() };
    let mut entries: Vec<_> = pairs.iter().map(|(_, b)| SelectEntry::new(b, readable)).collect();
    assert_eq!(layer.select(&mut entries, None), Ok(expected.len()));
    for (number, entry) in entries.iter().enumerate() {
        assert_eq!(entry.ready().readable, number % 7 == 0);
    }
    // Several waits with few places report all of them.
    let mut seen = vec![false; CONNECTIONS];
    for _ in 0..2 * expected.len() / 10 + 2 {
        for (number, _) in wait(&set, 10, NOW) {
            seen[number as usize] = true;
        }
    }
    assert_eq!(seen.iter().filter(|&&is_seen| is_seen).count(), expected.len());
}
