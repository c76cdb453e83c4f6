//! Hard links, across directories and across copies.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use sakia_copy::{Copier, Existing, Options, Progress};

use crate::support::{Folder, assert_same, copy, copy_all, runtime, tree};

fn number(path: impl AsRef<Path>) -> u64 {
    fs::symlink_metadata(path).unwrap().ino()
}

/// Many workers find the names of a large file while it is copied.
#[test]
fn many_names_in_many_directories() {
    let folder = Folder::new();
    let from = folder.dir("from");
    let large = folder.file("from/large", vec![1; 3 << 20]);
    for number in 0..60 {
        let inner = folder.dir(&format!("from/{number}/inner"));
        fs::hard_link(&large, inner.join("name")).unwrap();
        fs::write(inner.join("own"), number.to_string()).unwrap();
        fs::hard_link(inner.join("own"), from.join(format!("{number}/own"))).unwrap();
    }
    let to = folder.path("to");
    let counts = copy_all(&from, &to, &Options::archive()).counts;
    assert_eq!((counts.files, counts.hard_links, counts.directories), (61, 120, 121));
    assert_same(&tree(&to), &tree(&from));
    // Hard links are not requested here.
    let counts = copy_all(&from, folder.path("apart"), &Options::new()).counts;
    assert_eq!((counts.files, counts.hard_links), (181, 0));
    assert_eq!(fs::metadata(folder.path("apart/large")).unwrap().nlink(), 1);
}

#[test]
fn names_in_several_sources_of_a_copier() {
    let folder = Folder::new();
    for name in ["one", "two"] {
        folder.dir(name);
    }
    let file = folder.file("one/a", "text");
    fs::hard_link(&file, folder.path("two/b")).unwrap();
    fs::hard_link(&file, folder.path("c")).unwrap();
    folder.dir("to");
    runtime().block_on(async {
        let copier = Copier::new(Options::archive());
        for name in ["one", "two", "c"] {
            let to = folder.path("to").join(name);
            let report = copier.copy(folder.path(name), to, &Arc::new(Progress::new())).await;
            assert!(report.unwrap().is_complete());
        }
    });
    let names = ["to/one/a", "to/two/b", "to/c"].map(|name| number(folder.path(name)));
    assert!(names.iter().all(|&name| name == names[0]), "{names:?}");
}

/// Other names do not become links to a kept file with other contents, in whatever order they are found.
#[test]
fn names_of_what_was_kept() {
    let folder = Folder::new();
    let names = ["a", "b", "c"];
    for (existing, kept) in [Existing::Keep, Existing::Update]
        .into_iter()
        .flat_map(|existing| names.map(|kept| (existing, kept)))
    {
        let from = folder.dir("from");
        fs::write(from.join("a"), "of the source").unwrap();
        for name in ["b", "c"] {
            fs::hard_link(from.join("a"), from.join(name)).unwrap();
        }
        let to = folder.dir("to");
        for name in names {
            fs::write(to.join(name), format!("there before: {name}")).unwrap();
        }
        let mut options = Options::archive();
        options.existing = existing;
        let report = copy_all(&from, &to, &options);
        assert_eq!((report.counts.skipped, report.counts.hard_links), (3, 0), "{existing:?}");
        for name in names {
            let is = fs::read_to_string(to.join(name)).unwrap();
            assert_eq!(is, format!("there before: {name}"), "{existing:?}");
        }
        // Missing names are names of the source's copy, not of the kept file.
        let missing: Vec<_> = names.into_iter().filter(|name| *name != kept).collect();
        for name in &missing {
            fs::remove_file(to.join(name)).unwrap();
        }
        copy_all(&from, &to, &options);
        let is = fs::read_to_string(to.join(kept)).unwrap();
        assert_eq!(is, format!("there before: {kept}"), "{existing:?}");
        for name in &missing {
            assert_eq!(fs::read_to_string(to.join(name)).unwrap(), "of the source", "{existing:?}");
        }
        assert_eq!(number(to.join(missing[0])), number(to.join(missing[1])));
        fs::remove_dir_all(from).unwrap();
        fs::remove_dir_all(to).unwrap();
    }
}

