//! Operations on a descriptor, each with the plain call that it replaces.

use std::future::Future;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::pin::Pin;

use rustix::fs::{
    AtFlags, FallocateFlags, FlockOperation, Mode, OFlags, StatxFlags, Timespec, Timestamps,
};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::net::{RecvFlags, SendFlags, SocketAddrAny};
use rustix::pipe::SpliceFlags as PlainSpliceFlags;
use sakia_driver::{
    AlignedBuf, CURRENT_POSITION, ControlMessages, Fd, Handle, IoBuf, OpenHow, PollEvents, SetTime,
    ShutdownHow, Slice, SocketAddress, SpliceFlags, SyncRange,
};

use crate::answer::Told;
use crate::kinds::{CONTENT, Name, file, pipe, streams, unused_address};

type Plain = Box<dyn Fn(BorrowedFd<'_>) -> Told + Sync>;
type Ongoing = Pin<Box<dyn Future<Output = io::Result<String>>>>;
type Driven = Box<dyn Fn(&Handle, &Fd) -> Ongoing>;

/// An operation, and the call that it replaces.
pub struct Operation {
    pub name: String,
    pub plain: Plain,
    pub driven: Driven,
}

/// The list under construction.
struct List(Vec<Operation>);

impl List {
    fn add<F: Future<Output = io::Result<String>> + 'static>(
        &mut self,
        name: impl Into<String>,
        plain: impl Fn(BorrowedFd<'_>) -> Told + Sync + 'static,
        driven: impl Fn(Handle, Fd) -> F + 'static,
    ) {
        let driven: Driven = Box::new(move |handle: &Handle, fd: &Fd| {
            Box::pin(driven(handle.clone(), fd.clone())) as Ongoing
        });
        self.0.push(Operation { name: name.into(), plain: Box::new(plain), driven });
    }
}

/// Describes bytes that were read.
fn read(count: usize, buf: &[u8]) -> String {
    format!("{count} {:?}", String::from_utf8_lossy(&buf[..count.min(buf.len())]))
}

/// Returns aligned memory, as direct I/O wants it.
fn memory(len: usize, byte: u8) -> Slice<AlignedBuf> {
    let mut buf = AlignedBuf::zeroed(4096);
    buf.fill(byte);
    buf.slice(..len)
}

/// Returns two parts of such memory.
fn two(len: usize, byte: u8) -> Vec<Slice<AlignedBuf>> {
    vec![memory(len / 2, byte), memory(len - len / 2, byte)]
}

fn done<T>(result: Result<T, Errno>) -> Told {
    result.map(|_| "done".into())
}

fn counted(result: Result<usize, Errno>) -> Told {
    result.map(|count| count.to_string())
}

/// Returns all operations.
pub fn all() -> Vec<Operation> {
    let mut list = List(Vec::new());
    transfers(&mut list);
    flagged_transfers(&mut list);
    files(&mut list);
    moves(&mut list);
    sockets(&mut list);
    attributes(&mut list);
    within(&mut list);
    list.0
}

const HERE: u64 = CURRENT_POSITION;
/// Offsets: valid ones, the largest, an invalid one, and the file's position.
const PLACES: [(u64, u32); 12] = [
    (0, 8),
    (0, 1),
    (0, 4096),
    (3, 8),
    (1 << 40, 8),
    (i64::MAX as u64, 8),
    (i64::MAX as u64 - 8, 8),
    (1 << 63, 8),
    (HERE, 8),
    (HERE, 1),
    (HERE, 4),
    (HERE, 4096),
];

fn place(at: u64) -> String {
    if at == HERE { "the position".into() } else { format!("{at}") }
}

/// The places for which registered memory and several parts are tried, too.
const FEW_PLACES: [(u64, u32); 6] =
    [(0, 8), (3, 8), (1 << 63, 8), (HERE, 8), (HERE, 1), (HERE, 4096)];

/// Reads by plain calls.
fn read_at(fd: BorrowedFd<'_>, len: usize, at: u64) -> Told {
    let mut buf = memory(len, 0).into_inner();
    let buf = &mut buf[..len];
    let count = match at {
        HERE => rustix::io::read(fd, &mut *buf)?,
        _ => rustix::io::pread(fd, &mut *buf, at)?,
    };
    Ok(read(count, buf))
}

/// Writes by plain calls.
fn write_at(fd: BorrowedFd<'_>, len: usize, at: u64) -> Told {
    let buf = memory(len, b'w').into_inner();
    counted(match at {
        HERE => rustix::io::write(fd, &buf[..len]),
        _ => rustix::io::pwrite(fd, &buf[..len], at),
    })
}

fn transfers(list: &mut List) {
    for (at, len) in PLACES {
        let len = len as usize;
        list.add(
            format!("read of {len} at {}", place(at)),
            move |fd| read_at(fd, len, at),
            move |driver, fd| async move {
                let (result, buf) = driver.read(&fd, memory(len, 0), at).await;
                Ok(read(result?, &buf.into_inner()))
            },
        );
    }
    for (at, len) in PLACES.into_iter().chain([(0, 0), (HERE, 0)]) {
        let len = len as usize;
        list.add(
            format!("write of {len} at {}", place(at)),
            move |fd| write_at(fd, len, at),
            move |driver, fd| async move {
                let written = driver.write(&fd, memory(len, b'w'), at).await.0;
                written.map(|count| count.to_string())
            },
        );
    }
    for (at, len) in FEW_PLACES {
        reads_of_other_forms(list, at, len as usize);
    }
    for (at, len) in FEW_PLACES.into_iter().chain([(0, 0), (HERE, 0)]) {
        writes_of_other_forms(list, at, len as usize);
    }
}

fn reads_of_other_forms(list: &mut List, at: u64, len: usize) {
    let name = format!("of {len} at {}", place(at));
    list.add(
        format!("read_fixed {name}"),
        move |fd| read_at(fd, len, at),
        move |driver, fd| async move {
            let (result, block) = driver.read_fixed(&fd, crate::block().slice(..len), at).await;
            Ok(read(result?, &block.into_inner()))
        },
    );
    list.add(
        format!("read_vectored {name}"),
        move |fd| {
            let mut parts = two(len, 0).into_iter().map(Slice::into_inner).collect::<Vec<_>>();
            let lens = [len / 2, len - len / 2];
            let slices = parts.iter_mut().zip(lens);
            let mut slices: Vec<_> =
                slices.map(|(part, len)| IoSliceMut::new(&mut part[..len])).collect();
            let count = match at {
                HERE => rustix::io::readv(fd, &mut slices)?,
                _ => rustix::io::preadv(fd, &mut slices, at)?,
            };
            let all = [&parts[0][..lens[0]], &parts[1][..lens[1]]].concat();
            Ok(read(count, &all))
        },
        move |driver, fd| async move {
            let (result, parts) = driver.read_vectored(&fd, two(len, 0), at).await;
            let mut parts = parts.into_iter().map(Slice::into_inner);
            let mut next = |len: usize| parts.next().expect("there are two")[..len].to_vec();
            let all = [next(len / 2), next(len - len / 2)].concat();
            Ok(read(result?, &all))
        },
    );
}

fn writes_of_other_forms(list: &mut List, at: u64, len: usize) {
    let name = format!("of {len} at {}", place(at));
    list.add(
        format!("write_fixed {name}"),
        move |fd| write_at(fd, len, at),
        move |driver, fd| async move {
            let mut block = crate::block();
            block.fill(b'w');
            let written = driver.write_fixed(&fd, block.slice(..len), at).await.0;
            written.map(|count| count.to_string())
        },
    );
    list.add(
        format!("write_vectored {name}"),
        move |fd| {
            let buf = memory(4096, b'w').into_inner();
            let parts = [IoSlice::new(&buf[..len / 2]), IoSlice::new(&buf[..len - len / 2])];
            counted(match at {
                HERE => rustix::io::writev(fd, &parts),
                _ => rustix::io::pwritev(fd, &parts, at),
            })
        },
        move |driver, fd| async move {
            let written = driver.write_vectored(&fd, two(len, b'w'), at).await.0;
            written.map(|count| count.to_string())
        },
    );
}

fn flagged_transfers(list: &mut List) {
    const FLAGS: [ReadWriteFlags; 4] = [
        ReadWriteFlags::NOWAIT,
        ReadWriteFlags::DSYNC,
        ReadWriteFlags::SYNC,
        ReadWriteFlags::APPEND,
    ];
    for flags in FLAGS {
        for at in [0, HERE] {
            let name = format!("with {flags:?} at {}", place(at));
            list.add(
                format!("read_with {name}"),
                move |fd| {
                    let mut buf = vec![0; 8];
                    let parts = &mut [IoSliceMut::new(&mut buf)];
                    let count = rustix::io::preadv2(fd, parts, at, flags)?;
                    Ok(read(count, &buf))
                },
                move |driver, fd| async move {
                    let read_with = driver.read_with(&fd, vec![0; 8], at, flags.bits());
                    let (result, buf) = read_with.await;
                    Ok(read(result?, &buf))
                },
            );
            list.add(
                format!("read_vectored_with {name}"),
                move |fd| {
                    let mut buf = vec![0; 8];
                    let parts = &mut [IoSliceMut::new(&mut buf)];
                    let count = rustix::io::preadv2(fd, parts, at, flags)?;
                    Ok(read(count, &buf))
                },
                move |driver, fd| async move {
                    let parts = vec![vec![0; 8]];
                    let read_with = driver.read_vectored_with(&fd, parts, at, flags.bits());
                    let (result, bufs) = read_with.await;
                    Ok(read(result?, &bufs.concat()))
                },
            );
            list.add(
                format!("write_with {name}"),
                move |fd| {
                    counted(rustix::io::pwritev2(fd, &[IoSlice::new(b"12345678")], at, flags))
                },
                move |driver, fd| async move {
                    let write = driver.write_with(&fd, "12345678", at, flags.bits());
                    write.await.0.map(|count| count.to_string())
                },
            );
            list.add(
                format!("write_vectored_with {name}"),
                move |fd| {
                    counted(rustix::io::pwritev2(fd, &[IoSlice::new(b"12345678")], at, flags))
                },
                move |driver, fd| async move {
                    let write = driver.write_vectored_with(&fd, vec!["12345678"], at, flags.bits());
                    write.await.0.map(|count| count.to_string())
                },
            );
        }
    }
}

fn files(list: &mut List) {
    list.add(
        "fsync",
        |fd| done(rustix::fs::fsync(fd)),
        |driver, fd| async move { driver.fsync(&fd, false).await.map(|()| "done".into()) },
    );
    list.add(
        "fdatasync",
        |fd| done(rustix::fs::fdatasync(fd)),
        |driver, fd| async move { driver.fsync(&fd, true).await.map(|()| "done".into()) },
    );
    list.add(
        "syncfs",
        |fd| done(rustix::fs::syncfs(fd)),
        |driver, fd| async move { driver.syncfs(&fd).await.map(|()| "done".into()) },
    );
    for (offset, len, how) in [(0, 0, 2), (3, 5, 7), (u64::MAX, 1, 2), (0, 0, 8)] {
        list.add(
            format!("sync_file_range of {len} at {offset}, {how}"),
            move |fd| {
                // SAFETY: the call has no memory.
                let result = unsafe {
                    libc::sync_file_range(fd.as_raw_fd(), offset as i64, len, how as u32)
                };
                if result == 0 { Ok("done".into()) } else { Err(last_errno()) }
            },
            move |driver, fd| async move {
                let sync = driver.sync_file_range(&fd, offset, len as u64, SyncRange(how as u32));
                sync.await.map(|()| "done".into())
            },
        );
    }
    for (mode, offset, len) in
        [(0, 0, 4096), (1, 0, 4096), (3, 0, 8), (0, 0, 0), (0, 1 << 63, 1), (1 << 20, 0, 1)]
    {
        list.add(
            format!("fallocate {mode} of {len} at {offset}"),
            move |fd| {
                let flags = FallocateFlags::from_bits_retain(mode);
                done(rustix::fs::fallocate(fd, flags, offset, len))
            },
            move |driver, fd| async move {
                driver.fallocate(&fd, mode, offset, len).await.map(|()| "done".into())
            },
        );
    }
    for len in [0, 8, 1 << 20, 1 << 63] {
        list.add(
            format!("truncate to {len}"),
            move |fd| done(rustix::fs::ftruncate(fd, len)),
            move |driver, fd| async move { driver.truncate(&fd, len).await.map(|()| "done".into()) },
        );
    }
    for (advice, len) in [(0, 0), (1, 100), (3, 8), (4, 0), (9, 0), (0, 1 << 33)] {
        list.add(
            format!("advise {advice} of {len}"),
            move |fd| {
                // SAFETY: the call has no memory.
                let code = unsafe { libc::posix_fadvise(fd.as_raw_fd(), 0, len as i64, advice) };
                if code == 0 { Ok("done".into()) } else { Err(Errno::from_raw_os_error(code)) }
            },
            move |driver, fd| async move {
                driver.advise(&fd, 0, len, advice as u32).await.map(|()| "done".into())
            },
        );
    }
    list.add(
        "read_directory",
        |fd| {
            let mut buf = vec![0_u8; 4096];
            // SAFETY: the buffer outlives the call.
            let count = unsafe {
                libc::syscall(libc::SYS_getdents64, fd.as_raw_fd(), buf.as_mut_ptr(), buf.len())
            };
            if count < 0 { Err(last_errno()) } else { Ok(count.to_string()) }
        },
        |driver, fd| async move {
            let (result, _) = driver.read_directory(&fd, vec![0; 4096]).await;
            result.map(|count| count.to_string())
        },
    );
    for operation in [
        // Shared ones: all anonymous files of the machine have one lock.
        FlockOperation::LockShared,
        FlockOperation::NonBlockingLockShared,
        FlockOperation::Unlock,
    ] {
        list.add(
            format!("flock {operation:?}"),
            move |fd| done(rustix::fs::flock(fd, operation)),
            move |driver, fd| async move {
                driver.flock(&fd, operation as u32).await.map(|()| "done".into())
            },
        );
    }
    for events in [PollEvents::READABLE, PollEvents::WRITABLE, PollEvents(2)] {
        list.add(
            format!("poll {:#x}", events.0),
            move |fd| {
                let reads = events.contains(PollEvents::READABLE);
                let hang_up = if reads { libc::POLLRDHUP } else { 0 };
                let mut polled = libc::pollfd {
                    fd: fd.as_raw_fd(),
                    events: events.0 as i16 | hang_up,
                    revents: 0,
                };
                // SAFETY: one entry, which outlives the call.
                let count = unsafe { libc::poll(&raw mut polled, 1, -1) };
                if count < 0 {
                    return Err(last_errno());
                }
                if polled.revents & libc::POLLNVAL != 0 {
                    return Err(Errno::BADF);
                }
                Ok(format!("{:#x}", polled.revents))
            },
            move |driver, fd| async move {
                driver.poll(&fd, events).await.map(|events| format!("{:#x}", events.0))
            },
        );
    }
    list.add(
        "close",
        |fd| {
            let copy = rustix::io::fcntl_dupfd_cloexec(fd, 0)?;
            // SAFETY: the copy is this function's, which gives it up.
            done(unsafe { rustix::io::try_close(copy.into_raw_fd()) })
        },
        |driver, fd| async move {
            let copy = rustix::io::fcntl_dupfd_cloexec(fd.peek(), 0)?;
            let copy = crate::adopt(copy);
            driver.close(copy).await.map(|()| "done".into())
        },
    );
}

fn last_errno() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).expect("it is an errno")
}

