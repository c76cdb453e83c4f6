//! Files that are not regular: FIFOs, devices; and direct I/O.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::Instant;

use sakia::fs::{AlignedBuf, os_error};
use sakia_testkit::settings::patience;
use sakia_tokio::fs::{self, File, OpenOptions};
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

use crate::support::{Folder, bytes, errno, on_each_flavor, poll_once};

on_each_flavor! {
    a_fifo_has_two_ends
    a_fifo_is_read_and_written_as_a_whole
    a_write_to_a_fifo_that_was_polled_is_done
    what_waits_for_others_keeps_no_files_out
    a_read_that_was_given_up_loses_nothing
    what_only_waits_keeps_no_runtime
    devices_are_files
    direct_io_is_aligned
    direct_io_moves_the_position_wherever_its_memory_is
}

async fn a_fifo_has_two_ends() {
    let folder = Folder::new();
    let path = folder.fifo("fifo");
    let reading = tokio::spawn({
        let path = path.clone();
        async move {
            let mut file = File::open(path).await?;
            let mut all = Vec::new();
            file.read_to_end(&mut all).await?;
            assert_eq!(errno(file.rewind().await), Some(libc::ESPIPE));
            std::io::Result::Ok(all)
        }
    });
    let mut file = OpenOptions::new().write(true).open(path).await.unwrap();
    // These are more bytes than a pipe holds.
    file.write_all(&bytes(300_000)).await.unwrap();
    file.flush().await.unwrap();
    drop(file);
    assert!(reading.await.unwrap().unwrap() == bytes(300_000));
}

async fn a_fifo_is_read_and_written_as_a_whole() {
    let folder = Folder::new();
    let (one, other) = (folder.fifo("one"), folder.fifo("other"));
    let writing = tokio::spawn(fs::write(one.clone(), bytes(200_000)));
    assert!(fs::read(one).await.unwrap() == bytes(200_000));
    writing.await.unwrap().unwrap();
    let copying = tokio::spawn(fs::copy(folder.file("x", "text"), other.clone()));
    assert_eq!(fs::read_to_string(other).await.unwrap(), "text");
    assert_eq!(copying.await.unwrap().unwrap(), 4);
}

async fn a_write_to_a_fifo_that_was_polled_is_done() {
    let folder = Folder::new();
    let path = folder.fifo("fifo");
    assert!(poll_once(Box::pin(fs::write(&path, "text")).as_mut()).is_pending());
    let mut options = std::fs::OpenOptions::new();
    let mut both =
        options.read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path).unwrap();
    let (begin, mut text) = (Instant::now(), [0; 4]);
    while let Err(error) = both.read_exact(&mut text) {
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        assert!(begin.elapsed() < patience(), "nothing is written");
        tokio::task::yield_now().await;
    }
    assert_eq!(&text, b"text");
}

async fn what_waits_for_others_keeps_no_files_out() {
    let folder = Folder::new();
    let fifos: Vec<PathBuf> = (0..200).map(|number| folder.fifo(&number.to_string())).collect();
    let opens: Vec<_> = fifos.iter().map(|path| tokio::spawn(File::open(path.clone()))).collect();
    let path = folder.file("x", bytes(1000));
    for _ in 0..100 {
        tokio::task::yield_now().await;
        assert_eq!(fs::read(&path).await.unwrap().len(), 1000);
    }
    assert!(opens.iter().all(|open| !open.is_finished()));
    for (path, open) in fifos.iter().zip(opens) {
        let writer = OpenOptions::new().write(true).open(path).await.unwrap();
        drop((writer, open.await.unwrap().unwrap()));
    }
}

async fn a_read_that_was_given_up_loses_nothing() {
    let folder = Folder::new();
    let path = folder.fifo("fifo");
    let mut file = OpenOptions::new().read(true).write(true).open(&path).await.unwrap();
    let mut other = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    let mut large = [0; 100];
    assert!(poll_once(Box::pin(file.read(&mut large)).as_mut()).is_pending());
    other.write_all(b"one two").unwrap();
    let mut word = [0; 3];
    file.read_exact(&mut word).await.unwrap();
    assert_eq!(&word, b"one");
    // The bytes cannot be put back, and are kept.
    file.write_all(b" three").await.unwrap();
    assert_eq!(errno(file.seek(std::io::SeekFrom::End(0)).await), Some(libc::ESPIPE));
    let mut rest = [0; 10];
    file.read_exact(&mut rest).await.unwrap();
    assert_eq!(&rest, b" two three");
}

