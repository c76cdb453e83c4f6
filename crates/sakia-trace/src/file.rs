//! The file of a recording, and the environment variables for it.

use std::ffi::{CStr, OsString};
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, fstat, openat, statat, unlinkat};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::TraceOptions;
use crate::proc::read_small;
use crate::recorder::{FORKED, FORKED_TEXT, begin};

/// The environment variable that names the file of a recording.
pub const FILE_VARIABLE: &str = "SAKIA_TRACE";
/// The environment variable with the [number of events](TraceOptions::buffer_events) of a buffer.
pub const EVENTS_VARIABLE: &str = "SAKIA_TRACE_EVENTS";

/// `AT_SECURE` of the auxiliary vector: the program has more rights than its caller.
const AT_SECURE: u64 = 23;

/// The file of a recording that is on.
#[derive(Debug)]
pub(crate) struct File {
    fd: OwnedFd,
    /// Bytes written.
    len: u64,
    /// The first error of a write, after which there are no others.
    pub(crate) error: Option<Errno>,
}

impl File {
    /// Creates the file, which must not exist.
    pub(crate) fn create(path: &CStr) -> Result<Self, Errno> {
        let flags =
            OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::WRONLY | OFlags::CLOEXEC;
        let fd = openat(CWD, path, flags | OFlags::APPEND, Mode::RUSR | Mode::WUSR)?;
        Ok(Self { fd, len: 0, error: None })
    }

    /// Writes bytes, unless a write failed before.
    #[inline(never)]
    pub(crate) fn write(&mut self, mut bytes: &[u8]) {
        while self.error.is_none() && !bytes.is_empty() {
            match self.write_some(bytes) {
                Ok(count) => {
                    self.len += count as u64;
                    bytes = &bytes[count.min(bytes.len())..];
                }
                Err(Errno::INTR) => {}
                Err(errno) => self.error = Some(errno),
            }
        }
    }

    /// A write beyond the limit on the size of files would kill the program by `SIGXFSZ`.
    fn write_some(&self, bytes: &[u8]) -> Result<usize, Errno> {
        let limit = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
        let room = usize::try_from(limit.saturating_sub(self.len)).unwrap_or(usize::MAX);
        match &bytes[..bytes.len().min(room)] {
            [] => Err(Errno::FBIG),
            bytes => rustix::io::write(&self.fd, bytes),
        }
    }

    /// Removes the file, unless another one has its path by now: no recording has begun, and the next one may
    /// have the same path.
    #[inline(never)]
    pub(crate) fn remove(self, path: &CStr) {
        let at_path = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW);
        if let (Ok(at_path), Ok(own)) = (at_path, fstat(&self.fd))
            && (at_path.st_dev, at_path.st_ino) == (own.st_dev, own.st_ino)
        {
            // There is no other place to tell that this failed: the begin has an error already.
            let _ = unlinkat(CWD, path, AtFlags::empty());
        }
    }
}

/// Begins a recording of this process, on the first call, if the environment names a file for it
/// ([`FILE_VARIABLE`]). The recording lasts as long as the process. If that file exists, as for the second
/// process of a program, the process's number is appended to the name. A forked child that calls this begins
/// a recording of its own. Programs that run with more rights than their caller ignore the variable.
///
/// A failure is reported on standard error: the program runs as it does without a recording.
pub fn record_as_environment_says() {
    if cfg!(sakia_no_trace) {
        return;
    }
    /// The number of the process that has called this last. Later threads do not wait for the first.
    static CALLED_BY: AtomicU32 = AtomicU32::new(0);
    let own = std::process::id();
    if CALLED_BY.load(Ordering::Relaxed) == own || CALLED_BY.swap(own, Ordering::Relaxed) == own {
        return;
    }
    let Some(path) = std::env::var_os(FILE_VARIABLE).filter(|path| !path.is_empty()) else {
        return;
    };
    if !is_secure() {
        start(path);
    }
}

fn start(mut path: OsString) {
    let mut options = TraceOptions::default();
    if let Some(text) = std::env::var_os(EVENTS_VARIABLE) {
        match text.to_str().map(str::parse) {
            Some(Ok(number)) => options.buffer_events = number,
            _ => return report(format_args!("{EVENTS_VARIABLE} is {text:?}, which is no number")),
        }
    }
    let mut result = begin(Path::new(&path), options);
    if result == Err(Errno::EXIST) {
        path.push(format!(".{}", std::process::id()));
        result = begin(Path::new(&path), options);
    }
    match result {
        Ok(_) => {}
        Err(FORKED) => {
            report(format_args!("cannot record to {}: {FORKED_TEXT}", path.display()));
        }
        Err(errno) => report(format_args!("cannot record to {}: {errno}", path.display())),
    }
}

#[inline(never)]
fn report(problem: fmt::Arguments<'_>) {
    let text = format!("sakia: no trace: {problem}\n");
    // There is no other place to tell that this failed.
    let _ = rustix::io::write(std::io::stderr(), text.as_bytes());
}

/// Returns true if the program has more rights than its caller, or if that is unknown.
fn is_secure() -> bool {
    let mut room = [0; 4096];
    let Ok(vector) = read_small(CWD, c"/proc/self/auxv", &mut room) else {
        return true;
    };
    for entry in vector.chunks_exact(16) {
        let (kind, value) = entry.split_at(8);
        if kind == AT_SECURE.to_ne_bytes() {
            return value != [0; 8];
        }
    }
    true
}
