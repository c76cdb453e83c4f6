//! The descriptors that epoll watches, and their waiting operations.
//!
//! A descriptor with waiters has a *watch*: two queues of operations (reading and writing) in the order of
//! their arrival, and polls in no order. Epoll watches the union of their events, in one of three ways:
//! - For one event (`EPOLLONESHOT`). After it the watch is armed again for the remaining waiters.
//! - A socket of this backend that is only read: for changes (`EPOLLET`), as long as it is open. A waiter
//!   has found nothing before, so new data is a change; and until the socket is
//!   [forgotten](Registry::forget_descriptor) no other file has its number. So a receive costs no
//!   `epoll_ctl(2)`.
//! - For a multishot operation: for available data, until it was taken (level-triggered). The operation need
//!   not read until `EAGAIN`.
//!
//! Watches are found by the descriptor's number, events by a token: place and generation. A watch without
//! waiters stays, since the next operation will need it again, until the driver
//! [forgets](Registry::forget_descriptor) the number, before it is closed or used outside the driver. If a
//! number was closed and reused without that, epoll, which knows files, has no such entry: a change fails
//! with `ENOENT`, and the descriptor is added again under a new generation. An event of the old file finds
//! no watch.
//!
//! A watch with repeated events that let no operation continue (a socket with an error that no read fetches)
//! rests for a moment, so that it costs little and delays no other. Where no watch may rest, it gets changes
//! only.
//!
//! Source: `epoll_ctl(2)`, `epoll(7)`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

use crate::sys::{Direction, borrow};

/// The token of the inbox' eventfd.
pub(super) const INBOX: u64 = u64::MAX;
/// The number of consecutive fruitless events after which a watch rests.
const FRUITLESS_MAX: u32 = 16;
/// Trigger modes of epoll. Without any of them: level-triggered.
const MODES: EventFlags = EventFlags::ONESHOT.union(EventFlags::ET);
/// The duration of a rest.
const REST: Duration = Duration::from_millis(1);

/// The epoll set and all watches.
#[derive(Debug)]
pub(super) struct Registry {
    epoll: OwnedFd,
    watches: Vec<Watch>,
    /// Free places in `watches`.
    free: Vec<usize>,
    /// Places by the number of the descriptor.
    by_raw: BTreeMap<i32, usize>,
    /// Sockets made here, by number, until they are closed or given away.
    sockets: BTreeSet<i32>,
    /// The number of waiting operations, in all watches.
    waiters: usize,
    /// Tokens of resting watches, with the end of their rest; soonest first.
    resting: VecDeque<(Instant, u64)>,
    /// No watch rests: a foreign loop that polls the epoll set would not be woken at the end of a rest.
    pub(super) is_restless: bool,
}

/// One descriptor's waiters.
#[derive(Debug, Default)]
pub(super) struct Watch {
    pub(super) raw: i32,
    /// Distinguishes the files that had the descriptor, and the watches that had this place.
    generation: u32,
    /// By direction.
    queues: [WaitQueue; 2],
    /// Polling operations, with their events.
    pub(super) polls: Vec<(u64, u16)>,
    /// The descriptor is in the epoll set.
    is_registered: bool,
    /// The events that epoll watches for now.
    armed: EventFlags,
    /// The number of events since one that let an operation continue.
    fruitless: u32,
    /// Not to be armed until the end of its rest.
    is_resting: bool,
    /// Multishot operations.
    going_on: Vec<u64>,
    /// The number belongs to this file until it is forgotten: a socket made here.
    is_lasting: bool,
    /// Events let no multishot operation continue, and no watch rests: epoll reports changes only.
    is_tired: bool,
}

/// Operations that wait for the same direction, oldest first.
#[derive(Debug, Default)]
pub(super) struct WaitQueue {
    pub(super) ids: VecDeque<u64>,
    /// A lane thread is trying the first one.
    pub(super) is_busy: bool,
}

impl Watch {
    pub(super) fn queue(&mut self, direction: Direction) -> &mut WaitQueue {
        &mut self.queues[direction as usize]
    }

    /// Returns the queue of this operation, if a lane thread is trying it.
    pub(super) fn busy_queue(&mut self, id: u64) -> Option<&mut WaitQueue> {
        self.queues.iter_mut().find(|queue| queue.is_busy && queue.ids.front() == Some(&id))
    }

