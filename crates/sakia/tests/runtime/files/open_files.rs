//! An open file: offsets, the position, appending, attributes, handing over.

use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, SystemTime};

use rustix::fs::OFlags;
use sakia::fs::{self, Advice, AlignedBuf, File, FileTimes, OpenOptions, Permissions};
use sakia::io::{BufResult, IoBuf, IoBufMut};
use sakia::{Runtime, block_on, spawn};

use super::{Random, TempDir, run};

const SIZE_MAX: usize = 100_000;

/// Files of other kinds. None of the plain calls below waits on them.
fn other_files() -> Vec<(&'static str, std::fs::File)> {
    let (reader, writer) = std::io::pipe().unwrap();
    let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
    let count = rustix::event::eventfd(1, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let set = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
    let process = rustix::process::getpid();
    let process = rustix::process::pidfd_open(process, rustix::process::PidfdFlags::empty());
    let open = |path| std::fs::File::options().read(true).write(true).open(path).unwrap();
    (&writer).write_all(b"12345678").unwrap();
    (&far).write_all(b"12345678").unwrap();
    vec![
        ("read end", std::os::fd::OwnedFd::from(reader).into()),
        ("write end", std::os::fd::OwnedFd::from(writer).into()),
        ("stream", std::os::fd::OwnedFd::from(near).into()),
        ("its peer", std::os::fd::OwnedFd::from(far).into()),
        ("eventfd", count.into()),
        ("epoll set", set.into()),
        ("pidfd", process.unwrap().into()),
        ("/dev/null", open("/dev/null")),
        ("/dev/zero", open("/dev/zero")),
        ("/dev/full", open("/dev/full")),
        ("comm", open("/proc/thread-self/comm")),
        ("directory", std::fs::File::open("/").unwrap()),
    ]
}

#[test]
fn offsets_of_other_files_are_those_of_plain_calls() {
    let told = |result: std::io::Result<usize>| result.map_err(|error| error.raw_os_error());
    run(async || {
        for (name, plain) in other_files() {
            let fd = std::os::fd::OwnedFd::from(plain.try_clone().unwrap());
            let file = File::try_from(fd).unwrap();
            // The next call after an error has the same answer.
            for offset in [0, 3, 0] {
                let expected = told(plain.read_at(&mut [0; 8], offset));
                assert_eq!(told(file.read_at(vec![0; 8], offset).await.0), expected, "{name}");
                let read = file.read_vectored_at(vec![vec![0; 4]; 2], offset).await;
                assert_eq!(told(read.0), expected, "{name}");
                let expected = told(plain.write_at(b"abcdefgh", offset));
                assert_eq!(told(file.write_at("abcdefgh", offset).await.0), expected, "{name}");
                let write = file.write_vectored_at(vec!["abcd", "efgh"], offset).await;
                assert_eq!(told(write.0), expected, "{name}");
            }
        }
        // At the position, as with plain calls.
        for (name, plain) in other_files() {
            let expected = match name {
                "read end" | "stream" | "eventfd" => Ok(8),
                "epoll set" | "pidfd" => Err(Some(rustix::io::Errno::INVAL.raw_os_error())),
                "write end" => Err(Some(rustix::io::Errno::BADF.raw_os_error())),
                _ => continue,
            };
            let mut file = File::try_from(std::os::fd::OwnedFd::from(plain)).unwrap();
            assert_eq!(told(file.read(vec![0; 8]).await.0), expected, "{name}");
        }
    });
}

#[test]
fn empty_vectors_are_read_into_up_to_their_capacity() {
    let dir = TempDir::new();
    std::fs::write(dir.join("file"), b"0123456789").unwrap();
    run(async || {
        let mut file = File::open(dir.join("file")).await.unwrap();
        let (result, mut buf) = file.read(Vec::with_capacity(4)).await;
        assert_eq!((result.unwrap(), &buf[..]), (4, &b"0123"[..]));
        // A vector is cleared before each read, which would otherwise request only its length.
        let mut all = buf.clone();
        loop {
            buf.clear();
            let (result, back) = file.read(buf).await;
            buf = back;
            if result.unwrap() == 0 {
                break;
            }
            all.extend_from_slice(&buf);
        }
        assert_eq!((&all[..], buf.len()), (&b"0123456789"[..], 0));
        let (result, buf) = file.read_exact_at(Vec::with_capacity(6).room(6), 2).await;
        result.unwrap();
        assert_eq!(buf.into_inner(), b"234567");
        // The buffer has the bytes before the end.
        let (result, buf) = file.read_exact_at(Vec::with_capacity(6), 7).await;
        assert_eq!(result.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert_eq!(buf, b"789");
        file.rewind().await.unwrap();
        let (result, buf) = file.read_exact(Vec::with_capacity(10).room(10)).await;
        result.unwrap();
        assert_eq!(buf.into_inner(), b"0123456789");
        let bufs = vec![vec![0; 2], Vec::with_capacity(64)];
        let (result, bufs) = file.read_vectored_at(bufs, 1).await;
        assert_eq!((result.unwrap(), &bufs.concat()[..]), (9, &b"123456789"[..]));
        let (result, buf) = file.read_at(Vec::with_capacity(8), 10).await;
        assert_eq!((result.unwrap(), buf.len()), (0, 0));
    });
}

#[test]
fn without_room_a_read_is_refused_and_to_fill_it_succeeds() {
    let dir = TempDir::new();
    run(async || {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true);
        let mut file = options.open(dir.join("file")).await.unwrap();
        file.write_all("0123").await.0.unwrap();
        file.rewind().await.unwrap();
        let refused = [
            file.read_at(Vec::new(), 0).await.0,
            file.read_at(vec![7; 9].slice(3..3), 0).await.0,
            file.read_at(AlignedBuf::default(), 0).await.0,
            file.read(Vec::new()).await.0,
            file.read_vectored_at(vec![Vec::<u8>::new(); 2], 0).await.0,
        ];
        for result in refused {
            assert_eq!(fs::os_error(&result.unwrap_err()), Some(22));
        }
        file.read_exact_at(Vec::new(), 0).await.0.unwrap();
        file.read_exact_at(Vec::new(), 99).await.0.unwrap();
        file.read_exact(Vec::new()).await.0.unwrap();
        assert_eq!(file.stream_position().await.unwrap(), 0);
        assert_eq!(file.write_at(Vec::new(), 0).await.0.unwrap(), 0);
        assert_eq!(file.write(Vec::with_capacity(8)).await.0.unwrap(), 0);
        file.write_all(Vec::new()).await.0.unwrap();
        file.write_all_at(Vec::new(), 9).await.0.unwrap();
        assert_eq!(file.read_to_end(Vec::new()).await.1, b"0123");
    });
}

#[test]
fn random_positional_programs_give_what_std_gives() {
    let dir = TempDir::new();
    for seed in 1..=20 {
        let (path, model_path) = (dir.join("ours"), dir.join("theirs"));
        block_on(async {
            let mut random = Random(seed);
            let mut open = std::fs::File::options();
            open.read(true).write(true).create(true).truncate(true);
            let model = open.open(&model_path).unwrap();
            let mut ours = OpenOptions::new();
            ours.read(true).write(true).create(true).truncate(true);
            let file = ours.open(&path).await.unwrap();
            for _ in 0..100 {
                let offset = random.below(SIZE_MAX) as u64;
                let len = random.below(20_000);
                match random.below(6) {
                    0 => {
                        let bytes = random.bytes(len);
                        model.write_all_at(&bytes, offset).unwrap();
                        file.write_all_at(bytes, offset).await.0.unwrap();
                    }
                    1 if len > 0 => {
                        let is_capacity = random.below(2) == 0;
                        let buf = if is_capacity { Vec::with_capacity(len) } else { vec![0; len] };
                        let (result, bytes) = file.read_at(buf, offset).await;
                        let mut expected = vec![0; len];
                        let count = model.read_at(&mut expected, offset).unwrap();
                        expected.truncate(if is_capacity { count } else { len });
                        assert_eq!((result.unwrap(), bytes), (count, expected));
                    }
                    2 => {
                        let is_capacity = random.below(2) == 0;
                        let buf = if is_capacity { Vec::with_capacity(len) } else { vec![0; len] };
                        let (result, bytes) = file.read_exact_at(buf, offset).await;
                        let mut expected = vec![0; len];
                        let model = model.read_exact_at(&mut expected, offset);
                        assert_eq!(result.is_ok(), model.is_ok());
                        if let Err(error) = result {
                            assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
                        } else {
                            assert_eq!(bytes, expected);
                        }
                    }
                    3 => {
                        let bufs: Vec<_> = (0..5).map(|_| random.bytes(len / 5)).collect();
                        model.write_all_at(&bufs.concat(), offset).unwrap();
                        file.write_all_vectored_at(bufs, offset).await.0.unwrap();
                    }
                    4 => {
                        let (result, bytes) = file.read_to_end_at(vec![9; 3], offset).await;
                        let mut expected = vec![0; 2 * SIZE_MAX];
                        let count = model.read_at(&mut expected, offset).unwrap();
                        assert_eq!(result.unwrap(), count);
                        assert_eq!(bytes, [&[9; 3], &expected[..count]].concat());
                    }
                    _ => {
                        file.sync_data().await.unwrap();
                        assert_eq!(file.len().await.unwrap(), model.metadata().unwrap().len());
                    }
                }
            }
            file.close().await.unwrap();
        });
        assert_eq!(std::fs::read(&path).unwrap(), std::fs::read(&model_path).unwrap(), "{seed}");
    }
}

#[test]
fn random_programs_at_the_position_give_what_std_gives() {
    let dir = TempDir::new();
    for seed in 1..=20 {
        let (path, model_path) = (dir.join("ours"), dir.join("theirs"));
        let appends = seed % 4 == 0;
        std::fs::write(&path, "begin").unwrap();
        std::fs::write(&model_path, "begin").unwrap();
        block_on(async {
            let mut random = Random(seed);
            let mut open = std::fs::File::options();
            let mut model = open.read(true).write(true).append(appends).open(&model_path).unwrap();
            let mut ours = OpenOptions::new();
            ours.read(true).write(true).append(appends);
            let mut file = ours.open(&path).await.unwrap();
            for step in 0..200 {
                let len = random.below(3000);
                let by = random.below(4000) as i64 - 2000;
                match random.below(6) {
                    0 => {
                        let bytes = random.bytes(len);
                        model.write_all(&bytes).unwrap();
                        file.write_all(bytes).await.0.unwrap();
                    }
                    1 => {
                        let (result, bytes) = file.read(vec![0; len]).await;
                        let mut expected = vec![0; len];
                        let count = model.read(&mut expected).unwrap();
                        assert_eq!((result.unwrap(), bytes), (count, expected));
                    }
                    2 => {
                        let (result, bytes) = file.read_to_end(Vec::new()).await;
                        let mut expected = Vec::new();
                        let count = model.read_to_end(&mut expected).unwrap();
                        assert_eq!((result.unwrap(), bytes), (count, expected));
                    }
                    kind => {
                        let to = [
                            SeekFrom::Start(by.unsigned_abs()),
                            SeekFrom::Current(by),
                            SeekFrom::End(by),
                        ][kind - 3];
                        let (ours, theirs) = (file.seek(to).await, model.seek(to));
                        assert_eq!(
                            ours.as_ref().ok(),
                            theirs.as_ref().ok(),
                            "{seed} {step} {to:?}"
                        );
                        if let (Err(ours), Err(theirs)) = (ours, theirs) {
                            assert_eq!(ours.raw_os_error(), theirs.raw_os_error());
                        }
                    }
                }
                let position = file.stream_position().await.unwrap();
                assert_eq!(position, model.stream_position().unwrap(), "{seed} {step}");
            }
        });
        assert_eq!(std::fs::read(&path).unwrap(), std::fs::read(&model_path).unwrap(), "{seed}");
    }
}

#[test]
fn random_programs_on_streams_give_what_std_gives() {
    for seed in 1..=20 {
        block_on(async {
            let mut random = Random(seed);
            let (mut model, mut model_writer) = std::io::pipe().unwrap();
            let (reader, writer) = std::io::pipe().unwrap();
            let mut file = File::try_from(OwnedFd::from(reader)).unwrap();
            let mut writer = File::try_from(OwnedFd::from(writer)).unwrap();
            let mut left = 0;
            for _ in 0..20 {
                match random.below(4) {
                    0 | 1 => {
                        let len = random.below(3000) + 1;
                        let bytes = random.bytes(len);
                        model_writer.write_all(&bytes).unwrap();
                        left += bytes.len();
                        writer.write_all(bytes).await.0.unwrap();
                    }
                    2 if left > 0 => {
                        let len = random.below(4000) + 1;
                        let (result, bytes) = file.read(vec![0; len]).await;
                        let mut expected = vec![0; len];
                        let count = model.read(&mut expected).unwrap();
                        assert_eq!((result.unwrap(), bytes), (count, expected), "{seed}");
                        left -= count;
                    }
                    3 if left > 0 => {
                        let len = random.below(left) + 1;
                        let (result, bytes) = file.read_exact(vec![0; len]).await;
                        let mut expected = vec![0; len];
                        model.read_exact(&mut expected).unwrap();
                        assert_eq!((result.unwrap(), bytes), ((), expected), "{seed}");
                        left -= len;
                    }
                    _ => {}
                }
            }
            drop(model_writer);
            writer.close().await.unwrap();
            let (result, bytes) = file.read_to_end(vec![9; 3]).await;
            let mut expected = vec![9; 3];
            let count = model.read_to_end(&mut expected).unwrap();
            assert_eq!((result.unwrap(), bytes), (count, expected), "{seed}");
        });
    }
}

#[test]
fn appends_land_at_the_end_and_positional_writes_are_refused() {
    let dir = TempDir::new();
    let path = dir.join("log");
    block_on(async {
        let log = OpenOptions::new().append(true).create(true).open(&path).await.unwrap();
        let other = OpenOptions::new().write(true).open(&path).await.unwrap();
        let mut writers = Vec::new();
        let (log, other) = (std::rc::Rc::new(log), std::rc::Rc::new(other));
        for number in 0..20_u8 {
            // Some writers opened the file to append and some did not: all write at its end.
            let file = std::rc::Rc::clone(if number % 2 == 0 { &log } else { &other });
            writers.push(spawn(async move { file.append(vec![number; 1000]).await.0 }));
        }
        for writer in writers {
            writer.await.unwrap().unwrap();
        }
        let (result, buf) = log.write_at(b"kept".to_vec(), 0).await;
        let error = result.unwrap_err();
        assert_eq!((error.kind(), buf), (ErrorKind::InvalidInput, b"kept".to_vec()));
        assert!(error.to_string().contains("use `append`"), "{error}");
        assert!(log.write_all_at("x", 0).await.0.is_err());
        assert!(log.write_durable_at("x", 0).await.0.is_err());
        assert!(log.write_vectored_at(vec!["x"], 0).await.0.is_err());
    });
    let contents = std::fs::read(&path).unwrap();
    assert_eq!(contents.len(), 20_000);
    let mut seen: Vec<u8> = contents.chunks(1000).map(|chunk| chunk[0]).collect();
    assert!(contents.chunks(1000).all(|chunk| chunk.iter().all(|&byte| byte == chunk[0])));
    seen.sort_unstable();
    assert_eq!(seen, (0..20).collect::<Vec<u8>>());
}

#[test]
fn offsets_that_are_none_are_refused_and_buffers_come_back() {
    let dir = TempDir::new();
    let path = dir.join("file");
    std::fs::write(&path, "text").unwrap();
    fn check<T>((result, buf): BufResult<T, Vec<u8>>) {
        let errno = result.err().unwrap().raw_os_error();
        assert_eq!((errno, buf), (Some(22), b"mine".to_vec()));
    }
    block_on(async {
        let file = OpenOptions::new().read(true).write(true).open(&path).await.unwrap();
        for offset in [1 << 63, u64::MAX] {
            let buf = || b"mine".to_vec();
            check(file.read_at(buf(), offset).await);
            check(file.read_exact_at(buf(), offset).await);
            check(file.read_to_end_at(buf(), offset).await);
            check(file.write_at(buf(), offset).await);
            check(file.write_all_at(buf(), offset).await);
            assert!(file.read_vectored_at(vec![buf()], offset).await.0.is_err());
            assert!(file.write_vectored_at(vec![buf()], offset).await.0.is_err());
        }
        assert_eq!(file.seek_beyond().await, Some(22));
    });
    assert_eq!(std::fs::read(&path).unwrap(), b"text");
}

trait SeekBeyond {
    async fn seek_beyond(self) -> Option<i32>;
}

impl SeekBeyond for File {
    async fn seek_beyond(mut self) -> Option<i32> {
        self.seek(SeekFrom::Start(u64::MAX)).await.unwrap_err().raw_os_error()
    }
}

#[test]
fn vectored_writes_of_many_buffers_are_whole() {
    let dir = TempDir::new();
    let path = dir.join("file");
    let mut random = Random(3);
    // More buffers than the kernel takes at once, some of them empty.
    let bufs: Vec<_> = (0..3000).map(|at| random.bytes(at % 7)).collect();
    let back = block_on(async {
        let file = File::create(&path).await.unwrap();
        let (result, back) = file.write_all_vectored_at(bufs.clone(), 10).await;
        result.unwrap();
        let (result, none) = file.write_all_vectored_at(Vec::<Vec<u8>>::new(), 0).await;
        result.unwrap();
        assert!(none.is_empty());
        back
    });
    assert_eq!(back, bufs);
    assert_eq!(std::fs::read(&path).unwrap()[10..], bufs.concat());
    block_on(async {
        let file = File::open(&path).await.unwrap();
        let (result, parts) = file.read_vectored_at(vec![vec![0; 100], vec![0; 50]], 10).await;
        assert_eq!(result.unwrap(), 150);
        assert_eq!(parts.concat(), bufs.concat()[..150]);
    });
}

#[test]
fn clones_share_the_position_and_close_apart() {
    let dir = TempDir::new();
    let path = dir.join("file");
    std::fs::write(&path, "0123456789").unwrap();
    block_on(async {
        let mut file = File::open(&path).await.unwrap();
        let (_, bytes) = file.read(vec![0; 3]).await;
        assert_eq!(bytes, b"012");
        let mut clone = file.try_clone().unwrap();
        assert_eq!(clone.read(vec![0; 2]).await.1, b"34");
        assert_eq!(file.read(vec![0; 2]).await.1, b"56");
        let mut third = clone.try_clone().unwrap();
        file.close().await.unwrap();
        third.seek(SeekFrom::Current(1)).await.unwrap();
        assert_eq!(clone.read(vec![0; 5]).await.0.unwrap(), 2);
    });
}

#[test]
fn files_come_from_std_and_go_back() {
    let dir = TempDir::new();
    let path = dir.join("file");
    std::fs::write(&path, "0123456789").unwrap();
    block_on(async {
        let mut file = std::fs::File::open(&path).unwrap();
        file.seek(SeekFrom::Start(4)).unwrap();
        let mut file = File::from_std(file).unwrap();
        assert_eq!(file.read(vec![0; 2]).await.1, b"45");
        // A dropped operation still holds the descriptor.
        let mut read = Box::pin(file.read_at(vec![0; 4096], 0));
        let _ =
            std::future::poll_fn(|cx| std::task::Poll::Ready(read.as_mut().poll(cx).is_pending()))
                .await;
        drop(read);
        let mut file = file.into_std().await.unwrap();
        assert_eq!(file.stream_position().unwrap(), 6);
        let mut rest = String::new();
        file.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "6789");

        let (reader, writer) = std::io::pipe().unwrap();
        rustix::io::ioctl_fionbio(reader.as_fd(), true).unwrap();
        let mut reader = File::try_from(std::os::fd::OwnedFd::from(reader)).unwrap();
        let mut writer = File::try_from(std::os::fd::OwnedFd::from(writer)).unwrap();
        let writing = spawn(async move {
            sakia::yield_now().await;
            writer.write_all("through").await.0.unwrap();
            writer.into_std().await.unwrap()
        });
        let (result, bytes) = reader.read(vec![0; 7]).await;
        assert_eq!((result.unwrap(), &bytes[..]), (7, &b"through"[..]));
        assert_eq!(reader.seek(SeekFrom::Start(0)).await.unwrap_err().raw_os_error(), Some(29));
        let mut writer = writing.await.unwrap();
        let mut reader = reader.into_std().await.unwrap();
        let flags = rustix::fs::fcntl_getfl(&reader).unwrap();
        assert!(!flags.contains(OFlags::NONBLOCK));
        writer.write_all(b"plain").unwrap();
        let mut plain = [0; 5];
        reader.read_exact(&mut plain).unwrap();
        assert_eq!(&plain, b"plain");
    });
}

