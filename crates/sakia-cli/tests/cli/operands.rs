//! Operands of `sakia cp` and `sakia rm` that GNU's programs treat in a special way: the same status, and a
//! message from one where there is one from the other.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::process::{Resource, Rlimit, setrlimit};
use sakia_testkit::available;
use sakia_testkit::small_fs::SmallFs;

use crate::support::{Ended, TempDir, program_for_all, run, sakia};

/// Entries of the working directory of a command.
const MAKE: &str =
    "mkdir -p s/d q ex; echo f >s/f; ln -s f s/l; ln s/f s/h; ln s/f q/f; echo g >q/g";

/// Runs the command with both programs, each in a directory of its own.
fn both(program: &str, arguments: &[&str]) -> [(Ended, TempDir); 2] {
    let ours = Command::new(env!("CARGO_BIN_EXE_sakia"));
    let theirs = Command::new(program);
    let [is_ours, is_theirs] = [true, false];
    [(theirs, is_theirs), (ours, is_ours)].map(|(mut command, is_ours)| {
        let directory = TempDir::new();
        let made = Command::new("sh").args(["-c", MAKE]).current_dir(directory.path()).status();
        assert!(made.unwrap().success());
        if is_ours {
            command.arg(program);
        }
        command.args(arguments).current_dir(directory.path()).env("LC_ALL", "C");
        (run(&mut command), directory)
    })
}

