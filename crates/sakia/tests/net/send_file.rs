//! Files sent on streams: ranges, files of every kind, and peers that do not read or have left.

use std::io::{ErrorKind, Read, Write};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::fs::OFlags;
use sakia::fs::{File, OpenOptions};
use sakia::io::{BufResultExt, Reader, Writer, copy};
use sakia::net::{UnixListener, UnixStream};
use sakia::{join, spawn};
use sakia_driver::{OpKind, Policy};
use sakia_testkit::place::announce_skip;

use crate::support::{
    bytes, on_each_backend, pair, pair_with_std, poll_once, reset, runtime, why_no_ring,
};

on_each_backend! {
    ranges_are_sent
    each_kind_of_stream_sends
    much_is_sent_to_a_slow_reader
    a_file_that_becomes_shorter_is_sent_as_far_as_it_goes
    a_file_that_grows_is_sent_as_it_was
    an_empty_file_is_nothing
    a_dropped_send_leaves_a_beginning
    a_peer_that_is_gone_is_told_of
    a_file_that_cannot_be_read_says_so
    files_of_proc_are_sent
    a_fifo_is_sent
    a_direct_file_is_sent
    an_appending_file_is_sent
    streams_of_others_send
    a_file_is_closed_meanwhile
    a_reader_of_a_file_is_copied_to_a_stream
    a_copy_goes_on_where_the_reader_is
    a_copy_of_a_file_that_becomes_shorter_says_so
    a_copy_that_is_dropped_leaves_no_gap
}

/// The path of one test. An existing file is removed.
struct Place(PathBuf);

impl Place {
    fn new(content: &[u8]) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("send-file-{}-{number}", std::process::id());
        let place = Self(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name));
        std::fs::write(&place.0, content).unwrap();
        place
    }

    fn fifo() -> Self {
        let place = Self::new(b"");
        std::fs::remove_file(&place).unwrap();
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &place.0, mode).unwrap();
        place
    }

    async fn open(&self) -> File {
        File::open(&self.0).await.unwrap()
    }
}

impl AsRef<Path> for Place {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).ok();
    }
}

async fn unix_pair() -> (UnixStream, UnixStream) {
    let name = std::env::temp_dir().join(format!("sakia-send-file-{}", std::process::id()));
    let path = Place(name.with_extension(format!("{:?}", std::thread::current().id())));
    let listener = UnixListener::bind(&path).await.unwrap();
    let client = UnixStream::connect(&path).await.unwrap();
    (client, listener.accept().await.unwrap().0)
}

async fn ranges_are_sent() {
    let place = Place::new(b"0123456789");
    let file = place.open().await;
    let (mut client, mut server) = pair().await;
    macro_rules! sends {
        ($($range:expr => $expected:expr;)*) => {$(
            let (result, sent) = server.send_file(&file, $range).await;
            result.unwrap();
            let expected: &str = $expected;
            assert_eq!(sent, expected.len() as u64, "{:?}", $range);
            assert_eq!(client.read_exact(vec![0; expected.len()]).await.1, expected.as_bytes());
        )*};
    }
    #[expect(clippy::reversed_empty_ranges, reason = "it is to be nothing")]
    {
        sends! {
            .. => "0123456789";
            3.. => "3456789";
            ..3 => "012";
            ..=3 => "0123";
            2..4 => "23";
            (Bound::Excluded(2), Bound::Included(4)) => "34";
            0..0 => "";
            7..3 => "";
            8..u64::MAX => "89";
            8..=u64::MAX => "89";
            10.. => "";
            1 << 40..1 << 41 => "";
            1 << 40.. => "";
            u64::MAX..u64::MAX => "";
        }
    }
    let bounds = (Bound::Excluded(u64::MAX), Bound::Included(u64::MAX));
    assert_eq!(server.send_file(&file, bounds).await.1, 0);
    for begin in [1 << 63, u64::MAX - 1] {
        let (result, sent) = server.send_file(&file, begin..u64::MAX).await;
        assert_eq!((result.unwrap_err().kind(), sent), (ErrorKind::InvalidInput, 0));
    }
}

