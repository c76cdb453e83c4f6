//! Results of an experiment.

use sakia_bench_support::stats::{self, Range};
use serde::Serialize;

use crate::cell::{Counters, Measured};
use crate::experiment::{About, Params};
use crate::machine::Noise;
use crate::measure::Section;
use crate::plot::Series;

/// The contents of a report.
#[derive(Clone, Debug)]
pub struct Results {
    /// Facts about the experiment. Its variants include unavailable ones.
    pub about: About,
    /// All runs, in the order in which they were made.
    pub runs: Vec<Run>,
    /// A row for each variant at each point, in the order of points, then variants.
    pub rows: Vec<Row>,
    /// Comparisons, in the order of points, then as the experiment lists them.
    pub ratios: Vec<Ratio>,
    /// Explanations of the variants' figures, by point and variant.
    pub reasons: Vec<((usize, &'static str), String)>,
    /// Variants without a row, with the reasons.
    pub missing: Vec<Missing>,
    /// Runs with a wrong result; a line each.
    pub mismatches: Vec<String>,
}

/// A run.
#[derive(Clone, Debug)]
pub struct Run {
    /// The point, by its index.
    pub point: usize,
    /// The variant.
    pub variant: &'static str,
    /// The number of the round. Runs of a round were made one after the other, and are compared in pairs.
    pub round: usize,
    /// The measurements of the process.
    pub measured: Measured,
    /// The time from the start of the process to its end.
    pub process_wall_ns: u64,
    /// Processor time that others took meanwhile.
    pub noise: Noise,
}

/// The runs of a variant at a point, taken together.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The point, by its index.
    #[serde(skip)]
    pub point: usize,
    /// The variant.
    #[serde(skip)]
    pub variant: &'static str,
    /// The number of runs.
    pub runs: usize,
    /// The number of noisy runs.
    #[serde(skip)]
    pub noisy: usize,
    /// Time of the measured section.
    pub wall_ns: Range,
    /// Processor time of the measured section.
    pub cpu_ns: Range,
    /// Median of the voluntary context switches.
    pub voluntary_switches: u64,
    /// Median of the involuntary context switches.
    pub involuntary_switches: u64,
    /// The most threads of any run.
    pub threads_max: u64,
    /// Median of the peaks of memory.
    pub peak_rss_bytes: u64,
    /// Operations per second, by the median time.
    pub ops_per_s: u64,
    /// Bytes per second, by the median time.
    pub bytes_per_s: u64,
    /// The counters of the run whose time is the median, or next below it.
    pub counters: Counters,
}

/// The times of one variant relative to those of another, run by run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// The variants, as in `uring/pool`.
    pub of: String,
    /// The point.
    pub params: Params,
    /// Median of the ratios of wall time.
    pub wall: f64,
    /// Median of the ratios of processor time.
    pub cpu: f64,
    /// The interval that contains the median of all possible ratios of wall time with 95 % probability;
    /// `None` for fewer than [`stats::INTERVAL_MIN`] pairs of runs.
    pub ci95: Option<[f64; 2]>,
    /// The same for `cpu`.
    pub ci95_cpu: Option<[f64; 2]>,
    /// Ratio of the smallest processor times of all rounds.
    pub cpu_best: f64,
    /// The interval of wall time to show: that of 95 %, or without one the whole range.
    #[serde(skip)]
    pub wall_bounds: [f64; 2],
    /// The same for processor time.
    #[serde(skip)]
    pub cpu_bounds: [f64; 2],
    /// The point, by its index.
    #[serde(skip)]
    pub point: usize,
}

/// A variant that could not be measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// The variant.
    pub variant: &'static str,
    /// The reason.
    pub reason: String,
    /// Set if it should have been possible: the experiment failed.
    #[serde(skip)]
    pub is_failure: bool,
}

impl Row {
    /// Returns the counter of this name, 0 if there is none.
    pub(crate) fn count(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }
}

