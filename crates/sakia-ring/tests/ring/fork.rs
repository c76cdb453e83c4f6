//! A forked child cannot reach its parent's rings: no fault, no effect, a clear error.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use sakia_ring::{Cqe, IoVec, IowqMaxWorkers, Ring, Sqe};

use crate::children;
use crate::support::{assert_works, complete, enter, push, push_nops, user_data};

#[test]
fn a_child_finds_its_parents_ring_inert() {
    children::run("fork").unwrap();
}

#[test]
fn a_grandchild_finds_both_rings_inert() {
    children::run("fork_twice").unwrap();
}

/// Forks; the child runs `child` and exits. Panics if `child` panicked.
fn in_child(child: impl FnOnce()) {
    // SAFETY: this process has one thread (`children::scene` checks), so the child has all of it.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", io::Error::last_os_error());
    if pid == 0 {
        let ended_well = catch_unwind(AssertUnwindSafe(child)).is_ok();
        // SAFETY: ends the child at once, without the parent's exit handlers.
        unsafe { libc::_exit(if ended_well { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: writes one integer.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!((waited, status), (pid, 0), "the child failed");
}

fn assert_refused<T: std::fmt::Debug>(result: io::Result<T>) {
    let error = result.unwrap_err();
    assert!(error.to_string().contains("forked child"), "{error}");
}

/// Tries every call on a ring of an ancestor.
fn assert_inert(ring: &mut Ring) {
    assert!(!ring.is_owned_by_process());
    assert_eq!(push(ring, Sqe::nop()), None);
    assert_refused(ring.submit());
    assert_refused(ring.enter(0, None));
    assert_refused(ring.enter(1, Some(Duration::ZERO)));
    assert_eq!(ring.cq_ready(), 0);
    assert_eq!(ring.reap(&mut [Cqe::default(); 4]), 0);
    assert!(!ring.needs_enter() && !ring.is_overflowing());
    assert_eq!((ring.cq_lost(), ring.sq_dropped()), (0, 0));
    assert_refused(ring.probe());
    assert_refused(ring.resize(8, 128));
    assert_refused(ring.register_files(&[io::stdin().as_fd()]));
    assert_refused(ring.register_files_sparse(4));
    assert_refused(ring.update_files(0, &[None]));
    assert_refused(ring.unregister_files());
    assert_refused(ring.register_buffers_sparse(4));
    // SAFETY: no memory.
    assert_refused(unsafe { ring.register_buffers(&[IoVec::EMPTY]) });
    // SAFETY: no memory.
    assert_refused(unsafe { ring.update_buffers(0, &[IoVec::EMPTY]) });
    assert_refused(ring.unregister_buffers());
    assert_refused(ring.register_eventfd(io::stdin().as_fd()));
    assert_refused(ring.unregister_eventfd());
    assert_refused(ring.set_iowq_max_workers(IowqMaxWorkers::default()));
    assert_refused(ring.sync_cancel(sakia_ring::CancelTarget::Any, None));
    assert_refused(ring.register_buf_ring(9, 4, false));
}

fn ring_maps() -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.matches("[io_uring]").count()
}

pub fn scene() -> Result<(), String> {
    let (read, write) = rustix::pipe::pipe().unwrap();
    let mut ring = Ring::builder().build().unwrap();
    let disabled = Ring::builder().build_disabled().unwrap();
    let mut buf_ring = ring.register_buf_ring(1, 8, false).unwrap();
    // One entry in flight, one completed but not reaped, one pushed but not submitted.
    push(&mut ring, Sqe::poll_add(read.as_raw_fd(), 1).user_data(1)).unwrap();
    push_nops(&mut ring, [2]);
    enter(&mut ring, 1, None);
    push_nops(&mut ring, [3]);
    assert!(ring_maps() >= 4);

    let (ring, disabled, buf_ring) = (&mut ring, &mut Some(disabled), &mut buf_ring);
    in_child(|| {
        assert_eq!(ring_maps(), 0, "the child inherited a ring's map");
        assert_inert(ring);
        buf_ring.publish();
        // SAFETY: does nothing here, and the buffer is never freed.
        unsafe { buf_ring.provide(Box::leak(Box::new([0u8; 8])).as_mut_ptr(), 8, 0) };
        assert_refused(ring.buf_ring_head(buf_ring));
        // SAFETY: reads two values whose originals remain usable in the parent only: this process ends
        // without using them again.
        let (ring, buf_ring) = unsafe { (std::ptr::read(ring), std::ptr::read(buf_ring)) };
        let mut ring = ring;
        assert_refused(ring.unregister_buf_ring(buf_ring));
        drop(ring);
        let error = disabled.take().unwrap().enable().unwrap_err();
        assert!(error.to_string().contains("forked child"), "{error}");

        let mut own = Ring::builder().build().unwrap();
        assert!(own.report().registered_fd, "a child begins with no places taken");
        assert!(own.is_owned_by_process());
        assert_works(&mut own);
    });

    // The parent's rings have not changed.
    assert!(ring.is_owned_by_process());
    rustix::io::write(&write, b"x").unwrap();
    let completions = complete(ring, 3);
    let mut seen = user_data(&completions);
    seen.sort_unstable();
    assert_eq!(seen, [1, 2, 3]);
    assert_works(ring);
    assert_eq!(ring.buf_ring_head(buf_ring).unwrap_or(0), 0);
    assert_works(&mut disabled.take().unwrap().enable().unwrap());
    Ok(())
}

pub fn scene_twice() -> Result<(), String> {
    let mut first = Ring::builder().build().unwrap();
    in_child(|| {
        let mut second = Ring::builder().build().unwrap();
        in_child(|| {
            assert_inert(&mut first);
            assert_inert(&mut second);
            assert_works(&mut Ring::builder().build().unwrap());
        });
        assert_inert(&mut first);
        assert_works(&mut second);
    });
    assert_works(&mut first);
    // The same with a child that makes no ring of its own.
    in_child(|| assert_inert(&mut first));
    assert_works(&mut first);
    Ok(())
}
