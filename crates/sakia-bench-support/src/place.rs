//! Shared parts of the file systems for tests: loud skips, scratch directories, mounts that end, leftovers.
//!
//! Each lives in a scratch directory of its own, `sakia-testkit-PID-N` below the directory for temporary
//! files, with a locked file in it. A process that ends in good order, or by a panic that unwinds, leaves
//! nothing. One that is killed leaves mounts and directories; the lock shows that it is gone, and the next
//! process that makes a scratch directory removes them.

use std::ffi::{CString, OsStr};
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// The prefix of the name of every scratch directory.
const PREFIX: &str = "sakia-testkit-";

/// The failed step of making a file system, and its error.
#[derive(Debug, thiserror::Error)]
#[error("{step}: {error}")]
pub struct PlaceError {
    /// The step.
    step: String,
    /// Its error.
    #[source]
    error: io::Error,
    /// The machine lacks a privilege, a program or a feature of the kernel.
    missing: bool,
}

impl PlaceError {
    /// Returns whether the machine lacks something: a privilege, a program, a feature of the kernel. The
    /// test cannot run here, and no bug is known.
    pub fn is_missing(&self) -> bool {
        self.missing
    }

    /// Returns the error of a step that any machine supports.
    pub(crate) fn failed(step: impl Into<String>, error: impl Into<io::Error>) -> Self {
        Self { step: step.into(), error: error.into(), missing: false }
    }

    /// Returns the error of a step with requirements; the errno tells whether they were met.
    pub(crate) fn needing(step: impl Into<String>, error: impl Into<io::Error>) -> Self {
        const LACKS: [Errno; 8] = [
            Errno::PERM,
            Errno::ACCESS,
            Errno::NODEV,
            Errno::NOENT,
            Errno::NXIO,
            Errno::NOSYS,
            Errno::OPNOTSUPP,
            Errno::ROFS,
        ];
        let error = error.into();
        let lacks = LACKS.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()));
        Self { step: step.into(), error, missing: lacks }
    }
}

/// Ends the calling test, which cannot run on this machine. Fails it instead if `SAKIA_DENY_SKIPS` is set.
/// Takes the arguments of `format!`: the reason.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)*) => {{
        $crate::place::announce_skip(::core::module_path!(), &::std::format!($($reason)*));
        return;
    }};
}

/// Unwraps a `Result<_, PlaceError>`. Skips the calling test loudly if the machine lacks something, and
/// panics at any other error.
#[macro_export]
macro_rules! available {
    ($place:expr) => {
        match $place {
            Ok(place) => place,
            Err(error) if error.is_missing() => $crate::skip!("{error}"),
            Err(error) => ::std::panic!("{error}"),
        }
    };
}

/// Prints the reason of [`skip!`](crate::skip), or fails with it.
///
/// # Panics
/// If `SAKIA_DENY_SKIPS` is set.
#[track_caller]
pub fn announce_skip(test: &str, reason: &str) {
    assert!(
        std::env::var_os("SAKIA_DENY_SKIPS").is_none(),
        "skips are denied, and {test} must skip: {reason}"
    );
    eprintln!("SKIP {test}: {reason}");
}

// ---- directories and mounts --------------------------------------------------------------------

/// A private directory. It is removed with its contents when the value is dropped.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
    /// Held locked while the directory is in use; see [`sweep`].
    _lock: File,
}

