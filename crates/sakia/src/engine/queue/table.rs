//! The requests of a queue by number, and the outcomes to take.

use std::collections::VecDeque;
use std::io;
use std::mem;

use sakia_driver::{Outcome, Request};

/// The number of a request of a queue, which is reused once the request has ended.
pub(super) type Slot = u32;

/// Names a request of a [`Queue`](super::Queue), to cancel it. One whose request has ended names nothing.
///
/// # Examples
/// See [`Queue::cancel`](super::Queue::cancel).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueTicket {
    pub(super) slot: Slot,
    pub(super) generation: u32,
}

impl QueueTicket {
    /// Returns the ticket as a number, for other languages. It is not 0.
    ///
    /// # Examples
    /// ```
    /// use sakia::engine::queue::QueueTicket;
    ///
    /// // Any number is a ticket, at worst one that names nothing.
    /// assert_eq!(QueueTicket::from_bits(u64::MAX).to_bits(), u64::MAX);
    /// ```
    pub fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    /// Returns the ticket with this number.
    ///
    /// # Examples
    /// See [`to_bits`](QueueTicket::to_bits).
    pub fn from_bits(bits: u64) -> Self {
        Self { slot: bits as u32, generation: (bits >> 32) as u32 }
    }

    /// Returns the outcome of a request that is not performed, with its slot for a token.
    pub(super) fn refuse(self, request: Request, error: io::Error) -> Outcome {
        request.refuse(self.slot.into(), error)
    }
}

/// A thread of the engine, by its number.
pub(super) type ThreadNumber = u32;

/// The whereabouts of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It has ended, or there was none.
    Free,
    /// It is in a batch that was not sent; perhaps already canceled.
    Batched { is_canceled: bool },
    /// It was sent to a thread.
    On(ThreadNumber),
    /// The thread has failed: it will not end.
    Lost,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    token: u64,
    generation: u32,
    state: State,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Table {
    entries: Vec<Entry>,
    free: Vec<Slot>,
    /// Outcomes to take, oldest first.
    done: VecDeque<Outcome>,
    /// The queue has stopped.
    pub(super) is_closed: bool,
    /// Outcomes that are to come are thrown away.
    pub(super) is_ended: bool,
    /// Requests were lost, of which no one was told.
    has_untold: bool,
}

