//! Each call of the host fails once, and the program learns of it once.
//!
//! A random program makes calls of one end of a connection, while bytes wait in memory in both directions.
//! It runs without a failure first, which counts the calls of the host. Then it runs once for each of them,
//! and that one fails with an errno that the kernel has for no such call. The program must see this errno,
//! and only once: as the result of the call under way or of a later one. At the end it makes the calls that
//! report errors.

use std::mem::take;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use sakia_socket::sockopt::{IPPROTO_TCP, SOL_SOCKET};
use sakia_socket::{Epoll, EpollEvent, Events, Layer, PollEntry, SelectEntry, Selection, Socket};
use sakia_testkit::random::{Random, programs};

use crate::support::watched::{Failing, Watched};
use crate::support::{MODES, options, tcp, unix};

const FAILURE: Errno = Errno::UCLEAN;

/// Options that concern no bytes, those that are sent, those that are received, and all.
const OPTIONS: [(i32, i32, &[u8]); 5] = [
    (SOL_SOCKET, libc::SO_KEEPALIVE, &[1, 0, 0, 0]),
    (SOL_SOCKET, libc::SO_SNDTIMEO, &[9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
    (IPPROTO_TCP, libc::TCP_NODELAY, &[1, 0, 0, 0]),
    (SOL_SOCKET, libc::SO_TIMESTAMP, &[0; 4]),
    (SOL_SOCKET, libc::SO_ZEROCOPY, &[0; 4]),
];

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The mode of the library, and the kind of the connection, if it is the first step.
    World {
        mode: usize,
        is_tcp: bool,
    },
    /// The peer sends so many bytes, or receives what has arrived.
    Arrives(usize),
    Empties,
    Send(usize, SendFlags),
    Recv(usize, RecvFlags),
    SetOption(usize),
    Option(usize),
    Shutdown(Shutdown),
    Flush,
    TakeError,
    HandBack,
    Unread,
    Poll,
    /// Waits for bytes that do not come.
    Sleep,
    Select,
    /// Makes a set with the socket, or asks the one that there is.
    Set,
    Wait,
    Nonblocking(bool),
    Addresses,
    /// The host takes at most so many bytes in one send.
    Most(usize),
}

fn make(random: &mut Random) -> Vec<Step> {
    let mode = random.below(MODES.len() as u64) as usize;
    let mut steps = vec![Step::World { mode, is_tcp: random.percent(50) }];
    if random.percent(20) {
        // An end behind bytes that the host does not take at once.
        let end = random.one_of(&[Shutdown::Write, Shutdown::Both]);
        let delayed = Step::Send(1500, SendFlags::empty());
        steps.extend([Step::Most(100), delayed, delayed, Step::Shutdown(end)]);
    }
    for _ in 0..random.below(16) + 4 {
        let len = random.one_of(&[1, 10, 100, 1500]);
        let sent = random.one_of(&[1, 10, 100, 1500, 20_000]);
        let option = random.below(OPTIONS.len() as u64) as usize;
        steps.push(match random.below(40) {
            0..6 => Step::Arrives(len),
            6 => Step::Empties,
            7..15 => Step::Send(
                sent,
                random.one_of(&[SendFlags::empty(), SendFlags::DONTWAIT, SendFlags::MORE]),
            ),
            15..22 => {
                let flags = [
                    RecvFlags::empty(),
                    RecvFlags::WAITALL,
                    RecvFlags::PEEK,
                    RecvFlags::PEEK | RecvFlags::WAITALL,
                ];
                Step::Recv(len, random.one_of(&flags))
            }
            22..25 => Step::SetOption(option),
            25 => Step::Option(option),
            26 => Step::Shutdown(random.one_of(&[Shutdown::Read, Shutdown::Write, Shutdown::Both])),
            27 => Step::Flush,
            28 => Step::TakeError,
            29 => Step::HandBack,
            30 => Step::Unread,
            31 => random.one_of(&[Step::Poll, Step::Sleep]),
            32 => Step::Select,
            33 => Step::Set,
            34..36 => Step::Wait,
            36 => Step::Nonblocking(random.percent(50)),
            37 => Step::Addresses,
            _ => Step::Most(random.one_of(&[0, 100, 5000])),
        });
    }
    steps
}

/// A program under way.
struct Run {
    layer: Layer<Watched>,
    socket: Socket<Watched>,
    peer: Socket<Watched>,
    set: Option<Epoll<Watched>>,
    /// The number of bytes that a receive finds without a wait.
    arrived: usize,
    seen: usize,
}

/// Runs a program, with a failure at the call of this number. Returns the state of the host, how often the
/// program saw the failure, and the step at which it happened.
fn play(steps: &[Step], at: Option<usize>) -> (Failing, usize, Option<Step>) {
    let (mode, is_tcp) = match steps.first() {
        Some(Step::World { mode, is_tcp }) => (MODES[*mode], *is_tcp),
        _ => (MODES[4], false),
    };
    let mut options = options(mode);
    options.limits.delay = Duration::from_secs(3600);
    let layer = Layer::new(Watched::default(), options);
    let (socket, peer) = if is_tcp { tcp(&layer) } else { unix(&layer) };
    let failing = Failing { at: at.map(|at| (at, FAILURE)), ..Failing::default() };
    *layer.host().failing.lock().expect("no panic") = failing;
    let mut run = Run { layer, socket, peer, set: None, arrived: 0, seen: 0 };
    let mut under_way = None;
    for step in steps {
        run.step(*step);
        if under_way.is_none() && run.has_failed() {
            under_way = Some(*step);
        }
    }
    // The end of the program makes no other calls than these.
    let failing = take(&mut *run.layer.host().failing.lock().expect("no panic"));
    for _ in 0..2 {
        for step in [
            Step::TakeError,
            Step::Flush,
            Step::Send(1, SendFlags::DONTWAIT),
            Step::Recv(2000, RecvFlags::DONTWAIT),
        ] {
            run.step(step);
        }
    }
    (failing, run.seen, under_way)
}

impl Run {
    fn has_failed(&self) -> bool {
        self.layer.host().failing.lock().expect("no panic").failed.is_some()
    }

    fn see<T>(&mut self, result: Result<T, Errno>) -> Option<T> {
        self.seen += usize::from(result.as_ref().err() == Some(&FAILURE));
        result.ok()
    }

    fn step(&mut self, step: Step) {
        let now = Some(Duration::ZERO);
        // After a failure, bytes may be missing.
        let may_wait = !self.has_failed();
        let socket = self.socket.clone();
        match step {
            Step::World { .. } => {}
            Step::Arrives(count) => {
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                self.arrived +=
                    rustix::net::send(self.peer.fd(), &vec![7; count], flags).unwrap_or(0);
            }
            Step::Empties => {
                let mut room = [0; 65536];
                while rustix::net::recv(self.peer.fd(), &mut room, RecvFlags::DONTWAIT)
                    .is_ok_and(|(_, count)| count > 0)
                {}
            }
            Step::Send(count, flags) => {
                let flags = if may_wait { flags } else { flags | SendFlags::DONTWAIT };
                let sent = socket.send(&vec![1; count], flags | SendFlags::NOSIGNAL);
                self.see(sent);
            }
            Step::Recv(count, flags) => {
                let flags = if may_wait && count <= self.arrived {
                    flags
                } else {
                    flags | RecvFlags::DONTWAIT
                };
                let received = socket.recv(&mut vec![0; count], flags);
                let count = self.see(received).unwrap_or(0);
                if !flags.contains(RecvFlags::PEEK) {
                    self.arrived -= count;
                }
            }
            Step::SetOption(option) => {
                let (level, name, value) = OPTIONS[option];
                let result = socket.set_option_raw(level, name, value);
                self.see(result);
            }
            Step::Option(option) => {
                let (level, name, _) = OPTIONS[option];
                let result = socket.option_raw(level, name, &mut [0; 16]);
                self.see(result);
            }
            Step::Shutdown(how) => {
                // Then a receive finds the end.
                let result = socket.shutdown(how);
                self.see(result);
            }
            Step::Flush => {
                let result = socket.flush();
                self.see(result);
            }
            Step::TakeError => {
                let result = socket.take_error();
                let error = self.see(result).flatten();
                self.see(error.map_or(Ok(()), Err));
            }
            Step::HandBack => {
                let result = socket.hand_back().map(drop);
                self.see(result);
            }
            Step::Unread => {
                let result = socket.unread();
                self.see(result);
            }
            Step::Poll => {
                let mut entries = [PollEntry::new(&socket, Events::IN | Events::OUT)];
                let result = self.layer.poll(&mut entries, now);
                self.see(result);
            }
            Step::Sleep => {
                let mut entries = [PollEntry::new(&socket, Events::IN)];
                let result = self.layer.poll(&mut entries, Some(Duration::from_micros(100)));
                self.see(result);
            }
            Step::Select => {
                let sets = Selection { readable: true, writable: true, exceptional: true };
                let mut entries = [SelectEntry::new(&socket, sets)];
                let result = self.layer.select(&mut entries, now);
                self.see(result);
            }
            Step::Set => {
                let set = self.layer.epoll();
                if let Some(set) = self.see(set) {
                    let event = EpollEvent { events: Events::IN | Events::OUT, data: 1 };
                    let result = set.add(&socket, event);
                    self.see(result);
                    self.set = Some(set);
                }
            }
            Step::Wait => {
                let mut events = [EpollEvent::default(); 2];
                let result = self.set.as_ref().map(|set| set.wait(&mut events, now));
                self.see(result.unwrap_or(Ok(0)));
            }
            Step::Nonblocking(is_nonblocking) => {
                let result = socket.set_nonblocking(is_nonblocking);
                self.see(result);
            }
            Step::Addresses => {
                let result = socket.local_address();
                self.see(result);
                let result = socket.peer_address();
                self.see(result);
            }
            Step::Most(most) => self.layer.host().most.store(most, Ordering::Relaxed),
        }
    }
}

fn run(steps: &[Step]) -> Option<String> {
    let calls = play(steps, None).0.made;
    (1..=calls).find_map(|at| {
        let (failing, seen, step) = play(steps, Some(at));
        let (call, step) = (failing.failed?, step?);
        // An end behind delayed bytes is made after its call, which is too late to tell of its error.
        if call == "shutdown" && !matches!(step, Step::Shutdown(_)) {
            return None;
        }
        (seen != 1).then(|| format!("at {step:?}, `{call}` fails, seen {seen} times"))
    })
}

#[test]
fn each_failure_of_the_host_is_told_once() {
    programs(1000, make, run);
}
