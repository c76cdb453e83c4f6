//! The objects of a program, their model, and the steps.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{self, File};
use std::future::Future;
use std::io::Read as _;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll as Polled, Waker};

use rustix::net::SendFlags;
use sakia_driver::{
    CURRENT_POSITION, Close, Connection, ControlMessage, ControlMessages, Driver, Fd, Op, Poll,
    PollEvents, Read, RecvBuf, SocketAddress, SocketType, Wait, Write,
};

use super::program::{Step, Verb};
use crate::support::{TempDir, drain, errno, finish, identity, turn_until};

const BLOCKS: usize = 4;
const WORDS: usize = 32;
const BLOCK_BYTES: usize = 8 * WORDS;
/// The files of a program; streams follow.
const FILES: usize = 3;
/// The most streams of a program: their bytes have to fit into one.
const STREAMS_MAX: usize = 100;

/// The number of an object: of a file or a stream.
type Object = usize;

/// A block of a file: which values it may have.
#[derive(Default)]
struct Block {
    allowed: Vec<u64>,
    /// Writes under way, dropped ones included.
    writes: u32,
    /// Dropped ones among them.
    dropped: u32,
    /// Some of them were under way together, and may end in any order.
    is_contested: bool,
}

enum Kind {
    File {
        path: PathBuf,
        blocks: [Block; BLOCKS],
    },
    /// The peer's end.
    Stream {
        far: UnixStream,
    },
}

/// An operation under way.
enum Task {
    ReadBlock(Op<Read<Vec<u8>>>),
    WriteBlock(Op<Write<Vec<u8>>>, usize, u64),
    ReadByte(Op<Read<Vec<u8>>>),
    WriteByte(Op<Write<Vec<u8>>>),
    Poll(Op<Poll>),
    Receive(Pin<Box<dyn Future<Output = std::io::Result<RecvBuf>>>>),
    Close(Op<Close>),
}

/// A borrowed descriptor, whose owner keeps it open.
struct Lent(BorrowedFd<'static>);

impl AsFd for Lent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0
    }
}

/// The driver, what a program holds, and what it must find.
pub struct World {
    objects: Vec<Kind>,
    /// Descriptors of the program.
    outside: Vec<(Object, Arc<OwnedFd>)>,
    fds: Vec<(Object, Fd)>,
    connections: Vec<(Object, Connection)>,
    tasks: Vec<(Object, Task)>,
    /// Numbers that stay in use for ever, because a handle or an operation was forgotten.
    forgotten: BTreeMap<i32, Option<PathBuf>>,
    /// Closes whose result was dropped: perhaps that another clone was being closed.
    closes_dropped: u64,
    /// The last value that was written.
    last: u64,
    driver: Driver,
    _folder: TempDir,
}

impl World {
    pub fn new(driver: Driver) -> Self {
        let folder = TempDir::new();
        let objects = (0..FILES).map(|file| {
            let path = folder.join(&file.to_string());
            fs::write(&path, encoded(file, 0).repeat(BLOCKS)).unwrap();
            let blocks = [(); BLOCKS].map(|()| Block { allowed: vec![0], ..Block::default() });
            Kind::File { path, blocks }
        });
        Self {
            objects: objects.collect(),
            outside: Vec::new(),
            fds: Vec::new(),
            connections: Vec::new(),
            tasks: Vec::new(),
            forgotten: BTreeMap::new(),
            closes_dropped: 0,
            last: 0,
            driver,
            _folder: folder,
        }
    }

    /// Plays the steps, ends the driver, and checks what is left.
    pub fn play(mut self, steps: &[Step]) {
        for step in steps {
            self.step(*step);
            self.check_numbers();
        }
        self.end();
    }

