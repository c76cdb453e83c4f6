//! Calls that fail now and then with errors that do not concern the operation: the program does not notice.

use std::mem::offset_of;

use sakia::fs::OpenOptions;
use sakia::io::BufResultExt;
use sakia_driver::{Policy, StatxResult};

use crate::supervisor::{Refused, refuse};
use crate::support::{TempDir, on_each_backend};
use crate::{children, load};

on_each_backend! { by_a_supervisor }

const IO_URING_ENTER: libc::c_long = 426;
const RWF_NOWAIT: u64 = 8;

/// The error of a waiting call that a signal interrupts.
const INTERRUPTED: &[i32] = &[libc::EINTR];
/// The errors of calls that refuse to wait: the same, or the data is not in the cache.
const NOT_NOW: &[i32] = &[libc::EINTR, libc::EAGAIN];
/// The errors of an enter: the same, or the ring has no memory for requests, or no room for completions.
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

/// Asks for the number of a mount that no other gets (6.8).
const STATX_MNT_ID_UNIQUE: u32 = 0x4000;

/// Makes calls of `statx(2)` on this thread fail with `EPERM`, except those with this mask.
fn refuse_other_statx(mask: u32) {
    let statement = |code: u32, k| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let load = |at: usize| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at as u32);
    let jump = statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0);
    let (nr, args) = (offset_of!(libc::seccomp_data, nr), offset_of!(libc::seccomp_data, args));
    let low_half = if cfg!(target_endian = "big") { 4 } else { 0 };
    let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let mut program = [
        load(nr),
        libc::sock_filter { jf: 3, k: libc::SYS_statx as u32, ..jump },
        load(args + 3 * size_of::<u64>() + low_half),
        libc::sock_filter { jt: 1, k: mask, ..jump },
        statement(libc::BPF_RET | libc::BPF_K, refused),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: takes numbers only.
    let result = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the program outlives the call, which copies it.
    let result = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program)
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// The runtime takes the properties of a file from the one call that the program requests.
#[test]
fn a_file_is_opened_with_its_metadata_by_one_question() {
    let folder = TempDir::new();
    let path = folder.path().join("file");
    std::fs::write(&path, "hello").unwrap();
    let open = move || {
        let runtime = load::runtime(Policy::Uring);
        runtime.block_on(async {
            let options = OpenOptions::new().read(true).clone();
            // Opening the first file of a mount reads the mount table.
            drop(options.open_with_metadata(&path).await.unwrap());
            // The filter ends with the thread, which ends with the test.
            refuse_other_statx(StatxResult::BASIC | STATX_MNT_ID_UNIQUE);
            let (file, metadata) = options.open_with_metadata(&path).await.unwrap();
            assert_eq!((metadata.is_file(), metadata.len()), (true, 5));
            let bytes = file.read_exact_at(vec![0; 5], 0).await.buffer().unwrap();
            assert_eq!(bytes, b"hello");
            // A further request is a call.
            let refused = file.metadata().await.unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
        });
    };
    std::thread::spawn(open).join().unwrap();
}
