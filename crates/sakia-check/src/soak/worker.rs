//! A thread with its own runtime, which does steps until a stop is requested.
//!
//! 1. It does one step of each kind, waits for the end of everything and reports that it is
//!    [quiet](Event::Quiet).
//! 2. On a command to continue, it does random steps, several at a time, until a stop is requested; then it
//!    waits for the end of everything, and reports again that it is quiet.
//! 3. On another command to continue, it drops its runtime and ends.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use sakia::time::{sleep, timeout};
use sakia::{JoinSet, Runtime};
use serde::Serialize;

use super::load::{Common, KINDS, Kind};

/// The number of steps under way at a time on a thread.
const PLAYERS: usize = 8;
/// The interval of a runtime's reports.
const STATE_INTERVAL: Duration = Duration::from_millis(200);

/// A report of a thread.
pub(super) enum Event {
    /// Everything that it had started is over.
    Quiet,
    /// A check failed.
    Failed(String),
}

/// The state and the counters of a runtime at one moment.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct State {
    /// Tasks that have not ended.
    pub(super) live_tasks: usize,
    /// Operations with a slot.
    pub(super) live_operations: u32,
    /// Those of them that are in the kernel.
    pub(super) in_flight: u32,
    /// Its driver's counters.
    pub(super) counters: BTreeMap<&'static str, u64>,
}

impl State {
    pub(super) fn of(runtime: &Runtime) -> Self {
        Self {
            live_tasks: runtime.live_tasks(),
            live_operations: runtime.live_operations(),
            in_flight: runtime.in_flight(),
            counters: runtime.counters().iter().collect(),
        }
    }

    /// Returns the differences that an idle runtime must not have; a line each. `baseline` is of the same
    /// runtime, before its work.
    pub(super) fn differences(&self, baseline: &Self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut compare = |what: &str, before: u64, after: u64| {
            if before != after {
                lines.push(format!("{what}: {before} before, {after} after"));
            }
        };
        compare("live tasks", baseline.live_tasks as u64, self.live_tasks as u64);
        compare("live operations", baseline.live_operations.into(), self.live_operations.into());
        for counter in ["leaked", "stale", "close_errors"] {
            compare(counter, 0, self.counters.get(counter).copied().unwrap_or_default());
        }
        lines
    }
}

/// A thread with a runtime.
pub(super) struct Worker {
    go_on: Sender<()>,
    pub(super) events: Receiver<Event>,
    state: Arc<Mutex<State>>,
    thread: JoinHandle<()>,
}

impl Worker {
    /// Starts the thread of this number.
    ///
    /// # Errors
    /// There are no threads left.
    pub(super) fn start(
        number: usize,
        seed: u64,
        common: Arc<Common>,
        stop: Arc<AtomicBool>,
    ) -> anyhow::Result<Self> {
        let ((go_on, gone_on), (tell, events)) = (channel(), channel());
        let state = Arc::new(Mutex::new(State::default()));
        let random = fastrand::Rng::with_seed(seed.wrapping_add(number as u64));
        let playing = Playing { common, stop, random, state: Arc::clone(&state), gone_on };
        let name = format!("soak-{number}");
        let thread = Builder::new().name(name).spawn(move || {
            let failure = match catch_unwind(AssertUnwindSafe(|| playing.run(&tell))) {
                Ok(Ok(())) => return,
                Ok(Err(error)) => format!("{error:#}"),
                Err(_) => "a runtime panicked".to_owned(),
            };
            tell.send(Event::Failed(failure)).ok();
        })?;
        Ok(Self { go_on, events, state, thread })
    }

    /// Tells a quiet thread to continue. One that has failed does not.
    pub(super) fn go_on(&self) {
        self.go_on.send(()).ok();
    }

    /// Returns the last reported state of its runtime.
    pub(super) fn state(&self) -> State {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns whether the thread has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }
}

/// The state of the thread.
struct Playing {
    common: Arc<Common>,
    stop: Arc<AtomicBool>,
    random: fastrand::Rng,
    state: Arc<Mutex<State>>,
    gone_on: Receiver<()>,
}