/// Returns a regular file that is not the subject.
fn partner() -> OwnedFd {
    file(&Name::on_disk(), OFlags::RDWR).expect("a file can be made")
}

fn moves(list: &mut List) {
    for at in [0, HERE, 1 << 63] {
        let name = place(at);
        list.add(
            format!("copy_file_range from {name}"),
            move |fd| {
                let to = partner();
                let (mut from_at, mut to_at) = (at, 0);
                let from_at = (at != HERE).then_some(&mut from_at);
                counted(rustix::fs::copy_file_range(fd, from_at, &to, Some(&mut to_at), 4))
            },
            move |driver, fd| async move {
                let to = crate::adopt(partner());
                let copied = driver.copy_file_range(&fd, at, &to, 0, 4).await;
                copied.map(|count| count.to_string())
            },
        );
        list.add(
            format!("copy_file_range to {name}"),
            move |fd| {
                let from = partner();
                let (mut from_at, mut to_at) = (0, at);
                let to_at = (at != HERE).then_some(&mut to_at);
                counted(rustix::fs::copy_file_range(&from, Some(&mut from_at), fd, to_at, 4))
            },
            move |driver, fd| async move {
                let from = crate::adopt(partner());
                let copied = driver.copy_file_range(&from, 0, &fd, at, 4).await;
                copied.map(|count| count.to_string())
            },
        );
        list.add(
            format!("splice from {name}"),
            move |fd| {
                let (_reader, writer) = pipe();
                let mut from_at = at;
                let from_at = (at != HERE).then_some(&mut from_at);
                let flags = PlainSpliceFlags::empty();
                counted(rustix::pipe::splice(fd, from_at, &writer, None, 4, flags))
            },
            move |driver, fd| async move {
                let (_reader, writer) = pipe();
                let writer = crate::adopt(writer);
                let flags = SpliceFlags::default();
                let moved = driver.splice(&fd, at, &writer, HERE, 4, flags).await;
                moved.map(|count| count.to_string())
            },
        );
        list.add(
            format!("splice to {name}"),
            move |fd| {
                let (reader, writer) = pipe();
                rustix::io::write(&writer, CONTENT)?;
                let mut to_at = at;
                let to_at = (at != HERE).then_some(&mut to_at);
                let flags = PlainSpliceFlags::empty();
                counted(rustix::pipe::splice(&reader, None, fd, to_at, 4, flags))
            },
            move |driver, fd| async move {
                let (reader, writer) = pipe();
                rustix::io::write(&writer, CONTENT)?;
                let reader = crate::adopt(reader);
                let flags = SpliceFlags::default();
                let moved = driver.splice(&reader, HERE, &fd, at, 4, flags).await;
                moved.map(|count| count.to_string())
            },
        );
        if at == HERE {
            continue; // a file is sent from an offset
        }
        list.add(
            format!("send_file of it from {name}"),
            move |fd| {
                let (near, _far) = streams();
                near.set_nonblocking(true).expect("it has a mode");
                let mut from_at = at;
                if rustix::pipe::fcntl_getpipe_size(fd).is_ok() {
                    // `sendfile(2)` takes no pipe.
                    let flags = PlainSpliceFlags::NONBLOCK;
                    return counted(rustix::pipe::splice(fd, None, &near, None, 4, flags));
                }
                counted(rustix::fs::sendfile(&near, fd, Some(&mut from_at), 4))
            },
            move |driver, fd| async move {
                let (near, _far) = streams();
                near.set_nonblocking(true)?;
                let near = driver.connection(crate::adopt(near.into()));
                near.send_file(&fd, at, 4).await.map(|count| count.to_string())
            },
        );
    }
}

