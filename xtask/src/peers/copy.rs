//! `cargo xtask peers copy`: copies of trees by `cp`, Sakia and other copiers.
//!
//! Installs the copiers in fixed versions, builds `limit-copy`, which makes only the calls that copy, makes
//! the trees once, and lets `sakia bench copytree` measure and print its tables. Between cells only copies
//! on the disk are deleted, and cells on the disk are measured first: on some file systems a recent deletion
//! makes a copy slow.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};
use clap::Args;
use serde::Deserialize;

use super::suite::chosen;
use crate::cargo;

/// Options of the experiment.
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

/// The part of `suites.toml` about copies.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Copies {
    copiers: Vec<Copier>,
    cells: Vec<Cell>,
    trees: Vec<Tree>,
}

/// A copier on crates.io.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Copier {
    name: String,
    version: String,
}

/// One call of `sakia bench copytree`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cell {
    name: String,
    trees: Vec<String>,
    arguments: String,
    /// Ways in which `limit-copy` copies them.
    #[serde(default)]
    limits: Vec<String>,
}

/// A tree: its name, and the arguments of `sakia mktree` for it and for a small one.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tree {
    name: String,
    arguments: String,
    quick: String,
}

/// A program that makes only the calls that copy.
const LIMIT: &str = "peers-limit-copy";

/// The tree that is a file: the only one of the directory in which it is made.
const FILE: &str = "file";

/// Installs, makes the trees, and measures each cell. Fails if one failed; the others are measured.
pub(super) fn run(root: &Path, copies: &Copies, options: &Options) -> anyhow::Result<ExitCode> {
    let cells = chosen(&copies.cells, &options.only, |cell| &cell.name)?;
    let folder = cargo::target_folder(root).join("peers");
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    for copier in &copies.copiers {
        if let Err(error) = copier.install(root, &folder) {
            eprintln!("{}: {error:#}", copier.name);
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
    for tree in copies.trees.iter().filter(is_needed) {
        tree.make(&sakia, &trees, options.quick).with_context(|| format!("tree {}", tree.name))?;
    }
    let search = search_path(&folder.join("bin"))?;
    let mut failed = Vec::new();
    for cell in cells {
        eprintln!("{}", cell.name);
        let mut command = cell.command(&sakia, &limit, &trees, options);
        let status = command.env("PATH", &search).status().context("run sakia bench")?;
        if !status.success() {
            failed.push(cell.name.as_str());
        }
    }
    if failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("failed: {}", failed.join(", "));
    Ok(ExitCode::FAILURE)
}

/// Returns the search path of programs: `folder` first.
fn search_path(folder: &Path) -> anyhow::Result<OsString> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = [folder.to_owned()].into_iter().chain(env::split_paths(&path));
    env::join_paths(folders).context("PATH")
}

impl Copier {
    /// Installs it below `folder`, unless it is there.
    fn install(&self, root: &Path, folder: &Path) -> anyhow::Result<()> {
        let Self { name: package, version } = self;
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
        let path = folder.join(&self.name);
        if path.exists() {
            return Ok(());
        }
        // Under another name until it is complete.
        let part = folder.join("part");
        fs::remove_dir_all(&part).ok();
        let arguments = if quick { &self.quick } else { &self.arguments };
        super::output(Command::new(sakia).arg("mktree").arg(&part).args(arguments.split(' ')))?;
        let made = if self.name == FILE { part.join("f0") } else { part.clone() };
        fs::rename(&made, &path).with_context(|| format!("rename {}", made.display()))?;
        fs::remove_dir(&part).ok(); // there, and empty, if what was made is a file
        Ok(())
    }
}

impl Cell {
    fn command(&self, sakia: &Path, limit: &Path, trees: &Path, options: &Options) -> Command {
        let mut command = Command::new(sakia);
        command.args(["bench", "copytree"]).args(self.arguments.split(' '));
        for tree in &self.trees {
            command.arg("--tree").arg(trees.join(tree));
        }
        command.arg("--dir").arg(trees);
        for way in &self.limits {
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
    use super::super::suite::suites;
    use super::*;

    #[test]
    fn cells_are_chosen_by_name() {
        let all = &suites().unwrap().copy.cells;
        let names = |only: &[&str]| {
            let only: Vec<_> = only.iter().map(|&name| name.to_owned()).collect();
            let cells = chosen(all, &only, |cell| &cell.name);
            cells.map(|cells| cells.iter().map(|cell| cell.name.as_str()).collect::<Vec<_>>())
        };
        assert_eq!(names(&[]).unwrap().len(), all.len());
        assert_eq!(names(&["cold", "ext4"]).unwrap(), ["ext4", "cold"]);
        let error = names(&["xfs"]).unwrap_err().to_string();
        assert!(error.starts_with("there is no xfs; there are disk, "), "{error}");
    }

    #[test]
    fn every_tree_of_a_cell_is_made() {
        let Copies { cells, trees, .. } = &suites().unwrap().copy;
        let is_made = |name: &String| trees.iter().any(|tree| tree.name == *name);
        assert!(cells.iter().flat_map(|cell| &cell.trees).all(is_made));
    }

    #[test]
    fn benchmark_is_asked_for_what_the_cell_says() {
        let options = Options { quick: true, runs: None, only: Vec::new(), json: true, dir: None };
        let cells = &suites().unwrap().copy.cells;
        let words = |cell: &Cell| {
            let [sakia, limit, trees] = ["/sakia", "/limit", "/trees"].map(Path::new);
            let command = cell.command(sakia, limit, trees, &options);
            let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
            words.join(" ")
        };
        assert_eq!(
            words(&cells[8]),
            "bench copytree --place disk --cold --tree /trees/source --dir /trees --runs 3 --json"
        );
        let tmpfs = words(&cells[3]);
        assert!(
            tmpfs.contains("--peer limit-read=/limit --way read --peer limit-send="),
            "{tmpfs}"
        );
    }
}
