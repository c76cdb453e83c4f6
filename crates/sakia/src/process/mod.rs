//! Child processes.
//!
//! [`Command`] is `std`'s with asynchronous ends: the driver reads and writes the pipes, and polls the
//! child's pidfd to wait for its end. Signals go by the pidfd, too. Without pidfds (before
//! Linux 5.4, or forbidden by seccomp) a thread of the pool for blocking code waits instead.
//!
//! No zombies: a child that is dropped before it was waited for is reaped when it ends, by a thread that all
//! dropped children share. If a program ignores `SIGCHLD`, the kernel reaps its children and discards their
//! status: waiting then fails with `ECHILD`.

mod identity;
mod reaper;

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::Path;
use std::process as std_process;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::process::Signal;
use sakia_driver::PollEvents;

use self::identity::Identity;

use crate::blocking::{self, BlockingHandle};
use crate::executor::current;
use crate::io::{PipeReader, PipeWriter, Stream};
use crate::signal::SignalKind;

pub use std::process::{ExitStatus, Output, Stdio};

/// Options for starting a child process.
///
/// # Examples
/// ```
/// use sakia::io::BufResultExt;
/// use sakia::process::{Command, Stdio};
///
/// # fn main() -> std::io::Result<()> {
/// sakia::block_on(async {
///     let mut command = Command::new("tr");
///     command.args(["a-z", "A-Z"]).stdin(Stdio::piped()).stdout(Stdio::piped());
///     let mut child = command.spawn()?;
///     let mut stdin = child.stdin.take().expect("it was asked for");
///     stdin.write_all("quietly").await.value()?;
///     stdin.close().await?;
///     let output = child.wait_with_output().await?;
///     assert!(output.status.success());
///     assert_eq!(output.stdout, b"QUIETLY");
///     Ok(())
/// })
/// # }
/// ```
#[derive(Debug)]
pub struct Command {
    inner: std_process::Command,
    kill_on_drop: bool,
    /// The standard streams that were set.
    streams: Streams,
}

/// One flag per standard stream.
#[derive(Clone, Copy, Debug, Default)]
struct Streams {
    stdin: bool,
    stdout: bool,
    stderr: bool,
}

