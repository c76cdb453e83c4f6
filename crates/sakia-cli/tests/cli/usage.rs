//! The command line itself.

use crate::support::{run, sakia};

#[test]
fn wrong_usage_exits_with_2() {
    let wrong: [&[&str]; 10] = [
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
