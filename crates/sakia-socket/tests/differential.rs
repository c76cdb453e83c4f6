//! The same random programs, on sockets of this library in each mode and on plain ones: the same
//! observations.

use std::fmt::Write as _;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::set_tcp_nodelay;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketType, ipproto};
use sakia_socket::{Events, Kernel, Layer, Options, PollEntry, Socket, When};

/// Bytes under way in one direction at most, so that no buffer of the kernel is ever full.
const UNDER_WAY: usize = 10_000;

#[derive(Clone, Copy, Debug)]
enum Step {
    Send { len: usize, more: bool },
    Recv { len: usize, flags: RecvFlags },
    Unread,
    Poll,
    Shutdown(Shutdown),
    Error,
    Dup,
    Close,
    HandBack,
}

fn step(random: &mut fastrand::Rng) -> Step {
    let len = match random.u8(..8) {
        0 => 0,
        1..=5 => random.usize(1..300),
        6 => random.usize(1..5000),
        _ => random.usize(1..20_000),
    };
    match random.u8(..100) {
        0..40 => Step::Send { len, more: random.u8(..20) == 0 },
        40..75 => {
            let flags = match random.u8(..20) {
                0 | 1 => RecvFlags::PEEK,
                2 => RecvFlags::WAITALL,
                3 => RecvFlags::TRUNC,
                4 => RecvFlags::PEEK | RecvFlags::DONTWAIT,
                _ => RecvFlags::DONTWAIT,
            };
            Step::Recv { len, flags }
        }
        75..82 => Step::Unread,
        82..94 => Step::Poll,
        94..95 => Step::Shutdown(
            random.choice([Shutdown::Read, Shutdown::Write, Shutdown::Both]).expect("three"),
        ),
        95 => Step::Error,
        96 => Step::Dup,
        97 => {
            if random.u8(..4) == 0 {
                Step::Close
            } else {
                Step::Dup
            }
        }
        98 => {
            if random.u8(..8) == 0 {
                Step::HandBack
            } else {
                Step::Unread
            }
        }
        _ => Step::Poll,
    }
}

/// An end of a connection, and the numbers of the next bytes that it sends and receives.
struct End {
    sockets: Vec<Socket<Kernel>>,
    sends: u64,
    receives: u64,
}

