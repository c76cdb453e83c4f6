//! Operations by path that fail: on each way alike, and as `std` fails.
//!
//! A request goes one of several ways: it is done where it is awaited, on a thread of the engine by the ring
//! or by a plain call, on the pool, or on the thread that waits. Each operation is tried with each bad path
//! on each of them. The error has the kind and the errno of `std`'s, and names the operation and its paths
//! once.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use sakia::fs::OpenOptions;
use sakia::{Builder, Engine};
use sakia_driver::{Bypass, Policy};
use sakia_testkit::children::copy_program;

use crate::support::{self, Folder, on_each_backend, on_tokio};

/// A directory that its user may not enter, for [`the_closed_directory`].
const CLOSED: &str = "SAKIA_ENGINE_CLOSED";
const NOBODY: u32 = 65_534;

on_each_backend! { are_alike_on_each_way }

/// The error that an operation is to have.
struct Expected<'a> {
    operation: &'a str,
    paths: &'a [&'a Path],
    theirs: io::Result<()>,
}

impl Expected<'_> {
    #[track_caller]
    fn compare(&self, way: &str, ours: io::Result<()>) {
        let Self { operation, paths, theirs } = self;
        let of = format!("{operation} {paths:?} {way}");
        let (ours, theirs) = match (ours, theirs) {
            (Ok(()), Ok(())) => return,
            (Err(ours), Err(theirs)) => (ours, theirs),
            (ours, theirs) => panic!("{of}: {ours:?}, and std {theirs:?}"),
        };
        let errors = (ours.kind(), sakia::os_error(&ours));
        assert_eq!(errors, (theirs.kind(), theirs.raw_os_error()), "{of}: {ours}");
        let error = ours.downcast::<sakia::Error>().unwrap_or_else(|error| panic!("{of}: {error}"));
        let named: Vec<_> = error.path().into_iter().chain(error.to_path()).collect();
        assert_eq!((error.operation(), &named[..]), (*operation, *paths), "{of}");
        let inner = error.io_error();
        assert!(inner.get_ref().is_none_or(|inner| !inner.is::<sakia::Error>()), "{of}: {error}");
        if theirs.raw_os_error().is_some() {
            assert_eq!(inner.to_string(), theirs.to_string(), "{of}");
        }
    }
}

/// Makes a request on each way, and compares it with what `std` does.
macro_rules! alike {
    ($($operation:literal [$($path:expr),+]: $request:expr => $theirs:expr;)+) => {$({
        let paths: &[&Path] = &[$($path),+];
        let theirs = $theirs.map(drop);
        let expected = Expected { operation: $operation, paths, theirs };
        expected.compare("awaited", on_tokio(1, $request).map(drop));
        expected.compare("submitted", $request.submit().wait().map(drop));
        expected.compare("waited for", $request.wait().map(drop));
    })+};
}

/// Engines whose threads make plain calls where they can, and ask the queue for everything.
fn engines(builder: &Builder) -> [Engine; 2] {
    [builder.clone(), builder.clone().bypass(Bypass::Never)]
        .map(|builder| support::engine(&builder))
}

/// Tries what needs a file at `path`, which leads to none. `spare` names none either.
fn try_existing(engine: &Engine, path: &Path, spare: &Path) {
    let permissions = || Permissions::from_mode(0o600);
    alike! {
        "open" [path]: engine.open(path) => fs::File::open(path);
        "read" [path]: engine.read(path) => fs::read(path);
        "read" [path]: engine.read_to_string(path) => fs::read_to_string(path);
        "metadata" [path]: engine.metadata(path) => fs::metadata(path);
        "metadata" [path]: engine.symlink_metadata(path) => fs::symlink_metadata(path);
        "metadata" [path]: engine.try_exists(path) => fs::exists(path);
        "set_permissions" [path]:
            engine.set_permissions(path, permissions()) => fs::set_permissions(path, permissions());
        "remove_file" [path]: engine.remove_file(path) => fs::remove_file(path);
        "remove_dir" [path]: engine.remove_dir(path) => fs::remove_dir(path);
        "remove_dir_all" [path]: engine.remove_dir_all(path) => fs::remove_dir_all(path);
        "read_link" [path]: engine.read_link(path) => fs::read_link(path);
        "canonicalize" [path]: engine.canonicalize(path) => fs::canonicalize(path);
        "read_dir" [path]: engine.read_dir(path) => fs::read_dir(path);
        "rename" [path, spare]: engine.rename(path, spare) => fs::rename(path, spare);
        "hard_link" [path, spare]: engine.hard_link(path, spare) => fs::hard_link(path, spare);
        "copy" [path, spare]: engine.copy(path, spare) => fs::copy(path, spare);
    }
    assert!(fs::symlink_metadata(spare).is_err(), "{spare:?} was made from {path:?}");
}

/// Tries what makes a file at `path`, where none can be. `file` is one.
fn try_making(engine: &Engine, path: &Path, file: &Path) {
    let new = OpenOptions::new().write(true).create_new(true).clone();
    alike! {
        "open" [path]: engine.create(path) => fs::File::create(path);
        "open" [path]: engine.open_with(path, &new) => fs::File::create_new(path);
        "write" [path]: engine.write(path, "text") => fs::write(path, "text");
        "create_dir" [path]: engine.create_dir(path) => fs::create_dir(path);
        "rename" [file, path]: engine.rename(file, path) => fs::rename(file, path);
        "hard_link" [file, path]: engine.hard_link(file, path) => fs::hard_link(file, path);
        "symlink" [file, path]: engine.symlink(file, path) => symlink(file, path);
        "copy" [file, path]: engine.copy(file, path) => fs::copy(file, path);
    }
}