    /// Returns the events needed by waiters.
    fn interest(&self) -> EventFlags {
        let mut interest = EventFlags::empty();
        for (queue, events) in self.queues.iter().zip([EventFlags::IN, EventFlags::OUT]) {
            if !queue.ids.is_empty() && !queue.is_busy {
                interest |= events;
            }
        }
        let polled = self.polls.iter().fold(0, |all, (_, events)| all | events);
        // The bits of poll and epoll are the same.
        interest | EventFlags::from_bits_retain(u32::from(polled))
    }

    /// Returns the events and the mode for epoll.
    fn wanted(&self) -> EventFlags {
        let interest = self.interest();
        if !self.going_on.is_empty() {
            // Nothing was left when the last try found nothing, so what comes is a change.
            if self.is_tired { interest | EventFlags::ET } else { interest }
        } else if self.is_lasting && EventFlags::IN.contains(interest) {
            EventFlags::IN | EventFlags::ET
        } else {
            interest | EventFlags::ONESHOT
        }
    }

    /// Returns whether the armed events already include these.
    fn is_armed_for(&self, wanted: EventFlags) -> bool {
        let has_events = !self.armed.is_empty() && self.armed.contains(wanted - MODES);
        // Level-triggered watches also report changes, and single events.
        has_events && (wanted.intersects(MODES) || !self.armed.intersects(MODES))
    }

    /// Returns whether it has no waiters, not even with a thread.
    pub(super) fn is_idle(&self) -> bool {
        self.waiters() == 0
    }

    /// Returns the number of waiting operations.
    fn waiters(&self) -> usize {
        self.polls.len() + self.queues.iter().map(|queue| queue.ids.len()).sum::<usize>()
    }
}

impl Registry {
    /// Makes an epoll set with this descriptor in it, watched for edges.
    pub(super) fn new(inbox: BorrowedFd<'_>) -> Result<Self, Errno> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, inbox, EventData::new_u64(INBOX), EventFlags::IN | EventFlags::ET)?;
        Ok(Self {
            epoll,
            watches: Vec::new(),
            free: Vec::new(),
            by_raw: BTreeMap::new(),
            sockets: BTreeSet::new(),
            waiters: 0,
            resting: VecDeque::new(),
            is_restless: false,
        })
    }