impl Results {
    /// Computes rows and ratios from the runs so far.
    pub fn conclude(&mut self) {
        self.rows.clear();
        self.ratios.clear();
        for point in 0..self.about.points.len() {
            for &variant in &self.about.variants {
                self.rows.extend(self.conclude_row(point, variant));
            }
            for &(first, second) in &self.about.pairs {
                self.ratios.extend(self.compare(point, first, second));
            }
        }
    }

    fn conclude_row(&self, point: usize, variant: &'static str) -> Option<Row> {
        let runs: Vec<&Run> = self.runs_of(point, variant).collect();
        let range = |value: fn(&Run) -> u64| Range::of(runs.iter().map(|&run| value(run)));
        let wall_ns = range(|run| run.measured.section.wall_ns);
        let mut by_time = runs.clone();
        by_time.sort_by_key(|run| run.measured.section.wall_ns);
        let middle = by_time.get(by_time.len().checked_sub(1)? / 2)?;
        let work = self.about.points[point].work;
        let per_s = |count: u64| (count as f64 * 1e9 / (wall_ns.median.max(1) as f64)) as u64;
        Some(Row {
            point,
            variant,
            runs: runs.len(),
            noisy: runs.iter().filter(|run| run.noise.is_noisy).count(),
            wall_ns,
            cpu_ns: range(|run| run.measured.section.usage.cpu_ns),
            voluntary_switches: range(|run| run.measured.section.usage.voluntary_switches).median,
            involuntary_switches: range(|run| run.measured.section.usage.involuntary_switches)
                .median,
            threads_max: range(|run| run.measured.section.threads_max).max,
            peak_rss_bytes: range(|run| run.measured.peak_rss_bytes).median,
            ops_per_s: per_s(work.operations),
            bytes_per_s: per_s(work.bytes),
            counters: middle.measured.counters.clone(),
        })
    }

    /// Returns the times of one variant relative to those of another, at a point; `None` if they have no
    /// round in common.
    pub fn compare(&self, point: usize, first: &str, second: &str) -> Option<Ratio> {
        let pairs = || {
            self.runs_of(point, first).filter_map(|run| {
                let other = self.runs_of(point, second).find(|other| other.round == run.round)?;
                Some((run.measured.section, other.measured.section))
            })
        };
        let ratio = |one: u64, other: u64| one as f64 / other.max(1) as f64;
        let of = |value: fn(&Section) -> u64| {
            let values = |(one, two)| (value(&one) as f64, value(&two).max(1) as f64);
            stats::Ratio::of(pairs().map(values))
        };
        let (wall, cpu) = (of(|section| section.wall_ns)?, of(|section| section.usage.cpu_ns)?);
        let least_cpu = |variant| {
            let runs = self.runs_of(point, variant);
            runs.map(|run| run.measured.section.usage.cpu_ns).min().unwrap_or(0)
        };
        Some(Ratio {
            of: format!("{first}/{second}"),
            params: self.about.points[point].params.clone(),
            wall: wall.median,
            cpu: cpu.median,
            ci95: wall.ci95,
            ci95_cpu: cpu.ci95,
            cpu_best: ratio(least_cpu(first), least_cpu(second)),
            wall_bounds: wall.bounds(),
            cpu_bounds: cpu.bounds(),
            point,
        })
    }

