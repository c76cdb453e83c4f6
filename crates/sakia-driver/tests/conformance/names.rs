//! Names: making, moving and removing them.

use std::ffi::CString;

use rustix::fs::{AtFlags, OFlags, RenameFlags};
use rustix::io::Errno;
use sakia_driver::{Driver, Fd, OpenHow, StatxResult};

use crate::stage::{Stage, errno, wait};

const REMOVEDIR: u32 = AtFlags::REMOVEDIR.bits();
const NOFOLLOW: u32 = AtFlags::SYMLINK_NOFOLLOW.bits();
const NOREPLACE: u32 = RenameFlags::NOREPLACE.bits();
const EXCHANGE: u32 = RenameFlags::EXCHANGE.bits();

fn name(name: &str) -> CString {
    CString::new(name).unwrap()
}

/// Makes a directory, and opens it.
pub fn directory(stage: &Stage, driver: &Driver, path: &str) -> Fd {
    wait(driver, driver.mkdir(None, stage.path(path), 0o755)).unwrap();
    stage.open(driver, path, OFlags::DIRECTORY)
}

fn statx(stage: &Stage, driver: &Driver, path: &str) -> Result<StatxResult, Errno> {
    let result = wait(driver, driver.statx(None, stage.path(path), NOFOLLOW));
    result.map_err(|error| Errno::from_io_error(&error).unwrap())
}

/// Asserts the errors of paths that no call accepts.
fn assert_bad_paths(stage: &Stage, driver: &Driver, call: impl Fn(&str) -> Errno) {
    stage.create("a-file", b"");
    assert_eq!(call("none/x"), Errno::NOENT);
    assert_eq!(call("a-file/x"), Errno::NOTDIR);
    assert_eq!(call(&"n".repeat(256)), Errno::NAMETOOLONG);
    assert_eq!(call(&"n/".repeat(2500)), Errno::NAMETOOLONG);
    wait(driver, driver.symlink(name("turn"), None, stage.path("turn"))).unwrap();
    assert_eq!(call("turn/x"), Errno::LOOP);
}

pub fn a_directory_is_made(stage: &Stage) {
    let driver = stage.driver();
    let outer = directory(stage, &driver, "outer");
    wait(&driver, driver.mkdir(Some(&outer), name("inner"), 0o700)).unwrap();
    let stat = statx(stage, &driver, "outer/inner").unwrap();
    assert!(stat.is_directory());
    assert_eq!(stat.mode & 0o777, 0o700);
    wait(&driver, driver.mkdir(Some(&outer), name("slash/"), 0o700)).unwrap();
    for path in ["outer", "outer/inner/", "outer/inner/."] {
        let again = wait(&driver, driver.mkdir(None, stage.path(path), 0o755));
        assert_eq!(errno(again), Errno::EXIST, "{path}");
    }
    let file = stage.file(&driver, "file", b"");
    let made = wait(&driver, driver.mkdir(Some(&file), name("x"), 0o755));
    assert_eq!(errno(made), Errno::NOTDIR);
    assert_eq!(errno(wait(&driver, driver.mkdir(None, name(""), 0o755))), Errno::NOENT);
    assert_bad_paths(stage, &driver, |path| {
        errno(wait(&driver, driver.mkdir(None, stage.path(path), 0o755)))
    });
}

pub fn a_name_is_removed(stage: &Stage) {
    let driver = stage.driver();
    let unlink = |path: &str| wait(&driver, driver.unlink(None, stage.path(path), 0));
    let file = stage.file(&driver, "file", b"kept");
    unlink("file").unwrap();
    assert_eq!(errno(unlink("file")), Errno::NOENT);
    assert_eq!(statx(stage, &driver, "file").unwrap_err(), Errno::NOENT);
    let (result, buf) = wait(&driver, driver.read(&file, vec![0; 4], 0));
    assert_eq!((result.unwrap(), &buf[..]), (4, &b"kept"[..]), "it is open");
    let directory = directory(stage, &driver, "directory");
    assert_eq!(errno(unlink("directory")), Errno::ISDIR);
    stage.create("directory/file", b"");
    wait(&driver, driver.unlink(Some(&directory), name("file"), 0)).unwrap();
    stage.create("file", b"");
    assert_eq!(errno(unlink("file/")), Errno::NOTDIR);
    let nonsense = wait(&driver, driver.unlink(None, stage.path("file"), 1));
    assert_eq!(errno(nonsense), Errno::INVAL);
    assert_bad_paths(stage, &driver, |path| errno(unlink(path)));
}

