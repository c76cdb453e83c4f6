//! Real refusals: a seccomp filter, no locked memory, no descriptors left.

use std::io;
use std::time::Duration;

use rustix::process::{Resource, Rlimit};
use sakia_ring::{Ring, SetupError};

use crate::children;
use crate::support::{assert_works, enter, skip};

/// The calls have the same numbers on every architecture, as all calls since 5.1.
const IO_URING_SETUP: u32 = 425;
const IO_URING_ENTER: u32 = 426;
const IO_URING_REGISTER: u32 = 427;

#[test]
fn a_filter_that_forbids_is_a_refusal() {
    if let Err(reason) = children::run("seccomp_eperm") {
        skip!("{reason}");
    }
}

#[test]
fn a_filter_that_hides_is_a_refusal() {
    if let Err(reason) = children::run("seccomp_enosys") {
        skip!("{reason}");
    }
}

#[test]
fn a_filter_that_forbids_registration_only_is_a_refusal() {
    if let Err(reason) = children::run("seccomp_register") {
        skip!("{reason}");
    }
}

#[test]
fn a_filter_that_forbids_entering_only_is_a_refusal() {
    if let Err(reason) = children::run("seccomp_enter") {
        skip!("{reason}");
    }
}

#[test]
fn no_locked_memory_is_a_refusal() {
    if let Err(reason) = children::run("no_locked_memory") {
        skip!("{reason}");
    }
}

#[test]
fn no_descriptors_left_is_no_refusal() {
    if let Err(reason) = children::run("no_descriptors") {
        skip!("{reason}");
    }
}

/// Makes a system call of this process fail with `errno` from now on.
fn forbid(call: u32, errno: i32) -> Result<(), String> {
    let statement = |code: u32, k| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let mut program = [
        // The first field of a filter's input is the system call number.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        libc::sock_filter { jf: 1, ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call) },
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | errno as u32),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    let check = |what, result| match result {
        0 => Ok(()),
        _ => Err(format!("{what}: {}", io::Error::last_os_error())),
    };
    // SAFETY: takes only numbers.
    check("PR_SET_NO_NEW_PRIVS", unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    // SAFETY: a filter of four instructions that outlives the call, which copies it.
    check("PR_SET_SECCOMP", unsafe {
        let mode = libc::SECCOMP_MODE_FILTER;
        libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program, 0, 0)
    })
}

fn assert_refusal(error: &SetupError, call: &str, errno: i32, remedy: &str) {
    assert!(error.is_refusal(), "{error}");
    assert_eq!(error.raw_os_error(), Some(errno), "{error}");
    let text = error.to_string();
    assert!(text.starts_with(call) && text.contains(remedy), "{text}");
    assert!(!text.contains('\n'), "{text}");
}

pub fn seccomp_eperm() -> Result<(), String> {
    forbid(IO_URING_SETUP, libc::EPERM)?;
    let error = Ring::builder().build().unwrap_err();
    assert_refusal(&error, "io_uring_setup:", libc::EPERM, "io_uring");
    Ok(())
}

pub fn seccomp_enosys() -> Result<(), String> {
    forbid(IO_URING_SETUP, libc::ENOSYS)?;
    let error = Ring::builder().build().unwrap_err();
    assert_refusal(&error, "io_uring_setup:", libc::ENOSYS, "seccomp");
    Ok(())
}

pub fn seccomp_register() -> Result<(), String> {
    let mut before = Ring::builder().build().unwrap();
    forbid(IO_URING_REGISTER, libc::EPERM)?;
    let error = Ring::builder().build().unwrap_err();
    let call = "io_uring_register(ENABLE_RINGS):";
    assert_refusal(&error, call, libc::EPERM, "io_uring_register");
    assert_eq!(error.steps().len(), 1, "{:?}", error.steps());
    assert_works(&mut before);
    drop(before); // cannot release its place, and does no harm
    Ok(())
}

pub fn seccomp_enter() -> Result<(), String> {
    forbid(IO_URING_ENTER, libc::EPERM)?;
    let error = Ring::builder().build().unwrap_err();
    assert_refusal(&error, "io_uring_enter:", libc::EPERM, "io_uring_enter");
    Ok(())
}

fn limit(resource: Resource, value: u64) {
    let limit = Rlimit { current: Some(value), maximum: Some(value) };
    rustix::process::setrlimit(resource, limit).unwrap();
}

pub fn no_locked_memory() -> Result<(), String> {
    const NOBODY: u32 = 65_534;
    limit(Resource::Memlock, 0);
    // SAFETY: these calls take no memory; this process has one thread.
    unsafe {
        if libc::geteuid() == 0 {
            let dropped = libc::setgid(NOBODY) == 0 && libc::setuid(NOBODY) == 0;
            assert!(dropped, "setuid: {}", io::Error::last_os_error());
        }
    }
    match Ring::builder().build() {
        Ok(mut ring) => {
            assert_works(&mut ring);
            let steps = &ring.report().steps;
            if steps.is_empty() {
                return Err("rings are not charged to the limit on locked memory \
                     (kernels 5.12 to 6.13), or CAP_IPC_LOCK is held"
                    .into());
            }
            // The memory of the rings is not charged, but the page for waits is.
            assert!(steps.iter().all(|step| step.errno == libc::ENOMEM), "{steps:?}");
            assert!(enter(&mut ring, 1, Some(Duration::ZERO)).timed_out);
        }
        Err(error) => {
            assert_refusal(&error, "io_uring_setup:", libc::ENOMEM, "locked memory (0 KiB");
            assert_eq!(error.steps().len(), 5, "{:?}", error.steps());
        }
    }
    Ok(())
}

pub fn no_descriptors() -> Result<(), String> {
    limit(Resource::Nofile, 0);
    let error = Ring::builder().build().unwrap_err();
    assert!(!error.is_refusal(), "{error}");
    assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
    assert!(error.to_string().contains("ulimit -n"), "{error}");
    Ok(())
}