fn are_alike_on_each_way(builder: &Builder) {
    let folder = Folder::new();
    let (file, spare) = (folder.file("file", [0xff]), folder.path("spare"));
    symlink("loop", folder.path("loop")).unwrap();
    let directory = folder.path("directory");
    fs::create_dir_all(directory.join("in it")).unwrap();
    // The names are cached, as far as they can be.
    let missing = folder.path("missing");
    let below = [
        folder.path("file/below"),
        folder.path("loop/below"),
        folder.path(&"x".repeat(256)),
        folder.path(&"y/".repeat(3000)),
        folder.path("zero\0byte"),
    ];
    for engine in engines(builder) {
        for path in below.iter().chain([&missing, &PathBuf::new()]) {
            try_existing(&engine, path, &spare);
        }
        for path in below.iter().chain([&missing.join("below")]) {
            try_making(&engine, path, &file);
        }
        for path in &below {
            alike! {
                "create_dir_all" [path]: engine.create_dir_all(path) => fs::create_dir_all(path);
            }
        }
        try_directory(&engine, &directory, &file, &spare);
        assert_eq!(engine.read_to_string(&file).wait().unwrap_err().kind(), ErrorKind::InvalidData);
    }
}

/// Tries what a directory refuses, and what only it does.
fn try_directory(engine: &Engine, path: &Path, file: &Path, spare: &Path) {
    let inside = &path.join("inside");
    alike! {
        "open" [path]: engine.open(path) => fs::File::open(path);
        "open" [path]: engine.create(path) => fs::File::create(path);
        "read" [path]: engine.read(path) => fs::read(path);
        "read" [path]: engine.read_to_string(path) => fs::read_to_string(path);
        "read" [file]: engine.read_to_string(file) => fs::read_to_string(file);
        "write" [path]: engine.write(path, "text") => fs::write(path, "text");
        "metadata" [path]: engine.metadata(path) => fs::metadata(path);
        "metadata" [path]: engine.try_exists(path) => fs::exists(path);
        "remove_file" [path]: engine.remove_file(path) => fs::remove_file(path);
        "remove_dir" [path]: engine.remove_dir(path) => fs::remove_dir(path);
        "remove_dir" [file]: engine.remove_dir(file) => fs::remove_dir(file);
        "remove_dir_all" [file]: engine.remove_dir_all(file) => fs::remove_dir_all(file);
        "read_dir" [file]: engine.read_dir(file) => fs::read_dir(file);
        "read_link" [path]: engine.read_link(path) => fs::read_link(path);
        "create_dir" [path]: engine.create_dir(path) => fs::create_dir(path);
        "create_dir_all" [file]: engine.create_dir_all(file) => fs::create_dir_all(file);
        "symlink" [file, path]: engine.symlink(file, path) => symlink(file, path);
        "rename" [path, inside]: engine.rename(path, inside) => fs::rename(path, inside);
        "rename" [file, path]: engine.rename(file, path) => fs::rename(file, path);
        "hard_link" [path, spare]: engine.hard_link(path, spare) => fs::hard_link(path, spare);
        "copy" [path, spare]: engine.copy(path, spare) => fs::copy(path, spare);
        "copy" [file, path]: engine.copy(file, path) => fs::copy(file, path);
    }
}

/// Root may do everything, so this is for another process with another user.
#[test]
fn are_alike_without_permission() {
    let folder = Folder::new();
    let closed = folder.path("closed");
    fs::create_dir(&closed).unwrap();
    fs::write(closed.join("file"), "text").unwrap();
    fs::set_permissions(&closed, Permissions::from_mode(0o000)).unwrap();
    // The user may be unable to reach the program itself.
    let program = std::env::temp_dir().join(format!("sakia-engine-{}", std::process::id()));
    copy_program(std::env::current_exe().unwrap(), &program);
    let mut command = Command::new(&program);
    command.args(["--exact", "errors::the_closed_directory", "--nocapture"]);
    command.env(CLOSED, &closed).current_dir("/");
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    let output = command.output();
    fs::remove_file(&program).unwrap();
    fs::set_permissions(&closed, Permissions::from_mode(0o700)).unwrap();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Does nothing unless [`are_alike_without_permission`] has started it.
#[test]
fn the_closed_directory() {
    let Some(closed) = std::env::var_os(CLOSED).map(PathBuf::from) else { return };
    let path = closed.join("file");
    assert_eq!(fs::read(&path).unwrap_err().kind(), ErrorKind::PermissionDenied);
    for policy in [Policy::Auto, Policy::Poll] {
        for engine in engines(&support::builder(policy)) {
            try_existing(&engine, &path, &closed.join("spare"));
            try_making(&engine, &path, Path::new("/proc/self/exe"));
            alike! {
                "create_dir_all" [&path]: engine.create_dir_all(&path) => fs::create_dir_all(&path);
            }
        }
    }
}
