//! A process for work on file systems that may never answer, and the process that waits for it.
//!
//! The kernel ends no thread in a call that a FUSE or network server has accepted and does not answer, and
//! no process with such a thread: even after `SIGKILL` its parent waits. So if an argument is on such a file
//! system, another process does the work, and this one, the *keeper*, passes it the first signal, and ends
//! with it or soon after it. Only the other process waits for the server.
//!
//! - The kernel kills the worker when the keeper ends: a second signal, or `SIGKILL`, ends both.
//! - A terminal sends its signals to both. The worker takes only the first one.
//! - Links are not followed, since that may wait for a server: a path through a link to such a file system is
//!   not recognized.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Component, Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, set_parent_process_death_signal, waitid,
};

use sakia_driver::startup::{stderr_was_closed, stdin_was_closed, stdout_was_closed};

use crate::cli::{self, Task};
use crate::exit::Exit;
use crate::signals::{self, Role, Signals};
use crate::sum;

/// The program itself, whatever has become of its file.
const PROGRAM: &str = "/proc/self/exe";
/// File systems whose server may not answer, besides `fuse.NAME`.
const SERVED: [&str; 11] =
    ["9p", "afs", "autofs", "ceph", "cifs", "fuse", "fuseblk", "lustre", "nfs", "nfs4", "smb3"];
/// The usual length of the list of mounts: less room would take more calls to read it.
const MOUNTS_USUAL: usize = 16 << 10;
/// The flags of a thread in `/proc/PID/stat`, counted from its state: see `proc(5)`.
const FLAGS: usize = 6;
/// `PF_EXITING` of the kernel: the thread runs no more of the program.
const EXITING: u64 = 4;
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
    let mut mounts = Vec::with_capacity(MOUNTS_USUAL);
    let read =
        File::open("/proc/self/mountinfo").and_then(|mut file| file.read_to_end(&mut mounts));
    let served = read.map_or_else(|_| Vec::new(), |_| served(&mounts));
    if served.is_empty() {
        return false;
    }
    let directory = std::env::current_dir().unwrap_or_default();
    paths.iter().any(|path| {
        let path = plain(&directory.join(path));
        served.iter().any(|mount| path.starts_with(mount) || mount.starts_with(&path))
    })
}

/// Returns the mount points of such file systems, from the text of `mountinfo`: see `proc(5)`.
fn served(mounts: &[u8]) -> Vec<PathBuf> {
    let mount = |line: &[u8]| {
        let mut fields = line.split(|&byte| byte == b' ');
        let point = fields.nth(4)?;
        let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
        let is_served =
            kind.starts_with(b"fuse.") || SERVED.iter().any(|served| served.as_bytes() == kind);
        is_served.then(|| unescaped(point))
    };
    mounts.split(|&byte| byte == b'\n').filter_map(mount).collect()
}

/// Replaces the escapes of spaces and other bytes, such as `\040`.
fn unescaped(point: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(point.len());
    let mut rest = point;
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match escaped.filter(|_| first == b'\\') {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

/// Returns the path without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
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
    use super::*;

    #[test]
    fn mounts_that_are_served() {
        let text = b"22 1 8:1 / / rw - ext4 /dev/vda rw\n\
            30 22 0:40 / /a\\040b\\134 rw,nosuid shared:3 master:1 - fuse.sshfs host: rw\n\
            31 22 0:41 / /sys/fs/fuse rw - fusectl none rw\n\
            32 22 0:42 / /net rw - nfs4 host:/x rw\n";
        assert_eq!(served(text), [Path::new("/a b\\"), Path::new("/net")]);
        assert!(served(b"\nx\n1 2 3 4 5").is_empty());
    }

    #[test]
    fn paths_are_made_plain() {
        for (path, expected) in [("/a/./b/../c/", "/a/c"), ("/../a", "/a"), ("/", "/")] {
            assert_eq!(plain(Path::new(path)), Path::new(expected));
        }
    }
}
