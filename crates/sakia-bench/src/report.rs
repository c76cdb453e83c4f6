//! Results as one page of HTML with its plots inside. The page loads nothing, so that everyone can read it
//! without a network.

use maud::{DOCTYPE, Markup, PreEscaped, html};

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

/// Returns the page.
///
/// # Errors
/// Those of [`Plot::to_svg`].
pub fn html(results: &Results, plots: &[Plot]) -> anyhow::Result<String> {
    let svgs: Vec<String> = plots.iter().map(Plot::to_svg).collect::<Result<_, _>>()?;
    let about = &results.about;
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                title { (about.name) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { (about.name) }
                p { (about.title) }
                p { (about.machine.describe()) }
                @for svg in &svgs { figure { (PreEscaped(svg.trim())) } }
                @for point in 0..about.points.len() { (at_point(results, point)) }
                @if !results.ratios.is_empty() { (ratios(results)) }
                h2 { "Method" }
                ul {
                    @for note in METHOD { li { (note) } }
                    @for note in about.notes.iter().chain(&text::remarks(results)) { li { (note) } }
                }
            }
        }
    };
    Ok(page.into_string())
}

fn at_point(results: &Results, point: usize) -> Markup {
    let columns = text::columns(results.about.focus);
    html! {
        h2 { (results.about.points[point].label) }
        table {
            tr { th { "variant" } @for column in &columns { th { (column.0) } } th { "noisy runs" } }
            @for row in results.rows_at(point) {
                tr {
                    td { (row.variant) }
                    @for column in &columns { td { (column.2(results, row)) } }
                    td { (row.noisy) " of " (row.runs) }
                }
            }
        }
        ul {
            @for Standing { variant, words, reason } in text::standings(results, point) {
                li { b { (variant) } " " (words) @if let Some(reason) = reason { ": " (reason) } }
            }
        }
    }
}

fn ratios(results: &Results) -> Markup {
    let bounds = text::bounds_name(results);
    let of_two = |number: f64| format!("{number:.2}");
    html! {
        h2 { "Ratios" }
        p { "Time of the first in parts of the second; below 1 the first is faster." }
        table {
            tr { @for head in ["of", "at", "wall", bounds, "CPU", bounds, "least CPU"] { th { (head) } } }
            @for ratio in &results.ratios {
                tr {
                    td { (ratio.of) }
                    td { (results.about.points[ratio.point].label) }
                    td { (of_two(ratio.wall)) }
                    td { (text::bounds(ratio.wall_bounds)) }
                    td { (of_two(ratio.cpu)) }
                    td { (text::bounds(ratio.cpu_bounds)) }
                    td { (of_two(ratio.cpu_best)) }
                }
            }
        }
    }
}

/// The method of all experiments.
const METHOD: [&str; 4] = [
    "Each run is a separate process. Variants alternate, in an order that a seed fixes and that \
     rotates from round to round.",
    "Wall and processor time include the work and its preparation (ring, threads), but not the start \
     of the process; medians with minimum and maximum. Switches are voluntary context switches. \
     Threads include the kernel's workers.",
    "Ratios are medians of the ratios of runs of the same round. Their 95 % interval comes from \
     order statistics: between the k-th smallest and the k-th largest ratio. Least CPU: the ratio of \
     the smallest processor times of all rounds.",
    "The result of every run was compared with the expected one.",
];

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
