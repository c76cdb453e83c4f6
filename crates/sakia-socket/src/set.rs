//! The state of an `epoll` set.
//!
//! The host has a set with the same entries, and reports the events that it sees. This set has the rules of
//! [`Watch`] for each entry, and a list of entries that may be ready for a reason which the host does not
//! see. A wait
//! 1. asks the host, without sleeping if an entry of the list is ready,
//! 2. appends the host's reports to the list,
//! 3. reports from the front of the list, those first that were reported longest ago if there is no room for
//!    all, and appends those entries again that stay ready in memory.
//!
//! So entries take turns, whether memory or the host makes them ready, and events of both are reported
//! together. Reports of the host for which the program left no place stay on the list. The next wait asks
//! `poll(2)` about those that the host has not repeated, since they may be outdated.
//!
//! Changes of a file come as mail, which needs only a lock of its own: see [`wake`](crate::wake). The lock of
//! the state is held during calls of the host that do not wait.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt::Debug;
use std::mem;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rustix::io::Errno;
use sakia_socket_core::{Events, InMemory, Trigger, Watch};

use crate::open::Shared;
use crate::options::When;
use crate::wake::{Listener, News, Source};
use crate::{Entry, EpollChange, EpollEvent, Host};

/// The number of the event descriptor among the entries of the host's set.
const BELL: u64 = u64::MAX;
/// The depth to which nested sets are followed to find a loop. The kernel allows less.
const DEPTH_MAX: u32 = 8;

/// An `epoll` set.
#[derive(Debug)]
pub(crate) struct Set<H: Host> {
    pub(crate) shared: Arc<Shared<H>>,
    fd: H::Fd,
    /// Wakes threads that sleep in the host's set, of which it is an entry; `None` if memory is never used.
    bell: Option<H::Fd>,
    /// Itself, as a listener of its entries.
    me: Weak<Self>,
    state: Mutex<State<H>>,
    mail: Mutex<Mail>,
    news: News,
}

#[derive(Debug)]
struct State<H: Host> {
    slots: Vec<Slot<H>>,
    /// Slots without an entry.
    free: Vec<u32>,
    /// The slot of each file, by its address.
    places: HashMap<usize, u32>,
    /// Slots that may be ready, each once.
    ready: VecDeque<u32>,
    /// The number of the last report.
    round: u64,
    /// The number of events that were reported to the program.
    reported: u64,
}

/// A place for an entry.
#[derive(Debug)]
struct Slot<H: Host> {
    /// Differs for each entry in this slot, so that late reports of the host are detected.
    generation: u32,
    entry: Option<Member<H>>,
}

/// An entry.
#[derive(Debug)]
struct Member<H: Host> {
    source: Arc<dyn Source<H>>,
    data: u64,
    watch: Watch,
    /// The events that the host has reported and the program has not received.
    found: Events,
    /// The round of that report.
    found_in: u64,
    /// The number of events that had been reported to the program when this entry last was, or was added.
    reported_at: u64,
    is_listed: bool,
}

/// The state through which other threads reach the set.
#[derive(Debug, Default)]
struct Mail {
    /// Entries with changes.
    tokens: BTreeSet<u64>,
    /// Threads that sleep in the host's set.
    sleeping: usize,
    /// Set when the bell was rung, and no thread has answered it.
    is_rung: bool,
}

/// A result of asking the host.
struct Asked {
    found: Vec<EpollEvent>,
    /// The number of events requested.
    max: usize,
    /// The number of entries.
    entries: usize,
    /// Set when the time of the wait is over.
    is_over: bool,
}

impl<H: Host> Set<H> {
    pub(crate) fn new(shared: &Arc<Shared<H>>) -> Result<Arc<Self>, Errno> {
        let host = &*shared.host;
        let fd = host.epoll_create()?;
        let mut bell = None;
        if shared.options.read_ahead != When::Never || shared.options.gather != When::Never {
            let event = host.event()?;
            let entry = EpollEvent { events: Events::IN, data: BELL };
            host.epoll_control(&fd, EpollChange::Add(entry), &event)?;
            bell = Some(event);
        }
        Ok(Arc::new_cyclic(|me| Self {
            shared: Arc::clone(shared),
            fd,
            bell,
            me: Weak::clone(me),
            state: Mutex::new(State {
                slots: Vec::new(),
                free: Vec::new(),
                places: HashMap::new(),
                ready: VecDeque::new(),
                round: 0,
                reported: 0,
            }),
            mail: Mutex::new(Mail::default()),
            news: News::default(),
        }))
    }

