//! Admission: how many writes may be under way at a time.
//!
//! A device that serves one write after the other is no faster with many under way: each of them waits for
//! the others, and a thread waits with it. A limit by latency admits fewer once writes take longer than they
//! have to, as congestion control does for packets: [`ByLatency`]. The question is whether that gains
//! anything for durable writes, of which a file system may serve several by one commit of its journal.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use sakia_bench_support::stats::Range;

use crate::cell::Counters;
use crate::engine::counters;

/// The most writes under way, as `sakia-tokio` has them.
pub(super) const LIMIT_MAX: usize = 64;
/// The limit by latency at the beginning.
const LIMIT_FIRST: f64 = 8.0;
/// Writes may take so many times the least latency before fewer are admitted.
const TOLERANCE: f64 = 1.5;
/// After so many writes one is alone, to find the least latency.
const WINDOW: u32 = 256;
/// The weight of a write in the limit.
const WEIGHT: f64 = 0.1;

/// The number of writes that may be under way.
#[derive(Clone, Copy, Debug)]
pub(super) enum Limit {
    Fixed(usize),
    ByLatency(ByLatency),
}

impl Limit {
    /// The same number at any time.
    pub fn fixed() -> Self {
        Self::Fixed(LIMIT_MAX)
    }

    /// As many as latency allows.
    pub fn by_latency() -> Self {
        Self::ByLatency(ByLatency::new())
    }

    fn now(&self) -> usize {
        match self {
            Self::Fixed(limit) => *limit,
            Self::ByLatency(limit) => limit.limit as usize,
        }
    }

    /// Returns whether the next write is to be alone.
    fn is_probing(&self) -> bool {
        matches!(self, Self::ByLatency(limit) if limit.later.is_some())
    }

    fn note(&mut self, latency: Duration, under_way: usize, was_alone: bool) {
        if let Self::ByLatency(limit) = self {
            limit.note(latency, under_way, was_alone);
        }
    }
}

/// A limit that follows the ratio of the least latency to the present one. At the least latency it grows by
/// its root, so that a device which serves several at a time gets them; while writes take longer it shrinks
/// to the number at which they would not.
///
/// The least latency is that of a write that is alone. Without such a write it would never be seen again: on
/// a device that serves one at a time, the latencies of many under way are all alike.
#[derive(Clone, Copy, Debug)]
pub(super) struct ByLatency {
    limit: f64,
    /// The limit that follows when a write has been alone; `None` if there is no need for one.
    later: Option<f64>,
    /// The least latency in seconds.
    least: f64,
    /// The writes since one was alone.
    count: u32,
}

impl ByLatency {
    fn new() -> Self {
        Self { limit: 1.0, later: Some(LIMIT_FIRST), least: f64::INFINITY, count: 0 }
    }

    /// Notes that a write took this time, with so many under way at its end, itself included.
    fn note(&mut self, latency: Duration, under_way: usize, was_alone: bool) {
        let latency = latency.as_secs_f64().max(1e-9);
        if let Some(limit) = self.later {
            if was_alone {
                *self = Self { limit, later: None, least: latency, count: 0 };
            }
            return;
        }
        self.count += 1;
        if self.count == WINDOW {
            self.later = Some(self.limit);
            self.limit = 1.0;
            return;
        }
        self.least = self.least.min(latency);
        let gradient = (TOLERANCE * self.least / latency).clamp(0.5, 1.0);
        let aim = self.limit * gradient + self.limit.sqrt();
        // A limit that is not reached says nothing about more.
        if aim < self.limit || under_way as f64 * 2.0 >= self.limit {
            let limit = self.limit + WEIGHT * (aim - self.limit);
            self.limit = limit.clamp(1.0, LIMIT_MAX as f64);
        }
    }
}

/// Admits the writes of one thread's tasks.
#[derive(Debug)]
pub(super) struct Admission(RefCell<State>);

#[derive(Debug)]
struct State {
    limit: Limit,
    under_way: usize,
    under_way_max: usize,
    /// The tasks that wait, oldest first.
    waiting: VecDeque<Waker>,
    /// The nanoseconds of each write: from its admission, and from its request.
    calls: Vec<u64>,
    wholes: Vec<u64>,
}

/// A write that was admitted.
#[derive(Debug)]
#[must_use = "it occupies a place until it leaves"]
pub(super) struct Permit {
    requested: Instant,
    admitted: Instant,
    is_alone: bool,
}

impl Admission {
    pub fn new(limit: Limit) -> Self {
        Self(RefCell::new(State {
            limit,
            under_way: 0,
            under_way_max: 0,
            waiting: VecDeque::new(),
            calls: Vec::new(),
            wholes: Vec::new(),
        }))
    }

