//! Calls that fail now and then with errors that say nothing of the operation: the program notices
//! nothing.

use sakia_driver::Policy;

use crate::supervisor::{Refused, refuse};
use crate::support::{TempDir, on_each_backend};
use crate::{children, load};

on_each_backend! { by_a_supervisor }

const IO_URING_ENTER: libc::c_long = 426;
const RWF_NOWAIT: u64 = 8;

/// What a signal does to a call that waits.
const INTERRUPTED: &[i32] = &[libc::EINTR];
/// The same, or there is nothing in the cache: for calls that refuse to wait.
const NOT_NOW: &[i32] = &[libc::EINTR, libc::EAGAIN];
/// The same, or the ring has no memory for requests, or no room for completions.
const NO_ROOM: &[i32] = &[libc::EINTR, libc::EAGAIN, libc::EBUSY];

const CALLS: &[Refused] = &[
    Refused::new(IO_URING_ENTER, NO_ROOM),
    #[cfg(target_arch = "x86_64")]
    Refused::new(libc::SYS_epoll_wait, INTERRUPTED),
    Refused::new(libc::SYS_epoll_pwait, INTERRUPTED),
    Refused::new(libc::SYS_epoll_pwait2, INTERRUPTED),
    Refused { try_again_flag: Some((5, RWF_NOWAIT)), ..Refused::new(libc::SYS_preadv2, NOT_NOW) },
    Refused { try_again_flag: Some((5, RWF_NOWAIT)), ..Refused::new(libc::SYS_pwritev2, NOT_NOW) },
    Refused::new(libc::SYS_pread64, INTERRUPTED),
    Refused::new(libc::SYS_pwrite64, INTERRUPTED),
    Refused::new(libc::SYS_readv, INTERRUPTED),
    Refused::new(libc::SYS_openat, INTERRUPTED),
    Refused::new(libc::SYS_openat2, INTERRUPTED),
    Refused::new(libc::SYS_fsync, INTERRUPTED),
    Refused::new(libc::SYS_fdatasync, INTERRUPTED),
    Refused::new(libc::SYS_copy_file_range, INTERRUPTED),
];

fn by_a_supervisor(policy: Policy) {
    children::run("refused_by_a_supervisor", policy);
}

pub fn scene_refused_by_a_supervisor(policy: Policy) -> Result<(), String> {
    let folder = TempDir::new();
    let refusals = refuse(CALLS, 11)?;
    let runtime = load::runtime(policy);
    runtime.block_on(async { load::run(folder.path(), 3, 3).await });
    load::assert_sound(&runtime);
    let count = |calls: &[libc::c_long], errno| -> usize {
        calls.iter().map(|&call| refusals.count(call, errno)).sum()
    };
    if policy == Policy::Uring {
        for &errno in NO_ROOM {
            assert!(count(&[IO_URING_ENTER], errno) > 10, "{errno} hardly ever came");
        }
        assert!(runtime.counters().retries > 0);
    } else {
        let waits: Vec<_> =
            CALLS.iter().filter(|it| it.errnos == INTERRUPTED).map(|it| it.call).collect();
        assert!(count(&waits, libc::EINTR) > 10);
        assert_eq!(count(&[IO_URING_ENTER], libc::EBUSY), 0, "there is a ring");
    }
    assert!(count(&[libc::SYS_preadv2], libc::EINTR) > 0);
    assert!(count(&[libc::SYS_preadv2], libc::EAGAIN) > 0);
    Ok(())
}
