//! Files that libraries read, write and seek by the traits of other crates.

use std::io::{Cursor, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;

use proptest::prelude::*;
use sakia::compat::{BufferedFile, Compat};
use sakia::fs::{File, OpenOptions};
use sakia::{block_on, spawn, yield_now};

use super::super::mocks::{at_most, run};
use super::super::readers::config;
use super::numbered;

const EBADF: i32 = 9;
const EINVAL: i32 = 22;
const ESPIPE: i32 = 29;

/// The file of one test, removed with this value.
struct Temp(PathBuf);

impl Temp {
    fn new(test: &str, bytes: &[u8]) -> Self {
        let name = format!("compat-{}-{test}", std::process::id());
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::write(&path, bytes).unwrap();
        Self(path)
    }

    fn bytes(&self) -> Vec<u8> {
        std::fs::read(&self.0).unwrap()
    }

    async fn open(&self) -> Compat<BufferedFile> {
        let file = OpenOptions::new().read(true).write(true).open(&self.0).await.unwrap();
        Compat::file(file)
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

/// A call on a file by a foreign trait.
#[derive(Clone, Copy, Debug)]
enum Call {
    Read(usize),
    /// Returns the buffered bytes, and consumes some of them.
    Fill(usize),
    Write(usize),
    Flush,
    Seek(SeekFrom),
}

fn calls() -> impl Strategy<Value = Vec<(Call, bool, usize)>> {
    let to = prop_oneof![
        (0u64..3000).prop_map(SeekFrom::Start),
        (-300i64..300).prop_map(SeekFrom::Current),
        (-3000i64..300).prop_map(SeekFrom::End),
    ];
    let call = prop_oneof![
        3 => (1usize..500).prop_map(Call::Read),
        1 => (0usize..50).prop_map(Call::Fill),
        3 => (0usize..500).prop_map(Call::Write),
        1 => Just(Call::Flush),
        2 => to.prop_map(Call::Seek),
    ];
    prop::collection::vec((call, any::<bool>(), 0usize..3), 0..50)
}

/// Makes the same call on the file and on the model, and compares the results.
async fn perform(
    file: &mut Compat<BufferedFile>,
    model: &mut Cursor<Vec<u8>>,
    call: Call,
    is_tokio: bool,
) {
    match call {
        Call::Read(len) => {
            let (mut got, mut expected) = (vec![0; len], vec![0; len]);
            let expected_len = model.read(&mut expected).unwrap();
            // A file returns the rest of a block, and the model all bytes.
            let mut count = 0;
            while count < expected_len {
                let rest = &mut got[count..expected_len];
                count += if is_tokio {
                    tokio::io::AsyncReadExt::read(file, rest).await.unwrap()
                } else {
                    futures_util::AsyncReadExt::read(file, rest).await.unwrap()
                };
            }
            if expected_len == 0 {
                assert_eq!(tokio::io::AsyncReadExt::read(file, &mut got).await.unwrap(), 0);
            }
            assert_eq!(got, expected);
        }
        Call::Fill(count) => {
            let bytes = tokio::io::AsyncBufReadExt::fill_buf(file).await.unwrap();
            let count = count.min(bytes.len());
            let bytes = bytes[..count].to_vec();
            tokio::io::AsyncBufReadExt::consume(file, count);
            let mut expected = vec![0; count];
            model.read_exact(&mut expected).unwrap();
            assert_eq!(bytes, expected);
        }
        Call::Write(len) => {
            let bytes = numbered(len);
            // An empty write beyond its end would make the model longer; a file stays as it is.
            if len > 0 {
                model.write_all(&bytes).unwrap();
            }
            if is_tokio {
                tokio::io::AsyncWriteExt::write_all(file, &bytes).await.unwrap();
            } else {
                futures_util::AsyncWriteExt::write_all(file, &bytes).await.unwrap();
            }
        }
        Call::Flush if is_tokio => tokio::io::AsyncWriteExt::flush(file).await.unwrap(),
        Call::Flush => futures_util::AsyncWriteExt::close(file).await.unwrap(),
        Call::Seek(to) => {
            let result = if is_tokio {
                tokio::io::AsyncSeekExt::seek(file, to).await
            } else {
                futures_util::AsyncSeekExt::seek(file, to).await
            };
            match model.seek(to) {
                Ok(position) => assert_eq!(result.unwrap(), position),
                Err(_) => assert_eq!(result.unwrap_err().raw_os_error(), Some(EINVAL)),
            }
        }
    }
}

/// Begins the same call and drops it, if that changes nothing.
async fn begin(file: &mut Compat<BufferedFile>, call: Call, polls: usize) {
    match call {
        Call::Flush => drop(at_most(polls, tokio::io::AsyncWriteExt::flush(file)).await),
        Call::Fill(_) => drop(at_most(polls, tokio::io::AsyncBufReadExt::fill_buf(file)).await),
        // The seek does not move the position.
        Call::Seek(_) => {
            let seek = futures_util::AsyncSeekExt::seek(file, SeekFrom::Current(0));
            drop(at_most(polls, seek).await);
        }
        Call::Read(_) | Call::Write(_) => {}
    }
}

proptest! {
    #![proptest_config(config(200))]

    #[test]
    fn a_file_does_as_a_cursor(
        bytes in prop::collection::vec(any::<u8>(), 0..3000),
        calls in calls(),
    ) {
        let temp = Temp::new("cursor", &bytes);
        run(async {
            let mut model = Cursor::new(bytes);
            let mut file = temp.open().await;
            for (call, is_tokio, polls) in calls {
                begin(&mut file, call, polls).await;
                perform(&mut file, &mut model, call, is_tokio).await;
            }
            let mut file = file.into_file().await.unwrap();
            assert_eq!(file.stream_position().await.unwrap(), model.position());
            file.close().await.unwrap();
            assert_eq!(temp.bytes(), *model.get_ref());
        });
    }
}

#[test]
fn much_goes_in_and_comes_out() {
    use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

    const MUCH: usize = 3 << 20;
    let temp = Temp::new("much", b"");
    block_on(async {
        let mut file = temp.open().await;
        file.write_all(&numbered(MUCH)).await.unwrap();
        file.rewind().await.unwrap();
        let mut all = Vec::new();
        file.read_to_end(&mut all).await.unwrap();
        assert!(all == numbered(MUCH));
        assert_eq!(file.stream_position().await.unwrap(), MUCH as u64);
    });
}

#[test]
fn closing_leaves_the_file_open() {
    use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

    let temp = Temp::new("closing", b"");
    block_on(async {
        let mut file = temp.open().await;
        file.write_all(b"written").await.unwrap();
        file.shutdown().await.unwrap();
        assert_eq!(temp.bytes(), b"written");
        file.rewind().await.unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "written");
    });
}

#[test]
fn appended_at_the_end() {
    use futures_util::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

    let temp = Temp::new("append", b"one ");
    block_on(async {
        let file = OpenOptions::new().read(true).append(true).open(&temp.0).await.unwrap();
        let mut file = Compat::file(file);
        file.write_all(b"two ").await.unwrap();
        file.seek(SeekFrom::Start(1)).await.unwrap();
        file.write_all(b"three").await.unwrap();
        assert_eq!(file.stream_position().await.unwrap(), 13);
        file.seek(SeekFrom::Start(4)).await.unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "two three");
        assert_eq!(temp.bytes(), b"one two three");
    });
}

#[test]
fn the_position_comes_along_and_goes_back() {
    let temp = Temp::new("position", b"0123456789");
    block_on(async {
        let mut std = std::fs::File::open(&temp.0).unwrap();
        std.seek(SeekFrom::Start(3)).unwrap();
        let mut file = Compat::file(File::from_std(std).unwrap());
        let digit = tokio::io::AsyncReadExt::read_u8(&mut file).await.unwrap();
        assert_eq!(digit, b'3');
        let mut file = file.into_file().await.unwrap();
        assert_eq!(file.stream_position().await.unwrap(), 4);
        assert_eq!(&file.read(vec![0; 2]).await.1, b"45");
    });
}

#[test]
fn failed_writes_are_told_and_reading_goes_on() {
    use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

    let temp = Temp::new("failed", b"contents");
    block_on(async {
        let mut file = Compat::file(File::open(&temp.0).await.unwrap());
        assert_eq!(file.read_u8().await.unwrap(), b'c');
        file.write_all(b"not open to write").await.unwrap();
        let error = file.read_u8().await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(EBADF));
        // No byte was written, so the position is unchanged.
        assert_eq!(file.read_u8().await.unwrap(), b'o');
        assert_eq!(file.seek(SeekFrom::Current(1)).await.unwrap(), 3);
        assert_eq!(file.read_u8().await.unwrap(), b't');
        for _ in 0..2 {
            assert_eq!(file.flush().await.unwrap_err().raw_os_error(), Some(EBADF));
            assert_eq!(file.write(b"x").await.unwrap_err().raw_os_error(), Some(EBADF));
            assert_eq!(file.shutdown().await.unwrap_err().raw_os_error(), Some(EBADF));
        }
        assert_eq!(file.into_file().await.unwrap_err().raw_os_error(), Some(EBADF));
    });
    assert_eq!(temp.bytes(), b"contents");
}

