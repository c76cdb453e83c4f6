//! Connections for libraries that expect traits of other crates.

use std::cell::Cell;
use std::convert::Infallible;
use std::future::poll_fn;
use std::io::{ErrorKind, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::rc::Rc;

use hyper::service::service_fn;
use hyper::{Request, Response};
use sakia::compat::Compat;
use sakia::compat::hyper::SakiaExecutor;
use sakia::io::BufResultExt;
use sakia::net::{Stream, UnixStream};
use sakia::{join, spawn};

use crate::support::{bytes, echo, on_each_backend, pair, pair_with_std, poll_once};

on_each_backend! {
    code_for_tokio
    code_for_futures
    http_by_hyper
    http_by_hyper_without_buffers
    reads_for_hyper_bring_what_came
    what_a_write_took_is_sent
    a_write_that_is_given_up_has_sent_nothing
    what_the_stream_had_begun_ends_first
    a_closed_direction_leaves_the_other
    both_halves_wait_at_once
    errors_come_when_they_are_there
    a_connection_that_never_waits_lets_others_run
    code_for_futures_without_buffers
}

async fn code_for_tokio() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let (client, server) = pair().await;
    let echoing = spawn(echo(server));
    let mut client = Compat::tcp(client);
    client.write_all(&bytes(10_000)).await.unwrap();
    client.flush().await.unwrap();
    let mut received = vec![0; 10_000];
    client.read_exact(&mut received).await.unwrap();
    assert!(received == bytes(10_000));
    client.write_all(b"the end").await.unwrap();
    client.shutdown().await.unwrap();
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, b"the end");
    echoing.await.unwrap().unwrap();
}

async fn code_for_futures() {
    use futures_util::{AsyncReadExt, AsyncWriteExt};

    let (client, server) = pair().await;
    let echoing = spawn(echo(server));
    let mut client = Compat::tcp(client);
    client.write_all(&bytes(10_000)).await.unwrap();
    client.close().await.unwrap();
    let mut received = Vec::new();
    client.read_to_end(&mut received).await.unwrap();
    assert!(received == bytes(10_000));
    echoing.await.unwrap().unwrap();
}

async fn http_by_hyper() {
    let (client, server) = pair().await;
    let _kept = kept_open(&client);
    http(Compat::tcp(client), Compat::tcp(server)).await;
}

async fn http_by_hyper_without_buffers() {
    let (client, server) = UnixStream::pair().unwrap();
    let _kept = kept_open(&client);
    http(Compat::unbuffered(client), Compat::unbuffered(server)).await;
}

/// Keeps a client's end open: hyper closes its own without waiting for the server's last frame, which would
/// then be written to nobody if the server's task comes late.
fn kept_open(client: &impl AsFd) -> OwnedFd {
    client.as_fd().try_clone_to_owned().unwrap()
}

async fn http(
    client: impl hyper::rt::Read + hyper::rt::Write + Unpin + 'static,
    server: impl hyper::rt::Read + hyper::rt::Write + Unpin + 'static,
) {
    let serving = spawn(async move {
        let service = service_fn(async |request: Request<hyper::body::Incoming>| {
            Ok::<_, Infallible>(Response::new(request.uri().path().to_owned()))
        });
        hyper::server::conn::http2::Builder::new(SakiaExecutor::new())
            .serve_connection(server, service)
            .await
    });
    let executor = SakiaExecutor::new();
    let client = hyper::client::conn::http2::handshake(executor, client).await;
    let (mut sender, connection) = client.unwrap();
    let connection = spawn(connection);
    let request = Request::get("http://example/over/tcp").body(String::new()).unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert!(response.status().is_success());
    drop((sender, response));
    connection.await.unwrap().unwrap();
    serving.await.unwrap().unwrap();
}