    pub(crate) fn add(&self, source: &Arc<dyn Source<H>>, event: EpollEvent) -> Result<(), Errno> {
        let mut nesting = None;
        if source.is_set() {
            if address(&**source) == address(self) {
                return Err(Errno::INVAL);
            }
            // Two sets that are added to each other at the same time are a loop, too.
            nesting = Some(self.shared.nesting.lock().unwrap_or_else(PoisonError::into_inner));
            if source.leads_to(address(self), DEPTH_MAX) {
                return Err(Errno::LOOP);
            }
        }
        let mut state = self.state();
        if state.places.contains_key(&address(&**source)) {
            let change = EpollChange::Add(EpollEvent { events: event.events, data: BELL });
            return Err(self.refusal(change, &**source, Errno::EXIST));
        }
        let token = state.reserve();
        // From now on changes come as mail, so that none after the check of memory is missed.
        source.news().add(self.listener(), token);
        let entry = EpollEvent { events: event.events, data: token };
        if let Err(errno) =
            self.host().epoll_control(&self.fd, EpollChange::Add(entry), source.fd())
        {
            source.news().remove(&self.listener(), token);
            state.release(token);
            return Err(errno);
        }
        let watch = Watch::new(event.events, source.memory());
        let is_ready = watch.is_ready(source.memory());
        state.insert(token, Arc::clone(source), event.data, watch);
        drop((state, nesting));
        if is_ready {
            self.tell(token);
        }
        Ok(())
    }

    pub(crate) fn modify(&self, source: &dyn Source<H>, event: EpollEvent) -> Result<(), Errno> {
        let mut state = self.state();
        let Some(token) = state.token_of(source) else {
            return Err(self.refusal(EpollChange::Modify(event), source, Errno::NOENT));
        };
        let entry = EpollEvent { events: event.events, data: token };
        self.host().epoll_control(&self.fd, EpollChange::Modify(entry), source.fd())?;
        let memory = source.memory();
        let watch = Watch::new(event.events, memory);
        let is_ready = watch.is_ready(memory);
        if let Some(member) = state.member(token) {
            (member.watch, member.data, member.found) = (watch, event.data, Events::NONE);
        }
        drop(state);
        if is_ready {
            self.tell(token);
        }
        Ok(())
    }

    pub(crate) fn remove(&self, source: &dyn Source<H>) -> Result<(), Errno> {
        let mut state = self.state();
        let Some(token) = state.token_of(source) else {
            return Err(self.refusal(EpollChange::Delete, source, Errno::NOENT));
        };
        self.host().epoll_control(&self.fd, EpollChange::Delete, source.fd())?;
        source.news().remove(&self.listener(), token);
        self.forget(&mut state, token);
        Ok(())
    }

    /// Closes the set, with its last handle: it leaves the sets that it is in, and drops its entries.
    pub(crate) fn close(&self) {
        self.news.close();
        let mut state = self.state();
        let members: Vec<(u64, Arc<dyn Source<H>>)> = state.members().collect();
        for (token, _) in &members {
            self.forget(&mut state, *token);
        }
        drop(state);
        for (token, source) in members {
            source.news().remove(&self.listener(), token);
        }
    }

