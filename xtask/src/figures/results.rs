//! The tables of `cargo xtask peers` in the pages of `docs/results`.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail};

/// The pages that have such tables.
const PAGES: [&str; 4] = ["files", "echo", "servers", "udp"];
/// The page of tasks, whose last table has other columns.
const TASKS: &str = "tasks";
/// The columns of that table.
const TASK_CELLS: [&str; 3] = ["yield1", "yield64", "spawn"];

/// The cells of all pages.
#[derive(Debug, Default)]
pub(super) struct Results {
    cells: Vec<Cell>,
}

/// One experiment.
#[derive(Debug)]
pub(super) struct Cell {
    name: String,
    rows: Vec<Row>,
}

/// One program of an experiment.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) peer: String,
    /// Processor time of an operation in microseconds, the median of all runs.
    pub(super) cpu_us: f64,
    /// The same relative to `sakia`'s in the same round: the median, and the ends of its 95 % interval.
    /// `None` for `sakia` itself.
    pub(super) of_sakia: Option<[f64; 3]>,
}

impl Results {
    /// # Errors
    /// A page cannot be read or has no table.
    pub(super) fn read(root: &Path) -> anyhow::Result<Self> {
        let page = |name: &str| {
            let path = root.join(format!("docs/results/{name}.md"));
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        let mut results = Self::default();
        for name in PAGES {
            results.cells.extend(cells(&page(name)?));
        }
        results.cells.extend(task_cells(&page(TASKS)?)?);
        Ok(results)
    }

    /// # Errors
    /// No page has it.
    pub(super) fn cell(&self, name: &str) -> anyhow::Result<&Cell> {
        let cell = self.cells.iter().find(|cell| cell.name == name);
        cell.with_context(|| format!("no page of results has the cell {name:?}"))
    }
}

impl Cell {
    /// # Errors
    /// The cell has no such program.
    pub(super) fn row(&self, peer: &str) -> anyhow::Result<&Row> {
        let row = self.rows.iter().find(|row| row.peer == peer);
        row.with_context(|| format!("the cell {:?} has no row {peer:?}", self.name))
    }

    /// Returns the program with the least processor time of those with one of these names.
    pub(super) fn best(&self, peers: &[&str]) -> Option<&Row> {
        let rows = self.rows.iter().filter(|row| peers.contains(&&*row.peer));
        rows.min_by(|one, other| ratio(one).total_cmp(&ratio(other)))
    }
}

fn ratio(row: &Row) -> f64 {
    row.of_sakia.map_or(1.0, |[median, ..]| median)
}

/// Returns the cells of a page: each a line "`name`: title", and then a block of text.
fn cells(page: &str) -> Vec<Cell> {
    let mut cells: Vec<Cell> = Vec::new();
    let mut is_open = false;
    for line in page.lines() {
        let name = line.strip_prefix('`').and_then(|rest| rest.split_once("`: "));
        if let Some((name, _)) = name {
            cells.push(Cell { name: name.to_owned(), rows: Vec::new() });
            is_open = true;
        } else if line == "```" {
            is_open = false;
        } else if let Some(cell) = cells.last_mut().filter(|_| is_open) {
            cell.rows.extend(row(line));
        }
    }
    cells.retain(|cell| !cell.rows.is_empty());
    cells
}

/// Parses a line such as `peer 12.5 1.234 … 0.98 (0.96..1.00) 3/9`; `None` for other lines.
fn row(line: &str) -> Option<Row> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [peer, _, cpu, .., last_but_one, noisy] = words[..] else { return None };
    noisy.split_once('/')?;
    let of_sakia = match last_but_one.strip_prefix('(') {
        Some(interval) => {
            let (low, high) = interval.strip_suffix(')')?.split_once("..")?;
            let median = words[words.len() - 3].parse().ok()?;
            Some([median, low.parse().ok()?, high.parse().ok()?])
        }
        None => None,
    };
    Some(Row { peer: peer.to_owned(), cpu_us: cpu.parse().ok()?, of_sakia })
}

/// Returns the cells of the last block of the page of tasks, which has nanoseconds, and no intervals.
fn task_cells(page: &str) -> anyhow::Result<Vec<Cell>> {
    let (_, block) = page.rsplit_once("```text\n").context("the page of tasks has no table")?;
    let block = block.split("```").next().unwrap_or_default();
    let rows: Vec<(&str, Vec<f64>)> = block
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (peer, values) = (
                words.next()?,
                words.map(|word| word.parse::<f64>().ok()).collect::<Option<Vec<_>>>(),
            );
            Some((peer, values?))
        })
        .collect();
    let sakia = rows.iter().find(|(peer, _)| *peer == "sakia").context("no row of sakia")?;
    if rows.iter().any(|(_, values)| values.len() != TASK_CELLS.len()) {
        bail!("a row of the page of tasks has not {} figures", TASK_CELLS.len());
    }
    let cell = |(index, name): (usize, &str)| {
        let row = |(peer, values): &(&str, Vec<f64>)| {
            let ratio = values[index] / sakia.1[index];
            let of_sakia = (*peer != "sakia").then_some([ratio; 3]);
            Row { peer: (*peer).to_owned(), cpu_us: values[index] / 1e3, of_sakia }
        };
        Cell { name: name.to_owned(), rows: rows.iter().map(row).collect() }
    };
    Ok(TASK_CELLS.into_iter().enumerate().map(cell).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_of_a_page_are_found() {
        let page = "`a`: one\n\n```text\npeer k ops/s CPU us/op cpu/sakia noisy\n\
                    sakia 1.0 2.000 - 0/9\nother-ct 1.0 3.000 1.0 1.50 (1.40..1.60) 1/9\n\
                    other-mt 1.0 2.500 1.25 (1.20..1.30) 1/9\n```\n`b` is none\n`c`: no table\n";
        let results = Results { cells: cells(page) };
        assert_eq!(results.cells.len(), 1);
        let cell = results.cell("a").unwrap();
        assert_eq!((cell.rows.len(), cell.row("sakia").unwrap().cpu_us), (3, 2.0));
        let best = cell.best(&["other-ct", "other-mt", "missing"]).unwrap();
        assert_eq!((&*best.peer, best.of_sakia), ("other-mt", Some([1.25, 1.2, 1.3])));
        assert!(cell.best(&["missing"]).is_none());
        assert!(results.cell("c").is_err() && cell.row("missing").is_err());
    }

    #[test]
    fn tasks_are_relative_to_ours() {
        let page = "```text\nold 1 2 3\n```\n```text\n yield, 1 task\nsakia 10 10 50\nother 20 10 25\n```\n";
        let cells = task_cells(page).unwrap();
        let ratio = |index: usize| cells[index].row("other").unwrap().of_sakia.unwrap()[0];
        assert_eq!([ratio(0), ratio(1), ratio(2)], [2.0, 1.0, 0.5]);
        assert_eq!(cells[2].row("sakia").unwrap().cpu_us, 0.05);
        assert!(task_cells("none").is_err());
    }
}
