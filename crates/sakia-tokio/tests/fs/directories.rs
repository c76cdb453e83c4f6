//! Directories: creation and listing.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use sakia_tokio::fs::{self, DirBuilder};

use crate::support::{Folder, errno, on_each_flavor, poll_once};

on_each_flavor! {
    directories_are_made_and_removed
    a_builder_makes_them_as_it_is_told
    all_entries_come_once
    an_entry_tells_what_it_is
    entries_come_to_whoever_polls
    a_future_that_is_dropped_loses_no_entry
    a_directory_that_goes_away_midway_is_no_trouble
}

async fn directories_are_made_and_removed() {
    let folder = Folder::new();
    fs::create_dir(folder.path("a")).await.unwrap();
    assert_eq!(errno(fs::create_dir(folder.path("a")).await), Some(libc::EEXIST));
    fs::create_dir_all(folder.path("a/b/c")).await.unwrap();
    fs::create_dir_all(folder.path("a/b/c")).await.unwrap();
    folder.file("a/b/file", "text");
    assert_eq!(errno(fs::remove_dir(folder.path("a")).await), Some(libc::ENOTEMPTY));
    fs::remove_dir(folder.path("a/b/c")).await.unwrap();
    fs::remove_dir_all(folder.path("a")).await.unwrap();
    assert!(!folder.path("a").exists());
}

async fn a_builder_makes_them_as_it_is_told() {
    let folder = Folder::new();
    let mut builder = DirBuilder::new();
    assert_eq!(errno(builder.create(folder.path("a/b")).await), Some(libc::ENOENT));
    builder.recursive(true).mode(0o700).create(folder.path("a/b")).await.unwrap();
    builder.create(folder.path("a/b")).await.unwrap();
    for made in ["a", "a/b"] {
        let permissions = std::fs::metadata(folder.path(made)).unwrap().permissions();
        assert_eq!(permissions.mode() & 0o777, 0o700);
    }
}

fn with_files(count: usize) -> Folder {
    let folder = Folder::new();
    for number in 0..count {
        folder.file(&number.to_string(), "");
    }
    folder
}

async fn all_entries_come_once() {
    for count in [0, 1, 31, 32, 33, 95, 96, 97, 1000] {
        let folder = with_files(count);
        let mut entries = fs::read_dir(folder.path(".")).await.unwrap();
        let mut names = BTreeSet::new();
        while let Some(entry) = entries.next_entry().await.unwrap() {
            assert!(names.insert(entry.file_name()));
        }
        assert_eq!(names.len(), count);
        assert!(entries.next_entry().await.unwrap().is_none());
    }
}

async fn an_entry_tells_what_it_is() {
    let folder = Folder::new();
    folder.file("file", "text");
    std::fs::create_dir(folder.path("directory")).unwrap();
    std::os::unix::fs::symlink("file", folder.path("link")).unwrap();
    let mut entries = fs::read_dir(folder.path(".")).await.unwrap();
    let mut count = 0;
    while let Some(entry) = entries.next_entry().await.unwrap() {
        let expected = std::fs::symlink_metadata(entry.path()).unwrap();
        assert_eq!(entry.path(), folder.path(".").join(entry.file_name()));
        assert_eq!(entry.file_type().await.unwrap(), expected.file_type());
        assert_eq!(entry.ino(), expected.ino());
        let metadata = entry.metadata().await.unwrap();
        assert_eq!((metadata.len(), metadata.ino()), (expected.len(), expected.ino()));
        count += 1;
    }
    assert_eq!(count, 3);
}

async fn entries_come_to_whoever_polls() {
    let folder = with_files(100);
    let mut entries = fs::read_dir(folder.path(".")).await.unwrap();
    let mut count = 0;
    while poll_fn(|cx| entries.poll_next_entry(cx)).await.unwrap().is_some() {
        count += 1;
    }
    assert_eq!(count, 100);
}

async fn a_future_that_is_dropped_loses_no_entry() {
    let folder = with_files(1000);
    let mut entries = fs::read_dir(folder.path(".")).await.unwrap();
    let mut count = 0;
    loop {
        let mut next = Box::pin(entries.next_entry());
        let entry = match poll_once(next.as_mut()) {
            std::task::Poll::Ready(entry) => entry,
            std::task::Poll::Pending => {
                drop(next);
                entries.next_entry().await
            }
        };
        match entry.unwrap() {
            Some(_) => count += 1,
            None => break,
        }
    }
    assert_eq!(count, 1000);
}

async fn a_directory_that_goes_away_midway_is_no_trouble() {
    let folder = with_files(500);
    let mut entries = fs::read_dir(folder.path(".")).await.unwrap();
    assert!(entries.next_entry().await.unwrap().is_some());
    fs::remove_dir_all(folder.path(".").canonicalize().unwrap()).await.unwrap();
    // The file system decides which entries are still listed; the list ends.
    while entries.next_entry().await.unwrap().is_some() {}
}
