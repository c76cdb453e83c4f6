//! The keys and channels, for connections on any threads.
//!
//! A lock is held for a few steps and never while a task waits, so it is std's. Tasks wait on tokio's
//! primitives: a channel for each subscriber, and a `Notify` for the task that removes expired keys.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::future::Future;
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::{Notify, mpsc::error::TryRecvError};

use crate::protocol::number;

/// The maximum number of messages queued for a subscriber. One that falls further behind is cut off, as in
/// Redis.
pub const QUEUE_MESSAGES_MAX: usize = 1024;
/// The maximum size of all messages queued for a subscriber, unless it is a single message.
pub const QUEUE_BYTES_MAX: usize = 1 << 20;
/// The bytes charged for an entry or a subscription, in addition to its strings.
const OVERHEAD_BYTES: usize = 128;

/// The reason that a command was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The database has reached its limit of bytes.
    Full,
    /// The value is not a number, or the result would overflow.
    NotAnInteger,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "OOM command not allowed when used memory > 'maxmemory'.",
            Self::NotAnInteger => "ERR value is not an integer or out of range",
        })
    }
}

/// The condition under which [`Database::set`] sets the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// In any case.
    Always,
    /// If the key does not exist.
    Absent,
    /// If the key exists.
    Present,
}

/// Keys with their values, and channels with their subscribers.
pub struct Database {
    state: Mutex<State>,
    /// Notified when a key expires before all others.
    expires_earlier: Notify,
    /// The number of the next subscriber.
    next_subscriber: AtomicUsize,
}

struct State {
    entries: HashMap<Box<[u8]>, Entry>,
    /// The keys that expire, ordered by time.
    expirations: BTreeSet<(Instant, Box<[u8]>)>,
    channels: HashMap<Box<[u8]>, Vec<Arc<Queue>>>,
    /// The size of all entries and subscriptions, as charged.
    bytes: usize,
    bytes_max: usize,
}

struct Entry {
    value: Vec<u8>,
    expires: Option<Instant>,
}

impl Entry {
    fn is_expired(&self) -> bool {
        self.expires.is_some_and(|at| at <= Instant::now())
    }
}

impl Database {
    /// Returns an empty database with a limit of `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Self {
        let state = State {
            entries: HashMap::new(),
            expirations: BTreeSet::new(),
            channels: HashMap::new(),
            bytes: 0,
            bytes_max,
        };
        Self {
            state: Mutex::new(state),
            expires_earlier: Notify::new(),
            next_subscriber: AtomicUsize::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics with the lock")
    }

    /// Returns the size of all keys, values and subscriptions, as charged against the limit.
    pub fn bytes(&self) -> usize {
        self.lock().bytes
    }

    /// Passes the value of a key to `take`.
    pub fn get<T>(&self, key: &[u8], take: impl FnOnce(Option<&[u8]>) -> T) -> T {
        take(self.lock().entry(key).map(|entry| &*entry.value))
    }

    /// Sets a key and returns whether the condition was met.
    ///
    /// # Errors
    /// The database has no room for it.
    pub fn set(
        &self,
        key: &[u8],
        value: &[u8],
        expires: Option<Instant>,
        condition: Condition,
    ) -> Result<bool, Refused> {
        let mut state = self.lock();
        let is_met = match condition {
            Condition::Always => true,
            Condition::Absent => state.entry(key).is_none(),
            Condition::Present => state.entry(key).is_some(),
        };
        if !is_met {
            return Ok(false);
        }
        state.insert(key, value, expires)?;
        self.note_expiry(state, expires);
        Ok(true)
    }

    /// Removes a key and returns whether it existed.
    pub fn remove(&self, key: &[u8]) -> bool {
        let mut state = self.lock();
        state.entry(key).is_some() && state.remove(key)
    }

