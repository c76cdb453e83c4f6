//! Runs an experiment: a process per run, variants alternating.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context, bail};
use fastrand::Rng;
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, getpid, kill_process_group,
    set_child_subreaper, waitid, waitpgid,
};
use sakia_bench_support::stats;
use serde::{Deserialize, Serialize};

use crate::cell::{Measured, Outcome, Spec};
use crate::experiment::Experiment;
use crate::machine::{Noise, Watch};
use crate::results::{Missing, Results, Row, Run};

/// The command for a process that calls [`run_cell`](crate::run_cell) with its last argument, and prints the
/// [`Outcome`] as a line of JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Launcher {
    /// The program.
    pub program: PathBuf,
    /// The arguments before the last one.
    pub arguments: Vec<OsString>,
}

/// The processes of the current run, for callers that have to end them early. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct AtHand {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// Set when no process is to go on.
    is_over: bool,
    /// The process group of the run. It exists as long as its first process was not waited for, so that the
    /// number belongs to no other group.
    group: Option<Pid>,
}

impl AtHand {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the current processes, if there are any, and those that are started later.
    pub fn end(&self) {
        self.change(|state| state.is_over = true);
    }

    fn set(&self, group: Option<Pid>) {
        self.change(|state| state.group = group);
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        if let (true, Some(group)) = (state.is_over, state.group) {
            // The processes may have ended. None of them has anything to clean up.
            kill_process_group(group, Signal::KILL).ok();
        }
    }
}

/// The number and the order of runs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Runs of each variant at each point, 1 to [`stats::VALUES_MAX`].
    pub runs: usize,
    /// Fixes the order of the variants.
    pub seed: u64,
    /// The command for runs.
    pub launcher: Launcher,
    /// The handle that ends runs early.
    pub at_hand: AtHand,
}

/// Progress of an experiment.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// The input of a point is being made.
    Prepare {
        /// The point's label.
        point: &'a str,
    },
    /// A run begins.
    Begin {
        /// The point's label.
        point: &'a str,
        /// The variant.
        variant: &'a str,
        /// The number of finished runs.
        done: usize,
        /// The number of all runs.
        total: usize,
    },
    /// A run was made.
    Done(&'a Run),
}

