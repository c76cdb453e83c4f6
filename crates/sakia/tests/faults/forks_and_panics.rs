//! Forks and panics during a load.

use std::cell::Cell;
use std::future::{Future, pending};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use sakia::fs::File;
use sakia::io::{PipeReader, pipe};
use sakia::time::sleep;
use sakia::{Runtime, spawn, yield_now};
use sakia_driver::Policy;
use sakia_testkit::drop_probe::DropCounter;

use crate::support::{Random, TempDir, on_each_backend, poll_once};
use crate::{children, load};

on_each_backend! {
    forks_under_load
    panics_under_load
    wakers_that_panic_under_load
}

// ---- forks -------------------------------------------------------------------------------------

fn forks_under_load(policy: Policy) {
    children::run("forks_under_load", policy);
}

pub fn scene_forks_under_load(policy: Policy) -> Result<(), String> {
    const FORKS_MAX: u32 = 12;
    let folder = TempDir::new();
    let runtime = load::runtime(policy);
    let path = folder.path().to_owned();
    let load = runtime.spawn(async move { load::run(&path, 5, 3).await });
    let polls = Rc::new(Cell::new(0_u64));
    let counted = Rc::clone(&polls);
    let counting = runtime.spawn(async move {
        loop {
            counted.set(counted.get() + 1);
            yield_now().await;
        }
    });
    counting.detach();
    let mut forks = 0;
    while forks < FORKS_MAX && !load.is_finished() {
        for _ in 0..20 {
            runtime.run_once(Duration::from_millis(1)).unwrap();
        }
        assert!(is_inert_in_child(&runtime, &polls), "the child of fork {forks} failed");
        forks += 1;
    }
    assert!(forks > 1, "the load was too small");
    runtime.block_on(load).unwrap();
    load::assert_sound(&runtime);
    Ok(())
}

/// Forks. Returns whether the runtime of the parent is inert in the child, and says so.
fn is_inert_in_child(runtime: &Runtime, polls: &Cell<u64>) -> bool {
    // SAFETY: the child has this thread only. It takes no lock that another thread may have held, allocates,
    // which the C library allows for, and ends by `_exit`.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", io::Error::last_os_error());
    if pid == 0 {
        let ended_well = catch_unwind(AssertUnwindSafe(|| {
            let before = polls.get();
            let error = runtime.run_once(Duration::ZERO).unwrap_err();
            assert!(error.to_string().contains("forked child"), "{error}");
            let panic = catch_unwind(AssertUnwindSafe(|| runtime.block_on(async {})));
            assert!(panic.is_err(), "a future was run");
            assert_eq!(polls.get(), before, "a task was run");
        }));
        // SAFETY: ends the child at once, without what the parent has registered for its exit.
        unsafe { libc::_exit(i32::from(ended_well.is_err())) };
    }
    let mut status = 0;
    // SAFETY: writes one integer.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(waited, pid);
    status == 0
}

// ---- panics ------------------------------------------------------------------------------------

/// Reads of a file and of a pipe without input, which end with a panic.
async fn panics_in_the_middle(path: PathBuf, counter: DropCounter, seed: u64) {
    let _probe = counter.probe();
    let mut random = Random::new(seed);
    let file = File::open(path).await.unwrap();
    let (mut reader, _writer) = pipe().unwrap();
    let (in_flight, probe) = (reader.read(vec![0; 100]), counter.probe());
    let mut in_flight = Box::pin(async move {
        let _probe = probe;
        in_flight.await
    });
    assert!(poll_once(&mut in_flight).await.is_pending());
    let (result, bytes) = file.read_at(vec![0; 5000], 0).await;
    assert_eq!((result.unwrap(), bytes), (5000, vec![9; 5000]));
    if random.below(2) == 0 {
        sleep(Duration::from_micros(random.below(3000) as u64)).await;
    } else {
        for _ in 0..random.below(20) {
            yield_now().await;
        }
    }
    // Not `panic!`, whose hook would print this expected panic.
    std::panic::resume_unwind(Box::new("in the middle"));
}

fn panics_under_load(policy: Policy) {
    const TASKS: u64 = 300;
    let folder = TempDir::new();
    let path = folder.join("read");
    std::fs::write(&path, vec![9; 10_000]).unwrap();
    let counter = DropCounter::new();
    let runtime = load::runtime(policy);
    runtime.block_on(async {
        let load = folder.join("load");
        let load = spawn(async move { load::run(&load, 6, 2).await });
        let tasks: Vec<_> = (0..TASKS)
            .map(|seed| spawn(panics_in_the_middle(path.clone(), counter, seed)))
            .collect();
        for task in tasks {
            let error = task.await.unwrap_err();
            assert!(error.is_panic(), "{error}");
        }
        load.await.unwrap();
    });
    assert_eq!(runtime.live_tasks(), 0);
    load::assert_sound(&runtime);
    drop(runtime);
    counter.assert_each_dropped_once();
}

/// A waker that panics at each wake.
struct BadWaker(AtomicUsize);

impl Wake for BadWaker {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
        std::panic::resume_unwind(Box::new("a waker"));
    }
}

/// A panic of a foreign executor's waker reaches the caller of the turn, and no task is lost.
fn wakers_that_panic_under_load(policy: Policy) {
    const BAD: usize = 20;
    let folder = TempDir::new();
    let runtime = load::runtime(policy);
    let path = folder.path().to_owned();
    let mut load = runtime.spawn(async move { load::run(&path, 8, 2).await });
    let bad = Arc::new(BadWaker(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&bad));
    let mut reads = Vec::new();
    for number in 0..BAD {
        runtime.block_on(async {
            let (reader, writer) = std::io::pipe().unwrap();
            let mut reader = PipeReader::from_fd(reader.into());
            let mut read = Box::pin(async move { reader.read(vec![0; 8]).await });
            assert!(read.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            yield_now().await;
            rustix::io::write(&writer, &[number as u8]).unwrap();
            reads.push((read, writer));
        });
        let panic = catch_unwind(AssertUnwindSafe(|| runtime.block_on(pending::<()>())));
        assert_eq!(panic.unwrap_err().downcast_ref::<&str>(), Some(&"a waker"));
        assert_eq!(bad.0.load(Ordering::Relaxed), number + 1);
    }
    runtime.block_on(&mut load).unwrap();
    for (number, (read, _writer)) in reads.into_iter().enumerate() {
        let (result, bytes) = runtime.block_on(read);
        assert_eq!((result.unwrap(), bytes[0]), (1, number as u8));
    }
    load::assert_sound(&runtime);
}
