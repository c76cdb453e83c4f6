//! Which descriptors epoll watches, and who waits for each.
//!
//! A descriptor with waiters has a *watch*: two ways (reading and writing), each a queue of operations in
//! the order in which they came, and polls in no order. Epoll is told the union of what they wait for,
//! for one event (`EPOLLONESHOT`); after it the watch is armed again as far as somebody still waits.
//!
//! Watches are found by the descriptor's number, events by a token: place and generation. A watch
//! without waiters stays, disarmed, since the next operation will want it again. Its number may have been
//! closed and given to another file meanwhile. Epoll, which knows files, then has no such entry: to change it
//! fails with `ENOENT`, and it is added anew under a new generation. An event of the old file finds
//! nobody.
//!
//! A watch that epoll wakes again and again for nothing (a socket that reports an error which no read
//! fetches) is left alone for a moment, so that it costs little and delays nobody else.
//!
//! Source: `epoll_ctl(2)`, `epoll(7)`.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

use super::sys::Direction;
use super::transfer::borrow;

/// The token of the inbox' eventfd.
pub(super) const INBOX: u64 = u64::MAX;
/// Events for nothing, one after the other, after which a watch rests.
const FRUITLESS_MAX: u32 = 16;
/// How long.
const REST: Duration = Duration::from_millis(1);

/// The epoll set and all watches.
#[derive(Debug)]
pub(super) struct Registry {
    epoll: OwnedFd,
    watches: Vec<Watch>,
    /// Places in `watches` that hold none.
    free: Vec<usize>,
    /// Places by the number of the descriptor.
    by_raw: BTreeMap<i32, usize>,
    /// Operations that wait, in all watches.
    waiters: usize,
    /// Tokens of watches that rest, and until when; soonest first.
    resting: VecDeque<(Instant, u64)>,
    /// No watch rests: nobody would wake the foreign loop that polls the epoll set when it is over.
    pub(super) is_restless: bool,
}

/// One descriptor's waiters.
#[derive(Debug, Default)]
pub(super) struct Watch {
    raw: i32,
    /// Distinguishes the files that the descriptor, and the watches that this place, held.
    generation: u32,
    /// By direction.
    ways: [Way; 2],
    /// Operations that poll, and for which events.
    pub(super) polls: Vec<(u64, u16)>,
    /// Epoll was told of this descriptor.
    is_registered: bool,
    /// What epoll waits for now. Empty when it waits for nothing.
    armed: EventFlags,
    /// Events since one that let an operation go on.
    fruitless: u32,
    /// Not to be armed until its time in `resting`.
    is_resting: bool,
}

/// Operations that wait for the same direction, oldest first.
#[derive(Debug, Default)]
pub(super) struct Way {
    pub(super) queue: VecDeque<u64>,
    /// A lane thread is trying the first one.
    pub(super) is_busy: bool,
}

impl Watch {
    pub(super) fn way(&mut self, direction: Direction) -> &mut Way {
        &mut self.ways[direction as usize]
    }

    /// What somebody waits for.
    fn interest(&self) -> EventFlags {
        let mut interest = EventFlags::empty();
        for (way, events) in self.ways.iter().zip([EventFlags::IN, EventFlags::OUT]) {
            if !way.queue.is_empty() && !way.is_busy {
                interest |= events;
            }
        }
        let polled = self.polls.iter().fold(0, |all, (_, events)| all | events);
        // The bits of poll and epoll are the same.
        interest | EventFlags::from_bits_retain(u32::from(polled))
    }

    /// Whether nobody waits, not even for a thread.
    fn is_idle(&self) -> bool {
        self.polls.is_empty() && self.ways.iter().all(|way| way.queue.is_empty())
    }
}

impl Registry {
    /// An epoll set with this descriptor in it, watched for edges.
    pub(super) fn new(inbox: BorrowedFd<'_>) -> Result<Self, Errno> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, inbox, EventData::new_u64(INBOX), EventFlags::IN | EventFlags::ET)?;
        Ok(Self {
            epoll,
            watches: Vec::new(),
            free: Vec::new(),
            by_raw: BTreeMap::new(),
            waiters: 0,
            resting: VecDeque::new(),
            is_restless: false,
        })
    }

