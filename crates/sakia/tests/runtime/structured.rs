//! Sets, scopes, cancellation, concurrent loops, and the macros for a few futures at once.

use std::cell::{Cell, RefCell};
use std::future::{Future, pending, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::thread;

use sakia::{
    CancellationToken, JoinSet, Runtime, ScopedHandle, block_on, for_each_concurrent, join, scope,
    select, spawn, spawn_on, spawned_scope, task_local, try_for_each_concurrent,
    try_for_each_concurrent_from, try_join, yield_now,
};

/// Returns a value whose references are counted.
fn counted() -> Rc<()> {
    Rc::new(())
}

/// Never resolves, and holds `held` meanwhile.
async fn hold<T>(held: Rc<()>) -> T {
    let value = pending().await;
    drop(held);
    value
}

/// Polls once.
fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> bool {
    future.poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

async fn yield_times(times: usize) {
    for _ in 0..times {
        yield_now().await;
    }
}

// Sets.

#[test]
fn a_set_aborts_in_every_state() {
    let (runtime, held) = (Runtime::new().unwrap(), counted());
    runtime.block_on(async {
        let mut set = JoinSet::new();
        set.spawn(ready(1)); // has ended by then
        set.spawn(hold(Rc::clone(&held))); // waits
        yield_times(2).await;
        set.spawn(hold(Rc::clone(&held))); // has not begun
        set.abort_all();
        set.abort_all();
        let (mut values, mut canceled) = (0, 0);
        while let Some(outcome) = set.join_next().await {
            match outcome {
                Ok(value) => values += value,
                Err(error) => canceled += u32::from(error.is_canceled()),
            }
        }
        assert_eq!((values, canceled, Rc::strong_count(&held)), (1, 2, 1));
        set.spawn(ready(2));
        assert_eq!(set.join_next().await.unwrap().unwrap(), 2);
    });
    assert_eq!(runtime.live_tasks(), 0);
}

#[test]
fn a_dropped_set_aborts_and_a_detached_one_does_not() {
    let (runtime, held) = (Runtime::new().unwrap(), counted());
    runtime.block_on(async {
        let mut set = JoinSet::<()>::new();
        set.spawn(hold(Rc::clone(&held)));
        set.detach_all();
        set.spawn(hold(Rc::clone(&held)));
        set.abort_all();
        set.spawn(hold(Rc::clone(&held)));
        yield_now().await;
        drop(set);
        yield_times(2).await;
        assert_eq!(Rc::strong_count(&held), 2);
    });
    assert_eq!(runtime.live_tasks(), 1);
}

#[test]
fn a_set_takes_tasks_of_other_threads() {
    let runtime = Runtime::builder().threads(2).build().unwrap();
    runtime.block_on(async {
        let mut set = JoinSet::new();
        set.insert(spawn_on(1, || async { thread::current().name().map(String::from) }));
        let name = set.join_next().await.unwrap().unwrap();
        assert_eq!(name.as_deref(), Some("sakia-1"));
        set.insert(spawn_on(1, pending));
        set.abort_all();
        assert!(set.join_next().await.unwrap().unwrap_err().is_canceled());
    });
}

// Tokens.

#[test]
fn any_thread_cancels() {
    fn is_shared<T: Send + Sync + Clone>(_: &T) {}
    let token = CancellationToken::new();
    is_shared(&token);
    let tasks: Vec<_> = (0..4).map(|_| token.child()).collect();
    let canceling = token.clone();
    let thread = thread::spawn(move || canceling.cancel());
    block_on(async {
        let wait = async |token: CancellationToken| token.canceled().await;
        for_each_concurrent(4, tasks, wait).await;
        token.canceled().await;
    });
    thread.join().unwrap();
}

#[test]
fn racing_children_see_the_cancellation() {
    for _ in 0..200 {
        let token = CancellationToken::new();
        let canceling = token.clone();
        let thread = thread::spawn(move || canceling.cancel());
        let children: Vec<_> = (0..20).map(|_| token.child().child()).collect();
        thread.join().unwrap();
        assert!(children.iter().all(CancellationToken::is_canceled));
    }
}

#[test]
fn a_long_chain_of_tokens_ends() {
    let first = CancellationToken::new();
    let mut last = first.clone();
    for _ in 0..100_000 {
        last = last.child();
    }
    first.cancel();
    assert!(last.is_canceled());
    let mut last = CancellationToken::new();
    for _ in 0..100_000 {
        last = last.child();
    }
    drop(last);
}

// Scopes in the task.

#[test]
fn children_borrow_and_change_what_the_caller_owns() {
    block_on(async {
        let mut parts = [1, 2, 3];
        let sum = scope(async |s| {
            let mut handles = Vec::new();
            for part in &mut parts {
                handles.push(s.spawn(async move {
                    yield_now().await;
                    *part *= 10;
                    *part
                }));
            }
            let mut sum = 0;
            for handle in handles {
                sum += handle.await;
            }
            sum
        })
        .await;
        assert_eq!((sum, parts), (60, [10, 20, 30]));
    });
}

#[test]
fn a_scope_waits_for_children_of_children() {
    let count = Cell::new(0);
    block_on(scope(async |s| {
        for _ in 0..100 {
            let (siblings, count) = (s.clone(), &count);
            drop(s.spawn(async move {
                yield_now().await;
                drop(siblings.spawn(async move { count.set(count.get() + 1) }));
            }));
        }
    }));
    assert_eq!(count.get(), 100);
}

#[test]
fn a_dropped_scope_drops_its_children_in_every_state() {
    let held = counted();
    let mut new = pin!(scope(async |s| {
        let siblings = s.clone();
        let kept = Rc::clone(&held);
        drop(s.spawn(async move {
            // The child holds the scope in which it waits: a cycle until the scope is dropped.
            drop(siblings.spawn(hold::<()>(Rc::clone(&kept))));
            hold::<()>(kept).await;
        }));
        drop(s.spawn(hold::<()>(Rc::clone(&held))));
        hold::<()>(Rc::clone(&held)).await;
    }));
    assert_eq!(Rc::strong_count(&held), 1, "nothing has begun");
    assert!(!poll(new.as_mut()));
    assert_eq!(Rc::strong_count(&held), 5);
    let owned = held.clone();
    let mut boxed = Box::pin(scope(async move |s| {
        let kept = s.clone();
        let inner = Rc::clone(&owned);
        drop(s.spawn(async move {
            let _kept = kept;
            hold::<()>(inner).await;
        }));
        // The queue is full, the set is empty, or the body panics.
        panic!("a reason");
    }));
    assert!(catch_unwind(AssertUnwindSafe(|| poll(boxed.as_mut()))).is_err());
    drop(boxed);
    assert_eq!(Rc::strong_count(&held), 5);
}

#[test]
fn dropping_a_scope_frees_all_it_holds() {
    let held = counted();
    {
        let held = &held;
        let mut scope = Box::pin(scope(async |s| {
            let siblings = s.clone();
            drop(s.spawn(async move {
                drop(siblings.spawn(hold::<()>(Rc::clone(held))));
                hold::<()>(Rc::clone(held)).await;
            }));
            pending::<()>().await;
        }));
        assert!(!poll(scope.as_mut()));
        assert_eq!(Rc::strong_count(held), 3);
    }
    assert_eq!(Rc::strong_count(&held), 1);
}

#[test]
fn a_forgotten_scope_leaks_its_children() {
    let held = counted();
    let leaked = Rc::clone(&held);
    let mut forgotten = Box::pin(scope(async move |s| {
        s.spawn(hold::<()>(leaked)).await;
    }));
    assert!(!poll(forgotten.as_mut()));
    std::mem::forget(forgotten);
    assert_eq!(Rc::strong_count(&held), 2);
}

#[test]
fn a_panic_of_a_child_is_one_of_its_scope() {
    let held = counted();
    let run = || {
        block_on(scope(async |s| {
            drop(s.spawn(hold::<()>(Rc::clone(&held))));
            drop(s.spawn(async {
                yield_now().await;
                panic!("a reason")
            }));
            pending::<()>().await;
        }))
    };
    let payload = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
    assert_eq!(payload.downcast_ref(), Some(&"a reason"));
    assert_eq!(Rc::strong_count(&held), 1);
}

#[test]
fn a_child_that_another_task_starts_wakes_its_scope() {
    block_on(scope(async |s: &sakia::Scope<'static>| {
        let (open, gate) = async_channel::bounded(1);
        let there = s.clone();
        spawn(async move {
            sakia::time::sleep(std::time::Duration::from_millis(1)).await; // the scope waits by then
            drop(there.spawn(async move { open.send(()).await.unwrap() }));
        })
        .detach();
        gate.recv().await.unwrap();
    }));
}

#[test]
fn a_scope_that_never_pauses_lets_others_run() {
    block_on(async {
        let is_done = Rc::new(Cell::new(false));
        let done = Rc::clone(&is_done);
        spawn(async move { done.set(true) }).detach();
        scope(async |s| {
            fn go_on<'a>(s: sakia::Scope<'a>, is_done: &'a Cell<bool>) {
                let next = s.clone();
                drop(s.spawn(async move {
                    if !is_done.get() {
                        go_on(next, is_done);
                    }
                }));
            }
            go_on(s.clone(), &is_done);
        })
        .await;
    });
}