#[test]
fn metadata_is_what_std_says() {
    let dir = TempDir::new();
    let path = dir.join("file");
    std::fs::write(&path, "some text").unwrap();
    std::os::unix::fs::symlink("file", dir.join("link")).unwrap();
    block_on(async {
        for name in ["file", "link", "."] {
            let path = dir.join(name);
            for (ours, theirs) in [
                (fs::metadata(&path).await.unwrap(), std::fs::metadata(&path).unwrap()),
                (
                    fs::symlink_metadata(&path).await.unwrap(),
                    std::fs::symlink_metadata(&path).unwrap(),
                ),
            ] {
                assert_eq!(ours.len(), theirs.len());
                assert_eq!(ours.is_dir(), theirs.is_dir());
                assert_eq!(ours.is_file(), theirs.is_file());
                assert_eq!(ours.is_symlink(), theirs.is_symlink());
                assert_eq!(ours.mode(), theirs.mode());
                assert_eq!(ours.permissions(), Permissions::from(theirs.permissions()));
                assert_eq!((ours.dev(), ours.ino()), (theirs.dev(), theirs.ino()));
                assert_eq!((ours.nlink(), ours.blocks()), (theirs.nlink(), theirs.blocks()));
                assert_eq!((ours.uid(), ours.gid()), (theirs.uid(), theirs.gid()));
                assert_eq!(ours.rdev(), theirs.rdev());
                assert_eq!(ours.blksize(), theirs.blksize());
                assert_eq!(ours.modified().unwrap(), theirs.modified().unwrap());
                assert_eq!(ours.created().ok(), theirs.created().ok());
            }
        }
    });
    let null = block_on(fs::metadata("/dev/null")).unwrap();
    assert_eq!(null.rdev(), std::fs::metadata("/dev/null").unwrap().rdev());
    assert!(null.file_type().is_char_device());
}

