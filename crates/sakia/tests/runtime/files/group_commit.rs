//! One sync for many writers, and failures that stay.

use std::os::fd::OwnedFd;

use sakia::fs::{File, GroupCommit, OpenOptions};
use sakia::{block_on, spawn};

use super::TempDir;

#[test]
fn writers_share_syncs() {
    let dir = TempDir::new();
    let path = dir.join("journal");
    block_on(async {
        let journal = GroupCommit::new(File::create_new(&path).await.unwrap()).await.unwrap();
        let writers: Vec<_> = (0..50_u8)
            .map(|number| {
                let journal = journal.clone();
                spawn(async move {
                    for _ in 0..4 {
                        let (result, _) = journal.append(vec![number; 100]).await;
                        let at = result.unwrap();
                        journal.commit().await.unwrap();
                        assert!(journal.end() >= at + 100);
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.await.unwrap();
        }
        assert!((1..=200).contains(&journal.syncs()), "{}", journal.syncs());
        assert_eq!((journal.end(), journal.failure()), (20_000, None));
    });
    let contents = std::fs::read(&path).unwrap();
    let mut counts = [0; 50];
    for record in contents.chunks(100) {
        assert!(record.iter().all(|&byte| byte == record[0]));
        counts[usize::from(record[0])] += 1;
    }
    assert_eq!(counts, [4; 50]);
}

#[test]
fn appends_go_on_where_the_file_ends() {
    let dir = TempDir::new();
    let path = dir.join("journal");
    std::fs::write(&path, "before ").unwrap();
    block_on(async {
        let file = OpenOptions::new().write(true).open(&path).await.unwrap();
        let journal = GroupCommit::new(file).await.unwrap();
        assert_eq!(journal.append("after").await.0.unwrap(), 7);
        journal.commit().await.unwrap();
        let file = OpenOptions::new().append(true).open(&path).await.unwrap();
        assert!(GroupCommit::new(file).await.is_err());
    });
    assert_eq!(std::fs::read(&path).unwrap(), b"before after");
}

#[test]
fn dropping_who_asked_first_does_not_hold_up_the_others() {
    let dir = TempDir::new();
    block_on(async {
        let file = File::create(dir.join("journal")).await.unwrap();
        let journal = GroupCommit::new(file).await.unwrap();
        let first = spawn({
            let journal = journal.clone();
            async move { journal.commit().await }
        });
        let second = spawn({
            let journal = journal.clone();
            async move { journal.commit().await }
        });
        sakia::yield_now().await;
        first.abort();
        second.await.unwrap().unwrap();
        journal.commit().await.unwrap();
    });
}

#[test]
fn a_sync_that_cannot_be_is_told_to_all() {
    block_on(async {
        // What cannot be synced: the kernel says so, and a fake disk is not needed.
        let (_reader, writer) = std::io::pipe().unwrap();
        let file = File::try_from(OwnedFd::from(writer)).unwrap();
        let journal = GroupCommit::new(file).await.unwrap();
        let waiting: Vec<_> = (0..5)
            .map(|_| {
                let journal = journal.clone();
                spawn(async move { journal.commit().await })
            })
            .collect();
        for waiting in waiting {
            assert_eq!(waiting.await.unwrap().unwrap_err().raw_os_error(), Some(22));
        }
        assert_eq!((journal.syncs(), journal.failure()), (1, Some(22)));
    });
}
