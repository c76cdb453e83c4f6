//! Trees that are deeper, wider and larger than the limits of a process.

use std::ffi::CString;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
use sakia_copy::{Options, Progress, remove_tree};

use crate::children::{self, Nobody, give_to_nobody};
use crate::support::{Folder, assert_same, bytes, copy_all, needs_root, runtime, tree};

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Goes down through directories of that name.
fn descend(root: &Path, name: &str, levels: usize, makes: bool) -> OwnedFd {
    let name = CString::new(name).unwrap();
    let mut dir = openat(CWD, root, DIRECTORY, Mode::empty()).unwrap();
    for _ in 0..levels {
        if makes {
            mkdirat(&dir, &name, Mode::from_raw_mode(0o755)).unwrap();
        }
        dir = openat(&dir, &name, DIRECTORY, Mode::empty()).unwrap();
    }
    dir
}

fn write(dir: &OwnedFd, text: &str) {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
    let file = openat(dir, "bottom", flags, Mode::from_raw_mode(0o644)).unwrap();
    assert_eq!(rustix::io::write(file, text.as_bytes()).unwrap(), text.len());
}

fn read(dir: &OwnedFd) -> String {
    let file = openat(dir, "bottom", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    std::io::read_to_string(fs::File::from(file)).unwrap()
}

/// Deep trees are copied and removed, with few descriptors and with the usual number.
#[test]
fn paths_longer_than_the_kernel_takes_them() {
    let long = "n".repeat(100);
    for (name, levels, before) in [
        (&*long, 60, "ulimit -n 64"),
        ("d", 3000, "ulimit -n 64"),
        (&*long, 60, "true"),
        ("d", 5000, "true"),
    ] {
        let folder = Folder::in_memory();
        let (from, to) = (folder.dir("from"), folder.path("to"));
        write(&descend(&from, name, levels, true), "at the bottom");
        let said = children::run("a", before, &from, &to);
        assert_eq!((said.failures, said.entries), (0, levels as u64 + 2), "{}", said.output);
        assert_eq!(read(&descend(&to, name, levels, false)), "at the bottom");
        let said = children::run("remove", before, &to, &to);
        assert_eq!((said.failures, said.entries), (0, levels as u64 + 2), "{}", said.output);
        assert!(!to.exists());
    }
}

#[test]
fn few_descriptors() {
    let folder = Folder::new();
    let mut deep = folder.dir("from");
    for level in 0..40 {
        for number in 0..4 {
            let wide = deep.join(format!("wide-{number}"));
            fs::create_dir(&wide).unwrap();
            fs::write(wide.join("file"), format!("{level} {number}")).unwrap();
            // The file is linked from another directory.
            fs::hard_link(wide.join("file"), deep.join(format!("link-{number}"))).unwrap();
        }
        deep = deep.join("deeper");
        fs::create_dir(&deep).unwrap();
    }
    for number in 0..500 {
        let wide = folder.dir(&format!("from/wide/{number}"));
        fs::write(wide.join("file"), number.to_string()).unwrap();
    }
    let expected = tree(&folder.path("from"));
    for limit in [32, 64] {
        let to = folder.path(&format!("to-{limit}"));
        let before = format!("ulimit -n {limit}");
        let said = children::run("a", &before, &folder.path("from"), &to);
        assert_eq!(said.failures, 0, "{}", said.output);
        assert_same(&tree(&to), &expected);
        let said = children::run("remove", &before, &to, &to);
        assert_eq!((said.failures, to.exists()), (0, false), "{}", said.output);
    }
}

/// Unreadable directories of the copy are closed and opened again, too.
#[test]
fn few_descriptors_and_directories_that_cannot_be_read() {
    needs_root!();
    let folder = Folder::for_all();
    let nobody = Nobody::new(&folder);
    let (mut from, mut to) = (folder.dir("from"), folder.dir("to"));
    let mut made = vec![to.clone()];
    for level in 0..60 {
        fs::write(from.join("file"), level.to_string()).unwrap();
        // The directories come before and after the subdirectories.
        for name in ["a", "z"] {
            fs::create_dir(from.join(name)).unwrap();
            fs::write(from.join(name).join("file"), name).unwrap();
        }
        (from, to) = (from.join("deeper"), to.join("deeper"));
        fs::create_dir(&from).unwrap();
        fs::create_dir(&to).unwrap();
        made.push(to.clone());
    }
    for path in made {
        give_to_nobody(&path);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o300)).unwrap();
    }
    let (from, to) = (folder.path("from"), folder.path("to"));
    let said = nobody.run_after("r", "umask 022; ulimit -n 32", &from, &to);
    assert_eq!(said.failures, 0, "{}", said.output);
    let contents = |root: &Path| {
        let tree = tree(root);
        tree.into_iter().map(|(path, facts)| (path, facts.contents)).collect::<Vec<_>>()
    };
    assert!(contents(&to) == contents(&from));
}

