//! This whole test program allocates through the page guard. A program has one allocator, hence
//! a program of its own.

use std::collections::HashMap;
use std::env;
use std::hint::black_box;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::thread;

use sakia_testkit::page_guard::{PageGuardAllocator, is_accessible};

#[global_allocator]
static GLOBAL: PageGuardAllocator = PageGuardAllocator::new();

/// Tells a child process of this program to commit the fault that its test is about.
const FAULT: &str = "SAKIA_TESTKIT_FAULT";
const SIGSEGV: i32 = 11;

#[test]
fn ordinary_programs_work() {
    let workers: Vec<_> = (0..4_u64)
        .map(|seed| {
            thread::spawn(move || {
                let mut map = HashMap::new();
                let mut text = String::new();
                for key in 0..5000 {
                    map.insert(key, vec![seed; (key % 1000) as usize]);
                    text.push_str(&key.to_string());
                }
                let sum: u64 = map.values().flatten().sum();
                assert_eq!(sum, seed * 5 * 499_500);
                text.len()
            })
        })
        .collect();
    for worker in workers {
        assert_eq!(worker.join().unwrap(), 10 + 90 * 2 + 900 * 3 + 4000 * 4);
    }
}

#[test]
fn freed_vec_becomes_inaccessible() {
    let bytes = vec![1_u8; 10_000];
    let range = bytes.as_ptr_range();
    assert!(is_accessible(range.start));
    assert!(!is_accessible(range.end), "the vec ends at its guard page");
    drop(bytes);
    assert!(!is_accessible(range.start));
}

#[test]
fn grown_vec_leaves_an_inaccessible_place_behind() {
    let mut bytes = vec![1_u8; 10_000];
    let old = bytes.as_ptr();
    bytes.reserve_exact(1);
    assert_ne!(bytes.as_ptr(), old);
    assert!(!is_accessible(old));
}

#[test]
fn read_of_a_freed_vec_faults() {
    dies_of_segv("read_of_a_freed_vec_faults", || {
        let bytes = vec![1_u8; 10_000];
        let start = black_box(bytes.as_ptr());
        drop(bytes);
        // SAFETY: none: this is the fault. The allocator keeps the address inaccessible, so that
        // the load traps.
        unsafe { start.read_volatile() };
    });
}

#[test]
fn write_past_the_end_faults() {
    dies_of_segv("write_past_the_end_faults", || {
        let mut bytes = vec![1_u8; 10_000];
        let end = black_box(bytes.as_mut_ptr_range().end);
        // SAFETY: none: this is the fault. The block ends at its guard page, where the store traps.
        unsafe { end.write_volatile(1) };
    });
}

/// Runs `fault` in a child process, in the test `name` that calls this, and asserts what it dies of.
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
