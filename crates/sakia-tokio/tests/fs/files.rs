//! Open files: opening, reading, writing, sharing and returning them.

use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::pin::Pin;
use std::time::{Duration, SystemTime};

use sakia::Engine;
use sakia_tokio::fs::{File, FileTimes, OpenOptions};
use tokio::io::{AsyncReadExt, AsyncSeek, AsyncSeekExt, AsyncWriteExt};

use crate::support::{Folder, bytes, cool_down, errno, on_each_flavor, poll_once};

on_each_flavor! {
    what_is_appended_goes_to_the_end
    metadata_times_and_permissions_are_set
    the_position_is_shared_by_clones
    clones_share_out_what_they_read
    the_position_is_that_of_the_kernel
    a_file_goes_back_to_std_after_its_write
    what_was_not_taken_of_a_read_is_put_back
    unread_bytes_are_no_trouble_where_they_cannot_be_put_back
    a_seek_after_a_part_is_right
    a_file_that_is_cold_is_read
    what_may_take_a_wait_is_read_by_the_engine
    the_error_of_a_write_is_told_once_by_the_next_call
    no_sync_succeeds_after_a_failed_write
    a_failed_seek_is_not_told_to_a_later_one
    a_seek_has_to_wait_for_its_turn
    a_given_up_call_does_not_keep_the_file
}

async fn what_is_appended_goes_to_the_end() {
    let folder = Folder::new();
    let path = folder.file("x", "one\n");
    let mut file = OpenOptions::new().read(true).append(true).open(&path).await.unwrap();
    std::fs::write(&path, "one\ntwo\n").unwrap();
    file.rewind().await.unwrap();
    file.write_all(b"three\n").await.unwrap();
    let mut rest = String::new();
    file.read_to_string(&mut rest).await.unwrap();
    assert_eq!(rest, "");
    assert_eq!(std::fs::read(&path).unwrap(), b"one\ntwo\nthree\n");
}

async fn metadata_times_and_permissions_are_set() {
    let folder = Folder::new();
    let path = folder.file("x", "text");
    let file = File::options().write(true).open(&path).await.unwrap();
    let mut permissions = file.metadata().await.unwrap().permissions();
    permissions.set_readonly(true);
    file.set_permissions(permissions).await.unwrap();
    assert!(std::fs::metadata(&path).unwrap().permissions().readonly());

    let time = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    let times = FileTimes::new().set_accessed(time(1000)).set_modified(time(2000));
    file.set_times(times).await.unwrap();
    let metadata = std::fs::metadata(&path).unwrap();
    assert_eq!(metadata.accessed().unwrap(), time(1000));
    assert_eq!(metadata.modified().unwrap(), time(2000));
    file.set_modified(time(3000)).await.unwrap();
    let metadata = std::fs::metadata(&path).unwrap();
    assert_eq!(metadata.accessed().unwrap(), time(1000));
    assert_eq!(metadata.modified().unwrap(), time(3000));
}

async fn the_position_is_shared_by_clones() {
    let folder = Folder::new();
    let path = folder.file("x", "one two three");
    let mut one = OpenOptions::new().read(true).write(true).open(&path).await.unwrap();
    one.set_max_buf_size(1000);
    let mut other = one.try_clone().await.unwrap();
    assert_eq!(other.max_buf_size(), 1000);
    let mut word = [0; 4];
    one.read_exact(&mut word).await.unwrap();
    other.read_exact(&mut word).await.unwrap();
    assert_eq!(&word, b"two ");
    one.write_all(b"THREE").await.unwrap();
    one.flush().await.unwrap();
    assert_eq!(other.stream_position().await.unwrap(), 13);
    other.rewind().await.unwrap();
    let mut text = String::new();
    one.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "one two THREE");
}

