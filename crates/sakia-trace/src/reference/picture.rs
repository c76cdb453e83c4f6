//! The picture of what was recorded.

use std::collections::BTreeMap;

use super::truth::{Thread, Truth};
use crate::read::{Slice, Trace};
use crate::{Stretch, plot};

/// The stretch in the picture: its begin, its width, and that of what is drawn as one, a little more.
const LEFT: f64 = 150.0;
const WIDTH: u128 = 1030;
const NARROW_PERCENT: u128 = 41;
const ROWS_MAX: usize = 32;

/// Returns how the picture differs from what happened: what is missing, or is not there.
pub(super) fn difference(truth: &Truth, trace: &Trace, stretch: Stretch) -> Option<String> {
    let picture = plot(trace, stretch);
    let threads = truth.threads.iter().map(|thread| (thread, slices(thread)));
    let threads: Vec<(&Thread, Vec<Slice>)> = threads.collect();
    let all = || threads.iter().flat_map(|(_, slices)| slices);
    let Some(first) = all().map(|slice| slice.begin).min() else {
        return picture.contains("<title>").then(|| "there is nothing to draw".into());
    };
    let last = all().map(|slice| slice.end.unwrap_or(slice.begin)).max().unwrap_or(first);
    let from = (first + stretch.from).min(last);
    let to = stretch.to.map_or(last, |to| first + to).clamp(from + 1, last.max(from + 1));
    let end = |slice: &Slice| slice.end.unwrap_or(to);
    let shown = |slice: &&Slice| slice.begin < to && end(slice) > from;
    for (thread, slices) in &threads {
        let mut slices: Vec<&Slice> = slices.iter().filter(shown).collect();
        slices.sort_by_key(|slice| (slice.begin, slice.depth));
        let rows = rows(&picture, &thread.name());
        if rows.is_some() == slices.is_empty() {
            return Some(format!("{} has {} slices here", thread.name(), slices.len()));
        }
        let mut rest = rows.unwrap_or_default();
        let has_all = thread.rows <= ROWS_MAX;
        // By depth, the last end so far. Those within two others are drawn at the same height.
        let mut ends: BTreeMap<usize, u64> = BTreeMap::new();
        let (wide, narrow): (Vec<&Slice>, Vec<&Slice>) = slices.into_iter().partition(|slice| {
            let (its, before) = (end(slice).min(to), ends.get(&slice.depth.min(2)).copied());
            ends.insert(slice.depth.min(2), its.max(before.unwrap_or(0)));
            before.is_none_or(|before| {
                let step = u128::from(its.saturating_sub(before));
                step * WIDTH * 100 > NARROW_PERCENT * u128::from(to - from)
            })
        });
        let must_be = wide.len();
        for (index, slice) in wide.into_iter().chain(narrow).enumerate() {
            let title = title(slice);
            match rest.iter().position(|its| *its == title) {
                Some(at) => drop(rest.swap_remove(at)),
                None if index < must_be && has_all => {
                    return Some(format!("no {title}"));
                }
                None => {}
            }
        }
        if !rest.is_empty() {
            return Some(format!("{}: drawn, but not recorded here: {rest:?}", thread.name()));
        }
    }
    let axis = (0..=10).map(|part| (u128::from(to - from) * part / 10) as u64);
    let labels = axis.map(|time| {
        let x = LEFT + time as f64 / (to - from) as f64 * WIDTH as f64;
        let ms = (from - first + time) as f64 / 1e6;
        format!("<text x=\"{x:.2}\" y=\"20\" text-anchor=\"middle\">{ms:.3} ms<")
    });
    labels.into_iter().find(|label| !picture.contains(label))
}

/// Returns the titles of what is drawn in the rows of a thread, if it has any.
fn rows<'a>(picture: &'a str, thread: &str) -> Option<Vec<&'a str>> {
    let is_label = |line: &&str| line.starts_with("<text x=\"4\"");
    let is_of_thread = |line: &&str| is_label(line) && line.contains(">thread &lt;");
    let its = format!(">{}</text>", escaped(thread));
    let mut lines = picture.lines().skip_while(|line| !is_label(line) || !line.contains(&its));
    lines.next()?;
    let title = |line: &'a str| line.strip_prefix("<title>")?.strip_suffix("</title></rect>");
    Some(lines.take_while(|line| !is_of_thread(line)).filter_map(title).collect())
}

fn slices(thread: &Thread) -> Vec<Slice> {
    let operations = thread.operations.iter().flat_map(|operation| operation.slices());
    thread.slices.iter().cloned().chain(operations).collect()
}

fn title(slice: &Slice) -> String {
    let ended = slice.end.map(|end| format!("{} ns", end - slice.begin));
    format!("{}: {}", escaped(&slice.name), ended.unwrap_or_else(|| "not ended".into()))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
