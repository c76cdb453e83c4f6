//! The slow places with their files: one for each read, so that no read fetches the data of another ahead.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use fastrand::Rng;
use sakia_bench_support::fuse::{Fuse, Opcode, Rule};
use sakia_bench_support::place::PlaceError;
use sakia_bench_support::throttled::ThrottledDisk;
use tempfile::TempDir;

use super::gate::Keeper;
use super::{Options, Place};
use crate::scratch;

/// Fixes the bytes of the files.
const SEED: u64 = 0x5aa1_a001;
/// Bytes of a block of the disk's file system.
const BLOCK_BYTES: u64 = 4096;
/// Bytes of the disk besides twice the size of its files: for its journal, and so on.
const SPARE_BYTES: u64 = 64 << 20;
/// Bytes that may be dirty on it: enough to make the files without waiting.
const DIRTY_BYTES: u64 = 64 << 20;
/// The requests that the kernel queues for a disk with a long queue: the maximum.
const REQUESTS_MAX: u32 = 2048;

/// A slow place with files in it, all removed with the value.
#[derive(Debug)]
pub(super) struct Input {
    /// The directory with the files.
    pub(super) directory: PathBuf,
    /// The keeper of the gate, if the place has one. It owns the place.
    keeper: Option<Keeper>,
    _removed_with_it: Option<TempDir>,
    /// The sum that reading all files must give.
    pub(super) sum: u64,
}

impl Input {
    /// Makes the place and its files. The keeper of its gate listens in `scratch`.
    ///
    /// # Errors
    /// The place or its files cannot be made.
    pub(super) fn new(
        place: Place,
        options: &Options,
        scratch: &Path,
        is_stopped: &dyn Fn() -> bool,
    ) -> anyhow::Result<Self> {
        let gate = scratch.join("gate");
        let (directory, keeper, removed, sum) = match place {
            Place::Disk | Place::Full => {
                let disk = disk(place, options)?;
                let directory = disk.path().to_owned();
                let sum = make_files(&directory, options, is_stopped)?;
                let keeper = Keeper::start(gate, move || disk.hold_reads())?;
                (directory, Some(keeper), None, sum)
            }
            Place::Fuse => {
                let (fuse, sum) = fuse(options)?;
                let (directory, delay) = (fuse.path().to_owned(), options.delay);
                let hold = move || fuse.hold(Rule::on(Opcode::READ).delay(delay));
                (directory, Some(Keeper::start(gate, hold)?), None, sum)
            }
            Place::Path => {
                let parent = options.directory.as_deref().unwrap_or(Path::new("."));
                let directory = scratch::directory("sakia-bench-", parent)?;
                let sum = make_files(directory.path(), options, is_stopped)?;
                let path = directory.path().to_owned();
                (path, None, Some(directory), sum)
            }
        };
        Ok(Self { directory, keeper, _removed_with_it: removed, sum })
    }

    /// Returns the socket of the gate's keeper, if there is a gate.
    pub(super) fn gate(&self) -> Option<&Path> {
        self.keeper.as_ref().map(Keeper::socket)
    }
}

/// Returns the name of a file.
pub(super) fn name(index: usize) -> String {
    index.to_string()
}

/// Returns the bytes of a file.
fn content(index: usize, size_bytes: usize) -> Vec<u8> {
    let mut bytes = vec![0; size_bytes];
    Rng::with_seed(SEED ^ index as u64).fill(&mut bytes);
    bytes
}

/// Returns a hash (FNV-1a) of a file's bytes and its index, so that equal files differ.
pub(super) fn hash(index: usize, bytes: &[u8]) -> u64 {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    let index = (index as u64).to_le_bytes();
    let all = index.iter().chain(bytes);
    all.fold(BASIS, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}

fn disk(place: Place, options: &Options) -> anyhow::Result<ThrottledDisk> {
    let of_each = (options.size_bytes as u64).next_multiple_of(BLOCK_BYTES);
    let size_bytes = 2 * options.reads as u64 * of_each + SPARE_BYTES;
    let mut builder = ThrottledDisk::builder().size_bytes(size_bytes).dirty_bytes(DIRTY_BYTES);
    if place == Place::Disk {
        builder = builder.requests_max(REQUESTS_MAX);
    }
    builder.build().map_err(|error| cannot("a disk that stalls", &error))
}

fn fuse(options: &Options) -> anyhow::Result<(Fuse, u64)> {
    let (mut builder, mut sum) = (Fuse::builder(), 0u64);
    for index in 0..options.reads {
        let bytes = content(index, options.size_bytes);
        sum = sum.wrapping_add(hash(index, &bytes));
        builder = builder.file(&name(index), bytes);
    }
    let fuse = builder.mount().map_err(|error| cannot("a slow FUSE file system", &error))?;
    Ok((fuse, sum))
}

/// Returns the error of a place that could not be made, with its requirements.
fn cannot(what: &str, error: &PlaceError) -> anyhow::Error {
    let who = if error.is_missing() {
        "; it takes root, /dev/fuse, loop devices and mkfs.ext4, and --path DIR does without"
    } else {
        ""
    };
    anyhow!("cannot make {what}: {error}{who}")
}

/// Makes the files, writes them to the device, and returns their sum. They are made in the order of the
/// reads, so that neighbors there are neighbors on the device.
fn make_files(
    directory: &Path,
    options: &Options,
    is_stopped: &dyn Fn() -> bool,
) -> anyhow::Result<u64> {
    let mut sum = 0u64;
    for index in (0..options.reads).take_while(|_| !is_stopped()) {
        let (path, bytes) = (directory.join(name(index)), content(index, options.size_bytes));
        fs::write(&path, &bytes).with_context(|| format!("cannot write {}", path.display()))?;
        sum = sum.wrapping_add(hash(index, &bytes));
    }
    if is_stopped() {
        return Ok(sum);
    }
    scratch::write_back(directory)?;
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_differ_and_so_do_their_hashes() {
        assert_eq!(content(3, 100), content(3, 100));
        assert_ne!(content(3, 100), content(4, 100));
        assert_ne!(hash(0, b"a"), hash(1, b"a"));
        assert_ne!(hash(0, b"a"), hash(0, b"b"));
    }

    #[test]
    fn directory_of_the_users_has_no_gate() {
        let directory = tempfile::tempdir().unwrap();
        let path = Some(directory.path().to_owned());
        let options = Options { reads: 5, size_bytes: 10, directory: path, ..Options::default() };
        let scratch = tempfile::tempdir().unwrap();
        let input = Input::new(Place::Path, &options, scratch.path(), &|| false).unwrap();
        assert_eq!(input.gate(), None);
        let read = |index| hash(index, &fs::read(input.directory.join(name(index))).unwrap());
        assert_eq!((0..5).map(read).fold(0, u64::wrapping_add), input.sum);
        let place = input.directory.to_owned();
        drop(input);
        assert!(!place.exists());
    }
}
