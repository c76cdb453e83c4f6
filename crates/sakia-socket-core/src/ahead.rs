//! Reading ahead: when one call fetches more than was asked for, and the memory for the rest.

use crate::{Fifo, Impossible};

/// Reads of at most this many bytes can show that reading ahead pays.
const SMALL: usize = 4096;
/// The number of such reads in a row, each of which filled its buffer, that show it.
const FULL_READS: u32 = 32;
/// Reading ahead has paid if it served this many reads from memory. If it ends earlier, twice as many full
/// reads are needed the next time.
const SAVED: u32 = 8;
/// The most full reads needed.
const FULL_READS_MAX: u32 = 4096;
/// Reading ahead ends after this many calls in a row that brought no byte more than was asked for.
const MISSES: u32 = 4;
/// It also ends when reads ask for more than this on average: copying these bytes costs more than a call.
const LARGE: usize = 8192;
/// The weight of a read in the average is one in `1 << WEIGHT`.
const WEIGHT: u32 = 3;

/// The plan for the next read of a stream socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadPlan {
    /// Bytes wait in memory: [`ReadAhead::take`] returns them, and no call is made.
    Take,
    /// A plain call into the caller's buffer. It may block, with no lock held; [`ReadAhead::direct_ended`]
    /// follows.
    Direct,
    /// One call into the caller's buffer and the [room](ReadAhead::room) after it, which must not block,
    /// under the lock of this direction; [`ReadAhead::ended`] follows. If there is no room yet,
    /// [`ReadAhead::begin`] provides it first.
    Ahead,
}

/// The receiving side of a stream socket, whose bytes may wait in memory `M`.
///
/// It reads ahead after 32 reads in a row of at most 4 KiB that each filled their buffer, and stops when 4
/// calls in a row brought no byte more than was asked for, when the kernel had no bytes, or when reads ask
/// for more than 8 KiB on average. If it stops before 8 reads were served from memory, as with messages that
/// fill the buffer one by one, it takes twice as many full reads the next time, up to 4096. Bytes that wait
/// always come before those of the next call.
#[derive(Debug)]
pub struct ReadAhead<M> {
    waiting: Option<Fifo<M>>,
    is_ahead: bool,
    /// Plain calls and looks under way, on any thread.
    direct: u32,
    /// Full small reads in a row.
    full_reads: u32,
    /// The number of such reads after which reading ahead begins.
    needed: u32,
    /// Reads that were served from memory since it began.
    saved: u32,
    /// Calls in a row that brought no byte more than was asked for.
    misses: u32,
    /// The average number of bytes asked for, times `1 << WEIGHT`.
    average: usize,
}

impl<M> Default for ReadAhead<M> {
    fn default() -> Self {
        Self {
            waiting: None,
            is_ahead: false,
            direct: 0,
            full_reads: 0,
            needed: FULL_READS,
            saved: 0,
            misses: 0,
            average: 0,
        }
    }
}

impl<M: AsRef<[u8]> + AsMut<[u8]>> ReadAhead<M> {
    /// Returns the receiving side of a socket from which nothing was read.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of bytes that wait in memory. `FIONREAD` is the sum of this and the kernel's
    /// number.
    pub fn len(&self) -> usize {
        self.waiting.as_ref().map_or(0, Fifo::len)
    }

    /// Returns true if no byte waits in memory.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns true while calls fetch more than was asked for.
    pub fn is_ahead(&self) -> bool {
        self.is_ahead
    }

    /// Returns the plan for the next read if it must not fetch more than was asked for: `MSG_TRUNC` of TCP,
    /// which copies nothing. A plain call counts as begun.
    pub fn plan_exact(&mut self) -> ReadPlan {
        if !self.is_empty() {
            return ReadPlan::Take;
        }
        self.direct += 1;
        ReadPlan::Direct
    }

