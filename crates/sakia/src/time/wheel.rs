//! A hierarchical timer wheel, which finds the timers that are due at a tick, and the next tick with timers.
//!
//! Six levels of 64 slots. A slot of level 0 is one tick; a slot of the next level is as wide as the whole
//! level below. Timers beyond the top level are on a separate list. A timer's level is that of the highest
//! digit, to base 64, in which its tick differs from the wheel's; when the wheel comes to a slot of a higher
//! level, the slot's timers move down, in order.
//!
//! Invariants:
//! - The timers of one tick are on one list, in the order in which they were set: a later one is put
//!   on a lower level only after the slot of the earlier one was reached, and so emptied.
//! - Every slot in use lies after the wheel's tick, and a lower level's before a higher level's. So the
//!   first slot of the lowest level in use holds the next timer.
//!
//! Setting, moving and removing a timer take constant time, and allocate only when there are more timers than
//! ever before: they are entries of a slab, linked by their numbers. Nothing here runs users' code, so wakers
//! are returned to the caller instead of dropped.
//!
//! Sources: Varghese and Lauck, "Hashed and Hierarchical Timing Wheels" (SOSP 1987), scheme 7.

use std::mem;
use std::task::Waker;

use slab::Slab;

const LEVELS: usize = 6;
const SLOTS: usize = 1 << SLOT_BITS;
/// Bits of a tick that one level covers.
const SLOT_BITS: u32 = 6;
/// Bits of a tick that all levels cover.
const WHEEL_BITS: u32 = SLOT_BITS * LEVELS as u32;

/// The list of timers beyond the levels; those of the slots come before it.
const FAR: u16 = (LEVELS * SLOTS) as u16;
/// The list of timers that are due.
const DUE: u16 = FAR + 1;
const LISTS: usize = DUE as usize + 1;
/// The value of `list` in the entry of a fired timer.
const NONE: u16 = u16::MAX;
/// The end of a list.
const END: u32 = u32::MAX;

/// The last valid tick. Sums with a slot's width do not overflow.
pub(super) const TICK_MAX: u64 = u64::MAX >> 1;

/// Timers by the tick at which they are due.
pub(super) struct Wheel {
    entries: Slab<Entry>,
    /// By level and slot, then [`FAR`] and [`DUE`].
    lists: Box<[List; LISTS]>,
    /// Per level, a bit for each slot with timers.
    occupied: [u64; LEVELS],
    /// The wheel's tick: all timers up to it are due.
    tick: u64,
    /// Timers that have not fired.
    armed: usize,
}

/// A timer, from its first poll until it is dropped.
struct Entry {
    /// The tick at which it is due.
    at: u64,
    previous: u32,
    next: u32,
    /// The list in which it is linked; `NONE` once it has fired.
    list: u16,
    /// The waker of the waiting task; `None` once it has fired.
    waker: Option<Waker>,
}

#[derive(Clone, Copy)]
struct List {
    first: u32,
    last: u32,
}

impl List {
    const EMPTY: Self = Self { first: END, last: END };
}

impl Wheel {
    pub(super) fn new() -> Self {
        Self {
            entries: Slab::new(),
            lists: Box::new([List::EMPTY; LISTS]),
            occupied: [0; LEVELS],
            tick: 0,
            armed: 0,
        }
    }

