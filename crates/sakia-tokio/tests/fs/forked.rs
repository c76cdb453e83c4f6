//! A forked child of a program that uses the files: they work there, on threads of its own, while other
//! threads of the parent start threads and hold locks.

use std::sync::atomic::{AtomicBool, Ordering};

use sakia_testkit::forked;
use sakia_testkit::settings::patience;
use sakia_tokio::fs::{self, File};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Builder;
use tokio::time::timeout;

use crate::support::{Folder, bytes, current_thread, multi_thread};

/// Uses both lanes, the engine, and the pools of the process.
async fn uses_files(folder: &Folder) {
    let dir = folder.path(&format!("dir-{}", std::process::id()));
    fs::create_dir(&dir).await.unwrap();
    let path = dir.join("file");
    let mut file = File::create(&path).await.unwrap();
    file.write_all(&bytes(100_000)).await.unwrap();
    file.sync_all().await.unwrap();
    let mut read = Vec::new();
    File::open(&path).await.unwrap().read_to_end(&mut read).await.unwrap();
    assert_eq!(read, bytes(100_000));
    assert_eq!(fs::metadata(&path).await.unwrap().len(), 100_000);
    let mut entries = fs::read_dir(&dir).await.unwrap();
    assert_eq!(entries.next_entry().await.unwrap().unwrap().path(), path);
    fs::remove_dir_all(&dir).await.unwrap();
}

/// In a child, where a wait would be for ever.
fn uses_files_in_child(folder: &Folder) {
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    // Sooner than the parent's, so that the end tells a lost wake from a lock.
    let used = runtime.block_on(async { timeout(patience() / 2, uses_files(folder)).await });
    used.expect("the files hang");
}

#[test]
fn a_child_has_files_of_its_own() {
    let folder = Folder::new();
    assert_eq!(forked::run(|| uses_files_in_child(&folder)), Ok(()));
    let runtime = multi_thread();
    runtime.block_on(uses_files(&folder));
    assert_eq!(forked::run(|| uses_files_in_child(&folder)), Ok(()));
    drop(runtime);
    let again = || assert_eq!(forked::run(|| uses_files_in_child(&folder)), Ok(()));
    assert_eq!(forked::run(again), Ok(()));
    current_thread().block_on(uses_files(&folder));
}

#[test]
fn no_child_waits_for_a_lock_of_its_parent() {
    let folder = Folder::new();
    let is_over = AtomicBool::new(false);
    let ended: Vec<_> = std::thread::scope(|scope| {
        scope.spawn(|| {
            let folder = Folder::new();
            let runtime = current_thread();
            while !is_over.load(Ordering::Relaxed) {
                runtime.block_on(uses_files(&folder));
            }
        });
        let ended = (0..100).map(|_| forked::run(|| uses_files_in_child(&folder))).collect();
        is_over.store(true, Ordering::Relaxed);
        ended
    });
    assert!(ended.iter().all(Result::is_ok), "{ended:?}");
}
