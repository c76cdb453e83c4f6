//! Programs on datagrams: bounds, truncation, peers that leave.

use std::io::{IoSlice, IoSliceMut};
use std::mem;
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, ReturnFlags, SendFlags, Shutdown};
use sakia_socket::Events;
use sakia_testkit::settings;

use crate::api::{End, Maker, OfKernel, OfLayer, Wire};
use crate::support::{MODES, PLAIN, byte, options};
use crate::{assert_same, each_seed, programs};

/// The maximum number of datagrams under way: fewer than the queue of a Unix socket holds.
const UNDER_WAY: usize = 8;

/// Waits until an end has one of these events.
///
/// On a busy machine the kernel delivers by a thread of its own, which waits for a processor.
fn settle(end: &impl End, wanted: Events) {
    let begin = Instant::now();
    while end.events(wanted, Duration::from_millis(1)).is_empty() {
        assert!(begin.elapsed() < settings::patience(), "a sent datagram does not arrive");
    }
}

/// Runs the program of `seed`. Returns its observations, a line for each step.
fn run<M: Maker>(maker: &M, seed: u64, wire: Wire) -> Vec<String> {
    let mut random = fastrand::Rng::with_seed(seed);
    let (a, b) = maker.pair(wire);
    let mut ends = [a, b].map(|end| {
        end.set_nonblocking(true).expect("a mode");
        end.set_timeout(false, Some(Duration::from_millis(1))).expect("an option");
        vec![end]
    });
    let mut under_way = [0; 2];
    // A datagram to the end, from a peer that has it as its peer, was sent since the end was used.
    let mut is_awaited = [false; 2];
    let mut is_closed = [false; 2];
    let mut log = Vec::new();
    let mut number = 0;
    for _ in 0..random.usize(1..300) {
        let side = random.usize(..2);
        let Some(end) = ends[side].first() else { continue };
        if mem::take(&mut is_awaited[side]) && under_way[1 - side] > 0 {
            settle(end, Events::IN);
        }
        let action = random.u8(..100);
        let seen = match action {
            0..35 if under_way[side] < UNDER_WAY => {
                let lens: Vec<usize> =
                    (0..random.usize(1..4)).map(|_| random.usize(..1500)).collect();
                number += 1;
                let pieces: Vec<Vec<u8>> =
                    lens.iter().map(|&len| vec![byte(number); len]).collect();
                let slices: Vec<IoSlice<'_>> =
                    pieces.iter().map(|piece| IoSlice::new(piece)).collect();
                let result = end.send(&slices, SendFlags::empty());
                under_way[side] += usize::from(result.is_ok());
                if wire == Wire::Udp && result.is_ok() {
                    match is_closed[1 - side] {
                        true => settle(end, Events::ERR),
                        false => is_awaited[1 - side] = true,
                    }
                }
                format!("send {lens:?} {result:?}")
            }
            35..80 => {
                let flags = random
                    .choice([
                        RecvFlags::empty(),
                        RecvFlags::DONTWAIT,
                        RecvFlags::PEEK | RecvFlags::DONTWAIT,
                        RecvFlags::TRUNC | RecvFlags::DONTWAIT,
                        RecvFlags::TRUNC | RecvFlags::PEEK | RecvFlags::DONTWAIT,
                        RecvFlags::WAITALL | RecvFlags::DONTWAIT,
                    ])
                    .expect("some");
                let (mut first, mut second) =
                    (vec![0; random.usize(..1000)], vec![0; random.usize(..3000)]);
                let room = first.len() + second.len();
                let pieces = &mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
                let (result, count) = if random.bool() {
                    let result = end.recv(pieces, flags);
                    (format!("{result:?}"), result.ok())
                } else {
                    let result = end.message(pieces, random.usize(..60), flags).map(|message| {
                        let flags = message.1 & (ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
                        (message.0, flags, message.2, message.3)
                    });
                    (format!("{result:?}"), result.ok().map(|message| message.0))
                };
                if count.is_some() && !flags.contains(RecvFlags::PEEK) {
                    under_way[1 - side] = under_way[1 - side].saturating_sub(1);
                }
                let bytes = [first, second].concat();
                let bytes = &bytes[..count.unwrap_or(0).min(room)];
                let values = (bytes.first(), bytes.last());
                format!("receive {flags:?} {result} {values:?}")
            }
            80..90 => {
                let wanted = Events::IN | Events::RDHUP;
                format!("{:?} {:?}", end.events(wanted, Duration::ZERO), end.unread())
            }
            90..93 => format!("{:?} {:?}", end.take_error(), end.has_peer()),
            93 => format!("{:?}", end.set_nonblocking(random.bool())),
            94 => {
                let how = random.choice([Shutdown::Read, Shutdown::Write, Shutdown::Both]);
                format!("{:?}", end.shutdown(how.expect("three")))
            }
            95 if wire == Wire::Udp => format!("{:?} {:?}", end.disconnect(), end.has_peer()),
            96 => {
                end.hand_back();
                let another = end.another();
                ends[side] = vec![another];
                String::new()
            }
            97 if random.bool() => {
                ends[side].clear();
                is_closed[side] = true;
                under_way[1 - side] = 0;
                String::new()
            }
            _ => String::new(),
        };
        log.push(format!("{side}: {seen}"));
    }
    log
}

#[test]
fn programs_on_datagrams_see_the_same_as_on_the_kernel() {
    each_seed(0..programs(300), |seed| {
        for wire in [Wire::UnixDatagrams, Wire::Udp] {
            let expected = run(&OfKernel, seed, wire);
            for mode in [PLAIN].into_iter().chain(MODES) {
                let found = run(&OfLayer::new(options(mode)), seed, wire);
                assert_same(&format!("seed {seed}, {wire:?}, {mode:?}"), &expected, &found);
            }
        }
    });
}
