//! The command line itself.

use crate::support::{Ended, TempDir, run, sakia};

#[test]
fn wrong_usage_exits_with_2() {
    let wrong: [&[&str]; 12] = [
        &[],
        &["nope"],
        &["--nope"],
        &["sum", "--nope"],
        &["sum", "--block", "0"],
        &["sum", "--block", "many"],
        &["sum", "--depth", "0"],
        &["sum", "--depth", "1025"],
        &["sum", "--block", "1G", "--depth", "2"],
        &["doctor", "--quiet"],
        &["cp", "--buffer", "1", "a", "b"],
        &["cp", "--buffer", "4095", "a", "b"],
    ];
    for args in wrong {
        let ended = run(&mut sakia(args));
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{args:?}");
        let says = ended.stderr.starts_with("error: ") || ended.stderr.contains("Usage: sakia");
        assert!(says, "{args:?}: {ended:?}");
    }
}

#[test]
fn unknown_driver_is_wrong_usage() {
    for args in [&["sum"][..], &["doctor"]] {
        let ended = run(sakia(args).env("SAKIA_DRIVER", "nonsense"));
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{args:?}");
        let says = "error: SAKIA_DRIVER=nonsense is none of auto, uring, poll\n";
        assert!(ended.stderr.starts_with(says), "{args:?}: {ended:?}");
    }
}

#[test]
fn help_is_short_or_long() {
    for command in [&["sum"][..], &["doctor"]] {
        let (short, long) = (run(sakia(command).arg("-h")), run(sakia(command).arg("--help")));
        short.assert_quiet_success();
        long.assert_quiet_success();
        assert!(long.stdout.len() > short.stdout.len() + 100);
    }
    let short = run(&mut sakia(["sum", "-h"]));
    for flag in ["--json", "--quiet", "--block", "--depth"] {
        let lines = short.stdout.lines().filter(|line| line.contains(flag)).count();
        assert_eq!(lines, 1, "{flag}: {}", short.stdout);
    }
}

#[test]
fn version_is_that_of_the_package() {
    let ended = run(&mut sakia(["--version"]));
    ended.assert_quiet_success();
    assert_eq!(ended.stdout, concat!("sakia ", env!("CARGO_PKG_VERSION"), "\n"));
}

/// The usage shown is that of the failing command, not of the whole program.
#[test]
fn usage_is_that_of_the_command() {
    let wrong: [(&[&str], &str); 6] = [
        (&["cp", "a"], "sakia cp "),
        (&["cp", "-T", "a", "b", "c"], "sakia cp "),
        (&["cp", "--limit", "4096", "--buffer", "1G", "a", "b"], "sakia cp "),
        (&["sum", "--block", "1G", "--depth", "2"], "sakia sum "),
        (&["bench", "sched", "--mix", "--rsize", "1"], "sakia bench sched "),
        (&["bench", "threads", "--direct", "--size", "100"], "sakia bench threads "),
    ];
    for (args, usage) in wrong {
        let ended = run(&mut sakia(args));
        assert_eq!(ended.code, Some(2), "{args:?}");
        let usage = format!("\nUsage: {usage}");
        assert!(ended.stderr.contains(&usage), "{args:?}: {ended:?}");
    }
    for command in ["sum", "cp", "rm", "doctor", "bench"] {
        let rest: &[&str] = match command {
            "cp" => &["a", "b"],
            "rm" => &["a"],
            "bench" => &["echo"],
            _ => &[],
        };
        let ended = run(sakia([command]).args(rest).env("SAKIA_DRIVER", "nonsense"));
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.contains(&format!("\nUsage: sakia {command} ")), "{ended:?}");
    }
}

/// Every command.
const COMMANDS: [&[&str]; 17] = [
    &[],
    &["sum"],
    &["cp"],
    &["rm"],
    &["doctor"],
    &["mktree"],
    &["bench"],
    &["bench", "file-sum"],
    &["bench", "tcp-sum"],
    &["bench", "echo"],
    &["bench", "udp"],
    &["bench", "send-file"],
    &["bench", "sockets"],
    &["bench", "threads"],
    &["bench", "sched"],
    &["bench", "copytree"],
    &["bench", "wal"],
];

