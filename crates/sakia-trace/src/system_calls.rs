//! Names of system calls.

use linux_raw_sys::general as abi;

use crate::{Name, StaticName};

/// `io_uring_enter(2)`, which submits the operations that were queued before.
pub(crate) const ENTER: u32 = abi::__NR_io_uring_enter;

/// Returns the name of a call by its number: those that Sakia makes. All others share a name.
pub(crate) fn name(number: u16) -> Name {
    let index = BY_NUMBER.get(usize::from(number)).copied().unwrap_or(u8::MAX);
    let name = NAMES.get(usize::from(index)).unwrap_or(&OTHER);
    name.get()
}

static OTHER: StaticName = StaticName::new("another system call");

/// The names of [`CALLS`].
static NAMES: [StaticName; CALLS.len()] = {
    let mut names = [const { StaticName::new("") }; CALLS.len()];
    let mut index = 0;
    while index < CALLS.len() {
        names[index] = StaticName::new(CALLS[index].1);
        index += 1;
    }
    names
};

/// The indexes in [`CALLS`] by the number. A thread looks a number up for each call that was recorded.
static BY_NUMBER: [u8; 512] = {
    let mut table = [u8::MAX; 512];
    let mut index = 0;
    while index < CALLS.len() {
        table[CALLS[index].0 as usize] = index as u8;
        index += 1;
    }
    table
};

/// Returns the number of a call by its name; an invalid number if the name is unknown.
pub(crate) fn number(name: &str) -> u32 {
    let mut slot = hash(name.as_bytes());
    while let Some((number, known)) = CALLS.get(usize::from(BY_NAME[slot])) {
        if *known == name {
            return *number;
        }
        slot = (slot + 1) % SLOTS;
    }
    u32::MAX
}

/// Slots of [`BY_NAME`]: more than twice the calls, so that searches are short.
const SLOTS: usize = 256;

/// The indexes in [`CALLS`] by the hash of the name, or in the next free slot if that is taken. A thread
/// looks a name up for each call that it records.
static BY_NAME: [u8; SLOTS] = {
    let mut table = [u8::MAX; SLOTS];
    let mut index = 0;
    while index < CALLS.len() {
        let mut slot = hash(CALLS[index].1.as_bytes());
        while table[slot] != u8::MAX {
            slot = (slot + 1) % SLOTS;
        }
        table[slot] = index as u8;
        index += 1;
    }
    table
};

/// Returns the FNV-1a hash.
const fn hash(name: &[u8]) -> usize {
    let (mut hash, mut index) = (0x811c_9dc5_u32, 0);
    while index < name.len() {
        hash = (hash ^ name[index] as u32).wrapping_mul(0x0100_0193);
        index += 1;
    }
    (hash ^ hash >> 16) as usize % SLOTS
}

macro_rules! calls {
    ($($number:ident $name:literal,)*) => {
        &[$((abi::$number, $name),)*]
    };
}

const CALLS: &[(u32, &str)] = calls! {
    __NR_newfstatat "newfstatat",
    __NR_mknodat "mknodat",
    __NR_lremovexattr "lremovexattr",
    __NR_fremovexattr "fremovexattr",
    __NR_lsetxattr "lsetxattr",
    __NR_lgetxattr "lgetxattr",
    __NR_getxattr "getxattr",
    __NR_llistxattr "llistxattr",
    __NR_listxattr "listxattr",
    __NR_flistxattr "flistxattr",
    __NR_accept4 "accept4",
    __NR_bind "bind",
    __NR_cachestat "cachestat",
    __NR_close "close",
    __NR_connect "connect",
    __NR_copy_file_range "copy_file_range",
    __NR_epoll_ctl "epoll_ctl",
    __NR_epoll_pwait2 "epoll_pwait2",
    __NR_epoll_pwait "epoll_pwait",
    __NR_eventfd2 "eventfd2",
    __NR_fadvise64 "fadvise64",
    __NR_fallocate "fallocate",
    __NR_fchmod "fchmod",
    __NR_fchmodat "fchmodat",
    __NR_fchmodat2 "fchmodat2",
    __NR_fchown "fchown",
    __NR_fchownat "fchownat",
    __NR_fcntl "fcntl",
    __NR_fdatasync "fdatasync",
    __NR_fgetxattr "fgetxattr",
    __NR_flock "flock",
    __NR_fsetxattr "fsetxattr",
    __NR_fstat "fstat",
    __NR_fstatfs "fstatfs",
    __NR_fsync "fsync",
    __NR_ftruncate "ftruncate",
    __NR_getdents64 "getdents64",
    __NR_getpeername "getpeername",
    __NR_getrusage "getrusage",
    __NR_getsockname "getsockname",
    __NR_getsockopt "getsockopt",
    __NR_io_uring_enter "io_uring_enter",
    __NR_io_uring_register "io_uring_register",
    __NR_io_uring_setup "io_uring_setup",
    __NR_ioctl "ioctl",
    __NR_linkat "linkat",
    __NR_listen "listen",
    __NR_lseek "lseek",
    __NR_mkdirat "mkdirat",
    __NR_openat "openat",
    __NR_openat2 "openat2",
    __NR_ppoll "ppoll",
    __NR_pread64 "pread64",
    __NR_preadv "preadv",
    __NR_preadv2 "preadv2",
    __NR_pwrite64 "pwrite64",
    __NR_pwritev "pwritev",
    __NR_pwritev2 "pwritev2",
    __NR_read "read",
    __NR_readlinkat "readlinkat",
    __NR_readv "readv",
    __NR_recvfrom "recvfrom",
    __NR_recvmmsg "recvmmsg",
    __NR_recvmsg "recvmsg",
    __NR_renameat2 "renameat2",
    __NR_rt_sigaction "rt_sigaction",
    __NR_rt_sigpending "rt_sigpending",
    __NR_rt_sigprocmask "rt_sigprocmask",
    __NR_rt_sigtimedwait "rt_sigtimedwait",
    __NR_sendfile "sendfile",
    __NR_sendmmsg "sendmmsg",
    __NR_sendmsg "sendmsg",
    __NR_sendto "sendto",
    __NR_setsockopt "setsockopt",
    __NR_shutdown "shutdown",
    __NR_socket "socket",
    __NR_splice "splice",
    __NR_statfs "statfs",
    __NR_statx "statx",
    __NR_symlinkat "symlinkat",
    __NR_sync_file_range "sync_file_range",
    __NR_syncfs "syncfs",
    __NR_unlinkat "unlinkat",
    __NR_utimensat "utimensat",
    __NR_write "write",
    __NR_writev "writev",
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_to_numbers_and_back() {
        assert!(2 * CALLS.len() < SLOTS);
        for (known, its_name) in CALLS {
            let found = (number(its_name), name(*known as u16));
            assert_eq!(found, (*known, Name::register(its_name)));
        }
        for unknown in ["", "fork", "opena", "openat3"] {
            assert_eq!(number(unknown), u32::MAX, "{unknown}");
        }
        for unknown in [abi::__NR_getpid as u16, u16::MAX] {
            assert_eq!(name(unknown), OTHER.get());
        }
    }
}
