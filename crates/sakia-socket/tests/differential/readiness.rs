//! The same random programs on plain sockets with `epoll` sets of the kernel, and on those of this library in
//! each mode: the same events.
//!
//! Without bytes in memory all answers are equal. With them these differences are legal:
//! - An entry with edge trigger may be reported when the kernel's is not: a read that brings more bytes to
//!   memory than it returns is an edge, since it may have taken the bytes of one. It is never reported less.
//! - Writes that were gathered arrive as one, so between Unix sockets there are fewer moments at which a read
//!   frees memory of the sender, each of which is an edge of `EPOLLOUT` although there was room before.
//! - A set within a set may be reported although its next wait finds nothing, if an entry with one-shot
//!   trigger was reported because of memory: the kernel's own entry is still armed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_linger, set_tcp_nodelay};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, ipproto,
};
use sakia_socket::{EpollEvent, Events, Kernel, Layer, Options, Selection, When};

use crate::each_seed;
use crate::world::{File, Operation, Plain, World};

/// Connections of a program; every second one is a TCP connection, the others are Unix sockets.
const CONNECTIONS: usize = 3;
/// The maximum numbers of bytes under way in one direction, and of the calls that sent them, so that no
/// buffer of the kernel is full.
const UNDER_WAY: usize = 4000;
const SENDS_UNDER_WAY: usize = 20;
const SEEDS: u64 = 1500;
const NOW: Option<Duration> = Some(Duration::ZERO);

/// A step of a program, and its observation.
#[derive(Debug)]
struct Seen {
    step: String,
    what: What,
}

#[derive(Debug)]
enum What {
    /// An observation that is the same everywhere.
    Said(String),
    /// The events of a set that was polled.
    Polled(Events, Exactness),
    /// The events of a wait.
    Waited(BTreeMap<u64, Report>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Report {
    events: Events,
    interest: Interest,
    exactness: Exactness,
}

/// The required similarity of the reports of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Exactness {
    Equal,
    /// The library may report it when the kernel does not, with bytes in memory.
    MayBeMore,
    /// The kernel may report it at any time: when the peer acknowledges the end of a stream of TCP, which it
    /// may delay, the kernel sees an edge.
    Any,
}

/// An entry of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Interest {
    set: usize,
    is_edge: bool,
    is_one_shot: bool,
    /// The number of the step that made or modified it.
    step: usize,
}

/// An end of a connection.
struct End<W: World> {
    sockets: Vec<W::Socket>,
    sent: usize,
    received: usize,
    /// Calls that sent bytes since the peer last read everything.
    sends: usize,
    has_ended: bool,
    reads_no_more: bool,
}

struct Program<'a, W: World> {
    world: &'a W,
    listener: &'a TcpListener,
    random: fastrand::Rng,
    connections: Vec<[End<W>; 2]>,
    sets: [W::Set; 2],
    /// The entries, by set and number.
    entries: BTreeMap<(usize, u64), Interest>,
    /// The number of the first end of each connection.
    numbers: Vec<u64>,
    next_number: u64,
    may_want_edges_of_out: bool,
    seen: Vec<Seen>,
}

/// The number of the first set as an entry of the second.
const NESTED: u64 = 1_000_000;

impl<'a, W: World> Program<'a, W> {
    fn new(
        world: &'a W,
        listener: &'a TcpListener,
        seed: u64,
        may_want_edges_of_out: bool,
    ) -> Self {
        let mut program = Self {
            world,
            listener,
            random: fastrand::Rng::with_seed(seed),
            connections: Vec::new(),
            sets: [world.set(), world.set()],
            entries: BTreeMap::new(),
            numbers: vec![0; CONNECTIONS],
            next_number: 0,
            may_want_edges_of_out,
            seen: Vec::new(),
        };
        for place in 0..CONNECTIONS {
            let ends = program.connect(place);
            program.connections.push(ends);
        }
        program
    }

