//! Random programs, of which it is known what they did: their recording has just that, and its summary and
//! picture have the figures that follow from it.
//!
//! A [program](program) is a list of steps of three threads, with scenes about the limits of each finding.
//! Its events go through the threads' buffers, which are emptied now and then, and through the encoder. The
//! [truth] notes the same steps; from it the [expected] summary is computed, by other and simpler means.
//! Failing programs are made smaller.
//!
//! `SAKIA_TEST_PROGRAMS` is the number of programs, and `SAKIA_TEST_SEED` the first of them.
//!
//! # Compared
//! - For each push into a buffer, whether it was lost, and whether the buffer is half full; when the buffers
//!   are emptied, the events that were lost.
//! - The [packets]: names and tracks come before their uses, as Perfetto wants it, each track once, and the
//!   clocks are right.
//! - Each slice and each moment of each track, with its arguments, and the number of rows for operations.
//! - The same after the packets were [reshaped](packets::reshaped), as the format allows.
//! - A file that is cut anywhere: what comes before the cut is read. One with something else at its end, or
//!   with an altered packet, is refused, and the error has the place.
//! - Each figure of the summary, and its text: each finding with its advice where one must come, and none
//!   elsewhere. An error of the writer of the text ends it, and is told.
//! - The [picture]: each slice of the stretch with its duration, the rows of threads, the axis. Also of a
//!   stretch that begins where the recording ends.
//!
//! # Left out
//! - Slices of a thread whose begins or ends were lost: an end belongs to the slice that began last on the
//!   thread, here as in the file.
//! - The place of a slice in the picture, its color, and which of two slices that are closer than a line is
//!   wide is drawn; rows of operations beyond the 32nd.
//! - Packets of other producers, whose meaning depends on fields that the encoder does not write: other
//!   clocks, several sequences with the same identifiers.
//! - The recorder itself, with its threads and its file: `tests/life.rs` has it.

mod expected;
mod findings;
mod packets;
mod picture;
mod play;
mod program;
mod truth;

use sakia_testkit::failing_writer::untold_error;
use sakia_testkit::random::{Random, programs};

use self::play::{Played, play};
use self::program::Step;
use self::truth::{Operation, Thread, Truth};
use crate::read::{Slice, Trace, Track};
use crate::{Stretch, Summary, Workers};

/// The pieces of a text between two at which its writer fails.
const STRIDE: u64 = 16;

#[test]
fn recordings_and_their_summaries_are_as_expected() {
    programs(150, program::make, difference);
}

/// Returns how a program's recording differs from what it did.
fn difference(steps: &[Step]) -> Option<String> {
    let Played { bytes, mut truth, clocks, wrong } = play(steps);
    truth.finish();
    if wrong.is_some() {
        return wrong;
    }
    let trace = match Trace::read(&bytes) {
        Ok(trace) => trace,
        Err(error) => return Some(error.to_string()),
    };
    // The rest depends on the program alone.
    let random = &mut Random::new(bytes.len() as u64);
    packets::misread(&bytes, clocks)
        .or_else(|| tracks(&truth, &trace))
        .or_else(|| figures(&truth, &Summary::of(&trace)))
        .or_else(|| text(&truth, &trace))
        .or_else(|| unwritten(&trace, random))
        .or_else(|| reshaped(&bytes, &trace, random))
        .or_else(|| cut(&bytes, random))
        .or_else(|| pictures(&truth, &trace, random))
}

/// Returns a difference between two values.
fn differ<T: PartialEq + std::fmt::Debug>(what: &str, found: &T, expected: &T) -> Option<String> {
    (found != expected).then(|| format!("{what}: {found:#?}\nexpected: {expected:#?}"))
}

fn tracks(truth: &Truth, trace: &Trace) -> Option<String> {
    let head = (trace.process.as_str(), trace.pid, trace.is_truncated);
    if let Some(difference) = differ("the process", &head, &("program", 77, false)) {
        return Some(difference);
    }
    let samples = trace.tracks.iter().find(|track| track.uuid == crate::encode::SAMPLES_TRACK);
    let samples = samples.map_or(&[][..], |track| &track.instants);
    let threads: Vec<&Track> = trace.tracks.iter().filter(|track| track.tid.is_some()).collect();
    differ("samples", &samples, &&truth.of_process[..])
        .or_else(|| differ("threads", &threads.len(), &truth.threads.len()))
        .or_else(|| {
            threads
                .iter()
                .zip(&truth.threads)
                .find_map(|(track, thread)| its_tracks(trace, track, thread))
        })
}

/// The tracks of a thread.
fn its_tracks(trace: &Trace, track: &Track, thread: &Thread) -> Option<String> {
    let sorted = |mut slices: Vec<Slice>| {
        slices.sort_by_cached_key(|it| {
            let rest = format!("{} {:?}", it.name, it.arguments);
            (it.begin, it.end.is_none(), it.end, it.depth, rest)
        });
        slices
    };
    let rows: Vec<&Track> = trace.tracks.iter().filter(|row| row.parent == track.uuid).collect();
    let operations = thread.operations.iter().flat_map(Operation::slices);
    let of_rows = |slices: fn(&Track) -> &Vec<Slice>| {
        sorted(rows.iter().flat_map(|row| slices(row)).cloned().collect())
    };
    differ(
        "a thread",
        &(&track.name, track.tid),
        &(&thread.name(), Some(100 + thread.index as u64)),
    )
    .or_else(|| differ("slices", &track.slices, &thread.slices))
    .or_else(|| differ("moments", &track.instants, &thread.moments))
    .or_else(|| differ("rows", &rows.len(), &thread.rows))
    .or_else(|| differ("operations", &of_rows(|row| &row.slices), &sorted(operations.collect())))
    .or_else(|| {
        let expected = sorted(thread.of_operations.clone());
        differ("moments of operations", &of_rows(|row| &row.instants), &expected)
    })
}

