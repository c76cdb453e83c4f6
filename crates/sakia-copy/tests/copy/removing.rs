//! `remove_tree` and `walk`.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rustix::fs::FileType;
use sakia::CancellationToken;
use sakia_copy::{Counts, Progress, Report, remove_tree, walk};

use crate::support::{Folder, failure, runtime};
use crate::tree::make_node;

fn remove(path: &Path) -> Report {
    let (progress, token) = (Progress::new().into(), CancellationToken::new());
    runtime().block_on(remove_tree(path, &progress, &token)).unwrap()
}

/// Walks the tree and returns the paths in their order.
fn walked(path: &Path, token: &CancellationToken) -> (Report, Vec<PathBuf>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let note = Arc::clone(&seen);
    let visit = move |entry: sakia_copy::Entry<'_>| {
        let path = entry.path();
        if entry.is_file() {
            assert_eq!(entry.size().unwrap(), fs::metadata(&path).unwrap().len());
        }
        assert_eq!(entry.is_symlink(), path.is_symlink());
        note.lock().unwrap().push(path);
    };
    let report = runtime().block_on(walk(path, visit, &Progress::new().into(), token)).unwrap();
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    (report, seen)
}

/// Makes a tree of 3 directories, 2 files, 3 links and a FIFO.
fn some(folder: &Folder) -> PathBuf {
    let outside = folder.dir("outside");
    fs::write(outside.join("precious"), "precious").unwrap();
    folder.dir("tree/inner/empty");
    folder.file("tree/a", "text");
    folder.file("tree/inner/b", "");
    symlink(&outside, folder.path("tree/out")).unwrap();
    symlink("..", folder.path("tree/inner/up")).unwrap();
    symlink("nowhere", folder.path("tree/inner/none")).unwrap();
    make_node(&folder.path("tree/fifo"), FileType::Fifo, 0);
    folder.path("tree")
}

fn numbers(counts: &Counts) -> [u64; 4] {
    [counts.directories, counts.files, counts.symlinks, counts.others]
}

#[test]
fn counts_are_those_of_the_tree() {
    let folder = Folder::new();
    let tree = some(&folder);
    let (report, seen) = walked(&tree, &CancellationToken::new());
    assert!(report.is_complete());
    assert_eq!((numbers(&report.counts), seen.len()), ([3, 2, 3, 1], 9));
    for (place, path) in seen.iter().enumerate() {
        // A directory comes before its contents.
        let above = seen.iter().position(|other| Some(&**other) == path.parent());
        assert!(above.is_some_and(|above| above < place) || path == &tree, "{seen:?}");
    }
    fs::set_permissions(folder.path("tree/inner"), fs::Permissions::from_mode(0o700)).unwrap();
    let report = remove(&tree);
    assert!(report.is_complete());
    assert_eq!(numbers(&report.counts), [3, 2, 3, 1]);
    assert!(!tree.exists());
    assert_eq!(fs::read_to_string(folder.path("outside/precious")).unwrap(), "precious");
}

#[test]
fn what_is_no_directory() {
    let folder = Folder::new();
    let tree = some(&folder);
    for name in ["a", "out", "inner/none", "fifo"] {
        let path = tree.join(name);
        let (report, seen) = walked(&path, &CancellationToken::new());
        assert_eq!((report.counts.entries(), &seen[..]), (1, &[path.clone()][..]));
        let report = remove(&path);
        assert_eq!((report.is_complete(), report.counts.entries()), (true, 1), "{report:#?}");
        assert!(path.symlink_metadata().is_err());
    }
    // With a final slash a link leads to a directory, which is not removed either.
    symlink(folder.path("outside"), folder.path("link")).unwrap();
    assert!(remove(&folder.path("link/")).is_complete());
    assert!(folder.path("link").symlink_metadata().is_err());
    assert_eq!(fs::read_dir(folder.path("outside")).unwrap().count(), 1);
}

#[test]
fn what_is_not_there() {
    let folder = Folder::new();
    let path = folder.path("none");
    assert!(failure(&remove(&path)).contains("none"));
    assert!(failure(&walked(&path, &CancellationToken::new()).0).contains("none"));
    let (report, seen) = walked(&path.join("deeper"), &CancellationToken::new());
    assert_eq!((report.counts.failures, seen.len()), (1, 0));
}

#[test]
fn a_token_ends_it() {
    let folder = Folder::new();
    let tree = some(&folder);
    let token = CancellationToken::new();
    token.cancel();
    let (report, seen) = walked(&tree, &token);
    assert!(report.is_stopped && seen.len() < 9);
    let progress = Progress::new().into();
    let report = runtime().block_on(remove_tree(&tree, &progress, &token)).unwrap();
    assert!(report.is_stopped);
    assert!(tree.exists());
}

#[test]
fn while_others_remove_the_same() {
    let folder = Folder::in_memory();
    for number in 0..300 {
        folder.dir(&format!("tree/{number}/inner"));
        folder.file(&format!("tree/{number}/inner/file"), "x");
    }
    let tree = folder.path("tree");
    let (one, other) = std::thread::scope(|scope| {
        let other = scope.spawn(|| remove(&tree));
        (remove(&tree), other.join().unwrap())
    });
    assert!(!tree.exists(), "{one:#?} {other:#?}");
    // One removal may have found the root gone; no other failure is possible.
    assert!(one.counts.failures + other.counts.failures <= 1, "{one:#?} {other:#?}");
}