pub fn an_empty_directory_is_removed(stage: &Stage) {
    let driver = stage.driver();
    let rmdir = |path: &str| wait(&driver, driver.unlink(None, stage.path(path), REMOVEDIR));
    let open = directory(stage, &driver, "directory");
    stage.create("directory/file", b"");
    assert_eq!(errno(rmdir("directory")), Errno::NOTEMPTY);
    assert_eq!(errno(rmdir("directory/.")), Errno::INVAL);
    assert_eq!(errno(rmdir("directory/..")), Errno::NOTEMPTY);
    assert_eq!(errno(rmdir("directory/file")), Errno::NOTDIR);
    wait(&driver, driver.unlink(Some(&open), name("file"), 0)).unwrap();
    rmdir("directory").unwrap();
    assert_eq!(errno(rmdir("directory")), Errno::NOENT);
    let made = wait(&driver, driver.mkdir(Some(&open), name("late"), 0o755));
    assert_eq!(errno(made), Errno::NOENT, "the directory is gone");
}

pub fn a_name_moves(stage: &Stage) {
    let driver = stage.driver();
    let rename = |from: &str, to: &str| {
        wait(&driver, driver.rename(None, stage.path(from), None, stage.path(to), 0))
    };
    stage.create("a", b"of a");
    stage.create("b", b"of b");
    rename("a", "b").unwrap();
    assert_eq!(stage.contents("b"), b"of a");
    assert_eq!(errno(rename("a", "b")), Errno::NOENT);
    rename("b", "b").unwrap();
    let (from, to) = (directory(stage, &driver, "d1"), directory(stage, &driver, "d2"));
    rename("b", "d1/b").unwrap();
    let moved = driver.rename(Some(&from), name("b"), Some(&to), name("c"), 0);
    wait(&driver, moved).unwrap();
    assert_eq!(stage.contents("d2/c"), b"of a");
    assert_bad_paths(stage, &driver, |path| errno(rename(path, "d2/x")));
    wait(&driver, driver.unlink(None, stage.path("turn"), 0)).unwrap();
    assert_bad_paths(stage, &driver, |path| errno(rename("d2/c", path)));
}

pub fn directories_move_and_do_not_get_into_themselves(stage: &Stage) {
    let driver = stage.driver();
    let rename = |from: &str, to: &str| {
        wait(&driver, driver.rename(None, stage.path(from), None, stage.path(to), 0))
    };
    for path in ["d", "d/e", "empty"] {
        directory(stage, &driver, path);
    }
    stage.create("file", b"");
    assert_eq!(errno(rename("d", "d/e/f")), Errno::INVAL);
    assert_eq!(errno(rename("d/e", "d")), Errno::NOTEMPTY);
    assert_eq!(errno(rename("empty", "d")), Errno::NOTEMPTY);
    assert_eq!(errno(rename("d", "file")), Errno::NOTDIR);
    assert_eq!(errno(rename("file", "d")), Errno::ISDIR);
    assert_eq!(errno(rename("file", "new/")), Errno::NOTDIR);
    assert_eq!(errno(rename("d/.", "x")), Errno::BUSY);
    rename("d", "empty").unwrap();
    assert!(statx(stage, &driver, "empty/e").unwrap().is_directory());
    rename("empty", "new/").unwrap();
    // A moved directory has its new directory as its parent.
    rename("new/e", "e").unwrap();
    assert!(statx(stage, &driver, "e/../new").unwrap().is_directory());
}

pub fn a_rename_spares_or_exchanges(stage: &Stage) {
    let driver = stage.driver();
    let rename = |from: &str, to: &str, flags| {
        wait(&driver, driver.rename(None, stage.path(from), None, stage.path(to), flags))
    };
    stage.create("a", b"of a");
    stage.create("b", b"of b");
    assert_eq!(errno(rename("a", "b", NOREPLACE)), Errno::EXIST);
    rename("a", "c", NOREPLACE).unwrap();
    rename("b", "c", EXCHANGE).unwrap();
    assert_eq!((&stage.contents("b")[..], &stage.contents("c")[..]), (&b"of a"[..], &b"of b"[..]));
    assert_eq!(errno(rename("b", "none", EXCHANGE)), Errno::NOENT);
    assert_eq!(errno(rename("b", "c", EXCHANGE | NOREPLACE)), Errno::INVAL);
    assert_eq!(errno(rename("b", "c", 1 << 20)), Errno::INVAL);
    directory(stage, &driver, "d");
    rename("d", "b", EXCHANGE).unwrap();
    assert!(statx(stage, &driver, "b").unwrap().is_directory());
    assert_eq!(stage.contents("d"), b"of a");
}

