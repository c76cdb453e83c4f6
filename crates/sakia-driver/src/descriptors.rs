//! The plain calls of this process's kernel, for every backend that acts on its descriptors; and calls on
//! descriptors by whatever kernel a driver has.

use std::ffi::{CStr, CString, OsStr};
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use linux_raw_sys::net::{SO_LINGER, SO_PEERCRED, SOL_SOCKET};
use rustix::fs::{FileType, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags};
use sakia_thread::start_thread;

use crate::address::{AddressRoom, Credentials, SocketAddress, SocketType};
use crate::backend::{Calls, FileFacts, FileKind};
use crate::call::{Call, Function, System, word};
use crate::calls::{self, open_in_cache, statx_here};
use crate::decide::{Attempt, CallMode};
use crate::mounts::{self, MountTable, RemoteMounts};
use crate::stat::StatxResult;
use crate::sys::signals::without_signals;
use crate::sys::{self, Direction, OpenHow, abi};

/// Asks for the number of a mount that no other mount ever gets, instead of that in the table of mounts.
/// Kernels before 6.8 ignore it.
const MNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(abi::STATX_MNT_ID_UNIQUE);

/// The plain calls of this process's kernel.
pub(crate) struct KernelCalls;

impl Calls for KernelCalls {
    unsafe fn try_now(&self, call: Call, mode: CallMode) -> Attempt {
        // SAFETY: the caller's duties are the same.
        unsafe { calls::try_now(call, mode) }
    }

    fn processor_time(&self) -> Duration {
        sys::processor_time()
    }

    fn waits(&self) -> u64 {
        sys::voluntary_switches()
    }

    unsafe fn close(&self, raw: i32, may_wait: bool) -> io::Result<()> {
        if may_wait {
            // SAFETY: the caller owns the descriptor, gives it up, and does not use the number any more.
            return unsafe { rustix::io::try_close(raw) }.map_err(io::Error::from);
        }
        // SAFETY: the caller gives the descriptor up.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        // If the thread cannot be started, its closure is dropped, which closes the descriptors on this
        // thread: without threads there is no other place for it.
        let close = Box::new(|| drop(fd));
        without_signals(|| start_thread("sakia-close", None, close)).map(drop).or(Ok(()))
    }

    unsafe fn facts(&self, raw: i32, stat: Option<&mut StatxResult>) -> FileFacts {
        // SAFETY: the caller keeps the descriptor open during the call.
        let fd = unsafe { BorrowedFd::borrow_raw(raw) };
        match stat.map(|stat| (stat_here(fd), stat)) {
            Some((Ok((found, facts)), stat)) => {
                *stat = found;
                facts
            }
            _ => facts(fd),
        }
    }

    unsafe fn file_system(&self, raw: i32, facts: &FileFacts) -> String {
        // SAFETY: the caller keeps the descriptor open during the call.
        let fd = unsafe { BorrowedFd::borrow_raw(raw) };
        file_system(fd, facts)
    }

    unsafe fn refusal(&self, raw: i32, direction: Direction, is_at_offset: bool) -> Option<Errno> {
        // SAFETY: the caller's duties are the same.
        unsafe { sys::refusal(direction, raw, is_at_offset) }
    }

    unsafe fn is_path_local(&self, raw: i32, path: &CStr) -> bool {
        let Ok(table) = MountTable::read() else { return false };
        // `raw` is the caller's, or a descriptor that this call has opened.
        let is_known = |raw| {
            // SAFETY: both stay open during the call.
            let fd = unsafe { BorrowedFd::borrow_raw(raw) };
            let entry = mount_number(fd).and_then(|id| table.find_by_id(id));
            entry.is_some_and(|entry| mounts::is_local(&entry.file_system))
        };
        if path.to_bytes().first() != Some(&b'/') && !is_known(raw) {
            return false;
        }
        // If only such types are mounted, no link on the way leads to another type.
        let mut types = table.entries().iter().map(|entry| &*entry.file_system);
        if types.all(|name| mounts::is_local(name) || mounts::is_made_up(name)) {
            return true;
        }
        // SAFETY: the caller's duties are the same.
        unsafe { is_known_by_place(raw, path, is_known) }
    }

