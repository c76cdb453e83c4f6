//! `sakia doctor`.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use sakia_testkit::fuse::{Fuse, Opcode};
use sakia_testkit::{available, skip};
use serde_json::Value;

use crate::support::{TempDir, at_once, needs_ring, program_for_all, run, sakia};

#[test]
fn says_what_was_granted() {
    needs_ring!();
    let ended = run(&mut sakia(["doctor"]));
    ended.assert_quiet_success();
    for name in [
        "auto chooses        uring",
        "the kernel grants a ring",
        "asks for auto",
        "messages",
        "kernel",
        "architecture",
        "cpus",
        "io_uring_disabled",
        "locked memory",
        "open files",
        "seccomp",
        "container",
        "submission queue",
        "completion queue",
        "registered fd",
        "registered waits",
        "no_iowait",
        "DEFER_TASKRUN",
        "SINGLE_MMAP",
        "steps down",
        "msg_ring",
        "what to change",
    ] {
        assert!(ended.stdout.contains(name), "{name}: {}", ended.stdout);
    }
    // Values stand in one column.
    let columns = ended.stdout.lines().filter(|line| line.starts_with("  ")).take(5);
    for line in columns {
        assert!(line.as_bytes()[21] == b' ' && line.as_bytes()[22] != b' ', "{line:?}");
    }
}

#[test]
fn says_the_same_in_json() {
    needs_ring!();
    let ended = run(&mut sakia(["doctor", "--json"]));
    ended.assert_quiet_success();
    assert_eq!(ended.stdout.lines().count(), 1);
    let found = ended.json();
    assert_eq!(found["type"], "doctor");
    assert!(found["kernel"]["release"].is_string() && found["kernel"]["cpus"].is_u64());
    let ring = &found["ring"];
    assert_eq!(ring["available"], true);
    assert!(ring["sq_entries"].as_u64().unwrap() > 0);
    assert!(ring["flags"].as_array().unwrap().contains(&"DEFER_TASKRUN".into()));
    assert_eq!(ring["operations"]["read"], true);
    assert_eq!(found["poll"]["available"], true);
    assert_eq!(found["poll"]["operations"]["read"], true);
    assert_eq!(found["backend"]["auto"], "uring");
    assert_eq!(found["backend"]["wanted"], "auto");
    assert_eq!(found["backend"]["streams"], "queue");
}

#[test]
fn says_what_the_environment_asks_for() {
    for driver in ["uring", "poll"] {
        let ended = run(sakia(["doctor", "--json"]).env("SAKIA_DRIVER", driver));
        let found = ended.json();
        assert_eq!(found["backend"]["wanted"], driver);
    }
}

/// Returns the findings on the mount of `path`.
fn mount<'f>(found: &'f Value, path: &str) -> &'f Value {
    let mounts = found["mounts"].as_array().unwrap();
    let lies_there = |mount: &&Value| mount["paths"].as_array().unwrap().contains(&path.into());
    mounts.iter().find(lies_there).unwrap()
}

#[test]
fn says_what_it_does_on_mounts() {
    needs_ring!();
    let directory = TempDir::new();
    let file = directory.file("file", b"abc");
    let (directory, file) = (directory.path().to_str().unwrap(), file.to_str().unwrap());

    let ended = run(&mut sakia(["doctor", "--json", directory, file, "/proc/self"]));
    ended.assert_quiet_success();
    let found = ended.json();
    assert_eq!(found["failures"], Value::Array(Vec::new()));
    let there = mount(&found, directory);
    assert_eq!(there, mount(&found, file));
    assert_eq!(there["is_remote"], false);
    assert_eq!(there["not_tried"], Value::Null);
    assert!(there["mount_point"].is_string() && there["device"].is_string());
    for (answer, way) in [("nowait_read", "reads"), ("nowait_write", "writes")] {
        let expected = match there[answer].as_str().unwrap() {
            "yes" => "nowait",
            "no" => "timed",
            _ => "ring",
        };
        assert_eq!(there[way], expected, "{there}");
    }
    let proc = mount(&found, "/proc/self");
    assert_eq!((&proc["file_system"], &proc["mount_point"]), (&"proc".into(), &"/proc".into()));
    assert!(proc["not_tried"].is_string() && proc["nowait_write"].is_null(), "{proc}");
    // The command has left no file.
    assert_eq!(fs::read_dir(directory).unwrap().count(), 1);

    let ended = run(&mut sakia(["doctor", "/proc/version"]));
    ended.assert_quiet_success();
    for words in ["mount /proc\n", "file system         proc", "reads               ", "direct I/O"]
    {
        assert!(ended.stdout.contains(words), "{words}: {}", ended.stdout);
    }
}

