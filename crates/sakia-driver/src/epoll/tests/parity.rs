//! The same entries give the same results on the ring and on this backend.
//!
//! If the ring's result depends on the kernel, the case lists the alternatives.

use std::rc::Rc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use sakia_ring::{IoVec, Opcode};

use super::*;
use crate::sys::Message;
use crate::{StatxResult, Uring};

/// `MSG_NOSIGNAL`.
const NO_SIGNAL: u32 = 0x4000;

/// The objects of the cases, made anew for each backend, so that both find the same state.
struct Stage {
    dir: TempDir,
    file: OwnedFd,
    read_only: OwnedFd,
    folder: OwnedFd,
    anchor: OwnedFd,
    zero: OwnedFd,
    reader: OwnedFd,
    writer: OwnedFd,
    near: OwnedFd,
    far: OwnedFd,
    event: OwnedFd,
    unconnected: OwnedFd,
    idle: OwnedFd,
    buffer: Lendable,
    /// Other memory that the cases lend.
    lent: std::cell::RefCell<Vec<Rc<Lendable>>>,
}

impl Stage {
    fn new() -> Self {
        let dir = TempDir::new();
        let path = dir.file("file", b"0123456789");
        dir.fifo("fifo");
        std::os::unix::fs::symlink("nowhere", dir.join("dangling")).unwrap();
        let open = |path: &Path, flags| rustix::fs::open(path, flags, 0.into()).unwrap();
        let (reader, writer) = pipe();
        let (near, far) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .unwrap();
        Self {
            file: open(&path, OFlags::RDWR),
            read_only: open(&path, OFlags::RDONLY),
            folder: open(&dir.0, OFlags::RDONLY),
            anchor: open(&path, OFlags::PATH),
            zero: open(Path::new("/dev/zero"), OFlags::RDWR),
            reader,
            writer,
            near,
            far,
            event: eventfd(0, EventfdFlags::CLOEXEC).unwrap(),
            unconnected: rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)
                .unwrap(),
            idle: rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap(),
            buffer: Lendable::zeroed(64),
            lent: std::cell::RefCell::default(),
            dir,
        }
    }

    fn lend(&self, bytes: &[u8]) -> *mut u8 {
        let lent = Rc::new(Lendable::new(bytes));
        self.lent.borrow_mut().push(Rc::clone(&lent));
        lent.ptr()
    }

    fn path(&self, name: &str) -> *mut u8 {
        self.lend(c_path(&self.dir.join(name)).to_bytes_with_nul())
    }

    fn open(&self, name: &str, flags: OFlags) -> Sqe {
        Sqe::openat(AT_FDCWD, self.path(name), flags.bits(), 0o600)
    }

    fn statx(&self, dir: i32, path: *mut u8, flags: u32) -> Sqe {
        let result = self.lend(&[0; 256]).cast::<StatxResult>();
        Sqe::statx(dir, path, flags, StatxResult::BASIC, result)
    }
}