/// The bytes pass through the thread's own memory on the way to hyper's buffer: no bytes of another
/// connection may be among them.
async fn reads_for_hyper_bring_what_came() {
    async fn read(stream: impl hyper::rt::Read, room: usize) -> Vec<u8> {
        let mut stream = pin!(stream);
        let mut memory = vec![MaybeUninit::uninit(); room];
        let mut buf = hyper::rt::ReadBuf::uninit(&mut memory);
        poll_fn(|cx| stream.as_mut().poll_read(cx, buf.unfilled())).await.unwrap();
        buf.filled().to_vec()
    }

    let (near, mut far) = UnixStream::pair().unwrap();
    let (other_near, mut other_far) = UnixStream::pair().unwrap();
    let (mut near, mut other_near) = (Compat::unbuffered(near), Compat::unbuffered(other_near));
    far.write_all(bytes(5000)).await.value().unwrap();
    other_far.write_all("few").await.value().unwrap();
    assert_eq!(read(&mut near, 4000).await, bytes(5000)[..4000]);
    assert_eq!(read(&mut other_near, 4000).await, b"few");
    assert_eq!(read(&mut near, 100_000).await, bytes(5000)[4000..]);
    drop(other_far);
    assert_eq!(read(&mut other_near, 4000).await, b"");
}

/// Polls a future once, which must resolve at once.
async fn at_once<F: Future>(future: F) -> F::Output {
    match poll_once(&mut pin!(future)).await {
        std::task::Poll::Ready(output) => output,
        std::task::Poll::Pending => panic!("it waits"),
    }
}

async fn what_a_write_took_is_sent() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let (near, mut far) = std::os::unix::net::UnixStream::pair().unwrap();
    far.set_nonblocking(true).unwrap();
    let mut near = Compat::unbuffered(UnixStream::from_std(near).unwrap());
    at_once(near.write_all(b"at ")).await.unwrap();
    at_once(near.write_vectored(&[b"".as_slice(), b"once"].map(std::io::IoSlice::new)))
        .await
        .unwrap();
    // Neither a turn of the runtime nor a flush is needed.
    let mut received = [0; 7];
    far.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"at once");
    far.write_all(b"and back").unwrap();
    let mut received = [0; 8];
    assert_eq!(at_once(near.read(&mut received)).await.unwrap(), 8);
    assert_eq!(&received, b"and back");
    assert_eq!(near.read(&mut []).await.unwrap(), 0);
    assert!(near.get_ref().get_ref().peer_addr().unwrap().is_unnamed());
    let mut stream = near.into_inner().into_inner();
    stream.write_all("itself").await.value().unwrap();
    let mut received = [0; 6];
    far.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"itself");
}

async fn a_write_that_is_given_up_has_sent_nothing() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let (near, far) = UnixStream::pair().unwrap();
    let (mut near, mut far) = (Compat::unbuffered(near), Compat::unbuffered(far));
    let mut sent = 0;
    let piece = bytes(10_000);
    while let std::task::Poll::Ready(count) = poll_once(&mut pin!(near.write(&piece))).await {
        sent += count.unwrap();
    }
    sakia::yield_now().await;
    let writing = spawn(async move {
        near.write_all(b"the last").await.unwrap();
        near.shutdown().await.unwrap();
        near.shutdown().await.unwrap();
        near.write(b"more").await.unwrap_err().kind()
    });
    let mut received = Vec::new();
    far.read_to_end(&mut received).await.unwrap();
    assert_eq!(received.len(), sent + 8);
    assert!(received.ends_with(b"the last"));
    assert_eq!(writing.await.unwrap(), ErrorKind::BrokenPipe);
}

async fn what_the_stream_had_begun_ends_first() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let (mut near, mut far) = UnixStream::pair().unwrap();
    // A multishot receive is in flight, and has received bytes ahead.
    far.write_all("one ").await.value().unwrap();
    assert_eq!(&*near.recv().await.unwrap(), b"one ");
    far.write_all("two ").await.value().unwrap();
    sakia::yield_now().await;
    // The send is dropped.
    {
        let mut write = pin!(near.write_all(vec![1; 4 << 20]));
        assert!(poll_once(&mut write).await.is_pending());
    }
    let mut near = Compat::unbuffered(near);
    let mut received = [0; 8];
    let reading = async { near.read_exact(&mut received).await.map(|_| near) };
    let (near, sent) = join!(reading, far.write_all("more"));
    assert_eq!(&received, b"two more");
    sent.value().unwrap();
    let mut near = near.unwrap();
    let writing = spawn(async move {
        near.write_all(&[2; 1000]).await.unwrap();
        near.shutdown().await.unwrap();
        near
    });
    let all = far.read_to_end(Vec::new()).await.buffer().unwrap();
    let ones = all.len() - 1000;
    assert!(ones < 4 << 20 && all[..ones].iter().all(|&byte| byte == 1));
    assert!(all[ones..].iter().all(|&byte| byte == 2));
    writing.await.unwrap();
}

