//! Shares of a whole program's resources: work waits for its share instead of failing.
//!
//! A budget is a weighted semaphore per resource, with one order of arrival: a request waits behind all
//! earlier ones, even if it is small and would fit. The semaphore of `async-lock` has only permits of one
//! unit, and they may overtake each other; so this is our own, behind a lock that is held for a few
//! instructions.
//!
//! A request's states: *new*; *waiting*, with its ticket in `waiting`; *granted*, with its ticket in
//! `granted` and its amount already taken from `free`; *done*, with its amount owned by a permit. The task
//! that releases a share grants the next requests. Dropping a request removes it from `waiting`, or returns
//! its grant; both may admit later requests.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::io::Read;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use rustix::process::{Resource as Rlimit, getrlimit};
use sakia_driver::wake_all;

use crate::fairness;

/// A resource that a budget divides into shares.
///
/// # Examples
/// See [`Budget`](Budget#examples).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resource {
    /// Open files, sockets, and all other descriptors.
    Descriptors,
    /// Memory for buffers, in bytes.
    Bytes,
    /// Operations in flight.
    Operations,
}

impl Resource {
    const ALL: [Self; 3] = [Self::Descriptors, Self::Bytes, Self::Operations];
}

/// The amount that a [`Budget`] has of each resource. `u64::MAX` is effectively no limit.
///
/// # Examples
/// ```
/// use sakia::{Budget, Limits, Resource};
///
/// let limits = Limits::new().descriptors(100).bytes(1 << 30);
/// assert_eq!(limits.operations, u64::MAX);
/// assert_eq!(Budget::new(limits).total(Resource::Bytes), 1 << 30);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Of [`Resource::Descriptors`].
    pub descriptors: u64,
    /// Of [`Resource::Bytes`].
    pub bytes: u64,
    /// Of [`Resource::Operations`].
    pub operations: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { descriptors: u64::MAX, bytes: u64::MAX, operations: u64::MAX }
    }
}

impl Limits {
    /// Returns limits without a limit on any resource.
    ///
    /// # Examples
    /// See [`Limits`](Limits#examples).
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the amounts that the process may still use, now: see [`Budget::from_limits`].
    ///
    /// # Examples
    /// ```
    /// use sakia::{Budget, Limits};
    ///
    /// // As much as the process may have, but for the number of operations.
    /// let budget = Budget::new(Limits::of_process().operations(256));
    /// assert!(budget.total(sakia::Resource::Descriptors) > 0);
    /// ```
    pub fn of_process() -> Self {
        Self {
            descriptors: free_descriptors(),
            bytes: available_memory().map_or(u64::MAX, |bytes| (bytes / 4).max(1)),
            operations: u64::MAX,
        }
    }

    /// Sets the number of descriptors.
    ///
    /// # Examples
    /// See [`Limits`](Limits#examples).
    #[must_use]
    pub fn descriptors(self, descriptors: u64) -> Self {
        Self { descriptors, ..self }
    }

    /// Sets the number of bytes.
    #[must_use]
    pub fn bytes(self, bytes: u64) -> Self {
        Self { bytes, ..self }
    }

    /// Sets the number of operations.
    #[must_use]
    pub fn operations(self, operations: u64) -> Self {
        Self { operations, ..self }
    }

    fn of(&self, resource: Resource) -> u64 {
        match resource {
            Resource::Descriptors => self.descriptors,
            Resource::Bytes => self.bytes,
            Resource::Operations => self.operations,
        }
    }
}

/// Descriptors, bytes and operations for a whole program, shared by all its threads.
///
/// Work acquires its share before it begins and holds the [`Permit`] while it uses it. Requests are served in
/// the order in which they came. Clones are the same budget.
///
/// Tasks that each hold a share and wait for more can deadlock: acquire all that a piece of work needs of one
/// resource at once, and the resources always in the same order.
///
/// # Examples
/// ```
/// use sakia::{Budget, Limits, Resource};
///
/// sakia::block_on(async {
///     let budget = Budget::new(Limits::new().descriptors(2));
///     let both = budget.acquire(Resource::Descriptors, 2).await;
///     assert!(budget.try_acquire(Resource::Descriptors, 1).is_none());
///     drop(both);
///     assert!(budget.try_acquire(Resource::Descriptors, 1).is_some());
/// });
/// ```
#[derive(Clone)]
pub struct Budget {
    pools: Arc<[Pool; 3]>,
}

struct Pool {
    /// The total amount, at least 1.
    total: u64,
    state: Mutex<PoolState>,
}

struct PoolState {
    /// The amount that neither a permit nor a granted request holds.
    free: u64,
    /// The next request's ticket.
    next: u64,
    /// Requests that wait, by ticket: oldest first.
    waiting: BTreeMap<u64, Waiting>,
    /// Requests that are granted but did not notice yet.
    granted: BTreeSet<u64>,
}

struct Waiting {
    amount: u64,
    waker: Waker,
}