fn figures(truth: &Truth, summary: &Summary) -> Option<String> {
    let kinds = summary.kinds.iter().map(|it| {
        let counts = [it.count, it.plain, it.queue, it.lane, it.errors, it.bytes];
        (it.name.as_str(), counts, [it.whole, it.submit, it.kernel, it.scheduling])
    });
    let expected_kinds = expected::kinds(truth).into_iter().map(|it| {
        let [plain, queue, lane] = it.ways;
        (it.name, [it.count, plain, queue, lane, it.errors, it.bytes], it.times)
    });
    let threads = summary
        .threads
        .iter()
        .map(|it| (it.name.clone(), [it.computing, it.in_flight, it.overlap], it.mean_in_flight));
    let expected_threads = truth.threads.iter().filter_map(expected::figures);
    let expected_threads =
        expected_threads.map(|it| (it.name, [it.computing, it.in_flight, it.overlap], it.mean));
    let workers = findings::handed_over(truth)
        .map_or_else(|| Workers::Inferred(findings::most_workers(truth)), Workers::Counted);
    let all = (summary.duration, summary.lost);
    differ("kinds", &kinds.collect::<Vec<_>>(), &expected_kinds.collect())
        .or_else(|| differ("threads", &threads.collect::<Vec<_>>(), &expected_threads.collect()))
        .or_else(|| differ("calls", &summary.calls, &expected::calls(truth)))
        .or_else(|| differ("workers", &summary.workers, &workers))
        .or_else(|| differ("duration, lost", &all, &(truth.last() - truth.first(), truth.lost)))
}

/// The text, without the spaces of its columns.
fn text(truth: &Truth, trace: &Trace) -> Option<String> {
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    [false, true].into_iter().find_map(|is_truncated| {
        let trace = Trace { is_truncated, ..trace.clone() };
        let text = Summary::of(&trace).to_string();
        let found: Vec<String> = text.lines().map(words).filter(|line| !line.is_empty()).collect();
        let expected = expected::lines(truth, is_truncated);
        let expected: Vec<String> = expected.iter().map(|line| words(line)).collect();
        let mut pairs = found.iter().zip(&expected);
        let unlike = pairs.find(|(found, expected)| found != expected);
        unlike.map(|pair| format!("{pair:#?}")).or_else(|| differ("lines", &found, &expected))
    })
}

/// An error of the writer, at some pieces of the text.
fn unwritten(trace: &Trace, random: &mut Random) -> Option<String> {
    let summary = Summary::of(trace);
    let pieces = (random.below(STRIDE) as usize..).step_by(STRIDE as usize);
    untold_error(&summary, pieces).map(|piece| format!("no error at piece {piece} of\n{summary}"))
}

fn reshaped(bytes: &[u8], trace: &Trace, random: &mut Random) -> Option<String> {
    let reshaped = packets::reshaped(bytes, random);
    match Trace::read(&reshaped) {
        Ok(found) => differ("reshaped", &found, trace),
        Err(error) => Some(format!("reshaped: {error}")),
    }
}

/// A file that is cut short, continued by something else, or altered.
fn cut(bytes: &[u8], random: &mut Random) -> Option<String> {
    let ends = packets::ends(bytes);
    for _ in 0..2 {
        let at = match random.percent(30) {
            true => random.one_of(&ends),
            false => random.below(bytes.len() as u64 + 1) as usize,
        };
        let whole = ends.iter().copied().filter(|end| *end <= at).max().unwrap_or(0);
        let found = Trace::read(&bytes[..at]).ok();
        let mut expected = Trace::read(&bytes[..whole]).ok();
        expected.iter_mut().for_each(|trace| trace.is_truncated = at > whole);
        if let Some(difference) = differ("cut", &found, &expected) {
            return Some(difference);
        }
        if whole == 0 {
            continue;
        }
        // A field of another message; a tag of no form; a packet whose field is longer than it.
        let wrong: &[u8] = random.one_of(&[
            &[0x12, 0][..],
            &[0x1a, 0x7f],
            &[0x07],
            &[0x0a, 2, 0x5a, 9],
            &[0x0a, 1, 0x80],
        ]);
        let altered = [&bytes[..whole], wrong, &bytes[whole..]].concat();
        let found = Trace::read(&altered).map_err(|error| error.offset);
        if let Some(difference) = differ("altered", &found.map(drop), &Err(whole)) {
            return Some(difference);
        }
    }
    None
}

fn pictures(truth: &Truth, trace: &Trace, random: &mut Random) -> Option<String> {
    let duration = truth.last() - truth.first();
    let from = random.below(duration + 1);
    let part = Stretch { from, to: Some(from + random.below(duration + 1)) };
    let end = Stretch { from: duration, to: Some(duration + random.below(9)) };
    let stretches = [Stretch::default(), part, end].into_iter();
    let mut found = stretches.map(|stretch| (stretch, picture::difference(truth, trace, stretch)));
    found.find_map(|(stretch, difference)| Some(format!("{stretch:?}: {}", difference?)))
}