/// An earlier copy has created one of the names, which may be found in any order.
#[test]
fn names_of_an_earlier_copy() {
    let folder = Folder::in_memory();
    let (from, to) = (folder.dir("from"), folder.path("to"));
    let kinds = ["large", "small", "fifo"];
    let places = ["0", "1", "2", "."];
    folder.file("from/large", vec![1; 1 << 20]);
    folder.file("from/small", "small");
    mknodat(CWD, from.join("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    for place in &places[..3] {
        folder.dir(&format!("from/{place}"));
        for kind in kinds {
            fs::hard_link(from.join(kind), from.join(place).join(kind)).unwrap();
        }
    }
    for existing in [Existing::Keep, Existing::Update] {
        let mut options = Options::archive();
        options.existing = existing;
        for kept in places {
            copy_all(&from, &to, &Options::archive());
            let inodes = kinds.map(|kind| number(to.join(kept).join(kind)));
            for place in places.into_iter().filter(|place| *place != kept) {
                for kind in kinds {
                    fs::remove_file(to.join(place).join(kind)).unwrap();
                }
            }
            copy_all(&from, &to, &options);
            assert_same(&tree(&to), &tree(&from));
            if existing == Existing::Keep {
                assert_eq!(kinds.map(|kind| number(to.join(kept).join(kind))), inodes, "{kept}");
            }
            fs::remove_dir_all(&to).unwrap();
        }
    }
}

/// The first name cannot be created; the others can.
#[test]
fn the_first_name_fails() {
    let folder = Folder::new();
    let from = folder.dir("from");
    fs::write(from.join("a"), vec![7; 1 << 20]).unwrap();
    for number in 0..10 {
        folder.dir(&format!("from/{number}"));
        fs::hard_link(from.join("a"), from.join(format!("{number}/b"))).unwrap();
        if number != 7 {
            // A directory is in the way.
            folder.dir(&format!("to/{number}/b"));
        }
    }
    folder.dir("to/a");
    let report = copy(&from, folder.path("to"), &Options::archive());
    assert_eq!((report.counts.files, report.counts.failures), (1, 10), "{report:#?}");
    assert_eq!(fs::read(folder.path("to/7/b")).unwrap(), vec![7; 1 << 20]);
}

/// Each followed link is a name of the file, so the copies are one file as well.
#[test]
fn links_that_are_followed_are_names_of_one_copy() {
    let folder = Folder::new();
    folder.dir("from/inner");
    folder.file("from/a", "text");
    std::os::unix::fs::symlink("a", folder.path("from/b")).unwrap();
    std::os::unix::fs::symlink("../a", folder.path("from/inner/c")).unwrap();
    let mut options = Options::archive();
    options.follow = sakia_copy::Follow::Always;
    let counts = copy_all(folder.path("from"), folder.path("to"), &options).counts;
    assert_eq!((counts.files, counts.hard_links), (1, 2));
    assert_eq!(number(folder.path("to/a")), number(folder.path("to/b")));
    assert_eq!(number(folder.path("to/a")), number(folder.path("to/inner/c")));
}

/// Copies that were killed may have made two files of one.
#[test]
fn kept_copies_of_one_file_become_one() {
    let folder = Folder::new();
    let from = folder.dir("from");
    fs::write(from.join("a"), "of the source").unwrap();
    for name in ["b", "c", "d"] {
        fs::hard_link(from.join("a"), from.join(name)).unwrap();
    }
    for pair in [["a", "b"], ["a", "c"], ["b", "d"]] {
        for existing in [Existing::Keep, Existing::Update] {
            // A separate copy creates each name.
            let mut exact = Options::archive();
            exact.preserve.links = false;
            folder.dir("to");
            for name in pair {
                copy_all(from.join(name), folder.path("to").join(name), &exact);
            }
            let mut options = Options::archive();
            options.existing = existing;
            copy_all(&from, folder.path("to"), &options);
            assert_same(&tree(&folder.path("to")), &tree(&from));
            fs::remove_dir_all(folder.path("to")).unwrap();
        }
    }
}

/// A file is found alone and as a part of another tree, in both orders: each name of the copy is a name of
/// the same file.
#[test]
fn names_that_are_found_twice() {
    let folder = Folder::new();
    folder.dir("from/inner");
    folder.file("from/inner/a", "text");
    fs::hard_link(folder.path("from/inner/a"), folder.path("from/b")).unwrap();
    std::os::unix::fs::symlink("b", folder.path("from/c")).unwrap();
    fs::hard_link(folder.path("from/c"), folder.path("from/inner/d")).unwrap();
    let names = ["from/inner/a", "from/b", "from/inner", "from", "from/c", "from/inner/d"];
    for (round, first) in names.into_iter().enumerate() {
        for then in names.into_iter().chain([first]) {
            let copier = Copier::new(Options::archive());
            let progress = Arc::new(Progress::new());
            let to = folder.dir(&format!("to {round}"));
            runtime().block_on(async {
                for (number, from) in [first, then, "from", "from/inner"].into_iter().enumerate() {
                    let to = to.join(number.to_string());
                    let copied = copier.copy(folder.path(from), to, &progress).await;
                    assert!(copied.unwrap().is_complete(), "{from}");
                }
            });
            let copies = tree(&to);
            let is_kind = |mode: u32, kind: u32| mode & 0o170_000 == kind;
            for kind in [0o100_000, 0o120_000] {
                let of: Vec<_> = copies.iter().filter(|(_, is)| is_kind(is.mode, kind)).collect();
                let files: std::collections::HashSet<_> =
                    of.iter().map(|(path, _)| number(to.join(path))).collect();
                assert_eq!(files.len(), 1, "{first}, {then}: {:?}", copies.keys());
            }
            fs::remove_dir_all(to).unwrap();
        }
    }
}