impl Command {
    /// A command that runs `program`, found by `PATH`, as `std`'s does: see
    /// [`std::process::Command::new`].
    ///
    /// # Examples
    /// See [`Command`](Command#examples).
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        std_process::Command::new(program).into()
    }

    /// Adds an argument.
    pub fn arg(&mut self, arg: impl AsRef<OsStr>) -> &mut Self {
        self.inner.arg(arg);
        self
    }

    /// Adds arguments.
    ///
    /// # Examples
    /// See [`Command`](Command#examples).
    pub fn args(&mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> &mut Self {
        self.inner.args(args);
        self
    }

    /// Sets a variable of the child's environment.
    ///
    /// # Examples
    /// ```
    /// use sakia::process::Command;
    ///
    /// # sakia::block_on(async {
    /// let mut command = Command::new("sh");
    /// command.args(["-c", "echo $GREETING from $PWD"]).env("GREETING", "hello").current_dir("/");
    /// assert_eq!(command.output().await?.stdout, b"hello from /\n");
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    pub fn env(&mut self, key: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> &mut Self {
        self.inner.env(key, value);
        self
    }

    /// Sets the child's working directory.
    ///
    /// # Examples
    /// See [`Command::env`].
    pub fn current_dir(&mut self, dir: impl AsRef<Path>) -> &mut Self {
        self.inner.current_dir(dir);
        self
    }

    /// Sets the child's standard input. Without this call it is inherited, and empty for
    /// [`output`](Command::output).
    ///
    /// # Examples
    /// See [`Command`](Command#examples).
    pub fn stdin(&mut self, stdin: impl Into<Stdio>) -> &mut Self {
        self.inner.stdin(stdin);
        self.streams.stdin = true;
        self
    }

    /// Sets the child's standard output. Without this call it is inherited.
    ///
    /// # Examples
    /// See [`Command`](Command#examples).
    pub fn stdout(&mut self, stdout: impl Into<Stdio>) -> &mut Self {
        self.inner.stdout(stdout);
        self.streams.stdout = true;
        self
    }

    /// Sets the child's standard error. Without this call it is inherited.
    pub fn stderr(&mut self, stderr: impl Into<Stdio>) -> &mut Self {
        self.inner.stderr(stderr);
        self.streams.stderr = true;
        self
    }

    /// Sets whether the child is killed when its [`Child`] is dropped before it was waited for. Without this
    /// call it goes on.
    ///
    /// # Examples
    /// See [`Child`](Child#examples).
    pub fn kill_on_drop(&mut self, kill_on_drop: bool) -> &mut Self {
        self.kill_on_drop = kill_on_drop;
        self
    }

    /// Returns the command of `std`, for options that are not set here: user, group, session.
    pub fn as_std_mut(&mut self) -> &mut std_process::Command {
        &mut self.inner
    }

    /// Starts the child. The call blocks until the child has begun to run its program, which is short unless
    /// opening the program's file is slow.
    ///
    /// # Errors
    /// - `ENOENT`, `EACCES`, `ENOEXEC`: there is no such program, or it cannot be run.
    /// - `EAGAIN`, `ENOMEM`, `EMFILE`: no processes, memory or descriptors left. Otherwise as
    ///   `execve(2)`.
    ///
    /// # Panics
    /// Outside of a runtime, and on a simulated kernel.
    ///
    /// # Examples
    /// See [`Command`](Command#examples).
    pub fn spawn(&mut self) -> io::Result<Child> {
        current(); // panics before there is a child
        let child = self.inner.spawn()?;
        Ok(Child::new(child, self.kill_on_drop))
    }

    /// Starts the child, and waits for its end and all its output. If standard output or error was set, the
    /// setting is kept, and the result has this output only if it is a pipe; if not, it becomes a pipe, for
    /// later calls too. Settings made on `std`'s command before its conversion to this one do not count.
    ///
    /// # Cancel safety
    /// Dropping the future drops the child, and loses its output: see
    /// [`kill_on_drop`](Command::kill_on_drop).
    ///
    /// # Errors
    /// As for [`spawn`](Command::spawn) and [`Child::wait`]. A child that fails is no error.
    ///
    /// # Panics
    /// Outside of a runtime, and on a simulated kernel.
    ///
    /// # Examples
    /// ```
    /// use sakia::process::Command;
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let output = sakia::block_on(async {
    ///     Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"]).output().await
    /// })?;
    /// assert_eq!(output.status.code(), Some(3));
    /// assert_eq!(output.stdout, b"out\n");
    /// assert_eq!(output.stderr, b"err\n");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn output(&mut self) -> io::Result<Output> {
        let Streams { stdin, stdout, stderr } = self.streams;
        if !stdin {
            self.stdin(Stdio::null());
        }
        if !stdout {
            self.stdout(Stdio::piped());
        }
        if !stderr {
            self.stderr(Stdio::piped());
        }
        self.spawn()?.wait_with_output().await
    }

    /// Starts the child and waits for its end.
    ///
    /// # Cancel safety
    /// Dropping the future drops the child: see [`kill_on_drop`](Command::kill_on_drop).
    ///
    /// # Errors
    /// As for [`spawn`](Command::spawn) and [`Child::wait`]. A child that fails is no error.
    ///
    /// # Panics
    /// Outside of a runtime, and on a simulated kernel.
    ///
    /// # Examples
    /// ```
    /// use sakia::process::Command;
    ///
    /// # sakia::block_on(async {
    /// assert!(Command::new("true").status().await?.success());
    /// assert_eq!(Command::new("sh").args(["-c", "exit 3"]).status().await?.code(), Some(3));
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    pub async fn status(&mut self) -> io::Result<ExitStatus> {
        self.spawn()?.wait().await
    }
}

impl From<std_process::Command> for Command {
    fn from(inner: std_process::Command) -> Self {
        Self { inner, kill_on_drop: false, streams: Streams::default() }
    }
}

/// A child process.
///
/// Dropping it before it was waited for lets the child go on, or kills it if the command says so; it is
/// reaped in either case.
///
/// # Examples
/// ```
/// use std::os::unix::process::ExitStatusExt;
///
/// use sakia::process::Command;
/// use sakia::signal::SignalKind;
///
/// # sakia::block_on(async {
/// let mut child = Command::new("sleep").arg("1000").kill_on_drop(true).spawn()?;
/// assert!(child.id().is_some() && child.try_wait()?.is_none());
/// child.signal(SignalKind::TERMINATE)?;
/// assert_eq!(child.wait().await?.signal(), Some(15));
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
pub struct Child {
    /// Writes to its standard input, if that is a pipe.
    pub stdin: Option<PipeWriter>,
    /// Reads its standard output, if that is a pipe.
    pub stdout: Option<PipeReader>,
    /// Reads its standard error, if that is a pipe.
    pub stderr: Option<PipeReader>,
    /// Its number, which may belong to another process once the child was reaped.
    id: u32,
    identity: Identity,
    watch: Watch,
    /// The exit status, once it was waited for.
    status: Option<ExitStatus>,
    kill_on_drop: bool,
}

/// The way in which the end of a child is noticed. Neither way reaps the child.
enum Watch {
    /// The child's pidfd is polled: it is readable after the end.
    Pidfd(Stream),
    /// A thread waits, from the first wait of a caller on.
    Thread(Option<BlockingHandle<()>>),
}

impl Watch {
    fn new(identity: &Identity) -> Self {
        match identity.pidfd() {
            Some(pidfd) => Self::Pidfd(Stream::of(current().driver.lend(Arc::clone(pidfd)))),
            None => Self::Thread(None),
        }
    }

    /// Waits until the child may have ended.
    async fn ended(&mut self, identity: &Identity) -> io::Result<()> {
        match self {
            Self::Pidfd(pidfd) => pidfd.ready(PollEvents::READABLE).await,
            Self::Thread(waiting) => {
                let handle = waiting.get_or_insert_with(|| {
                    let identity = identity.clone();
                    blocking::shared().spawn(move || identity.wait())
                });
                let result = handle.await.map_err(|error| io::Error::other(error.to_string()));
                *waiting = None;
                result
            }
        }
    }
}

impl Child {
    fn new(mut inner: std_process::Child, kill_on_drop: bool) -> Self {
        let stdin = inner.stdin.take().map(|end| PipeWriter::from_fd(end.into()));
        let stdout = inner.stdout.take().map(|end| PipeReader::from_fd(end.into()));
        let stderr = inner.stderr.take().map(|end| PipeReader::from_fd(end.into()));
        let (id, identity) = (inner.id(), Identity::of(&inner));
        let watch = Watch::new(&identity);
        Self { stdin, stdout, stderr, id, identity, watch, status: None, kill_on_drop }
    }

    /// Returns its number; `None` once it was waited for, when the number may belong to another process. The
    /// same is true if other code has reaped the child, which this does not find out.
    ///
    /// # Examples
    /// See [`Child`](Child#examples).
    pub fn id(&self) -> Option<u32> {
        self.status.is_none().then_some(self.id)
    }

    /// Returns the exit status if the child has ended.
    ///
    /// # Errors
    /// - `ECHILD`: other code has reaped it.
    ///
    /// # Examples
    /// See [`Child`](Child#examples).
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.status.is_none() {
            self.status = self.identity.try_reap()?;
        }
        Ok(self.status)
    }

    /// Closes the child's standard input, if [`stdin`](Child::stdin) still has it, and waits for the child's
    /// end.
    ///
    /// Later calls return the same status.
    ///
    /// # Cancel safety
    /// Dropping the future ends the wait, and loses nothing: a new call may follow.
    ///
    /// # Errors
    /// - `ECHILD`: other code has reaped it. `ECANCELED`: the runtime has ended.
    ///
    /// # Examples
    /// See [`Child`](Child#examples).
    ///
    /// # Kernel
    /// 5.4; without pidfds a thread waits. Source: `pidfd_open(2)`.
    #[doc(alias = "waitpid")]
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        drop(self.stdin.take());
        loop {
            if let Some(status) = self.try_wait()? {
                return Ok(status);
            }
            self.watch.ended(&self.identity).await?;
        }
    }

    /// As [`wait`](Child::wait), and reads the bytes of those outputs that are pipes and were not taken, both
    /// at once.
    ///
    /// # Cancel safety
    /// Dropping the future drops the child, and loses its output: see
    /// [`kill_on_drop`](Command::kill_on_drop).
    ///
    /// # Errors
    /// As for [`wait`](Child::wait) and [`PipeReader::read_to_end`].
    ///
    /// # Examples
    /// See [`Command`](Command#examples).
    pub async fn wait_with_output(mut self) -> io::Result<Output> {
        drop(self.stdin.take());
        let (stdout, stderr) =
            crate::join!(read_all(self.stdout.take()), read_all(self.stderr.take()));
        let status = self.wait().await?;
        Ok(Output { status, stdout: stdout?, stderr: stderr? })
    }

    /// Kills the child (`SIGKILL`), by its pidfd. It must still be waited for. No effect if it already was.
    ///
    /// # Errors
    /// - `ESRCH`: other code has reaped it. `EPERM`: it has changed its user.
    ///
    /// # Examples
    /// ```
    /// use std::os::unix::process::ExitStatusExt;
    ///
    /// use sakia::process::Command;
    ///
    /// # sakia::block_on(async {
    /// let mut child = Command::new("sleep").arg("1000").spawn()?;
    /// child.kill()?;
    /// assert_eq!(child.wait().await?.signal(), Some(9));
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    pub fn kill(&mut self) -> io::Result<()> {
        match self.status {
            Some(_) => Ok(()),
            None => self.identity.signal(Signal::KILL),
        }
    }

    /// Sends the child a signal, by its pidfd, so that no other process gets it after the child's end. No
    /// effect if it was waited for already.
    ///
    /// # Errors
    /// - `EINVAL`: there is no such signal. `ESRCH`: other code has reaped the child. `EPERM`: it has changed
    ///   its user.
    ///
    /// # Examples
    /// See [`Child`](Child#examples).
    pub fn signal(&mut self, kind: SignalKind) -> io::Result<()> {
        if self.status.is_some() {
            return Ok(());
        }
        let signal = Signal::from_named_raw(kind.as_raw()).ok_or(Errno::INVAL)?;
        self.identity.signal(signal)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // An error means that there is no child of this process: other code has reaped it, or this is a
        // forked copy in a process of its own.
        if self.status.is_none()
            && let Ok(None) = self.identity.try_reap()
        {
            if self.kill_on_drop {
                // A child that belongs to another user by now is left alone.
                self.identity.signal(Signal::KILL).ok();
            }
            reaper::reap(self.identity.clone());
        }
    }
}