impl Pool {
    fn new(total: u64) -> Self {
        let total = total.max(1);
        let (waiting, granted) = (BTreeMap::new(), BTreeSet::new());
        Self { total, state: Mutex::new(PoolState { free: total, next: 0, waiting, granted }) }
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn release(&self, amount: u64) {
        let mut state = self.lock();
        state.free += amount;
        let wakers = state.grant();
        drop(state);
        wake_all(wakers);
    }
}

impl PoolState {
    /// Takes `amount` if it is free and no earlier request waits.
    fn try_take(&mut self, amount: u64) -> bool {
        let is_first = self.waiting.is_empty();
        let is_free = is_first && amount <= self.free;
        if is_free {
            self.free -= amount;
        }
        is_free
    }

    /// Grants the oldest requests that fit. Returns their wakers, to be called outside the lock.
    fn grant(&mut self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        while let Some(oldest) = self.waiting.first_entry()
            && oldest.get().amount <= self.free
        {
            let (ticket, request) = oldest.remove_entry();
            self.free -= request.amount;
            self.granted.insert(ticket);
            wakers.push(request.waker);
        }
        wakers
    }
}

impl Budget {
    /// Returns a budget with these limits. Each resource has at least 1, so that work can go on one by one.
    ///
    /// # Examples
    /// See [`Budget`](Budget#examples).
    pub fn new(limits: Limits) -> Self {
        let pools = Resource::ALL.map(|resource| Pool::new(limits.of(resource)));
        Self { pools: Arc::new(pools) }
    }

    /// Returns a budget of the resources that the process may still use:
    /// - descriptors: the soft `RLIMIT_NOFILE`, minus those open now, minus a reserve (an eighth of the
    ///   limit, 8 to 64) for code that opens descriptors without asking. Build the runtime first: its rings
    ///   are descriptors too;
    /// - bytes: a quarter of the memory that the machine has available;
    /// - operations: no limit, since each thread's engine admits its own.
    ///
    /// Without `/proc` it assumes that half of the descriptors are open, and does not limit bytes.
    ///
    /// # Examples
    /// ```
    /// use sakia::{Budget, Resource};
    ///
    /// # sakia::block_on(async {
    /// let budget = Budget::from_limits();
    /// let permit = budget.acquire(Resource::Descriptors, 2).await;
    /// assert_eq!(permit.amount(), 2);
    /// let file = std::fs::File::open("/dev/null");
    /// # assert!(file.is_ok());
    /// drop((file, permit));
    /// # });
    /// ```
    pub fn from_limits() -> Self {
        Self::new(Limits::of_process())
    }

    /// Returns the total amount of a resource, at least 1.
    pub fn total(&self, resource: Resource) -> u64 {
        self.pool(resource).total
    }

    /// Returns the amount that no permit holds at the moment.
    ///
    /// # Examples
    /// See [`Permit::shrink_to`].
    pub fn available(&self, resource: Resource) -> u64 {
        self.pool(resource).lock().free
    }

    fn pool(&self, resource: Resource) -> &Pool {
        &self.pools[resource as usize]
    }

    /// Returns the amount that a request for `amount` gets.
    fn clamp(&self, resource: Resource, amount: u64) -> u64 {
        amount.min(self.pool(resource).total)
    }

    /// Waits for `amount` of a resource. A request for more than the total waits for all of it, and so the
    /// work runs alone.
    ///
    /// The first poll takes a place in the line.
    ///
    /// # Cancel safety
    /// Dropping the future gives up its place in the line, or its share if that was granted meanwhile.
    ///
    /// # Examples
    /// See [`Budget`](Budget#examples).
    pub fn acquire(&self, resource: Resource, amount: u64) -> Acquire {
        let amount = self.clamp(resource, amount);
        Acquire { budget: self.clone(), resource, amount, ticket: None }
    }

    /// Takes `amount` of a resource, limited as for [`acquire`](Self::acquire), if it is free and no request
    /// waits.
    ///
    /// # Examples
    /// See [`Budget`](Budget#examples).
    pub fn try_acquire(&self, resource: Resource, amount: u64) -> Option<Permit> {
        let amount = self.clamp(resource, amount);
        let is_taken = self.pool(resource).lock().try_take(amount);
        is_taken.then(|| self.permit(resource, amount))
    }