fn address() -> (SocketAddrAny, SocketAddress) {
    let address = unused_address();
    (SocketAddrAny::from(address), SocketAddress::from(address))
}

fn sockets(list: &mut List) {
    for (flags, len) in [(0, 8), (0, 1), (libc::MSG_DONTWAIT, 8), (libc::MSG_PEEK, 8)] {
        let plain_flags = RecvFlags::from_bits_retain(flags as u32);
        list.add(
            format!("recv of {len} with {flags:#x}"),
            move |fd| {
                let mut buf = vec![0; len];
                let (count, _) = rustix::net::recv(fd, &mut buf[..], plain_flags)?;
                Ok(read(count, &buf))
            },
            move |driver, fd| async move {
                let (result, buf) = driver.recv(&fd, vec![0; len], flags as u32).await;
                Ok(read(result?, &buf))
            },
        );
        list.add(
            format!("recv_from of {len} with {flags:#x}"),
            move |fd| {
                let mut buf = vec![0; len];
                let (_, count, _) = rustix::net::recvfrom(fd, &mut buf[..], plain_flags)?;
                Ok(read(count, &buf))
            },
            move |driver, fd| async move {
                let (result, buf) = driver.recv_from(&fd, vec![0; len], flags as u32).await;
                Ok(read(result?.datagram_len, &buf))
            },
        );
        list.add(
            format!("recv_message of {len} with {flags:#x}"),
            move |fd| {
                let mut buf = vec![0; len];
                let (count, _) = rustix::net::recv(fd, &mut buf[..], plain_flags)?;
                Ok(read(count, &buf))
            },
            move |driver, fd| async move {
                let (result, buf) = driver.recv_message(&fd, vec![0; len], 64, flags as u32).await;
                Ok(read(result?.0.len, &buf))
            },
        );
        list.add(
            format!("recv_vectored of {len} with {flags:#x}"),
            move |fd| {
                let mut buf = vec![0; len];
                let (count, _) = rustix::net::recv(fd, &mut buf[..], plain_flags)?;
                Ok(read(count, &buf))
            },
            move |driver, fd| async move {
                let recv = driver.recv_vectored(&fd, vec![vec![0; len]], flags as u32);
                let (result, bufs) = recv.await;
                Ok(read(result?, &bufs.concat()))
            },
        );
    }
    for (flags, len) in [(0, 8), (0, 0), (libc::MSG_DONTWAIT, 8), (libc::MSG_MORE, 8)] {
        let plain_flags = SendFlags::from_bits_retain(flags as u32) | SendFlags::NOSIGNAL;
        list.add(
            format!("send of {len} with {flags:#x}"),
            move |fd| counted(rustix::net::send(fd, &vec![b's'; len], plain_flags)),
            move |driver, fd| async move {
                let sent = driver.send(&fd, vec![b's'; len], flags as u32).await.0;
                sent.map(|count| count.to_string())
            },
        );
        list.add(
            format!("send_vectored of {len} with {flags:#x}"),
            move |fd| counted(rustix::net::send(fd, &vec![b's'; len], plain_flags)),
            move |driver, fd| async move {
                let sent = driver.send_vectored(&fd, vec![vec![b's'; len]], flags as u32).await.0;
                sent.map(|count| count.to_string())
            },
        );
        list.add(
            format!("send_to of {len} with {flags:#x}"),
            move |fd| {
                let (to, _) = address();
                counted(rustix::net::sendto(fd, &vec![b's'; len], plain_flags, &to))
            },
            move |driver, fd| async move {
                let (_, to) = address();
                let sent = driver.send_to(&fd, vec![b's'; len], &to, flags as u32).await.0;
                sent.map(|count| count.to_string())
            },
        );
        list.add(
            format!("send_message of {len} with {flags:#x}"),
            move |fd| counted(rustix::net::send(fd, &vec![b's'; len], plain_flags)),
            move |driver, fd| async move {
                let (buf, to) = (vec![b's'; len], SocketAddress::UNNAMED);
                let control = ControlMessages::new();
                let sent = driver.send_message(&fd, buf, &to, control, flags as u32).await.0;
                sent.map(|count| count.to_string())
            },
        );
    }
    list.add(
        "accept",
        |fd| done(rustix::net::acceptfrom(fd)),
        |driver, fd| async move { driver.accept(&fd).await.map(|_| "done".into()) },
    );
    list.add(
        "incoming",
        |fd| done(rustix::net::accept(fd)),
        |driver, fd| async move { driver.incoming(fd).accept().await.map(|_| "done".into()) },
    );
    list.add(
        "recv of a connection",
        |fd| {
            let mut buf = vec![0; 16];
            let (count, _) = rustix::net::recv(fd, &mut buf[..], RecvFlags::empty())?;
            Ok(read(count, &buf))
        },
        |driver, fd| async move {
            let connection = driver.connection(fd);
            let bytes = connection.recv().await?;
            Ok(read(bytes.len(), &bytes))
        },
    );
    list.add(
        "read of a connection",
        |fd| {
            let mut buf = vec![0; 16];
            let (count, _) = rustix::net::recv(fd, &mut buf[..], RecvFlags::empty())?;
            Ok(read(count, &buf))
        },
        |driver, fd| async move {
            let (result, buf) = driver.connection(fd).read(vec![0; 16]).await;
            Ok(read(result?, &buf))
        },
    );
    list.add(
        "send of a connection",
        |fd| counted(rustix::net::send(fd, &[b's'; 8], SendFlags::NOSIGNAL)),
        |driver, fd| async move {
            driver.connection(fd).send(vec![b's'; 8]).await.0.map(|count| count.to_string())
        },
    );
    list.add(
        "bind",
        |fd| done(rustix::net::bind(fd, &address().0)),
        |driver, fd| async move { driver.bind(&fd, &address().1).await.map(|()| "done".into()) },
    );
    list.add(
        "listen",
        |fd| done(rustix::net::listen(fd, 4)),
        |driver, fd| async move { driver.listen(&fd, 4).await.map(|()| "done".into()) },
    );
    list.add(
        "connect",
        |fd| done(rustix::net::connect(fd, &address().0)),
        |driver, fd| async move { driver.connect(&fd, &address().1).await.map(|()| "done".into()) },
    );
    for how in [ShutdownHow::Receives, ShutdownHow::Sends, ShutdownHow::Both] {
        list.add(
            format!("shutdown {how:?}"),
            move |fd| {
                // SAFETY: the call has no memory.
                let result = unsafe { libc::shutdown(fd.as_raw_fd(), how as i32) };
                if result == 0 { Ok("done".into()) } else { Err(last_errno()) }
            },
            move |driver, fd| async move {
                driver.shutdown_socket(&fd, how).await.map(|()| "done".into())
            },
        );
    }
    list.add(
        "local_address",
        |fd| done(rustix::net::getsockname(fd)),
        |driver, fd| async move { driver.local_address(&fd).map(|_| "done".into()) },
    );
    list.add(
        "peer_address",
        |fd| done(rustix::net::getpeername(fd)),
        |driver, fd| async move { driver.peer_address(&fd).map(|_| "done".into()) },
    );
    list.add(
        "peer_credentials",
        |fd| {
            let mut credentials = [0_u32; 3];
            let mut len = 12_u32;
            // SAFETY: twelve bytes, as the length says.
            let result = unsafe {
                libc::getsockopt(
                    fd.as_raw_fd(),
                    libc::SOL_SOCKET,
                    libc::SO_PEERCRED,
                    credentials.as_mut_ptr().cast(),
                    &raw mut len,
                )
            };
            match (result, credentials) {
                (0, [0, ..]) => Err(Errno::NOTCONN), // nobody
                (0, _) => Ok("done".into()),
                _ => Err(last_errno()),
            }
        },
        |driver, fd| async move { driver.peer_credentials(&fd).map(|_| "done".into()) },
    );
}

