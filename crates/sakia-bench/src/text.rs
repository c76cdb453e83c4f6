//! Results for people: a table for each point, ratios, and the fastest variant with the reason.

use std::fmt::{self, Display, Formatter};

use sakia_bench_support::stats::Range;

use crate::bytes::counted;
use crate::experiment::{Focus, Work};
use crate::machine::{FOREIGN_MAX, STEAL_MAX};
use crate::results::{Ratio, Results, Row, Run};

/// Displays all results as text.
#[derive(Clone, Copy, Debug)]
pub struct Text<'a>(pub &'a Results);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self(results) = self;
        writeln!(f, "{}: {}", results.about.name, results.about.title)?;
        writeln!(f, "{}", results.about.machine.describe())?;
        for point in 0..results.about.points.len() {
            writeln!(f)?;
            table(f, results, point)?;
        }
        if !results.ratios.is_empty() {
            writeln!(f)?;
            ratios(f, results)?;
        }
        for point in 0..results.about.points.len() {
            writeln!(f)?;
            verdict(f, results, point)?;
        }
        let remarks = remarks(results);
        if !remarks.is_empty() {
            writeln!(f)?;
        }
        remarks.iter().try_for_each(|remark| writeln!(f, "{remark}"))
    }
}

/// A column of a table: its name, its width, and a row's content there.
#[derive(Clone, Copy)]
pub(crate) struct Column(pub(crate) &'static str, usize, pub(crate) fn(&Results, &Row) -> String);

/// Returns the columns of a table after the first. For requests the figures are those of one.
pub(crate) fn columns(focus: Focus) -> [Column; 7] {
    let wall_ms = |width| Column("wall ms", width, |_, row| ms(row.wall_ns.median));
    let wall_range = Column("min to max", 18, |_, row| range(row.wall_ns, ms));
    let cpu_ms = |width| Column("CPU ms", width, |_, row| ms(row.cpu_ns.median));
    let threads = Column("threads", 8, |_, row| row.threads_max.to_string());
    let rss = Column("RSS MiB", 8, |_, row| format!("{:.1}", mib(row.peak_rss_bytes)));
    match focus {
        Focus::Time | Focus::TimeAndProcessor => [
            wall_ms(9),
            wall_range,
            cpu_ms(9),
            Column("switches/MiB", 13, |results, row| match work(results, row).bytes {
                0 => String::new(),
                bytes => format!("{:.2}", row.voluntary_switches as f64 / mib(bytes)),
            }),
            threads,
            rss,
            Column("GiB/s", 6, |_, row| format!("{:.2}", mib(row.bytes_per_s) / 1024.0)),
        ],
        Focus::Requests => [
            Column("wall us", 8, |results, row| us_of_each(results, row)(row.wall_ns.median)),
            Column("CPU us", 8, |results, row| us_of_each(results, row)(row.cpu_ns.median)),
            Column("min to max", 16, |results, row| range(row.cpu_ns, us_of_each(results, row))),
            Column("switches", 9, |results, row| {
                format!("{:.3}", of_each(results, row, switches(row)))
            }),
            threads,
            rss,
            Column("k/s", 6, |_, row| format!("{:.1}", row.ops_per_s as f64 / 1e3)),
        ],
        Focus::Files => [
            wall_ms(8),
            wall_range,
            cpu_ms(8),
            Column("switches", 8, |_, row| switches(row).to_string()),
            rss,
            Column("files/s", 8, |_, row| row.ops_per_s.to_string()),
            Column("MiB/s", 6, |_, row| format!("{:.0}", mib(row.bytes_per_s))),
        ],
        Focus::Costs => [
            Column("ns", 9, |results, row| ns_of_each(results, row)(row.wall_ns.median)),
            Column("min to max", 20, |results, row| range(row.wall_ns, ns_of_each(results, row))),
            Column("CPU ns", 9, |results, row| ns_of_each(results, row)(row.cpu_ns.median)),
            Column("switches", 9, |results, row| {
                format!("{:.3}", of_each(results, row, switches(row)))
            }),
            threads,
            rss,
            Column("M/s", 8, |_, row| format!("{:.3}", row.ops_per_s as f64 / 1e6)),
        ],
        Focus::Device => [
            wall_ms(9),
            wall_range,
            cpu_ms(9),
            Column("switches", 8, |_, row| switches(row).to_string()),
            rss,
            Column("calls/s", 8, |_, row| row.ops_per_s.to_string()),
            Column("MiB/s", 8, |_, row| format!("{:.0}", mib(row.bytes_per_s))),
        ],
        Focus::Records => [
            Column("records/s", 10, |_, row| row.ops_per_s.to_string()),
            wall_ms(9),
            wall_range,
            Column("CPU us", 8, |results, row| us_of_each(results, row)(row.cpu_ns.median)),
            Column("switches", 9, |results, row| {
                format!("{:.3}", of_each(results, row, switches(row)))
            }),
            threads,
            rss,
        ],
        Focus::Threads => [
            Column("threads", 8, |results, row| most_or_none(results, row, "threads_extra")),
            Column("own", 8, |results, row| most_or_none(results, row, "threads_user")),
            Column("io-wq", 8, |results, row| most_or_none(results, row, "iowq_workers")),
            Column("begun", 8, |results, row| most_or_none(results, row, "begun")),
            wall_ms(8),
            rss,
            cpu_ms(6),
        ],
    }
}

fn ms(ns: u64) -> String {
    format!("{:.1}", ns as f64 / 1e6)
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn range(Range { min, max, .. }: Range, shown: impl Fn(u64) -> String) -> String {
    format!("{} to {}", shown(min), shown(max))
}

fn switches(row: &Row) -> u64 {
    row.voluntary_switches + row.involuntary_switches
}

fn work(results: &Results, row: &Row) -> Work {
    results.about.points[row.point].work
}

fn of_each(results: &Results, row: &Row, count: u64) -> f64 {
    count as f64 / work(results, row).operations.max(1) as f64
}

fn us_of_each(results: &Results, row: &Row) -> impl Fn(u64) -> String {
    |ns| format!("{:.2}", of_each(results, row, ns) / 1e3)
}

fn ns_of_each(results: &Results, row: &Row) -> impl Fn(u64) -> String {
    |ns| format!("{:.1}", of_each(results, row, ns))
}

/// Returns the width of the labels of points.
fn label_width(results: &Results) -> usize {
    let labels = results.about.points.iter().map(|point| point.label.chars().count());
    labels.max().unwrap_or(0).max(12)
}

fn most_or_none(results: &Results, row: &Row, name: &str) -> String {
    most(results, row, name).map_or("-".into(), |most| most.to_string())
}

/// Returns the largest value of this counter in any run of the row.
fn most(results: &Results, row: &Row, name: &str) -> Option<u64> {
    let of_row = |run: &&Run| run.point == row.point && run.variant == row.variant;
    let runs = results.runs.iter().filter(of_row);
    runs.filter_map(|run| run.measured.counters.get(name).copied()).max()
}

fn table(f: &mut Formatter<'_>, results: &Results, point: usize) -> fmt::Result {
    let width = match results.about.focus {
        Focus::Time | Focus::TimeAndProcessor => 10,
        _ => {
            let names = results.about.variants.iter().map(|name| name.len());
            names.fold(label_width(results), usize::max)
        }
    };
    let columns = columns(results.about.focus);
    write!(f, "{:<width$}", results.about.points[point].label)?;
    line(f, columns.map(|Column(name, width, _)| (name, width)))?;
    for row in results.rows_at(point) {
        write!(f, "{:<width$}", row.variant)?;
        let mut cells = columns.map(|Column(_, width, cell)| (cell(results, row), width));
        if row.noisy > 0 {
            let (last, width) = &mut cells[6];
            *last = format!("{last:>width$}  {} of {} noisy", row.noisy, row.runs);
        }
        line(f, cells)?;
    }
    Ok(())
}

/// Writes the rest of a line: cells, each with a minimum width.
fn line<T: Display>(
    f: &mut Formatter<'_>,
    cells: impl IntoIterator<Item = (T, usize)>,
) -> fmt::Result {
    for (cell, width) in cells {
        write!(f, " {cell:>width$}")?;
    }
    writeln!(f)
}

fn ratios(f: &mut Formatter<'_>, results: &Results) -> fmt::Result {
    let bounds_name = bounds_name(results);
    let is_of_time = results.about.focus == Focus::Time;
    let (width, explained, columns) = if is_of_time {
        let explained =
            "time of the first in parts of the second, run by run; below 1 the first is faster";
        (10, explained, vec![("wall", 6), (bounds_name, 16), ("CPU", 6)])
    } else {
        let explained = "times of the first in parts of those of the second, run by run; best: the least \
                         processor times";
        let columns =
            vec![("wall", 5), (bounds_name, 13), ("CPU", 5), (bounds_name, 13), ("best", 5)];
        (label_width(results), explained, columns)
    };
    writeln!(f, "{explained}")?;
    write!(f, "{:<18} {:<width$}", "", "")?;
    line(f, columns.iter().copied())?;
    for ratio in &results.ratios {
        write!(f, "{:<18} {:<width$}", ratio.of, results.about.points[ratio.point].label)?;
        let Ratio { wall, cpu, cpu_best, .. } = ratio;
        let tie = if is_tie(*cpu_best) { " tie" } else { "" };
        let [wall, cpu] = [wall, cpu].map(|ratio| format!("{ratio:.2}"));
        let best = format!("{cpu_best:>5.2}{tie}");
        // If only time counts, there are no columns for the last cells.
        let cells = [wall, bounds(ratio.wall_bounds), cpu, bounds(ratio.cpu_bounds), best];
        line(f, cells.into_iter().zip(&columns).map(|(cell, (_, width))| (cell, *width)))?;
    }
    Ok(())
}

/// Processor times of requests that differ by less count as equal.
const TIE: f64 = 0.05;

fn is_tie(ratio: f64) -> bool {
    (1.0 - TIE..=1.0 + TIE).contains(&ratio)
}

/// Returns the name for the kind of [`bounds`].
pub(crate) fn bounds_name(results: &Results) -> &'static str {
    match results.ratios.first() {
        Some(Ratio { ci95: None, .. }) => "min to max",
        _ => "95 % interval",
    }
}

/// Returns the text for the bounds of a ratio of wall time, or of processor time.
pub(crate) fn bounds([low, high]: [f64; 2]) -> String {
    format!("{low:.2} to {high:.2}")
}

fn verdict(f: &mut Formatter<'_>, results: &Results, point: usize) -> fmt::Result {
    writeln!(f, "{} on this machine:", results.about.points[point].label)?;
    for standing in standings(results, point) {
        writeln!(f, "  {:<10} {}", standing.variant, standing.words)?;
        if let Some(reason) = standing.reason {
            writeln!(f, "  {:<10} {reason}", "")?;
        }
    }
    Ok(())
}

/// The standing of a variant.
pub(crate) struct Standing<'a> {
    pub(crate) variant: &'a str,
    /// The text that follows the name.
    pub(crate) words: String,
    /// An explanation from the counters.
    pub(crate) reason: Option<&'a str>,
}