// Scopes of spawned tasks.

#[test]
fn a_spawned_scope_waits_for_all() {
    let runtime = Runtime::new().unwrap();
    let count = Rc::new(Cell::new(0));
    let mut polls = 0;
    let result = runtime.block_on(spawned_scope(async |s| {
        polls += 1; // the body may borrow
        for _ in 0..10 {
            let (siblings, count) = (s.clone(), Rc::clone(&count));
            drop(s.spawn(async move {
                yield_now().await;
                drop(siblings.spawn(async move {
                    yield_times(3).await;
                    count.set(count.get() + 1);
                    Ok(())
                }));
                Ok(())
            }));
        }
        Ok::<_, String>("done")
    }));
    assert_eq!(result.unwrap(), "done");
    assert_eq!((count.get(), polls, runtime.live_tasks()), (10, 1, 0));
}

#[test]
fn the_first_failure_cancels_the_rest() {
    let runtime = Runtime::new().unwrap();
    for panics in [false, true] {
        let held = counted();
        let result: Result<(), _> = runtime.block_on(spawned_scope(async |s| {
            drop(s.spawn(hold::<Result<(), &str>>(Rc::clone(&held))));
            drop(s.spawn(async move {
                yield_now().await;
                assert!(!panics, "a reason");
                Err::<(), _>("failed")
            }));
            hold(Rc::clone(&held)).await
        }));
        let error = result.unwrap_err();
        assert_eq!(error.is_panic(), panics);
        assert_eq!(
            error.to_string(),
            ["failed", "the task panicked: a reason"][usize::from(panics)]
        );
        assert_eq!((Rc::strong_count(&held), runtime.live_tasks()), (1, 0), "all have ended");
    }
}