    /// Returns whether no timer is left to fire.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.armed == 0
    }

    /// Sets a timer. It is due at once if its tick has passed.
    pub(super) fn insert(&mut self, at: u64, waker: Waker) -> u32 {
        let entry = Entry { at, previous: END, next: END, list: NONE, waker: Some(waker) };
        let key = u32::try_from(self.entries.insert(entry)).expect("fewer than 2^32 timers");
        assert_ne!(key, END, "fewer than 2^32 timers");
        self.link(key);
        self.armed += 1;
        key
    }

    /// Moves a timer to another tick, after the timers already there. A timer that has fired is set again.
    pub(super) fn reset(&mut self, key: u32, at: u64) {
        self.disarm(key);
        self.entry(key).at = at;
        self.link(key);
        self.armed += 1;
    }

    /// Removes a timer, and returns its waker unless it has fired.
    #[must_use = "dropping a waker may run users' code, so first let go of the wheel"]
    pub(super) fn remove(&mut self, key: u32) -> Option<Waker> {
        self.disarm(key);
        self.entries.remove(key as usize).waker
    }

    /// Returns the timers that have not fired, by number and tick.
    #[cfg(feature = "sim")]
    pub(super) fn armed(&self) -> impl Iterator<Item = (u32, u64)> {
        let armed = self.entries.iter().filter(|(_, entry)| entry.list != NONE);
        armed.map(|(key, entry)| (key as u32, entry.at))
    }

    pub(super) fn has_fired(&self, key: u32) -> bool {
        self.entries[key as usize].list == NONE
    }

    /// Returns whether a timer wakes the same task as `waker`.
    pub(super) fn will_wake(&self, key: u32, waker: &Waker) -> bool {
        self.entries[key as usize].waker.as_ref().is_some_and(|old| old.will_wake(waker))
    }

    /// Changes the waker of a timer, and returns the previous one.
    #[must_use = "dropping a waker may run users' code, so first let go of the wheel"]
    pub(super) fn set_waker(&mut self, key: u32, waker: Waker) -> Option<Waker> {
        self.entry(key).waker.replace(waker)
    }

    /// Advances to tick `to`. Timers up to it become due, in the order of their ticks and, within a tick, in
    /// the order in which they were set.
    pub(super) fn advance(&mut self, to: u64) {
        while let Some((list, start)) = self.next_slot()
            && start <= to
        {
            self.tick = start;
            let mut key = mem::replace(&mut self.lists[usize::from(list)], List::EMPTY).first;
            self.mark_empty(list);
            while key != END {
                let next = self.entry(key).next;
                self.link(key); // moves it to a lower level, or to the due ones
                key = next;
            }
        }
        self.tick = self.tick.max(to);
    }

    /// Fires the next timer that is due, and returns its waker.
    pub(super) fn pop_due(&mut self) -> Option<Waker> {
        loop {
            let key = self.lists[usize::from(DUE)].first;
            if key == END {
                return None;
            }
            self.disarm(key);
            if let Some(waker) = self.entry(key).waker.take() {
                return Some(waker);
            }
        }
    }

    /// Returns the tick at which the next timer is due.
    ///
    /// This may need a look at all timers of one slot, at most `looks_max`. If there are more, the result is
    /// the slot's first tick, which is after the wheel's and not after the timer's.
    pub(super) fn next_deadline(&self, looks_max: usize) -> Option<u64> {
        if self.lists[usize::from(DUE)].first != END {
            return Some(self.tick);
        }
        let (list, start) = self.next_slot()?;
        if usize::from(list) < SLOTS {
            return Some(start);
        }
        let (mut key, mut earliest) = (self.lists[usize::from(list)].first, u64::MAX);
        for _ in 0..looks_max {
            let entry = &self.entries[key as usize];
            earliest = earliest.min(entry.at);
            key = entry.next;
            if key == END {
                return Some(earliest);
            }
        }
        Some(start)
    }

    /// Returns the next list with timers, and its first tick.
    fn next_slot(&self) -> Option<(u16, u64)> {
        for (level, &occupied) in self.occupied.iter().enumerate() {
            if occupied != 0 {
                let slot = occupied.trailing_zeros();
                let shift = SLOT_BITS * level as u32;
                let begin = round_down(self.tick, shift + SLOT_BITS);
                let list = level * SLOTS + slot as usize;
                return Some((list as u16, begin + (u64::from(slot) << shift)));
            }
        }
        let is_any_far = self.lists[usize::from(FAR)].first != END;
        is_any_far.then(|| (FAR, round_down(self.tick, WHEEL_BITS) + (1 << WHEEL_BITS)))
    }

    fn entry(&mut self, key: u32) -> &mut Entry {
        &mut self.entries[key as usize]
    }

    /// Puts an entry, which is on no list, at the end of the list for its tick.
    fn link(&mut self, key: u32) {
        let list = list_for(self.tick, self.entry(key).at);
        let last = mem::replace(&mut self.lists[usize::from(list)].last, key);
        let entry = self.entry(key);
        (entry.list, entry.previous, entry.next) = (list, last, END);
        if last == END {
            self.lists[usize::from(list)].first = key;
        } else {
            self.entry(last).next = key;
        }
        if list < FAR {
            self.occupied[usize::from(list) / SLOTS] |= 1 << (usize::from(list) % SLOTS);
        }
    }

    /// Takes an entry off its list, unless it has fired.
    fn disarm(&mut self, key: u32) {
        let entry = self.entry(key);
        let (list, previous, next) = (entry.list, entry.previous, entry.next);
        if list == NONE {
            return;
        }
        entry.list = NONE;
        if previous == END {
            self.lists[usize::from(list)].first = next;
        } else {
            self.entry(previous).next = next;
        }
        if next == END {
            self.lists[usize::from(list)].last = previous;
        } else {
            self.entry(next).previous = previous;
        }
        if previous == END && next == END {
            self.mark_empty(list);
        }
        self.armed -= 1;
    }

    fn mark_empty(&mut self, list: u16) {
        if list < FAR {
            self.occupied[usize::from(list) / SLOTS] &= !(1 << (usize::from(list) % SLOTS));
        }
    }
}