    fn connect(&mut self, place: usize) -> [End<W>; 2] {
        self.numbers[place] = self.next_number;
        self.next_number += 2;
        let (a, b) = if is_tcp(place) { tcp(self.listener) } else { unix() };
        [a, b].map(|fd| End {
            sockets: vec![self.world.socket(fd, SocketType::STREAM)],
            sent: 0,
            received: 0,
            sends: 0,
            has_ended: false,
            reads_no_more: false,
        })
    }

    fn run(mut self) -> Vec<Seen> {
        for step in 0..self.random.usize(1..100) {
            self.step(step);
        }
        // Otherwise thousands of connections would stay in `TIME_WAIT`.
        for (place, ends) in self.connections.iter().enumerate() {
            if is_tcp(place)
                && let Some(socket) = ends[0].sockets.first()
            {
                set_socket_linger(self.world.fd(socket), Some(Duration::ZERO)).expect("an option");
            }
        }
        self.seen
    }

    fn step(&mut self, number: usize) {
        let (place, side) = (self.random.usize(..CONNECTIONS), self.random.usize(..2));
        let choice = self.random.u8(..100);
        let name = format!("{number} of {place}.{side}: {choice}");
        let is_open = !self.connections[place][side].sockets.is_empty();
        let said = match choice {
            0..25 if is_open => self.send(place, side),
            25..45 if is_open => self.recv(place, side),
            45..48 if is_open => self.shut_down(place, side),
            48..50 if is_open => {
                let sockets = &mut self.connections[place][side].sockets;
                sockets.push(sockets[0].clone());
                "a clone".to_owned()
            }
            50..53 if is_open => self.close(place, side, 1),
            53 if is_open => self.reset(place, side),
            54 if is_open => {
                self.settle(true);
                let end = &self.connections[place][side];
                format!("error {:?}", self.world.take_error(&end.sockets[0]))
            }
            45..55 if self.connections[place].iter().all(|end| end.sockets.is_empty()) => {
                self.connections[place] = self.connect(place);
                "connected".to_owned()
            }
            55..70 if is_open => self.control(number, place, side),
            70..72 => self.nest(number),
            72..76 => {
                let said = self.poll();
                let events =
                    self.world.poll(&[(File::Set(&self.sets[0]), Events::IN)], NOW, None)[0][0];
                let exactness = self.exactness(1, NESTED);
                self.seen.push(Seen { step: name.clone(), what: What::Polled(events, exactness) });
                said
            }
            76..94 => {
                let set = self.random.usize(..2);
                self.settle(false);
                let events = self.world.wait(&self.sets[set], 64, NOW);
                let events = events.expect("no signal");
                return self.waited(name, set, &[events]);
            }
            94.. => {
                // With few places, waits report the entries in turn.
                let (set, max) = (self.random.usize(..2), self.random.usize(1..4));
                self.settle(false);
                let mut events = Vec::new();
                for _ in 0..3 * self.entries.len() + 3 {
                    let some = self.world.wait(&self.sets[set], max, NOW).expect("no signal");
                    assert!(some.len() <= max);
                    events.push(some);
                }
                return self.waited(name, set, &events);
            }
            _ => return,
        };
        self.seen.push(Seen { step: name, what: What::Said(said) });
    }

    fn send(&mut self, place: usize, side: usize) -> String {
        let len = self.random.usize(..300);
        let ends = &mut self.connections[place];
        let is_refused = ends[side].has_ended
            || ends[1 - side].sockets.is_empty()
            || ends[1 - side].reads_no_more;
        let under_way = ends[side].sent - ends[1 - side].received;
        if is_refused || under_way + len > UNDER_WAY || ends[side].sends >= SENDS_UNDER_WAY {
            return String::new();
        }
        // An error of delayed bytes would be reported later than one of plain bytes: see the tests
        // `waking`.
        ends[side].sends += 1;
        let result = self.world.send(&ends[side].sockets[0], &vec![7; len], SendFlags::empty());
        ends[side].sent += result.unwrap_or(0);
        format!("sent {len} {result:?}")
    }

