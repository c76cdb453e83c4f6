//! The state of a group commit, apart from the task or the thread that performs its rounds.
//!
//! A round writes the bytes that have gathered and then syncs the file, once for all its requests:
//!
//! 1. A request joins the round that begins next. That covers the bytes that it brought, and every write to
//!    the file that had been done by then.
//! 2. A performer begins the round. Requests that come from then on gather for the one after it.
//! 3. The round ends. Its own requests are woken, and no others.
//! 4. A round that fails is the last one: the kernel may have dropped what it could not write and marked it
//!    clean, so that a later sync would succeed without the data being there. The failure of a writer's own
//!    append is final, too: the round under way is finished, and counts as failed.
//!
//! There is one performer at a time. The first request that finds none starts one, which stays as long as
//! requests come; a request that is dropped remains in its round, so that its bytes are written and no other
//! request waits for it.
//!
//! Nothing here waits, wakes or drops a waker, so that all of it may be done within a lock.

use std::io;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Poll, Waker};

use sakia_driver::{AlignedBuf, wake_all};

/// The smallest buffer in bytes that records are gathered in.
const BUFFER_BYTES_MIN: usize = 64 << 10;
/// The largest one, and the largest that is kept for the next round.
const BUFFER_BYTES_MAX: usize = 1 << 20;
/// A record of more bytes has a buffer of its own, which is filled without the group's lock.
const RECORD_BYTES_MAX: usize = 64 << 10;

/// The requests of a file's writers, and how far they are.
#[derive(Debug, Default)]
pub(crate) struct Group {
    /// The offset of the next append.
    end: u64,
    /// The bytes that the next round writes.
    pieces: Vec<Piece>,
    /// A place for each request of the next round, with its waker once it has been polled.
    gathered: Wakers,
    /// The same, of the round under way.
    waiting: Wakers,
    /// Rounds that have begun.
    begun: u64,
    /// The number of the last round that has ended well.
    done: u64,
    /// The number of requests that were open when the last round ended, its own included.
    writers: usize,
    /// A performer is there, or on its way.
    is_performed: bool,
    /// The errno of the first failure.
    failure: Option<i32>,
    /// Memory of an earlier round.
    spare: Option<AlignedBuf>,
}

/// The places of a round's requests.
pub(crate) type Wakers = Vec<Option<Waker>>;

/// A request that has joined a round.
#[derive(Debug)]
pub(crate) struct Ticket {
    round: u64,
    /// Its index among the requests of the round.
    place: usize,
    /// The offset at which its bytes begin.
    pub(crate) at: u64,
}

/// Bytes to append.
pub(crate) struct Record<'a> {
    bytes: &'a [u8],
    /// A copy, if they are many.
    copy: Option<AlignedBuf>,
}

impl<'a> Record<'a> {
    /// A record of these bytes. Copies them if they are many: to be called without the group's lock.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        let copy = (bytes.len() > RECORD_BYTES_MAX).then(|| AlignedBuf::from(bytes));
        Self { bytes, copy }
    }
}

/// Bytes at a place in the file.
#[derive(Debug)]
struct Piece {
    at: u64,
    /// Page-aligned, so that records of whole blocks can go past the page cache.
    buf: AlignedBuf,
    /// The bytes of it that are filled.
    len: usize,
    /// Further records may be added.
    is_open: bool,
}

impl Piece {
    fn end(&self) -> u64 {
        self.at.saturating_add(self.len as u64)
    }

    fn push(&mut self, bytes: &[u8]) {
        let len = self.len + bytes.len();
        if len > self.buf.len() {
            let mut larger = AlignedBuf::zeroed(len.next_power_of_two().max(BUFFER_BYTES_MIN));
            larger[..self.len].copy_from_slice(&self.buf[..self.len]);
            self.buf = larger;
        }
        self.buf[self.len..len].copy_from_slice(bytes);
        self.len = len;
    }
}

/// A round that has begun.
#[derive(Debug)]
pub(crate) struct Round {
    pieces: Vec<Piece>,
}

impl Round {
    /// Performs it by plain calls: `write` is given all bytes, each with its offset, and then there is one
    /// `sync`.
    ///
    /// # Errors
    /// The errno of the first call that failed, after which there is none.
    pub(crate) fn perform(
        &self,
        mut write: impl FnMut(&[u8], u64) -> io::Result<()>,
        sync: impl FnOnce() -> io::Result<()>,
    ) -> Result<(), i32> {
        let mut pieces = self.pieces.iter();
        let written = pieces.try_for_each(|piece| write(&piece.buf[..piece.len], piece.at));
        written.and_then(|()| sync()).map_err(|error| errno_of(&error))
    }