/// Runs an experiment. Reports its progress to `observe`; when `is_stopped` returns true, ends after the
/// current run, without results.
///
/// A variant that is unavailable on this machine, or whose process fails, is left out from then on, and
/// listed as [missing](Results::missing); a wrong result is listed, too. The other variants go on.
///
/// # Errors
/// Inputs cannot be made, or processes cannot be started.
pub fn run(
    experiment: &mut dyn Experiment,
    settings: &Settings,
    observe: &mut dyn FnMut(Event<'_>) -> anyhow::Result<()>,
    is_stopped: &dyn Fn() -> bool,
) -> anyhow::Result<Option<Results>> {
    let runs = settings.runs.clamp(1, stats::VALUES_MAX);
    let about = experiment.about().clone();
    let mut results = Results {
        missing: about.left_out.clone(),
        about,
        runs: Vec::new(),
        rows: Vec::new(),
        ratios: Vec::new(),
        reasons: Vec::new(),
        mismatches: Vec::new(),
    };
    let (mut done, mut total) = (0, 0);
    for point in 0..results.about.points.len() {
        let variants = results.about.variants.iter();
        total += runs * variants.filter(|&&variant| experiment.has(point, variant)).count();
    }
    for point in 0..results.about.points.len() {
        let label = results.about.points[point].label.clone();
        observe(Event::Prepare { point: &label })?;
        if is_stopped() {
            return Ok(None);
        }
        let expected = experiment.prepare(point, is_stopped)?;
        for round in 0..runs {
            for variant in order(&results.about.variants, settings.seed, round) {
                if is_stopped() {
                    return Ok(None);
                }
                if !experiment.has(point, variant) {
                    continue;
                }
                done += 1;
                if results.missing.iter().any(|missing| missing.variant == variant) {
                    continue;
                }
                observe(Event::Begin { point: &label, variant, done: done - 1, total })?;
                experiment.reset(point)?;
                let spec = Spec {
                    experiment: results.about.name.into(),
                    variant: variant.into(),
                    input: experiment.input(point),
                };
                let ended = launch(settings, &results.about.directory, &spec);
                if is_stopped() {
                    return Ok(None); // the signal may have caused the run's outcome
                }
                match ended? {
                    Ok(run) => {
                        let run = Run { point, variant, round, ..run };
                        if run.measured.sum != expected {
                            results.mismatches.push(format!(
                                "{variant}, {label}: {} instead of {expected}",
                                run.measured.sum
                            ));
                        }
                        observe(Event::Done(&run))?;
                        results.runs.push(run);
                    }
                    Err(missing) => results.missing.push(Missing { variant, ..missing }),
                }
            }
        }
    }
    results.conclude();
    let reason = |row: &Row| Some(((row.point, row.variant), experiment.reason(row)?));
    results.reasons = results.rows.iter().filter_map(reason).collect();
    Ok(Some(results))
}

/// Returns the order of a round. In as many rounds as there are variants, each is at each place once.
fn order(variants: &[&'static str], seed: u64, round: usize) -> Vec<&'static str> {
    let mut order = variants.to_vec();
    let (block, turn) = (round / order.len().max(1), round % order.len().max(1));
    Rng::with_seed(seed ^ block as u64).shuffle(&mut order);
    order.rotate_left(turn);
    order
}

/// Runs a process to its end, and ends processes that it has started and left behind.
fn launch(
    settings: &Settings,
    directory: &Path,
    spec: &Spec,
) -> anyhow::Result<Result<Run, Missing>> {
    let missing = |reason, is_failure| Err(Missing { variant: "", reason, is_failure });
    let launcher = &settings.launcher;
    let spec = serde_json::to_string(spec).context("json")?;
    let mut command = Command::new(&launcher.program);
    command.args(&launcher.arguments).arg(spec).current_dir(directory).stdin(Stdio::null());
    let watch = Watch::start()?;
    let begin = Instant::now();
    // All processes of the run are in its group, and become children of this process when their parents have
    // ended.
    let adopts = set_child_subreaper(Some(getpid()));
    adopts.context("adopt what runs leave")?;
    command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = command.spawn().and_then(|child| wait(child, &settings.at_hand));
    let elapsed = begin.elapsed();
    let noise = watch.stop()?;
    let output = output.with_context(|| format!("cannot run {}", launcher.program.display()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.trim().trim_start_matches("sakia: ");
        return Ok(missing(format!("{}: {said}", output.status), true));
    }
    match serde_json::from_slice(&output.stdout) {
        Ok(Outcome::Measured(measured @ Measured { is_disturbed, .. })) => Ok(Ok(Run {
            point: 0,
            variant: "",
            round: 0,
            measured,
            process_wall_ns: u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX),
            noise: Noise { is_noisy: noise.is_noisy || is_disturbed, ..noise },
        })),
        Ok(Outcome::Unavailable(reason)) => Ok(missing(reason, false)),
        Err(error) => bail!("the output of a run is no measurement: {error}"),
    }
}

/// Waits for the first process of its own group, and for the others, which are ended with it.
fn wait(mut child: Child, at_hand: &AtHand) -> io::Result<Output> {
    let group = Pid::from_child(&child);
    at_hand.set(Some(group));
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    thread::scope(|scope| {
        let stdout = scope.spawn(|| read_all(stdout));
        let stderr = scope.spawn(|| read_all(stderr));
        // Not reaped yet, so that no other process gets its number.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let ended = retry_on_intr(|| waitid(WaitId::Pid(group), options));
        kill_process_group(group, Signal::KILL).ok();
        at_hand.set(None);
        ended?;
        let status = child.wait()?;
        // The processes that it has left behind.
        while !matches!(waitpgid(group, WaitOptions::empty()), Err(errno) if errno != Errno::INTR) {
        }
        let joined = |thread: thread::ScopedJoinHandle<'_, io::Result<Vec<u8>>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        Ok(Output { status, stdout: joined(stdout)?, stderr: joined(stderr)? })
    })
}

fn read_all(stream: Option<impl Read>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    stream.map_or(Ok(0), |mut stream| stream.read_to_end(&mut bytes))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variant_takes_every_place() {
        let variants = ["a", "b", "c", "d"];
        for seed in 0..20 {
            let rounds: Vec<_> = (0..4).map(|round| order(&variants, seed, round)).collect();
            for place in 0..4 {
                let mut there: Vec<_> = rounds.iter().map(|order| order[place]).collect();
                there.sort_unstable();
                assert_eq!(there, variants);
            }
            assert_eq!(order(&variants, seed, 1), rounds[1]);
        }
        assert!((0..40).any(|round| order(&variants, 1, round) != order(&variants, 1, round % 4)));
    }

    #[test]
    fn process_at_hand_is_ended_and_so_are_later_ones() {
        let spec =
            Spec { experiment: String::new(), variant: String::new(), input: Default::default() };
        let arguments = vec!["-c".into(), "exec sleep 1000".into(), "sh".into()];
        let launcher = Launcher { program: "/bin/sh".into(), arguments };
        let settings = Settings { runs: 1, seed: 1, launcher, at_hand: AtHand::default() };
        let at_hand = settings.at_hand.clone();
        let end = std::thread::spawn(move || {
            while at_hand.lock().group.is_none() {
                std::thread::yield_now();
            }
            at_hand.end();
        });
        for _ in 0..2 {
            let answer = launch(&settings, Path::new("/"), &spec);
            assert!(matches!(answer, Ok(Err(Missing { is_failure: true, .. }))));
        }
        end.join().unwrap();
    }

    #[test]
    fn process_that_fails_is_reported_and_one_that_says_nonsense_an_error() {
        let spec =
            Spec { experiment: String::new(), variant: String::new(), input: Default::default() };
        let shell = |script: &str| {
            let arguments = vec!["-c".into(), script.into(), "sh".into()];
            let launcher = Launcher { program: "/bin/sh".into(), arguments };
            let settings = Settings { runs: 1, seed: 1, launcher, at_hand: AtHand::default() };
            launch(&settings, Path::new("/"), &spec)
        };
        let Ok(Err(Missing { reason, is_failure: true, .. })) =
            shell("echo sakia: no disk >&2; exit 3")
        else {
            panic!("the process failed");
        };
        assert_eq!(reason, "exit status: 3: no disk");
        let Ok(Err(Missing { reason, is_failure: false, .. })) =
            shell(r#"echo '{"unavailable":"no ring"}'"#)
        else {
            panic!("the process reports the missing part");
        };
        assert_eq!(reason, "no ring");
        assert!(shell("echo nonsense").is_err());
        let measured = Measured { is_disturbed: true, ..Measured::default() };
        let answer = serde_json::to_string(&Outcome::Measured(measured)).unwrap();
        let Ok(Ok(run)) = shell(&format!("echo '{answer}'")) else { panic!("{answer}") };
        assert!(run.noise.is_noisy, "a run's own report of noise counts");
    }
}
