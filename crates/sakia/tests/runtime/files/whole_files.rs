//! Files read, written and copied as a whole.

use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;

use sakia::fs;
use sakia::{block_on, spawn};

use super::{Random, TempDir, run};

#[test]
fn files_of_all_sizes_are_read_whole() {
    let dir = TempDir::new();
    let path = dir.join("file");
    block_on(async {
        // Lengths around the first buffer's, and around the sizes expected after large and small files.
        for len in [0, 1, 8191, 8192, 8193, 8194, 3 << 20, 1 << 20, 5, 0, 100_000, 99_999, 8192] {
            let bytes = Random(1 + len as u64).bytes(len);
            fs::write(&path, bytes.clone()).await.unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), bytes);
            let read = fs::read(&path).await.unwrap();
            assert_eq!(read, bytes, "{len}");
            assert!(read.capacity() <= 2 * len.max(32 << 10), "{len}: {}", read.capacity());
        }
    });
}

#[test]
fn files_without_a_size_are_read_whole() {
    block_on(async {
        for path in ["/proc/self/maps", "/proc/self/status", "/proc/filesystems", "/dev/null"] {
            let (ours, theirs) = (fs::read(path).await.unwrap(), std::fs::read(path).unwrap());
            // Lines may have been added between the two reads, but each read is consistent.
            let lines = |bytes: &[u8]| bytes.iter().filter(|&&byte| byte == b'\n').count();
            assert!(lines(&ours) >= lines(&theirs) / 2, "{path}");
            assert!(ours.is_empty() || ours.ends_with(b"\n"), "{path}");
        }
        let text = fs::read_to_string("/proc/self/comm").await.unwrap();
        assert_eq!(text, std::fs::read_to_string("/proc/self/comm").unwrap());
    });
}

#[test]
fn a_file_that_shrinks_while_it_is_read_ends() {
    let dir = TempDir::new();
    let path = dir.join("file");
    std::fs::write(&path, vec![1; 4 << 20]).unwrap();
    block_on(async {
        let file = fs::File::open(&path).await.unwrap();
        assert_eq!(file.read_at(vec![0; 8], 0).await.0.unwrap(), 8); // the size is known now
        let shrink = std::fs::File::options().write(true).open(&path).unwrap();
        shrink.set_len(1000).unwrap();
        let (result, bytes) = file.read_to_end_at(Vec::new(), 0).await;
        assert_eq!((result.unwrap(), bytes), (1000, vec![1; 1000]));
        let (result, buf) = file.read_exact_at(vec![9; 2000], 0).await;
        assert_eq!(result.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert!(buf[..1000] == [1; 1000] && buf[1000..] == [9; 1000]);
        shrink.set_len(3 << 20).unwrap(); // and grows
        assert_eq!(file.read_to_end_at(Vec::new(), 0).await.0.unwrap(), 3 << 20);
    });
}

#[test]
fn many_files_at_once() {
    let dir = TempDir::new();
    block_on(async {
        let tasks: Vec<_> = (0..100)
            .map(|number: usize| {
                let path = dir.join(number.to_string());
                spawn(async move {
                    let bytes = Random(1 + number as u64).bytes(number * 300);
                    fs::write_durable(&path, bytes.clone()).await?;
                    assert_eq!(fs::read(&path).await?, bytes);
                    fs::remove_file(&path).await
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap().unwrap();
        }
    });
    assert!(dir.names().is_empty());
}

#[test]
fn text_that_is_none_is_told() {
    let dir = TempDir::new();
    let path = dir.join("file");
    std::fs::write(&path, b"abc\xff").unwrap();
    let error = block_on(fs::read_to_string(&path)).unwrap_err();
    assert_eq!((error.kind(), error.path()), (ErrorKind::InvalidData, Some(&*path)));
    assert!(error.to_string().contains("utf-8"), "{error}");
}

#[test]
fn copies_have_contents_and_permissions() {
    let dir = TempDir::new();
    let (from, to) = (dir.join("from"), dir.join("to"));
    let bytes = Random(9).bytes(1_000_001);
    std::fs::write(&from, &bytes).unwrap();
    std::fs::set_permissions(&from, std::fs::Permissions::from_mode(0o750)).unwrap();
    run(async || {
        assert_eq!(fs::copy(&from, &to).await.unwrap(), 1_000_001);
        assert_eq!(std::fs::read(&to).unwrap(), bytes);
        assert_eq!(fs::metadata(&to).await.unwrap().permissions().mode(), 0o750);
        // Copies over a longer file.
        std::fs::write(&from, "short").unwrap();
        assert_eq!(fs::copy(&from, &to).await.unwrap(), 5);
        assert_eq!(std::fs::read(&to).unwrap(), b"short");
        // Files that the kernel's own copy operations do not support.
        let status = dir.join("status");
        let count = fs::copy("/proc/self/status", &status).await.unwrap();
        assert!(count > 100 && count == std::fs::metadata(&status).unwrap().len());
        assert_eq!(fs::copy(&from, "/dev/null").await.unwrap(), 5);
        if std::path::Path::new("/dev/shm").is_dir() {
            let other = TempDir::within("/dev/shm".as_ref()); // another file system
            std::fs::write(&from, &bytes).unwrap();
            assert_eq!(fs::copy(&from, other.join("to")).await.unwrap(), 1_000_001);
            assert_eq!(std::fs::read(other.join("to")).unwrap(), bytes);
        }
    });
}

#[test]
fn a_file_is_not_copied_onto_itself() {
    let dir = TempDir::new();
    let (file, other) = (dir.join("file"), dir.join("other name"));
    std::fs::write(&file, "precious").unwrap();
    std::fs::hard_link(&file, &other).unwrap();
    run(async || {
        for to in [&file, &other] {
            let error = fs::copy(&file, to).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
        }
        let error = fs::copy(&dir.0, dir.join("copy")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::IsADirectory);
        assert!(!dir.join("copy").exists());
    });
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
}
