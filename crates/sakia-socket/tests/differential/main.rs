//! The same random programs, on sockets of this library in each mode and on those of the kernel, by rustix:
//! the same observations.
//!
//! `SAKIA_TEST_SOCKET_PROGRAMS` is the number of programs of each kind, for longer runs.
//!
//! What differs legally, and is not compared:
//! - when the host takes delayed bytes: they are sent before the peer is observed;
//! - `POLLOUT` while bytes are under way, since what the peer reads ahead makes room sooner;
//! - in which pieces a stream arrives: reads go on until they have what they asked for;
//! - how many bytes fit into full buffers, which depends on the pieces in the kernel;
//! - which call learns of a reset that comes at any time: it is `EPIPE`, `ECONNRESET` or the end.

#[path = "../support/mod.rs"]
mod support;

mod api;
mod datagrams;
mod streams;
mod threads;
mod urgent;

/// The number of programs, unless the environment has another.
fn programs(usual: u64) -> u64 {
    match std::env::var("SAKIA_TEST_SOCKET_PROGRAMS") {
        Ok(number) => number.parse().expect("SAKIA_TEST_SOCKET_PROGRAMS is a number"),
        Err(_) => usual,
    }
}

/// Fails if the lines of two logs differ.
fn assert_same(what: &str, expected: &[String], found: &[String]) {
    let same = expected.iter().zip(found).take_while(|(expected, found)| expected == found).count();
    let before = expected[..same].join("\n");
    let (expected, found) = (expected.get(same), found.get(same));
    assert_eq!(expected, found, "{what}, after\n{before}\n");
}
