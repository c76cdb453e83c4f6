//! The plots: means with their standard deviations, over all runs.

use super::load::Load;
use super::variants::Timing;
use super::{Mode, Sched, utilization};
use crate::cell::Counters;
use crate::plot::{Plot, Scale, Series};
use crate::results::{Results, Run};

/// Returns the figure of a run that a plot shows: mean and deviation, in nanoseconds.
type Value<'a> = dyn Fn(&Run) -> Option<(f64, f64)> + 'a;

pub(super) fn plots(sched: &Sched, results: &Results) -> Vec<Plot> {
    match sched.options.mode {
        Mode::Testbench | Mode::Matrix => matrix(sched, results),
        Mode::Fig4 | Mode::Fig6 => returns(sched, results),
        Mode::Fig5 => calls(sched, results),
        Mode::Utilization => utilization::plots(sched, results),
    }
}

/// Returns the bytes of an operation.
fn size(load: &Load) -> usize {
    if load.reads.count > 0 { load.reads.size } else { load.writes.size }
}

/// Returns a plot for each number of threads and each kind: the time of an operation by its size.
fn matrix(sched: &Sched, results: &Results) -> Vec<Plot> {
    let kind = |load: &Load| (load.reads.count > 0, load.writes.count > 0, load.threads);
    let mut kinds: Vec<_> = Vec::new();
    for load in &sched.loads {
        if !kinds.contains(&kind(load)) {
            kinds.push(kind(load));
        }
    }
    let of_kind = |&(reads, writes, threads): &(bool, bool, usize)| {
        let what = match (reads, writes) {
            (true, true) => "Reads and writes",
            (true, false) => "Reads",
            _ => "Writes",
        };
        let is_here = |load: &Load| kind(load) == (reads, writes, threads);
        let value = |run: &Run| {
            let operations = sched.about.points[run.point].work.operations.max(1) as f64;
            Some((run.measured.section.wall_ns as f64 / operations, 0.0))
        };
        let series = lines(sched, results, &is_here, &value);
        plot(format!("{what}, threads: {threads}"), "us of an operation", series)
    };
    kinds.iter().map(of_kind).collect()
}

/// Returns a plot of the times until operations return.
fn returns(sched: &Sched, results: &Results) -> Vec<Plot> {
    let value = |run: &Run| named(&run.measured.counters, "op");
    let series = lines(sched, results, &|_| true, &value);
    let title = match sched.options.mode {
        Mode::Fig6 => "Reads bypassing the page cache",
        _ => "Reads",
    };
    vec![plot(title.into(), "us until it returns", series)]
}

/// Returns plots of the times of system calls: through the page cache, and bypassing it.
fn calls(sched: &Sched, results: &Results) -> Vec<Plot> {
    debug_assert_eq!(sched.timing, Timing::Calls);
    let of = |direct: bool| {
        let is_here = |load: &Load| load.direct == direct;
        let series = CALLS
            .iter()
            .filter(|(variant, _)| results.about.variants.contains(variant))
            .map(|&(variant, call)| {
                line(sched, results, &is_here, variant, call.to_owned(), &|run| {
                    named(&run.measured.counters, call)
                })
            });
        let title = if direct { "System calls bypassing the page cache" } else { "System calls" };
        plot(title.into(), "us of a call", series.collect())
    };
    let has = |direct: bool| sched.loads.iter().any(|load| load.direct == direct);
    [false, true].into_iter().filter(|&direct| has(direct)).map(of).collect()
}

/// The timed system calls, with the variant that makes them.
const CALLS: [(&str, &str); 4] =
    [("aio", "io_submit"), ("aio", "io_getevents"), ("ring", "enter"), ("blocking", "pread")];

/// Returns measured times as text: mean and deviation of an operation, or of system calls.
pub(super) fn times_in_words(timing: Timing, counters: &Counters) -> String {
    let words = |name: &str, called: &str| {
        let (mean, deviation) = named(counters, name)?;
        Some(format!("{called} {:.2} us (deviation {:.2})", mean / 1e3, deviation / 1e3))
    };
    match timing {
        Timing::Whole | Timing::Utilization => String::new(),
        Timing::Operations => words("op", "returns after").unwrap_or_default(),
        Timing::Calls => {
            let all = CALLS.iter().filter_map(|(_, call)| words(call, call));
            all.collect::<Vec<_>>().join(", ")
        }
    }
}

/// Returns mean and deviation of the counter with this name in a run.
fn named(counters: &Counters, name: &str) -> Option<(f64, f64)> {
    let count = |what: &str| counters.get(&format!("{name}_{what}")).copied();
    (count("count")? > 0).then_some((count("ns_mean")? as f64, count("ns_deviation")? as f64))
}

/// Returns a line for each variant.
fn lines(
    sched: &Sched,
    results: &Results,
    is_here: &dyn Fn(&Load) -> bool,
    value: &Value<'_>,
) -> Vec<Series> {
    let of = |variant: &&str| line(sched, results, is_here, variant, (*variant).into(), value);
    results.about.variants.iter().map(of).collect()
}

/// Returns a line: for each point, the mean over all runs of a variant, and the deviation within and between
/// the runs.
fn line(
    sched: &Sched,
    results: &Results,
    is_here: &dyn Fn(&Load) -> bool,
    variant: &str,
    name: String,
    value: &Value<'_>,
) -> Series {
    let mut series = Series { name, ..Series::default() };
    for (point, load) in sched.loads.iter().enumerate().filter(|(_, load)| is_here(load)) {
        let runs = results.runs.iter().filter(|run| run.point == point && run.variant == variant);
        let values: Vec<_> = runs.filter_map(value).collect();
        if values.is_empty() {
            continue;
        }
        let (mean, deviation) = pooled(&values);
        series.points.push((size(load) as f64, mean / 1e3));
        series.deviations.push(deviation / 1e3);
    }
    series
}

/// Returns mean and deviation of all values, from those of parts of the same size.
fn pooled(parts: &[(f64, f64)]) -> (f64, f64) {
    let count = parts.len() as f64;
    let mean = parts.iter().map(|part| part.0).sum::<f64>() / count;
    let variance =
        |&(of_part, deviation): &(f64, f64)| deviation.powi(2) + (of_part - mean).powi(2);
    (mean, (parts.iter().map(variance).sum::<f64>() / count).sqrt())
}

fn plot(title: String, y_label: &str, series: Vec<Series>) -> Plot {
    Plot {
        title,
        x_label: "bytes".into(),
        y_label: format!("{y_label} (mean, deviation)"),
        series,
        scale: Scale::Logarithmic,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_in_words() {
        let counter = |name: &str, value| (name.to_owned(), value);
        let counters = Counters::from([
            counter("op_count", 2),
            counter("op_ns_mean", 1500),
            counter("op_ns_deviation", 20),
            counter("enter_count", 0),
        ]);
        let words = |timing| times_in_words(timing, &counters);
        assert_eq!(words(Timing::Operations), "returns after 1.50 us (deviation 0.02)");
        assert_eq!((words(Timing::Calls), words(Timing::Whole)), (String::new(), String::new()));
    }

    #[test]
    fn parts_make_up_the_whole() {
        assert_eq!(pooled(&[(5.0, 2.0)]), (5.0, 2.0));
        assert_eq!(pooled(&[(1.0, 0.0), (3.0, 0.0)]), (2.0, 1.0));
    }
}
