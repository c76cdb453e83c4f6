//! Multishot operations: their completions, their ends, and the owners of the buffers.

use core::net::SocketAddr;
use std::collections::BTreeSet;
use std::time::Duration;

use rustix::io::Errno;
use sakia_ring::{Cqe, Opcode, Sqe};

use super::super::{Fault, FaultKind, Routes, SCRIBBLE, Sim, SimBuilder, SimHandle, Target};
use super::{Lendable, Loop, SEEDS, err};
use crate::address::SocketType;
use crate::address::{Domain, SocketAddress};
use crate::backend::Backend;

/// One completion: result, whether more will follow, and the number of the buffer.
type Shot = (i32, bool, Option<u16>);

fn shot(cqe: &Cqe) -> Shot {
    (cqe.res, cqe.flags.has_more(), cqe.flags.buffer_id())
}

/// Memory for the buffers of group 0.
struct Pool(Lendable, u32);

impl Pool {
    fn empty(ring: &mut Loop, count: u16, len: u32) -> Self {
        ring.sim.register_group(0, count).unwrap();
        Self(Lendable::zeroed(usize::from(count) * len as usize), len)
    }

    fn new(ring: &mut Loop, count: u16, len: u32) -> Self {
        let pool = Self::empty(ring, count, len);
        (0..count).for_each(|id| pool.provide(ring, id));
        pool
    }

    fn provide(&self, ring: &mut Loop, id: u16) {
        let addr = self.0.ptr().wrapping_add(usize::from(id) * self.1 as usize);
        // SAFETY: the tests keep the pool as long as the simulation runs, and give no buffer twice.
        unsafe { ring.sim.provide(0, id, addr, self.1) };
    }

    /// Returns the current bytes of a buffer.
    fn bytes(&self, id: u16, len: usize) -> Vec<u8> {
        let begin = usize::from(id) * self.1 as usize;
        self.0.copy()[begin..begin + len].to_vec()
    }
}

impl Loop {
    /// Finishes ready operations. Returns the completions of one operation.
    #[track_caller]
    fn shots(&mut self, user_data: u64) -> Vec<Shot> {
        self.sim.enter(256, Some(Duration::from_secs(1)), None).unwrap();
        self.reap_shots(user_data)
    }

    #[track_caller]
    fn reap_shots(&mut self, user_data: u64) -> Vec<Shot> {
        let mut out = [Cqe::default(); 64];
        let count = self.sim.reap(&mut out);
        assert!(out[..count].iter().all(|cqe| cqe.user_data == user_data), "{:?}", &out[..count]);
        out[..count].iter().map(shot).collect()
    }

    fn listen(&mut self) -> (i32, SocketAddress) {
        let raw = self.run(Sqe::socket(Domain::INET.0.into(), SocketType::STREAM.0, 0));
        assert!(raw >= 0);
        let address = SocketAddress::from(SocketAddr::from(([127, 0, 0, 1], 80)));
        let bytes = Lendable::new(address.as_bytes());
        assert_eq!(self.run(Sqe::bind(raw, bytes.ptr(), bytes.len())), 0);
        assert_eq!(self.run(Sqe::listen(raw, 16)), 0);
        (raw, address)
    }
}

#[test]
fn each_message_comes_in_a_buffer_of_its_own_until_the_end() {
    for routes in [Routes::INLINE, Routes::DEFERRED, Routes::WORKER, Routes::MIXED] {
        let mut ring = Loop::new(Sim::builder(1).routes(routes));
        let pool = Pool::new(&mut ring, 4, 8);
        let (near, far) = ring.handle.socket_pair();
        ring.push(1, Sqe::recv_multishot(near, 0, 0).poll_first());
        assert_eq!(ring.shots(1), []);
        for (id, text) in [(0, "ab"), (1, "cde"), (2, "fghijkl")] {
            ring.handle.send_peer(far, text.as_bytes()).unwrap();
            assert_eq!(ring.shots(1), [(text.len() as i32, true, Some(id))]);
            assert_eq!(pool.bytes(id, text.len()), text.as_bytes());
        }
        pool.provide(&mut ring, 0);
        ring.handle.close(far).unwrap();
        assert_eq!(ring.shots(1), [(0, false, None)]);
        assert_eq!(ring.handle.in_flight(), 0);
        // The end took no buffer, and returned buffers are used last.
        let (near, far) = ring.handle.socket_pair();
        ring.handle.send_peer(far, b"0123456789").unwrap();
        ring.push(2, Sqe::recv_multishot(near, 0, 0));
        assert_eq!(ring.shots(2), [(8, true, Some(3)), (2, true, Some(0))]);
    }
}

