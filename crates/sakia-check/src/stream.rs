//! What the reader of a stream may find: the bytes of all writes in their order, where of a write that
//! was given up, any part from its beginning may be missing at its end.
//!
//! Each write sends a text of its own, so that bytes tell where they come from. The places at which the
//! reader may be are followed all at once, like the states of an automaton.

use std::collections::BTreeSet;

/// One write: the bytes that it was to send, and how many of them it may have sent.
#[derive(Clone, Debug)]
struct Segment {
    bytes: Vec<u8>,
    sent_min: usize,
    sent_max: usize,
}

/// A place in the stream: before a byte of a segment. In front of the end of a segment it stands for the
/// beginning of the next, too.
type Place = (usize, usize);

/// A stream of bytes with one writer and one reader.
#[derive(Clone, Debug)]
pub struct Stream {
    segments: Vec<Segment>,
    /// Where the reader may be.
    places: BTreeSet<Place>,
}

impl Default for Stream {
    fn default() -> Self {
        Self { segments: Vec::new(), places: BTreeSet::from([(0, 0)]) }
    }
}

impl Stream {
    /// A write of these bytes begins, of which any number may be sent. Returns its number.
    pub fn begin(&mut self, bytes: Vec<u8>) -> usize {
        self.segments.push(Segment { sent_min: 0, sent_max: bytes.len(), bytes });
        self.segments.len() - 1
    }

    /// The write has sent exactly `count` bytes.
    ///
    /// # Errors
    /// The reader has got more of them.
    pub fn sent(&mut self, segment: usize, count: usize) -> Result<(), String> {
        let its = &mut self.segments[segment];
        (its.sent_min, its.sent_max) = (count, count);
        self.places.retain(|&(place, index)| place != segment || index <= count);
        // Who has gone on to the next one has taken all of this one.
        if self.places.is_empty() {
            return Err(format!("a write sent {count} bytes, and the reader got more"));
        }
        Ok(())
    }

    /// All places that stand for the same as `place`.
    fn same(&self, place: Place) -> impl Iterator<Item = Place> + '_ {
        let mut next = Some(place);
        std::iter::from_fn(move || {
            let (segment, index) = next?;
            let may_go_on = self.segments.get(segment).is_some_and(|its| index >= its.sent_min);
            next = may_go_on.then_some((segment + 1, 0));
            Some((segment, index))
        })
    }

    fn step(&self, place: Place, byte: u8) -> Option<Place> {
        let (segment, index) = place;
        let its = self.segments.get(segment)?;
        (index < its.sent_max && its.bytes[index] == byte).then_some((segment, index + 1))
    }

    /// The reader got these bytes.
    ///
    /// # Errors
    /// They are not what comes next in the stream.
    pub fn received(&mut self, bytes: &[u8]) -> Result<(), String> {
        for (count, &byte) in bytes.iter().enumerate() {
            let open: BTreeSet<Place> =
                self.places.iter().flat_map(|&place| self.same(place)).collect();
            self.places = open.into_iter().filter_map(|place| self.step(place, byte)).collect();
            if self.places.is_empty() {
                return Err(format!("byte {count} of {}, {byte}, does not come next", bytes.len()));
            }
        }
        Ok(())
    }

    /// The reader may have got up to `len` bytes that nobody has seen.
    pub fn maybe_received(&mut self, len: usize) {
        let mut reached: BTreeSet<Place> = self.places.clone();
        let mut last = reached.clone();
        for _ in 0..len {
            let open: BTreeSet<Place> = last.iter().flat_map(|&place| self.same(place)).collect();
            last = open
                .into_iter()
                .filter(|&(segment, index)| {
                    self.segments.get(segment).is_some_and(|its| index < its.sent_max)
                })
                .map(|(segment, index)| (segment, index + 1))
                .filter(|place| !reached.contains(place))
                .collect();
            if last.is_empty() {
                break;
            }
            reached.extend(&last);
        }
        self.places = reached;
    }

    /// The reader got the end of the stream.
    ///
    /// # Errors
    /// There are bytes that it must have got before.
    pub fn ended(&mut self) -> Result<(), String> {
        let end = (self.segments.len(), 0);
        if self.places.iter().any(|&place| self.same(place).any(|place| place == end)) {
            self.places = BTreeSet::from([end]);
            return Ok(());
        }
        Err("the end came before all bytes".to_owned())
    }

    /// Whether there is a byte for the reader, whatever happened.
    pub fn has_bytes(&self) -> bool {
        let end = (self.segments.len(), 0);
        !self.places.iter().any(|&place| self.same(place).any(|place| place == end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_in_order_and_then_the_end() {
        let mut stream = Stream::default();
        let (first, second) = (stream.begin(b"abc".to_vec()), stream.begin(b"def".to_vec()));
        assert!(!stream.has_bytes(), "nothing is certain yet");
        stream.sent(first, 3).unwrap();
        stream.sent(second, 2).unwrap();
        assert!(stream.has_bytes());
        stream.received(b"ab").unwrap();
        assert!(stream.clone().ended().is_err());
        assert!(stream.clone().received(b"d").is_err());
        stream.received(b"cde").unwrap();
        assert!(stream.clone().received(b"f").is_err());
        stream.ended().unwrap();
    }

    #[test]
    fn what_was_given_up_may_be_there_in_part() {
        let mut stream = Stream::default();
        let lost = stream.begin(b"abc".to_vec());
        let next = stream.begin(b"xyz".to_vec());
        stream.sent(next, 3).unwrap();
        for bytes in [&b"xyz"[..], b"axyz", b"abcxyz"] {
            let mut stream = stream.clone();
            stream.received(bytes).unwrap();
            stream.ended().unwrap();
        }
        assert!(stream.clone().received(b"bx").is_err());
        stream.received(b"ab").unwrap();
        assert!(stream.sent(lost, 1).is_err());
    }

    #[test]
    fn bytes_that_nobody_saw_may_be_missing() {
        let mut stream = Stream::default();
        let only = stream.begin(b"abcdef".to_vec());
        stream.sent(only, 6).unwrap();
        stream.maybe_received(2);
        assert!(stream.clone().received(b"d").is_err());
        stream.received(b"cd").unwrap();
        assert!(stream.has_bytes());
    }
}