#[test]
fn a_scope_that_fails_takes_no_more_children() {
    /// Starts a sibling that never ends when this value is dropped.
    struct Starts(sakia::TaskScope<u8>, Rc<()>);
    impl Drop for Starts {
        fn drop(&mut self) {
            drop(self.0.spawn(hold::<Result<(), u8>>(Rc::clone(&self.1))));
        }
    }
    let (runtime, held) = (Runtime::new().unwrap(), counted());
    let result: Result<(), _> = runtime.block_on(spawned_scope(async |s| {
        let starts = Starts(s.clone(), Rc::clone(&held));
        drop(s.spawn(async move {
            let _starts = starts;
            pending::<Result<(), u8>>().await
        }));
        yield_times(2).await;
        Err(7)
    }));
    assert_eq!(result.unwrap_err().into_error().unwrap(), 7);
    assert_eq!((Rc::strong_count(&held), runtime.live_tasks()), (1, 0));
}

#[test]
fn an_error_of_the_body_cancels_the_children() {
    let (runtime, held) = (Runtime::new().unwrap(), counted());
    let mut kept = None;
    let result = runtime.block_on(spawned_scope(async |s| {
        drop(s.spawn(hold::<Result<(), u8>>(Rc::clone(&held))));
        yield_times(2).await;
        drop(s.spawn(hold::<Result<(), u8>>(Rc::clone(&held))));
        kept = Some(s.clone());
        Err::<(), _>(7)
    }));
    assert_eq!(result.unwrap_err().into_error().unwrap(), 7);
    assert_eq!((Rc::strong_count(&held), runtime.live_tasks()), (1, 0));
    let late = runtime.block_on(async {
        let mut late = pin!(kept.unwrap().spawn(hold::<Result<(), u8>>(Rc::clone(&held))));
        poll(late.as_mut())
    });
    assert!(!late, "what is spawned too late is dropped");
    assert_eq!((Rc::strong_count(&held), runtime.live_tasks()), (1, 0));
}