    /// Waits until an entry is ready, at most for `timeout`. Returns the number of events written to
    /// `events`.
    pub(crate) fn wait(
        &self,
        events: &mut [EpollEvent],
        timeout: Option<Duration>,
    ) -> Result<usize, Errno> {
        if events.is_empty() {
            return Err(Errno::INVAL);
        }
        self.shared.before_wait();
        let end = timeout
            .filter(|timeout| !timeout.is_zero())
            .map(|timeout| self.host().now().saturating_add(timeout));
        let mut left = timeout;
        let mut rounds = 0;
        loop {
            let Asked { found, max: asked, entries, is_over } = self.ask(events.len(), left)?;
            let count = self.report(&found, found.len() == asked, events);
            // If the program must not see any of the reported events, the host may have more. It does not
            // repeat these, so the number of rounds is bounded, even if the host lies.
            let is_all = found.len() < asked || rounds > entries;
            if count > 0 || is_over || left == Some(Duration::ZERO) && is_all {
                return Ok(count);
            }
            rounds += 1;
            // A clock that goes back does not lengthen the wait.
            if let (Some(rest), Some(end)) = (&mut left, end) {
                *rest = end.saturating_sub(self.host().now()).min(*rest);
            }
        }
    }

    /// Asks the host for `max` events, and sleeps if there is nothing to report.
    fn ask(&self, max: usize, left: Option<Duration>) -> Result<Asked, Errno> {
        let (is_ready, entries) = {
            let mut state = self.state();
            self.read_mail(&mut state);
            (state.is_ready(), state.places.len())
        };
        // One more, so that the bell does not take the place of an event.
        let asked = max.min(entries) + 1;
        let mut found = vec![EpollEvent::default(); asked];
        let sleeps = left != Some(Duration::ZERO) && !is_ready && self.fall_asleep();
        let timeout = if sleeps { left } else { Some(Duration::ZERO) };
        let result = self.host().epoll_wait(&self.fd, &mut found, timeout);
        if sleeps {
            self.mail().sleeping -= 1;
        }
        let count = result?;
        if count > asked {
            return Err(Errno::IO);
        }
        found.truncate(count);
        // It has slept for the whole time.
        let is_over = sleeps && left.is_some() && count == 0;
        Ok(Asked { found, max: asked, entries, is_over })
    }

    /// Reports the host's events in `found`, of which there may be more if `is_full`, and events in memory.
    fn report(&self, found: &[EpollEvent], is_full: bool, events: &mut [EpollEvent]) -> usize {
        let mut guard = self.state();
        let state = &mut *guard;
        state.round += 1;
        for event in found {
            if event.data == BELL {
                self.answer_bell();
            } else {
                state.found(event.data, event.events);
            }
        }
        self.read_mail(state);
        state.ask_again(self.host(), is_full);
        if state.ready.len() > events.len() {
            state.order();
        }
        let mut count = 0;
        for _ in 0..state.ready.len() {
            if count == events.len() {
                break;
            }
            let Some(place) = state.ready.pop_front() else { break };
            let Some(member) = state.slots[place as usize].entry.as_mut() else { continue };
            member.is_listed = false;
            let event = member.report();
            if !event.events.is_empty() {
                events[count] = event;
                count += 1;
                state.reported += 1;
                member.reported_at = state.reported;
            }
            if member.watch.is_ready(member.source.memory()) {
                state.list(place);
            }
        }
        // The kernel wakes one thread for each event. This thread has taken the signal for all of them.
        if !state.ready.is_empty() {
            self.ring();
        }
        count
    }

    /// Returns false if there is mail; otherwise the calling thread counts as asleep.
    fn fall_asleep(&self) -> bool {
        let mut mail = self.mail();
        let may_sleep = mail.tokens.is_empty();
        mail.sleeping += usize::from(may_sleep);
        may_sleep
    }

    /// Wakes a thread that sleeps in the host's set, if there is one.
    fn ring(&self) {
        let mut mail = self.mail();
        if mail.sleeping == 0 || mem::replace(&mut mail.is_rung, true) {
            return;
        }
        drop(mail);
        if let Some(bell) = &self.bell {
            let _ = self.host().signal(bell);
        }
    }

    fn answer_bell(&self) {
        if let Some(bell) = &self.bell {
            let _ = self.host().drain(bell);
        }
        // In this order: mail that comes without a ring is read afterwards.
        self.mail().is_rung = false;
    }

