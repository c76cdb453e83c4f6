//! Another user exchanges all names of a copy for files of the copier, before each of its system calls.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags};

use super::sim;
use super::tests::{Folder, copy, options};

/// The names in the root of the copy that are exchanged, the private directory included.
const NAMES: [&str; 7] = ["file", "nothing", "large", "fifo", "inner", "link", ".sakia-cp"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bait {
    File,
    Name,
    Link,
    Directory,
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Makes a directory that others may write to, and files of the copier that they can put there.
fn prepare(folder: &Folder, bait: Bait, has_files: bool) -> (PathBuf, PathBuf) {
    let (to, baits) = (folder.to(), folder.from().with_file_name("baits"));
    fs::remove_dir_all(&baits).ok();
    fs::create_dir_all(baits.join("hidden")).unwrap();
    fs::create_dir(&to).unwrap();
    set_mode(&to, 0o777);
    for name in NAMES {
        let (path, hidden) = (baits.join(name), baits.join("hidden").join(name));
        match bait {
            _ if name == ".sakia-cp" => fs::create_dir(&path).unwrap(),
            Bait::Directory => fs::create_dir(&path).unwrap(),
            Bait::File => fs::write(&path, "secret").unwrap(),
            Bait::Name | Bait::Link => {
                fs::write(&hidden, "secret").unwrap();
                set_mode(&hidden, 0o600);
                match bait {
                    Bait::Link => symlink(&hidden, &path).unwrap(),
                    _ => fs::hard_link(&hidden, &path).unwrap(),
                }
            }
        }
        if path.is_dir() {
            // Another user may remove an empty directory, too.
            fs::write(path.join("secret"), "").unwrap();
        }
        if !path.is_symlink() {
            set_mode(&path, if path.is_dir() { 0o700 } else { 0o600 });
        }
        if has_files && !["inner", "fifo", "link", ".sakia-cp"].contains(&name) {
            fs::write(to.join(name), "before").unwrap();
            set_mode(&to.join(name), 0o666);
        }
    }
    (to, baits)
}

/// Returns mode, owner and number of names of all files that have one of these inodes, or of all.
fn facts(folder: &Folder, of: Option<&BTreeMap<u64, Facts>>) -> BTreeMap<u64, Facts> {
    let mut found = BTreeMap::new();
    let mut left = vec![folder.from().with_file_name("to"), folder.from().with_file_name("baits")];
    while let Some(path) = left.pop() {
        let stat = path.symlink_metadata().unwrap();
        if stat.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        let is_wanted = of.is_none_or(|of| of.contains_key(&stat.ino()));
        if is_wanted && !stat.is_symlink() {
            found.insert(stat.ino(), (stat.mode(), stat.uid(), stat.nlink()));
        }
    }
    found
}

type Facts = (u32, u32, u64);

fn exchange(to: &Path, baits: &Path) {
    for name in NAMES {
        let (one, other) = (to.join(name), baits.join(name));
        rustix::fs::renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).ok();
    }
}

/// Copies; before the call of this number all names are exchanged. Returns false if there was no such call.
fn check(folder: &Folder, bait: Bait, number: usize, is_archive: bool, has_files: bool) -> bool {
    let (to, baits) = prepare(folder, bait, has_files);
    // Directories of the copy are there only later, and count as names of their parent.
    let mut before = facts(folder, None);
    before.retain(|inode, _| {
        ![&to, &baits].iter().any(|dir| dir.metadata().unwrap().ino() == *inode)
    });
    let (there, others) = (to.clone(), baits.clone());
    let act = || copy(&folder.from(), &to, &options(is_archive));
    let (_, calls) = sim::run_until(None, number, move || exchange(&there, &others), act);
    let case = format!(
        "{bait:?} before {number}, {:?}, of {calls:?}; archive: {is_archive}, files: {has_files}",
        calls.get(number)
    );
    assert_eq!(facts(folder, Some(&before)), before, "{case}");
    number < calls.len()
}

#[test]
fn no_file_in_place_of_a_new_one_is_changed() {
    let folder = Folder::in_memory("exchanged");
    fs::write(folder.from().join("inner/deep/large"), vec![3; 200_000]).unwrap();
    symlink("nowhere", folder.from().join("link")).unwrap();
    let private = folder.from().join("inner/deep/fifo");
    fs::hard_link(folder.from().join("fifo"), private).unwrap();
    for bait in [Bait::File, Bait::Name, Bait::Link, Bait::Directory] {
        for is_archive in [true, false] {
            if !is_archive && ![Bait::Name, Bait::Directory].contains(&bait) {
                continue;
            }
            let mut number = 0;
            while check(&folder, bait, number, is_archive, false) {
                number += 1;
            }
            assert!(number > 50, "{number} calls");
        }
    }
    for bait in [Bait::File, Bait::Name] {
        let mut number = 0;
        while check(&folder, bait, number, false, true) {
            number += 1;
        }
    }
}