#[test]
fn a_spawned_scope_dropped_early_cancels() {
    let (runtime, held) = (Runtime::new().unwrap(), counted());
    let start = || {
        let held = Rc::clone(&held);
        let mut scope = Box::pin(spawned_scope(async move |s| {
            let siblings = s.clone();
            let kept = Rc::clone(&held);
            drop(s.spawn(async move {
                let _siblings = siblings;
                hold::<Result<(), ()>>(kept).await
            }));
            drop(s.spawn(ready(Ok(()))));
            hold::<Result<(), ()>>(held).await
        }));
        assert!(!poll(scope.as_mut()));
        scope
    };
    runtime.block_on(async {
        let unbegun = start();
        drop(unbegun); // the children were not polled yet
        yield_times(2).await;
        assert_eq!(Rc::strong_count(&held), 1);
        let begun = start();
        yield_times(2).await;
        assert_eq!(Rc::strong_count(&held), 3);
        drop(begun);
        assert_eq!(Rc::strong_count(&held), 2, "the runtime has the child");
        yield_times(2).await;
    });
    assert_eq!((Rc::strong_count(&held), runtime.live_tasks()), (1, 0));
}

#[test]
fn a_scope_dropped_while_it_fails_leaves_the_rest_to_the_runtime() {
    let runtime = Runtime::builder().threads(1).build().unwrap();
    let held = counted();
    runtime.block_on(async {
        let kept = Rc::clone(&held);
        let mut scope = Box::pin(spawned_scope(async move |s| {
            drop(s.spawn(hold::<Result<(), ()>>(kept)));
            Err::<(), _>(())
        }));
        assert!(!poll(scope.as_mut()), "the child is not gone yet");
        drop(scope);
        yield_times(2).await;
        assert_eq!(Rc::strong_count(&held), 1);
    });
    assert_eq!(runtime.live_tasks(), 0);
}

#[test]
fn who_awaits_a_failed_sibling_is_canceled() {
    let runtime = Runtime::new().unwrap();
    let result: Result<(), _> = runtime.block_on(spawned_scope(async |s| {
        let failing = s.spawn(async {
            yield_times(3).await;
            Err::<(), _>("failed")
        });
        s.spawn(async move {
            failing.await;
            Err::<(), _>("a child that failed has no value")
        })
        .await;
        Ok(())
    }));
    assert_eq!(result.unwrap_err().into_error().unwrap(), "failed");
    assert_eq!(runtime.live_tasks(), 0);
}

