//! The output of the runs: a table per cell, or JSON Lines.

use std::fmt::{self, Write as _};
use std::fs;
use std::path::Path;
use std::process::Command;

use sakia_bench_support::stats::{Ratio, Spread};
use serde_json::{Value, json};

use super::{Run, output};

/// Peers that the others are compared with.
pub(super) type Bases = [&'static str; 2];

/// The limits above which a run is noisy: cores used by other programs, cores taken by the host.
const FOREIGN_CORES_MAX: f64 = 0.15;
const STEAL_CORES_MAX: f64 = 0.05;

/// The results of one experiment.
pub(super) struct Cell {
    name: &'static str,
    title: &'static str,
    bases: Bases,
    pub(super) rows: Vec<Row>,
}

/// One peer's runs, in the order of the rounds, or the reason why there are none.
pub(super) struct Row {
    pub(super) peer: &'static str,
    pub(super) runs: anyhow::Result<Vec<Run>>,
}

impl Cell {
    /// Rejects the rows of peers whose work differs from the majority's; the amount counts unless it
    /// `is_timed`.
    pub(super) fn new(
        name: &'static str,
        title: &'static str,
        bases: Bases,
        mut rows: Vec<Row>,
        is_timed: bool,
    ) -> Self {
        // In a given time they do as much as they can.
        let done = |run: &Run| (if is_timed { 0 } else { run.ops }, run.check);
        let all: Vec<(u64, u64)> =
            rows.iter().filter_map(|row| row.runs.as_ref().ok()).flatten().map(done).collect();
        let count = |work: &(u64, u64)| all.iter().filter(|other| *other == work).count();
        if let Some(&expected) = all.iter().max_by_key(|work| count(work)) {
            for row in &mut rows {
                let differs =
                    |runs: &Vec<Run>| runs.iter().map(done).find(|work| *work != expected);
                if let Some((ops, check)) = row.runs.as_ref().ok().and_then(differs) {
                    let (ops_expected, check_expected) = expected;
                    row.runs = Err(anyhow::anyhow!(
                        "did other work: {ops} operations with check {check:x}, not {ops_expected} \
                         with {check_expected:x}"
                    ));
                }
            }
        }
        Self { name, title, bases, rows }
    }

    fn runs_of(&self, peer: &str) -> Option<&[Run]> {
        let row = self.rows.iter().find(|row| row.peer == peer)?;
        row.runs.as_deref().ok()
    }

    /// The ratio of one peer's values of an operation to another's, round by round.
    fn ratio(&self, of: &[Run], to: &str, value: fn(&Run) -> u64) -> Option<Ratio> {
        let base = self.runs_of(to)?;
        let each = |run: &Run| value(run) as f64 / run.ops as f64;
        Ratio::of(of.iter().zip(base).map(|(run, base)| (each(run), each(base))))
    }

    /// Rows with runs by processor time, least first, then those without.
    fn sorted(&self) -> Vec<&Row> {
        let mut rows: Vec<&Row> = self.rows.iter().collect();
        let cpu = |row: &Row| {
            let runs = row.runs.as_deref().unwrap_or_default();
            spread(runs, cpu_us).map_or(f64::INFINITY, |spread| spread.median)
        };
        rows.sort_by(|one, other| cpu(one).total_cmp(&cpu(other)));
        rows
    }
}

/// The machine, and the properties common to all cells.
pub(super) struct Title {
    kernel: String,
    processor: String,
    processors: usize,
    /// The subject of the experiment.
    experiment: &'static str,
    /// The place of the operations: in words, and in JSON.
    place: (String, Value),
    pub(super) runs: usize,
}

impl Title {
    /// Returns the title of experiments on files in a folder.
    pub(super) fn of_files(dir: &Path, runs: usize) -> Self {
        // A head and a name, which distinguishes ext4 from ext3, unlike `statfs`.
        let df = output(Command::new("df").arg("--output=fstype").arg(dir)).unwrap_or_default();
        let file_system = df.lines().nth(1).unwrap_or("unknown");
        let dir = dir.display().to_string();
        let words = format!("{dir} on {file_system}");
        Self::new("files", (words, json!({"dir": dir, "file_system": file_system})), runs)
    }

    /// Returns the title of experiments on connections, at the place reported by the load.
    pub(super) fn of_network(experiment: &'static str, place: String, runs: usize) -> Self {
        let facts = json!({"network": place});
        Self::new(experiment, (place, facts), runs)
    }

    fn new(experiment: &'static str, place: (String, Value), runs: usize) -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let model =
            cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Self {
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            processor: model.map_or("unknown", |(_, model)| model).to_owned(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            experiment,
            place,
            runs,
        }
    }
}

impl fmt::Display for Title {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kernel, processor, processors, place: (place, _), runs, .. } = self;
        writeln!(
            f,
            "\
{processors} x {processor}, Linux {kernel}; {place}
{runs} rounds; medians with min..max; ratios of times, taken within rounds, less
is better, with 95 % intervals of their medians (all that was seen, if fewer
than 6 rounds); noisy: others used more than {FOREIGN_CORES_MAX} cores, or the
host took more than {STEAL_CORES_MAX}"
        )
    }
}