    fn recv(&mut self, place: usize, side: usize) -> String {
        let is_peek = self.random.u8(..10) == 0;
        let len = match self.random.u8(..2) {
            0 => self.random.usize(..20),
            // A peek sees no more bytes than the memory of each mode holds.
            _ if is_peek => self.random.usize(..50),
            _ => self.random.usize(..2 * UNDER_WAY),
        };
        self.settle(true);
        let ends = &mut self.connections[place];
        let flags = if is_peek { RecvFlags::PEEK } else { RecvFlags::empty() };
        let mut got = 0;
        // Reading the bytes in memory and those behind them takes two reads.
        let result = loop {
            let mut out = vec![0; len - got];
            match self.world.recv(&ends[side].sockets[0], &mut out, flags | RecvFlags::DONTWAIT) {
                Ok(0) if got < len => break Ok(true),
                Ok(count) => got += count,
                Err(errno) => break Err(errno),
            }
            if is_peek || got == len {
                break Ok(false);
            }
        };
        if !is_peek {
            ends[side].received += got;
            if ends[side].received == ends[1 - side].sent {
                ends[1 - side].sends = 0;
            }
        }
        format!("received {got} of {len} {flags:?} {result:?}")
    }

    fn shut_down(&mut self, place: usize, side: usize) -> String {
        let how = match self.random.u8(..6) {
            0 => Shutdown::Read,
            1 => Shutdown::Both,
            _ => Shutdown::Write,
        };
        self.settle(true);
        let end = &mut self.connections[place][side];
        if end.has_ended || end.reads_no_more {
            return String::new();
        }
        let result = self.world.shutdown(&end.sockets[0], how);
        end.has_ended |= how != Shutdown::Read;
        end.reads_no_more |= how != Shutdown::Write;
        if how != Shutdown::Read {
            self.until(place, 1 - side, Events::RDHUP | Events::HUP | Events::ERR);
        }
        format!("shut down {how:?} {result:?}")
    }

    /// Closes `count` handles.
    fn close(&mut self, place: usize, side: usize, count: usize) -> String {
        self.settle(true);
        let end = &mut self.connections[place][side];
        let unread = self.world.unread(&end.sockets[0]);
        let left = end.sockets.len().saturating_sub(count);
        end.sockets.truncate(left);
        if left == 0 {
            let number = self.numbers[place] + side as u64;
            self.entries.retain(|&(_, other), _| other != number);
            let hang_up = Events::HUP | Events::ERR;
            self.until(place, 1 - side, if unread > 0 { hang_up } else { hang_up | Events::RDHUP });
        }
        format!("{left} left, {unread} unread")
    }

    fn reset(&mut self, place: usize, side: usize) -> String {
        self.settle(true);
        let end = &mut self.connections[place][side];
        if is_tcp(place) {
            set_socket_linger(self.world.fd(&end.sockets[0]), Some(Duration::ZERO))
                .expect("an option");
        }
        let said = self.close(place, side, usize::MAX);
        if is_tcp(place) {
            self.until(place, 1 - side, Events::HUP);
        }
        said
    }

