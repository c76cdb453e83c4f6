//! Copies by child processes, with another umask, limit or user, or to be killed.
//!
//! The test binary runs itself with the work in the environment.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;

use sakia_copy::{Existing, Follow, Options, Preserve, Progress, copy_tree, remove_tree};

use crate::support::{self, Folder, runtime};

const WORK: &str = "SAKIA_COPY_WORK";
const PATHS: [&str; 2] = ["SAKIA_COPY_FROM", "SAKIA_COPY_TO"];

/// The report of a child.
#[derive(Debug, PartialEq, Eq)]
pub struct Said {
    pub failures: u64,
    pub entries: u64,
    /// Its peak memory.
    pub peak_kib: u64,
    pub output: String,
}

/// Returns a process that does `work`, after the shell commands in `before`. `work` is `remove`, or letters:
/// `a`rchive, `p`reserve the usual, `L`inks followed, `k`eep, `u`pdate, `f`orce, `s`ync.
pub fn command(work: &str, before: &str, from: &Path, to: &Path) -> Command {
    command_of(&std::env::current_exe().unwrap(), work, before, from, to)
}

pub fn command_of(program: &Path, work: &str, before: &str, from: &Path, to: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{before}; exec \"$0\" \"$@\"")]).arg(program);
    command.args(["--exact", "children::child", "--nocapture", "--test-threads=1"]);
    command.env(WORK, work).env(PATHS[0], from).env(PATHS[1], to).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Does the work, and returns the report.
#[track_caller]
pub fn run(work: &str, before: &str, from: &Path, to: &Path) -> Said {
    said(&command(work, before, from, to).output().unwrap())
}

/// The unprivileged user.
const NOBODY: u32 = 65534;

/// Gives a file or a directory to the unprivileged user.
#[track_caller]
pub fn give_to_nobody(path: &Path) {
    std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
}

/// Runs children as the unprivileged user, which takes root.
pub struct Nobody {
    /// A copy of the test binary that this user may run.
    program: PathBuf,
}

impl Nobody {
    /// Puts the program in a folder that is [for all](Folder::for_all).
    pub fn new(folder: &Folder) -> Self {
        let program = folder.path("program");
        // In another process: a test that forks meanwhile would keep a writable descriptor of it.
        support::run(Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&program));
        Self { program }
    }

    #[track_caller]
    pub fn run(&self, work: &str, from: &Path, to: &Path) -> Said {
        self.run_after(work, "umask 022", from, to)
    }

    /// Does `work`, as [`run`] does.
    #[track_caller]
    pub fn run_after(&self, work: &str, before: &str, from: &Path, to: &Path) -> Said {
        let mut command = command_of(&self.program, work, before, from, to);
        said(&command.uid(NOBODY).gid(NOBODY).output().unwrap())
    }
}

#[track_caller]
pub fn said(output: &Output) -> Said {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let all = format!("{stdout}{}", String::from_utf8_lossy(&output.stderr));
    let line = stdout.lines().find_map(|line| line.split_once("SAID ")).map(|(_, said)| said);
    let line = line.unwrap_or_else(|| panic!("{}: {all}", output.status));
    let mut numbers = line.split(' ').map(|number| number.parse().unwrap());
    let mut next = || numbers.next().unwrap();
    Said { failures: next(), entries: next(), peak_kib: next(), output: all }
}

/// Kills the process and waits for its end. Returns false if it had ended by itself.
pub fn kill(mut child: Child) -> bool {
    child.kill().unwrap();
    let output = child.wait_with_output().unwrap();
    output.status.code().is_none()
}

fn options(letters: &str) -> Options {
    let has = |letter| letters.contains(letter);
    let mut options = if has('a') { Options::archive() } else { Options::new() };
    if has('p') {
        let mut usual = Preserve::NONE;
        (usual.mode, usual.ownership, usual.timestamps) = (true, true, true);
        options.preserve = usual;
    }
    if has('L') {
        options.follow = Follow::Always;
    }
    options.existing = match (has('k'), has('u')) {
        (true, _) => Existing::Keep,
        (_, true) => Existing::Update,
        _ => Existing::Overwrite,
    };
    options.force = has('f');
    options.durable = has('s');
    options
}

/// Does the work of a child. In the process of the tests it does nothing.
#[test]
fn child() {
    let Ok(work) = std::env::var(WORK) else { return };
    let [from, to] = PATHS.map(|name| std::env::var_os(name).unwrap());
    let progress = Progress::new().on_failure(|failure| println!("FAILED {failure}"));
    let progress = Arc::new(progress);
    let report = runtime().block_on(async {
        if work == "remove" {
            let token = sakia::CancellationToken::new();
            remove_tree(from, &progress, &token).await
        } else {
            copy_tree(from, to, &options(&work), &progress).await
        }
    });
    let counts = report.unwrap().counts;
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak = peak.trim().trim_end_matches(" kB");
    println!("SAID {} {} {peak}", counts.failures, counts.entries());
}
