//! A process for work on file systems that may never answer, and the process that waits for it.
//!
//! The kernel ends no thread in a call that a FUSE or network server has accepted and does not answer, and
//! no process with such a thread: even after `SIGKILL` its parent waits. So if an argument is on such a file
//! system, another process does the work, and this one, the *keeper*, passes it the first signal, and ends
//! with it or soon after it. Only the other process waits for the server.
//!
//! - The kernel kills the worker when the keeper ends: a second signal, or `SIGKILL`, ends both.
//! - A terminal sends its signals to both. The worker takes only the first one.
//! - Links of an argument are followed as far as that asks no such server. Links within a tree are not known
//!   here: a copy that follows one to such a file system has no keeper.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Component, Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, set_parent_process_death_signal, waitid,
};

use sakia_driver::MountTable;
use sakia_driver::startup::{stderr_was_closed, stdin_was_closed, stdout_was_closed};

use crate::cli::{self, Task};
use crate::exit::Exit;
use crate::signals::{self, Role, Signals};
use crate::sum;

/// The program itself, whatever has become of its file.
const PROGRAM: &str = "/proc/self/exe";
/// The flags of a thread in `/proc/PID/stat`, counted from its state: see `proc(5)`.
const FLAGS: usize = 6;
/// `PF_EXITING` of the kernel: the thread runs no more of the program.
const EXITING: u64 = 4;
/// The most links that the kernel follows on the way to a file.
const LINKS_MAX: u32 = 40;
/// The interval of looks at a worker that is to end.
const LOOK: Duration = Duration::from_millis(2);

/// Returns whether another process is to do the task.
pub fn is_needed(task: &Task) -> bool {
    let paths: Vec<&Path> = match task {
        Task::Cp(options) => {
            options.sources.iter().map(PathBuf::as_path).chain([options.to.path()]).collect()
        }
        Task::Rm(options) => options.paths.iter().map(PathBuf::as_path).collect(),
        Task::Mktree(options) => vec![&options.directory],
        Task::Sum(options) => options.inputs.iter().filter_map(sum::Input::path).collect(),
        _ => return false,
    };
    // `std` has opened `/dev/null` in place of closed streams, and the worker could not tell.
    if stdin_was_closed() || stdout_was_closed() || stderr_was_closed() {
        return false;
    }
    let table = MountTable::read().unwrap_or_default();
    let mut remote = table.entries().iter().filter(|mount| mount.is_remote()).peekable();
    if remote.peek().is_none() {
        return false;
    }
    let directory = std::env::current_dir().unwrap_or_default();
    let remote: Vec<&Path> = remote.map(|mount| &*mount.point).collect();
    paths.iter().any(|path| may_ask(&directory.join(path), &remote))
}

/// Returns whether the tree at an absolute path, or the way there, is on one of the `remote` mounts.
///
/// A name is looked up only if the way to it is on none of them, so that no server is asked.
fn may_ask(path: &Path, remote: &[&Path]) -> bool {
    let mut place = PathBuf::new();
    // The parts that are left, the next one last.
    let mut left: Vec<OsString> = parts(path).collect();
    let mut links = 0;
    while let Some(part) = left.pop() {
        if part == ".." {
            place.pop();
            continue;
        }
        place.push(part);
        if remote.iter().any(|mount| place.starts_with(mount)) {
            return true;
        }
        let Ok(target) = fs::read_link(&place) else { continue };
        links += 1;
        if links > LINKS_MAX {
            return false; // the work fails likewise
        }
        place.pop(); // an absolute target takes its place as a whole
        left.extend(parts(&target));
    }
    remote.iter().any(|mount| mount.starts_with(&place))
}

/// Returns the parts of a path but `.`, the last one first.
fn parts(path: &Path) -> impl Iterator<Item = OsString> {
    let parts = path.components().rev().filter(|part| *part != Component::CurDir);
    parts.map(|part| part.as_os_str().to_owned())
}

