//! Crowds of threads on the handles of one connection: each writes, reads or waits in its own way.
//!
//! Several threads write to a direction and several read from it, by blocking calls, `poll`, `select` or sets
//! with level and edge trigger, while others clone and close handles, look at bytes, put sockets into sets
//! and sets into sets, and flush. Each byte names its writer and its place in the writer's stream. So a byte
//! that is lost, repeated or overtaken shows, and a wake that is lost is a hang.
//!
//! In half of the programs an end is closed, shut down or reset in the middle, while all threads are at work.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use sakia_socket::{
    EpollEvent, Events, HostCall, Kernel, Layer, Options, PollEntry, SelectEntry, Selection,
    Socket, ToyEnclave, sockopt,
};
use sakia_testkit::settings;

use crate::programs;
use crate::support::{MODES, options, tcp, unix};

type Enclave = ToyEnclave<Kernel>;

const WRITERS_MAX: usize = 3;
/// The number of byte values that name a place; the other bits name the writer.
const PLACES: usize = 64;
const EDGE: Events = Events::EDGE;

/// The way in which a thread waits for its turn.
#[derive(Clone, Copy, Debug)]
enum Way {
    Blocking,
    Poll,
    Select,
    Level,
    Edge,
}

const WAYS: [Way; 5] = [Way::Blocking, Way::Poll, Way::Select, Way::Level, Way::Edge];

/// One direction of a connection.
#[derive(Debug, Default)]
struct Direction {
    writers: AtomicUsize,
    /// Bytes that were sent and received, by their values.
    sent: Counts,
    received: Counts,
}

#[derive(Debug)]
struct Counts([AtomicU64; WRITERS_MAX * PLACES]);

impl Default for Counts {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; WRITERS_MAX * PLACES])
    }
}

impl Counts {
    fn add(&self, bytes: &[u8]) {
        for &byte in bytes {
            self.0[usize::from(byte)].fetch_add(1, Ordering::Relaxed);
        }
    }

    fn all(&self) -> Vec<u64> {
        self.0.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }
}

/// One thread with its way of waiting, on a handle of its own.
struct Worker {
    layer: Layer<Enclave>,
    socket: Socket<Enclave>,
    way: Way,
    random: fastrand::Rng,
    is_cut: bool,
}

impl Worker {
    /// Returns whether calls are made after a wait, so that they do not block.
    fn is_waiting(&self) -> bool {
        !matches!(self.way, Way::Blocking)
    }

    /// Calls `call` until it returns false, and waits for `wanted` whenever it would block.
    fn go_on(&mut self, wanted: Events, mut call: impl FnMut(&mut Self) -> Result<bool, Errno>) {
        let set = self.layer.epoll().expect("a set");
        let events = if matches!(self.way, Way::Edge) { wanted | EDGE } else { wanted };
        set.add(&self.socket, EpollEvent { events, data: 7 }).expect("an entry");
        loop {
            match call(self) {
                Ok(true) => continue,
                Ok(false) => return,
                Err(Errno::AGAIN) if self.is_waiting() => {}
                Err(errno) => {
                    let is_end = matches!(
                        errno,
                        Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN | Errno::CONNABORTED
                    );
                    assert!(self.is_cut && is_end, "{errno:?}");
                    return;
                }
            }
            match self.way {
                Way::Blocking => {}
                Way::Poll => {
                    let mut entries = [PollEntry::new(&self.socket, wanted)];
                    assert_eq!(self.layer.poll(&mut entries, None), Ok(1));
                }
                Way::Select => {
                    let is_reader = wanted.contains(Events::IN);
                    let sets =
                        Selection { readable: is_reader, writable: !is_reader, exceptional: false };
                    let mut entries = [SelectEntry::new(&self.socket, sets)];
                    assert_eq!(self.layer.select(&mut entries, None), Ok(1));
                }
                Way::Level | Way::Edge => {
                    let mut events = [EpollEvent::default(); 2];
                    assert_eq!(set.wait(&mut events, None), Ok(1));
                    assert_eq!(events[0].data, 7);
                }
            }
        }
    }

