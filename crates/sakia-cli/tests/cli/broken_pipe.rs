//! Standard output that takes nothing.

use std::fs::{self, File};
use std::io::pipe;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::support::{Ended, TempDir, needs_ring, run, sakia, wait};

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

/// Copies of several files, and removals, whatever becomes of what is said about them.
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
    // On standard error neither.
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

/// A tree to be copied, and where to.
fn tree(directory: &TempDir) -> (PathBuf, PathBuf) {
    let from = directory.path().join("from");
    fs::create_dir(&from).unwrap();
    for number in 0..50 {
        fs::write(from.join(number.to_string()), "contents").unwrap();
    }
    (from, directory.path().join("to"))
}

/// Every command says so, once, and fails; the work is done all the same.
#[test]
fn device_is_full() {
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
    for args in commands {
        let directory = TempDir::new();
        let (_, to) = tree(&directory);
        let full = File::options().write(true).open("/dev/full").unwrap();
        let ended = with_stdout(sakia(args).current_dir(directory.path()), full);
        assert_eq!(ended.code, Some(1), "{args:?}: {ended:?}");
        let says = "sakia: standard output: No space left on device (os error 28)\n";
        assert_eq!(ended.stderr.matches(says).count(), 1, "{args:?}: {ended:?}");
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
