//! Random programs of socket options, on sockets of this library and on those of the kernel.
//!
//! The kernel's side makes `setsockopt(2)` and `getsockopt(2)` themselves, with any level, name, bytes and
//! length. Compared are the result of each call, the length and bytes of each answer, options that are set
//! and read by their names and types, and the time limit of a receive of all in the end. The sockets are of
//! each kind, and in between they are bound, connected, made to listen, shut down and sent bytes to.
//!
//! A host with the complete calls has no differences. [`Kernel`] has these, which are wanted, since it makes
//! only calls that rustix has in a safe form:
//! - an option that is not in the lists below is `ENOPROTOOPT`, whatever the socket;
//! - the seconds of an `SO_LINGER` that is off are 0, and not those that it had;
//! - the seconds of an `SO_LINGER` are those of a signed number at most;
//! - a negative time limit ends a wait after a tick of the kernel's clock, not at once, and is read as that.
//!
//! Left out are the values that the kernel changes by itself: `SO_COOKIE`, `SO_INCOMING_CPU`, `TCP_QUICKACK`,
//! `TCP_TIMESTAMP`, and of a connection `IP_MTU` and `TCP_MAXSEG`. So are options whose bytes are an address,
//! which would not be safe.

mod ends;
mod steps;
mod typed;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown, SocketType};
use sakia_socket::sockopt::SOL_SOCKET;
use sakia_socket::{Host, Kernel, Layer};
use sakia_testkit::loopback;
use sakia_testkit::random::{self, Random};

use self::ends::{OfKernel, One, Source};
use self::steps::{
    IP, IPV6, KINDS, Kind, READS, SETS, Step, TCP, UNREADABLE, is_in, pair, program,
};
use self::typed::TYPED;
use crate::support::watched::Watched;
use crate::support::{MODES, PLAIN, delayed, options};
use crate::{difference, few_programs};

/// Runs a program. Returns its observations, a line for each step; `is_partial` if the wanted differences of
/// [`Kernel`] are to be left out.
fn run<S: Source>(source: &S, steps: &[Step], is_partial: bool) -> Vec<String> {
    let kind = match steps {
        [Step::Kind(kind), ..] => *kind,
        _ => Kind::Tcp,
    };
    let (one, mut peer) = match kind {
        Kind::UnixStream | Kind::UnixDatagrams => {
            let (one, peer) = source.two(kind);
            (one, Some(peer))
        }
        _ => (source.one(kind), None),
    };
    let is_stream = kind.of().1 == SocketType::STREAM;
    let (mut is_listening, mut is_shut) = (false, false);
    // Time limits that were set to a negative number.
    let mut are_negative = [false; 2];
    let mut log = Vec::new();
    for step in steps {
        let seen = match step {
            Step::Set { level, name, value } => {
                let is_long = (*level, *name) == (SOL_SOCKET, 13)
                    && value
                        .get(4..8)
                        .and_then(<[u8]>::first_chunk)
                        .is_some_and(|seconds| i32::from_ne_bytes(*seconds) < 0);
                if is_partial && (is_long || !is_in(SETS, *level, *name)) {
                    continue;
                }
                let result = one.set(*level, *name, value);
                if *level == SOL_SOCKET && [20, 21].contains(name) && result.is_ok() {
                    are_negative[(*name - 20) as usize] =
                        value.first_chunk().is_some_and(|word| isize::from_ne_bytes(*word) < 0);
                }
                // Of a size that is set by force, the other name is read.
                let forced =
                    [(32, 7), (33, 8)].iter().find(|of| (SOL_SOCKET, of.0) == (*level, *name));
                let read = forced.map_or(*name, |of| of.1);
                let now = get(&one, (*level, read), 16, is_partial, are_negative, peer.is_some());
                format!("{result:?}, now {now:?}")
            }
            Step::Get { level, name, len } => {
                match get(&one, (*level, *name), *len, is_partial, are_negative, peer.is_some()) {
                    Some(seen) => seen,
                    None => continue,
                }
            }
            Step::Time { which, time } => {
                let result = one.set_time(*which, *time);
                if *which < 2 && result.is_ok() {
                    are_negative[*which] = false;
                }
                let name = [20, 21, 13][*which];
                let now =
                    get(&one, (SOL_SOCKET, name), 16, is_partial, are_negative, peer.is_some());
                format!("{result:?}, now {now:?} {:?}", one.time(*which))
            }
            Step::Typed { which, value } => {
                let (level, name, _) = TYPED[*which];
                let is_known = is_in(SETS, level, name) || is_in(READS, level, name);
                if is_partial && !is_known {
                    continue;
                }
                // An option that cannot be set has another reason without a safe call.
                let is_set = !is_partial || is_in(SETS, level, name);
                let set = is_set.then(|| one.set_typed(*which, *value));
                let now = get(&one, (level, name), 4, is_partial, are_negative, peer.is_some());
                let typed = now.is_some() && name != 12;
                format!("{set:?}, now {now:?} {:?}", typed.then(|| one.typed(*which)))
            }
            Step::Bind => match kind.address() {
                Some(address) => format!("{:?}", one.bind(&address)),
                None => continue,
            },
            Step::Listen if is_stream && peer.is_none() => {
                let result = one.listen();
                is_listening |= result.is_ok();
                format!("{result:?}")
            }
            // With a negative limit the kernel does not wait for the connection.
            Step::Connect if is_partial && are_negative[1] => continue,
            Step::Connect if peer.is_none() && !is_listening && !is_shut => {
                let Some(address) = kind.address() else { continue };
                let other = source.one(kind);
                let mut result = other.bind(&address);
                if is_stream {
                    result = result.and_then(|()| other.listen());
                }
                result = result.and_then(|()| one.connect(&other.local()));
                if result.is_ok() {
                    peer = Some(if is_stream {
                        other.accept().expect("a connection")
                    } else {
                        let _ = other.connect(&one.local());
                        other
                    });
                }
                format!("{result:?}")
            }
            // Refused sends are compared by other programs.
            Step::Send if is_listening || is_shut => continue,
            Step::Send => {
                let sent = one.send(b"abc");
                let back = peer.as_ref().map(|peer| peer.send(b"defg"));
                format!("{sent:?} {back:?}")
            }
            Step::Shutdown(how) => {
                let result = one.shutdown(*how);
                is_listening &= result.is_err();
                is_shut = true;
                format!("{result:?}")
            }
            Step::Kind(_) | Step::Listen | Step::Connect => continue,
        };
        one.flush();
        loopback::settle();
        log.push(format!("{step:?}: {seen}"));
    }
    let is_negative = is_partial && are_negative[0];
    if let (true, false, false, Some(peer)) = (is_stream, is_shut, is_negative, &peer) {
        log.push(wait_for_all(&one, peer));
    }
    log
}