impl fmt::Debug for Child {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Child");
        debug.field("id", &self.id()).field("status", &self.status).finish_non_exhaustive()
    }
}

async fn read_all(reader: Option<PipeReader>) -> io::Result<Vec<u8>> {
    let Some(mut reader) = reader else { return Ok(Vec::new()) };
    let (result, bytes) = reader.read_to_end(Vec::new()).await;
    result.map(|_| bytes)
}

#[cfg(test)]
mod tests {
    use std::future::{Future, poll_fn};
    use std::pin::pin;
    use std::task::Poll;

    use rustix::process::Pid;

    use super::*;

    /// Spawns a child whose end a thread notices, as on kernels without pidfds.
    fn spawn_without_pidfd(command: &mut Command) -> Child {
        let mut child = command.spawn().unwrap();
        let pid = i32::try_from(child.id).ok().and_then(Pid::from_raw).unwrap();
        child.identity = Identity::Number(pid);
        child.watch = Watch::Thread(None);
        child
    }

    #[test]
    fn without_a_pidfd_a_thread_waits() {
        crate::block_on(async {
            let mut command = Command::new("sh");
            command.args(["-c", "read line; exit 7"]).stdin(Stdio::piped());
            let mut child = spawn_without_pidfd(&mut command);
            assert_eq!(child.wait().await.unwrap().code(), Some(7));
            assert_eq!(child.wait().await.unwrap().code(), Some(7));
        });
    }

