//! The driver's behavior on mounted file systems, for `sakia doctor`.
//!
//! Nothing is decided here: a driver with the usual rules writes and reads a small file without a name, and
//! reports what it has learned. A file system of another machine or process is only looked up: any other
//! call might wait for ever.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Statx, StatxFlags, major, makedev, minor};
use rustix::io::Errno;
use sakia_driver::{
    Auto, Bypass, CallMode, Driver, MountFacts, MountTable, Op, Operation, Policy, Route, Rules,
    Support, Wait,
};
use sakia_ring::Ring;
use serde::{Serialize, Serializer};

use crate::doctor::{row, yes};
use crate::name::{Member, Shown, c_path};
use crate::output::message;

/// The time limit of an operation on a file.
const PATIENCE: Duration = Duration::from_secs(2);
/// The size of the write and the read in bytes.
const TRIAL_BYTES: usize = 4096;

/// A path whose file system is examined.
#[derive(Debug)]
pub struct Place {
    pub path: PathBuf,
    /// The user named it, and expects an error if it does not exist.
    pub is_argument: bool,
}

/// A mounted file system.
#[derive(Debug, Serialize)]
pub struct Mount {
    /// `null` if `/proc` does not have it.
    mount_point: Option<String>,
    /// The mounted device: a block device, a server, or any word.
    source: Option<String>,
    /// Major and minor number, as `st_dev`.
    device: String,
    file_system: String,
    is_remote: bool,
    /// The examined paths on it.
    paths: Vec<String>,
    /// Support of non-blocking reads and writes; `null`: not tried.
    nowait_read: Option<&'static str>,
    nowait_write: Option<&'static str>,
    /// The reason why not everything was tried.
    not_tried: Option<String>,
    /// The alignment of direct I/O; 0: unsupported, `null`: unknown.
    direct_memory_align: Option<u32>,
    direct_offset_align: Option<u32>,
    /// The driver's route of small buffered reads and writes; `null`: unknown before the first.
    reads: Option<MountRoute>,
    writes: Option<MountRoute>,
    /// Plain calls have been slow, and are not made for a while.
    is_slow: bool,
    /// For the human layout: the kind of the driver's queue.
    #[serde(skip)]
    queue: MountRoute,
}

/// A path that could not be looked up.
#[derive(Debug, Serialize)]
pub struct Failure {
    #[serde(flatten, serialize_with = "as_member")]
    pub path: PathBuf,
    errno: Option<i32>,
    message: String,
    #[serde(skip)]
    pub error: io::Error,
}

fn as_member<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    Member(path.as_os_str()).serialize(serializer)
}

/// Describes the support of non-blocking calls. `lies`: the file system claims it, and answers wrongly.
fn word(support: Support) -> Option<&'static str> {
    match support {
        Support::Unknown => None,
        Support::Yes => Some("yes"),
        Support::No => Some("no"),
        Support::Lies => Some("lies"),
    }
}

/// The route of a small transfer on a mount, as a user sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum MountRoute {
    /// A non-blocking plain call; if it would block, the queue.
    Nowait,
    /// A timed plain call, not made for a while after slow ones.
    Timed,
    Ring,
    Thread,
}

impl MountRoute {
    fn of(route: Route, queue: Self) -> Self {
        match route {
            Route::Now(CallMode::NonBlocking) => Self::Nowait,
            Route::Now(CallMode::Blocking) => Self::Timed,
            // The route is that of a mount's files, which refuse no transfer.
            Route::Queue | Route::Readiness | Route::Refused(_) => queue,
            Route::Lane(_) => Self::Thread,
        }
    }

    fn noun(self) -> &'static str {
        if self == Self::Ring { "the ring" } else { "a thread" }
    }
}

/// Examines the file systems of these places, each once, in order. Missing places that are no arguments are
/// left out. The operations go to `backend`, or without one to epoll and threads.
pub fn gather(places: &[Place], backend: Option<Auto>) -> (Vec<Mount>, Vec<Failure>) {
    let (mut mounts, mut failures) = (Vec::<Candidate>::new(), Vec::new());
    let poll = || Auto::new(Policy::Poll, Ring::builder()).ok().map(|(backend, _)| backend);
    let Some(backend) = backend.or_else(poll) else {
        return (Vec::new(), failures);
    };
    let queue =
        if matches!(backend, Auto::Uring(_)) { MountRoute::Ring } else { MountRoute::Thread };
    let driver = Driver::new(backend);
    driver.set_bypass(Bypass::Rules(Rules::default()));
    for place in places {
        match Candidate::look_up(&driver, &place.path) {
            Ok(fresh) => match mounts.iter_mut().find(|known| known.is_same_mount(&fresh)) {
                Some(known) => known.paths.extend(fresh.paths),
                None => mounts.push(fresh),
            },
            Err(_) if !place.is_argument => {}
            Err(error) => {
                let (path, errno) = (place.path.clone(), error.raw_os_error());
                failures.push(Failure { path, errno, message: message(&error), error });
            }
        }
    }
    let table = MountTable::read().unwrap_or_default();
    let mounts = mounts.iter().map(|mount| mount.examine(&driver, &table, queue)).collect();
    // The shutdown does not wait for an operation that does not end.
    let _ = driver.shutdown(Duration::from_millis(100));
    (mounts, failures)
}

