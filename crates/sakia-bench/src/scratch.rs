//! Directories that experiments make for themselves, and a list of those that are left.
//!
//! Each is removed with its value. A program that has to end before that, since a disk is slow to remove the
//! contents, gets from here a list of what it leaves behind.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::Context;
use rustix::fs::syncfs;
use sakia_bench_support::place;
use tempfile::TempDir;

/// All directories that this process has made.
static MADE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Makes a directory whose name begins with `prefix`, and which is removed with the value.
///
/// # Errors
/// As `mkdir(2)`.
#[expect(clippy::disallowed_methods, reason = "what is made is noted here")]
pub(crate) fn directory(prefix: &str, parent: &Path) -> anyhow::Result<TempDir> {
    let made = tempfile::Builder::new().prefix(prefix).tempdir_in(parent);
    let made = made.with_context(|| format!("cannot make a directory in {}", parent.display()))?;
    let mut all = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    all.push(std::path::absolute(made.path()).unwrap_or_else(|_| made.path().to_owned()));
    Ok(made)
}

/// Writes a file system to its disk: dirty data cannot be dropped from a cache.
///
/// # Errors
/// As `open(2)` and `syncfs(2)`, with the path.
pub(crate) fn write_back(path: &Path) -> anyhow::Result<()> {
    let synced = File::open(path).and_then(|file| Ok(syncfs(file)?));
    synced.with_context(|| format!("cannot sync {}", path.display()))
}

/// Returns the directories, mounts and loop devices that this process has made for experiments and not
/// removed yet, a line each. A directory inside another one of these is left out.
///
/// # Errors
/// As reading `/proc/self/mountinfo` and the directory for temporary files.
pub fn leftovers() -> io::Result<Vec<String>> {
    let made = MADE.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let left: Vec<_> = made.into_iter().filter(|path| path.exists()).collect();
    let is_outermost =
        |path: &&PathBuf| !left.iter().any(|other| path.starts_with(other) && *path != other);
    let named =
        left.iter().filter(is_outermost).map(|path| format!("directory {}", path.display()));
    Ok(named.chain(place::leftovers(std::process::id())?).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_named_once() {
        let outer = directory("sakia-bench-", &std::env::temp_dir()).unwrap();
        let inner = directory("sakia-copies-", outer.path()).unwrap();
        let is_named = |path: &Path| {
            let name = format!("directory {}", path.display());
            leftovers().unwrap().contains(&name)
        };
        let (outer_path, inner_path) = (outer.path().to_owned(), inner.path().to_owned());
        assert!(is_named(&outer_path) && !is_named(&inner_path));
        drop((inner, outer));
        assert!(!is_named(&outer_path) && !is_named(&inner_path));
    }
}
