//! What a socket may receive as datagrams: each is one that was sent, whole, or cut where the room ended and
//! told so; none comes more often than it was sent, and of those that were sent for certain none is missing,
//! but for what a network does.
//!
//! A few bytes do not tell which datagram they are from. So each datagram received is matched with one that
//! it may be, and matches are changed while there is another way to match all of them.

use std::collections::BTreeSet;

/// What the way to the socket does to datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Way {
    /// Some do not arrive.
    pub loses: bool,
    /// Some arrive twice.
    pub duplicates: bool,
    /// Some overtake others.
    pub reorders: bool,
}

/// Whether a datagram is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// That is not known: its send is under way, or was given up.
    Maybe,
    /// It is, or was, since then.
    Sent { at: u64 },
    /// It is not.
    Refused,
}

/// A datagram that was to be sent.
#[derive(Clone, Debug)]
struct Letter {
    bytes: Vec<u8>,
    /// Descriptors that go with it, by number.
    descriptors: Vec<usize>,
    began: u64,
    state: State,
    /// The receipt that it is matched with.
    receipt: Option<usize>,
}

/// What a receive brought of a datagram.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// Its bytes, as far as there was room.
    pub bytes: Vec<u8>,
    /// How much room there was, in bytes.
    pub room: usize,
    /// How much there was in receives that were dropped, and which may have brought it.
    pub other_rooms: Vec<usize>,
    /// Whether it was longer than that, if that was told.
    pub is_cut: Option<bool>,
    /// How long it was, if that was told.
    pub len: Option<usize>,
    /// The descriptors that came with it, if they were asked for; and whether some are missing.
    pub descriptors: Option<(Vec<usize>, bool)>,
}

impl Receipt {
    /// Whether it may be of this datagram.
    fn is_of(&self, letter: &Letter) -> bool {
        let len = letter.bytes.len();
        let has_descriptors = match &self.descriptors {
            None => true,
            Some((came, false)) => *came == letter.descriptors,
            Some((came, true)) => letter.descriptors.starts_with(came),
        };
        let has_had = |room: usize| {
            self.bytes == letter.bytes[..len.min(room)]
                && self.is_cut.is_none_or(|is_cut| is_cut == (len > room))
        };
        let rooms = || self.other_rooms.iter();
        // One that came for several in turn is as long as for any of them.
        let has_len =
            self.len.is_none_or(|told| told == len || rooms().any(|&other| told == len.min(other)));
        letter.state != State::Refused
            && has_descriptors
            && has_len
            && (has_had(self.room) || rooms().any(|&other| has_had(other.min(self.room))))
    }
}

/// A receipt, and when it was: its receive began after `began` and was over at `ended`.
#[derive(Clone, Debug)]
struct Entry {
    receipt: Receipt,
    began: u64,
    ended: u64,
    /// The datagram, where only one can be meant.
    only: Option<usize>,
}

/// What a socket for datagrams receives.
#[derive(Clone, Debug)]
pub struct Mailbox {
    way: Way,
    /// Receives are made one after the other, so that order means something.
    is_ordered: bool,
    letters: Vec<Letter>,
    entries: Vec<Entry>,
    /// Datagrams that were received by operations without a result, at most.
    unseen: usize,
    /// What was seen by a peek and is still there.
    peeked: Option<Receipt>,
    clock: u64,
}

impl Mailbox {
    /// An empty one.
    pub fn new(way: Way, is_ordered: bool) -> Self {
        let (letters, entries) = (Vec::new(), Vec::new());
        Self { way, is_ordered, letters, entries, unseen: 0, peeked: None, clock: 0 }
    }

