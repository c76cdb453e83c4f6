//! `sakia rm`: removes files and trees.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use sakia::{CancellationToken, Runtime};
use sakia_copy::{Progress, remove_tree};
use sakia_driver::Policy;

use crate::exit::Exit;
use crate::name::{Shown, without_slashes};
use crate::output::{complain, message, report};
use crate::signals::{GIVEN_UP, Signals};

/// The largest number of entries named at a give-up.
const GIVEN_UP_MAX: usize = 10;

/// Options of `sakia rm`.
#[derive(Debug)]
pub struct Options {
    pub paths: Vec<PathBuf>,
    /// Remove directories.
    pub recursive: bool,
    /// A missing entry is no failure.
    pub force: bool,
    /// The backend of reads.
    pub policy: Policy,
}

/// Removes all paths.
///
/// # Errors
/// Errors that end the program: there are no threads or descriptors. A failure of an entry is reported and
/// makes the program [fail](Exit::Failure) at the end.
pub fn run(options: &Options, signals: &Signals) -> anyhow::Result<Exit> {
    let token = CancellationToken::new();
    let stop = token.clone();
    signals.on_first(move || stop.cancel());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let build = |threads| Runtime::builder().threads(threads).backend(options.policy).build();
    // If several threads cannot be started, one does it all.
    let runtime = build(threads).or_else(|_| build(1)).context("the runtime")?;
    let progress = Arc::new(Progress::new().on_failure(|failure| {
        report(failure);
    }));
    let held = Arc::clone(&progress);
    signals.on_giving_up(move || given_up(&held));
    let refused = runtime.block_on(async {
        let mut refused = 0u64;
        for path in &options.paths {
            if token.is_canceled() {
                break;
            }
            if let Err(text) = check(options, path) {
                complain(format_args!("{text}"));
                refused += 1;
            } else if path.symlink_metadata().is_ok() {
                remove_tree(path, &progress, &token).await?;
            }
        }
        anyhow::Ok(refused)
    })?;
    if signals.received().is_some() {
        // The process ends, and with it all operations in flight.
        std::mem::forget(runtime);
    }
    Ok(match (signals.received(), refused + progress.counts().failures) {
        (Some(signal), _) => Exit::Signal(signal),
        (None, 0) => Exit::Success,
        (None, _) => Exit::Failure,
    })
}

/// Returns the entries without an answer, a line for each.
pub fn given_up(progress: &Progress) -> Vec<String> {
    let paths = progress.under_way();
    if paths.is_empty() {
        return vec![GIVEN_UP.to_owned()];
    }
    let line = |path: &PathBuf| format!("gave up waiting for {}", Shown(path.as_os_str()));
    paths.iter().take(GIVEN_UP_MAX).map(line).collect()
}

/// Checks that a path may be removed at all.
fn check(options: &Options, path: &Path) -> Result<(), String> {
    let shown = Shown(path.as_os_str());
    let text = without_slashes(path);
    let is_dots =
        [&b"."[..], b".."].contains(&text) || text.ends_with(b"/.") || text.ends_with(b"/..");
    if is_dots || text.is_empty() && !path.as_os_str().is_empty() {
        return Err(format!(
            "{shown} is not removed: it is where one is, above that, or everything"
        ));
    }
    // With the slash it would be the link's target.
    if text.len() < path.as_os_str().len() && Path::new(OsStr::from_bytes(text)).is_symlink() {
        return Err(format!("{shown} is a link, which is removed without the slash"));
    }
    match path.symlink_metadata() {
        Ok(stat) if stat.is_dir() && !options.recursive => {
            Err(format!("{shown} is a directory, and -r was not given"))
        }
        Err(error) if error.kind() == ErrorKind::NotFound && options.force => Ok(()),
        Err(error) => Err(format!("remove {shown}: {}", message(&error))),
        Ok(_) => Ok(()),
    }
}
