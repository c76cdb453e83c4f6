//! Sources of copies: making and counting them, and moving them into the page cache or out of it.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rustix::fs::{Advice, OFlags, fadvise};
use serde::{Deserialize, Serialize};
use walkdir::WalkDir;

use super::Tree;
use crate::mktree;
use crate::scratch::write_back;

/// Bytes that are read at a time.
const PART_BYTES: usize = 256 << 10;
/// The file through which root makes the kernel drop its caches.
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// Counts of everything below a path, the path itself included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Census {
    pub(super) files: u64,
    pub(super) directories: u64,
    pub(super) links: u64,
    /// Pipes, sockets and devices.
    pub(super) others: u64,
    /// Bytes of files.
    pub(super) bytes: u64,
}

impl Census {
    /// Counts the entries and bytes below `path`.
    ///
    /// # Errors
    /// An entry cannot be read; the error names its path.
    pub(super) fn of(path: &Path) -> anyhow::Result<Self> {
        let mut census = Self::default();
        walk(path, &mut |_, found| {
            let kind = found.file_type();
            if kind.is_file() {
                census.files += 1;
                census.bytes += found.len();
            } else if kind.is_dir() {
                census.directories += 1;
            } else if kind.is_symlink() {
                census.links += 1;
            } else {
                census.others += 1;
            }
            Ok(())
        })?;
        Ok(census)
    }

    /// Returns the counts as one number, which is the same for a complete copy.
    pub(super) fn sum(&self) -> u64 {
        let Self { files, directories, links, others, bytes } = *self;
        let all = [files, directories, links, others, bytes];
        all.iter().fold(0, |sum, &count| sum.wrapping_mul(1_000_003).wrapping_add(count))
    }

    /// Returns the number of entries.
    pub(super) fn entries(&self) -> u64 {
        self.files + self.directories + self.links + self.others
    }
}

impl fmt::Display for Census {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { files, directories, links, others, bytes } = self;
        write!(f, "{files} files of {bytes} bytes in {directories} directories")?;
        write!(f, ", {links} links, {others} others")
    }
}

impl From<mktree::Counts> for Census {
    fn from(mktree::Counts { files, directories, bytes }: mktree::Counts) -> Self {
        Self { files, directories, links: 0, others: 0, bytes }
    }
}

/// Calls `visit` for the path and all below it, directories before their entries; links are not followed.
fn walk(
    path: &Path,
    visit: &mut dyn FnMut(&Path, &fs::Metadata) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    for entry in WalkDir::new(path).follow_root_links(false) {
        let entry = entry?; // errors name the path
        visit(entry.path(), &entry.metadata()?)?;
    }
    Ok(())
}

/// Returns the counts of a tree that exists, or of one before it is made.
///
/// # Errors
/// The user's tree cannot be read.
pub(super) fn plan(tree: &Tree, quick: bool, file_bytes: u64) -> anyhow::Result<Census> {
    match tree {
        Tree::Path(path) => Census::of(path),
        Tree::File => Ok(Census { files: 1, bytes: file_bytes, ..Census::default() }),
        _ => {
            let options = tree.layout(quick, file_bytes).context("a tree that is made")?;
            Ok(mktree::plan(&options)?.into())
        }
    }
}

/// Makes a tree in `scratch`, or returns the user's. Unless stopped early, the new files are on their disk.
///
/// # Errors
/// A file or directory cannot be made.
pub(super) fn make(
    tree: &Tree,
    quick: bool,
    file_bytes: u64,
    scratch: &Path,
    is_stopped: &dyn Fn() -> bool,
) -> anyhow::Result<PathBuf> {
    let path = match tree {
        Tree::Path(path) => return Ok(path.clone()),
        _ => scratch.join(tree.name()),
    };
    if path.exists() {
        return Ok(path);
    }
    let options = tree.layout(quick, file_bytes).context("a tree that is made")?;
    if *tree == Tree::File {
        let below = scratch.join("one");
        mktree::make(&below, &options, is_stopped)?;
        fs::rename(below.join("f0"), &path).with_context(|| format!("{}", path.display()))?;
    } else {
        mktree::make(&path, &options, is_stopped)?;
    }
    if !is_stopped() {
        write_back(scratch)?;
    }
    Ok(path)
}

/// Reads the whole tree once, so that the page cache has it. A link is followed if it is the path itself.
///
/// # Errors
/// An entry cannot be read; the error names its path.
pub(super) fn warm(path: &Path) -> anyhow::Result<()> {
    let mut buffer = vec![0; PART_BYTES];
    let path = path.canonicalize().with_context(|| format!("cannot find {}", path.display()))?;
    each_file(&path, &mut |mut file| {
        while file.read(&mut buffer)? > 0 {}
        Ok(())
    })
}

