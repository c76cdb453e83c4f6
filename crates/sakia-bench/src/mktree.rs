//! Trees to copy: directories and files of a given shape, with bytes that look random.
//!
//! The same [`Options`] always make the same tree: names, sizes and bytes follow from the seed.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use fastrand::Rng;
use serde::{Deserialize, Serialize};

/// The default seed of trees.
pub const SEED: u64 = 0x5aa1_a002;
/// The most files and directories of a tree.
pub const ENTRIES_MAX: u64 = 100_000_000;
/// The most levels: a path through all of them fits the kernel's limit.
pub const LEVELS_MAX: u32 = 256;

/// The number of places in [`Maker::bytes`] where a file may begin.
const STARTS: usize = 4 << 20;
/// The most bytes written at a time.
const PART_BYTES: usize = 1 << 20;

/// The shape of a tree to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Its directories and files.
    pub layout: Layout,
    /// The seed of all random choices.
    pub seed: u64,
}

/// Directories and files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// All directories of a level are alike, and all files.
    Even(Even),
    /// Like unpacked packages of source code: some 40 files each, half of which have less than 2.7 KB, and
    /// one in a hundred more than 225 KB, in directories up to eight deep.
    Source {
        /// The number of files.
        files: u64,
    },
}

/// A tree whose directories are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Even {
    /// Directories in each directory but those of the last level.
    pub fanout: u32,
    /// Levels of directories, the first of which is the tree's own; 1 to [`LEVELS_MAX`].
    pub levels: u32,
    /// Files in each directory.
    pub files: u32,
    /// Set if only directories of the last level have files.
    pub leaves: bool,
    /// Bytes of each file.
    pub size_bytes: u64,
}

/// Counts of a tree's entries and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Regular files.
    pub files: u64,
    /// Directories, the tree's own included.
    pub directories: u64,
    /// Bytes of all files.
    pub bytes: u64,
}

impl Layout {
    /// Checks that a tree of this shape can be made.
    ///
    /// # Errors
    /// No level or too many of them, or more than [`ENTRIES_MAX`] files and directories.
    pub fn check(&self) -> anyhow::Result<()> {
        let entries = match self {
            Self::Even(even) => {
                let levels = 1..=LEVELS_MAX;
                ensure!(levels.contains(&even.levels), "a tree has 1 to {LEVELS_MAX} levels");
                even.entries()
            }
            Self::Source { files } => Some(*files),
        };
        let fits = entries.is_some_and(|entries| entries <= ENTRIES_MAX);
        ensure!(fits, "more than {ENTRIES_MAX} files and directories");
        Ok(())
    }
}

impl Even {
    /// Returns the number of files and directories; `None` if it overflows.
    fn entries(&self) -> Option<u64> {
        let (mut level, mut directories) = (1u64, 1u64);
        for _ in 1..self.levels {
            level = level.checked_mul(self.fanout.into())?;
            directories = directories.checked_add(level)?;
        }
        let with_files = if self.leaves { level } else { directories };
        with_files.checked_mul(self.files.into())?.checked_add(directories)
    }
}

/// Returns the counts of the tree that [`make`] would make with these options. Touches no file.
///
/// # Errors
/// As [`Layout::check`].
pub fn plan(options: &Options) -> anyhow::Result<Counts> {
    options.layout.check()?;
    Maker::new(options, false, &|| false).run(Path::new(""))
}

/// Makes a tree in `directory`, which must be empty or not exist yet. Calls `is_stopped` now and then, and
/// gives up early if it returns true. Returns the counts of the new tree.
///
/// # Errors
/// Those of [`Layout::check`]; `directory` is not empty; a file or directory cannot be made.
pub fn make(
    directory: &Path,
    options: &Options,
    is_stopped: &dyn Fn() -> bool,
) -> anyhow::Result<Counts> {
    options.layout.check()?;
    claim(directory)?;
    Maker::new(options, true, is_stopped).run(directory)
}

/// Makes the directory, or checks that it is empty.
fn claim(directory: &Path) -> anyhow::Result<()> {
    let shown = directory.display();
    fs::create_dir_all(directory).with_context(|| format!("cannot make {shown}"))?;
    let mut entries = fs::read_dir(directory).with_context(|| format!("cannot read {shown}"))?;
    if entries.next().is_some() {
        bail!("{shown} is not empty");
    }
    Ok(())
}

/// Makes a tree, or only counts its entries and bytes.
struct Maker<'a> {
    layout: Layout,
    /// The seeded generator that chooses sizes, names, and the place in `bytes` where a file's data begins.
    rng: Rng,
    /// Data from which all files take their bytes; empty if files are only counted.
    bytes: Vec<u8>,
    made: Counts,
    is_real: bool,
    is_stopped: &'a dyn Fn() -> bool,
}

impl<'a> Maker<'a> {
    fn new(options: &Options, is_real: bool, is_stopped: &'a dyn Fn() -> bool) -> Self {
        let mut rng = Rng::with_seed(options.seed);
        let mut source = rng.fork();
        let mut bytes = vec![0; if is_real { STARTS + PART_BYTES } else { 0 }];
        source.fill(&mut bytes);
        let made = Counts::default();
        Self { layout: options.layout, rng, bytes, made, is_real, is_stopped }
    }