    #[test]
    fn without_a_pidfd_a_child_that_was_reaped_gets_no_signal() {
        crate::block_on(async {
            let mut child = spawn_without_pidfd(&mut Command::new("true"));
            child.identity.wait();
            child.kill().unwrap(); // a zombie
            assert!(child.identity.try_reap().unwrap().is_some()); // not known to `child`
            assert_eq!(child.kill().unwrap_err().raw_os_error(), Some(libc::ESRCH));
            assert_eq!(child.wait().await.unwrap_err().raw_os_error(), Some(libc::ECHILD));
        });
    }

    #[test]
    fn without_a_pidfd_a_process_that_is_no_child_gets_no_signal() {
        // This process: it is not its own child, and ignores the signal.
        let other = Identity::Number(rustix::process::getpid());
        let error = other.signal(Signal::WINCH).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
    }

    #[test]
    fn a_status_is_that_of_wait() {
        use std::os::unix::process::ExitStatusExt;

        crate::block_on(async {
            for (script, raw) in [("exit 0", 0), ("exit 255", 0xff00), ("kill -9 $$", 9)] {
                let status = Command::new("sh").args(["-c", script]).status().await.unwrap();
                assert_eq!(status.into_raw(), raw, "{script}");
                let status = std_process::Command::new("sh").args(["-c", script]).status().unwrap();
                assert_eq!(status.into_raw(), raw, "{script}");
            }
        });
    }

    #[test]
    fn a_wait_by_thread_can_be_given_up_and_taken_up_again() {
        crate::block_on(async {
            let mut child = spawn_without_pidfd(Command::new("sleep").arg("1000"));
            {
                let mut wait = pin!(child.wait());
                poll_fn(|cx| {
                    assert!(wait.as_mut().poll(cx).is_pending());
                    Poll::Ready(())
                })
                .await;
            }
            child.kill().unwrap();
            assert!(!child.wait().await.unwrap().success());
        });
    }
}