    fn control(&mut self, number: usize, place: usize, side: usize) -> String {
        let set = self.random.usize(..2);
        let entry = self.numbers[place] + side as u64;
        let is_there = self.entries.contains_key(&(set, entry));
        let operation = match (self.random.u8(..10), is_there) {
            (0, _) | (1..7, false) => Operation::Add,
            (1..7, true) => Operation::Modify,
            (7, _) => Operation::Modify,
            _ => Operation::Remove,
        };
        let mut events = Events::NONE;
        for (event, of_ten) in [(Events::IN, 8), (Events::OUT, 4), (Events::RDHUP, 5)] {
            if self.random.u8(..10) < of_ten {
                events |= event;
            }
        }
        if self.random.u8(..10) == 0 {
            events |= Events::RDNORM | Events::WRNORM | Events::PRI;
        }
        let is_edge = self.random.bool();
        if is_edge {
            events |= Events::EDGE;
            if !self.may_want_edges_of_out && !is_tcp(place) {
                events = events & !(Events::OUT | Events::WRNORM);
            }
        }
        // The first set is an entry of the second.
        let is_one_shot = self.random.u8(..4) == 0 && set == 1;
        if is_one_shot {
            events |= Events::ONE_SHOT;
        }
        if self.random.u8(..20) == 0 {
            events |= Events::EXCLUSIVE;
        }
        self.settle(true);
        let file = File::Socket(&self.connections[place][side].sockets[0]);
        let event = EpollEvent { events, data: entry };
        let result = self.world.control(&self.sets[set], operation, file, event);
        self.note(operation, result, entry, Interest { set, is_edge, is_one_shot, step: number });
        format!("{operation:?} in {set} {events:x?} {result:?}")
    }

    fn nest(&mut self, number: usize) -> String {
        // Adds a set to itself, or the second to the first: a loop.
        let (outer, inner) = match self.random.u8(..6) {
            0 => (0, 0),
            1 => (0, 1),
            _ => (1, 0),
        };
        let is_edge = self.random.bool();
        let events = if is_edge { Events::IN | Events::EDGE } else { Events::IN };
        let operation = match self.random.u8(..4) {
            0 | 1 => Operation::Add,
            2 => Operation::Modify,
            _ => Operation::Remove,
        };
        self.settle(true);
        let file = File::Set(&self.sets[inner]);
        let event = EpollEvent { events, data: NESTED };
        // Two empty sets may be put into each other in either order, but only one order is compared.
        let result = if (outer, inner) == (0, 1) && !self.entries.contains_key(&(1, NESTED)) {
            Err(Errno::LOOP)
        } else {
            self.world.control(&self.sets[outer], operation, file, event)
        };
        let interest = Interest { set: outer, is_edge, is_one_shot: false, step: number };
        self.note(operation, result, NESTED, interest);
        format!("{operation:?} {inner} in {outer} {result:?}")
    }

    fn note(
        &mut self,
        operation: Operation,
        result: Result<(), Errno>,
        entry: u64,
        interest: Interest,
    ) {
        match (operation, result) {
            (_, Err(_)) => {}
            (Operation::Remove, Ok(())) => drop(self.entries.remove(&(interest.set, entry))),
            (_, Ok(())) => drop(self.entries.insert((interest.set, entry), interest)),
        }
    }

    fn poll(&mut self) -> String {
        self.settle(false);
        let sockets = self.connections.iter().flatten().filter_map(|end| end.sockets.first());
        let wanted = Events::IN | Events::OUT | Events::RDHUP | Events::PRI | Events::RDNORM;
        let all = Selection { readable: true, writable: true, exceptional: true };
        let sockets: Vec<&W::Socket> = sockets.collect();
        let polled: Vec<_> = sockets.iter().map(|socket| (File::Socket(*socket), wanted)).collect();
        let selected: Vec<_> = sockets.iter().map(|socket| (File::Socket(*socket), all)).collect();
        format!(
            "polled {:?} selected {:?}",
            self.world.poll(&polled, NOW, None),
            self.world.select(&selected, NOW, None),
        )
    }

    fn waited(&mut self, name: String, set: usize, events: &[Vec<EpollEvent>]) {
        let mut reports = BTreeMap::new();
        for event in events.iter().flatten() {
            let interest = self.entries.get(&(set, event.data));
            let interest = *interest.unwrap_or_else(|| panic!("{name}: {event:?} is no entry"));
            let exactness = self.exactness(set, event.data);
            let none = Report { events: Events::NONE, interest, exactness };
            let report = reports.entry(event.data).or_insert(none);
            report.events |= event.events;
        }
        let step = format!("{name} waited for {set}");
        self.seen.push(Seen { step, what: What::Waited(reports) });
    }