    /// Performs it by tasks, in the same order: `write` is lent the first `len` bytes of a buffer, and an
    /// offset.
    ///
    /// # Errors
    /// As [`perform`](Round::perform).
    pub(crate) async fn perform_by(
        &mut self,
        write: impl AsyncFn(AlignedBuf, usize, u64) -> (io::Result<()>, AlignedBuf),
        sync: impl AsyncFnOnce() -> io::Result<()>,
    ) -> Result<(), i32> {
        for piece in &mut self.pieces {
            let (result, buf) = write(mem::take(&mut piece.buf), piece.len, piece.at).await;
            piece.buf = buf;
            result.map_err(|error| errno_of(&error))?;
        }
        sync().await.map_err(|error| errno_of(&error))
    }
}

/// Returns an error's errno; `EIO` if it has none.
pub(crate) fn errno_of(error: &io::Error) -> i32 {
    crate::os_error(error).unwrap_or(rustix::io::Errno::IO.raw_os_error())
}

/// Wakes the requests of a round. The panic of a waker concerns none of the others.
pub(crate) fn wake(wakers: Wakers) {
    let woken = catch_unwind(AssertUnwindSafe(|| wake_all(wakers.into_iter().flatten())));
    if let Err(payload) = woken {
        mem::forget(payload); // its drop might panic
    }
}

impl Group {
    /// A group of a file that ends here.
    pub(crate) fn new(end: u64) -> Self {
        Self { end, ..Self::default() }
    }

    /// The offset of the next append.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Rounds that have begun.
    pub(crate) fn begun(&self) -> u64 {
        self.begun
    }

    /// The errno of the first failure.
    pub(crate) fn failure(&self) -> Option<i32> {
        self.failure
    }

    /// # Errors
    /// That of the first failure.
    pub(crate) fn check(&self) -> io::Result<()> {
        self.failure.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
    }

    /// Takes a place in the file for bytes that their writer writes itself.
    ///
    /// # Errors
    /// See [`check`](Group::check).
    pub(crate) fn reserve(&mut self, len: usize) -> io::Result<u64> {
        self.check()?;
        let at = self.end;
        self.end = at.saturating_add(len as u64);
        Ok(at)
    }

    /// Joins the next round, with a record to append if there is one.
    ///
    /// # Errors
    /// See [`check`](Group::check).
    pub(crate) fn join(&mut self, record: Option<Record<'_>>) -> io::Result<Ticket> {
        let len = record.as_ref().map_or(0, |record| record.bytes.len());
        let at = self.reserve(len)?;
        if let Some(record) = record.filter(|_| len > 0) {
            self.gather(record, at);
        }
        self.gathered.push(None);
        Ok(Ticket { round: self.begun + 1, place: self.gathered.len() - 1, at })
    }

    fn gather(&mut self, record: Record<'_>, at: u64) {
        let Record { bytes, copy } = record;
        if let Some(buf) = copy {
            return self.pieces.push(Piece { at, buf, len: bytes.len(), is_open: false });
        }
        let has_room = |piece: &Piece| piece.is_open && piece.len + bytes.len() <= BUFFER_BYTES_MAX;
        match self.pieces.last_mut() {
            Some(last) if last.end() == at && has_room(last) => last.push(bytes),
            _ => {
                let buf = self.spare.take().unwrap_or_default();
                let mut piece = Piece { at, buf, len: 0, is_open: true };
                piece.push(bytes);
                self.pieces.push(piece);
            }
        }
    }

    /// Returns whether a performer is to be started, which counts as there from now on.
    pub(crate) fn needs_performer(&mut self) -> bool {
        !mem::replace(&mut self.is_performed, true)
    }

    /// Returns whether fewer requests wait for the next round than were open when the last one ended: those
    /// writers may be about to come again, and would share this one.
    pub(crate) fn lacks_writers(&self) -> bool {
        self.gathered.len() < self.writers && self.failure.is_none()
    }

    /// Lets the performer leave if no request waits. Returns whether it has left.
    pub(crate) fn leave(&mut self) -> bool {
        self.is_performed = !self.gathered.is_empty() && self.failure.is_none();
        !self.is_performed
    }

    /// Begins the next round. `None` if it has no request: the performer has left.
    pub(crate) fn begin(&mut self) -> Option<Round> {
        if self.leave() {
            return None;
        }
        self.begun += 1;
        self.waiting = mem::take(&mut self.gathered);
        Some(Round { pieces: mem::take(&mut self.pieces) })
    }

