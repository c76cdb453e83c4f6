//! The packet of a track event, of which nearly all of a file consists.
//!
//! Most of its bytes are the same each time, and the others stand at known places: a number of known range
//! takes its full width, since a varint may be longer than it needs to be. A packet is shorter than 128
//! bytes, so a length is one byte.
//!
//! Source: the encoding guide at protobuf.dev, and the [schema](crate::schema).

use crate::schema::{event, packet, trace};

/// The sequence of packets of a recording.
pub(crate) const SEQUENCE: u64 = 1;
/// The greatest number of arguments.
pub(crate) const ARGUMENTS_MAX: usize = 5;

/// The form of an argument's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// A number.
    Uint,
    /// A number with a sign.
    Int,
    /// The identifier of an interned text.
    Text,
}

/// A packet that grows.
#[derive(Debug)]
pub(crate) struct EventPacket {
    bytes: [u8; BYTES_MAX],
    len: usize,
}

/// Returns the tag of a field with a number, which must be below 16.
const fn number(field: u32) -> u8 {
    assert!(field < 16);
    (field << 3) as u8
}

/// Returns the tag of a field with bytes, which must be below 16.
const fn nested(field: u32) -> u8 {
    number(field) | 2
}

/// The bytes before the names and arguments.
const HEAD: [u8; 29] = {
    let mut head = [0; 29];
    head[0] = nested(trace::PACKET);
    head[2] = number(packet::TIMESTAMP);
    head[12] = number(packet::SEQUENCE);
    head[13] = SEQUENCE as u8;
    head[14] = number(packet::SEQUENCE_FLAGS);
    head[15] = packet::NEEDS_STATE as u8;
    head[16] = nested(packet::TRACK_EVENT);
    head[18] = number(event::TYPE);
    head[20] = number(event::TRACK);
    head
};
const PACKET_LEN_AT: usize = 1;
const TIME_AT: usize = 3;
const EVENT_LEN_AT: usize = 17;
const TYPE_AT: usize = 19;
const TRACK_AT: usize = 21;

const NAMES_LEN: usize = 8;
/// Tag and length, the name, and a value of ten bytes at most behind a tag of two.
const ARGUMENT_MAX: usize = 18;
const BYTES_MAX: usize = 128;
const _: () = assert!(HEAD.len() + NAMES_LEN + ARGUMENTS_MAX * ARGUMENT_MAX <= BYTES_MAX);

impl EventPacket {
    /// Begins a packet. `time` has 63 bits, `track` 56.
    #[inline(always)]
    pub(crate) fn new(time: u64, kind: u64, track: u64) -> Self {
        let mut bytes = [0; BYTES_MAX];
        bytes[..HEAD.len()].copy_from_slice(&HEAD);
        bytes[TIME_AT..TIME_AT + 8].copy_from_slice(&spread(time).to_le_bytes());
        bytes[TIME_AT + 8] = (time >> 56) as u8 & 0x7f;
        bytes[TYPE_AT] = kind as u8;
        let track = spread(track) & !(0x80 << 56);
        bytes[TRACK_AT..TRACK_AT + 8].copy_from_slice(&track.to_le_bytes());
        Self { bytes, len: HEAD.len() }
    }

    /// Adds the identifiers of its name and category. Called once, before arguments are added.
    #[inline(always)]
    pub(crate) fn names(&mut self, name: u32, category: u32) {
        let ([a, b, c], [d, e, f]) = (three(name), three(category));
        let names = [number(event::NAME_IID), a, b, c, number(event::CATEGORY_IIDS), d, e, f];
        self.bytes[HEAD.len()..HEAD.len() + NAMES_LEN].copy_from_slice(&names);
        self.len = HEAD.len() + NAMES_LEN;
    }

    /// Adds an argument by the identifier of its name. One beyond [`ARGUMENTS_MAX`] is left out.
    #[inline(always)]
    pub(crate) fn argument(&mut self, name: u32, form: Form, value: u64) {
        let Some(room) = self.bytes.get_mut(self.len..self.len + ARGUMENT_MAX) else {
            debug_assert!(false, "an event has {ARGUMENTS_MAX} arguments at most");
            return;
        };
        let [a, b, c] = three(name);
        room[0] = nested(event::ANNOTATIONS);
        room[2..6].copy_from_slice(&[number(event::ANNOTATION_NAME_IID), a, b, c]);
        let mut len = 7;
        room[6] = match form {
            Form::Uint => number(event::ANNOTATION_UINT),
            Form::Int => number(event::ANNOTATION_INT),
            Form::Text => {
                const TAG: u32 = event::ANNOTATION_STRING_IID << 3;
                room[7] = (TAG >> 7) as u8;
                len = 8;
                TAG as u8 | 0x80
            }
        };
        len += varint(&mut room[len..], value);
        room[1] = len as u8 - 2;
        self.len += len;
    }

