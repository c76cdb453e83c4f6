//! The command lines of `cp` and `rm`.

use std::path::PathBuf;

use clap::Args;
use clap::builder::PossibleValuesParser;
use clap::error::ErrorKind;
use sakia_copy::{Existing, Follow, Options, Preserve, Reflink, Sparse};
use sakia_driver::Policy;

use super::notes::ENVIRONMENT_HELP;
use super::{MEMORY_MAX, Surroundings, bytes, path, wrong};
use crate::output::Format;
use crate::{cp, rm};

/// The smallest buffer in bytes.
const BUFFER_MIN: u64 = 4096;
const WHEN: [&str; 3] = ["auto", "always", "never"];
const ATTRIBUTES: [&str; 6] = ["mode", "ownership", "timestamps", "links", "xattr", "all"];

/// Copy files and trees, fast and exact
///
/// Copies SRC to DST, or into DST if that is a directory. Each processor copies a directory at a time by
/// plain system calls; uncached data is read through the ring, many files at a time. On a terminal a bar
/// shows the progress; failures are reported on standard error, and the rest is copied. Only a lack of room,
/// on the disk or in the user's quota, stops the copy of all sources: cp goes on, and leaves empty files. The
/// same command with -u continues.
///
/// A directory has the mode 01700 until all its contents are there, and a file 01200 until it is complete,
/// unless it is written by one call in such a directory; a file that cannot be completed is removed. So
/// after an error, a signal or a crash of the program incomplete entries can be recognized, and the same
/// command with -u or -n completes the copy. A link, FIFO, socket or device with attributes is made in such
/// a directory, or else in a private one, .sakia-cp, and appears when it is complete.
///
/// If other users may write to a directory at the destination, new directories are made in .sakia-cp, too:
/// no change of mode, owner, times or attributes can meet a file that such a user puts in the place of a new
/// one.
///
/// Unlike cp it does not write through symbolic links within a tree at the destination, which other users
/// may have put there: it replaces them. Devices, FIFOs and sockets there are replaced with --force only.
/// The target of DST is written to, even if it is a device. Of several files in SRC whose existing copies are
/// names of one file, one becomes its contents as a whole, but not always the last one.
///
/// The exit status is 0 if everything was copied, 1 if something failed, 2 for wrong usage.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(after_long_help = format!("{NOT_SUPPORTED}\n\n{CP_JSON_HELP}\n\n{ENVIRONMENT_HELP}"))]
pub(super) struct CpArgs {
    /// Sources; without -t, the last path is the destination
    #[arg(required = true, value_name = "SRC… DST", value_parser = path())]
    paths: Vec<PathBuf>,

    /// Copy directories with their contents
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,

    /// Copy exactly: -r -P --preserve=all
    #[arg(short, long)]
    archive: bool,

    /// The same as --preserve=mode,ownership,timestamps
    #[arg(short = 'p')]
    preserve_usual: bool,

    /// Print each copied entry
    #[arg(short, long)]
    verbose: bool,

    /// Keep existing entries, whatever -f and -u say
    #[arg(short, long)]
    no_clobber: bool,

    /// Replace a destination that cannot be opened; replace devices and FIFOs, too
    #[arg(short, long)]
    force: bool,

    /// Overwrite an existing entry only if the source was modified later
    #[arg(short, long)]
    update: bool,

    /// Follow symbolic links; the default without -r
    #[arg(short = 'L', long, overrides_with = "no_dereference")]
    dereference: bool,

    /// Stay on the file system of SRC: directories on others are copied without their contents
    #[arg(short = 'x', long)]
    one_file_system: bool,

    /// Copy symbolic links as links; the default with -r
    #[arg(short = 'P', long)]
    no_dereference: bool,

    /// DST is the copy itself, even if it is a directory
    #[arg(short = 'T', long, conflicts_with = "target_directory")]
    no_target_directory: bool,

    /// Copy all of SRC into this directory
    #[arg(short, long, value_name = "DIR", value_parser = path())]
    target_directory: Option<PathBuf>,

    /// Holes of copies: as in the source (auto), for all zeros, or none
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    #[arg(value_parser = PossibleValuesParser::new(WHEN))]
    sparse: String,

    /// Share blocks of copies with their sources: if possible (auto), required, or never
    #[arg(long, value_name = "WHEN", default_value = "auto", default_missing_value = "always")]
    #[arg(num_args = 0..=1, require_equals = true, value_parser = PossibleValuesParser::new(WHEN))]
    reflink: String,

    /// Preserve these attributes besides contents
    ///
    /// mode: permissions and access control lists; ownership: user and group; timestamps; links: hard links
    /// between copied files; xattr: extended attributes; all. Without a list mode, ownership, timestamps.
    /// An access control list that cannot be kept is a failure, and so is an extended attribute if xattr is
    /// in the list: with -a and all those that cannot be kept are counted.
    #[arg(long, value_name = "LIST", value_delimiter = ',', num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "mode,ownership,timestamps")]
    #[arg(value_parser = PossibleValuesParser::new(ATTRIBUTES))]
    preserve: Vec<String>,