/// Returns the names of the columns.
fn heads(bases: &Bases) -> Vec<String> {
    let heads = ["peer", "k ops/s", "min..max", "CPU us/op", "min..max", "switches/op"];
    let mut heads: Vec<String> = heads.map(str::to_owned).to_vec();
    heads.extend(bases.iter().flat_map(|base| [format!("wall/{base}"), format!("cpu/{base}")]));
    heads.push("noisy".into());
    heads
}

/// Returns the table of a cell, aligned, as Markdown.
pub(super) fn as_tables(cell: &Cell) -> String {
    let mut lines = vec![heads(&cell.bases)];
    let count = lines[0].len();
    let mut notes = Vec::new();
    for row in cell.sorted() {
        match &row.runs {
            Ok(runs) if !runs.is_empty() => lines.push(columns(cell, row.peer, runs)),
            Ok(_) => notes.push((row.peer, "no runs".to_owned())),
            Err(error) => notes.push((row.peer, format!("{error:#}"))),
        }
    }
    let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut rules: Vec<String> =
        widths.iter().map(|width| format!("{}:", "-".repeat((*width).max(3) - 1))).collect();
    rules[0] = "-".repeat(widths[0].max(3));
    let mut text = format!("\n{}: {}\n\n", cell.name, cell.title);
    for (number, mut line) in lines.into_iter().enumerate() {
        line[0] = format!("{:<1$}", line[0], widths[0]);
        for (cell, width) in line.iter_mut().zip(&widths) {
            *cell = format!("{cell:>width$}");
        }
        writeln!(text, "| {} |", line.join(" | ")).ok();
        if number == 0 {
            writeln!(text, "| {} |", rules.join(" | ")).ok();
        }
    }
    for (peer, reason) in notes {
        writeln!(text, "| {peer} | {reason} |{}", " |".repeat(count - 2)).ok();
    }
    text
}

fn columns(cell: &Cell, peer: &str, runs: &[Run]) -> Vec<String> {
    let show = |spread: Option<Spread>, digits: usize| match spread {
        Some(Spread { median, min, max }) => {
            [format!("{median:.digits$}"), format!("{min:.digits$}..{max:.digits$}")]
        }
        None => ["-".into(), "-".into()],
    };
    let [rate, rates] = show(spread(runs, |run| rate(run) / 1000.0), 1);
    let [cpu, cpus] = show(spread(runs, cpu_us), 3);
    let switches =
        spread(runs, switches).map_or("-".into(), |spread| format!("{:.3}", spread.median));
    let mut columns = vec![peer.to_owned(), rate, rates, cpu, cpus, switches];
    for base in cell.bases {
        for value in [|run: &Run| run.wall_ns, |run: &Run| run.cpu_ns] {
            let ratio = cell.ratio(runs, base, value).filter(|_| base != peer);
            columns.push(ratio.map_or("-".into(), |ratio| {
                let ([low, high], median) = (ratio.bounds(), ratio.median);
                format!("{median:.2} ({low:.2}..{high:.2})")
            }));
        }
    }
    let noisy = runs.iter().filter(|run| is_noisy(run)).count();
    columns.push(format!("{noisy}/{}", runs.len()));
    columns
}