pub fn a_file_has_several_names(stage: &Stage) {
    let driver = stage.driver();
    let link = |from: &str, to: &str, flags| {
        wait(&driver, driver.link(None, stage.path(from), None, stage.path(to), flags))
    };
    stage.create("a", b"shared");
    link("a", "b", 0).unwrap();
    let (a, b) = (statx(stage, &driver, "a").unwrap(), statx(stage, &driver, "b").unwrap());
    assert_eq!((a.inode, a.links), (b.inode, 2));
    assert_eq!(errno(link("a", "b", 0)), Errno::EXIST);
    assert_eq!(errno(link("none", "c", 0)), Errno::NOENT);
    assert_eq!(errno(link("a", "c/", 0)), Errno::NOENT);
    assert_eq!(errno(link("a", "c", 1)), Errno::INVAL);
    directory(stage, &driver, "d");
    assert_eq!(errno(link("d", "c", 0)), Errno::PERM);
    // A rename from one name of a file to another moves neither.
    let moved = driver.rename(None, stage.path("a"), None, stage.path("b"), 0);
    wait(&driver, moved).unwrap();
    wait(&driver, driver.unlink(None, stage.path("a"), 0)).unwrap();
    assert_eq!(statx(stage, &driver, "b").unwrap().links, 1);
    wait(&driver, driver.symlink(name("b"), None, stage.path("s"))).unwrap();
    link("s", "itself", 0).unwrap();
    link("s", "followed", AtFlags::SYMLINK_FOLLOW.bits()).unwrap();
    assert!(!statx(stage, &driver, "itself").unwrap().is_file());
    assert!(statx(stage, &driver, "followed").unwrap().is_file());
}

pub fn a_symbolic_link_leads_on(stage: &Stage) {
    let driver = stage.driver();
    let symlink = |target: &str, path: &str| {
        wait(&driver, driver.symlink(name(target), None, stage.path(path)))
    };
    let directory = directory(stage, &driver, "d");
    symlink("d", "to-d").unwrap();
    symlink("../file", "d/up").unwrap();
    stage.create("file", b"reached");
    assert_eq!(stage.contents("to-d/up"), b"reached");
    let open = driver.open(Some(&directory), name("up"), 0, 0);
    let file = wait(&driver, open).unwrap();
    assert_eq!(wait(&driver, driver.statx_fd(&file)).unwrap().size, 7);
    assert_eq!(errno(symlink("x", "to-d")), Errno::EXIST);
    assert_eq!(errno(symlink("", "empty")), Errno::NOENT);
    assert_eq!(errno(symlink("x", "slash/")), Errno::NOENT);
    let open = |path: &str, flags: OFlags| {
        wait(&driver, driver.open(None, stage.path(path), flags.bits(), 0o600))
    };
    assert_eq!(errno(open("d/up", OFlags::NOFOLLOW)), Errno::LOOP);
    assert_eq!(errno(open("d/up", OFlags::DIRECTORY)), Errno::NOTDIR);
    assert_eq!(errno(open("to-d", OFlags::WRONLY)), Errno::ISDIR);
    symlink("missing", "dangling").unwrap();
    assert_eq!(errno(open("dangling", OFlags::RDONLY)), Errno::NOENT);
    let exclusive = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
    assert_eq!(errno(open("dangling", exclusive)), Errno::EXIST);
    open("dangling", OFlags::CREATE | OFlags::WRONLY).unwrap();
    assert_eq!(statx(stage, &driver, "missing").unwrap().size, 0, "made where the link leads");
    assert_bad_paths(stage, &driver, |path| errno(symlink("x", path)));
    assert_eq!(errno(open("turn", OFlags::RDONLY)), Errno::LOOP);
}

pub fn chains_of_links_have_an_end(stage: &Stage) {
    let driver = stage.driver();
    stage.create("0", b"end");
    for number in 1..=41 {
        let (target, path) = (name(&(number - 1).to_string()), stage.path(&number.to_string()));
        wait(&driver, driver.symlink(target, None, path)).unwrap();
    }
    assert_eq!(stage.contents("40"), b"end");
    let open = wait(&driver, driver.open(None, stage.path("41"), 0, 0));
    assert_eq!(errno(open), Errno::LOOP);
}

pub fn a_directory_opens_to_be_read_only(stage: &Stage) {
    let driver = stage.driver();
    let directory = directory(stage, &driver, "d");
    let (result, _) = wait(&driver, driver.read(&directory, vec![0; 8], 0));
    assert_eq!(errno(result), Errno::ISDIR);
    for flags in [OFlags::RDWR, OFlags::CREATE, OFlags::WRONLY | OFlags::TRUNC] {
        let open = wait(&driver, driver.open(None, stage.path("d"), flags.bits(), 0o600));
        assert_eq!(errno(open), Errno::ISDIR, "{flags:?}");
    }
    stage.create("file", b"");
    for (path, flags) in [("file/", OFlags::RDONLY), ("file", OFlags::DIRECTORY)] {
        let open = wait(&driver, driver.open(None, stage.path(path), flags.bits(), 0));
        assert_eq!(errno(open), Errno::NOTDIR, "{path}");
    }
    wait(&driver, driver.fsync(&directory, false)).unwrap();
}