    /// Adds to a number and returns the sum. A missing key counts as 0.
    ///
    /// # Errors
    /// The value is not a number, the sum overflows, or the database has no room for it.
    pub fn add(&self, key: &[u8], summand: i64) -> Result<i64, Refused> {
        let mut state = self.lock();
        let (value, expires) = match state.entry(key) {
            Some(entry) => (number(&entry.value).ok_or(Refused::NotAnInteger)?, entry.expires),
            None => (0, None),
        };
        let sum = value.checked_add(summand).ok_or(Refused::NotAnInteger)?;
        state.insert(key, sum.to_string().as_bytes(), expires)?;
        Ok(sum)
    }

    /// Sets the expiry of a key and returns whether the key existed. A time in the past removes the key.
    pub fn expire(&self, key: &[u8], at: Instant) -> bool {
        let mut state = self.lock();
        if state.entry(key).is_none() {
            return false;
        }
        if at <= Instant::now() {
            return state.remove(key);
        }
        state.set_expiry(key, Some(at));
        self.note_expiry(state, Some(at));
        true
    }

    /// Returns the remaining time of a key: `None` if it does not exist, `Some(None)` if it does not expire.
    pub fn time_left(&self, key: &[u8]) -> Option<Option<Duration>> {
        let mut state = self.lock();
        let entry = state.entry(key)?;
        Some(entry.expires.map(|at| at.saturating_duration_since(Instant::now())))
    }

    /// Wakes the task that removes expired keys if this key is now the first to expire.
    fn note_expiry(&self, state: MutexGuard<'_, State>, expires: Option<Instant>) {
        let Some(at) = expires else { return };
        if state.expirations.first().is_some_and(|(first, _)| *first == at) {
            drop(state);
            self.expires_earlier.notify_one();
        }
    }

    /// Removes the expired keys and returns when the next key expires.
    fn remove_expired(&self) -> Option<Instant> {
        let mut state = self.lock();
        let now = Instant::now();
        loop {
            let (at, key) = state.expirations.first()?;
            if *at > now {
                return Some(*at);
            }
            let key = key.clone();
            state.remove(&key);
        }
    }

    /// Sends a message to all subscribers of a channel and returns their number.
    pub fn publish(&self, channel: &[u8], message: &[u8]) -> usize {
        let mut state = self.lock();
        let Some(queues) = state.channels.get_mut(channel) else { return 0 };
        let message = Arc::new(Message { channel: channel.into(), bytes: message.into() });
        let before = queues.len();
        queues.retain(|queue| queue.push(&message));
        let (count, is_empty) = (queues.len(), queues.is_empty());
        state.bytes -= (before - count) * subscription_bytes(channel);
        if is_empty {
            state.channels.remove(channel);
        }
        count
    }