    /// Returns the plan for the next read, of at most `want` bytes. A plain call counts as begun.
    pub fn plan(&mut self, want: usize) -> ReadPlan {
        // While another thread is in a plain call, bytes kept here could be overtaken by bytes that it gets
        // later, and a thread that peeks would not see them.
        let is_alone = self.direct == 0;
        if self.is_ahead && is_alone && want > 0 && self.is_empty() {
            return ReadPlan::Ahead;
        }
        self.plan_exact()
    }

    /// Notes that a thread waits for the host's bytes until [`wait_ended`](Self::wait_ended). Nothing is read
    /// ahead meanwhile, as during a plain call: the thread would not see bytes that come to memory.
    pub fn wait_began(&mut self) {
        self.direct += 1;
    }

    /// Notes the end of such a wait.
    pub fn wait_ended(&mut self) {
        self.direct = self.direct.saturating_sub(1);
    }

    /// Notes that a plain call for `want` bytes has ended with `count` of them, or with `None` for an error.
    pub fn direct_ended(&mut self, want: usize, count: Option<usize>) {
        self.direct = self.direct.saturating_sub(1);
        self.note_size(want);
        let is_full = count == Some(want) && want > 0 && want <= SMALL;
        self.full_reads = if is_full { self.full_reads + 1 } else { 0 };
        if self.full_reads >= self.needed {
            self.is_ahead = true;
            (self.full_reads, self.misses, self.saved) = (0, 0, 0);
        }
    }

    /// Notes that a call begins that waits for bytes in the kernel and takes none, such as `MSG_PEEK`. Until
    /// [`look_ended`](ReadAhead::look_ended), no call of another thread reads ahead: the look would otherwise
    /// go on waiting for bytes that are in memory.
    pub fn look(&mut self) {
        self.direct += 1;
    }

    /// Notes that a [look](ReadAhead::look) has ended.
    pub fn look_ended(&mut self) {
        self.direct = self.direct.saturating_sub(1);
    }

    /// Reads ahead without evidence, until there is evidence against it.
    pub fn start(&mut self) {
        self.is_ahead = true;
    }

    /// Provides memory for bytes that were not asked for. 64 KiB are a good size.
    ///
    /// # Panics
    /// If it has memory already.
    pub fn begin(&mut self, memory: M) {
        assert!(self.waiting.is_none(), "memory was given before");
        self.waiting = Some(Fifo::new(memory));
    }

    /// Returns true if [`begin`](ReadAhead::begin) has provided memory.
    pub fn has_memory(&self) -> bool {
        self.waiting.is_some()
    }

    /// Returns the memory after the caller's buffer, to be filled by a call that was planned as
    /// [`Ahead`](ReadPlan::Ahead). Empty without memory, and while bytes wait.
    pub fn room(&mut self) -> &mut [u8] {
        match &mut self.waiting {
            Some(waiting) if waiting.is_empty() => waiting.fill(),
            _ => &mut [],
        }
    }

    /// Notes that a call into a buffer of `want` bytes and the room after it has ended with `count` bytes, or
    /// with `None` for an error. Returns the number of bytes in the caller's buffer.
    ///
    /// # Errors
    /// [`Impossible`] if `count` is larger than buffer and room; reading ahead has ended then.
    pub fn ended(&mut self, want: usize, count: Option<usize>) -> Result<usize, Impossible> {
        self.note_size(want);
        let more = count.map_or(0, |count| count.saturating_sub(want));
        if more > 0 {
            let filled = match &mut self.waiting {
                Some(waiting) if waiting.is_empty() => waiting.filled(more),
                _ => Err(Impossible),
            };
            if filled.is_err() {
                self.is_ahead = false;
                return Err(Impossible);
            }
            self.misses = 0;
        } else {
            self.misses += 1;
            // No byte was available: the peer is not ahead of the program any more.
            if count.is_none() || self.misses >= MISSES {
                self.is_ahead = false;
                // Reading ahead has cost memory, and a call that found nothing.
                let has_paid = self.saved >= SAVED;
                self.needed =
                    if has_paid { FULL_READS } else { (self.needed * 2).min(FULL_READS_MAX) };
            }
        }
        Ok(count.unwrap_or(0).min(want))
    }

