//! The experiments on blocking calls, without a runtime. It also makes the files and warms them.
//!
//! One thread does the operations of all tasks, in turn, as a program without concurrency would; with
//! `O_DIRECT`, where waiting counts, there is a thread per task. Connections have a thread each.
//! Nothing is tuned but the obvious: buffers are used again, and files are read with `pread`. Variants:
//!
//! - `fs-read`: small files by `std::fs::read`, instead of an open, one read into the same buffer, and
//!   a close.
//! - `nowait`: the limit of a loop that never blocks. A read is one `preadv2` with `RWF_NOWAIT` into
//!   one of 64 buffers; a small file is an `openat2` with `RESOLVE_CACHED`, a `FIONREAD` for its length,
//!   a `preadv2` with `RWF_NOWAIT`, and a close. Where the kernel would block, the plain call follows.
//!   `nowait-vec`: the same into a new vector for each small file. `nowait-statx`: the same where `statx`
//!   tells the mount and the length, and the read may block, as a file system without `RWF_NOWAIT` needs.
//! - `make`, `warm` and `sync` write the files of a job, cache them, and write them back.

mod nowait;
mod prepare;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;

use peers_common::block::{self, aligned, marks, sum_bytes};
use peers_common::files::{
    WHOLE_BYTES, expect_whole, open, run_shares, share_of, small_file_check,
};
use peers_common::net::{self, BUFFER_BYTES, DATAGRAM_BYTES};
use peers_common::{Cell, Door, Gate, Job, Tally, fail};

fn main() -> ExitCode {
    peers_common::main_with(|job| match job.variant.as_str() {
        "make" => prepare::make(&job),
        "warm" => prepare::warm(&job),
        "sync" => prepare::sync(&job),
        _ => run(job),
    })
}

fn run(job: Job) {
    match job.cell {
        Cell::Echo => return net::run(job, |_, door| serve(door)),
        Cell::Udp => return net::run(job, |_, door| serve_datagrams(door)),
        _ => {}
    }
    let (threads, tasks) =
        if job.direct { (job.tasks_total(), 1) } else { (job.threads, job.tasks) };
    let job = Job { threads, tasks, ..job };
    run_shares(job, |job, gate, first| share(job, gate, first..first + job.tasks));
}

/// Serves each connection on its own thread.
fn serve(door: Door) -> io::Result<()> {
    let listener = door.listen()?;
    loop {
        let (stream, _) = listener.accept()?;
        thread::spawn(move || echo(stream));
    }
}

fn serve_datagrams(door: Door) -> io::Result<()> {
    let socket = door.bind_datagrams()?;
    let mut buffer = [0; DATAGRAM_BYTES];
    loop {
        let (count, from) = socket.recv_from(&mut buffer)?;
        socket.send_to(&buffer[..count], from)?;
    }
}

fn echo(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            count => stream.write_all(&buffer[..count])?,
        }
    }
}

/// Runs one thread: the operations of some tasks, one of each in turn.
fn share(job: &Job, gate: &Gate, tasks: std::ops::Range<u64>) -> Tally {
    if job.cell == Cell::SmallFiles {
        return small_files(job, gate, tasks);
    }
    let file = open(job);
    let mut offsets: Vec<_> = tasks.map(|task| job.offsets(task)).collect();
    let mut tally = Tally::default();
    gate.begin();
    match (job.cell, job.variant.as_str()) {
        (Cell::Sum, _) => tally = sum(job, &file),
        (Cell::RandRead, "nowait") => tally = nowait::reads(job, &file, &mut offsets),
        (Cell::RandRead | Cell::Write, _) => {
            let buffer = aligned(job.block);
            for _ in 0..job.ops_per_task() {
                for offset in offsets.iter_mut().filter_map(Iterator::next) {
                    if job.cell == Cell::Write {
                        block::mark(buffer, offset, job.seed);
                        expect_whole(job, file.write_at(buffer, offset));
                        tally.count(0);
                    } else {
                        expect_whole(job, file.read_at(buffer, offset));
                        tally.count(marks(buffer));
                    }
                }
            }
        }
        _ => fail("run", "not an experiment on files"),
    }
    gate.end();
    tally
}

fn sum(job: &Job, file: &File) -> Tally {
    let mut tally = Tally::default();
    let buffer = aligned(job.block);
    for offset in (0..job.size).step_by(job.block) {
        expect_whole(job, file.read_at(buffer, offset));
        tally.count(sum_bytes(buffer));
    }
    tally
}

fn small_files(job: &Job, gate: &Gate, tasks: std::ops::Range<u64>) -> Tally {
    let paths = job.small_files();
    let paths: Vec<PathBuf> = in_turn(job, &paths, tasks);
    let mut tally = Tally::default();
    let mut buffer = vec![0; WHOLE_BYTES];
    let name = job.path.display();
    gate.begin();
    for path in &paths {
        let check = match job.variant.as_str() {
            "fs-read" => {
                let whole = fs::read(path).unwrap_or_else(|error| fail(&name, error));
                small_file_check(job, &whole)
            }
            "nowait" => nowait::small_file(job, path, &mut buffer),
            "nowait-vec" => nowait::small_file_owned(job, path),
            "nowait-statx" => nowait::small_file_of_mount(job, path),
            _ => bare(job, path, &mut buffer),
        };
        tally.count(check);
    }
    gate.end();
    tally
}

/// Returns the files of some tasks, one of each in turn.
fn in_turn(job: &Job, paths: &[PathBuf], tasks: std::ops::Range<u64>) -> Vec<PathBuf> {
    let mut shares: Vec<_> = tasks.map(|task| share_of(job, paths, task)).collect();
    let mut all = Vec::new();
    for _ in 0..job.ops_per_task() {
        all.extend(shares.iter_mut().filter_map(Iterator::next).map(Path::to_owned));
    }
    all
}

fn bare(job: &Job, path: &Path, buffer: &mut [u8]) -> u64 {
    let mut read = || File::open(path)?.read(buffer);
    let len = read().unwrap_or_else(|error| fail(path.display(), error));
    small_file_check(job, &buffer[..len])
}