    /// Completes the packet.
    #[inline(always)]
    pub(crate) fn finish(&mut self) -> &[u8] {
        self.bytes[PACKET_LEN_AT] = (self.len - PACKET_LEN_AT - 1) as u8;
        self.bytes[EVENT_LEN_AT] = (self.len - EVENT_LEN_AT - 1) as u8;
        &self.bytes[..self.len]
    }
}

/// Spreads the lower 56 bits of a number over eight bytes of a varint that goes on.
const fn spread(number: u64) -> u64 {
    let halves = number & 0x0fff_ffff | (number & 0x00ff_ffff_f000_0000) << 4;
    let quarters = halves & 0x0000_3fff_0000_3fff | (halves & 0x0fff_c000_0fff_c000) << 2;
    let bytes = quarters & 0x007f_007f_007f_007f | (quarters & 0x3f80_3f80_3f80_3f80) << 1;
    bytes | 0x8080_8080_8080_8080
}

/// Returns a number of 21 bits as a varint of three bytes.
const fn three(number: u32) -> [u8; 3] {
    [number as u8 | 0x80, (number >> 7) as u8 | 0x80, (number >> 14) as u8 & 0x7f]
}

/// Writes a varint of the least length to the beginning of `room`, which has ten bytes. Returns its length.
#[inline(always)]
fn varint(room: &mut [u8], value: u64) -> usize {
    if value < 0x80 {
        room[0] = value as u8;
        return 1;
    }
    let len = (70 - value.leading_zeros() as usize) / 7;
    room[..8].copy_from_slice(&spread(value).to_le_bytes());
    room[8] = (value >> 56) as u8 | 0x80;
    room[9] = (value >> 63) as u8;
    room[len - 1] &= 0x7f;
    len
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::protobuf::{Fields, Value};

    fn fields(bytes: &[u8]) -> Vec<(u32, Value<'_>)> {
        Fields(bytes).map(|field| field.expect("well formed")).collect()
    }

    proptest! {
        /// All parts are read back as they were written, whatever their size.
        #[test]
        fn packets_are_read_as_written(
            time in 0_u64..1 << 63,
            track in 0_u64..1 << 56,
            shift in 0_u32..64,
            names in prop::option::of((0_u32..1 << 21, 0_u32..1 << 21)),
            arguments in prop::collection::vec((0_u32..1 << 21, 0..3, any::<u64>()), 0..=ARGUMENTS_MAX),
        ) {
            let mut written = EventPacket::new(time >> shift, event::SLICE_END, track >> (shift % 56));
            let mut event = vec![
                (event::TYPE, Value::Number(event::SLICE_END)),
                (event::TRACK, Value::Number(track >> (shift % 56))),
            ];
            if let Some((name, category)) = names {
                written.names(name, category);
                event.push((event::NAME_IID, Value::Number(name.into())));
                event.push((event::CATEGORY_IIDS, Value::Number(category.into())));
            }
            let mut inner = Vec::new();
            for (index, (name, form, value)) in arguments.iter().enumerate() {
                let value = value >> (shift * index as u32 % 64);
                let (form, field) = [
                    (Form::Uint, event::ANNOTATION_UINT),
                    (Form::Int, event::ANNOTATION_INT),
                    (Form::Text, event::ANNOTATION_STRING_IID),
                ][*form as usize];
                written.argument(*name, form, value);
                inner.push([
                    (event::ANNOTATION_NAME_IID, Value::Number((*name).into())),
                    (field, Value::Number(value)),
                ]);
            }
            let bytes = written.finish();
            let [(trace::PACKET, Value::Bytes(packet))] = fields(bytes)[..] else { panic!("{bytes:?}") };
            let [time_field, sequence, flags, (packet::TRACK_EVENT, Value::Bytes(found))] =
                fields(packet)[..]
            else {
                panic!("{packet:?}")
            };
            prop_assert_eq!(time_field, (packet::TIMESTAMP, Value::Number(time >> shift)));
            prop_assert_eq!(sequence, (packet::SEQUENCE, Value::Number(SEQUENCE)));
            prop_assert_eq!(flags, (packet::SEQUENCE_FLAGS, Value::Number(packet::NEEDS_STATE)));
            let (parts, annotations) = fields(found).into_iter().partition::<Vec<_>, _>(|(field, _)| {
                *field != event::ANNOTATIONS
            });
            prop_assert_eq!(parts, event);
            let annotations: Vec<_> =
                annotations.into_iter().map(|(_, value)| fields(value.bytes())).collect();
            prop_assert_eq!(annotations, inner);
        }

        /// Numbers take the least number of bytes; small ones, such as most results and descriptors, take
        /// one.
        #[test]
        fn numbers_take_the_least_bytes(value: u64, shift in 0_u32..64) {
            let value = value >> shift;
            let mut room = [0; 10];
            let len = varint(&mut room, value);
            prop_assert_eq!(len, (1..10).find(|len| value >> (7 * len) == 0).unwrap_or(10));
        }
    }
}
