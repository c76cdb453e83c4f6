//! The file of a recording, and the environment variables for it.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Once;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;

use crate::proc::read_small;
use crate::{Recording, TraceOptions};

/// The environment variable that names the file of a recording.
pub const FILE_VARIABLE: &str = "SAKIA_TRACE";
/// The environment variable with the [number of events](TraceOptions::buffer_events) of a buffer.
pub const EVENTS_VARIABLE: &str = "SAKIA_TRACE_EVENTS";

/// `AT_SECURE` of the auxiliary vector: the program has more rights than its caller.
const AT_SECURE: u64 = 23;

/// Creates the file, which must not exist.
pub(crate) fn create(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::WRONLY | OFlags::CLOEXEC;
    openat(CWD, path, flags | OFlags::APPEND, Mode::RUSR | Mode::WUSR)
}

/// Begins a recording of this process, on the first call, if the environment names a file for it
/// ([`FILE_VARIABLE`]). The recording lasts as long as the process. If that file exists, as for the second
/// process of a program, the process's number is appended to the name. Programs that run with more rights
/// than their caller ignore the variable.
///
/// A failure is reported on standard error: the program runs as it does without a recording.
pub fn record_as_environment_says() {
    if cfg!(sakia_no_trace) {
        return;
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let Some(path) = std::env::var_os(FILE_VARIABLE).filter(|path| !path.is_empty()) else {
            return;
        };
        if is_secure() {
            return;
        }
        match start(Path::new(&path)) {
            Ok(recording) => std::mem::forget(recording),
            Err(error) => eprintln!("sakia: no trace: {error}"),
        }
    });
}

fn start(path: &Path) -> io::Result<Recording> {
    let mut options = TraceOptions::default();
    if let Some(text) = std::env::var_os(EVENTS_VARIABLE) {
        let number = text.to_str().and_then(|text| text.parse().ok());
        options.buffer_events = number.ok_or_else(|| {
            let text = text.to_string_lossy();
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{EVENTS_VARIABLE} is {text:?}, which is no number"),
            )
        })?;
    }
    match Recording::to_file(path, options) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let mut name = path.as_os_str().to_owned();
            name.push(format!(".{}", std::process::id()));
            Recording::to_file(PathBuf::from(name), options)
        }
        result => result,
    }
}

/// Returns true if the program has more rights than its caller, or if that is unknown.
fn is_secure() -> bool {
    let mut room = [0; 4096];
    let Ok(vector) = read_small(CWD, c"/proc/self/auxv", &mut room) else {
        return true;
    };
    let mut words = vector
        .chunks_exact(8)
        .map(|bytes| bytes.iter().rev().fold(0_u64, |word, &byte| word << 8 | u64::from(byte)));
    while let (Some(kind), Some(value)) = (words.next(), words.next()) {
        if kind == AT_SECURE {
            return value != 0;
        }
    }
    true
}