    /// Returns a subscriber without channels.
    pub fn subscriber(self: &Arc<Self>) -> Subscriber {
        let (sender, receiver) = mpsc::unbounded_channel();
        let queue = Queue {
            id: self.next_subscriber.fetch_add(1, Ordering::Relaxed),
            sender,
            messages: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            cut: Notify::new(),
        };
        Subscriber {
            database: Arc::clone(self),
            queue: Arc::new(queue),
            receiver,
            channels: Vec::new(),
        }
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

fn entry_bytes(key: &[u8], value: &[u8]) -> usize {
    // The key of an entry that expires is stored twice.
    2 * key.len() + value.len() + OVERHEAD_BYTES
}

fn subscription_bytes(channel: &[u8]) -> usize {
    // The name is stored in the subscriber's list of channels and in the database's.
    2 * channel.len() + OVERHEAD_BYTES
}

impl State {
    /// Returns the entry of a key, unless it has expired.
    fn entry(&mut self, key: &[u8]) -> Option<&Entry> {
        let is_expired = self.entries.get(key)?.is_expired();
        if is_expired {
            self.remove(key);
        }
        self.entries.get(key)
    }

    fn reserve(&mut self, more: usize, less: usize) -> Result<(), Refused> {
        let bytes = self.bytes - less + more;
        // A change that makes the database smaller is never refused.
        if bytes > self.bytes_max && more > less {
            return Err(Refused::Full);
        }
        self.bytes = bytes;
        Ok(())
    }

    fn insert(
        &mut self,
        key: &[u8],
        value: &[u8],
        expires: Option<Instant>,
    ) -> Result<(), Refused> {
        let before = self.entries.get(key).map_or(0, |entry| entry_bytes(key, &entry.value));
        self.reserve(entry_bytes(key, value), before)?;
        match self.entries.get_mut(key) {
            Some(entry) if entry.value.capacity() / 2 <= value.len() => {
                entry.value.clear();
                entry.value.extend_from_slice(value);
            }
            Some(entry) => entry.value = value.to_vec(),
            None => {
                let entry = Entry { value: value.to_vec(), expires: None };
                self.entries.insert(key.into(), entry);
            }
        }
        self.set_expiry(key, expires);
        Ok(())
    }

    fn set_expiry(&mut self, key: &[u8], expires: Option<Instant>) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        let before = mem::replace(&mut entry.expires, expires);
        if before == expires {
            return;
        }
        if let Some(at) = before {
            self.expirations.remove(&(at, key.into()));
        }
        if let Some(at) = expires {
            self.expirations.insert((at, key.into()));
        }
    }

    fn remove(&mut self, key: &[u8]) -> bool {
        self.set_expiry(key, None);
        let Some(entry) = self.entries.remove(key) else { return false };
        self.bytes -= entry_bytes(key, &entry.value);
        true
    }
}

/// Removes keys when they expire, as long as it is polled. `sleep_until` is the runtime's timer.
pub async fn remove_expired<S, F>(database: Arc<Database>, sleep_until: S)
where
    S: Fn(Instant) -> F,
    F: Future<Output = ()>,
{
    loop {
        match database.remove_expired() {
            Some(at) => tokio::select! {
                () = sleep_until(at) => {}
                () = database.expires_earlier.notified() => {}
            },
            None => database.expires_earlier.notified().await,
        }
    }
}

/// A published message.
#[derive(Debug)]
pub struct Message {
    /// The name of the channel.
    pub channel: Box<[u8]>,
    /// The message itself.
    pub bytes: Box<[u8]>,
}

impl Message {
    fn len(&self) -> usize {
        self.channel.len() + self.bytes.len()
    }
}

/// The messages queued for a subscriber. The channel itself is unbounded, since the limit counts bytes as
/// well.
struct Queue {
    /// Distinguishes the queue from others.
    id: usize,
    sender: UnboundedSender<Arc<Message>>,
    messages: AtomicUsize,
    bytes: AtomicUsize,
    /// Notified when the subscriber is cut off.
    cut: Notify,
}

impl Queue {
    /// Adds a message and returns whether the subscriber remains. The caller holds the lock of the database.
    fn push(&self, message: &Arc<Message>) -> bool {
        let (messages, bytes) =
            (self.messages.load(Ordering::Acquire), self.bytes.load(Ordering::Acquire));
        let is_full = messages >= QUEUE_MESSAGES_MAX
            || (messages > 0 && bytes + message.len() > QUEUE_BYTES_MAX);
        if is_full {
            self.cut.notify_one();
            return false;
        }
        self.messages.fetch_add(1, Ordering::AcqRel);
        self.bytes.fetch_add(message.len(), Ordering::AcqRel);
        self.sender.send(Arc::clone(message)).is_ok()
    }

    fn popped(&self, message: &Message) {
        self.messages.fetch_sub(1, Ordering::AcqRel);
        self.bytes.fetch_sub(message.len(), Ordering::AcqRel);
    }
}

/// Receives messages of channels. Dropping it ends its subscriptions.
pub struct Subscriber {
    database: Arc<Database>,
    queue: Arc<Queue>,
    receiver: UnboundedReceiver<Arc<Message>>,
    channels: Vec<Box<[u8]>>,
}

impl Subscriber {
    /// Returns the channels it is subscribed to.
    pub fn channels(&self) -> &[Box<[u8]>] {
        &self.channels
    }

