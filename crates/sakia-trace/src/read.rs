//! Reads a trace file back: tracks with slices and instants.
//!
//! Only the output of this crate is understood; packets and fields of other producers are skipped. The file
//! may be cut short, as that of a killed program, or not be a trace at all.

use std::collections::BTreeMap;
use std::fmt;

use crate::protobuf::{Fields, Malformed, Value as Field};
use crate::schema::{event, interned, packet, trace, track};

/// The longest text of a file that is kept.
const TEXT_MAX: usize = 4096;

/// A trace.
///
/// # Examples
/// ```
/// use sakia_trace::{EventKind, Recording, Trace, TraceOptions};
///
/// # let dir = std::env::temp_dir().join(format!("sakia-trace-read-{}", std::process::id()));
/// # std::fs::create_dir(&dir)?;
/// let recording = Recording::to_file(dir.join("trace"), TraceOptions::default())?;
/// EventKind::register("found", ["key", "bytes"]).record(17, 4096);
/// let path = recording.stop()?.path;
///
/// let trace = Trace::read(&std::fs::read(path)?).expect("it is complete");
/// assert_eq!((trace.pid, trace.is_truncated), (std::process::id().into(), false));
/// let found = trace.tracks.iter().flat_map(|track| &track.instants).find(|i| i.name == "found");
/// let found = found.expect("it was recorded");
/// assert_eq!((found.number("key"), found.number("bytes")), (Some(17), Some(4096)));
/// # std::fs::remove_dir_all(&dir)?;
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Trace {
    /// The name of the program.
    pub process: String,
    /// Its number.
    pub pid: u64,
    /// Threads, and the tracks of their operations.
    pub tracks: Vec<Track>,
    /// Set if the file ends within a packet: its program was killed, or still runs.
    pub is_truncated: bool,
}

/// A row of the trace.
///
/// # Examples
/// See [`Trace`](Trace#examples).
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Track {
    /// The file's number for this track.
    pub uuid: u64,
    /// The number of the parent track.
    pub parent: u64,
    /// Its name: that of a thread, or "operations".
    pub name: String,
    /// The thread's number, for a thread.
    pub tid: Option<u64>,
    /// Stretches of time, in the order of their ends.
    pub slices: Vec<Slice>,
    /// Moments.
    pub instants: Vec<Slice>,
}

/// A stretch of time, or a moment.
///
/// # Examples
/// See [`Trace`](Trace#examples).
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Slice {
    /// The name.
    pub name: String,
    /// The category: "operation", "system call", "turn", "task", "scope", "span", "program" for the program's
    /// own moments, "recording" for samples of the process and lost events.
    pub category: String,
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    pub begin: u64,
    /// The end, on the same clock; `None` if it had not ended when the file did.
    pub end: Option<u64>,
    /// The number of slices around it on the same track.
    pub depth: usize,
    /// Its arguments.
    pub arguments: Vec<(String, Value)>,
}

/// The value of an argument.
///
/// # Examples
/// See [`Trace`](Trace#examples).
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A number.
    Number(i64),
    /// A text.
    Text(String),
}

/// The error of bytes that are no trace of this crate.
///
/// # Examples
/// ```
/// let error = sakia_trace::Trace::read(b"something else").unwrap_err();
/// assert!(error.to_string().starts_with("this is no trace of Sakia: "));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadError {
    /// The byte of the file at which reading stopped.
    pub offset: usize,
    what: &'static str,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this is no trace of Sakia: {} at byte {}", self.what, self.offset)
    }
}

impl std::error::Error for ReadError {}

impl Slice {
    /// Returns the value of an argument that is a number.
    ///
    /// # Examples
    /// See [`Trace`](Trace#examples).
    pub fn number(&self, name: &str) -> Option<i64> {
        self.arguments.iter().find(|(known, _)| known == name).and_then(|(_, value)| match value {
            Value::Number(number) => Some(*number),
            Value::Text(_) => None,
        })
    }

    /// Returns the value of an argument that is a text.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.arguments.iter().find(|(known, _)| known == name).and_then(|(_, value)| match value {
            Value::Number(_) => None,
            Value::Text(text) => Some(text.as_str()),
        })
    }

    /// Returns whether it is of this category and has this name. A program may use each name for its own
    /// events.
    pub(crate) fn is(&self, category: &str, name: &str) -> bool {
        self.name == name && self.category == category
    }

    /// Returns its length in nanoseconds; `None` if it has not ended.
    pub fn duration(&self) -> Option<u64> {
        Some(self.end?.saturating_sub(self.begin))
    }
}

/// A track event as it is in the file.
#[derive(Debug, Default)]
struct RawEvent {
    time: u64,
    kind: u64,
    track: u64,
    name: u64,
    category: u64,
    arguments: Vec<(u64, RawValue)>,
}

