//! Steps with child processes, and with runtimes on other threads.

use std::sync::Arc;

use anyhow::{Context as _, ensure};
use sakia::process::{Command, Stdio};
use sakia::{Runtime, spawn_blocking, spawn_on};
use sakia_ring::Ring;

use super::{Common, Context, Kind, same};

/// Runs a child that sends its input back, and one that is killed.
pub(super) async fn child(mut context: Context) -> anyhow::Result<()> {
    let sent = context.bytes(100_000);
    let mut cat = Command::new("cat");
    let mut child = cat.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
    let mut stdin = child.stdin.take().context("a child without standard input")?;
    let bytes = sent.clone();
    let writing = sakia::spawn(async move {
        stdin.write_all(bytes).await.0?;
        stdin.close().await
    });
    let output = child.wait_with_output().await?;
    context.verify("a child", &output.stdout, &sent)?;
    ensure!(output.status.success(), "a child failed");
    writing.await??;

    let mut sleeper = Command::new("sleep").arg("3600").kill_on_drop(true).spawn()?;
    let _ = context.give_up(sleeper.wait()).await;
    if context.random.bool() {
        sleeper.kill()?;
        ensure!(!sleeper.wait().await?.success(), "a child that was killed has ended well");
    }
    Ok(())
}

/// Runs a runtime of two threads and a small ring, on a thread of the pool: after some steps, a part of them
/// given up, it is dropped with the operations that they left.
pub(super) async fn runtime(mut context: Context) -> anyhow::Result<()> {
    let (common, random) = (Arc::clone(&context.common), context.random.fork());
    let step = common.board.begin("a runtime of its own");
    let handle = spawn_blocking(move || {
        let result = short_runtime(&common, random);
        drop(step);
        result
    });
    match context.give_up(handle).await {
        Some(result) => result?,
        None => Ok(()),
    }
}

/// Runs the steps of [`runtime`].
fn short_runtime(common: &Arc<Common>, mut random: fastrand::Rng) -> anyhow::Result<()> {
    let ring = Ring::builder().sq_entries(8).cq_entries(32);
    let runtime = Runtime::builder().backend(common.policy).ring(ring).threads(2).build()?;
    runtime.block_on(async {
        let number = random.u64(0..1000);
        let elsewhere = spawn_on(1, move || async move { number * 2 });
        for _ in 0..random.u32(0..6) {
            let kind = Kind::choose(&mut random);
            // A runtime within a runtime, recursively, would never end.
            if kind.name != "runtime" {
                Box::pin(kind.run(common, &mut random, true)).await?;
            }
        }
        same("a number from another thread", &elsewhere.await?, &(number * 2))
    })?;
    let counters = runtime.counters();
    same("unknown completions", &counters.stale, &0)?;
    same("descriptors that could not be closed", &counters.close_errors, &0)
}
