//! `sakia cp` and `sakia rm`: destinations, refusals, messages.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use crate::support::{Ended, TempDir, at_once, run, sakia};

/// Runs the program in the directory.
fn in_directory(directory: &TempDir, arguments: &str) -> Ended {
    run(sakia(arguments.split(' ')).current_dir(directory.path()))
}

#[track_caller]
fn succeeds(directory: &TempDir, arguments: &str) -> Ended {
    let ended = in_directory(directory, arguments);
    ended.assert_quiet_success();
    ended
}

/// Asserts that it fails, with a line for each of these words.
#[track_caller]
fn fails(directory: &TempDir, arguments: &str, words: &[&str]) {
    let ended = in_directory(directory, arguments);
    assert_eq!(ended.code, Some(1), "{arguments}: {ended:?}");
    assert_eq!(ended.stderr.lines().count(), words.len(), "{arguments}: {ended:?}");
    for word in words {
        assert!(ended.stderr.contains(word), "{arguments}: {word} is not in {ended:?}");
    }
}

fn make(directory: &TempDir, names: &[&str]) {
    for name in names {
        let path = directory.path().join(name);
        if name.ends_with('/') {
            fs::create_dir_all(path).unwrap();
        } else {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, name).unwrap();
        }
    }
}

/// Returns all paths below, in order.
fn names(directory: &TempDir, below: &str) -> Vec<String> {
    let root = directory.path().join(below);
    let mut found = Vec::new();
    let mut left = vec![root.clone()];
    while let Some(path) = left.pop() {
        for entry in fs::read_dir(path).unwrap() {
            let path = entry.unwrap().path();
            found.push(path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned());
            if path.symlink_metadata().unwrap().is_dir() {
                left.push(path);
            }
        }
    }
    found.sort();
    found
}

fn text(directory: &TempDir, name: &str) -> String {
    fs::read_to_string(directory.path().join(name)).unwrap()
}

#[test]
fn what_is_refused() {
    let directory = TempDir::new();
    make(&directory, &["a", "b", "dir/a", "dir/inner/", "to/"]);
    let before = names(&directory, ".");
    for (arguments, words) in [
        ("cp dir to", &["-r was not given"][..]),
        ("cp a b none", &["no directory"]),
        ("cp a b dir/a", &["no directory"]),
        ("cp -t none a", &["no such directory"]),
        ("cp none to", &["none"]),
        ("cp a a", &["itself"]),
        ("cp -r dir dir", &["copy to dir/dir: it is inside its source"]),
        ("cp -r dir dir/inner/new", &["copy to dir/inner/new: it is inside its source"]),
        ("cp -r dir dir/new", &["copy to dir/new: it is inside its source"]),
        ("cp -r dir dir/inner", &["copy to dir/inner/dir: it is inside its source"]),
        ("cp -a . to", &["copy to to/: it is inside its source"]),
        ("cp -rT dir dir", &["copy to dir: it is the source itself"]),
        ("cp a none/", &["copy to none/: it does not exist"]),
        ("cp -T a none/", &["copy to none/: it does not exist"]),
        ("cp -r a none/", &["copy to none/: it does not exist"]),
        ("cp a b/", &["copy to b/: it is not a directory"]),
        ("cp -rT dir a", &["a directory cannot"]),
        ("cp -T a dir", &["dir"]),
        ("cp a none/b", &["none/b"]),
    ] {
        fails(&directory, arguments, words);
        assert_eq!(names(&directory, "."), before, "{arguments}");
    }
    // The rest is copied.
    fails(&directory, "cp none a dir b to", &["none", "-r was not given"]);
    assert_eq!(names(&directory, "to"), ["a", "b"]);
    // A file that this command created is not overwritten.
    fails(&directory, "cp a dir/a to", &["just been made"]);
    assert_eq!(text(&directory, "to/a"), "a");
    // Directories of one name are merged.
    make(&directory, &["other/dir/c"]);
    succeeds(&directory, "cp -r dir other/dir to");
    assert_eq!(names(&directory, "to/dir"), ["a", "c", "inner"]);
    for wrong in ["cp", "cp a", "cp -T a b to", "cp -T -t to a", "cp --sparse=x a b", "rm"] {
        assert_eq!(in_directory(&directory, wrong).code, Some(2), "{wrong}");
    }
}

