//! Copies a tree as a first attempt would, and as it should be done: the program of the guide's chapter
//! "Why is it slow?".
//!
//! `--way read-write` reads a block of a file, waits, writes it, waits, and so on, with a buffer for each
//! file. `--way fs-copy` and `--way io-copy` leave that to Sakia. Directories are in a queue, from which
//! `--tasks` tasks on `--threads` threads take them.
//!
//! Run it with `cargo run --release -p sakia --example copy_tree_slowly -- SOURCE TARGET`. It prints
//! how long the copy took, and how many page faults.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use async_channel::{Receiver, Sender};
use clap::{Parser, ValueEnum};
use sakia::fs::{self, File};
use sakia::io::{IoBuf, Reader, Writer};

/// Copies a tree of directories and regular files.
#[derive(Parser)]
pub struct Arguments {
    /// The directory to copy
    source: PathBuf,
    /// The directory that becomes its copy
    target: PathBuf,
    /// How files are copied
    #[arg(long, value_enum, default_value_t = Way::ReadWrite)]
    way: Way,
    /// Bytes of a block, but for fs-copy, which has no blocks
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    block_bytes: u32,
    /// Tasks that copy, on all threads together
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    tasks: u16,
    /// Threads
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,
}

/// How a file is copied.
#[derive(Clone, Copy, ValueEnum)]
enum Way {
    /// Read a block, write it, and read the next.
    ReadWrite,
    /// `sakia::fs::copy`.
    FsCopy,
    /// `sakia::io::copy` from a `Reader` to a `Writer`.
    IoCopy,
}

/// The state that all tasks share.
struct Copy {
    source: PathBuf,
    target: PathBuf,
    way: Way,
    block_bytes: usize,
    /// Directories that are to be copied, relative to both trees.
    queue: Receiver<PathBuf>,
    found: Sender<PathBuf>,
    /// Directories that are in the queue, or that a task copies.
    open: AtomicUsize,
    files: AtomicU64,
    bytes: AtomicU64,
}

fn main() -> Result<(), Box<dyn Error>> {
    println!("{}", run(Arguments::parse())?);
    Ok(())
}

/// Copies, and says what it took.
pub fn run(arguments: Arguments) -> Result<String, Box<dyn Error>> {
    // Step 1: a runtime with as many threads as asked for.
    let runtime = sakia::Runtime::builder().threads(arguments.threads.into()).build()?;
    // Step 2: a queue of directories, which begins with the tree itself.
    let (found, queue) = async_channel::unbounded();
    found.try_send(PathBuf::new())?;
    let copy = Arc::new(Copy {
        source: arguments.source,
        target: arguments.target,
        way: arguments.way,
        block_bytes: arguments.block_bytes as usize,
        queue,
        found,
        open: AtomicUsize::new(1),
        files: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
    });
    let (begin, faults) = (Instant::now(), page_faults()?);
    // Step 3: tasks take directories until there are none. Each stays on its thread.
    runtime.block_on(async {
        let mut tasks = Vec::new();
        for number in 0..usize::from(arguments.tasks) {
            let copy = Arc::clone(&copy);
            let thread = number % sakia::thread_count();
            tasks.push(sakia::spawn_on(thread, || async move {
                let result = copy.directories().await;
                // After an error the others end too.
                copy.queue.close();
                result
            }));
        }
        for task in tasks {
            task.await??;
        }
        Ok::<(), Box<dyn Error>>(())
    })?;
    // Step 4: what it took.
    let took = begin.elapsed();
    let faults = page_faults()? - faults;
    let (files, bytes) = (copy.files.load(Ordering::Relaxed), copy.bytes.load(Ordering::Relaxed));
    Ok(format!(
        "{files} files, {bytes} bytes in {:.1} ms, {faults} page faults",
        took.as_secs_f64() * 1e3
    ))
}

impl Copy {
    /// Copies directories of the queue until all are done.
    async fn directories(&self) -> io::Result<()> {
        while let Ok(directory) = self.queue.recv().await {
            self.directory(&directory).await?;
            if self.open.fetch_sub(1, Ordering::AcqRel) == 1 {
                self.queue.close();
            }
        }
        Ok(())
    }

    /// Copies the files of a directory, and puts the directories in it into the queue.
    async fn directory(&self, directory: &Path) -> io::Result<()> {
        let (source, target) = (below(&self.source, directory), below(&self.target, directory));
        fs::create_dir(&target).await?;
        let mut entries = fs::read_dir(&source).await?;
        while let Some(entry) = entries.next_entry().await? {
            let name = entry.file_name();
            let kind = entry.file_type().await?;
            if kind.is_dir() {
                self.open.fetch_add(1, Ordering::AcqRel);
                // Closed only after an error, which is told elsewhere.
                self.found.try_send(directory.join(name)).ok();
            } else if kind.is_file() {
                let bytes = self.file(&source.join(name), &target.join(name)).await?;
                self.files.fetch_add(1, Ordering::Relaxed);
                self.bytes.fetch_add(bytes, Ordering::Relaxed);
            } else {
                let message = format!("{} is no file and no directory", entry.path().display());
                return Err(io::Error::new(io::ErrorKind::Unsupported, message));
            }
        }
        Ok(())
    }

    /// Copies a file, and resolves to the number of bytes.
    async fn file(&self, source: &Path, target: &Path) -> io::Result<u64> {
        match self.way {
            Way::ReadWrite => read_write(source, target, self.block_bytes).await,
            Way::FsCopy => Ok(fs::copy(source, target).await?),
            Way::IoCopy => io_copy(source, target, self.block_bytes).await,
        }
    }
}

/// The path of a directory in a tree, without a slash at its end.
fn below(tree: &Path, directory: &Path) -> PathBuf {
    tree.components().chain(directory.components()).collect()
}

/// Reads a block, writes it, and so on: of each file one operation is in flight at a time, and each file
/// has a buffer of its own.
async fn read_write(source: &Path, target: &Path, block_bytes: usize) -> io::Result<u64> {
    let source = File::open(source).await?;
    let target = File::create_new(target).await?;
    let mut buf = vec![0; block_bytes];
    let mut done = 0;
    loop {
        let (result, back) = source.read_at(buf.slice(..), done).await;
        let count = result?;
        if count == 0 {
            break;
        }
        let part = back.into_inner().slice(..count);
        let (result, back) = target.write_all_at(part, done).await;
        result?;
        buf = back.into_inner();
        done += count as u64;
    }
    target.close().await?;
    source.close().await?;
    Ok(done)
}

/// Leaves blocks and buffers to a reader and a writer: while one block is written the next is read.
async fn io_copy(source: &Path, target: &Path, block_bytes: usize) -> io::Result<u64> {
    let source = File::open(source).await?;
    let target = File::create_new(target).await?;
    let mut reader = Reader::with_depth(source, block_bytes, 2);
    let mut writer = Writer::at(target, 0).block_bytes(block_bytes).bound_bytes(2 * block_bytes);
    let count = sakia::io::copy(&mut reader, &mut writer).await?;
    writer.close().await?;
    reader.into_inner().close().await?;
    Ok(count)
}

/// Minor page faults of this process until now: the tenth field of `/proc/self/stat`.
fn page_faults() -> io::Result<u64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The second field is the program's name in parentheses, which may have spaces.
    let fields = stat.rsplit_once(')').map(|(_, rest)| rest.split_ascii_whitespace());
    let field = fields.and_then(|mut fields| fields.nth(7)?.parse().ok());
    field.ok_or_else(|| io::Error::other("/proc/self/stat has no tenth field"))
}
