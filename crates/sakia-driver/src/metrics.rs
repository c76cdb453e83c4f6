//! Durations of operations, by kind.
//!
//! Measured only on request: [`Handle::measure_latencies`](crate::Handle::measure_latencies). An operation's
//! *latency* is the time from its start until its completion is dispatched on the driver's thread; for a
//! plain call it is the call's duration. It does not include the time until a task takes the result.

use std::fmt;
use std::time::Duration;

use sakia_trace::Measuring;

use crate::counters::{Counters, OpKind};
use crate::decide::{CrowdFigures, Streams};

/// The longest measured latency; longer ones count as this.
const NANOSECONDS_MAX: u64 = 3_600_000_000_000;
/// Number of significant decimal digits of a latency.
const DIGITS: u8 = 2;
/// The start of a slot whose operation is not measured.
const UNKNOWN: Duration = Duration::MAX;

/// The counters and durations of a driver's activity so far.
///
/// # Examples
/// With `run` of [`Driver`](crate::Driver#examples):
/// ```
/// use sakia_driver::OpKind;
///
/// # use std::future::Future;
/// # fn run<F: Future>(driver: &sakia_driver::Driver, future: F) -> std::io::Result<F::Output> {
/// #     let mut future = std::pin::pin!(future);
/// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
/// #     loop {
/// #         if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut context) {
/// #             return Ok(output);
/// #         }
/// #         driver.turn(sakia_driver::Wait::Forever)?;
/// #     }
/// # }
/// # fn main() -> std::io::Result<()> {
/// # let driver = sakia_driver::Driver::new(sakia_driver::Auto::detect()?.0);
/// driver.measure_latencies();
/// let file = driver.adopt(std::fs::File::open("Cargo.toml")?.into());
/// for _ in 0..10 {
///     run(&driver, driver.read(&file, vec![0; 9], 0))?.0?;
/// }
/// let metrics = driver.metrics();
/// let reads = metrics.latency(OpKind::Read).expect("they were measured");
/// assert_eq!(reads.count(), 10);
/// assert!(reads.min() <= reads.percentile(50.0) && reads.percentile(99.9) <= reads.max());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Metrics {
    /// Totals, which are counted even without measuring.
    pub counters: Counters,
    /// The mode in which streams receive and send.
    pub streams: Streams,
    /// The way of small operations for which a turn has not enough plain calls, and its costs as far as they
    /// were learned.
    pub crowds: CrowdFigures,
    latencies: [Option<Box<Histogram>>; OpKind::COUNT],
}

impl Metrics {
    pub(crate) fn new(
        counters: Counters,
        (streams, crowds): (Streams, CrowdFigures),
        latencies: Option<&Latencies>,
    ) -> Self {
        let latencies = latencies.map(|all| all.kinds.clone()).unwrap_or_default();
        Self { counters, streams, crowds, latencies }
    }

    /// Returns the latencies of a kind of operation, from start until its completion is dispatched. `None` if
    /// they are not measured, or if no operation of the kind has ended since measuring began.
    ///
    /// Canceled operations do not count, nor do multishot operations.
    ///
    /// # Examples
    /// See [`Metrics`](Metrics#examples).
    pub fn latency(&self, kind: OpKind) -> Option<&Histogram> {
        self.latencies[kind as usize].as_deref()
    }

    /// Returns each kind of operation that has latencies, with these.
    pub fn latencies(&self) -> impl Iterator<Item = (OpKind, &Histogram)> {
        OpKind::ALL.iter().filter_map(|&kind| Some((kind, self.latency(kind)?)))
    }

    /// Adds the metrics of another driver. The figures of crowds are those of the first driver that has
    /// measured them, and the mode of streams is that of the last one.
    pub fn add(&mut self, other: &Self) {
        self.counters.add(&other.counters);
        self.streams = other.streams;
        if self.crowds.costs[0].is_none() {
            self.crowds = other.crowds;
        }
        for (mine, its) in self.latencies.iter_mut().zip(&other.latencies) {
            let Some(its) = its else { continue };
            match mine {
                Some(mine) => mine.add(its),
                None => *mine = Some(its.clone()),
            }
        }
    }
}

/// A distribution of latencies, each rounded to within 1 %. Latencies over an hour count as an hour.
///
/// # Examples
/// See [`Metrics`](Metrics#examples).
#[derive(Clone)]
pub struct Histogram(hdrhistogram::Histogram<u64>);

impl Histogram {
    #[cold]
    #[inline(never)]
    fn new() -> Self {
        let inner = hdrhistogram::Histogram::new_with_bounds(1, NANOSECONDS_MAX, DIGITS);
        Self(inner.expect("the bounds and the digits are in the range that the crate takes"))
    }

    fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    fn add(&mut self, other: &Self) {
        self.0.add(&other.0).expect("all have the same bounds");
    }

    /// Returns the number of latencies.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Returns the least latency; zero if there is none.
    pub fn min(&self) -> Duration {
        Duration::from_nanos(self.0.min())
    }

    /// Returns the greatest latency; zero if there is none.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.0.max())
    }

    /// Returns the mean latency; zero if there is none.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.0.mean() as u64)
    }

    /// Returns the latency that the given percentage of all latencies do not exceed: 50 is the median, 99.9
    /// the latency that one in a thousand exceeds. Less than 0 counts as 0, more than 100 as 100. Zero if
    /// there is none.
    pub fn percentile(&self, percent: f64) -> Duration {
        let percent = if percent.is_nan() { 0.0 } else { percent.clamp(0.0, 100.0) };
        Duration::from_nanos(self.0.value_at_percentile(percent))
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Histogram")
            .field("count", &self.count())
            .field("min", &self.min())
            .field("p50", &self.percentile(50.0))
            .field("p99", &self.percentile(99.0))
            .field("max", &self.max())
            .finish()
    }
}

