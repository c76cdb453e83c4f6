//! Pipes and the standard streams.

use std::future::{Future, poll_fn};
use std::io::{ErrorKind, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::task::Poll;

use sakia::io::{PipeReader, PipeWriter, pipe, stderr, stdin, stdout};
use sakia::process::{Command, Stdio};
use sakia::{Runtime, block_on, spawn};
use sakia_testkit::children::wait_until_closed;

/// Returns the writing end of a pipe without a reader, not even one in a child that another test has
/// started.
pub fn unread_pipe() -> PipeWriter {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    wait_until_closed(&writer);
    PipeWriter::from_fd(writer.into())
}

async fn assert_pending<F: Future>(mut future: std::pin::Pin<&mut F>) {
    poll_fn(|cx| {
        assert!(future.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
}

#[test]
fn a_lot_goes_through_in_order() {
    const BYTES: usize = 3 << 20;
    block_on(async {
        let (mut reader, mut writer) = pipe().unwrap();
        let sent: Vec<u8> = (0..BYTES).map(|index| (index % 251) as u8).collect();
        let writing = spawn(async move {
            let (result, sent) = writer.write_all(sent).await;
            result.unwrap();
            writer.close().await.unwrap();
            sent
        });
        let (result, received) = reader.read_to_end(b"kept ".to_vec()).await;
        assert_eq!(result.unwrap(), BYTES);
        assert_eq!(&received[..5], b"kept ");
        assert!(received[5..] == writing.await.unwrap());
        reader.close().await.unwrap();
    });
}

#[test]
fn a_read_takes_what_is_there() {
    block_on(async {
        let (mut reader, mut writer) = pipe().unwrap();
        writer.write("abc").await.0.unwrap();
        let (result, buf) = reader.read(vec![b'.'; 5]).await;
        assert_eq!((result.unwrap(), &buf[..]), (3, &b"abc.."[..]));
        drop(writer);
        let (result, buf) = reader.read(buf).await;
        assert_eq!((result.unwrap(), buf.len()), (0, 5));
    });
}

#[test]
fn empty_buffers_come_back() {
    block_on(async {
        let (mut reader, mut writer) = pipe().unwrap();
        writer.write_all(Vec::new()).await.0.unwrap();
        assert_eq!(writer.write(Vec::new()).await.0.unwrap(), 0);
        assert_eq!(reader.read(Vec::new()).await.0.unwrap_err().raw_os_error(), Some(22));
    });
}

#[test]
fn an_empty_vector_is_read_into_up_to_its_capacity() {
    block_on(async {
        let (mut reader, mut writer) = pipe().unwrap();
        writer.write_all("hello").await.0.unwrap();
        let (result, mut buf) = reader.read(Vec::with_capacity(64)).await;
        assert_eq!((result.unwrap(), &buf[..]), (5, &b"hello"[..]));
        // Without a clear, the read requests only the vector's length.
        writer.write_all("and more").await.0.unwrap();
        let (result, back) = reader.read(buf).await;
        assert_eq!((result.unwrap(), &back[..]), (5, &b"and m"[..]));
        buf = back;
        buf.clear();
        let (result, buf) = reader.read(buf).await;
        assert_eq!((result.unwrap(), &buf[..]), (3, &b"ore"[..]));
        drop(writer);
        let (result, buf) = reader.read(Vec::with_capacity(64)).await;
        assert_eq!((result.unwrap(), buf.len()), (0, 0));
    });
}

#[test]
fn without_a_reader_the_buffer_comes_back_with_the_error() {
    block_on(async {
        let (result, buf) = unread_pipe().write_all("unread").await;
        assert_eq!(result.unwrap_err().kind(), ErrorKind::BrokenPipe);
        assert_eq!(buf, "unread");
    });
}

#[test]
fn the_wrong_end_tells() {
    block_on(async {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut reversed = PipeReader::from_fd(writer.into());
        let (result, buf) = reversed.read_to_end(b"kept".to_vec()).await;
        assert_eq!(result.unwrap_err().raw_os_error(), Some(9)); // EBADF
        assert_eq!(buf, b"kept");
        let mut reversed = PipeWriter::from_fd(reader.into());
        assert!(reversed.write("x").await.0.is_err());
    });
}

#[test]
fn a_dropped_read_takes_nothing_that_comes_later() {
    block_on(async {
        let (mut reader, mut writer) = pipe().unwrap();
        for _ in 0..100 {
            drop(reader.read(vec![0; 8])); // not begun
            let mut read = Box::pin(reader.read(vec![0; 8]));
            assert_pending(read.as_mut()).await;
            drop(read);
        }
        // Cancellations are submitted before later operations.
        writer.write_all("later").await.0.unwrap();
        let (result, buf) = reader.read(vec![0; 8]).await;
        assert_eq!(&buf[..result.unwrap()], b"later");
    });
}

#[test]
fn a_dropped_write_frees_its_buffer_in_the_end() {
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let (mut reader, mut writer) = pipe().unwrap();
        let mut write = Box::pin(writer.write_all(vec![7; 1 << 20]));
        assert_pending(write.as_mut()).await;
        drop(write);
        drop(writer);
        let (result, bytes) = reader.read_to_end(Vec::new()).await;
        assert!(result.unwrap() < 1 << 20);
        assert!(bytes.iter().all(|&byte| byte == 7));
    });
}

#[test]
fn closing_ends_the_other_side() {
    block_on(async {
        let (mut reader, writer) = pipe().unwrap();
        let mut read = pin!(reader.read(vec![0; 8]));
        assert_pending(read.as_mut()).await;
        writer.close().await.unwrap();
        assert_eq!(read.await.0.unwrap(), 0);
    });
}

#[test]
fn non_blocking_pipes_wait_all_the_same() {
    block_on(async {
        let (reader, writer) = std::io::pipe().unwrap();
        let (reader, writer): (OwnedFd, OwnedFd) = (reader.into(), writer.into());
        for end in [&reader, &writer] {
            rustix::io::ioctl_fionbio(end.as_fd(), true).unwrap();
        }
        let (mut reader, mut writer) = (PipeReader::from_fd(reader), PipeWriter::from_fd(writer));
        let writing = spawn(async move { writer.write_all(vec![1; 1 << 20]).await.0 });
        let (result, _) = reader.read_to_end(Vec::new()).await;
        assert_eq!(result.unwrap(), 1 << 20);
        writing.await.unwrap().unwrap();
    });
}

#[test]
fn files_are_read_at_their_position() {
    block_on(async {
        let file = std::fs::File::open("/proc/self/comm").unwrap();
        let mut reader = PipeReader::from_fd(file.into());
        let (first, _) = reader.read(vec![0; 1]).await;
        assert_eq!(first.unwrap(), 1);
        let (result, rest) = reader.read_to_end(Vec::new()).await;
        let whole = std::fs::read("/proc/self/comm").unwrap();
        assert_eq!(rest, whole[1..]);
        assert_eq!(result.unwrap(), whole.len() - 1);
    });
}

#[test]
fn standard_streams_can_be_closed_and_stay_open() {
    block_on(async {
        for _ in 0..2 {
            let (mut out, mut err) = (stdout().unwrap(), stderr().unwrap());
            out.write_all("").await.0.unwrap();
            err.write_all("").await.0.unwrap();
            out.close().await.unwrap();
            err.close().await.unwrap();
            stdin().unwrap().close().await.unwrap();
        }
        std::io::stdout().flush().unwrap();
    });
}

/// Copies standard input to standard output. Another test starts this one as a program.
#[test]
fn copies_standard_input_when_asked() {
    if std::env::var_os("SAKIA_TEST_COPY").is_none() {
        return; // the tests that ask are below
    }
    block_on(async {
        let (result, bytes) = stdin().unwrap().read_to_end(Vec::new()).await;
        result.unwrap();
        stdout().unwrap().write_all(bytes).await.0.unwrap();
    });
}

/// Returns the command that runs this program as a copier.
fn copier(output: impl Into<Stdio>) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "pipes::copies_standard_input_when_asked", "--nocapture"]);
    command.env("SAKIA_TEST_COPY", "1").stdout(output);
    command
}

