//! A program that accesses freed memory behind a page guard dies of `SIGSEGV`.

use std::env;
use std::hint::black_box;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use sakia_testkit::page_guard::GuardedBuffer;

/// Tells a child process of this program to commit the fault of its test.
const FAULT: &str = "SAKIA_TESTKIT_FAULT";
const SIGSEGV: i32 = 11;
/// Whole pages, whatever their size.
const LEN: usize = 64 << 10;

#[test]
fn read_of_a_freed_buffer_faults() {
    dies_of_segv("read_of_a_freed_buffer_faults", || {
        let buffer = GuardedBuffer::new(LEN);
        let start = black_box(buffer.as_ptr());
        drop(buffer);
        // SAFETY: none: this is the fault. The address is kept inaccessible, so that the load traps.
        unsafe { start.read_volatile() };
    });
}

#[test]
fn write_past_the_end_faults() {
    dies_of_segv("write_past_the_end_faults", || {
        let mut buffer = GuardedBuffer::new(LEN);
        let end = black_box(buffer.as_mut_ptr_range().end);
        // SAFETY: none: this is the fault. The pages end at the guard page, where the store traps.
        unsafe { end.write_volatile(1) };
    });
}

/// Runs `fault` in a child process, in the test `name` that calls this, and asserts that it dies of
/// `SIGSEGV`.
#[track_caller]
fn dies_of_segv(name: &str, fault: fn()) {
    if env::var_os(FAULT).is_some() {
        fault();
        return;
    }
    let status = Command::new(env::current_exe().expect("the path of this program"))
        .args([name, "--exact", "--nocapture"])
        .env(FAULT, "1")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .expect("this program starts again");
    assert_eq!(status.signal(), Some(SIGSEGV), "{name} ended with {status}");
}