    fn run(mut self, root: &Path) -> anyhow::Result<Counts> {
        self.made.directories = 1;
        match self.layout {
            Layout::Even(even) => self.even(&even, &mut root.to_owned(), even.levels)?,
            Layout::Source { files } => self.source(root, files)?,
        }
        Ok(self.made)
    }

    /// Fills a directory that is the first of this many levels.
    fn even(&mut self, even: &Even, path: &mut PathBuf, levels: u32) -> anyhow::Result<()> {
        if !even.leaves || levels == 1 {
            for index in 0..even.files {
                if index % 64 == 63 && (self.is_stopped)() {
                    return Ok(());
                }
                path.push(format!("f{index}"));
                self.file(path, even.size_bytes)?;
                path.pop();
            }
        }
        for index in 0..if levels > 1 { even.fanout } else { 0 } {
            if (self.is_stopped)() {
                return Ok(());
            }
            path.push(format!("d{index}"));
            self.directory(path)?;
            self.even(even, path, levels - 1)?;
            path.pop();
        }
        Ok(())
    }

    /// Makes packages until there are this many files.
    fn source(&mut self, root: &Path, files: u64) -> anyhow::Result<()> {
        for number in 0.. {
            let left = files - self.made.files;
            if left == 0 || (self.is_stopped)() {
                break;
            }
            let (minor, patch) = (self.rng.u8(..40), self.rng.u8(..20));
            let path = root.join(format!("{}{number}-1.{minor}.{patch}", self.word()));
            let files = self.rng.u64(1..=PACKAGE_FILES_MAX).min(left);
            self.package(path, files)?;
        }
        Ok(())
    }

    /// Makes a package: a directory that gets others at random, and files in any of them.
    fn package(&mut self, path: PathBuf, files: u64) -> anyhow::Result<()> {
        self.directory(&path)?;
        let mut directories = vec![(path, 1)];
        for number in 0..files {
            let at = self.rng.usize(..directories.len());
            if self.rng.u8(..DIRECTORY_ODDS) == 0 && directories[at].1 < DEPTH_MAX {
                let path = directories[at].0.join(format!("{}{number}", self.word()));
                self.directory(&path)?;
                directories.push((path, directories[at].1 + 1));
            }
            let at = self.rng.usize(..directories.len());
            let ending = ENDINGS[self.rng.usize(..ENDINGS.len())];
            let path = directories[at].0.join(format!("{}{number}.{ending}", self.word()));
            let size = self.source_size();
            self.file(&path, size)?;
        }
        Ok(())
    }

    /// Returns the size of a file of source code: its logarithm has a normal distribution (Box and Muller).
    fn source_size(&mut self) -> u64 {
        let (radius, angle) = (1.0 - self.rng.f64(), self.rng.f64() * std::f64::consts::TAU);
        let normal = (-2.0 * radius.ln()).sqrt() * angle.cos();
        let size = SIZE_MEDIAN * (SIZE_DEVIATION * normal).exp();
        (size as u64).min(SIZE_MAX)
    }

    fn word(&mut self) -> String {
        let syllables = self.rng.usize(2..=4);
        (0..syllables).map(|_| SYLLABLES[self.rng.usize(..SYLLABLES.len())]).collect()
    }

    fn directory(&mut self, path: &Path) -> anyhow::Result<()> {
        self.made.directories += 1;
        if !self.is_real {
            return Ok(());
        }
        fs::create_dir(path).with_context(|| format!("cannot make {}", path.display()))
    }

    fn file(&mut self, path: &Path, size: u64) -> anyhow::Result<()> {
        let start = self.rng.usize(..STARTS);
        self.made.files += 1;
        self.made.bytes += size;
        if !self.is_real {
            return Ok(());
        }
        self.write(path, start, size).with_context(|| format!("cannot write {}", path.display()))
    }

    fn write(&self, path: &Path, mut start: usize, size: u64) -> std::io::Result<()> {
        let mut file = File::create_new(path)?;
        let mut left = size;
        while left > 0 && !(size > PART_BYTES as u64 && (self.is_stopped)()) {
            let len = left.min(PART_BYTES as u64) as usize;
            file.write_all(&self.bytes[start..start + len])?;
            left -= len as u64;
            // An odd step, so that a large file repeats itself late.
            start = (start + len + 4099) % STARTS;
        }
        Ok(())
    }
}

/// The most files of a package.
const PACKAGE_FILES_MAX: u64 = 79;
/// One in this many files begins a directory.
const DIRECTORY_ODDS: u8 = 8;
/// The depth of nested directories, counted from the package.
const DEPTH_MAX: usize = 8;
/// The median of sizes.
const SIZE_MEDIAN: f64 = 2700.0;
/// The deviation of the sizes' logarithm: 99 of 100 files have less than 225 KB.
const SIZE_DEVIATION: f64 = 1.901;
/// The most bytes of a file.
const SIZE_MAX: u64 = 16 << 20;
const ENDINGS: [&str; 10] = ["rs", "rs", "rs", "rs", "c", "h", "md", "toml", "json", "txt"];
const SYLLABLES: [&str; 16] = [
    "ba", "con", "de", "fer", "gi", "ha", "io", "ka", "lo", "mu", "ne", "or", "pa", "ri", "sta",
    "tu",
];

#[cfg(test)]
mod tests;
