//! Programs of one thread on a stream whose buffers are never full.

use std::io::{IoSlice, IoSliceMut};
use std::mem;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, ReturnFlags, SendFlags, Shutdown};
use sakia_socket::Events;
use sakia_testkit::{loopback, settings};

use crate::api::{End, Maker, OfKernel, OfLayer, Wire};
use crate::support::{MODES, PLAIN, byte, options};
use crate::{assert_same, each_seed, programs};

/// The maximum number of bytes under way in one direction, so that no buffer of the kernel is ever full.
const UNDER_WAY: u64 = 10_000;
/// The timeout of calls that may block, so that none blocks for long.
const SHORT: Duration = Duration::from_millis(1);

#[derive(Clone, Debug)]
enum Step {
    Send { lens: Vec<usize>, more: bool },
    Recv { lens: Vec<usize>, flags: RecvFlags },
    Message { len: usize, room: usize, flags: RecvFlags },
    Pass { len: usize, count: usize },
    Blocking(bool),
    Unread,
    Poll,
    Shutdown(Shutdown),
    Error,
    Peer,
    Dup,
    Close,
    Reset,
    HandBack,
    KeepAlive(bool),
    Cork,
    Inline,
    Timeout,
    Disconnect,
}

fn len(random: &mut fastrand::Rng) -> usize {
    match random.u8(..8) {
        0 => 0,
        1..=5 => random.usize(1..300),
        6 => random.usize(1..5000),
        _ => random.usize(1..20_000),
    }
}

fn lens(random: &mut fastrand::Rng) -> Vec<usize> {
    match random.u8(..4) {
        0 => (0..random.usize(0..5)).map(|_| len(random) / 3).collect(),
        _ => vec![len(random)],
    }
}

fn step(random: &mut fastrand::Rng) -> Step {
    let hows = [Shutdown::Read, Shutdown::Write, Shutdown::Both];
    match random.u32(..1000) {
        0..400 => Step::Send { lens: lens(random), more: random.u8(..20) == 0 },
        400..700 => {
            let flags = match random.u8(..20) {
                0 | 1 => RecvFlags::PEEK,
                2 => RecvFlags::WAITALL,
                3 => RecvFlags::TRUNC,
                4 => RecvFlags::PEEK | RecvFlags::DONTWAIT,
                5 => RecvFlags::TRUNC | RecvFlags::WAITALL,
                6 => RecvFlags::PEEK | RecvFlags::WAITALL,
                _ => RecvFlags::DONTWAIT,
            };
            Step::Recv { lens: lens(random), flags }
        }
        700..730 => {
            let flags = random.choice([RecvFlags::DONTWAIT, RecvFlags::PEEK]).expect("some");
            Step::Message { len: len(random), room: random.usize(..60), flags }
        }
        730..745 => Step::Pass { len: random.usize(..300), count: random.usize(1..4) },
        745..760 => Step::Blocking(random.u8(..3) == 0),
        760..820 => Step::Unread,
        820..930 => Step::Poll,
        930..938 => Step::Shutdown(random.choice(hows).expect("three")),
        938..950 => Step::Error,
        950..955 => Step::Peer,
        955..970 => Step::Dup,
        970..973 => Step::Close,
        973..975 => Step::Reset,
        975..978 => Step::HandBack,
        978..982 => Step::KeepAlive(random.bool()),
        982..985 => Step::Cork,
        985..986 => Step::Inline,
        986..992 => Step::Timeout,
        992 => Step::Disconnect,
        _ => Step::Poll,
    }
}

/// An end of a connection, and the numbers of the next bytes that it sends and receives.
struct Side<E> {
    handles: Vec<E>,
    sends: u64,
    receives: u64,
    is_blocking: bool,
    /// The end was shut down for sending, and for receiving.
    has_ended: bool,
    is_deaf: bool,
}

struct Program<E> {
    sides: [Side<E>; 2],
    wire: Wire,
    /// Once an end may refuse bytes, an error of delayed ones would be reported later than of plain ones.
    may_refuse: bool,
    /// Bytes may have been dropped.
    is_cut: bool,
    /// Bytes or an end may be on their way.
    has_moved: bool,
    /// The descriptor that is passed.
    writer: OwnedFd,
}

