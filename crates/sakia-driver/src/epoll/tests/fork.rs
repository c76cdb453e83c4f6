//! A forked child has the backend's memory, but neither its threads nor a right to it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::{Lane, StuckWorker};

/// The group of buffers of the parent.
const GROUP: u16 = 7;

/// The status of a child that panicked.
const PANICKED: i32 = 101;

/// Returns the fault found in the child, as its exit status; 0 if there is none. Whatever would tell of the
/// parent's state or change it is called while there is something to tell, and something to do: `test` has a
/// completion, a result of a thread, a ready descriptor and a stuck thread; `idle` has nothing.
fn look(test: &mut Loop, idle: &mut Loop, position: sakia_ring::Position) -> i32 {
    let epoll = &mut test.epoll;
    let wake = epoll.wake_handle();
    let of_parent = (epoll.machine.queue.ready(), epoll.machine.flights.len());
    let mut stuck: Vec<StuckWorker> = Vec::new();
    let next_stuck = epoll.find_stuck(Duration::ZERO, &mut stuck);
    // SAFETY: a no-op names no memory.
    let pushed = unsafe { epoll.push(Sqe::nop()) };
    let nop = || Request { user_data: 5, kind: OpKind::Nop, call: Call::Nop };
    // SAFETY: as above.
    let pushed_call = unsafe { epoll.push_call(nop(), Destination::Queue) };
    // SAFETY: as above.
    let pushed_lane = unsafe { epoll.push_call(nop(), Destination::Lane(Lane::Bounded)) };
    // SAFETY: as above.
    let pushed_readiness = unsafe { epoll.push_call(nop(), Destination::Readiness) };
    // SAFETY: nothing takes the buffer.
    unsafe { epoll.provide(GROUP, 0, std::ptr::dangling_mut(), 1) };
    epoll.look();
    epoll.collect();
    epoll.clear_readiness();
    epoll.watch_with(rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap());
    let checks = [
        (next_stuck, stuck.is_empty()) == (None, true),
        pushed_call.is_err(),
        pushed_lane.is_err(),
        pushed_readiness.is_err(),
        epoll.machine.groups.oldest(GROUP).is_none(),
        !epoll.machine.is_unbatched,
        epoll.pollable().is_err(),
        epoll.register_group(GROUP + 1, 4).is_err(),
        !epoll.has_news(),
        !epoll.park() && !idle.epoll.park(),
        epoll.figures().lanes[Lane::Elastic as usize] == crate::LaneStatistics::default(),
        !epoll.is_intact(),
        pushed.is_none(),
        !epoll.make_nop(position, 1),
        epoll.submit().is_err(),
        epoll.enter(1, None, None).is_err(),
        epoll.cq_ready() == 0,
        epoll.reap(&mut [Cqe::default(); 4]) == 0,
        !epoll.needs_enter(),
        !epoll.is_overflowing(),
        // SAFETY: refused.
        unsafe { epoll.register_buffer(std::ptr::null_mut(), 0) }.is_err(),
        epoll.statistics(Lane::Bounded) == crate::LaneStatistics::default(),
        (epoll.machine.queue.ready(), epoll.machine.flights.len()) == of_parent,
    ];
    wake.wake();
    checks.iter().position(|is_fine| !is_fine).map_or(0, |index| index as i32 + 1)
}

#[test]
fn a_child_gets_nothing_and_disturbs_nothing() {
    let (dir, mut test, mut idle) = (TempDir::new(), Loop::new(), Loop::new());
    test.epoll.register_group(GROUP, 4).unwrap();
    let file = test.open(&dir.file("file", b"abc"), OFlags::RDONLY).unwrap();
    let (reader, writer) = pipe();
    let (in_lane, waiting) = (Lendable::zeroed(3), Lendable::zeroed(1));
    test.push(1, Sqe::nop());
    test.push(2, read(&file, &in_lane, 0));
    test.push(3, receive(&reader, &waiting));
    // It waits for a writer, on a thread.
    let fifo = dir.fifo("fifo");
    let path = Lendable::path(&fifo);
    test.push(5, Sqe::openat(AT_FDCWD, path.ptr(), (OFlags::RDONLY | OFlags::CLOEXEC).bits(), 0));
    test.epoll.submit().unwrap();
    wait_until(|| {
        let elastic = test.epoll.statistics(Lane::Elastic);
        elastic.oldest_running >= Some(Duration::from_millis(2)) && test.epoll.has_news()
    });
    rustix::io::write(&writer, b"x").unwrap();
    let nop = test.request(4, Call::Nop).unwrap();
    // SAFETY: a no-op names no memory.
    let pushed = unsafe { test.epoll.push_call(nop, Destination::Queue) };
    let position = pushed.unwrap().unwrap();
    // SAFETY: the child looks at its memory and ends without running anything else.
    match unsafe { libc::fork() } {
        0 => {
            let looked = AssertUnwindSafe(|| look(&mut test, &mut idle, position));
            let wrong = catch_unwind(looked).unwrap_or(PANICKED);
            // The end must not wait for a lock that is never released.
            drop((test, idle));
            // SAFETY: ends the child.
            unsafe { libc::_exit(wrong) }
        }
        child => {
            assert!(child > 0);
            let child = rustix::process::Pid::from_raw(child);
            let (_, status) =
                rustix::process::waitpid(child, rustix::process::WaitOptions::empty())
                    .unwrap()
                    .unwrap();
            assert_eq!(status.exit_status(), Some(0), "{status:?}");
        }
    }
    let end = open_both_ends(&fifo);
    let mut ends = test.enter(5);
    ends.sort_unstable();
    // SAFETY: the operation has just opened it.
    drop(unsafe { OwnedFd::from_raw_fd(ends[4].1) });
    assert_eq!(ends[..4], [(1, 0), (2, 3), (3, 1), (4, 0)]);
    drop(end);
}
