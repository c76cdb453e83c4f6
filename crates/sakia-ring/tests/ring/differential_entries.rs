//! Every constructor of [`Sqe`] returns the same 64 bytes as the `io-uring` crate.

use io_uring::squeue::Entry;
use io_uring::{opcode, types};
use sakia_ring::{AT_FDCWD, CURRENT_POSITION, Sqe, sqe_flags};

/// Corner cases of an entry's fields.
const FDS: [i32; 3] = [0, 7, i32::MAX];
const OFFSETS: [u64; 4] = [0, 4096, i64::MAX as u64, CURRENT_POSITION];
const LENGTHS: [u32; 4] = [0, 1, 65_537, u32::MAX];

fn ours(sqe: Sqe) -> [u8; 64] {
    // SAFETY: an entry is 64 bytes of integers without padding between them.
    unsafe { std::mem::transmute(sqe) }
}

fn theirs(entry: &Entry) -> [u8; 64] {
    // SAFETY: the crate's entry is the kernel's structure: 64 bytes that its constructors zeroed
    // before they filled them.
    unsafe { std::ptr::from_ref(entry).cast::<[u8; 64]>().read() }
}

#[track_caller]
fn assert_same(sqe: Sqe, entry: Entry) {
    assert_eq!(ours(sqe), theirs(&entry), "{sqe:?}");
    let (sqe, entry) = (sqe.user_data(u64::MAX - 6), entry.user_data(u64::MAX - 6));
    assert_eq!(ours(sqe), theirs(&entry), "{sqe:?}");
}

/// Calls `f` with every combination of the numbers above.
fn each(mut f: impl FnMut(i32, u32, u64)) {
    for fd in FDS {
        for len in LENGTHS {
            for off in OFFSETS {
                f(fd, len, off);
            }
        }
    }
}

#[test]
fn nop() {
    assert_same(Sqe::nop(), opcode::Nop::new().build());
}

#[test]
fn read_and_write() {
    let mut byte = 0u8;
    let buf = &raw mut byte;
    each(|fd, len, off| {
        let entry = opcode::Read::new(types::Fd(fd), buf, len).offset(off);
        assert_same(Sqe::read(fd, buf, len, off), entry.build());
        let entry = opcode::Write::new(types::Fd(fd), buf, len).offset(off);
        assert_same(Sqe::write(fd, buf, len, off), entry.build());
    });
}

#[test]
fn readv_and_writev() {
    let iovecs = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }];
    let first = iovecs.as_ptr();
    each(|fd, count, off| {
        let entry = opcode::Readv::new(types::Fd(fd), first, count).offset(off);
        assert_same(Sqe::readv(fd, first, count, off), entry.build());
        let entry = opcode::Writev::new(types::Fd(fd), first, count).offset(off);
        assert_same(Sqe::writev(fd, first, count, off), entry.build());
    });
}

#[test]
fn read_fixed_and_write_fixed() {
    let mut byte = 0u8;
    let buf = &raw mut byte;
    for index in [0, 1, u16::MAX] {
        each(|fd, len, off| {
            let entry = opcode::ReadFixed::new(types::Fd(fd), buf, len, index).offset(off);
            assert_same(Sqe::read_fixed(fd, buf, len, off, index), entry.build());
            let entry = opcode::WriteFixed::new(types::Fd(fd), buf, len, index).offset(off);
            assert_same(Sqe::write_fixed(fd, buf, len, off, index), entry.build());
        });
    }
}

#[test]
fn fsync() {
    for fd in FDS {
        let entry = opcode::Fsync::new(types::Fd(fd));
        assert_same(Sqe::fsync(fd, false), entry.build());
        let entry = opcode::Fsync::new(types::Fd(fd)).flags(types::FsyncFlags::DATASYNC);
        assert_same(Sqe::fsync(fd, true), entry.build());
    }
}

#[test]
fn openat_and_close() {
    let path = c"some/path";
    for dir in [AT_FDCWD, 3] {
        for flags in [0, libc::O_RDWR | libc::O_CREAT | libc::O_CLOEXEC] {
            for mode in [0, 0o644, 0o7777] {
                let sqe = Sqe::openat(dir, path.as_ptr().cast(), flags as u32, mode);
                let entry = opcode::OpenAt::new(types::Fd(dir), path.as_ptr());
                assert_same(sqe, entry.flags(flags).mode(mode).build());
            }
        }
    }
    for fd in FDS {
        assert_same(Sqe::close(fd), opcode::Close::new(types::Fd(fd)).build());
    }
}

#[test]
fn statx() {
    let path = c"some/path";
    let mut answer = 0u64;
    for dir in [AT_FDCWD, 3] {
        for flags in [0, libc::AT_EMPTY_PATH, libc::AT_SYMLINK_NOFOLLOW] {
            for mask in [0, libc::STATX_BASIC_STATS, libc::STATX_ALL] {
                let path = path.as_ptr();
                let buf = &raw mut answer;
                let sqe = Sqe::statx(dir, path.cast(), flags as u32, mask, buf);
                let entry = opcode::Statx::new(types::Fd(dir), path, buf.cast());
                assert_same(sqe, entry.flags(flags).mask(mask).build());
            }
        }
    }
}

