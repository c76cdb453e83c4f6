//! Random programs of ends and half-closes, on sockets of this library and on those of the kernel, while
//! bytes wait in memory to be read, or to be sent behind buffers that are full.
//!
//! A buffer is full when a send that does not wait is refused; how many bytes that takes is no part of the
//! comparison, but each byte that was taken has its number, and is received once and in order. Compared are
//! the results of all calls, the events of both ends, whether a reader gets all bytes that were taken, and
//! what follows them: nothing yet, the end or an error.
//!
//! These differences are wanted. They begin when bytes are delayed and end when they were sent:
//! - The peer of a sender whose buffer was full sees the end behind the last delayed byte, while the kernel
//!   shows it at once beside the bytes: the peer's events and errors are compared after it has read all.
//! - A sender whose end waits behind delayed bytes sees the hang-up with that end, if the peer has ended, and
//!   at once if it was itself shut down for reading.
//! - Delayed bytes that the peer no longer takes are an error of the next call of whichever kind, once, and
//!   one of the sender's events until then, where the kernel refuses the next send only.
//!
//! Streams of TCP are not filled, since the kernel's clocks decide when a window opens again. The other ways
//! of a reset are programs of `streams`.

use std::io::{IoSlice, IoSliceMut};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use sakia_socket::{Events, When};
use sakia_testkit::loopback;
use sakia_testkit::random::{self, Random};

use crate::api::{End, Maker, OfKernel, OfLayer, Wire};
use crate::support::{MODES, PLAIN, byte, options};
use crate::{difference, few_programs};

#[derive(Clone, Copy, Debug)]
enum Act {
    Send(usize),
    /// Sends bytes with a descriptor, which no bytes may overtake.
    Pass,
    /// Sends until the call would wait.
    Fill,
    Recv(usize, RecvFlags),
    /// Receives until the call would wait, the end or an error.
    Drain,
    Shutdown(Shutdown),
    Poll(Events),
    Unread,
    Error,
    Close,
}

/// An act of one of the two ends.
type Step = (usize, Act);

fn step(random: &mut Random) -> Step {
    let side = random.below(2) as usize;
    let act = match random.below(100) {
        0..14 => Act::Send(random.one_of(&[0, 1, 10, 300])),
        14..18 => Act::Pass,
        18..26 => Act::Fill,
        26..44 => {
            let flags = [RecvFlags::empty(), RecvFlags::empty(), RecvFlags::PEEK];
            Act::Recv(random.one_of(&[0, 1, 1, 5, 200]), random.one_of(&flags))
        }
        44..54 => Act::Drain,
        54..68 => {
            let hows = [Shutdown::Read, Shutdown::Write, Shutdown::Both];
            Act::Shutdown(random.one_of(&hows))
        }
        68..90 => {
            let mut wanted = Events::NONE;
            for event in [Events::IN, Events::OUT, Events::RDHUP, Events::RDNORM, Events::WRNORM] {
                if random.percent(60) {
                    wanted |= event;
                }
            }
            Act::Poll(wanted)
        }
        90..95 => Act::Unread,
        95..98 => Act::Error,
        _ => Act::Close,
    };
    (side, act)
}

fn program(random: &mut Random) -> Vec<Step> {
    (0..2 + random.below(25)).map(|_| step(random)).collect()
}

/// An end, and the numbers of the next bytes that it sends and receives.
struct Side<E> {
    end: Option<E>,
    sent: u64,
    received: u64,
    /// Its buffer was full, and the peer has not read all since.
    is_full: bool,
    /// It will not receive, or not send.
    is_deaf: bool,
    has_ended: bool,
    /// Bytes of it were dropped, or may have been.
    is_lost: bool,
}

impl<E> Side<E> {
    fn new(end: E) -> Self {
        let (sent, received) = (0, 0);
        let end = Some(end);
        let (is_full, is_deaf, has_ended, is_lost) = <_>::default();
        Self { end, sent, received, is_full, is_deaf, has_ended, is_lost }
    }
}

/// Runs a program. Returns its observations, a line for each step.
fn run<M: Maker>(maker: &M, wire: Wire, steps: &[Step]) -> Vec<Line> {
    let (a, b) = maker.pair(wire);
    let mut sides = [a, b].map(|end| {
        end.set_nonblocking(true).expect("a mode");
        if wire == Wire::Unix {
            end.set_buffers(1);
        }
        Side::new(end)
    });
    let mut log = Vec::new();
    for step in steps {
        let [first, second] = &mut sides;
        let (this, peer) = if step.0 == 0 { (first, second) } else { (second, first) };
        if let Some((seen, is_loose)) = act(this, peer, wire, step.1) {
            log.push((format!("{step:?}: {seen}"), is_loose));
        }
        for side in &sides {
            if let Some(end) = &side.end {
                end.flush();
            }
        }
        if wire == Wire::Tcp {
            loopback::settle();
        }
    }
    log
}

/// A line of the log; `true` if it is not the same where bytes are delayed.
type Line = (String, bool);

