//! The library as it is installed, and programs that are built with it.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub const HERE: &str = env!("CARGO_MANIFEST_DIR");
const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"];

/// A folder with an installation, which is removed at the end.
pub struct Installed(PathBuf);

impl Drop for Installed {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// How a program is compiled.
#[derive(Clone, Copy)]
pub struct Build<'a> {
    pub compiler: &'a str,
    pub flags: &'a [&'a str],
    pub is_static: bool,
    /// Other libraries, by their names for pkg-config.
    pub packages: &'a [&'a str],
}

/// As most programs in C.
pub const C: Build<'_> =
    Build { compiler: "cc", flags: &["-std=c11"], is_static: false, packages: &[] };

pub fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{text}", output.status);
    output
}

pub fn text_of(command: &mut Command) -> String {
    String::from_utf8(run(command).stdout).expect("text")
}

/// Returns whether this machine has the programs that the test needs.
pub fn has(programs: &[&str]) -> bool {
    let is_missing = |name: &&&str| Command::new(name).arg("--version").output().is_err();
    !is_skipped(programs.iter().find(is_missing))
}

/// Returns whether this machine has the libraries, by their names for pkg-config.
pub fn has_packages(packages: &[&str]) -> bool {
    let is_missing = |name: &&&str| {
        let mut ask = Command::new("pkg-config");
        !ask.args(["--exists", name]).status().expect("pkg-config").success()
    };
    !is_skipped(packages.iter().find(is_missing))
}

/// Returns whether this machine has a nightly compiler.
pub fn has_nightly() -> bool {
    let asked = Command::new("rustup").args(["run", "nightly", "rustc", "--version"]).output();
    let is_there = asked.is_ok_and(|output| output.status.success());
    !is_skipped((!is_there).then_some(&"nightly toolchain"))
}

/// Returns whether something is missing, and says so.
fn is_skipped(missing: Option<&&str>) -> bool {
    let Some(missing) = missing else { return false };
    assert!(env::var_os("SAKIA_DENY_SKIPS").is_none_or(|deny| deny.is_empty()), "no {missing}");
    println!("SKIP: this machine has no {missing}");
    true
}

impl Installed {
    /// Installs into a folder of this name, with more arguments for `cargo xtask dist`.
    pub fn new(name: &str, arguments: &[&str]) -> Self {
        let folder = format!("sakia-c-{name}-{}", std::process::id());
        let installed = Self(env::temp_dir().join(folder));
        let mut install = Command::new(env!("CARGO"));
        install.args(["run", "--quiet", "--locked", "--package", "xtask", "--", "dist"]);
        install.args(["--profile", "dev", "--prefix"]).arg(&installed.0).args(arguments);
        run(install.current_dir(Path::new(HERE).join("../..")));
        installed
    }

    pub fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("UTF-8").to_owned()
    }

    /// Asks pkg-config about the installed library.
    fn flags(&self, arguments: &[&str]) -> String {
        let mut ask = Command::new("pkg-config");
        ask.env("PKG_CONFIG_PATH", self.path("lib/pkgconfig")).arg("sakia").args(arguments);
        text_of(&mut ask)
    }

    /// Builds a program for a library with a sanitizer, by two commands: the library brings the runtime, so
    /// the linker must not get that of the compiler.
    pub fn build_checked(&self, source: &str) -> String {
        let stem = Path::new(source).file_stem().and_then(|stem| stem.to_str()).expect("a name");
        let (object, program) = (self.path(&format!("{stem}.o")), self.path(stem));
        let mut compile = Command::new("cc");
        compile.args(["-std=c11", "-g", "-pthread", "-c", "-o", &object]).args(WARNINGS);
        compile.arg(Path::new(HERE).join(source));
        run(compile.args(self.flags(&["--cflags"]).split_whitespace()));
        let mut link = Command::new("cc");
        link.args(["-o", &program, &object, &format!("-Wl,-rpath,{}", self.path("lib"))]);
        run(link.args(self.flags(&["--libs"]).split_whitespace()));
        program
    }

    /// Builds a program of this crate's, and returns its path.
    pub fn build(&self, source: &str, build: Build<'_>) -> String {
        let Build { compiler, is_static, .. } = build;
        let mut arguments = [&["--cflags", "--libs"], build.packages].concat();
        if is_static {
            arguments.push("--static");
        }
        let mut flags = self.flags(&arguments);
        if is_static {
            flags = flags.replace("-lsakia", &self.path("lib/libsakia.a"));
        }
        let stem = Path::new(source).file_stem().and_then(|stem| stem.to_str()).expect("a name");
        let program = self.path(&format!("{stem}-{compiler}-{is_static}"));
        let mut command = Command::new(compiler);
        command.args(build.flags).args(WARNINGS).arg("-pthread").arg(Path::new(HERE).join(source));
        command.args(["-x", "none", "-o", &program, &format!("-Wl,-rpath,{}", self.path("lib"))]);
        run(command.args(flags.split_whitespace()));
        program
    }
}
