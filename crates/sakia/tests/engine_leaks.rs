//! Engines that end with requests in every state leave no memory, descriptor or thread behind. This program
//! has only one test, since it counts the resources of the process.

#![expect(
    clippy::unwrap_used,
    reason = "the failure of a test, or of what it calls, is its report"
)]

use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use sakia::{Builder, Engine};
use sakia_driver::Policy;
use sakia_testkit::alloc_count::{CountingAllocator, process_counts};

#[global_allocator]
static GLOBAL: CountingAllocator = CountingAllocator::new();

fn poll_once<F: Future + Unpin>(future: &mut F) -> bool {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

/// The resources of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Held {
    descriptors: usize,
    threads: usize,
    bytes: i64,
}

impl Held {
    fn now() -> Self {
        let count = |folder| std::fs::read_dir(folder).unwrap().count();
        let counts = process_counts();
        Self {
            descriptors: count("/proc/self/fd"),
            threads: count("/proc/self/task"),
            bytes: counts.bytes_allocated.wrapping_sub(counts.bytes_deallocated) as i64,
        }
    }
}

/// Starts an engine, uses it, and ends it.
fn life(policy: Policy, path: &Path, round: usize) {
    let engine: Engine =
        Builder::new().backend(policy).threads(1 + round % 2).build_engine().unwrap();
    let mut options = sakia::fs::OpenOptions::new();
    options.read(true).write(true).create(true);
    let file = engine.open_with(path, &options).wait().unwrap();
    // Requests that are dropped before their first poll; requests that begin and are dropped in several
    // states; requests that begin and run to their end.
    drop(file.read_at(vec![0; 10_000], 0));
    for number in 0..100 {
        let mut write = file.write_at(vec![7; 4096], number * 4096).submit();
        let mut sync = file.sync_data();
        let mut task = engine.run(std::future::pending::<()>);
        let mut blocking = engine.spawn_blocking(|| Ok(vec![0_u8; 1000]));
        poll_once(&mut sync);
        poll_once(&mut task);
        poll_once(&mut blocking);
        if number % 3 == 0 {
            poll_once(&mut write);
            std::thread::sleep(Duration::from_micros(number));
        }
    }
    let reads =
        engine.submit_many((0..50).map(|number| file.read_at(vec![0; 4096], number * 4096)));
    match round % 3 {
        0 => drop(reads.submit()),
        1 => assert_eq!(reads.wait().len(), 50),
        _ => drop(reads),
    }
    match round % 3 {
        0 => engine.stop_and_wait(),
        // The file keeps the engine alive a little longer.
        1 => drop(engine),
        _ => {
            drop(file);
            engine.stop_and_wait();
            assert_eq!(engine.statistics().live, 0);
        }
    }
}

fn leaves_nothing(policy: Policy) {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("leaks-{}", std::process::id()));
    let lives = |count: usize| (0..count).for_each(|round| life(policy, &path, round));
    lives(12);
    // Threads end, and files on other threads are closed, some time after the drop of their last owner.
    let settled = |is_enough: &dyn Fn(&Held, u32) -> bool| {
        let (mut least, mut unchanged) = (Held::now(), 0);
        for _ in 0..400 {
            if is_enough(&least, unchanged) {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
            let held = Held::now();
            let now = Held {
                descriptors: least.descriptors.min(held.descriptors),
                threads: least.threads.min(held.threads),
                bytes: least.bytes.min(held.bytes),
            };
            unchanged = if now == least { unchanged + 1 } else { 0 };
            least = now;
        }
        least
    };
    let before = settled(&|_, unchanged| unchanged == 40);
    lives(36);
    let is_left = |after: &Held| {
        after.descriptors > before.descriptors
            // The pool for blocking work may start a few more threads.
            || after.threads > before.threads.max(66)
            || after.bytes - before.bytes >= 36 * 1000
    };
    let after = settled(&|held, _| !is_left(held));
    std::fs::remove_file(&path).unwrap();
    assert!(!is_left(&after), "{before:?} became {after:?}");
}

#[test]
fn engines_leave_nothing() {
    leaves_nothing(Policy::Poll);
    match sakia_ring::Ring::builder().build() {
        Ok(_) => leaves_nothing(Policy::Uring),
        Err(error) => {
            sakia_testkit::place::announce_skip("engine_leaks::uring", &error.to_string());
        }
    }
}
