//! `sakia bench copytree`, with small trees.

use std::fs;
use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;

use crate::signals::{hearing, send, start};
use crate::support::{Ended, TempDir, alone, await_that, run, sakia, wait};

/// Runs `sakia bench copytree` with copies on the disk of the build.
fn copytree(directory: &TempDir, args: &[&str]) -> Ended {
    let _alone = alone();
    let usual = ["bench", "copytree", "--quick", "--runs", "2", "--dir"];
    run(sakia(usual).arg(directory.path()).args(args))
}

fn of<'a>(lines: &'a [Value], kind: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["type"] == kind).collect()
}

#[test]
fn programs_are_measured_and_compared() {
    let directory = TempDir::new();
    let peers = ["--peer", "mine=cp -R -P", "--peer", "xcp=/nonexistent/xcp"];
    let chosen = ["--variants", "cp,cp-again,mine,xcp", "--tree", "large,file", "--size", "1M"];
    let ended = copytree(&directory, &[&["--json"], &peers[..], &chosen].concat());
    ended.assert_quiet_success();
    let lines = ended.json_lines();
    let results = of(&lines, "result");
    assert_eq!((results.len(), of(&lines, "run").len()), (2 * 3, 2 * 2 * 3));
    for result in &results {
        for name in ["voluntary_switches", "peak_rss_bytes", "ops_per_s", "bytes_per_s"] {
            assert!(result[name].is_u64(), "{name}: {result}");
        }
        assert_eq!(result["params"]["place"], "disk");
    }
    assert_eq!(results[0]["params"]["tree"], "large");
    assert_eq!((&results[3]["params"]["files"], &results[3]["variant"]), (&1.into(), &"cp".into()));
    let missing = of(&lines, "missing");
    assert_eq!((missing.len(), &missing[0]["variant"]), (1, &"xcp".into()));
    assert_eq!(missing[0]["reason"], "/nonexistent/xcp is no program");
    let ratios = lines.last().unwrap()["ratios"].as_array().unwrap();
    let pairs: Vec<_> = ratios.iter().map(|ratio| ratio["of"].as_str().unwrap()).collect();
    assert_eq!(pairs, ["cp-again/cp", "mine/cp", "cp-again/cp", "mine/cp"]);
    assert!(fs::read_dir(directory.path()).unwrap().next().is_none(), "the files are removed");
}

#[test]
fn copy_that_lacks_something_fails() {
    let directory = TempDir::new();
    let tree = directory.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("a"), "x").unwrap();
    let tree = tree.display().to_string();
    let peer = ["--peer", "none=mkdir -p", "--variants", "cp,none", "--tree", &tree];
    // This peer only creates directories, of which the source exists already.
    let ended = copytree(&directory, &peer);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("none made 0 files of 0 bytes in 1 directories"), "{ended:?}");
    for text in
        ["copytree: copying a tree (cp -r)", "tree, disk", "files/s", "cp         is fastest"]
    {
        assert!(ended.stdout.contains(text), "{text}: {}", ended.stdout);
    }
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "the tree of the user stays");
}

/// The processes of a run end with it even if they ignore signals, and no file is left.
#[test]
fn a_signal_ends_all_that_copies() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let (directory, notes) = (TempDir::new(), TempDir::new());
        let script = "trap '' INT TERM HUP; sleep 1000 & mkdir -p \"$4\"; echo $! > \"$1/other\"
            echo $$ > \"$1/own\"; while :; do echo more >> \"$4/file\"; done";
        let script = notes.file("copier", script.as_bytes());
        let peer = format!("own=sh {} {} --", script.display(), notes.path().display());
        let mut command = hearing(["bench", "copytree", "--variants", "own", "--peer", &peer]);
        command.args(["--tree", "file", "--size", "64K", "--dir"]).arg(directory.path());
        let child = start(&mut command);
        let copiers = ["own", "other"].map(|name| notes.path().join(name));
        let pid = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        await_that("the copier", || copiers.iter().all(|path| pid(path).ends_with('\n')));
        send(&child, signal);
        let ended = wait(child);
        assert_eq!((ended.code, ended.stdout.as_str()), (None, ""), "{ended:?}");
        for path in &copiers {
            let status = format!("/proc/{}/status", pid(path).trim());
            let is_there = || fs::read_to_string(&status).is_ok_and(|text| !text.contains("\tZ"));
            await_that("the end of the copier", || !is_there());
        }
        // A busy machine may take longer than the program waits; then the files are named.
        let is_empty = fs::read_dir(directory.path()).unwrap().next().is_none();
        assert!(is_empty || ended.stderr.contains("left behind: "), "{ended:?}");
    }
}

#[test]
fn report_of_a_copier_explains_its_row() {
    let directory = TempDir::new();
    let counters = r#"{"workers":2,"plain_calls":90,"write_seconds":0.5}"#;
    let report = format!(r#"{{"failures":0,"seconds":1.5,"counters":{counters}}}"#);
    let script = format!("cp -r \"$1\" \"$2\" && echo '{report}'");
    let double = directory.file("double", script.as_bytes());
    let peer = format!("sakia=sh {}", double.display());
    let args = ["--peer", &peer, "--variants", "cp,sakia", "--tree", "file", "--size", "64K"];
    let ended = copytree(&directory, &args);
    ended.assert_quiet_success();
    let says = "2 workers, 90 plain calls; 0.50 s writing";
    let said = ended.stdout.lines().find_map(|line| line.split_once(says));
    let (_, rest) = said.unwrap_or_else(|| panic!("{}", ended.stdout));
    // Data dropped from the machine's cache comes from disk, and is reported.
    assert!(rest.is_empty() || rest.starts_with("; read "), "{}", ended.stdout);
    assert!(ended.stdout.contains("sakia/cp"), "{}", ended.stdout);
    let ended = copytree(&directory, &[&args[..], &["--json"]].concat());
    let lines = ended.json_lines();
    let results = of(&lines, "result");
    let counters = &results[1]["counters"];
    assert_eq!((&counters["elapsed_us"], &counters["workers"]), (&1_500_000.into(), &2.into()));
    assert_eq!(results[0]["counters"]["workers"], Value::Null);
}

#[test]
fn wrong_names_are_wrong_usage() {
    for wrong in [
        &["--tree", "huge"][..],
        &["--place", "xfs"],
        &["--peer", "cp"],
        &["--variants", "dd"],
        &["--cores", "0"],
        &["--article", "--archive"],
    ] {
        let ended = run(sakia(["bench", "copytree"]).args(wrong));
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{wrong:?}");
    }
}