/// The way to make a source cold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chill {
    /// Drop all caches of the kernel, names included. Requires root.
    Everything,
    /// Drop the data of files; directories and cached names stay.
    Files,
}

impl Chill {
    /// Returns the strongest way that this process may use.
    pub(super) fn possible() -> Self {
        let opened = File::options().write(true).open(DROP_CACHES);
        if opened.is_ok() { Self::Everything } else { Self::Files }
    }

    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Everything => "all caches of the machine dropped before each run (drop_caches)",
            Self::Files => {
                "its files dropped from the page cache before each run (posix_fadvise; without root \
                 directories and inodes stay cached)"
            }
        }
    }

    /// Makes the source cold in this way.
    ///
    /// # Errors
    /// As `open(2)` and `write(2)`.
    pub(super) fn apply(self, path: &Path) -> anyhow::Result<()> {
        write_back(path)?;
        match self {
            Self::Everything => fs::write(DROP_CACHES, "3").context(DROP_CACHES),
            Self::Files => {
                each_file(path, &mut |file| Ok(fadvise(&file, 0, None, Advice::DontNeed)?))
            }
        }
    }
}

fn each_file(path: &Path, act: &mut dyn FnMut(File) -> io::Result<()>) -> anyhow::Result<()> {
    walk(path, &mut |path, found| {
        if !found.is_file() {
            return Ok(());
        }
        // If the file has become a pipe meanwhile, opening it must not wait for a writer.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let file = File::options().read(true).custom_flags(flags).open(path);
        file.and_then(&mut *act).with_context(|| format!("cannot read {}", path.display()))
    })
}

/// Copies files and directories only, by plain calls; the copy is to be deleted again.
///
/// # Errors
/// An entry cannot be copied; the error names its path.
pub(super) fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    walk(from, &mut |path, found| {
        // A source that is a file has no path relative to itself.
        let Ok(below) = path.strip_prefix(from) else { bail!("{} moved", path.display()) };
        let target = if below.as_os_str().is_empty() { to.to_owned() } else { to.join(below) };
        let copied = if found.is_dir() {
            fs::create_dir(&target)
        } else if found.is_file() {
            fs::copy(path, &target).map(drop)
        } else {
            Ok(())
        };
        copied.with_context(|| format!("cannot copy {}", path.display()))
    })
}

/// Removes a copy, of any file type. A missing copy is no error.
///
/// # Errors
/// An entry cannot be removed.
pub(super) fn remove(path: &Path) -> anyhow::Result<()> {
    let removed = match path.symlink_metadata() {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    };
    removed.with_context(|| format!("cannot remove {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zoo() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("a/b")).unwrap();
        fs::write(directory.path().join("a/b/c"), "twelve bytes").unwrap();
        fs::write(directory.path().join("empty"), "").unwrap();
        std::os::unix::fs::symlink("/", directory.path().join("link")).unwrap();
        directory
    }

    #[test]
    fn all_below_is_counted_and_no_link_followed() {
        let zoo = zoo();
        let census = Census::of(zoo.path()).unwrap();
        let expected = Census { files: 2, directories: 3, links: 1, others: 0, bytes: 12 };
        assert_eq!((census, census.entries()), (expected, 6));
        assert_ne!(census.sum(), Census { bytes: 11, ..census }.sum());
        let file = Census::of(&zoo.path().join("a/b/c")).unwrap();
        assert_eq!((file.files, file.directories, file.bytes), (1, 0, 12));
        assert!(Census::of(&zoo.path().join("none")).is_err());
    }

    #[test]
    fn copies_are_made_and_removed() {
        let zoo = zoo();
        let to = tempfile::tempdir().unwrap();
        let copied = to.path().join("copy");
        copy(zoo.path(), &copied).unwrap();
        assert_eq!(fs::read(copied.join("a/b/c")).unwrap(), b"twelve bytes");
        remove(&copied).unwrap();
        remove(&copied).unwrap();
        copy(&zoo.path().join("empty"), &copied).unwrap();
        remove(&copied).unwrap();
        assert!(!copied.exists());
    }

    #[test]
    fn sources_are_as_planned_hot_or_cold() {
        let scratch = tempfile::tempdir().unwrap();
        for tree in [Tree::Large, Tree::Source, Tree::File] {
            let planned = plan(&tree, true, 10_000).unwrap();
            let path = make(&tree, true, 10_000, scratch.path(), &|| false).unwrap();
            assert_eq!(Census::of(&path).unwrap(), planned, "{tree:?}");
            assert_eq!(make(&tree, true, 10_000, scratch.path(), &|| false).unwrap(), path);
            warm(&path).unwrap();
            Chill::Files.apply(&path).unwrap();
        }
    }
}
