//! Directories: created, read, removed; lookups that stay below a directory.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::task::Poll;

use rustix::fs::{CWD, FileType, Mode};
use sakia::fs::{self, Dir, OpenOptions, Resolve};
use sakia::io::IoBuf;

use super::{TempDir, run};

/// Makes an entry of each kind that any user may make.
fn make_kinds(dir: &TempDir) {
    std::fs::write(dir.join("file"), "text").unwrap();
    std::fs::create_dir(dir.join("folder")).unwrap();
    symlink("nowhere", dir.join("link")).unwrap();
    rustix::fs::mknodat(CWD, dir.join("fifo"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    drop(UnixListener::bind(dir.join("socket")).unwrap());
    std::fs::write(dir.join("\u{1f9ed} with spaces"), "").unwrap();
}

#[test]
fn entries_are_those_that_std_finds() {
    let dir = TempDir::new();
    make_kinds(&dir);
    std::fs::write(dir.join("x".repeat(255)), "").unwrap();
    let found = run(async || {
        let mut found = BTreeMap::new();
        let mut entries = fs::read_dir(&dir.0).await.unwrap();
        while let Some(entry) = entries.next_entry().await.unwrap() {
            let kind = entry.file_type().await.unwrap();
            let metadata = entry.metadata().await.unwrap();
            assert_eq!(metadata.file_type(), kind);
            assert_eq!(metadata.ino(), entry.ino());
            assert_eq!(entry.path(), dir.join(entry.file_name()));
            found.insert(entry.file_name().to_owned(), (entry.ino(), format!("{kind:?}")));
        }
        assert!(entries.next_entry().await.unwrap().is_none());
        found
    });
    let mut expected = BTreeMap::new();
    for entry in std::fs::read_dir(&dir.0).unwrap() {
        use std::os::unix::fs::{DirEntryExt, FileTypeExt};
        let entry = entry.unwrap();
        let kind = entry.file_type().unwrap();
        let name = match () {
            () if kind.is_dir() => "directory",
            () if kind.is_symlink() => "symlink",
            () if kind.is_fifo() => "fifo",
            () if kind.is_socket() => "socket",
            () => "file",
        };
        expected.insert(entry.file_name(), (entry.ino(), name.to_owned()));
    }
    assert_eq!(found, expected);
}

#[test]
fn many_entries_are_each_seen_once_though_futures_are_dropped() {
    const COUNT: usize = 5000;
    let dir = TempDir::new();
    for number in 0..COUNT {
        std::fs::write(dir.join(format!("{number:0>40}")), "").unwrap();
    }
    let mut seen = run(async || {
        let mut seen = Vec::new();
        let mut entries = fs::read_dir(&dir.0).await.unwrap();
        loop {
            // Polls for an entry once, and drops the future if the entry is not there yet.
            let mut next = Box::pin(entries.next_entry());
            let at_once = poll_fn(|cx| {
                Poll::Ready(match next.as_mut().poll(cx) {
                    Poll::Ready(entry) => Some(entry),
                    Poll::Pending => None,
                })
            })
            .await;
            drop(next);
            match at_once {
                Some(entry) => match entry.unwrap() {
                    Some(entry) => seen.push(entry.into_file_name()),
                    None => return seen,
                },
                None => sakia::yield_now().await,
            }
        }
    });
    seen.sort();
    assert_eq!(seen.len(), COUNT);
    assert!(seen.iter().enumerate().all(|(at, name)| *name == *format!("{at:0>40}")));
}

#[test]
fn a_directory_removed_while_it_is_read_ends() {
    let dir = TempDir::new();
    let path = dir.join("gone");
    std::fs::create_dir(&path).unwrap();
    run(async || {
        let mut entries = fs::read_dir(&path).await.unwrap();
        std::fs::remove_dir(&path).unwrap();
        assert!(entries.next_entry().await.unwrap().is_none());
    });
}

#[test]
fn a_lent_directory_is_used_and_stays_open() {
    let dir = TempDir::new();
    std::fs::create_dir(dir.join("below")).unwrap();
    std::fs::write(dir.join("file"), "contents").unwrap();
    // On a real kernel, since the simulated one does not have the process's descriptors.
    sakia::block_on(async {
        let owner = std::sync::Arc::new(std::fs::File::open(&dir.0).unwrap());
        let lent = Dir::lend(std::sync::Arc::clone(&owner), &dir.0);
        let file = lent.open_file("file").await.unwrap();
        assert_eq!(file.len().await.unwrap(), 8);
        // `O_DIRECTORY` is one of the bits of `O_TMPFILE`, and creates nothing.
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_DIRECTORY);
        let below = lent.open_with("below", &options).await.unwrap();
        assert!(below.metadata().await.unwrap().is_dir());
        let error = lent.open_with("file", &options).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotADirectory);
        drop(lent);
        sakia::yield_now().await;
        assert!(owner.metadata().unwrap().is_dir());
    });
}