fn act<E: End>(this: &mut Side<E>, peer: &mut Side<E>, wire: Wire, act: Act) -> Option<Line> {
    let end = this.end.as_ref()?;
    // Delayed bytes may come first, or have an error that the kernel shows at once.
    let is_late = peer.is_full || this.is_lost || peer.is_lost;
    let is_lossy = this.is_lost || peer.is_lost;
    Some(match act {
        Act::Send(_) | Act::Fill if this.is_full => return None,
        Act::Fill if wire == Wire::Tcp => return None,
        Act::Send(len) => {
            let result = send(end, &mut this.sent, len);
            // Bytes that the peer refuses may have been delayed.
            this.is_lost |= peer.is_deaf && len > 0;
            end.flush();
            (format!("{result:?}"), is_late || this.is_lost)
        }
        Act::Pass if wire == Wire::Tcp || this.is_full && !this.has_ended => return None,
        Act::Pass => {
            let (reader, _) = rustix::pipe::pipe().expect("a pipe");
            let bytes: Vec<u8> = (this.sent..).map(byte).take(10).collect();
            let result = end.pass(&bytes, &[&reader], SendFlags::empty());
            this.sent += result.unwrap_or(0) as u64;
            (format!("{result:?}"), is_late || this.is_lost)
        }
        Act::Fill => {
            this.is_lost |= peer.is_deaf;
            let errno = loop {
                if let Err(errno) = send(end, &mut this.sent, 700) {
                    break errno;
                }
            };
            this.is_full = errno == Errno::AGAIN;
            (format!("{errno:?}"), is_late || this.is_lost)
        }
        Act::Recv(len, flags) if flags.contains(RecvFlags::PEEK) => {
            let result = receive(end, &mut this.received, len, flags);
            (format!("{:?}", result.map(|count| count > 0)), is_late)
        }
        Act::Recv(len, flags) => {
            // The bytes in memory and those behind them take two calls.
            let mut all = 0;
            let result = loop {
                match receive(end, &mut this.received, len - all, flags) {
                    Ok(0) => break Ok(()),
                    Ok(count) => all += count,
                    Err(errno) => break Err(errno),
                }
                if all == len {
                    break Ok(());
                }
            };
            (format!("{all} {result:?}"), is_late)
        }
        Act::Drain => {
            let result = drain(end, &mut this.received);
            let is_all = this.received == peer.sent;
            peer.is_full &= !is_all;
            (format!("{result:?} {is_all}"), is_lossy)
        }
        Act::Shutdown(how) => {
            let result = end.shutdown(how);
            if result.is_ok() {
                this.has_ended |= how != Shutdown::Read;
                this.is_deaf |= how != Shutdown::Write;
                peer.is_lost |= this.is_deaf && peer.is_full;
            }
            (format!("{result:?}"), is_lossy)
        }
        Act::Poll(wanted) => {
            let events = end.events(wanted, Duration::ZERO);
            // How much room a full buffer has again depends on its pieces.
            let out = Events::OUT | Events::WRNORM;
            let events = if this.sent > peer.received { events & !out } else { events };
            let is_over = this.is_full && this.has_ended && peer.has_ended && !this.is_deaf;
            (format!("{events:x?}"), is_late || is_over)
        }
        Act::Unread => {
            let count = end.unread();
            if peer.is_full {
                return None;
            }
            (format!("{count:?}"), is_late)
        }
        Act::Error => (format!("{:?}", end.take_error()), is_late),
        Act::Close => {
            this.end = None;
            (this.has_ended, this.is_deaf) = (true, true);
            peer.is_lost |= peer.is_full || this.is_full;
            (String::new(), false)
        }
    })
}

/// Sends the next `len` bytes.
fn send<E: End>(end: &E, sent: &mut u64, len: usize) -> Result<usize, Errno> {
    let bytes: Vec<u8> = (*sent..).map(byte).take(len).collect();
    let count = end.send(&[IoSlice::new(&bytes)], SendFlags::NOSIGNAL)?;
    *sent += count as u64;
    Ok(count)
}

/// Receives up to `len` bytes, which have to be the next ones.
fn receive<E: End>(
    end: &E,
    received: &mut u64,
    len: usize,
    flags: RecvFlags,
) -> Result<usize, Errno> {
    let mut bytes = vec![0; len];
    let count = end.recv(&mut [IoSliceMut::new(&mut bytes)], flags)?;
    let expected = (*received..).map(byte).take(count);
    assert!(expected.eq(bytes[..count].iter().copied()), "other bytes");
    if !flags.contains(RecvFlags::PEEK) {
        *received += count as u64;
    }
    Ok(count)
}

/// Receives all that is there and that comes when there is room. Returns what follows.
fn drain<E: End>(end: &E, received: &mut u64) -> Result<(), Errno> {
    let mut waits = 0;
    loop {
        match receive(end, received, 777, RecvFlags::empty()) {
            Ok(0) => return Ok(()),
            Ok(_) => waits = 0,
            // Delayed bytes follow when they are sent, and the end behind them.
            Err(Errno::AGAIN) if waits < 2 => {
                end.flush();
                waits += 1;
            }
            Err(errno) => return Err(errno),
        }
    }
}

fn compare(wire: Wire, usual: u64) {
    random::programs(few_programs(usual), program, |steps| {
        let expected = run(&OfKernel, wire, steps);
        for (number, mode) in [PLAIN].into_iter().chain(MODES).enumerate() {
            let mut options = options(mode);
            options.limits.bytes = [64 << 10, 3000, 50][number % 3];
            options.ahead_bytes = [50, 64 << 10][number % 2];
            // Only what a call of the program sends.
            options.limits.delay = Duration::from_secs(3600);
            let found = run(&OfLayer::new(options), wire, steps);
            let is_compared = |line: &&Line| !line.1 || options.gather == When::Never;
            let [expected, found] = [&expected, &found].map(|log| {
                let lines = log.iter().filter(is_compared);
                lines.map(|line| line.0.clone()).collect::<Vec<String>>()
            });
            if let Some(failure) = difference(&expected, &found) {
                return Some(format!("{wire:?}, {options:?}: {failure}"));
            }
        }
        None
    });
}

#[test]
fn ends_of_streams_with_full_buffers_are_those_of_the_kernel() {
    compare(Wire::Unix, 300);
}

#[test]
fn ends_of_streams_of_tcp_are_those_of_the_kernel() {
    compare(Wire::Tcp, 60);
}