#[test]
fn scopes_end_with_their_runtime_and_outlive_it() {
    let held = counted();
    let start = || {
        let (held, inner) = (Rc::clone(&held), Rc::clone(&held));
        Box::pin(spawned_scope(async move |s| {
            drop(s.spawn(hold::<Result<(), ()>>(held)));
            scope(async |s| s.spawn(hold::<()>(inner)).await).await;
            Ok(())
        }))
    };
    let runtime = Runtime::new().unwrap();
    runtime.spawn(start()).detach();
    let mut outliving = start();
    runtime.block_on(async {
        assert!(!poll(outliving.as_mut()));
        yield_times(2).await;
    });
    assert_eq!((Rc::strong_count(&held), runtime.live_tasks()), (5, 3));
    drop(runtime);
    assert_eq!(Rc::strong_count(&held), 2, "the scope that was not its task");
    drop(outliving);
    assert_eq!(Rc::strong_count(&held), 1);
}

// Loops.

#[test]
fn a_loop_keeps_its_limit_and_borrows() {
    block_on(async {
        let (running, most) = (Cell::new(0), Cell::new(0));
        let seen = RefCell::new(vec![0; 500]);
        let work = async |item: usize| {
            running.set(running.get() + 1);
            most.set(most.get().max(running.get()));
            yield_times(item % 7).await;
            seen.borrow_mut()[item] += 1;
            running.set(running.get() - 1);
        };
        for limit in [1, 3, 100, 1000] {
            most.set(0);
            for_each_concurrent(limit, 0..500, work).await;
            assert!(most.get() <= limit && most.get() >= limit.min(60), "{}", most.get());
        }
        assert!(seen.borrow().iter().all(|&times| times == 4));
        for_each_concurrent(3, 0..0, work).await;
    });
}

#[test]
fn the_first_error_ends_a_loop() {
    block_on(async {
        let (held, started) = (counted(), Cell::new(0));
        let work = async |item: u32| {
            let _held = Rc::clone(&held);
            started.set(started.get() + 1);
            if item == 3 { Err(item) } else { pending().await }
        };
        assert_eq!(try_for_each_concurrent(4, 0..100, work).await, Err(3));
        assert_eq!((started.get(), Rc::strong_count(&held)), (4, 1));
    });
}

#[test]
fn items_that_come_slowly_do_not_stop_the_loop() {
    block_on(async {
        let (sender, receiver) = async_channel::bounded(1);
        let send = async {
            for number in 0..100 {
                sender.send(number).await.unwrap();
                yield_times(number % 3).await;
            }
            sender.close();
        };
        let sum = Cell::new(0);
        let add = async |number| {
            yield_times(number % 5).await;
            sum.set(sum.get() + number);
            Ok::<_, ()>(())
        };
        let (_, result) =
            join!(send, try_for_each_concurrent_from(5, async || receiver.recv().await.ok(), add));
        assert_eq!((result, sum.get()), (Ok(()), 4950));
    });
}

#[test]
#[should_panic = "nothing would ever run"]
fn a_loop_of_none_at_a_time_is_refused() {
    block_on(for_each_concurrent(0, 0..1, async |_| {}));
}

// Macros for a few futures.

#[test]
fn a_select_in_a_loop_is_fair() {
    block_on(async {
        let mut counts = [0; 3];
        for _ in 0..3000 {
            let first = select! {
                number = ready(0) => number,
                number = async { 1 } => number,
                number = ready(2) => number,
            };
            counts[first] += 1;
        }
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
    });
}