/// The value of an argument as the file has it.
#[derive(Clone, Copy, Debug)]
enum RawValue {
    Number(i64),
    /// The identifier of a text.
    Text(u64),
}

#[derive(Debug, Default)]
struct Reader {
    process: (String, u64),
    tracks: BTreeMap<u64, Track>,
    names: BTreeMap<(u32, u64), String>,
    events: Vec<RawEvent>,
    has_sequence: bool,
}

impl Trace {
    /// Reads the bytes of a file.
    ///
    /// # Errors
    /// The bytes are no trace, or are altered. A file that only ends too early is read as far as it goes, see
    /// [`is_truncated`](Trace::is_truncated).
    ///
    /// # Examples
    /// See [`Trace`](Trace#examples).
    pub fn read(bytes: &[u8]) -> Result<Self, ReadError> {
        let mut reader = Reader::default();
        let mut fields = Fields(bytes);
        let mut is_truncated = false;
        loop {
            let offset = bytes.len() - fields.0.len();
            let before = fields.0;
            match fields.next() {
                None => break,
                Some(Ok((trace::PACKET, Field::Bytes(packet)))) => {
                    reader
                        .packet(packet)
                        .map_err(|Malformed| ReadError { offset, what: "a malformed packet" })?;
                }
                Some(Ok(_)) => {
                    return Err(ReadError { offset, what: "something else than a packet" });
                }
                Some(Err(Malformed)) if reader.has_sequence && is_begin_of_packet(before) => {
                    is_truncated = true;
                    break;
                }
                Some(Err(Malformed)) => {
                    return Err(ReadError { offset, what: "a malformed packet" });
                }
            }
        }
        if !reader.has_sequence {
            return Err(ReadError { offset: bytes.len(), what: "no packet of it" });
        }
        Ok(reader.finish(is_truncated))
    }
}

/// Returns true if the bytes may be the beginning of a packet whose end is missing.
fn is_begin_of_packet(bytes: &[u8]) -> bool {
    bytes.first() == Some(&((trace::PACKET << 3 | 2) as u8))
}

fn text(field: Field<'_>) -> String {
    let bytes = field.bytes();
    String::from_utf8_lossy(&bytes[..bytes.len().min(TEXT_MAX)]).into_owned()
}

impl Reader {
    fn packet(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        let mut found = RawEvent::default();
        let mut is_event = false;
        for field in Fields(bytes) {
            let (number, value) = field?;
            match number {
                packet::TIMESTAMP => found.time = value.number(),
                packet::SEQUENCE => self.has_sequence = true,
                packet::INTERNED_DATA => self.interned(value.bytes())?,
                packet::TRACK_DESCRIPTOR => self.descriptor(value.bytes())?,
                packet::TRACK_EVENT => {
                    is_event = true;
                    event(value.bytes(), &mut found)?;
                }
                _ => {}
            }
        }
        if is_event {
            self.events.push(found);
        }
        Ok(())
    }

    fn interned(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        for field in Fields(bytes) {
            let (kind, value) = field?;
            if !interned::FIELDS.contains(&kind) {
                continue; // of another producer: it may be no message
            }
            let (mut iid, mut name) = (0, String::new());
            for field in Fields(value.bytes()) {
                match field? {
                    (interned::IID, value) => iid = value.number(),
                    (interned::NAME, value) => name = text(value),
                    _ => {}
                }
            }
            self.names.insert((kind, iid), name);
        }
        Ok(())
    }