    fn permit(&self, resource: Resource, amount: u64) -> Permit {
        Permit { budget: self.clone(), resource, amount }
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for resource in Resource::ALL {
            let of_total = format_args!("{} of {}", self.available(resource), self.total(resource))
                .to_string();
            map.entry(&resource, &of_total);
        }
        map.finish()
    }
}

/// Waits for a share of a [`Budget`]. From [`Budget::acquire`].
///
/// # Examples
/// See [`Budget`](Budget#examples).
#[must_use = "futures do nothing unless awaited"]
pub struct Acquire {
    budget: Budget,
    resource: Resource,
    amount: u64,
    /// Set while waiting or granted.
    ticket: Option<u64>,
}

impl Future for Acquire {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Permit> {
        let this = &mut *self;
        let mut state = this.budget.pool(this.resource).lock();
        let replaced = match this.ticket {
            None if state.try_take(this.amount) => {
                if fairness::is_due() {
                    // It is granted, and has its place in the line.
                    let ticket = state.next;
                    state.next += 1;
                    state.granted.insert(ticket);
                    this.ticket = Some(ticket);
                    drop(state);
                    fairness::wake(cx);
                    return Poll::Pending;
                }
                drop(state);
                fairness::count();
                return Poll::Ready(this.budget.permit(this.resource, this.amount));
            }
            None => {
                let ticket = state.next;
                state.next += 1;
                let waiting = Waiting { amount: this.amount, waker: cx.waker().clone() };
                state.waiting.insert(ticket, waiting);
                this.ticket = Some(ticket);
                None
            }
            Some(ticket) if state.granted.remove(&ticket) => {
                drop(state);
                this.ticket = None;
                return Poll::Ready(this.budget.permit(this.resource, this.amount));
            }
            Some(ticket) => {
                let waiting = state.waiting.get_mut(&ticket).expect("neither granted nor dropped");
                let is_same = waiting.waker.will_wake(cx.waker());
                (!is_same).then(|| std::mem::replace(&mut waiting.waker, cx.waker().clone()))
            }
        };
        drop(state);
        drop(replaced); // outside the lock: dropping a task's last waker frees it
        Poll::Pending
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let mut state = self.budget.pool(self.resource).lock();
        if state.granted.remove(&ticket) {
            state.free += self.amount;
        }
        let left = state.waiting.remove(&ticket);
        let wakers = state.grant();
        drop(state);
        drop(left); // outside the lock, as above
        wake_all(wakers);
    }
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Acquire({} {:?})", self.amount, self.resource)
    }
}

/// A share of a [`Budget`], returned to it when dropped, on any thread.
///
/// # Examples
/// See [`Budget`](Budget#examples).
#[must_use = "dropping the permit gives its share back"]
pub struct Permit {
    budget: Budget,
    resource: Resource,
    amount: u64,
}

impl Permit {
    /// Returns the resource that it is a share of.
    pub fn resource(&self) -> Resource {
        self.resource
    }

    /// Returns the amount: the requested one, or the whole resource.
    pub fn amount(&self) -> u64 {
        self.amount
    }

    /// Returns all but `amount` to the budget, if it holds more.
    ///
    /// # Examples
    /// ```
    /// use sakia::{Budget, Limits, Resource};
    ///
    /// let budget = Budget::new(Limits::new().bytes(100));
    /// let mut permit = budget.try_acquire(Resource::Bytes, 80).expect("all is free");
    /// permit.shrink_to(30);
    /// assert_eq!((permit.amount(), budget.available(Resource::Bytes)), (30, 70));
    /// ```
    pub fn shrink_to(&mut self, amount: u64) {
        if let Some(surplus) = self.amount.checked_sub(amount) {
            self.amount = amount;
            self.budget.pool(self.resource).release(surplus);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.budget.pool(self.resource).release(self.amount);
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Permit({} {:?})", self.amount, self.resource)
    }
}

/// Returns the number of descriptors that the process may still open, less a reserve.
fn free_descriptors() -> u64 {
    let Some(limit) = getrlimit(Rlimit::Nofile).current else { return u64::MAX };
    let open = std::fs::read_dir("/proc/self/fd").map_or(limit / 2, |entries| {
        // One of them is the directory's own.
        (entries.count() as u64).saturating_sub(1)
    });
    let reserve = (limit / 8).clamp(8, 64);
    limit.saturating_sub(open).saturating_sub(reserve)
}

/// Returns the memory that programs may still use without swapping, in bytes.
fn available_memory() -> Option<u64> {
    let mut text = String::new();
    std::fs::File::open("/proc/meminfo").ok()?.read_to_string(&mut text).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_from_the_system() {
        let limits = Limits::of_process();
        let nofile = getrlimit(Rlimit::Nofile).current.unwrap_or(u64::MAX);
        assert!(limits.descriptors < nofile, "some are open: {limits:?}");
        assert!(limits.bytes > 0 && limits.operations == u64::MAX);
    }

    #[test]
    fn nothing_is_left_behind() {
        let budget = Budget::new(Limits::new().operations(0));
        let mut cx = Context::from_waker(Waker::noop());
        let held = budget.try_acquire(Resource::Operations, 9).expect("there is always one");
        let mut waits: Vec<_> = (0..3).map(|_| budget.acquire(Resource::Operations, 1)).collect();
        for wait in &mut waits {
            assert!(Pin::new(wait).poll(&mut cx).is_pending());
        }
        drop(held); // grants the first, which is dropped below without noticing
        drop(waits);
        let state = budget.pool(Resource::Operations).lock();
        assert!(state.free == 1 && state.waiting.is_empty() && state.granted.is_empty());
    }
}
