//! `sakia bench`, with little work.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::process::{Pid, Signal};
use serde_json::Value;

use crate::refused_ring::deny;
use crate::signals::start;
use crate::support::{Ended, TempDir, await_that, needs_ring, run, sakia, wait};

/// Runs `sakia bench file-sum` in a directory, with further arguments.
fn file_sum(directory: &TempDir, args: &[&str]) -> Ended {
    run(sakia(["bench", "file-sum", "--runs", "2", "--dir"]).arg(directory.path()).args(args))
}

#[test]
fn every_variant_is_measured_and_all_sums_are_equal() {
    needs_ring!();
    let directory = TempDir::new();
    let ended = file_sum(&directory, &["--json", "--size", "1M,64K", "--offload"]);
    ended.assert_quiet_success();
    let lines = ended.json_lines();
    let of = |kind: &str| lines.iter().filter(|line| line["type"] == kind).collect::<Vec<_>>();
    let variants = ["uring", "ring", "poll", "pool", "blocking", "offload"];

    assert_eq!(lines[0]["type"], "machine");
    for name in ["cpu", "kernel", "architecture", "directory", "file_system"] {
        assert!(lines[0][name].is_string(), "{name}");
    }

    let runs = of("run");
    assert_eq!(runs.len(), 2 * 2 * variants.len());
    for size in [65536, 1 << 20] {
        let sums = runs.iter().filter(|run| run["params"]["size_bytes"] == size);
        let mut sums: Vec<_> = sums.map(|run| run["sum"].as_u64().unwrap()).collect();
        sums.dedup();
        assert_eq!(sums.len(), 1, "{sums:?}");
    }
    for name in ["process_wall_ns", "process_cpu_ns", "round"] {
        assert!(runs.iter().all(|run| run[name].is_u64()), "{name}");
    }
    assert!(runs.iter().all(|run| run["foreign_cores"].is_f64() && run["noisy"].is_boolean()));

    let results = of("result");
    assert_eq!(results.len(), 2 * variants.len());
    for (result, variant) in results.iter().zip(variants) {
        assert_eq!(
            (&result["experiment"], &result["variant"]),
            (&"file-sum".into(), &variant.into())
        );
        assert_eq!(result["params"]["size_bytes"], 65536);
        assert_eq!((&result["params"]["block_bytes"], &result["runs"]), (&32768.into(), &2.into()));
        for name in ["wall_ns", "cpu_ns"] {
            for value in ["median", "min", "max"] {
                assert!(result[name][value].is_u64(), "{name} {value}");
            }
        }
        for name in [
            "voluntary_switches",
            "involuntary_switches",
            "threads_max",
            "peak_rss_bytes",
            "ops_per_s",
            "bytes_per_s",
        ] {
            assert!(result[name].is_u64(), "{name}");
        }
        assert!(result["counters"]["reads"].as_u64().unwrap() >= 2);
    }

    let summary = lines.last().unwrap();
    assert_eq!((&summary["type"], of("summary").len()), (&"summary".into(), 1));
    let ratios = summary["ratios"].as_array().unwrap();
    assert_eq!(ratios.len(), 2 * (5 + 4));
    assert_eq!(ratios[0]["of"], "uring/pool");
    assert!(ratios.iter().all(|ratio| ratio["wall"].is_f64() && ratio["cpu"].is_f64()));
    assert!(fs::read_dir(directory.path()).unwrap().next().is_none(), "the files are removed");
}

#[test]
fn report_has_the_three_plots_inside() {
    let directory = TempDir::new();
    let report = directory.path().join("report.html");
    let args = ["--size", "64K", "--variants", "poll,pool,blocking", "--cold", "--report"];
    let ended = file_sum(&directory, &[&args[..], &[report.to_str().unwrap()]].concat());
    ended.assert_quiet_success();
    let page = fs::read_to_string(report).unwrap();
    assert_eq!(page.matches("<svg ").count(), 3);
    for text in ["Wall time against size", "relative to pool", "Context switches against size"] {
        assert!(page.contains(text), "{text}");
    }
    for external in ["<script", "<link", "src=", "href="] {
        assert!(!page.contains(external), "{external}");
    }
    for text in ["page cache cold", "64 KiB on this machine:", "is fastest: ", "poll/blocking"] {
        assert!(ended.stdout.contains(text), "{text}: {}", ended.stdout);
    }
}

/// Runs with `--json` while a system call fails. Returns the missing variants, and those with a result.
fn without(call: libc::c_long, errno: i32) -> (Ended, Vec<Value>, Vec<String>) {
    let directory = TempDir::new();
    let mut command = sakia(["bench", "file-sum", "--runs", "1", "--size", "64K", "--json"]);
    command.args(["--variants", "uring,poll,blocking", "--dir"]).arg(directory.path());
    let ended = run(deny(&mut command, call, errno));
    let lines = ended.json_lines();
    let of = |kind: &'static str| lines.iter().filter(move |line| line["type"] == kind);
    let results = of("result").map(|line| line["variant"].as_str().unwrap().to_owned()).collect();
    let missing = of("missing").cloned().collect();
    (ended, missing, results)
}

