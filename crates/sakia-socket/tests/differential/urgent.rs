//! Programs of one thread with urgent data.
//!
//! At most one urgent byte is on its way to an end. The kernel makes an earlier one part of the stream if
//! it was not read yet, and reading ahead changes whether it was.

use std::io::{IoSlice, IoSliceMut};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, SendFlags};
use sakia_socket::Events;
use sakia_testkit::{loopback, settings};

use crate::api::{End, Maker, OfKernel, OfLayer, Wire};
use crate::support::{MODES, PLAIN, byte, options};
use crate::{assert_same, each_seed, programs};

/// The maximum number of bytes under way in one direction, so that no buffer of the kernel is ever full.
const UNDER_WAY: u64 = 10_000;
const URGENT: u8 = b'!';

#[derive(Clone, Copy, Debug)]
enum Step {
    Send(usize),
    /// The last byte is urgent.
    Urge(usize),
    Recv(usize, RecvFlags),
    RecvUrgent(RecvFlags),
    /// Receives from the queue of errors, which is empty.
    RecvErrors,
    Poll,
    Unread,
    Inline,
}

impl Step {
    fn random(random: &mut fastrand::Rng) -> Self {
        let len = match random.u8(..8) {
            0 => random.usize(..6000),
            _ => random.usize(..300),
        };
        match random.u8(..100) {
            0..30 => Self::Send(len),
            30..40 => Self::Urge(len),
            40..70 => {
                let flags = if random.u8(..5) == 0 { RecvFlags::PEEK } else { RecvFlags::empty() };
                Self::Recv(len, flags)
            }
            70..78 => {
                let flags = if random.bool() { RecvFlags::PEEK } else { RecvFlags::empty() };
                Self::RecvUrgent(flags)
            }
            78..90 => Self::Poll,
            90..97 => Self::Unread,
            97 => Self::RecvErrors,
            _ => Self::Inline,
        }
    }
}

/// An end of a connection, and the numbers of the next bytes that it sends and receives.
struct Side<E> {
    end: E,
    sends: u64,
    receives: u64,
    /// The number of the byte behind the last urgent one sent here, until the stream behind it is received.
    mark: Option<u64>,
    is_inline: bool,
}

/// Runs the program of `seed`. Returns its observations, a line for each step.
fn run<M: Maker>(maker: &M, seed: u64) -> Vec<String> {
    let mut random = fastrand::Rng::with_seed(seed);
    let (a, b) = maker.pair(Wire::Tcp);
    let mut sides = [a, b].map(|end| {
        end.set_nonblocking(true).expect("a mode");
        Side { end, sends: 0, receives: 0, mark: None, is_inline: false }
    });
    let mut log = Vec::new();
    for _ in 0..random.usize(1..200) {
        let (side, step) = (random.usize(..2), Step::random(&mut random));
        let seen = act(&mut sides, side, step);
        log.push(format!("{side} {step:?}: {}", seen.unwrap_or_default()));
    }
    log
}

fn act<E: End>(sides: &mut [Side<E>; 2], side: usize, step: Step) -> Option<String> {
    let [first, second] = sides;
    let (this, peer) = if side == 0 { (first, second) } else { (second, first) };
    let end = &this.end;
    let on_its_way = this.sends - peer.receives;
    Some(match step {
        Step::Send(len) => {
            let len = len.min(UNDER_WAY.saturating_sub(on_its_way) as usize);
            let bytes: Vec<u8> = (this.sends..).map(byte).take(len).collect();
            let result = end.send(&[IoSlice::new(&bytes)], SendFlags::empty());
            this.sends += *result.as_ref().unwrap_or(&0) as u64;
            arrive(this, peer);
            format!("{result:?}")
        }
        Step::Urge(len) => {
            if on_its_way > 0 || peer.mark.is_some() || peer.is_inline {
                return None;
            }
            let mut bytes: Vec<u8> = (this.sends..).map(byte).take(len).collect();
            bytes.push(URGENT);
            let result = end.send(&[IoSlice::new(&bytes)], SendFlags::OOB);
            assert_eq!(result, Ok(len + 1));
            this.sends += len as u64;
            peer.mark = Some(this.sends);
            arrive(this, peer);
            String::new()
        }
        Step::Recv(len, flags) => {
            let mut all = 0;
            let looks = flags.contains(RecvFlags::PEEK);
            let result = loop {
                let mut bytes = vec![0; len - all];
                let pieces = &mut [IoSliceMut::new(&mut bytes)];
                match end.recv(pieces, flags) {
                    Ok(count) => {
                        let expected = (this.receives..).map(byte).take(count);
                        let found = bytes[..count].iter().copied();
                        assert!(expected.eq(found), "other bytes at {}", this.receives);
                        all += count;
                        if looks || count == 0 {
                            break Ok(());
                        }
                        this.receives += count as u64;
                        pass(&mut this.mark, this.receives);
                        if all == len {
                            break Ok(());
                        }
                    }
                    Err(errno) => break Err(errno),
                }
            };
            // The number of bytes that a peek sees depends on the pieces in the kernel.
            if looks { format!("{:?}", result.is_ok()) } else { format!("{all} {result:?}") }
        }
        Step::RecvUrgent(flags) => {
            let mut bytes = [0; 2];
            let result = end.recv(&mut [IoSliceMut::new(&mut bytes)], flags | RecvFlags::OOB);
            format!("{result:?} {bytes:?}")
        }
        Step::Poll => {
            let wanted = Events::IN | Events::PRI | Events::RDHUP;
            format!("{:?}", end.events(wanted, Duration::ZERO))
        }
        Step::Unread => format!("{:?}", end.unread()),
        Step::RecvErrors => {
            let result = end.recv(&mut [IoSliceMut::new(&mut [0; 9])], RecvFlags::ERRQUEUE);
            format!("{result:?}")
        }
        Step::Inline => {
            if this.mark.is_some() {
                return None;
            }
            this.is_inline = true;
            format!("{:?}", end.set_oobinline())
        }
    })
}

/// Waits until the bytes sent have arrived.
fn arrive<E: End>(from: &Side<E>, to: &Side<E>) {
    from.end.flush();
    if to.mark.is_some() {
        // The kernel counts unread bytes up to the urgent one only.
        return loopback::settle();
    }
    let expected = from.sends - to.receives;
    let begin = Instant::now();
    while !to.end.unread().is_ok_and(|count| count >= expected) {
        assert!(begin.elapsed() < settings::patience(), "sent bytes do not arrive");
        thread::yield_now();
    }
}

/// Forgets the urgent byte once the stream behind it was received.
fn pass(mark: &mut Option<u64>, receives: u64) {
    *mark = mark.filter(|&mark| receives <= mark);
}

#[test]
fn programs_with_urgent_data_see_the_same_as_on_the_kernel() {
    each_seed(0..programs(60), |seed| {
        let expected = run(&OfKernel, seed);
        let mut random = fastrand::Rng::with_seed(seed ^ 0x5eed);
        for mode in [PLAIN].into_iter().chain(MODES) {
            let mut options = options(mode);
            options.ahead_bytes = random.choice([1, 50, 3000, 64 << 10]).expect("some");
            let found = run(&OfLayer::new(options), seed);
            assert_same(&format!("seed {seed}, {mode:?}"), &expected, &found);
        }
    });
}