/// Returns the list for a timer of tick `at` when the wheel is at `tick`.
fn list_for(tick: u64, at: u64) -> u16 {
    if at <= tick {
        return DUE;
    }
    let level = (tick ^ at).ilog2() / SLOT_BITS;
    if level >= LEVELS as u32 {
        return FAR;
    }
    let slot = (at >> (SLOT_BITS * level)) % SLOTS as u64;
    (u64::from(level) * SLOTS as u64 + slot) as u16
}

/// Returns `tick` with its lowest `bits` cleared.
fn round_down(tick: u64, bits: u32) -> u64 {
    tick >> bits << bits
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::task::Wake;

    use super::*;

    /// Notes its timer's number when woken.
    struct Note {
        number: u64,
        last: Arc<AtomicU64>,
    }

    impl Wake for Note {
        fn wake(self: Arc<Self>) {
            self.last.store(self.number, Ordering::Relaxed);
        }
    }

    /// A generator of random numbers: splitmix64.
    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (mixed ^ (mixed >> 31)) % bound
        }

        /// Returns a distance; short and long ones are equally likely.
        fn distance(&mut self, bits_max: u64) -> u64 {
            let bits = self.below(bits_max + 1);
            self.below(1 << bits)
        }
    }

    /// The wheel, and a model of its behavior.
    struct Pair {
        wheel: Wheel,
        /// Armed timers by tick and order of setting, which is the wheel's key.
        model: BTreeMap<(u64, u64), u32>,
        fired: Vec<u32>,
        /// The number that the next timer set gets.
        next_number: u64,
        last: Arc<AtomicU64>,
        tick: u64,
    }

    impl Pair {
        fn new(tick: u64) -> Self {
            let mut wheel = Wheel::new();
            wheel.advance(tick);
            let last = Arc::default();
            Self { wheel, model: BTreeMap::new(), fired: Vec::new(), next_number: 0, last, tick }
        }

        fn waker(&mut self) -> (u64, Waker) {
            let number = self.next_number;
            self.next_number += 1;
            (number, Waker::from(Arc::new(Note { number, last: Arc::clone(&self.last) })))
        }

        fn insert(&mut self, at: u64) {
            let (number, waker) = self.waker();
            let key = self.wheel.insert(at, waker);
            self.model.insert((at.max(self.tick), number), key);
        }

        fn reset(&mut self, random: &mut Random, at: u64) {
            let Some(key) = self.take_any(random) else { return };
            let (number, waker) = self.waker();
            self.wheel.reset(key, at);
            drop(self.wheel.set_waker(key, waker));
            self.model.insert((at.max(self.tick), number), key);
        }

        fn remove(&mut self, random: &mut Random) {
            if let Some(key) = self.take_any(random) {
                drop(self.wheel.remove(key));
            }
        }

        /// Takes some timer, fired or not, from the model.
        fn take_any(&mut self, random: &mut Random) -> Option<u32> {
            if !self.fired.is_empty() && random.below(8) == 0 {
                return self.fired.pop();
            }
            if self.model.is_empty() {
                return None;
            }
            let place = random.below(self.model.len() as u64) as usize;
            let (&found, &key) = self.model.iter().nth(place)?;
            self.model.remove(&found);
            Some(key)
        }

        fn advance(&mut self, distance: u64) {
            self.tick += distance;
            self.wheel.advance(self.tick);
            while let Some(first) = self.model.first_entry()
                && first.key().0 <= self.tick
            {
                let (number, key) = (first.key().1, first.remove());
                self.wheel.pop_due().expect("the model has one due").wake();
                assert_eq!(self.last.load(Ordering::Relaxed), number);
                assert!(self.wheel.has_fired(key));
                self.fired.push(key);
            }
            assert!(self.wheel.pop_due().is_none(), "the model has none due");
        }

        fn check(&self) {
            let expected = self.model.first_key_value().map(|(&(at, _), _)| at);
            assert_eq!(self.wheel.next_deadline(self.model.len()), expected);
            let bound = self.wheel.next_deadline(2);
            assert_eq!(bound.is_some(), expected.is_some());
            if let (Some(bound), Some(expected)) = (bound, expected) {
                assert!(bound <= expected, "{bound} is after {expected}");
                assert!(
                    bound > self.tick || bound == expected,
                    "waiting until {bound} is no progress"
                );
            }
            assert_eq!(self.wheel.is_idle(), self.model.is_empty());
            assert!(self.model.values().all(|&key| !self.wheel.has_fired(key)));
        }
    }

    #[test]
    fn it_behaves_like_a_sorted_map() {
        for seed in 0..300 {
            let random = &mut Random(seed);
            // Distances reach beyond the top level, from the beginning and from just before a carry.
            let bits_max = [8, 14, 26, 40][random.below(4) as usize];
            let carry = 1_u64 << (6 + random.below(40));
            let begin = [0, carry - random.below(3) - 1][random.below(2) as usize];
            let mut pair = Pair::new(begin);
            for _ in 0..400 {
                let at = (pair.tick + random.distance(bits_max)).saturating_sub(random.below(2));
                match random.below(10) {
                    0..5 => pair.insert(at),
                    5..7 => pair.remove(random),
                    7 => pair.reset(random, at),
                    8 => {
                        let next = pair.wheel.next_deadline(2).unwrap_or(pair.tick);
                        pair.advance(next - pair.tick);
                    }
                    _ => {
                        let distance = random.distance(bits_max);
                        pair.advance(distance);
                    }
                }
                pair.check();
            }
            pair.advance(1 << 42);
            pair.check();
            assert!(pair.model.is_empty());
        }
    }

    #[test]
    fn entries_are_used_again() {
        let mut wheel = Wheel::new();
        for at in 1..10_000 {
            let key = wheel.insert(at, Waker::noop().clone());
            assert_eq!(key, 0);
            if at % 2 == 0 {
                wheel.advance(at);
                assert!(wheel.pop_due().is_some());
            }
            drop(wheel.remove(key));
        }
        assert!(wheel.is_idle());
    }

    #[test]
    fn the_last_tick_has_a_place() {
        let mut wheel = Wheel::new();
        let key = wheel.insert(TICK_MAX, Waker::noop().clone());
        assert_eq!(wheel.next_deadline(usize::MAX), Some(TICK_MAX));
        wheel.advance(1 << 40);
        assert!(wheel.pop_due().is_none());
        assert!(wheel.remove(key).is_some());
    }
}