    /// Ends the round that has begun. Returns the requests to be woken.
    ///
    /// If the group has failed meanwhile, its requests have failed, whatever the round's own end.
    pub(crate) fn end_round(&mut self, round: Round, result: Result<(), i32>) -> Wakers {
        self.writers = self.waiting.len() + self.gathered.len();
        match result.and(self.failure.map_or(Ok(()), Err)) {
            Ok(()) => {
                self.done = self.begun;
                let mut buffers = round.pieces.into_iter().map(|piece| piece.buf);
                self.spare = buffers.rfind(|buf| buf.len() <= BUFFER_BYTES_MAX);
                mem::take(&mut self.waiting)
            }
            Err(errno) => self.fail(errno),
        }
    }

    /// Makes `errno` the final failure, unless there is one. Returns the requests to be woken.
    pub(crate) fn fail(&mut self, errno: i32) -> Wakers {
        self.failure.get_or_insert(errno);
        self.pieces.clear();
        let mut all = mem::take(&mut self.waiting);
        all.append(&mut self.gathered);
        all
    }

    /// The performer is gone before it was done, and what it had begun is unknown. Returns the requests to be
    /// woken.
    pub(crate) fn abandon(&mut self, errno: i32) -> Wakers {
        self.is_performed = false;
        self.fail(errno)
    }

