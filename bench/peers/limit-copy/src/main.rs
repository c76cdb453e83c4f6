//! A copy of a tree of files and directories, or of one file, by the calls that it cannot do without: what a
//! copier on plain calls could at most reach.
//!
//! Threads take directories from one list. Of a file there are two opens, the calls that copy, and two
//! closes; nobody asks for its mode, compares anything, or could be told what is missing: the first error
//! ends the program. Each thread has a table of descriptors of its own.

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::ScopedJoinHandle;

use clap::{Parser, ValueEnum};
use rustix::fs::{CWD, FileType, Mode, OFlags, RawDir, fstat, ftruncate, mkdirat, openat};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Bytes of a buffer, and a call that copies within the kernel is asked for as many as there can be.
const BUFFER: usize = 256 << 10;
const PAGE: usize = 4096;
/// Bytes that a thread takes at a time of a file that is mapped.
const PART: usize = 2 << 20;

#[derive(Parser)]
struct Options {
    /// Threads that copy
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// How contents are copied
    #[arg(long, value_enum, default_value_t = Way::Read)]
    way: Way,
    /// A directory of files and directories, or a file
    source: PathBuf,
    /// What it is copied to, which is not there yet
    target: PathBuf,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Way {
    /// `read(2)` and `write(2)`, by a buffer of 256 KiB
    Read,
    /// `copy_file_range(2)`
    Range,
    /// `sendfile(2)`
    Send,
    /// `write(2)` out of the source's own pages, which are mapped
    Map,
    /// One file only: read by all threads at once into the target's own pages
    Mapped,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("limit-copy: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> io::Result<()> {
    if !options.source.is_dir() {
        let (source, target) = (read(CWD, &options.source)?, write(CWD, &options.target)?);
        if options.way == Way::Mapped {
            return mapped(&source, &target, options.threads);
        }
        let (mut memory, begin) = buffer();
        return contents(options.way, &source, &target, &mut memory[begin..][..BUFFER]);
    }
    mkdirat(CWD, &options.target, Mode::RWXU)?;
    let list = List::new(CString::from(c"."));
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..options.threads).map(|_| scope.spawn(|| worker(options, &list))).collect();
        threads.into_iter().try_for_each(end)
    })
}

/// What a thread ends with: its panic is everyone's.
fn end(thread: ScopedJoinHandle<'_, io::Result<()>>) -> io::Result<()> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Copies directories until there are none, or there was an error.
fn worker(options: &Options, list: &List) -> io::Result<()> {
    let result = directories(options, list);
    if result.is_err() {
        list.end();
    }
    result
}

fn directories(options: &Options, list: &List) -> io::Result<()> {
    // SAFETY: All descriptors that this thread uses are opened by it below; those of the standard streams are
    // the same in both tables.
    unsafe { unshare_unsafe(UnshareFlags::FILES) }?;
    let (mut memory, begin) = buffer();
    let buf = &mut memory[begin..][..BUFFER];
    let mut names = vec![MaybeUninit::uninit(); 32 << 10];
    let folder = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let [from, to] =
        [&options.source, &options.target].map(|path| openat(CWD, path, folder, Mode::empty()));
    let (from, to) = (from?, to?);
    while let Some(path) = list.take() {
        let source = openat(&from, &path, folder, Mode::empty())?;
        let target = openat(&to, &path, folder, Mode::empty())?;
        let mut entries = RawDir::new(&source, &mut names);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name();
            match entry.file_type() {
                FileType::Directory if name == c"." || name == c".." => {}
                FileType::Directory => {
                    mkdirat(&target, name, Mode::RWXU)?;
                    list.add(below(&path, name)?);
                }
                FileType::RegularFile => {
                    let (source, target) = (read(&source, name)?, write(&target, name)?);
                    contents(options.way, &source, &target, buf)?;
                }
                _ => return Err(io::Error::other("neither a file nor a directory")),
            }
        }
        list.done();
    }
    Ok(())
}

fn below(path: &CStr, name: &CStr) -> io::Result<CString> {
    Ok(CString::new([path.to_bytes(), name.to_bytes()].join(&b'/'))?)
}

