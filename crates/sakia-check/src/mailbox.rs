//! The datagrams that a socket may receive: each was sent, and arrives whole, or cut at the end of its room
//! and reported as cut; none arrives more often than it was sent, and none that was certainly sent is
//! missing, except for the effects of a network.
//!
//! A few bytes do not identify their datagram. So each datagram received is matched with one that it may be,
//! and matches are changed as long as another way to match all of them exists.

use std::collections::BTreeSet;

/// The effects of the path to the socket on datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Way {
    /// Some do not arrive.
    pub loses: bool,
    /// Some arrive twice.
    pub duplicates: bool,
    /// Some overtake others.
    pub reorders: bool,
}

/// The state of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LetterState {
    /// Unknown: its send is in flight, or was given up.
    Maybe,
    /// Sent at that moment.
    Sent { at: u64 },
    /// Not sent.
    Refused,
}

/// A datagram that the program sends.
#[derive(Clone, Debug)]
struct Letter {
    bytes: Vec<u8>,
    /// The numbers of the descriptors sent with it.
    descriptors: Vec<usize>,
    began: u64,
    state: LetterState,
    /// The receipt that it is matched with.
    receipt: Option<usize>,
}

/// The result of receiving one datagram.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// Its bytes, up to the room.
    pub bytes: Vec<u8>,
    /// The room for bytes.
    pub room: usize,
    /// The room of dropped receives that may have taken it.
    pub other_rooms: Vec<usize>,
    /// The datagram is longer than its room, if that was reported.
    pub is_cut: Option<bool>,
    /// Its length, if reported.
    pub len: Option<usize>,
    /// The descriptors received with it, if requested; and whether some are missing.
    pub descriptors: Option<(Vec<usize>, bool)>,
}

impl Receipt {
    /// Returns whether the receipt may be of this datagram.
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
        // A datagram that passed through several receives may have the length of any of them.
        let has_len =
            self.len.is_none_or(|told| told == len || rooms().any(|&other| told == len.min(other)));
        letter.state != LetterState::Refused
            && has_descriptors
            && has_len
            && (has_had(self.room) || rooms().any(|&other| has_had(other.min(self.room))))
    }
}

/// A receipt and its time: its receive began after `began` and was over at `ended`.
#[derive(Clone, Debug)]
struct Entry {
    receipt: Receipt,
    began: u64,
    ended: u64,
    /// The datagram, if only one is possible.
    only: Option<usize>,
}

/// The model of a datagram socket's receives.
#[derive(Clone, Debug)]
pub struct Mailbox {
    way: Way,
    /// Receives follow each other, so order matters.
    is_ordered: bool,
    letters: Vec<Letter>,
    entries: Vec<Entry>,
    /// The largest possible number of datagrams taken by operations without a result.
    unseen: usize,
    /// The receipt of a peek that is not received yet.
    peeked: Option<Receipt>,
    clock: u64,
}

impl Mailbox {
    /// Returns an empty mailbox.
    pub fn new(way: Way, is_ordered: bool) -> Self {
        let (letters, entries) = (Vec::new(), Vec::new());
        Self { way, is_ordered, letters, entries, unseen: 0, peeked: None, clock: 0 }
    }

    /// Returns a moment after all earlier ones.
    pub fn now(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Begins a send of these bytes. Returns its number.
    pub fn send(&mut self, bytes: Vec<u8>, descriptors: Vec<usize>) -> usize {
        let (began, state) = (self.now(), LetterState::Maybe);
        self.letters.push(Letter { bytes, descriptors, began, state, receipt: None });
        self.letters.len() - 1
    }

    /// Returns the bytes of a datagram.
    pub fn bytes(&self, letter: usize) -> &[u8] {
        &self.letters[letter].bytes
    }

    /// Records that the datagram was sent.
    pub fn sent(&mut self, letter: usize) {
        let at = self.now();
        self.letters[letter].state = LetterState::Sent { at };
    }

    /// Records that the datagram was not sent.
    ///
    /// # Errors
    /// It was received.
    pub fn refused(&mut self, letter: usize) -> Result<(), String> {
        self.letters[letter].state = LetterState::Refused;
        let Some(receipt) = self.letters[letter].receipt.take() else { return Ok(()) };
        match self.find(receipt, &mut BTreeSet::new()) {
            true => Ok(()),
            false => Err("it was not sent, and it came".to_owned()),
        }
    }

    /// Records that a receive may have taken a datagram without a result.
    pub fn lost_sight(&mut self) {
        self.unseen += 1;
        self.peeked = None;
    }

    /// Records that several receives run at once, so that order no longer matters.
    pub fn lose_order(&mut self) {
        self.is_ordered = false;
        self.peeked = None;
    }

    /// Returns the bytes of all datagrams that may be in transit or waiting.
    pub fn bytes_sent(&self) -> usize {
        let on_way = self.letters.iter().filter(|letter| letter.state != LetterState::Refused);
        on_way.map(|letter| letter.bytes.len().max(1)).sum()
    }

    /// Records that more datagrams were sent than the socket holds, so that some may be lost.
    pub fn overflows(&mut self) {
        self.way.loses = true;
    }

    /// Records the receipt of a peek that began at `began`.
    ///
    /// # Errors
    /// There is no such datagram.
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

    /// Records the receipt of a receive that began at `began`.
    ///
    /// # Errors
    /// No such datagram was sent, or it comes too often or too early.
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

    /// Checks that this datagram may follow the earlier ones.
    fn check_order(&self, only: Option<usize>, began: u64) -> Result<(), String> {
        let Some(late) = only.filter(|_| self.is_ordered && !self.way.reorders) else {
            return Ok(());
        };
        let LetterState::Sent { at: sent } = self.letters[late].state else { return Ok(()) };
        let is_before = |entry: &&Entry| entry.ended < began && entry.began < began;
        let mut before = self.entries.iter().filter(is_before).filter_map(|entry| entry.only);
        match before.find(|&early| sent < self.letters[early].began) {
            None => Ok(()),
            Some(early) => {
                Err(format!("datagram {late} was sent before {early}, which came first"))
            }
        }
    }

    /// Finds a datagram for a receipt, then another one for the receipt that it was matched with, and so on.
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

    /// Returns the number of certainly sent datagrams that are still to come.
    pub fn missing(&self) -> usize {
        if self.way.loses { 0 } else { self.outstanding() }
    }

    /// Returns whether datagrams are missing, on a path that loses some.
    pub fn has_lost(&self) -> bool {
        self.way.loses && self.outstanding() > 0
    }

    /// Returns the number of certainly sent datagrams without a receipt.
    fn outstanding(&self) -> usize {
        // In the other direction: a receipt for each datagram.
        let sent = |letter: &&Letter| matches!(letter.state, LetterState::Sent { .. });
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

    /// Returns the number of datagrams that certainly came more than once.
    pub fn repeated(&self) -> usize {
        let all: Vec<usize> = self.entries.iter().filter_map(|entry| entry.only).collect();
        all.len() - all.iter().collect::<BTreeSet<_>>().len()
    }

    /// Returns whether a datagram came before another that was sent before it.
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
