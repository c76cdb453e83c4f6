//! One run of one variant: the order to the process that does it, and the process's answer.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use sakia_bench_support::usage::Usage;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::measure::{Meter, Section, peak_rss_bytes};
use crate::named::Named;
use crate::{
    baseline, copytree, costs, echo, file_sum, net, sched, send_file, sockets, tcp_sum, threads,
    udp, wal,
};

/// Numbers with names, in the order of the names.
pub type Counters = BTreeMap<String, u64>;

/// The order for a process that runs one variant.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// The experiment's name.
    pub experiment: String,
    /// The variant's name.
    pub variant: String,
    /// Input for the variant, in a form that the experiment chooses.
    pub input: Value,
}

impl Spec {
    /// The variant that is to run.
    pub(crate) fn variant<V: Named>(&self) -> anyhow::Result<V> {
        let variant = V::by_name(&self.variant);
        variant.with_context(|| format!("{} has no variant {}", self.experiment, self.variant))
    }

    /// Returns the input for the variant.
    pub(crate) fn task<T: DeserializeOwned>(&self) -> anyhow::Result<T> {
        serde_json::from_value(self.input.clone()).context("input")
    }
}

/// The outcome of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It was done.
    Measured(Measured),
    /// This machine does not support it; the reason.
    Unavailable(String),
}

/// A run's measurements.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measured {
    /// The measured section.
    #[serde(flatten)]
    pub section: Section,
    /// Processor time of the whole process until its answer.
    pub process_cpu_ns: u64,
    /// The peak memory of the process.
    pub peak_rss_bytes: u64,
    /// Counters of the variant and of the driver.
    pub counters: Counters,
    /// The sum that the run computed; it must be the same in every variant.
    pub sum: u64,
    /// Set if the run began or went differently from the others: it counts as noisy.
    #[serde(default)]
    pub is_disturbed: bool,
}

/// The result of a variant's work.
#[derive(Clone, Debug)]
pub struct Done {
    /// The computed sum.
    pub sum: u64,
    /// The variant's counters.
    pub counters: Counters,
}

/// The error of work that this machine does not support; the reason.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Unavailable(pub(crate) String);

/// Executes a [`Spec`], given as a line of JSON: the work of one variant, once, in this process.
///
/// # Errors
/// The experiment or variant is unknown, or the work failed.
pub fn run_cell(spec: &str) -> anyhow::Result<Outcome> {
    let spec: Spec = serde_json::from_str(spec).context("not the description of a cell")?;
    match spec.experiment.as_str() {
        baseline::NAME => baseline::run_cell(&spec),
        costs::NAME => costs::run_cell(&spec),
        copytree::NAME => copytree::run_cell(&spec),
        echo::NAME => echo::run_cell(&spec),
        file_sum::NAME => file_sum::run_cell(&spec),
        net::LOAD => measure(|meter| net::run_load(&spec, meter)),
        sched::NAME => sched::run_cell(&spec),
        tcp_sum::NAME => tcp_sum::run_cell(&spec),
        threads::NAME => threads::run_cell(&spec),
        send_file::NAME => send_file::run_cell(&spec),
        sockets::NAME => sockets::run_cell(&spec),
        udp::NAME => udp::run_cell(&spec),
        wal::NAME => wal::run_cell(&spec),
        other => bail!("there is no experiment {other}"),
    }
}

/// Measures the work of a variant. Work that this machine does not support is no failure.
///
/// # Errors
/// Those of the work, and of [`Meter`].
pub fn measure(work: impl FnOnce(&mut Meter) -> anyhow::Result<Done>) -> anyhow::Result<Outcome> {
    let mut meter = Meter::start()?;
    let Done { sum, counters } = match work(&mut meter) {
        Ok(done) => done,
        Err(error) => {
            let Unavailable(reason) = error.downcast()?;
            return Ok(Outcome::Unavailable(reason));
        }
    };
    Ok(Outcome::Measured(Measured {
        section: meter.stop()?,
        process_cpu_ns: Usage::of_process()?.cpu_ns,
        peak_rss_bytes: peak_rss_bytes(),
        counters,
        sum,
        is_disturbed: false,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_survives_its_way_between_processes() {
        let usage = Usage { cpu_ns: 2, voluntary_switches: 7, involuntary_switches: 8 };
        let section = Section { wall_ns: 1, usage, threads_max: 3 };
        let measured = Measured {
            section,
            process_cpu_ns: 4,
            peak_rss_bytes: 5,
            counters: [("enters".to_owned(), 6)].into(),
            sum: u64::MAX,
            is_disturbed: true,
        };
        let text = serde_json::to_string(&Outcome::Measured(measured.clone())).unwrap();
        assert!(!text.contains('\n'));
        let Outcome::Measured(back) = serde_json::from_str(&text).unwrap() else {
            panic!("{text}")
        };
        assert_eq!(back, measured);
    }

    #[test]
    fn unknown_experiment_is_an_error() {
        let error = run_cell(r#"{"experiment":"x","variant":"y","input":null}"#).unwrap_err();
        assert_eq!(error.to_string(), "there is no experiment x");
        assert!(run_cell("{}").is_err());
    }
}
