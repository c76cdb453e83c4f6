//! The files of the experiments: made once, read before each round.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;

use peers_common::block::{PAGE, fill};
use peers_common::{Cell, Job, fail};

/// Bytes that are written or read at a time.
const CHUNK: usize = 1 << 20;

/// Makes the file, or the folder of small files, of a job.
pub(crate) fn make(job: &Job) {
    let made = if job.cell == Cell::SmallFiles { make_tree(job) } else { make_file(job) };
    made.unwrap_or_else(|error| fail(job.path.display(), error));
}

fn make_file(job: &Job) -> io::Result<()> {
    let file = File::create(&job.path)?;
    let mut writer = BufWriter::with_capacity(CHUNK, &file);
    let mut block = vec![0; PAGE];
    for offset in (0..job.size).step_by(PAGE) {
        fill(&mut block, offset);
        writer.write_all(&block)?;
    }
    writer.flush()?;
    file.sync_data()
}

fn make_tree(job: &Job) -> io::Result<()> {
    let mut block = vec![0; job.block];
    for (number, path) in job.small_files().iter().enumerate() {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fill(&mut block, number as u64);
        fs::write(path, &block)?;
    }
    // So that nothing is written back while others measure.
    rustix::fs::syncfs(File::open(&job.path)?)?;
    Ok(())
}

/// Reads all of it, and writes back what is dirty.
pub(crate) fn warm(job: &Job) {
    let warmed = if job.cell == Cell::SmallFiles {
        job.small_files().iter().try_for_each(|path| fs::read(path).map(drop))
    } else {
        warm_file(&job.path)
    };
    warmed.unwrap_or_else(|error| fail(job.path.display(), error));
}

fn warm_file(path: &Path) -> io::Result<()> {
    let mut file = File::open(path)?;
    file.sync_data()?;
    let mut buffer = vec![0; CHUNK];
    while file.read(&mut buffer)? > 0 {}
    Ok(())
}
