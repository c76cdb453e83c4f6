//! Steps with timers, tasks, scopes and blocking threads.

use std::cell::Cell;
use std::future::pending;
use std::time::Duration;

use anyhow::ensure;
use sakia::time::{Instant, interval, sleep, timeout};
use sakia::{CancellationToken, JoinSet};
use sakia::{for_each_concurrent, spawn, spawn_blocking, spawned_scope, yield_now};

use super::{Context, same};

/// Runs sleeps, which must not end early, timeouts and intervals.
pub(super) async fn timers(mut context: Context) -> anyhow::Result<()> {
    let mut sleeps = JoinSet::new();
    for _ in 0..context.random.u32(1..10) {
        let duration = Duration::from_micros(context.random.u64(0..3000));
        sleeps.spawn(async move {
            let begin = Instant::now();
            sleep(duration).await;
            begin.elapsed() >= duration
        });
    }
    let limit = Duration::from_micros(context.random.u64(0..1000));
    ensure!(timeout(limit, pending::<()>()).await.is_err(), "an endless future has ended");
    let _ = context.give_up(sleep(Duration::from_secs(3600))).await;
    while let Some(is_late) = sleeps.join_next().await {
        ensure!(is_late?, "a timer was early");
    }
    let mut interval = interval(Duration::from_micros(300));
    let first = interval.tick().await;
    ensure!(interval.tick().await > first, "an interval did not go on");
    Ok(())
}

/// Runs tasks that are awaited, aborted, canceled or left alone.
pub(super) async fn tasks(mut context: Context) -> anyhow::Result<()> {
    let mut set = JoinSet::new();
    let count = context.random.u64(1..20);
    for number in 0..count {
        let yields = context.random.u32(0..10);
        set.spawn(async move {
            for _ in 0..yields {
                yield_now().await;
            }
            number
        });
    }
    let mut sum = 0;
    while let Some(number) = set.join_next().await {
        sum += number?;
    }
    same("sum of tasks", &sum, &(count * (count - 1) / 2))?;

    // Ends the tasks, too, if this step is dropped earlier.
    let token = CancellationToken::new();
    let _end = token.clone().drop_guard();
    let waiting = || {
        let token = token.clone();
        spawn(async move { token.canceled().await })
    };
    let (aborted, canceled) = (waiting(), waiting());
    for _ in 0..context.random.u32(0..4) {
        yield_now().await;
    }
    aborted.abort();
    let error = aborted.await.err();
    ensure!(error.is_some_and(|error| error.is_canceled()), "an aborted task was not canceled");
    ensure!(canceled.cancel().await.is_none(), "a canceled task has ended");
    spawn(async { sleep(Duration::from_millis(1)).await }).detach();
    set.spawn(pending());
    set.abort_all();
    while let Some(result) = set.join_next().await {
        ensure!(result.is_err(), "a task of an aborted set has ended");
    }
    Ok(())
}

/// Runs scopes within the task, and of tasks of their own; one fails.
pub(super) async fn scopes(mut context: Context) -> anyhow::Result<()> {
    let count = context.random.u32(1..20);
    let sum = Cell::new(0);
    sakia::scope(async |s| {
        for number in 0..count {
            let sum = &sum;
            drop(s.spawn(async move {
                sleep(Duration::from_micros(u64::from(number) * 20)).await;
                sum.set(sum.get() + number);
            }));
        }
    })
    .await;
    for_each_concurrent(4, 0..count, async |number| {
        yield_now().await;
        sum.set(sum.get() + number);
    })
    .await;
    same("sum of children", &sum.get(), &(count * (count - 1)))?;

    let sum = spawned_scope(async |s| {
        let (one, two) = (s.spawn(async { Ok(1) }), s.spawn(async { Ok(2) }));
        Ok::<_, ()>(one.await + two.await)
    });
    same("sum of a scope", &sum.await.ok(), &Some(3))?;
    let failed = spawned_scope(async |s| {
        drop(s.spawn(pending::<Result<(), u32>>()));
        drop(s.spawn(async move {
            yield_now().await;
            Err::<(), _>(count)
        }));
        pending::<Result<(), u32>>().await
    });
    let error = failed.await.err().and_then(|error| error.into_error().ok());
    same("error of a scope", &error, &Some(count))
}

/// Runs code on threads of the pool, awaited or given up.
pub(super) async fn blocking(mut context: Context) -> anyhow::Result<()> {
    for number in 0..context.random.u64(1..6) {
        let step = context.common.board.begin("blocking code");
        let time = Duration::from_micros(context.random.u64(0..500));
        let handle = spawn_blocking(move || {
            std::thread::sleep(time);
            drop(step);
            number * number
        });
        if let Some(square) = context.give_up(handle).await {
            same("a square", &square?, &(number * number))?;
        }
    }
    Ok(())
}
