//! Operations by path that change whole files. The [reference](crate::reference) has all of them, and the errors.

use sakia_tokio::fs;

use crate::support::{Folder, bytes, on_each_flavor};

on_each_flavor! {
    whole_files_are_written_and_read
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