/// Returns the variants of a point, the fastest first; for requests the one with the least processor time,
/// for threads the one with the fewest.
pub(crate) fn standings(results: &Results, point: usize) -> Vec<Standing<'_>> {
    let mut rows: Vec<&Row> = results.rows_at(point).collect();
    let by_cpu = results.about.focus == Focus::Requests;
    let threads = |row: &Row| most(results, row, "threads_extra").unwrap_or(0);
    rows.sort_by_key(|row| match results.about.focus {
        Focus::Requests => row.cpu_ns.median,
        Focus::Threads => threads(row),
        _ => row.wall_ns.median,
    });
    let Some(&first) = rows.first() else { return Vec::new() };
    let words = |row: &Row| {
        if results.about.focus == Focus::Threads {
            return format!("takes {}", counted(threads(row), "thread", "threads"));
        }
        if results.about.focus == Focus::Costs {
            return format!("costs {} ns", ns_of_each(results, row)(row.wall_ns.median));
        }
        let Some(ratio) = results.compare(point, row.variant, first.variant) else {
            return "has no round in common with it".into();
        };
        let [low, high] = if by_cpu { ratio.cpu_bounds } else { ratio.wall_bounds };
        let bounds = bounds([low, high]);
        if row.variant == first.variant {
            let requests = results.about.points[point].work.operations.max(1) as f64;
            return match results.about.focus {
                Focus::Requests => {
                    let us = first.cpu_ns.median as f64 / 1e3 / requests;
                    format!("takes least: {us:.2} us of a processor")
                }
                _ => format!("is fastest: {:.1} ms", first.wall_ns.median as f64 / 1e6),
            };
        }
        match results.about.focus {
            Focus::Requests if low <= 1.0 || is_tie(ratio.cpu) => {
                format!("ties with it: {:.2} ({bounds})", ratio.cpu)
            }
            _ if low <= 1.0 => format!("ties with it: {:.2} ({bounds})", ratio.wall),
            Focus::Requests => format!("takes {:.2} times as much ({bounds})", ratio.cpu),
            _ => format!("takes {:.2} times as long ({bounds})", ratio.wall),
        }
    };
    let reason = |row: &Row| {
        let reason = results.reasons.iter().find(|(key, _)| *key == (point, row.variant));
        reason.map(|(_, reason)| reason.as_str())
    };
    let standing =
        |&row: &&Row| Standing { variant: row.variant, words: words(row), reason: reason(row) };
    rows.iter().map(standing).collect()
}

