//! `tokio::fs` on Sakia: the same names, signatures and semantics, on tokio's own runtimes.
//!
//! Cached data is read in the awaiting task, by one system call; so are writes of up to 64 KiB made, on file
//! systems of this machine where such calls are quick. Everything else goes to threads of Sakia, and its
//! shared [engine](sakia::engine). No setup is needed: the first use builds the engine of the process.
//!
//! # Examples
//! A program on tokio, with another import:
//! ```
//! // use tokio::fs::{self, File};
//! use sakia_tokio::fs::{self, File};
//! use tokio::io::AsyncReadExt;
//!
//! #[tokio::main]
//! async fn main() -> std::io::Result<()> {
//! #   let path = std::env::temp_dir().join(format!("sakia-tokio-lib-{}", std::process::id()));
//!     fs::write(&path, "some text").await?;
//!     let mut text = String::new();
//!     File::open(&path).await?.read_to_string(&mut text).await?;
//!     assert_eq!(text, "some text");
//!     fs::remove_file(&path).await
//! }
//! ```
//!
//! All of it is in [`fs`]: operations by path, [`File`](fs::File), [`OpenOptions`](fs::OpenOptions),
//! [`DirBuilder`](fs::DirBuilder) and [`ReadDir`](fs::ReadDir).
//!
//! # Porting
//! Change the import. Both kinds of runtime work, with one thread or several. Futures are `Send`, and
//! [`File`](fs::File) is `Send` and `Sync`. APIs that take a file by tokio's traits accept this one.
//!
//! | the same as `tokio::fs` | |
//! |---|---|
//! | position | the kernel's, shared by clones and inherited descriptors |
//! | writes | may be ready before they are done: flush at the end |
//! | errors of writes | reported by the next write or flush |
//! | dropped futures | their operation is finished; the bytes of a read go to the next read |
//! | a dropped file | is closed after the write in flight |
//! | a runtime that ends | waits for started operations with effects, if it waits at all |
//! | other errors | the kernel's, as plain [`std::io::Error`] |
//!
//! | different | |
//! |---|---|
//! | a read | may return fewer bytes than requested if the page cache has no more at the moment |
//! | [`sync_all`](fs::File::sync_all), [`sync_data`](fs::File::sync_data) | fail if the write before them did |
//! | [`into_std`](fs::File::into_std), [`try_clone`](fs::File::try_clone) | return the bytes of a dropped read to the file |
//! | `tokio::io::split` | both halves are woken, also by the other half's operations |
//! | `tokio_stream`'s `ReadDirStream` | takes tokio's own directories: [`poll_next_entry`](fs::ReadDir::poll_next_entry) makes a stream |
//! | `FromRawFd` | is missing, since it is unsafe: use `From<OwnedFd>` |
//! | after [`Engine::stop`](sakia::Engine::stop) of the engine of the process | operations by path, and uncached reads, fail with `ECANCELED` |
//!
//! # Threads
//!
//! | | |
//! |---|---|
//! | the caller's thread | cached reads, short writes, seeks; opens for reading, metadata and small files from the caches. All of it is charged to the task's budget, so that other tasks get their turn |
//! | threads of the engine | uncached reads, and those that bypass the cache; whole files by path |
//! | threads for blocking work | changes of names; other opens, and writes: at most 64, and separate from them up to 512 for FIFOs, terminals and other machines |
//!
//! A write in the awaiting task refuses to wait where the file system supports that. On ext4, and for files
//! opened to append, it cannot. There writes that have waited for a device send the next ones of this file
//! system to threads, for a tenth of a second or more.
//!
//! On a network file system, as identified by its mount, the caller's thread only reads cached data.

#![forbid(unsafe_code)]

pub mod fs;
mod lane;

/// The guide's chapter, whose code runs as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/engine.md")]
mod guide {}