#[test]
fn directories_are_made_and_removed() {
    let dir = TempDir::new();
    let deep = dir.join("a/b/../c/d");
    run(async || {
        let error = fs::create_dir(dir.join("x/y")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        std::fs::create_dir_all(dir.join("a/b")).unwrap();
        fs::create_dir_all(&deep).await.unwrap();
        fs::create_dir_all(&deep).await.unwrap();
        assert!(dir.join("a/c/d").is_dir());
        std::fs::write(dir.join("file"), "").unwrap();
        for path in ["file", "file/below"] {
            let (ours, theirs) = (
                fs::create_dir_all(dir.join(path)).await.unwrap_err(),
                std::fs::create_dir_all(dir.join(path)).unwrap_err(),
            );
            assert_eq!(ours.raw_os_error(), theirs.raw_os_error(), "{path}");
        }
        let error = fs::remove_dir(dir.join("a")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DirectoryNotEmpty);
        fs::remove_dir(dir.join("a/c/d")).await.unwrap();
        let error = fs::remove_file(dir.join("a")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::IsADirectory);
        fs::remove_file(dir.join("file")).await.unwrap();
        assert!(!fs::exists(dir.join("file")).await.unwrap());
        assert!(fs::try_exists(dir.join("a")).await.unwrap());
        symlink("loop", dir.join("loop")).unwrap();
        assert_eq!(fs::exists(dir.join("loop")).await.unwrap_err().raw_os_error(), Some(40));
    });
}

#[test]
fn links_and_names() {
    let dir = TempDir::new();
    let (file, hard, soft) = (dir.join("file"), dir.join("hard"), dir.join("soft"));
    std::fs::write(&file, "text").unwrap();
    run(async || {
        fs::hard_link(&file, &hard).await.unwrap();
        assert_eq!(fs::metadata(&hard).await.unwrap().nlink(), 2);
        fs::symlink("file", &soft).await.unwrap();
        assert_eq!(fs::read_link(&soft).await.unwrap(), Path::new("file"));
        let long = "x/".repeat(500);
        fs::symlink(&long, dir.join("long")).await.unwrap();
        assert_eq!(fs::read_link(dir.join("long")).await.unwrap(), Path::new(&long));
        assert_eq!(fs::read_link(&file).await.unwrap_err().raw_os_error(), Some(22));
        fs::rename(&file, dir.join("moved")).await.unwrap();
        assert!(fs::symlink_metadata(&soft).await.unwrap().is_symlink());
        assert_eq!(fs::metadata(&soft).await.unwrap_err().kind(), ErrorKind::NotFound);
        let error = fs::rename(&file, dir.join("other")).await.unwrap_err();
        assert_eq!((error.path(), error.to_path()), (Some(&*file), Some(&*dir.join("other"))));
        fs::chown(&hard, None, None).await.unwrap();
    });
}

#[test]
fn canonical_paths_are_those_of_std() {
    let dir = TempDir::new();
    std::fs::create_dir_all(dir.join("a/b")).unwrap();
    std::fs::write(dir.join("a/file (deleted)"), "").unwrap();
    symlink("a/b", dir.join("link")).unwrap();
    symlink("loop", dir.join("loop")).unwrap();
    run(async || {
        let paths = ["link/..", "a/./b/../file (deleted)", "missing", "loop", "link/x", "."];
        for path in paths.map(|path| dir.join(path)).into_iter().chain([PathBuf::from("/proc")]) {
            let (ours, theirs) = (fs::canonicalize(&path).await, std::fs::canonicalize(&path));
            match (ours, theirs) {
                (Ok(ours), Ok(theirs)) => assert_eq!(ours, theirs),
                (ours, theirs) => assert_eq!(
                    ours.unwrap_err().raw_os_error(),
                    theirs.unwrap_err().raw_os_error(),
                    "{path:?}"
                ),
            }
        }
    });
}

#[test]
fn trees_are_removed_whatever_is_in_them() {
    let dir = TempDir::new();
    let tree = dir.join("tree");
    let outside = dir.join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("kept"), "").unwrap();
    // A wide tree with directories between the files, far deeper than the number of directories kept open.
    for number in 0..200 {
        let folder = tree.join(format!("folder {number}"));
        std::fs::create_dir_all(&folder).unwrap();
        if number % 3 > 0 {
            std::fs::write(folder.join("inner"), "").unwrap();
        }
        std::fs::write(tree.join(format!("file {number}")), "").unwrap();
    }
    let kinds = TempDir::within(&tree);
    make_kinds(&kinds);
    symlink(&outside, tree.join("link")).unwrap();
    symlink(&outside, kinds.join("folder/link")).unwrap();
    let mut deep = tree.clone();
    for level in 0..70 {
        deep.push("deeper");
        std::fs::create_dir(&deep).unwrap();
        for name in ["side", "way"] {
            std::fs::create_dir(deep.join(name)).unwrap();
            std::fs::write(deep.join(name).join(level.to_string()), "").unwrap();
        }
    }
    run(async || {
        let error = fs::remove_dir_all(outside.join("kept")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotADirectory);
        let error = fs::remove_dir_all(dir.join("missing")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        fs::remove_dir_all(&tree).await.unwrap();
        symlink(&outside, dir.join("link")).unwrap();
        fs::remove_dir_all(dir.join("link")).await.unwrap();
    });
    assert_eq!(dir.names(), ["outside"]);
    assert!(outside.join("kept").exists());
}

#[test]
fn lookups_stay_within_their_directory() {
    let dir = TempDir::new();
    std::fs::create_dir_all(dir.join("root/sub")).unwrap();
    std::fs::write(dir.join("root/sub/file"), "inside").unwrap();
    std::fs::write(dir.join("secret"), "outside").unwrap();
    symlink("../secret", dir.join("root/out")).unwrap();
    symlink("/", dir.join("root/slash")).unwrap();
    symlink("sub/file", dir.join("root/in")).unwrap();
    run(async || {
        let root = Dir::open(dir.join("root")).await.unwrap();
        let secret = dir.join("secret");
        let outside = ["../secret", "out", "slash/etc/passwd", "/etc/passwd", "sub/../../secret"];
        for path in outside.into_iter().map(Path::new).chain([&*secret]) {
            let error = root.open_file(path).await.unwrap_err();
            assert_eq!(error.raw_os_error(), Some(18), "{error}");
            assert_eq!(root.metadata(path).await.unwrap_err().raw_os_error(), Some(18));
            assert!(root.create(path).await.is_err());
        }
        for path in ["../new", "slash/new", "/new", "sub/../../new"] {
            let errors = [
                root.create_dir(path).await.unwrap_err(),
                root.remove_file(path).await.unwrap_err(),
                root.remove_dir(path).await.unwrap_err(),
                root.symlink("x", path).await.unwrap_err(),
                root.read_link(path).await.unwrap_err(),
                root.rename("in", &root, path).await.unwrap_err(),
                root.rename(path, &root, "in").await.unwrap_err(),
                root.open_dir(path).await.unwrap_err(),
            ];
            assert!(errors.iter().all(|error| error.raw_os_error() == Some(18)), "{errors:?}");
        }
        assert_eq!(root.create_dir("sub/..").await.unwrap_err().raw_os_error(), Some(22));
        for path in ["in", "sub/file", "sub/../in"] {
            let file = root.open_file(path).await.unwrap();
            assert_eq!(file.read_to_end_at(Vec::new(), 0).await.1, b"inside");
        }
        // As the root, it holds all paths.
        let options = OpenOptions::new().read(true).resolve(Resolve::IN_ROOT).clone();
        let error = root.open_with("../../slash/secret", &options).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        root.open_with("/sub/file", &options).await.unwrap();
        let options = OpenOptions::new().read(true).resolve(Resolve::NO_SYMLINKS).clone();
        let error = root.open_with("in", &options).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(40));
        let error = options.open(dir.join("root/in")).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(40));
    });
    assert_eq!(std::fs::read(dir.join("secret")).unwrap(), b"outside");
}

