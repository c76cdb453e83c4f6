//! The same seed and the same calls give the same events.

use rustix::fs::OFlags;
use sakia_ring::Sqe;

use super::super::{Sim, SimHandle};
use super::{Lendable, Loop, SEEDS, read, write};
use crate::backend::Backend;

/// Runs every kind of event that a seed decides. Never waits for ever: operations still in flight at the
/// end are abandoned.
fn run(seed: u64, keep_log: bool) -> SimHandle {
    let builder = Sim::builder(seed).entries(4, 6).chaos(1 << 11).keep_log(keep_log);
    let mut ring = Loop::new(builder.late_writes(1 << 14).pipe_bytes(3));
    ring.handle.create_file("f", "abcdef");
    let (read_end, write_end) = ring.handle.pipe();
    let steps = if cfg!(miri) { 20 } else { 60 };
    let buffers: Vec<_> = (0..steps).map(|_| Lendable::new(b"data")).collect();
    let path = Lendable::new(b"f\0");
    let mut reaped = Vec::new();
    for (user_data, buffer) in (0..).zip(&buffers) {
        let sqe = match user_data % 6 {
            0 => Sqe::openat(sakia_ring::AT_FDCWD, path.ptr(), OFlags::RDWR.bits(), 0),
            1 => read(5, buffer, 0),
            2 => write(5, buffer, user_data),
            3 => read(read_end, buffer, 0),
            4 => write(write_end, buffer, 0),
            _ => Sqe::cancel(user_data - 3),
        };
        if ring.sim.sq_pending() < ring.sim.features().sq_entries {
            ring.push(user_data, sqe);
        }
        if user_data % 3 == 0 {
            ring.sim.submit().ok();
        } else {
            ring.sim.enter(1, Some(std::time::Duration::from_micros(50)), None).ok();
        }
        reaped.extend(ring.reap());
    }
    assert!(!reaped.is_empty());
    // The ring is dropped before the memory that is lent to operations in flight.
    let handle = ring.handle.clone();
    drop(ring);
    handle
}

#[test]
fn the_same_seed_gives_the_same_log() {
    for seed in 0..SEEDS / 5 {
        let (first, second) = (run(seed, true), run(seed, true));
        assert_eq!(first.log_text(), second.log_text());
        assert_eq!(first.log_hash(), second.log_hash());
        assert!(first.log_text().lines().count() > 50);
    }
}

#[test]
fn different_seeds_give_different_logs() {
    let mut hashes: Vec<u64> = (0..SEEDS).map(|seed| run(seed, false).log_hash()).collect();
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), SEEDS as usize);
}

#[test]
fn different_data_gives_a_different_log() {
    let hash = |content: &str| {
        let mut ring = Loop::inline();
        ring.handle.create_file("f", content);
        let fd = ring.open(c"f", OFlags::RDONLY);
        let buffer = Lendable::zeroed(3);
        assert_eq!(ring.run(read(fd, &buffer, 0)), 3);
        ring.handle.log_hash()
    };
    assert_eq!(hash("abc"), hash("abc"));
    assert_ne!(hash("abc"), hash("abd"));
}

#[test]
fn keeping_the_text_changes_nothing() {
    let hash = |keep| {
        let mut sim = Sim::builder(1).keep_log(keep).build();
        // SAFETY: a no-op names no memory.
        assert!(unsafe { sim.push(Sqe::nop()) }.is_some());
        sim.enter(1, None, None).unwrap();
        (sim.handle().log_hash(), sim.handle().log_text().is_empty())
    };
    assert_eq!(hash(true), (hash(false).0, false));
    assert!(hash(false).1);
}
