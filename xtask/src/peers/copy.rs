//! `cargo xtask peers copy`: copies of trees by `cp`, Sakia and other copiers.
//!
//! Installs the copiers in fixed versions, builds `limit-copy`, which makes no calls but those that copy,
//! makes the trees once, and has `sakia bench copytree` measure, which prints its tables. Nothing is deleted
//! between cells but copies on the disk, and those on it are measured first: what was deleted shortly before
//! makes a copy slow on some file systems.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};
use clap::Args;

use crate::cargo;

/// How it is run.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Small trees and three runs: minutes instead of hours
    #[arg(long)]
    quick: bool,
    /// Runs of each copier in each cell [default: 9, or 3 with --quick]
    #[arg(long, value_name = "N")]
    runs: Option<usize>,
    /// Cells to run, of all: disk, fsync, ext4, tmpfs, core, after-delete, archive, article, cold
    #[arg(long, value_name = "CELL", value_delimiter = ',')]
    only: Vec<String>,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
    /// Folder for the trees, and for copies on their disk [default: in the target folder]
    #[arg(long)]
    dir: Option<PathBuf>,
}

/// A copier on crates.io.
struct Copier {
    package: &'static str,
    version: &'static str,
}

const COPIERS: [Copier; 3] = [
    Copier { package: "xcp", version: "0.24.9" },
    Copier { package: "cpz", version: "3.2.1" },
    Copier { package: "fcp", version: "0.2.2" },
];

/// What `sakia bench copytree` is asked at a time.
struct Cell {
    name: &'static str,
    trees: &'static [&'static str],
    arguments: &'static [&'static str],
    /// Ways in which `limit-copy` copies them.
    limits: &'static [&'static str],
}

const ALL: &[&str] = &["small", "large", "source", "file"];

/// Those on the disk first, while nothing was deleted there; those that drop all caches last.
const CELLS: [Cell; 9] = [
    Cell { name: "disk", trees: ALL, arguments: &["--place", "disk"], limits: &["read", "range"] },
    Cell {
        name: "fsync",
        trees: &["thousand"],
        arguments: &["--place", "disk", "--fsync"],
        limits: &[],
    },
    Cell { name: "ext4", trees: ALL, arguments: &["--place", "ext4"], limits: &["read", "send"] },
    Cell { name: "tmpfs", trees: ALL, arguments: &["--place", "tmpfs"], limits: &["read", "send"] },
    Cell {
        name: "core",
        trees: &["small"],
        arguments: &["--place", "ext4,tmpfs", "--cores", "1"],
        limits: &[],
    },
    Cell {
        name: "after-delete",
        trees: &["small"],
        arguments: &["--place", "ext4,ext4-nojournal", "--after-delete"],
        limits: &[],
    },
    Cell {
        name: "archive",
        trees: &["small", "source"],
        arguments: &["--place", "tmpfs", "--archive"],
        limits: &[],
    },
    Cell {
        name: "article",
        trees: &["fanout5", "large"],
        arguments: &["--place", "tmpfs", "--article"],
        limits: &[],
    },
    Cell {
        name: "cold",
        trees: &["source"],
        arguments: &["--place", "disk", "--cold"],
        limits: &[],
    },
];

/// A tree: its name, what `sakia mktree` makes it by, and by what a small one.
struct Tree {
    name: &'static str,
    arguments: &'static [&'static str],
    quick: &'static [&'static str],
}

const TREES: [Tree; 6] = [
    Tree {
        name: "small",
        arguments: &["--fanout", "7", "--levels", "6", "--leaves", "--size", "4K"],
        quick: &["--fanout", "7", "--levels", "4", "--leaves", "--size", "4K"],
    },
    Tree {
        name: "thousand",
        arguments: &["--fanout", "10", "--levels", "3", "--leaves", "--size", "4K"],
        quick: &["--fanout", "5", "--levels", "3", "--leaves", "--size", "4K"],
    },
    Tree {
        name: "fanout5",
        arguments: &["--fanout", "5", "--levels", "7", "--size", "4K"],
        quick: &["--fanout", "5", "--levels", "4", "--size", "4K"],
    },
    Tree {
        name: "large",
        arguments: &["--fanout", "5", "--levels", "4", "--size", "1M"],
        quick: &["--fanout", "5", "--levels", "2", "--size", "1M"],
    },
    Tree {
        name: "source",
        arguments: &["--sizes", "source", "--files", "32000"],
        quick: &["--sizes", "source", "--files", "1000"],
    },
    Tree {
        name: FILE,
        arguments: &["--levels", "1", "--files", "1", "--size", "1G"],
        quick: &["--levels", "1", "--files", "1", "--size", "64M"],
    },
];

/// A program of nothing but the calls that copy.
const LIMIT: &str = "peers-limit-copy";

/// The tree that is a file: the only one of the directory in which it is made.
const FILE: &str = "file";

