//! The model of a log: its requests, rounds, failure and bytes.

use super::program::Answer;
use super::{Outcome, What};

/// The largest record that shares a write with others.
const SHARED_BYTES_MAX: usize = 64 << 10;
/// The largest write of several records.
const WRITE_BYTES_MAX: usize = 1 << 20;
const EIO: i32 = 5;
const ECANCELED: i32 = 125;

/// A system call on the log's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// A write of this number of bytes at an offset.
    Write { offset: u64, len: u64 },
    /// An `fsync` or `fdatasync`.
    Sync,
}

/// The state of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It has not been polled.
    New,
    /// It is in the round under way or in the next one, or its own write is under way.
    Waits,
    Over(Outcome),
}

/// A request and its fate.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub what: What,
    pub state: State,
    /// The offset of its bytes, once it has joined.
    at: u64,
    /// It has to be woken since it is over.
    pub is_to_be_woken: bool,
}

/// Bytes and their offset.
type Piece = (u64, Vec<u8>);

#[derive(Debug, Default)]
struct Round {
    /// Its requests.
    members: Vec<usize>,
    /// The bytes to be written.
    left: Vec<Piece>,
    /// Requests that the engine counts as under way until the round ends.
    passes: u64,
    /// A write was short.
    is_broken: bool,
}

/// A record that its writer writes itself.
#[derive(Debug)]
struct Append {
    request: usize,
    left: Piece,
    /// The engine counts it as under way.
    has_pass: bool,
    /// It was dropped: whether it is written is open.
    is_optional: bool,
}

/// A log and its file.
#[derive(Debug, Default)]
pub struct Model {
    /// As the methods of these names.
    pub end: u64,
    pub syncs: u64,
    pub failure: Option<i32>,
    /// The engine refuses requests that are awaited.
    pub is_stopped: bool,
    pub requests: Vec<Request>,
    under_way: Option<Round>,
    gathered: Round,
    appends: Vec<Append>,
    /// The bytes of the file.
    disk: Vec<u8>,
    /// Bytes that may have been written.
    perhaps: Vec<Piece>,
}

impl Model {
    /// A log on a file with these bytes.
    pub fn new(disk: Vec<u8>) -> Self {
        Self { end: disk.len() as u64, disk, ..Self::default() }
    }

    /// The log is opened again: only the file stays.
    pub fn reopen(&mut self) {
        *self = Self::new(std::mem::take(&mut self.disk));
    }

    /// Adds a request, and returns its number.
    pub fn add(&mut self, what: What) -> usize {
        self.requests.push(Request { what, state: State::New, at: 0, is_to_be_woken: false });
        self.requests.len() - 1
    }

    /// A new request begins: it is awaited, or a thread waits for it.
    pub fn begin(&mut self, request: usize, bytes: &[u8], is_awaited: bool) {
        let stopped = Some(ECANCELED).filter(|_| self.is_stopped && is_awaited);
        if let Some(errno) = stopped.or(self.failure) {
            self.requests[request].state = State::Over(Err(errno));
            return;
        }
        let at = self.end;
        self.end += bytes.len() as u64;
        let begun = &mut self.requests[request];
        begun.state = State::Waits;
        begun.at = if begun.what == What::Commit { 0 } else { at };
        if let What::Append(_) = begun.what {
            let left = (at, bytes.to_vec());
            self.appends.push(Append { request, left, has_pass: is_awaited, is_optional: false });
            return self.end_appends();
        }
        self.gathered.members.push(request);
        self.gathered.passes += u64::from(is_awaited);
        if !bytes.is_empty() {
            self.gathered.left.push((at, bytes.to_vec()));
        }
        self.begin_round();
    }

    fn begin_round(&mut self) {
        if self.under_way.is_none() && self.failure.is_none() && !self.gathered.members.is_empty() {
            self.under_way = Some(std::mem::take(&mut self.gathered));
            self.syncs += 1;
        }
    }

    /// The request is dropped. A round keeps its bytes; an append of its own may be finished or not.
    pub fn forget(&mut self, request: usize, finishes: bool) {
        self.requests[request].is_to_be_woken = false;
        for append in self.appends.iter_mut().filter(|append| append.request == request) {
            append.is_optional = !finishes;
            if append.is_optional {
                self.perhaps.push(append.left.clone());
            }
        }
    }

    /// Everything is dropped in the middle, and only started calls end.
    pub fn abandon(&mut self) {
        for request in &mut self.requests {
            if request.state == State::Waits {
                request.state = State::Over(Err(ECANCELED));
            }
        }
        let round = self.under_way.take().unwrap_or_default();
        self.perhaps.extend(round.left);
        self.perhaps.extend(self.appends.drain(..).map(|append| append.left));
    }

    /// Returns whether a call has to come.
    pub fn expects_call(&self) -> bool {
        self.under_way.is_some() || self.appends.iter().any(|append| !append.is_optional)
    }

    /// Returns whether a round is under way.
    pub fn is_performing(&self) -> bool {
        self.under_way.is_some()
    }

    /// Returns whether this call is that of a dropped append.
    pub fn is_optional(&self, call: Call) -> bool {
        self.append_of(call).is_some_and(|index| self.appends[index].is_optional)
    }

    fn append_of(&self, call: Call) -> Option<usize> {
        let Call::Write { offset, .. } = call else { return None };
        self.appends.iter().position(|append| append.left.0 == offset)
    }