    fn runs_of(&self, point: usize, variant: &str) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(move |run| run.point == point && run.variant == variant)
    }

    /// Returns a line for each variant, of those of its rows that have a place in the plot.
    pub(crate) fn series(&self, place: impl Fn(&Row) -> Option<(f64, f64)>) -> Vec<Series> {
        let of = |&name: &&'static str| {
            let rows = self.rows.iter().filter(|row| row.variant == name);
            let points = rows.filter_map(&place).collect();
            Series { name: name.to_owned(), points, ..Series::default() }
        };
        self.about.variants.iter().map(of).collect()
    }

    /// Returns the rows of a point.
    pub fn rows_at(&self, point: usize) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.point == point)
    }

    /// Returns the number of noisy runs.
    pub fn noisy(&self) -> usize {
        self.runs.iter().filter(|run| run.noise.is_noisy).count()
    }

    /// Returns whether something failed: a variant, or the comparison of results.
    pub fn has_failed(&self) -> bool {
        !self.mismatches.is_empty() || self.missing.iter().any(|missing| missing.is_failure)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use sakia_bench_support::usage::Usage;

    use super::*;
    use crate::experiment::{Focus, Point, Work};

    /// Returns results of two variants at one point: in round r, `a` takes the first time, `b` the second.
    pub(crate) fn results(times: &[(u64, u64)]) -> Results {
        let work = Work { operations: 4, bytes: 1 << 20 };
        let params = [("size_bytes".to_owned(), work.bytes.into())].into_iter().collect();
        let run = |variant, round, wall_ns: u64| {
            let section = Section {
                wall_ns,
                usage: Usage {
                    cpu_ns: wall_ns / 2,
                    voluntary_switches: 3,
                    involuntary_switches: 0,
                },
                threads_max: 1 + round as u64,
            };
            let counters = [("wall".to_owned(), wall_ns)].into();
            let measured = Measured { section, counters, ..Measured::default() };
            let noise = Noise { is_noisy: round == 0, ..Noise::default() };
            Run { point: 0, variant, round, measured, process_wall_ns: wall_ns + 1, noise }
        };
        let rounds = times.iter().enumerate();
        let runs = rounds.flat_map(|(round, &(a, b))| [run("a", round, a), run("b", round, b)]);
        let mut results = Results {
            about: About {
                title: "two <ways>".into(),
                notes: vec!["a note & more".into()],
                points: vec![Point { params, label: "1 MiB".into(), work }],
                variants: vec!["a", "b", "c"],
                pairs: vec![("a", "b"), ("a", "c")],
                ..About::new("test", Focus::Time, std::path::Path::new("/"))
            },
            runs: runs.collect(),
            rows: Vec::new(),
            ratios: Vec::new(),
            reasons: vec![((0, "a"), "slow".into())],
            missing: vec![Missing { variant: "c", reason: "none here".into(), is_failure: false }],
            mismatches: Vec::new(),
        };
        results.conclude();
        results
    }

    #[test]
    fn rows_have_the_median_and_its_counters() {
        let results = results(&[(3000, 10), (1000, 10), (2000, 10)]);
        assert_eq!(results.rows.len(), 2);
        let row = results.rows_at(0).find(|row| row.variant == "a").unwrap();
        assert_eq!((row.runs, row.noisy, row.threads_max), (3, 1, 3));
        assert_eq!(row.wall_ns, Range { median: 2000, min: 1000, max: 3000 });
        assert_eq!(row.cpu_ns.median, 1000);
        assert_eq!(row.counters["wall"], 2000);
        assert_eq!(row.ops_per_s, 2_000_000);
        assert_eq!(results.noisy(), 2);
        assert!(!results.has_failed());
    }

    #[test]
    fn ratios_are_of_runs_of_the_same_round() {
        // The ratio of the medians alone would be 1.0.
        let results = results(&[(10, 100), (100, 200), (1000, 100)]);
        let ratio = results.ratios.iter().find(|ratio| ratio.of == "a/b").unwrap();
        assert_eq!((ratio.wall, ratio.wall_bounds), (0.5, [0.1, 10.0]));
        assert_eq!(ratio.ci95, None);
        assert!(!results.ratios.iter().any(|ratio| ratio.of == "a/c"));
    }

    #[test]
    fn nine_runs_have_an_interval() {
        let times: Vec<_> = (1..=9).map(|i| (i * 100, 100)).collect();
        let results = results(&times);
        let ratio = results.ratios.iter().find(|ratio| ratio.of == "a/b").unwrap();
        assert_eq!((ratio.wall, ratio.ci95), (5.0, Some([2.0, 8.0])));
    }
}
