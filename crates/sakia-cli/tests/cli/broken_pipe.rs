//! Standard output that accepts nothing.

use std::fs::{self, File};
use std::io::{Write, pipe};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::{Ended, TempDir, await_that, needs_ring, run, sakia, wait, without_streams};

fn with_stdout(command: &mut Command, stdout: impl Into<Stdio>) -> Ended {
    wait(command.stdout(stdout).stderr(Stdio::piped()).spawn().unwrap())
}

#[test]
fn nobody_reads_any_more() {
    needs_ring!();
    let directory = TempDir::new();
    let path = directory.file("file", b"abc");
    for args in [&["sum", "-q"][..], &["sum"], &["sum", "--json"]] {
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        let ended = with_stdout(sakia(args).args([&path, &path]), writer);
        ended.assert_quiet_success();
    }
    for args in [&["doctor"][..], &["doctor", "--json"], &["--help"], &["sum", "--help"]] {
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        with_stdout(&mut sakia(args), writer).assert_quiet_success();
    }
}

/// Copies of several files, and removals, continue even if their messages cannot be written.
#[test]
fn work_goes_on_though_nobody_reads() {
    for args in [&["cp", "-rv"][..], &["cp", "-r", "--json"], &["cp", "-rv", "--dry-run"]] {
        let directory = TempDir::new();
        let (from, to) = tree(&directory);
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        with_stdout(sakia(args).args([&from, &to]), writer).assert_quiet_success();
        assert_eq!(to.join("49").exists(), !args.contains(&"--dry-run"), "{args:?}");
    }
    // Failures still count.
    let directory = TempDir::new();
    let (from, to) = tree(&directory);
    fs::create_dir(&to).unwrap();
    for args in [&["cp", "-rv"][..], &["cp", "-r", "--json"]] {
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        let ended = with_stdout(sakia(args).args([&from, &from.join("none"), &to]), writer);
        assert_eq!((ended.code, ended.stderr.lines().count()), (Some(1), 1), "{ended:?}");
    }
    // Standard error may be closed or full, too.
    for args in [&["cp", "none", "b"][..], &["rm", "none"], &["sum", "none"], &["doctor", "none"]] {
        let directory = TempDir::new();
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        let full = || File::options().write(true).open("/dev/full").unwrap();
        for stderr in [Stdio::from(writer), full().into()] {
            let mut command = sakia(args);
            command.current_dir(directory.path()).stdout(Stdio::null()).stderr(stderr);
            assert_eq!(wait(command.spawn().unwrap()).code, Some(1), "{args:?}");
        }
    }
}

/// Returns a tree to copy, and its destination.
fn tree(directory: &TempDir) -> (PathBuf, PathBuf) {
    let from = directory.path().join("from");
    fs::create_dir(&from).unwrap();
    for number in 0..50 {
        fs::write(from.join(number.to_string()), "contents").unwrap();
    }
    (from, directory.path().join("to"))
}

type Refuse = fn(&mut Command);

/// Standard outputs that accept nothing, and the resulting errors.
const REFUSING: [(Refuse, &str); 3] = [
    (full, "No space left on device (os error 28)"),
    (closed, "Bad file descriptor (os error 9)"),
    // Open for reading only, as by `1</dev/null`.
    (for_reading, "Bad file descriptor (os error 9)"),
];

fn full(command: &mut Command) {
    command.stdout(File::options().write(true).open("/dev/full").unwrap());
}

fn for_reading(command: &mut Command) {
    command.stdout(File::open("/dev/null").unwrap());
}

fn closed(command: &mut Command) {
    without_streams(command, &[1]);
}

