//! A recording of a program on each backend is what the published schema says.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;

use perfetto_protos::trace::Trace;
use perfetto_protos::trace_packet::trace_packet::Data;
use perfetto_protos::track_event::track_event::{self, Type};
use protobuf::Message;
use sakia::trace::{EventKind, Recording, StaticName, TraceOptions, span};

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
    let mut names: HashMap<u64, String> = HashMap::new();
    let mut open: HashMap<u64, i64> = HashMap::new();
    let (mut events, mut found, mut clocks) = (0, 0, 0);
    for packet in &trace.packet {
        assert!(packet.unknown_fields().iter().next().is_none(), "{packet:?}");
        if let Some(interned) = packet.interned_data.as_ref() {
            assert!(interned.unknown_fields().iter().next().is_none(), "{interned:?}");
            for name in &interned.event_names {
                names.insert(name.iid(), name.name().into());
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
                }
                if let Some(track_event::Name_field::NameIid(iid)) = &event.name_field {
                    assert!(names.contains_key(iid), "{event:?}");
                    found += u64::from(names[iid] == "found");
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
            Some(Data::ClockSnapshot(snapshot)) => {
                clocks += 1;
                assert_eq!(snapshot.clocks.len(), 3);
                assert_eq!(packet.trace_packet_defaults.timestamp_clock_id(), 3);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((clocks, found), (1, 50));
    assert!(events > 400);
    // Where Perfetto's own reader is installed, it reads the file without an error.
    let ends: Vec<_> = open.into_iter().filter(|(_, depth)| *depth != 0).collect();
    assert_eq!(ends, [], "slices that have not ended");
}
