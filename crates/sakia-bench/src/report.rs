//! Results as one page of HTML with its plots inside. It loads nothing: it is readable without a
//! network, and by whoever it is sent to.

use std::fmt::{self, Write};

use anyhow::Context;

use crate::plot::Plot;
use crate::results::Results;
use crate::text::{self, Standing};

const STYLE: &str = "\
body { font: 16px/1.5 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 1em 0 }
th, td { text-align: right; padding: .2em .8em; border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left }
svg { max-width: 100%; height: auto }
";

/// The page.
///
/// # Errors
/// Those of [`Plot::to_svg`].
pub fn html(results: &Results, plots: &[Plot]) -> anyhow::Result<String> {
    let svgs: Vec<String> = plots.iter().map(Plot::to_svg).collect::<Result<_, _>>()?;
    let mut page = String::new();
    write(&mut page, results, &svgs).context("the page cannot be written")?;
    Ok(page)
}

fn write(page: &mut String, results: &Results, svgs: &[String]) -> fmt::Result {
    let title = Escaped(results.about.name);
    write!(page, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n")?;
    write!(page, "<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n")?;
    writeln!(page, "<h1>{title}</h1>\n<p>{}</p>", Escaped(&results.about.title))?;
    writeln!(page, "<p>{}</p>", Escaped(&results.about.machine.describe()))?;
    for svg in svgs {
        writeln!(page, "<figure>\n{}\n</figure>", svg.trim())?;
    }
    for (point, described) in results.about.points.iter().enumerate() {
        writeln!(page, "<h2>{}</h2>", Escaped(&described.label))?;
        let columns = text::columns(results.about.focus);
        let names = columns.map(|column| column.0);
        let head = ["variant"].into_iter().chain(names).chain(["noisy runs"]);
        writeln!(page, "<table>")?;
        row(page, "th", head)?;
        for found in results.rows_at(point) {
            let cells = columns.map(|column| column.2(results, found));
            let noisy = format!("{} of {}", found.noisy, found.runs);
            let cells = [found.variant.to_owned()].into_iter().chain(cells).chain([noisy]);
            row(page, "td", cells)?;
        }
        writeln!(page, "</table>\n<ul>")?;
        for Standing { variant, words, reason } in text::standings(results, point) {
            write!(page, "<li><b>{}</b> {}", Escaped(variant), Escaped(&words))?;
            if let Some(reason) = reason {
                write!(page, ": {}", Escaped(reason))?;
            }
            writeln!(page, "</li>")?;
        }
        writeln!(page, "</ul>")?;
    }
    if !results.ratios.is_empty() {
        write_ratios(page, results)?;
    }
    writeln!(page, "<h2>Method</h2>\n<ul>")?;
    for note in METHOD.into_iter().chain(results.about.notes.iter().map(String::as_str)) {
        writeln!(page, "<li>{}</li>", Escaped(note))?;
    }
    for remark in text::remarks(results) {
        writeln!(page, "<li>{}</li>", Escaped(&remark))?;
    }
    write!(page, "</ul>\n</body>\n</html>\n")
}

fn write_ratios(page: &mut String, results: &Results) -> fmt::Result {
    writeln!(page, "<h2>Ratios</h2>")?;
    writeln!(
        page,
        "<p>Time of the first in parts of the second; below 1 the first is faster.</p>"
    )?;
    let bounds_name = text::bounds_name(results);
    let heads = ["of", "at", "wall", bounds_name, "CPU", bounds_name, "least CPU"];
    writeln!(page, "<table>")?;
    row(page, "th", heads)?;
    for ratio in &results.ratios {
        let (wall, cpu) = (format!("{:.2}", ratio.wall), format!("{:.2}", ratio.cpu));
        let (wall_bounds, cpu_bounds) =
            (text::bounds(ratio.wall_bounds), text::bounds(ratio.cpu_bounds));
        let (label, best) =
            (&results.about.points[ratio.point].label, format!("{:.2}", ratio.cpu_best));
        let cells = [&ratio.of, label, &wall, &wall_bounds, &cpu, &cpu_bounds, &best];
        row(page, "td", cells)?;
    }
    writeln!(page, "</table>")
}

/// How every experiment is measured.
const METHOD: [&str; 4] = [
    "Each run is a process of its own. Variants alternate, in an order that a seed fixes and that \
     turns from round to round.",
    "Wall and processor time are those of the work and of what it needs (ring, threads), not of \
     starting the process; medians with minimum and maximum. Switches are voluntary ones. Threads \
     include the kernel's workers.",
    "Ratios are medians of the ratios of runs of the same round. Their 95 % interval is that of \
     order statistics: between the k-th smallest and the k-th largest ratio. Least CPU: the least \
     processor time of the one in parts of the least of the other, whatever the rounds.",
    "Every run's result was compared with what is right.",
];

/// A row of a table.
fn row(
    page: &mut String,
    element: &str,
    cells: impl IntoIterator<Item = impl AsRef<str>>,
) -> fmt::Result {
    write!(page, "<tr>")?;
    for cell in cells {
        write!(page, "<{element}>{}</{element}>", Escaped(cell.as_ref()))?;
    }
    writeln!(page, "</tr>")
}

/// Text that means nothing to HTML.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for char in self.0.chars() {
            match char {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::Series;
    use crate::results::tests::results as sample;

    #[test]
    fn page_holds_all_and_loads_nothing() {
        let series =
            vec![Series { name: "a".into(), points: vec![(1.0, 1.0)], ..Series::default() }];
        let plot = Plot {
            title: "t".into(),
            x_label: "x".into(),
            y_label: "y".into(),
            series,
            ..Plot::default()
        };
        let page = html(&sample(&[(3, 1), (3, 1)]), &[plot.clone(), plot]).unwrap();
        assert_eq!(page.matches("<svg ").count(), 2);
        assert!(page.contains("two &lt;ways&gt;") && page.contains("a note &amp; more"), "{page}");
        for open in ["table", "tr", "ul", "li", "td", "th", "figure", "body", "html"] {
            let count = |end: &str| {
                let tags = [format!("<{end}{open}>"), format!("<{end}{open} ")];
                tags.iter().map(|tag| page.matches(tag.as_str()).count()).sum::<usize>()
            };
            assert_eq!(count(""), count("/"), "{open}");
        }
        for external in ["<script", "<link", "src=", "href=", "@import", "url("] {
            assert!(!page.contains(external), "{external}");
        }
    }
}
