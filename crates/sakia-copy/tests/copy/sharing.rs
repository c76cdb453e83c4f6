//! Directories whose entries are copied by several workers.

use std::fs;
use std::path::Path;

use sakia_copy::{Options, Report};

use crate::support::{Folder, assert_same, bytes, copy_all, tree};

/// Copies until a part of the directory was given away, and checks each copy.
fn copy_until_shared(folder: &Folder, from: &Path, options: &Options) -> Report {
    let mut report = Report::default();
    // The other worker may start after the end of the work.
    for turn in 0..200 {
        let to = folder.path(&format!("to-{turn}"));
        report = copy_all(from, &to, options);
        assert_same(&tree(&to), &tree(from));
        fs::remove_dir_all(&to).unwrap();
        if report.counters.parts > 0 {
            return report;
        }
    }
    panic!("one worker did it all: {report:#?}");
}

#[test]
fn large_files_of_one_directory_are_shared_out() {
    let folder = Folder::in_memory();
    let from = folder.dir("from");
    for number in 0..100 {
        fs::write(from.join(format!("file-{number}")), bytes(256 << 10, number)).unwrap();
    }
    // Another name of a file waits for the file, whichever worker copies it.
    for number in 0..20 {
        fs::hard_link(from.join(format!("file-{number}")), from.join(format!("same-{number}")))
            .unwrap();
    }
    let report = copy_until_shared(&folder, &from, &Options::archive());
    assert_eq!((report.counts.files, report.counts.hard_links), (100, 20));
}

#[test]
fn small_files_stay_with_the_worker_of_their_directory() {
    let folder = Folder::in_memory();
    let (from, to) = (folder.dir("from"), folder.path("to"));
    for number in 0..3000 {
        fs::write(from.join(format!("file-{number}")), "small").unwrap();
    }
    let report = copy_all(&from, &to, &Options::new());
    assert_eq!((report.counts.files, report.counters.parts), (3000, 0));
}