    fn step(&mut self, Step { verb, which, place }: Step) {
        let which = usize::from(which);
        match verb {
            Verb::Open => self.open(which),
            Verb::OpenHere => self.open_here(which),
            Verb::Adopt => self.adopt(which),
            Verb::AdoptAgain => self.adopt_again(which),
            Verb::Lend => {
                if let Some((object, fd)) = latest(&self.outside, which) {
                    self.fds.push((*object, self.driver.lend(Arc::clone(fd))));
                }
            }
            Verb::LendAgain => {
                if let Some((object, fd)) = latest(&self.fds, which) {
                    // SAFETY: the loan is a clone of `fd`, so the driver drops the borrow at once.
                    let lent = Lent(unsafe { BorrowedFd::borrow_raw(fd.raw()) });
                    let lent = self.driver.lend(Arc::new(lent));
                    self.fds.push((*object, lent));
                }
            }
            Verb::Duplicate => self.duplicate(which, place),
            Verb::Pass => self.pass(which, false),
            Verb::PassAndDrop => self.pass(which, true),
            Verb::Give => {
                if let Some((object, fd)) = take_latest(&mut self.fds, which) {
                    match fd.into_owned() {
                        Ok(owned) => self.outside.push((object, Arc::new(owned))),
                        Err(fd) => self.fds.push((object, fd)),
                    }
                }
            }
            Verb::Drop => drop(take_latest(&mut self.fds, which)),
            Verb::DropOutside => drop(take_latest(&mut self.outside, which)),
            Verb::Forget => {
                if let Some((_, fd)) = take_latest(&mut self.fds, which) {
                    self.forgotten.insert(fd.raw(), identity(fd.raw()));
                    std::mem::forget(fd);
                }
            }
            Verb::Close => {
                if let Some((object, fd)) = take_latest(&mut self.fds, which) {
                    self.tasks.push((object, Task::Close(self.driver.close(fd))));
                }
            }
            Verb::Read => self.read(which, place),
            Verb::Write => self.write(which, place),
            Verb::Poll => {
                if let Some((object, fd)) = latest(&self.fds, which) {
                    let poll = self.driver.poll(fd, PollEvents::READABLE);
                    self.tasks.push((*object, Task::Poll(poll)));
                }
            }
            Verb::Receive => self.receive(which, place),
            Verb::HangUp => {
                if let Some(Kind::Stream { far }) = latest(&self.objects, which) {
                    far.shutdown(std::net::Shutdown::Write).unwrap();
                }
            }
            Verb::Finish => self.finish(which),
            Verb::DropOperation => {
                if let Some((object, task)) = take_latest(&mut self.tasks, which) {
                    self.note_dropped(object, &task);
                    drop(task);
                }
            }
            Verb::Cancel => match latest_mut(&mut self.tasks, which) {
                Some((_, Task::ReadByte(op))) => op.cancel(),
                Some((_, Task::ReadBlock(op))) => op.cancel(),
                Some((_, Task::WriteBlock(op, ..))) => op.cancel(),
                Some((_, Task::Poll(op))) => op.cancel(),
                _ => {}
            },
            Verb::ForgetOperation => self.forget_operation(which),
            Verb::Turn => drop(self.driver.turn(Wait::Poll).unwrap()),
            Verb::Drain => self.drain(),
        }
    }

    // ---- descriptors -----------------------------------------------------------------------------

    /// Opens a file, or makes a stream.
    fn open(&mut self, which: usize) {
        if which < FILES {
            let Kind::File { path, .. } = &self.objects[which] else { unreachable!("a file") };
            let file = File::options().read(true).write(true).open(path).unwrap();
            self.outside.push((which, Arc::new(file.into())));
        } else if self.objects.len() < STREAMS_MAX {
            let (near, far) = UnixStream::pair().unwrap();
            far.set_nonblocking(true).unwrap();
            self.outside.push((self.objects.len(), Arc::new(near.into())));
            self.objects.push(Kind::Stream { far });
        }
    }

    fn open_here(&mut self, which: usize) {
        const READ_WRITE: u32 = 2;
        let which = which % FILES;
        let Kind::File { path, .. } = &self.objects[which] else { unreachable!("a file") };
        let path = CString::new(path.clone().into_os_string().into_encoded_bytes()).unwrap();
        let fd = finish(&self.driver, &mut self.driver.open(None, path, READ_WRITE, 0)).unwrap();
        self.fds.push((which, fd));
    }

    /// Gives a descriptor to the driver, unless a loan or another owner has it.
    fn adopt(&mut self, which: usize) {
        let Some((object, fd)) = take_latest(&mut self.outside, which) else { return };
        match Arc::try_unwrap(fd) {
            Ok(owned) => self.fds.push((object, self.driver.adopt(owned))),
            Err(shared) => self.outside.push((object, shared)),
        }
    }