/// Starts the worker. `None` without the means for it: this process then does the task itself.
pub fn start() -> Option<Child> {
    let mut command = Command::new(PROGRAM);
    let mut arguments = cli::arguments();
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    command.args(arguments).env(cli::KEPT, "1").spawn().ok()
}

/// Prepares this process, a worker, for the end of its keeper.
pub fn attach() {
    set_parent_process_death_signal(Some(Signal::KILL)).ok();
}

/// Waits for the worker, and returns its end.
///
/// # Errors
/// There are no descriptors or threads.
pub fn keep(child: Child) -> anyhow::Result<Exit> {
    signals::hear(Role::Keeper, move |signals| Ok(wait_for(child, signals)?))
}

fn wait_for(mut child: Child, signals: &Signals) -> io::Result<Exit> {
    let pid = Pid::from_child(&child);
    // Not to be used any more once it is `None`.
    let running = Arc::new(Mutex::new(Some(pid)));
    let (told, heard) = (Arc::clone(&running), signals.clone());
    signals.on_first(move || {
        let signal = heard.received().and_then(Signal::from_named_raw);
        if let (Some(pid), Some(signal)) =
            (*told.lock().unwrap_or_else(PoisonError::into_inner), signal)
        {
            kill_process(pid, signal).ok();
        }
    });
    signals.on_giving_up(move || {
        while !has_ended(pid) {
            thread::sleep(LOOK);
        }
        Vec::new()
    });
    // It stays a zombie until no signal can be sent to it.
    rustix::io::retry_on_intr(|| {
        waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)
    })?;
    *running.lock().unwrap_or_else(PoisonError::into_inner) = None;
    let status = child.wait()?;
    Ok(match (status.signal(), status.code()) {
        (Some(signal), _) => Exit::Signal(signal),
        (None, code) => Exit::Status(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)),
    })
}

/// Returns whether the main thread of the process has ended, and with it all that the program does. It may be
/// the thread that closes the files, and wait for a server that is told.
fn has_ended(pid: Pid) -> bool {
    let stat = fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    // The name of the program, in parentheses, may have any byte.
    let end = stat.iter().rposition(|&byte| byte == b')');
    let fields = end.and_then(|end| std::str::from_utf8(&stat[end + 1..]).ok());
    let flags = fields.and_then(|fields| fields.split_whitespace().nth(FLAGS)?.parse::<u64>().ok());
    flags.is_none_or(|flags| flags & EXITING != 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_way_is_known_by_its_names_and_links() {
        let root = std::env::temp_dir().canonicalize().unwrap();
        let root = root.join(format!("sakia-keeper-{}", std::process::id()));
        let remote = root.join("far");
        fs::create_dir_all(root.join("near/inner")).unwrap();
        for (name, target) in [
            ("link", "far/a"),
            ("absolute", remote.to_str().unwrap()),
            ("near/up", ".././far"),
            ("twice", "near/inner/../up/x"),
            ("inner", "near/inner"),
            ("loop", "loop"),
            ("near/inner/dangling", "nothing"),
        ] {
            symlink(target, root.join(name)).unwrap();
        }
        let may = |path: &str| may_ask(&root.join(path), &[&remote]);
        for path in [
            "far",
            "far/",
            "far/a/b",
            ".",
            "near/../far",
            "near/./.././far/..",
            "link",
            "link/b",
            "absolute/..",
            "near/up",
            "twice",
            "inner/../../far",
            "inner/../up/x",
            "nothing/../far",
        ] {
            assert!(may(path), "{path}");
        }
        for path in ["near", "farther", "near/far", "inner/../far", "loop", "inner/dangling", "a/b"]
        {
            assert!(!may(path), "{path}");
        }
        assert!(may_ask(Path::new("/"), &[&remote]) && may_ask(Path::new("/../.."), &[&remote]));
        assert!(may_ask(&root.join("near"), &[&remote, Path::new("/")]));
        fs::remove_dir_all(root).unwrap();
    }
}