async fn each_kind_of_stream_sends() {
    let place = Place::new(b"hello");
    let file = place.open().await;
    let (mut near, mut far) = unix_pair().await;
    assert_eq!(near.send_file(&file, ..).await.buffer().unwrap(), 5);
    assert_eq!(near.split().1.send_file(&file, 1..).await.buffer().unwrap(), 4);
    let (_reader, mut writer) = near.into_split();
    assert_eq!(writer.send_file(&file, 2..).await.buffer().unwrap(), 3);
    drop(writer);
    assert_eq!(far.read_exact(vec![0; 12]).await.1, b"helloellollo");
    let (near, mut far) = pair().await;
    let (reader, mut writer) = near.into_split();
    assert_eq!(writer.send_file(&file, ..).await.buffer().unwrap(), 5);
    let mut near = reader.reunite(writer).unwrap();
    assert_eq!(near.split().1.send_file(&file, 4..).await.buffer().unwrap(), 1);
    drop(near);
    assert_eq!(far.read_to_end(Vec::new()).await.1, b"helloo");
}

async fn much_is_sent_to_a_slow_reader() {
    let content = bytes(5_000_001);
    let place = Place::new(&content);
    let file = place.open().await;
    let (mut client, mut server) = pair().await;
    let sending = async {
        let sent = server.send_file(&file, 1..).await.buffer().unwrap();
        drop(server);
        sent
    };
    let receiving = async {
        let mut received = Vec::new();
        loop {
            match client.recv().await.unwrap() {
                end if end.is_empty() => break received,
                bytes => received.extend_from_slice(&bytes),
            }
            sakia::yield_now().await;
        }
    };
    let (sent, received) = join!(sending, receiving);
    assert_eq!(sent, 5_000_000);
    assert!(received == content[1..], "other bytes came");
}

/// Sends a file to a peer that reads nothing until the stream is full. Then runs `meanwhile`, and the peer
/// reads. Returns the number of bytes sent, and the bytes received.
async fn with_a_full_stream(
    place: &Place,
    range: impl std::ops::RangeBounds<u64>,
    meanwhile: impl FnOnce(),
) -> (u64, Vec<u8>) {
    let file = place.open().await;
    let (mut client, mut server) = unix_pair().await;
    let mut sending = Box::pin(async move {
        let (result, sent) = server.send_file(&file, range).await;
        result.unwrap();
        sent
    });
    for _ in 0..100 {
        assert!(poll_once(&mut sending).await.is_pending());
        sakia::yield_now().await;
    }
    meanwhile();
    let (sent, (result, received)) = join!(sending, client.read_to_end(Vec::new()));
    result.unwrap();
    (sent, received)
}

async fn a_file_that_becomes_shorter_is_sent_as_far_as_it_goes() {
    let content = bytes(3 << 20);
    for range in
        [(Bound::Unbounded, Bound::Unbounded), (Bound::Unbounded, Bound::Excluded(3 << 20))]
    {
        let place = Place::new(&content);
        let shorten = || {
            let file = std::fs::File::options().write(true).open(&place).unwrap();
            file.set_len(2 << 20).unwrap();
        };
        let (sent, received) = with_a_full_stream(&place, range, shorten).await;
        assert_eq!(sent, received.len() as u64);
        assert_eq!(sent, 2 << 20, "a stream has not so much room");
        assert!(received == content[..2 << 20]);
    }
}

async fn a_file_that_grows_is_sent_as_it_was() {
    let content = bytes(3 << 20);
    let grow = |place: &Place| {
        let mut file = std::fs::File::options().append(true).open(place).unwrap();
        file.write_all(b"and more").unwrap();
    };
    let place = Place::new(&content);
    let (sent, received) = with_a_full_stream(&place, .., || grow(&place)).await;
    assert!((sent, &received) == (3 << 20, &content));
    let place = Place::new(&content);
    let (sent, received) = with_a_full_stream(&place, ..u64::MAX, || grow(&place)).await;
    assert!(sent == (3 << 20) + 8 && received.ends_with(b"and more"));
}

async fn an_empty_file_is_nothing() {
    let place = Place::new(b"");
    let (mut client, mut server) = pair().await;
    for end in [Bound::Unbounded, Bound::Excluded(5)] {
        let file = place.open().await;
        let (result, sent) = server.send_file(&file, (Bound::Included(0), end)).await;
        assert_eq!((result.unwrap(), sent), ((), 0));
    }
    drop(server);
    assert!(client.recv().await.unwrap().is_empty());
}