    fn adopt_again(&mut self, which: usize) {
        let Some((_, fd)) = latest(&self.fds, which) else { return };
        let raw = fd.raw();
        let before = identity(raw);
        // SAFETY: the number has another owner. The driver refuses it, and closes nothing.
        let second = unsafe { OwnedFd::from_raw_fd(raw) };
        let silent = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let adopted = catch_unwind(AssertUnwindSafe(|| self.driver.adopt(second)));
        std::panic::set_hook(silent);
        assert!(adopted.is_err(), "{raw} has two owners");
        assert_eq!(identity(raw), before, "the second owner closed {raw}");
    }

    fn duplicate(&mut self, which: usize, place: u8) {
        let duplicate = |fd: BorrowedFd<'_>| Arc::new(fd.try_clone_to_owned().unwrap());
        if place < 2 {
            if let Some((object, fd)) = latest(&self.outside, which) {
                self.outside.push((*object, duplicate(fd.as_fd())));
            }
        } else if let Some((object, fd)) = latest(&self.fds, which) {
            self.outside.push((*object, duplicate(fd.as_fd())));
        }
    }

    fn pass(&mut self, which: usize, is_dropped: bool) {
        let driver = &self.driver;
        let Some((object, fd)) = latest(&self.fds, which) else { return };
        let (near, far) = driver.socket_pair(SocketType::STREAM).unwrap();
        let control = ControlMessages::new().descriptor(fd);
        let mut send = driver.send_message(&near, "x", &SocketAddress::UNNAMED, control, 0);
        finish(driver, &mut send).0.unwrap();
        let mut receive = driver.recv_message(&far, vec![0; 1], ControlMessage::space(4), 0);
        if is_dropped {
            driver.turn(Wait::Poll).unwrap();
            return;
        }
        let (_, mut control) = finish(driver, &mut receive).0.unwrap();
        self.fds.push((*object, control.descriptors.pop().unwrap()));
    }

    /// Checks that handles with the same number lead to the same object, and that none was closed.
    fn check_numbers(&self) {
        let mut objects = BTreeMap::new();
        for (object, fd) in &self.fds {
            assert_eq!(objects.entry(fd.raw()).or_insert(*object), object, "{fd:?}");
            if let Kind::File { path, .. } = &self.objects[*object] {
                assert_eq!(identity(fd.raw()).as_ref(), Some(path), "{fd:?}");
            }
        }
    }

    // ---- operations ------------------------------------------------------------------------------

    fn read(&mut self, which: usize, place: u8) {
        let Some((object, fd)) = latest(&self.fds, which) else { return };
        let task = match &self.objects[*object] {
            Kind::File { .. } => {
                let offset = u64::from(place) * BLOCK_BYTES as u64;
                Task::ReadBlock(self.driver.read(fd, vec![0; BLOCK_BYTES], offset))
            }
            Kind::Stream { .. } => {
                Task::ReadByte(self.driver.read(fd, vec![0; 1], CURRENT_POSITION))
            }
        };
        self.tasks.push((*object, task));
    }

    fn write(&mut self, which: usize, place: u8) {
        let Some((object, fd)) = latest(&self.fds, which) else { return };
        let task = match &mut self.objects[*object] {
            Kind::File { blocks, .. } => {
                self.last += 1;
                let block = &mut blocks[usize::from(place)];
                block.allowed.push(self.last);
                block.is_contested |= block.writes > 0;
                block.writes += 1;
                let offset = u64::from(place) * BLOCK_BYTES as u64;
                let write = self.driver.write(fd, encoded(*object, self.last), offset);
                Task::WriteBlock(write, place.into(), self.last)
            }
            Kind::Stream { .. } => {
                let byte = vec![*object as u8];
                Task::WriteByte(self.driver.write(fd, byte, CURRENT_POSITION))
            }
        };
        self.tasks.push((*object, task));
    }

    /// Receives a message of a stream; its peer may send one.
    fn receive(&mut self, which: usize, place: u8) {
        let Some((object, fd)) = latest(&self.fds, which) else { return };
        let Kind::Stream { far } = &self.objects[*object] else { return };
        if place.is_multiple_of(2) {
            send_byte(far, *object);
        }
        let connection = self.driver.connection(fd.clone());
        self.connections.push((*object, connection.clone()));
        let receive = Box::pin(async move { connection.recv().await });
        let (object, mut task) = (*object, Task::Receive(receive));
        if !self.take(object, &mut task) {
            self.tasks.push((object, task));
        }
    }

