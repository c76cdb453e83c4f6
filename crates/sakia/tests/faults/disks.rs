//! Disks that become full during a write, or that lose data to be read.

use std::fs::File as StdFile;
use std::path::Path;

use rustix::fs::{Advice, fadvise};
use sakia::fs::{self, File, GroupCommit};
use sakia::io::{Level, Reader, Writer, copy};
use sakia::yield_now;
use sakia_driver::Policy;
use sakia_testkit::small_fs::SmallFs;

use crate::load;
use crate::support::{Random, available, names, on_each_backend, runtime};

on_each_backend! {
    a_full_disk
    a_full_memory_file_system
    a_disk_that_lost_its_end
}

const MIB: usize = 1 << 20;
const ENOSPC: Option<i32> = Some(libc::ENOSPC);
const EIO: Option<i32> = Some(libc::EIO);

fn a_full_disk(policy: Policy) {
    if let Some(disk) = available("a_full_disk", SmallFs::ext4(4 << 20)) {
        fill(policy, disk.path());
    }
}

fn a_full_memory_file_system(policy: Policy) {
    if let Some(disk) = available("a_full_memory_file_system", SmallFs::tmpfs(4 << 20)) {
        fill(policy, disk.path());
    }
}

/// Writes more than the disk has room for, by every interface. Each time the acknowledged bytes are there,
/// and afterwards the room can be used again.
fn fill(policy: Policy, disk: &Path) {
    let runtime = runtime(policy);
    let bytes = Random::new(1).bytes(8 * MIB);
    let (old, path) = (disk.join("old"), disk.join("new"));
    runtime.block_on(async {
        fs::save(&old, bytes[..MIB].to_vec()).await.unwrap();

        let error = fs::write(&path, bytes.clone()).await.unwrap_err();
        assert_eq!((error.raw_os_error(), error.operation()), (ENOSPC, "write"), "{error}");
        assert_eq!(error.path(), Some(&*path));
        remove(&path).await;

        a_writer(&path, &bytes).await;
        remove(&path).await;

        a_journal(&path, &bytes).await;
        remove(&path).await;

        let outside = crate::support::TempDir::new();
        std::fs::write(outside.join("large"), &bytes).unwrap();
        let error = fs::copy(outside.join("large"), &path).await.unwrap_err();
        assert_eq!((error.raw_os_error(), error.operation()), (ENOSPC, "copy"), "{error}");
        remove(&path).await;

        let large = File::open(outside.join("large")).await.unwrap();
        let mut reader = Reader::with_depth(large, 64 << 10, 4);
        let mut writer = Writer::at(File::create(&path).await.unwrap(), 0);
        let copied = copy(&mut reader, &mut writer).await;
        let error = match copied {
            Ok(_) => writer.close().await.unwrap_err(),
            Err(error) => error,
        };
        assert_eq!(fs::os_error(&error), ENOSPC, "{error}");
        drop(writer);
        remove(&path).await;

        let error = fs::save(&old, bytes.clone()).await.unwrap_err();
        assert_eq!((error.raw_os_error(), error.operation()), (ENOSPC, "write"), "{error}");
        assert_eq!(error.path(), Some(&*old));
        assert!(fs::read(&old).await.unwrap() == bytes[..MIB], "the old contents are lost");

        fs::save(&old, bytes[MIB..2 * MIB].to_vec()).await.unwrap();
        assert!(fs::read(&old).await.unwrap() == bytes[MIB..2 * MIB]);
    });
    let mut left = names(disk);
    left.retain(|name| name != "lost+found");
    assert_eq!(left, ["old"], "half a file is left");
    load::assert_sound(&runtime);
}

/// Removes a file and waits until its room is free: a dropped file is closed in one of the next turns.
async fn remove(path: &Path) {
    fs::remove_file(path).await.unwrap();
    let free = || {
        let facts = rustix::fs::statvfs(path.parent().unwrap()).unwrap();
        facts.f_bfree * facts.f_frsize
    };
    while free() < 2 * MIB as u64 {
        yield_now().await;
    }
}

