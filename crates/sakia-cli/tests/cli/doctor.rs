//! `sakia doctor`.

use serde_json::Value;

use crate::support::{needs_ring, run, sakia};

#[test]
fn says_what_was_granted() {
    needs_ring!();
    let ended = run(&mut sakia(["doctor"]));
    ended.assert_quiet_success();
    for name in [
        "auto chooses        uring",
        "the kernel grants a ring",
        "asks for auto",
        "kernel",
        "architecture",
        "cpus",
        "io_uring_disabled",
        "locked memory",
        "open files",
        "seccomp",
        "container",
        "submission queue",
        "completion queue",
        "registered fd",
        "registered waits",
        "no_iowait",
        "DEFER_TASKRUN",
        "SINGLE_MMAP",
        "steps down",
        "msg_ring",
        "what to change",
    ] {
        assert!(ended.stdout.contains(name), "{name}: {}", ended.stdout);
    }
    // Values stand in one column.
    let columns = ended.stdout.lines().filter(|line| line.starts_with("  ")).take(5);
    for line in columns {
        assert!(line.as_bytes()[21] == b' ' && line.as_bytes()[22] != b' ', "{line:?}");
    }
}

#[test]
fn says_the_same_in_json() {
    needs_ring!();
    let ended = run(&mut sakia(["doctor", "--json"]));
    ended.assert_quiet_success();
    assert_eq!(ended.stdout.lines().count(), 1);
    let found: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(found["type"], "doctor");
    assert!(found["kernel"]["release"].is_string() && found["kernel"]["cpus"].is_u64());
    let ring = &found["ring"];
    assert_eq!(ring["available"], true);
    assert!(ring["sq_entries"].as_u64().unwrap() > 0);
    assert!(ring["flags"].as_array().unwrap().contains(&"DEFER_TASKRUN".into()));
    assert_eq!(ring["operations"]["read"], true);
    assert_eq!(found["poll"]["available"], true);
    assert_eq!(found["poll"]["operations"]["read"], true);
    assert_eq!(found["backend"]["auto"], "uring");
    assert_eq!(found["backend"]["wanted"], "auto");
}

#[test]
fn says_what_the_environment_asks_for() {
    for driver in ["uring", "poll"] {
        let ended = run(sakia(["doctor", "--json"]).env("SAKIA_DRIVER", driver));
        let found: Value = serde_json::from_str(&ended.stdout).unwrap();
        assert_eq!(found["backend"]["wanted"], driver);
    }
}
