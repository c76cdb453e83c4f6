//! The interface of an experiment.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::bytes::bytes;
use crate::machine::Machine;
use crate::plot::Plot;
use crate::results::{Missing, Results, Row};

/// The parameters that identify a point, with units in the names, as in JSON.
pub type Params = Map<String, Value>;

/// An amount of work to be measured.
#[derive(Clone, Debug)]
pub struct Point {
    /// The parameters, for programs.
    pub params: Params,
    /// The label, for people.
    pub label: String,
    /// The amount of work.
    pub work: Work,
}

/// The amount of work of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Operations, as the experiment counts them.
    pub operations: u64,
    /// Bytes moved.
    pub bytes: u64,
}

/// The relevant figures of an experiment, and their form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Focus {
    /// The time for the bytes.
    Time,
    /// The time for the bytes, and the processor time.
    TimeAndProcessor,
    /// The processor time of a request.
    Requests,
    /// The number of threads.
    Threads,
    /// The time for the files.
    Files,
    /// The time of one repetition, in nanoseconds.
    Costs,
    /// The time of calls, and the bytes they move.
    Device,
    /// How many records are written in a second, and the processor time of one.
    Records,
}

/// Facts about an experiment that are known before its first run.
///
/// Variants and points are in the order in which they are shown; points are done one after the other, and at
/// each point the variants alternate.
#[derive(Clone, Debug)]
pub struct About {
    /// The name of the experiment.
    pub name: &'static str,
    /// The measured subject, in one line.
    pub title: String,
    /// The method, and other facts that readers must know; a sentence each.
    pub notes: Vec<String>,
    /// The names of the variants.
    pub variants: Vec<&'static str>,
    /// The amounts of work.
    pub points: Vec<Point>,
    /// Pairs of variants to compare: the time of the first relative to that of the second.
    pub pairs: Vec<(&'static str, &'static str)>,
    /// The relevant figures, and their form.
    pub focus: Focus,
    /// The directory with the inputs; it is the working directory of runs.
    pub directory: PathBuf,
    /// The machine, with the facts that matter here.
    pub machine: Machine,
    /// Requested variants that are unavailable, as far as that is known before the first run.
    pub left_out: Vec<Missing>,
}

impl About {
    /// Returns an experiment on this machine with inputs in `directory`; its other facts are still empty.
    pub(crate) fn new(name: &'static str, focus: Focus, directory: &Path) -> Self {
        Self {
            name,
            title: String::new(),
            notes: Vec::new(),
            variants: Vec::new(),
            points: Vec::new(),
            pairs: Vec::new(),
            focus,
            directory: directory.to_owned(),
            machine: Machine::detect(directory),
            left_out: Vec::new(),
        }
    }
}

/// The same work, done by several variants.
pub trait Experiment {
    /// Returns the facts about the experiment.
    fn about(&self) -> &About;

    /// Returns whether a variant is measured at a point.
    fn has(&self, _point: usize, _variant: &str) -> bool {
        true
    }

    /// Makes the input of a point, and returns the sum that every run must compute. Calls `is_stopped` now
    /// and then, and gives up early if it returns true.
    ///
    /// # Errors
    /// The input cannot be made; the error names the path.
    fn prepare(&mut self, point: usize, is_stopped: &dyn Fn() -> bool) -> anyhow::Result<u64>;

    /// Restores the state in which each run must begin, unless runs do that themselves.
    ///
    /// # Errors
    /// The state cannot be restored.
    fn reset(&mut self, _point: usize) -> anyhow::Result<()> {
        Ok(())
    }

    /// Returns the input of a run, the same for all variants: the `input` of its [`Spec`](crate::cell::Spec).
    fn input(&self, point: usize) -> Value;

    /// Explains a variant's figures by its counters, in words.
    fn reason(&self, row: &Row) -> Option<String>;

    /// Returns the plots of a report; none if each variant has one number, which is in the table.
    fn plots(&self, _results: &Results) -> Vec<Plot> {
        Vec::new()
    }
}

/// Returns pairs of each variant with each of these others.
pub(crate) fn against(
    all: &[&'static str],
    others: [&'static str; 2],
) -> Vec<(&'static str, &'static str)> {
    let [first, second] = others;
    let of = |other| all.iter().filter(move |&&one| one != other).map(move |&one| (one, other));
    of(first).chain(of(second).filter(|&(one, _)| one != first)).collect()
}

/// Returns a point for each size of an input that is read in blocks, in ascending order, each once.
pub(crate) fn points_of_sizes(sizes: &mut Vec<u64>, block_bytes: usize, cold: bool) -> Vec<Point> {
    sizes.sort_unstable();
    sizes.dedup();
    let point = |&size: &u64| {
        let mut params = Params::new();
        params.insert("size_bytes".into(), size.into());
        params.insert("block_bytes".into(), block_bytes.into());
        if cold {
            params.insert("cold".into(), true.into());
        }
        let operations = size.div_ceil(block_bytes as u64);
        Point { params, label: bytes(size), work: Work { operations, bytes: size } }
    };
    sizes.iter().map(point).collect()
}
