//! A copy of a tree of files and directories, or of one file, by the minimum of calls: the limit of a
//! copier on plain calls.
//!
//! Threads take directories from one list. A file takes two opens, the calls that copy, and two closes.
//! Modes are neither read nor compared, and the first error ends the program without a report. Each thread
//! has its own table of descriptors.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ScopedJoinHandle;

use clap::{Parser, ValueEnum};
use memmap2::{MmapMut, MmapOptions};
use rustix::fs::{CWD, FileType, Mode, OFlags, RawDir, mkdirat, openat};
use rustix::mm::{Advice, madvise};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// The size of a buffer. Calls that copy within the kernel request the largest possible number of bytes.
const BUFFER: usize = 256 << 10;
const PAGE: usize = 4096;
/// The number of bytes of a mapped file that a thread takes at a time.
const PART: usize = 2 << 20;

#[derive(Parser)]
struct Options {
    /// Threads that copy
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// How contents are copied
    #[arg(long, value_enum, default_value_t = Way::Read)]
    way: Way,
    /// One file only: all threads copy it, each by descriptors of its own and ranges of this many bytes
    #[arg(long)]
    range: Option<u64>,
    /// A directory of files and directories, or a file
    source: PathBuf,
    /// The copy, which must not exist yet
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
    /// `write(2)` from the mapped pages of the source
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
    if let Some(range) = options.range.filter(|&range| range > 0) {
        return ranges(options, range);
    }
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

/// Returns the result of a thread, or resumes its panic.
fn end(thread: ScopedJoinHandle<'_, io::Result<()>>) -> io::Result<()> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Copies directories until none are left, or until an error.
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

fn read(above: impl std::os::fd::AsFd, name: impl rustix::path::Arg) -> io::Result<File> {
    Ok(openat(above, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?.into())
}

fn write(above: impl std::os::fd::AsFd, name: impl rustix::path::Arg) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    Ok(openat(above, name, flags, Mode::RUSR | Mode::WUSR)?.into())
}

/// Returns a buffer and the index of its first page boundary: from there the kernel copies faster.
fn buffer() -> (Vec<u8>, usize) {
    let memory = vec![0; BUFFER + PAGE];
    let begin = memory.as_ptr().align_offset(PAGE);
    (memory, begin)
}

fn contents(way: Way, mut source: &File, mut target: &File, buf: &mut [u8]) -> io::Result<()> {
    const MOST: usize = 0x7fff_f000;
    loop {
        let count = match way {
            Way::Read => {
                let count = source.read(buf)?;
                target.write_all(&buf[..count])?;
                // A short read is the end of the file.
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

/// Writes a file from the mapped pages of another one.
fn map(source: &File, mut target: &File) -> io::Result<()> {
    // SAFETY: Only this program has the file, and it stays as it is.
    target.write_all(&unsafe { MmapOptions::new().populate().map(source) }?)
}

/// Reads a file into the mapped pages of another one, which is extended first: this avoids the lock of
/// writes.
fn mapped(source: &File, target: &File, threads: usize) -> io::Result<()> {
    target.set_len(source.metadata()?.len())?;
    // SAFETY: Only this program has the file, and it keeps its length.
    let mut memory = unsafe { MmapMut::map_mut(target) }?;
    let parts = Mutex::new((0..).step_by(PART).zip(memory.chunks_mut(PART)));
    let next = || parts.lock().unwrap_or_else(PoisonError::into_inner).next();
    let part = || -> io::Result<()> {
        while let Some((begin, bytes)) = next() {
            // SAFETY: Whole pages but for the end of what was mapped, which this thread alone has.
            unsafe { madvise(bytes.as_mut_ptr().cast(), bytes.len(), Advice::LinuxPopulateWrite) }?;
            source.read_exact_at(bytes, begin)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(part)).collect();
        threads.into_iter().try_for_each(end)
    })
}

/// Copies ranges of a file with all threads at once.
fn ranges(options: &Options, range: u64) -> io::Result<()> {
    let size = options.source.metadata()?.len();
    write(CWD, &options.target)?;
    let next = AtomicU64::new(0);
    let part = || -> io::Result<()> {
        let source = File::open(&options.source)?;
        let target = File::options().write(true).open(&options.target)?;
        let (mut memory, begin) = buffer();
        let buf = &mut memory[begin..][..BUFFER];
        loop {
            let mut offset = next.fetch_add(range, Ordering::Relaxed);
            let end = size.min(offset.saturating_add(range));
            if offset >= end {
                return Ok(());
            }
            (&target).seek(SeekFrom::Start(offset))?;
            while offset < end {
                let left = usize::try_from(end - offset).unwrap_or(usize::MAX);
                let count = match options.way {
                    Way::Read => {
                        let most = left.min(buf.len());
                        let count = source.read_at(&mut buf[..most], offset)?;
                        target.write_all_at(&buf[..count], offset)?;
                        count
                    }
                    Way::Range => {
                        let (mut from, mut to) = (offset, offset);
                        let (from, to) = (Some(&mut from), Some(&mut to));
                        rustix::fs::copy_file_range(&source, from, &target, to, left)?
                    }
                    Way::Send => {
                        let mut from = offset;
                        rustix::fs::sendfile(&target, &source, Some(&mut from), left)?
                    }
                    Way::Map | Way::Mapped => {
                        return Err(io::Error::other("ranges are not mapped"));
                    }
                };
                if count == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                offset += count as u64;
            }
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..options.threads).map(|_| scope.spawn(part)).collect();
        threads.into_iter().try_for_each(end)
    })
}

/// The directories to be copied, by their paths below the root.
struct List {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    paths: Vec<CString>,
    /// The number of directories that are not complete, in the list or taken by a thread.
    open: usize,
}

impl List {
    fn new(root: CString) -> Self {
        let state = State { paths: vec![root], open: 1 };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, path: CString) {
        let mut state = self.lock();
        state.paths.push(path);
        state.open += 1;
        drop(state);
        self.changed.notify_one();
    }

    /// Waits for a directory. Returns `None` when all are complete.
    fn take(&self) -> Option<CString> {
        let waits = |state: &mut State| state.paths.is_empty() && state.open > 0;
        let state = self.changed.wait_while(self.lock(), waits);
        state.unwrap_or_else(PoisonError::into_inner).paths.pop()
    }

    fn done(&self) {
        let mut state = self.lock();
        state.open = state.open.saturating_sub(1);
        if state.open == 0 {
            self.changed.notify_all();
        }
    }

    /// Drops the rest of the list.
    fn end(&self) {
        let mut state = self.lock();
        (state.paths, state.open) = (Vec::new(), 0);
        drop(state);
        self.changed.notify_all();
    }
}