async fn clones_share_out_what_they_read() {
    let folder = Folder::new();
    let numbers: Vec<u8> = (0..500_000_u32).flat_map(u32::to_ne_bytes).collect();
    let path = folder.file("x", &numbers);
    for is_cold in [true, false] {
        if is_cold {
            cool_down(&path);
        }
        let file = File::open(&path).await.unwrap();
        let mut tasks = Vec::new();
        for _ in 0..8 {
            let mut clone = file.try_clone().await.unwrap();
            tasks.push(tokio::spawn(async move {
                let (mut read, mut buf) = (Vec::new(), vec![0; 8192]);
                loop {
                    let count = clone.read(&mut buf).await.unwrap();
                    read.extend(buf[..count].chunks(4).map(|four| four.to_vec()));
                    if count == 0 {
                        return read;
                    }
                }
            }));
        }
        let mut all = Vec::new();
        for task in tasks {
            all.extend(task.await.unwrap());
        }
        // Each number was read once.
        all.sort_by_key(|four| u32::from_ne_bytes(four.as_slice().try_into().unwrap()));
        assert!(all.concat() == numbers);
    }
}

async fn the_position_is_that_of_the_kernel() {
    let folder = Folder::new();
    let mut std = std::fs::File::open(folder.file("x", "one two three")).unwrap();
    std.seek(SeekFrom::Start(4)).unwrap();
    let mut file = File::from(std.try_clone().unwrap());
    let mut word = [0; 4];
    file.read_exact(&mut word).await.unwrap();
    assert_eq!(&word, b"two ");
    // An inherited or duplicated descriptor continues at this position.
    let mut rest = String::new();
    std.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "three");
    let fd = OwnedFd::from(std);
    let number = fd.as_raw_fd();
    let file = File::from(fd);
    assert_eq!((file.as_raw_fd(), file.as_fd().as_raw_fd()), (number, number));
    assert!(format!("{file:?}").contains(&number.to_string()));
}

async fn a_file_goes_back_to_std_after_its_write() {
    let folder = Folder::new();
    let path = folder.path("x");
    for _ in 0..50 {
        let mut file = File::create(&path).await.unwrap();
        file.write_all(&bytes(100_000)).await.unwrap();
        let number = file.as_raw_fd();
        let mut std = file.into_std().await;
        assert_eq!(std.as_raw_fd(), number);
        std.write_all(b"!").unwrap();
        assert_eq!(std.metadata().unwrap().len(), 100_001);
    }
    let file = File::open(&path).await.unwrap();
    assert_eq!(file.try_into_std().unwrap().metadata().unwrap().len(), 100_001);
    let mut file = File::create(&path).await.unwrap();
    let _ = file.write(&bytes(100_000)).await.unwrap();
    // The operation may be done by now.
    if let Err(mut file) = file.try_into_std() {
        file.flush().await.unwrap();
        file.try_into_std().unwrap();
    }
    assert!(std::fs::read(&path).unwrap() == bytes(100_000));
}

/// Returns a file with a started read that was dropped before it could return bytes.
async fn with_a_read_given_up(folder: &Folder, count: usize) -> File {
    let path = folder.file("x", bytes(100_000));
    for _ in 0..20 {
        cool_down(&path);
        let mut file = OpenOptions::new().read(true).write(true).open(&path).await.unwrap();
        let mut buf = vec![0; count];
        if poll_once(Box::pin(file.read(&mut buf)).as_mut()).is_pending() {
            return file;
        }
    }
    // A file system in memory always has the data cached; then no read is abandoned.
    File::options().read(true).write(true).open(&path).await.unwrap()
}

