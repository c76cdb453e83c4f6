//! The table of the first page: processor time relative to Sakia's.

use std::fmt::Write as _;

use super::results::{Cell, Results, Row};

/// The other runtimes, each with the names of its variants.
const RUNTIMES: [(&str, &[&str]); 4] = [
    ("tokio", &["tokio", "tokio-ct", "tokio-mt", "tokio-tuned", "tokio-ct-ring", "tokio-servedir"]),
    ("monoio", &["monoio", "monoio-legacy"]),
    ("compio", &["compio"]),
    ("glommio", &["glommio"]),
];

/// The rows: the name of a cell, and its work in words.
const ROWS: [(&str, &str); 17] = [
    ("sum", "a file in blocks of 32 KiB"),
    ("randread", "random reads of 4 KiB"),
    ("randread-tmpfs", "the same in memory (tmpfs)"),
    ("randdirect", "the same by `O_DIRECT`"),
    ("smallfiles", "whole files of 4 KiB"),
    ("write", "random writes of 4 KiB"),
    ("echo1", "echo of 64 bytes, 1 connection"),
    ("echo64", "64 connections"),
    ("large512", "16 KiB, 512 connections"),
    ("stream16", "16 KiB in streams, 16 connections"),
    ("yield64", "a task yields"),
    ("spawn", "a task starts another and awaits it"),
    ("http64", "HTTP by hyper, 64 connections ¹"),
    ("body4k", "the same, a file of 4 KB ¹"),
    ("set", "Redis `SET`, 50 connections ¹"),
    ("udp1", "UDP, 1 datagram in flight ¹"),
    ("udp32", "UDP, 32 datagrams in flight ¹"),
];

/// Returns the table, with a newline at its end.
///
/// # Errors
/// A figure is missing.
pub(super) fn of(results: &Results) -> anyhow::Result<String> {
    let names: Vec<_> = RUNTIMES.iter().map(|(name, _)| format!(" {name} |")).collect();
    let mut table = format!("| processor time | Sakia, µs |{}\n", names.concat());
    writeln!(table, "|---|--:|{}", "--:|".repeat(RUNTIMES.len()))?;
    for (name, work) in ROWS {
        let cell = results.cell(name)?;
        let ours = cell.row("sakia")?.cpu_us;
        let digits = if ours < 1.0 { 3 } else { 2 };
        let others = RUNTIMES.map(|(_, variants)| entry(cell, variants));
        writeln!(table, "| {work} | {ours:.digits$} | {} |", others.join(" | "))?;
    }
    Ok(table)
}

/// Returns the ratio of a runtime's best variant: bold if it is ahead, with `=` if that cannot be told.
fn entry(cell: &Cell, variants: &[&str]) -> String {
    let Some(Row { of_sakia: Some([median, low, high]), .. }) = cell.best(variants) else {
        return "–".to_owned();
    };
    let digits = if *median < 100.0 { 2 } else { 0 };
    match () {
        () if *high < 1.0 => format!("**{median:.digits$}**"),
        () if *low <= 1.0 => format!("{median:.digits$} ="),
        () => format!("{median:.digits$}"),
    }
}