async fn a_closed_direction_leaves_the_other() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let (client, mut server) = pair_with_std().await;
    let mut client = Compat::unbuffered(client);
    client.write_all(b"question").await.unwrap();
    client.shutdown().await.unwrap();
    let answering = sakia::spawn_blocking(move || {
        let mut question = String::new();
        server.read_to_string(&mut question).unwrap();
        server.write_all(question.to_uppercase().as_bytes()).unwrap();
    });
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "QUESTION");
    answering.await.unwrap();
    client.flush().await.unwrap();
}

/// Sends back all received bytes, by two tasks.
async fn echo_by_halves<S: Stream>(stream: Compat<sakia::compat::Unbuffered<S>>)
where
    Compat<sakia::compat::Unbuffered<S>>: tokio::io::AsyncRead + tokio::io::AsyncWrite,
{
    let (mut reader, mut writer) = tokio::io::split(stream);
    tokio::io::copy(&mut reader, &mut writer).await.unwrap();
    tokio::io::AsyncWriteExt::shutdown(&mut writer).await.unwrap();
}

async fn both_halves_wait_at_once() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const BYTES: usize = 3 << 20;
    let (client, server) = UnixStream::pair().unwrap();
    let echoing = spawn(echo_by_halves(Compat::unbuffered(server)));
    let (mut reader, mut writer) = tokio::io::split(Compat::unbuffered(client));
    let writing = spawn(async move {
        writer.write_all(&bytes(BYTES)).await.unwrap();
        writer.shutdown().await.unwrap();
    });
    let mut received = Vec::new();
    reader.read_to_end(&mut received).await.unwrap();
    assert!(received == bytes(BYTES));
    writing.await.unwrap();
    echoing.await.unwrap();
}

async fn errors_come_when_they_are_there() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let (client, server) = pair_with_std().await;
    let mut client = Compat::unbuffered(client);
    {
        let mut buf = [0];
        let mut read = pin!(client.read(&mut buf));
        assert!(poll_once(&mut read).await.is_pending());
        crate::support::reset(server);
        assert_eq!(read.await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
    assert_eq!(client.write(b"x").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
    // The shutdown has nothing left to do.
    client.shutdown().await.unwrap();
}

async fn a_connection_that_never_waits_lets_others_run() {
    use tokio::io::AsyncReadExt;

    let (near, mut far) = UnixStream::pair().unwrap();
    far.write_all(bytes(1000)).await.value().unwrap();
    let has_run = Rc::new(Cell::new(false));
    let flag = Rc::clone(&has_run);
    let other = spawn(async move { flag.set(true) });
    let mut near = Compat::unbuffered(near);
    for byte in bytes(1000) {
        assert_eq!(near.read_u8().await.unwrap(), byte);
    }
    assert!(has_run.get());
    other.await.unwrap();
}

async fn code_for_futures_without_buffers() {
    use futures_util::{AsyncReadExt, AsyncWriteExt};

    let (client, server) = pair().await;
    let echoing = spawn(echo(server));
    let mut client = Compat::unbuffered(client);
    client.write_all(&bytes(10_000)).await.unwrap();
    client.close().await.unwrap();
    let (mut one, mut other) = ([0; 10], [0; 20]);
    let mut slices = [&mut one[..], &mut other[..]].map(std::io::IoSliceMut::new);
    let count = client.read_vectored(&mut slices).await.unwrap();
    let mut received = [&one[..], &other[..]].concat()[..count].to_vec();
    client.read_to_end(&mut received).await.unwrap();
    assert!(received == bytes(10_000));
    echoing.await.unwrap().unwrap();
}