/// A file system after its lookup.
struct Candidate {
    device: u64,
    mount_id: Option<u64>,
    /// The examined paths on it, and their types.
    paths: Vec<(PathBuf, FileType)>,
}

impl Candidate {
    /// Looks the path up, which makes the driver learn about the file system.
    fn look_up(driver: &Driver, path: &Path) -> io::Result<Self> {
        let fd = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let at = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let wanted = StatxFlags::TYPE | StatxFlags::MNT_ID;
        let stat: Statx = rustix::fs::statx(&fd, c"", at, wanted)?;
        let device = makedev(stat.stx_dev_major, stat.stx_dev_minor);
        let has_id = stat.stx_mask & StatxFlags::MNT_ID.bits() != 0;
        driver.adopt(fd).kind();
        if !driver.mounts().iter().any(|facts| facts.device == device) {
            return Err(io::Error::other("neither a file nor a directory"));
        }
        let file_type = FileType::from_raw_mode(stat.stx_mode.into());
        Ok(Self {
            device,
            mount_id: has_id.then_some(stat.stx_mnt_id),
            paths: vec![(path.to_owned(), file_type)],
        })
    }

    fn is_same_mount(&self, other: &Self) -> bool {
        (self.mount_id, self.device) == (other.mount_id, other.device)
    }

    /// Tries everything that is safe, and returns the driver's conclusions.
    fn examine(&self, driver: &Driver, table: &MountTable, queue: MountRoute) -> Mount {
        let is_remote = self.facts(driver).is_remote;
        let (mut not_tried, mut alignment) = (None, None);
        if is_remote {
            not_tried = Some("another machine or process serves it".to_owned());
        }
        for (path, file_type) in self.paths.iter().filter(|_| !is_remote) {
            match try_out(driver, path, *file_type, &mut alignment) {
                Ok(()) => {
                    not_tried = None;
                    break;
                }
                Err(why) => not_tried = not_tried.or(Some(why)),
            }
        }
        let facts = self.facts(driver);
        let entry = match self.mount_id {
            Some(id) => table.find_by_id(id),
            None => table.find_by_device(self.device),
        };
        let [nowait_read, nowait_write] = [facts.nowait_read, facts.nowait_write].map(word);
        let route_of = |answer: Option<&str>, route| {
            (is_remote || answer.is_some()).then(|| MountRoute::of(route, queue))
        };
        Mount {
            mount_point: entry.map(|entry| lossy(entry.point.as_os_str())),
            source: entry.map(|entry| lossy(&entry.source)),
            device: format!("{}:{}", major(self.device), minor(self.device)),
            reads: route_of(nowait_read, facts.read_route()),
            writes: route_of(nowait_write, facts.write_route()),
            file_system: facts.file_system,
            is_remote,
            paths: self.paths.iter().map(|(path, _)| lossy(path.as_os_str())).collect(),
            nowait_read,
            nowait_write,
            not_tried,
            direct_memory_align: alignment.map(|(memory, _)| memory),
            direct_offset_align: alignment.map(|(_, offset)| offset),
            is_slow: facts.is_slow,
            queue,
        }
    }

    fn facts(&self, driver: &Driver) -> MountFacts {
        let mut mounts = driver.mounts().into_iter();
        mounts.find(|facts| facts.device == self.device).expect("the driver has met it")
    }
}

/// Lets the driver write and read a small file in a directory, or read an existing file. Returns the
/// alignment of direct I/O, of memory and of offsets.
///
/// # Errors
/// The reason why not everything was tried.
fn try_out(
    driver: &Driver,
    path: &Path,
    file_type: FileType,
    alignment: &mut Option<(u32, u32)>,
) -> Result<(), String> {
    let is_directory = file_type == FileType::Directory;
    if !is_directory && file_type != FileType::RegularFile {
        return Err("a device".to_owned());
    }
    let mut transfer = || {
        let fd = if is_directory {
            open_unnamed(driver, path)?
        } else {
            finish(driver, driver.open(None, c_path(path)?, OFlags::RDONLY.bits(), 0))??
        };
        let stat = finish(driver, driver.statx_fd(&fd))??;
        if stat.mask & StatxFlags::DIOALIGN.bits() != 0 {
            alignment.get_or_insert((stat.direct_memory_align, stat.direct_offset_align));
        }
        if is_directory {
            finish(driver, driver.write(&fd, vec![0; TRIAL_BYTES], 0))?.0?;
        }
        finish(driver, driver.read(&fd, vec![0; TRIAL_BYTES], 0))?.0
    };
    transfer().map_err(|error| message(&error))?;
    is_directory.then_some(()).ok_or_else(|| "no directory to write in".to_owned())
}