#[test]
fn path_that_is_not_there_is_reported() {
    needs_ring!();
    let ended = run(&mut sakia(["doctor", "--json", "/nowhere", "/dev/null"]));
    assert_eq!(ended.code, Some(1));
    let found = ended.json();
    let failures = found["failures"].as_array().unwrap();
    assert_eq!((&failures[0]["path"], &failures[0]["errno"]), (&"/nowhere".into(), &2.into()));
    assert_eq!(failures.len(), 2);
    let lines: Vec<_> = ended.stderr.lines().collect();
    assert_eq!(lines[0], "sakia: /nowhere: open: No such file or directory (os error 2)");
    assert_eq!(lines[1], "sakia: /dev/null: open: neither a file nor a directory");
}

#[test]
fn file_system_of_a_server_is_left_alone() {
    needs_ring!();
    let fuse = available!(Fuse::builder().file("a", vec![1; 5000]).mount());
    let file = fuse.join("a");
    let ended = run(sakia(["doctor", "--json"]).arg(fuse.path()).arg(&file));
    ended.assert_quiet_success();
    let found = ended.json();
    let there = mount(&found, file.to_str().unwrap());
    assert_eq!(there["is_remote"], true);
    assert_eq!((&there["reads"], &there["writes"]), (&"thread".into(), &"thread".into()));
    assert!(there["nowait_read"].is_null() && there["not_tried"].is_string(), "{there}");
    for opcode in [Opcode::OPEN, Opcode::CREATE, Opcode::READ, Opcode::WRITE, Opcode::FLUSH] {
        assert_eq!(fuse.count(opcode), 0, "{opcode:?}");
    }
}

/// Runs each process as a new user: the locked memory of a ring stays charged to its user for a while after
/// the ring's end.
fn as_a_fresh_user(command: &mut Command, memlock_bytes: u64) -> &mut Command {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let user = 0x4000_0000 + std::process::id() * 256 + NEXT.fetch_add(1, Ordering::Relaxed);
    let limit = move || {
        let limit = libc::rlimit { rlim_cur: memlock_bytes, rlim_max: memlock_bytes };
        // SAFETY: a plain system call that reads the limit.
        match unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec the closure only makes a system call.
    unsafe { command.pre_exec(limit) };
    command.gid(user).uid(user)
}

#[test]
fn agrees_with_programs_whatever_memory_may_be_locked() {
    needs_ring!();
    if !rustix::process::geteuid().is_root() {
        skip!("only root may become users without other processes that lock memory");
    }
    let (_copy, program) = program_for_all();
    let ask = |args: &[&str], kib: u64| {
        let mut command = Command::new(&program);
        command.args(args).stdin(Stdio::null()).env_remove("SAKIA_DRIVER");
        run(as_a_fresh_user(&mut command, kib * 1024))
    };
    let seen = [0; 3].map(AtomicU32::new);
    let see = |which: usize| seen[which].fetch_add(1, Ordering::Relaxed);
    at_once((0..=256).step_by(4), |kib| {
        let ended = ask(&["sum", "--json"], kib);
        let summary: Value = serde_json::from_str(ended.stdout.lines().last().unwrap()).unwrap();
        let found = ask(&["doctor", "--json", "/"], kib).json();
        let context = format!("{kib} KiB: {summary}\n{found}");
        let (backend, ring) = (&found["backend"], &found["ring"]);
        assert_eq!(backend["auto"], summary["driver"], "{context}");
        assert_eq!(ring["available"] == true, backend["auto"] == "uring", "{context}");
        if ring["available"] == true {
            assert_eq!(backend["why"], "the kernel grants a ring", "{context}");
            let is_whole = ring["steps"].as_array().unwrap().is_empty();
            see(if is_whole { 2 } else { 1 });
        } else {
            assert_eq!(backend["why"], ring["error"], "{context}");
            assert_eq!(summary["refusal"], ring["error"], "{context}");
            see(0);
        }
        // The text output has the same facts.
        let ended = ask(&["doctor", "/"], kib);
        let chosen = format!("auto chooses        {}", backend["auto"].as_str().unwrap());
        assert!(ended.stdout.contains(&chosen), "{kib} KiB: {}", ended.stdout);
    });
    let seen = seen.map(AtomicU32::into_inner);
    assert!(seen.iter().all(|&count| count > 0), "no ring, a small one, a whole one: {seen:?}");
}
