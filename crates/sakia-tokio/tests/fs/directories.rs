//! Directories: creation and listing.

use std::collections::BTreeSet;
use std::future::poll_fn;

use sakia_tokio::fs;

use crate::support::{Folder, on_each_flavor, poll_once};

on_each_flavor! {
    all_entries_come_once
    entries_come_to_whoever_polls
    a_future_that_is_dropped_loses_no_entry
    a_directory_that_goes_away_midway_is_no_trouble
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
