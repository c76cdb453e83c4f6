//! A recording of a program on each backend is what the published schema says.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;

use perfetto_protos::trace::Trace;
use perfetto_protos::trace_packet::trace_packet::Data;
use perfetto_protos::track_event::track_event::{self, Type};
use protobuf::Message;
use sakia::trace::{EventKind, Recording, StaticName, TraceOptions, add_handed_over, span};

/// Reads files, with spans and a kind of its own.
fn program(folder: &Path) {
    static READING: StaticName = StaticName::new("reading");
    let found = EventKind::register("found", ["number", "bytes"]);
    for number in 0..50 {
        fs::write(folder.join(number.to_string()), vec![1; 5000]).expect("a file");
    }
    sakia::block_on(async {
        let mut tasks = Vec::new();
        for number in 0..50_u64 {
            let path = folder.join(number.to_string());
            tasks.push(sakia::spawn(async move {
                let bytes = sakia::fs::read(&path).await.expect("a file");
                let _reading = span(&READING);
                found.record(number, bytes.len() as u64);
            }));
        }
        for task in tasks {
            task.await.expect("no panic");
        }
    });
}

#[test]
fn a_recording_is_what_the_schema_says() {
    let folder = std::env::temp_dir().join(format!("sakia-schema-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join("trace");
    let recording = Recording::to_file(&path, TraceOptions::default()).expect("a recording");
    program(&folder);
    let summary = recording.stop().expect("a file");
    assert!(summary.events > 200 && summary.lost == 0, "{summary:?}");
    let read = sakia::trace::Trace::read(&fs::read(&path).expect("a file")).expect("a trace");
    let thread = read.tracks.iter().find_map(|track| track.tid).expect("a thread");
    assert_eq!(add_handed_over(&path, [(thread, "MKDIRAT")]).expect("a file"), 1);
    let bytes = fs::read(&path).expect("a file");
    fs::remove_dir_all(&folder).expect("a folder");

    let trace = Trace::parse_from_bytes(&bytes).expect("the schema");
    assert_eq!(
        trace.compute_size(),
        Trace::parse_from_bytes(&trace.write_to_bytes().expect("bytes"))
            .expect("again")
            .compute_size()
    );
    let mut tracks = HashSet::new();
    let mut names: HashMap<(u32, u64), String> = HashMap::new();
    let (mut argument_names, mut texts) = (HashSet::new(), HashMap::new());
    let (mut ways, mut handed_over) = (0, 0);
    let mut open: HashMap<u64, i64> = HashMap::new();
    let (mut events, mut found, mut clocks) = (0, 0, 0);
    for packet in &trace.packet {
        let sequence = packet.trusted_packet_sequence_id();
        assert!(packet.unknown_fields().iter().next().is_none(), "{packet:?}");
        if let Some(interned) = packet.interned_data.as_ref() {
            assert!(interned.unknown_fields().iter().next().is_none(), "{interned:?}");
            for name in &interned.event_names {
                names.insert((sequence, name.iid()), name.name().into());
            }
            for name in &interned.debug_annotation_names {
                argument_names.insert((sequence, name.iid()));
            }
            for text in &interned.debug_annotation_string_values {
                texts.insert(
                    (sequence, text.iid()),
                    String::from_utf8_lossy(text.str()).into_owned(),
                );
            }
        }
        match &packet.data {
            Some(Data::TrackDescriptor(track)) => {
                assert!(track.unknown_fields().iter().next().is_none(), "{track:?}");
                assert!(tracks.insert(track.uuid()));
                assert!(!track.has_parent_uuid() || tracks.contains(&track.parent_uuid()));
            }
            Some(Data::TrackEvent(event)) => {
                events += 1;
                assert!(packet.has_timestamp());
                assert!(event.unknown_fields().iter().next().is_none(), "{event:?}");
                assert!(tracks.contains(&event.track_uuid()), "{event:?}");
                for argument in &event.debug_annotations {
                    assert!(
                        argument.unknown_fields().iter().next().is_none()
                            && argument.value.is_some(),
                        "{argument:?}"
                    );
                    assert!(
                        argument_names.contains(&(sequence, argument.name_iid())),
                        "{argument:?}"
                    );
                    if argument.has_string_value_iid() {
                        let text = texts.get(&(sequence, argument.string_value_iid()));
                        let text = text.expect("a text that came before");
                        ways += u64::from(matches!(text.as_str(), "plain call" | "queue" | "lane"));
                    }
                }
                if let Some(track_event::Name_field::NameIid(iid)) = &event.name_field {
                    let name = names.get(&(sequence, *iid)).expect("a name that came before");
                    found += u64::from(name == "found");
                    handed_over += u64::from(name == "handed to kernel workers");
                }
                let depth = open.entry(event.track_uuid()).or_default();
                match event.type_() {
                    Type::TYPE_SLICE_BEGIN => *depth += 1,
                    Type::TYPE_SLICE_END => *depth -= 1,
                    Type::TYPE_INSTANT => {}
                    other => panic!("{other:?}"),
                }
                assert!(*depth >= 0, "an end without a begin: {event:?}");
            }
            // Names of the next event.
            None => assert!(packet.interned_data.is_some(), "{packet:?}"),
            Some(Data::ClockSnapshot(snapshot)) => {
                clocks += 1;
                assert_eq!(snapshot.clocks.len(), 3);
                assert_eq!(packet.trace_packet_defaults.timestamp_clock_id(), 3);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((clocks, found, handed_over), (1, 50, 1));
    assert!(ways > 0, "operations say how they were done");
    assert!(events > 400);
    // Perfetto's own reader, if it is installed, reads the file without an error.
    let ends: Vec<_> = open.into_iter().filter(|(_, depth)| *depth != 0).collect();
    assert_eq!(ends, [], "slices that have not ended");
}