/// Runs the program of `seed`. Returns its observations, a line for each step.
fn run<M: Maker>(maker: &M, seed: u64, wire: Wire) -> Vec<String> {
    let mut random = fastrand::Rng::with_seed(seed);
    let (a, b) = maker.pair(wire);
    let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
    let sides = [a, b].map(|end| {
        end.set_nonblocking(true).expect("a mode");
        end.set_timeout(false, Some(SHORT)).expect("an option");
        let (sends, receives, is_blocking, has_ended, is_deaf) = <_>::default();
        Side { handles: vec![end], sends, receives, is_blocking, has_ended, is_deaf }
    });
    let mut program =
        Program { sides, wire, may_refuse: false, is_cut: false, has_moved: false, writer };
    let mut log = Vec::new();
    for _ in 0..random.usize(1..400) {
        let side = random.usize(..2);
        let step = step(&mut random);
        program.settle();
        let seen = program.run(side, &step);
        log.push(format!("{side} {step:?}: {}", seen.unwrap_or_default()));
    }
    drop(program);
    // Passed descriptors are closed: those of a socket that is closed later, too.
    rustix::fs::fcntl_setfl(&reader, rustix::fs::OFlags::NONBLOCK).expect("a mode");
    until("descriptors are closed", || rustix::io::read(&reader, &mut [0]) == Ok(0));
    log
}

impl<E: End> Program<E> {
    /// Waits until the bytes sent have arrived. Between Unix sockets they have arrived when the call
    /// returns.
    fn settle(&mut self) {
        if !mem::take(&mut self.has_moved) {
            return;
        }
        for (from, to) in [(0, 1), (1, 0)] {
            let [from, to] = [&self.sides[from], &self.sides[to]];
            let [sender, receiver] = [from, to].map(|side| side.handles.first());
            if let Some(end) = sender.or(receiver) {
                end.flush();
            }
            if self.wire == Wire::Unix {
                continue;
            }
            let has_events = |end: &E, wanted| !end.events(wanted, Duration::ZERO).is_empty();
            // The congestion window may hold bytes back. A reset drops them.
            let is_sent = |end: &E| end.unsent() == 0 || has_events(end, Events::NONE);
            let expected = from.sends - to.receives;
            let has_arrived = |end: &E| {
                let has_come = end.unread().is_ok_and(|count| count >= expected);
                has_come && (!from.has_ended || has_events(end, Events::RDHUP))
            };
            // The kernel drops bytes that arrive at an end that has shut down both directions.
            let may_drop = self.is_cut || (to.has_ended && to.is_deaf);
            let is_settled =
                || sender.is_none_or(is_sent) && (may_drop || receiver.is_none_or(has_arrived));
            until("sent bytes arrive", is_settled);
        }
        // Of dropped bytes and resets, no call reports the arrival.
        let is_any_deaf = self.sides.iter().any(|side| side.is_deaf);
        if (self.is_cut || is_any_deaf) && self.wire == Wire::Tcp {
            loopback::settle();
        }
    }

