//! The steps of a program, and programs at random.

use std::collections::BTreeSet;
use std::time::Duration;

use rustix::net::Shutdown;
use sakia_socket::{Events, Selection};
use sakia_testkit::random::Random;

use crate::world::Operation;

/// Pairs of sockets of a program. Their numbers as files are before those of the two sets.
pub const PLACES: usize = 4;
pub const SETS: usize = 2 * PLACES;
/// The maximum number of bytes under way, so that no buffer is ever full, and of datagrams.
pub const UNDER_WAY: usize = 4000;
pub const DATAGRAMS: usize = 6;
pub const NOW: Option<Duration> = Some(Duration::ZERO);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Tcp,
    Unix,
    UnixDatagrams,
    Udp,
    /// A socket that is not connected, and one that listens.
    Alone,
    /// Two sockets that are not connected.
    Unused,
}

#[derive(Clone, Copy, Debug)]
pub enum Timeout {
    Zero,
    Microseconds(u64),
    /// As long as something is ready.
    Endless,
}

#[derive(Clone, Debug)]
pub enum Step {
    Open {
        place: usize,
        kind: Kind,
    },
    Send {
        end: usize,
        len: usize,
    },
    /// The byte is urgent.
    Urge {
        end: usize,
    },
    Recv {
        end: usize,
        len: usize,
    },
    Shutdown {
        end: usize,
        how: Shutdown,
    },
    /// Connects to the listener, or to a port without one.
    Connect {
        end: usize,
        is_refused: bool,
    },
    /// The connection takes the place of the listener.
    Accept {
        end: usize,
    },
    /// Sends bytes, of which the peer receives one: the others may be in memory.
    Leave {
        end: usize,
    },
    /// All of that: a socket that is alone is connected, and gets an urgent byte.
    Hail {
        end: usize,
    },
    Error {
        end: usize,
    },
    Close {
        end: usize,
    },
    Poll {
        entries: Vec<(usize, Events)>,
        timeout: Timeout,
        between: Option<Box<Step>>,
    },
    Select {
        entries: Vec<(usize, Selection)>,
        timeout: Timeout,
        between: Option<Box<Step>>,
    },
    Control {
        set: usize,
        operation: Operation,
        file: usize,
        events: Events,
        data: u64,
    },
    Wait {
        set: usize,
        max: usize,
        /// Waits once, and otherwise until each entry had its turn.
        is_once: bool,
        timeout: Timeout,
    },
}

pub fn events(random: &mut Random) -> Events {
    let all = [0x1, 0x2, 0x4, 0x8, 0x10, 0x40, 0x80, 0x100, 0x200, 0x400, 0x2000];
    let mut events = Events::NONE;
    let of_ten = random.one_of(&[1, 3, 6]);
    for (number, bit) in all.into_iter().enumerate() {
        let usual = if [0, 2, 10].contains(&number) { 2 } else { 0 };
        if random.below(10) < of_ten + usual {
            events |= Events(bit);
        }
    }
    events
}

pub fn timeout(random: &mut Random) -> Timeout {
    match random.below(20) {
        0 => Timeout::Microseconds(random.one_of(&[1, 300, 1500])),
        1..4 => Timeout::Endless,
        _ => Timeout::Zero,
    }
}

pub fn end(random: &mut Random, places: &[usize]) -> usize {
    2 * random.one_of(places) + random.below(2) as usize
}

/// A step in which something happens.
pub fn deed(random: &mut Random, places: &[usize]) -> Step {
    let end = end(random, places);
    match random.below(20) {
        0..4 => Step::Leave { end },
        4..7 => Step::Send { end, len: random.one_of(&[1, 10, 300]) },
        7 => Step::Urge { end },
        8..14 => Step::Recv { end, len: random.one_of(&[1, 5, 200, 8000]) },
        14 | 15 => {
            let hows = [Shutdown::Read, Shutdown::Write, Shutdown::Both];
            Step::Shutdown { end, how: random.one_of(&hows) }
        }
        16 => Step::Connect { end, is_refused: random.percent(25) },
        17 => Step::Hail { end },
        18 => Step::Accept { end },
        _ => Step::Error { end },
    }
}