async fn a_dropped_send_leaves_a_beginning() {
    let content = bytes(8 << 20);
    let place = Place::new(&content);
    let file = place.open().await;
    let (mut client, mut server) = unix_pair().await;
    for _ in 0..100 {
        let mut sending = Box::pin(server.send_file(&file, ..));
        assert!(poll_once(&mut sending).await.is_pending());
        sakia::yield_now().await;
        assert!(poll_once(&mut sending).await.is_pending());
    }
    let writing = async {
        server.write_all("the next").await.value().unwrap();
        drop(server);
    };
    let ((), (_, received)) = join!(writing, client.read_to_end(Vec::new()));
    let mut rest = received.strip_suffix(b"the next").expect("it comes last");
    // Each dropped send has sent a beginning of the file, most of them an empty one.
    while !rest.is_empty() {
        let same = rest.iter().zip(&content).take_while(|(one, other)| one == other).count();
        assert!(same > 0, "other bytes came");
        rest = &rest[same..];
    }
}

async fn a_peer_that_is_gone_is_told_of() {
    let content = bytes(32 << 20);
    let place = Place::new(&content);
    let file = place.open().await;
    let (mut stream, mut peer) = pair_with_std().await;
    {
        let mut sending = Box::pin(stream.send_file(&file, ..));
        assert!(poll_once(&mut sending).await.is_pending());
        peer.read_exact(&mut [0; 1000]).unwrap();
        reset(peer);
        let (result, sent) = sending.await;
        let error = result.unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe),
            "{error}"
        );
        assert!((1000..32 << 20).contains(&sent), "{sent}");
    }
    let (result, sent) = stream.send_file(&file, ..).await;
    assert_eq!((result.unwrap_err().kind(), sent), (ErrorKind::BrokenPipe, 0));
    let (mut near, far) = unix_pair().await;
    far.close().await.unwrap();
    let (result, sent) = near.send_file(&file, ..).await;
    assert_eq!((result.unwrap_err().kind(), sent), (ErrorKind::BrokenPipe, 0));
    let (mut near, _far) = unix_pair().await;
    near.shutdown(std::net::Shutdown::Write).await.unwrap();
    let (result, sent) = near.send_file(&file, ..).await;
    assert_eq!((result.unwrap_err().kind(), sent), (ErrorKind::BrokenPipe, 0));
}

async fn a_file_that_cannot_be_read_says_so() {
    let place = Place::new(b"hello");
    let (_client, mut server) = pair().await;
    let unreadable = OpenOptions::new().write(true).open(&place).await.unwrap();
    let directory = File::open(std::env::temp_dir()).await.unwrap();
    for (file, errno) in [(&unreadable, 9), (&directory, 21)] {
        let (result, sent) = server.send_file(file, ..5).await;
        assert_eq!((result.unwrap_err().raw_os_error(), sent), (Some(errno), 0));
        let (result, sent) = server.send_file(file, ..0).await;
        assert_eq!((result.unwrap(), sent), ((), 0));
    }
}

async fn files_of_proc_are_sent() {
    let (mut client, mut server) = pair().await;
    for path in
        ["/proc/self/cmdline", "/proc/version", "/sys/kernel/mm/transparent_hugepage/enabled"]
    {
        let Ok(expected) = std::fs::read(path) else { continue };
        let file = File::open(path).await.unwrap();
        for begin in [0, 3] {
            let expected = &expected[begin..];
            let sent = server.send_file(&file, begin as u64..).await.buffer().unwrap();
            assert_eq!(sent, expected.len() as u64, "{path}");
            assert_eq!(client.read_exact(vec![0; expected.len()]).await.1, expected, "{path}");
            let sent = server.send_file(&file, begin as u64..4).await.buffer().unwrap();
            assert_eq!(client.read_exact(vec![0; sent as usize]).await.1, expected[..4 - begin]);
        }
    }
}

async fn a_fifo_is_sent() {
    let place = Place::fifo();
    let (mut client, mut server) = pair().await;
    let path = place.0.clone();
    let content = bytes(1 << 20);
    let writing = std::thread::spawn({
        let content = content.clone();
        move || std::fs::File::options().write(true).open(path).unwrap().write_all(&content)
    });
    let file = place.open().await;
    let sending = async {
        let (result, sent) = server.send_file(&file, 7..17).await;
        assert_eq!((result.unwrap(), sent), ((), 10));
        let sent = server.send_file(&file, ..).await.buffer().unwrap();
        assert_eq!(sent, (1 << 20) - 10);
        drop(server);
    };
    let ((), (_, received)) = join!(sending, client.read_to_end(Vec::new()));
    assert!(received == content);
    writing.join().unwrap().unwrap();
}

