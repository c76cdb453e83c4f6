//! Open files: what several tasks do at once, and other users of a file, which no program of the
//! [reference](crate::reference) has.

use std::io::SeekFrom;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use sakia::Engine;
use sakia_tokio::fs::{File, OpenOptions};
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

use crate::support::{Folder, bytes, cool_down, errno, on_each_flavor, poll_once};

on_each_flavor! {
    clones_share_out_what_they_read
    halves_share_the_file
    unread_bytes_are_no_trouble_where_they_cannot_be_put_back
    what_may_take_a_wait_is_read_by_the_engine
    no_sync_succeeds_after_a_failed_write
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

async fn halves_share_the_file() {
    let folder = Folder::new();
    let file = File::create_new(folder.path("x")).await.unwrap();
    let (mut reader, mut writer) = tokio::io::split(file);
    let writing = tokio::spawn(async move {
        for _ in 0..100 {
            writer.write_all(&bytes(1000)).await.unwrap();
        }
        writer.flush().await.unwrap();
        writer
    });
    let reading = tokio::spawn(async move {
        // The reader is at the end that the file has at this time.
        for _ in 0..100 {
            assert_eq!(reader.read(&mut [0; 10]).await.unwrap(), 0);
        }
        reader
    });
    let mut file = reading.await.unwrap().unsplit(writing.await.unwrap());
    assert_eq!(file.stream_position().await.unwrap(), 100_000);
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

async fn no_sync_succeeds_after_a_failed_write() {
    let folder = Folder::new();
    let mut file = File::open(folder.file("x", "text")).await.unwrap();
    file.write_all(b"no").await.unwrap();
    assert_eq!(errno(file.sync_data().await), Some(libc::EBADF));
    assert_eq!(errno(file.flush().await), Some(libc::EBADF));
    file.sync_all().await.unwrap();
}

#[test]
fn a_descriptor_becomes_a_file() {
    let fd = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let number = fd.as_raw_fd();
    let file = File::from(fd);
    assert_eq!((file.as_raw_fd(), file.as_fd().as_raw_fd()), (number, number));
    assert!(format!("{file:?}").contains(&number.to_string()));
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