/// Reads an option. Returns what is to be compared of the answer.
fn get<O: One>(
    one: &O,
    (level, name): (i32, i32),
    len: usize,
    is_partial: bool,
    are_negative: [bool; 2],
    is_connected: bool,
) -> Option<String> {
    let is_known = is_in(SETS, level, name) || is_in(READS, level, name);
    if is_partial && (!is_known || is_in(UNREADABLE, level, name)) {
        return None;
    }
    let mut value = vec![0; len];
    let result = one.get(level, name, &mut value);
    if is_partial && (level, name) == (SOL_SOCKET, 13) && value.starts_with(&[0; 4]) {
        value.fill(0);
    }
    let is_negative =
        level == SOL_SOCKET && [20, 21].contains(&name) && are_negative[(name - 20) as usize];
    // A route is looked up when a packet is sent, at the latest.
    if is_connected && [(TCP, 2), (IP, 14), (IPV6, 24)].contains(&(level, name)) {
        return None;
    }
    let is_volatile = [(SOL_SOCKET, 57), (SOL_SOCKET, 49), (TCP, 12), (TCP, 24)]
        .contains(&(level, name))
        || is_partial && is_negative;
    Some(if is_volatile { format!("{result:?}") } else { format!("{result:?} {value:?}") })
}

/// Receives more than is there, which takes the time limit or until the peer sends the rest.
fn wait_for_all<O: One>(one: &O, peer: &O) -> String {
    let mut limit = [0; 16];
    let Ok(16) = one.get(SOL_SOCKET, 20, &mut limit) else { return "no limit to read".to_owned() };
    // None, and not a negative one.
    let is_endless = limit == [0; 16] && one.set(SOL_SOCKET, 20, &limit).is_ok();
    let words = limit.as_chunks::<8>().0;
    let is_short = !is_endless && words[0] == [0; 8];
    if !is_endless && !is_short {
        return "a long time".to_owned();
    }
    // Whatever is there is taken first.
    let _ = one.recv(&mut [0; 1000], RecvFlags::DONTWAIT);
    let _ = one.recv(&mut [0; 1000], RecvFlags::DONTWAIT);
    if peer.send(b"1") != Ok(1) {
        return "no peer".to_owned();
    }
    peer.flush();
    loopback::settle();
    let mut out = [0; 2];
    let is_over = AtomicBool::new(false);
    let result = thread::scope(|scope| {
        let is_over = &is_over;
        if is_endless {
            scope.spawn(move || {
                thread::sleep(Duration::from_millis(3));
                let _ = peer.send(b"2");
                peer.flush();
                // With some options it never arrives.
                for _ in 0..100 {
                    thread::sleep(Duration::from_millis(1));
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                }
                let _ = one.shutdown(Shutdown::Read);
            });
        }
        let result = one.recv(&mut out, RecvFlags::WAITALL);
        is_over.store(true, Ordering::Relaxed);
        result
    });
    format!("received {result:?} {out:?}")
}