#[test]
fn variant_that_fails_is_reported_and_the_others_are_measured() {
    needs_ring!();
    let (ended, missing, results) = without(libc::SYS_epoll_create1, libc::EMFILE);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.starts_with("sakia: poll: exit status: 1: "), "{ended:?}");
    assert!(ended.stderr.contains("(os error 24)"), "{ended:?}");
    assert_eq!(missing[0]["variant"], "poll");
    assert_eq!(results, ["uring", "blocking"]);
}

#[test]
fn ring_that_is_refused_is_no_failure() {
    let (ended, missing, results) = without(libc::SYS_io_uring_setup, libc::EPERM);
    ended.assert_quiet_success();
    assert_eq!((missing.len(), &missing[0]["variant"]), (1, &"uring".into()));
    assert!(missing[0]["reason"].as_str().unwrap().contains("io_uring_setup"), "{missing:?}");
    assert_eq!(results, ["poll", "blocking"]);
}

#[test]
fn directory_that_is_missing_is_named() {
    let directory = TempDir::new();
    let missing = directory.path().join("missing");
    let ended = run(sakia(["bench", "file-sum", "--quick", "--dir"]).arg(&missing));
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains(missing.to_str().unwrap()), "{ended:?}");
}

#[test]
fn subcommand_of_a_run_is_hidden_and_answers_a_line() {
    let help = run(&mut sakia(["--help"]));
    assert!(help.stdout.contains("bench") && !help.stdout.contains("bench-cell"), "{help:?}");
    let ended = run(&mut sakia(["bench-cell", "{}"]));
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""));
}

#[test]
fn signal_ends_it_and_leaves_no_files() {
    let directory = TempDir::new();
    let mut command = sakia(["bench", "file-sum", "--runs", "1000", "--variants", "blocking"]);
    command.args(["--size", "64K", "--dir"]).arg(directory.path());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let has_files = || fs::read_dir(directory.path()).unwrap().next().is_some();
    await_that("the files are made", has_files);
    let pid = Pid::from_raw(child.id().try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    let ended = wait(child);
    assert_eq!((ended.code, ended.stdout.as_str()), (None, ""), "{ended:?}");
    // A busy machine may take longer than the program waits; then the files are named.
    assert!(!has_files() || ended.stderr.contains("left behind: "), "{ended:?}");
}

/// The current run, a separate process, is ended too.
#[test]
fn a_signal_ends_the_run_at_hand() {
    let directory = TempDir::new();
    let args = ["bench", "echo", "--variants", "blocking", "--connections", "1", "--message", "64"];
    let mut command = sakia(args);
    command.args(["--requests", "5000000"]).current_dir(directory.path());
    let child = start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let parent = format!("PPid:\t{}", child.id());
    let is_child = |path: &Path| {
        let status = fs::read_to_string(path.join("status")).unwrap_or_default();
        status.lines().any(|line| line == parent)
    };
    let cells = || -> Vec<PathBuf> {
        let entries = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| is_child(path)).collect()
    };
    await_that("a run", || !cells().is_empty());
    let cells = cells();
    rustix::process::kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let ended = wait(child);
    assert_eq!((ended.code, ended.stdout.as_str()), (None, ""), "{ended:?}");
    await_that("the end of the run", || !cells.iter().any(|path| path.exists()));
}

#[test]
fn servers_are_measured_and_every_byte_comes_back() {
    needs_ring!();
    let args = ["bench", "echo", "--runs", "2", "--connections", "3", "--message", "1K"];
    let ended = run(sakia(args).args(["--requests", "300", "--json"]));
    ended.assert_quiet_success();
    let lines = ended.json_lines();
    let of = |kind: &str| lines.iter().filter(|line| line["type"] == kind).collect::<Vec<_>>();
    assert_eq!(lines[0]["network"]["congestion"], "reno");
    assert!(lines[0]["network"]["namespace"].is_boolean(), "{}", lines[0]);
    let results = of("result");
    let variants: Vec<_> = results.iter().map(|result| &result["variant"]).collect();
    assert_eq!(variants, ["uring", "ring", "readiness", "poll", "blocking"]);
    for result in results {
        assert_eq!(result["params"]["connections"], 3);
        assert_eq!(
            (&result["params"]["message_bytes"], &result["runs"]),
            (&1024.into(), &2.into())
        );
        assert!(result["cpu_ns"]["median"].is_u64());
    }
    let summary = lines.last().unwrap();
    assert_eq!(summary["ratios"][0]["of"], "uring/poll");
    assert!(summary["ratios"][0]["cpu_best"].is_f64(), "{summary}");
}

