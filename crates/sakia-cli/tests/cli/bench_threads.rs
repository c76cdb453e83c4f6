//! `sakia bench threads`, with few reads. The places need root; without it they are skipped loudly.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Stdio;

use rustix::process::{Pid, Signal};
use sakia_testkit::available;
use sakia_testkit::fuse::Fuse;
use sakia_testkit::place::leftovers;
use sakia_testkit::throttled::ThrottledDisk;
use serde_json::Value;

use crate::support::{
    Ended, TempDir, alone, await_that, needs_ring, program_for_all, run, sakia, wait,
    without_privileges,
};

/// Reads of each run: more than a disk's queue has room for.
const READS: u64 = 200;
/// The limit of an engine's additional threads on a disk, for any number of reads: one that awaits, one of
/// the engine, and those of the kernel.
const EXTRA_MAX: u64 = 8;

/// Returns the results at a place, by variant; all reads had the same sum.
fn measure(place: &str, args: &[&str]) -> Vec<(String, Value)> {
    let _alone = alone();
    let mut command = sakia(["bench", "threads", "--json", "--runs", "1", "--places", place]);
    // A small number of reads begins at once.
    command.args(["--reads", &READS.to_string(), "--settle", "300"]);
    let ended = run(command.args(args));
    ended.assert_quiet_success();
    let lines = ended.json_lines();
    let of = |kind: &'static str| lines.iter().filter(move |line| line["type"] == kind);
    assert_eq!(of("missing").count(), 0, "{ended:?}");
    let mut sums: Vec<_> = of("run").map(|line| line["sum"].as_u64().unwrap()).collect();
    sums.dedup();
    assert_eq!(sums.len(), 1, "{ended:?}");
    let variant = |line: &Value| line["variant"].as_str().unwrap().to_owned();
    of("result").map(|line| (variant(line), line.clone())).collect()
}

fn count(result: &Value, name: &str) -> u64 {
    result["counters"][name].as_u64().unwrap_or_else(|| panic!("{name}: {result}"))
}

/// Checks the common properties of all places.
fn check(results: &[(String, Value)], place: &str) {
    let names: Vec<_> = results.iter().map(|(variant, _)| variant.as_str()).collect();
    assert_eq!(names, ["uring", "poll", "pool", "blocking"]);
    for (variant, result) in results {
        assert_eq!(result["params"]["place"], place);
        assert_eq!((count(result, "reads"), count(result, "threads_idle")), (READS, 1));
        let (user, iowq) = (count(result, "threads_user"), count(result, "iowq_workers"));
        let (extra, max) = (count(result, "threads_extra"), result["threads_max"].as_u64());
        assert!(extra <= user + iowq, "{result}");
        // The peaks of two kinds of threads need not be simultaneous.
        assert!(max.is_some_and(|max| max <= extra + 1 && max > 1), "{result}");
        match variant.as_str() {
            "blocking" | "pool" => assert_eq!((extra, iowq), (READS, 0), "{result}"),
            _ => assert!(extra < READS, "{result}"),
        }
    }
}

#[test]
fn engine_takes_few_threads_on_a_disk() {
    needs_ring!();
    drop(available!(ThrottledDisk::builder().requests_max(256).build()));
    for args in [&[][..], &["--direct"]] {
        let results = measure("disk", args);
        check(&results, "disk");
        let uring = &results[0].1;
        assert!(count(uring, "threads_extra") <= EXTRA_MAX, "{uring}");
        assert_eq!((count(uring, "begun"), count(uring, "engine_live")), (READS, READS));
    }
}

#[test]
fn full_queue_takes_no_more_threads() {
    needs_ring!();
    drop(available!(ThrottledDisk::builder().build()));
    let results = measure("full", &[]);
    check(&results, "full");
    let uring = &results[0].1;
    assert!(count(uring, "threads_extra") <= EXTRA_MAX, "{uring}");
}

#[test]
fn fuse_takes_the_threads_of_a_lane() {
    needs_ring!();
    drop(available!(Fuse::builder().mount()));
    let results = measure("fuse", &["--delay", "1"]);
    check(&results, "fuse");
    let uring = &results[0].1;
    assert_eq!((count(uring, "begun"), count(uring, "threads_lane")), (READS, 64), "{uring}");
}

#[test]
fn directory_needs_no_privilege_and_holds_nothing() {
    let (home, program) = program_for_all();
    let directory = TempDir::for_all();
    fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777))
        .unwrap();
    let report = directory.path().join("report.html");
    let mut command = std::process::Command::new(program);
    command.args(["bench", "threads", "--runs", "1", "--reads", "70", "--path"]);
    command.arg(directory.path()).arg("--report").arg(&report).current_dir("/");
    without_privileges(&mut command);
    let ended = run(&mut command);
    ended.assert_quiet_success();
    for text in ["threads      own    io-wq", "path on this machine:", "one of the engine"] {
        assert!(ended.stdout.contains(text), "{text}: {}", ended.stdout);
    }
    let page = fs::read_to_string(&report).unwrap();
    assert!(page.contains("/proc/self/task") && !page.contains("<h2>Ratios"), "{page}");
    fs::remove_file(report).unwrap();
    assert!(fs::read_dir(directory.path()).unwrap().next().is_none(), "the files are removed");
    drop(home);
}

#[test]
fn what_is_missing_is_told_in_a_line() {
    let (home, program) = program_for_all();
    let mut command = std::process::Command::new(program);
    command.args(["bench", "threads", "--quick"]).current_dir("/");
    without_privileges(&mut command);
    let Ended { code, stdout, stderr } = run(&mut command);
    assert_eq!((code, stdout.as_str()), (Some(1), ""), "{stderr}");
    assert!(stderr.starts_with("sakia: cannot make a disk that stalls: "), "{stderr}");
    assert!(stderr.contains("it takes root") && stderr.lines().count() == 1, "{stderr}");
    drop(home);
}

#[test]
fn signal_while_all_is_held_ends_it_and_leaves_nothing() {
    let _alone = alone();
    drop(available!(ThrottledDisk::builder().build()));
    let mut command = sakia(["bench", "threads", "--runs", "1000", "--reads", "100"]);
    command.args(["--places", "full", "--variants", "blocking"]).process_group(0);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let own = child.id();
    let threads = |pid: &str| fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    await_that("the reads are held", || {
        // `/proc` lists a child under the thread that started it.
        let tasks = fs::read_dir(format!("/proc/{own}/task")).into_iter().flatten().flatten();
        let mut children =
            tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
        children.any(|ids| ids.split_whitespace().any(|pid| threads(pid) > 100))
    });
    let group = Pid::from_raw(own.try_into().unwrap()).unwrap();
    rustix::process::kill_process_group(group, Signal::TERM).unwrap();
    let ended = wait(child);
    assert_eq!((ended.code, ended.stdout.as_str()), (None, ""), "{ended:?}");
    // A busy machine may take longer than the program waits; then the place is named.
    let is_named = |place: &String| ended.stderr.contains(&format!("left behind: {place}"));
    assert!(leftovers(own).unwrap().iter().all(is_named), "{ended:?}");
}
