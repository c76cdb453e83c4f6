//! A machine without a ring: the work is done without it, or, if the ring was requested, one line names the
//! cause and the remedy.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use sakia_testkit::skip;
use serde_json::Value;

use crate::support::{
    Ended, TempDir, needs_ring, plain_sum, program_for_all, random_bytes, run, sakia,
    without_privileges,
};

const CALLS: [libc::c_long; 3] =
    [libc::SYS_io_uring_setup, libc::SYS_io_uring_register, libc::SYS_io_uring_enter];

/// Makes `call` fail with `errno` in the command; other calls work as before.
pub fn deny(command: &mut Command, call: libc::c_long, errno: i32) -> &mut Command {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let filter = [
        step(LOAD, 0, 0, 0), // the number of the call
        step(JUMP_IF_EQUAL, 0, 1, call as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let install = move || {
        let program =
            libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
        // SAFETY: plain system calls, of which the second reads the program that lives until then.
        let result = unsafe {
            match libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) {
                0 => {
                    libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
                }
                failed => failed,
            }
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // SAFETY: between fork and exec the closure only makes system calls: it neither allocates nor
    // takes locks.
    unsafe { command.pre_exec(install) }
}

#[track_caller]
fn assert_one_line(ended: &Ended, cause: &[&str]) {
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
    assert!(ended.stderr.starts_with("sakia: io_uring is not available: "), "{ended:?}");
    for words in cause {
        assert!(ended.stderr.contains(words), "{words}: {ended:?}");
    }
}

/// Returns `sakia` with the ring as the only backend.
fn insisting<const N: usize>(args: [&str; N]) -> Command {
    let mut command = sakia(args);
    command.env("SAKIA_DRIVER", "uring");
    command
}

fn last_line(ended: &Ended) -> Value {
    serde_json::from_str(ended.stdout.lines().last().unwrap()).unwrap()
}

#[test]
fn does_not_keep_it_from_summing() {
    let directory = TempDir::new();
    let bytes = random_bytes(1, 3_000_000);
    let path = directory.file("file", &bytes);
    let expected = [(plain_sum(&bytes), 3_000_000, path.to_str().unwrap())];
    for call in CALLS {
        for errno in [libc::EPERM, libc::ENOSYS] {
            let ended = run(deny(sakia(["sum"]).arg(&path), call, errno));
            assert_eq!((ended.code, &ended.rows()[..]), (Some(0), &expected[..]), "{ended:?}");
            let (first, statistics) = ended.stderr.split_once('\n').unwrap();
            let why = "sakia: epoll and threads instead of io_uring: io_uring_";
            assert!(first.starts_with(why), "{ended:?}");
            assert!(first.contains(&format!("(os error {errno})")), "{ended:?}");
            assert!(!statistics.contains("io_uring"), "{ended:?}");
            assert!(statistics.contains("driver               poll"), "{ended:?}");

            let ended = run(deny(sakia(["sum", "--quiet"]).arg(&path), call, errno));
            ended.assert_quiet_success();
            assert_eq!(ended.rows(), expected);

            let ended = run(deny(sakia(["sum", "--json"]).arg(&path), call, errno));
            ended.assert_quiet_success();
            let summary = last_line(&ended);
            assert_eq!(summary["driver"], "poll");
            assert_eq!(summary["sum"], expected[0].0);
            let refusal = summary["refusal"].as_str().unwrap();
            assert!(first.ends_with(refusal), "{refusal}");
        }
    }
}

#[test]
fn is_not_mentioned_where_poll_was_asked_for() {
    let mut command = sakia(["sum", "--json"]);
    let ended = run(deny(command.env("SAKIA_DRIVER", "poll"), CALLS[0], libc::EPERM));
    ended.assert_quiet_success();
    let summary = last_line(&ended);
    assert_eq!((&summary["driver"], summary.get("refusal")), (&"poll".into(), None));
}

#[test]
fn filter_forbids_it() {
    for call in CALLS {
        let ended = run(deny(&mut insisting(["sum"]), call, libc::EPERM));
        assert_one_line(
            &ended,
            &["(os error 1)", "a seccomp filter or security module forbids it", "; allow"],
        );
        assert_eq!(ended.stdout, "");
    }
}

#[test]
fn filter_hides_it() {
    for call in CALLS {
        let ended = run(deny(&mut insisting(["sum"]), call, libc::ENOSYS));
        assert_one_line(&ended, &["(os error 38)", "a seccomp filter hides it", "; use kernel"]);
        assert_eq!(ended.stdout, "");
    }
}

#[test]
fn no_locked_memory_is_left() {
    needs_ring!();
    let (_copy, program) = program_for_all();
    let mut command = Command::new(program);
    command.args(["sum", "--json"]).stdin(Stdio::null()).env_remove("SAKIA_DRIVER");
    no_locked_memory(&mut command);
    without_privileges(&mut command);
    let ended = run(&mut command);
    ended.assert_quiet_success();
    let summary = last_line(&ended);
    if summary["driver"] == "uring" {
        skip!("this kernel, or this user's privileges, know no limit on locked memory");
    }
    assert!(summary["refusal"].as_str().unwrap().contains("locked memory"), "{summary}");

    let ended = run(command.env("SAKIA_DRIVER", "uring"));
    assert_one_line(
        &ended,
        &["(os error 12)", "the limit on locked memory (0 KiB", "; raise it with `ulimit -l`"],
    );
}

/// Denies the command any locked memory, unless it is privileged.
fn no_locked_memory(command: &mut Command) {
    let limit = || {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a plain system call that reads the limit.
        match unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &none) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec the closure only makes a system call.
    unsafe { command.pre_exec(limit) };
}

#[test]
fn is_told_in_json_too() {
    let ended = run(deny(&mut insisting(["sum", "--json"]), libc::SYS_io_uring_setup, libc::EPERM));
    assert_one_line(&ended, &[]);
    let error = ended.json();
    assert_eq!((&error["type"], &error["errno"]), (&"error".into(), &1.into()));
    assert!(error["message"].as_str().unwrap().contains("seccomp filter"));
    assert_eq!(error.get("path"), None);
}

#[test]
fn an_epoll_refused_as_well_is_told_with_its_errno() {
    let mut command = sakia(["sum", "--json"]);
    deny(&mut command, libc::SYS_io_uring_setup, libc::EPERM);
    let ended = run(deny(&mut command, libc::SYS_epoll_create1, libc::EMFILE));
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.starts_with("sakia: epoll is not available: epoll: "), "{ended:?}");
    let error = ended.json();
    assert_eq!((&error["operation"], &error["errno"]), (&"epoll".into(), &24.into()), "{ended:?}");
}

#[test]
fn doctor_says_why_and_what_to_change() {
    let denied = |args: &[&str]| run(deny(&mut sakia(args), libc::SYS_io_uring_setup, libc::EPERM));
    let ended = denied(&["doctor"]);
    assert_one_line(&ended, &["seccomp filter"]);
    let seccomp =
        ended.stdout.lines().find(|line| line.trim_start().starts_with("seccomp")).unwrap();
    assert!(seccomp.ends_with("filter"), "{seccomp:?}");
    let (_, advice) = ended.stdout.split_once("what to change\n").unwrap();
    assert!(advice.contains("allow io_uring_setup"), "{advice}");
    let (_, backend) = ended.stdout.split_once("\nbackend\n").unwrap();
    assert!(backend.contains("  auto chooses        poll\n"), "{backend}");
    assert!(backend.contains("  why                 io_uring_setup: "), "{backend}");

    let ended = denied(&["doctor", "--json"]);
    assert_eq!(ended.code, Some(1));
    let found = ended.json();
    assert_eq!((&found["ring"]["available"], &found["ring"]["errno"]), (&false.into(), &1.into()));
    assert_eq!(found["sandbox"]["seccomp"], "filter");
    assert_eq!(found["poll"]["available"], true);
    assert_eq!(found["backend"]["auto"], "poll");
    assert_eq!(found["backend"]["why"], found["ring"]["error"]);
    assert!(found["ring"]["hint"].as_str().unwrap().contains("allow io_uring_setup"));
    assert_eq!(found["advice"].as_array().unwrap().len(), 1);
}
