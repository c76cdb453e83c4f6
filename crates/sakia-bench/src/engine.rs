//! The runtimes of the variants, and their counters.

use std::io;
use std::time::Duration;

use sakia::Runtime;
use sakia_driver::{Bypass, OpKind, Policy, Rules, Streams};
use sakia_ring::SetupError;

use crate::cell::{Counters, Unavailable};

/// The options of a runtime of one thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Engine {
    pub(crate) policy: Policy,
    /// Set if operations run as plain calls when those are cheaper.
    pub(crate) bypass: bool,
    /// The way in which streams receive and send.
    pub(crate) streams: Streams,
    /// The time for which it polls before it sleeps.
    pub(crate) spin: Duration,
}

impl Engine {
    /// The ring, as the driver decides by itself.
    pub(crate) const URING: Self =
        Self { policy: Policy::Uring, bypass: true, streams: Streams::Queue, spin: Duration::ZERO };
    /// The ring, without plain calls.
    pub(crate) const RING: Self = Self { bypass: false, ..Self::URING };
    /// The ring; streams receive and send by plain calls when an epoll set reports that they can.
    pub(crate) const READINESS: Self = Self { streams: Streams::Readiness, ..Self::URING };
    /// Epoll and threads.
    pub(crate) const POLL: Self = Self { policy: Policy::Poll, ..Self::URING };

    /// Builds the runtime, and sets its backend up, so that this is not measured.
    ///
    /// # Errors
    /// See [`available`].
    pub(crate) fn start(self) -> anyhow::Result<Runtime> {
        let Self { policy, bypass, streams, spin } = self;
        let bypass = if bypass { Bypass::Rules(Rules::default()) } else { Bypass::Never };
        let builder = Runtime::builder().backend(policy).bypass(bypass);
        let runtime = available(builder.streams(streams).spin(spin).build())?;
        runtime.set_up()?;
        Ok(runtime)
    }
}

/// Returns a newly built runtime or ring, or the reason for its absence.
///
/// # Errors
/// [`Unavailable`] if this machine refuses a ring; otherwise the error of `built`.
pub(crate) fn available<T>(built: io::Result<T>) -> anyhow::Result<T> {
    built.map_err(|error| {
        let refusal = error.get_ref().and_then(|inner| inner.downcast_ref::<SetupError>());
        match refusal {
            Some(refusal) if refusal.is_refusal() => Unavailable(refusal.to_string()).into(),
            _ => error.into(),
        }
    })
}

/// Returns the counters of a runtime's driver.
pub(crate) fn counted(runtime: &Runtime) -> Counters {
    let totals = runtime.counters();
    let mut counters = counters(totals.iter());
    for &kind in OpKind::ALL {
        let ways = totals.of(kind);
        let ways = ways.iter().filter(|&(_, count)| count > 0);
        counters.extend(ways.map(|(way, count)| (format!("{}.{way}", kind.name()), count)));
    }
    counters
}

/// Returns the difference between counters taken at two moments.
pub(crate) fn between(earlier: &Counters, later: Counters) -> Counters {
    let since = |(name, count): (String, u64)| {
        let before = earlier.get(&name).copied().unwrap_or(0);
        (name, count.saturating_sub(before))
    };
    later.into_iter().map(since).collect()
}

/// Returns counters with these names.
pub(crate) fn counters(pairs: impl IntoIterator<Item = (&'static str, u64)>) -> Counters {
    pairs.into_iter().map(|(name, count)| (name.to_owned(), count)).collect()
}
