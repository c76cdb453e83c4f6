//! Each sentence of the summary, for a trace made for it.

use super::*;

#[test]
fn stretches_are_joined_cut_and_subtracted() {
    assert_eq!(union(vec![(5, 7), (1, 3), (2, 4), (7, 8)]), [(1, 4), (5, 8)]);
    assert_eq!(intersect(&[(1, 4), (5, 8)], &[(0, 2), (3, 6)]), [(1, 2), (3, 4), (5, 6)]);
    assert_eq!(subtract(&[(1, 4), (5, 8)], &[(0, 2), (3, 6)]), [(2, 3), (6, 8)]);
    assert_eq!(subtract(&[(0, 10)], &[(2, 3), (4, 5), (9, 20)]), [(0, 2), (3, 4), (5, 9)]);
    assert_eq!(subtract(&[(0, 10)], &[]), [(0, 10)]);
}

use crate::read::Value;

/// A trace of one thread and its operations.
#[derive(Default)]
struct Made {
    now: u64,
    thread: Track,
    /// Rows for operations that overlap.
    rows: Vec<Track>,
}

fn slice(name: &str, begin: u64, end: u64, arguments: &[(&str, i64)]) -> Slice {
    let number = |(name, value): &(&str, i64)| ((*name).into(), Value::Number(*value));
    let arguments = arguments.iter().map(number).collect();
    Slice { name: name.into(), begin, end: Some(end), arguments, ..Slice::default() }
}

impl Made {
    fn new() -> Self {
        let thread = Track { uuid: 1, name: "main".into(), tid: Some(7), ..Track::default() };
        let rows =
            (0..2).map(|row| Track { uuid: 2 + row, parent: 1, ..Track::default() }).collect();
        Self { now: 1000, thread, rows }
    }

    /// Adds an operation by a plain call of 100 ns.
    fn plain(&mut self, name: &str, task: i64, fd: i64, asked: i64, result: i64) {
        let arguments = [("task", task), ("descriptor", fd), ("bytes", asked), ("result", result)];
        let mut made = slice(name, self.now, self.now + 100, &arguments);
        made.arguments.push(("way".into(), Value::Text("plain call".into())));
        self.rows[0].slices.push(made);
        self.now += 200;
    }

    /// Adds an operation in the kernel or on a lane, for 10 us. The next one begins `step` later.
    fn waiting(&mut self, name: &str, (row, step): (usize, u64), fd: i64, way: &str, reason: &str) {
        let begin = self.now;
        let mut inner = slice("in the kernel", begin + 1000, begin + 9000, &[]);
        inner.depth = 1;
        inner.arguments.push(("reason".into(), Value::Text(reason.into())));
        let arguments = [("task", 1), ("descriptor", fd), ("bytes", 4096), ("result", 4096)];
        let mut whole = slice(name, begin, begin + 10_000, &arguments);
        whole.arguments.push(("way".into(), Value::Text(way.into())));
        self.rows[row].slices.extend([inner, whole]);
        self.now += step;
    }

    fn sample(&mut self, faults: i64, workers: i64) {
        let arguments = [(crate::sample::FAULTS, faults), (crate::sample::WORKERS, workers)];
        let moment = slice(crate::sample::NAME, self.now, self.now, &arguments);
        self.thread.instants.push(moment);
    }

    fn summary(self) -> Summary {
        let tracks = [vec![self.thread], self.rows].concat();
        Summary::of(&Trace { process: "program".into(), tracks, ..Trace::default() })
    }
}

fn has(summary: &Summary, words: &str) -> bool {
    summary.findings.iter().any(|finding| finding.contains(words))
}

/// Returns a copy of 100 files by a read and a write of one task each, like that of the guide's first
/// program.
fn slow_copy(block: i64) -> Made {
    let mut made = Made::new();
    for _ in 0..100 {
        made.plain("open", 1, -100, 0, 5);
        made.plain("open", 1, -100, 0, 6);
        made.plain("read", 1, 5, block, 4096);
        made.plain("write", 1, 6, 4096, 4096);
        made.plain("read", 1, 5, block, 0);
    }
    made
}

#[test]
fn reads_and_writes_by_turns_are_one_operation_in_flight() {
    let summary = slow_copy(4096).summary();
    let expected = "One operation in flight per file: 100 of 100 files never had two reads or writes in \
                    flight at a time, and the threads made the calls themselves";
    assert!(has(&summary, expected), "{summary}");
    assert_eq!(summary.findings.len(), 1, "{summary}");
}

/// A file that one task reads and another one writes, or that the kernel copies, does not count as such a
/// file.
#[test]
fn reads_and_writes_of_two_tasks_and_copies_are_not() {
    let mut made = Made::new();
    for _ in 0..100 {
        made.plain("open", 1, -100, 0, 5);
        made.plain("open", 1, -100, 0, 6);
        made.plain("read", 1, 5, 16_384, 4096);
        made.plain("write", 2, 6, 4096, 4096);
        made.plain("read", 1, 5, 12_288, 0);
        made.plain("open", 1, -100, 0, 7);
        made.plain("copy", 1, 7, 65_536, 4096);
        made.plain("copy", 1, 7, 65_536, 0);
    }
    let summary = made.summary();
    assert!(summary.findings.is_empty(), "{summary}");
}