    fn exactness(&self, set: usize, entry: u64) -> Exactness {
        let is_edge = |key| self.entries.get(&key).is_some_and(|interest| interest.is_edge);
        let is_edge_here = is_edge((set, entry));
        let one = |is_edge, entry| match is_edge {
            true if self.has_ended(entry) => Exactness::Any,
            true => Exactness::MayBeMore,
            false => Exactness::Equal,
        };
        if entry != NESTED {
            return one(is_edge_here, entry);
        }
        // An edge of any entry of a set is an edge of the set.
        let inner = self.entries.keys().filter(|&&(set, _)| set == 0);
        let inner = inner.map(|&(_, entry)| one(is_edge_here || is_edge((0, entry)), entry)).max();
        inner.unwrap_or(Exactness::Equal).max(one(is_edge_here, entry))
    }

    /// Returns whether `entry` is an end of TCP whose peer has ended the stream.
    fn has_ended(&self, entry: u64) -> bool {
        let mut ends = self.numbers.iter().zip(&self.connections).enumerate();
        ends.any(|(place, (&number, ends))| {
            is_tcp(place)
                && (number..number + 2).contains(&entry)
                && ends[(entry - number) as usize].has_ended
        })
    }

    /// Waits until all bytes have arrived. Between Unix sockets they have arrived when the call returns, so
    /// delayed bytes may be left there for a wait to send, unless `all` are to be sent now.
    fn settle(&mut self, all: bool) {
        for (place, ends) in self.connections.iter().enumerate() {
            for (side, end) in ends.iter().enumerate() {
                let peer = &ends[1 - side];
                if !is_tcp(place) || peer.sent == end.received {
                    continue;
                }
                self.world.flush();
                let Some(socket) = end.sockets.first() else { continue };
                let under_way = (peer.sent - end.received) as u64;
                while self.world.unread(socket) < under_way {
                    thread::yield_now();
                }
            }
        }
        if all {
            self.world.flush();
        }
    }

    /// Waits until the kernel reports one of `events` of an end of TCP.
    fn until(&mut self, place: usize, side: usize, events: Events) {
        let Some(socket) = self.connections[place][side].sockets.first() else { return };
        if !is_tcp(place) {
            return;
        }
        let wanted = PollFlags::from_bits_retain(events.0 as u16);
        let mut fds = [PollFd::from_borrowed_fd(self.world.fd(socket), wanted)];
        poll(&mut fds, None).expect("no signal");
    }
}

fn is_tcp(place: usize) -> bool {
    place.is_multiple_of(2)
}

fn unix() -> (OwnedFd, OwnedFd) {
    rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
        None,
    )
    .expect("a pair")
}

fn tcp(listener: &TcpListener) -> (OwnedFd, OwnedFd) {
    let a = rustix::net::socket_with(
        AddressFamily::INET,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        Some(ipproto::TCP),
    )
    .expect("a socket");
    rustix::net::connect(&a, &listener.local_addr().expect("an address")).expect("a connection");
    let b = OwnedFd::from(listener.accept().expect("a connection").0);
    for end in [&a, &b] {
        set_tcp_nodelay(end, true).expect("an option");
        rustix::io::ioctl_fionbio(end, true).expect("a mode");
    }
    (a, b)
}

#[derive(Clone, Copy, Debug)]
struct Mode {
    read_ahead: When,
    gather: When,
    ahead_bytes: usize,
}

impl Mode {
    fn layer(self) -> Layer<Kernel> {
        let mut options = Options::default();
        (options.read_ahead, options.gather) = (self.read_ahead, self.gather);
        options.ahead_bytes = self.ahead_bytes;
        Layer::new(Kernel, options)
    }
}