async fn what_only_waits_keeps_no_runtime() {
    let folder = Folder::new();
    let (one, other, third) = (folder.fifo("one"), folder.fifo("other"), folder.fifo("third"));
    let both = std::fs::OpenOptions::new().read(true).write(true).open(&third).unwrap();
    let ending = std::thread::spawn(move || {
        let runtime = crate::support::multi_thread();
        let mut waits = File::from_std(both.try_clone().unwrap());
        let begun = std::sync::Arc::new(tokio::sync::Barrier::new(4));
        let wait = |future: std::pin::Pin<Box<dyn Future<Output = ()> + Send>>| {
            let begun = std::sync::Arc::clone(&begun);
            runtime.spawn(async move {
                let mut future = future;
                assert!(poll_once(future.as_mut()).is_pending());
                begun.wait().await;
                future.await;
            });
        };
        wait(Box::pin(async move { drop(fs::read(one).await) }));
        wait(Box::pin(async move { drop(File::open(other).await) }));
        wait(Box::pin(async move { drop(waits.read(&mut [0; 10]).await) }));
        runtime.block_on(begun.wait());
        // The drop ends, although the operation does not.
        drop(runtime);
    });
    tokio::task::spawn_blocking(|| ending.join().unwrap()).await.unwrap();
    // Releases the threads that still open the FIFO, or read.
    std::fs::OpenOptions::new().read(true).write(true).open(folder.path("other")).unwrap();
    std::fs::write(third, [0; 10]).unwrap();
}

async fn devices_are_files() {
    let mut zero = File::open("/dev/zero").await.unwrap();
    let mut buf = [1; 100_000];
    zero.read_exact(&mut buf).await.unwrap();
    assert!(buf.iter().all(|&byte| byte == 0));
    let mut null = OpenOptions::new().read(true).write(true).open("/dev/null").await.unwrap();
    null.write_all(&buf).await.unwrap();
    null.flush().await.unwrap();
    assert_eq!(null.read(&mut buf).await.unwrap(), 0);
}

async fn direct_io_is_aligned() {
    const LEN: usize = 64 << 10;
    let folder = Folder::new();
    let path = folder.file("direct", "");
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_DIRECT);
    let Ok(mut file) = options.open(&path).await else {
        return eprintln!("SKIP direct_io_is_aligned: the file system has no O_DIRECT");
    };
    let mut written = AlignedBuf::zeroed(LEN);
    written.copy_from_slice(&bytes(LEN));
    for round in 0..3 {
        file.rewind().await.unwrap();
        file.write_all(&written).await.unwrap();
        file.flush().await.unwrap();
        file.rewind().await.unwrap();
        let mut read = AlignedBuf::zeroed(LEN);
        // Reads in units of the file system's blocks leave some bytes in between.
        for part in read.chunks_mut(4096 << round) {
            file.read_exact(part).await.unwrap();
        }
        assert!(read[..] == written[..]);
        assert_eq!(file.read(&mut read).await.unwrap(), 0, "the end");
    }
    // The length is not aligned: whatever the file system answers, no offset is invented.
    file.rewind().await.unwrap();
    if let Err(error) = file.read(&mut [0; 100]).await {
        assert_eq!(os_error(&error), Some(libc::EINVAL), "{error}");
        assert!(!error.to_string().contains(&u64::MAX.to_string()), "{error}");
    }
}

/// The address of the memory decides whether the engine or a thread reads.
async fn direct_io_moves_the_position_wherever_its_memory_is() {
    const PART: usize = 4096;
    let folder = Folder::new();
    let contents = bytes(3 * PART);
    let path = folder.file("direct", &contents);
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_DIRECT);
    let mut between = Vec::new();
    for round in 0..1500 {
        let Ok(mut file) = options.open(&path).await else {
            return eprintln!("SKIP direct_io_moves_the_position: the file system has no O_DIRECT");
        };
        let mut read = AlignedBuf::zeroed(PART);
        for expected in contents.chunks(PART) {
            file.read_exact(&mut read).await.unwrap();
            assert!(read[..] == *expected, "round {round}");
        }
        // The next allocation gets another address.
        between.push(vec![1_u8; 16 * (round % 300 + 1)]);
    }
}