    /// A moment after all before.
    pub fn now(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// A send of these bytes begins. Returns its number.
    pub fn send(&mut self, bytes: Vec<u8>, descriptors: Vec<usize>) -> usize {
        let (began, state) = (self.now(), State::Maybe);
        self.letters.push(Letter { bytes, descriptors, began, state, receipt: None });
        self.letters.len() - 1
    }

    /// The bytes of a datagram that was to be sent.
    pub fn bytes(&self, letter: usize) -> &[u8] {
        &self.letters[letter].bytes
    }

    /// The datagram was sent.
    pub fn sent(&mut self, letter: usize) {
        let at = self.now();
        self.letters[letter].state = State::Sent { at };
    }

    /// It was not.
    ///
    /// # Errors
    /// It came.
    pub fn refused(&mut self, letter: usize) -> Result<(), String> {
        self.letters[letter].state = State::Refused;
        let Some(receipt) = self.letters[letter].receipt.take() else { return Ok(()) };
        match self.find(receipt, &mut BTreeSet::new()) {
            true => Ok(()),
            false => Err("it was not sent, and it came".to_owned()),
        }
    }

    /// A receive may have taken a datagram that is not seen.
    pub fn lost_sight(&mut self) {
        self.unseen += 1;
        self.peeked = None;
    }

    /// Several receives are made at once, so order means nothing from now on.
    pub fn lose_order(&mut self) {
        self.is_ordered = false;
        self.peeked = None;
    }

    /// Bytes of all that may be on the way or waiting.
    pub fn bytes_sent(&self) -> usize {
        let on_way = self.letters.iter().filter(|letter| letter.state != State::Refused);
        on_way.map(|letter| letter.bytes.len().max(1)).sum()
    }

    /// More datagrams than it holds were sent, so some may be lost.
    pub fn overflows(&mut self) {
        self.way.loses = true;
    }

    /// A peek that began then showed this.
    ///
    /// # Errors
    /// No such datagram is there.
    pub fn peeked(&mut self, receipt: Receipt, began: u64) -> Result<(), String> {
        let is_there = |index: usize| {
            let was_taken = |entry: &Entry| entry.only == Some(index) && entry.ended < began;
            self.way.duplicates || !self.entries.iter().any(was_taken)
        };
        let mut letters = self.letters.iter().enumerate();
        if !letters.any(|(index, letter)| receipt.is_of(letter) && is_there(index)) {
            return Err("it shows what is not there".to_owned());
        }
        if self.is_ordered && !self.way.reorders && self.unseen == 0 {
            self.peeked = Some(receipt);
        }
        Ok(())
    }

    /// A receive that began then brought this.
    ///
    /// # Errors
    /// It is not one of those sent, or comes too often, or too early.
    pub fn received(&mut self, receipt: Receipt, began: u64) -> Result<(), String> {
        let ended = self.now();
        if let Some(peeked) = self.peeked.take() {
            let is_both = |letter: &Letter| receipt.is_of(letter) && peeked.is_of(letter);
            if !self.letters.iter().any(is_both) {
                return Err("a peek has shown another one".to_owned());
            }
        }
        let mut candidates = (0..).zip(&self.letters).filter(|(_, letter)| receipt.is_of(letter));
        let (first, second) = (candidates.next(), candidates.next());
        let Some((first, _)) = first else { return Err("it was not sent".to_owned()) };
        let only = second.is_none().then_some(first);
        self.check_order(only, began)?;
        self.entries.push(Entry { receipt, began, ended, only });
        let entry = self.entries.len() - 1;
        if self.way.duplicates || self.find(entry, &mut BTreeSet::new()) {
            return Ok(());
        }
        Err("it came more often than it was sent".to_owned())
    }

    /// Whether this datagram may come after those that came before.
    fn check_order(&self, only: Option<usize>, began: u64) -> Result<(), String> {
        let Some(late) = only.filter(|_| self.is_ordered && !self.way.reorders) else {
            return Ok(());
        };
        let State::Sent { at: sent } = self.letters[late].state else { return Ok(()) };
        let is_before = |entry: &&Entry| entry.ended < began && entry.began < began;
        let mut before = self.entries.iter().filter(is_before).filter_map(|entry| entry.only);
        match before.find(|&early| sent < self.letters[early].began) {
            None => Ok(()),
            Some(early) => {
                Err(format!("datagram {late} was sent before {early}, which came first"))
            }
        }
    }

    /// Finds a datagram for a receipt, another one for the receipt that it was matched with, and so on.
    fn find(&mut self, entry: usize, tried: &mut BTreeSet<usize>) -> bool {
        for index in 0..self.letters.len() {
            let is_one = self.entries[entry].receipt.is_of(&self.letters[index]);
            if !is_one || !tried.insert(index) {
                continue;
            }
            let other = self.letters[index].receipt;
            if other.is_none_or(|other| self.find(other, tried)) {
                self.letters[index].receipt = Some(entry);
                return true;
            }
        }
        false
    }

    /// How many of those that were certainly sent are still to come.
    pub fn missing(&self) -> usize {
        if self.way.loses { 0 } else { self.outstanding() }
    }

    /// Whether some did not come, on a way that loses some.
    pub fn has_lost(&self) -> bool {
        self.way.loses && self.outstanding() > 0
    }

    /// How many were certainly sent, and for which nothing was received.
    fn outstanding(&self) -> usize {
        // The other way round: a receipt for each datagram.
        let sent = |letter: &&Letter| matches!(letter.state, State::Sent { .. });
        let sent: Vec<&Letter> = self.letters.iter().filter(sent).collect();
        let mut taken = vec![None; self.entries.len()];
        let matched = |&index: &usize| self.take(&sent, index, &mut taken, &mut BTreeSet::new());
        let matched = (0..sent.len()).filter(matched).count();
        (sent.len() - matched).saturating_sub(self.unseen)
    }

    fn take(
        &self,
        sent: &[&Letter],
        index: usize,
        taken: &mut [Option<usize>],
        tried: &mut BTreeSet<usize>,
    ) -> bool {
        for (entry, its) in self.entries.iter().enumerate() {
            if !its.receipt.is_of(sent[index]) || !tried.insert(entry) {
                continue;
            }
            if taken[entry].is_none_or(|other| self.take(sent, other, taken, tried)) {
                taken[entry] = Some(index);
                return true;
            }
        }
        false
    }

    /// How many datagrams came more than once, for certain.
    pub fn repeated(&self) -> usize {
        let all: Vec<usize> = self.entries.iter().filter_map(|entry| entry.only).collect();
        all.len() - all.iter().collect::<BTreeSet<_>>().len()
    }

    /// Whether one came before another that was sent before it.
    pub fn has_overtaken(&self) -> bool {
        let places: Vec<usize> = self.entries.iter().filter_map(|entry| entry.only).collect();
        !places.is_sorted()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(bytes: &[u8]) -> Receipt {
        Receipt { bytes: bytes.to_vec(), room: 100, is_cut: Some(false), ..Receipt::default() }
    }

    fn cut(bytes: &[u8]) -> Receipt {
        Receipt { room: bytes.len(), is_cut: Some(true), ..whole(bytes) }
    }

    fn mailbox(way: Way, texts: &[&[u8]]) -> Mailbox {
        let mut mailbox = Mailbox::new(way, true);
        for text in texts {
            let letter = mailbox.send(text.to_vec(), Vec::new());
            mailbox.sent(letter);
        }
        mailbox
    }

    fn receive(mailbox: &mut Mailbox, receipt: Receipt) -> Result<(), String> {
        let began = mailbox.now();
        mailbox.received(receipt, began)
    }

    #[test]
    fn each_comes_once_whole_and_in_order() {
        let mut ours = mailbox(Way::default(), &[b"one", b"two", b""]);
        assert_eq!(ours.missing(), 3);
        assert!(receive(&mut ours.clone(), whole(b"on")).is_err());
        assert!(receive(&mut ours.clone(), cut(b"one")).is_err());
        receive(&mut ours, whole(b"one")).unwrap();
        assert!(receive(&mut ours.clone(), whole(b"one")).is_err());
        receive(&mut ours, cut(b"t")).unwrap();
        assert_eq!(ours.missing(), 1);
        receive(&mut ours, whole(b"")).unwrap();
        assert_eq!(ours.missing(), 0);
        let mut ours = mailbox(Way::default(), &[b"one", b"two"]);
        receive(&mut ours, whole(b"two")).unwrap();
        assert!(receive(&mut ours, whole(b"one")).is_err());
    }

    #[test]
    fn few_bytes_may_be_of_any() {
        let mut ours = mailbox(Way::default(), &[b"ab", b"ac"]);
        receive(&mut ours, cut(b"a")).unwrap();
        receive(&mut ours, whole(b"ab")).unwrap();
        assert_eq!(ours.missing(), 0);
        assert!(receive(&mut ours, cut(b"a")).is_err());
    }

    #[test]
    fn a_network_loses_repeats_and_reorders() {
        let way = Way { loses: true, duplicates: true, reorders: true };
        let mut ours = mailbox(way, &[b"one", b"two", b"three"]);
        for text in [&b"two"[..], b"one", b"two"] {
            receive(&mut ours, whole(text)).unwrap();
        }
        assert_eq!((ours.missing(), ours.repeated(), ours.has_overtaken()), (0, 1, true));
        assert!(receive(&mut ours, whole(b"four")).is_err());
    }

    #[test]
    fn sends_and_receives_that_were_given_up_may_have_happened() {
        let mut ours = mailbox(Way::default(), &[b"one"]);
        let lost = ours.send(b"lost".to_vec(), Vec::new());
        receive(&mut ours.clone(), whole(b"lost")).unwrap();
        ours.refused(lost).unwrap();
        assert!(receive(&mut ours.clone(), whole(b"lost")).is_err());
        ours.lost_sight();
        assert_eq!(ours.missing(), 0);
    }

    #[test]
    fn a_peek_shows_what_comes_next() {
        let mut ours = mailbox(Way::default(), &[b"one", b"two"]);
        let began = ours.now();
        ours.peeked(cut(b"on"), began).unwrap();
        assert!(receive(&mut ours.clone(), whole(b"two")).is_err());
        receive(&mut ours, whole(b"one")).unwrap();
        let began = ours.now();
        assert!(ours.peeked(whole(b"one"), began).is_err());
    }

    #[test]
    fn descriptors_are_those_that_were_sent() {
        let mut ours = mailbox(Way::default(), &[]);
        let letter = ours.send(b"text".to_vec(), vec![3, 4]);
        ours.sent(letter);
        let with = |came: &[usize], is_cut| {
            let descriptors = Some((came.to_vec(), is_cut));
            Receipt { descriptors, ..whole(b"text") }
        };
        for (came, is_cut, is_right) in [
            (&[3, 4][..], false, true),
            (&[3], true, true),
            (&[3], false, false),
            (&[4], true, false),
        ] {
            assert_eq!(
                receive(&mut ours.clone(), with(came, is_cut)).is_ok(),
                is_right,
                "{came:?}"
            );
        }
    }
}
