//! The places of the log.

use std::path::Path;

use anyhow::anyhow;
use sakia_bench_support::place::PlaceError;
use sakia_bench_support::small_fs::SmallFs;
use sakia_bench_support::throttled::ThrottledDisk;
use tempfile::TempDir;

use super::{BYTES_MAX, DELAY, Place};
use crate::scratch;

/// Bytes of a disk: a log of the greatest length, one that was removed, and a journal.
const DISK_BYTES: u64 = 2 * BYTES_MAX + (256 << 20);
/// The same of the disk that takes its time, on which logs are short.
const SLOW_DISK_BYTES: u64 = 256 << 20;

/// A place, which goes with the value.
#[derive(Debug)]
pub(super) enum Ground {
    Memory(SmallFs),
    Slow(ThrottledDisk),
    Path(TempDir),
}

impl Ground {
    /// Makes the place; a directory is made in `parent`.
    ///
    /// # Errors
    /// It cannot be made; the error says what is missing.
    pub(super) fn new(place: Place, parent: Option<&Path>) -> anyhow::Result<Self> {
        Ok(match place {
            Place::Memory => {
                let made = SmallFs::ext4_in_memory(DISK_BYTES, true);
                Self::Memory(made.map_err(|error| cannot("an ext4 in memory", &error))?)
            }
            Place::Slow => {
                let made =
                    ThrottledDisk::builder().size_bytes(SLOW_DISK_BYTES).journal(true).build();
                let disk = made.map_err(|error| cannot("a slow disk", &error))?;
                disk.delay_writes(DELAY);
                Self::Slow(disk)
            }
            Place::Path => {
                let directory =
                    scratch::directory("sakia-bench-", parent.unwrap_or(Path::new(".")))?;
                Self::Path(directory)
            }
        })
    }

    pub(super) fn place(&self) -> Place {
        match self {
            Self::Memory(_) => Place::Memory,
            Self::Slow(_) => Place::Slow,
            Self::Path(_) => Place::Path,
        }
    }

    /// The directory for logs.
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Memory(small) => small.path(),
            Self::Slow(disk) => disk.path(),
            Self::Path(directory) => directory.path(),
        }
    }
}

/// Why a place could not be made, and who could.
fn cannot(what: &str, error: &PlaceError) -> anyhow::Error {
    let who = if error.is_missing() {
        "; it takes root, /dev/fuse, loop devices and mkfs.ext4, and --path DIR does without"
    } else {
        ""
    };
    anyhow!("cannot make {what}: {error}{who}")
}

/// The file system of a place, in a few words.
pub(super) fn kind(place: Place) -> &'static str {
    match place {
        Place::Memory => "ext4 on a disk in memory",
        Place::Slow => "ext4 on a slow disk",
        Place::Path => "a directory",
    }
}

/// Returns the facts about a place that a reader must know.
pub(super) fn note(place: Place) -> String {
    match place {
        Place::Memory => {
            "memory: a fresh ext4 with a journal on a loop device over a file in memory. A \
             sync is the file system's work, and no device's."
                .into()
        }
        Place::Slow => format!(
            "slow: a fresh ext4 with a journal on a loop device over a file that another process \
             serves, which answers each write after {} ms.",
            DELAY.as_millis()
        ),
        Place::Path => "path: a directory as it is, with the device that is below it.".into(),
    }
}