impl Playing {
    fn run(mut self, tell: &Sender<Event>) -> anyhow::Result<()> {
        let runtime = Runtime::builder().backend(self.common.policy).build()?;
        runtime.block_on(async {
            warm_up(&self.common, &mut self.random).await?;
            self.be_quiet(&runtime, tell).await?;
            self.play(&runtime).await?;
            self.be_quiet(&runtime, tell).await
        })
    }

    /// Does random steps until a stop is requested.
    async fn play(&mut self, runtime: &Runtime) -> anyhow::Result<()> {
        let mut players = JoinSet::new();
        for _ in 0..PLAYERS {
            let (common, stop) = (Arc::clone(&self.common), Arc::clone(&self.stop));
            let mut random = self.random.fork();
            players.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    Kind::choose(&mut random).run(&common, &mut random, true).await?;
                }
                anyhow::Ok(())
            });
        }
        loop {
            match timeout(STATE_INTERVAL, players.join_next()).await {
                Ok(None) => return Ok(()),
                Ok(Some(result)) => result??,
                Err(_) => self.publish(runtime),
            }
        }
    }

    /// Waits until nothing is under way, reports that, and waits for the next command.
    async fn be_quiet(&self, runtime: &Runtime, tell: &Sender<Event>) -> anyhow::Result<()> {
        let step = self.common.board.begin("the end of all tasks and operations");
        while runtime.live_tasks() > 0 || runtime.in_flight() > 0 {
            sleep(Duration::from_millis(2)).await;
            self.publish(runtime);
        }
        drop(step);
        self.publish(runtime);
        tell.send(Event::Quiet).ok();
        // The thread has no other work.
        self.gone_on.recv().context("the main thread has ended")
    }

    fn publish(&self, runtime: &Runtime) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = State::of(runtime);
    }
}

/// Does a step of each kind.
///
/// # Errors
/// As [`Kind::run`].
pub(super) async fn warm_up(
    common: &Arc<Common>,
    random: &mut fastrand::Rng,
) -> anyhow::Result<()> {
    for kind in KINDS {
        kind.run(common, random, false).await?;
    }
    ensure!(common.folder.is_dir(), "the folder of the soak is gone");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::future::{Future, poll_fn};
    use std::pin::Pin;
    use std::task::Poll;

    use sakia::io::pipe;
    use sakia_driver::Policy;

    use super::*;

    fn runtime() -> Runtime {
        Runtime::builder().backend(Policy::Poll).build().unwrap()
    }

    async fn poll_once<F: Future>(future: Pin<&mut F>) {
        let mut future = future;
        poll_fn(|cx| {
            assert!(future.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
    }

    #[test]
    fn a_slot_that_stays_in_use_is_found() {
        let runtime = runtime();
        let baseline = State::of(&runtime);
        runtime.block_on(async {
            let (mut reader, writer) = pipe().unwrap();
            let mut read = Box::pin(async move { reader.read(vec![0; 10]).await });
            poll_once(read.as_mut()).await;
            std::mem::forget(read);
            writer.close().await.unwrap();
        });
        let found = State::of(&runtime).differences(&baseline);
        assert_eq!(found, ["live operations: 0 before, 1 after"]);
    }

    #[test]
    fn a_slot_that_is_free_again_is_not_found() {
        let runtime = runtime();
        let baseline = State::of(&runtime);
        runtime.block_on(async {
            let (mut reader, writer) = pipe().unwrap();
            let mut read = Box::pin(async move { reader.read(vec![0; 10]).await });
            poll_once(read.as_mut()).await;
            drop(read);
            writer.close().await.unwrap();
            while runtime.live_operations() > baseline.live_operations {
                sleep(Duration::from_millis(1)).await;
            }
        });
        assert!(State::of(&runtime).differences(&baseline).is_empty());
    }

    #[test]
    fn a_task_that_does_not_end_is_found() {
        let runtime = runtime();
        let baseline = State::of(&runtime);
        runtime.spawn(std::future::pending::<()>()).detach();
        let found = State::of(&runtime).differences(&baseline);
        assert_eq!(found, ["live tasks: 0 before, 1 after"]);
    }
}
