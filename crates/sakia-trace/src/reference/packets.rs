//! Packets of a file: what Perfetto asks of them, and other shapes that its format allows.

use std::collections::{BTreeMap, BTreeSet};

use sakia_testkit::random::Random;

use crate::protobuf::{Fields, Value};
use crate::schema::{clock, defaults, event, interned, packet, trace, track};

type Field<'a> = (u32, Value<'a>);

fn fields(bytes: &[u8]) -> Vec<Field<'_>> {
    Fields(bytes).map(|field| field.expect("the encoder writes what is well formed")).collect()
}

fn get(bytes: &[u8], number: u32) -> Option<Value<'_>> {
    fields(bytes).into_iter().find(|(its, _)| *its == number).map(|(_, value)| value)
}

fn number(bytes: &[u8], field: u32) -> Option<u64> {
    get(bytes, field).map(Value::number)
}

/// Returns the ends of the packets of a file: the places at which it may be cut.
pub(super) fn ends(bytes: &[u8]) -> Vec<usize> {
    let mut fields = Fields(bytes);
    std::iter::from_fn(|| {
        fields.next()?.expect("well formed");
        Some(bytes.len() - fields.0.len())
    })
    .collect()
}

/// Returns what Perfetto would not read: a name or a track that no earlier packet has, clocks that are wrong.
pub(super) fn misread(bytes: &[u8], clocks: [u64; 3]) -> Option<String> {
    let (mut names, mut tracks) = (BTreeSet::new(), BTreeSet::new());
    for (index, (_, value)) in fields(bytes).into_iter().enumerate() {
        let packet = value.bytes();
        let sequence = number(packet, packet::SEQUENCE);
        if !sequence.is_some_and(|it| it == 1 || it == 2) {
            return Some(format!("packet {index} is of sequence {sequence:?}"));
        }
        let flags = number(packet, packet::SEQUENCE_FLAGS).unwrap_or(0);
        let is_first = number(packet, packet::FIRST_ON_SEQUENCE) == Some(1);
        if is_first != (index == 0) || index == 0 && (flags != 1 || snapshot(packet) != clocks) {
            return Some(format!(
                "the begin is wrong: flags {flags}, clocks {:?}",
                snapshot(packet)
            ));
        }
        for (use_of, value) in
            get(packet, packet::INTERNED_DATA).iter().flat_map(|it| fields(it.bytes()))
        {
            if let Some(iid) = number(value.bytes(), interned::IID).filter(|iid| *iid > 0) {
                names.insert((sequence, use_of, iid));
            }
        }
        if let Some(it) = get(packet, packet::TRACK_DESCRIPTOR) {
            let parent = number(it.bytes(), track::PARENT);
            if parent.is_some_and(|parent| !tracks.contains(&parent)) {
                return Some(format!("packet {index}: the parent {parent:?} comes later"));
            }
            if !tracks.insert(number(it.bytes(), track::UUID).unwrap_or(0)) {
                return Some(format!("packet {index} describes a track once more"));
            }
        }
        let Some(it) = get(packet, packet::TRACK_EVENT) else { continue };
        let mut used = vec![];
        for (field, value) in fields(it.bytes()) {
            match field {
                event::NAME_IID => used.push((interned::EVENT_NAMES, value.number())),
                event::CATEGORY_IIDS => used.push((interned::CATEGORIES, value.number())),
                event::ANNOTATIONS => {
                    let it = value.bytes();
                    let name = number(it, event::ANNOTATION_NAME_IID).unwrap_or(0);
                    used.push((interned::ANNOTATION_NAMES, name));
                    let text = number(it, event::ANNOTATION_STRING_IID);
                    used.extend(text.map(|text| (interned::TEXTS, text)));
                }
                event::TRACK if !tracks.contains(&value.number()) => {
                    return Some(format!("packet {index} is of track {}", value.number()));
                }
                _ => {}
            }
        }
        let unknown = used.iter().find(|(use_of, iid)| !names.contains(&(sequence, *use_of, *iid)));
        if flags & 2 == 0 || unknown.is_some() {
            return Some(format!("packet {index}: flags {flags}, unknown {unknown:?}"));
        }
    }
    None
}

/// Returns the clocks of the first packet, if the monotonic one is that of all events.
fn snapshot(packet: &[u8]) -> [u64; 3] {
    let its = get(packet, packet::TRACE_PACKET_DEFAULTS).map_or(&[][..], Value::bytes);
    if number(its, defaults::TIMESTAMP_CLOCK) != Some(clock::MONOTONIC) {
        return [0; 3];
    }
    let clocks = fields(get(packet, packet::CLOCK_SNAPSHOT).map_or(&[], Value::bytes));
    let clocks: BTreeMap<_, _> = clocks
        .iter()
        .map(|(_, it)| (number(it.bytes(), clock::ID), number(it.bytes(), clock::TIMESTAMP)))
        .collect();
    let of = |id| clocks.get(&Some(id)).copied().flatten().unwrap_or(0);
    [of(clock::MONOTONIC), of(clock::REALTIME), of(clock::BOOTTIME)]
}

