//! Early ends: of futures, files and runtimes. And many of them.

use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use sakia_testkit::available;
use sakia_testkit::fuse::{Fuse, Opcode, Rule};
use sakia_tokio::fs::{self, File, OpenOptions};
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;

use crate::support::{
    Folder, await_contents, bytes, cool_down, current_thread, multi_thread, on_each_flavor,
    poll_once,
};

on_each_flavor! {
    a_file_that_is_dropped_is_closed
    a_loop_of_reads_lets_others_run
    ten_thousand_tasks
}

/// Returns whether this process has the file open.
fn is_open(path: &Path) -> bool {
    let path = path.canonicalize().unwrap();
    let fds = std::fs::read_dir("/proc/self/fd").unwrap();
    fds.flatten().any(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to == path))
}

async fn a_file_that_is_dropped_is_closed() {
    let folder = Folder::new();
    let path = folder.file("x", bytes(100_000));
    for round in 0..20 {
        cool_down(&path);
        let mut file = OpenOptions::new().read(true).write(true).open(&path).await.unwrap();
        if round % 2 == 0 {
            file.read_exact(&mut [0; 50_000]).await.unwrap();
        } else {
            file.write_all(&[0; 50_000]).await.unwrap();
            file.flush().await.unwrap();
        }
        assert!(is_open(&path));
        drop(file);
        assert!(!is_open(&path), "round {round}");
    }
}

async fn a_loop_of_reads_lets_others_run() {
    let folder = Folder::new();
    let mut file = File::open(folder.file("x", bytes(4096))).await.unwrap();
    let other = tokio::spawn(async {});
    // Everything is in the page cache, so no operation here has to wait.
    while !other.is_finished() {
        file.rewind().await.unwrap();
        file.read_exact(&mut [0; 4096]).await.unwrap();
    }
}

async fn ten_thousand_tasks() {
    let folder = Arc::new(Folder::new());
    for number in 0..100 {
        folder.file(&number.to_string(), bytes(10_000));
    }
    let open_max = Arc::new(Semaphore::new(200));
    let tasks: Vec<_> = (0..10_000_usize)
        .map(|number| {
            let (folder, open_max) = (Arc::clone(&folder), Arc::clone(&open_max));
            tokio::spawn(async move {
                let path = folder.path(&(number % 100).to_string());
                if number % 2 == 0 {
                    return assert_eq!(fs::read(path).await.unwrap().len(), 10_000);
                }
                let _permit = open_max.acquire().await.unwrap();
                let mut file = OpenOptions::new().read(true).write(true).open(path).await.unwrap();
                file.seek(std::io::SeekFrom::Start(number as u64 % 5000)).await.unwrap();
                let mut part = [0; 5];
                file.read_exact(&mut part).await.unwrap();
                assert_eq!(part, bytes(10_000)[number % 5000..][..5]);
                file.seek(std::io::SeekFrom::Current(-5)).await.unwrap();
                file.write_all(&part).await.unwrap();
                file.flush().await.unwrap();
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    for number in 0..100 {
        assert!(std::fs::read(folder.path(&number.to_string())).unwrap() == bytes(10_000));
    }
}

/// A runtime that ends waits for the writes of its tasks, and the program waits for the runtime.
#[test]
fn a_runtime_that_ends_has_written() {
    let folder = Folder::new();
    for runtime in [current_thread, multi_thread] as [fn() -> Runtime; 2] {
        for round in 0..50 {
            let path = folder.path(&round.to_string());
            let (runtime, contents) = (runtime(), bytes(1_000_000));
            runtime.block_on(async {
                let mut file = File::create(&path).await.unwrap();
                if round % 2 == 0 {
                    file.write_all(&contents).await.unwrap();
                } else {
                    let contents = contents.clone();
                    tokio::spawn(async move {
                        file.write_all(&contents).await.unwrap();
                        // The file is never flushed, and the runtime drops it.
                        std::future::pending::<()>().await;
                    });
                    while !std::fs::metadata(&path).is_ok_and(|metadata| metadata.len() > 0) {
                        tokio::task::yield_now().await;
                    }
                }
            });
            drop(runtime);
            assert!(std::fs::read(&path).unwrap() == contents, "round {round}");
            std::fs::remove_file(path).unwrap();
        }
    }
}

/// As flags are another way to have a file truncated.
#[test]
fn a_runtime_that_ends_has_opened_with_flags() {
    let fuse = available!(Fuse::builder().file("a", bytes(100)).mount());
    fuse.script(Rule::on(Opcode::OPEN).delay(Duration::from_millis(100)));
    for flavor in [current_thread, multi_thread] as [fn() -> Runtime; 2] {
        fuse.edit("a", |contents| contents.resize(100, 1));
        let runtime = flavor();
        runtime.block_on(async {
            let mut options = OpenOptions::new();
            options.write(true).custom_flags(libc::O_TRUNC);
            assert!(poll_once(pin!(options.open(fuse.join("a")))).is_pending());
        });
        drop(runtime);
        assert_eq!(fuse.content("a"), b"");
    }
}

/// Dropping a file that outlives its runtime waits for its write.
#[test]
fn a_file_outlives_its_runtime() {
    let folder = Folder::new();
    let path = folder.path("x");
    for runtime in [current_thread, multi_thread] as [fn() -> Runtime; 2] {
        for _ in 0..20 {
            let runtime = runtime();
            let file = runtime.block_on(async {
                let mut file = File::create(&path).await.unwrap();
                file.write_all(&bytes(100_000)).await.unwrap();
                file
            });
            drop(runtime);
            drop(file);
            assert!(std::fs::read(&path).unwrap() == bytes(100_000));
        }
    }
}

#[test]
fn a_runtime_may_end_midway() {
    let folder = Arc::new(Folder::new());
    let fifo = folder.fifo("fifo");
    let path = folder.file("x", bytes(1 << 20));
    for flavor in [current_thread, multi_thread] as [fn() -> Runtime; 2] {
        for round in 0..10 {
            let runtime = flavor();
            let both = std::fs::OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
            for number in 0..100 {
                let (folder, path) = (Arc::clone(&folder), path.clone());
                let mut waits = File::from_std(both.try_clone().unwrap());
                runtime.spawn(async move { waits.read(&mut [0; 10]).await });
                runtime.spawn(async move {
                    let mut file = File::open(&path).await?;
                    cool_down(&path);
                    file.read_to_end(&mut Vec::new()).await?;
                    fs::write(folder.path(&number.to_string()), bytes(1000)).await?;
                    let mut entries = fs::read_dir(folder.path(".")).await?;
                    while entries.next_entry().await?.is_some() {}
                    std::io::Result::Ok(())
                });
            }
            runtime.block_on(async {
                for _ in 0..round {
                    tokio::task::yield_now().await;
                }
            });
            if round % 2 == 0 {
                runtime.shutdown_background();
            } else {
                drop(runtime);
            }
            // Ends the waiting reads.
            std::io::Write::write_all(&mut &both, &[0; 1000]).unwrap();
        }
    }
    while is_open(&path) || is_open(&fifo) {
        std::thread::yield_now();
    }
}

/// Polling needs no runtime at all.
#[test]
fn a_plain_thread_may_poll() {
    let folder = Folder::new();
    let path = folder.path("x");
    sakia::block_on(async {
        let mut file = File::create_new(&path).await.unwrap();
        file.write_all(b"text").await.unwrap();
        file.rewind().await.unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "text");
        file.write_all(b" and more").await.unwrap();
    });
    await_contents(&path, b"text and more");
}