#[test]
fn length_room_permissions_and_times() {
    let dir = TempDir::new();
    let path = dir.join("file");
    run(async || {
        let file = File::create_new(&path).await.unwrap();
        file.write_all_at(vec![7; 10_000], 0).await.0.unwrap();
        file.set_len(5000).await.unwrap();
        file.set_len(20_000).await.unwrap();
        let (result, bytes) = file.read_to_end_at(Vec::new(), 0).await;
        assert_eq!(result.unwrap(), 20_000);
        assert!(bytes[..5000] == [7; 5000] && bytes[5000..] == [0; 15_000]);
        match file.allocate(0..1 << 20).await {
            Ok(()) => {
                let metadata = file.metadata().await.unwrap();
                assert!(metadata.len() == 1 << 20 && metadata.blocks() >= 2048);
                file.punch_hole(0..1 << 20).await.unwrap();
                let metadata = file.metadata().await.unwrap();
                assert!(metadata.len() == 1 << 20 && metadata.blocks() < 2048);
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unsupported),
        }
        for advice in [Advice::Sequential, Advice::Random, Advice::WillNeed, Advice::DontNeed] {
            file.advise(0..u64::MAX, advice).await.unwrap();
            file.advise(4096..8192, advice).await.unwrap();
        }
        file.set_permissions(Permissions::from_mode(0o640)).await.unwrap();
        let times = [1_000_000_000, 2_000_000_000]
            .map(|seconds| SystemTime::UNIX_EPOCH + Duration::new(seconds, 500_000_000));
        let set = FileTimes::new().set_accessed(times[0]).set_modified(times[1]);
        file.set_times(set).await.unwrap();
        let metadata = file.metadata().await.unwrap();
        assert_eq!(metadata.permissions().mode(), 0o640);
        assert_eq!(metadata.accessed().unwrap(), times[0]);
        assert_eq!(metadata.modified().unwrap(), times[1]);
        file.set_modified(times[0]).await.unwrap();
        assert_eq!(file.metadata().await.unwrap().modified().unwrap(), times[0]);
        assert_eq!(file.metadata().await.unwrap().accessed().unwrap(), times[0]);
        fs::set_permissions(&path, Permissions::from_mode(0o600)).await.unwrap();
        assert_eq!(fs::metadata(&path).await.unwrap().mode() & 0o7777, 0o600);
        fs::set_times(&path, FileTimes::new().set_modified(times[1])).await.unwrap();
        assert_eq!(fs::metadata(&path).await.unwrap().modified().unwrap(), times[1]);
    });
}