    fn write(mut self, writer: usize, count: usize, direction: &Direction) {
        let flags = if self.is_waiting() { SendFlags::DONTWAIT } else { SendFlags::empty() };
        let mut sent = 0;
        self.go_on(Events::OUT, |this| {
            let most = if this.random.u8(..20) == 0 { 6000 } else { 150 };
            let len = this.random.usize(1..most).min(count - sent);
            let byte = |place| (writer * PLACES + (sent + place) % PLACES) as u8;
            let bytes: Vec<u8> = (0..len).map(byte).collect();
            let taken = this.socket.send(&bytes, flags)?;
            direction.sent.add(&bytes[..taken]);
            sent += taken;
            if this.random.u8(..60) == 0 {
                thread::sleep(Duration::from_micros(200));
            }
            Ok(sent < count)
        });
        if direction.writers.fetch_sub(1, Ordering::SeqCst) == 1 {
            // The end follows the last byte of all writers.
            match self.socket.shutdown(Shutdown::Write) {
                Ok(()) => {}
                Err(errno) => assert!(self.is_cut, "{errno:?}"),
            }
        }
    }

    fn read(mut self, is_alone: bool, direction: &Direction) {
        let mut places: [Option<usize>; WRITERS_MAX] = [None; WRITERS_MAX];
        self.go_on(Events::IN, |this| {
            let mut buffer = vec![0xff; this.random.usize(1..400)];
            let mut flags =
                if this.is_waiting() { RecvFlags::DONTWAIT } else { RecvFlags::empty() };
            match this.random.u8(..12) {
                0 => flags |= RecvFlags::PEEK,
                1 => flags |= RecvFlags::WAITALL,
                _ => {}
            }
            let count = this.socket.recv(&mut buffer, flags)?;
            if count > 0 && flags.contains(RecvFlags::PEEK) {
                return Ok(true);
            }
            direction.received.add(&buffer[..count]);
            for &byte in buffer[..count].iter().filter(|_| is_alone) {
                let (writer, place) = (usize::from(byte) / PLACES, usize::from(byte) % PLACES);
                let expected = places[writer].map_or(0, |last| (last + 1) % PLACES);
                assert_eq!(place, expected, "of writer {writer}");
                places[writer] = Some(place);
            }
            Ok(count > 0)
        });
    }

    /// Makes the calls of a program that are neither reads nor writes.
    fn disturb(mut self, is_over: &AtomicBool) {
        let mut sets = vec![self.layer.epoll().expect("a set")];
        let mut handles = vec![self.socket.clone()];
        while !is_over.load(Ordering::Relaxed) {
            let socket = &handles[self.random.usize(..handles.len())];
            let set = &sets[self.random.usize(..sets.len())];
            let event = |data| {
                let bits = [Events::NONE, EDGE, Events::ONE_SHOT, EDGE | Events::ONE_SHOT];
                EpollEvent { events: Events::IN | Events::OUT | bits[data as usize % 4], data }
            };
            match self.random.u8(..16) {
                0 => handles.push(socket.clone()),
                1 if handles.len() > 1 => drop(handles.swap_remove(0)),
                2 => drop(set.add(socket, event(self.random.u64(..4)))),
                3 => drop(set.modify(socket, event(self.random.u64(..4)))),
                4 => drop(set.remove(socket)),
                5 if sets.len() < 4 => sets.push(self.layer.epoll().expect("a set")),
                6 if sets.len() > 1 => drop(sets.swap_remove(self.random.usize(..sets.len()))),
                7 => drop(set.add(&sets[0], event(self.random.u64(..2)))),
                8..11 => {
                    let mut events = [EpollEvent::default(); 3];
                    let timeout = Duration::from_micros(self.random.u64(..300));
                    let count = set.wait(&mut events, Some(timeout)).expect("no signal");
                    let numbers: BTreeSet<u64> =
                        events[..count].iter().map(|event| event.data).collect();
                    assert!(numbers.iter().all(|&number| number < 4), "{numbers:?}");
                }
                11 => {
                    let mut entries = [PollEntry::new(socket, Events::IN | Events::OUT)];
                    self.layer.poll(&mut entries, Some(Duration::from_micros(100))).expect("ok");
                }
                12 => drop(socket.recv(&mut [0; 50], RecvFlags::PEEK | RecvFlags::DONTWAIT)),
                13 => self.layer.flush(),
                14 => drop((socket.unread(), socket.delayed(), socket.peer_address())),
                _ => drop(socket.set_option(sockopt::TCP_NODELAY, true)),
            }
            handles.truncate(5);
        }
    }
}

struct Crowd {
    random: fastrand::Rng,
    layer: Layer<Enclave>,
    is_cut: bool,
    threads: Vec<JoinHandle<()>>,
    others: Vec<JoinHandle<()>>,
    is_over: Arc<AtomicBool>,
}

