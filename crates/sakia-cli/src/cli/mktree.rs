//! The arguments of `sakia mktree`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use sakia_bench::mktree::{Even, LEVELS_MAX, Layout, Options, SEED};

use super::experiments::FILE_BYTES_MAX;
use crate::mktree;
use crate::output::Format;

const JSON_HELP: &str = "\
JSON, with --json:
  {\"type\":\"mktree\", \"files\":…, \"directories\":…, \"bytes\":…}";

/// Make a tree of directories and files, to be copied
///
/// Without --sizes all directories are alike: each has --files files of --size bytes, and, except on the
/// last level, --fanout directories. With --sizes source the tree is like unpacked packages of source code:
/// names, depth and sizes are random, and --files is the total number of files. Bytes look random. The same
/// arguments make the same tree.
///
/// The exit status is 0 if the tree was made, 1 if not, for example if DIR is not empty, 2 for wrong usage.
#[derive(Debug, Args)]
#[command(after_long_help = JSON_HELP)]
pub(super) struct MktreeArgs {
    /// The root: a directory that is empty, or does not exist yet
    dir: PathBuf,

    /// Directories in each directory
    #[arg(long, value_name = "N", default_value_t = 5, conflicts_with = "sizes")]
    fanout: u32,

    /// Levels of directories, DIR itself being the first
    #[arg(long, value_name = "N", default_value_t = 4, conflicts_with = "sizes")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(LEVELS_MAX)))]
    levels: u32,

    /// Files in each directory; by default the value of --fanout. With --sizes total files; 32000
    #[arg(long, value_name = "N")]
    files: Option<u32>,

    /// Bytes of each file
    ///
    /// A number, or one with K, M or G for 1024, 1024^2 or 1024^3 (also KiB, MiB, GiB).
    #[arg(long, value_name = "BYTES", default_value = "4K", conflicts_with = "sizes")]
    #[arg(value_parser = super::bytes(0, FILE_BYTES_MAX))]
    size: u64,

    /// Make files in directories of the last level only
    #[arg(long, conflicts_with = "sizes")]
    leaves: bool,

    /// Take sizes from a distribution: half of the files below 2.7 KB, 99 of 100 below 225 KB
    #[arg(long, value_name = "NAME")]
    sizes: Option<Sizes>,

    /// Seed of the random choices
    #[arg(long, value_name = "N", default_value_t = SEED)]
    seed: u64,

    /// Write one JSON object
    #[arg(long)]
    json: bool,
}

/// Distributions of sizes.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Sizes {
    /// Those of source code.
    Source,
}

/// The default number of files in a tree of source code.
const SOURCE_FILES: u32 = 32_000;

impl MktreeArgs {
    pub(super) fn resolve(self) -> mktree::Options {
        let layout = match self.sizes {
            Some(Sizes::Source) => {
                Layout::Source { files: self.files.unwrap_or(SOURCE_FILES).into() }
            }
            None => Layout::Even(Even {
                fanout: self.fanout,
                levels: self.levels,
                files: self.files.unwrap_or(self.fanout),
                leaves: self.leaves,
                size_bytes: self.size,
            }),
        };
        mktree::Options {
            directory: self.dir,
            tree: Options { layout, seed: self.seed },
            format: if self.json { Format::Json } else { Format::Human },
        }
    }
}
