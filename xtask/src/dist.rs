//! Installs `libsakia`: the shared and the static library, the header, and the file of pkg-config.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};
use clap::ValueEnum;

use crate::{cargo, header};

/// The name that programs are linked with.
const SONAME: &str = "libsakia.so.0";

/// A checker that the compiler builds into the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sanitizer {
    Address,
    Thread,
}

impl Sanitizer {
    /// Returns the name for compilers, and that of the runtime.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Address => ("address", "asan"),
            Self::Thread => ("thread", "tsan"),
        }
    }
}

/// The file of the sanitizer's runtime, which programs are linked with.
const RUNTIME: &str = "libsakia_sanitizer.a";
/// The libraries that the runtime needs.
const SYSTEM: &str = "-lpthread -lrt -lm -ldl";

/// Builds the library with this profile, perhaps with a sanitizer, and installs it below `prefix`, within
/// `destination` if given.
///
/// # Errors
/// It does not build, or a file cannot be written.
pub(crate) fn run(
    root: &Path,
    prefix: &Path,
    destination: Option<PathBuf>,
    profile: &str,
    sanitizer: Option<Sanitizer>,
) -> anyhow::Result<ExitCode> {
    ensure!(prefix.is_absolute(), "the prefix {} is not absolute", prefix.display());
    let built = match sanitizer {
        None => build(cargo::command(root), cargo::target_folder(root), profile)?,
        Some(sanitizer) => build_checked(root, profile, sanitizer)?,
    };

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
    let (mut compiled, mut linked) = (String::new(), String::new());
    if let Some(sanitizer) = sanitizer {
        install(&runtime(sanitizer)?, &libraries.join(RUNTIME), 0o644)?;
        compiled = format!(" -fsanitize={}", sanitizer.names().0);
        // Whole, and with its names for the shared library.
        linked = format!(
            " -Wl,--whole-archive,${{libdir}}/{RUNTIME},--no-whole-archive,--export-dynamic {SYSTEM}"
        );
    }
    let template = fs::read_to_string(root.join(header::CRATE).join("sakia.pc.in"))?;
    let prefix = prefix.to_str().context("the prefix is not UTF-8")?;
    let description = template.replace("@PREFIX@", prefix).replace("@VERSION@", version);
    let description = description.replace("@COMPILED@", &compiled).replace("@LINKED@", &linked);
    fs::write(descriptions.join("sakia.pc"), description).context("sakia.pc")?;
    Ok(ExitCode::SUCCESS)
}

/// Builds the library by this Cargo, and returns the folder that it is in.
fn build(mut cargo: Command, target: PathBuf, profile: &str) -> anyhow::Result<PathBuf> {
    cargo.args(["build", "--quiet", "--locked", "-p", "sakia-c", "--profile", profile]);
    ensure!(cargo.status().context("run cargo")?.success(), "sakia-c does not build");
    Ok(target.join(if profile == "dev" { "debug" } else { profile }))
}

/// The same with a sanitizer. The standard library is built with it, too: a lock between threads that it does
/// not see would be a report.
fn build_checked(root: &Path, profile: &str, sanitizer: Sanitizer) -> anyhow::Result<PathBuf> {
    let (name, _) = sanitizer.names();
    let triple = format!("{}-unknown-linux-gnu", env::consts::ARCH);
    let target = cargo::target_folder(root).join("sanitized").join(name);
    let mut cargo = nightly("cargo");
    cargo.current_dir(root).env("CARGO_TARGET_DIR", &target);
    cargo.env("RUSTFLAGS", format!("-Zsanitizer={name}"));
    cargo.args(["-Zbuild-std", "--config", &format!("build.target='{triple}'")]);
    build(cargo, target.join(triple), profile)
}

/// Returns the runtime of the sanitizer that the nightly toolchain has.
fn runtime(sanitizer: Sanitizer) -> anyhow::Result<PathBuf> {
    let output = nightly("rustc").args(["--print", "target-libdir"]).output().context("rustc")?;
    ensure!(output.status.success(), "no nightly toolchain");
    let folder = String::from_utf8(output.stdout).context("a path")?;
    Ok(Path::new(folder.trim()).join(format!("librustc-nightly_rt.{}.a", sanitizer.names().1)))
}

/// Returns a program of the nightly toolchain.
fn nightly(program: &str) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", program]);
    command
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