#[test]
fn a_directory_serves_what_is_beneath_it_wherever_it_moves() {
    let dir = TempDir::new();
    std::fs::create_dir(dir.join("before")).unwrap();
    run(async || {
        let root = Dir::open(dir.join("before")).await.unwrap();
        fs::rename(dir.join("before"), dir.join("after")).await.unwrap();
        root.create_dir("sub").await.unwrap();
        let file = root.create("sub/file").await.unwrap();
        file.write_all_at(b"text".to_vec().slice(..), 0).await.0.unwrap();
        let sub = root.open_dir("sub").await.unwrap();
        root.rename("sub/file", &sub, "moved").await.unwrap();
        root.symlink("sub/moved", "link").await.unwrap();
        assert_eq!(root.read_link("link").await.unwrap(), Path::new("sub/moved"));
        assert_eq!(root.metadata("link").await.unwrap().len(), 4);
        assert!(root.symlink_metadata("link").await.unwrap().is_symlink());
        assert!(root.metadata(".").await.unwrap().is_dir());
        sub.sync().await.unwrap();
        for _ in 0..2 {
            let mut entries = sub.read_dir().await.unwrap();
            let entry = entries.next_entry().await.unwrap().unwrap();
            assert_eq!(entry.file_name(), "moved");
            assert!(entries.next_entry().await.unwrap().is_none());
        }
        let error = root.remove_dir("sub").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DirectoryNotEmpty);
        root.remove_file("sub/moved").await.unwrap();
        root.remove_dir("sub").await.unwrap();
        root.remove_file("link").await.unwrap();
        root.close().await.unwrap();
    });
    assert_eq!(dir.names(), ["after"]);
    std::fs::remove_dir(dir.join("after")).unwrap();
}
