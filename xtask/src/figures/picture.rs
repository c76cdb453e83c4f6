//! The picture of the first page: one cell, a bar for each program.

use std::fmt::Write as _;

use super::results::Results;

/// The cell.
const CELL: &str = "smallfiles";
const TITLE: &str = "Reading files of 4 KiB as a whole: processor time for each, in microseconds";
/// The experiment and the machine, as `docs/results/files.md` has them.
const CAPTION: [&str; 2] = [
    "Cached files, 64 tasks on one thread; medians of nine rounds. Less is better.",
    "AMD EPYC, 2 processors, Linux 6.18.44, ext4: docs/results/files.md",
];
/// The programs, with their names in the picture.
const BARS: [(&str, &str); 9] = [
    ("sakia", "Sakia"),
    ("limit-nowait-vec", "the same calls, no runtime"),
    ("std-fs-read", "std::fs::read, blocking"),
    ("monoio-legacy", "monoio, on epoll"),
    ("monoio", "monoio"),
    ("tokio-tuned", "tokio, tuned by hand"),
    ("glommio", "glommio"),
    ("compio", "compio"),
    ("tokio-ct", "tokio"),
];

/// Sizes in pixels.
const WIDTH: f64 = 760.0;
const LEFT: f64 = 250.0;
const RIGHT: f64 = 60.0;
const TOP: f64 = 40.0;
const ROW: f64 = 26.0;
const BAR: f64 = 18.0;

/// The colors of bars: ours, those without a runtime, and other runtimes.
const OURS: &str = "#0072b2";
const PLAIN: &str = "#999999";
const OTHER: &str = "#e69f00";

/// Returns the picture as an `svg` element.
///
/// # Errors
/// A figure is missing.
pub(super) fn of(results: &Results) -> anyhow::Result<String> {
    let cell = results.cell(CELL)?;
    let mut bars = Vec::new();
    for (peer, name) in BARS {
        bars.push((peer, name, cell.row(peer)?.cpu_us));
    }
    bars.sort_by(|(.., one), (.., other)| one.total_cmp(other));
    let most = bars.last().map_or(1.0, |(.., last)| *last);
    let bottom = TOP + ROW * bars.len() as f64;
    let height = bottom + 20.0 * (CAPTION.len() as f64 + 0.5);

    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" font-family=\"sans-serif\" font-size=\"14\">\n"
    );
    writeln!(svg, "<title>{TITLE}</title>")?;
    writeln!(svg, "<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>")?;
    writeln!(svg, "<text x=\"12\" y=\"24\" font-size=\"16\">{TITLE}</text>")?;
    for (index, (peer, name, cpu_us)) in bars.into_iter().enumerate() {
        let y = TOP + ROW * index as f64;
        let width = (WIDTH - LEFT - RIGHT) * cpu_us / most;
        let (color, weight) = match peer {
            "sakia" => (OURS, "bold"),
            "limit-nowait-vec" | "std-fs-read" => (PLAIN, "normal"),
            _ => (OTHER, "normal"),
        };
        let (text_x, text_y, value_x) = (LEFT - 8.0, y + 14.0, LEFT + width + 6.0);
        writeln!(
            svg,
            "<text x=\"{text_x}\" y=\"{text_y}\" text-anchor=\"end\" font-weight=\"{weight}\">{name}</text>"
        )?;
        writeln!(
            svg,
            "<rect x=\"{LEFT}\" y=\"{y}\" width=\"{width:.1}\" height=\"{BAR}\" fill=\"{color}\"/>"
        )?;
        writeln!(svg, "<text x=\"{value_x:.1}\" y=\"{text_y}\">{cpu_us:.1}</text>")?;
    }
    for (index, line) in CAPTION.into_iter().enumerate() {
        let y = bottom + 20.0 * (index as f64 + 1.0);
        writeln!(svg, "<text x=\"12\" y=\"{y}\" font-size=\"13\" fill=\"#444444\">{line}</text>")?;
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_in_order_and_the_longest_fits() {
        let results = Results::read(&crate::repository_root()).unwrap();
        let svg = of(&results).unwrap();
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        let widths: Vec<f64> = svg
            .lines()
            .filter(|line| line.starts_with("<rect x="))
            .filter_map(|line| line.split("width=\"").nth(1)?.split('"').next()?.parse().ok())
            .collect();
        assert_eq!(widths.len(), BARS.len());
        assert!(widths.is_sorted() && widths.last() == Some(&(WIDTH - LEFT - RIGHT)));
    }

    #[test]
    fn caption_is_that_of_the_page() {
        let page = crate::repository_root().join("docs/results/files.md");
        let page = std::fs::read_to_string(page).unwrap();
        assert!(
            page.contains("2-core virtual machine (AMD EPYC, Linux 6.18.44, ext4), nine rounds")
        );
    }
}