impl Crowd {
    fn worker(&mut self, socket: &Socket<Enclave>) -> Worker {
        let way = self.random.choice(WAYS).expect("some");
        let random = fastrand::Rng::with_seed(self.random.u64(..));
        Worker {
            layer: self.layer.clone(),
            socket: socket.clone(),
            way,
            random,
            is_cut: self.is_cut,
        }
    }

    /// Starts the threads of one direction.
    fn direct(&mut self, from: &Socket<Enclave>, to: &Socket<Enclave>) -> Arc<Direction> {
        let direction = Arc::new(Direction::default());
        let writers = self.random.usize(1..=WRITERS_MAX);
        let readers = self.random.usize(1..=2);
        direction.writers.store(writers, Ordering::SeqCst);
        for writer in 0..writers {
            let (worker, direction) = (self.worker(from), Arc::clone(&direction));
            let count = self.random.usize(1..10_000);
            self.threads.push(thread::spawn(move || worker.write(writer, count, &direction)));
        }
        for _ in 0..readers {
            let (worker, direction) = (self.worker(to), Arc::clone(&direction));
            self.threads.push(thread::spawn(move || worker.read(readers == 1, &direction)));
        }
        for socket in [from, to] {
            let (worker, is_over) = (self.worker(socket), Arc::clone(&self.is_over));
            self.others.push(thread::spawn(move || worker.disturb(&is_over)));
        }
        direction
    }
}

/// Runs the program of `seed`.
fn run(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut options: Options = options(MODES[seed as usize % MODES.len()]);
    options.limits.bytes = random.choice([1, 50, 3000, 64 << 10]).expect("some");
    options.ahead_bytes = random.choice([1, 50, 3000, 64 << 10]).expect("some");
    let layer = Layer::new(ToyEnclave::new(Kernel, Duration::ZERO), options);
    let is_tcp = random.bool();
    let (a, b) = if is_tcp { tcp(&layer) } else { unix(&layer) };
    if random.bool() {
        for end in [&a, &b] {
            end.set_option(sockopt::SO_SNDBUF, 5000).expect("an option");
        }
    }
    let is_cut = random.bool();
    let is_over = Arc::default();
    let (threads, others) = Default::default();
    let mut crowd = Crowd { random, layer: layer.clone(), is_cut, threads, others, is_over };
    let directions = [crowd.direct(&a, &b), crowd.direct(&b, &a)];
    if is_cut {
        thread::sleep(Duration::from_micros(crowd.random.u64(..5000)));
        // Threads have handles, so an end is shut down before it is closed.
        if is_tcp && crowd.random.bool() {
            a.set_option(sockopt::SO_LINGER, Some(Duration::ZERO)).expect("an option");
        }
        let _ = a.shutdown(Shutdown::Both);
        drop(a);
        let _ = b.shutdown(Shutdown::Both);
    }
    let polls = (crowd.threads.len() + crowd.others.len()) as u64;
    for thread in crowd.threads {
        thread.join().expect("no panic");
    }
    crowd.is_over.store(true, Ordering::Relaxed);
    for thread in crowd.others {
        thread.join().expect("no panic");
    }
    for direction in directions {
        let (sent, received) = (direction.sent.all(), direction.received.all());
        if is_cut {
            let mut pairs = sent.iter().zip(&received);
            assert!(pairs.all(|(sent, received)| received <= sent), "{sent:?} {received:?}");
        } else {
            assert_eq!(sent, received);
        }
    }
    drop((b, crowd.layer));
    // Once the thread that sends has finished, only event descriptors for the next polls are left.
    let left = || {
        let counts = layer.host().counts();
        let opened = [HostCall::Socket, HostCall::Accept, HostCall::EpollCreate, HostCall::Event];
        let opened: u64 = opened.into_iter().map(|call| counts.of(call)).sum();
        opened + 2 * counts.of(HostCall::Pair) - counts.of(HostCall::Close)
    };
    while left() > polls {
        thread::yield_now();
    }
}

#[test]
fn crowds_on_a_connection_lose_neither_bytes_nor_wakes() {
    let (seeds, patience) = (programs(300), settings::patience());
    let (sender, ended) = mpsc::channel();
    thread::spawn(move || {
        for seed in 0..seeds {
            let result = std::panic::catch_unwind(|| run(seed));
            if sender.send(result.is_ok()).is_err() {
                return;
            }
        }
    });
    for seed in 0..seeds {
        let is_ok = ended.recv_timeout(patience);
        assert!(is_ok.unwrap_or_else(|_| panic!("a hang of seed {seed}")), "seed {seed}");
    }
}
