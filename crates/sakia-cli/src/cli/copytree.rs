//! The arguments of `sakia bench copytree`.

use std::env;
use std::path::PathBuf;

use clap::Args;
use sakia_bench::copytree::{FILE_BYTES, Mode, Options, Peer, Place, QUICK_FILE_BYTES, Tree};

use super::bytes;
use super::experiments::{
    CommonArgs, FILE_BYTES_MAX, default_directory, expected, or, parse_count,
};
use super::notes::{COPYTREE_NOTES, bench_json_help};

/// A tree of files, copied by whole programs
///
/// cp is cp -r, cp-again the same once more, which shows the random variation; sakia is sakia cp -r; xcp,
/// cpz, fcp and rsync are measured if they are installed. Each run goes to a fresh file system or directory.
///
/// Trees: small has 117,649 files of 4 KiB, large 780 of 1 MiB, source 32,000 with the sizes of source code,
/// file is one of --size bytes; or the path of a tree, with a slash in it. Places: tmpfs; ext4, on a disk in
/// memory; ext4-nojournal; disk, beside the source; or the path of a directory. File systems that have to be
/// mounted require root. Places that are unavailable are reported, and left out.
///
/// The exit status is 0 if everything was measured and all copies are complete, 1 if something failed, 2 for
/// wrong usage. A program that is not installed is no failure.
#[derive(Debug, Args)]
#[command(after_long_help = bench_json_help(COPYTREE_NOTES))]
pub(super) struct CopytreeArgs {
    #[command(flatten)]
    pub(super) common: CommonArgs,

    /// Source trees: small, large, source, file, or a path; small
    #[arg(long, value_name = "TREE,…", value_delimiter = ',', value_parser = parse_tree)]
    tree: Vec<Tree>,

    /// Destinations: tmpfs, ext4, ext4-nojournal, disk, or a path; disk
    #[arg(long, value_name = "PLACE,…", value_delimiter = ',', value_parser = parse_place)]
    place: Vec<Place>,

    /// Size of the tree file; 1G, or 64M with --quick
    #[arg(long, value_name = "BYTES", value_parser = bytes(1, FILE_BYTES_MAX))]
    size: Option<u64>,

    /// Set buffers of 4 KiB and 1 MiB and limits of 1, 2 and 64, and compare no other copiers
    #[arg(long, conflicts_with = "archive")]
    article: bool,

    /// Copy with all attributes: cp -a, sakia cp -a, rsync -aHAXS
    #[arg(long)]
    archive: bool,

    /// Copy durably: sakia cp --fsync, and cp followed by fdatasync of each file, or one syncfs
    #[arg(long, conflicts_with_all = ["archive", "article"])]
    fsync: bool,

    /// Drop the source from all caches before each run
    ///
    /// Root drops all caches of the machine. Other users drop the bytes of the source's files; cached names
    /// stay.
    #[arg(long)]
    cold: bool,

    /// Copy the tree and delete the copy just before each run, in the same place
    #[arg(long)]
    after_delete: bool,

    /// Limit programs to this number of processors
    #[arg(long, value_name = "N", value_parser = parse_count::<1024>)]
    cores: Option<usize>,

    /// Another program: its name and a command, to which source and destination are added
    ///
    /// Words of the command are separated by spaces. It replaces a known program of the same name; can be
    /// given several times.
    #[arg(long = "peer", value_name = "NAME=COMMAND", value_parser = parse_peer)]
    peers: Vec<Peer>,

    /// Variants: cp, cp-again, sakia, sakia-4k, sakia-1m, xcp, cpz, fcp, rsync, or a --peer
    ///
    /// By default all but sakia-4k and sakia-1m, which have buffers of these sizes. With --article the names
    /// have the limit too, as in sakia-4k-64.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    variants: Vec<String>,

    /// The folder for the source, which is removed at the end
    ///
    /// The default is the directory of build results that the program is in, or else the one for temporary
    /// files.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl CopytreeArgs {
    pub(super) fn resolve(self) -> Options {
        let usual = if self.common.quick { QUICK_FILE_BYTES } else { FILE_BYTES };
        Options {
            trees: or(self.tree, &[Tree::Small]),
            places: or(self.place, &[Place::Disk]),
            file_bytes: self.size.unwrap_or(usual),
            mode: match (self.article, self.archive, self.fsync) {
                (true, ..) => Mode::Article,
                (_, true, _) => Mode::Archive,
                (.., true) => Mode::Durable,
                _ => Mode::Plain,
            },
            cold: self.cold,
            after_delete: self.after_delete,
            cores: self.cores,
            quick: self.common.quick,
            peers: self.peers,
            variants: self.variants,
            program: env::current_exe().ok(),
            search: env::var_os("PATH"),
            directory: self.dir.unwrap_or_else(default_directory),
        }
    }
}

fn parse_tree(text: &str) -> Result<Tree, String> {
    let names = Tree::NAMED.map(|tree| tree.name());
    Tree::by_name(text).ok_or_else(|| or_path(&names.each_ref().map(String::as_str)))
}

fn parse_place(text: &str) -> Result<Place, String> {
    Place::by_name(text).ok_or_else(|| or_path(&Place::NAMED.map(|place| place.name())))
}

fn or_path(names: &[&str]) -> String {
    format!("{}, or a path with a slash", expected(names))
}

fn parse_peer(text: &str) -> Result<Peer, String> {
    let (name, command) = text.split_once('=').ok_or("expected NAME=COMMAND")?;
    let command: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
    if name.is_empty() || command.is_empty() {
        return Err("expected NAME=COMMAND".into());
    }
    Ok(Peer { name: name.into(), command })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_paths_are_told_apart() {
        assert_eq!(parse_tree("large"), Ok(Tree::Large));
        assert_eq!(parse_tree("./large"), Ok(Tree::Path("./large".into())));
        assert_eq!(parse_place("disk"), Ok(Place::Disk));
        let error = parse_place("xfs").unwrap_err();
        assert_eq!(
            error,
            "expected one of tmpfs, ext4, ext4-nojournal, disk, or a path with a slash"
        );
    }

    #[test]
    fn peers_have_a_name_and_a_command() {
        let peer = parse_peer("mine=/x/copy --flag  a=b").unwrap();
        assert_eq!((peer.name.as_str(), peer.command.len()), ("mine", 3));
        assert_eq!(peer.command[2], "a=b");
        for wrong in ["mine", "=cp", "mine=", "mine= "] {
            assert!(parse_peer(wrong).is_err(), "{wrong}");
        }
    }
}
