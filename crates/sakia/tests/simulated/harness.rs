//! The findings of `sakia::sim`, and its messages.

use std::cell::Cell;
use std::future::pending;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;

use sakia::fs::{self, File};
use sakia::io::PipeReader;
use sakia::sim::{self, Cause, EnterFault, FaultKind, Leaks, SimHandle, Test};
use sakia::time::{now, sleep};
use sakia::{spawn, spawn_blocking, yield_now};

/// Returns the leaks of a run.
fn leaks(test: &Test, body: impl AsyncFn(SimHandle)) -> Leaks {
    match test.try_run(body).unwrap_err().cause {
        Cause::Leaks(leaks) => leaks,
        cause => panic!("{cause}"),
    }
}

fn few_seeds() -> Test<'static> {
    Test::new().seeds(0..5)
}

#[test]
fn each_seed_is_run_and_the_first_are_run_twice() {
    let runs = Cell::new(0);
    let summary = Test::new().seeds(10..30).twice(3).run(async |_| {
        runs.set(runs.get() + 1);
    });
    assert_eq!((summary.runs(), runs.get()), (20, 23));
    runs.set(0);
    sim::check(0..10, async |_| runs.set(runs.get() + 1));
    assert_eq!(runs.get(), 12);
}

#[test]
fn panics_are_told_with_their_seed() {
    let runs = Cell::new(0);
    let run = AssertUnwindSafe(|| {
        few_seeds().twice(0).run(async |_| {
            runs.set(runs.get() + 1);
            assert!(runs.get() < 4, "the fourth run is one too many");
        })
    });
    let payload = catch_unwind(run).unwrap_err();
    let message = payload.downcast::<String>().unwrap();
    assert!(message.starts_with("seed 3 failed: the fourth run is one too many\n"), "{message}");
    assert!(message.contains("SAKIA_SIM_SEED=3 cargo test"), "{message}");
}

/// A summary, a failure and its message name the faults of their runs, with their counts.
#[test]
fn faults_are_named() {
    let write = async |_| fs::write("file", vec![7; 5000]).await;
    let short = few_seeds().kernel(|kernel| kernel.fault(FaultKind::ShortTransfer, 1 << 14));
    let summary = short.run(write);
    let count = summary.injected(FaultKind::ShortTransfer);
    assert!(count > 1);
    let text = format!("5 runs; faults injected: ShortTransfer {count}");
    assert_eq!(summary.to_string(), text);
    assert_eq!(format!("{:?}", summary.faults()), format!("{{ShortTransfer: {count}}}"));
    assert!(summary.faults().iter().eq([(FaultKind::ShortTransfer, count)]));
    assert_eq!(few_seeds().run(write).to_string(), "5 runs; faults injected: none");

    let test = few_seeds().before(|kernel| kernel.script_enter(0, EnterFault::Errno(77)));
    let failure = test.try_run(write).unwrap_err();
    assert!(failure.faults.iter().eq([(FaultKind::EnterFailed, 1)]), "{failure}");
    let message = failure.to_string();
    assert!(message.contains("\n\nfaults injected: EnterFailed 1\n\nrun it alone"), "{message}");
}

#[test]
fn errors_fail_the_run() {
    let failure = few_seeds().try_run(async |_| fs::read("missing").await.map(drop)).unwrap_err();
    assert!(
        matches!(&failure.cause, Cause::Error(error) if error.contains("missing")),
        "{failure}"
    );
    let failure = few_seeds()
        .before(|kernel| kernel.script_enter(0, EnterFault::Errno(77)))
        .try_run(async |_| fs::write("file", "text").await)
        .unwrap_err();
    assert!(
        matches!(&failure.cause, Cause::Kernel(error) if error.raw_os_error() == Some(77)),
        "{failure}"
    );
}

#[test]
fn what_is_done_before_and_after_is_part_of_the_run() {
    let order = Rc::new(Cell::new(0));
    let step = |expected| {
        let order = Rc::clone(&order);
        move || assert_eq!(order.replace(expected + 1) % 4, expected)
    };
    let (first, second, third, fourth) = (step(0), step(1), step(2), step(3));
    let test = few_seeds().before(move |kernel| {
        first();
        kernel.create_file("file", "before");
    });
    let test = test.before(move |_| second()).after(move |kernel| {
        fourth();
        assert_eq!(kernel.contents("file").unwrap(), b"after");
    });
    test.run(async |_| {
        third();
        assert_eq!(fs::read("file").await?, b"before");
        fs::write("file", "after").await
    });
    let failure =
        few_seeds().after(|_| panic!("found out afterwards")).try_run(async |_| {}).unwrap_err();
    assert!(matches!(&failure.cause, Cause::Panic(text) if text == "found out afterwards"));
}

