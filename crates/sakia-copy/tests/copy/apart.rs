//! Placement of directories when creating files is slow.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use sakia_copy::{Existing, Options};
use sakia_testkit::available;
use sakia_testkit::small_fs::SmallFs;

use crate::support::{Folder, assert_same, copy_all, tree};

/// The number of inodes in a group, with one for each 16 KiB.
const GROUP: usize = 8192;

/// Returns the directories with the flag for unrelated contents.
fn tops(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![root.to_owned()];
    while let Some(path) = left.pop() {
        if ioctl_getflags(File::open(&path).unwrap()).unwrap().contains(IFlags::TOPDIR) {
            found.push(path.clone());
        }
        let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap());
        let folders = entries.filter(|entry| entry.file_type().unwrap().is_dir());
        left.extend(folders.map(|entry| entry.path()));
    }
    found
}

fn say_top(path: &Path) {
    let dir = File::open(path).unwrap();
    let flags = ioctl_getflags(&dir).unwrap();
    ioctl_setflags(dir, flags | IFlags::TOPDIR).unwrap();
}

/// Creates `folders` directories with `files` files each.
fn fill(root: &Path, folders: usize, files: usize) {
    for folder in 0..folders {
        let path = root.join(folder.to_string());
        fs::create_dir_all(&path).unwrap();
        for file in 0..files {
            fs::write(path.join(file.to_string()), "").unwrap();
        }
    }
}

/// After a deletion of nearly all inodes of a group, the file system searches for each new inode among
/// them.
#[test]
fn directories_are_put_apart_after_a_deletion() {
    let folder = Folder::new();
    let from = folder.path("from");
    fill(&from, 60, 60);
    let small = available!(SmallFs::ext4_in_memory(5 << 30, false));
    // A directory in it stays near it; one at the root is spread in any case.
    let near = small.path().join("near");
    fill(&near.join("to"), 10, GROUP / 10);
    fs::remove_dir_all(near.join("to")).unwrap();
    // The file system's clock counts seconds.
    thread::sleep(Duration::from_secs(2));
    for limit in [Options::LIMIT, 1] {
        let mut options = Options::archive();
        options.limit = limit;
        let to = near.join(limit.to_string());
        let report = copy_all(&from, &to, &options);
        assert!(report.counters.apart > 0, "{report:#?}");
        assert_same(&tree(&to), &tree(&from));
        // No directory keeps the flag at the end.
        assert_eq!(tops(&to), [] as [PathBuf; 0]);
        fs::remove_dir_all(&to).unwrap();
    }
}

#[test]
fn what_a_killed_copy_said_is_taken_back_and_nothing_else() {
    let folder = Folder::new();
    fill(&folder.path("from"), 3, 1);
    let small = available!(SmallFs::ext4_in_memory(64 << 20, false));
    let to = small.path().join("to");
    fill(&to, 2, 0);
    for name in ["0", "1"] {
        say_top(&to.join(name));
    }
    // One of the directories was not completed.
    fs::set_permissions(to.join("1"), fs::Permissions::from_mode(0o1700)).unwrap();
    let mut options = Options::new();
    options.existing = Existing::Update;
    let report = copy_all(folder.path("from"), &to, &options);
    assert_eq!(report.counters.apart, 0);
    assert_eq!(tops(&to), [to.join("0")]);
}
