//! Sets, polls and sockets on a host that lies: each event belongs to an entry, and is of a kind that the
//! entry waits for.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType};
use sakia_socket::{
    Epoll, EpollEvent, Events, Layer, Options, PollEntry, SelectEntry, Selection, Socket, When,
};

use crate::hostile::{Liar, each_seed};

/// Events that are reported whether they are wanted or not.
const ALWAYS: Events = Events(Events::ERR.0 | Events::HUP.0);
/// The bits for the behavior of an entry, which are no events.
const BEHAVIOR: u32 = 0xf << 28;

struct Program {
    random: fastrand::Rng,
    layer: Layer<Liar>,
    sockets: Vec<Socket<Liar>>,
    sets: Vec<Set>,
    next: u64,
}

struct Set {
    set: Epoll<Liar>,
    /// The events that the entries of each number wait for. An entry that a call refused to change may have
    /// either.
    wanted: BTreeMap<u64, Events>,
}

impl Program {
    fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let lies = random.choice([0, 1, 5, 30]).expect("some");
        let modes = [When::Never, When::OnEvidence, When::Always];
        let mut options = Options::default();
        options.read_ahead = random.choice(modes).expect("some");
        options.gather = random.choice(modes).expect("some");
        options.limits.bytes = random.usize(1..5000);
        options.ahead_bytes = random.usize(1..5000);
        let layer = Layer::new(Liar::new(seed ^ 78, lies), options);
        Self { random, layer, sockets: Vec::new(), sets: Vec::new(), next: 0 }
    }

    fn run(mut self) {
        for _ in 0..self.random.usize(..200) {
            self.step();
        }
        let layer = self.layer.clone();
        drop(self);
        // The layer keeps event descriptors of polls, one per thread that polls at a time; the program has
        // one thread.
        while Arc::strong_count(&layer.host().open) > 2 {
            std::thread::yield_now();
        }
    }

    fn step(&mut self) {
        let choice = self.random.u8(..20);
        match choice {
            0 | 1 if self.sockets.len() < 5 => self.connect(),
            2 if self.sets.len() < 4 => {
                if let Ok(set) = self.layer.epoll() {
                    self.sets.push(Set { set, wanted: BTreeMap::new() });
                }
            }
            3 if self.random.bool() && !self.sets.is_empty() => {
                let place = self.random.usize(..self.sets.len());
                drop(self.sets.swap_remove(place));
            }
            4 if self.random.bool() && !self.sockets.is_empty() => {
                let place = self.random.usize(..self.sockets.len());
                drop(self.sockets.swap_remove(place));
            }
            5..9 => self.change(),
            9..13 => self.wait(),
            13 => self.poll(),
            14 => self.layer.flush(),
            _ => self.move_bytes(),
        }
    }

    fn connect(&mut self) {
        let to = SocketAddr::from(([127, 0, 0, 1], 5)).into();
        let made = self.layer.socket(AddressFamily::INET, SocketType::STREAM, None);
        if let Ok(socket) = made
            && socket.connect(&to).is_ok()
        {
            self.sockets.push(socket);
        }
    }

    fn change(&mut self) {
        if self.sets.is_empty() {
            return;
        }
        let place = self.random.usize(..self.sets.len());
        let data = self.next;
        self.next += 1;
        let event = EpollEvent { events: Events(self.random.u32(..)), data };
        let inner = self.random.usize(..self.sets.len());
        let socket = self.random.choice(&self.sockets).filter(|_| self.random.u8(..8) > 0);
        let set = &self.sets[place].set;
        let operation = self.random.u8(..3);
        let result = match (operation, socket) {
            (0, Some(socket)) => set.add(socket, event),
            (0, None) => set.add(&self.sets[inner].set, event),
            (1, Some(socket)) => set.modify(socket, event),
            (1, None) => set.modify(&self.sets[inner].set, event),
            (_, Some(socket)) => set.remove(socket),
            (_, None) => set.remove(&self.sets[inner].set),
        };
        if operation < 2 && result.is_ok() {
            self.sets[place].wanted.insert(data, event.events);
        }
    }

    fn wait(&mut self) {
        let Some(Set { set, wanted }) = self.random.choice(&self.sets) else { return };
        let mut events = vec![EpollEvent::default(); self.random.usize(..6)];
        let timeout = Duration::from_millis(self.random.u64(..5));
        let Ok(count) = set.wait(&mut events, Some(timeout)) else { return };
        assert!(count <= events.len());
        for event in &events[..count] {
            let wanted = wanted.get(&event.data).expect("the number of an entry");
            let allowed = Events(wanted.0 & !BEHAVIOR) | ALWAYS;
            assert!(!event.events.is_empty() && allowed.contains(event.events), "{event:?}");
        }
    }

    fn poll(&mut self) {
        let wanted = Events(self.random.u32(..) & 0xffff);
        let mut entries: Vec<_> =
            self.sockets.iter().map(|socket| PollEntry::new(socket, wanted)).collect();
        entries.extend(self.sets.iter().map(|set| PollEntry::new(&set.set, wanted)));
        let timeout = Duration::from_millis(self.random.u64(..5));
        if let Ok(count) = self.layer.poll(&mut entries, Some(timeout)) {
            assert!(count <= entries.len());
            for entry in &entries {
                assert!((wanted | ALWAYS).contains(entry.ready()), "{:?}", entry.ready());
            }
        }
        let sets = Selection { readable: true, writable: self.random.bool(), exceptional: false };
        let mut entries: Vec<_> =
            self.sockets.iter().map(|socket| SelectEntry::new(socket, sets)).collect();
        if self.layer.select(&mut entries, Some(Duration::ZERO)).is_ok() {
            assert!(entries.iter().all(|entry| !entry.ready().exceptional));
        }
    }

    fn move_bytes(&mut self) {
        let Some(socket) = self.random.choice(&self.sockets) else { return };
        let mut bytes = vec![0; self.random.usize(..400)];
        if self.random.bool() {
            let _ = socket.recv(&mut bytes, RecvFlags::DONTWAIT);
        } else {
            let _ = socket.send(&bytes, SendFlags::DONTWAIT);
        }
    }
}

#[test]
fn sets_on_a_host_that_lies_report_entries_only() {
    each_seed(3000, |seed| Program::new(seed).run());
}