    fn finish(&mut self, which: usize) {
        let Some((object, mut task)) = take_latest(&mut self.tasks, which) else { return };
        let must_end = matches!(task, Task::ReadBlock(_) | Task::WriteBlock(..));
        while !self.take(object, &mut task) {
            if !must_end {
                self.driver.turn(Wait::Poll).unwrap();
                if !self.take(object, &mut task) {
                    self.tasks.push((object, task));
                }
                return;
            }
            self.driver.turn(Wait::Forever).unwrap();
        }
    }

    /// Takes and checks the result of an operation. Returns false if it is not done.
    fn take(&mut self, object: Object, task: &mut Task) -> bool {
        match task {
            Task::ReadBlock(op) => {
                let Some((result, buf)) = op.try_take() else { return false };
                if let Some(count) = unless_canceled(result) {
                    assert_eq!(count, BLOCK_BYTES);
                    assert_eq!(owners(&buf), [object], "a read of another file");
                }
            }
            Task::WriteBlock(op, place, value) => {
                let Some((result, _)) = op.try_take() else { return false };
                let Kind::File { blocks, .. } = &mut self.objects[object] else { unreachable!() };
                let block = &mut blocks[*place];
                block.writes -= 1;
                if let Some(count) = unless_canceled(result) {
                    assert_eq!(count, BLOCK_BYTES);
                    if block.writes == 0 && !block.is_contested {
                        block.allowed = vec![*value];
                    }
                }
            }
            Task::ReadByte(op) => {
                let Some((result, buf)) = op.try_take() else { return false };
                let count = unless_canceled(result).unwrap_or(0);
                check_bytes(object, &buf[..count]);
            }
            Task::WriteByte(op) => {
                let Some((result, _)) = op.try_take() else { return false };
                unless_canceled(result);
            }
            Task::Poll(op) => {
                let Some(result) = op.try_take() else { return false };
                unless_canceled(result);
            }
            Task::Receive(receive) => match poll_once(receive.as_mut()) {
                Polled::Pending => return false,
                Polled::Ready(Ok(bytes)) => check_bytes(object, &bytes),
                Polled::Ready(result) => {
                    unless_canceled(result.map(|_| ()));
                }
            },
            Task::Close(op) => {
                let Some(result) = op.try_take() else { return false };
                if result.is_err() {
                    assert_eq!(errno(result), rustix::io::Errno::BADF, "closed by another clone");
                }
            }
        }
        true
    }

    fn note_dropped(&mut self, object: Object, task: &Task) {
        if let (Kind::File { blocks, .. }, Task::WriteBlock(_, place, _)) =
            (&mut self.objects[object], task)
        {
            blocks[*place].dropped += 1;
        }
        self.closes_dropped += u64::from(matches!(task, Task::Close(_)));
    }

    /// Forgets an operation whose descriptor is known: it stays in use.
    fn forget_operation(&mut self, which: usize) {
        let Some((object, fd)) = latest(&self.fds, which) else { return };
        self.forgotten.insert(fd.raw(), identity(fd.raw()));
        if matches!(self.objects[*object], Kind::File { .. }) {
            std::mem::forget(self.driver.read(fd, vec![0; BLOCK_BYTES], 0));
        } else {
            std::mem::forget(self.driver.poll(fd, PollEvents::WRITABLE));
        }
    }

    /// Waits for all operations on files, dropped ones included, and checks the files.
    fn drain(&mut self) {
        let (files, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.tasks)
            .into_iter()
            .partition(|(_, task)| matches!(task, Task::ReadBlock(_) | Task::WriteBlock(..)));
        self.tasks = rest;
        for (object, mut task) in files {
            while !self.take(object, &mut task) {
                self.driver.turn(Wait::Forever).unwrap();
            }
        }
        let is_quiet = self.tasks.is_empty() && self.connections.is_empty();
        if is_quiet {
            drain(&self.driver);
        }
        for (file, kind) in self.objects.iter_mut().enumerate() {
            let Kind::File { path, blocks } = kind else { continue };
            let content = fs::read(path).unwrap();
            assert_eq!(content.len(), BLOCKS * BLOCK_BYTES, "file {file} grew");
            for (block, bytes) in blocks.iter_mut().zip(content.chunks_exact(BLOCK_BYTES)) {
                assert_eq!(owners(bytes), [file], "bytes of another file in file {file}");
                let value = word(bytes) >> 8;
                assert!(block.allowed.contains(&value), "{value} in file {file}");
                if is_quiet {
                    block.writes -= std::mem::take(&mut block.dropped);
                    block.is_contested = false;
                    assert_eq!(bytes, encoded(file, value), "a write in part");
                    block.allowed = vec![value];
                }
            }
        }
    }