#[test]
fn without_buffers_it_ends_and_the_bytes_stay() {
    let mut ring = Loop::inline();
    let pool = Pool::empty(&mut ring, 1, 2);
    let (near, far) = ring.handle.socket_pair();
    let no_buffers = (err(Errno::NOBUFS), false, None);
    ring.push(1, Sqe::recv_multishot(near, 0, 0));
    assert_eq!(ring.shots(1), [], "there is nothing to put in a buffer");
    ring.handle.send_peer(far, b"abcd").unwrap();
    assert_eq!(ring.shots(1), [no_buffers]);
    pool.provide(&mut ring, 0);
    ring.push(2, Sqe::recv_multishot(near, 0, 0));
    assert_eq!(ring.shots(2), [(2, true, Some(0)), no_buffers]);
    pool.provide(&mut ring, 0);
    ring.push(3, Sqe::recv_multishot(near, 0, 0));
    assert_eq!(ring.shots(3), [(2, true, Some(0))]);
    assert_eq!(pool.bytes(0, 2), b"cd");
    ring.handle.close(far).unwrap();
    assert_eq!(ring.shots(3), [(0, false, None)], "the end needs none");
}

#[test]
fn what_it_cannot_do_is_told_at_once() {
    let mut ring = Loop::new(Sim::builder(1).groups_max(1));
    let _pool = Pool::new(&mut ring, 1, 8);
    let (near, _far) = ring.handle.socket_pair();
    let receive = Sqe::recv_multishot(near, 0, 0);
    for (sqe, errno) in [
        (Sqe::recv_multishot(near, 1, 0), Errno::NOBUFS),
        (Sqe { flags: 0, ..receive }, Errno::INVAL),
        (Sqe { ioprio: 0, ..receive }, Errno::INVAL),
        (Sqe { ioprio: 1 << 5, ..receive }, Errno::INVAL),
        (Sqe { addr: 8, ..receive }, Errno::INVAL),
        (Sqe { fd: 99, ..receive }, Errno::BADF),
        (Sqe::accept_multishot(near, 0), Errno::INVAL),
        (Sqe { addr: 8, ..Sqe::accept_multishot(near, 0) }, Errno::INVAL),
    ] {
        assert_eq!(ring.run(sqe), err(errno), "{sqe:?}");
    }
    for (group, entries, errno) in
        [(0, 1, Errno::EXIST), (1, 0, Errno::INVAL), (1, 1, Errno::NOMEM)]
    {
        let error = ring.sim.register_group(group, entries).unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(errno));
    }
    assert_eq!(ring.handle.in_flight(), 0);
}

#[test]
fn each_connection_is_accepted_until_there_is_no_number() {
    let mut ring = Loop::new(Sim::builder(1).descriptors_max(9));
    let (listener, address) = ring.listen();
    ring.push(1, Sqe::accept_multishot(listener, 0));
    assert_eq!(ring.shots(1), []);
    let mut peers = Vec::new();
    let mut far = Vec::new();
    for _ in 0..2 {
        peers.push(ring.handle.connect_peer(&address).unwrap());
        let shots = ring.shots(1);
        assert!(matches!(shots[..], [(3.., true, None)]), "{shots:?}");
        far.push(shots[0].0);
    }
    peers.push(ring.handle.connect_peer(&address).unwrap());
    assert_eq!(ring.shots(1), [(err(Errno::MFILE), false, None)]);
    // The connection stays in the queue of the listener.
    ring.handle.close(peers[0]).unwrap();
    ring.push(2, Sqe::accept_multishot(listener, 0));
    let shots = ring.shots(2);
    assert!(matches!(shots[..], [(3.., true, None)]), "{shots:?}");
    ring.handle.send_peer(peers[2], b"x").unwrap();
    assert_eq!(ring.handle.receive_peer(shots[0].0, 9).unwrap(), b"x");
}

