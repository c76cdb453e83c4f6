//! The same random programs, on sockets of this library in each mode and on those of the kernel, by rustix:
//! the same observations.
//!
//! `SAKIA_TEST_SOCKET_PROGRAMS` is the number of programs of each kind, for longer runs.
//!
//! These legal differences are not compared (`halves`, `options`, `readiness` and `waits` list more):
//! - the moment at which the host takes delayed bytes: they are sent before the peer is observed;
//! - `POLLOUT` while bytes are under way, since what the peer reads ahead makes room sooner;
//! - the pieces in which a stream arrives: reads continue until they have the requested bytes;
//! - the number of bytes that fit into full buffers, which depends on the pieces in the kernel;
//! - the call that reports a reset, which may come at any time: it is `EPIPE`, `ECONNRESET` or the end.

#[path = "../support/mod.rs"]
mod support;

mod api;
mod crowd;
mod datagrams;
mod halves;
mod options;
mod readiness;
mod streams;
mod threads;
mod urgent;
mod waits;
mod world;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// Programs that run at a time: most of their time passes in waits for the kernel.
const AT_A_TIME: usize = 2;

/// Returns the number of programs: `usual`, unless the environment has another.
fn programs(usual: u64) -> u64 {
    sakia_testkit::settings::number("SAKIA_TEST_SOCKET_PROGRAMS", usual)
}

/// As [`programs`], for programs that take longer than others: a long run has a tenth of its number.
fn few_programs(usual: u64) -> u64 {
    programs(10 * usual) / 10
}

/// Calls `act` for each seed, on several threads. After a panic no other seed is started.
fn each_seed(seeds: Range<u64>, act: impl Fn(u64) + Sync) {
    let next = AtomicU64::new(seeds.start);
    /// If its thread panics, names the seed and ends the loops of all threads.
    struct Running<'a> {
        seed: u64,
        next: &'a AtomicU64,
    }
    impl Drop for Running<'_> {
        fn drop(&mut self) {
            if thread::panicking() {
                eprintln!("in the program of seed {}", self.seed);
                self.next.store(u64::MAX / 2, Ordering::Relaxed);
            }
        }
    }
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            let _running = Running { seed, next: &next };
            act(seed);
        }
    };
    thread::scope(|scope| (0..AT_A_TIME).for_each(|_| drop(scope.spawn(work))));
}

/// Fails if the lines of two logs differ.
fn assert_same(what: &str, expected: &[String], found: &[String]) {
    let same = expected.iter().zip(found).take_while(|(expected, found)| expected == found).count();
    let before = expected[..same].join("\n");
    let (expected, found) = (expected.get(same), found.get(same));
    assert_eq!(expected, found, "{what}, after\n{before}\n");
}

/// Returns the first line that differs.
fn difference(expected: &[String], found: &[String]) -> Option<String> {
    let differ = |place: usize| expected.get(place) != found.get(place);
    let place = (0..expected.len().max(found.len())).find(|&place| differ(place))?;
    Some(format!("the kernel: {:?}\nfound: {:?}", expected.get(place), found.get(place)))
}
