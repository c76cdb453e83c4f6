//! File systems that do not answer: signals still end the program.
//!
//! The kernel keeps a thread in a call that a server has taken and does not answer, even after `SIGKILL`, and
//! its process with it. So the program leaves such work to another process.

use std::fs;
use std::io::Read;
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use sakia_testkit::available;
use sakia_testkit::fuse::{Fuse, Opcode, Rule, pattern};
use sakia_testkit::settings::number;

use crate::signals::{end, hearing, send, start};
use crate::support::{TempDir, at_once, await_that};

/// Waits until the program has ended, except for threads that the kernel keeps.
fn await_end(child: &mut Child) {
    let status = format!("/proc/{}/status", child.id());
    await_that("the end of the thread that hears", || {
        let is_zombie = |status: String| status.contains("State:\tZ");
        fs::read_to_string(&status).is_ok_and(is_zombie) || child.try_wait().unwrap().is_some()
    });
}

/// Commands of the program; `{}` is the file system that does not answer.
const READING: [(&str, Opcode); 6] = [
    ("cp {}/a to", Opcode::READ),
    ("cp -r {} to", Opcode::READ),
    ("cp {}/a to", Opcode::OPEN),
    ("cp -a {} to", Opcode::READDIR),
    ("cp -r {} to", Opcode::LOOKUP),
    ("sum -q {}/a", Opcode::READ),
];
const WRITING: [(&str, Opcode); 6] = [
    ("cp b {}/new", Opcode::CREATE),
    ("cp b {}/new", Opcode::WRITE),
    ("cp -a b {}/new", Opcode::FLUSH),
    ("rm {}/a", Opcode::UNLINK),
    ("rm -r {}", Opcode::OPENDIR),
    ("mktree --levels 1 {}/", Opcode::OPENDIR),
];

/// The same with `link`, which leads there.
const THROUGH_A_LINK: [(&str, Opcode); 3] = [
    ("cp link/a to", Opcode::READ),
    ("cp -r link/. to", Opcode::OPENDIR),
    ("rm ./link/a", Opcode::UNLINK),
];

/// Starts the program, and waits until it blocks.
fn hang(arguments: &str, opcode: Opcode, fuse: &Fuse, directory: &Path) -> Child {
    let arguments = arguments.replace("{}", fuse.path().to_str().unwrap());
    fuse.script(Rule::on(opcode).never());
    let child = start(hearing(arguments.split(' ')).current_dir(directory));
    fuse.wait_waiting(1);
    child
}

/// Calls `act` for all cases in parallel, since each takes a while.
fn each(act: impl Fn(&str, Opcode, &Fuse, &TempDir) + Sync) {
    thread::scope(|scope| {
        for (arguments, opcode) in READING.into_iter().chain(WRITING) {
            let act = &act;
            scope.spawn(move || {
                let fuse = available!(Fuse::builder().file("a", pattern(600_000)).mount());
                let directory = TempDir::new();
                directory.file("b", &pattern(600_000));
                act(arguments, opcode, &fuse, &directory);
            });
        }
    });
}

#[test]
fn a_first_signal_ends_a_program_that_is_not_answered() {
    each(|arguments, opcode, fuse, directory| {
        let mut child = hang(arguments, opcode, fuse, directory.path());
        send(&child, Signal::INT);
        let status = end(&mut child);
        fuse.release();
        let case = format!("{arguments}, {opcode}");
        assert_eq!(status.signal(), Some(libc::SIGINT), "{case}");
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        if arguments.starts_with("sum") {
            // `sum` leaves its reads to other threads, and does not wait for them, which may take long.
            let is_late = said == "sakia: gave up waiting for an answer\n";
            assert!(said.is_empty() || is_late, "{case}: {said}");
            return;
        }
        assert!(said.starts_with("sakia: gave up waiting for "), "{case}: {said}");
        if arguments.starts_with("cp") {
            assert!(said.contains("sakia: stopped; copied so far: 0 files, "), "{case}: {said}");
        }
        // The remains are marked as incomplete.
        let to = directory.path().join("to");
        if let Ok(stat) = to.symlink_metadata() {
            let mode = std::os::unix::fs::MetadataExt::mode(&stat) & 0o7777;
            assert_eq!(mode, if stat.is_dir() { 0o1700 } else { 0o1200 }, "{case}");
        }
    });
}

/// The second signal needs no grace period.
#[test]
fn a_second_signal_ends_it_at_once() {
    each(|arguments, opcode, fuse, directory| {
        let mut child = hang(arguments, opcode, fuse, directory.path());
        // The signals differ, since the kernel merges two of the same number; the program is stopped in
        // between.
        for signal in [Signal::STOP, Signal::HUP, Signal::TERM, Signal::CONT] {
            send(&child, signal);
        }
        let status = end(&mut child);
        fuse.release();
        let case = format!("{arguments}, {opcode}");
        let signal = status.signal();
        assert!([Some(libc::SIGTERM), Some(libc::SIGHUP)].contains(&signal), "{case}: {status:?}");
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(!said.contains("gave up"), "{case}: {said}");
    });
}

