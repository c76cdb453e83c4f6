//! The backend behind a filter of system calls, as in a container or on an older kernel.
//!
//! A filter holds for the thread that installs it and for the threads that it starts, so each test gets a
//! thread of its own.

use sakia_ring::SignalMask;

use super::*;
use crate::Lane;

/// Runs `test` on a thread on which these calls fail with these errnos. Without filters, prints that the
/// test is skipped.
fn filtered(calls: &[(libc::c_long, Errno)], test: impl FnOnce() + Send + 'static) {
    let program = program(calls);
    let thread = std::thread::spawn(move || {
        if !install(&program) {
            eprintln!("SKIP {}: no seccomp filters", module_path!());
            return;
        }
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn program(calls: &[(libc::c_long, Errno)]) -> Vec<libc::sock_filter> {
    let statement = |code: u32, k| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let mut program = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0)];
    for &(number, errno) in calls {
        let jump = statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, number as u32);
        program.push(libc::sock_filter { jf: 1, ..jump });
        let errno = errno.raw_os_error() as u32;
        program.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | errno));
    }
    program.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW));
    program
}

fn install(program: &[libc::sock_filter]) -> bool {
    let filter =
        libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: the program outlives the calls, which copy it.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) == 0
    }
}

/// Uses files, a pipe, a socket and short sleeps.
fn use_everything() {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let (dir, mut test) = (TempDir::new(), Loop::new());
    let file = test.open(&dir.join("file"), OFlags::CREATE | OFlags::RDWR).unwrap();
    let (out, back) = (Lendable::new(b"hello"), Lendable::zeroed(5));
    assert_eq!(test.run(write(&file, &out, 0)), 5);
    assert_eq!(test.run(read(&file, &back, 0)), 5);
    assert_eq!(test.run(read(&file, &back, 0).op_flags(1 << 3)).signum(), -1, "no RWF_NOWAIT");
    let sockets =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    for (reader, writer) in [pipe(), sockets] {
        let back = Lendable::zeroed(5);
        test.push(1, receive(&reader, &back));
        assert_eq!(test.submit(), []);
        for nanos in [1, 999_999, 1_500_000] {
            let entered = test.epoll.enter(1, Some(Duration::from_nanos(nanos)), None).unwrap();
            assert!(entered.timed_out, "{nanos}");
            let (timeout, mask) = (Some(Duration::from_nanos(nanos)), SignalMask::NONE);
            let entered = test.epoll.enter(1, timeout, Some(&mask)).unwrap();
            assert!(entered.timed_out, "{nanos}, with a mask");
        }
        test.push(2, send(&writer, &out));
        let mut ends = test.enter(2);
        ends.sort_unstable();
        assert_eq!(ends, [(1, 5), (2, 5)]);
        assert_eq!(back.copy(), b"hello");
        drop(reader);
        assert_eq!(test.run(send(&writer, &out)), err(Errno::PIPE));
    }
}

#[test]
fn calls_newer_than_the_floor_are_not_needed() {
    for errno in [Errno::NOSYS, Errno::PERM] {
        let calls = [
            (libc::SYS_epoll_pwait2, errno),
            (libc::SYS_preadv2, Errno::NOSYS),
            (libc::SYS_pwritev2, Errno::NOSYS),
            (libc::SYS_io_uring_setup, errno),
        ];
        filtered(&calls, use_everything);
    }
}

/// `preadv2` exists, but does not know `RWF_NOWAIT`.
#[test]
fn an_older_preadv2_is_not_needed() {
    for errno in [Errno::INVAL, Errno::OPNOTSUPP] {
        filtered(&[(libc::SYS_preadv2, errno), (libc::SYS_pwritev2, errno)], use_everything);
    }
}

#[test]
fn opens_do_not_need_statx() {
    filtered(&[(libc::SYS_statx, Errno::NOSYS)], || {
        let (dir, mut test) = (TempDir::new(), Loop::new());
        drop(test.open(&dir.file("file", b"abc"), OFlags::RDONLY).unwrap());
        let elastic = test.epoll.statistics(Lane::Elastic);
        assert_eq!(elastic.finished, 1, "an unknown file may wait");
    });
}

/// Opens with each bit of flags and mode do the same with and without the call.
#[test]
fn opens_without_rules_do_not_need_openat2() {
    use crate::sys::open::Open;

    /// Returns the errors, or the flags of what was opened.
    fn open_each(path: &Path) -> Vec<Result<OFlags, Errno>> {
        let path = Lendable::path(path);
        let open = |(flags, mode)| {
            let address = path.ptr().expose_provenance() as u64;
            let open = Open { dir: AT_FDCWD, path: address, flags, mode, resolve: Some(0) };
            // SAFETY: the path outlives the calls.
            let opened = match unsafe { open.unless_it_waits() } {
                // SAFETY: as above.
                Ok(None) => unsafe { open.anyway() },
                opened => opened.map(|opened| opened.expect("it does not wait")),
            };
            opened.and_then(rustix::fs::fcntl_getfl)
        };
        let create = u64::from(OFlags::CREATE.bits());
        let flags = (0..64).map(|bit| (1 << bit, 0));
        let modes = (0..64).flat_map(|bit| [0, create].map(|flags| (flags, 1 << bit)));
        let path = u64::from(OFlags::PATH.bits());
        let beside = (0..64).map(|bit| (path | 1 << bit, 0));
        flags.chain(modes).chain(beside).map(open).collect()
    }

    let dir = TempDir::new();
    let path = dir.file("file", b"abc");
    let expected = open_each(&path);
    assert!(expected.contains(&Err(Errno::INVAL)));
    assert!(expected.iter().any(Result::is_ok));
    for errno in [Errno::NOSYS, Errno::PERM] {
        let (path, expected) = (path.clone(), expected.clone());
        filtered(&[(libc::SYS_openat2, errno)], move || {
            assert_eq!(open_each(&path), expected);
        });
    }
}

#[test]
fn without_threads_files_are_used_in_place_and_what_may_wait_fails() {
    let calls = [(libc::SYS_clone3, Errno::NOSYS), (libc::SYS_clone, Errno::AGAIN)];
    filtered(&calls, || {
        let (dir, mut test) = (TempDir::new(), Loop::new());
        let file = test.open(&dir.file("file", b"abc"), OFlags::RDONLY).unwrap();
        let buffers: Vec<_> = (0..20).map(|_| Lendable::zeroed(3)).collect();
        for (index, buffer) in buffers.iter().enumerate() {
            test.push(index as u64, read(&file, buffer, 0));
        }
        assert!(test.enter(20).into_iter().eq((0..20).map(|index| (index, 3))));
        let opened = test.open(&dir.fifo("fifo"), OFlags::RDONLY);
        assert_eq!(opened.map(|_| ()), Err(Errno::AGAIN));
        for lane in Lane::ALL {
            let its = test.epoll.statistics(lane);
            assert_eq!((its.threads, its.running, its.queued), (0, 0, 0));
            assert!(its.spawn_errors > 0);
        }
    });
}