#[test]
fn locks_keep_others_out_and_wait() {
    let dir = TempDir::new();
    let path = dir.join("file");
    run(async || {
        let first = File::create(&path).await.unwrap();
        let second = File::open(&path).await.unwrap();
        first.lock().await.unwrap();
        let busy = second.try_lock_shared().await.unwrap_err();
        assert!(matches!(busy, std::fs::TryLockError::WouldBlock));
        let theirs = std::fs::File::open(&path).unwrap();
        assert!(theirs.try_lock().is_err());
        let waiting = spawn(async move {
            second.lock_shared().await.unwrap();
            second
        });
        sakia::yield_now().await;
        assert!(!waiting.is_finished());
        first.unlock().await.unwrap();
        let second = waiting.await.unwrap();
        first.lock_shared().await.unwrap();
        assert!(matches!(first.try_lock().await, Err(std::fs::TryLockError::WouldBlock)));
        second.close().await.unwrap();
        first.try_lock().await.unwrap();
    });
}

#[test]
fn durable_writes_are_whole() {
    let dir = TempDir::new();
    let path = dir.join("file");
    let bytes = Random(5).bytes(100_001);
    block_on(async {
        let file = File::create(&path).await.unwrap();
        let (result, back) = file.write_durable_at(bytes, 3).await;
        result.unwrap();
        file.sync_all().await.unwrap();
        assert_eq!(std::fs::read(&path).unwrap()[3..], back);
    });
}