fn help(command: &[&str], columns: usize) -> Ended {
    let ended = run(sakia(command).arg("--help").env("COLUMNS", columns.to_string()));
    ended.assert_quiet_success();
    ended
}

/// At any width, each line has as many words as the terminal has room for.
#[test]
fn help_is_broken_where_the_terminal_ends() {
    for command in COMMANDS {
        for columns in [50, 72, 100] {
            let ended = help(command, columns);
            let lines: Vec<_> = ended.stdout.lines().collect();
            let is_list = |line: &str| line.starts_with("  ") && !line.starts_with("      ");
            for pair in lines.windows(2) {
                let [line, next] = pair else { continue };
                let width = line.chars().count();
                let has_breaks = line.trim().contains(' ');
                assert!(width <= columns || !has_breaks, "{command:?}, {columns}: {line}");
                let indent = |line: &str| line.len() - line.trim_start().len();
                let word = next.split_whitespace().next().unwrap_or_default();
                let is_new = word.is_empty()
                    || word.starts_with(['[', '-'])
                    || line.trim().is_empty()
                    || indent(line) != indent(next)
                    // A list of commands, or of options; lines of JSON.
                    || is_list(next) && (word.starts_with('{') || !line.contains("\":"));
                let would_fit = width + 1 + word.chars().count() <= columns;
                assert!(is_new || !would_fit, "{command:?}, {columns}:\n{line}\n{next}");
            }
        }
    }
}

/// The help of an experiment has no notes of other experiments.
#[test]
fn help_has_the_notes_of_its_own_experiment() {
    let own = [
        ("file-sum", "block_bytes"),
        ("tcp-sum", "block_bytes"),
        ("echo", "message_bytes"),
        ("udp", "datagram_bytes"),
        ("send-file", "file_bytes"),
        ("sockets", "exit_us"),
        ("threads", "place, reads and"),
        ("sched", "read_step_bytes"),
        ("copytree", "after_delete, article"),
    ];
    for (name, words) in own {
        let text = help(&["bench", name], 100).stdout;
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for (other, others_words) in own {
            let is_own = words == others_words;
            assert_eq!(text.contains(others_words), is_own, "{name}: {other}: {text}");
        }
        assert_eq!(
            text.contains("\"network\""),
            ["echo", "send-file", "sockets", "tcp-sum", "udp"].contains(&name),
            "{name}"
        );
    }
}

#[test]
fn utilization_is_measured_for_all_ways_and_for_tasks() {
    let directory = TempDir::new();
    let args = ["bench", "sched", "--utilization", "--hot", "--depth", "2", "--nreads", "40"];
    let few = ["--runs", "1", "--variants", "blocking,runtime", "--path"];
    let ended = run(sakia(args).args(few).arg(directory.path()));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.contains("hot 4 KiB x1, 2 deep"), "{ended:?}");
    let told = ended.stdout.lines().filter(|line| line.contains("utilization "));
    assert_eq!(told.count(), 2, "{ended:?}");
    let json = run(sakia(args).args(["--json"]).args(few).arg(directory.path()));
    for name in ["\"depth\":2", "computation_steps", "utilization_permille", "in_flight_ns"] {
        assert!(json.stdout.contains(name), "{name}: {json:?}");
    }
}

#[test]
fn figure_six_says_that_it_goes_past_the_page_cache() {
    let directory = TempDir::new();
    let args = ["bench", "sched", "--fig6", "--quick", "--runs", "1", "--variants", "blocking"];
    let ended = run(sakia(args).args(["--rsize", "4K", "--path"]).arg(directory.path()));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let title = ended.stdout.lines().next().unwrap();
    assert!(title.contains("O_DIRECT") && !title.contains("hot"), "{title}");
    assert!(help(&["bench", "sched"], 100).stdout.contains("bypassing the page cache (O_DIRECT)"));
}
