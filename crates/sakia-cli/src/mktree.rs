//! `sakia mktree`: makes a tree of directories and files.

use std::path::PathBuf;

use anyhow::Context;
use sakia_bench::mktree::{self, Counts};
use serde::Serialize;

use crate::exit::Exit;
use crate::output::{Format, print};
use crate::signals::Signals;

/// Options of `sakia mktree`.
#[derive(Debug)]
pub struct Options {
    /// The root.
    pub directory: PathBuf,
    /// The kind of tree.
    pub tree: mktree::Options,
    pub format: Format,
}

/// The JSON output.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Line {
    Mktree(Counts),
}

/// Makes the tree, and prints its contents. A signal ends it early, and the files created so far stay.
///
/// # Errors
/// The directory is not empty, files cannot be made, or standard output cannot be written.
pub fn run(options: &Options, signals: &Signals) -> anyhow::Result<Exit> {
    let is_stopped = || signals.received().is_some();
    let made = mktree::make(&options.directory, &options.tree, &is_stopped)?;
    if let Some(signal) = signals.received() {
        return Ok(Exit::Signal(signal));
    }
    let line = match options.format {
        Format::Json => serde_json::to_string(&Line::Mktree(made)).context("json")?,
        Format::Human => {
            let Counts { files, directories, bytes } = made;
            format!("{files} files in {directories} directories, {bytes} bytes")
        }
    };
    print(&line)?;
    Ok(Exit::Success)
}
