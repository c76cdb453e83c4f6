//! The descriptors of this process, for every backend that acts on them.

use std::ffi::{CStr, CString, OsStr};
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread;

use rustix::fs::{AtFlags, FileType, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags};
use sakia_trace::start_thread;

use crate::address::{AddressRoom, Credentials, SocketAddress, SocketType};
use crate::backend::{Descriptors, FileFacts, FileKind};
use crate::calls::{open_in_cache, statx_here};
use crate::mounts::{self, MountTable, RemoteMounts};
use crate::stat::StatxResult;
use crate::sys::signals::with_lane_mask;
use crate::sys::{self, Direction, OpenHow, abi, open};

/// Asks for the number of a mount that no other mount ever gets, instead of that in the table of mounts.
/// Kernels before 6.8 ignore it.
const MNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(abi::STATX_MNT_ID_UNIQUE);

/// The descriptors of this process.
pub(crate) struct KernelDescriptors;

impl Descriptors for KernelDescriptors {
    unsafe fn close(&self, raw: i32) -> io::Result<()> {
        // SAFETY: the caller owns the descriptor, gives it up, and does not use the number any more.
        unsafe { rustix::io::try_close(raw) }.map_err(io::Error::from)
    }

    unsafe fn close_aside(&self, raw: i32) -> io::Result<()> {
        // SAFETY: the caller gives the descriptor up.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        // If the thread cannot be started, its closure is dropped, which closes the descriptors on this
        // thread: without threads there is no other place for it.
        let closer = thread::Builder::new().name("sakia-close".into());
        with_lane_mask(|| start_thread(closer, Box::new(|| drop(fd)))).map(drop).or(Ok(()))
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

    unsafe fn facts(&self, raw: i32) -> FileFacts {
        // SAFETY: the caller keeps the descriptor open during the call.
        let fd = unsafe { BorrowedFd::borrow_raw(raw) };
        facts(fd)
    }

    unsafe fn facts_and_stat(&self, raw: i32) -> (FileFacts, StatxResult) {
        let flags = abi::AT_EMPTY_PATH | abi::AT_STATX_DONT_SYNC;
        let wanted = StatxResult::BASIC | MNT_ID_UNIQUE.bits();
        let mut stat = StatxResult::default();
        let (path, result) =
            (c"".as_ptr().expose_provenance(), (&raw mut stat).expose_provenance());
        // SAFETY: the path is static, and the result, which has the kernel's form, outlives the call.
        if unsafe { sys::statx(raw, path as u64, flags, wanted, result as u64) }.is_err() {
            // SAFETY: the caller keeps the descriptor open during the call.
            return (unsafe { self.facts(raw) }, StatxResult::default());
        }
        let device = rustix::fs::makedev(stat.dev_major, stat.dev_minor);
        let mount = (stat.mask & MNT_ID_UNIQUE.bits() != 0).then_some(stat.mount_id);
        (facts_of(stat.mode.into(), Some(stat.size), device, mount), stat)
    }

    unsafe fn lingers(&self, raw: i32) -> bool {
        // SAFETY: the caller keeps the descriptor open during the call.
        let socket = unsafe { BorrowedFd::borrow_raw(raw) };
        // A socket that does not tell may do anything.
        rustix::net::sockopt::socket_linger(socket)
            .map_or(true, |time| time.is_some_and(|time| !time.is_zero()))
    }

    unsafe fn unlink(&self, raw: i32, name: &CStr) -> io::Result<()> {
        // SAFETY: the caller keeps the descriptor open during the call.
        let directory = unsafe { BorrowedFd::borrow_raw(raw) };
        rustix::fs::unlinkat(directory, name, AtFlags::empty()).map_err(io::Error::from)
    }

    unsafe fn status_flags(&self, raw: i32) -> u32 {
        // SAFETY: as above.
        let fd = unsafe { BorrowedFd::borrow_raw(raw) };
        rustix::fs::fcntl_getfl(fd).map_or(0, |flags| flags.bits())
    }

    unsafe fn refusal(&self, raw: i32, direction: Direction, is_at_offset: bool) -> Option<Errno> {
        // SAFETY: the caller's duties are the same.
        unsafe { sys::refusal(direction, raw, is_at_offset) }
    }

    unsafe fn file_system(&self, raw: i32, facts: &FileFacts) -> String {
        // SAFETY: the caller keeps the descriptor open during the call.
        let fd = unsafe { BorrowedFd::borrow_raw(raw) };
        file_system(fd, facts)
    }

    fn remote_mounts(&self) -> (RemoteMounts, PathBuf) {
        let here = rustix::process::getcwd(Vec::new()).unwrap_or_default();
        // A directory that was removed, or lies outside the root, counts as on the root's mount.
        let here = Path::new("/").join(OsStr::from_bytes(here.to_bytes()));
        (RemoteMounts::read(), here)
    }

    fn limits_file_size(&self) -> bool {
        limits_file_size()
    }

    unsafe fn local_address(&self, raw: i32) -> io::Result<SocketAddress> {
        // SAFETY: the caller's duties are the same.
        unsafe { address_by(abi::__NR_getsockname, raw) }
    }

    unsafe fn peer_address(&self, raw: i32) -> io::Result<SocketAddress> {
        // SAFETY: the caller's duties are the same.
        unsafe { address_by(abi::__NR_getpeername, raw) }
    }

    fn socket_pair(&self, kind: SocketType) -> io::Result<[i32; 2]> {
        let kind = rustix::net::SocketType::from_raw(kind.0);
        let (family, flags) = (AddressFamily::UNIX, SocketFlags::CLOEXEC);
        let (one, other) = rustix::net::socketpair(family, kind, flags, None)?;
        Ok([one.into_raw_fd(), other.into_raw_fd()])
    }

    unsafe fn peer_credentials(&self, raw: i32) -> io::Result<Credentials> {
        // SAFETY: the caller's duties are the same.
        let [process, user, group] = unsafe { sys::peer_credentials(raw) }?;
        Ok(Credentials { process, user, group })
    }

    unsafe fn try_send(&self, raw: i32, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        // SAFETY: as above.
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

    unsafe fn make_blocking(&self, raw: i32) {
        // SAFETY: as above.
        let fd = unsafe { BorrowedFd::borrow_raw(raw) };
        // No failure is expected: the same call has just set the flag.
        let _ = open::make_blocking(fd);
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

/// Returns the address of a socket that this call gets.
///
/// # Safety
///
/// - The descriptor is the caller's or lent to the caller, and stays open during the call.
unsafe fn address_by(call: u32, raw: i32) -> io::Result<SocketAddress> {
    let mut room = AddressRoom::new();
    let (address, len) = room.pointers();
    // SAFETY: the room outlives the call, which fills no more of it than its length says; the descriptor is
    // the caller's duty.
    unsafe { sys::socket_address(call, raw, address, len) }?;
    Ok(room.address())
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

/// Returns whether the process has a limit on the size of files (`RLIMIT_FSIZE`), at which a plain write
/// raises `SIGXFSZ`.
pub(crate) fn limits_file_size() -> bool {
    rustix::process::getrlimit(rustix::process::Resource::Fsize).current.is_some()
}

/// Returns the type of an open file's file system; empty if the table of mounts does not have it.
pub(crate) fn file_system(fd: BorrowedFd<'_>, facts: &FileFacts) -> String {
    let table = MountTable::read().unwrap_or_default();
    find_type(&table, mount_number(fd), facts.device)
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
        let facts = unsafe { KernelDescriptors.facts(file.as_raw_fd()) };
        assert_eq!(facts.kind, FileKind::Bounded);
        // SAFETY: it still is.
        assert_eq!(unsafe { KernelDescriptors.file_system(file.as_raw_fd(), &facts) }, "proc");
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
