//! Operations by path: each name, and the errors.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use sakia_tokio::fs;

use crate::support::{Folder, bytes, errno, on_each_flavor};

on_each_flavor! {
    whole_files_are_written_and_read
    text_that_is_none_is_told
    a_file_is_copied_with_its_mode
    a_file_is_renamed_over_another
    names_are_linked_and_removed
    links_lead_somewhere_or_nowhere
    paths_are_made_straight
    permissions_are_set
    errors_keep_their_errno
    a_write_that_was_polled_is_done
}

async fn whole_files_are_written_and_read() {
    let folder = Folder::new();
    let path = folder.path("x");
    fs::write(&path, b"the first").await.unwrap();
    fs::write(&path, String::from("the other")).await.unwrap();
    assert_eq!(fs::read_to_string(&path).await.unwrap(), "the other");
    for count in [0, 1, 31, 32, 33, 4096, 1 << 20] {
        fs::write(&path, bytes(count)).await.unwrap();
        assert!(fs::read(&path).await.unwrap() == bytes(count));
        assert_eq!(fs::metadata(&path).await.unwrap().len(), count as u64);
    }
    // These files do not report their length.
    let version = fs::read_to_string("/proc/version").await.unwrap();
    assert_eq!(version, std::fs::read_to_string("/proc/version").unwrap());
}

async fn text_that_is_none_is_told() {
    let folder = Folder::new();
    let path = folder.file("x", [b'a', 0xff]);
    let error = fs::read_to_string(&path).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
}

async fn a_file_is_copied_with_its_mode() {
    let folder = Folder::new();
    let (from, to) = (folder.file("from", bytes(100_000)), folder.path("to"));
    std::fs::set_permissions(&from, Permissions::from_mode(0o640)).unwrap();
    assert_eq!(fs::copy(&from, &to).await.unwrap(), 100_000);
    assert!(std::fs::read(&to).unwrap() == bytes(100_000));
    assert_eq!(std::fs::metadata(&to).unwrap().mode() & 0o777, 0o640);
}

async fn a_file_is_renamed_over_another() {
    let folder = Folder::new();
    let (from, to) = (folder.file("from", "new"), folder.file("to", "old"));
    fs::rename(&from, &to).await.unwrap();
    assert!(!fs::try_exists(&from).await.unwrap());
    assert_eq!(fs::read(&to).await.unwrap(), b"new");
}

async fn names_are_linked_and_removed() {
    let folder = Folder::new();
    let (one, other) = (folder.file("one", "text"), folder.path("other"));
    fs::hard_link(&one, &other).await.unwrap();
    assert_eq!(fs::metadata(&one).await.unwrap().nlink(), 2);
    fs::remove_file(&one).await.unwrap();
    assert_eq!(fs::read(&other).await.unwrap(), b"text");
    assert_eq!(errno(fs::remove_file(&one).await), Some(libc::ENOENT));
}

async fn links_lead_somewhere_or_nowhere() {
    let folder = Folder::new();
    let (file, link) = (folder.file("file", "text"), folder.path("link"));
    fs::symlink("file", &link).await.unwrap();
    assert_eq!(fs::read_link(&link).await.unwrap(), std::path::Path::new("file"));
    assert!(fs::symlink_metadata(&link).await.unwrap().is_symlink());
    assert!(fs::metadata(&link).await.unwrap().is_file());
    assert!(fs::try_exists(&link).await.unwrap());
    fs::remove_file(&file).await.unwrap();
    assert!(!fs::try_exists(&link).await.unwrap());
    assert!(fs::symlink_metadata(&link).await.is_ok());
    assert_eq!(errno(fs::read_link(folder.path(".")).await), Some(libc::EINVAL));
}

async fn paths_are_made_straight() {
    let folder = Folder::new();
    let file = folder.file("file", "text");
    std::os::unix::fs::symlink("file", folder.path("link")).unwrap();
    let crooked = folder.path("./link");
    assert_eq!(fs::canonicalize(&crooked).await.unwrap(), file.canonicalize().unwrap());
}

async fn permissions_are_set() {
    let folder = Folder::new();
    let path = folder.file("x", "");
    let mut permissions = fs::metadata(&path).await.unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(&path, permissions).await.unwrap();
    assert!(std::fs::metadata(&path).unwrap().permissions().readonly());
    fs::set_permissions(&path, Permissions::from_mode(0o700)).await.unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
}

async fn errors_keep_their_errno() {
    let folder = Folder::new();
    let (missing, file) = (folder.path("missing/below"), folder.file("file", "text"));
    let directory = folder.path(".");
    let below = file.join("below");
    let absent = Some(libc::ENOENT);
    assert_eq!(errno(fs::read(&missing).await), absent);
    assert_eq!(errno(fs::read_to_string(&missing).await), absent);
    assert_eq!(errno(fs::write(&missing, "x").await), absent);
    assert_eq!(errno(fs::metadata(&missing).await), absent);
    assert_eq!(errno(fs::symlink_metadata(&missing).await), absent);
    assert_eq!(errno(fs::canonicalize(&missing).await), absent);
    assert_eq!(errno(fs::copy(&missing, &file).await), absent);
    assert_eq!(errno(fs::create_dir(&missing).await), absent);
    assert_eq!(errno(fs::hard_link(&missing, &below).await), absent);
    assert_eq!(errno(fs::read_dir(&missing).await), absent);
    assert_eq!(errno(fs::remove_dir(&missing).await), absent);
    assert_eq!(errno(fs::remove_dir_all(&missing).await), absent);
    assert_eq!(errno(fs::rename(&missing, &file).await), absent);
    assert_eq!(errno(fs::symlink("x", &missing).await), absent);
    let nobody = Permissions::from_mode(0o000);
    assert_eq!(errno(fs::set_permissions(&missing, nobody).await), absent);

    let not_a_directory = Some(libc::ENOTDIR);
    assert_eq!(errno(fs::read(&below).await), not_a_directory);
    assert_eq!(errno(fs::metadata(&below).await), not_a_directory);
    assert_eq!(errno(fs::read_dir(&file).await), not_a_directory);
    assert_eq!(errno(fs::remove_dir(&file).await), not_a_directory);
    assert_eq!(errno(fs::try_exists(&below).await), not_a_directory);
    assert_eq!(errno(fs::read(&directory).await), Some(libc::EISDIR));
    assert_eq!(errno(fs::write(&directory, "x").await), Some(libc::EISDIR));
    assert_eq!(errno(fs::create_dir(&file).await), Some(libc::EEXIST));
    assert_eq!(errno(fs::symlink("x", &file).await), Some(libc::EEXIST));
    assert_eq!(errno(fs::remove_dir(&directory).await), Some(libc::EINVAL));
    assert_eq!(errno(fs::read("x".repeat(300)).await), Some(libc::ENAMETOOLONG));
    let zero = fs::read("a\0b").await.unwrap_err();
    assert_eq!(zero.kind(), std::io::ErrorKind::InvalidInput);
    assert_eq!(std::fs::read(&file).unwrap(), b"text");
}

async fn a_write_that_was_polled_is_done() {
    let folder = Folder::new();
    for round in 0..20 {
        let path = folder.path(&round.to_string());
        let contents = bytes(100_000);
        let mut write = Box::pin(fs::write(&path, &contents));
        let _ = crate::support::poll_once(write.as_mut());
        drop(write);
        while !path.exists() {
            std::thread::yield_now();
        }
        crate::support::await_contents(&path, &contents);
    }
}
