//! Provided buffers: their order of use, and the ways a queue ends.

use std::os::fd::{AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::io::Errno;
use sakia_ring::{BufRing, CURRENT_POSITION, Cqe, Ring, Sqe};

use crate::children;
use crate::support::{complete, errno_of, skip};

const GROUP: u16 = 3;
const LEN: u32 = 64;

/// Buffers that are never freed, so no test has to prove when that is allowed.
struct Buffers {
    base: *mut u8,
}

impl Buffers {
    fn new(count: usize) -> Self {
        let bytes = vec![0u8; count * LEN as usize].into_boxed_slice();
        Self { base: Box::leak(bytes).as_mut_ptr() }
    }

    fn address(&self, id: u16) -> *mut u8 {
        self.base.wrapping_add(usize::from(id) * LEN as usize)
    }

    fn provide(&self, buf_ring: &mut BufRing, id: u16) {
        // SAFETY: leaked memory, which is read only in `contents`, after a completion named it; the tests
        // provide an id again only after that.
        unsafe { buf_ring.provide(self.address(id), LEN, id) };
    }

    /// Returns a part of a buffer's contents.
    fn contents(&self, id: u16, start: usize, len: usize) -> Vec<u8> {
        // SAFETY: within the leaked memory; the kernel no longer uses that part of it.
        unsafe { std::slice::from_raw_parts(self.address(id).add(start), len) }.to_vec()
    }
}

fn ring() -> Ring {
    Ring::builder().sq_entries(16).build().unwrap()
}

/// Writes `text` to the pipe and reads it into a provided buffer. Returns the completion.
fn read(ring: &mut Ring, pipe: &(OwnedFd, OwnedFd), text: &[u8]) -> Cqe {
    rustix::io::write(&pipe.1, text).unwrap();
    let fd = pipe.0.as_raw_fd();
    let sqe = Sqe::read(fd, std::ptr::null_mut(), 0, CURRENT_POSITION).buffer_group(GROUP);
    // SAFETY: the memory belongs to provided buffers, which are leaked.
    unsafe { ring.push(sqe) }.unwrap();
    complete(ring, 1)[0]
}

#[test]
fn buffers_are_picked_in_order_and_used_again() {
    let (mut ring, pipe) = (ring(), rustix::pipe::pipe().unwrap());
    let mut buf_ring = ring.register_buf_ring(GROUP, 3, false).unwrap();
    assert_eq!((buf_ring.entries(), buf_ring.group()), (4, GROUP));
    let buffers = Buffers::new(4);
    for id in [2, 0, 3, 1] {
        buffers.provide(&mut buf_ring, id);
    }
    buf_ring.publish();
    for round in 0u32..100 {
        let text = format!("round {round}");
        let completion = read(&mut ring, &pipe, text.as_bytes());
        assert_eq!(completion.res, text.len() as i32);
        let id = completion.flags.buffer_id().unwrap();
        assert_eq!(id, [2, 0, 3, 1][round as usize % 4]);
        assert!(!completion.flags.has_more_buffer());
        assert_eq!(buffers.contents(id, 0, text.len()), text.as_bytes());
        buffers.provide(&mut buf_ring, id);
        buf_ring.publish();
    }
    if let Ok(head) = ring.buf_ring_head(&buf_ring) {
        assert_eq!(head, 100);
    }
    ring.unregister_buf_ring(buf_ring).unwrap();
    let completion = read(&mut ring, &pipe, b"x");
    assert_eq!(completion.res, -libc::ENOBUFS);
}

/// Positions are 16-bit numbers that wrap.
#[test]
fn more_buffers_than_a_position_can_count_pass_through() {
    let (mut ring, pipe) = (ring(), rustix::pipe::pipe().unwrap());
    let mut buf_ring = ring.register_buf_ring(GROUP, 2, false).unwrap();
    let buffers = Buffers::new(2);
    buffers.provide(&mut buf_ring, 0);
    buffers.provide(&mut buf_ring, 1);
    buf_ring.publish();
    for round in 0u32..66_000 {
        let completion = read(&mut ring, &pipe, &[round as u8]);
        let id = completion.flags.buffer_id().unwrap();
        assert_eq!(u32::from(id), round % 2);
        assert_eq!(buffers.contents(id, 0, 1), [round as u8]);
        buffers.provide(&mut buf_ring, id);
        buf_ring.publish();
    }
    ring.unregister_buf_ring(buf_ring).unwrap();
}

#[test]
fn nothing_is_seen_before_it_is_published() {
    let (mut ring, pipe) = (ring(), rustix::pipe::pipe().unwrap());
    let mut buf_ring = ring.register_buf_ring(GROUP, 4, false).unwrap();
    let buffers = Buffers::new(4);
    assert_eq!(read(&mut ring, &pipe, b"a").res, -libc::ENOBUFS);
    buffers.provide(&mut buf_ring, 0);
    assert_eq!(read(&mut ring, &pipe, b"b").res, -libc::ENOBUFS);
    buf_ring.publish();
    assert_eq!(read(&mut ring, &pipe, b"c").res, 3);
    assert_eq!(buffers.contents(0, 0, 3), b"abc");
    assert_eq!(read(&mut ring, &pipe, b"d").res, -libc::ENOBUFS);
    ring.unregister_buf_ring(buf_ring).unwrap();
}

/// The first entry shares its place with the tail.
#[test]
fn filling_the_first_entry_publishes_nothing() {
    let (mut ring, pipe) = (ring(), rustix::pipe::pipe().unwrap());
    let mut buf_ring = ring.register_buf_ring(GROUP, 2, false).unwrap();
    let buffers = Buffers::new(2);
    buffers.provide(&mut buf_ring, 0);
    buffers.provide(&mut buf_ring, 1);
    buf_ring.publish();
    assert_eq!(read(&mut ring, &pipe, b"a").flags.buffer_id(), Some(0));
    buffers.provide(&mut buf_ring, 0); // at the first entry again
    assert_eq!(read(&mut ring, &pipe, b"b").flags.buffer_id(), Some(1));
    assert_eq!(read(&mut ring, &pipe, b"c").res, -libc::ENOBUFS);
    buf_ring.publish();
    assert_eq!(read(&mut ring, &pipe, b"d").flags.buffer_id(), Some(0));
    ring.unregister_buf_ring(buf_ring).unwrap();
}

#[test]
fn an_unregistered_queue_gives_its_memory_back() {
    children::run("buf_rings_end").unwrap();
}

/// Returns the size of this process's address space in bytes. The process has one thread.
fn address_space() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').next().unwrap().parse::<usize>().unwrap() * 4096
}