    fn run(&mut self, side: usize, step: &Step) -> Option<String> {
        let under_way = self.sides[side].sends - self.sides[1 - side].receives;
        self.has_moved = matches!(
            step,
            Step::Pass { .. } | Step::Shutdown(_) | Step::Close | Step::Reset | Step::Disconnect
        );
        let is_tcp = self.wire == Wire::Tcp;
        let [first, second] = &mut self.sides;
        let (this, peer) = if side == 0 { (first, second) } else { (second, first) };
        let end = this.handles.first()?;
        if is_tcp && matches!(step, Step::Shutdown(_) | Step::Close) {
            // An end of the stream that the congestion window holds back would arrive later.
            until("the window opens", || end.has_window());
        }
        Some(match step {
            Step::Send { lens, more } => {
                let free = UNDER_WAY.saturating_sub(under_way) as usize;
                let (sent, result) = send(end, this.sends, lens, free, *more, self.may_refuse);
                this.sends += sent;
                self.has_moved = sent > 0;
                format!("{sent} {result:?}")
            }
            Step::Recv { lens, flags } => {
                // The kernel would wait until all bytes of the peek are there.
                let can_wait = !flags.contains(RecvFlags::PEEK | RecvFlags::WAITALL) || is_tcp;
                let flags = if can_wait { *flags } else { *flags - RecvFlags::WAITALL };
                let (count, result) = receive(end, this.receives, lens, flags);
                if !flags.contains(RecvFlags::PEEK) {
                    this.receives += count;
                }
                format!("{count} {result:?}")
            }
            Step::Message { len, room, flags } => {
                let mut bytes = vec![0; *len];
                let pieces = &mut [IoSliceMut::new(&mut bytes)];
                let flags = *flags | RecvFlags::DONTWAIT;
                let looks = flags.contains(RecvFlags::PEEK);
                let result = end.message(pieces, *room, flags).map(|(count, flags, fds, name)| {
                    (count, flags & ReturnFlags::CTRUNC, fds, name)
                });
                if let Ok((count, ..)) = result
                    && !looks
                {
                    this.receives += count as u64;
                }
                // A stream of TCP may arrive in other pieces, so the rest of the message is read, too.
                match result {
                    Ok((count, flags, fds, name)) if is_tcp && count > 0 => {
                        let more = if looks { 0 } else { drain(end, this.receives, *len - count) };
                        this.receives += more;
                        format!("{} {flags:?} {fds} {name}", count as u64 + more)
                    }
                    result => format!("{result:?}"),
                }
            }
            Step::Pass { len, count } => {
                if is_tcp || self.may_refuse || UNDER_WAY < under_way + *len as u64 {
                    return None;
                }
                let bytes: Vec<u8> = (this.sends..).map(byte).take(*len).collect();
                let result = end.pass(&bytes, &vec![&self.writer; *count], SendFlags::empty());
                this.sends += *result.as_ref().unwrap_or(&0) as u64;
                format!("{result:?}")
            }
            Step::Blocking(is_blocking) => {
                this.is_blocking = *is_blocking;
                format!("{:?}", end.set_nonblocking(!is_blocking))
            }
            Step::Unread => format!("{:?}", end.unread()),
            Step::Poll => {
                let out = if under_way == 0 { Events::OUT } else { Events::NONE };
                let wanted = Events::IN | out | Events::RDHUP;
                format!("{:?}", end.events(wanted, Duration::ZERO))
            }
            Step::Shutdown(how) => {
                self.may_refuse = true;
                this.has_ended |= *how != Shutdown::Read;
                this.is_deaf |= *how != Shutdown::Write;
                format!("{:?}", end.shutdown(*how))
            }
            Step::Error => format!("{:?}", end.take_error()),
            Step::Peer => format!("{:?}", end.has_peer()),
            Step::Dup => {
                let another = end.another();
                this.handles.push(another);
                if this.handles.len() > 3 {
                    this.handles.swap_remove(0);
                }
                String::new()
            }
            Step::Close | Step::Reset => {
                if matches!(step, Step::Reset) {
                    end.set_linger(Some(Duration::ZERO)).expect("an option");
                }
                this.handles.clear();
                (self.may_refuse, self.is_cut, this.has_ended) = (true, true, true);
                let _ = peer;
                String::new()
            }
            Step::HandBack => {
                end.hand_back();
                String::new()
            }
            Step::KeepAlive(is_on) => format!("{:?}", end.set_keepalive(*is_on)),
            Step::Cork if is_tcp => {
                format!("{:?} {:?}", end.set_cork(true), end.set_cork(false))
            }
            Step::Inline if is_tcp => format!("{:?}", end.set_oobinline()),
            Step::Timeout => {
                let set = end.set_timeout(true, Some(Duration::from_millis(1500)));
                format!("{set:?} {:?} {:?}", end.timeout(true), end.timeout(false).is_ok())
            }
            Step::Disconnect if is_tcp => {
                let result = end.disconnect();
                (self.may_refuse, self.is_cut, this.has_ended) = (true, true, true);
                this.receives = peer.sends;
                format!("{result:?}")
            }
            Step::Cork | Step::Inline | Step::Disconnect => return None,
        })
    }
}

/// Waits until a condition holds.
///
/// On a busy machine the kernel delivers by a thread of its own, which waits for a processor.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    for turn in 0.. {
        if is_so() {
            return;
        }
        assert!(begin.elapsed() < settings::patience(), "waited in vain: {what}");
        if turn < 100 {
            thread::yield_now();
        } else {
            thread::sleep(Duration::from_micros(50));
        }
    }
}