    // ---- the end ---------------------------------------------------------------------------------

    fn end(mut self) {
        self.connections.clear();
        self.tasks.retain(|(_, task)| !matches!(task, Task::Receive(_)));
        // Each wait for a byte ends when there are bytes enough; each wait for another clone at its end.
        self.fds.clear();
        let mut rounds = 0;
        while !self.tasks.is_empty() {
            for (object, _) in &self.tasks {
                if let Kind::Stream { far } = &self.objects[*object] {
                    send_byte(far, *object);
                }
            }
            self.driver.turn(Wait::For(std::time::Duration::from_millis(1))).unwrap();
            for (object, mut task) in std::mem::take(&mut self.tasks) {
                let is_kept = matches!(&task, Task::Close(_)) && !self.forgotten.is_empty();
                if !self.take(object, &mut task) && !is_kept {
                    self.tasks.push((object, task));
                }
            }
            rounds += 1;
            assert!(rounds < 20_000, "operations without an end: {:?}", self.driver.operations());
        }
        self.drain();
        let counters = self.driver.counters();
        assert!(counters.close_errors <= self.closes_dropped, "a number was closed twice");
        assert_eq!(counters.stale, 0);
        for (object, kind) in self.objects.iter().enumerate() {
            let Kind::Stream { far } = kind else { continue };
            let mut received = vec![0; 4096];
            let count = (&*far).read(&mut received).unwrap_or(0);
            check_bytes(object, &received[..count]);
        }
        let Self { objects, outside, driver, forgotten, _folder, .. } = self;
        drop((objects, outside));
        turn_until(&driver, || driver.live_operations() as usize <= forgotten.len() * 64);
        drop(driver);
        for (raw, file) in forgotten {
            if identity(raw) == file {
                // SAFETY: its owner was forgotten, and does not use it any more: the driver is gone.
                drop(unsafe { OwnedFd::from_raw_fd(raw) });
            }
        }
    }
}

/// Returns an object of a list: the latest one for zero.
fn latest<T>(list: &[T], which: usize) -> Option<&T> {
    let count = list.len();
    (count > 0).then(|| &list[count - 1 - which % count])
}

fn latest_mut<T>(list: &mut [T], which: usize) -> Option<&mut T> {
    let count = list.len();
    (count > 0).then(|| &mut list[count - 1 - which % count])
}

fn take_latest<T>(list: &mut Vec<T>, which: usize) -> Option<T> {
    let count = list.len();
    (count > 0).then(|| list.remove(count - 1 - which % count))
}

/// Returns a block of a file with this value.
fn encoded(object: Object, value: u64) -> Vec<u8> {
    (value << 8 | object as u64).to_le_bytes().repeat(WORDS)
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

/// Returns the files that have written to a block.
fn owners(block: &[u8]) -> Vec<Object> {
    let mut owners: Vec<_> = block.chunks_exact(8).map(|bytes| bytes[0].into()).collect();
    owners.sort_unstable();
    owners.dedup();
    owners
}

/// Sends a byte of this stream, unless the peer is shut down, or the stream is full.
fn send_byte(far: &UnixStream, object: Object) {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let _ = rustix::net::send(far, &[object as u8], flags);
}

/// Checks that the bytes are those of this stream.
fn check_bytes(object: Object, bytes: &[u8]) {
    assert!(bytes.iter().all(|&byte| usize::from(byte) == object), "{bytes:?} on stream {object}");
}

/// Returns a result, or `None` if the operation was canceled or met a peer that is gone.
fn unless_canceled<T: std::fmt::Debug>(result: std::io::Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) if error.raw_os_error() == Some(libc::ECANCELED) => None,
        Err(error) => panic!("{error}"),
    }
}

fn poll_once<F: Future + ?Sized>(future: Pin<&mut F>) -> Polled<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}