#[test]
fn seeks_that_lead_nowhere() {
    use tokio::io::{AsyncReadExt, AsyncSeek, AsyncSeekExt};

    let temp = Temp::new("nowhere", b"contents");
    block_on(async {
        let mut file = temp.open().await;
        file.seek(SeekFrom::Start(2)).await.unwrap();
        let error = file.seek(SeekFrom::Current(-3)).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(EINVAL));
        assert_eq!(file.read_u8().await.unwrap(), b'n');
        assert_eq!(file.seek(SeekFrom::End(100)).await.unwrap(), 108);
        assert_eq!(file.read(&mut [0; 9]).await.unwrap(), 0);

        // The seek is begun by one call, and ended by the next call of any kind.
        let mut pinned = std::pin::Pin::new(&mut file);
        pinned.as_mut().start_seek(SeekFrom::End(-1)).unwrap();
        assert!(pinned.start_seek(SeekFrom::Start(0)).is_err());
        assert_eq!(file.read_u8().await.unwrap(), b's');

        let fifo = File::from_std(std::os::fd::OwnedFd::from(std::io::pipe().unwrap().0).into());
        let mut fifo = Compat::file(fifo.unwrap());
        let error = fifo.seek(SeekFrom::Start(0)).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(ESPIPE));
    });
}

#[test]
fn dropping_writes_the_rest() {
    let temp = Temp::new("dropped", b"");
    sakia::Runtime::new().unwrap().block_on(async {
        let mut file = temp.open().await;
        let bytes = numbered(200_000);
        tokio::io::AsyncWriteExt::write_all(&mut file, &bytes).await.unwrap();
        drop(file);
        while temp.bytes().len() < 200_000 {
            yield_now().await;
        }
        assert!(temp.bytes() == bytes);
    });
}

#[test]
fn halves_do_not_forget_each_other() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let temp = Temp::new("halves", &numbered(500));
    block_on(async {
        for _ in 0..20 {
            let (mut reading, mut writing) = tokio::io::split(temp.open().await);
            let write = spawn(async move {
                writing.write_all(&numbered(700_000)).await.unwrap();
                writing.flush().await.unwrap();
            });
            // Each read waits for the writer in another task.
            let read = spawn(async move {
                for _ in 0..50 {
                    assert!(reading.read(&mut [0; 10]).await.unwrap() <= 10);
                    yield_now().await;
                }
            });
            write.await.unwrap();
            read.await.unwrap();
        }
    });
}