/// Returns the copier's output, without the test harness's own.
fn copied(output: &[u8]) -> Option<&[u8]> {
    let position = |mark: &[u8]| output.windows(mark.len()).position(|window| window == mark);
    output.get(position(b"<begin>")? + 7..position(b"<end>")?)
}

#[test]
fn pipes_as_standard_streams() {
    block_on(async {
        let mut child = copier(Stdio::piped()).stdin(Stdio::piped()).spawn().unwrap();
        let mut writer = child.stdin.take().unwrap();
        let text = [b"<begin>".to_vec(), vec![b'x'; 1 << 20], b"<end>".to_vec()].concat();
        let writing = spawn(async move { writer.write_all(text).await.0 });
        let output = child.wait_with_output().await.unwrap();
        writing.await.unwrap().unwrap();
        assert!(output.status.success());
        let copied = copied(&output.stdout).unwrap();
        assert!(copied.len() == 1 << 20 && copied.iter().all(|&byte| byte == b'x'));
    });
}

#[test]
fn files_as_standard_streams() {
    let name = format!("standard-{}", std::process::id());
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let (from, to) = (path.with_extension("in"), path.with_extension("out"));
    std::fs::write(&from, "skipped <begin>content<end>").unwrap();
    std::fs::write(&to, "kept ").unwrap();
    let status = block_on(async {
        let mut input = std::fs::File::open(&from).unwrap();
        input.seek(SeekFrom::Start(8)).unwrap();
        let output = std::fs::File::options().append(true).open(&to).unwrap();
        copier(output).stdin(input).status().await.unwrap()
    });
    let written = std::fs::read(&to).unwrap();
    std::fs::remove_file(from).unwrap();
    std::fs::remove_file(to).unwrap();
    assert!(status.success() && written.starts_with(b"kept "));
    assert_eq!(copied(&written), Some(&b"content"[..]));
}

#[test]
fn after_the_runtime_the_buffer_comes_back() {
    let runtime = Runtime::new().unwrap();
    let (mut reader, mut writer) = runtime.block_on(async { pipe() }).unwrap();
    drop(runtime);
    let (result, buf) = block_on(reader.read(vec![5; 3]));
    assert_eq!((result.unwrap_err().raw_os_error(), buf), (Some(125), vec![5; 3]));
    let (result, buf) = block_on(writer.write_all("text"));
    assert_eq!((result.unwrap_err().raw_os_error(), buf), (Some(125), "text"));
}