/// Returns the paths of all entries, with the contents of files.
fn entries(directory: &TempDir) -> Vec<String> {
    let script = "find . | sort; find . -type f | sort | xargs cat";
    let mut find = Command::new("sh");
    let output = find.args(["-c", script]).current_dir(directory.path()).output().unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn operands_that_cp_treats_in_a_special_way() {
    let commands: &[&[&str]] = &[
        // Onto itself: kept, as any other that exists.
        &["-an", "s", "."],
        &["-rn", "s", "."],
        &["-n", "s/f", "s"],
        &["-a", "s", "."],
        &["-au", "s", "."],
        &["-u", "s/f", "s"],
        // The same source.
        &["s/f", "s/f", "ex"],
        &["s/f", "s/d/../f", "ex"],
        &["s/f", "./s/f", "s//f", "ex"],
        &["-P", "s/l", "s/./l", "ex"],
        &["-r", "s/f", "s", "s/d/../f", "ex"],
        &["-r", "s", "./s", "q/../s", "ex"],
        &["-r", "s/.", "s/d/..", "ex"],
        // Other names of the same file.
        &["s/f", "s/h", "ex"],
        &["s/f", "s/l", "ex"],
        &["s/f", "q/f", "ex"],
        &["-n", "s/f", "q/f", "ex"],
        // Nothing.
        &["", "x"],
        &["", "", "ex"],
        &["s/f", ""],
        &["-r", "s", ""],
        &["-T", "s/f", ""],
        &["-t", "", "s/f"],
        &["s/f", "", "ex"],
    ];
    for arguments in commands {
        let [(theirs, one), (ours, other)] = both("cp", arguments);
        assert_eq!(ours.code, theirs.code, "{arguments:?}: {ours:?}, {theirs:?}");
        let lines = |ended: &Ended| ended.stderr.lines().count();
        assert_eq!(lines(&ours), lines(&theirs), "{arguments:?}: {ours:?}, {theirs:?}");
        assert_eq!(entries(&other), entries(&one), "{arguments:?}");
    }
    for arguments in [&[""][..], &["-f", ""], &["-rf", "", "q"]] {
        let [(theirs, one), (ours, other)] = both("rm", arguments);
        assert_eq!(ours.code, theirs.code, "{arguments:?}: {ours:?}, {theirs:?}");
        assert_eq!(entries(&other), entries(&one), "{arguments:?}");
    }
    let ended = run(&mut sakia(["sum", ""]));
    assert_eq!(ended.code, Some(1), "{ended:?}");
}

#[test]
fn a_directory_and_its_contents_are_two_sources() {
    let [_, (ours, directory)] = both("cp", &["-r", "s", "s/.", "ex"]);
    ours.assert_quiet_success();
    assert!(directory.path().join("ex/s/f").exists() && directory.path().join("ex/f").exists());
}

#[test]
fn wrong_usage_is_a_line_of_json() {
    for (arguments, words) in [
        (
            &["cp", "--json"][..],
            "the following required arguments were not provided: <SRC… DST>...",
        ),
        (&["cp", "a", "--json", "--nope", "b"], "unexpected argument '--nope' found"),
        (&["cp", "--json", "--buffer", "1", "a", "b"], "invalid value '1'"),
        (&["cp", "--json", "a"], "where to is missing"),
        (&["sum", "--json", "--depth", "0"], "invalid value '0'"),
        (&["doctor", "--json", "--nope"], "unexpected argument '--nope' found"),
    ] {
        let ended = run(&mut sakia(arguments));
        assert_eq!(ended.code, Some(2), "{arguments:?}: {ended:?}");
        assert!(ended.stderr.starts_with("error: "), "{arguments:?}: {ended:?}");
        let [line] = &ended.json_lines()[..] else { panic!("{arguments:?}: {ended:?}") };
        assert_eq!((&line["type"], &line["operation"]), (&"error".into(), &"usage".into()));
        assert!(line["errno"].is_null() && line.get("path").is_none(), "{line}");
        let message = line["message"].as_str().unwrap();
        assert!(message.starts_with(words), "{message}");
    }
    // It is a path, or the command has no such option.
    for arguments in [&["cp", "--", "--json"][..], &["rm", "--json"], &["nope", "--json"]] {
        let ended = run(&mut sakia(arguments));
        assert_eq!((ended.code, &*ended.stdout), (Some(2), ""), "{arguments:?}");
    }
}

/// An ordinary user who may have one thread.
fn with_one_thread(program: &Path, arguments: &[&str], directory: &TempDir, driver: &str) -> Ended {
    // No other test has processes of this user.
    const USER: u32 = 54321;
    let mut command = Command::new(program);
    command.args(arguments).current_dir(directory.path()).env("SAKIA_DRIVER", driver);
    let limit = || {
        let one = Rlimit { current: Some(1), maximum: Some(1) };
        Ok(setrlimit(Resource::Nproc, one)?)
    };
    // SAFETY: between fork and exec it makes one system call.
    unsafe { command.pre_exec(limit) };
    command.gid(USER).uid(USER);
    run(&mut command)
}

#[test]
fn one_thread_does_it_all() {
    if !rustix::process::geteuid().is_root() {
        sakia_testkit::skip!("root, to become a user without other processes");
    }
    let (_directory, program) = program_for_all();
    for driver in ["auto", "poll"] {
        let directory = TempDir::for_all();
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
        for inner in ["s/a/b", "s/c"] {
            fs::create_dir_all(directory.path().join(inner)).unwrap();
            fs::write(directory.path().join(inner).join("file"), vec![1; 400_000]).unwrap();
        }
        let with = |arguments: &[&str]| with_one_thread(&program, arguments, &directory, driver);
        with(&["cp", "-r", "s", "t"]).assert_quiet_success();
        let copied = |name: &str| fs::read(directory.path().join("t").join(name)).unwrap();
        assert!(["a/b/file", "c/file"].iter().all(|name| copied(name) == vec![1; 400_000]));
        with(&["cp", "--verify", "s/c/file", "u"]).assert_quiet_success();
        with(&["rm", "-r", "t"]).assert_quiet_success();
        assert!(!directory.path().join("t").exists());
        let ended = with(&["sum", "--quiet", "u"]);
        assert_eq!((ended.code, ended.rows()[0].0), (Some(0), 400_000), "{ended:?}");
    }
}

/// Later sources would fail as well, or leave small files alone.
#[test]
fn a_full_file_system_ends_the_copy_of_all_sources() {
    let small = available!(SmallFs::tmpfs(1 << 20));
    let directory = TempDir::new();
    for (name, size) in [("large", 3 << 20), ("small", 10)] {
        fs::create_dir(directory.path().join(name)).unwrap();
        fs::write(directory.path().join(name).join("file"), vec![1; size]).unwrap();
    }
    let copy = |options: &[&str]| {
        let mut command = sakia(["cp", "-r"]);
        command.args(options).args(["large", "small"]).arg(small.path());
        run(command.current_dir(directory.path()))
    };
    let ended = copy(&[]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let [failed, stopped] = &ended.stderr.lines().collect::<Vec<_>>()[..] else {
        panic!("{ended:?}")
    };
    assert!(failed.ends_with("large/file: No space left on device"), "{ended:?}");
    assert_eq!(*stopped, "sakia: stopped, since there is no room for more");
    assert!(!small.path().join("large/file").exists() && !small.path().join("small").exists());
    // Everything else is copied with more room.
    fs::write(directory.path().join("large/file"), vec![1; 1000]).unwrap();
    copy(&["-u"]).assert_quiet_success();
    assert!(small.path().join("large/file").exists() && small.path().join("small/file").exists());
}