/// The latencies of a driver's operations, and the starts of those under way.
#[derive(Debug)]
pub(crate) struct Latencies {
    /// Start times by slot index; [`UNKNOWN`] for operations that are not measured.
    started: Vec<Duration>,
    /// By kind. Each takes 36 KiB, and is allocated for the first operation of its kind.
    kinds: [Option<Box<Histogram>>; OpKind::COUNT],
    /// Keeps the event points of operations enabled.
    _measuring: Measuring,
}

impl Latencies {
    pub(crate) fn new() -> Self {
        let measuring = sakia_trace::measure();
        Self { started: Vec::new(), kinds: Default::default(), _measuring: measuring }
    }

    /// Records the start of the operation in a slot.
    pub(crate) fn begin(&mut self, index: u32, now: Duration) {
        let index = index as usize;
        if index >= self.started.len() {
            self.started.resize(index + 1, UNKNOWN);
        }
        self.started[index] = now;
    }

    /// Marks a slot as not measured.
    pub(crate) fn forget(&mut self, index: u32) {
        if let Some(started) = self.started.get_mut(index as usize) {
            *started = UNKNOWN;
        }
    }

    /// Records the end of the operation in a slot.
    pub(crate) fn end(&mut self, index: u32, kind: OpKind, now: Duration) {
        let Some(started) = self.started.get_mut(index as usize) else { return };
        let started = std::mem::replace(started, UNKNOWN);
        if started != UNKNOWN {
            let histogram =
                self.kinds[kind as usize].get_or_insert_with(|| Box::new(Histogram::new()));
            histogram.record(now.saturating_sub(started));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(latencies: impl IntoIterator<Item = u64>) -> Histogram {
        let mut histogram = Histogram::new();
        latencies.into_iter().for_each(|it| histogram.record(Duration::from_nanos(it)));
        histogram
    }

    /// Returns whether a latency is within 1 % of the expected one.
    fn is_near(found: Duration, expected_ns: u64) -> bool {
        let (found, expected) = (found.as_nanos() as f64, expected_ns as f64);
        (found - expected).abs() <= expected / 100.0
    }

    #[test]
    fn histogram_tells_what_it_was_given_within_a_percent() {
        let histogram = of((1..=1000).map(|number| number * 1000));
        assert_eq!(histogram.count(), 1000);
        assert!(is_near(histogram.min(), 1000) && is_near(histogram.max(), 1_000_000));
        assert!(is_near(histogram.mean(), 500_500));
        for percent in [1.0, 50.0, 99.0, 99.9, 100.0] {
            let found = histogram.percentile(percent);
            assert!(is_near(found, (percent * 10_000.0) as u64), "{percent}: {found:?}");
        }
    }

    #[test]
    fn histogram_takes_any_question_and_any_latency() {
        let empty = of([]);
        assert_eq!((empty.count(), empty.min(), empty.max()), (0, Duration::ZERO, Duration::ZERO));
        assert_eq!((empty.mean(), empty.percentile(50.0)), (Duration::ZERO, Duration::ZERO));
        let one = of([u64::MAX]);
        assert!(is_near(one.max(), NANOSECONDS_MAX), "{one:?}");
        for percent in [f64::NAN, f64::NEG_INFINITY, -1.0, 101.0, f64::INFINITY] {
            assert!(is_near(one.percentile(percent), NANOSECONDS_MAX), "{percent}");
        }
        assert_eq!(of([0]).count(), 1);
    }

    #[test]
    fn metrics_of_two_drivers_are_added() {
        let metrics = |latencies: &[(OpKind, u64)]| {
            let mut all = Latencies::new();
            for &(kind, latency) in latencies {
                all.begin(3, Duration::from_secs(1));
                all.end(3, kind, Duration::from_secs(1) + Duration::from_nanos(latency));
            }
            let counters = Counters { started: latencies.len() as u64, ..Counters::default() };
            Metrics::new(counters, Default::default(), Some(&all))
        };
        let mut sum = metrics(&[(OpKind::Read, 1000)]);
        sum.add(&metrics(&[(OpKind::Read, 3000), (OpKind::Open, 7)]));
        assert_eq!(sum.counters.started, 3);
        let counts: Vec<_> = sum.latencies().map(|(kind, its)| (kind, its.count())).collect();
        assert_eq!(counts, [(OpKind::Read, 2), (OpKind::Open, 1)]);
        assert!(is_near(sum.latency(OpKind::Read).unwrap().mean(), 2000));
    }

    #[test]
    fn operation_that_was_not_seen_to_start_or_is_forgotten_is_not_measured() {
        let mut all = Latencies::new();
        all.end(0, OpKind::Read, Duration::ZERO);
        all.begin(5, Duration::ZERO);
        all.forget(5);
        all.forget(700);
        all.end(5, OpKind::Read, Duration::ZERO);
        all.end(4, OpKind::Read, Duration::ZERO);
        all.begin(5, Duration::ZERO);
        all.end(5, OpKind::Read, Duration::ZERO);
        all.end(5, OpKind::Read, Duration::ZERO);
        assert_eq!(
            Metrics::new(Counters::default(), Default::default(), Some(&all)).latencies().count(),
            1
        );
        let metrics = Metrics::new(Counters::default(), Default::default(), Some(&all));
        assert_eq!(metrics.latency(OpKind::Read).unwrap().count(), 1);
    }
}
