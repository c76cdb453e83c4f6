//! Places for copies: a fresh file system, or a fresh directory, for each run.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use rustix::fs::statvfs;
use sakia_bench_support::place::PlaceError;
use sakia_bench_support::small_fs::SmallFs;
use tempfile::TempDir;

use super::source::{self, Census};
use crate::bytes::bytes;
use crate::machine::memory_available_bytes;
use crate::scratch;

/// A place for copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// On a tmpfs.
    Tmpfs,
    /// On an ext4 whose disk is in memory.
    Ext4,
    /// On an ext4 without a journal, whose disk is in memory.
    Ext4NoJournal,
    /// Beside the source.
    Disk,
    /// In a directory of the user.
    Path(PathBuf),
}

impl Place {
    /// The places with names.
    pub const NAMED: [Self; 4] = [Self::Tmpfs, Self::Ext4, Self::Ext4NoJournal, Self::Disk];

    /// Returns the name of the place.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Tmpfs => "tmpfs",
            Self::Ext4 => "ext4",
            Self::Ext4NoJournal => "ext4-nojournal",
            Self::Disk => "disk",
            Self::Path(_) => "path",
        }
    }

    /// Returns the place of this name, or the directory of this path: with a slash, or `.`.
    pub fn by_name(name: &str) -> Option<Self> {
        let named = Self::NAMED.into_iter().find(|place| place.name() == name);
        named.or_else(|| super::as_path(name).map(Self::Path))
    }

    /// Returns the reason why this machine cannot provide the place, if it cannot.
    pub(super) fn lacks(&self) -> anyhow::Result<Option<String>> {
        match self.mount(PROBE_BYTES) {
            None | Some(Ok(_)) => Ok(None),
            Some(Err(error)) if error.is_missing() => Ok(Some(error.to_string())),
            Some(Err(error)) => Err(error).context(self.name()),
        }
    }

    /// Mounts a file system of this kind; `None` for directories.
    fn mount(&self, size_bytes: u64) -> Option<Result<SmallFs, PlaceError>> {
        match self {
            Self::Tmpfs => Some(SmallFs::tmpfs(size_bytes)),
            Self::Ext4 => Some(SmallFs::ext4_in_memory(size_bytes, true)),
            Self::Ext4NoJournal => Some(SmallFs::ext4_in_memory(size_bytes, false)),
            Self::Disk | Self::Path(_) => None,
        }
    }

    /// Returns the memory that a copy takes there: its pages, and on a disk in memory those of the disk.
    pub(super) fn memory_bytes(&self, census: &Census) -> u64 {
        let pages = census.bytes + census.entries() * ENTRY_BYTES;
        match self {
            Self::Ext4 | Self::Ext4NoJournal => 2 * pages,
            Self::Tmpfs | Self::Disk | Self::Path(_) => pages,
        }
    }
}

/// A size that is enough for any file system.
const PROBE_BYTES: u64 = 64 << 20;
/// Bytes that an entry takes besides its data: the rest of its last page, its inode, its name.
const ENTRY_BYTES: u64 = 2048;
/// Bytes that a file system takes besides its entries: a journal, and tables.
const SPARE_BYTES: u64 = 256 << 20;
/// The most bytes that the unused rest of a file's last block, or a directory, takes.
const BLOCK_BYTES: u64 = 4096;
/// Bytes of a disk per inode.
const BYTES_PER_INODE: u64 = 16 << 10;

/// A place of a point, with the copies there.
#[derive(Debug)]
pub(super) struct Ground {
    place: Place,
    census: Census,
    /// The file system of the current run.
    mounted: Option<SmallFs>,
    /// The directory that holds the copies' directories. Dropping it removes everything in it.
    kept: Option<TempDir>,
    /// The number of copies begun, which is part of their names.
    copies: u64,
}

