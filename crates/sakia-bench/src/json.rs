//! Results as JSON Lines.
//!
//! A [`machine`] line first, a [`run`] line after each run, and in the end [the results](results):
//! `result` lines, one for each variant at each point, `missing` lines, and the `summary`.

use serde::Serialize;

use crate::experiment::{Params, Point};
use crate::machine::{Machine, Noise};
use crate::measure::Section;
use crate::results::{Missing, Ratio, Results, Row, Run};

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Line<'a> {
    Machine {
        experiment: &'a str,
        #[serde(flatten)]
        machine: &'a Machine,
    },
    Run {
        experiment: &'a str,
        variant: &'a str,
        params: &'a Params,
        round: usize,
        #[serde(flatten)]
        section: &'a Section,
        peak_rss_bytes: u64,
        process_wall_ns: u64,
        process_cpu_ns: u64,
        #[serde(flatten)]
        noise: &'a Noise,
        sum: u64,
    },
    Result {
        experiment: &'a str,
        variant: &'a str,
        params: &'a Params,
        #[serde(flatten)]
        row: &'a Row,
    },
    Missing {
        experiment: &'a str,
        #[serde(flatten)]
        missing: &'a Missing,
    },
    Summary {
        experiment: &'a str,
        ratios: &'a [Ratio],
    },
}

/// Returns the line about the machine on which the experiment runs.
///
/// # Errors
/// None is known.
pub fn machine(experiment: &str, machine: &Machine) -> serde_json::Result<String> {
    serde_json::to_string(&Line::Machine { experiment, machine })
}

/// Returns the line of a run; `points` are those of its experiment.
///
/// # Errors
/// None is known.
///
/// # Panics
/// When the run's point is not one of these.
pub fn run(experiment: &str, points: &[Point], run: &Run) -> serde_json::Result<String> {
    serde_json::to_string(&Line::Run {
        experiment,
        variant: run.variant,
        params: &points[run.point].params,
        round: run.round,
        section: &run.measured.section,
        peak_rss_bytes: run.measured.peak_rss_bytes,
        process_wall_ns: run.process_wall_ns,
        process_cpu_ns: run.measured.process_cpu_ns,
        noise: &run.noise,
        sum: run.measured.sum,
    })
}

/// Returns all results, a line each, and the summary as the last line.
///
/// # Errors
/// None is known.
pub fn results(results: &Results) -> serde_json::Result<Vec<String>> {
    let experiment = results.about.name;
    let rows = results.rows.iter().map(|row| Line::Result {
        experiment,
        variant: row.variant,
        params: &results.about.points[row.point].params,
        row,
    });
    let missing = results.missing.iter().map(|missing| Line::Missing { experiment, missing });
    let summary = Line::Summary { experiment, ratios: &results.ratios };
    rows.chain(missing).chain([summary]).map(|line| serde_json::to_string(&line)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::results::tests::results as sample;

    fn parse(line: &str) -> Value {
        serde_json::from_str(line).unwrap()
    }

    #[test]
    fn result_and_summary_are_as_documented() {
        let results = sample(&[(300, 100), (100, 100), (200, 100)]);
        let lines = super::results(&results).unwrap();
        assert_eq!(
            parse(&lines[0]),
            json!({
                "type": "result", "experiment": "test", "variant": "a",
                "params": {"size_bytes": 1_048_576}, "runs": 3,
                "wall_ns": {"median": 200, "min": 100, "max": 300},
                "cpu_ns": {"median": 100, "min": 50, "max": 150},
                "voluntary_switches": 3, "involuntary_switches": 0, "threads_max": 3,
                "peak_rss_bytes": 0, "ops_per_s": 20_000_000, "bytes_per_s": 5_242_880_000_000u64,
                "counters": {"wall": 200},
            })
        );
        assert_eq!(parse(&lines[1])["variant"], "b");
        let missing =
            json!({"type": "missing", "experiment": "test", "variant": "c", "reason": "none here"});
        assert_eq!(parse(&lines[2]), missing);
        assert_eq!(
            parse(&lines[3]),
            json!({
                "type": "summary", "experiment": "test",
                "ratios": [{
                    "of": "a/b", "params": {"size_bytes": 1_048_576},
                    "wall": 2.0, "cpu": 2.0, "ci95": null, "ci95_cpu": null, "cpu_best": 1.0,
                }],
            })
        );
        assert_eq!(lines.len(), 4);
    }

    #[test]
    fn interval_is_a_pair_where_there_is_one() {
        let results = sample(&[(100, 100); 9]);
        let lines = super::results(&results).unwrap();
        assert_eq!(parse(lines.last().unwrap())["ratios"][0]["ci95"], json!([1.0, 1.0]));
    }

    #[test]
    fn machine_and_run_have_their_facts() {
        let results = sample(&[(300, 100)]);
        let line = parse(&machine("test", &results.about.machine).unwrap());
        assert_eq!((&line["type"], &line["experiment"]), (&"machine".into(), &"test".into()));
        assert!(line["kernel"].is_string() && line["file_system"].is_string());
        let line = parse(&run("test", &results.about.points, &results.runs[0]).unwrap());
        assert_eq!((&line["type"], &line["variant"]), (&"run".into(), &"a".into()));
        assert_eq!((&line["noisy"], &line["process_wall_ns"]), (&true.into(), &301.into()));
    }
}