impl Table {
    /// Returns the number of requests that have not ended.
    pub(super) fn live(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Returns whether threads have requests that have not ended.
    pub(super) fn has_sent(&self) -> bool {
        self.unended().any(|(.., state)| matches!(state, State::On(_)))
    }

    /// Notes that the requests of a thread will not end. Returns whether there are some.
    pub(super) fn lose(&mut self, thread: ThreadNumber) -> bool {
        let mut has_some = false;
        for entry in self.entries.iter_mut().filter(|entry| entry.state == State::On(thread)) {
            entry.state = State::Lost;
            has_some = true;
        }
        self.has_untold |= has_some;
        has_some
    }

    /// Returns whether one who waits is to be told of requests that were lost: the first one, and each one
    /// who waits for nothing else.
    pub(super) fn tells_of_lost(&mut self) -> bool {
        mem::take(&mut self.has_untold) || !self.has_sent()
    }

    /// Returns the number of requests whose outcome was not taken.
    pub(super) fn under_way(&self) -> usize {
        self.live() + self.done.len()
    }

    /// Adds a request, which is in a batch.
    pub(super) fn add(&mut self, token: u64) -> QueueTicket {
        let state = State::Batched { is_canceled: false };
        let slot = self.free.pop().unwrap_or_else(|| {
            // Generations begin with 1, so that no ticket is 0.
            self.entries.push(Entry { token, generation: 1, state: State::Free });
            (self.entries.len() - 1) as Slot // there are never more than the bound, which is a `u32`
        });
        let entry = &mut self.entries[slot as usize];
        (entry.token, entry.state) = (token, state);
        QueueTicket { slot, generation: entry.generation }
    }

    /// Returns the state of a request; `Free` if the ticket names none.
    pub(super) fn state(&self, ticket: QueueTicket) -> State {
        match self.entries.get(ticket.slot as usize) {
            Some(entry) if entry.generation == ticket.generation => entry.state,
            _ => State::Free,
        }
    }

    /// Sets the state of a request that has not ended. Returns its ticket, and the state that it had.
    pub(super) fn set(&mut self, slot: Slot, state: State) -> (QueueTicket, State) {
        let entry = &mut self.entries[slot as usize];
        debug_assert!(entry.state != State::Free);
        let ticket = QueueTicket { slot, generation: entry.generation };
        (ticket, mem::replace(&mut entry.state, state))
    }

    /// Ends a request, and returns its token.
    pub(super) fn end(&mut self, slot: Slot) -> u64 {
        let entry = &mut self.entries[slot as usize];
        debug_assert!(entry.state != State::Free);
        entry.state = State::Free;
        entry.generation = match entry.generation.wrapping_add(1) {
            0 => 1,
            next => next,
        };
        self.free.push(slot);
        entry.token
    }

    /// Adds the outcome of a request, which has the slot for its token.
    pub(super) fn push(&mut self, mut outcome: Outcome) {
        outcome.token = self.end(outcome.token as Slot);
        self.done.push_back(outcome);
    }

    /// Moves up to `most` outcomes to `to`. Returns their number.
    pub(super) fn take(&mut self, most: usize, to: &mut Vec<Outcome>) -> usize {
        let count = most.min(self.done.len());
        to.extend(self.done.drain(..count));
        count
    }

    /// Returns the number of outcomes to take.
    pub(super) fn ready(&self) -> usize {
        self.done.len()
    }

    /// Returns the tickets, tokens and states of the requests that have not ended.
    pub(super) fn unended(&self) -> impl Iterator<Item = (QueueTicket, u64, State)> {
        let entries = (0..).zip(&self.entries);
        entries.filter(|(_, entry)| entry.state != State::Free).map(|(slot, entry)| {
            let &Entry { token, generation, state } = entry;
            (QueueTicket { slot, generation }, token, state)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use sakia_driver::Value;

    use super::*;

    fn outcome(slot: Slot) -> Outcome {
        Request::Nop.refuse(slot.into(), io::ErrorKind::Other.into())
    }

    /// Random programs against a model that remembers all tickets.
    #[test]
    fn tickets_name_their_request_until_it_ends_and_no_other() {
        let mut random = 0x9e37_79b9_u64;
        let mut below = move |bound: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random % bound as u64) as usize
        };
        let mut table = Table::default();
        let mut live: Vec<(QueueTicket, u64, State)> = Vec::new();
        let mut tokens_due: HashMap<u64, u32> = HashMap::new();
        let mut ended: Vec<QueueTicket> = Vec::new();
        let mut taken = Vec::new();
        for step in 0..20_000_u64 {
            match below(6) {
                0 | 1 => {
                    let state = State::Batched { is_canceled: false };
                    live.push((table.add(step), step, state));
                }
                2 if !live.is_empty() => {
                    let at = below(live.len());
                    let (ticket, _, state) = &mut live[at];
                    let next = State::On(below(4) as u32);
                    assert_eq!(table.set(ticket.slot, next), (*ticket, *state));
                    *state = next;
                }
                3 if !live.is_empty() => {
                    let (ticket, token, _) = live.swap_remove(below(live.len()));
                    table.push(outcome(ticket.slot));
                    *tokens_due.entry(token).or_default() += 1;
                    ended.push(ticket);
                }
                4 if !live.is_empty() => {
                    let (ticket, token, _) = live.swap_remove(below(live.len()));
                    assert_eq!(table.end(ticket.slot), token);
                    ended.push(ticket);
                }
                _ => {
                    let most = below(8);
                    let count = table.take(most, &mut taken);
                    assert_eq!(count, taken.len());
                    for outcome in taken.drain(..) {
                        assert!(matches!(outcome.value, Value::None));
                        *tokens_due.get_mut(&outcome.token).unwrap() -= 1;
                    }
                }
            }
            let due: u32 = tokens_due.values().sum();
            assert_eq!((table.live(), table.ready()), (live.len(), due as usize));
            for &(ticket, _, state) in &live {
                assert_eq!(table.state(ticket), state);
            }
            for &ticket in ended.iter().rev().take(20) {
                assert_eq!(table.state(ticket), State::Free);
                assert_eq!(QueueTicket::from_bits(ticket.to_bits()), ticket);
            }
            let mut all: Vec<_> = table.unended().collect();
            all.sort_by_key(|(_, token, _)| *token);
            live.sort_by_key(|(_, token, _)| *token);
            assert_eq!(all, live);
        }
    }
}
