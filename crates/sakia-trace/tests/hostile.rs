//! Files that were cut short or altered.

use std::fs;
use std::sync::LazyLock;

use proptest::prelude::*;
use sakia_trace::{
    EventType, Name, Queued, Recording, Stretch, Summary, Trace, TraceOptions, plot, record,
};

/// A trace of 20 writes; a process has one recording at a time.
static BYTES: LazyLock<Vec<u8>> = LazyLock::new(recorded);

fn recorded() -> Vec<u8> {
    let path = std::env::temp_dir().join(format!("sakia-trace-hostile-{}", std::process::id()));
    let _ = fs::remove_file(&path);
    let recording = Recording::to_file(&path, TraceOptions::default()).expect("a recording");
    let kind = Name::register("write").number() as u16;
    for id in 0..20 {
        record(EventType::TurnBegin, 1, 1, 0);
        record(EventType::Queued, id, Queued { kind, fd: 3, bytes: 10 }.pack(), 1);
        record(EventType::Completed, id, 10, 0);
        record(EventType::Resumed, id, 0, 0);
        record(EventType::TurnEnd, 1, 0, 0);
    }
    recording.stop().expect("a file");
    let bytes = fs::read(&path).expect("a file");
    fs::remove_file(&path).expect("a file");
    bytes
}

/// Uses a file like `sakia trace summary` and `plot`: the result is an error that names the cause, or a
/// text and a picture.
fn use_file(bytes: &[u8]) {
    match Trace::read(bytes) {
        Ok(trace) => {
            assert!(!Summary::of(&trace).to_string().is_empty());
            assert!(plot(&trace, Stretch::default()).ends_with("</svg>\n"));
            plot(&trace, Stretch { from: 1 << 40, to: Some(7) });
        }
        Err(error) => assert!(error.to_string().starts_with("this is no trace of Sakia: ")),
    }
}

#[test]
fn files_that_end_early_are_read_as_far_as_they_go() {
    let bytes = &*BYTES;
    let whole = Trace::read(bytes).expect("a trace");
    let slices = |trace: &Trace| trace.tracks.iter().map(|track| track.slices.len()).sum::<usize>();
    assert_eq!((slices(&whole), whole.is_truncated), (40, false));
    use_file(bytes);
    let mut last = 0;
    let mut truncated = 0;
    for len in 0..bytes.len() {
        match Trace::read(&bytes[..len]) {
            Ok(trace) => {
                assert!(slices(&trace) >= last && slices(&trace) <= 40);
                last = slices(&trace);
                truncated += usize::from(trace.is_truncated);
            }
            Err(error) => assert!(last == 0 && error.to_string().contains("no trace"), "{error}"),
        }
    }
    assert!(truncated > bytes.len() / 2, "most cuts are within a packet");
}

proptest! {
    #[test]
    fn altered_files_end_in_an_error_or_are_read(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        len in any::<prop::sample::Index>(),
    ) {
        let mut bytes = BYTES.clone();
        for (index, byte) in changes {
            let index = index.index(bytes.len());
            bytes[index] = byte;
        }
        use_file(&bytes[..len.index(bytes.len())]);
        use_file(&bytes);
    }

    #[test]
    fn random_bytes_are_no_trace(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        use_file(&bytes);
    }
}