/// Checks that durable bytes of a writer are there after an error, and that the writer returns its error
/// again.
async fn a_writer(path: &Path, bytes: &[u8]) {
    let mut writer = Writer::at(File::create(path).await.unwrap(), 0);
    let mut durable = 0;
    let mut error = None;
    for piece in bytes.chunks(100_000) {
        let written = writer.write_all(piece).await;
        let result = match written {
            Ok(()) => writer.flush(Level::Durable).await,
            Err(error) => Err(error),
        };
        match result {
            Ok(level) => {
                assert_eq!(level, Level::Durable);
                durable = writer.written();
            }
            Err(first) => {
                error = Some(first);
                break;
            }
        }
    }
    assert_eq!(fs::os_error(&error.unwrap()), ENOSPC);
    let again = writer.write_all(b"more").await.unwrap_err();
    assert_eq!(fs::os_error(&again), ENOSPC, "the error was forgotten");
    assert!(durable > MIB as u64 && writer.written() >= durable);
    drop(writer);
    let contents = std::fs::read(path).unwrap();
    assert!(contents[..durable as usize] == bytes[..durable as usize], "durable bytes are lost");
}

/// Committed records are there, and no commit succeeds after the first failure.
async fn a_journal(path: &Path, bytes: &[u8]) {
    const RECORD: usize = 50_000;
    let journal = GroupCommit::new(File::create(path).await.unwrap()).await.unwrap();
    let mut committed = 0;
    for record in bytes.chunks(RECORD) {
        if journal.append(record.to_vec()).await.0.is_err() || journal.commit().await.is_err() {
            break;
        }
        committed += 1;
    }
    assert_eq!(journal.failure(), ENOSPC);
    assert_eq!(journal.commit().await.unwrap_err().raw_os_error(), ENOSPC);
    drop(journal);
    let contents = std::fs::read(path).unwrap();
    assert!(committed > 20 && contents.len() >= committed * RECORD);
    assert!(contents[..committed * RECORD] == bytes[..committed * RECORD]);
}

fn a_disk_that_lost_its_end(policy: Policy) {
    // So few files are allocated one after the other, the last ones behind the cut.
    const FILES: usize = 12;
    let Some(disk) = available("a_disk_that_lost_its_end", SmallFs::ext4(8 << 20)) else { return };
    let runtime = runtime(policy);
    let contents = |number: usize| Random::new(number as u64 + 1).bytes(300_000);
    let path = |number: usize| disk.path().join(format!("file-{number:02}"));
    for number in 0..FILES {
        std::fs::write(path(number), contents(number)).unwrap();
    }
    for number in 0..FILES {
        make_cold(&path(number));
    }
    disk.cut_disk(4 << 20).unwrap();
    let mut lost = 0;
    runtime.block_on(async {
        for number in 0..FILES {
            match fs::read(path(number)).await {
                Ok(bytes) => assert!(bytes == contents(number), "bytes are wrong, and no error"),
                Err(error) => {
                    lost += 1;
                    assert_eq!((error.raw_os_error(), error.operation()), (EIO, "read"), "{error}");
                    assert_eq!(error.path(), Some(&*path(number)));
                    lost_in_pieces(&path(number), &contents(number)).await;
                }
            }
        }
        // A new file gets room that the disk has.
        fs::remove_file(path(0)).await.unwrap();
        fs::write(path(0), "new").await.unwrap();
        assert_eq!(fs::read(path(0)).await.unwrap(), b"new");
    });
    assert!((1..FILES).contains(&lost), "{lost} of {FILES} were lost");
    load::assert_sound(&runtime);
}

/// Reads and copies a file of which a part is lost: the bytes before it are right, then an error follows.
async fn lost_in_pieces(path: &Path, contents: &[u8]) {
    let file = File::open(path).await.unwrap();
    let mut reader = Reader::with_depth(file, 32 << 10, 4);
    let mut read = 0;
    let error = loop {
        match reader.fill().await {
            Ok(bytes) => {
                assert!(!bytes.is_empty(), "the file ended in place of an error");
                assert!(contents[read..].starts_with(bytes));
                let count = bytes.len();
                read += count;
                reader.consume(count);
            }
            Err(error) => break error,
        }
    };
    assert_eq!(fs::os_error(&error), EIO);
    let outside = crate::support::TempDir::new();
    let error = fs::copy(path, outside.join("copy")).await.unwrap_err();
    assert_eq!((error.raw_os_error(), error.operation()), (EIO, "copy"), "{error}");
}

/// Drops a file from the page cache.
fn make_cold(path: &Path) {
    let file = StdFile::open(path).unwrap();
    file.sync_all().unwrap();
    fadvise(&file, 0, None, Advice::DontNeed).unwrap();
}
