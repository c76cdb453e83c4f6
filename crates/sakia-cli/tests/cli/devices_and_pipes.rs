//! Paths that are not files.

use std::fs::File;
use std::os::unix::net::UnixListener;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use crate::support::{TempDir, needs_ring, plain_sum, random_bytes, sakia, sum, wait};

#[test]
fn fifo_waits_for_its_writer() {
    needs_ring!();
    let directory = TempDir::new();
    let fifo = directory.fifo();
    let bytes = random_bytes(1, 300_000);
    let mut command = sakia(["sum", "-q"]);
    let child = command.arg(&fifo).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The program has enough time to find no writer.
    thread::sleep(Duration::from_millis(100));
    let writer = File::options().write(true).open(&fifo).unwrap();
    thread::sleep(Duration::from_millis(50));
    crate::support::feed(writer, bytes.clone());
    let ended = wait(child);
    ended.assert_quiet_success();
    assert_eq!(ended.rows(), [(plain_sum(&bytes), 300_000, fifo.to_str().unwrap())]);
}

#[test]
fn fifo_whose_writer_writes_nothing() {
    needs_ring!();
    let directory = TempDir::new();
    let fifo = directory.fifo();
    let mut command = sakia(["sum", "-q"]);
    let child = command.arg(&fifo).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(File::options().write(true).open(&fifo).unwrap());
    let ended = wait(child);
    ended.assert_quiet_success();
    assert_eq!(ended.rows(), [(0, 0, fifo.to_str().unwrap())]);
}

#[test]
fn null_device_is_empty() {
    needs_ring!();
    let ended = sum(["/dev/null"]);
    ended.assert_quiet_success();
    assert_eq!(ended.rows(), [(0, 0, "/dev/null")]);
}

#[test]
fn socket_cannot_be_opened() {
    needs_ring!();
    let directory = TempDir::new();
    let path = directory.path().join("s");
    let _listener = UnixListener::bind(&path).unwrap();
    let ended = sum([&path]);
    assert_eq!(ended.code, Some(1));
    let expected =
        format!("sakia: {}: open: No such device or address (os error 6)\n", path.display());
    assert_eq!(ended.stderr, expected);
}