#[test]
#[expect(clippy::await_holding_refcell_ref, reason = "the macro drops the borrow with its future")]
fn a_select_drops_the_others_before_its_body() {
    block_on(async {
        let held = counted();
        let mut kept = pin!(yield_times(1));
        let shared = RefCell::new(1);
        for turn in 0.. {
            select! {
                () = kept.as_mut() => break,
                _ = hold::<()>(Rc::clone(&held)) => unreachable!(),
                (number, _) = async { (*shared.borrow(), yield_times(turn * 9).await) } => {
                    *shared.borrow_mut() += number;
                    assert_eq!(Rc::strong_count(&held), 1);
                    yield_now().await;
                }
            }
        }
        assert_eq!(Rc::strong_count(&held), 1);
    });
}

#[test]
fn joins_give_all_values_or_the_first_error() {
    block_on(async {
        let held = counted();
        let eight = join!(
            ready(1),
            ready(2),
            ready(3),
            ready(4),
            ready(5),
            ready(6),
            ready(7),
            yield_now()
        );
        assert_eq!(eight, (1, 2, 3, 4, 5, 6, 7, ()));
        let failed = try_join!(hold::<Result<(), u8>>(Rc::clone(&held)), async {
            yield_now().await;
            Err::<(), _>(2)
        });
        assert_eq!((failed, Rc::strong_count(&held)), (Err(2), 1));
        // A completed future is dropped at once.
        let (ended, count) = (Rc::clone(&held), || Rc::strong_count(&held));
        let ((), count) = join!(async move { drop(ended) }, async {
            yield_now().await;
            count()
        });
        assert_eq!(count, 1);
    });
}

#[test]
fn futures_of_macros_may_cross_threads() {
    fn is_send<T: Send>(value: T) -> T {
        value
    }
    block_on(is_send(async {
        join!(async {}, async {});
        select! { () = async {} => (), () = async {} => () }
        CancellationToken::new().run_until_canceled(async {}).await;
    }));
}

// Task-locals.

task_local! {
    static NAME: String;
    static DEPTH: u32;
}

#[test]
fn values_follow_their_futures() {
    block_on(async {
        let name = async |turns| {
            yield_times(turns).await;
            NAME.cloned()
        };
        let tasks = ["a", "b"].map(|text| spawn(NAME.scope(text.into(), name(3))));
        let nested = NAME.scope("outer".into(), async {
            let inner = NAME.scope("inner".into(), DEPTH.scope(2, name(1))).await;
            (inner, name(1).await, DEPTH.try_with(|_| ()).is_err())
        });
        assert_eq!(nested.await, ("inner".into(), "outer".into(), true));
        for (task, text) in tasks.into_iter().zip(["a", "b"]) {
            assert_eq!(task.await.unwrap(), text);
        }
        assert!(NAME.try_with(|_| ()).is_err());
    });
}

#[test]
fn a_panic_takes_its_value_along() {
    block_on(async {
        let task = spawn(NAME.scope("lost".into(), async { panic!("a reason") }));
        assert!(task.await.unwrap_err().is_panic());
        assert!(NAME.try_with(|_| ()).is_err());
    });
}

#[test]
fn what_a_dropped_future_drops_sees_the_value() {
    struct Reads(Rc<Cell<u32>>);
    impl Drop for Reads {
        fn drop(&mut self) {
            self.0.set(DEPTH.cloned());
        }
    }
    for polled in [false, true] {
        let seen = Rc::new(Cell::new(0));
        let reads = Reads(Rc::clone(&seen));
        let mut future = Box::pin(DEPTH.scope(3, async move {
            let _reads = reads;
            pending::<()>().await;
        }));
        assert!(!polled || !poll(future.as_mut()));
        drop(future);
        assert_eq!(seen.get(), 3);
    }
}

#[test]
fn handles_tell_whether_their_child_has_ended() {
    block_on(scope(async |s| {
        let handle: ScopedHandle<u8> = s.spawn(async { 1 });
        assert!(!handle.is_finished());
        yield_now().await;
        assert!(handle.is_finished());
        assert_eq!(handle.await, 1);
    }));
}
