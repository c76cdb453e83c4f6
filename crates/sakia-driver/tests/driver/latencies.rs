//! Latencies of operations, by kind, if they are measured; and pushes while they are measured or recorded.

use std::fs::File;

use sakia_driver::{CURRENT_POSITION, Metrics, OpKind, PollEvents, Wait};

use crate::support::{TempDir, drain, driver, finish, pipe, pipe_ends, sized};

/// Returns the number of latencies of a kind.
fn count(metrics: &Metrics, kind: OpKind) -> u64 {
    metrics.latency(kind).map_or(0, sakia_driver::Histogram::count)
}

#[test]
fn each_operation_that_ends_by_itself_has_one_latency() {
    let folder = TempDir::new();
    let driver = driver();
    let fd = driver.adopt(File::open(folder.file("file", 4096)).unwrap().into());
    finish(&driver, &mut driver.nop()).unwrap();
    assert_eq!(driver.metrics().latencies().count(), 0, "nothing is measured unless asked for");
    let early = driver.nop();
    driver.measure_latencies();
    driver.measure_latencies();
    let mut ops: Vec<_> = (0..100).map(|_| driver.nop()).collect();
    ops.push(early);
    for op in &mut ops {
        finish(&driver, op).unwrap();
    }
    finish(&driver, &mut driver.read(&fd, vec![0; 4096], 0)).0.unwrap();
    let metrics = driver.metrics();
    let kinds: Vec<_> = metrics.latencies().map(|(kind, its)| (kind, its.count())).collect();
    assert_eq!(kinds, [(OpKind::Nop, 100), (OpKind::Read, 1)]);
    assert_eq!(metrics.counters, driver.counters());
    let latency = metrics.latency(OpKind::Nop).unwrap();
    let order = [0.0, 50.0, 99.0, 100.0].map(|percent| latency.percentile(percent));
    assert!(
        order.is_sorted() && latency.min() <= latency.mean() && latency.mean() <= latency.max()
    );
    // Another driver of the same thread measures separately.
    let other = crate::support::driver();
    finish(&other, &mut other.nop()).unwrap();
    assert_eq!(other.metrics().latencies().count(), 0);
}

#[test]
fn canceled_and_dropped_operations_have_none() {
    let driver = driver();
    driver.measure_latencies();
    let (read_end, _write) = pipe(&driver);
    let mut canceled = driver.poll(&read_end, PollEvents::READABLE);
    driver.turn(Wait::Poll).unwrap();
    canceled.cancel();
    assert!(finish(&driver, &mut canceled).is_err());
    drop(driver.poll(&read_end, PollEvents::READABLE)); // the kernel has not seen it
    drain(&driver);
    assert_eq!(count(&driver.metrics(), OpKind::Poll), 0);
}

#[test]
fn plain_calls_have_one_too() {
    let folder = TempDir::new();
    let driver = driver();
    driver.set_bypass(sakia_driver::Bypass::Rules(sakia_driver::Rules::default()));
    driver.measure_latencies();
    let fd = driver.adopt(File::open(folder.file("file", 4096)).unwrap().into());
    let mut read = driver.read(&fd, vec![0; 4096], 0);
    finish(&driver, &mut read).0.unwrap();
    assert_eq!(count(&driver.metrics(), OpKind::Read), 1);
}

/// A queue of four entries is flushed after three, with and without measurements.
#[test]
fn queue_is_flushed_as_often_as_without() {
    let enters = |measured: bool| {
        let driver = sized(4, 64);
        if measured {
            driver.measure_latencies();
        }
        let mut ops: Vec<_> = (0..12).map(|_| driver.nop()).collect();
        ops.iter_mut().for_each(|op| finish(&driver, op).unwrap());
        driver.counters().enters
    };
    assert_eq!(enters(true), enters(false));
}

#[test]
fn metrics_outlive_the_driver() {
    let driver = driver();
    driver.measure_latencies();
    let handle = driver.handle().clone();
    let (read_end, write) = pipe_ends();
    drop(write);
    let fd = driver.adopt(read_end);
    finish(&driver, &mut driver.read(&fd, vec![0; 1], CURRENT_POSITION)).0.unwrap();
    drop(fd);
    drop(driver);
    assert_eq!(count(&handle.metrics(), OpKind::Read), 1);
}