    /// Adds a channel.
    ///
    /// # Errors
    /// The database has no room for it.
    pub fn subscribe(&mut self, channel: &[u8]) -> Result<(), Refused> {
        if self.channels.iter().any(|own| **own == *channel) {
            return Ok(());
        }
        let mut state = self.database.lock();
        state.reserve(subscription_bytes(channel), 0)?;
        state.channels.entry(channel.into()).or_default().push(Arc::clone(&self.queue));
        drop(state);
        self.channels.push(channel.into());
        Ok(())
    }

    /// Removes a channel, if it is subscribed to it.
    pub fn unsubscribe(&mut self, channel: &[u8]) {
        let Some(place) = self.channels.iter().position(|own| **own == *channel) else { return };
        self.channels.swap_remove(place);
        self.leave(channel);
    }

    fn leave(&self, channel: &[u8]) {
        let mut state = self.database.lock();
        let Some(queues) = state.channels.get_mut(channel) else { return };
        let before = queues.len();
        queues.retain(|queue| queue.id != self.queue.id);
        let (less, is_empty) = (before - queues.len(), queues.is_empty());
        // The queue is no longer in the list if the subscriber was cut off.
        state.bytes -= less * subscription_bytes(channel);
        if is_empty {
            state.channels.remove(channel);
        }
    }

    /// Waits for the next message; `None` if the subscriber was cut off. Dropping the future loses no
    /// message.
    pub async fn recv(&mut self) -> Option<Arc<Message>> {
        let message = tokio::select! {
            biased;
            message = self.receiver.recv() => message?,
            () = self.queue.cut.notified() => return None,
        };
        self.queue.popped(&message);
        Some(message)
    }

    /// Returns the next message, if one is queued.
    pub fn try_recv(&mut self) -> Option<Arc<Message>> {
        match self.receiver.try_recv() {
            Ok(message) => {
                self.queue.popped(&message);
                Some(message)
            }
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => None,
        }
    }