fn read(
    above: impl std::os::fd::AsFd,
    name: impl rustix::path::Arg,
) -> rustix::io::Result<OwnedFd> {
    openat(above, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

fn write(
    above: impl std::os::fd::AsFd,
    name: impl rustix::path::Arg,
) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    openat(above, name, flags, Mode::RUSR | Mode::WUSR)
}

/// A buffer and its first byte that begins a page: from there the kernel copies faster.
fn buffer() -> (Vec<u8>, usize) {
    let memory = vec![0; BUFFER + PAGE];
    let begin = memory.as_ptr().align_offset(PAGE);
    (memory, begin)
}

fn contents(way: Way, source: &OwnedFd, target: &OwnedFd, buf: &mut [u8]) -> io::Result<()> {
    const MOST: usize = 0x7fff_f000;
    loop {
        let count = match way {
            Way::Read => {
                let count = rustix::io::read(source, &mut *buf)?;
                let mut rest = &buf[..count];
                while !rest.is_empty() {
                    rest = &rest[rustix::io::write(target, rest)?..];
                }
                // Less than there was room for is the end of a file.
                if count < buf.len() { 0 } else { count }
            }
            Way::Range => rustix::fs::copy_file_range(source, None, target, None, MOST)?,
            Way::Send => rustix::fs::sendfile(target, source, None, MOST)?,
            Way::Map => return map(source, target),
            Way::Mapped => return Err(io::Error::other("only one file is mapped")),
        };
        if count == 0 {
            return Ok(());
        }
    }
}

/// Writes a file out of the pages of another.
fn map(source: &OwnedFd, target: &OwnedFd) -> io::Result<()> {
    let size = usize::try_from(fstat(source)?.st_size).map_err(io::Error::other)?;
    if size == 0 {
        return Ok(());
    }
    let flags = MapFlags::SHARED | MapFlags::POPULATE;
    // SAFETY: An address that the kernel chooses.
    let memory = unsafe { mmap(ptr::null_mut(), size, ProtFlags::READ, flags, source, 0) }?;
    // SAFETY: What was mapped; the file is nobody else's, and stays as it is.
    let mut rest = unsafe { std::slice::from_raw_parts(memory.cast::<u8>(), size) };
    while !rest.is_empty() {
        rest = &rest[rustix::io::write(target, rest)?..];
    }
    // SAFETY: What was mapped, which nothing refers to any more.
    unsafe { munmap(memory, size) }?;
    Ok(())
}

/// Reads a file into the pages of another, which are made first: without the lock that writes take.
fn mapped(source: &OwnedFd, target: &OwnedFd, threads: usize) -> io::Result<()> {
    let size = usize::try_from(fstat(source)?.st_size).map_err(io::Error::other)?;
    if size == 0 {
        return Ok(());
    }
    ftruncate(target, size as u64)?;
    let (kinds, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: An address that the kernel chooses.
    let memory = unsafe { mmap(ptr::null_mut(), size, kinds, flags, target, 0) }? as usize;
    let next = AtomicU64::new(0);
    let part = || -> io::Result<()> {
        loop {
            let begin = next.fetch_add(PART as u64, Ordering::Relaxed);
            let Some(left) = size.checked_sub(begin as usize).filter(|left| *left > 0) else {
                return Ok(());
            };
            let (place, len) = (memory + begin as usize, left.min(PART));
            // SAFETY: A part of what was mapped above, which nobody unmaps.
            unsafe { madvise(place as *mut _, len, Advice::LinuxPopulateWrite) }?;
            // SAFETY: The same part, which this thread alone has; the file is nobody else's.
            let bytes = unsafe { std::slice::from_raw_parts_mut(place as *mut u8, len) };
            let mut done = 0;
            while done < len {
                let count = rustix::io::pread(source, &mut bytes[done..], begin + done as u64)?;
                if count == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                done += count;
            }
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(part)).collect();
        threads.into_iter().try_for_each(end)
    })
}

/// Directories that are to be copied, by their paths below the root.
struct List {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    paths: Vec<CString>,
    /// Those of them that are not done, whoever has them.
    open: usize,
}

impl List {
    fn new(root: CString) -> Self {
        let state = State { paths: vec![root], open: 1 };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn add(&self, path: CString) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.paths.push(path);
        state.open += 1;
        drop(state);
        self.changed.notify_one();
    }

    /// Waits for a directory. `None`: all are done.
    fn take(&self) -> Option<CString> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self
            .changed
            .wait_while(state, |state| state.paths.is_empty() && state.open > 0)
            .unwrap_or_else(PoisonError::into_inner);
        state.paths.pop()
    }

    fn done(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.open = state.open.saturating_sub(1);
        if state.open == 0 {
            self.changed.notify_all();
        }
    }

    /// Leaves the rest undone.
    fn end(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (state.paths, state.open) = (Vec::new(), 0);
        drop(state);
        self.changed.notify_all();
    }
}