#[test]
fn poll_add() {
    for fd in FDS {
        for events in [libc::POLLIN as u32, libc::EPOLLEXCLUSIVE as u32 | 4, u32::MAX] {
            let entry = opcode::PollAdd::new(types::Fd(fd), events);
            assert_same(Sqe::poll_add(fd, events), entry.build());
        }
    }
}

#[test]
fn sockets() {
    for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC] {
        for protocol in [0, libc::IPPROTO_TCP] {
            let entry = opcode::Socket::new(libc::AF_INET6, kind, protocol).build();
            assert_same(Sqe::socket(libc::AF_INET6, kind as u32, protocol as u32), entry);
        }
    }
    for fd in FDS {
        for backlog in [0, 1, i32::MAX] {
            let entry = opcode::Listen::new(types::Fd(fd), backlog).build();
            assert_same(Sqe::listen(fd, backlog as u32), entry);
        }
        for how in [libc::SHUT_RD, libc::SHUT_WR, libc::SHUT_RDWR] {
            let entry = opcode::Shutdown::new(types::Fd(fd), how).build();
            assert_same(Sqe::shutdown(fd, how as u32), entry);
        }
    }
}

#[test]
fn addresses_of_sockets() {
    let mut name = [0_u64; 16];
    let name = name.as_mut_ptr();
    let mut room = 128_u32;
    let room = &raw mut room;
    for fd in FDS {
        for len in [0, 2, 110] {
            let entry = opcode::Connect::new(types::Fd(fd), name.cast(), len).build();
            assert_same(Sqe::connect(fd, name, len), entry);
            let entry = opcode::Bind::new(types::Fd(fd), name.cast(), len).build();
            assert_same(Sqe::bind(fd, name, len), entry);
        }
        for flags in [0, libc::SOCK_CLOEXEC] {
            let entry = opcode::Accept::new(types::Fd(fd), name.cast(), room).flags(flags);
            assert_same(Sqe::accept(fd, name, room, flags as u32), entry.build());
        }
    }
}

#[test]
fn sends_and_receives() {
    let mut byte = 0u8;
    let buf = &raw mut byte;
    // SAFETY: all fields of the structure are integers and pointers, for which zero is valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    let message = &raw mut message;
    for flags in [0, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT] {
        let bits = flags as u32;
        each(|fd, len, _| {
            let entry = opcode::Send::new(types::Fd(fd), buf, len).flags(flags);
            assert_same(Sqe::send(fd, buf, len, bits), entry.build());
            let entry = opcode::Recv::new(types::Fd(fd), buf, len).flags(flags);
            assert_same(Sqe::recv(fd, buf, len, bits), entry.build());
        });
        for fd in FDS {
            let entry = opcode::SendMsg::new(types::Fd(fd), message).flags(bits);
            assert_same(Sqe::sendmsg(fd, message, bits), entry.build());
            let entry = opcode::RecvMsg::new(types::Fd(fd), message).flags(bits);
            assert_same(Sqe::recvmsg(fd, message, bits), entry.build());
        }
    }
}

#[test]
fn cancel() {
    for user_data in [0, 1, u64::MAX] {
        let entry = opcode::AsyncCancel::new(user_data);
        assert_same(Sqe::cancel(user_data), entry.build());
    }
    let any = types::CancelBuilder::any().all();
    assert_same(Sqe::cancel_all(), opcode::AsyncCancel2::new(any).build());
}

#[test]
fn msg_ring() {
    for fd in FDS {
        for result in [0, 1, -1, i32::MIN, i32::MAX] {
            for user_data in [0, u64::MAX] {
                let entry = opcode::MsgRingData::new(types::Fd(fd), result, user_data, None);
                assert_same(Sqe::msg_ring(fd, user_data, result), entry.build());
            }
        }
    }
}

#[test]
fn flags() {
    use io_uring::squeue::Flags;
    let pairs = [
        (sqe_flags::FIXED_FILE, Flags::FIXED_FILE),
        (sqe_flags::DRAIN, Flags::IO_DRAIN),
        (sqe_flags::LINK, Flags::IO_LINK),
        (sqe_flags::HARDLINK, Flags::IO_HARDLINK),
        (sqe_flags::ASYNC, Flags::ASYNC),
        (sqe_flags::BUFFER_SELECT, Flags::BUFFER_SELECT),
        (sqe_flags::CQE_SKIP_SUCCESS, Flags::SKIP_SUCCESS),
    ];
    for (our, their) in pairs {
        let entry = opcode::Nop::new().build().flags(their);
        assert_same(Sqe::nop().flags(our), entry);
    }
    let mut byte = 0u8;
    let buf = &raw mut byte;
    let entry = opcode::Read::new(types::Fixed(5), buf, 1).build();
    assert_same(Sqe::read(5, buf, 1, 0).fixed_file(), entry);
    let entry = opcode::Read::new(types::Fd(5), buf, 1).buf_group(9).build();
    let entry = entry.flags(Flags::BUFFER_SELECT);
    assert_same(Sqe::read(5, buf, 1, 0).buffer_group(9), entry);
}