/// Returns every entry, each to be run by itself. A resulting descriptor is left open.
fn cases(stage: &Stage) -> Vec<(&'static str, Sqe)> {
    let Stage { file, read_only, folder, anchor, zero, reader, writer, near, far, .. } = stage;
    let (event, buffer) = (&stage.event, &stage.buffer);
    let raw = |fd: &OwnedFd| fd.as_raw_fd();
    let part = |len| IoVec { base: buffer.ptr(), len };
    let vector = Box::leak(Box::new([part(2), IoVec::EMPTY, part(3)])).as_ptr();
    let empty = stage.lend(b"\0");
    let null = std::ptr::null_mut::<u8>();
    let unix = stage.lend(b"\x01\0\0sakia-none");
    let parts = IoVec { base: buffer.ptr(), len: 4 };
    let parts = Box::leak(Box::new(parts));
    let message = Box::leak(Box::new(Message::new((null, 0), parts)));
    let message = std::ptr::from_mut(message);
    let at_empty = rustix::fs::AtFlags::EMPTY_PATH.bits();
    let mut linked = Sqe::nop();
    linked.personality = 999;
    vec![
        ("no-op", Sqe::nop()),
        ("no-op with result", Sqe::nop_with_result(-5)),
        ("unknown personality", linked),
        ("unknown operation", Sqe::new(Opcode(250), 0, 0, 0, 0)),
        ("file read", read(file, buffer, 3)),
        ("file read at the position", read(file, buffer, CURRENT_POSITION)),
        ("file read at its end", read(file, buffer, CURRENT_POSITION)),
        ("file read of nothing", Sqe::read(raw(file), buffer.ptr(), 0, 0)),
        ("file read far away", read(file, buffer, 1 << 62)),
        ("file read at a negative offset", read(file, buffer, 1 << 63)),
        ("file write far away", write(file, buffer, 1 << 62)),
        ("file write", Sqe::write(raw(file), buffer.ptr(), 4, 8)),
        ("file write with sync", Sqe::write(raw(file), buffer.ptr(), 4, 8).op_flags(2)),
        ("file vectors", Sqe::readv(raw(file), vector, 3, 1)),
        ("file no vectors", Sqe::readv(raw(file), vector, 0, 1)),
        ("too many vectors", Sqe::readv(raw(file), vector, 1025, 1)),
        ("too many vectors to a socket", Sqe::writev(raw(near), vector, 1025, 0)),
        ("unknown transfer flags", read(file, buffer, 0).op_flags(1 << 25)),
        ("read-only write", write(read_only, buffer, 0)),
        ("folder read", read(folder, buffer, 0)),
        ("anchor read", read(anchor, buffer, 0)),
        ("anchor fsync", Sqe::fsync(raw(anchor), false)),
        ("bad read", Sqe::read(-1, buffer.ptr(), 1, 0)),
        ("fixed without a buffer", Sqe::read_fixed(raw(file), buffer.ptr(), 1, 0, 0)),
        ("zero read", read(zero, buffer, CURRENT_POSITION)),
        ("zero write", write(zero, buffer, 9)),
        ("pipe write with offset", Sqe::write(raw(writer), buffer.ptr(), 5, 77)),
        ("pipe write at a negative offset", Sqe::write(raw(writer), buffer.ptr(), 1, 1 << 63)),
        ("pipe write at the last offset", Sqe::write(raw(writer), buffer.ptr(), 1, u64::MAX >> 1)),
        ("socket write at the last offset", Sqe::write(raw(near), buffer.ptr(), 1, u64::MAX >> 1)),
        ("socket read at a negative offset", Sqe::read(raw(near), buffer.ptr(), 1, 1 << 63)),
        ("zero read at a negative offset", Sqe::read(raw(zero), buffer.ptr(), 1, 1 << 63)),
        ("event write at the last offset", Sqe::write(raw(event), buffer.ptr(), 8, u64::MAX >> 1)),
        ("pipe read with offset", Sqe::read(raw(reader), buffer.ptr(), 4, 99)),
        ("pipe read of nothing", Sqe::read(raw(reader), buffer.ptr(), 0, 0)),
        ("pipe vectors", Sqe::readv(raw(reader), vector, 3, 0)),
        ("pipe wrong end", receive(writer, buffer)),
        ("pipe other wrong end", send(reader, buffer)),
        ("pipe fsync", Sqe::fsync(raw(reader), false)),
        ("pipe nowait", receive(reader, buffer).op_flags(8)),
        ("socket write", Sqe::write(raw(near), buffer.ptr(), 5, 0)),
        ("socket write with offset", Sqe::write(raw(near), buffer.ptr(), 5, 1)),
        ("socket read with offset", Sqe::read(raw(far), buffer.ptr(), 5, 1)),
        ("socket read", receive(far, buffer)),
        ("socket read of nothing", Sqe::read(raw(far), buffer.ptr(), 0, 0)),
        ("socket nowait", receive(far, buffer).op_flags(8)),
        ("socket fsync", Sqe::fsync(raw(near), true)),
        ("unconnected read", receive(&stage.unconnected, buffer)),
        ("unconnected write", send(&stage.unconnected, buffer)),
        ("socket", Sqe::socket(77, 1, 0)),
        ("socket of an unknown type", Sqe::socket(2, 99, 0)),
        ("bind to no address", Sqe::bind(raw(&stage.unconnected), buffer.ptr(), 0)),
        ("bind to another family's address", Sqe::bind(raw(&stage.unconnected), unix, 3)),
        ("listen on a connection", Sqe::listen(raw(near), 1)),
        ("listen on a pipe", Sqe::listen(raw(reader), 1)),
        ("bad accept", Sqe::accept(-1, null, null.cast(), 0)),
        ("accept on a connection", Sqe::accept(raw(near), null, null.cast(), 0)),
        ("accept on an idle socket", Sqe::accept(raw(&stage.unconnected), null, null.cast(), 0)),
        ("accept on a pipe", Sqe::accept(raw(reader), null, null.cast(), 0)),
        ("accept on a file", Sqe::accept(raw(file), null, null.cast(), 0)),
        ("accept with unknown flags", Sqe::accept(raw(near), null, null.cast(), 1 << 20)),
        ("connect of a pipe", Sqe::connect(raw(reader), unix, 3)),
        ("connect to nobody", Sqe::connect(raw(&stage.idle), unix, 12)),
        ("connect to another family's address", Sqe::connect(raw(&stage.unconnected), unix, 12)),
        ("connect to a short address", Sqe::connect(raw(&stage.unconnected), unix, 1)),
        ("send", Sqe::send(raw(near), buffer.ptr(), 5, 0)),
        ("send of nothing", Sqe::send(raw(near), buffer.ptr(), 0, 0)),
        ("send on a pipe", Sqe::send(raw(writer), buffer.ptr(), 5, 0)),
        ("send on a file", Sqe::send(raw(file), buffer.ptr(), 5, 0)),
        ("send from nowhere", Sqe::send(raw(near), null, 5, 0)),
        ("unconnected send", Sqe::send(raw(&stage.unconnected), buffer.ptr(), 5, NO_SIGNAL)),
        ("recv with a peek", Sqe::recv(raw(far), buffer.ptr(), 3, 2)),
        ("recv", Sqe::recv(raw(far), buffer.ptr(), 64, 0)),
        ("recv that must not wait", Sqe::recv(raw(far), buffer.ptr(), 64, 0x40)),
        ("unconnected recv", Sqe::recv(raw(&stage.unconnected), buffer.ptr(), 64, 0)),
        ("bad recv", Sqe::recv(-1, buffer.ptr(), 64, 0)),
        ("message", Sqe::sendmsg(raw(near), message, 0)),
        ("message received", Sqe::recvmsg(raw(far), message, 0)),
        ("message from nowhere", Sqe::sendmsg(raw(near), null, 0)),
        ("shutdown of one direction", Sqe::shutdown(raw(near), 1)),
        ("send after it", Sqe::send(raw(near), buffer.ptr(), 5, NO_SIGNAL)),
        ("recv after it", Sqe::recv(raw(far), buffer.ptr(), 5, 0)),
        ("shutdown of an unknown direction", Sqe::shutdown(raw(near), 9)),
        ("shutdown of an idle socket", Sqe::shutdown(raw(&stage.unconnected), 2)),
        ("poll of what hears no more", Sqe::poll_add(raw(far), 0x1)),
        ("shutdown of a pipe", Sqe::shutdown(raw(reader), 2)),
        ("event write", Sqe::write(raw(event), stage.lend(&1_u64.to_ne_bytes()), 8, 0)),
        ("event read", Sqe::read(raw(event), buffer.ptr(), 8, 0)),
        ("event short read", Sqe::read(raw(event), buffer.ptr(), 4, 0)),
        ("poll of a file", Sqe::poll_add(raw(file), 0x5)),
        ("poll of a file for what it never has", Sqe::poll_add(raw(file), 0x2)),
        ("poll of a pipe's end", Sqe::poll_add(raw(writer), 0x5)),
        ("poll of a socket", Sqe::poll_add(raw(near), 0x5)),
        ("poll of an unconnected socket", Sqe::poll_add(raw(&stage.unconnected), 0x1)),
        ("bad poll", Sqe::poll_add(-1, 1)),
        ("fsync", Sqe::fsync(raw(file), false)),
        ("fdatasync", Sqe::fsync(raw(file), true)),
        ("fsync with unknown flags", Sqe::fsync(raw(file), false).op_flags(2)),
        ("statx", stage.statx(AT_FDCWD, stage.path("file"), 0)),
        ("statx of a descriptor", stage.statx(raw(file), empty, at_empty)),
        ("statx of nothing", stage.statx(AT_FDCWD, empty, 0)),
        ("statx of what is missing", stage.statx(AT_FDCWD, stage.path("missing"), 0)),
        ("statx in what is no folder", stage.statx(raw(file), stage.lend(b"x\0"), 0)),
        ("statx with unknown flags", stage.statx(AT_FDCWD, stage.path("file"), 1 << 30)),
        ("open of what is missing", stage.open("missing", OFlags::RDONLY)),
        ("open of a dangling link", stage.open("dangling", OFlags::RDONLY)),
        ("open of a link itself", stage.open("dangling", OFlags::RDONLY | OFlags::NOFOLLOW)),
        ("open below a file", stage.open("file/x", OFlags::RDONLY)),
        ("open of a folder to write", stage.open("", OFlags::WRONLY)),
        ("open of a file as a folder", stage.open("file", OFlags::DIRECTORY)),
        ("open of what exists", stage.open("file", OFlags::CREATE | OFlags::EXCL)),
        ("open of a FIFO to write", stage.open("fifo", OFlags::WRONLY | OFlags::NONBLOCK)),
        ("cancel of nothing", Sqe::cancel(12_345)),
        ("cancel of nothing by descriptor", Sqe::cancel_fd(raw(reader))),
        ("cancel of everything", Sqe::cancel_all()),
        ("cancel by a bad descriptor", Sqe::cancel_fd(-1)),
        ("cancel with unknown flags", Sqe::cancel(1).op_flags(1 << 30)),
        ("bad close", Sqe::close(-1)),
    ]
}

