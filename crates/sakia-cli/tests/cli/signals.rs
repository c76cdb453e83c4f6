//! Signals that end the program: it stops, cleans up, and dies of them.

use std::ffi::OsStr;
use std::fs;
use std::io::{Write, pipe};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{TempDir, await_that, needs_ring, plain_sum, sakia, wait};

/// Returns `sakia` with these arguments, receiving the signals that end it. They may be ignored here
/// (`nohup`, a shell's `&`), and a child inherits that.
pub fn hearing<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = sakia(args);
    let hear = || {
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            // SAFETY: a plain system call.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure only makes system calls.
    unsafe { command.pre_exec(hear) };
    command
}

/// Starts the program and waits until it handles the signals that end it, but for those that it ignores.
pub fn start(command: &mut Command) -> Child {
    const ENDING: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    await_that("handlers of signals", || {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let mask = |name| {
            let mask = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("0");
            u64::from_str_radix(mask.trim(), 16).unwrap()
        };
        let (caught, ignored) = (mask("SigCgt:"), mask("SigIgn:"));
        let has = |mask: u64, signal: i32| mask & 1 << (signal - 1) != 0;
        has(caught, libc::SIGTERM) && ENDING.into_iter().all(|signal| has(caught | ignored, signal))
    });
    child
}

pub fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Waits for the end, up to a time limit.
pub fn end(child: &mut Child) -> ExitStatus {
    let mut status = None;
    await_that("the end of the program", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    status.unwrap()
}

#[test]
fn interrupt_a_pipe_that_never_ends() {
    needs_ring!();
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        for bytes in [0, 100_000] {
            let (reader, mut writer) = pipe().unwrap();
            let mut child = start(hearing(["sum"]).stdin(reader));
            writer.write_all(&vec![1; bytes]).unwrap();
            send(&child, signal);
            assert_eq!(end(&mut child).signal(), Some(signal.as_raw()));
            drop(writer);
        }
    }
}

#[test]
fn interrupt_the_wait_for_a_writer() {
    needs_ring!();
    let directory = TempDir::new();
    let (file, fifo) = (directory.file("file", b"abc"), directory.fifo());
    let mut child = start(hearing(["sum", "-q"]).args([&file, &fifo, &file]));
    send(&child, Signal::INT);
    assert_eq!(end(&mut child).signal(), Some(libc::SIGINT));
    let ended = wait_output(child);
    // Earlier results may have been printed, and nothing else.
    let row = format!("{:>15} {:>13}  {}\n", 294, 3, file.display());
    assert!(ended.0 == row || ended.0.is_empty(), "{ended:?}");
    assert_eq!(ended.1, "");
}

#[test]
fn interrupt_at_any_moment() {
    needs_ring!();
    let directory = TempDir::new();
    let path = directory.file("file", b"");
    fs::File::options().write(true).open(&path).unwrap().set_len(64 << 30).unwrap();
    for round in 0..20u64 {
        let mut child = start(hearing(["sum"]).arg(&path));
        std::thread::sleep(std::time::Duration::from_micros(round * 700));
        send(&child, Signal::INT);
        assert_eq!(end(&mut child).signal(), Some(libc::SIGINT));
        assert_eq!(wait_output(child), (String::new(), String::new()));
    }
}

#[test]
fn ignored_signals_stay_ignored() {
    needs_ring!();
    let (reader, mut writer) = pipe().unwrap();
    let mut command = hearing(["sum", "-q"]);
    let ignore = || {
        // SAFETY: a plain system call.
        unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
        Ok(())
    };
    // SAFETY: between fork and exec the closure only makes a system call.
    unsafe { command.pre_exec(ignore) };
    let child = start(command.stdin(reader));
    send(&child, Signal::INT);
    writer.write_all(b"abc").unwrap();
    drop(writer);
    let ended = wait(child);
    ended.assert_quiet_success();
    assert_eq!(ended.rows(), [(plain_sum(b"abc"), 3, "-")]);
}

fn wait_output(child: Child) -> (String, String) {
    let ended = wait(child);
    (ended.stdout, ended.stderr)
}