/// Opens a new file without a name, or removes the name at once if files must have one.
fn open_unnamed(driver: &Driver, directory: &Path) -> io::Result<sakia_driver::Fd> {
    let (flags, mode) = (OFlags::RDWR, (Mode::RUSR | Mode::WUSR).bits());
    let open = |path: &Path, more: OFlags| {
        let open = driver.open(None, c_path(path)?, (flags | more).bits(), mode);
        finish(driver, open)?
    };
    let opened = open(directory, OFlags::TMPFILE);
    let is_unknown = opened.as_ref().is_err_and(|error| {
        matches!(Errno::from_io_error(error), Some(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL))
    });
    if !is_unknown {
        return opened;
    }
    let name = directory.join(format!(".sakia-doctor-{}", std::process::id()));
    let fd = open(&name, OFlags::CREATE | OFlags::EXCL)?;
    finish(driver, driver.unlink(None, c_path(&name)?, 0))??;
    Ok(fd)
}

/// Takes turns until the operation is done, up to a time limit.
pub fn finish<O: Operation>(driver: &Driver, mut op: Op<O>) -> io::Result<O::Output> {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(output) = op.try_take() {
            return Ok(output);
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let seconds = PATIENCE.as_secs();
            return Err(io::Error::other(format!("no answer within {seconds} s")));
        }
        driver.turn(Wait::For(left))?;
    }
}

fn lossy(name: &OsStr) -> String {
    name.to_string_lossy().into_owned()
}

// ---- the human layout --------------------------------------------------------------------------

impl fmt::Display for Mount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |name: &str| Shown(OsStr::new(name)).to_string();
        let name = |name: &Option<String>| name.as_deref().map_or("unknown".to_owned(), shown);
        writeln!(f, "mount {}", name(&self.mount_point))?;
        row(f, "device", format_args!("{} ({})", name(&self.source), self.device))?;
        let file_system = if self.file_system.is_empty() { "unknown" } else { &self.file_system };
        row(f, "file system", file_system)?;
        row(f, "remote", yes(self.is_remote))?;
        let paths: Vec<_> = self.paths.iter().map(|path| shown(path)).collect();
        row(f, "paths", paths.join(", "))?;
        let can = |answer| match (answer, &self.not_tried) {
            (Some("lies"), _) => "it claims to, and answers wrongly".to_owned(),
            (Some(answer), _) => answer.to_owned(),
            (None, Some(why)) => format!("not tried: {why}"),
            (None, None) => "not tried: a limit on the size of files is in force".to_owned(),
        };
        row(f, "reads can refuse", can(self.nowait_read))?;
        row(f, "writes can refuse", can(self.nowait_write))?;
        match (self.direct_memory_align, self.direct_offset_align) {
            (Some(0), _) => row(f, "direct I/O", "no")?,
            (Some(memory), Some(offset)) => {
                let text = format_args!("memory at multiples of {memory}, offsets of {offset}");
                row(f, "direct I/O", text)?;
            }
            _ => row(f, "direct I/O", "alignment not told; 4096 is assumed")?,
        }
        row(f, "reads", self.words(self.reads))?;
        row(f, "writes", self.words(self.writes))
    }
}

impl Mount {
    fn words(&self, route: Option<MountRoute>) -> String {
        let queue = self.queue.noun();
        match route {
            None => "known after the first one".to_owned(),
            Some(MountRoute::Nowait) => format!("plain call that refuses to wait, else {queue}"),
            Some(MountRoute::Timed) if self.is_slow => {
                format!("{queue}: plain calls have just been slow")
            }
            Some(MountRoute::Timed) => format!("plain call, timed; {queue} for a while if slow"),
            Some(other) => other.noun().to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remote_file_system_is_left_alone() {
        let facts = Mount {
            mount_point: Some("/mnt".to_owned()),
            source: Some("host:/".to_owned()),
            device: "0:50".to_owned(),
            file_system: "nfs4".to_owned(),
            is_remote: true,
            paths: vec!["/mnt/a".to_owned()],
            nowait_read: None,
            nowait_write: None,
            not_tried: Some("another machine or process serves it".to_owned()),
            direct_memory_align: None,
            direct_offset_align: None,
            reads: Some(MountRoute::of(Route::Lane(sakia_driver::Lane::Elastic), MountRoute::Ring)),
            writes: Some(MountRoute::Thread),
            is_slow: false,
            queue: MountRoute::Ring,
        };
        let text = facts.to_string();
        assert!(text.contains("reads               a thread\n"), "{text}");
        assert!(text.contains("not tried: another machine"), "{text}");
    }
}