    /// Puts entries with changes on the list.
    fn read_mail(&self, state: &mut State<H>) {
        let tokens = mem::take(&mut self.mail().tokens);
        for token in tokens {
            let Some(member) = state.member(token) else { continue };
            // The host is asked later whether this event has occurred.
            if member.source.is_set() && member.watch.trigger() == Trigger::Edge {
                // An edge of a set is reported if the set is ready for any reason.
                member.found |= Events::IN;
            }
            if member.watch.take_room(member.source.memory()) {
                member.found |= Events::OUT;
            }
            state.list(token as u32);
        }
    }

    /// Drops an entry that its file no longer knows.
    fn forget(&self, state: &mut State<H>, token: u64) {
        state.release(token);
        self.mail().tokens.remove(&token);
    }

    /// Returns the error of a refused change: the host's, which may have another reason than `errno`.
    fn refusal(&self, change: EpollChange, source: &dyn Source<H>, errno: Errno) -> Errno {
        self.host().epoll_control(&self.fd, change, source.fd()).err().unwrap_or(errno)
    }

    fn host(&self) -> &H {
        &self.shared.host
    }

    fn listener(&self) -> Weak<dyn Listener> {
        let weak: Weak<Self> = Weak::clone(&self.me);
        weak
    }

    fn state(&self) -> MutexGuard<'_, State<H>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mail(&self) -> MutexGuard<'_, Mail> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<H: Host> Listener for Set<H> {
    fn tell(&self, token: u64) {
        self.mail().tokens.insert(token);
        self.ring();
        // Sets that have this one as an entry, and polls.
        self.news.arrived();
    }

    fn closed(&self, token: u64) {
        let mut state = self.state();
        if let Some(member) = state.member(token) {
            // The pump may keep the host's descriptor open, which would still report.
            let fd = member.source.fd();
            let _ = self.shared.host.epoll_control(&self.fd, EpollChange::Delete, fd);
            self.forget(&mut state, token);
        }
    }
}

impl<H: Host> Source<H> for Set<H> {
    fn fd(&self) -> &H::Fd {
        &self.fd
    }

    fn news(&self) -> &News {
        &self.news
    }

    fn memory(&self) -> InMemory {
        let (arrivals, _) = self.news.counts();
        let mut state = self.state();
        self.read_mail(&mut state);
        let ready = if state.is_ready() { Events::IN | Events::RDNORM } else { Events::NONE };
        InMemory { ready, arrivals, ..InMemory::NONE }
    }

    fn may_keep(&self) -> bool {
        self.bell.is_some()
    }

    fn is_set(&self) -> bool {
        true
    }

