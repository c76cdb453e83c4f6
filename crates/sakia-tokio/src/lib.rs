//! `tokio::fs` on Sakia: the same names, signatures and meaning, on tokio's own runtimes.
//!
//! What the page cache has is read where it is awaited, by one system call; so are short writes where the
//! file system can say that they take no wait. Everything else goes to threads of Sakia, and its shared
//! [engine](sakia::engine). There is nothing to start: the engine of the process is built by the first use.
//!
//! # Porting
//!
//! Change an import, in a program that has tokio already:
//!
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
//! Both kinds of runtime do, with one thread or several. Futures are `Send`, and [`File`](fs::File) is `Send`
//! and `Sync`. What takes a file by tokio's traits takes this one.
//!
//! | as in `tokio::fs` | |
//! |---|---|
//! | position | the kernel's, which clones and inherited descriptors share |
//! | writes | may be ready before they are done: flush at the end |
//! | errors of writes | told by the next write or flush |
//! | futures that are dropped | what they began is done; the bytes of a read go to the next read |
//! | a file that is dropped | is closed after the write under way |
//! | a runtime that ends | waits for what was begun with effects, where it waits at all |
//! | other errors | the kernel's, as plain [`std::io::Error`] |
//!
//! | different | |
//! |---|---|
//! | a read | may bring less than was asked for where the page cache has no more at the moment |
//! | [`sync_all`](fs::File::sync_all), [`sync_data`](fs::File::sync_data) | fail if the write before them did |
//! | [`into_std`](fs::File::into_std), [`try_clone`](fs::File::try_clone) | put back what a read that was dropped has taken |
//! | `tokio::io::split` | both halves are woken, also by what the other one waits for |
//! | `tokio_stream`'s `ReadDirStream` | takes tokio's own directories: [`poll_next_entry`](fs::ReadDir::poll_next_entry) makes a stream |
//! | `FromRawFd` | is not there, since it is unsafe: `From<OwnedFd>` is |
//! | after [`Engine::stop`](sakia::Engine::stop) of the engine of the process | operations by path, and reads of what is not cached, fail with `ECANCELED` |
//!
//! # What runs where
//!
//! | | |
//! |---|---|
//! | on the caller's thread | reads of what is cached, short writes, seeks; opens to read, metadata and small files that the caches have. All of it draws on the task's budget, so that others get their turn |
//! | on threads of the engine | reads of what is not cached, and of what bypasses the cache; whole files by path |
//! | on threads for what blocks | what changes names; other opens, and writes: at most 64, and apart from them up to 512 for FIFOs, terminals and other machines |
//!
//! On a file that another machine serves, as far as its mount tells, the caller's thread does nothing but ask
//! for what is cached.

#![forbid(unsafe_code)]

pub mod fs;
mod lane;
mod now;

/// The guide's chapter, whose code runs as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/engine.md")]
mod guide {}