impl Ground {
    /// Returns a place for copies of a tree. Directories are made in `beside`, unless they are the user's.
    ///
    /// # Errors
    /// No directory can be made, or there is too little memory for a file system in it.
    pub(super) fn new(place: &Place, census: Census, beside: &Path) -> anyhow::Result<Self> {
        let parent = match place {
            Place::Disk => Some(beside),
            Place::Path(path) => Some(path.as_path()),
            _ => None,
        };
        let make = |parent: &Path| scratch::directory("sakia-copies-", parent);
        let kept = parent.map(make).transpose()?;
        let ground = Self { place: place.clone(), census, mounted: None, kept, copies: 0 };
        if let (None, Some(available)) = (parent, memory_available_bytes()) {
            let needed = ground.place.memory_bytes(&census) + SPARE_BYTES;
            let name = place.name();
            ensure!(
                needed < available / 10 * 9,
                "a copy on {name} takes {} of memory, and {} are there",
                bytes(needed >> 20 << 20),
                bytes(available >> 20 << 20)
            );
        }
        Ok(ground)
    }

    /// Prepares the place for the next copy and returns its path: it is empty, and all data of earlier runs
    /// has reached the disk.
    ///
    /// Copies on disks stay as long as there is room, since an ext4 without a journal is slow to reuse space
    /// that was freed in the last minutes. Also returns whether earlier copies had to be removed.
    ///
    /// # Errors
    /// A file system cannot be mounted, or an earlier copy cannot be removed.
    pub(super) fn fresh(&mut self) -> anyhow::Result<(PathBuf, bool)> {
        self.mounted = None; // frees its memory for the next
        self.copies += 1;
        let name = format!("copy-{}", self.copies);
        if let Some(mounted) = self.place.mount(self.size_bytes()) {
            let mounted = mounted.with_context(|| format!("cannot make {}", self.place.name()))?;
            return Ok((self.mounted.insert(mounted).path().join(name), false));
        }
        let kept = self.kept.as_ref().context("a directory for copies")?.path();
        let is_short = is_short(kept, self.census.bytes)?;
        if is_short {
            for entry in fs::read_dir(kept)? {
                source::remove(&entry?.path())?;
            }
        }
        scratch::write_back(kept)?;
        Ok((kept.join(name), is_short))
    }

    /// Returns the size of a file system for one copy and one deleted copy.
    fn size_bytes(&self) -> u64 {
        let Census { bytes, .. } = self.census;
        let entries = self.census.entries();
        let content = 2 * (bytes + entries * BLOCK_BYTES);
        content.max(2 * entries * BYTES_PER_INODE) + SPARE_BYTES
    }
}

/// Returns whether the next copy would leave little room on the disk.
fn is_short(path: &Path, bytes: u64) -> anyhow::Result<bool> {
    let room = statvfs(path).with_context(|| format!("cannot ask {}", path.display()))?;
    let free = room.f_bavail * room.f_frsize;
    Ok(free < (4 * bytes).max(room.f_blocks * room.f_frsize / 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_and_paths_are_paths() {
        for place in Place::NAMED {
            assert_eq!(Place::by_name(place.name()), Some(place));
        }
        assert!(matches!(Place::by_name("/a/b"), Some(Place::Path(_))));
        assert_eq!(Place::by_name("xfs"), None);
    }

    #[test]
    fn each_copy_has_a_fresh_directory_or_file_system() {
        let beside = tempfile::tempdir().unwrap();
        let census = Census { files: 3, bytes: 100, ..Census::default() };
        for place in Place::NAMED {
            if let Some(reason) = place.lacks().unwrap() {
                sakia_bench_support::place::announce_skip("copytree::place", &reason);
                continue;
            }
            let mut ground = Ground::new(&place, census, beside.path()).unwrap();
            let first = ground.fresh().unwrap().0;
            fs::create_dir(&first).unwrap();
            fs::write(first.join("a"), "x").unwrap();
            let (second, is_short) = ground.fresh().unwrap();
            assert!(first != second && !second.exists(), "{place:?}");
            // A disk that is nearly full keeps no earlier copy and reports that.
            assert_eq!(first.exists(), place == Place::Disk && !is_short);
            assert!(!is_short || place == Place::Disk, "{place:?}");
            drop(ground);
            assert!(!first.exists() && !second.parent().unwrap().exists());
        }
        assert!(fs::read_dir(beside.path()).unwrap().next().is_none());
    }
}