    fn descriptor(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        let mut found = Track::default();
        let mut process = None;
        for field in Fields(bytes) {
            match field? {
                (track::UUID, value) => found.uuid = value.number(),
                (track::PARENT, value) => found.parent = value.number(),
                (track::NAME, value) => found.name = text(value),
                (track::PROCESS, value) => {
                    let (mut pid, mut name) = (0, String::new());
                    for field in Fields(value.bytes()) {
                        match field? {
                            (track::PROCESS_PID, value) => pid = value.number(),
                            (track::PROCESS_NAME, value) => name = text(value),
                            _ => {}
                        }
                    }
                    process = Some((name, pid));
                }
                (track::THREAD, value) => {
                    for field in Fields(value.bytes()) {
                        match field? {
                            (track::THREAD_TID, value) => found.tid = Some(value.number()),
                            (track::THREAD_NAME, value) => found.name = text(value),
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        match process {
            Some(process) => self.process = process,
            None => drop(self.tracks.insert(found.uuid, found)),
        }
        Ok(())
    }

    fn finish(mut self, is_truncated: bool) -> Trace {
        // The file has a track's events in the order of their ends; among events of the same time the order
        // is right.
        let mut events = std::mem::take(&mut self.events);
        events.sort_by_key(|event| event.time);
        let mut open: BTreeMap<u64, Vec<Slice>> = BTreeMap::new();
        for raw in events {
            let Some(track) = self.tracks.get_mut(&raw.track) else { continue };
            let stack = open.entry(raw.track).or_default();
            let name = |kind, iid| self.names.get(&(kind, iid)).cloned().unwrap_or_default();
            let arguments = raw.arguments.into_iter();
            let arguments = arguments.map(|(iid, value)| {
                let value = match value {
                    RawValue::Number(number) => Value::Number(number),
                    RawValue::Text(iid) => Value::Text(name(interned::TEXTS, iid)),
                };
                (name(interned::ANNOTATION_NAMES, iid), value)
            });
            let slice = |end, depth| Slice {
                name: name(interned::EVENT_NAMES, raw.name),
                category: name(interned::CATEGORIES, raw.category),
                begin: raw.time,
                end,
                depth,
                arguments: Vec::new(),
            };
            match raw.kind {
                event::SLICE_BEGIN => {
                    let mut slice = slice(None, stack.len());
                    slice.arguments.extend(arguments);
                    stack.push(slice);
                }
                event::SLICE_END => {
                    if let Some(mut slice) = stack.pop() {
                        slice.end = Some(raw.time);
                        slice.arguments.extend(arguments);
                        track.slices.push(slice);
                    }
                }
                event::INSTANT => {
                    let mut slice = slice(Some(raw.time), stack.len());
                    slice.arguments.extend(arguments);
                    track.instants.push(slice);
                }
                _ => {}
            }
        }
        for (uuid, stack) in open {
            if let Some(track) = self.tracks.get_mut(&uuid) {
                track.slices.extend(stack.into_iter().rev());
            }
        }
        let (process, pid) = self.process;
        Trace { process, pid, tracks: self.tracks.into_values().collect(), is_truncated }
    }
}

fn event(bytes: &[u8], found: &mut RawEvent) -> Result<(), Malformed> {
    for field in Fields(bytes) {
        match field? {
            (event::TYPE, value) => found.kind = value.number(),
            (event::TRACK, value) => found.track = value.number(),
            (event::NAME_IID, value) => found.name = value.number(),
            (event::CATEGORY_IIDS, value) => found.category = value.number(),
            (event::ANNOTATIONS, value) => {
                let (mut iid, mut argument) = (0, RawValue::Number(0));
                for field in Fields(value.bytes()) {
                    match field? {
                        (event::ANNOTATION_NAME_IID, value) => iid = value.number(),
                        (event::ANNOTATION_UINT | event::ANNOTATION_INT, value) => {
                            argument = RawValue::Number(value.number() as i64);
                        }
                        (event::ANNOTATION_STRING_IID, value) => {
                            argument = RawValue::Text(value.number());
                        }
                        _ => {}
                    }
                }
                found.arguments.push((iid, argument));
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protobuf::Message;

    /// Adds a message in others, the outermost first; its last byte is the begin of a field.
    fn malformed(message: &mut Message, within: &[u32]) {
        match within {
            [] => message.0.push(0x80),
            [field, rest @ ..] => message.nested(*field, |inner| malformed(inner, rest)),
        }
    }

    #[test]
    fn a_malformed_message_is_refused_wherever_it_is() {
        use packet::{INTERNED_DATA, TRACK_DESCRIPTOR, TRACK_EVENT};
        let all: [&[u32]; 10] = [
            &[],
            &[INTERNED_DATA],
            &[INTERNED_DATA, interned::CATEGORIES],
            &[INTERNED_DATA, interned::EVENT_NAMES],
            &[INTERNED_DATA, interned::ANNOTATION_NAMES],
            &[TRACK_DESCRIPTOR],
            &[TRACK_DESCRIPTOR, track::PROCESS],
            &[TRACK_DESCRIPTOR, track::THREAD],
            &[TRACK_EVENT],
            &[TRACK_EVENT, event::ANNOTATIONS],
        ];
        for within in all {
            let mut file = Message::default();
            file.nested(trace::PACKET, |packet| packet.uint(packet::SEQUENCE, 1));
            assert!(Trace::read(&file.0).is_ok());
            let offset = file.0.len();
            file.nested(trace::PACKET, |packet| malformed(packet, within));
            let error = Trace::read(&file.0).expect_err("it is malformed");
            assert_eq!((error.offset, error.what), (offset, "a malformed packet"), "{within:?}");
        }
    }

    #[test]
    fn files_without_a_packet_of_it_are_refused() {
        let mut of_another = Message::default();
        of_another.nested(trace::PACKET, |packet| packet.uint(packet::TIMESTAMP, 1));
        for bytes in [&[][..], &of_another.0] {
            let error = Trace::read(bytes).expect_err("it is no trace");
            assert_eq!((error.offset, error.what), (bytes.len(), "no packet of it"));
        }
    }
}