impl Scratch {
    /// Makes a new directory, with a directory `mnt` in it. Sweeps leftovers first, once per process.
    pub(crate) fn new() -> Result<Self, PlaceError> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        static SWEPT: Once = Once::new();
        SWEPT.call_once(|| drop(sweep()));

        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("{PREFIX}{}-{number}", std::process::id()));
        let make = || {
            fs::create_dir(&path)?;
            let lock = File::create(path.join("lock"))?;
            lock.lock()?;
            fs::create_dir(path.join("mnt"))?;
            Ok::<_, io::Error>(lock)
        };
        match make() {
            Ok(lock) => Ok(Self { path, _lock: lock }),
            Err(error) => Err(PlaceError::failed(format!("make {}", path.display()), error)),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// Removes a scratch directory, but never a mount in it.
fn remove(scratch: &Path) {
    // `mnt` is empty, or still in use: then it stays, and `leftovers` reports it.
    if fs::remove_dir(scratch.join("mnt")).is_ok() || !scratch.join("mnt").exists() {
        let _ = fs::remove_dir_all(scratch);
    }
}

/// A file system mounted on `mnt` of a scratch directory. It is unmounted with the value.
#[derive(Debug)]
pub(crate) struct Mounted {
    point: PathBuf,
    /// Last: the directory is removed after the unmount.
    _scratch: Scratch,
}

impl Mounted {
    /// Mounts `source` of type `kind` with the options `data`, as `mount(2)`.
    pub(crate) fn new(
        scratch: Scratch,
        source: &Path,
        kind: &str,
        data: &str,
    ) -> Result<Self, PlaceError> {
        let point = scratch.path().join("mnt");
        let data = CString::new(data).expect("options hold no NUL");
        mount(source, &point, kind, MountFlags::NOSUID | MountFlags::NODEV, &*data)
            .map_err(|errno| PlaceError::needing(format!("mount {kind}"), errno))?;
        Ok(Self { point, _scratch: scratch })
    }

    /// Adopts a file system mounted on `mnt` of the scratch directory by other means.
    pub(crate) fn adopt(scratch: Scratch) -> Self {
        Self { point: scratch.path().join("mnt"), _scratch: scratch }
    }

    /// Returns the mount point.
    pub(crate) fn path(&self) -> &Path {
        &self.point
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        detach(&self.point);
    }
}

/// Unmounts: at once if nothing is open, otherwise by detaching, which leaves open files alone.
fn detach(point: &Path) {
    if unmount(point, UnmountFlags::NOFOLLOW).is_err() {
        let _ = unmount(point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
    }
}

/// Runs a file system tool, which must succeed.
pub(crate) fn run_tool<'a>(
    program: &str,
    arguments: impl IntoIterator<Item = &'a OsStr>,
) -> Result<(), PlaceError> {
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new(program)
        .args(arguments)
        // Many distributions keep them there, outside of a user's path.
        .env("PATH", format!("{path}:/usr/sbin:/sbin"))
        .output()
        .map_err(|error| PlaceError::needing(format!("run {program}"), error))?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(PlaceError::failed(
        format!("{program} ended with {}", output.status),
        io::Error::other(words),
    ))
}

// ---- leftovers ---------------------------------------------------------------------------------

/// Returns the mounts, loop devices and directories of the process `pid` that exist at this moment, one line
/// each. Empty after all were dropped.
///
/// # Errors
/// As reading `/proc/self/mountinfo` and the directory for temporary files.
pub fn leftovers(pid: u32) -> io::Result<Vec<String>> {
    let owned = |path: &Path| scratch_of(path).is_some_and(|(_, owner)| owner == pid);
    let mut found = Vec::new();
    for (point, _) in mounts()?.iter().filter(|(point, _)| owned(point)) {
        found.push(format!("mount {}", point.display()));
    }
    for (device, backing) in crate::loop_device::attached() {
        if owned(&backing) {
            found.push(format!("{device} on {}", backing.display()));
        }
    }
    for directory in scratch_directories()?.iter().filter(|path| owned(path)) {
        found.push(format!("directory {}", directory.display()));
    }
    Ok(found)
}

/// Removes the leftovers of killed processes: their mounts, latest first, and their directories. Loop
/// devices end with their mounts. Returns the number of directories removed.
///
/// # Errors
/// As [`leftovers`].
pub fn sweep() -> io::Result<usize> {
    let mounts = mounts()?;
    let dead: Vec<PathBuf> =
        scratch_directories()?.into_iter().filter(|path| is_abandoned(path)).collect();
    for (point, source) in mounts.iter().rev() {
        if scratch_of(point).is_some_and(|(scratch, _)| dead.contains(&scratch)) {
            crate::loop_device::lift_limits(source);
            detach(point);
        }
    }
    dead.iter().for_each(|scratch| remove(scratch));
    Ok(dead.iter().filter(|scratch| !scratch.exists()).count())
}

/// Returns whether the process that made the directory is gone. Both its number and the lock must say so,
/// since a process of another namespace may have any number.
fn is_abandoned(scratch: &Path) -> bool {
    let owner = scratch_of(scratch).map(|(_, owner)| owner);
    if owner.is_none_or(|pid| Path::new("/proc").join(pid.to_string()).exists()) {
        return false;
    }
    match File::open(scratch.join("lock")) {
        Ok(lock) => !matches!(lock.try_lock(), Err(TryLockError::WouldBlock)),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Returns the scratch directory that the path is or lies in, and its process.
fn scratch_of(path: &Path) -> Option<(PathBuf, u32)> {
    path.ancestors().find_map(|path| {
        let name = path.file_name()?.to_str()?.strip_prefix(PREFIX)?;
        let (pid, number) = name.split_once('-')?;
        number.parse::<u32>().ok()?;
        Some((path.to_owned(), pid.parse().ok()?))
    })
}

fn scratch_directories() -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(std::env::temp_dir())? {
        let path = entry?.path();
        if scratch_of(&path).is_some_and(|(scratch, _)| scratch == path) {
            found.push(path);
        }
    }
    Ok(found)
}

/// Returns all mounts in the order of mounting: mount point and source.
pub(crate) fn mounts() -> io::Result<Vec<(PathBuf, PathBuf)>> {
    let table = fs::read("/proc/self/mountinfo")?;
    let path = |field: Option<&[u8]>| {
        PathBuf::from(OsStr::from_bytes(&unescaped(field.unwrap_or_default())))
    };
    let mount = |line: &[u8]| {
        let mut fields = line.split(|&byte| byte == b' ');
        let point = path(fields.nth(4));
        // Optional fields, a hyphen, the kind, the source.
        let source = path(fields.skip_while(|&field| field != b"-").nth(2));
        (point, source)
    };
    Ok(table.split(|&byte| byte == b'\n').map(mount).collect())
}

/// Decodes a field of `mountinfo`, in which white space and backslashes are three octal digits.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let octal = tail
            .first_chunk::<3>()
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match octal.filter(|_| *first == b'\\') {
            Some(byte) => (bytes.push(byte), rest = &tail[3..]),
            None => (bytes.push(*first), rest = tail),
        };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_directories_go_with_their_values() {
        let scratch = Scratch::new().unwrap();
        let path = scratch.path().to_owned();
        fs::write(path.join("image"), "bytes").unwrap();
        assert!(path.join("mnt").is_dir());
        let mine = format!("directory {}", path.display());
        assert!(leftovers(std::process::id()).unwrap().contains(&mine));
        drop(scratch);
        assert!(!path.exists());
    }

    #[test]
    fn living_processes_are_not_swept() {
        let scratch = Scratch::new().unwrap();
        assert!(!is_abandoned(scratch.path()));
        sweep().unwrap();
        assert!(scratch.path().exists());
    }

    #[test]
    fn names_tell_the_owner() {
        let owner = |path: &str| scratch_of(Path::new(path)).map(|(_, pid)| pid);
        assert_eq!(owner("/tmp/sakia-testkit-12-3"), Some(12));
        assert_eq!(owner("/tmp/sakia-testkit-12-3/mnt"), Some(12));
        for other in ["/tmp", "/tmp/sakia-testkit-12", "/tmp/sakia-testkit-x-3", "/tmp/a-12-3"] {
            assert_eq!(owner(other), None, "{other}");
        }
    }

    #[test]
    fn mount_points_are_unescaped() {
        assert_eq!(unescaped(br"/a\040b\134c"), b"/a b\\c");
        assert_eq!(unescaped(br"/a\9"), br"/a\9");
    }

    #[test]
    fn errors_tell_what_is_missing() {
        let missing = PlaceError::needing("mount", Errno::PERM);
        assert!(missing.is_missing());
        assert!(missing.to_string().starts_with("mount: "), "{missing}");
        assert!(!PlaceError::needing("mount", Errno::INVAL).is_missing());
        assert!(!PlaceError::failed("make", Errno::PERM).is_missing());
    }
}
