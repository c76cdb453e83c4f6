//! Leftovers of processes that end badly. Each process is this test program, started again.

use std::env;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use sakia_bench_support::available;
use sakia_bench_support::blocked::{PATIENCE, ThreadId};
use sakia_bench_support::place::{leftovers, sweep};
use sakia_bench_support::small_fs::SmallFs;
use sakia_bench_support::throttled::ThrottledDisk;

/// Tells a child to commit the fault of its test.
const FAULT: &str = "SAKIA_TESTKIT_FAULT";

fn is_child() -> bool {
    env::var_os(FAULT).is_some()
}

/// Starts this program with only the test `name`, which detects that it is the child.
fn start(name: &str) -> Child {
    Command::new(env::current_exe().expect("the path of this program"))
        .args([name, "--exact", "--nocapture"])
        .env(FAULT, "1")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("this program starts again")
}

#[test]
fn panic_leaves_nothing() {
    if is_child() {
        let disk = available!(ThrottledDisk::builder().build());
        let small = available!(SmallFs::ext4(2 << 20));
        let _gate = disk.hold_writes();
        std::fs::write(disk.path().join("a"), "dirty").unwrap();
        panic!("with {} and {}", disk.path().display(), small.path().display());
    }
    drop(available!(ThrottledDisk::builder().build()));
    let mut child = start("leftovers::panic_leaves_nothing");
    assert_eq!(child.wait().unwrap().code(), Some(101));
    assert_eq!(leftovers(child.id()).unwrap(), [""; 0]);
}

/// A killed process ends and is swept even if one of its threads sleeps uninterruptibly in `fsync` and
/// waits for a thread of the same process.
#[test]
fn killed_process_ends_and_is_swept() {
    if is_child() {
        let disk = available!(ThrottledDisk::builder().build());
        let gate = disk.hold_writes();
        let file = File::create(disk.path().join("a")).unwrap();
        file.write_all_at(b"dirty", 0).unwrap();
        thread::scope(|scope| {
            let (sender, receiver) = std::sync::mpsc::channel();
            scope.spawn(move || {
                sender.send(ThreadId::current()).unwrap();
                file.sync_all()
            });
            gate.wait_held(1);
            receiver.recv().unwrap().wait_until_in("");
            std::io::stdout().write_all(b"stands still\n").unwrap();
        });
    }
    drop(available!(ThrottledDisk::builder().build()));
    let mut child = start("leftovers::killed_process_ends_and_is_swept");
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    assert!(lines.any(|line| line.unwrap().ends_with("stands still")), "the child has ended");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_ne!(leftovers(child.id()).unwrap(), [""; 0]);
    // The mounts see the end of the disk a moment after the end of the process.
    let deadline = Instant::now() + PATIENCE;
    while !leftovers(child.id()).unwrap().is_empty() {
        assert!(Instant::now() < deadline, "left: {:?}", leftovers(child.id()));
        sweep().unwrap();
        thread::sleep(Duration::from_millis(5));
    }
}