    fn remote_mounts(&self) -> (RemoteMounts, PathBuf) {
        let here = rustix::process::getcwd(Vec::new()).unwrap_or_default();
        // A directory that was removed, or lies outside the root, counts as on the root's mount.
        let here = Path::new("/").join(OsStr::from_bytes(here.to_bytes()));
        (RemoteMounts::read(), here)
    }

    unsafe fn try_send(&self, raw: i32, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        // SAFETY: the caller keeps the descriptor open during the call.
        let fd = unsafe { BorrowedFd::borrow_raw(raw) };
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        Ok(match slices {
            [bytes] => rustix::net::send(fd, bytes, flags)?,
            _ => rustix::net::sendmsg(fd, slices, &mut SendAncillaryBuffer::default(), flags)?,
        })
    }

    unsafe fn try_recv(&self, raw: i32, buf: &mut [u8]) -> io::Result<usize> {
        // SAFETY: as above.
        let fd = unsafe { BorrowedFd::borrow_raw(raw) };
        let (count, _) = rustix::net::recv(fd, buf, RecvFlags::DONTWAIT)?;
        Ok(count)
    }
}

/// System calls on a descriptor, each as one [`Call`]. Their descriptors are the caller's or lent to the
/// caller, and stay open during the call.
impl dyn Calls + '_ {
    /// # Errors
    /// Those of the call; `EOPNOTSUPP` if there is none.
    ///
    /// # Safety
    ///
    /// - As [`Calls::try_now`].
    unsafe fn perform(&self, call: Call) -> Result<usize, Errno> {
        // SAFETY: the caller's duties are the same.
        match unsafe { self.try_now(call, CallMode::Blocking) } {
            Attempt::Done(res) => {
                usize::try_from(res).map_err(|_| Errno::from_raw_os_error(res.saturating_neg()))
            }
            Attempt::WouldBlock | Attempt::Unsupported => Err(Errno::OPNOTSUPP),
        }
    }

    /// Returns the address of a socket, or of its peer.
    ///
    /// # Errors
    /// As `getsockname(2)` or `getpeername(2)`.
    ///
    /// # Safety
    ///
    /// - The descriptor is open.
    pub(crate) unsafe fn address(&self, raw: i32, of: Function) -> io::Result<SocketAddress> {
        let mut room = AddressRoom::new();
        let (address, len) = room.pointers();
        let call = System::on(of, raw, [word(address), word(len)]);
        // SAFETY: the room outlives the call, which fills no more of it than its length says; the descriptor
        // is the caller's duty.
        unsafe { self.perform(call) }?;
        Ok(room.address())
    }

    /// Makes two sockets within the machine that are connected with each other and close on exec. The caller
    /// owns them.
    ///
    /// # Errors
    /// As `socketpair(2)`.
    pub(crate) fn socket_pair(&self, kind: SocketType) -> io::Result<[i32; 2]> {
        let (family, flags) = (AddressFamily::UNIX.as_raw(), SocketFlags::CLOEXEC.bits());
        let mut ends = [-1; 2];
        let room = word((&raw mut ends).cast_const());
        let args = [family.into(), (kind.0 | flags) as usize, 0, room];
        // SAFETY: the call names no descriptor, and writes to the room, which outlives it.
        unsafe { self.perform(System::of(Function::Socketpair, args)) }?;
        Ok(ends)
    }

    /// Returns the value of an option of a socket (`SOL_SOCKET`).
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    ///
    /// # Safety
    ///
    /// - The descriptor is open.
    unsafe fn option<const N: usize>(&self, raw: i32, name: u32) -> Result<[u32; N], Errno> {
        let (mut value, mut len) = ([0_u32; N], size_of::<[u32; N]>() as u32);
        let room = [word((&raw mut value).cast_const()), word((&raw mut len).cast_const())];
        let args = [SOL_SOCKET as usize, name as usize, room[0], room[1]];
        // SAFETY: both outlive the call, which fills no more of the first than the second says; the
        // descriptor is the caller's duty.
        unsafe { self.perform(System::on(Function::Getsockopt, raw, args)) }?;
        Ok(value)
    }

    /// Returns the credentials of the process that a socket is connected with, from `SO_PEERCRED`. Unlike
    /// rustix it knows a process without a number.
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    ///
    /// # Safety
    ///
    /// - The descriptor is open.
    pub(crate) unsafe fn peer_credentials(&self, raw: i32) -> io::Result<Credentials> {
        // SAFETY: the caller's duties are the same.
        let [process, user, group] = unsafe { self.option(raw, SO_PEERCRED) }?;
        Ok(Credentials { process, user, group })
    }

    /// Returns whether the close of a socket may wait, since `SO_LINGER` is set.
    ///
    /// # Safety
    ///
    /// - The descriptor is open.
    pub(crate) unsafe fn lingers(&self, raw: i32) -> bool {
        // SAFETY: the caller's duties are the same.
        let linger = unsafe { self.option(raw, SO_LINGER) };
        // A socket that does not tell may do anything.
        linger.map_or(true, |[is_on, seconds]| is_on != 0 && seconds != 0)
    }

    /// Returns the descriptor's status flags, as `F_GETFL`; none if it has no such call.
    ///
    /// # Safety
    ///
    /// - The descriptor is open.
    pub(crate) unsafe fn status_flags(&self, raw: i32) -> u32 {
        let call = System::on(Function::Fcntl, raw, [abi::F_GETFL as usize, 0]);
        // SAFETY: the descriptor is the caller's duty, and the call changes nothing.
        unsafe { self.perform(call) }.map_or(0, |flags| flags as u32)
    }

    /// Clears `O_NONBLOCK` of the descriptor.
    ///
    /// # Safety
    ///
    /// - The descriptor is open, and the open file has no other owner.
    pub(crate) unsafe fn make_blocking(&self, raw: i32) {
        // SAFETY: the caller's duties are the same.
        let flags = unsafe { self.status_flags(raw) } & !abi::O_NONBLOCK;
        let call = System::on(Function::Fcntl, raw, [abi::F_SETFL as usize, flags as usize]);
        // SAFETY: likewise. No failure is expected: the same call has just set the flag.
        let _ = unsafe { self.perform(call) };
    }

    /// Removes a name, other than a directory's, from the open directory `raw`.
    ///
    /// # Errors
    /// As `unlinkat(2)`.
    ///
    /// # Safety
    ///
    /// - The descriptor is open.
    pub(crate) unsafe fn unlink(&self, raw: i32, name: &CStr) -> io::Result<()> {
        let call = System::on(Function::Unlinkat, raw, [word(name.as_ptr()), 0]);
        // SAFETY: the name outlives the call; the descriptor is the caller's duty.
        Ok(unsafe { self.perform(call) }.map(drop)?)
    }

    /// Returns whether a write may fail because of a limit on the size of files, and then raise a signal.
    pub(crate) fn limits_file_size(&self) -> bool {
        let mut limit = [u64::MAX; 2];
        let room = word((&raw mut limit).cast_const());
        let args = [0, abi::RLIMIT_FSIZE as usize, 0, room];
        // SAFETY: the call names no descriptor, and writes to the room, which outlives it.
        let asked = unsafe { self.perform(System::of(Function::Prlimit, args)) };
        asked.is_ok() && limit[0] != u64::MAX
    }
}