/// Sends bytes from number `first` on, in pieces of `lens`, at most `free`. Returns the number of bytes
/// sent.
fn send<E: End>(
    end: &E,
    first: u64,
    lens: &[usize],
    mut free: usize,
    more: bool,
    may_refuse: bool,
) -> (u64, Result<(), Errno>) {
    let mut next = first;
    let pieces: Vec<Vec<u8>> = lens
        .iter()
        .map(|&len| {
            let len = len.min(free);
            free -= len;
            let piece = (next..).map(byte).take(len).collect();
            next += len as u64;
            piece
        })
        .collect();
    let all = pieces.concat();
    let mut sent = 0;
    // The kernel holds bytes with `MSG_MORE` back for some time, so the last call is without.
    let corked = if more { all.len() / 2 } else { 0 };
    let result = loop {
        let result = if sent == 0 && !more {
            let slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
            end.send(&slices, SendFlags::empty())
        } else if sent < corked {
            end.send(&[IoSlice::new(&all[sent..corked])], SendFlags::MORE)
        } else {
            end.send(&[IoSlice::new(&all[sent..])], SendFlags::DONTWAIT)
        };
        match result {
            Ok(count) => sent += count,
            Err(errno) => break Err(errno),
        }
        if sent == all.len() {
            break Ok(());
        }
    };
    match end.flush_this() {
        Err(errno) if may_refuse && sent > 0 => (0, Err(errno)),
        _ => (sent as u64, result),
    }
}

/// Receives into pieces of `lens` until they are full or no more bytes are there. Returns the number of
/// bytes.
fn receive<E: End>(
    end: &E,
    first: u64,
    lens: &[usize],
    flags: RecvFlags,
) -> (u64, Result<bool, Errno>) {
    let is_once = flags.contains(RecvFlags::PEEK);
    let mut lens = lens.to_vec();
    let mut got = 0;
    loop {
        let mut bytes: Vec<Vec<u8>> = lens.iter().map(|&len| vec![0; len]).collect();
        let want: usize = lens.iter().sum();
        let pieces = &mut bytes.iter_mut().map(|piece| IoSliceMut::new(piece)).collect::<Vec<_>>();
        match end.recv(pieces, flags) {
            Ok(count) => {
                if !flags.contains(RecvFlags::TRUNC) {
                    let expected = (first + got..).map(byte).take(count);
                    let found = bytes.concat();
                    assert!(
                        expected.eq(found[..count].iter().copied()),
                        "other bytes at {first}+{got}: {count} {lens:?} {flags:?}"
                    );
                }
                got += count as u64;
                if is_once || count == 0 || count == want {
                    return (got, Ok(count == 0));
                }
                lens = vec![want - count];
            }
            Err(errno) => return (got, Err(errno)),
        }
    }
}

/// Receives up to `len` bytes that are there. Returns their number.
fn drain<E: End>(end: &E, first: u64, len: usize) -> u64 {
    if len == 0 { 0 } else { receive(end, first, &[len], RecvFlags::DONTWAIT).0 }
}

fn compare(seeds: std::ops::Range<u64>, wire: Wire) {
    each_seed(seeds, |seed| {
        let expected = run(&OfKernel, seed, wire);
        let mut random = fastrand::Rng::with_seed(seed ^ 0x5eed);
        for mode in [PLAIN].into_iter().chain(MODES) {
            let mut options = options(mode);
            // Some queues hold only one message or a part of it.
            options.limits.bytes = random.choice([1, 50, 3000, 64 << 10]).expect("some");
            options.ahead_bytes = random.choice([1, 50, 3000, 64 << 10]).expect("some");
            let found = run(&OfLayer::new(options), seed, wire);
            assert_same(&format!("seed {seed}, {wire:?}, {mode:?}"), &expected, &found);
        }
    });
}

#[test]
fn programs_on_unix_streams_see_the_same_as_on_the_kernel() {
    compare(0..programs(400), Wire::Unix);
}

#[test]
fn programs_on_tcp_see_the_same_as_on_the_kernel() {
    compare(0..programs(60), Wire::Tcp);
}