    /// Waits until the subscriber is cut off because too many messages are queued. Resolves once, here or in
    /// [`recv`](Subscriber::recv).
    pub async fn cut_off(&self) {
        self.queue.cut.notified().await;
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        for channel in mem::take(&mut self.channels) {
            self.leave(&channel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn database() -> Arc<Database> {
        Arc::new(Database::new(1 << 20))
    }

    fn in_(time: Duration) -> Option<Instant> {
        Some(Instant::now() + time)
    }

    const LONG: Duration = Duration::from_secs(1000);

    #[test]
    fn everything_is_counted_and_given_back() {
        let database = database();
        database.set(b"a", b"value", in_(LONG), Condition::Always).unwrap();
        database.set(b"a", b"longer value", None, Condition::Always).unwrap();
        database.set(b"b", b"v", None, Condition::Always).unwrap();
        assert_eq!(database.add(b"count", 1), Ok(1));
        assert!(database.expire(b"b", Instant::now() + LONG));
        let mut one = database.subscriber();
        one.subscribe(b"news").unwrap();
        one.subscribe(b"news").unwrap();
        one.subscribe(b"more news").unwrap();
        let mut other = database.subscriber();
        other.subscribe(b"news").unwrap();
        assert_eq!(database.publish(b"news", b"!"), 2);
        one.unsubscribe(b"news");
        assert_eq!(database.publish(b"news", b"!"), 1);
        drop((one, other));
        for key in [&b"a"[..], b"b", b"count"] {
            assert!(database.remove(key));
        }
        assert!(!database.remove(b"a"));
        assert_eq!(database.bytes(), 0);
        let state = database.lock();
        assert!(
            state.entries.is_empty() && state.expirations.is_empty() && state.channels.is_empty()
        );
    }

    #[test]
    fn a_full_database_takes_no_more() {
        let database = Arc::new(Database::new(2000));
        let set = |value: &[u8]| database.set(b"a", value, None, Condition::Always);
        assert_eq!(set(&[0; 3000]), Err(Refused::Full));
        assert_eq!(set(&[0; 1800]), Ok(true));
        assert_eq!(set(&[0; 3000]), Err(Refused::Full));
        assert_eq!(database.set(b"b", &[0; 100], None, Condition::Always), Err(Refused::Full));
        assert_eq!(database.subscriber().subscribe(b"news"), Err(Refused::Full));
        assert_eq!(database.get(b"a", |value| value.map(<[u8]>::len)), Some(1800));
        assert_eq!(set(&[0; 100]), Ok(true));
        assert_eq!(database.set(b"b", &[0; 100], None, Condition::Always), Ok(true));
    }

    #[test]
    fn a_key_is_gone_when_its_time_is_over() {
        let database = database();
        let over = Some(Instant::now());
        database.set(b"a", b"1", over, Condition::Always).unwrap();
        assert_eq!(database.set(b"a", b"2", None, Condition::Present), Ok(false));
        assert_eq!(database.set(b"a", b"3", over, Condition::Absent), Ok(true));
        assert!(database.get(b"a", |value| value.is_none()));
        assert_eq!(database.time_left(b"a"), None);
        // Expired keys are removed without an access to them.
        database.set(b"a", b"4", over, Condition::Always).unwrap();
        let next = in_(LONG);
        database.set(b"b", b"5", next, Condition::Always).unwrap();
        assert_eq!(database.remove_expired(), next);
        assert_eq!(database.lock().entries.len(), 1);
        // A value without an expiry replaces one with an expiry.
        database.set(b"b", b"6", None, Condition::Always).unwrap();
        assert_eq!(database.remove_expired(), None);
        assert_eq!(database.time_left(b"b"), Some(None));
        assert!(database.expire(b"b", Instant::now()));
        assert!(!database.expire(b"b", Instant::now()));
        assert_eq!(database.bytes(), 0);
    }

    #[test]
    fn only_numbers_are_counted() {
        let database = database();
        let set = |value: &str| {
            database.set(b"a", value.as_bytes(), None, Condition::Always).unwrap();
        };
        for value in ["", "x", "1 ", "+1", "9223372036854775808", "\u{663}"] {
            set(value);
            assert_eq!(database.add(b"a", 1), Err(Refused::NotAnInteger), "{value}");
        }
        set("9223372036854775806");
        assert_eq!(database.add(b"a", 1), Ok(i64::MAX));
        assert_eq!(database.add(b"a", 1), Err(Refused::NotAnInteger));
        set("-5");
        assert_eq!(database.add(b"a", 1), Ok(-4));
    }

    #[test]
    fn a_subscriber_that_falls_behind_is_cut_off() {
        for (len, count) in
            [(0, QUEUE_MESSAGES_MAX), (QUEUE_BYTES_MAX / 4, 3), (2 * QUEUE_BYTES_MAX, 1)]
        {
            let database = database();
            let mut slow = database.subscriber();
            let mut quick = database.subscriber();
            slow.subscribe(b"news").unwrap();
            quick.subscribe(b"news").unwrap();
            let message = vec![0; len];
            for _ in 0..count {
                assert_eq!(database.publish(b"news", &message), 2);
                assert_eq!(quick.try_recv().unwrap().bytes.len(), len);
            }
            assert_eq!(database.publish(b"news", &message), 1);
            // The messages sent before the cut are queued, and none after it.
            let received = std::iter::from_fn(|| slow.try_recv()).count();
            assert_eq!(received, count);
            drop((slow, quick));
            assert_eq!((database.publish(b"news", &message), database.bytes()), (0, 0));
        }
    }
}
