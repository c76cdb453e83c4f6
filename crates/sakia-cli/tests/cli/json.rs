//! JSON Lines.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use crate::support::{TempDir, needs_ring, plain_sum, random_bytes, run, sakia};

#[test]
fn has_a_line_per_file_and_error_and_a_summary() {
    needs_ring!();
    let directory = TempDir::new();
    let bytes = random_bytes(1, 1_500_000);
    let good = directory.file("good", &bytes);
    let missing = directory.path().join("missing");
    let ended = run(sakia(["sum", "--json", "--block", "64K"]).args([&good, &missing]));
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.starts_with("sakia: ") && ended.stderr.lines().count() == 1, "{ended:?}");
    let lines = ended.json_lines();
    let [file, error, summary] = &lines[..] else { panic!("{ended:?}") };

    assert_eq!(file["type"], "file");
    assert_eq!(file["path"], good.to_str().unwrap());
    assert_eq!(file["bytes"], 1_500_000);
    assert_eq!(file["sum"], plain_sum(&bytes));

    assert_eq!(error["type"], "error");
    assert_eq!(error["path"], missing.to_str().unwrap());
    assert_eq!(error["operation"], "open");
    assert_eq!(error["errno"], 2);
    assert_eq!(error["message"], "No such file or directory");

    assert_eq!(summary["type"], "summary");
    assert_eq!((&summary["files"], &summary["errors"]), (&1.into(), &1.into()));
    assert_eq!(summary["bytes"], 1_500_000);
    assert_eq!(summary["sum"], plain_sum(&bytes));
    assert!(summary["elapsed_ns"].as_u64().unwrap() > 0);
    assert!(summary["bytes_per_s"].as_u64().unwrap() > 0);
    assert_eq!(summary["driver"], "uring");
    let counters = summary["counters"].as_object().unwrap();
    for name in ["started", "finished", "pushed", "enters", "waits", "completions", "leaked"] {
        assert!(counters[name].is_u64(), "{name}");
    }
    // 23 blocks and the end of the file.
    assert_eq!(summary["reads"], 24);
    assert!(counters["started"].as_u64().unwrap() >= 24 + 3);
    assert_eq!(counters["stale"], 0);
}

#[test]
fn says_how_many_reads_were_plain_calls() {
    for driver in ["auto", "poll"] {
        let directory = TempDir::new();
        let small: Vec<_> =
            (0..40).map(|number| directory.file(number.to_string(), &[1; 5000])).collect();
        let large = directory.file("large", &vec![1; 2_000_000]);
        let mut command = sakia(["sum", "--json"]);
        let ended = run(command.args(&small).arg(&large).env("SAKIA_DRIVER", driver));
        ended.assert_quiet_success();
        let lines = ended.json_lines();
        let summary = lines.last().unwrap();
        let (reads, plain) = (summary["reads"].as_u64(), summary["plain_reads"].as_u64());
        assert!((40 + 4..).contains(&reads.unwrap()), "{summary}");
        // Their number depends on the cache, and on the file system's support of non-blocking reads.
        assert!(plain.unwrap() <= reads.unwrap(), "{summary}");
        assert_eq!(summary["sum"], 40 * 5000 + 2_000_000);
    }
    let directory = TempDir::new();
    let ended = run(sakia(["sum"]).arg(directory.file("file", b"abc")));
    assert!(ended.stderr.contains("plain calls "), "{ended:?}");
}

#[test]
fn steady_reads_need_few_system_calls_and_no_allocation_by_the_driver() {
    needs_ring!();
    let directory = TempDir::new();
    let path = directory.file("file", &random_bytes(1, 8 << 20));
    let ended = run(sakia(["sum", "--json", "--block", "32K", "--depth", "8"]).arg(&path));
    let lines = ended.json_lines();
    let summary = lines.last().unwrap();
    let counter = |name: &str| summary["counters"][name].as_u64().unwrap();
    assert_eq!(summary["reads"], 257);
    // Every operation except the one `statx` fits its slot.
    assert_eq!((counter("boxed"), counter("pooled")), (0, 1));
    assert!(counter("enters") <= 257, "{summary}");
}

#[test]
fn path_that_is_not_text_is_encoded() {
    needs_ring!();
    let directory = TempDir::new();
    directory.file(OsString::from_vec(b"a\xff".into()), b"ab");
    let mut command = sakia(["sum", "--json"]);
    let ended = run(command.arg(OsString::from_vec(b"a\xff".into())).current_dir(directory.path()));
    assert_eq!(ended.code, Some(0));
    let lines = ended.json_lines();
    assert_eq!(lines[0]["path_bytes"], "Yf8=");
    assert_eq!(lines[0].get("path"), None);
    assert_eq!(lines[0]["sum"], 195);
}

#[test]
fn standard_input_is_a_dash() {
    needs_ring!();
    let ended = run(&mut sakia(["sum", "--json"]));
    ended.assert_quiet_success();
    assert_eq!(ended.json_lines()[0]["path"], "-");
}
