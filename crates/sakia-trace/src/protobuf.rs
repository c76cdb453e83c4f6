//! Protocol Buffers' wire format, as far as a trace needs it. Source: the encoding guide at protobuf.dev.
//!
//! [`Message`] is for the packets of which a file has few. [Events](crate::event_packet) have a way of their
//! own.

/// A message that grows.
#[derive(Debug, Default)]
pub(crate) struct Message(pub(crate) Vec<u8>);

const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const BYTES: u32 = 2;
const FIXED32: u32 = 5;
/// Bytes of a nested message's length, which is known when the message ends.
const LENGTH_BYTES: usize = 4;

impl Message {
    /// Not inlined, like everything here: each program on Sakia contains this code, and few run it.
    #[inline(never)]
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    #[inline(never)]
    fn tag(&mut self, field: u32, wire_type: u32) {
        self.varint(u64::from(field << 3 | wire_type));
    }

    #[inline(never)]
    pub(crate) fn uint(&mut self, field: u32, value: u64) {
        self.tag(field, VARINT);
        self.varint(value);
    }

    #[inline(never)]
    pub(crate) fn string(&mut self, field: u32, value: &str) {
        self.tag(field, BYTES);
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value.as_bytes());
    }

    /// Adds a nested message, which `fill` fills.
    pub(crate) fn nested(&mut self, field: u32, fill: impl FnOnce(&mut Self)) {
        let begin = self.begin(field);
        fill(self);
        self.end(begin);
    }

    #[inline(never)]
    fn begin(&mut self, field: u32) -> usize {
        self.tag(field, BYTES);
        let begin = self.0.len();
        self.0.extend_from_slice(&[0; LENGTH_BYTES]);
        begin
    }

    #[inline(never)]
    fn end(&mut self, begin: usize) {
        let mut len = self.0.len() - begin - LENGTH_BYTES;
        for index in 0..LENGTH_BYTES {
            let more = if index + 1 < LENGTH_BYTES { 0x80 } else { 0 };
            self.0[begin + index] = (len & 0x7f) as u8 | more;
            len >>= 7;
        }
    }
}

/// A field of a message that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    pub(crate) fn number(self) -> u64 {
        match self {
            Self::Number(number) => number,
            Self::Bytes(_) => 0,
        }
    }

    pub(crate) fn bytes(self) -> &'a [u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Number(_) => &[],
        }
    }
}

/// The error of bytes that are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Reads the fields of a message in order.
#[derive(Clone, Debug)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0;
        for index in 0..10 {
            let (&byte, rest) = self.0.split_first().ok_or(Malformed)?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Malformed)
    }

    fn take(&mut self, len: u64) -> Result<&'a [u8], Malformed> {
        let len = usize::try_from(len).map_err(|_| Malformed)?;
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(Malformed)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn field(&mut self) -> Result<(u32, Value<'a>), Malformed> {
        let tag = u32::try_from(self.varint()?).map_err(|_| Malformed)?;
        let value = match tag & 7 {
            VARINT => Value::Number(self.varint()?),
            FIXED64 => Value::Number(
                self.take(8)?.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte)),
            ),
            BYTES => {
                let len = self.varint()?;
                Value::Bytes(self.take(len)?)
            }
            FIXED32 => Value::Number(
                self.take(4)?.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte)),
            ),
            _ => return Err(Malformed),
        };
        Ok((tag >> 3, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Value<'a>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Each part of a field, at its end and cut, too long or too large: the fields end with the error.
    #[test]
    fn a_malformed_part_ends_the_fields() {
        let (endless, whole) = ([0x80; 10], [1 << 3, 1]);
        let of = |tag: u32| vec![tag as u8 | 1 << 3];
        let before_varints = [vec![], of(VARINT), of(BYTES)];
        for before in &before_varints {
            for rest in [&[][..], &[0x80], &endless, &[&endless[..], &whole, &whole].concat()] {
                let bytes = [before, rest].concat();
                let is_nothing = bytes.is_empty();
                let expected = if is_nothing { vec![] } else { vec![Err(Malformed)] };
                assert_eq!(Fields(&bytes).collect::<Vec<_>>(), expected, "{bytes:?}");
            }
        }
        for (tag, len) in [(FIXED64, 8), (FIXED32, 4), (BYTES, 6)] {
            let prefix = if tag == BYTES { vec![5] } else { vec![] };
            let bytes = [of(tag), prefix, vec![7; 8]].concat();
            for cut in 1..=len {
                assert_eq!(Fields(&bytes[..cut]).last(), Some(Err(Malformed)), "{tag}, {cut}");
            }
            assert!(Fields(&bytes[..=len]).all(|field| field.is_ok()), "{tag}");
        }
        // Kinds that there are no more, or not yet, and a number beyond those of fields.
        for wrong in [of(3), of(4), of(6), of(7), vec![0xff, 0xff, 0xff, 0xff, 0x7f]] {
            let bytes = [&wrong[..], &whole, &whole].concat();
            assert_eq!(Fields(&bytes).collect::<Vec<_>>(), [Err(Malformed)], "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn fields_are_read_as_written(number: u64, text: String, field in 1_u32..1 << 20) {
            let mut message = Message::default();
            message.nested(field, |inner| {
                inner.uint(1, number);
                inner.string(3, &text);
            });
            message.uint(7, u64::MAX);
            let mut fields = Fields(&message.0);
            let (found, inner) = fields.next().expect("a field").expect("well formed");
            prop_assert_eq!(found, field);
            let inner: Vec<_> = Fields(inner.bytes()).map(|field| field.expect("well formed")).collect();
            prop_assert_eq!(
                inner,
                [(1, Value::Number(number)), (3, Value::Bytes(text.as_bytes()))]
            );
            prop_assert_eq!(fields.next(), Some(Ok((7, Value::Number(u64::MAX)))));
            prop_assert_eq!(fields.next(), None);
        }

        #[test]
        fn no_bytes_make_the_reader_panic(bytes: Vec<u8>) {
            Fields(&bytes).for_each(drop);
        }
    }
}
