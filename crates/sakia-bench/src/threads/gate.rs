//! The gate that holds back the answers of a slow place, and the protocol by which a run controls it.
//!
//! The place belongs to the experiment's process, so that its threads are not counted. A run is another
//! process, and the two talk over a socket:
//!
//! 1. The run opens its files, connects, and waits.
//! 2. The keeper closes the gate, and reports it. No read is answered from now on.
//! 3. The run begins all reads, waits until nothing changes any more, counts its threads, and reports it.
//! 4. The keeper opens the gate, and drops it when the run hangs up.
//!
//! A process that died cannot disappear while one of its threads is in a held read, and its end of the socket
//! stays open. So the keeper also checks that the process is alive. It drops the gate if the process has
//! died, or if the run does not answer for too long.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{Shutdown, shutdown};
use rustix::process::Pid;
use sakia_bench_support::fuse;

/// The longest time that a gate is held, unless the run opens it.
const PATIENCE: Duration = Duration::from_secs(120);
/// The interval of the keeper's checks of the run.
const LOOK: Duration = Duration::from_millis(100);

/// The message that the gate is closed, or is to be opened.
const TURN: [u8; 1] = *b"!";

/// Holds answers for one run after the other.
#[derive(Debug)]
pub(super) struct Keeper {
    socket: PathBuf,
    listener: UnixListener,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Waits at `socket` for runs, and makes a gate for each by `hold`.
    ///
    /// # Errors
    /// As `bind(2)`, and starting a thread.
    pub(super) fn start(
        socket: PathBuf,
        hold: impl Fn() -> fuse::Gate + Send + 'static,
    ) -> anyhow::Result<Self> {
        let listener = UnixListener::bind(&socket);
        let listener = listener.with_context(|| format!("cannot make {}", socket.display()))?;
        let there = listener.try_clone()?;
        let thread = thread::Builder::new().spawn(move || {
            while let Ok((stream, _)) = there.accept() {
                // An error means that the run has hung up, or ended: the gate is dropped with it.
                serve(stream, &hold).ok();
            }
        })?;
        Ok(Self { socket, listener, thread: Some(thread) })
    }

    /// Returns the path of the socket to which runs connect.
    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // Shutting down the listener ends the wait for a connection.
        let ended = shutdown(&self.listener, Shutdown::Both);
        if let Some(thread) = self.thread.take().filter(|_| ended.is_ok()) {
            thread.join().ok();
        }
        fs::remove_file(&self.socket).ok();
    }
}

/// Holds back requests to the place for one run. The gate is open when this returns.
fn serve(mut stream: UnixStream, hold: impl Fn() -> fuse::Gate) -> io::Result<()> {
    let process = socket_peercred(&stream)?.pid;
    stream.set_read_timeout(Some(LOOK))?;
    let gate = hold();
    stream.write_all(&TURN)?;
    let mut deadline = Some(Instant::now() + PATIENCE);
    loop {
        match stream.read(&mut [0]) {
            Ok(0) => return Ok(()),
            Ok(_) => {
                gate.open();
                deadline = None;
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::Interrupted
                    if is_alive(process) && deadline.is_none_or(|end| Instant::now() < end) => {}
                _ => return Err(error),
            },
        }
    }
}

/// Returns whether the first thread of a process has not ended.
fn is_alive(process: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero()));
    let stat = stat.unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// A run's end of the connection: while it exists and was not opened, nothing is answered.
#[derive(Debug)]
pub(super) struct Held(UnixStream);

impl Held {
    /// Waits until no read is answered any more.
    ///
    /// # Errors
    /// There is no keeper, or it has hung up.
    pub(super) fn hold(socket: &Path) -> anyhow::Result<Self> {
        let context = || format!("cannot have the gate held at {}", socket.display());
        let mut stream = UnixStream::connect(socket).with_context(context)?;
        let mut turn = [0];
        stream.read_exact(&mut turn).with_context(context)?;
        ensure!(turn == TURN, "the keeper of the gate sent an unknown message");
        Ok(Self(stream))
    }

    /// Opens the gate: all reads are answered.
    ///
    /// # Errors
    /// The keeper has hung up.
    pub(super) fn open(&mut self) -> io::Result<()> {
        self.0.write_all(&TURN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_that_ended_is_not_alive() {
        assert!(is_alive(rustix::process::getpid()));
        let mut child = std::process::Command::new("/bin/true").spawn().unwrap();
        let pid = Pid::from_child(&child);
        child.wait().unwrap();
        assert!(!is_alive(pid));
    }

    #[test]
    fn keeper_that_nobody_calls_ends() {
        let directory = tempfile::tempdir().unwrap();
        let keeper = Keeper::start(directory.path().join("gate"), || unreachable!()).unwrap();
        assert!(keeper.socket().exists());
        drop(keeper);
        assert!(Held::hold(&directory.path().join("gate")).is_err());
    }
}