    fn leads_to(&self, target: usize, depth: u32) -> bool {
        let sources: Vec<_> = self.state().members().map(|(_, source)| source).collect();
        sources.iter().filter(|source| source.is_set()).any(|inner| {
            address(&**inner) == target || depth == 0 || inner.leads_to(target, depth - 1)
        })
    }
}

impl<H: Host> State<H> {
    /// Reserves a slot for an entry, and returns its token: slot and generation.
    fn reserve(&mut self) -> u64 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, entry: None });
            (self.slots.len() - 1) as u32
        });
        self.token_at(place)
    }

    fn insert(&mut self, token: u64, source: Arc<dyn Source<H>>, data: u64, watch: Watch) {
        let place = token as u32;
        self.places.insert(address(&*source), place);
        let (found, found_in, is_listed) = (Events::NONE, 0, false);
        // Behind those that wait for their turn.
        let reported_at = self.reported;
        let member = Member { source, data, watch, found, found_in, reported_at, is_listed };
        self.slots[place as usize].entry = Some(member);
    }

    /// Frees the slot of `token`.
    fn release(&mut self, token: u64) {
        let place = token as u32;
        let slot = &mut self.slots[place as usize];
        slot.generation = slot.generation.wrapping_add(1);
        if let Some(member) = slot.entry.take() {
            self.places.remove(&address(&*member.source));
            if member.is_listed {
                self.ready.retain(|&other| other != place);
            }
        }
        self.free.push(place);
    }

    fn token_at(&self, place: u32) -> u64 {
        u64::from(self.slots[place as usize].generation) << 32 | u64::from(place)
    }

    fn token_of(&self, source: &dyn Source<H>) -> Option<u64> {
        self.places.get(&address(source)).map(|&place| self.token_at(place))
    }

    /// Returns the entry of `token`, if the token is valid and the entry still exists.
    fn member(&mut self, token: u64) -> Option<&mut Member<H>> {
        let slot = self.slots.get_mut(token as u32 as usize)?;
        if u64::from(slot.generation) == token >> 32 { slot.entry.as_mut() } else { None }
    }

    fn members(&self) -> impl Iterator<Item = (u64, Arc<dyn Source<H>>)> {
        self.places.values().filter_map(|&place| {
            let member = self.slots[place as usize].entry.as_ref()?;
            Some((self.token_at(place), Arc::clone(&member.source)))
        })
    }

    /// Puts the entry in the slot `place` on the list, if it is not there.
    fn list(&mut self, place: u32) {
        if let Some(member) = &mut self.slots[place as usize].entry
            && !mem::replace(&mut member.is_listed, true)
        {
            self.ready.push_back(place);
        }
    }

    /// Records the `events` that the host has reported for the entry of `token`: all current ones, which
    /// replace an older report.
    fn found(&mut self, token: u64, events: Events) {
        let round = self.round;
        if let Some(member) = self.member(token) {
            member.found = events;
            member.found_in = round;
            self.list(token as u32);
        }
    }

    /// Returns true if an entry of the list is ready. Removes those from its front that are not.
    fn is_ready(&mut self) -> bool {
        while let Some(&place) = self.ready.front() {
            let member = self.slots[place as usize].entry.as_mut();
            match member {
                Some(member) if member.is_ready() => return true,
                Some(member) => member.is_listed = false,
                None => {}
            }
            self.ready.pop_front();
        }
        false
    }

    /// Puts those first that were reported longest ago. The host's turns differ from the program's, since it
    /// was asked for more events than the program had room for.
    fn order(&mut self) {
        let Self { slots, ready, .. } = self;
        ready.make_contiguous().sort_by_key(|&place| {
            slots[place as usize].entry.as_ref().map_or(0, |member| member.reported_at)
        });
    }

    /// Asks the host again about its reports of earlier rounds. If its report of this round was cut, also
    /// about entries that are ready in memory, since their event has to include all current events.
    fn ask_again(&mut self, host: &H, is_full: bool) {
        let mut old = Vec::new();
        for &place in &self.ready {
            if let Some(member) = &self.slots[place as usize].entry
                && member.found_in != self.round
                && (!member.found.is_empty() || is_full && member.is_ready())
            {
                old.push((place, Arc::clone(&member.source), member.watch.wanted()));
            }
        }
        if old.is_empty() {
            return;
        }
        let mut entries: Vec<Entry<'_, H::Fd>> = old
            .iter()
            .map(|(_, source, wanted)| Entry {
                fd: source.fd(),
                wanted: *wanted,
                ready: Events::NONE,
            })
            .collect();
        if host.wait(&mut entries, Some(Duration::ZERO)).is_err() {
            return;
        }
        let now: Vec<Events> = entries.iter().map(|entry| entry.ready).collect();
        for ((place, ..), now) in old.iter().zip(now) {
            if let Some(member) = &mut self.slots[*place as usize].entry {
                member.found = now;
            }
        }
    }
}

impl<H: Host> Member<H> {
    fn is_ready(&self) -> bool {
        !self.found.is_empty() || self.watch.is_ready(self.source.memory())
    }

    /// Returns the event to report; without events if there is nothing to report.
    fn report(&mut self) -> EpollEvent {
        let found = mem::take(&mut self.found);
        let mut memory = self.source.memory();
        if found.contains(Events::OUT) && !memory.has_room {
            self.source.make_room();
            memory = self.source.memory();
        }
        EpollEvent { events: self.watch.report(found, memory), data: self.data }
    }
}

/// Returns the address of a file, which is unique as long as the file is an entry.
fn address<H: Host>(source: &dyn Source<H>) -> usize {
    ptr::from_ref(source).cast::<()>().addr()
}