#[test]
fn a_full_queue_ends_it_and_loses_nothing() {
    let mut ring = Loop::new(Sim::builder(1).entries(2, 2).routes(Routes::INLINE));
    let _pool = Pool::new(&mut ring, 8, 1);
    let (near, far) = ring.handle.socket_pair();
    ring.handle.send_peer(far, b"abcd").unwrap();
    ring.push(1, Sqe::recv_multishot(near, 0, 0));
    ring.sim.enter(2, None, None).unwrap();
    assert!(ring.sim.is_overflowing());
    assert_eq!(ring.reap_shots(1), [(1, true, Some(0)), (1, true, Some(1))]);
    assert_eq!(ring.shots(1), [(1, false, Some(2))]);
    assert_eq!(
        (ring.handle.in_flight(), ring.handle.receive_peer(near, 9).unwrap()),
        (0, b"d".into())
    );
}

#[test]
fn faults_end_it_after_as_many_completions_as_the_script_says() {
    let cases = [
        (Fault::NoBuffers(1), FaultKind::NoBuffers, (err(Errno::NOBUFS), false, None)),
        (Fault::MultishotEnded(1), FaultKind::MultishotEnded, (1, false, Some(1))),
    ];
    for (fault, kind, last) in cases {
        let mut ring = Loop::inline();
        let _pool = Pool::new(&mut ring, 8, 1);
        let (near, far) = ring.handle.socket_pair();
        ring.handle.script(Target::opcode(Opcode::RECV), fault);
        ring.handle.send_peer(far, b"abc").unwrap();
        ring.push(1, Sqe::recv_multishot(near, 0, 0));
        assert_eq!(ring.shots(1), [(1, true, Some(0)), last]);
        assert_eq!((ring.handle.injected(kind), ring.handle.in_flight()), (1, 0));
    }
    let mut ring = Loop::inline();
    let (listener, address) = ring.listen();
    ring.handle.script(Target::opcode(Opcode::ACCEPT), Fault::MultishotEnded(0));
    ring.push(1, Sqe::accept_multishot(listener, 0));
    ring.handle.connect_peer(&address).unwrap();
    let shots = ring.shots(1);
    assert!(matches!(shots[..], [(3.., false, None)]), "{shots:?}");
    // The fault has no effect on single operations.
    let (near, far) = ring.handle.socket_pair();
    ring.handle.script(Target::opcode(Opcode::RECV), Fault::NoBuffers(0));
    ring.handle.send_peer(far, b"a").unwrap();
    let buffer = Lendable::zeroed(1);
    assert_eq!(ring.run(Sqe::recv(near, buffer.ptr(), 1, 0)), 1);
    // A held completion cannot be followed by others.
    let _pool = Pool::new(&mut ring, 8, 1);
    ring.handle.script(Target::opcode(Opcode::RECV), Fault::Held);
    ring.handle.send_peer(far, b"bc").unwrap();
    ring.push(2, Sqe::recv_multishot(near, 0, 0));
    assert_eq!(ring.shots(2), [(1, false, Some(0))]);
}