/// Once the server answers again, the same command with -n or -u completes the copy.
#[test]
fn a_copy_that_was_given_up_is_completed() {
    for letter in ["-n", "-u"] {
        let fuse = available!(Fuse::builder().file("a", pattern(600_000)).mount());
        let directory = TempDir::new();
        let mut child = hang("cp -r {} to", Opcode::READ, &fuse, directory.path());
        send(&child, Signal::TERM);
        assert_eq!(end(&mut child).signal(), Some(libc::SIGTERM));
        fuse.release();
        let mut again = hearing(["cp", "-r", letter]);
        let again = again.arg("-T").arg(fuse.path()).arg("to").current_dir(directory.path());
        assert!(end(&mut start(again)).success());
        assert_eq!(fs::read(directory.path().join("to/a")).unwrap(), pattern(600_000));
    }
}

/// Directories that cannot be removed in time are named.
#[test]
fn a_benchmark_that_is_given_up_names_its_directories() {
    let fuse = available!(Fuse::builder().file("a", pattern(600_000)).mount());
    let directory = TempDir::new();
    let arguments = "bench copytree --variants cp --tree {}/a --place ./ --dir .";
    let mut child = hang(arguments, Opcode::READ, &fuse, directory.path());
    send(&child, Signal::INT);
    await_end(&mut child);
    fuse.release();
    assert_eq!(end(&mut child).signal(), Some(libc::SIGINT));
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    let mut left: Vec<_> = fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| format!("sakia: left behind: directory {}\n", entry.unwrap().path().display()))
        .collect();
    left.sort_unstable();
    let mut said: Vec<_> = said.split_inclusive('\n').collect();
    said.sort_unstable();
    assert_eq!((left.len(), said), (2, left.iter().map(String::as_str).collect()));
}

/// Waits until the main thread has handled the signal, and sleeps again.
fn await_heard(child: &Child, signal: Signal) {
    let status = format!("/proc/{}/status", child.id());
    await_that("the signal to be heard", || {
        let status = fs::read_to_string(&status).unwrap_or_default();
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let pending = field("ShdPnd:").and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        let is_taken = pending.is_some_and(|mask| mask & 1 << (signal.as_raw() - 1) == 0);
        is_taken && field("State:").is_some_and(|state| state.trim().starts_with('S'))
    });
}

/// Only the part in progress is finished, by a thread that never waits.
#[test]
fn a_large_file_is_not_copied_to_its_end() {
    const LEN: usize = 16 << 20;
    let directory = TempDir::new();
    directory.file("b", &pattern(1 << 20).repeat(16));
    let writes = |fuse: &Fuse, signal: Option<Signal>| {
        let gate = fuse.hold(Rule::on(Opcode::WRITE));
        let mut command = hearing(["cp", "b"]);
        let command = command.arg(fuse.join("new")).current_dir(directory.path());
        let mut child = start(command);
        gate.wait_held(1);
        if let Some(signal) = signal {
            send(&child, signal);
            await_heard(&child, signal);
        }
        gate.open();
        assert_eq!(end(&mut child).signal(), signal.map(Signal::as_raw));
        if signal.is_none() {
            assert_eq!(fuse.content("new").len(), LEN);
        }
        fuse.count(Opcode::WRITE)
    };
    let all = writes(&available!(Fuse::builder().mount()), None);
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let some = writes(&available!(Fuse::builder().mount()), Some(signal));
        // The first part is a sixteenth.
        assert!(some <= all / 8, "{some} of {all} writes");
    }
}

/// Interrupts the program while a server with one thread waits for ever: it answers nothing else either, such
/// as the `FLUSH` of each open file at the end of a process. Returns after the real end of the program.
fn end_unanswered(arguments: &str, opcode: Opcode, signal: Signal) -> Duration {
    let fuse = Fuse::builder().file("a", pattern(600_000)).mount().unwrap();
    let directory = TempDir::new();
    directory.file("b", &pattern(600_000));
    symlink(fuse.path(), directory.path().join("link")).unwrap();
    let mut child = hang(arguments, opcode, &fuse, directory.path());
    fuse.script(Rule::on(Opcode::FLUSH).never());
    let begin = Instant::now();
    send(&child, signal);
    let status = end(&mut child);
    let elapsed = begin.elapsed();
    assert_eq!(status.signal(), Some(signal.as_raw()), "{arguments}, {opcode}");
    fuse.release();
    elapsed
}

#[test]
fn the_end_waits_for_no_server() {
    drop(available!(Fuse::builder().mount()));
    for signal in [Signal::INT, Signal::TERM].repeat(5) {
        at_once(READING.into_iter().chain(WRITING).chain(THROUGH_A_LINK), |(arguments, opcode)| {
            end_unanswered(arguments, opcode, signal);
        });
    }
}

/// Prints the times from a signal to the end of the program, of 50 tries or `SAKIA_TEST_TRIES`: `cargo test
/// --release -p sakia-cli --test cli -- --ignored --nocapture time_without_an_answer`.
#[test]
#[ignore = "prints figures, which depend on the machine"]
fn time_without_an_answer() {
    drop(available!(Fuse::builder().mount()));
    let tries = number("SAKIA_TEST_TRIES", 50) as usize;
    for (arguments, opcode) in READING.into_iter().chain(WRITING).chain(THROUGH_A_LINK) {
        let signals = [Signal::INT, Signal::TERM].into_iter().cycle().take(tries);
        let time = |signal| end_unanswered(arguments, opcode, signal).as_millis();
        let mut figures: Vec<_> = signals.map(time).collect();
        figures.sort_unstable();
        let (least, median, most) = (figures[0], figures[tries / 2], figures[tries - 1]);
        println!("{arguments}, {opcode}: {least} to {most} ms, median {median}");
    }
}