    /// Checks that this call comes now.
    pub fn check_call(&self, call: Call) {
        let round = self.under_way.as_ref();
        match call {
            Call::Sync => {
                let round = round.expect("a sync without a round");
                assert!(round.left.is_empty(), "a sync before the bytes of its round are written");
            }
            Call::Write { len, .. } if let Some(index) = self.append_of(call) => {
                assert_eq!(len, self.appends[index].left.1.len() as u64, "an append in parts");
            }
            Call::Write { offset, len } => {
                let round = round.unwrap_or_else(|| panic!("{call:?} without a round"));
                let run = round.run();
                assert_eq!(Some(offset), run.first().map(|piece| piece.0), "the offset of a write");
                let most: usize = run.iter().map(|piece| piece.1.len()).sum();
                assert!(len <= most as u64, "{len} bytes of {most}");
                let are_small = run.iter().all(|piece| piece.1.len() <= SHARED_BYTES_MAX);
                if are_small && most <= WRITE_BYTES_MAX && !round.is_broken {
                    assert_eq!(len, most as u64, "records that adjoin share a write");
                }
            }
        }
    }

    /// A call gets its answer.
    pub fn answer(&mut self, call: Call, answer: Answer) {
        let moved = match (call, answer) {
            (_, Answer::Interrupted) => return,
            (_, Answer::Errno(errno)) => return self.fail_call(call, errno),
            (Call::Write { .. }, Answer::Zero) => return self.fail_call(call, EIO),
            (Call::Write { len, .. }, Answer::Short(most)) => len.min(most),
            (Call::Write { len, .. }, _) => len,
            (Call::Sync, _) => return self.end_round(),
        };
        if let Some(index) = self.append_of(call) {
            let (at, bytes) = &mut self.appends[index].left;
            let rest = bytes.split_off(moved as usize);
            store(&mut self.disk, (*at, std::mem::replace(bytes, rest)));
            *at += moved;
            self.end_appends();
        } else if let Some(round) = &mut self.under_way {
            round.is_broken |= matches!(call, Call::Write { len, .. } if moved < len);
            let mut moved = moved as usize;
            while moved > 0 {
                let (at, mut bytes) = round.left.remove(0);
                let rest = bytes.split_off(moved.min(bytes.len()));
                moved -= bytes.len();
                let next = at + bytes.len() as u64;
                store(&mut self.disk, (at, bytes));
                if !rest.is_empty() {
                    round.left.insert(0, (next, rest));
                }
            }
        }
    }

    /// Resolves the appends of which all is written.
    fn end_appends(&mut self) {
        for append in self.appends.extract_if(.., |append| append.left.1.is_empty()) {
            let request = &mut self.requests[append.request];
            request.state = State::Over(Ok(request.at));
        }
    }

    fn end_round(&mut self) {
        let round = self.under_way.take().expect("its sync was expected");
        if self.failure.is_none() {
            for member in round.members {
                let request = &mut self.requests[member];
                (request.state, request.is_to_be_woken) = (State::Over(Ok(request.at)), true);
            }
        }
        self.begin_round();
    }

    fn fail_call(&mut self, call: Call, errno: i32) {
        match self.append_of(call) {
            Some(index) => {
                let append = self.appends.remove(index);
                self.requests[append.request].state = State::Over(Err(errno));
                self.fail(errno);
            }
            None => {
                self.fail(errno);
                self.under_way = None;
            }
        }
    }

    /// The first failure is that of all requests that wait for a round.
    fn fail(&mut self, errno: i32) {
        let errno = *self.failure.get_or_insert(errno);
        let gathered = std::mem::take(&mut self.gathered).members;
        let under_way = self.under_way.as_mut().map(|round| std::mem::take(&mut round.members));
        for member in gathered.into_iter().chain(under_way.unwrap_or_default()) {
            let request = &mut self.requests[member];
            (request.state, request.is_to_be_woken) = (State::Over(Err(errno)), true);
        }
    }

    /// Returns the least and the greatest number of requests that the engine may count as under way.
    pub fn live(&self) -> (u64, u64) {
        let passes = self.under_way.as_ref().map_or(0, |round| round.passes) + self.gathered.passes;
        let appends = |optional: bool| {
            let of = |append: &&Append| append.has_pass && append.is_optional == optional;
            self.appends.iter().filter(of).count() as u64
        };
        let least = passes + appends(false);
        (least, least + appends(true))
    }

    /// Checks the bytes of the file. Those that may have been written are known from then on.
    pub fn check_contents(&mut self, contents: Vec<u8>) {
        let before = self.disk.len();
        for (place, &byte) in contents.iter().enumerate() {
            let known = self.disk.get(place).copied();
            let perhaps = |(at, bytes): &Piece| {
                let index = place.checked_sub(*at as usize)?;
                bytes.get(index).copied()
            };
            let may_be = self.perhaps.iter().any(|piece| perhaps(piece) == Some(byte));
            // Between bytes that were written beyond the end there may be a gap.
            let is_gap = known.is_none() && byte == 0 && !self.perhaps.is_empty();
            assert!(
                known == Some(byte) || may_be || is_gap,
                "byte {place} is {byte}, not {known:?}"
            );
        }
        assert!(contents.len() >= before, "{} bytes of {before}", contents.len());
        self.perhaps.clear();
        self.disk = contents;
    }
}

impl Round {
    /// Returns the first pieces, as far as they adjoin.
    fn run(&self) -> &[Piece] {
        let ends = |pair: &[Piece]| pair[0].0 + pair[0].1.len() as u64 != pair[1].0;
        let most = self.left.windows(2).position(ends).map_or(self.left.len(), |index| index + 1);
        &self.left[..most]
    }
}

/// Writes bytes to a file in memory.
fn store(disk: &mut Vec<u8>, (at, bytes): Piece) {
    let at = at as usize;
    disk.resize(disk.len().max(at + bytes.len()), 0);
    disk[at..at + bytes.len()].copy_from_slice(&bytes);
}