/// Sends bytes while another task receives, cancels and begins again, with every fault. Returns the kernel,
/// and the number of multishot completions with more to come.
fn stream(builder: SimBuilder, receives: &mut dyn FnMut(u64) -> bool) -> (SimHandle, u32) {
    const BYTES: usize = if cfg!(miri) { 40 } else { 300 };
    let mut ring = Loop::new(builder);
    let pool = Pool::new(&mut ring, 4, 3);
    let (near, far) = ring.handle.socket_pair();
    let text: Vec<u8> = (0..BYTES).map(|index| index as u8).collect();
    let (mut sent, mut received, mut went_on) = (0, Vec::new(), 0);
    let (mut current, mut next, mut over) = (None, 1, BTreeSet::new());
    for round in 0..100_000 {
        if received.len() == BYTES {
            assert_eq!(received, text);
            return (ring.handle.clone(), went_on);
        }
        if sent < BYTES && round % 2 == 0 {
            let end = (sent + 1 + round % 7).min(BYTES);
            // A full socket takes the bytes later.
            sent += ring.handle.send_peer(far, &text[sent..end]).unwrap_or(0);
        }
        let has_room = ring.sim.sq_pending() < ring.sim.features().sq_entries;
        match current {
            None if has_room => {
                ring.push(next, Sqe::recv_multishot(near, 0, 0));
                current = Some(next);
                next += 1;
            }
            Some(victim) if has_room && receives(round as u64) => {
                ring.push(next, Sqe::cancel(victim));
                over.insert(next);
                next += 1;
            }
            _ => {}
        }
        ring.sim.enter(1, Some(Duration::from_micros(50)), None).ok();
        let mut out = [Cqe::default(); 8];
        let count = ring.sim.reap(&mut out);
        for cqe in &out[..count] {
            if current != Some(cqe.user_data) {
                // The completion is of a cancel or made by a fault, never of a later operation.
                continue;
            }
            if let Some(id) = cqe.flags.buffer_id() {
                received.extend(pool.bytes(id, cqe.res as usize));
                assert!(cqe.res > 0 && text.starts_with(&received), "round {round}");
                pool.provide(&mut ring, id);
            } else {
                assert!(cqe.res < 0 && !cqe.flags.has_more(), "{cqe:?}");
            }
            went_on += u32::from(cqe.flags.has_more());
            if !cqe.flags.has_more() {
                over.insert(cqe.user_data);
                current = None;
            }
        }
    }
    panic!("{} of {BYTES} bytes came", received.len());
}

#[test]
fn whatever_goes_wrong_the_bytes_come_in_order() {
    let mut faults = [0; 2];
    let mut went_on = 0;
    for seed in 0..if cfg!(miri) { 2 } else { SEEDS } {
        let builder = Sim::builder(seed).entries(2, 4).late_writes(1 << 14).socket_bytes(20);
        let (kernel, count) = stream(builder.chaos(1 << 11), &mut |round| round % 5 == seed % 5);
        went_on += count;
        for (sum, kind) in faults.iter_mut().zip([FaultKind::NoBuffers, FaultKind::MultishotEnded])
        {
            *sum += kernel.injected(kind);
        }
    }
    assert!(went_on > 0);
    assert!(cfg!(miri) || faults.iter().all(|&count| count > 0), "{faults:?}");
}

#[test]
fn the_same_seed_gives_the_same_log() {
    let hash = |seed, keep| {
        let builder = Sim::builder(seed).entries(2, 4).late_writes(1 << 14).chaos(1 << 11);
        stream(builder.keep_log(keep), &mut |round| round % 9 == 0).0
    };
    for seed in 0..SEEDS / 5 {
        let (first, second) = (hash(seed, true), hash(seed, true));
        assert_eq!(first.log_text(), second.log_text());
        assert_eq!(first.log_hash(), second.log_hash());
        assert_eq!(first.log_hash(), hash(seed, false).log_hash());
        assert_ne!(first.log_hash(), hash(seed + SEEDS, false).log_hash());
    }
}