#[test]
fn many_entries_in_a_directory() {
    const COUNT: u64 = 20_000;
    let folder = Folder::in_memory();
    let (from, to) = (folder.dir("from"), folder.path("to"));
    for number in 0..COUNT {
        let path = from.join(format!("entry-{number}"));
        match number % 4 {
            0 => fs::create_dir(path).unwrap(),
            1 => std::os::unix::fs::symlink("entry-0", path).unwrap(),
            _ => fs::write(path, number.to_string()).unwrap(),
        }
    }
    let counts = copy_all(&from, &to, &Options::new()).counts;
    let quarter = COUNT / 4;
    assert_eq!((counts.files, counts.directories), (2 * quarter, quarter + 1));
    assert_eq!((counts.symlinks, counts.entries()), (quarter, COUNT + 1));
    assert_eq!(fs::read_dir(&to).unwrap().count() as u64, COUNT);
    for number in (0..COUNT).filter(|number| number % 4 > 1) {
        let text = fs::read_to_string(to.join(format!("entry-{number}"))).unwrap();
        assert_eq!(text, number.to_string());
    }
    let removing = async {
        let token = sakia::CancellationToken::new();
        remove_tree(&to, &Progress::new().into(), &token).await.unwrap()
    };
    let report = runtime().block_on(removing);
    assert_eq!((report.is_complete(), report.counts.entries()), (true, COUNT + 1));
    assert!(!to.exists());
}

#[test]
fn memory_does_not_grow_with_the_tree() {
    const FOLDERS: u64 = 250;
    const FILES: u64 = 200;
    let folder = Folder::in_memory();
    for number in 0..FOLDERS {
        let inner = folder.dir(&format!("from/{}/{number}", number % 10));
        for file in 0..FILES {
            fs::write(inner.join(format!("a name of some length {file}")), "x").unwrap();
        }
    }
    let said = children::run("a", "true", &folder.path("from"), &folder.path("to"));
    let expected = FOLDERS * FILES + FOLDERS + 11;
    assert_eq!((said.failures, said.entries), (0, expected), "{}", said.output);
    assert!(said.peak_kib <= 64 << 10, "{} KiB", said.peak_kib);
}

/// The files are longer than the kernel copies at a time, within a file system and to another one.
#[test]
fn large_files_with_and_without_holes() {
    const MIB: u64 = 1 << 20;
    let (folder, memory) = (Folder::new(), Folder::in_memory());
    let sparse = fs::File::create(folder.dir("from").join("sparse")).unwrap();
    folder.file("from/dense", bytes(20 << 20, 1));
    for (place, len) in [(3 * MIB, 100_000), (9 * MIB, 12 << 20), (30 * MIB, 1)] {
        sparse.write_all_at(&bytes(len, place), place).unwrap();
    }
    sparse.set_len(40 * MIB).unwrap();
    let from = folder.path("from");
    for to in [folder.path("to"), memory.path("to")] {
        copy_all(&from, &to, &Options::archive());
        assert_same(&tree(&to), &tree(&from));
        // The copy replaces a longer file.
        fs::write(to.join("dense"), bytes(30 << 20, 2)).unwrap();
        copy_all(&from, &to, &Options::archive());
        assert_same(&tree(&to), &tree(&from));
    }
}
