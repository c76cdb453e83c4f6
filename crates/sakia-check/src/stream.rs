//! The bytes that the reader of a stream may find: those of all writes in order; a write that was given up
//! may lack any part of its end.
//!
//! Each write sends a unique text, so that bytes identify their write. All possible positions of the reader
//! are followed at once, like the states of an automaton.

use std::collections::BTreeSet;

/// One write: its bytes, and the possible numbers of bytes sent.
#[derive(Clone, Debug)]
struct Segment {
    bytes: Vec<u8>,
    sent_min: usize,
    sent_max: usize,
}

/// A position in the stream: before a byte of a segment. The position at the end of a segment is also the
/// beginning of the next.
type Place = (usize, usize);

/// A stream of bytes with one writer and one reader.
#[derive(Clone, Debug)]
pub struct Stream {
    segments: Vec<Segment>,
    /// The possible positions of the reader.
    places: BTreeSet<Place>,
}

impl Default for Stream {
    fn default() -> Self {
        Self { segments: Vec::new(), places: BTreeSet::from([(0, 0)]) }
    }
}

impl Stream {
    /// Begins a write of these bytes, of which any number may be sent. Returns its number.
    pub fn begin(&mut self, bytes: Vec<u8>) -> usize {
        self.segments.push(Segment { sent_min: 0, sent_max: bytes.len(), bytes });
        self.segments.len() - 1
    }

    /// Records that the write has sent exactly `count` bytes.
    ///
    /// # Errors
    /// The reader has received more of them.
    pub fn sent(&mut self, segment: usize, count: usize) -> Result<(), String> {
        let its = &mut self.segments[segment];
        (its.sent_min, its.sent_max) = (count, count);
        self.places.retain(|&(place, index)| place != segment || index <= count);
        // A reader that has gone on to the next segment has taken all of this one.
        if self.places.is_empty() {
            return Err(format!("a write sent {count} bytes, and the reader got more"));
        }
        Ok(())
    }

    /// Returns all positions equivalent to `place`.
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

    /// Records that the reader received these bytes.
    ///
    /// # Errors
    /// They are not the next bytes of the stream.
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

    /// Records that the reader may have taken up to `len` bytes without a result.
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

    /// Records that the reader reached the end of the stream.
    ///
    /// # Errors
    /// Bytes before the end are missing.
    pub fn ended(&mut self) -> Result<(), String> {
        let end = (self.segments.len(), 0);
        if self.places.iter().any(|&place| self.same(place).any(|place| place == end)) {
            self.places = BTreeSet::from([end]);
            return Ok(());
        }
        Err("the end came before all bytes".to_owned())
    }

    /// Returns whether a byte certainly waits for the reader.
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
