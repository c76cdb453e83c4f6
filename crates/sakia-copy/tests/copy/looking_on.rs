//! Observers: counts, names, and panics.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use sakia_copy::{Options, Progress, copy_tree};

use crate::support::{Folder, runtime};

fn make(folder: &Folder) {
    for number in 0..30 {
        folder.dir(&format!("from/{number}"));
        for file in 0..10 {
            folder.file(&format!("from/{number}/{file}"), "contents");
        }
    }
}

#[test]
fn a_panic_of_who_looks_on_ends_the_copy() {
    let folder = Folder::in_memory();
    make(&folder);
    for name in ["3", "17", "29"] {
        let last = format!("from/{name}/5");
        let progress = Progress::new().on_entry(move |from, _| {
            assert!(!from.ends_with(&last), "as asked for");
        });
        let progress = Arc::new(progress);
        let copy = || {
            let (from, to) = (folder.path("from"), folder.path(&format!("to-{name}")));
            runtime().block_on(async {
                copy_tree(from, to, &Options::new(), &progress).await.unwrap();
            });
        };
        let panic = catch_unwind(AssertUnwindSafe(copy)).unwrap_err();
        let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
        assert!(text.contains("as asked for") || panic.is::<&str>(), "{text}");
    }
}

#[test]
fn each_entry_is_told_once_and_counted() {
    let folder = Folder::in_memory();
    make(&folder);
    let told = Arc::new(Mutex::new(Vec::<(PathBuf, PathBuf)>::new()));
    let list = Arc::clone(&told);
    let progress = Progress::new().on_entry(move |from, to| {
        list.lock().unwrap().push((from.to_owned(), to.to_owned()));
    });
    let (from, to) = (folder.path("from"), folder.path("to"));
    let progress = Arc::new(progress);
    let options = Options::new();
    let report = runtime().block_on(copy_tree(&from, &to, &options, &progress)).unwrap();
    assert_eq!((report.counts.directories, report.counts.files), (31, 300));
    assert_eq!(report.counts.bytes, 300 * 8);
    assert_eq!(progress.counts(), report.counts);
    let mut told = told.lock().unwrap().clone();
    assert!(
        told.iter().all(|(a, b)| a.strip_prefix(&from).unwrap() == b.strip_prefix(&to).unwrap())
    );
    told.sort();
    told.dedup();
    assert_eq!(told.len() as u64, report.counts.entries());
}