    /// Moves waiting bytes to `out`. Returns their number.
    pub fn take(&mut self, out: &mut [u8]) -> usize {
        self.note_size(out.len());
        self.saved = self.saved.saturating_add(1);
        self.waiting.as_mut().map_or(0, |waiting| waiting.pop(out))
    }

    /// Copies waiting bytes to `out`, and keeps them (`MSG_PEEK`). Returns their number.
    pub fn peek(&self, out: &mut [u8]) -> usize {
        self.waiting.as_ref().map_or(0, |waiting| waiting.peek(out))
    }

    /// Drops up to `count` waiting bytes (`MSG_TRUNC` of TCP). Returns their number.
    pub fn discard(&mut self, count: usize) -> usize {
        self.waiting.as_mut().map_or(0, |waiting| waiting.discard(count))
    }

    /// Returns the number of further bytes that fit after those that wait.
    pub fn free(&self) -> usize {
        self.waiting.as_ref().map_or(0, Fifo::free)
    }

    /// Appends as many of `bytes` as fit, which were received after those that wait. Returns their number.
    pub fn append(&mut self, bytes: &[u8]) -> usize {
        self.waiting.as_mut().map_or(0, |waiting| waiting.push(bytes))
    }

    /// Stops reading ahead, until there is evidence again: before the kernel serves the socket alone.
    /// Bytes that wait still have to be [taken](ReadAhead::take).
    pub fn stop(&mut self) {
        self.is_ahead = false;
        (self.full_reads, self.misses) = (0, 0);
    }

    /// Gives the memory back, if none of it is in use.
    pub fn give_back(&mut self) -> Option<M> {
        if self.is_ahead || !self.is_empty() {
            return None;
        }
        self.waiting.take().map(Fifo::into_memory)
    }

