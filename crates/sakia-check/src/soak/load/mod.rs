//! The steps of the soak: each begins with nothing, checks its results and leaves nothing.
//!
//! A step may be dropped at any moment. Operations that it has started continue, find that their peer is
//! gone, and end; their errors are not reported.

mod files;
mod others;
mod streams;
mod tasks;

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::ensure;
use sakia_driver::Policy;

use super::board::Board;
use super::give_up::give_up;

/// A step under way.
type Begun = Pin<Box<dyn Future<Output = anyhow::Result<()>>>>;

/// A kind of step.
pub(super) struct Kind {
    pub(super) name: &'static str,
    /// The relative frequency of its choice.
    weight: u32,
    begin: fn(Context) -> Begun,
}

macro_rules! kinds {
    ($($name:literal $weight:literal $path:path;)*) => {
        /// All kinds of steps.
        pub(super) const KINDS: &[Kind] = &[$(
            Kind { name: $name, weight: $weight, begin: |context| Box::pin($path(context)) },
        )*];
    };
}

kinds! {
    "positional" 8 files::positional;
    "append" 4 files::append;
    "whole" 6 files::whole;
    "save" 2 files::save;
    "journal" 2 files::journal;
    "directory" 6 files::directory;
    "pipe" 8 streams::pipe_bytes;
    "given-up-reads" 8 streams::given_up_reads;
    "freed-memory" 8 streams::freed_memory;
    "tcp" 6 streams::tcp;
    "timers" 6 tasks::timers;
    "tasks" 8 tasks::tasks;
    "scopes" 6 tasks::scopes;
    "blocking" 4 tasks::blocking;
    "child" 1 others::child;
    "runtime" 1 others::runtime;
}

impl Kind {
    /// Chooses a kind by weight.
    pub(super) fn choose(random: &mut fastrand::Rng) -> &'static Self {
        let mut number = random.u32(0..KINDS.iter().map(|kind| kind.weight).sum());
        for kind in KINDS {
            match number.checked_sub(kind.weight) {
                Some(rest) => number = rest,
                None => return kind,
            }
        }
        unreachable!("the number is less than the sum of weights");
    }

    /// Runs one step of this kind to its end, or, if `may_be_dropped`, to the moment of its drop.
    ///
    /// # Errors
    /// A wrong result or a failed operation.
    pub(super) async fn run(
        &self,
        common: &Arc<Common>,
        random: &mut fastrand::Rng,
        may_be_dropped: bool,
    ) -> anyhow::Result<()> {
        let step = common.board.begin(self.name);
        let folder = common.folder.join(step.number.to_string());
        let context =
            Context { common: Arc::clone(common), folder: folder.clone(), random: random.fork() };
        let future = (self.begin)(context);
        if !may_be_dropped || random.bool() {
            future.await.map_err(|error| error.context(format!("step {}", self.name)))?;
        } else if let Some(result) = give_up(random, future).await {
            result.map_err(|error| error.context(format!("step {}", self.name)))?;
        } else {
            Counts::add(&common.counts.dropped, 1);
            // Operations in flight may still make files there; the whole folder goes at the end.
            sakia::fs::remove_dir_all(&folder).await.ok();
        }
        Counts::add(&common.counts.steps, 1);
        Ok(())
    }
}

/// Counts so far.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Steps that ended or were dropped.
    pub(super) steps: AtomicU64,
    /// Futures dropped before they were done.
    pub(super) dropped: AtomicU64,
    /// Bytes compared with their expected values.
    pub(super) verified_bytes: AtomicU64,
}

impl Counts {
    fn add(count: &AtomicU64, more: usize) {
        count.fetch_add(more as u64, Ordering::Relaxed);
    }
}

/// Shared by all steps.
#[derive(Debug)]
pub(super) struct Common {
    pub(super) policy: Policy,
    /// The folder for their files.
    pub(super) folder: PathBuf,
    pub(super) board: Arc<Board>,
    pub(super) counts: Counts,
}

/// The context of a step.
struct Context {
    common: Arc<Common>,
    /// The step's own folder; a step that needs it creates and removes it.
    folder: PathBuf,
    random: fastrand::Rng,
}

impl Context {
    /// Makes the step's folder.
    async fn make_folder(&self) -> anyhow::Result<()> {
        Ok(sakia::fs::create_dir(&self.folder).await?)
    }

    /// Removes the folder with its contents.
    async fn remove_folder(&self) -> anyhow::Result<()> {
        Ok(sakia::fs::remove_dir_all(&self.folder).await?)
    }

    /// Returns random bytes, between one and `len_max`.
    fn bytes(&mut self, len_max: usize) -> Vec<u8> {
        let len = self.random.usize(1..=len_max);
        bytes(&mut self.random, len)
    }

    /// Fails unless these are the expected bytes.
    fn verify(&self, what: &str, got: &[u8], expected: &[u8]) -> anyhow::Result<()> {
        if got != expected {
            let differ = got.iter().zip(expected).position(|(a, b)| a != b);
            let at = differ.unwrap_or(got.len().min(expected.len()));
            let (got, expected) = (got.len(), expected.len());
            anyhow::bail!("{what}: wrong bytes from {at} on, {got} came and {expected} were due");
        }
        Counts::add(&self.common.counts.verified_bytes, got.len());
        Ok(())
    }

    /// Drops the future at a random moment; `None` if that happened.
    async fn give_up<F: Future>(&mut self, future: F) -> Option<F::Output> {
        let output = give_up(&mut self.random, future).await;
        if output.is_none() {
            Counts::add(&self.common.counts.dropped, 1);
        }
        output
    }
}

fn bytes(random: &mut fastrand::Rng, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    random.fill(&mut bytes);
    bytes
}

/// Fails unless two values are equal.
fn same<T: PartialEq + std::fmt::Debug>(what: &str, got: &T, expected: &T) -> anyhow::Result<()> {
    ensure!(got == expected, "{what}: {got:?} instead of {expected:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_kind_is_chosen() {
        let mut random = fastrand::Rng::with_seed(1);
        let chosen: BTreeSet<_> = (0..10_000).map(|_| Kind::choose(&mut random).name).collect();
        assert_eq!(chosen.len(), KINDS.len());
    }
}