/// The resulting entries and the success of the command equal those of `cp`.
#[test]
fn sources_and_destinations_of_special_kinds_are_those_of_cp() {
    for (before, arguments) in [
        // Up-to-date entries need no further checks.
        ("mkdir d", "cp -uT /dev/null d"),
        ("touch -d @1 a; ln -s l l", "cp -u a l"),
        ("touch -d @1 a; ln -s none l", "cp -u a l"),
        ("mkdir x y to; echo x >x/f; echo y >y/f", "cp -u x/f y/f to"),
        ("mkdir x y to; echo x >x/f; echo y >y/f; touch -d @1 x/f", "cp -pu x/f y/f to"),
        // Only files created by this command may not be overwritten.
        ("mkdir d s; echo x >d/f; echo y >s/f", "cp d/f s/f d"),
        (
            "mkdir x y d; echo d >d/f; touch -d @2 d/f; echo x >x/f; touch -d @1 x/f; echo y >y/f",
            "cp -u x/f y/f d",
        ),
        // Blocks that cannot be shared.
        ("echo x >a", "cp --reflink=always a /dev/null"),
        ("echo x >a; ln -s /dev/null l", "cp --reflink=always a l"),
        ("", "cp --reflink=always /dev/null new"),
        ("echo x >a", "cp --reflink=always /dev/null a"),
        // Another name of the destination shows whether it was written to or replaced.
        ("echo x >a; ln a b", "cp /dev/null a"),
        ("echo x >a; ln a b", "cp -P /dev/null a"),
        ("echo x >a; ln a b; ln -s a l", "cp /dev/null l"),
        ("echo x >a; ln a b; ln -s a l", "cp -P /dev/null l"),
        ("echo x >a; mkdir d", "cp -PT /dev/null d"),
    ] {
        let [theirs, ours] = ["cp", "sakia cp"].map(|program| {
            let directory = TempDir::new();
            let shell = |script: &str| {
                let mut shell = Command::new("sh");
                run(shell.arg("-c").arg(script).current_dir(directory.path()))
            };
            assert_eq!(shell(before).code, Some(0), "{before}");
            let list = || {
                shell("find . -printf '%p %y %n %l\\n' | sort; head -v ? */* 2>/dev/null").stdout
            };
            let was = list();
            let code = match arguments.split_once(' ') {
                Some((_, arguments)) if program == "cp" => shell(&format!("cp {arguments}")).code,
                _ => in_directory(&directory, arguments).code,
            };
            (code, list(), was)
        });
        if arguments.contains("always") {
            // cp has truncated the file by then.
            assert_eq!((ours.0, theirs.0), (Some(1), Some(1)), "{arguments}");
            assert_eq!(ours.1, ours.2, "{arguments}");
        } else {
            assert_eq!(ours, theirs, "{before}: {arguments}");
        }
    }
}

#[test]
fn what_is_said() {
    let directory = TempDir::new();
    make(&directory, &["dir/a", "dir/inner/b", "to/"]);
    let lines = |ended: &Ended| {
        let mut lines: Vec<_> = ended.stdout.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let expected = [
        "dir -> to/dir",
        "dir/a -> to/dir/a",
        "dir/inner -> to/dir/inner",
        "dir/inner/b -> to/dir/inner/b",
    ];
    let dry = succeeds(&directory, "cp -r --dry-run dir to");
    assert_eq!(lines(&dry), expected);
    assert_eq!(names(&directory, "to"), [""; 0]);
    let verbose = succeeds(&directory, "cp -rv dir to");
    assert_eq!(lines(&verbose), expected);
    assert_eq!(names(&directory, "to").len(), 4);
    // Existing entries stay, without a message.
    let kept = succeeds(&directory, "cp -rnv dir to");
    assert!(kept.stdout.lines().all(|line| !line.contains("/a")), "{kept:?}");
    // A name that is not UTF-8.
    let name = directory.path().join(<OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"x\xff"));
    fs::write(&name, "x").unwrap();
    let mut command = sakia(["cp", "-v"]);
    let output = command.arg(&name).arg(directory.path().join("to")).output().unwrap();
    assert!(output.stdout.ends_with(b"/to/x\xff\n"), "{output:?}");
    assert!(directory.path().join("to").join(name.file_name().unwrap()).exists());
}