    pub(super) fn epoll(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    pub(super) fn epoll_raw(&self) -> i32 {
        self.epoll.as_raw_fd()
    }

    /// Operations that wait.
    pub(super) fn waiters(&self) -> usize {
        self.waiters
    }

    /// The place of the watch of this number, if there is one.
    pub(super) fn find(&self, raw: i32) -> Option<usize> {
        self.by_raw.get(&raw).copied()
    }

    pub(super) fn watch(&mut self, place: usize) -> &mut Watch {
        &mut self.watches[place]
    }

    /// The place of the watch that an event is for. `None` for one of before.
    pub(super) fn resolve(&self, token: u64) -> Option<usize> {
        let (place, generation) = (token as u32 as usize, (token >> 32) as u32);
        let watch = self.watches.get(place)?;
        let is_current = (watch.generation == generation || mutant!("event_of_old_file"))
            && self.find(watch.raw) == Some(place);
        is_current.then_some(place)
    }

    fn token(&self, place: usize) -> u64 {
        u64::from(self.watches[place].generation) << 32 | place as u64
    }

    /// The place of the number's watch, which is made if there is none.
    fn place(&mut self, raw: i32) -> usize {
        if let Some(place) = self.find(raw) {
            return place;
        }
        let place = self.free.pop().unwrap_or_else(|| {
            self.watches.push(Watch::default());
            self.watches.len() - 1
        });
        self.watches[place].raw = raw;
        self.by_raw.insert(raw, place);
        place
    }

    /// Adds an operation to the end of a way. To be armed afterwards.
    pub(super) fn wait(&mut self, raw: i32, direction: Direction, id: u64) -> usize {
        let place = self.place(raw);
        self.watches[place].way(direction).queue.push_back(id);
        self.waiters += 1;
        place
    }

    /// Adds an operation that polls. To be armed afterwards.
    pub(super) fn wait_poll(&mut self, raw: i32, events: u16, id: u64) -> usize {
        let place = self.place(raw);
        self.watches[place].polls.push((id, events));
        self.waiters += 1;
        place
    }

    /// Takes an operation out, wherever it waits in this watch.
    pub(super) fn leave(&mut self, place: usize, id: u64) {
        let watch = &mut self.watches[place];
        let before =
            watch.polls.len() + watch.ways.iter().map(|way| way.queue.len()).sum::<usize>();
        watch.polls.retain(|(its, _)| *its != id);
        for way in &mut watch.ways {
            match way.queue.front() {
                Some(first) if *first == id => drop(way.queue.pop_front()),
                _ => way.queue.retain(|its| *its != id),
            }
        }
        let after = watch.polls.len() + watch.ways.iter().map(|way| way.queue.len()).sum::<usize>();
        self.waiters -= before - after;
    }

    /// All operations that wait in this watch.
    pub(super) fn members(&self, place: usize) -> Vec<u64> {
        let watch = &self.watches[place];
        let polls = watch.polls.iter().map(|(id, _)| *id);
        watch.ways.iter().flat_map(|way| way.queue.iter().copied()).chain(polls).collect()
    }

    /// Forgets a watch without waiters: its descriptor is going to be closed, or cannot be watched.
    pub(super) fn forget(&mut self, place: usize) {
        self.disarm(place);
        let watch = &mut self.watches[place];
        debug_assert!(watch.is_idle());
        self.by_raw.remove(&watch.raw);
        *watch = Watch { generation: watch.generation.wrapping_add(1), ..Watch::default() };
        self.free.push(place);
    }

    /// Sees to it that epoll waits for what somebody in this watch waits for, or for nothing.
    ///
    /// # Errors
    /// `EPERM`: such a file never waits. Otherwise as `epoll_ctl(2)`.
    pub(super) fn arm(&mut self, place: usize) -> Result<(), Errno> {
        let watch = &self.watches[place];
        let interest = watch.interest();
        if watch.is_idle() {
            self.disarm(place);
            return Ok(());
        }
        if interest.is_empty() && watch.polls.is_empty()
            || watch.is_resting
            || !watch.armed.is_empty() && watch.armed.contains(interest)
        {
            return Ok(());
        }
        let flags = interest | EventFlags::ONESHOT;
        let fd = borrow(watch.raw)?;
        let data = EventData::new_u64(self.token(place));
        let changed = if watch.is_registered {
            epoll::modify(&self.epoll, fd, data, flags)
        } else {
            Err(Errno::NOENT)
        };
        match changed {
            Err(Errno::NOENT) if !(watch.is_registered && mutant!("watch_not_renewed")) => {
                let watch = &mut self.watches[place];
                watch.is_registered = false;
                watch.generation = watch.generation.wrapping_add(1);
                let data = EventData::new_u64(self.token(place));
                match epoll::add(&self.epoll, fd, data, flags) {
                    // Left behind by a watch that was forgotten, while a copy of the descriptor
                    // keeps the file open.
                    Err(Errno::EXIST) => epoll::modify(&self.epoll, fd, data, flags)?,
                    added => added?,
                }
            }
            changed => changed?,
        }
        let watch = &mut self.watches[place];
        watch.is_registered = true;
        watch.armed = flags;
        Ok(())
    }

    /// Has epoll wait for nothing in this watch.
    fn disarm(&mut self, place: usize) {
        let watch = &mut self.watches[place];
        if watch.armed.is_empty() {
            return;
        }
        watch.armed = EventFlags::empty();
        watch.is_registered = false;
        if let Ok(fd) = borrow(watch.raw) {
            // Of a descriptor that is closed there is nothing left to delete.
            let _ = epoll::delete(&self.epoll, fd);
        }
    }

    /// Notes that epoll reported an event, and so waits no more for this watch.
    pub(super) fn fired(&mut self, place: usize) {
        self.watches[place].armed = EventFlags::empty();
    }

    /// Notes whether an event let an operation go on. After too many that did not the watch rests.
    pub(super) fn judge(&mut self, place: usize, was_fruitful: bool) {
        let token = self.token(place);
        let watch = &mut self.watches[place];
        watch.fruitless = if was_fruitful || mutant!("watch_never_rests") {
            0
        } else {
            watch.fruitless.saturating_add(1)
        };
        let may_rest = !self.is_restless || mutant!("foreign_loop_misses_rest");
        let is_tired = watch.fruitless >= FRUITLESS_MAX && may_rest;
        if is_tired && !watch.is_resting && !watch.is_idle() {
            watch.is_resting = true;
            self.resting.push_back((Instant::now() + REST, token));
        }
    }

    /// When the first watch has rested.
    pub(super) fn next_rested(&self) -> Option<Instant> {
        self.resting.front().map(|(until, _)| *until)
    }

    /// The place of a watch that has rested, to be armed again.
    pub(super) fn pop_rested(&mut self, now: Instant) -> Option<usize> {
        while let Some(&(until, token)) = self.resting.front()
            && until <= now
        {
            self.resting.pop_front();
            if let Some(place) = self.resolve(token) {
                self.watches[place].is_resting = false;
                return Some(place);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::pipe::{PipeFlags, pipe_with};

    fn registry() -> Registry {
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        Registry::new(event.as_fd()).unwrap() // closing the eventfd takes it out again
    }

    /// The tokens of events that are there now.
    fn events(registry: &Registry) -> Vec<u64> {
        let mut events = Vec::with_capacity(8);
        let no_time = rustix::thread::Timespec { tv_sec: 0, tv_nsec: 0 };
        let spare = rustix::buffer::spare_capacity(&mut events);
        epoll::wait(registry.epoll(), spare, Some(&no_time)).unwrap();
        events.iter().map(|event| event.data.u64()).collect()
    }

    #[test]
    fn one_event_for_each_arming() {
        let mut registry = registry();
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let place = registry.wait(reader.as_raw_fd(), Direction::Read, 1);
        registry.arm(place).unwrap();
        assert_eq!(events(&registry), []);
        rustix::io::write(&writer, b"x").unwrap();
        assert_eq!(events(&registry), [registry.token(place)]);
        assert_eq!(events(&registry), []);
        registry.fired(place);
        registry.arm(place).unwrap();
        assert_eq!(events(&registry), [registry.token(place)]);
        registry.leave(place, 1);
        assert_eq!(registry.waiters(), 0);
    }

    #[test]
    fn both_directions_and_polls_are_armed_together() {
        let mut registry = registry();
        let (reader, _writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let raw = reader.as_raw_fd();
        let place = registry.wait(raw, Direction::Read, 1);
        assert_eq!(registry.wait(raw, Direction::Write, 2), place);
        assert_eq!(registry.wait_poll(raw, 2, 3), place);
        assert_eq!(registry.members(place), [1, 2, 3]);
        registry.arm(place).unwrap();
        let all = EventFlags::IN | EventFlags::OUT | EventFlags::PRI;
        assert!(registry.watch(place).armed.contains(all));
        registry.watch(place).way(Direction::Write).is_busy = true;
        assert_eq!(registry.watch(place).interest(), EventFlags::IN | EventFlags::PRI);
    }

    #[test]
    fn a_number_that_was_given_to_another_file_gets_a_new_generation() {
        let mut registry = registry();
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let raw = reader.as_raw_fd();
        let place = registry.wait(raw, Direction::Read, 1);
        registry.arm(place).unwrap();
        let old = registry.token(place);
        // The old file stays open, and watched, under another number.
        let copy = rustix::io::fcntl_dupfd_cloexec(&reader, 100).unwrap();
        let (other, other_writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let mut reader = reader;
        rustix::io::dup2(&other, &mut reader).unwrap();
        registry.fired(place); // as if it had been used, and was disarmed
        registry.arm(place).unwrap();
        rustix::io::write(&writer, b"x").unwrap();
        assert_eq!(events(&registry), [old]);
        assert_eq!(registry.resolve(old), None);
        rustix::io::write(&other_writer, b"x").unwrap();
        let new = events(&registry);
        assert_eq!(new.len(), 1);
        assert_eq!(registry.resolve(new[0]), Some(place));
        drop(copy);
    }

    #[test]
    fn a_forgotten_watch_resolves_to_nothing_and_its_place_is_used_again() {
        let mut registry = registry();
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let place = registry.wait(reader.as_raw_fd(), Direction::Read, 1);
        registry.arm(place).unwrap();
        let token = registry.token(place);
        registry.leave(place, 1);
        registry.forget(place);
        assert_eq!((registry.resolve(token), registry.find(reader.as_raw_fd())), (None, None));
        assert_eq!(registry.wait(writer.as_raw_fd(), Direction::Write, 2), place);
        assert_eq!(registry.resolve(token), None);
        assert_eq!(registry.resolve(INBOX), None);
    }

    #[test]
    fn regular_files_are_told_apart_and_bad_numbers_too() {
        let mut registry = registry();
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let place = registry.wait(file.as_raw_fd(), Direction::Read, 1);
        assert_eq!(registry.arm(place), Err(Errno::PERM));
        let place = registry.wait(-1, Direction::Read, 1);
        assert_eq!(registry.arm(place), Err(Errno::BADF));
    }

    #[test]
    fn a_watch_without_progress_rests() {
        let mut registry = registry();
        let (reader, _writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let place = registry.wait(reader.as_raw_fd(), Direction::Read, 1);
        for _ in 1..FRUITLESS_MAX {
            registry.judge(place, false);
        }
        assert_eq!(registry.next_rested(), None);
        registry.judge(place, false);
        let until = registry.next_rested().unwrap();
        registry.arm(place).unwrap();
        assert!(registry.watch(place).armed.is_empty());
        assert_eq!(registry.pop_rested(until), Some(place));
        registry.arm(place).unwrap();
        assert!(!registry.watch(place).armed.is_empty());
    }
}
