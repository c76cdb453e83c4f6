//! A forked child has the backend's memory, but neither its threads nor a right to it.

use super::*;
use crate::Lane;

/// Returns the fault found in the child, as its exit status; 0 if there is none.
fn look(test: &mut Loop, position: sakia_ring::Position) -> i32 {
    let epoll = &mut test.epoll;
    let wake = epoll.wake_handle();
    // SAFETY: a no-op names no memory.
    let pushed = unsafe { epoll.push(Sqe::nop()) };
    let checks = [
        !epoll.is_intact(),
        pushed.is_none(),
        !epoll.make_nop(position, 1),
        epoll.submit().is_err(),
        epoll.enter(1, None).is_err(),
        epoll.cq_ready() == 0,
        epoll.reap(&mut [Cqe::default(); 4]) == 0,
        !epoll.needs_enter(),
        !epoll.is_overflowing(),
        // SAFETY: refused.
        unsafe { epoll.register_buffer(std::ptr::null_mut(), 0) }.is_err(),
        epoll.statistics(Lane::Bounded) == crate::LaneStatistics::default(),
    ];
    wake.wake();
    checks.iter().position(|is_fine| !is_fine).map_or(0, |index| index as i32 + 1)
}

#[test]
fn a_child_gets_nothing_and_disturbs_nothing() {
    let (dir, mut test) = (TempDir::new(), Loop::new());
    let file = test.open(&dir.file("file", b"abc"), OFlags::RDONLY).unwrap();
    let (reader, writer) = pipe();
    let (in_lane, waiting) = (Lendable::zeroed(3), Lendable::zeroed(1));
    test.push(1, Sqe::nop());
    test.push(2, read(&file, &in_lane, 0));
    test.push(3, receive(&reader, &waiting));
    test.epoll.submit().unwrap();
    let nop = test.request(4, Call::Nop).unwrap();
    // SAFETY: a no-op names no memory.
    let position = unsafe { test.epoll.push_call(nop) }.unwrap();
    // SAFETY: the child looks at its memory and ends without running anything else.
    match unsafe { libc::fork() } {
        0 => {
            let wrong = look(&mut test, position);
            // The end must not wait for a lock that is never released.
            drop(test);
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
    rustix::io::write(&writer, b"x").unwrap();
    let mut ends = test.enter(4);
    ends.sort_unstable();
    assert_eq!(ends, [(1, 0), (2, 3), (3, 1), (4, 0)]);
}