/// Returns the remarks that readers need beside the numbers.
pub(crate) fn remarks(results: &Results) -> Vec<String> {
    let mut remarks = Vec::new();
    for missing in &results.missing {
        let how = if missing.is_failure { "failed" } else { "is not possible here" };
        remarks.push(format!("{} {how}: {}", missing.variant, missing.reason));
    }
    for mismatch in &results.mismatches {
        remarks.push(format!("wrong result: {mismatch}"));
    }
    let cold = if results.about.focus == Focus::Files {
        ", or the source was not in the page cache, or copies had to be deleted for room"
    } else {
        ""
    };
    remarks.push(format!(
        "noisy runs: {} of {} (meanwhile other programs took {FOREIGN_MAX} processors or more, or the \
         host {STEAL_MAX}{cold})",
        results.noisy(),
        results.runs.len()
    ));
    if results.ratios.iter().any(|ratio| ratio.ci95.is_none()) {
        remarks.push("fewer than 6 runs have no 95 % interval; more are made with --runs".into());
    }
    if !results.about.machine.optimized {
        remarks
            .push("built without optimization: the times mean little (cargo run --release)".into());
    }
    remarks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::results as sample;

    #[test]
    fn all_that_was_measured_is_shown() {
        let text = Text(&sample(&[(3_000_000, 1_000_000); 9])).to_string();
        let row = "a                3.0         3.0 to 3.0       1.5          3.00        9";
        assert!(text.contains(row), "{text}");
        assert!(
            text.contains("a/b                1 MiB        3.00     3.00 to 3.00   3.00"),
            "{text}"
        );
        assert!(text.contains("  b          is fastest: 1.0 ms\n"), "{text}");
        assert!(
            text.contains(
                "  a          takes 3.00 times as long (3.00 to 3.00)\n             slow\n"
            ),
            "{text}"
        );
        assert!(text.contains("c is not possible here: none here"), "{text}");
        assert!(text.contains("noisy runs: 2 of 18 (meanwhile"), "{text}");
        assert!(!text.contains("fewer than 6 runs"), "{text}");
    }

    #[test]
    fn difference_that_may_be_chance_is_not_called_one() {
        let text = Text(&sample(&[(2, 1), (1, 2), (3, 2)])).to_string();
        assert!(text.contains("ties with it: 0.67 (0.50 to 2.00)"), "{text}");
        assert!(text.contains("min to max    CPU\n"), "{text}");
        assert!(text.contains("fewer than 6 runs"), "{text}");
    }
}
