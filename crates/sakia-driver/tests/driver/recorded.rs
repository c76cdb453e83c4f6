//! Operations in a recording. A process has one recording, so each test is a scene.

use std::fs::{self, File};

use sakia_driver::{Begun, Bypass, CURRENT_POSITION, MountTable, OpKind, Rules};
use sakia_trace::{Recording, Slice, Trace, TraceOptions};

use crate::children;
use crate::support::{TempDir, drain, driver, finish, pipe, skip};

fn recorded(folder: &TempDir, program: impl FnOnce()) -> Trace {
    let path = folder.join("trace");
    let recording = Recording::to_file(&path, TraceOptions::default()).unwrap();
    program();
    recording.stop().unwrap();
    Trace::read(&fs::read(path).unwrap()).unwrap()
}

/// Returns the operations of this kind in the order of their starts, each with the slice inside it.
fn operations(trace: &Trace, kind: OpKind) -> Vec<(Slice, Option<Slice>)> {
    let mut found = Vec::new();
    for track in trace.tracks.clone() {
        let mut inner = None;
        for slice in track.slices {
            if slice.depth > 0 {
                inner = Some(slice);
            } else if slice.category == "operation" && slice.name == kind.name() {
                found.push((slice, inner.take()));
            }
        }
    }
    found.sort_by_key(|(slice, _)| slice.begin);
    found
}

#[test]
fn closes_are_told() {
    if sakia_ring::Ring::builder().build().is_err() {
        skip!("there is no ring");
    }
    children::run("recorded_closes");
}

/// Records closes: one waits for a read that it cancels, one is the second of a descriptor, and one loses its
/// handle.
pub fn scene_closes() {
    let folder = TempDir::new();
    let driver = driver();
    driver.measure_latencies();
    let file = || driver.adopt(File::open(folder.file("file", 1)).unwrap().into());
    let (waited_for, _write) = pipe(&driver);
    let trace = recorded(&folder, || {
        finish(&driver, &mut driver.close(file())).unwrap();
        let mut read = driver.read(&waited_for, vec![0; 1], CURRENT_POSITION);
        let mut close = driver.close(waited_for.clone());
        finish(&driver, &mut driver.close(waited_for)).unwrap_err();
        finish(&driver, &mut read).0.unwrap_err();
        drop(read);
        finish(&driver, &mut close).unwrap();
        let closed = file();
        let kept = closed.clone();
        drop(driver.close(closed));
        drop(kept);
        drain(&driver);
        driver.turn(sakia_driver::Wait::Poll).unwrap();
    });
    // Only the handle of one was dropped: the request to cancel the read never had one.
    let moments = trace.tracks.iter().flat_map(|track| &track.instants);
    assert_eq!(moments.filter(|moment| moment.name == "dropped").count(), 1, "{trace:?}");
    let closes = operations(&trace, OpKind::Close);
    let results: Vec<_> = closes
        .iter()
        .map(|(close, _)| (close.end.is_some(), close.number("result").unwrap()))
        .collect();
    let errno = rustix::io::Errno::BADF.raw_os_error();
    assert_eq!(results, [(true, 0), (true, 0), (true, (-errno).into()), (true, 0)], "{closes:?}");
    let waiting = &closes[1].0;
    assert!(
        waiting.end.unwrap() > closes[2].0.end.unwrap(),
        "it was open for as long as it waited"
    );
    // The time for which a close waits for other operations is not its latency.
    assert!(driver.metrics().latency(OpKind::Close).is_none());
}

#[test]
fn reads_are_told_however_they_begin() {
    if sakia_ring::Ring::builder().build().is_err() {
        skip!("there is no ring");
    }
    children::run("recorded_reads");
}

/// Reads cached bytes, which takes no slot without a recording, or a measurement.
pub fn scene_reads() {
    let folder = TempDir::new();
    let driver = driver();
    driver.set_bypass(Bypass::Rules(Rules::default()));
    let file = driver.adopt(File::open(folder.file("file", 64)).unwrap().into());
    let read = |begins: bool| {
        let (result, _) = match begins {
            true => match driver.begin_read(&file, vec![0; 64], 0) {
                Begun::Done(output) => output,
                Begun::Op(mut op) => finish(&driver, &mut op),
            },
            false => finish(&driver, &mut driver.read(&file, vec![0; 64], 0)),
        };
        assert_eq!(result.unwrap(), 64);
    };
    let trace = recorded(&folder, || [false, true, true].into_iter().for_each(read));
    let reads = operations(&trace, OpKind::Read);
    assert_eq!(reads.len(), 3, "{reads:?}");
    assert!(reads.iter().all(|(read, _)| read.end.is_some()), "{reads:?}");
    driver.measure_latencies();
    read(true);
    let count = driver.metrics().latency(OpKind::Read).map(|latency| latency.count());
    assert_eq!(count, Some(1));
}

#[test]
fn lanes_are_told_with_the_file_system() {
    if sakia_ring::Ring::builder().build().is_err() {
        skip!("there is no ring");
    }
    children::run("recorded_lanes");
}

/// Copies from file to file, an operation that no ring has.
pub fn scene_lanes() {
    let folder = TempDir::new();
    let (from, to) = (folder.file("from", 100), folder.join("to"));
    let driver = driver();
    let from = driver.adopt(File::open(from).unwrap().into());
    let to = driver.adopt(File::create(&to).unwrap().into());
    let trace = recorded(&folder, || {
        finish(&driver, &mut driver.copy_file_range(&from, 0, &to, 0, 100)).unwrap();
    });
    let copies = operations(&trace, OpKind::Copy);
    let [(copy, Some(on_lane))] = &copies[..] else { panic!("{copies:?}") };
    assert_eq!(copy.text("way"), Some("lane"));
    assert_eq!(on_lane.text("reason"), Some("the ring has no such operation"));
    let place = fs::canonicalize(folder.path()).unwrap();
    let table = MountTable::read().unwrap();
    let file_system = &table.find_by_path(&place).unwrap().file_system;
    assert_eq!(on_lane.text("file system"), Some(file_system.as_str()));
}