/// Returns whether a path leads to a file system that `is_known` accepts, given a descriptor on it. The
/// directory of the last name has to be in the cache. The last name is looked up there, and its file must be
/// on the same mount and not be a link.
///
/// # Safety
///
/// - The descriptor is open, unless it is `AT_FDCWD`.
unsafe fn is_known_by_place(raw: i32, path: &CStr, is_known: impl Fn(i32) -> bool) -> bool {
    let how = |flags: OFlags, resolve: ResolveFlags| {
        let flags = (flags | OFlags::PATH | OFlags::CLOEXEC).bits().into();
        OpenHow { flags, mode: 0, resolve: resolve.bits() }
    };
    let (place, name) = split(path.to_bytes());
    let [place, name] = [place, name].map(|path| CString::new(path).unwrap_or_default());
    let [place_at, name_at] = [&place, &name].map(|path| path.as_ptr().expose_provenance() as u64);
    let in_directory = how(OFlags::DIRECTORY, ResolveFlags::NO_MAGICLINKS);
    // SAFETY: the path ends with a NUL, and outlives the call.
    let Ok(found) = (unsafe { open_in_cache(raw, place_at, in_directory) }) else { return false };
    if !is_known(found.as_raw_fd()) {
        return false;
    }
    let on_the_mount = how(OFlags::NOFOLLOW, ResolveFlags::NO_XDEV);
    // SAFETY: as above.
    match unsafe { sys::openat2(found.as_raw_fd(), name_at, &on_the_mount) } {
        Ok(found) => rustix::fs::fstat(&found)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) != FileType::Symlink),
        Err(errno) => errno == rustix::io::Errno::NOENT,
    }
}