#[test]
fn serial_operations_in_the_kernel_are_one_in_flight_and_overlapping_ones_are_not() {
    let copy = |rows: [(usize, u64); 2]| {
        let mut made = Made::new();
        for file in 0..20 {
            for _ in 0..4 {
                made.waiting("read", rows[0], file, "queue", "");
                made.waiting("read", rows[1], file, "queue", "");
            }
        }
        made.summary()
    };
    let serial = copy([(0, 11_000), (0, 11_000)]);
    let expected =
        "for 73 % of the time the threads had operations in the kernel and computed nothing";
    assert!(has(&serial, "One operation in flight per file: 20 of 20 files"), "{serial}");
    assert!(has(&serial, expected), "{serial}");
    let deep = copy([(0, 5000), (1, 6000)]);
    assert!(!has(&deep, "One operation in flight"), "{deep}");
    assert!(deep.threads[0].mean_in_flight > 1.2, "{deep}");
}

#[test]
fn large_buffers_and_page_faults_of_small_files_are_named() {
    let mut made = slow_copy(1 << 20);
    made.sample(100, 0);
    made.now += 1000;
    made.sample(57_769, 0);
    let summary = made.summary();
    let expected = "Large buffers for small files: 100 of 100 reads asked for 1 MiB and got 4 KiB";
    assert!(has(&summary, expected), "{summary}");
    assert!(has(&summary, "57669 page faults, 288.3 per read or write"), "{summary}");
    let mut large = Made::new();
    (0..100).for_each(|_| large.plain("read", 1, 5, 1 << 20, 1 << 20));
    assert!(large.summary().findings.is_empty());
}

/// Returns the summary of 100 writes, of which 41 went to a lane. They are on two file systems, or on a
/// tmpfs, and then one of them does not name its file system.
fn writes_on_lanes(on_two: bool) -> Summary {
    let mut made = Made::new();
    for number in 0..100 {
        if number < 41 {
            made.waiting("write", (0, 11_000), number, "lane", "the ring has no such operation");
            let inner = made.rows[0].slices.iter_mut().rev().find(|slice| slice.depth == 1);
            let name = if number < 20 && on_two { "ext4" } else { "tmpfs" };
            let its = (number < 40 || on_two).then_some(name);
            let its = its.map(|its| ("file system".into(), Value::Text(its.into())));
            inner.expect("it waits").arguments.extend(its);
        } else {
            made.plain("write", 1, number, 10, 10);
        }
    }
    made.sample(0, 3);
    made.summary()
}

#[test]
fn lanes_and_kernel_workers_are_named() {
    let begin = "41 % of writes went to lane threads: the ring has no such operation";
    let end = "Each costs two thread switches: make fewer and larger ones.";
    let summary = writes_on_lanes(true);
    assert!(has(&summary, &format!("{begin} (tmpfs 51 %, ext4 49 %). {end}")), "{summary}");
    let summary = writes_on_lanes(false);
    assert!(has(&summary, &format!("{begin} (tmpfs). {end}")), "{summary}");
    assert!(
        has(&summary, "up to 3 worker threads (inferred from threads named `iou-wrk`)"),
        "{summary}"
    );
}

/// Returns the only finding of `count` operations, each of which waits `step` for its task, with `workers` of
/// the kernel.
fn only_finding(name: &str, way: &str, reason: &str, step: u64, workers: i64) -> String {
    let mut made = Made::new();
    for number in 0..20 {
        made.waiting(name, (0, step + 20_000), number, way, reason);
        if let Some(whole) = made.rows[0].slices.last_mut() {
            whole.end = whole.end.map(|end| end + step);
        }
    }
    made.sample(0, workers);
    let summary = made.summary();
    assert_eq!(summary.findings.len(), 1, "{summary}");
    summary.findings[0].clone()
}

/// Each finding ends with something to do.
#[test]
fn findings_say_what_to_do() {
    let lane = |reason| only_finding("open", "lane", reason, 0, 0);
    assert!(lane("on a network or FUSE file system").ends_with("have more of them under way."));
    assert!(lane("may wait without bound").ends_with("have few of them under way at a time."));
    assert!(lane("another").ends_with("make fewer and larger ones."));
    let workers = |name| only_finding(name, "queue", "", 0, 2);
    assert!(workers("fsync").ends_with("Let writers share a sync, by `GroupCommit`."));
    assert!(workers("read at").ends_with("or use direct I/O, which needs no worker."));
    assert!(workers("mkdir").ends_with("make many in one `spawn_blocking`, by plain calls."));
    let late = only_finding("recv", "queue", "", 90_000, 0);
    assert!(late.contains("Results of \"recv\" waited"), "{late}");
    assert!(late.ends_with("`yield_now`, or leave them to `spawn_blocking`."), "{late}");
}

#[test]
fn parts_of_an_operation_utilization_and_long_turns_are_told() {
    let mut made = Made::new();
    made.thread.slices.push(slice("turn", 0, 1000, &[]));
    made.thread.slices.push(slice("task runs", 1100, 6000, &[("task", 9)]));
    made.waiting("read", (0, 20_000), 5, "queue", "");
    made.thread.slices.push(slice("turn", 11_000, 12_000, &[]));
    let mut spawned = slice("task spawned", 10, 10, &[("task", 9)]);
    spawned.arguments.push(("place".into(), Value::Text("src/main.rs:7".into())));
    made.thread.instants.push(spawned);
    let summary = made.summary();
    let read = &summary.kinds[0];
    assert_eq!((read.submit, read.kernel, read.scheduling), (1000, 8000, 1000));
    // The task ran for 4 of the 8 us that the read was in the kernel.
    assert_eq!((summary.threads[0].overlap, summary.threads[0].in_flight), (4000, 8000));
    let text = summary.to_string();
    for expected in
        ["utilization 50 %", "10.0 us at    1.0 us on main: task 9 of src/main.rs:7 ran for 4.9 us"]
    {
        assert!(text.contains(expected), "{text}");
    }
}
