//! Standard input: files from their current position, pipes, and non-blocking inputs.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write, pipe};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_setfl};

use crate::support::{
    TempDir, feed, needs_ring, plain_sum, random_bytes, run, sakia, without_streams,
};

#[test]
fn file_from_where_it_stands_to_its_end() {
    needs_ring!();
    let directory = TempDir::new();
    let bytes = random_bytes(1, 3 << 20);
    let path = directory.file("file", &bytes);
    for (start, args) in [
        (0, &["sum", "-q"][..]),
        (10, &["sum", "-q", "-"]),
        (3 << 20, &["sum", "-q"]),
        (4 << 20, &["sum", "-q"]),
    ] {
        let mut file = File::open(&path).unwrap();
        file.seek(SeekFrom::Start(start)).unwrap();
        let ended = run(sakia(args).stdin(file.try_clone().unwrap()));
        ended.assert_quiet_success();
        let rest = &bytes[bytes.len().min(start as usize)..];
        assert_eq!(ended.rows(), [(plain_sum(rest), rest.len() as u64, "-")]);
        // The next reader finds the end.
        assert_eq!(file.stream_position().unwrap(), start.max(3 << 20));
    }
}

#[test]
fn twice_finds_nothing_more() {
    needs_ring!();
    let directory = TempDir::new();
    let bytes = random_bytes(1, 70_000);
    let file = File::open(directory.file("file", &bytes)).unwrap();
    let ended = run(sakia(["sum", "-q", "-", "-"]).stdin(file));
    ended.assert_quiet_success();
    let sum = plain_sum(&bytes);
    assert_eq!(ended.rows(), [(sum, 70_000, "-"), (0, 0, "-"), (sum, 70_000, "total")]);
}

#[test]
fn pipe_to_its_end() {
    needs_ring!();
    let bytes = random_bytes(2, 3_000_001);
    for args in [&["sum", "-q"][..], &["sum", "-q", "-", "--block", "100"]] {
        let (reader, writer) = pipe().unwrap();
        feed(writer, bytes.clone());
        let ended = run(sakia(args).stdin(reader));
        ended.assert_quiet_success();
        assert_eq!(ended.rows(), [(plain_sum(&bytes), bytes.len() as u64, "-")]);
    }
}

#[test]
fn pipe_that_does_not_wait_is_waited_for() {
    needs_ring!();
    let (reader, mut writer) = pipe().unwrap();
    fcntl_setfl(&reader, OFlags::NONBLOCK).unwrap();
    let writer = thread::spawn(move || {
        for _ in 0..3 {
            thread::sleep(Duration::from_millis(50));
            writer.write_all(b"abc").unwrap();
        }
    });
    let ended = run(sakia(["sum", "-q"]).stdin(reader));
    ended.assert_quiet_success();
    assert_eq!(ended.rows(), [(3 * 294, 9, "-")]);
    writer.join().unwrap();
}

#[test]
fn file_that_does_not_wait() {
    needs_ring!();
    let bytes = random_bytes(3, 1 << 20);
    for parent in [env!("CARGO_TARGET_TMPDIR"), "/dev/shm"] {
        let directory = TempDir::below(parent.as_ref());
        let file = File::open(directory.file("file", &bytes)).unwrap();
        fcntl_setfl(&file, OFlags::NONBLOCK).unwrap();
        let ended = run(sakia(["sum", "-q"]).stdin(file));
        ended.assert_quiet_success();
        assert_eq!(ended.rows(), [(plain_sum(&bytes), 1 << 20, "-")], "{parent}");
    }
}

#[test]
fn nothing() {
    needs_ring!();
    let ended = run(sakia(["sum", "-q"]).stdin(Stdio::null()));
    ended.assert_quiet_success();
    assert_eq!(ended.rows(), [(0, 0, "-")]);
}

/// A closed standard input (`sum - <&-`) is an error. The file that `std` opens in its place is not read.
#[test]
fn closed() {
    needs_ring!();
    for args in [&["sum"][..], &["sum", "-q", "-"]] {
        let mut command = sakia(args);
        without_streams(&mut command, &[0]);
        let ended = run(&mut command);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""), "{ended:?}");
        assert_eq!(ended.stderr, "sakia: -: open: Bad file descriptor (os error 9)\n");
    }
    // It may have any name.
    let null = File::options().read(true).write(true).open("/dev/null").unwrap();
    run(sakia(["sum", "-q"]).stdin(null)).assert_quiet_success();
}

#[test]
fn directory() {
    needs_ring!();
    let ended = run(sakia(["sum", "-q"]).stdin(File::open("/").unwrap()));
    assert_eq!(ended.code, Some(1));
    assert_eq!(ended.stderr, "sakia: -: read: Is a directory (os error 21)\n");
}