    /// Notes that a read asked for `want` bytes.
    fn note_size(&mut self, want: usize) {
        let want = want.min(1 << 24); // no overflow, and far above `LARGE`
        self.average = self.average - (self.average >> WEIGHT) + want;
        if self.average >> WEIGHT > LARGE {
            self.is_ahead = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::boxed::Box;
    use std::collections::VecDeque;
    use std::vec;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    type Ahead = ReadAhead<Box<[u8]>>;

    /// Reads `want` bytes of a kernel that has `kernel` ready, like a layer. Returns the bytes and the way.
    fn read(ahead: &mut Ahead, kernel: &mut VecDeque<u8>, want: usize) -> (Vec<u8>, ReadPlan) {
        let plan = ahead.plan(want);
        let mut out = vec![0; want];
        let count = match plan {
            ReadPlan::Take => ahead.take(&mut out),
            ReadPlan::Direct => {
                let bytes: Vec<u8> = kernel.drain(..want.min(kernel.len())).collect();
                out[..bytes.len()].copy_from_slice(&bytes);
                ahead.direct_ended(want, (!bytes.is_empty()).then_some(bytes.len()));
                bytes.len()
            }
            ReadPlan::Ahead => {
                if !ahead.has_memory() {
                    ahead.begin(vec![0; 64].into());
                }
                let room = ahead.room();
                let bytes: Vec<u8> =
                    kernel.drain(..(want + room.len()).min(kernel.len())).collect();
                let (mine, more) = bytes.split_at(want.min(bytes.len()));
                out[..mine.len()].copy_from_slice(mine);
                room[..more.len()].copy_from_slice(more);
                let count = (!bytes.is_empty()).then_some(bytes.len());
                ahead.ended(want, count).expect("the count is true")
            }
        };
        out.truncate(count);
        (out, plan)
    }

    fn engaged() -> Ahead {
        let mut ahead = Ahead::new();
        for _ in 0..FULL_READS {
            assert_eq!(ahead.plan(10), ReadPlan::Direct);
            ahead.direct_ended(10, Some(10));
        }
        assert!(ahead.is_ahead());
        ahead
    }

    proptest! {
        /// Each byte is read once and in order, in whatever pieces bytes arrive and are requested.
        #[test]
        fn loses_and_repeats_no_byte(
            steps in prop::collection::vec((0_usize..200, 0_usize..40), 1..300),
        ) {
            let (mut ahead, mut kernel) = (Ahead::new(), VecDeque::new());
            let (mut sent, mut got) = (0_u8, 0_u8);
            for (came, want) in steps {
                for _ in 0..came {
                    sent = sent.wrapping_add(1);
                    kernel.push_back(sent);
                }
                for byte in read(&mut ahead, &mut kernel, want).0 {
                    got = got.wrapping_add(1);
                    prop_assert_eq!(byte, got);
                }
            }
            while got != sent {
                for byte in read(&mut ahead, &mut kernel, 7).0 {
                    got = got.wrapping_add(1);
                    prop_assert_eq!(byte, got);
                }
            }
        }

        /// Every answer of the host has a defined result, and never yields a byte more than fits.
        #[test]
        fn counts_that_lie_end_in_an_error(
            counts in prop::collection::vec((0_usize..100, prop::option::of(any::<usize>())), 1..100),
        ) {
            let mut ahead = engaged();
            for (want, count) in counts {
                match ahead.plan(want) {
                    ReadPlan::Take => { ahead.take(&mut vec![0; want + 1]); }
                    ReadPlan::Direct => ahead.direct_ended(want, count),
                    ReadPlan::Ahead => {
                        if !ahead.has_memory() {
                            ahead.begin(vec![0; 64].into());
                        }
                        let most = want + ahead.room().len();
                        match ahead.ended(want, count) {
                            Ok(mine) => prop_assert!(mine <= want && count.is_none_or(|count| count <= most)),
                            Err(Impossible) => prop_assert!(count.is_some_and(|count| count > most)),
                        }
                    }
                }
                prop_assert!(ahead.len() <= 64);
            }
        }
    }

    #[test]
    fn begins_after_full_small_reads_in_a_row() {
        let mut ahead = Ahead::new();
        for round in 0..3 {
            for _ in 0..FULL_READS - 1 {
                assert_eq!(ahead.plan(SMALL), ReadPlan::Direct);
                ahead.direct_ended(SMALL, Some(SMALL));
            }
            // A short read, an error or a large read ends the series of small ones.
            let (want, count) = [(10, Some(9)), (10, None), (SMALL + 1, Some(SMALL + 1))][round];
            assert_eq!(ahead.plan(want), ReadPlan::Direct);
            ahead.direct_ended(want, count);
            assert!(!ahead.is_ahead());
        }
        let mut kernel: VecDeque<u8> = vec![1; 10_000].into();
        let direct =
            (0..100).take_while(|_| read(&mut ahead, &mut kernel, 10).1 == ReadPlan::Direct);
        assert_eq!(direct.count(), FULL_READS as usize);
    }

    /// Without memory after the caller's buffer, and behind bytes that wait, nothing more can have come.
    #[test]
    fn more_than_there_is_room_for_is_impossible() {
        let mut ahead = engaged();
        assert_eq!(ahead.plan(10), ReadPlan::Ahead);
        assert_eq!(ahead.ended(10, Some(11)), Err(Impossible));
        assert!(!ahead.is_ahead());
        let mut ahead = engaged();
        assert_eq!(ahead.plan(10), ReadPlan::Ahead);
        ahead.begin(vec![0; 64].into());
        assert_eq!(ahead.ended(10, Some(12)), Ok(10));
        assert_eq!(ahead.ended(10, Some(11)), Err(Impossible));
        assert_eq!((ahead.is_ahead(), ahead.len()), (false, 2));
    }

    #[test]
    fn ends_when_nothing_more_comes() {
        let mut ahead = engaged();
        for call in 1..=MISSES {
            assert_eq!(ahead.plan(10), ReadPlan::Ahead);
            assert_eq!(ahead.ended(10, Some(10)), Ok(10));
            assert_eq!(ahead.is_ahead(), call < MISSES);
        }
        let mut ahead = engaged();
        assert_eq!(ahead.ended(10, None), Ok(0), "the kernel had nothing");
        assert!(!ahead.is_ahead());
    }

    #[test]
    fn takes_more_evidence_where_it_did_not_pay() {
        let mut ahead = Ahead::new();
        let mut reads_before = || {
            let mut reads = 0;
            while ahead.plan(64) == ReadPlan::Direct {
                ahead.direct_ended(64, Some(64));
                reads += 1;
            }
            // Messages arrive one by one: behind the last one there is none.
            assert_eq!(ahead.ended(64, None), Ok(0));
            reads
        };
        let reads: Vec<u32> = (0..9).map(|_| reads_before()).collect();
        assert_eq!(reads, [32, 64, 128, 256, 512, 1024, 2048, 4096, 4096]);

        // After a backlog, 8 reads of it are the same evidence as at the beginning.
        let mut kernel: VecDeque<u8> = vec![1; 64 * 5000].into();
        while read(&mut ahead, &mut kernel, 8).1 != ReadPlan::Ahead {}
        kernel.clear();
        for _ in 0..SAVED {
            assert_eq!(read(&mut ahead, &mut kernel, 8).1, ReadPlan::Take);
        }
        assert_eq!(read(&mut ahead, &mut kernel, 8).1, ReadPlan::Ahead);
        assert!(!ahead.is_ahead());
        assert_eq!(ahead.needed, FULL_READS);
    }

    #[test]
    fn ends_with_large_reads_and_gives_its_memory_back() {
        let mut ahead = engaged();
        let mut kernel: VecDeque<u8> = vec![1; 1000].into();
        read(&mut ahead, &mut kernel, 10);
        assert!(ahead.is_ahead() && ahead.len() == 64);
        assert!(ahead.give_back().is_none());
        while ahead.is_ahead() {
            read(&mut ahead, &mut kernel, 20_000);
        }
        assert!(ahead.is_empty());
        assert_eq!(ahead.give_back().map(|memory| memory.len()), Some(64));
        assert_eq!(ahead.plan(10), ReadPlan::Direct);
    }

    #[test]
    fn nothing_is_kept_while_another_thread_is_in_a_plain_call() {
        let mut ahead = Ahead::new();
        assert_eq!(ahead.plan(10), ReadPlan::Direct); // it blocks
        for _ in 0..FULL_READS {
            assert_eq!(ahead.plan(10), ReadPlan::Direct);
            ahead.direct_ended(10, Some(10));
        }
        assert!(ahead.is_ahead());
        assert_eq!(ahead.plan(10), ReadPlan::Direct);
        ahead.direct_ended(10, Some(10));
        ahead.direct_ended(10, Some(10)); // it ended
        // The same while one of two direct reads is under way.
        assert_eq!(ahead.plan_exact(), ReadPlan::Direct);
        assert_eq!(ahead.plan(10), ReadPlan::Direct);
        ahead.direct_ended(10, Some(10));
        ahead.direct_ended(10, Some(10));
        assert_eq!(ahead.plan(10), ReadPlan::Ahead);
        // While it looks at bytes, or waits for some.
        type Step = fn(&mut Ahead);
        let pairs: [(Step, Step); 2] =
            [(Ahead::look, Ahead::look_ended), (Ahead::wait_began, Ahead::wait_ended)];
        for (begin, end) in pairs {
            begin(&mut ahead);
            assert_eq!(ahead.plan(10), ReadPlan::Direct);
            ahead.direct_ended(10, Some(10));
            end(&mut ahead);
            assert_eq!(ahead.plan(10), ReadPlan::Ahead);
        }
    }
}
