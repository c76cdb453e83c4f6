//! Loops over results that are always ready, beside another task.

use std::cell::Cell;
use std::future::pending;
use std::rc::Rc;
use std::time::Duration;

use sakia::time::{MissedTicks, interval, now, sleep, timeout};
use sakia::{Budget, CancellationToken, JoinSet, Limits, Resource, spawn, yield_now};

/// The rounds of a loop, of which some come before the other task runs.
const ROUNDS: u32 = 10_000;
/// The most of them.
const FEW: u32 = 1000;

/// Runs the loop as a task, and checks that another one, which is there from the beginning, is not kept
/// waiting.
async fn lets_others_run(name: &str, mut round: impl AsyncFnMut() + 'static) {
    let has_run = Rc::new(Cell::new(false));
    let seen = Rc::clone(&has_run);
    let rounds = spawn(async move {
        for number in 0..ROUNDS {
            if seen.get() {
                return number;
            }
            round().await;
        }
        ROUNDS
    });
    spawn(async move { has_run.set(true) }).detach();
    let rounds = rounds.await.unwrap();
    assert!(0 < rounds && rounds <= FEW, "{name}: {rounds} rounds before another task");
}

#[sakia::test]
async fn loops_over_ready_things_let_others_run() {
    lets_others_run("sleep", async || sleep(Duration::ZERO).await).await;
    let none = async || assert!(timeout(Duration::ZERO, pending::<()>()).await.is_err());
    lets_others_run("timeout", none).await;
    let budget = Budget::new(Limits::new().descriptors(2));
    let permit = async move || drop(budget.acquire(Resource::Descriptors, 2).await);
    lets_others_run("permit", permit).await;
    let token = CancellationToken::new();
    token.cancel();
    let canceled = token.clone();
    lets_others_run("canceled", async move || canceled.canceled().await).await;
    let until = async move || assert!(token.run_until_canceled(pending::<()>()).await.is_none());
    lets_others_run("run_until_canceled", until).await;

    // Ticks that were missed come at once.
    let mut ticks = interval(Duration::from_nanos(1));
    ticks.set_missed_ticks(MissedTicks::Burst);
    sleep(Duration::from_millis(1)).await;
    lets_others_run("interval", async move || assert!(ticks.tick().await <= now())).await;

    let mut set = JoinSet::new();
    let left = Rc::new(Cell::new(ROUNDS));
    for _ in 0..ROUNDS {
        let left = Rc::clone(&left);
        set.spawn(async move { left.set(left.get() - 1) });
    }
    yield_until(|| left.get() == 0).await;
    lets_others_run("join_next", async move || set.join_next().await.unwrap().unwrap()).await;
    sakia::scope(async |scope| {
        let ended: Vec<_> = (0..ROUNDS).map(|_| scope.spawn(async {})).collect();
        while !ended.iter().all(|child| child.is_finished()) {
            yield_now().await;
        }
        let has_run = Rc::new(Cell::new(false));
        let runs = Rc::clone(&has_run);
        spawn(async move { runs.set(true) }).detach();
        let mut rounds = 0;
        for child in ended {
            if has_run.get() {
                break;
            }
            child.await;
            rounds += 1;
        }
        assert!(0 < rounds && rounds <= FEW, "scope: {rounds} rounds before another task");
    })
    .await;
}

async fn yield_until(is_so: impl Fn() -> bool) {
    while !is_so() {
        yield_now().await;
    }
}

/// A permit that is granted while others run keeps its place in the line.
#[sakia::test]
async fn a_permit_that_lets_others_run_is_not_overtaken() {
    let budget = Budget::new(Limits::new().descriptors(1));
    for _ in 0..ROUNDS {
        let mut first = std::pin::pin!(budget.acquire(Resource::Descriptors, 1));
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        let is_first = first.as_mut().poll(&mut cx).is_ready();
        assert!(is_first || budget.try_acquire(Resource::Descriptors, 1).is_none());
        if !is_first {
            drop(first.await);
            assert!(budget.try_acquire(Resource::Descriptors, 1).is_some());
            return;
        }
    }
    panic!("no permit let others run");
}