/// Opens a path below a directory, with the restrictions in `resolve`.
fn open_within(driver: &Driver, directory: &Fd, path: &str, resolve: u64) -> std::io::Result<Fd> {
    let how = OpenHow { resolve, ..OpenHow::default() };
    wait(driver, driver.openat2(Some(directory), name(path), how))
}

pub fn a_confined_path_stays_beneath_its_directory(stage: &Stage) {
    let driver = stage.driver();
    let top = directory(stage, &driver, "top");
    directory(stage, &driver, "top/d");
    stage.create("outside", b"");
    stage.create("top/file", b"inside");
    for (target, path) in [("../../outside", "d/out"), ("../file", "d/in"), ("/", "root")] {
        wait(&driver, driver.symlink(name(target), Some(&top), name(path))).unwrap();
    }
    let open = |path: &str| open_within(&driver, &top, path, OpenHow::BENEATH);
    for path in ["file", "d/../file", "d/in", "./file", "d/.."] {
        open(path).unwrap();
    }
    for path in ["../outside", "..", "d/out", "d/../..", "root", "/"] {
        assert_eq!(errno(open(path)), Errno::XDEV, "{path}");
    }
    assert_eq!(errno(open("none")), Errno::NOENT);
    let file = open("d/in").unwrap();
    assert_eq!(wait(&driver, driver.statx_fd(&file)).unwrap().size, 6);
    // If the directory acts as the root, the same paths stay within.
    for path in ["/file", "../file", "d/in", "d/../../file", "root/file"] {
        open_within(&driver, &top, path, OpenHow::IN_ROOT).unwrap();
    }
    assert_eq!(errno(open_within(&driver, &top, "d/out", OpenHow::IN_ROOT)), Errno::NOENT);
}

pub fn a_path_without_links_refuses_them(stage: &Stage) {
    let driver = stage.driver();
    let top = directory(stage, &driver, "top");
    stage.create("top/file", b"");
    wait(&driver, driver.symlink(name("file"), Some(&top), name("link"))).unwrap();
    wait(&driver, driver.symlink(name("."), Some(&top), name("here"))).unwrap();
    let open = |path: &str| open_within(&driver, &top, path, OpenHow::NO_SYMLINKS);
    open("file").unwrap();
    for path in ["link", "here/file"] {
        assert_eq!(errno(open(path)), Errno::LOOP, "{path}");
    }
}

pub fn a_confined_path_can_create(stage: &Stage) {
    let driver = stage.driver();
    let top = directory(stage, &driver, "top");
    let flags = u64::from((OFlags::CREATE | OFlags::WRONLY).bits());
    let how = OpenHow { flags, mode: 0o600, resolve: OpenHow::BENEATH };
    let file = wait(&driver, driver.openat2(Some(&top), name("new"), how)).unwrap();
    wait(&driver, driver.write(&file, "made", 0)).0.unwrap();
    assert_eq!(stage.contents("top/new"), b"made");
    let cached = OpenHow { resolve: OpenHow::CACHED, ..how };
    let created = wait(&driver, driver.openat2(Some(&top), name("x"), cached));
    assert_eq!(errno(created), Errno::AGAIN);
}

pub fn how_to_open_is_checked(stage: &Stage) {
    let driver = stage.driver();
    stage.create("file", b"");
    let plain = OpenHow::default();
    for how in [
        OpenHow { flags: 1 << 40, ..plain },
        OpenHow { mode: 0o600, ..plain },
        OpenHow { resolve: 1 << 40, ..plain },
        OpenHow { resolve: OpenHow::BENEATH | OpenHow::IN_ROOT, ..plain },
    ] {
        let open = wait(&driver, driver.openat2(None, stage.path("file"), how));
        assert_eq!(errno(open), Errno::INVAL, "{how:?}");
    }
    let open = wait(&driver, driver.openat2(None, stage.path("none"), plain));
    assert_eq!(errno(open), Errno::NOENT);
    wait(&driver, driver.openat2(None, stage.path("file"), plain)).unwrap();
}

pub fn a_late_confined_descriptor_is_closed(stage: &Stage) {
    let driver = stage.driver();
    stage.create("file", b"");
    let probe = stage.open(&driver, "file", OFlags::RDONLY);
    let identity = stage.identify(&probe);
    wait(&driver, driver.close(probe)).unwrap();
    drop(driver.openat2(None, stage.path("file"), OpenHow::default()));
    let is_closed = || driver.live_operations() == 0 && !stage.is_open_anywhere(&identity);
    crate::stage::turn_until(&driver, is_closed);
}
