//! Timelines of sections of a trace, as SVG.

use std::fmt::Write as _;

use crate::read::{Slice, Trace, Track};

/// Sizes of the picture.
const WIDTH: f64 = 1200.0;
const LEFT: f64 = 150.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 30.0;
const ROW: f64 = 16.0;
const GAP: f64 = 8.0;
/// The most rows shown for a thread's operations.
const ROWS_MAX: usize = 32;
/// Slices closer than this are drawn as one.
const NARROW: f64 = 0.4;
/// Slices narrower than this have no text.
const TEXT_WIDTH: f64 = 36.0;

/// Colors of kinds; other kinds get one of the remaining colors by their names.
const COLORS: &[(&str, &str)] = &[
    ("task runs", "#b8d8a8"),
    ("turn", "#dddddd"),
    ("io_uring_enter", "#999999"),
    ("epoll_pwait2", "#999999"),
    ("read", "#5b8fd6"),
    ("write", "#e08a3c"),
    ("open", "#9673b9"),
    ("close", "#c9a0dc"),
    ("in the kernel", "#2f5f9f"),
    ("on a lane thread", "#b03030"),
];
const OTHER_COLORS: &[&str] = &["#6fb7b7", "#d6b656", "#a3a36b", "#c98b8b", "#8ba0c9", "#8fc98b"];

/// The section to draw, in nanoseconds since the first event.
///
/// # Examples
/// See [`plot()`](plot()#examples).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stretch {
    /// Its begin.
    pub from: u64,
    /// Its end; `None` is the end of the trace.
    pub to: Option<u64>,
}

/// Draws threads and operations of a trace as an SVG picture.
///
/// # Examples
/// The first millisecond, as a picture:
/// ```
/// use sakia_trace::{Recording, StaticName, Stretch, Trace, TraceOptions, plot, span};
///
/// # let dir = std::env::temp_dir().join(format!("sakia-trace-plot-{}", std::process::id()));
/// # std::fs::create_dir(&dir)?;
/// let recording = Recording::to_file(dir.join("trace"), TraceOptions::default())?;
/// static WORK: StaticName = StaticName::new("work");
/// drop(span(&WORK));
/// let path = recording.stop()?.path;
/// let trace = Trace::read(&std::fs::read(path)?).expect("it is complete");
/// let picture = plot(&trace, Stretch { from: 0, to: Some(1_000_000) });
/// assert!(picture.starts_with("<svg") && picture.ends_with("</svg>\n"));
/// # std::fs::remove_dir_all(&dir)?;
/// # std::io::Result::Ok(())
/// ```
pub fn plot(trace: &Trace, stretch: Stretch) -> String {
    let all = || trace.tracks.iter().flat_map(|track| &track.slices);
    let first = all().map(|slice| slice.begin).min().unwrap_or(0);
    let last = all().map(|slice| slice.end.unwrap_or(slice.begin)).max().unwrap_or(first);
    let from = first.saturating_add(stretch.from).min(last).min(u64::MAX - 1);
    let to =
        stretch.to.map_or(last, |to| first.saturating_add(to)).clamp(from + 1, last.max(from + 1));
    let mut picture = Picture { from, to, y: TOP, body: String::new(), kinds: Vec::new() };
    for thread in trace.tracks.iter().filter(|track| track.tid.is_some()) {
        let rows: Vec<&Track> = trace
            .tracks
            .iter()
            .filter(|track| track.parent == thread.uuid && track.tid.is_none())
            .filter(|track| picture.shows(track))
            .collect();
        if rows.is_empty() && !picture.shows(thread) {
            continue;
        }
        picture.row(&thread.name, thread);
        for (index, row) in rows.iter().take(ROWS_MAX).enumerate() {
            picture.row(&format!("in flight {}", index + 1), row);
        }
        if rows.len() > ROWS_MAX {
            picture.label(&format!("and {} more rows", rows.len() - ROWS_MAX));
        }
        picture.y += GAP;
    }
    picture.finish(first)
}

/// A picture that grows downwards.
struct Picture {
    from: u64,
    to: u64,
    y: f64,
    body: String,
    /// Kinds with their colors, for the legend.
    kinds: Vec<(String, &'static str)>,
}

impl Picture {
    fn shows(&self, track: &Track) -> bool {
        track.slices.iter().any(|slice| self.covers(slice))
    }

    fn covers(&self, slice: &Slice) -> bool {
        slice.begin < self.to && slice.end.unwrap_or(self.to) > self.from
    }

    fn x(&self, time: u64) -> f64 {
        let share =
            (time.clamp(self.from, self.to) - self.from) as f64 / (self.to - self.from) as f64;
        LEFT + share * (WIDTH - LEFT - RIGHT)
    }