    pub(super) fn epoll(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Returns the number of waiting operations.
    pub(super) fn waiters(&self) -> usize {
        self.waiters
    }

    /// Returns the place of this number's watch, if there is one.
    pub(super) fn find(&self, raw: i32) -> Option<usize> {
        self.by_raw.get(&raw).copied()
    }

    pub(super) fn watch(&mut self, place: usize) -> &mut Watch {
        &mut self.watches[place]
    }

    /// Returns the place of the watch that an event is for. `None` for an outdated one.
    pub(super) fn resolve(&self, token: u64) -> Option<usize> {
        let (place, generation) = (token as u32 as usize, (token >> 32) as u32);
        let watch = self.watches.get(place)?;
        (watch.generation == generation).then_some(place)
    }

    fn token(&self, place: usize) -> u64 {
        u64::from(self.watches[place].generation) << 32 | place as u64
    }

    /// Returns the place of the number's watch, adding one if needed.
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

    /// Adds an operation to the end of a queue. The caller arms the watch afterwards.
    pub(super) fn wait(&mut self, raw: i32, direction: Direction, id: u64) -> usize {
        let place = self.place(raw);
        self.watches[place].is_lasting |= self.is_own(raw);
        self.watches[place].queue(direction).ids.push_back(id);
        self.waiters += 1;
        place
    }

    /// Adds a polling operation. The caller arms the watch afterwards.
    pub(super) fn wait_poll(&mut self, raw: i32, events: u16, id: u64) -> usize {
        let place = self.place(raw);
        self.watches[place].polls.push((id, events));
        self.waiters += 1;
        place
    }

    /// Marks a waiting operation as multishot. The caller arms the watch afterwards.
    pub(super) fn go_on(&mut self, place: usize, id: u64) {
        self.watches[place].going_on.push(id);
    }

    /// Clears that mark: a thread handles the operation, once for each event. There are none until the watch
    /// is armed again.
    pub(super) fn rest_between(&mut self, place: usize, id: u64) {
        self.watches[place].going_on.retain(|its| *its != id);
        self.disarm(place);
    }

    /// Records a socket made here, if this is the number of one.
    pub(super) fn note_socket(&mut self, raw: i32) {
        if raw >= 0 {
            self.sockets.insert(raw);
        }
    }

    /// Returns whether the descriptor's file was made here, and never given away.
    pub(super) fn is_own(&self, raw: i32) -> bool {
        self.sockets.contains(&raw)
    }

    /// Records that the number belongs to another file from now on. Its watch ends, unless operations still
    /// wait there.
    ///
    /// Otherwise the next file with the number would count as watched, or rest for this one; and events of
    /// this one would go on for as long as a copy of the descriptor is open.
    pub(super) fn forget_descriptor(&mut self, raw: i32) {
        self.sockets.remove(&raw);
        if let Some(place) = self.find(raw) {
            self.watches[place].is_lasting = false;
            if self.watches[place].is_idle() {
                self.forget(place);
            }
        }
    }

    /// Removes an operation from this watch.
    pub(super) fn leave(&mut self, place: usize, id: u64) {
        let watch = &mut self.watches[place];
        let before = watch.waiters();
        watch.polls.retain(|(its, _)| *its != id);
        watch.going_on.retain(|its| *its != id);
        for queue in &mut watch.queues {
            match queue.ids.front() {
                Some(first) if *first == id => drop(queue.ids.pop_front()),
                _ => queue.ids.retain(|its| *its != id),
            }
        }
        self.waiters -= before - watch.waiters();
    }

    /// Returns all operations in this watch.
    pub(super) fn members(&self, place: usize) -> Vec<u64> {
        let watch = &self.watches[place];
        let polls = watch.polls.iter().map(|(id, _)| *id);
        watch.queues.iter().flat_map(|queue| queue.ids.iter().copied()).chain(polls).collect()
    }

    /// Removes a watch without waiters: its descriptor is about to be closed, or cannot be watched.
    pub(super) fn forget(&mut self, place: usize) {
        self.disarm(place);
        let watch = &mut self.watches[place];
        debug_assert!(watch.is_idle());
        self.by_raw.remove(&watch.raw);
        *watch = Watch { generation: watch.generation.wrapping_add(1), ..Watch::default() };
        self.free.push(place);
    }

    /// Makes epoll watch for the events that the waiters of this watch need, or for none.
    ///
    /// # Errors
    /// `EPERM`: such a file never blocks. Otherwise as `epoll_ctl(2)`.
    #[inline]
    pub(super) fn arm(&mut self, place: usize) -> Result<(), Errno> {
        let watch = &self.watches[place];
        if watch.is_idle() {
            if !watch.is_lasting {
                self.disarm(place);
            }
            return Ok(());
        }
        let flags = watch.wanted();
        if watch.interest().is_empty() && watch.polls.is_empty()
            || watch.is_resting
            || watch.is_armed_for(flags)
        {
            return Ok(());
        }
        self.set(place, flags)
    }

    /// Sets the events that epoll watches for.
    ///
    /// # Errors
    /// As [`arm`](Registry::arm).
    fn set(&mut self, place: usize, flags: EventFlags) -> Result<(), Errno> {
        let watch = &self.watches[place];
        // SAFETY: the waiting operations keep it open: the entry's promise.
        let fd = unsafe { borrow(watch.raw) }?;
        let data = EventData::new_u64(self.token(place));
        let changed = if watch.is_registered {
            epoll::modify(&self.epoll, fd, data, flags)
        } else {
            Err(Errno::NOENT)
        };
        match changed {
            Err(Errno::NOENT) => {
                let watch = &mut self.watches[place];
                watch.is_registered = false;
                watch.generation = watch.generation.wrapping_add(1);
                let data = EventData::new_u64(self.token(place));
                match epoll::add(&self.epoll, fd, data, flags) {
                    // Left by a watch that was removed, while a copy of the descriptor keeps the file open.
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

    /// Makes epoll watch for no events of this watch.
    fn disarm(&mut self, place: usize) {
        let watch = &mut self.watches[place];
        if watch.armed.is_empty() {
            return;
        }
        watch.armed = EventFlags::empty();
        watch.is_registered = false;
        // A closed descriptor is already gone from the set.
        // SAFETY: the kernel only removes it from this set; another file that has the number by now is not
        // in the set, and is not affected.
        if let Ok(fd) = unsafe { borrow(watch.raw) } {
            let _ = epoll::delete(&self.epoll, fd);
        }
    }

    /// Records that epoll reported an event, which disarms a one-shot watch.
    pub(super) fn fired(&mut self, place: usize) {
        let watch = &mut self.watches[place];
        if watch.armed.contains(EventFlags::ONESHOT) {
            watch.armed = EventFlags::empty();
        }
    }

    /// Makes epoll report readiness once more, as soon as an operation waits for it.
    pub(super) fn report_again(&mut self, place: usize) {
        self.disarm(place);
    }

    /// Stops epoll from repeating reported events without waiters. The caller arms the watch afterwards. An
    /// operation that has just ended may have a successor soon: events without waiters are ignored until one
    /// finds none.
    #[inline]
    pub(super) fn hush(&mut self, place: usize, reported: EventFlags, was_idle: bool) {
        let watch = &mut self.watches[place];
        if watch.armed.is_empty() || watch.armed.intersects(MODES) {
            return;
        }
        let unwanted = reported & watch.armed & !watch.interest();
        if watch.is_idle() {
            if was_idle {
                self.disarm(place);
            }
        } else if !unwanted.is_empty() || watch.going_on.is_empty() {
            watch.armed = EventFlags::empty();
        }
    }

    /// Records whether an event let an operation continue. After too many fruitless ones the watch rests.
    pub(super) fn classify(&mut self, place: usize, was_fruitful: bool) {
        let token = self.token(place);
        let watch = &mut self.watches[place];
        if watch.is_idle() && !was_fruitful {
            return;
        }
        watch.fruitless = if was_fruitful { 0 } else { watch.fruitless.saturating_add(1) };
        let is_tired = watch.fruitless >= FRUITLESS_MAX;
        if self.is_restless {
            if watch.is_tired != is_tired {
                (watch.is_tired, watch.armed) = (is_tired, EventFlags::empty());
            }
        } else if is_tired && !watch.is_resting {
            watch.is_resting = true;
            self.disarm(place);
            self.resting.push_back((Instant::now() + REST, token));
        }
    }

    /// Returns the end of the first rest.
    pub(super) fn next_rested(&self) -> Option<Instant> {
        self.resting.front().map(|(until, _)| *until)
    }

    /// Removes and returns the place of a watch that has rested, to be armed again.
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

// All these tests make system calls.
#[cfg(not(miri))]
#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::pipe::{PipeFlags, pipe_with};
    use std::os::fd::AsRawFd;

    fn registry() -> Registry {
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        Registry::new(event.as_fd()).unwrap() // closing the eventfd takes it out again
    }

    /// Returns the tokens of current events.
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
    fn who_goes_on_costs_no_call_for_each_event_and_others_have_one_event_each() {
        let mut registry = registry();
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let place = registry.wait(reader.as_raw_fd(), Direction::Read, 1);
        registry.go_on(place, 1);
        registry.arm(place).unwrap();
        rustix::io::write(&writer, b"x").unwrap();
        for _ in 0..3 {
            assert_eq!(events(&registry), [registry.token(place)]);
            registry.fired(place);
            registry.hush(place, EventFlags::IN, false);
            assert_eq!(registry.watch(place).armed, EventFlags::IN, "it is as it was");
        }
        // A one-shot waiter replaces it.
        registry.leave(place, 1);
        assert_eq!(registry.wait(reader.as_raw_fd(), Direction::Read, 2), place);
        registry.hush(place, EventFlags::IN, false);
        registry.arm(place).unwrap();
        assert_eq!(events(&registry), [registry.token(place)]);
        registry.fired(place);
        assert_eq!(events(&registry), []);
    }

    #[test]
    fn those_that_rest_come_back_in_their_order_and_each_once() {
        let mut registry = registry();
        let pipes: Vec<_> = (0..3).map(|_| pipe_with(PipeFlags::CLOEXEC).unwrap()).collect();
        let rest = |(id, (reader, _)): (usize, &(OwnedFd, OwnedFd))| {
            let place = registry.wait(reader.as_raw_fd(), Direction::Read, id as u64);
            registry.arm(place).unwrap();
            (0..FRUITLESS_MAX).for_each(|_| registry.classify(place, false));
            place
        };
        let places: Vec<_> = pipes.iter().enumerate().map(rest).collect();
        let later = Instant::now() + 2 * REST;
        let back: Vec<_> = std::iter::from_fn(|| registry.pop_rested(later)).take(10).collect();
        assert_eq!(back, places);
        assert_eq!(registry.next_rested(), None);
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
        registry.watch(place).queue(Direction::Write).is_busy = true;
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
    fn a_lasting_watch_is_armed_once_and_tells_of_changes() {
        let mut registry = registry();
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let raw = reader.as_raw_fd();
        let mut places = Vec::new();
        registry.note_socket(raw);
        for id in 0..3 {
            let place = registry.wait(raw, Direction::Read, id);
            registry.arm(place).unwrap();
            assert_eq!(registry.watch(place).armed, EventFlags::IN | EventFlags::ET);
            assert_eq!(events(&registry), []);
            rustix::io::write(&writer, b"x").unwrap();
            assert_eq!(events(&registry), [registry.token(place)]);
            assert_eq!(events(&registry), []);
            registry.fired(place);
            registry.leave(place, id);
            registry.arm(place).unwrap();
            places.push(place);
        }
        assert_eq!(places, [places[0]; 3]);
        // A second waiter, for room, is notified once.
        let place = registry.wait(raw, Direction::Write, 3);
        registry.arm(place).unwrap();
        assert!(registry.watch(place).armed.contains(EventFlags::OUT | EventFlags::ONESHOT));
        registry.leave(place, 3);
    }

    #[test]
    fn a_number_that_is_released_is_watched_no_more() {
        let mut registry = registry();
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let raw = reader.as_raw_fd();
        registry.note_socket(raw);
        let place = registry.wait(raw, Direction::Read, 1);
        registry.arm(place).unwrap();
        registry.leave(place, 1);
        registry.forget_descriptor(raw);
        assert_eq!(registry.find(raw), None);
        rustix::io::write(&writer, b"x").unwrap();
        assert_eq!(events(&registry), []);
        // So is the number of a file of others, which may rest for a moment.
        let place = registry.wait(raw, Direction::Read, 1);
        registry.arm(place).unwrap();
        (0..FRUITLESS_MAX).for_each(|_| registry.classify(place, false));
        registry.leave(place, 1);
        registry.forget_descriptor(raw);
        assert_eq!(registry.find(raw), None);
        // With a waiter it stays, for one event.
        registry.note_socket(raw);
        let place = registry.wait(raw, Direction::Read, 2);
        registry.forget_descriptor(raw);
        registry.arm(place).unwrap();
        assert!(registry.watch(place).armed.contains(EventFlags::ONESHOT));
        assert_eq!(events(&registry), [registry.token(place)]);
    }

    #[test]
    fn who_goes_on_waiting_is_told_until_nothing_is_left() {
        let mut registry = registry();
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let raw = reader.as_raw_fd();
        registry.note_socket(raw);
        let place = registry.wait(raw, Direction::Read, 1);
        registry.go_on(place, 1);
        registry.arm(place).unwrap();
        rustix::io::write(&writer, b"x").unwrap();
        for _ in 0..2 {
            assert_eq!(events(&registry), [registry.token(place)]);
            registry.fired(place);
            registry.hush(place, EventFlags::IN, false);
            registry.arm(place).unwrap();
        }
        // A thread handles the event.
        registry.rest_between(place, 1);
        assert_eq!(events(&registry), []);
        registry.go_on(place, 1);
        registry.arm(place).unwrap();
        // Without waiters, an event finds none.
        registry.leave(place, 1);
        registry.hush(place, EventFlags::IN, false);
        registry.arm(place).unwrap();
        assert_eq!(events(&registry), [registry.token(place)]);
        registry.hush(place, EventFlags::IN, true);
        assert_eq!(events(&registry), []);
    }

    #[test]
    fn what_nobody_wants_any_more_is_not_told() {
        let mut registry = registry();
        let socket = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::STREAM,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        );
        let (near, _far) = socket.unwrap();
        let raw = near.as_raw_fd();
        let place = registry.wait(raw, Direction::Read, 1);
        registry.go_on(place, 1);
        assert_eq!(registry.wait(raw, Direction::Write, 2), place);
        registry.arm(place).unwrap();
        assert_eq!(events(&registry), [registry.token(place)], "there is room");
        registry.leave(place, 2);
        registry.hush(place, EventFlags::OUT, false);
        registry.arm(place).unwrap();
        assert_eq!(events(&registry), []);
        assert_eq!(registry.watch(place).armed, EventFlags::IN);
    }

    #[test]
    fn a_watch_without_progress_rests() {
        let mut registry = registry();
        let (reader, _writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let place = registry.wait(reader.as_raw_fd(), Direction::Read, 1);
        for _ in 1..FRUITLESS_MAX {
            registry.classify(place, false);
        }
        assert_eq!(registry.next_rested(), None);
        registry.classify(place, false);
        let until = registry.next_rested().unwrap();
        registry.arm(place).unwrap();
        assert!(registry.watch(place).armed.is_empty());
        assert_eq!(registry.pop_rested(until), Some(place));
        registry.arm(place).unwrap();
        assert!(!registry.watch(place).armed.is_empty());
    }
}
