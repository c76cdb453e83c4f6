//! The programs in C: `bench/peers/c`. They are compiled with the C compiler of the machine, and with the
//! `libsakia` of this tree.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use crate::{cargo, dist};

/// The profile of the library: that of an installation.
const LIBRARY_PROFILE: &str = "dist";

/// Builds the program of this name, below the target directory.
///
/// # Errors
/// There is no compiler, or a library is missing: `sakia` needs none, `limit` needs liburing.
pub(super) fn build(folder: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let root = folder.ancestors().nth(2).context("bench/peers is below the root")?;
    let place = std::path::absolute(cargo::target_folder(root))?.join("peers-c");
    std::fs::create_dir_all(&place).with_context(|| place.display().to_string())?;
    let library = match name {
        "sakia" => {
            dist::run(root, &place, None, LIBRARY_PROFILE, None)?;
            "sakia"
        }
        _ => "liburing",
    };
    let flags = Command::new("pkg-config")
        .args(["--cflags", "--libs", library])
        .env("PKG_CONFIG_PATH", place.join("lib/pkgconfig"))
        .output()
        .context("pkg-config")?;
    ensure!(flags.status.success(), "{}", String::from_utf8_lossy(&flags.stderr).trim());
    let flags = String::from_utf8(flags.stdout)?;
    let (sources, program) = (folder.join("c"), place.join(name));
    let compiled = Command::new("cc")
        .args(["-O2", "-std=gnu11", "-Wall", "-Wextra", "-Wno-unused-parameter", "-pthread", "-o"])
        .arg(&program)
        .args([format!("{name}.c"), "job.c".into()].map(|source| sources.join(source)))
        .args(flags.split_whitespace())
        .arg(format!("-Wl,-rpath,{}", place.join("lib").display()))
        .status()
        .context("cc")?;
    ensure!(compiled.success(), "{name}.c does not compile");
    Ok(program)
}