/// Compares the observations of two runs of a program; `is_exact` if no bytes are ever in memory.
fn compare(plain: &[Seen], found: &[Seen], is_exact: bool, what: &str) {
    // Entries with edge and one-shot trigger that were reported: they report nothing more.
    let mut disarmed: BTreeSet<(u64, Interest)> = BTreeSet::new();
    let context = |place: usize| {
        let before: Vec<String> = found[..=place].iter().map(|seen| format!("{seen:?}")).collect();
        format!("{what}, after\n{}\nthe kernel: {:?}", before.join("\n"), plain[place])
    };
    for (place, (plain, found)) in plain.iter().zip(found).enumerate() {
        assert_eq!(plain.step, found.step, "{}", context(place));
        match (&plain.what, &found.what) {
            (What::Said(plain), What::Said(found)) => {
                assert_eq!(plain, found, "{}", context(place));
            }
            (What::Polled(plain, exactness), What::Polled(found, _)) => {
                let is_right = match exactness {
                    Exactness::MayBeMore if !is_exact => found.contains(*plain),
                    Exactness::Any => true,
                    _ => plain == found,
                };
                assert!(is_right, "{}", context(place));
            }
            (What::Waited(plain), What::Waited(found)) => {
                let entries: BTreeSet<u64> = plain.keys().chain(found.keys()).copied().collect();
                for entry in entries {
                    let both = [plain.get(&entry), found.get(&entry)];
                    let Some(Report { interest, exactness, .. }) =
                        both.into_iter().flatten().next()
                    else {
                        continue;
                    };
                    let [plain, found] =
                        both.map(|report| report.map_or(Events::NONE, |report| report.events));
                    let is_right = match exactness {
                        Exactness::MayBeMore if !is_exact => {
                            found.contains(plain) || disarmed.contains(&(entry, *interest))
                        }
                        Exactness::Any => true,
                        _ => plain == found,
                    };
                    assert!(is_right, "{entry}: {}", context(place));
                    if interest.is_one_shot && !found.is_empty() {
                        disarmed.insert((entry, *interest));
                    }
                }
            }
            _ => panic!("other steps: {}", context(place)),
        }
    }
    assert_eq!(plain.len(), found.len(), "{what}");
}

fn run(modes: &[Mode], may_want_edges_of_out: bool, seeds: std::ops::Range<u64>) {
    let address: SocketAddr = ([127, 0, 0, 1], 0).into();
    each_seed(seeds, |seed| {
        let listener = TcpListener::bind(address).expect("a port");
        let plain = Program::new(&Plain, &listener, seed, may_want_edges_of_out).run();
        for mode in modes {
            let layer = mode.layer();
            let found = Program::new(&layer, &listener, seed, may_want_edges_of_out).run();
            let is_exact = mode.read_ahead == When::Never && mode.gather == When::Never;
            compare(&plain, &found, is_exact, &format!("seed {seed}, {mode:?}"));
        }
    });
}

const fn mode(read_ahead: When, gather: When, ahead_bytes: usize) -> Mode {
    Mode { read_ahead, gather, ahead_bytes }
}

#[test]
fn events_are_those_of_the_kernel_without_memory() {
    run(&[mode(When::Never, When::Never, 0)], true, 0..SEEDS);
}

#[test]
fn events_are_those_of_the_kernel_with_bytes_that_were_read_ahead() {
    let modes = [
        mode(When::Always, When::Never, 64 << 10),
        // Bytes are in memory and in the kernel at the same time.
        mode(When::Always, When::Never, 50),
        mode(When::OnEvidence, When::Never, 64 << 10),
    ];
    run(&modes, true, 0..SEEDS);
}

#[test]
fn events_are_those_of_the_kernel_with_delayed_writes() {
    let modes = [
        mode(When::Never, When::Always, 0),
        mode(When::OnEvidence, When::OnEvidence, 64 << 10),
        mode(When::Always, When::Always, 50),
    ];
    run(&modes, false, 0..SEEDS);
}
