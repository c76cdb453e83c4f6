//! Random programs of waits by `poll`, `select` and `epoll`, in every way in which they can be asked, on
//! sockets of each kind and in each state: the same answers as the kernel's own calls.
//!
//! `readiness` compares the edges of a few connections in depth, and this the breadth of the calls:
//! - `poll` with any combination of requested events, with no entry, a file several times and sets among the
//!   entries; the events of each entry are compared;
//! - `select`, by the call itself, with any of the three sets left out; what is left in each, and the count;
//! - both with the entries of an earlier wait, after something has happened;
//! - `epoll` with any events and behavior, any data, entries that are added twice, changed and removed; waits
//!   with room for fewer events than there are, and for none: each event, the count of each wait, and whether
//!   all entries had their turn after as many waits as are needed;
//! - timeouts of zero, of less than a millisecond, and without end if something is ready: a wait without an
//!   answer must have lasted as long;
//! - sockets that are not connected, that listen, that were refused; with urgent data, half-closes, errors.
//!
//! Left out, since it is no part of the library, whose callers look up descriptors in a table of their own:
//! - descriptors that are negative, closed or no sockets, and `nfds`;
//! - invalid and remaining timeouts, which a [`Duration`] cannot be and the callers compute.
//!
//! These differences are wanted:
//! - With bytes in memory, an entry with edge trigger may be reported more often, never less, and a set that
//!   contains one; see `readiness`.
//! - Handles of one socket are one entry, and no two sockets of the kernel: there is no `dup(2)` here.
//! - The kernel may report edges of TCP again with each packet that arrives, also an acknowledgement.

mod asking;
mod program;
mod steps;

use std::collections::BTreeSet;
use std::time::Duration;

use rustix::net::{RecvFlags, SendFlags};
use sakia_socket::{EpollEvent, Events, Kernel, Layer, When};
use sakia_testkit::random::{self, Random};

use self::program::Program;
use self::steps::program;
use crate::support::{MODES, PLAIN, options, unix};
use crate::world::Plain;
use crate::{difference, few_programs};

/// Compares the waits of programs on the kernel's sockets and on those of these modes.
fn compare(usual: u64, modes: &[(When, When)]) {
    random::programs(few_programs(usual), program, |steps| {
        for (number, mode) in modes.iter().enumerate() {
            let has_memory = *mode != PLAIN;
            let mut options = options(*mode);
            options.limits.delay = Duration::from_secs(3600);
            options.ahead_bytes = [64 << 10, 50][number % 2];
            let layer = Layer::new(Kernel, options);
            let [expected, found] = [
                Program::new(&Plain, has_memory).run(steps),
                Program::new(&layer, has_memory).run(steps),
            ]
            .map(|log| {
                log.into_iter().filter(|line| !line.1).map(|line| line.0).collect::<Vec<_>>()
            });
            if let Some(failure) = difference(&expected, &found) {
                return Some(format!("{options:?}: {failure}"));
            }
        }
        None
    });
}

#[test]
fn waits_are_those_of_the_kernel_without_memory() {
    compare(250, &[PLAIN]);
}

#[test]
fn waits_are_those_of_the_kernel_with_bytes_in_memory() {
    compare(50, &MODES);
}

/// After any waits and changes of entries, as many waits for one event as there are ready entries report
/// each.
#[test]
fn ready_entries_take_turns() {
    for seed in 0..few_programs(200) {
        let mut random = Random::new(seed);
        let mode = random.one_of(&[PLAIN, MODES[0], MODES[1], MODES[2], MODES[3], MODES[4]]);
        let layer = Layer::new(Kernel, options(mode));
        let pairs: Vec<_> = (0..2 + random.below(7)).map(|_| unix(&layer)).collect();
        let set = layer.epoll().unwrap();
        let event = |index| EpollEvent { events: Events::IN, data: index as u64 };
        let wait = |max| {
            let mut events = vec![EpollEvent::default(); max];
            let count = set.wait(&mut events, Some(Duration::ZERO)).unwrap();
            events.truncate(count);
            events
        };
        for (index, (writer, reader)) in pairs.iter().enumerate() {
            writer.send(b"some", SendFlags::empty()).unwrap();
            layer.flush();
            if random.percent(50) {
                // With read-ahead the others are in memory from now on.
                reader.recv(&mut [0; 1], RecvFlags::empty()).unwrap();
            }
            set.add(reader, event(index)).unwrap();
        }
        for _ in 0..random.below(9) {
            let index = random.below(pairs.len() as u64) as usize;
            match random.below(10) {
                0 | 1 => set.modify(&pairs[index].1, event(index)).unwrap(),
                2 | 3 => {
                    set.remove(&pairs[index].1).unwrap();
                    set.add(&pairs[index].1, event(index)).unwrap();
                }
                _ => {}
            }
            wait(1 + random.below(pairs.len() as u64 + 1) as usize);
        }
        let turns: BTreeSet<u64> =
            pairs.iter().flat_map(|_| wait(1)).map(|event| event.data).collect();
        assert_eq!(turns.len(), pairs.len(), "seed {seed}, {mode:?}: {turns:?}");
    }
}

/// An entry that is new after each of its events leaves others their turn.
#[test]
fn a_new_entry_comes_last() {
    for mode in [PLAIN].iter().chain(&MODES) {
        let layer = Layer::new(Kernel, options(*mode));
        let pairs = [unix(&layer), unix(&layer)];
        let set = layer.epoll().unwrap();
        let add = |index: usize| {
            let event = EpollEvent { events: Events::IN, data: index as u64 };
            set.add(&pairs[index].1, event).unwrap();
        };
        for (index, (writer, _)) in pairs.iter().enumerate() {
            writer.send(b"some", SendFlags::empty()).unwrap();
            add(index);
        }
        layer.flush();
        let turns = [(); 6].map(|()| {
            let mut events = [EpollEvent::default()];
            assert_eq!(set.wait(&mut events, Some(Duration::ZERO)), Ok(1));
            let index = events[0].data as usize;
            if index == 0 {
                set.remove(&pairs[index].1).unwrap();
                add(index);
            }
            index
        });
        assert_eq!(turns.iter().sum::<usize>(), 3, "{mode:?}: {turns:?}");
    }
}
