//! Random calls on a file, against `std::fs::File` as the model.
//!
//! A read may return fewer bytes than requested, so the model reads the same number, and both must then be
//! at the same position. A dropped call has read nothing, and may have written.

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::task::Poll;

use proptest::prelude::*;
use proptest::test_runner::Config;
use sakia_tokio::fs::{File, OpenOptions};
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

use crate::support::{Folder, cool_down, current_thread, multi_thread, poll_once};

#[derive(Clone, Debug)]
enum Step {
    Read(usize),
    /// Polls a read once, and drops it.
    BeginRead(usize),
    Write(Vec<u8>),
    WriteVectored(Vec<Vec<u8>>),
    Seek(SeekFrom),
    /// Polls a seek once, and drops it; then asks for the position.
    BeginSeek(SeekFrom),
    SetLen(u64),
    Flush,
    Sync,
    /// Continues with a clone, and keeps the current file.
    Clone,
    /// Continues with the kept file.
    Swap,
    /// Converts the file to std and back.
    IntoStd,
    Metadata,
    CoolDown,
    MaxBufSize(usize),
}

fn place() -> impl Strategy<Value = SeekFrom> {
    prop_oneof![
        (0..100_000_u64).prop_map(SeekFrom::Start),
        (-50_000..50_000_i64).prop_map(SeekFrom::Current),
        (-100_000..10_000_i64).prop_map(SeekFrom::End),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let some_bytes = || prop::collection::vec(any::<u8>(), 0..3000);
    prop_oneof![
        6 => (0..20_000_usize).prop_map(Step::Read),
        3 => (1..20_000_usize).prop_map(Step::BeginRead),
        4 => some_bytes().prop_map(Step::Write),
        2 => prop::collection::vec(some_bytes(), 0..4).prop_map(Step::WriteVectored),
        4 => place().prop_map(Step::Seek),
        1 => place().prop_map(Step::BeginSeek),
        2 => (0..100_000_u64).prop_map(Step::SetLen),
        2 => Just(Step::Flush),
        1 => Just(Step::Sync),
        1 => Just(Step::Clone),
        1 => Just(Step::Swap),
        1 => Just(Step::IntoStd),
        1 => Just(Step::Metadata),
        2 => Just(Step::CoolDown),
        1 => (1..30_000_usize).prop_map(Step::MaxBufSize),
    ]
}

/// A file and its model.
struct Pair {
    folder: Folder,
    file: File,
    model: fs::File,
    kept: Option<File>,
}

impl Pair {
    async fn new(folder: Folder, contents: &[u8], is_appended: bool) -> Self {
        let (file, model) = (folder.file("file", contents), folder.file("model", contents));
        let mut options = fs::OpenOptions::new();
        options.read(true).write(!is_appended).append(is_appended);
        let model = options.open(model).unwrap();
        let file = OpenOptions::from(options).open(file).await.unwrap();
        Self { folder, file, model, kept: None }
    }

    /// Checks that the model has these bytes at its position.
    fn check_read(&mut self, asked: usize, bytes: &[u8]) {
        let mut expected = vec![0; bytes.len()];
        self.model.read_exact(&mut expected).unwrap();
        assert!(bytes == expected, "other bytes");
        if bytes.is_empty() && asked > 0 {
            assert_eq!(self.model.read(&mut [0]).unwrap(), 0, "an end where there is none");
        }
    }

    /// Checks that both are at the same position, by a seek of the file's own.
    async fn check_place(&mut self) {
        let expected = self.model.stream_position().unwrap();
        assert_eq!(self.file.stream_position().await.unwrap(), expected);
    }

    fn check_write(&mut self, mut bytes: Vec<u8>, count: usize) {
        let max = self.file.max_buf_size();
        assert_eq!(count, bytes.len().min(max));
        bytes.truncate(count);
        self.model.write_all(&bytes).unwrap();
    }

    fn check_sought(&mut self, place: SeekFrom, result: std::io::Result<u64>) {
        match (result, self.model.seek(place)) {
            (Ok(is), Ok(expected)) => assert_eq!(is, expected),
            (Err(is), Err(expected)) => assert_eq!(is.raw_os_error(), expected.raw_os_error()),
            (is, expected) => panic!("{is:?} is not {expected:?}"),
        }
    }

    async fn step(&mut self, step: Step) {
        match step {
            Step::Read(count) => {
                let mut buf = vec![0; count];
                let read = self.file.read(&mut buf).await.unwrap();
                self.check_read(count, &buf[..read]);
            }
            Step::BeginRead(count) => {
                let mut buf = vec![0; count];
                let polled = poll_once(std::pin::pin!(self.file.read(&mut buf)));
                if let Poll::Ready(read) = polled {
                    self.check_read(count, &buf[..read.unwrap()]);
                }
            }
            Step::Write(bytes) => {
                let count = self.file.write(&bytes).await.unwrap();
                self.check_write(bytes, count);
            }
            Step::WriteVectored(parts) => {
                let slices: Vec<_> = parts.iter().map(|part| std::io::IoSlice::new(part)).collect();
                let count = self.file.write_vectored(&slices).await.unwrap();
                self.check_write(parts.concat(), count);
            }
            Step::Seek(place) => {
                let result = self.file.seek(place).await;
                self.check_sought(place, result);
            }
            Step::BeginSeek(place) => {
                // An earlier operation may use up the poll.
                self.file.flush().await.unwrap();
                match poll_once(std::pin::pin!(self.file.seek(place))) {
                    Poll::Ready(result) => self.check_sought(place, result),
                    Poll::Pending => drop(self.model.seek(place)),
                }
                self.check_place().await;
            }
            Step::SetLen(size) => {
                self.file.set_len(size).await.unwrap();
                self.model.set_len(size).unwrap();
            }
            Step::Flush => self.file.flush().await.unwrap(),
            Step::Sync => self.file.sync_data().await.unwrap(),
            Step::Clone => {
                let clone = self.file.try_clone().await.unwrap();
                self.kept = Some(std::mem::replace(&mut self.file, clone));
            }
            Step::Swap => {
                // One file does not know of the read-ahead of the other.
                self.check_place().await;
                if let Some(kept) = &mut self.kept {
                    std::mem::swap(kept, &mut self.file);
                }
            }
            Step::IntoStd => {
                let clone = self.file.try_clone().await.unwrap();
                let mut std = std::mem::replace(&mut self.file, clone).into_std().await;
                assert_eq!(std.stream_position().unwrap(), self.model.stream_position().unwrap());
                self.file = File::from_std(std);
            }
            Step::Metadata => {
                self.file.flush().await.unwrap();
                let len = self.file.metadata().await.unwrap().len();
                assert_eq!(len, self.model.metadata().unwrap().len());
            }
            Step::CoolDown => cool_down(&self.folder.path("file")),
            Step::MaxBufSize(count) => self.file.set_max_buf_size(count),
        }
    }

    async fn check(mut self, steps: Vec<Step>) {
        for step in steps {
            self.step(step).await;
        }
        self.check_place().await;
        let (is, expected) = (self.folder.path("file"), self.folder.path("model"));
        assert!(fs::read(is).unwrap() == fs::read(expected).unwrap());
    }
}

proptest! {
    #![proptest_config(Config { cases: 150, failure_persistence: None, ..Config::default() })]

    #[test]
    fn a_file_is_as_that_of_std(
        contents in prop::collection::vec(any::<u8>(), 0..60_000),
        steps in prop::collection::vec(step(), 0..40),
        is_appended in any::<bool>(),
        has_threads in any::<bool>(),
        is_in_memory in any::<bool>(),
    ) {
        let runtime = if has_threads { multi_thread() } else { current_thread() };
        let folder = if is_in_memory { Folder::in_memory() } else { Folder::new() };
        runtime.block_on(async {
            Pair::new(folder, &contents, is_appended).await.check(steps).await;
        });
    }
}