fn attributes(list: &mut List) {
    list.add(
        "statx",
        |fd| {
            let stat = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
            Ok(format!("{:o} {}", stat.stx_mode, stat.stx_size))
        },
        |driver, fd| async move {
            driver.statx_fd(&fd).await.map(|stat| format!("{:o} {}", stat.mode, stat.size))
        },
    );
    list.add(
        "statfs",
        |fd| Ok(format!("{:#x}", rustix::fs::fstatfs(fd)?.f_type)),
        |driver, fd| async move {
            driver.statfs(&fd).await.map(|result| format!("{:#x}", result.magic))
        },
    );
    list.add(
        "get_xattr",
        |fd| counted(rustix::fs::fgetxattr(fd, c"user.none", &mut [0; 64][..])),
        |driver, fd| async move {
            let get = driver.get_xattr(&fd, c"user.none".into(), vec![0; 64]);
            get.await.0.map(|count| count.to_string())
        },
    );
    list.add(
        "list_xattr",
        |fd| counted(rustix::fs::flistxattr(fd, &mut [0_u8; 64][..])),
        |driver, fd| async move {
            driver.list_xattr(&fd, vec![0; 64]).await.0.map(|count| count.to_string())
        },
    );
    list.add(
        "set_xattr",
        |fd| done(rustix::fs::fsetxattr(fd, c"user.some", b"x", rustix::fs::XattrFlags::empty())),
        |driver, fd| async move {
            let set = driver.set_xattr(&fd, c"user.some".into(), b"x".to_vec(), 0);
            set.await.map(|()| "done".into())
        },
    );
    list.add(
        "remove_xattr",
        |fd| done(rustix::fs::fremovexattr(fd, c"user.none")),
        |driver, fd| async move {
            driver.remove_xattr(&fd, c"user.none".into()).await.map(|()| "done".into())
        },
    );
    list.add(
        "chmod",
        |fd| {
            let mode = rustix::fs::fstat(fd)?.st_mode;
            done(rustix::fs::fchmod(fd, Mode::from_raw_mode(mode)))
        },
        |driver, fd| async move {
            let mode = driver.statx_fd(&fd).await?.mode;
            driver.chmod_fd(&fd, u32::from(mode) & 0o7777).await.map(|()| "done".into())
        },
    );
    list.add(
        "chown",
        |fd| done(rustix::fs::fchown(fd, None, None)),
        |driver, fd| async move { driver.chown_fd(&fd, None, None).await.map(|()| "done".into()) },
    );
    list.add(
        "utimens",
        |fd| {
            let now = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
            done(rustix::fs::futimens(fd, &Timestamps { last_access: now, last_modification: now }))
        },
        |driver, fd| async move {
            driver.utimens_fd(&fd, SetTime::Now, SetTime::Now).await.map(|()| "done".into())
        },
    );
}

