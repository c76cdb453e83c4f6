//! One write and one sync for many tasks. Rounds and their failures are compared with a model in
//! `group_commit_model`.

use std::io::ErrorKind;

use sakia_tokio::fs::{File, GroupCommit, OpenOptions};
use tokio::io::AsyncWriteExt;

use crate::support::{Folder, current_thread, multi_thread, on_each_flavor, poll_once};

on_each_flavor! {
    tasks_share_syncs
    appends_begin_after_the_write_in_flight
    a_write_in_flight_that_fails_is_told
    what_was_begun_is_finished
}

async fn tasks_share_syncs() {
    let folder = Folder::new();
    let path = folder.path("journal");
    let journal = GroupCommit::new(File::create(&path).await.unwrap()).await.unwrap();
    let writers: Vec<_> = (0..32_u8)
        .map(|writer| {
            let journal = journal.clone();
            tokio::spawn(async move {
                for number in 0..10 {
                    let record = [writer, number].repeat(50);
                    if writer % 4 == 0 {
                        journal.append(record).await.unwrap();
                        journal.commit().await.unwrap();
                    } else {
                        journal.append_durable(record).await.unwrap();
                    }
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    assert!((10..320).contains(&journal.syncs()), "{}", journal.syncs());
    assert_eq!((journal.end(), journal.failure()), (32_000, None));
    let mut next = [0; 32];
    for record in std::fs::read(&path).unwrap().chunks(100) {
        let number = &mut next[usize::from(record[0])];
        assert_eq!(record, [record[0], *number].repeat(50));
        *number += 1;
    }
    assert_eq!(next, [10; 32]);
}

async fn appends_begin_after_the_write_in_flight() {
    let folder = Folder::new();
    let path = folder.path("journal");
    let mut file = File::create(&path).await.unwrap();
    file.write_all(&[b'x'; 100_000]).await.unwrap();
    let journal = GroupCommit::new(file).await.unwrap();
    assert_eq!(journal.append_durable("record").await.unwrap(), 100_000);
    let file = OpenOptions::new().append(true).open(&path).await.unwrap();
    assert_eq!(GroupCommit::new(file).await.unwrap_err().kind(), ErrorKind::InvalidInput);
}

async fn a_write_in_flight_that_fails_is_told() {
    let mut file = OpenOptions::new().write(true).open("/dev/full").await.unwrap();
    file.write_all(&[b'x'; 100]).await.unwrap();
    let error = GroupCommit::new(file).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull);
}

async fn what_was_begun_is_finished() {
    let folder = Folder::new();
    let path = folder.path("journal");
    let journal = GroupCommit::new(File::create(&path).await.unwrap()).await.unwrap();
    for _ in 0..50 {
        // An append that is never polled adds no bytes.
        drop(journal.append_durable("no"));
        let mut append = Box::pin(journal.append_durable("yes "));
        let _ = poll_once(append.as_mut());
    }
    journal.commit().await.unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"yes ".repeat(50));
}

#[test]
fn a_runtime_that_ends_waits_for_what_was_begun() {
    for runtime in [current_thread, multi_thread] {
        let folder = Folder::new();
        let path = folder.path("journal");
        let runtime = runtime();
        runtime.block_on(async {
            let journal = GroupCommit::new(File::create(&path).await.unwrap()).await.unwrap();
            for _ in 0..20 {
                let mut append = Box::pin(journal.append_durable("yes "));
                let _ = poll_once(append.as_mut());
            }
        });
        drop(runtime);
        assert_eq!(std::fs::read(&path).unwrap(), b"yes ".repeat(20));
    }
}