/// Returns a line per row, and one with the ratios.
pub(super) fn as_json(title: &Title, cells: &[Cell]) -> String {
    let Title { experiment, kernel, processor, processors, place: (_, place), .. } = title;
    let mut machine = json!({
        "type": "machine", "experiment": experiment,
        "kernel": kernel, "processor": processor, "processors": processors,
    });
    for (name, fact) in place.as_object().into_iter().flatten() {
        machine[name] = fact.clone();
    }
    let mut lines = vec![machine];
    let mut ratios = Vec::new();
    for cell in cells {
        for row in cell.sorted() {
            lines.push(result(experiment, cell, row));
            for base in cell.bases.into_iter().filter(|base| *base != row.peer) {
                let runs = row.runs.as_deref().unwrap_or_default();
                let wall = cell.ratio(runs, base, |run| run.wall_ns);
                let cpu = cell.ratio(runs, base, |run| run.cpu_ns);
                if let (Some(wall), Some(cpu)) = (wall, cpu) {
                    ratios.push(json!({
                        "of": format!("{}/{base}", row.peer), "params": {"cell": cell.name},
                        "wall": wall.median, "cpu": cpu.median,
                        "ci95": wall.ci95, "ci95_cpu": cpu.ci95,
                    }));
                }
            }
        }
    }
    lines.push(json!({"type": "summary", "experiment": experiment, "ratios": ratios}));
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn result(experiment: &str, cell: &Cell, row: &Row) -> Value {
    let runs = match &row.runs {
        Ok(runs) => runs.as_slice(),
        Err(error) => {
            return json!({
                "type": "result", "experiment": experiment, "variant": row.peer,
                "params": {"cell": cell.name}, "error": format!("{error:#}"),
            });
        }
    };
    let of = |value| spread(runs, value);
    let median = |value| of(value).map(|spread| spread.median);
    json!({
        "type": "result", "experiment": experiment, "variant": row.peer,
        "params": {"cell": cell.name, "ops": runs.first().map(|run| run.ops)}, "runs": runs.len(),
        "wall_ns": of(|run| run.wall_ns as f64), "cpu_ns": of(|run| run.cpu_ns as f64),
        "ops_per_s": median(rate),
        "voluntary_switches": median(|run| run.voluntary_switches as f64),
        "involuntary_switches": median(|run| run.involuntary_switches as f64),
        "foreign_cores": median(foreign_cores), "steal_cores": median(steal_cores),
        "noisy_runs": runs.iter().filter(|run| is_noisy(run)).count(),
    })
}

fn spread(runs: &[Run], value: fn(&Run) -> f64) -> Option<Spread> {
    Spread::of(runs.iter().map(value))
}

fn rate(run: &Run) -> f64 {
    run.ops as f64 * 1e9 / run.wall_ns as f64
}

fn cpu_us(run: &Run) -> f64 {
    run.cpu_ns as f64 / 1000.0 / run.ops as f64
}

fn switches(run: &Run) -> f64 {
    (run.voluntary_switches + run.involuntary_switches) as f64 / run.ops as f64
}

fn foreign_cores(run: &Run) -> f64 {
    run.foreign_ns as f64 / run.wall_ns as f64
}

fn steal_cores(run: &Run) -> f64 {
    run.steal_ns as f64 / run.wall_ns as f64
}

fn is_noisy(run: &Run) -> bool {
    foreign_cores(run) > FOREIGN_CORES_MAX || steal_cores(run) > STEAL_CORES_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(wall_ns: u64, check: u64) -> Run {
        Run {
            ops: 1000,
            check,
            wall_ns,
            cpu_ns: wall_ns * 2,
            voluntary_switches: 500,
            involuntary_switches: 0,
            foreign_ns: wall_ns,
            steal_ns: 0,
        }
    }

    fn row(peer: &'static str, runs: &[Run]) -> Row {
        Row { peer, runs: Ok(runs.to_vec()) }
    }

    fn cell() -> Cell {
        let slow = row("slow", &[run(3_000_000, 7), run(6_000_000, 7)]);
        let fast = row("std", &[run(1_000_000, 7), run(2_000_000, 7)]);
        let wrong = row("wrong", &[run(1_000, 7), run(1_000, 8)]);
        let absent = Row { peer: "absent", runs: Err(anyhow::anyhow!("does not build")) };
        Cell::new("cell", "title", ["std", "sakia"], vec![slow, wrong, absent, fast], false)
    }

    #[test]
    fn what_is_done_in_a_time_is_compared_by_operation() {
        let twice = Run { ops: 2000, ..run(1_000_000, 7) };
        let rows = || vec![row("std", &[run(1_000_000, 7)]), row("twice", &[twice])];
        let text = |is_timed| as_tables(&Cell::new("cell", "", ["std", "sakia"], rows(), is_timed));
        assert!(text(true).contains("0.50 (0.50..0.50) | 0.50 (0.50..0.50)"), "{}", text(true));
        assert!(text(false).contains("did other work"), "{}", text(false));
    }

    #[test]
    fn rows_are_compared_round_by_round() {
        let text = as_tables(&cell());
        let row = |peer: &str| {
            let mut lines = text.lines().filter(|line| line.starts_with(&format!("| {peer} ")));
            lines.next().unwrap().to_owned()
        };
        assert!(row("slow").contains("3.00 (3.00..3.00) | 3.00 (3.00..3.00)"), "{text}");
        assert!(row("slow").contains(" 0.500 |"), "{text}");
        assert!(row("std").contains("2/2 |"), "{text}");
        assert!(row("absent").starts_with("| absent | does not build |"), "{text}");
        assert!(row("wrong").starts_with("| wrong | did other work: 1000 operations with check 8"));
        assert!(text.find("| std ").unwrap() < text.find("| slow ").unwrap(), "{text}");
    }

    #[test]
    fn lines_of_json_say_the_same() {
        let text = as_json(&Title::of_files(Path::new("/"), 2), &[cell()]);
        let lines: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines[1]["variant"], "std");
        assert_eq!(lines[1]["wall_ns"]["max"], 2_000_000.0);
        assert_eq!(lines[1]["noisy_runs"], 2);
        assert_eq!(lines[4]["error"], "does not build");
        let ratios = &lines[5]["ratios"];
        assert_eq!(ratios[0]["of"], "slow/std");
        assert_eq!(ratios[0]["cpu"], 3.0);
        assert_eq!(ratios[0]["ci95"], Value::Null);
    }
}