#[test]
fn parts_of_buffers_come_back_whole() {
    let dir = TempDir::new();
    let path = dir.join("file");
    block_on(async {
        let mut file = OpenOptions::new();
        let mut file = file.read(true).write(true).create(true).open(&path).await.unwrap();
        let (result, slice) = file.write_all(b"abcdef".to_vec().slice(2..5)).await;
        result.unwrap();
        assert_eq!(slice.into_inner(), b"abcdef");
        file.rewind().await.unwrap();
        let (result, slice) = file.read_exact(vec![b'-'; 5].slice(1..4)).await;
        result.unwrap();
        assert_eq!(slice.into_inner(), b"-cde-");
        let (result, buf) = file.read_exact(vec![b'-'; 2]).await;
        assert_eq!(result.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert_eq!(buf, b"--");
    });
}

#[test]
fn after_the_runtime_operations_end() {
    let dir = TempDir::new();
    let path = dir.join("file");
    std::fs::write(&path, "text").unwrap();
    let runtime = Runtime::new().unwrap();
    let file = runtime.block_on(File::open(&path)).unwrap();
    drop(runtime);
    let (result, buf) = block_on(file.read_at(vec![5; 3], 0));
    assert_eq!((result.unwrap_err().raw_os_error(), buf), (Some(125), vec![5; 3]));
    assert_eq!(block_on(file.sync_all()).unwrap_err().raw_os_error(), Some(125));
    assert_eq!(format!("{file:?}").split(' ').next(), Some("File"));
}
