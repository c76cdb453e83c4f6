//! `sakia trace`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::support::{TempDir, run, sakia};

fn record(file: &Path, command: &[&str]) -> crate::support::Ended {
    let mut recording = sakia(["trace", "record", "-o"]);
    recording.arg(file).arg("--").args(command);
    run(&mut recording)
}

fn program() -> &'static str {
    env!("CARGO_BIN_EXE_sakia")
}

#[test]
fn a_program_is_recorded_told_and_drawn() {
    let directory = TempDir::new();
    let data = directory.file("data", &[1; 3_000_000]);
    let file = directory.path().join("trace");
    let data = data.to_str().unwrap();
    // A second recording replaces the first.
    for _ in 0..2 {
        let ended = record(&file, &[program(), "sum", "--quiet", data]);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert!(ended.stdout.contains("3000000"), "{}", ended.stdout);
        assert_eq!(ended.stderr, format!("sakia: recorded {}\n", file.display()));
    }
    let ended = run(sakia(["trace", "summary"]).arg(&file));
    ended.assert_quiet_success();
    assert!(
        ended.stdout.contains("read") && ended.stdout.contains("system calls"),
        "{}",
        ended.stdout
    );
    let ended = run(sakia(["trace", "summary", "--json"]).arg(&file));
    let summary = ended.json();
    assert_eq!((summary["process"].as_str(), summary["lost"].as_u64()), (Some("sakia"), Some(0)));
    let operations = summary["operations"].as_array().unwrap();
    let reads = operations.iter().find(|kind| kind["operation"] == "read").unwrap();
    assert_eq!(reads["bytes"].as_u64(), Some(3_000_000));

    let picture = directory.path().join("picture.svg");
    run(sakia(["trace", "plot", "-o"]).arg(&picture).arg(&file)).assert_quiet_success();
    let svg = fs::read_to_string(&picture).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("read"), "{svg}");
}

/// The file has each call of the copy: as many as strace sees.
#[test]
fn each_call_of_a_copy_is_recorded() {
    let can_trace = Command::new("strace").args(["-o", "/dev/null", "true"]).output();
    if !can_trace.is_ok_and(|output| output.status.success()) {
        sakia_testkit::skip!("strace is not here, or may not trace");
    }
    // Those that nothing else in the process makes, neither its libraries nor the recording.
    let calls = [
        "openat2",
        "preadv2",
        "pwrite64",
        "copy_file_range",
        "mkdirat",
        "fchmod",
        "io_uring_enter",
    ];
    let directory = TempDir::new();
    let source = directory.path().join("source");
    fs::create_dir_all(source.join("below")).unwrap();
    for number in 0..100 {
        fs::write(source.join(format!("{number}")), vec![1; 4096]).unwrap();
        fs::write(source.join(format!("below/{number}")), vec![1; 100 * number]).unwrap();
    }
    let (file, log) = (directory.path().join("trace"), directory.path().join("strace"));
    let status = Command::new("strace")
        .args(["-f", "-e", &format!("trace={}", calls.join(","))])
        .arg("-o")
        .arg(&log)
        .args([program(), "cp", "-r"])
        .arg(&source)
        .arg(directory.path().join("target"))
        .env("SAKIA_TRACE", &file)
        .status()
        .unwrap();
    assert!(status.success());
    let summary = run(sakia(["trace", "summary", "--json"]).arg(&file)).json();
    assert_eq!(summary["lost"].as_u64(), Some(0));
    let log = fs::read_to_string(&log).unwrap();
    let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
    for line in log.lines().filter(|line| !line.contains("<unfinished ...>")) {
        let call = line.split_once(' ').map_or("", |(_, call)| call.trim_start());
        for name in calls {
            if call.starts_with(&format!("{name}("))
                || call.starts_with(&format!("<... {name} resumed>"))
            {
                *seen.entry(name).or_default() += 1;
            }
        }
    }
    for name in calls {
        let recorded = summary["system_calls"][name].as_u64().unwrap_or(0);
        let seen = seen.get(name).copied().unwrap_or(0);
        if name == "io_uring_enter" {
            // Rings are set up before the recording begins, and threads end after it.
            assert!(recorded <= seen && seen <= recorded + 8, "{name}: {recorded} of {seen}");
        } else {
            assert_eq!(recorded, seen, "{name}");
        }
    }
    assert!(seen["openat2"] >= 200, "{seen:?}");
}

#[test]
fn what_is_not_a_recording_is_refused() {
    let directory = TempDir::new();
    let link = directory.path().join("link");
    symlink("elsewhere", &link).unwrap();
    let ended = record(&link, &["true"]);
    assert_eq!(ended.code, Some(1));
    assert_eq!(ended.stderr, format!("sakia: {} exists and is no regular file\n", link.display()));

    let file = directory.path().join("trace");
    let ended = record(&file, &["true"]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("true left no recording"), "{}", ended.stderr);
    let ended = record(&file, &["sh", "-c", "exit 7"]);
    assert_eq!(ended.code, Some(7));
    let ended = record(&file, &["/nonexistent/program"]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("cannot run /nonexistent/program"), "{}", ended.stderr);

    for bytes in [&b""[..], b"hello, this is no trace", &[0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f]] {
        let other = directory.file("other", bytes);
        let ended = run(sakia(["trace", "summary"]).arg(&other));
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""));
        assert!(ended.stderr.contains("no trace of Sakia"), "{}", ended.stderr);
    }
}