#[test]
fn options_are_those_of_the_kernel() {
    random::programs(few_programs(150), program, |steps| {
        let layer = Layer::new(Watched::default(), delayed());
        difference(&run(&OfKernel, steps, false), &run(&layer, steps, false))
    });
}

#[test]
fn options_with_a_safe_call_are_those_of_the_kernel() {
    random::programs(few_programs(400), program, |steps| {
        let layer = Layer::new(Kernel, options(MODES[0]));
        difference(&run(&OfKernel, steps, true), &run(&layer, steps, true))
    });
}

#[test]
fn options_without_a_safe_call_are_refused() {
    let layer = Layer::new(Kernel, options(PLAIN));
    for kind in KINDS {
        let (_, socket) = layer.one(kind);
        let mut random = Random::new(1);
        for _ in 0..200 {
            let (level, name) = pair(&mut random);
            if !is_in(SETS, level, name) {
                let result = socket.set_option_raw(level, name, &[1; 16]);
                assert_eq!(result, Err(Errno::NOPROTOOPT), "{kind:?} {level} {name}");
                if !is_in(READS, level, name) || is_in(UNREADABLE, level, name) {
                    let result = socket.option_raw(level, name, &mut [0; 16]);
                    assert_eq!(result, Err(Errno::NOPROTOOPT), "{kind:?} {level} {name}");
                }
            }
        }
    }
}

/// The descriptors that an error of an option may depend on: sockets of each kind, and what is no socket.
fn descriptors() -> Vec<(String, OwnedFd)> {
    let of_kind = |kind: Kind| (format!("{kind:?}"), OfKernel.one(kind));
    let no_socket = rustix::pipe::pipe().expect("a pipe").0;
    KINDS.into_iter().map(of_kind).chain([("a pipe".to_owned(), no_socket)]).collect()
}

/// Each option, read and set by a value of each length, answers what the call itself does. With less than a
/// number, and on descriptors without the option, these are errors.
#[test]
fn each_option_of_each_descriptor_tells_its_errors() {
    for (kind, fd) in descriptors() {
        for (level, names) in SETS.iter().chain(READS) {
            for &name in *names {
                let what = format!("{kind} {level} {name}");
                for len in (0..=4).chain([8, 16]) {
                    let mut values = [vec![0xa5; len], vec![0xa5; len]];
                    let [ours, its] = &mut values;
                    let read = Kernel.option(&fd, *level, name, ours);
                    let expected = Watched::default().option(&fd, *level, name, its);
                    let is_readable = !is_in(UNREADABLE, *level, name);
                    assert!(read == expected || !is_readable, "{what}: {read:?}, not {expected:?}");
                    // The time of an `SO_LINGER` that is off is not kept.
                    let is_same = values[0] == values[1] || (*level, name) == (SOL_SOCKET, 13);
                    assert!(is_same || !is_readable, "{what}: {values:?}");
                }
                // Only what sets nothing: the next descriptor of the kind would be another one.
                for value in [&[][..], &[1], &[1; 3]] {
                    if !is_in(SETS, *level, name) {
                        continue;
                    }
                    let set = Kernel.set_option(&fd, *level, name, value);
                    let expected = Watched::default().set_option(&fd, *level, name, value);
                    assert_eq!(set, expected, "{what} {value:?}");
                }
            }
        }
    }
}