async fn what_was_not_taken_of_a_read_is_put_back() {
    let folder = Folder::new();
    let contents = bytes(100_000);
    let mut file = with_a_read_given_up(&folder, 5000).await;
    let mut begin = [0; 10];
    file.read_exact(&mut begin).await.unwrap();
    assert_eq!(begin, contents[..10]);
    let mut std = file.into_std().await;
    assert_eq!(std.stream_position().unwrap(), 10);

    // A write goes to the reader's position.
    std.rewind().unwrap();
    drop(std);
    let mut file = with_a_read_given_up(&folder, 5000).await;
    file.read_exact(&mut begin).await.unwrap();
    file.write_all(b"here").await.unwrap();
    let mut next = [0; 10];
    file.read_exact(&mut next).await.unwrap();
    assert_eq!(next, contents[14..24]);
    assert_eq!(std::fs::read(folder.path("x")).unwrap()[10..14], *b"here");

    // A clone continues at the same position.
    let mut file = with_a_read_given_up(&folder, 5000).await;
    file.read_exact(&mut begin).await.unwrap();
    let mut clone = file.try_clone().await.unwrap();
    clone.read_exact(&mut next).await.unwrap();
    assert_eq!(next, contents[10..20]);

    let mut file = with_a_read_given_up(&folder, 5000).await;
    file.flush().await.unwrap();
    let mut std = file.try_into_std().unwrap();
    assert_eq!(std.stream_position().unwrap(), 0);
}

async fn unread_bytes_are_no_trouble_where_they_cannot_be_put_back() {
    let folder = Folder::new();
    for round in 0..6 {
        let mut file = with_a_read_given_up(&folder, 5000).await;
        file.read_exact(&mut [0; 10]).await.unwrap();
        // Another user of the file.
        rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0)).unwrap();
        match round {
            0 => assert_eq!(file.seek(SeekFrom::Start(7)).await.unwrap(), 7),
            1 => assert_eq!(file.seek(SeekFrom::End(0)).await.unwrap(), 100_000),
            2 => drop(file.try_clone().await.unwrap()),
            3 => drop(file.set_len(7).await),
            // From the first unread byte, if there is one.
            4 => {
                let position = file.seek(SeekFrom::Current(6000)).await.unwrap();
                assert!([6000, 6000 - 4990].contains(&position), "{position}");
            }
            _ => assert_eq!(file.write(b"text").await.unwrap(), 4),
        }
        // At most one call fails.
        file.flush().await.ok();
        file.rewind().await.unwrap();
        let mut begin = [0; 4];
        file.read_exact(&mut begin).await.unwrap();
        assert_eq!(begin, std::fs::read(folder.path("x")).unwrap()[..4], "round {round}");
    }
}

async fn a_seek_after_a_part_is_right() {
    let folder = Folder::new();
    let contents = bytes(100_000);
    for (to, expected) in [
        (SeekFrom::Current(0), 10),
        (SeekFrom::Current(5), 15),
        (SeekFrom::Current(-3), 7),
        (SeekFrom::Start(20_000), 20_000),
        (SeekFrom::End(-10), 99_990),
    ] {
        let mut file = with_a_read_given_up(&folder, 5000).await;
        let mut part = [0; 10];
        file.read_exact(&mut part).await.unwrap();
        assert_eq!(file.seek(to).await.unwrap(), expected as u64);
        file.read_exact(&mut part).await.unwrap();
        assert_eq!(part, contents[expected..][..10]);
    }
}

async fn a_file_that_is_cold_is_read() {
    let folder = Folder::new();
    let contents = bytes(3_000_000);
    let path = folder.file("x", &contents);
    for step in [1000, 65_536, 4_000_000] {
        cool_down(&path);
        let mut file = File::open(&path).await.unwrap();
        let (mut read, mut buf) = (Vec::new(), vec![0; step]);
        loop {
            let count = file.read(&mut buf).await.unwrap();
            read.extend_from_slice(&buf[..count]);
            if count == 0 {
                break;
            }
        }
        assert!(read == contents);
    }
}

async fn what_may_take_a_wait_is_read_by_the_engine() {
    let folder = Folder::new();
    let path = folder.file("x", bytes(10_000));
    // With this flag nothing is tried inline.
    let mut file =
        File::options().read(true).custom_flags(libc::O_DSYNC).open(&path).await.unwrap();
    let before = Engine::global().unwrap().statistics().submitted;
    for part in bytes(10_000).chunks(1000) {
        let mut read = vec![0; 1000];
        file.read_exact(&mut read).await.unwrap();
        assert!(read == part);
    }
    assert_eq!(file.read(&mut [0; 10]).await.unwrap(), 0);
    let after = Engine::global().unwrap().statistics().submitted;
    assert!(after - before >= 11, "{before} became {after}");
}