#[test]
fn datagrams_come_back_and_their_calls_are_counted() {
    needs_ring!();
    let args = ["bench", "udp", "--runs", "1", "--in-flight", "4", "--datagram", "64"];
    let ended = run(sakia(args).args(["--requests", "300", "--json"]));
    ended.assert_quiet_success();
    let lines = ended.json_lines();
    let results: Vec<_> = lines.iter().filter(|line| line["type"] == "result").collect();
    let variants: Vec<_> = results.iter().map(|result| &result["variant"]).collect();
    assert_eq!(variants, ["uring", "single", "poll", "blocking"]);
    for result in results {
        assert_eq!(result["params"]["in_flight"], 4);
        assert_eq!(result["params"]["datagram_bytes"], 64);
        assert!(result["ops_per_s"].as_u64() > Some(0) && result["cpu_ns"]["median"].is_u64());
    }
    let ended = run(sakia(args).args(["--requests", "300", "--variants", "uring,blocking"]));
    ended.assert_quiet_success();
    for text in ["messages a second", "system calls", "uring/blocking"] {
        assert!(ended.stdout.contains(text), "{text}: {}", ended.stdout);
    }
}

#[test]
fn streams_are_summed_and_the_page_has_its_plots() {
    let directory = TempDir::new();
    let report = directory.path().join("report.html");
    let args =
        ["bench", "tcp-sum", "--runs", "1", "--size", "1M,3M", "--variants", "poll,blocking"];
    let ended = run(sakia(args).arg("--report").arg(&report));
    ended.assert_quiet_success();
    for text in ["reno", "3 MiB on this machine:", "blocking/poll", "best"] {
        assert!(ended.stdout.contains(text), "{text}: {}", ended.stdout);
    }
    let page = fs::read_to_string(report).unwrap();
    assert_eq!(page.matches("<svg ").count(), 2);
}

#[test]
fn congestion_control_that_is_none_is_named() {
    let ended = run(&mut sakia(["bench", "echo", "--quick", "--congestion", "none-such"]));
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("none-such"), "{ended:?}");
}

/// Runs `sakia bench sched` in a directory, with further arguments.
fn sched(directory: &TempDir, args: &[&str]) -> Ended {
    run(sakia(["bench", "sched", "--path"]).arg(directory.path()).args(args))
}

#[test]
fn file_calls_are_measured_by_everyone_who_does_them() {
    needs_ring!();
    let directory = TempDir::new();
    let args = "--json --runs 2 --threads 1,3 --rsize 1000 --wsize 2K --nreads 30 --nwrites 10 --mix \
                --nfiles 2";
    let ended = sched(&directory, &args.split(' ').collect::<Vec<_>>());
    ended.assert_quiet_success();
    let lines = ended.json_lines();
    let of = |kind: &str| lines.iter().filter(|line| line["type"] == kind).collect::<Vec<_>>();
    let missing = of("missing").len();
    let results = of("result");
    assert_eq!(results.len(), 2 * (4 - missing));
    for result in &results {
        let params = &result["params"];
        assert_eq!((&params["read_bytes"], &params["write_bytes"]), (&1000.into(), &2048.into()));
        assert_eq!((&params["reads"], &params["writes"]), (&30.into(), &10.into()));
        assert_eq!((&params["mix"], &params["files"]), (&true.into(), &2.into()));
        assert_eq!(result["counters"]["operations"], 40);
    }
    let sums: Vec<_> = of("run").iter().map(|run| run["sum"].as_u64().unwrap()).collect();
    let of_threads = sums.len() / 2;
    assert!(sums[..of_threads].iter().all(|sum| *sum == sums[0]), "{sums:?}");
    let summary = lines.last().unwrap();
    let ratios = summary["ratios"].as_array().unwrap();
    assert!(ratios.iter().any(|ratio| ratio["of"] == "sakia/blocking"), "{summary}");
    assert!(fs::read_dir(directory.path()).unwrap().next().is_none(), "the files are removed");
}

#[test]
fn figure_has_means_and_deviations_in_its_page() {
    let directory = TempDir::new();
    let report = directory.path().join("report.html");
    let args = ["--fig4", "--runs", "1", "--rsize", "1000,100K", "--nreads", "20", "--variants"];
    let args =
        [&args[..], &["blocking,sakia", "--sparse", "--report", report.to_str().unwrap()]].concat();
    let ended = sched(&directory, &args);
    ended.assert_quiet_success();
    for text in ["time until a read returns", "sparse", "r 1 kB x2", "sakia/blocking"] {
        assert!(ended.stdout.contains(text), "{text}: {}", ended.stdout);
    }
    let page = fs::read_to_string(report).unwrap();
    assert_eq!(page.matches("<svg ").count(), 1);
    assert!(page.contains("us until it returns (mean, deviation)"));
}