    /// Waits for a place.
    pub async fn enter(&self) -> Permit {
        let requested = Instant::now();
        let is_alone = poll_fn(|cx| {
            let mut state = self.0.borrow_mut();
            if state.under_way >= state.limit.now() {
                state.waiting.push_back(cx.waker().clone());
                return Poll::Pending;
            }
            state.under_way += 1;
            state.under_way_max = state.under_way_max.max(state.under_way);
            Poll::Ready(state.under_way == 1 && state.limit.is_probing())
        })
        .await;
        Permit { requested, admitted: Instant::now(), is_alone }
    }

    /// Returns a place after the write.
    pub fn leave(&self, Permit { requested, admitted, is_alone }: Permit) {
        let now = Instant::now();
        let nanoseconds = |since: Instant| (now - since).as_nanos() as u64;
        let mut state = self.0.borrow_mut();
        state.calls.push(nanoseconds(admitted));
        state.wholes.push(nanoseconds(requested));
        let under_way = state.under_way;
        state.limit.note(now - admitted, under_way, is_alone);
        state.under_way -= 1;
        let room = state.limit.now().saturating_sub(state.under_way);
        let next = room.min(state.waiting.len());
        let woken: Vec<_> = state.waiting.drain(..next).collect();
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Returns the counters of a run.
    pub fn counters(&self) -> Counters {
        let state = self.0.borrow();
        let [calls, wholes] =
            [&state.calls, &state.wholes].map(|all| Range::of(all.iter().copied()));
        counters([
            ("limit", state.limit.now() as u64),
            ("under_way_max", state.under_way_max as u64),
            ("call_ns_median", calls.median),
            ("call_ns_max", calls.max),
            ("record_ns_median", wholes.median),
            ("record_ns_max", wholes.max),
        ])
    }
}

/// Returns these counters as text, if they are there.
pub(super) fn in_words(all: &Counters) -> Option<String> {
    let count = |name: &str| all.get(name).copied();
    let ms = |name: &str| count(name).map(|ns| ns as f64 / 1e6);
    Some(format!(
        "at most {} under way, {} admitted at the end; a write takes {:.1} ms, a record with its wait {:.1} \
         ms, at most {:.1}",
        count("under_way_max")?,
        count("limit")?,
        ms("call_ns_median")?,
        ms("record_ns_median")?,
        ms("record_ns_max")?
    ))
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    const SERVICE: Duration = Duration::from_millis(2);

    /// Returns the limit after many writes by more writers than the limit admits, on a device on which a
    /// write takes `latency` with that many under way.
    fn limit_on(latency: impl Fn(usize) -> Duration) -> usize {
        let mut limit = ByLatency::new();
        for _ in 0..5000 {
            let under_way = limit.limit as usize;
            limit.note(latency(under_way), under_way, under_way == 1);
        }
        limit.later.unwrap_or(limit.limit) as usize
    }

    #[test]
    fn a_device_that_serves_one_at_a_time_gets_few() {
        let limit = limit_on(|under_way| SERVICE * under_way as u32);
        assert!((1..=8).contains(&limit), "{limit}");
    }

    #[test]
    fn a_device_that_serves_all_at_once_gets_as_many_as_there_may_be() {
        assert_eq!(limit_on(|_| SERVICE), LIMIT_MAX);
    }

    #[test]
    fn a_device_that_serves_sixteen_at_a_time_gets_at_least_these() {
        let limit = limit_on(|under_way| SERVICE * under_way.div_ceil(16) as u32);
        assert!((14..=40).contains(&limit), "{limit}");
    }

    #[test]
    fn a_limit_that_is_not_reached_does_not_grow() {
        let mut limit = ByLatency::new();
        for _ in 0..1000 {
            limit.note(SERVICE, 1, true);
        }
        assert_eq!(limit.later.unwrap_or(limit.limit), LIMIT_FIRST);
    }

    #[test]
    fn each_write_is_admitted_and_never_too_many() {
        let runtime = sakia::Runtime::new().unwrap();
        for limit in [Limit::Fixed(3), Limit::by_latency()] {
            let admission = Rc::new(Admission::new(limit));
            runtime.block_on(async {
                let write = |_| {
                    let admission = Rc::clone(&admission);
                    sakia::spawn(async move {
                        for _ in 0..10 {
                            let permit = admission.enter().await;
                            sakia::yield_now().await;
                            admission.leave(permit);
                        }
                    })
                };
                let writers: Vec<_> = (0..20).map(write).collect();
                for writer in writers {
                    writer.await.unwrap();
                }
            });
            let state = admission.0.borrow();
            assert_eq!((state.calls.len(), state.under_way, state.waiting.len()), (200, 0, 0));
            let most = if matches!(limit, Limit::Fixed(_)) { 3 } else { 20 };
            assert!((1..=most).contains(&state.under_way_max), "{}", state.under_way_max);
        }
    }
}