/// Each poll for the bytes is one wait, not a call in every turn.
#[test]
fn an_empty_fifo_is_waited_for() {
    for policy in [Policy::Uring, Policy::Poll] {
        if policy == Policy::Uring
            && let Some(reason) = why_no_ring()
        {
            announce_skip(concat!(module_path!(), "::an_empty_fifo_is_waited_for"), &reason);
            continue;
        }
        let place = Place::fifo();
        let runtime = runtime(policy);
        runtime.block_on(async {
            let (mut client, mut server) = pair().await;
            let writer = std::fs::File::options().read(true).write(true).open(&place).unwrap();
            let file = place.open().await;
            let mut sending = Box::pin(async move { server.send_file(&file, ..5).await });
            for _ in 0..100 {
                assert!(poll_once(&mut sending).await.is_pending());
                sakia::time::sleep(Duration::from_micros(100)).await;
            }
            let count = runtime.counters().of(OpKind::SendFile);
            assert!(count.inline + count.submitted <= 2, "{policy:?}: {count:?}");
            (&writer).write_all(b"hello").unwrap();
            let (result, sent) = sending.await;
            assert_eq!((result.unwrap(), sent), ((), 5));
            assert_eq!(client.read_exact(vec![0; 5]).await.1, b"hello");
        });
    }
}

async fn a_direct_file_is_sent() {
    let content = bytes(300_001);
    let place = Place::new(&content);
    let file = match OpenOptions::new().read(true).direct(true).open(&place).await {
        Ok(file) => file,
        Err(error) => {
            return sakia_testkit::place::announce_skip("direct files", &error.to_string());
        }
    };
    let (mut client, mut server) = pair().await;
    for range in [0..300_001, 1..2, 4095..8193, 299_999..400_000, 300_001..300_002] {
        let expected = &content[range.start as usize..(range.end as usize).min(content.len())];
        let sending = async { server.send_file(&file, range).await.buffer().unwrap() };
        let (sent, (_, received)) = join!(sending, client.read_exact(vec![0; expected.len()]));
        assert_eq!(sent, expected.len() as u64);
        assert!(received == expected);
    }
}

async fn an_appending_file_is_sent() {
    let place = Place::new(b"hello");
    let file = OpenOptions::new().read(true).append(true).open(&place).await.unwrap();
    let (mut client, mut server) = pair().await;
    assert_eq!(server.send_file(&file, 1..).await.buffer().unwrap(), 4);
    assert_eq!(client.read_exact(vec![0; 4]).await.1, b"ello");
}

/// Sending does not change the mode of foreign streams.
async fn streams_of_others_send() {
    let content = bytes(1 << 20);
    let place = Place::new(&content);
    let file = place.open().await;
    for nonblocking in [false, true] {
        let (near, mut far) = std::os::unix::net::UnixStream::pair().unwrap();
        near.set_nonblocking(nonblocking).unwrap();
        let watch = near.try_clone().unwrap();
        let mut near = UnixStream::from_std(near).unwrap();
        let receiving = std::thread::spawn(move || {
            let mut received = Vec::new();
            far.read_to_end(&mut received).map(|_| received)
        });
        assert_eq!(near.send_file(&file, ..).await.buffer().unwrap(), 1 << 20);
        let mode = rustix::fs::fcntl_getfl(&watch).unwrap();
        assert_eq!(mode.contains(OFlags::NONBLOCK), nonblocking);
        drop((near, watch));
        // The next turn closes the stream.
        sakia::time::sleep(std::time::Duration::from_millis(1)).await;
        assert!(receiving.join().unwrap().unwrap() == content);
    }
}

/// The send keeps the file open as long as it needs it.
async fn a_file_is_closed_meanwhile() {
    let content = bytes(3 << 20);
    let place = Place::new(&content);
    let file = place.open().await;
    let other = file.try_clone().unwrap();
    let (mut client, mut server) = unix_pair().await;
    let sending = spawn(async move { server.send_file(&other, ..).await.buffer() });
    sakia::yield_now().await;
    file.close().await.unwrap();
    assert!(client.read_exact(vec![0; 3 << 20]).await.1 == content);
    assert_eq!(sending.await.unwrap().unwrap(), 3 << 20);
}