/// Operations on a name relative to the descriptor.
fn within(list: &mut List) {
    list.add(
        "open within",
        |fd| done(rustix::fs::openat(fd, c"within", OFlags::RDONLY, Mode::empty())),
        |driver, fd| async move {
            driver.open(Some(&fd), c"within".into(), 0, 0).await.map(|_| "done".into())
        },
    );
    list.add(
        "openat2 within",
        |fd| {
            let resolve = rustix::fs::ResolveFlags::BENEATH;
            done(rustix::fs::openat2(fd, c"within", OFlags::RDONLY, Mode::empty(), resolve))
        },
        |driver, fd| async move {
            let how = OpenHow { resolve: OpenHow::BENEATH, ..OpenHow::default() };
            driver.openat2(Some(&fd), c"within".into(), how).await.map(|_| "done".into())
        },
    );
    list.add(
        "create within",
        |fd| {
            let flags = OFlags::RDWR | OFlags::CREATE;
            done(rustix::fs::openat(fd, c"new", flags, Mode::RWXU))
        },
        |driver, fd| async move {
            let flags = (OFlags::RDWR | OFlags::CREATE).bits();
            driver.open(Some(&fd), c"new".into(), flags, 0o700).await.map(|_| "done".into())
        },
    );
    list.add(
        "statx within",
        |fd| done(rustix::fs::statx(fd, c"within", AtFlags::empty(), StatxFlags::BASIC_STATS)),
        |driver, fd| async move {
            driver.statx(Some(&fd), c"within".into(), 0).await.map(|_| "done".into())
        },
    );
    list.add(
        "mkdir within",
        |fd| done(rustix::fs::mkdirat(fd, c"new", Mode::RWXU)),
        |driver, fd| async move {
            driver.mkdir(Some(&fd), c"new".into(), 0o700).await.map(|()| "done".into())
        },
    );
    list.add(
        "unlink within",
        |fd| done(rustix::fs::unlinkat(fd, c"within", AtFlags::empty())),
        |driver, fd| async move {
            driver.unlink(Some(&fd), c"within".into(), 0).await.map(|()| "done".into())
        },
    );
    list.add(
        "rename within",
        |fd| done(rustix::fs::renameat(fd, c"within", fd, c"moved")),
        |driver, fd| async move {
            let rename = driver.rename(Some(&fd), c"within".into(), Some(&fd), c"moved".into(), 0);
            rename.await.map(|()| "done".into())
        },
    );
    list.add(
        "link within",
        |fd| done(rustix::fs::linkat(fd, c"within", fd, c"other", AtFlags::empty())),
        |driver, fd| async move {
            let link = driver.link(Some(&fd), c"within".into(), Some(&fd), c"other".into(), 0);
            link.await.map(|()| "done".into())
        },
    );
    list.add(
        "symlink within",
        |fd| done(rustix::fs::symlinkat(c"target", fd, c"link")),
        |driver, fd| async move {
            let symlink = driver.symlink(c"target".into(), Some(&fd), c"link".into());
            symlink.await.map(|()| "done".into())
        },
    );
    list.add(
        "readlink within",
        |fd| done(rustix::fs::readlinkat(fd, c"within", Vec::new())),
        |driver, fd| async move {
            let readlink = driver.readlink(Some(&fd), c"within".into(), vec![0; 64]);
            readlink.await.0.map(|_| "done".into())
        },
    );
    list.add(
        "readlink of itself",
        |fd| done(rustix::fs::readlinkat(fd, c"", Vec::new())),
        |driver, fd| async move {
            driver.readlink(Some(&fd), c"".into(), vec![0; 64]).await.0.map(|_| "done".into())
        },
    );
    list.add(
        "chmod within",
        |fd| done(rustix::fs::chmodat(fd, c"within", Mode::RWXU, AtFlags::empty())),
        |driver, fd| async move {
            driver.chmod(Some(&fd), c"within".into(), 0o700, 0).await.map(|()| "done".into())
        },
    );
    list.add(
        "chown within",
        |fd| done(rustix::fs::chownat(fd, c"within", None, None, AtFlags::empty())),
        |driver, fd| async move {
            driver.chown(Some(&fd), c"within".into(), None, None, 0).await.map(|()| "done".into())
        },
    );
    list.add(
        "utimens within",
        |fd| {
            let now = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
            let times = Timestamps { last_access: now, last_modification: now };
            done(rustix::fs::utimensat(fd, c"within", &times, AtFlags::empty()))
        },
        |driver, fd| async move {
            let now = SetTime::Now;
            let set = driver.utimens(Some(&fd), c"within".into(), now, now, 0);
            set.await.map(|()| "done".into())
        },
    );
}
