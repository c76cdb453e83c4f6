//! The ways by which a thread has its operations done. In each it has memory of its own, used again and
//! again.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::sync::Arc;

use sakia::engine::{self, Engine};
use sakia::fs;
use sakia_bench_support::aio::{Buf, Scheduler};
use sakia_driver::AlignedBuf;

use super::load::{Load, pattern};

/// What a thread has its operations done by.
pub(super) trait Port: Send {
    /// Reads into the memory for reading, from `offset` on.
    fn read(&mut self, file: usize, offset: u64) -> io::Result<usize>;

    /// Writes the memory for writing.
    fn write(&mut self, file: usize, offset: u64) -> io::Result<usize>;

    /// What was read.
    fn bytes(&self) -> &[u8];
}

/// How much memory for reading, and the memory for writing.
fn memory(load: &Load) -> (usize, Vec<u8>) {
    let read = if load.reads.count > 0 { load.reads.size } else { 0 };
    (read, if load.writes.count > 0 { pattern(load.writes.size) } else { Vec::new() })
}

/// Touched once, so that the measured section does not begin with that.
fn touched(len: usize) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed(len);
    buf.fill(1);
    buf
}

/// Plain calls.
pub(super) struct Plain {
    files: Arc<Vec<File>>,
    read: AlignedBuf,
    write: AlignedBuf,
}

impl Plain {
    pub fn new(files: &Arc<Vec<File>>, load: &Load) -> Self {
        let (read, write) = memory(load);
        Self { files: Arc::clone(files), read: touched(read), write: AlignedBuf::from(&write[..]) }
    }
}

impl Port for Plain {
    fn read(&mut self, file: usize, offset: u64) -> io::Result<usize> {
        self.files[file].read_at(&mut self.read, offset)
    }

    fn write(&mut self, file: usize, offset: u64) -> io::Result<usize> {
        self.files[file].write_at(&self.write, offset)
    }

    fn bytes(&self) -> &[u8] {
        &self.read
    }
}

/// A buffer that is away while an operation has it.
struct Lent<T>(Option<T>);

impl<T> Lent<T> {
    /// Has something done with it, which gives it back.
    #[inline]
    fn with<R>(&mut self, f: impl FnOnce(T) -> (R, T)) -> R {
        let (result, buf) = f(self.0.take().expect("every operation gives it back"));
        self.0 = Some(buf);
        result
    }

    fn get(&self) -> &T {
        self.0.as_ref().expect("every operation gives it back")
    }
}

/// The scheduler on Linux AIO.
pub(super) struct Scheduled {
    scheduler: Arc<Scheduler>,
    files: Arc<Vec<Arc<OwnedFd>>>,
    read: Lent<Buf>,
    write: Lent<Buf>,
}

impl Scheduled {
    pub fn new(scheduler: &Arc<Scheduler>, files: &Arc<Vec<Arc<OwnedFd>>>, load: &Load) -> Self {
        let (len, write) = memory(load);
        let mut read = Buf::zeroed(len);
        read.fill(1);
        let (read, write) = (Lent(Some(read)), Lent(Some(Buf::from(&write[..]))));
        Self { scheduler: Arc::clone(scheduler), files: Arc::clone(files), read, write }
    }
}

impl Port for Scheduled {
    fn read(&mut self, file: usize, offset: u64) -> io::Result<usize> {
        self.read.with(|buf| self.scheduler.read_at(&self.files[file], buf, offset))
    }

    fn write(&mut self, file: usize, offset: u64) -> io::Result<usize> {
        self.write.with(|buf| self.scheduler.write_at(&self.files[file], buf, offset))
    }

    fn bytes(&self) -> &[u8] {
        self.read.get()
    }
}

/// The engine as programs use it from plain threads.
pub(super) struct Waiting {
    files: Vec<engine::File>,
    read: Lent<AlignedBuf>,
    write: Lent<AlignedBuf>,
}

impl Waiting {
    pub fn new(files: &[engine::File], load: &Load) -> Self {
        let (read, write) = memory(load);
        let (read, write) = (Lent(Some(touched(read))), Lent(Some(AlignedBuf::from(&write[..]))));
        Self { files: files.to_vec(), read, write }
    }
}

impl Port for Waiting {
    fn read(&mut self, file: usize, offset: u64) -> io::Result<usize> {
        self.read.with(|buf| self.files[file].read_at(buf, offset).wait())
    }

    fn write(&mut self, file: usize, offset: u64) -> io::Result<usize> {
        self.write.with(|buf| self.files[file].write_at(buf, offset).wait())
    }

    fn bytes(&self) -> &[u8] {
        self.read.get()
    }
}

thread_local! {
    /// The files as they are on the engine's thread.
    static FILES: RefCell<Vec<Rc<fs::File>>> = RefCell::default();
}

/// The engine's thread, to which each operation goes.
pub(super) struct Sent {
    engine: Engine,
    read: Lent<AlignedBuf>,
    write: Lent<AlignedBuf>,
}

impl Sent {
    pub fn new(engine: &Engine, load: &Load) -> Self {
        let (read, write) = memory(load);
        let (read, write) = (Lent(Some(touched(read))), Lent(Some(AlignedBuf::from(&write[..]))));
        Self { engine: engine.clone(), read, write }
    }

    /// Gives the files to the engine's thread.
    pub fn open(engine: &Engine, files: Vec<File>) -> io::Result<()> {
        engine
            .run(move || async move {
                let files = files.into_iter().map(|file| fs::File::from_std(file).map(Rc::new));
                FILES.set(files.collect::<io::Result<_>>()?);
                Ok(())
            })
            .wait()?
    }

    /// Closes them.
    pub fn close(engine: &Engine) -> io::Result<()> {
        engine.run(|| async { drop(FILES.take()) }).wait()
    }
}

fn file(index: usize) -> Rc<fs::File> {
    FILES.with_borrow(|files| Rc::clone(&files[index]))
}

/// What an operation on the engine's thread came to: that it could not be begun, or a result.
fn sent(answer: io::Result<(io::Result<usize>, AlignedBuf)>) -> (io::Result<usize>, AlignedBuf) {
    answer.unwrap_or_else(|error| (Err(error), AlignedBuf::zeroed(0)))
}

impl Port for Sent {
    fn read(&mut self, index: usize, offset: u64) -> io::Result<usize> {
        let engine = &self.engine;
        self.read.with(|buf| {
            sent(engine.run(move || async move { file(index).read_at(buf, offset).await }).wait())
        })
    }

    fn write(&mut self, index: usize, offset: u64) -> io::Result<usize> {
        let engine = &self.engine;
        self.write.with(|buf| {
            sent(engine.run(move || async move { file(index).write_at(buf, offset).await }).wait())
        })
    }

    fn bytes(&self) -> &[u8] {
        self.read.get()
    }
}