async fn a_reader_of_a_file_is_copied_to_a_stream() {
    for len in [0, 1, 65_535, 65_536, 65_537, 3_000_003] {
        let content = bytes(len);
        let place = Place::new(&content);
        let (client, server) = pair().await;
        let (_reader, half) = server.into_split();
        let copying = async {
            let mut writer = Writer::new(half);
            writer.write_all(b"head").await.unwrap();
            let mut reader = Reader::with_depth(place.open().await, 4096, 4);
            assert_eq!(copy(&mut reader, &mut writer).await.unwrap(), len as u64);
            assert_eq!((reader.consumed(), writer.written()), (len as u64, len as u64 + 4));
            // The copy also finds bytes that are appended later.
            let mut file = std::fs::File::options().append(true).open(&place).unwrap();
            file.write_all(b"more").unwrap();
            assert_eq!(copy(&mut reader, &mut writer).await.unwrap(), 4);
            writer.write_all(b"tail").await.unwrap();
            writer.close().await.unwrap();
        };
        let mut client = client;
        let ((), (_, received)) = join!(copying, client.read_to_end(Vec::new()));
        assert!(received == [b"head", &content[..], b"moretail"].concat(), "{len}");
    }
}

async fn a_copy_goes_on_where_the_reader_is() {
    let content = bytes(1 << 20);
    let place = Place::new(&content);
    let file = std::rc::Rc::new(place.open().await);
    for (taken, peeked) in [(0, 1), (1, 0), (4096, 0), (5000, 9000), (100_000, 10)] {
        let (mut client, server) = unix_pair().await;
        let mut reader = Reader::with_depth(std::rc::Rc::clone(&file), 4096, 8);
        let copying = async {
            reader.skip(taken).await.unwrap();
            reader.peek(peeked).await.unwrap();
            let mut writer = Writer::new(server).bound_bytes(100_000);
            let count = copy(&mut reader, &mut writer).await.unwrap();
            assert_eq!(count, (1 << 20) - taken);
            writer.close().await.unwrap();
        };
        let ((), (_, received)) = join!(copying, client.read_to_end(Vec::new()));
        assert!(received == content[taken as usize..], "{taken} {peeked}");
    }
}

async fn a_copy_of_a_file_that_becomes_shorter_says_so() {
    let content = bytes(8 << 20);
    let place = Place::new(&content);
    let (mut client, server) = unix_pair().await;
    let mut reader = Reader::with_depth(place.open().await, 1 << 16, 2);
    let mut writer = Writer::new(server);
    let mut copying = Box::pin(copy(&mut reader, &mut writer));
    for _ in 0..100 {
        assert!(poll_once(&mut copying).await.is_pending());
        sakia::yield_now().await;
    }
    std::fs::File::options().write(true).open(&place).unwrap().set_len(4 << 20).unwrap();
    let receiving = async {
        let mut received = Vec::new();
        while received.len() < 4 << 20 {
            received.extend_from_slice(&client.recv().await.unwrap());
        }
        received
    };
    let (result, received) = join!(copying, receiving);
    assert_eq!(result.unwrap_err().kind(), ErrorKind::UnexpectedEof);
    assert!(received == content[..4 << 20]);
    assert_eq!(writer.written(), 4 << 20);
    assert_eq!(writer.close().await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
}

async fn a_copy_that_is_dropped_leaves_no_gap() {
    let content = bytes(4 << 20);
    let place = Place::new(&content);
    let (mut client, server) = unix_pair().await;
    let mut reader = Reader::with_depth(place.open().await, 1 << 16, 2);
    let copying = async {
        let mut writer = Writer::new(server);
        for _ in 0..100 {
            let mut copying = Box::pin(copy(&mut reader, &mut writer));
            if poll_once(&mut copying).await.is_ready() {
                break;
            }
            sakia::yield_now().await;
        }
        copy(&mut reader, &mut writer).await.unwrap();
        assert_eq!((reader.consumed(), writer.accepted()), (4 << 20, 4 << 20));
        writer.close().await.unwrap();
    };
    let ((), (_, received)) = join!(copying, client.read_to_end(Vec::new()));
    assert!(received == content);
}