    /// Make the copy durable: one sync of its file system at the end
    #[arg(long)]
    fsync: bool,

    /// Read the copy again, bypassing the page cache, and compare
    #[arg(long)]
    verify: bool,

    /// Entries in progress at a time
    ///
    /// Each processor has only one as long as it need not wait.
    #[arg(long, value_name = "N", default_value_t = Options::LIMIT as u16)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=4096))]
    limit: u16,

    /// Size of each read, at least 4K; files up to this size are read before their copies are created
    #[arg(long, value_name = "SIZE", default_value = "256K", value_parser = bytes(BUFFER_MIN, MEMORY_MAX))]
    buffer: u64,

    /// Write nothing; print what would be copied
    #[arg(long)]
    dry_run: bool,

    /// Write JSON Lines
    #[arg(long)]
    json: bool,
}

const NOT_SUPPORTED: &str = "\
Not supported, unlike in cp: -H, -i, -l, -s, -Z, -b and --backup, --parents, --attributes-only, \
--copy-contents, --no-preserve, --remove-destination, --strip-trailing-slashes, --debug; asking before \
overwriting; SELinux contexts other than as extended attributes.";

const CP_JSON_HELP: &str = "\
JSON Lines, with --json:
  {\"type\":\"error\", \"path\":…, \"operation\":\"open\", \"errno\":13, \"message\":…}
      What failed. A path that is not UTF-8 is given as \"path_bytes\", in base64. Without a path, and with \
the operation \"usage\": the command line is wrong, and no further lines follow.
  {\"type\":\"summary\", \"files\":…, \"directories\":…, \"symlinks\":…, \"hard_links\":…, \"others\":…, \
\"skipped\":…, \"bytes\":…, \"failures\":…, \"seconds\":…, \"driver\":\"uring\", \"counters\":{…}}
      The last line. The driver is null if nothing was begun. Of the counters, create_seconds is an estimate \
from every eighth file; enters are those of the program's first thread.";

/// Remove files and trees
///
/// Directories are removed by all processors, each a directory at a time, relative to open directories: a
/// link put in the way by another user is removed itself. Failures are reported, and the rest is removed.
///
/// The exit status is 0 if everything was removed, 1 if something failed, 2 for wrong usage.
#[derive(Debug, Args)]
#[command(after_long_help = ENVIRONMENT_HELP)]
pub(super) struct RmArgs {
    /// Entries to remove
    #[arg(required = true, value_parser = path())]
    paths: Vec<PathBuf>,

    /// Remove directories with their contents
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,

    /// Ignore missing entries
    #[arg(short, long)]
    force: bool,
}

impl RmArgs {
    pub(super) fn resolve(self, policy: Policy) -> rm::Options {
        let Self { paths, recursive, force } = self;
        rm::Options { paths, recursive, force, policy }
    }
}

impl CpArgs {
    pub(super) fn resolve(
        mut self,
        policy: Policy,
        surroundings: &Surroundings,
    ) -> Result<cp::Options, clap::Error> {
        let invalid = |text: &str| wrong(&["cp"], ErrorKind::ValueValidation, text);
        let copy = self.options();
        if self.buffer * u64::from(self.limit) > MEMORY_MAX {
            return Err(invalid("the buffers of all entries under way take more than 1 GiB"));
        }
        if copy.reflink == Reflink::Always && copy.sparse != Sparse::Auto {
            return Err(invalid("--reflink=always goes with --sparse=auto only"));
        }
        let to = match self.target_directory.take() {
            Some(directory) => cp::To::Directory(directory),
            None => {
                let last = self.paths.pop().filter(|_| !self.paths.is_empty());
                let last = last.ok_or_else(|| invalid("where to is missing: SRC… DST"))?;
                match (self.no_target_directory, self.paths.len()) {
                    (true, 1) => cp::To::Exactly(last),
                    (true, _) => return Err(invalid("-T takes one SRC and DST")),
                    (false, _) => cp::To::Somewhere(last),
                }
            }
        };
        Ok(cp::Options {
            sources: self.paths,
            to,
            recursive: self.recursive || self.archive,
            copy,
            verbose: self.verbose,
            format: if self.json { Format::Json } else { Format::Human },
            progress: surroundings.err_is_terminal && !self.json && !self.verbose,
            to_terminal: surroundings.out_is_terminal,
            policy,
        })
    }

    fn options(&self) -> Options {
        let mut options = Options::new();
        options.existing = match (self.no_clobber, self.update) {
            (true, _) => Existing::Keep,
            (false, true) => Existing::Update,
            (false, false) => Existing::Overwrite,
        };
        options.force = self.force;
        let is_tree = self.recursive || self.archive;
        let follows = self.dereference || !(is_tree || self.no_dereference);
        options.follow = if follows { Follow::Always } else { Follow::Never };
        options.preserve = self.preserve();
        options.read_special = !is_tree;
        options.one_file_system = self.one_file_system;
        options.sparse = when(&self.sparse, [Sparse::Auto, Sparse::Always, Sparse::Never]);
        options.reflink = when(&self.reflink, [Reflink::Auto, Reflink::Always, Reflink::Never]);
        options.durable = self.fsync;
        options.verify = self.verify;
        options.dry_run = self.dry_run;
        options.buffer = self.buffer as usize;
        options.limit = self.limit.into();
        options
    }

    fn preserve(&self) -> Preserve {
        let has = |name: &str| {
            self.archive || self.preserve.iter().any(|asked| asked == name || asked == "all")
        };
        let mut preserve = Preserve::NONE;
        preserve.mode = self.preserve_usual || has("mode");
        preserve.ownership = self.preserve_usual || has("ownership");
        preserve.timestamps = self.preserve_usual || has("timestamps");
        preserve.links = has("links");
        preserve.xattrs = has("xattr");
        // As with cp, those of -a and of "all" are kept as far as possible.
        preserve.all_xattrs = self.preserve.iter().any(|asked| asked == "xattr");
        preserve
    }
}

/// Returns the value that a word of [`WHEN`] selects.
fn when<T>(word: &str, all: [T; 3]) -> T {
    let meant = WHEN.into_iter().zip(all).find(|(known, _)| *known == word);
    meant.expect("clap knows the same words").1
}

#[cfg(test)]
mod tests {
    use super::super::{Task, parse_from};
    use super::*;

    fn options(args: &[&str]) -> Result<cp::Options, ErrorKind> {
        let args = [&["sakia", "cp"], args].concat();
        match parse_from(args, Surroundings::default()).map_err(|error| error.kind())? {
            Task::Cp(options) => Ok(*options),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn letters_mean_what_they_mean_in_cp() {
        let plain = options(&["a", "b"]).unwrap().copy;
        assert_eq!((plain.follow, plain.preserve), (Follow::Always, Preserve::NONE));
        let tree = options(&["-r", "a", "b"]).unwrap();
        assert_eq!((tree.recursive, tree.copy.follow), (true, Follow::Never));
        assert_eq!(options(&["-R", "-L", "a", "b"]).unwrap().copy.follow, Follow::Always);
        let exact = options(&["-a", "a", "b"]).unwrap();
        assert_eq!((exact.recursive, exact.copy.preserve), (true, Preserve::ALL));
        let usual = options(&["-p", "a", "b"]).unwrap().copy.preserve;
        assert!(usual.mode && usual.ownership && usual.timestamps && !usual.links && !usual.xattrs);
        assert_eq!(options(&["--preserve", "a", "b"]).unwrap().copy.preserve, usual);
        for list in [&["--preserve=links,xattr"][..], &["--preserve=links", "--preserve=xattr"]] {
            let some = options(&[list, &["a", "b"]].concat()).unwrap().copy.preserve;
            assert!(some.links && some.xattrs && some.all_xattrs && !some.mode);
        }
        let all = options(&["--preserve=all", "a", "b"]).unwrap().copy.preserve;
        assert_eq!(all, Preserve::ALL);
        let exact = options(&["-a", "--preserve=xattr", "a", "b"]).unwrap().copy.preserve;
        assert!(exact.mode && exact.all_xattrs);
        let last = options(&["-r", "-r", "--sparse=always", "--sparse=never", "a", "b"]);
        assert_eq!(last.unwrap().copy.sparse, Sparse::Never);
        assert_eq!(options(&["-u", "a", "b"]).unwrap().copy.existing, Existing::Update);
        assert_eq!(options(&["-n", "a", "b"]).unwrap().copy.existing, Existing::Keep);
        assert!(options(&["-x", "a", "b"]).unwrap().copy.one_file_system && !plain.one_file_system);
        assert_eq!(options(&["--reflink", "a", "b"]).unwrap().copy.reflink, Reflink::Always);
        assert_eq!(options(&["--sparse=never", "a", "b"]).unwrap().copy.sparse, Sparse::Never);
    }

    #[test]
    fn the_destination_comes_last_or_with_t() {
        let options = |args: &[&str]| options(args).map(|options| (options.sources, options.to));
        let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        let to = cp::To::Somewhere("c".into());
        assert_eq!(options(&["a", "b", "c"]), Ok((paths(&["a", "b"]), to)));
        let to = cp::To::Directory("d".into());
        assert_eq!(options(&["-t", "d", "a"]), Ok((paths(&["a"]), to)));
        assert_eq!(options(&["-T", "a", "b"]), Ok((paths(&["a"]), cp::To::Exactly("b".into()))));
        for wrong in [&["a"][..], &[], &["-T", "a", "b", "c"], &["-T", "-t", "d", "a"]] {
            assert!(options(wrong).is_err(), "{wrong:?}");
        }
    }
}