/// Returns the directory in which the last name of a path is looked up, and that name.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let named = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    match path[..named].iter().rposition(|&byte| byte == b'/') {
        Some(slash) => (&path[..=slash], &path[slash + 1..named]),
        None if named == 0 && !path.is_empty() => (b"/", b"."),
        None => (b".", &path[..named]),
    }
}

/// Returns the facts about an open file on kernels without `statx(2)`.
#[cold]
fn facts_by_fstat(fd: BorrowedFd<'_>) -> FileFacts {
    match rustix::fs::fstat(fd) {
        Ok(stat) => facts_of(stat.st_mode, stat.st_size.try_into().ok(), stat.st_dev, None),
        // Unknown facts stand for the worst case.
        Err(_) => FileFacts::UNKNOWN,
    }
}

/// Returns the facts that follow from this `st_mode`. Only the size of a regular file counts as a size.
fn facts_of(mode: u32, size: Option<u64>, device: u64, mount_id: Option<u64>) -> FileFacts {
    let file_type = FileType::from_raw_mode(mode);
    let kind = match file_type {
        FileType::RegularFile | FileType::Directory | FileType::BlockDevice => FileKind::Bounded,
        _ => FileKind::Waiting,
    };
    let size = size.filter(|_| file_type == FileType::RegularFile);
    FileFacts {
        kind,
        device: Some(device),
        mount_id,
        size,
        is_anonymous: file_type == FileType::Unknown,
        is_socket: file_type == FileType::Socket,
        is_pipe: file_type == FileType::Fifo,
    }
}

/// Returns the facts of an open file, without a request to a file server.
pub(crate) fn facts(fd: BorrowedFd<'_>) -> FileFacts {
    let wanted = StatxFlags::TYPE | StatxFlags::SIZE | MNT_ID_UNIQUE;
    let Ok(stat) = statx_here(fd, wanted) else {
        return facts_by_fstat(fd);
    };
    let device = rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
    let mount = (stat.stx_mask & MNT_ID_UNIQUE.bits() != 0).then_some(stat.stx_mnt_id);
    facts_of(stat.stx_mode.into(), Some(stat.stx_size), device, mount)
}

/// Returns the status and the facts of an open file, without a request to a file server: so the status of a
/// file that a server has may be out of date.
///
/// # Errors
/// As `statx(2)`.
pub(crate) fn stat_here(fd: BorrowedFd<'_>) -> Result<(StatxResult, FileFacts), Errno> {
    let flags = abi::AT_EMPTY_PATH | abi::AT_STATX_DONT_SYNC;
    let wanted = StatxResult::BASIC | MNT_ID_UNIQUE.bits();
    let mut stat = StatxResult::default();
    let (path, result) = (c"".as_ptr().expose_provenance(), (&raw mut stat).expose_provenance());
    // SAFETY: the path is static, and the result, which has the kernel's form, outlives the call.
    unsafe { sys::statx(fd.as_raw_fd(), path as u64, flags, wanted, result as u64) }?;
    let device = rustix::fs::makedev(stat.dev_major, stat.dev_minor);
    let mount = (stat.mask & MNT_ID_UNIQUE.bits() != 0).then_some(stat.mount_id);
    Ok((stat, facts_of(stat.mode.into(), Some(stat.size), device, mount)))
}

/// Returns whether the process has a limit on the size of files (`RLIMIT_FSIZE`), at which a plain write
/// raises `SIGXFSZ`.
pub(crate) fn limits_file_size() -> bool {
    rustix::process::getrlimit(rustix::process::Resource::Fsize).current.is_some()
}