    /// Returns the outcome of a request, or has it woken. `replaced` is given the waker of an earlier poll,
    /// to be dropped without the group's lock.
    ///
    /// # Errors
    /// See [`check`](Group::check).
    pub(crate) fn poll(
        &mut self,
        ticket: &Ticket,
        waker: &Waker,
        replaced: &mut Option<Waker>,
    ) -> Poll<io::Result<()>> {
        if self.done >= ticket.round {
            return Poll::Ready(Ok(()));
        }
        self.check()?;
        let is_under_way = ticket.round == self.begun;
        let wakers = if is_under_way { &mut self.waiting } else { &mut self.gathered };
        let place = &mut wakers[ticket.place];
        if !place.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *replaced = place.replace(waker.clone());
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    const EIO: i32 = 5;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn poll(group: &mut Group, ticket: &Ticket, count: &Arc<Count>) -> Poll<Result<(), i32>> {
        let waker = Waker::from(Arc::clone(count));
        let polled = group.poll(ticket, &waker, &mut None);
        polled.map_err(|error| error.raw_os_error().unwrap())
    }

    fn append(group: &mut Group, bytes: &[u8]) -> Ticket {
        group.join(Some(Record::new(bytes))).unwrap()
    }

    /// Returns the calls that a round makes, and its result.
    fn calls(round: &Round, errno_of_write: Option<i32>) -> (Vec<String>, Result<(), i32>) {
        let calls = RefCell::new(Vec::new());
        let result = round.perform(
            |bytes, at| {
                calls.borrow_mut().push(format!("{} at {at}", String::from_utf8_lossy(bytes)));
                errno_of_write.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
            },
            || {
                calls.borrow_mut().push("sync".into());
                Ok(())
            },
        );
        (calls.into_inner(), result)
    }

    #[test]
    fn requests_that_come_during_a_round_are_served_by_the_next() {
        let mut group = Group::new(10);
        let [first, second] = [(); 2].map(|()| Arc::new(Count::default()));
        let one = append(&mut group, b"one");
        assert!(group.needs_performer() && !group.needs_performer());
        assert!(poll(&mut group, &one, &first).is_pending());
        let round = group.begin().unwrap();
        let two = append(&mut group, b"two");
        assert_eq!((one.at, two.at, group.end()), (10, 13, 16));
        assert!(poll(&mut group, &two, &second).is_pending());
        wake(group.end_round(round, Ok(())));
        // Only the first round's request was woken, and only it is done.
        assert_eq!([&first, &second].map(|count| count.0.load(Ordering::Relaxed)), [1, 0]);
        assert_eq!(poll(&mut group, &one, &first), Poll::Ready(Ok(())));
        assert!(poll(&mut group, &two, &second).is_pending());
        let round = group.begin().unwrap();
        assert!(poll(&mut group, &two, &second).is_pending());
        wake(group.end_round(round, Ok(())));
        assert_eq!(poll(&mut group, &two, &second), Poll::Ready(Ok(())));
        assert!(group.begin().is_none() && group.needs_performer());
        assert_eq!(group.begun(), 2);
    }

    #[test]
    fn what_adjoins_is_one_write_and_all_is_written_before_the_sync() {
        let mut group = Group::new(0);
        append(&mut group, b"a");
        append(&mut group, b"b");
        let others = group.reserve(5).unwrap();
        append(&mut group, b"c");
        group.join(None).unwrap();
        append(&mut group, b"");
        let large = vec![b'l'; RECORD_BYTES_MAX + 1];
        append(&mut group, &large);
        append(&mut group, b"d");
        let round = group.begin().unwrap();
        let (calls, result) = calls(&round, None);
        let large = String::from_utf8(large).unwrap();
        let after = 8 + large.len();
        let expected =
            ["ab at 0".into(), "c at 7".into(), format!("{large} at 8"), format!("d at {after}")];
        assert_eq!((others, result), (2, Ok(())));
        assert_eq!(calls[..4], expected);
        assert_eq!(calls[4..], ["sync"]);
    }

    #[test]
    fn a_round_that_fails_is_the_last() {
        let mut group = Group::new(0);
        let count = Arc::new(Count::default());
        let tickets: Vec<_> = (0..3).map(|_| append(&mut group, b"x")).collect();
        assert!(group.needs_performer());
        let round = group.begin().unwrap();
        let late = append(&mut group, b"late");
        for ticket in tickets.iter().chain([&late]) {
            assert!(poll(&mut group, ticket, &count).is_pending());
        }
        let (calls, result) = calls(&round, Some(EIO));
        assert_eq!((calls, result), (vec!["xxx at 0".to_owned()], Err(EIO)));
        wake(group.end_round(round, result));
        assert_eq!(count.0.load(Ordering::Relaxed), 4);
        for ticket in tickets.iter().chain([&late]) {
            assert_eq!(poll(&mut group, ticket, &count), Poll::Ready(Err(EIO)));
        }
        assert_eq!(group.join(None).unwrap_err().raw_os_error(), Some(EIO));
        assert_eq!(group.reserve(1).unwrap_err().raw_os_error(), Some(EIO));
        assert!(group.begin().is_none());
        assert_eq!((group.begun(), group.failure()), (1, Some(EIO)));
    }

    #[test]
    fn a_round_during_which_an_append_fails_has_failed_for_late_polls_too() {
        let mut group = Group::new(0);
        let count = Arc::new(Count::default());
        let tickets = [(); 2].map(|()| append(&mut group, b"x"));
        let round = group.begin().unwrap();
        wake(group.fail(EIO));
        assert_eq!(poll(&mut group, &tickets[0], &count), Poll::Ready(Err(EIO)));
        wake(group.end_round(round, Ok(())));
        assert_eq!(poll(&mut group, &tickets[1], &count), Poll::Ready(Err(EIO)));
    }

    #[test]
    fn a_round_that_is_abandoned_is_not_believed() {
        let mut group = Group::new(0);
        let count = Arc::new(Count::default());
        let ticket = append(&mut group, b"x");
        assert!(group.needs_performer());
        let round = group.begin().unwrap();
        assert!(poll(&mut group, &ticket, &count).is_pending());
        drop(round);
        wake(group.abandon(EIO));
        assert_eq!(poll(&mut group, &ticket, &count), Poll::Ready(Err(EIO)));
        assert!(group.join(None).is_err() && group.needs_performer());
    }

    #[test]
    fn writers_that_may_come_again_are_those_that_were_open_together() {
        let mut group = Group::new(0);
        assert!(!group.lacks_writers());
        for _ in 0..3 {
            group.join(None).unwrap();
        }
        let round = group.begin().unwrap();
        group.join(None).unwrap();
        group.end_round(round, Ok(()));
        // Three writers were served, and one waits.
        assert!(group.lacks_writers());
        for _ in 0..3 {
            assert!(group.lacks_writers());
            group.join(None).unwrap();
        }
        assert!(!group.lacks_writers());
    }

    #[test]
    fn memory_is_used_again_unless_it_is_large() {
        let mut group = Group::new(0);
        append(&mut group, b"x");
        let round = group.begin().unwrap();
        let memory = round.pieces[0].buf.as_ptr();
        group.end_round(round, Ok(()));
        append(&mut group, b"y");
        assert_eq!(group.pieces[0].buf.as_ptr(), memory);
        append(&mut group, &vec![0; BUFFER_BYTES_MAX + 1]);
        let round = group.begin().unwrap();
        group.end_round(round, Ok(()));
        assert_eq!(group.spare.as_ref().map(|buf| buf.as_ptr()), Some(memory));
    }

    #[test]
    fn a_waker_that_panics_holds_up_no_other() {
        struct Panics;
        impl Wake for Panics {
            fn wake(self: Arc<Self>) {
                panic!("on purpose");
            }
        }
        let count = Arc::new(Count::default());
        wake(vec![Some(Arc::new(Panics).into()), None, Some(Waker::from(Arc::clone(&count)))]);
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
    }
}