/// Every command reports the error once and fails, but still does its work.
#[test]
fn standard_output_takes_nothing() {
    needs_ring!();
    let commands: [&[&str]; 17] = [
        &["sum", "-q"],
        &["sum", "--json"],
        &["sum", "--json", "none"],
        &["cp", "-rv", "from", "to"],
        &["cp", "-r", "--json", "from", "to"],
        &["cp", "-r", "--dry-run", "from", "to"],
        &["doctor"],
        &["doctor", "--json"],
        &["mktree", "tree", "--levels", "1"],
        &["mktree", "tree", "--levels", "1", "--json"],
        &["bench", "file-sum", "--quick", "--size", "64K", "--runs", "1", "--variants", "pool"],
        &["bench", "file-sum", "--size", "64K", "--runs", "1", "--variants", "pool", "--json"],
        &["--help"],
        &["--version"],
        &["cp", "--help"],
        &["bench", "sched", "-h"],
        &["help"],
    ];
    for (args, (refuse, why)) in commands.iter().flat_map(|args| REFUSING.map(|how| (*args, how))) {
        let directory = TempDir::new();
        let (_, to) = tree(&directory);
        let mut command = sakia(args);
        refuse(command.current_dir(directory.path()).stderr(Stdio::piped()));
        let ended = wait(command.spawn().unwrap());
        assert_eq!(ended.code, Some(1), "{args:?}: {ended:?}");
        let says = format!("sakia: standard output: {why}\n");
        assert_eq!(ended.stderr.matches(&says).count(), 1, "{args:?}: {ended:?}");
        let is_copied = args[0] == "cp" && args[1].starts_with("-r") && args[2] != "--dry-run";
        assert_eq!(to.join("49").exists(), is_copied, "{args:?}");
        assert_eq!(directory.path().join("tree").exists(), args[0] == "mktree", "{args:?}");
    }
    let page = ["--report", "/dev/full"];
    let args = ["bench", "file-sum", "--size", "64K", "--runs", "1", "--variants", "pool"];
    let ended = run(sakia(args).args(page));
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(
        ended.stderr.ends_with("cannot write /dev/full: No space left on device (os error 28)\n")
    );
}

/// A command without output does not need its standard streams, which `>&-` closes. Errors go to standard
/// error, or are lost.
#[test]
fn closed_streams_are_no_reason_to_fail_by_themselves() {
    let directory = TempDir::new();
    directory.file("a", b"contents");
    let copy = |streams: &[i32], args: &[&str]| {
        let mut command = sakia(["cp"]);
        without_streams(command.args(args).current_dir(directory.path()), streams);
        wait(command.spawn().unwrap()).code
    };
    assert_eq!(copy(&[1], &["a", "b"]), Some(0));
    assert_eq!(copy(&[0, 1, 2], &["a", "c"]), Some(0));
    for name in ["b", "c"] {
        assert_eq!(fs::read(directory.path().join(name)).unwrap(), b"contents");
    }
    assert_eq!(copy(&[0, 1, 2], &["none", "d"]), Some(1));
    assert_eq!(copy(&[1, 2], &["-v", "a", "d"]), Some(1));
}

/// A file must not get the number of a closed stream: output would be written to it.
#[test]
fn no_file_gets_the_number_of_a_closed_stream() {
    let directory = TempDir::new();
    let fifo = directory.fifo();
    for streams in [&[0][..], &[1], &[2], &[0, 1], &[1, 2], &[0, 1, 2]] {
        let mut command = sakia(["cp"]);
        without_streams(command.args([&fifo, &directory.path().join("to")]), streams);
        let child = command.spawn().unwrap();
        let descriptors = format!("/proc/{}/fd", child.id());
        let open = |number: i32| fs::read_link(format!("{descriptors}/{number}")).ok();
        let mut writer = File::options().write(true).open(&fifo).unwrap();
        writer.write_all(b"some bytes").unwrap();
        // By then the copy has opened all that it needs, and waits for more.
        await_that("the first bytes", || rustix::io::ioctl_fionread(&writer).unwrap() == 0);
        for stream in streams {
            assert_eq!(open(*stream).as_deref(), Some(Path::new("/dev/null")), "{streams:?}");
        }
        drop(writer);
        assert_eq!(wait(child).code, Some(0));
    }
}