/// Installs, makes the trees, and measures each cell. Fails if one failed; the others are measured.
pub(super) fn run(root: &Path, options: &Options) -> anyhow::Result<ExitCode> {
    let cells = chosen(&options.only)?;
    let folder = cargo::target_folder(root).join("peers");
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    for copier in &COPIERS {
        if let Err(error) = copier.install(root, &folder) {
            eprintln!("{}: {error:#}", copier.package);
        }
    }
    let mut build = cargo::command(root);
    build.args(["build", "--locked", "--release", "--package", "sakia-cli"]);
    let sakia = cargo::program(&cargo::build(&mut build)?, "sakia")?;
    let mut build = cargo::command(&root.join("bench/peers"));
    build.args(["build", "--locked", "--release", "--package", LIMIT]);
    let limit = cargo::program(&cargo::build(&mut build)?, LIMIT)?;
    let trees = options.dir.clone().unwrap_or_else(|| folder.join("trees"));
    let trees = trees.join(if options.quick { "quick" } else { "full" });
    let is_needed = |tree: &&Tree| cells.iter().any(|cell| cell.trees.contains(&tree.name));
    for tree in TREES.iter().filter(is_needed) {
        tree.make(&sakia, &trees, options.quick).with_context(|| format!("tree {}", tree.name))?;
    }
    let search = search_path(&folder.join("bin"))?;
    let mut failed = Vec::new();
    for cell in cells {
        eprintln!("{}", cell.name);
        let mut command = cell.command(&sakia, &limit, &trees, options);
        let status = command.env("PATH", &search).status().context("run sakia bench")?;
        if !status.success() {
            failed.push(cell.name);
        }
    }
    if failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("failed: {}", failed.join(", "));
    Ok(ExitCode::FAILURE)
}

/// The cells of these names, or all.
fn chosen(names: &[String]) -> anyhow::Result<Vec<&'static Cell>> {
    let known = CELLS.map(|cell| cell.name);
    for name in names {
        let is_known = known.contains(&name.as_str());
        ensure!(is_known, "there is no {name}; there are {}", known.join(", "));
    }
    let is_chosen = |cell: &&Cell| names.is_empty() || names.iter().any(|name| name == cell.name);
    Ok(CELLS.iter().filter(is_chosen).collect())
}

/// Where programs are searched for: first in `folder`.
fn search_path(folder: &Path) -> anyhow::Result<OsString> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = [folder.to_owned()].into_iter().chain(env::split_paths(&path));
    env::join_paths(folders).context("PATH")
}

impl Copier {
    /// Installs it below `folder`, unless it is there.
    fn install(&self, root: &Path, folder: &Path) -> anyhow::Result<()> {
        let Self { package, version } = self;
        let installed = fs::read_to_string(folder.join(".crates.toml")).unwrap_or_default();
        let is_there = installed.contains(&format!("\"{package} {version} "));
        if is_there && folder.join("bin").join(package).exists() {
            return Ok(());
        }
        let mut command = cargo::command(root);
        command.args(["install", "--locked", "--root"]).arg(folder);
        command.arg("--target-dir").arg(folder.join("build")).arg(format!("{package}@{version}"));
        let status = command.status().context("run cargo")?;
        ensure!(status.success(), "cannot be installed");
        Ok(())
    }
}

impl Tree {
    /// Makes it below `folder`, unless it is there.
    fn make(&self, sakia: &Path, folder: &Path, quick: bool) -> anyhow::Result<()> {
        let path = folder.join(self.name);
        if path.exists() {
            return Ok(());
        }
        // Under another name until all of it is there.
        let part = folder.join("part");
        fs::remove_dir_all(&part).ok();
        let arguments = if quick { self.quick } else { self.arguments };
        super::output(Command::new(sakia).arg("mktree").arg(&part).args(arguments))?;
        let made = if self.name == FILE { part.join("f0") } else { part.clone() };
        fs::rename(&made, &path).with_context(|| format!("rename {}", made.display()))?;
        fs::remove_dir(&part).ok(); // there, and empty, if what was made is a file
        Ok(())
    }
}

impl Cell {
    fn command(&self, sakia: &Path, limit: &Path, trees: &Path, options: &Options) -> Command {
        let mut command = Command::new(sakia);
        command.args(["bench", "copytree"]).args(self.arguments);
        for tree in self.trees {
            command.arg("--tree").arg(trees.join(tree));
        }
        command.arg("--dir").arg(trees);
        for way in self.limits {
            command.arg("--peer").arg(format!("limit-{way}={} --way {way}", limit.display()));
        }
        let runs = options.runs.or(options.quick.then_some(3));
        command.args(runs.iter().flat_map(|runs| ["--runs".to_owned(), runs.to_string()]));
        if options.json {
            command.arg("--json");
        }
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_chosen_by_name() {
        let names = |only: &[&str]| {
            let only: Vec<_> = only.iter().map(|&name| name.to_owned()).collect();
            chosen(&only).map(|cells| cells.iter().map(|cell| cell.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&[]).unwrap().len(), CELLS.len());
        assert_eq!(names(&["cold", "ext4"]).unwrap(), ["ext4", "cold"]);
        let error = names(&["xfs"]).unwrap_err().to_string();
        assert!(error.starts_with("there is no xfs; there are disk, "), "{error}");
    }

    #[test]
    fn every_tree_of_a_cell_is_made() {
        let made = TREES.map(|tree| tree.name);
        assert!(CELLS.iter().flat_map(|cell| cell.trees).all(|tree| made.contains(tree)));
    }

    #[test]
    fn benchmark_is_asked_for_what_the_cell_says() {
        let options = Options { quick: true, runs: None, only: Vec::new(), json: true, dir: None };
        let words = |cell: &Cell| {
            let [sakia, limit, trees] = ["/sakia", "/limit", "/trees"].map(Path::new);
            let command = cell.command(sakia, limit, trees, &options);
            let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
            words.join(" ")
        };
        assert_eq!(
            words(&CELLS[8]),
            "bench copytree --place disk --cold --tree /trees/source --dir /trees --runs 3 --json"
        );
        let tmpfs = words(&CELLS[3]);
        assert!(
            tmpfs.contains("--peer limit-read=/limit --way read --peer limit-send="),
            "{tmpfs}"
        );
    }
}
