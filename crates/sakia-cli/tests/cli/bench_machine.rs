//! `sakia bench costs` and `sakia bench baseline`, with little to do.

use std::fs;

use serde_json::Value;

use crate::support::{TempDir, needs_ring, run, sakia};

/// Returns the objects of a type in JSON Lines.
fn of<'a>(lines: &'a [Value], kind: &'static str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["type"] == kind).collect()
}

#[test]
fn every_part_has_its_cost() {
    needs_ring!();
    let mut command = sakia(["bench", "costs", "--runs", "1", "--operations", "640", "--json"]);
    let ended = run(&mut command);
    ended.assert_quiet_success();
    let lines = ended.json_lines();
    let results = of(&lines, "result");
    let variants: Vec<_> = results.iter().map(|line| line["variant"].as_str().unwrap()).collect();
    let expected = [
        "call",
        "switch",
        "wake",
        "yield",
        "nop-1",
        "nop-8",
        "nop-64",
        "nop-64-recorded",
        "nop-64-measured",
        "event",
        "event-off",
        "reads-16-wait",
        "reads-16-block-on",
    ];
    assert_eq!(variants, expected);
    assert!(of(&lines, "run").iter().all(|run| run["sum"] == 640), "{ended:?}");
    assert!(results.iter().all(|line| line["params"]["operations"] == 640));
    let count = |index: usize, name: &str| results[index]["counters"][name].as_u64();
    // Each operation is queued, submitted, completed and resumed; turns have events as well.
    assert!(count(7, "events") >= Some(4 * 640), "{}", results[7]);
    assert_eq!(count(7, "events_lost"), Some(0));
    assert!(count(8, "latency_ns_p50") <= count(8, "latency_ns_p99"), "{}", results[8]);
    // One event per operation, and one for the buffer of the thread.
    assert_eq!((count(9, "events"), count(9, "events_lost")), (Some(641), Some(0)));
    assert_eq!(count(10, "events"), None);
}

#[test]
fn costs_are_told_in_nanoseconds() {
    let args =
        ["bench", "costs", "--runs", "1", "--operations", "64", "--variants", "call,event-off"];
    let ended = run(&mut sakia(args));
    ended.assert_quiet_success();
    for text in ["one of 64", "       ns ", "call       costs ", " ns\n"] {
        assert!(ended.stdout.contains(text), "{text}: {}", ended.stdout);
    }
}

#[test]
fn baseline_is_kept_beside_what_is_there() {
    let directory = TempDir::new();
    let kept = directory.path().join("results.jsonl");
    fs::write(&kept, "{\"type\":\"earlier\"}\n").unwrap();
    let mut command =
        sakia(["bench", "baseline", "--quick", "--runs", "1", "--size", "2M", "--dir"]);
    command.arg(directory.path()).args(["--variants", "buffered,cp", "--keep"]).arg(&kept);
    let ended = run(&mut command);
    ended.assert_quiet_success();
    let text = fs::read_to_string(&kept).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["type"], "earlier");
    assert_eq!(
        (&lines[1]["type"], &lines[1]["experiment"]),
        (&"machine".into(), &"baseline".into())
    );
    let cells: Vec<_> = of(&lines, "result")
        .iter()
        .map(|line| (line["params"]["part"].as_str().unwrap(), line["variant"].as_str().unwrap()))
        .collect();
    let expected = [
        ("sequential-read", "buffered"),
        ("sequential-write", "buffered"),
        ("random-read", "buffered"),
        ("random-write", "buffered"),
        ("copy", "cp"),
    ];
    assert_eq!(cells, expected);
    let copy = of(&lines, "result")[4];
    assert_eq!(
        (&copy["params"]["files"], &copy["params"]["directories"]),
        (&155.into(), &31.into())
    );
    assert!(copy["cpu_ns"]["median"].as_u64() > Some(0), "that of cp: {copy}");
    assert_eq!(lines.last().unwrap()["type"], "summary");
    assert_eq!(of(&lines, "run").len(), 5);
    for text in ["copy, 155 files", "calls/s", "MiB/s"] {
        assert!(ended.stdout.contains(text), "{text}: {}", ended.stdout);
    }
    let left: Vec<_> =
        fs::read_dir(directory.path()).unwrap().map(|it| it.unwrap().path()).collect();
    assert_eq!(left, [kept], "the files are removed");
}

#[test]
fn file_that_cannot_be_kept_is_known_early() {
    let args = ["bench", "costs", "--variants", "call", "--keep", "/missing/results.jsonl"];
    let ended = run(&mut sakia(args));
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("cannot open /missing/results.jsonl"), "{}", ended.stderr);
}
