//! Installs `libsakia`: the shared and the static library, the header, and the file of pkg-config.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};

use crate::{cargo, header};

/// The name that programs are linked with.
const SONAME: &str = "libsakia.so.0";

/// Builds the library with this profile, and installs it below `prefix`, within `destination` if given.
///
/// # Errors
/// It does not build, or a file cannot be written.
pub(crate) fn run(
    root: &Path,
    prefix: &Path,
    destination: Option<PathBuf>,
    profile: &str,
) -> anyhow::Result<ExitCode> {
    ensure!(prefix.is_absolute(), "the prefix {} is not absolute", prefix.display());
    let mut build = cargo::command(root);
    build.args(["build", "--quiet", "--locked", "-p", "sakia-c", "--profile", profile]);
    ensure!(build.status().context("run cargo")?.success(), "sakia-c does not build");
    let folder = if profile == "dev" { "debug" } else { profile };
    let built = cargo::target_folder(root).join(folder);

    let destination = destination.or_else(|| env::var_os("DESTDIR").map(PathBuf::from));
    let within = |path: &Path| match &destination {
        Some(destination) => destination.join(path.strip_prefix("/").unwrap_or(path)),
        None => path.to_owned(),
    };
    let version = env!("CARGO_PKG_VERSION");
    let (libraries, headers) = (within(&prefix.join("lib")), within(&prefix.join("include")));
    let descriptions = libraries.join("pkgconfig");
    for folder in [&headers, &descriptions] {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    let whole = format!("libsakia.so.{version}");
    install(&built.join("libsakia.so"), &libraries.join(&whole), 0o755)?;
    install(&built.join("libsakia.a"), &libraries.join("libsakia.a"), 0o644)?;
    install(&root.join(header::HEADER), &headers.join("sakia.h"), 0o644)?;
    for (name, target) in [(SONAME, whole.as_str()), ("libsakia.so", SONAME)] {
        let link = libraries.join(name);
        fs::remove_file(&link).ok(); // of an earlier installation
        symlink(target, &link).with_context(|| link.display().to_string())?;
    }
    let template = fs::read_to_string(root.join(header::CRATE).join("sakia.pc.in"))?;
    let prefix = prefix.to_str().context("the prefix is not UTF-8")?;
    let description = template.replace("@PREFIX@", prefix).replace("@VERSION@", version);
    fs::write(descriptions.join("sakia.pc"), description).context("sakia.pc")?;
    Ok(ExitCode::SUCCESS)
}

/// Puts a copy in place of a file, without a moment in which it is half there.
fn install(from: &Path, to: &Path, mode: u32) -> anyhow::Result<()> {
    let mut new = OsString::from(to);
    new.push(".new");
    let copied = fs::copy(from, &new).with_context(|| from.display().to_string());
    copied?;
    fs::set_permissions(&new, fs::Permissions::from_mode(mode))?;
    fs::rename(&new, to).with_context(|| to.display().to_string())
}