/// Runs the entries one after another on the ring.
fn results(ring: &mut Uring, stage: &Stage) -> Vec<(&'static str, i32)> {
    let mut results = Vec::new();
    for (name, sqe) in cases(stage) {
        // SAFETY: the stage and the leaked vectors are kept until the completion.
        unsafe { ring.push(sqe.user_data(7)) }.unwrap();
        ring.enter(1, Some(PATIENCE), None).unwrap();
        let mut out = [Cqe::default(); 2];
        assert_eq!(ring.reap(&mut out), 1, "{name}");
        results.push((name, out[0].res));
    }
    results
}

/// Runs the same entries as calls of the backend.
fn call_results(stage: &Stage) -> Vec<(&'static str, i32)> {
    let mut test = Loop::new();
    cases(stage).into_iter().map(|(name, sqe)| (name, test.run(sqe))).collect()
}

#[test]
fn each_entry_has_the_rings_result() {
    let mut ring = match Uring::new() {
        Ok(ring) => ring,
        Err(error) => {
            eprintln!("SKIP {}: {error}", module_path!());
            return;
        }
    };
    let theirs = results(&mut ring, &Stage::new());
    let ours = call_results(&Stage::new());
    let differing: Vec<_> = ours.iter().zip(&theirs).filter(|(a, b)| a != b).collect();
    assert!(differing.is_empty(), "ours and the ring's: {differing:#?}");
}
