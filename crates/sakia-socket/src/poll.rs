//! Waiting for several files.

use std::time::Duration;

use rustix::io::Errno;

use crate::open::Shared;
use crate::wake::{Sleeper, Source, Undisturbed};
use crate::{Entry, Events, Host, Layer, Pollable};

/// The time for which a file is left out of the wait, if it only has events that do not end the wait.
const LEFT_OUT: Duration = Duration::from_millis(10);

/// A file of [`Layer::poll`].
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use rustix::net::{AddressFamily, SendFlags, SocketType};
/// use sakia_socket::{Events, Kernel, Layer, Options, PollEntry};
///
/// # fn main() -> rustix::io::Result<()> {
/// let layer = Layer::new(Kernel, Options::default());
/// let (a, b) = layer.pair(AddressFamily::UNIX, SocketType::STREAM)?;
/// let mut entries = [PollEntry::new(&a, Events::IN), PollEntry::new(&b, Events::IN)];
/// assert_eq!(layer.poll(&mut entries, Some(Duration::ZERO))?, 0);
/// a.send(b"x", SendFlags::empty())?;
/// assert_eq!(layer.poll(&mut entries, None)?, 1);
/// assert_eq!((entries[0].ready(), entries[1].ready()), (Events::NONE, Events::IN));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct PollEntry<'a, H: Host> {
    item: Item<'a, H>,
}

impl<'a, H: Host> PollEntry<'a, H> {
    /// Makes an entry that waits for `wanted`, errors and hang-ups.
    ///
    /// # Examples
    /// See [`PollEntry`](PollEntry#examples).
    pub fn new(file: impl Into<Pollable<'a, H>>, wanted: Events) -> Self {
        let source = file.into().source();
        let ending = wanted | Events::ERR | Events::HUP;
        Self { item: Item { source, wanted, ending, ready: Events::NONE, is_left_out: false } }
    }

    /// Returns the events that the last wait found.
    ///
    /// # Examples
    /// See [`PollEntry`](PollEntry#examples).
    pub fn ready(&self) -> Events {
        self.item.ready
    }
}

impl<H: Host> Layer<H> {
    /// `poll(2)`: waits until one of `entries` is ready, at most for `timeout`, for ever with `None`. Returns
    /// the number of ready entries; none after the timeout. Delayed bytes of all sockets are sent first.
    ///
    /// # Errors
    /// Those of the call, such as `EINTR`.
    ///
    /// # Examples
    /// See [`PollEntry`](PollEntry#examples).
    pub fn poll(
        &self,
        entries: &mut [PollEntry<'_, H>],
        timeout: Option<Duration>,
    ) -> Result<usize, Errno> {
        let mut items: Vec<&mut Item<'_, H>> =
            entries.iter_mut().map(|entry| &mut entry.item).collect();
        wait_for(self.shared(), &mut items, timeout)?;
        Ok(entries.iter().filter(|entry| !entry.ready().is_empty()).count())
    }
}

/// A file of a wait.
#[derive(Debug)]
pub(crate) struct Item<'a, H: Host> {
    pub(crate) source: &'a dyn Source<H>,
    /// The events to ask the host for.
    pub(crate) wanted: Events,
    /// The events that end the wait; the host also reports others.
    pub(crate) ending: Events,
    /// The events that occurred.
    pub(crate) ready: Events,
    /// Set while the host reports only other events, which would end each wait at once.
    pub(crate) is_left_out: bool,
}

/// Waits until one of `items` is ready, at most for `timeout`.
pub(crate) fn wait_for<'a, H: Host>(
    shared: &Shared<H>,
    items: &mut [&mut Item<'a, H>],
    timeout: Option<Duration>,
) -> Result<(), Errno> {
    shared.before_wait();
    items.iter_mut().for_each(|item| item.is_left_out = false);
    let host = &*shared.host;
    let end = timeout
        .filter(|timeout| !timeout.is_zero())
        .map(|timeout| host.now().saturating_add(timeout));
    let mut left = timeout;
    let mut sleeper: Option<Sleeper<'_, H>> = None;
    // Kept for its destructor.
    let mut _undisturbed: Option<Undisturbed<'_, H>> = None;
    let mut is_heard = !items.iter().any(|item| item.source.may_keep());
    loop {
        let is_ready =
            items.iter().any(|item| !(item.source.memory().ready & item.ending).is_empty());
        let may_sleep = !is_ready && left != Some(Duration::ZERO);
        if may_sleep && !std::mem::replace(&mut is_heard, true) {
            let files: Vec<&'a dyn Source<H>> = items.iter().map(|item| item.source).collect();
            // From now on the thread is notified of changes in memory, or no bytes come to memory. Memory
            // may have changed before.
            if items.iter().all(|item| item.source.can_be_undisturbed()) {
                _undisturbed = Some(Undisturbed::new(files));
            } else {
                sleeper = Sleeper::new(&shared.host, &shared.beds, files)?;
            }
            continue;
        }
        let mut timeout = if may_sleep { left } else { Some(Duration::ZERO) };
        let asks_all = !items.iter().any(|item| item.is_left_out);
        if may_sleep && !asks_all {
            timeout = Some(timeout.map_or(LEFT_OUT, |timeout| timeout.min(LEFT_OUT)));
        }
        let count = ask(host, items, sleeper.as_ref(), timeout)?;
        // The host was told not to sleep, or has slept for the whole time.
        let has_slept = may_sleep && left.is_some() && count == 0 && asks_all;
        let is_over = left == Some(Duration::ZERO) || has_slept;
        if is_over || items.iter().any(|item| !item.ready.is_empty()) {
            return Ok(());
        }
        // A clock that goes back does not lengthen the wait.
        if let (Some(rest), Some(end)) = (&mut left, end) {
            *rest = end.saturating_sub(host.now()).min(*rest);
        }
    }
}

/// Makes one `poll(2)` of the host. Returns its count.
fn ask<'a, H: Host>(
    host: &H,
    items: &mut [&mut Item<'a, H>],
    sleeper: Option<&Sleeper<'_, H>>,
    timeout: Option<Duration>,
) -> Result<usize, Errno> {
    let entry = |fd, wanted| Entry { fd, wanted, ready: Events::NONE };
    let mut entries = Vec::with_capacity(items.len() + 1);
    for item in &*items {
        if !item.is_left_out {
            let source: &'a dyn Source<H> = item.source;
            entries.push(entry(source.fd(), item.wanted));
        }
    }
    entries.extend(sleeper.map(|sleeper| entry(sleeper.event(), Events::IN)));
    let count = host.wait(&mut entries, timeout)?;
    let mut found = entries.iter().map(|entry| entry.ready);
    for item in &mut *items {
        if item.is_left_out {
            // It is included again in the next wait.
            item.is_left_out = false;
            item.ready = item.source.memory().ready & item.ending;
            continue;
        }
        let found = found.next().unwrap_or_default();
        let mut memory = item.source.memory();
        if found.contains(Events::OUT) && !memory.has_room {
            item.source.make_room();
            memory = item.source.memory();
        }
        item.ready = memory.correct(found) & item.ending;
        item.is_left_out = !found.is_empty() && (found & item.ending).is_empty();
    }
    if let Some(sleeper) = sleeper
        && found.next().is_some_and(|found| !found.is_empty())
    {
        sleeper.drain();
    }
    Ok(count)
}
