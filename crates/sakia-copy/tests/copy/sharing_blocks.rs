//! Copies whose blocks must be shared with their sources.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use sakia_copy::{Existing, Options, Reflink};
use sakia_testkit::available;
use sakia_testkit::small_fs::SmallFs;

use crate::support::{Folder, assert_same, bytes, copy, copy_all, failure, tree};

fn sharing(mut options: Options) -> Options {
    options.reflink = Reflink::Always;
    options
}

/// A file system in memory shares none.
#[test]
fn what_exists_stays_as_it_was_if_blocks_cannot_be_shared() {
    let updating = || {
        let mut options = sharing(Options::archive());
        options.existing = Existing::Update;
        options
    };
    for (size, mode, options) in [
        (10, 0o644, sharing(Options::new())),
        (900_000, 0o4755, sharing(Options::new())),
        (10, 0o644, sharing(Options::archive())),
        (900_000, 0o400, sharing(Options::archive())),
        // The remains of a killed copy.
        (10, 0o1200, sharing(Options::new())),
        (10, 0o1200, updating()),
    ] {
        for has_names in [false, true] {
            let small = available!(SmallFs::tmpfs(8 << 20));
            let folder = Folder::below(small.path());
            folder.dir("from");
            folder.file("from/file", bytes(size, 1));
            folder.dir("to");
            let there = folder.file("to/file", bytes(20_000, 2));
            if has_names {
                fs::hard_link(&there, folder.path("to/other")).unwrap();
            }
            fs::set_permissions(&there, fs::Permissions::from_mode(mode)).unwrap();
            let before = tree(&folder.path("to"));
            for (from, to) in [("from", "to"), ("from/file", "to/file")] {
                let report = copy(folder.path(from), folder.path(to), &options);
                assert!(failure(&report).contains("share blocks with"), "{report:#?}");
                let is = tree(&folder.path("to"));
                let file = std::path::Path::new("file");
                assert_same(
                    &is.into_iter().filter(|(path, _)| path.ends_with(file)).collect(),
                    &before.clone().into_iter().filter(|(path, _)| path.ends_with(file)).collect(),
                );
            }
            // A file that did not exist is not left.
            let report = copy(folder.path("from/file"), folder.path("to/new"), &options);
            assert!(failure(&report).contains("share blocks with"), "{report:#?}");
            assert!(!folder.path("to/new").exists());
        }
    }
}

#[test]
fn what_exists_is_no_longer_than_its_source() {
    for made in [SmallFs::btrfs(), SmallFs::xfs()] {
        let small = available!(made);
        let folder = Folder::below(small.path());
        folder.dir("from");
        folder.dir("to");
        for (name, size, was) in [("a", 0, 9000), ("b", 10_000, 300_000), ("c", 300_000, 10)] {
            folder.file(&format!("from/{name}"), bytes(size, 1));
            folder.file(&format!("to/{name}"), bytes(was, 2));
        }
        fs::hard_link(folder.path("to/b"), folder.path("other")).unwrap();
        for options in [Options::new(), Options::archive()] {
            copy_all(folder.path("from"), folder.path("to"), &sharing(options));
            for name in ["a", "b", "c"] {
                let read = |root: &str| fs::read(folder.path(root).join(name)).unwrap();
                assert!(read("to") == read("from"), "{name}");
            }
        }
    }
}
