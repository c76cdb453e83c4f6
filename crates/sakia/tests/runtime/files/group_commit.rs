//! One sync for many writers. Rounds and their failures are compared with a model in `group_commit_model`.

use std::cell::Cell;
use std::future::Future;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use sakia::fs::{File, GroupCommit, OpenOptions};
use sakia::{block_on, spawn};

use super::TempDir;

/// Asserts that the file has four whole records of 100 bytes of each of 50 writers.
fn assert_four_records_of_each(path: &Path) {
    let contents = std::fs::read(path).unwrap();
    let mut counts = [0; 50];
    for record in contents.chunks(100) {
        assert!(record.iter().all(|&byte| byte == record[0]));
        counts[usize::from(record[0])] += 1;
    }
    assert_eq!(counts, [4; 50]);
}

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
    assert_four_records_of_each(&path);
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
fn records_that_come_together_share_a_write_and_a_sync() {
    let dir = TempDir::new();
    let path = dir.join("journal");
    block_on(async {
        let journal = GroupCommit::new(File::create_new(&path).await.unwrap()).await.unwrap();
        let writers: Vec<_> = (0..50_u8)
            .map(|number| {
                let journal = journal.clone();
                spawn(async move {
                    for round in 0..4 {
                        let (result, back) = journal.append_durable(vec![number; 100]).await;
                        assert_eq!(back, [number; 100]);
                        // The writers append together again, so that each record is in the round of its own
                        // number.
                        assert_eq!(result.unwrap() / 5000, round);
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.await.unwrap();
        }
        assert_eq!((journal.syncs(), journal.end(), journal.failure()), (4, 20_000, None));
    });
    assert_four_records_of_each(&path);
}

#[test]
fn a_record_that_was_accepted_is_written_though_its_writer_is_gone() {
    let dir = TempDir::new();
    let path = dir.join("journal");
    block_on(async {
        let journal = GroupCommit::new(File::create(&path).await.unwrap()).await.unwrap();
        let begun = Rc::new(Cell::new(0));
        let writers: Vec<_> = (0..30)
            .map(|number| {
                let (journal, begun) = (journal.clone(), Rc::clone(&begun));
                spawn(async move {
                    begun.set(begun.get() + 1);
                    journal.append_durable(format!("{number:02} ")).await.0
                })
            })
            .collect();
        // A round of tasks may end before it has polled all.
        while begun.get() < 30 {
            sakia::yield_now().await;
        }
        for writer in &writers {
            writer.abort();
        }
        // The append is dropped before its first poll: it writes no bytes and leaves no gap.
        drop(journal.append_durable("never"));
        assert_eq!(journal.append_durable("last").await.0.unwrap(), 90);
    });
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text, (0..30).map(|number| format!("{number:02} ")).collect::<String>() + "last");
}

#[test]
fn a_waker_that_panics_holds_up_no_other() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("on purpose");
        }
    }
    let dir = TempDir::new();
    block_on(async {
        let file = File::create(dir.join("journal")).await.unwrap();
        let journal = GroupCommit::new(file).await.unwrap();
        for number in 0..5 {
            let mut first = Box::pin(journal.append_durable("a"));
            let waker = Waker::from(Arc::new(Panics));
            assert!(first.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            assert_eq!(journal.append_durable("b").await.0.unwrap(), 2 * number + 1);
        }
        assert_eq!(journal.failure(), None);
    });
}