#[test]
fn aio_that_is_refused_is_no_failure() {
    let directory = TempDir::new();
    let mut command = sakia(["bench", "sched", "--runs", "1", "--rsize", "1000", "--json"]);
    command.args(["--nreads", "10", "--variants", "aio,blocking", "--path"]).arg(directory.path());
    let ended = run(deny(&mut command, libc::SYS_io_setup, libc::ENOSYS));
    ended.assert_quiet_success();
    let lines = ended.json_lines();
    let missing = lines.iter().find(|line| line["type"] == "missing").expect("aio is missing");
    assert_eq!(missing["variant"], "aio");
    assert!(missing["reason"].as_str().unwrap().contains("Linux AIO"), "{missing}");
    assert!(lines.iter().any(|line| line["type"] == "result" && line["variant"] == "blocking"));
}

#[test]
fn options_of_file_calls_that_contradict_each_other_are_named() {
    let directory = TempDir::new();
    for (args, code, expected) in [
        (&["--mix"][..], 2, "--mix needs --rsize and --wsize"),
        (&["--nwrites", "5"], 2, "--nwrites needs --wsize"),
        (&["--wsize", "10", "--woff", "3"], 2, "--woff 3 is less than"),
        (&["--rsize", "1", "--roff", "1G"], 1, "its files would take"),
    ] {
        let ended = sched(&directory, args);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(code), ""), "{ended:?}");
        assert!(ended.stderr.contains(expected), "{ended:?}");
    }
    assert!(fs::read_dir(directory.path()).unwrap().next().is_none(), "the files are removed");
}

#[test]
fn files_are_sent_by_the_kernel() {
    needs_ring!();
    let args = ["bench", "send-file", "--runs", "1", "--size", "200K", "--requests", "5"];
    let ended = run(sakia(args).arg("--json"));
    ended.assert_quiet_success();
    let lines = ended.json_lines();
    let results: Vec<_> = lines.iter().filter(|line| line["type"] == "result").collect();
    let variants: Vec<_> = results.iter().map(|result| &result["variant"]).collect();
    assert_eq!(variants, ["uring", "poll", "copy", "blocking"]);
    for result in results {
        assert_eq!(result["params"]["file_bytes"], 204_800);
        assert!(result["cpu_ns"]["median"].is_u64());
        let counters = &result["counters"];
        if ["uring", "poll"].contains(&result["variant"].as_str().unwrap()) {
            assert!(counters["send_file.inline"].as_u64() >= Some(5), "{counters}");
        }
        // The request for the file arrives by a receive, which is not counted as a read.
        let is_copied = counters["read.inline"].as_u64() > Some(0);
        assert_eq!(is_copied, result["variant"] == "copy", "{counters}");
    }
    let ended = run(sakia(args).args(["--variants", "uring,blocking"]));
    ended.assert_quiet_success();
    for text in ["processor a byte", "calls in place", "uring/blocking"] {
        assert!(ended.stdout.contains(text), "{text}: {}", ended.stdout);
    }
}

#[test]
fn sockets_of_a_toy_enclave_are_measured() {
    let args = ["bench", "sockets", "--runs", "1", "--cells", "send-256,udp-64", "--costs", "0,2"];
    let args = [&args[..], &["--operations", "300"]].concat();
    let ended = run(sakia(&args).arg("--json"));
    ended.assert_quiet_success();
    let lines = ended.json_lines();
    let results: Vec<_> = lines.iter().filter(|line| line["type"] == "result").collect();
    let variants: Vec<_> = results.iter().take(5).map(|result| &result["variant"]).collect();
    assert_eq!(variants, ["plain", "default", "gathered", "ahead", "all"]);
    assert_eq!(results.len(), 4 * 5);
    for result in results {
        let (params, counters) = (&result["params"], &result["counters"]);
        let is_stream = params["cell"] == "send-256";
        assert!(is_stream || params["cell"] == "udp-64", "{params}");
        assert!([0, 2].map(Some).contains(&params["exit_us"].as_i64()), "{params}");
        let sends = counters["send"].as_u64().unwrap();
        let is_gathered = ["gathered", "all"].contains(&result["variant"].as_str().unwrap());
        assert_eq!(sends < 300, is_stream && is_gathered, "{result}");
        assert!(counters["exits"].as_u64() >= Some(sends), "{counters}");
    }
    let ended = run(sakia(&args).args(["--variants", "plain,default"]));
    ended.assert_quiet_success();
    for text in ["host calls", "default/plain", "send-256 2 us"] {
        assert!(ended.stdout.contains(text), "{text}: {}", ended.stdout);
    }
}