fn byte(number: u64) -> u8 {
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn pair(layer: &Layer<Kernel>, is_tcp: bool) -> (Socket<Kernel>, Socket<Kernel>) {
    if !is_tcp {
        return layer.pair(AddressFamily::UNIX, SocketType::STREAM).expect("a pair");
    }
    let listener = layer
        .socket(AddressFamily::INET, SocketType::STREAM, Some(ipproto::TCP))
        .expect("a socket");
    listener.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a port");
    listener.listen(1).expect("a listener");
    let a = layer
        .socket(AddressFamily::INET, SocketType::STREAM, Some(ipproto::TCP))
        .expect("a socket");
    a.connect(&listener.local_address().expect("an address")).expect("a connection");
    let b = listener.accept().expect("a connection").0;
    for end in [&a, &b] {
        set_tcp_nodelay(end.fd(), true).expect("an option");
    }
    (a, b)
}

fn options(read_ahead: When, gather: When) -> Options {
    let mut options = Options::default();
    (options.read_ahead, options.gather) = (read_ahead, gather);
    options
}

/// Runs the program of `seed`. Returns what it saw, a line for each step.
fn run(seed: u64, is_tcp: bool, options: Options) -> String {
    let mut random = fastrand::Rng::with_seed(seed);
    let layer = Layer::new(Kernel, options);
    let (a, b) = pair(&layer, is_tcp);
    let mut ends = [a, b].map(|socket| {
        socket.set_nonblocking(true).expect("a mode");
        End { sockets: vec![socket], sends: 0, receives: 0 }
    });
    let mut log = String::new();
    // Once an end may refuse bytes, an error of delayed ones would be reported later than of plain ones.
    let mut may_refuse = false;
    for _ in 0..random.usize(1..400) {
        let side = random.usize(..2);
        let step = step(&mut random);
        let under_way = ends[side].sends - ends[1 - side].receives;
        if matches!(step, Step::Shutdown(_) | Step::Close)
            && let Some(peer) = ends[1 - side].sockets.first()
        {
            // What the peer sent before arrived before.
            let _ = peer.flush();
        }
        let end = &mut ends[side];
        let Some(socket) = end.sockets.first() else { continue };
        write!(log, "{side} {step:?}: ").expect("memory");
        match step {
            Step::Send { len, more } => {
                let len = len.min(UNDER_WAY.saturating_sub(under_way as usize));
                let bytes: Vec<u8> = (end.sends..).map(byte).take(len).collect();
                // The kernel holds bytes with `MSG_MORE` back for some time, so the last call is without.
                let corked = if more { len / 2 } else { 0 };
                let mut sent = 0;
                let mut result = loop {
                    let (until, flags) = if sent < corked {
                        (corked, SendFlags::MORE)
                    } else {
                        (len, SendFlags::empty())
                    };
                    match socket.send(&bytes[sent..until], flags | SendFlags::NOSIGNAL) {
                        Ok(count) => sent += count,
                        Err(errno) => break Err(errno),
                    }
                    if sent == len {
                        break Ok(());
                    }
                };
                if may_refuse
                    && sent > 0
                    && let Err(errno) = socket.flush()
                {
                    (sent, result) = (0, Err(errno));
                }
                end.sends += sent as u64;
                write!(log, "{sent} {result:?}").expect("memory");
            }
            Step::Recv { len, flags } => {
                layer.flush();
                let mut got = 0;
                let is_peek = flags.contains(RecvFlags::PEEK);
                let result = loop {
                    let mut buffer = vec![0; len - got];
                    match socket.recv(&mut buffer, flags) {
                        Ok(count) => {
                            if !flags.contains(RecvFlags::TRUNC) {
                                let expected = (end.receives..).map(byte).take(count);
                                assert!(
                                    expected.eq(buffer[..count].iter().copied()),
                                    "seed {seed}: {log}"
                                );
                            }
                            if !is_peek {
                                end.receives += count as u64;
                            }
                            got += count;
                            if is_peek || count == 0 || got == len {
                                break Ok(count == 0);
                            }
                        }
                        Err(errno) => break Err(errno),
                    }
                };
                write!(log, "{got} {result:?}").expect("memory");
            }
            Step::Unread => {
                layer.flush();
                write!(log, "{:?}", socket.unread()).expect("memory");
            }
            Step::Poll => {
                // What the peer reads ahead makes room sooner.
                let out = if under_way == 0 { Events::OUT } else { Events::NONE };
                let wanted = Events::IN | out | Events::RDHUP;
                let mut entries = [PollEntry::new(socket, wanted)];
                let count = layer.poll(&mut entries, Some(Duration::ZERO));
                write!(log, "{count:?} {:?}", entries[0].ready()).expect("memory");
            }
            Step::Shutdown(how) => {
                let result = socket.shutdown(how);
                may_refuse = true;
                write!(log, "{result:?}").expect("memory");
            }
            Step::Error => write!(log, "{:?}", socket.take_error()).expect("memory"),
            Step::Dup => {
                let clone = socket.clone();
                end.sockets.push(clone);
                if end.sockets.len() > 3 {
                    end.sockets.swap_remove(0);
                }
            }
            Step::Close => {
                end.sockets.clear();
                may_refuse = true;
            }
            Step::HandBack => {
                layer.flush();
                if let Err(errno) = socket.hand_back() {
                    assert!(matches!(errno, Errno::BUSY | Errno::AGAIN));
                }
            }
        }
        log.push('\n');
    }
    log
}

/// Runs the programs of `seeds` plainly and in each mode.
fn compare(seeds: std::ops::Range<u64>, is_tcp: bool) {
    for seed in seeds {
        let expected = run(seed, is_tcp, options(When::Never, When::Never));
        for (read_ahead, gather) in [
            (When::OnEvidence, When::Never),
            (When::Always, When::Never),
            (When::Never, When::Always),
            (When::OnEvidence, When::OnEvidence),
            (When::Always, When::Always),
        ] {
            let found = run(seed, is_tcp, options(read_ahead, gather));
            let same = expected
                .lines()
                .zip(found.lines())
                .take_while(|(expected, found)| expected == found);
            let before: Vec<&str> = same.map(|(expected, _)| expected).collect();
            let [expected, found] = [&expected, &found].map(|log| log.lines().nth(before.len()));
            let before = before.join("\n");
            assert_eq!(
                expected, found,
                "seed {seed}, read ahead {read_ahead:?}, gather {gather:?}, after\n{before}",
            );
        }
    }
}

/// Between Unix sockets a byte has arrived when its call returns.
#[test]
fn programs_see_the_same_in_every_mode() {
    compare(0..300, false);
}
