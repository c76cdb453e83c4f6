//! Operations by path on files that no program of the [reference](crate::reference) has.

use sakia_tokio::fs;

use crate::support::{Folder, on_each_flavor};

on_each_flavor! {
    large_files_and_files_without_a_length_are_read
    a_directory_that_goes_away_midway_is_no_trouble
}

async fn large_files_and_files_without_a_length_are_read() {
    let folder = Folder::new();
    let (path, text) = (folder.path("x"), "text".repeat(1 << 20));
    fs::write(&path, text.clone()).await.unwrap();
    assert!(fs::read_to_string(&path).await.unwrap() == text);
    // These files do not report their length.
    let version = fs::read_to_string("/proc/version").await.unwrap();
    assert_eq!(version, std::fs::read_to_string("/proc/version").unwrap());
}

async fn a_directory_that_goes_away_midway_is_no_trouble() {
    let folder = Folder::new();
    for number in 0..500 {
        folder.file(&number.to_string(), "");
    }
    let mut entries = fs::read_dir(folder.path(".")).await.unwrap();
    assert!(entries.next_entry().await.unwrap().is_some());
    fs::remove_dir_all(folder.path(".").canonicalize().unwrap()).await.unwrap();
    // The file system decides which entries are still listed; the list ends.
    while entries.next_entry().await.unwrap().is_some() {}
}
