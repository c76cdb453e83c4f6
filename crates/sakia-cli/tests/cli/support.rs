//! Shared helpers of the tests: skips, files, and ways to run the program.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode};
use sakia_testkit::children::copy_program;
use serde_json::Value;

/// The unprivileged user.
const NOBODY: u32 = 65534;
/// The limit of a wait for an event that must happen.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Skips the calling test if there is no ring.
macro_rules! needs_ring {
    () => {
        if let Err(error) = sakia_ring::Ring::builder().build() {
            sakia_testkit::skip!("{error}");
        }
    };
}
pub(crate) use needs_ring;

/// A directory that is removed at the end of a test.
pub struct TempDir(PathBuf);

impl TempDir {
    /// Makes it in the file system of the build.
    pub fn new() -> Self {
        Self::below(Path::new(env!("CARGO_TARGET_TMPDIR")))
    }

    pub fn below(parent: &Path) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("sakia-cli-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Makes it accessible to every user.
    pub fn for_all() -> Self {
        let directory = Self::below(&std::env::temp_dir());
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        directory
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Makes a file with these bytes.
    pub fn file(&self, name: impl AsRef<OsStr>, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name.as_ref());
        fs::write(&path, bytes).unwrap();
        path
    }

    pub fn fifo(&self) -> PathBuf {
        let path = self.0.join("fifo");
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, mode, 0).unwrap();
        path
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// Returns bytes that look random and are the same in every run.
pub fn random_bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Returns the expected sum.
pub fn plain_sum(bytes: &[u8]) -> u64 {
    bytes.iter().map(|&byte| u64::from(byte)).sum()
}

/// Returns `sakia` with these arguments and nothing on standard input. It chooses the backend by itself.
pub fn sakia<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sakia"));
    command.args(args).stdin(Stdio::null()).env_remove("SAKIA_DRIVER");
    command
}

/// A program that ended.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Ended {
    /// Returns the rows of sums: sum, bytes, name.
    pub fn rows(&self) -> Vec<(u64, u64, &str)> {
        let row = |line: &'_ str| -> (u64, u64) {
            let mut fields = line.split_whitespace().map(|field| field.parse().unwrap());
            (fields.next().unwrap(), fields.next().unwrap())
        };
        let name = |line: &'_ str| line.rfind("  ").map(|at| at + 2).unwrap();
        self.stdout
            .lines()
            .map(|line| {
                let (numbers, name) = line.split_at(name(line));
                let (sum, bytes) = row(numbers);
                (sum, bytes, name)
            })
            .collect()
    }

    /// Returns the only JSON object on standard output.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap()
    }

    /// Returns the JSON objects on standard output, one per line.
    #[track_caller]
    pub fn json_lines(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Asserts success without messages.
    #[track_caller]
    pub fn assert_quiet_success(&self) {
        assert_eq!((self.code, self.stderr.as_str()), (Some(0), ""), "{self:?}");
    }
}

/// Runs `sakia sum --quiet` with further arguments.
pub fn sum<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Ended {
    run(sakia(["sum", "--quiet"]).args(args))
}

/// As [`sum`], with a backend.
pub fn sum_on<S: AsRef<OsStr>>(driver: &str, args: impl IntoIterator<Item = S>) -> Ended {
    run(sakia(["sum", "--quiet"]).args(args).env("SAKIA_DRIVER", driver))
}

pub fn run(command: &mut Command) -> Ended {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    wait(command.spawn().unwrap())
}

/// Returns a guard that admits one test at a time. Tests need it to hold a disk, and to write back or drop
/// the machine's caches, which waits for such a disk.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls `act` for each item, several at a time, since the programs that it runs wait often.
pub fn at_once<T: Send>(items: impl IntoIterator<Item = T>, act: impl Fn(T) + Sync) {
    const AT_A_TIME: usize = 4;
    let items: Mutex<Vec<T>> = Mutex::new(items.into_iter().collect());
    let take = || items.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let work = || std::iter::from_fn(take).for_each(&act);
    thread::scope(|scope| (0..AT_A_TIME).for_each(|_| drop(scope.spawn(work))));
}

/// Waits for the end, up to a time limit.
pub fn wait(mut child: Child) -> Ended {
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let stdout = thread::spawn(|| read_all(stdout));
    let stderr = thread::spawn(|| read_all(stderr));
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begin.elapsed() > PATIENCE {
            let tasks = describe_tasks(child.id());
            child.kill().ok();
            panic!("the program does not end; its tasks:\n{tasks}");
        }
        thread::sleep(Duration::from_millis(2));
    };
    Output { status, stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() }.into()
}

/// Returns the name, the state and the place in the kernel of each task of a process.
fn describe_tasks(process: u32) -> String {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let describe = |task: fs::DirEntry| {
        let read = |name| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let status = read("status");
        let state = status.lines().find(|line| line.starts_with("State")).unwrap_or_default();
        format!("{} {state} {} {}\n", read("comm").trim(), read("wchan"), read("syscall"))
    };
    tasks.map(describe).collect()
}

fn read_all(stream: Option<impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(mut stream) = stream {
        stream.read_to_end(&mut bytes).unwrap();
    }
    bytes
}

/// Writes `bytes` to `stream` on a new thread, and closes it.
pub fn feed(mut stream: impl Write + Send + 'static, bytes: Vec<u8>) {
    thread::spawn(move || stream.write_all(&bytes).unwrap());
}

/// Waits until `condition` holds.
#[track_caller]
pub fn await_that(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < PATIENCE, "{what}: not in time");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Runs the command as an unprivileged user, if this process is root. That user must be able to reach the
/// program: use [`program_for_all`].
pub fn without_privileges(command: &mut Command) {
    if rustix::process::geteuid().is_root() {
        command.gid(NOBODY).uid(NOBODY); // drops the groups too
    }
}

/// Closes these standard streams of the program, as `<&-`, `>&-` and `2>&-` do.
pub fn without_streams(command: &mut Command, streams: &[i32]) {
    let streams = streams.to_vec();
    let close = move || {
        for &number in &streams {
            // SAFETY: a plain system call on a number that the program is to find closed.
            unsafe { libc::close(number) };
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure only makes system calls.
    unsafe { command.pre_exec(close) };
}

/// Returns a copy of the program that every user may run.
pub fn program_for_all() -> (TempDir, PathBuf) {
    let directory = TempDir::for_all();
    let program = directory.path().join("sakia");
    copy_program(env!("CARGO_BIN_EXE_sakia"), &program);
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    (directory, program)
}