#[test]
fn lines_of_json() {
    let directory = TempDir::new();
    make(&directory, &["dir/a", "dir/inner/b", "to/dir/a/"]);
    symlink("nowhere", directory.path().join("dir/link")).unwrap();
    fs::hard_link(directory.path().join("dir/inner/b"), directory.path().join("dir/inner/c"))
        .unwrap();
    let ended = in_directory(&directory, "cp -a --json dir to");
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let lines = ended.json_lines();
    let [error, summary] = &lines[..] else { panic!("{ended:?}") };
    assert_eq!((&error["type"], &error["path"]), (&"error".into(), &"to/dir/a".into()));
    assert!(error["operation"].is_string() && error["message"].is_string(), "{error}");
    assert_eq!(summary["type"], "summary");
    for (name, count) in [
        ("files", 1),
        ("directories", 2),
        ("symlinks", 1),
        ("hard_links", 1),
        ("others", 0),
        ("skipped", 0),
        ("bytes", 11),
        ("failures", 1),
    ] {
        assert_eq!(summary[name], count, "{name}: {summary}");
    }
    assert!(summary["seconds"].is_f64() && summary["driver"].is_string());
}

/// Each error is one line of JSON and counted, also a failure before the copy.
#[test]
fn each_error_is_a_line_of_json_and_counted() {
    let directory = TempDir::new();
    make(&directory, &["a", "dir/a", "to/"]);
    /// The path and the errno of an error.
    type Wrong = (&'static str, Option<i32>);
    let cases: [(&str, &[Wrong]); 6] = [
        ("cp --json none to", &[("none", Some(2))]),
        ("cp --json none a dir gone to", &[("none", Some(2)), ("dir", None), ("gone", Some(2))]),
        ("cp --json a dir/a to", &[("to/a", None)]),
        ("cp --json a none/", &[("none/", None)]),
        ("cp --json a dir/a none", &[("none", None)]),
        ("cp --json -t none a", &[("none", None)]),
    ];
    for (arguments, expected) in cases {
        let ended = in_directory(&directory, arguments);
        assert_eq!(ended.code, Some(1), "{arguments}: {ended:?}");
        assert_eq!(ended.stderr.lines().count(), expected.len(), "{arguments}: {ended:?}");
        let lines = ended.json_lines();
        let (summary, errors) = lines.split_last().unwrap();
        assert_eq!(errors.len(), expected.len(), "{arguments}: {ended:?}");
        for (error, (path, errno)) in errors.iter().zip(expected) {
            assert_eq!((&error["type"], &error["path"]), (&"error".into(), &(*path).into()));
            assert_eq!(error["errno"].as_i64(), errno.map(i64::from), "{arguments}: {error}");
        }
        assert_eq!(summary["type"], "summary");
        assert_eq!(summary["failures"], expected.len(), "{arguments}: {summary}");
    }
}

/// Directories get a worker per processor. Files alone get one, since a thread takes time to start.
#[test]
fn a_worker_per_processor_for_directories_and_one_for_files() {
    let directory = TempDir::new();
    make(&directory, &["a", "b", "dir/c"]);
    let workers = |arguments| {
        let lines = in_directory(&directory, arguments).json_lines();
        lines.last().and_then(|summary| summary["counters"]["workers"].as_u64())
    };
    assert_eq!(workers("cp --json a b dir"), Some(1));
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    assert_eq!(workers("cp -r --json dir to"), Some(all as u64));
}

#[test]
fn rm_removes_what_it_is_told_to() {
    let directory = TempDir::new();
    make(&directory, &["a", "b", "dir/inner/c", "kept/d"]);
    symlink("kept", directory.path().join("link")).unwrap();
    symlink("../kept", directory.path().join("dir/link")).unwrap();
    succeeds(&directory, "rm a link");
    fails(&directory, "rm b dir none", &["-r was not given", "none"]);
    assert_eq!(
        names(&directory, "."),
        ["dir", "dir/inner", "dir/inner/c", "dir/link", "kept", "kept/d"]
    );
    succeeds(&directory, "rm -f none");
    succeeds(&directory, "rm -rf none dir/");
    assert_eq!(names(&directory, "."), ["kept", "kept/d"]);
}

#[test]
fn rm_refuses_what_nobody_means() {
    let directory = TempDir::new();
    make(&directory, &["dir/inner/a", "dir/inner/deep/"]);
    symlink("dir", directory.path().join("link")).unwrap();
    // The commands run in a place with little to lose if they do not refuse.
    let inner = directory.path().join("dir/inner");
    let here = [".", "..", "./", "../", "deep/.", "deep/..", "./deep/../", "deep//.//"];
    for arguments in here.map(|path| vec!["rm", "-rf", path]).into_iter().chain([vec!["rm", "/"]]) {
        let ended = run(sakia(&arguments).current_dir(&inner));
        assert_eq!(ended.code, Some(1), "{arguments:?}: {ended:?}");
        assert!(ended.stderr.contains("is not removed"), "{arguments:?}: {ended:?}");
    }
    assert_eq!(names(&directory, "dir"), ["inner", "inner/a", "inner/deep"]);
    // A link with a slash is neither the link nor its target.
    fails(&directory, "rm -rf link/", &["is a link"]);
    assert!(directory.path().join("link").is_symlink());
    assert_eq!(text(&directory, "dir/inner/a"), "dir/inner/a");
}

/// A copy without `-r` reads devices and FIFOs, and writes to the target of a link at the destination.
#[test]
fn streams_are_read_and_written() {
    let directory = TempDir::new();
    make(&directory, &["a", "log"]);
    succeeds(&directory, "cp /dev/null log");
    assert!(text(&directory, "log").is_empty());
    succeeds(&directory, "cp /dev/null new");
    assert!(directory.path().join("new").symlink_metadata().unwrap().is_file());
    let shell = |script: &str| {
        let mut sh = Command::new("bash");
        sh.args(["-c", script]).env("SAKIA", env!("CARGO_BIN_EXE_sakia"));
        run(sh.current_dir(directory.path()))
    };
    for (script, expected) in [
        ("echo piped | $SAKIA cp /dev/stdin to && cat to", "piped\n"),
        ("$SAKIA cp <(echo substituted) to && cat to", "substituted\n"),
        ("$SAKIA cp a /dev/stdout", "a"),
        ("$SAKIA cp -f a /dev/stdout | cat", "a"),
        ("$SAKIA cp a /dev/stdout >to && cat to", "a"),
        ("$SAKIA cp -a a >(cat)", "a"),
    ] {
        let ended = shell(script);
        ended.assert_quiet_success();
        assert_eq!(ended.stdout, expected, "{script}");
    }
    assert!(PathBuf::from("/dev/stdout").is_symlink());
}

#[test]
fn sources_named_twice_and_letters_given_twice() {
    let directory = TempDir::new();
    make(&directory, &["a", "dir/b", "to/a"]);
    let ended = in_directory(&directory, "cp -r -r a a dir dir to");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.stderr.matches("named more than once").count(), 2, "{ended:?}");
    // Existing entries are kept, whatever other flags are given.
    fs::write(directory.path().join("to/a"), "kept").unwrap();
    for arguments in ["cp -n -f a to", "cp -f -n a to", "cp -n -u a to", "cp -u -n a to"] {
        succeeds(&directory, arguments);
        assert_eq!(text(&directory, "to/a"), "kept", "{arguments}");
    }
    // A directory does not replace a link.
    symlink("to", directory.path().join("link")).unwrap();
    fails(&directory, "cp -rT dir link", &["a link is there"]);
    succeeds(&directory, "cp -rT dir link/");
    assert_eq!(in_directory(&directory, "cp --reflink --sparse=always a b").code, Some(2));
}

