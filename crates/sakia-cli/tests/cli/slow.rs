//! The guide's chapter "Why is it slow?": its program is recorded, summarized and drawn.

use std::fs;
use std::path::Path;
use std::process::Command;

use clap::Parser;
use serde_json::Value;

use crate::support::{TempDir, run, sakia};

#[path = "../../../sakia/examples/copy_tree_slowly.rs"]
#[expect(dead_code, reason = "its main is that of another program")]
mod copy_tree_slowly;

/// The environment variable with the arguments, set if this process runs the program.
const ARGUMENTS: &str = "SAKIA_TEST_COPY_TREE_SLOWLY";

/// Runs the program, in a child process of the next test.
#[test]
fn child() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else { return };
    let arguments = ["copy_tree_slowly"].into_iter().chain(arguments.split(' '));
    copy_tree_slowly::run(copy_tree_slowly::Arguments::parse_from(arguments)).unwrap();
}

/// Records the program with these options, and returns its summary.
fn recorded(folder: &Path, file: &Path, options: &str) -> Value {
    let target = folder.join("target");
    let arguments = format!("{options} {}/source {}", folder.display(), target.display());
    let mut recording = sakia(["trace", "record", "-o"]);
    recording.arg(file).arg("--").arg(std::env::current_exe().unwrap());
    recording.args(["--exact", "slow::child"]).env(ARGUMENTS, arguments);
    recording.env("SAKIA_TRACE_EVENTS", "1000000");
    let ended = run(&mut recording);
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    let compared = Command::new("diff").arg("-r").arg(folder.join("source")).arg(&target).status();
    assert!(compared.unwrap().success());
    fs::remove_dir_all(&target).unwrap();
    run(sakia(["trace", "summary", "--json"]).arg(file)).json()
}

fn findings(summary: &Value) -> String {
    let findings = summary["findings"].as_array().unwrap();
    findings.iter().map(|finding| format!("{}\n", finding.as_str().unwrap())).collect()
}

/// Asserts that a copy in memory used neither threads of a lane nor workers of the kernel. On a ring only
/// lookups in the cache and small reads run without a worker.
fn assert_done_at_once(summary: &Value) {
    for kind in summary["operations"].as_array().unwrap() {
        let elsewhere = match kind["operation"].as_str().unwrap() {
            "open" | "read" => &kind["lane"],
            _ => &Value::from(kind["lane"].as_u64().unwrap() + kind["queue"].as_u64().unwrap()),
        };
        assert_eq!(*elsewhere, 0, "{kind}");
    }
}

#[test]
fn the_chapter_s_programs_are_told_what_is_wrong() {
    if fs::metadata("/dev/shm").is_err() {
        sakia_testkit::skip!("no /dev/shm");
    }
    let folder = TempDir::below(Path::new("/dev/shm"));
    let file = folder.path().join("trace");
    let mut mktree =
        sakia(["mktree", "--fanout", "5", "--levels", "4", "--files", "5", "--size", "4K"]);
    assert_eq!(run(mktree.arg(folder.path().join("source"))).code, Some(0));

    let slow = recorded(folder.path(), &file, "--way read-write");
    let serial = "One operation in flight per file: 780 of 780 files";
    assert!(findings(&slow).contains(serial), "{}", findings(&slow));
    assert!(!findings(&slow).contains("page faults"), "{}", findings(&slow));
    assert_done_at_once(&slow);
    let picture = folder.path().join("picture.svg");
    let mut plot = sakia(["trace", "plot", "-o"]);
    run(plot.arg(&picture).arg(&file)).assert_quiet_success();
    let svg = fs::read_to_string(&picture).unwrap();
    assert!(svg.contains("<title>read: ") && svg.contains("<title>write: "), "{svg}");
    assert!(svg.len() < 1 << 20, "{} bytes", svg.len());

    let large = recorded(folder.path(), &file, "--way read-write --block-bytes 1048576");
    let buffers = "Large buffers for small files: 780 of 780 reads asked for 1 MiB and got 4 KiB";
    for expected in [serial, buffers] {
        assert!(findings(&large).contains(expected), "{expected}: {}", findings(&large));
    }

    for mended in [
        "--way fs-copy",
        "--way io-copy --block-bytes 65536",
        "--way io-copy --block-bytes 1048576",
    ] {
        let summary = recorded(folder.path(), &file, mended);
        let unexpected = ["One operation in flight", "page faults", "lane"];
        let found = findings(&summary);
        assert!(!unexpected.iter().any(|words| found.contains(words)), "{mended}: {found}");
        assert_done_at_once(&summary);
    }
}