async fn the_error_of_a_write_is_told_once_by_the_next_call() {
    let folder = Folder::new();
    let path = folder.file("x", "text");
    let mut file = File::open(&path).await.unwrap();
    assert_eq!(file.write(b"no").await.unwrap(), 2);
    assert_eq!(errno(file.flush().await), Some(libc::EBADF));
    file.flush().await.unwrap();
    assert_eq!(file.write(b"no").await.unwrap(), 2);
    assert_eq!(errno(file.write(b"no").await), Some(libc::EBADF));
    file.shutdown().await.unwrap();
    let mut full = File::options().write(true).open("/dev/full").await.unwrap();
    full.write_all(b"too much").await.unwrap();
    assert_eq!(errno(full.flush().await), Some(libc::ENOSPC));
}

async fn no_sync_succeeds_after_a_failed_write() {
    let folder = Folder::new();
    let mut file = File::open(folder.file("x", "text")).await.unwrap();
    file.write_all(b"no").await.unwrap();
    assert_eq!(errno(file.sync_data().await), Some(libc::EBADF));
    assert_eq!(errno(file.flush().await), Some(libc::EBADF));
    file.sync_all().await.unwrap();
}

async fn a_failed_seek_is_not_told_to_a_later_one() {
    let folder = Folder::new();
    let mut file = File::create_new(folder.path("x")).await.unwrap();
    for round in 0..3 {
        // The trait allows other calls before the seek is complete.
        Pin::new(&mut file).start_seek(SeekFrom::End(-100)).unwrap();
        match round {
            0 => file.flush().await.unwrap(),
            1 => file.sync_data().await.unwrap(),
            _ => file.set_len(5).await.unwrap(),
        }
        file.rewind().await.unwrap();
    }
}

async fn a_seek_has_to_wait_for_its_turn() {
    let folder = Folder::new();
    let fifo = folder.fifo("fifo");
    let mut file = OpenOptions::new().read(true).write(true).open(&fifo).await.unwrap();
    let mut buf = [0; 4];
    assert!(poll_once(Box::pin(file.read(&mut buf)).as_mut()).is_pending());
    let refused = Pin::new(&mut file).start_seek(SeekFrom::Start(0));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Other);
    std::fs::OpenOptions::new().write(true).open(&fifo).unwrap().write_all(b"text").unwrap();
    assert_eq!(file.read(&mut buf).await.unwrap(), 4);
}

async fn a_given_up_call_does_not_keep_the_file() {
    let folder = Folder::new();
    for _ in 0..20 {
        let file = File::create(folder.path("x")).await.unwrap();
        for _ in 0..5 {
            let _ = poll_once(Box::pin(file.sync_all()).as_mut());
            let _ = poll_once(Box::pin(file.metadata()).as_mut());
            let _ = poll_once(Box::pin(file.set_len(10)).as_mut());
        }
        let number = file.as_raw_fd();
        assert_eq!(file.into_std().await.as_raw_fd(), number);
    }
}

#[test]
#[should_panic = "at least one byte"]
fn an_operation_without_bytes_is_refused() {
    let file = std::fs::File::open("/dev/null").unwrap();
    File::from_std(file).set_max_buf_size(0);
}

/// Spawned tasks require these properties.
#[test]
fn all_may_move_and_be_shared() {
    use sakia_tokio::fs;

    fn check<T: Send + Sync + Unpin>() {}
    fn check_future<T: Send>(_: T) {}
    check::<File>();
    check::<OpenOptions>();
    check::<fs::DirBuilder>();
    check::<fs::DirEntry>();
    check::<fs::ReadDir>();
    check_future(File::open("x"));
    check_future(fs::read("x"));
    check_future(fs::write("x", "y"));
    check_future(fs::read_dir("x"));
    check_future(fs::DirBuilder::new().create("x"));
    check_future(async {
        let mut file = File::open("x").await?;
        file.write_all(b"y").await?;
        file.sync_all().await?;
        file.try_clone().await?.into_std().await.metadata()
    });
}