    fn label(&mut self, text: &str) {
        let y = self.y + ROW - 4.0;
        let text = escape(text);
        writeln!(self.body, r#"<text x="4" y="{y}">{text}</text>"#).expect("memory");
        self.y += ROW;
    }

    /// A row with all slices of a track, the inner ones lower.
    fn row(&mut self, name: &str, track: &Track) {
        let top = self.y;
        self.label(name);
        let mut slices: Vec<&Slice> =
            track.slices.iter().filter(|slice| self.covers(slice)).collect();
        slices.sort_by_key(|slice| (slice.begin, slice.depth));
        // The end of the last drawn slice, by depth.
        let mut drawn = [f64::MIN; 3];
        for slice in slices {
            let depth = slice.depth.min(2);
            let (begin, end) = (self.x(slice.begin), self.x(slice.end.unwrap_or(self.to)));
            if end < drawn[depth] + NARROW {
                continue;
            }
            drawn[depth] = end;
            let color = self.color(&slice.name);
            let inset = depth as f64 * 3.0;
            let (width, height) = ((end - begin).max(NARROW), ROW - 3.0 - inset);
            let y = top + 1.0 + inset;
            let name = escape(&slice.name);
            let duration =
                slice.duration().map_or_else(|| "not ended".into(), |time| format!("{time} ns"));
            writeln!(
                self.body,
                r#"<rect x="{begin:.2}" y="{y}" width="{width:.2}" height="{height}" fill="{color}">"#
            )
            .expect("memory");
            writeln!(self.body, "<title>{name}: {duration}</title></rect>").expect("memory");
            if depth == 0 && end - begin > TEXT_WIDTH.max(7.0 * name.len() as f64) {
                let (x, y) = (begin + 3.0, top + ROW - 5.0);
                writeln!(self.body, r#"<text x="{x:.2}" y="{y}">{name}</text>"#).expect("memory");
            }
        }
    }

    fn color(&mut self, name: &str) -> &'static str {
        if let Some((_, color)) = self.kinds.iter().find(|(known, _)| known == name) {
            return color;
        }
        let known = COLORS.iter().find(|(known, _)| *known == name);
        let sum = name.bytes().fold(0_usize, |sum, byte| sum.wrapping_mul(31) + usize::from(byte));
        let color = known.map_or(OTHER_COLORS[sum % OTHER_COLORS.len()], |(_, color)| color);
        self.kinds.push((name.into(), color));
        color
    }

    fn finish(mut self, first: u64) -> String {
        let bottom = self.y;
        let mut axis = String::new();
        for index in 0..=10_u32 {
            let part = u128::from(self.to - self.from) * u128::from(index) / 10;
            let time = self.from + part as u64;
            let (x, text) = (self.x(time), time.saturating_sub(first) as f64 / 1e6);
            writeln!(
                axis,
                r##"<line x1="{x:.2}" y1="{TOP}" x2="{x:.2}" y2="{bottom}" stroke="#eeeeee"/>"##
            )
            .expect("memory");
            writeln!(axis, r#"<text x="{x:.2}" y="20" text-anchor="middle">{text:.3} ms</text>"#)
                .expect("memory");
        }
        self.y += GAP;
        let (mut x, mut legend) = (LEFT, String::new());
        for (name, color) in &self.kinds {
            let width = 24.0 + 7.0 * name.len() as f64;
            if x + width > WIDTH {
                (x, self.y) = (LEFT, self.y + ROW);
            }
            let (y, text) = (self.y, escape(name));
            let (text_x, text_y) = (x + 14.0, y + 9.0);
            writeln!(legend, r#"<rect x="{x:.1}" y="{y}" width="10" height="10" fill="{color}"/>"#)
                .expect("memory");
            writeln!(legend, r#"<text x="{text_x:.1}" y="{text_y}">{text}</text>"#)
                .expect("memory");
            x += width;
        }
        let height = self.y + ROW + GAP;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
             font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" \
             fill=\"white\"/>\n{axis}{}{legend}</svg>\n",
            self.body
        )
    }
}

/// Escapes text for XML. The text of a file may be anything.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            control if control.is_control() => escaped.push(' '),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(name: &str, begin: u64, end: Option<u64>, depth: usize) -> Slice {
        Slice { name: name.into(), begin, end, depth, ..Slice::default() }
    }

    fn trace() -> Trace {
        let thread = Track {
            uuid: 1,
            name: "a <b>".into(),
            tid: Some(7),
            slices: vec![slice("task runs", 1_000, Some(5_000), 0), slice("turn", 6_000, None, 0)],
            ..Track::default()
        };
        let operations = Track {
            uuid: 2,
            parent: 1,
            slices: vec![
                slice("in the kernel", 3_000, Some(4_000), 1),
                slice("read", 2_000, Some(8_000), 0),
            ],
            ..Track::default()
        };
        Trace { tracks: vec![thread, operations], ..Trace::default() }
    }

    #[test]
    fn an_empty_trace_and_an_odd_stretch_are_drawn_too() {
        for stretch in [Stretch::default(), Stretch { from: u64::MAX, to: Some(0) }] {
            assert!(plot(&Trace::default(), stretch).ends_with("</svg>\n"));
            assert!(plot(&trace(), stretch).starts_with("<svg"));
        }
    }
}