/// It works with little memory, or reports why not.
#[test]
fn little_memory_does_not_end_it() {
    let directory = TempDir::new();
    for number in 0..40 {
        make(&directory, &[&format!("dir/{number}/a"), &format!("dir/{number}/b")]);
    }
    let limited = |kib: u64, arguments: &str| {
        let script = format!("ulimit -v {kib} && exec \"$SAKIA\" {arguments}");
        let mut sh = Command::new("sh");
        sh.args(["-c", &script]).env("SAKIA", env!("CARGO_BIN_EXE_sakia"));
        sh.stderr(std::process::Stdio::null()).current_dir(directory.path()).status().unwrap()
    };
    // The least memory with which the program loads, then the stack of the working thread and a little
    // more.
    let least = (8..256).map(|mib| mib << 10).find(|&kib| limited(kib, "--version").success());
    let least = least.unwrap() + (3 << 10);
    let expected = names(&directory, "dir");
    at_once((least..least + (64 << 10)).step_by(1 << 10), |kib| {
        let to = format!("to-{kib}");
        let status = limited(kib, &format!("cp -r dir {to}"));
        assert!(status.success(), "{kib} KiB: {status}");
        assert_eq!(names(&directory, &to), expected);
        fs::remove_dir_all(directory.path().join(to)).unwrap();
    });
}