/// Returns the type of an open file's file system; empty if the table of mounts does not have it.
pub(crate) fn file_system(fd: BorrowedFd<'_>, facts: &FileFacts) -> String {
    file_system_in(&MountTable::read().unwrap_or_default(), fd, facts)
}

/// As [`file_system`], by this reading of the table.
pub(crate) fn file_system_in(table: &MountTable, fd: BorrowedFd<'_>, facts: &FileFacts) -> String {
    find_type(table, mount_number(fd), facts.device)
}

/// Returns the number of a file's mount in the table of mounts, if the kernel reports it (5.8). Later mounts
/// may have the same.
#[cold]
fn mount_number(fd: BorrowedFd<'_>) -> Option<u64> {
    let stat = statx_here(fd, StatxFlags::MNT_ID).ok()?;
    (stat.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(stat.stx_mnt_id)
}

/// Returns the type of the file system with this mount and this device; empty if the table does not have it.
fn find_type(table: &MountTable, mount: Option<u64>, device: Option<u64>) -> String {
    let entry = match (mount, device) {
        (Some(id), _) => table.find_by_id(id),
        (None, Some(device)) => table.find_by_device(device),
        (None, None) => None,
    };
    entry.map_or_else(String::new, |entry| entry.file_system.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"22 28 0:20 / /sys rw,nosuid - sysfs sysfs rw\n\
        28 1 254:0 / / rw,relatime shared:1 master:2 - ext4 /dev/root rw\n\
        31 28 254:0 /a /with\\040space rw - fuse.sshfs host:/ rw\n";

    #[test]
    fn the_type_is_found_by_mount_and_else_by_device() {
        let root = Some(rustix::fs::makedev(254, 0));
        let find = |mount, device| find_type(&MountTable::parse(TABLE), mount, device);
        assert_eq!(find(Some(31), root), "fuse.sshfs");
        assert_eq!(find(Some(28), root), "ext4");
        assert_eq!(find(None, root), "ext4");
        assert_eq!(find(Some(99), root), "");
        assert_eq!(find(None, None), "");
        let garbage = MountTable::parse(b"garbage\n\n - \n");
        assert_eq!(find_type(&garbage, Some(1), None), "");
    }

    #[test]
    fn a_path_is_split_before_its_last_name() {
        for (path, place, name) in [
            ("a", ".", "a"),
            ("a/", ".", "a"),
            ("a/b", "a/", "b"),
            ("a//b//", "a//", "b"),
            ("/a", "/", "a"),
            ("/", "/", "."),
            ("//", "/", "."),
            ("", ".", ""),
            ("..", ".", ".."),
        ] {
            assert_eq!(split(path.as_bytes()), (place.as_bytes(), name.as_bytes()), "{path}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls")]
    fn a_file_of_proc_is_known_to_be_one() {
        let file = std::fs::File::open("/proc/self/mountinfo").expect("there is /proc");
        // SAFETY: the file is open.
        let facts = unsafe { KernelCalls.facts(file.as_raw_fd(), None) };
        assert_eq!(facts.kind, FileKind::Bounded);
        // SAFETY: it still is.
        assert_eq!(unsafe { KernelCalls.file_system(file.as_raw_fd(), &facts) }, "proc");
    }

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls")]
    fn a_name_is_known_by_its_place_unless_it_leads_elsewhere() {
        let place = std::env::temp_dir().join(format!("sakia-place-{}", std::process::id()));
        std::fs::create_dir(&place).expect("a directory can be made");
        std::fs::write(place.join("file"), "").expect("so can a file");
        std::os::unix::fs::symlink("file", place.join("link")).expect("so can a link");
        let is_known = |path: &Path, accepts: bool| {
            let path = CString::new(path.as_os_str().as_bytes()).expect("there is no NUL");
            // SAFETY: the number stands for the working directory.
            unsafe { is_known_by_place(sakia_ring::AT_FDCWD, &path, |_| accepts) }
        };
        for (name, expected) in [("missing", true), ("file", true), ("link", false)] {
            assert_eq!(is_known(&place.join(name), true), expected, "{name}");
            assert!(!is_known(&place.join(name), false), "{name}");
        }
        assert!(!is_known(Path::new("/proc"), true), "another mount is there");
        std::fs::remove_dir_all(&place).expect("it is ours");
    }
}
