//! Standard output that takes nothing.

use std::fs::File;
use std::io::pipe;
use std::process::{Command, Stdio};

use crate::support::{Ended, TempDir, needs_ring, sakia, wait};

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

#[test]
fn device_is_full() {
    needs_ring!();
    let full = File::options().write(true).open("/dev/full").unwrap();
    let ended = with_stdout(&mut sakia(["sum", "-q"]), full);
    assert_eq!(ended.code, Some(1));
    assert_eq!(ended.stderr, "sakia: standard output: No space left on device (os error 28)\n");
}