pub fn end_many() -> Result<(), String> {
    const QUEUE_BYTES: usize = 32_768 * 16;
    let mut ring = ring();
    let before = address_space();
    for _ in 0..32 {
        let buf_ring = ring.register_buf_ring(GROUP, 32_768, false).unwrap();
        ring.unregister_buf_ring(buf_ring).unwrap();
        // A refused queue returns its memory, too.
        let kept = ring.register_buf_ring(GROUP, 1, false).unwrap();
        ring.register_buf_ring(GROUP, 32_768, false).unwrap_err();
        ring.unregister_buf_ring(kept).unwrap();
    }
    let after = address_space();
    assert!(after < before + 2 * QUEUE_BYTES, "grew by {}", after - before);
    Ok(())
}

#[test]
fn an_incremental_queue_uses_a_buffer_piece_by_piece() {
    let (mut ring, pipe) = (ring(), rustix::pipe::pipe().unwrap());
    let mut buf_ring = match ring.register_buf_ring(GROUP, 2, true) {
        Ok(buf_ring) => buf_ring,
        Err(error) => skip!("no incremental queues (kernel 6.12): {error}"),
    };
    assert!(buf_ring.is_incremental());
    let buffers = Buffers::new(2);
    buffers.provide(&mut buf_ring, 1);
    buffers.provide(&mut buf_ring, 0);
    buf_ring.publish();
    let piece = [7u8; 16];
    for number in 0..8 {
        let completion = read(&mut ring, &pipe, &piece);
        assert_eq!(completion.res, 16);
        let last = number % 4 == 3;
        assert_eq!(completion.flags.buffer_id(), Some(u16::from(number < 4)));
        assert_eq!(completion.flags.has_more_buffer(), !last);
    }
    assert_eq!(buffers.contents(0, 0, 64), [7; 64]);
    assert_eq!(read(&mut ring, &pipe, b"x").res, -libc::ENOBUFS);
    ring.unregister_buf_ring(buf_ring).unwrap();
}

#[test]
fn a_group_is_registered_once_and_again_after_its_end() {
    let mut ring = ring();
    let buf_ring = ring.register_buf_ring(GROUP, 8, false).unwrap();
    let error = ring.register_buf_ring(GROUP, 8, false).unwrap_err();
    assert_eq!(errno_of(&error), Some(Errno::EXIST));
    let other = ring.register_buf_ring(GROUP + 1, 8, false).unwrap();
    ring.unregister_buf_ring(buf_ring).unwrap();
    let again = ring.register_buf_ring(GROUP, 8, false).unwrap();
    ring.unregister_buf_ring(again).unwrap();
    ring.unregister_buf_ring(other).unwrap();
}

#[test]
fn sizes_are_rounded_and_clamped() {
    let mut ring = ring();
    for (wish, granted) in [(0, 1), (1, 1), (5, 8), (32_768, 32_768), (u32::MAX, 32_768)] {
        let buf_ring = ring.register_buf_ring(GROUP, wish, false).unwrap();
        assert_eq!(buf_ring.entries(), granted);
        ring.unregister_buf_ring(buf_ring).unwrap();
    }
}

#[test]
fn another_rings_agreement_ends_nothing() {
    let (mut ring, mut other) = (ring(), ring());
    let buf_ring = ring.register_buf_ring(GROUP, 8, false).unwrap();
    let _same_group = other.register_buf_ring(GROUP, 8, false).unwrap();
    let attempt = catch_unwind(AssertUnwindSafe(|| other.unregister_buf_ring(buf_ring)));
    assert!(attempt.is_err());
    let error = ring.register_buf_ring(GROUP, 8, false).unwrap_err();
    assert_eq!(errno_of(&error), Some(Errno::EXIST), "the group is still there");
}

/// A dropped queue leaves the memory that the kernel reads: the kernel still picks its buffers.
#[test]
fn a_dropped_queue_stays_with_the_kernel() {
    let (mut ring, pipe) = (ring(), rustix::pipe::pipe().unwrap());
    let mut buf_ring = ring.register_buf_ring(GROUP, 2, false).unwrap();
    let buffers = Buffers::new(2);
    buffers.provide(&mut buf_ring, 0);
    buf_ring.publish();
    drop(buf_ring);
    let completion = read(&mut ring, &pipe, b"late");
    assert_eq!((completion.res, completion.flags.buffer_id()), (4, Some(0)));
    assert_eq!(buffers.contents(0, 0, 4), b"late");
}

#[test]
fn an_id_beyond_the_queue_is_a_programmers_error() {
    let mut ring = ring();
    let mut buf_ring = ring.register_buf_ring(GROUP, 2, false).unwrap();
    let buffers = Buffers::new(3);
    let attempt = catch_unwind(AssertUnwindSafe(|| buffers.provide(&mut buf_ring, 2)));
    assert!(attempt.is_err());
    ring.unregister_buf_ring(buf_ring).unwrap();
}
