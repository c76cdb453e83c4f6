//! The files of the experiments: made once, read before each round.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
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
    for (number, path) in job.small_files_in_order().enumerate() {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fill(&mut block, number as u64);
        fs::write(&path, &block)?;
    }
    // So that nothing is written back while others measure.
    rustix::fs::syncfs(File::open(&job.path)?)?;
    Ok(())
}

/// Brings all of it into the page cache, with nothing to be written back.
pub(crate) fn warm(job: &Job) {
    let warmed = match job.cell {
        Cell::SmallFiles => {
            job.small_files_in_order().try_for_each(|path| fs::read(path).map(drop))
        }
        Cell::Write => rewrite(job),
        _ => warm_file(&job.path),
    };
    warmed.unwrap_or_else(|error| fail(job.path.display(), error));
}

/// Writes back what is dirty.
pub(crate) fn sync(job: &Job) {
    let file = File::open(&job.path).and_then(|file| file.sync_data());
    file.unwrap_or_else(|error| fail(job.path.display(), error));
}

/// Writes all blocks anew in scattered order, as a program that writes at random places leaves a file:
/// in the cache by single pages. After a read in sequence it would be there by large folios, where on
/// ext4 a write of 4 KiB costs many times as much.
fn rewrite(job: &Job) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(&job.path)?;
    file.sync_data()?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    let blocks = job.size / PAGE as u64;
    let mut block = vec![0; PAGE];
    for place in 0..blocks {
        // Coprime to the powers of two that sizes are, so that each block comes up once.
        let offset = place * 7919 % blocks * PAGE as u64;
        fill(&mut block, offset);
        file.write_all_at(&block, offset)?;
    }
    file.sync_data()
}

fn warm_file(path: &Path) -> io::Result<()> {
    let mut file = File::open(path)?;
    file.sync_data()?;
    let mut buffer = vec![0; CHUNK];
    while file.read(&mut buffer)? > 0 {}
    Ok(())
}