pub fn step(random: &mut Random, places: &[usize]) -> Step {
    let file = |random: &mut Random, sets| match random.below(9) {
        0 if sets > 0 => SETS + random.below(sets) as usize,
        _ => end(random, places),
    };
    let between = |random: &mut Random| match random.below(10) {
        0..4 => Some(Box::new(deed(random, places))),
        4 => Some(Box::new(Step::Hail { end: end(random, places) })),
        _ => None,
    };
    match random.below(100) {
        0..6 => {
            let kinds = [
                Kind::Tcp,
                Kind::Tcp,
                Kind::Unix,
                Kind::UnixDatagrams,
                Kind::Udp,
                Kind::Alone,
                Kind::Alone,
                Kind::Unused,
            ];
            let place = random.one_of(places);
            Step::Open { place, kind: random.one_of(&kinds) }
        }
        6..9 => Step::Close { end: file(random, 0) },
        9..45 => deed(random, places),
        45..56 => {
            let entries = (0..random.below(6)).map(|_| (file(random, 2), events(random))).collect();
            Step::Poll { entries, timeout: timeout(random), between: between(random) }
        }
        56..67 => {
            let sets = |random: &mut Random| {
                let [readable, writable, exceptional] = [(); 3].map(|()| random.percent(50));
                Selection { readable, writable, exceptional }
            };
            let files: BTreeSet<usize> = (0..random.below(6)).map(|_| file(random, 2)).collect();
            let entries = files.into_iter().map(|file| (file, sets(random))).collect();
            Step::Select { entries, timeout: timeout(random), between: between(random) }
        }
        67..83 => {
            let mut events = events(random);
            for (bit, chance) in [
                (Events::EDGE, 20),
                (Events::ONE_SHOT, 20),
                (Events::EXCLUSIVE, 8),
                (Events::WAKEUP, 5),
            ] {
                if random.percent(chance) {
                    events |= bit;
                }
            }
            let operations = [
                Operation::Add,
                Operation::Add,
                Operation::Modify,
                Operation::Modify,
                Operation::Remove,
            ];
            let set = random.below(2) as usize;
            // The first set may be in the second, or in itself; the second in the first would be a loop.
            let file = file(random, 1);
            let data = random.one_of(&[0, u64::MAX, random.clone().word()]);
            Step::Control { set, operation: random.one_of(&operations), file, events, data }
        }
        _ => {
            let max = random.one_of(&[0, 1, 1, 2, 2, 3, 50]);
            let set = random.below(2) as usize;
            Step::Wait { set, max, is_once: random.percent(30), timeout: timeout(random) }
        }
    }
}

pub fn program(random: &mut Random) -> Vec<Step> {
    let kinds = random.one_of(&[
        [Kind::Tcp, Kind::Unix, Kind::Udp, Kind::Alone],
        [Kind::Tcp, Kind::Tcp, Kind::Unix, Kind::Alone],
    ]);
    let open = kinds.into_iter().enumerate().map(|(place, kind)| Step::Open { place, kind });
    // Few sockets meet in more ways.
    let places = random.one_of(&[&[0, 1, 2, 3][..], &[0, 3], &[0, 1], &[3], &[0]]);
    let mut steps: Vec<Step> = open.collect();
    if random.percent(50) {
        let set = random.below(2) as usize;
        for file in places.iter().flat_map(|place| [2 * place, 2 * place + 1]) {
            let (operation, events) = (Operation::Add, events(random));
            steps.push(Step::Control { set, operation, file, events, data: random.word() });
        }
    }
    steps.extend((0..1 + random.below(50)).map(|_| step(random, places)));
    steps
}

impl Timeout {
    pub fn of(self) -> Option<Duration> {
        match self {
            Self::Zero => NOW,
            Self::Microseconds(count) => Some(Duration::from_micros(count)),
            Self::Endless => None,
        }
    }
}

pub fn is_tcp(kind: Kind) -> bool {
    matches!(kind, Kind::Tcp | Kind::Alone)
}
