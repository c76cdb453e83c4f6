//! If no event can happen any more, every waiting task is named.

use std::future::pending;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use sakia::fs::File;
use sakia::io::{PipeReader, pipe};
use sakia::sim::{Cause, Failure, Fault, Opcode, Sim, Stage, Target, Test, Wait, Waiters};
use sakia::time::{interval, sleep};
use sakia::{Runtime, spawn};

/// Returns the waiters of a deadlock.
fn deadlock(failure: Failure) -> Waiters {
    match failure.cause {
        Cause::Deadlock(waiters) => waiters,
        cause => panic!("{cause}"),
    }
}

fn one_seed() -> Test<'static> {
    Test::new().seeds(7..8)
}

#[test]
fn every_waiter_is_named() {
    let failure = one_seed()
        .try_run(async |_| {
            let (mut reader, _writer) = pipe().unwrap();
            let reading = spawn(async move { reader.read(vec![0; 4]).await.0.unwrap() });
            let joining = spawn(async move { reading.await.unwrap() });
            spawn(pending::<()>()).detach();
            sleep(Duration::from_millis(5)).await;
            joining.await.unwrap();
        })
        .unwrap_err();
    assert_eq!(failure.seed, 7);
    let text = failure.to_string();
    let waiters = deadlock(failure);
    assert_eq!(waiters.waiters.len(), 4, "{text}");
    let [body, reading, joining, pending] = &waiters.waiters[..] else { panic!("{text}") };
    assert!(body.task.is_none() && body.waits.is_empty(), "{text}");
    assert!(joining.waits.is_empty() && pending.waits.is_empty(), "{text}");
    let Wait::Operation(read) = &reading.waits[0] else { panic!("{text}") };
    assert_eq!((read.kind, read.descriptor, read.stage), ("Read", Some(3), Stage::InFlight));
    assert!(read.age >= Duration::from_millis(5), "{text}");
    assert!(waiters.orphans.is_empty(), "{text}");
    let spawned_at = reading.task.unwrap().spawned_at;
    assert!(spawned_at.file().ends_with("deadlocks.rs"), "{text}");
    // If all tests run on one thread, it has another name.
    let thread = std::thread::current();
    let test = thread.name().filter(|&name| name != "main").unwrap_or_default();
    for part in [
        "seed 7 failed: deadlock: after ",
        "\n  the body waits for another task or thread\n",
        &format!("started at {spawned_at}, waits for Read of descriptor 3 for "),
        "SAKIA_SIM_SEED=7 cargo test",
        &format!("{test} --nocapture"),
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}

#[test]
fn operations_within_scopes_and_joins_are_those_of_their_task() {
    let waiters = deadlock(
        one_seed()
            .try_run(async |_| {
                let (mut first, _one) = pipe().unwrap();
                let (mut second, _two) = pipe().unwrap();
                let waiting = spawn(async move {
                    sakia::scope(async |scope| {
                        drop(scope.spawn(async { first.read(vec![0; 1]).await.0.map(drop) }));
                        drop(scope.spawn(async { second.read(vec![0; 1]).await.0.map(drop) }));
                    })
                    .await;
                });
                waiting.await.unwrap();
            })
            .unwrap_err(),
    );
    let [_, task] = &waiters.waiters[..] else { panic!("{waiters}") };
    let descriptors: Vec<_> = task
        .waits
        .iter()
        .map(|wait| match wait {
            Wait::Operation(operation) => operation.descriptor,
            wait => panic!("{wait}"),
        })
        .collect();
    assert_eq!(descriptors, [Some(3), Some(5)], "{waiters}");
}

#[test]
fn operations_that_never_end_are_named_with_their_paths() {
    let waiters = deadlock(
        one_seed()
            .before(|kernel| {
                kernel.create_file("lost", b"text");
                kernel.script(Target::opcode(Opcode::OPENAT), Fault::Stuck);
            })
            .try_run(async |_| File::open("lost").await.map(drop))
            .unwrap_err(),
    );
    let [body] = &waiters.waiters[..] else { panic!("{waiters}") };
    let Wait::Operation(open) = &body.waits[0] else { panic!("{waiters}") };
    assert!(open.is_stuck, "{waiters}");
    assert_eq!(open.names, ["lost"]);
    assert!(waiters.to_string().contains(" lost for "), "{waiters}");
}

#[test]
fn operations_for_nobody_are_listed_too() {
    let waiters = deadlock(
        one_seed()
            .before(|kernel| kernel.script(Target::opcode(Opcode::READ), Fault::Stuck))
            .try_run(async |_| {
                let (mut reader, _writer) = pipe().unwrap();
                let reading = spawn(async move { reader.read(vec![0; 4]).await.0.map(drop) });
                sleep(Duration::from_millis(1)).await;
                reading.abort();
                pending::<()>().await;
            })
            .unwrap_err(),
    );
    assert_eq!(waiters.waiters.len(), 1, "{waiters}");
    let reads: Vec<_> =
        waiters.orphans.iter().filter(|operation| operation.kind == "Read").collect();
    assert_eq!(reads.len(), 1, "{waiters}");
    assert!(reads[0].is_stuck, "{waiters}");
}

#[test]
fn a_runtime_of_ones_own_reports_as_well() {
    let sim = Sim::new(1);
    let kernel = sim.handle();
    let (reader, _) = kernel.pipe();
    let runtime = Runtime::builder().build_simulated(sim).unwrap();
    let run = AssertUnwindSafe(|| {
        runtime.block_on(async {
            let mut reader = PipeReader::from_simulated(reader);
            reader.read(vec![0; 1]).await.0.unwrap()
        })
    });
    let payload = catch_unwind(run).unwrap_err();
    let message = payload.downcast::<String>().unwrap();
    assert!(message.contains("the body waits for Read of descriptor 3"), "{message}");
    // The runtime can still be used.
    runtime.block_on(async { sleep(Duration::from_secs(1)).await });
}

#[test]
fn a_run_without_end_is_given_up_and_its_timers_are_named() {
    let failure = one_seed()
        .time_limit(Duration::from_secs(10))
        .try_run(async |_| {
            let ticking = spawn(async {
                let mut ticks = interval(Duration::from_millis(10));
                loop {
                    ticks.tick().await;
                }
            });
            spawn(async {
                sakia::scope(async |scope| {
                    drop(scope.spawn(sleep(Duration::from_secs(60))));
                })
                .await;
            })
            .detach();
            ticking.await.unwrap_err();
        })
        .unwrap_err();
    let Cause::TimeLimit(waiters) = failure.cause else { panic!("{failure}") };
    assert!(waiters.now >= Duration::from_secs(10));
    let [body, ticking, scoped] = &waiters.waiters[..] else { panic!("{waiters}") };
    assert!(body.waits.is_empty(), "{waiters}");
    assert!(matches!(ticking.waits[..], [Wait::Timer(left)] if left <= Duration::from_millis(10)));
    assert!(matches!(scoped.waits[..], [Wait::Timer(left)] if left > Duration::from_secs(49)));
}
