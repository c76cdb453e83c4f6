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

/// The calls of a thread, in order.
type Calls = BTreeMap<u64, Vec<String>>;

/// Returns the finished calls of these names in a log of `strace -f -o`.
fn calls_in_log(log: &str, names: &[&str]) -> Calls {
    let mut calls = Calls::new();
    for line in log.lines().filter(|line| !line.contains("<unfinished ...>")) {
        let Some((thread, call)) = line.split_once(' ') else { continue };
        let call = call.trim_start();
        let name = names.iter().find(|name| {
            call.starts_with(&format!("{name}("))
                || call.starts_with(&format!("<... {name} resumed>"))
        });
        if let Some(name) = name {
            calls.entry(thread.parse().unwrap()).or_default().push((*name).into());
        }
    }
    calls
}

/// Returns the calls of these names in a recording.
fn calls_in_recording(file: &Path, names: &[&str]) -> Calls {
    let trace = sakia::trace::Trace::read(&fs::read(file).unwrap()).unwrap();
    let mut calls = Calls::new();
    for track in &trace.tracks {
        let Some(thread) = track.tid else { continue };
        let its = track.slices.iter().filter(|slice| slice.category == "system call");
        let its = its.map(|slice| slice.name.clone()).filter(|name| names.contains(&&**name));
        let its: Vec<String> = its.collect();
        if !its.is_empty() {
            calls.insert(thread, its);
        }
    }
    calls
}

/// The recording has each call that the copy made: the same ones in the same order, thread by thread, as
/// strace sees them.
#[test]
fn each_call_of_a_copy_is_recorded() {
    let can_trace = Command::new("strace").args(["-o", "/dev/null", "true"]).output();
    if !can_trace.is_ok_and(|output| output.status.success()) {
        sakia_testkit::skip!("strace is not here, or may not trace");
    }
    // Neither the libraries of the process nor the recording make these.
    let names = [
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
        .args(["-f", "-e", &format!("trace={}", names.join(","))])
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
    let (seen, recorded) = (calls_in_log(&log, &names), calls_in_recording(&file, &names));
    // Threads of the program end after the recording.
    let without_ends = |calls: &Calls| -> Calls {
        let keep = |name: &&String| *name != "io_uring_enter";
        let its = calls.iter().map(|(thread, its)| (*thread, its.iter().filter(keep)));
        its.map(|(thread, its)| (thread, its.cloned().collect::<Vec<_>>()))
            .filter(|(_, its)| !its.is_empty())
            .collect()
    };
    let (mine, others) = (without_ends(&recorded), without_ends(&seen));
    for thread in mine.keys().chain(others.keys()) {
        let (mine, others) = (mine.get(thread), others.get(thread));
        let (mine, others) = (mine.map_or(&[][..], |its| its), others.map_or(&[][..], |its| its));
        let same = mine.iter().zip(others).take_while(|(mine, others)| mine == others).count();
        assert!(
            mine == others,
            "thread {thread}: after {same} equal calls the recording has {:?}, strace {:?}; log of it:\n{}",
            &mine[same..],
            &others[same..],
            log.lines()
                .filter(|line| line.starts_with(&format!("{thread} ")))
                .collect::<Vec<_>>()
                .join("\n"),
        );
    }
    let enters =
        |calls: &Calls| calls.values().flatten().filter(|name| *name == "io_uring_enter").count();
    let (mine, others) = (enters(&recorded), enters(&seen));
    assert!(mine <= others && others <= mine + 8, "{mine} enters of {others}");
    let opened = seen.values().flatten().filter(|name| *name == "openat2").count();
    assert!(opened >= 200, "{seen:?}");
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

/// The summary names the source of the workers' calls: the kernel's tracepoint if it can be read, otherwise
/// an inference.
#[test]
fn the_source_of_what_workers_did_is_told() {
    let directory = TempDir::new();
    let data = directory.file("data", &[1; 10_000]);
    let source = |file: &Path| {
        let summary = run(sakia(["trace", "summary", "--json"]).arg(file)).json();
        summary["kernel_workers"].clone()
    };
    // Runs as root in a mount namespace of its own, with or without tracefs.
    let record = |file: &Path, with: &str| {
        let script =
            format!("{with} && exec \"$0\" trace record -o \"$1\" -- \"$0\" sum --quiet \"$2\"");
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script, program()]).args([file, data.as_path()]);
        command.output().unwrap()
    };
    let tracing = "/sys/kernel/tracing";
    let mounts = format!("mount -t tracefs tracefs {tracing}");
    let enters = format!("{mounts} && test -e {tracing}/events/io_uring/io_uring_queue_async_work");
    let can = Command::new("unshare").args(["--mount", "sh", "-c", &enters]).output();
    if !can.is_ok_and(|output| output.status.success()) {
        sakia_testkit::skip!("tracefs cannot be mounted, or has no events of io_uring");
    }
    let file = directory.path().join("counted");
    let left = format!("mkdir {tracing}/instances/sakia-trace-4194304");
    let output = record(&file, &format!("{mounts} && {left}"));
    assert!(output.status.success(), "{output:?}");
    let counted = source(&file);
    assert_eq!(counted["source"], "tracepoint", "{counted}");
    assert!(counted["handed_over"].is_object(), "{counted}");
    let list = format!("{mounts} && ls {tracing}/instances");
    let list = Command::new("unshare").args(["--mount", "sh", "-c", &list]).output().unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    assert!(!list.contains("sakia-trace-4194304"), "one of a process that is gone: {list}");

    let file = directory.path().join("inferred");
    let hides = format!("mount -t tmpfs tmpfs {tracing} && mount -t tmpfs tmpfs /sys/kernel/debug");
    let output = record(&file, &hides);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(source(&file)["source"], "inferred");
}