#[test]
fn programs_that_depend_on_more_than_the_seed_are_found_out() {
    let runs = Cell::new(0_u64);
    let failure = few_seeds()
        .try_run(async |_| {
            runs.set(runs.get() + 1);
            fs::write("same", "text").await?;
            fs::write("size", vec![0; runs.get() as usize]).await
        })
        .unwrap_err();
    let Cause::Diverged(place) = &failure.cause else { panic!("{failure}") };
    let lines: Vec<_> = place.lines().collect();
    assert_eq!(lines.len(), 7, "{place}");
    assert!(lines[..5].iter().all(|line| line.starts_with("  both:   ")), "{place}");
    assert!(lines[5].starts_with("  first:  ") && lines[5].contains("WRITE"), "{place}");
    assert!(lines[6].starts_with("  second: ") && lines[6].contains("WRITE"), "{place}");
}

#[test]
fn what_a_run_leaves_behind_is_found() {
    let test = few_seeds();
    let found = leaks(&test, async |_| spawn(pending::<()>()).detach());
    assert_eq!((found.task_count, found.tasks.waiters.len()), (1, 1));
    assert!(found.to_string().contains("harness.rs"), "{found}");

    let found = leaks(&test, async |_| spawn(sleep(Duration::from_secs(10))).detach());
    assert!(found.to_string().contains("waits for a timer, due in 8.9"), "{found}");

    let found = leaks(&test, async |kernel| _ = kernel.pipe());
    assert_eq!((found.task_count, found.descriptors), (0, vec![3, 4]));

    let found = leaks(&test, async |_| {
        std::mem::forget(File::create("forgotten").await.unwrap());
    });
    assert_eq!(found.descriptors, [3]);

    let found = leaks(&test, async |kernel| {
        let (reader, writer) = kernel.pipe();
        kernel.close(writer).unwrap();
        let mut reader = PipeReader::from_simulated(reader);
        let mut read = Box::pin(async move { reader.read(vec![0; 4]).await.0 });
        std::future::poll_fn(|cx| std::task::Poll::Ready(read.as_mut().poll(cx).is_pending()))
            .await;
        std::mem::forget(read);
    });
    assert_eq!((found.operations, found.descriptors), (1, vec![3]));
}

#[test]
fn what_may_be_left_behind_is_up_to_the_test() {
    few_seeds().allow_tasks().run(async |_| spawn(pending::<()>()).detach());
    few_seeds().allow_leaks().run(async |kernel| _ = kernel.pipe());
}

#[test]
fn tasks_that_are_about_to_end_are_waited_for() {
    few_seeds().masked_faults(1 << 12).run(async |_| {
        spawn(pending::<()>()).abort();
        spawn(async { fs::write("file", "text").await.unwrap() }).detach();
        spawn(async { sleep(Duration::from_millis(20)).await }).detach();
        File::create("dropped").await.map(drop)
    });
}

#[test]
fn blocking_work_is_a_task_of_the_run() {
    few_seeds().run(async |_| {
        let thread = std::thread::current().id();
        let work = spawn_blocking(move || std::thread::current().id() == thread);
        assert!(work.await.unwrap());
        assert!(spawn_blocking(|| panic!("contained")).await.unwrap_err().is_panic());
    });
}

#[test]
fn a_loop_that_yields_until_some_time_ends() {
    few_seeds().run(async |_| {
        let begin = now();
        while begin.elapsed() < Duration::from_millis(3) {
            yield_now().await;
        }
        assert!(begin.elapsed() < Duration::from_millis(4));
    });
}

#[test]
fn faults_are_counted_over_all_runs() {
    let kinds = [FaultKind::ShortTransfer, FaultKind::EnterInterrupted, FaultKind::Held];
    let summary = few_seeds().masked_faults(1 << 14).run(async |_| {
        for number in 0..20 {
            fs::write("file", vec![number; 1000]).await?;
        }
        io::Result::Ok(())
    });
    for kind in kinds {
        assert!(summary.injected(kind) > 0, "{kind:?}");
    }
    assert_eq!(summary.injected(FaultKind::Stuck), 0);
}