/// Returns the same trace in another shape: unknown fields of each form everywhere, the known ones in another
/// order, some twice with another value before, numbers longer than they need to be, and packets in any
/// order, except that events of the same time on a track keep theirs.
pub(super) fn reshaped(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let mut keys: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    let mut packets: Vec<(u64, Vec<u8>)> = Vec::new();
    for (_, value) in fields(bytes) {
        let packet = value.bytes();
        let mut key = random.word();
        if let Some(it) = get(packet, packet::TRACK_EVENT) {
            let at = (number(it.bytes(), event::TRACK), number(packet, packet::TIMESTAMP));
            key = *keys.entry((at.0.unwrap_or(0), at.1.unwrap_or(0))).or_insert(key);
        }
        packets.push((key, message(&[trace::PACKET], packet, random)));
    }
    packets.sort_by_key(|(key, _)| *key);
    let mut out = Vec::new();
    for (_, packet) in packets {
        field(&mut out, trace::PACKET, Value::Bytes(&packet), random);
    }
    out
}

/// The messages, by the fields that lead to them, which have messages within.
const NESTED: &[&[u32]] = &[
    &[trace::PACKET, packet::INTERNED_DATA],
    &[trace::PACKET, packet::INTERNED_DATA, interned::CATEGORIES],
    &[trace::PACKET, packet::INTERNED_DATA, interned::EVENT_NAMES],
    &[trace::PACKET, packet::INTERNED_DATA, interned::ANNOTATION_NAMES],
    &[trace::PACKET, packet::INTERNED_DATA, interned::TEXTS],
    &[trace::PACKET, packet::TRACK_DESCRIPTOR],
    &[trace::PACKET, packet::TRACK_DESCRIPTOR, track::PROCESS],
    &[trace::PACKET, packet::TRACK_DESCRIPTOR, track::THREAD],
    &[trace::PACKET, packet::TRACK_EVENT],
    &[trace::PACKET, packet::TRACK_EVENT, event::ANNOTATIONS],
];

fn message(path: &[u32], bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let mut its = fields(bytes);
    let is_repeated = |(number, _): &Field<'_>| {
        path.last() == Some(&packet::TRACK_EVENT) && *number == event::ANNOTATIONS
    };
    let mut repeated: Vec<Field<'_>> = its.iter().copied().filter(is_repeated).collect();
    for index in (1..its.len()).rev() {
        its.swap(index, random.below(index as u64 + 1) as usize);
    }
    // Arguments keep their order.
    for at in its.iter_mut().filter(|it| is_repeated(it)) {
        *at = repeated.remove(0);
    }
    let mut out = Vec::new();
    for (number, value) in its {
        if random.percent(10) {
            unknown(&mut out, random);
        }
        let path = [path, &[number]].concat();
        match value {
            Value::Bytes(bytes) if NESTED.contains(&&path[..]) => {
                let bytes = message(&path, bytes, random);
                field(&mut out, number, Value::Bytes(&bytes), random);
            }
            Value::Number(_) if random.percent(5) && path.len() < 4 => {
                // The last one counts.
                let other = random.word();
                field(&mut out, number, Value::Number(other), random);
                field(&mut out, number, value, random);
            }
            _ => field(&mut out, number, value, random),
        }
    }
    if random.percent(10) {
        unknown(&mut out, random);
    }
    out
}

fn unknown(out: &mut Vec<u8>, random: &mut Random) {
    let number = 900 + random.below(100) as u32;
    match random.below(4) {
        0 => field(out, number, Value::Number(random.word()), random),
        1 => field(out, number, Value::Bytes(b"\x0a\xff unknown"), random),
        // Numbers of eight and four bytes.
        2 => {
            varint(out, u64::from(number << 3 | 1), random);
            out.extend(random.word().to_le_bytes());
        }
        _ => {
            varint(out, u64::from(number << 3 | 5), random);
            out.extend((random.word() as u32).to_le_bytes());
        }
    }
}

fn field(out: &mut Vec<u8>, number: u32, value: Value<'_>, random: &mut Random) {
    match value {
        Value::Number(value) => {
            varint(out, u64::from(number << 3), random);
            varint(out, value, random);
        }
        Value::Bytes(bytes) => {
            // A packet begins with one byte, so that the begin of one is known.
            match number {
                trace::PACKET => out.push((number << 3 | 2) as u8),
                _ => varint(out, u64::from(number << 3 | 2), random),
            }
            varint(out, bytes.len() as u64, random);
            out.extend_from_slice(bytes);
        }
    }
}

/// Adds a number, at times with more bytes than it needs.
fn varint(out: &mut Vec<u8>, mut value: u64, random: &mut Random) {
    let mut len = 1;
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
        len += 1;
    }
    let more = if random.percent(10) { random.below(11 - len) } else { 0 };
    match more {
        0 => out.push(value as u8),
        _ => {
            out.push(value as u8 | 0x80);
            out.extend(std::iter::repeat_n(0x80, more as usize - 1));
            out.push(0);
        }
    }
}
