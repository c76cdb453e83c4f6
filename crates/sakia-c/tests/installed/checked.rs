//! Programs below checkers of memory and of threads. They take long, and need tools that few machines have.
//! Each runs only if a variable of the environment asks for it.

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::DRIVERS;
use crate::installation::{Build, C, HERE, Installed, has, has_nightly};

const TESTS: [&str; 3] = ["tests/hostile.c", "tests/operations.c", "tests/queue.c"];

/// Returns whether the environment asks for the test.
fn is_asked(variable: &str) -> bool {
    let is_set = env::var_os(variable).is_some();
    if !is_set {
        eprintln!("SKIP: {variable} is not set");
    }
    is_set
}

fn output(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// On epoll alone, since valgrind does not know of the kernel's writes by a ring.
#[test]
fn valgrind_reports_the_planted_mistakes_and_nothing_else() {
    if !is_asked("SAKIA_TEST_VALGRIND") || !has(&["cc", "pkg-config", "valgrind"]) {
        return;
    }
    let installed = Installed::new("valgrind", &[]);
    let file = installed.path("file");
    let suppressions = Path::new(HERE).join("valgrind.supp");
    let logs = installed.path("logs");
    // A log per process, since children are checked, too.
    let checked = |program: &str, arguments: &[&str]| {
        fs::create_dir_all(&logs).expect("a folder");
        let mut command = Command::new("valgrind");
        command.args(["-q", "--leak-check=full", "--show-leak-kinds=definite"]);
        command.arg(format!("--suppressions={}", suppressions.display()));
        command.arg(format!("--log-file={logs}/%p")).arg(program).args(arguments);
        let ended = output(command.env("SAKIA_DRIVER", "poll"));
        let read = |entry| fs::read_to_string(entry).expect("a log");
        let entries = fs::read_dir(&logs).expect("logs").map(|entry| entry.expect("one").path());
        // The other lines are about system calls that an older valgrind does not know.
        let text = entries.map(read).collect::<String>();
        let reports = text.lines().filter(|line| line.starts_with("==")).collect::<Vec<_>>();
        fs::remove_dir_all(&logs).expect("removed");
        (ended, reports.join("\n"))
    };
    let build = Build { flags: &["-std=c11", "-g"], ..C };
    for (source, arguments) in TESTS.into_iter().zip([&[][..], &[], &[file.as_str()]]) {
        let (ended, reports) = checked(&installed.build(source, build), arguments);
        assert!(ended.status.success() && reports.is_empty(), "{source}: {ended:?}\n{reports}");
    }
    let planted = installed.build("tests/planted.c", build);
    for (mistake, report) in [
        ("none", ""),
        ("read_beyond", "0 bytes after a block of size 63 alloc'd"),
        ("stat_beyond", "248 bytes inside a block of size 255 alloc'd"),
        ("read_freed", "0 bytes inside a block of size 8 free'd"),
        ("stat_freed", "0 bytes inside a block of size 256 free'd"),
        ("loop_lost", "are definitely lost"),
    ] {
        let (ended, reports) = checked(&planted, &[mistake, &file]);
        let is_right = reports.contains(report) && reports.is_empty() == report.is_empty();
        assert!(is_right, "{mistake}: {ended:?}\n{reports}");
    }
}

/// A program of [`TESTS`], and with a mistake and its report: those that the library itself makes, since the
/// kernel's accesses are seen by no sanitizer.
fn sanitizer_reports(name: &str, mistakes: &[(&str, &str)]) {
    if !is_asked("SAKIA_TEST_SANITIZERS") || !has(&["cc", "pkg-config"]) || !has_nightly() {
        return;
    }
    let installed = Installed::new(name, &["--sanitizer", name]);
    let file = installed.path("file");
    let checked = |program: &str, arguments: &[&str], driver| {
        let mut command = Command::new(program);
        // The tests start threads in forked children, where the sanitizer checks nothing then.
        let options = format!("die_after_fork=0 suppressions={HERE}/tsan.supp");
        command.env("TSAN_OPTIONS", options).env("SAKIA_DRIVER", driver);
        let ended = output(command.args(arguments));
        let reports = String::from_utf8_lossy(&ended.stderr).into_owned();
        (ended.status, reports)
    };
    for (source, arguments) in TESTS.into_iter().zip([&[][..], &[], &[file.as_str()]]) {
        let program = installed.build_checked(source);
        for driver in DRIVERS {
            let (status, reports) = checked(&program, arguments, driver);
            let is_clean = status.success() && reports.is_empty();
            assert!(is_clean, "{source} on {driver}: {status}\n{reports}");
        }
    }
    let planted = installed.build_checked("tests/planted.c");
    for &(mistake, report) in mistakes {
        for driver in DRIVERS {
            let (status, reports) = checked(&planted, &[mistake, &file], driver);
            let is_right = reports.contains(report) && status.success() == report.is_empty();
            assert!(is_right, "{mistake} on {driver}: {status}\n{reports}");
        }
    }
}

#[test]
fn address_sanitizer_reports_the_planted_mistakes_and_nothing_else() {
    sanitizer_reports(
        "address",
        &[
            ("none", ""),
            ("stat_beyond", "AddressSanitizer: heap-buffer-overflow"),
            ("stat_freed", "AddressSanitizer: heap-use-after-free"),
            ("loop_lost", "LeakSanitizer: detected memory leaks"),
        ],
    );
}

#[test]
fn thread_sanitizer_reports_the_planted_race_and_nothing_else() {
    let race = "ThreadSanitizer: data race";
    sanitizer_reports("thread", &[("none", ""), ("stat_races", race)]);
}
