//! The operations that a ring's kernel handed to its workers, added to a finished recording.
//!
//! A process does not see that; the kernel has a tracepoint for it, which root may read. A reader of it adds
//! a packet to the file: a moment of the process with a count for each operation that was handed over.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

use crate::Trace;
use crate::protobuf::Message;
use crate::schema::{clock, defaults, event, interned, packet, trace};

/// The name of the moment.
pub(crate) const NAME: &str = "handed to kernel workers";

/// A sequence of its own, so that it has its own names.
const SEQUENCE: u64 = 2;
/// The first identifier: above those of all names of the recording itself.
const FIRST_IID: u64 = 1 << 20;

/// Adds to a finished recording which operations the ring's kernel handed to its workers: a thread's number
/// and the operation's name for each, of any process. Those of other processes' threads are left out.
/// Returns the number of the others.
///
/// A recording that was cut short is left as it is: 0 then.
///
/// # Errors
/// - `InvalidData`: the file is no recording.
/// - Those of `open(2)`, `read(2)` and `write(2)`. A link is not followed.
pub fn add_handed_over<'a>(
    path: &Path,
    handed_over: impl IntoIterator<Item = (u64, &'a str)>,
) -> io::Result<u64> {
    let flags = OFlags::NOFOLLOW.bits() as i32;
    let mut file = fs::OpenOptions::new().read(true).append(true).custom_flags(flags).open(path)?;
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut file, &mut bytes)?;
    let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
    let recorded = Trace::read(&bytes).map_err(invalid)?;
    if recorded.is_truncated {
        return Ok(0);
    }
    let threads: BTreeSet<u64> = recorded.tracks.iter().filter_map(|track| track.tid).collect();
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for (_, name) in handed_over.into_iter().filter(|(thread, _)| threads.contains(thread)) {
        *counts.entry(name).or_default() += 1;
    }
    let slices =
        recorded.tracks.iter().flat_map(|track| track.slices.iter().chain(&track.instants));
    let time = slices.map(|slice| slice.end.unwrap_or(slice.begin)).max().unwrap_or(0);
    file.write_all(&encode(time, &counts).0)?;
    Ok(counts.values().sum())
}

fn encode(time: u64, counts: &BTreeMap<&str, u64>) -> Message {
    let mut out = Message::default();
    let (name, category, first) = (FIRST_IID, FIRST_IID + 1, FIRST_IID + 2);
    out.nested(trace::PACKET, |message| {
        message.uint(packet::TIMESTAMP, time);
        message.uint(packet::SEQUENCE, SEQUENCE);
        message.uint(packet::SEQUENCE_FLAGS, packet::STATE_CLEARED | packet::NEEDS_STATE);
        message.nested(packet::TRACE_PACKET_DEFAULTS, |message| {
            message.uint(defaults::TIMESTAMP_CLOCK, clock::MONOTONIC);
        });
        message.nested(packet::INTERNED_DATA, |message| {
            let mut intern = |field, iid, text: &str| {
                message.nested(field, |message| {
                    message.uint(interned::IID, iid);
                    message.string(interned::NAME, text);
                });
            };
            intern(interned::EVENT_NAMES, name, NAME);
            intern(interned::CATEGORIES, category, crate::encode::category::RECORDING);
            for (iid, operation) in (first..).zip(counts.keys()) {
                intern(interned::ANNOTATION_NAMES, iid, operation);
            }
        });
        message.nested(packet::TRACK_EVENT, |message| {
            message.uint(event::TYPE, event::INSTANT);
            message.uint(event::TRACK, crate::encode::SAMPLES_TRACK);
            message.uint(event::NAME_IID, name);
            message.uint(event::CATEGORY_IIDS, category);
            for (iid, count) in (first..).zip(counts.values()) {
                message.nested(event::ANNOTATIONS, |message| {
                    message.uint(event::ANNOTATION_NAME_IID, iid);
                    message.uint(event::ANNOTATION_UINT, *count);
                });
            }
        });
    });
    out
}