#[test]
fn a_canceled_one_has_one_last_completion_and_leaves_the_rest() {
    let mut ends = BTreeSet::new();
    for seed in 0..SEEDS {
        let mut ring = Loop::new(Sim::builder(seed));
        let _pool = Pool::new(&mut ring, 8, 1);
        let (near, far) = ring.handle.socket_pair();
        ring.push(1, Sqe::recv_multishot(near, 0, 0));
        if seed % 2 == 0 {
            ring.handle.send_peer(far, b"abc").unwrap();
        }
        ring.sim.submit().unwrap();
        ring.push(2, Sqe::cancel(1));
        let mut all = Vec::new();
        while ring.handle.in_flight() > 0 || ring.sim.sq_pending() > 0 || all.is_empty() {
            ring.sim.enter(1, Some(Duration::from_millis(1)), None).unwrap();
            let mut out = [Cqe::default(); 16];
            let count = ring.sim.reap(&mut out);
            all.extend(out[..count].iter().map(|cqe| (cqe.user_data, shot(cqe))));
            if all.iter().any(|(user_data, _)| *user_data == 2) && ring.handle.in_flight() > 0 {
                // The receive continues if the cancel was too late; then there is another completion.
                ring.handle.send_peer(far, b"d").unwrap();
            }
        }
        let shots: Vec<Shot> =
            all.iter().filter(|(its, _)| *its == 1).map(|(_, shot)| *shot).collect();
        let (last, before) = shots.split_last().unwrap();
        assert!(!last.1 && before.iter().all(|shot| shot.1), "{shots:?}");
        let taken = shots.iter().filter(|shot| shot.2.is_some()).count();
        let rest = ring.handle.receive_peer(near, 99).unwrap_or_default();
        assert!(rest.len() + taken >= if seed % 2 == 0 { 3 } else { 0 });
        ends.insert(last.0);
    }
    assert!(ends.contains(&err(Errno::CANCELED)), "{ends:?}");
}

#[test]
fn a_buffer_is_the_kernels_until_a_completion_names_it() {
    let builder = Sim::builder(1).routes(Routes::INLINE).late_writes(u16::MAX);
    let mut ring = Loop::new(builder);
    let pool = Pool::new(&mut ring, 2, 2);
    ring.sim.submit().unwrap();
    assert_eq!(pool.bytes(0, 4), [SCRIBBLE; 4], "without an operation");
    let (near, far) = ring.handle.socket_pair();
    ring.handle.send_peer(far, b"a").unwrap();
    ring.push(1, Sqe::recv_multishot(near, 0, 0));
    assert_eq!(ring.shots(1), [(1, true, Some(0))]);
    ring.sim.submit().unwrap();
    assert_eq!(pool.bytes(0, 1), b"a", "given back with the completion");
    assert_eq!(pool.bytes(1, 2), [SCRIBBLE; 2]);
}

#[test]
fn a_buffer_that_is_freed_in_its_group_is_found_out() {
    for uses in [false, true] {
        let mut ring = Loop::inline();
        let mut buffers = [ring.handle.buffer([0; 8]), ring.handle.buffer([0; 8])];
        ring.sim.register_group(0, 2).unwrap();
        for (id, buffer) in (0..).zip(&mut buffers) {
            // SAFETY: no driver may do this; the buffer is freed below, and no code runs that would write
            // to it.
            unsafe { ring.sim.provide(0, id, buffer.as_mut_ptr(), 8) };
        }
        let (near, _far) = ring.handle.socket_pair();
        if uses {
            ring.push(1, Sqe::recv_multishot(near, 0, 0));
            assert_eq!(ring.submit(), []);
        }
        let handle = ring.handle.clone();
        let [first, last] = buffers;
        drop(first);
        assert_eq!(handle.freed_early(), 1);
        drop(ring);
        drop(last);
        // After the end of the ring only operations in flight use the buffer.
        assert_eq!(handle.freed_early(), 1 + u64::from(uses));
    }
}

#[test]
#[should_panic(expected = "buffer 0 is in group 0 already")]
fn a_buffer_that_is_given_twice_is_found_out() {
    let mut ring = Loop::inline();
    let pool = Pool::new(&mut ring, 1, 8);
    pool.provide(&mut ring, 0);
}
