//! Bytes of connections, received by all methods, which are dropped at any time.

use std::future::Future;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use proptest::prelude::*;
use rustix::fs::MemfdFlags;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use sakia::fs::File;
use sakia::net::{ControlMessages, UnixStream};
use sakia_driver::Policy;

use super::pipes::{Event, byte, during};
use super::{check, must, on_backends};
use crate::support::pair;

on_backends! {
    bytes_of_tcp_come_in_order
    bytes_of_unix_streams_come_in_order
    bytes_of_tcp_leave_in_order
    bytes_of_unix_streams_leave_in_order
}

/// The most bytes of a receive.
const LEN_MAX: usize = 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receive {
    Read(usize),
    ReadCapacity(usize),
    ReadVectored(usize, usize),
    ReadExact(usize),
    Recv,
    Peek(usize),
    RecvMessage(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Send {
    Write(usize),
    WriteVectored(usize),
    WriteAll(usize),
    File(usize),
    Message(usize),
}

/// The way to reach the stream.
#[derive(Clone, Copy, Debug)]
enum Split {
    None,
    Borrowed,
    Owned,
}

/// A call and the events during it.
#[derive(Clone, Debug)]
struct Call<M> {
    method: M,
    split: Split,
    events: Vec<Event>,
    is_dropped: bool,
}

/// The end of the bytes.
#[derive(Clone, Copy, Debug)]
enum End {
    ShutdownByPeer,
    ShutdownOfReceives,
    ToStd,
}

fn calls<M: std::fmt::Debug + Clone + 'static>(
    method: impl Strategy<Value = M> + 'static,
    bytes_max: usize,
) -> impl Strategy<Value = Vec<Call<M>>> {
    let event = prop_oneof![
        2 => Just(Event::Poll),
        3 => (1..bytes_max).prop_map(Event::Other),
        2 => (1u8..4).prop_map(Event::Turns),
    ];
    let events = prop::collection::vec(event, 0..6);
    let split = prop_oneof![Just(Split::None), Just(Split::Borrowed), Just(Split::Owned)];
    let call = (method, split, events, any::<bool>());
    let call = call.prop_map(|(method, split, events, is_dropped)| Call {
        method,
        split,
        events,
        is_dropped,
    });
    prop::collection::vec(call.boxed(), 0..30)
}

fn receives() -> impl Strategy<Value = Vec<Call<Receive>>> {
    let len = || 1..LEN_MAX;
    let method = prop_oneof![
        2 => len().prop_map(Receive::Read),
        2 => len().prop_map(Receive::ReadCapacity),
        1 => (len(), 1usize..4).prop_map(|(len, count)| Receive::ReadVectored(len, count)),
        1 => len().prop_map(Receive::ReadExact),
        4 => Just(Receive::Recv),
        2 => len().prop_map(Receive::Peek),
        1 => len().prop_map(Receive::RecvMessage),
    ];
    calls(method.boxed(), 40)
}

fn sends() -> impl Strategy<Value = Vec<Call<Send>>> {
    let len = || prop_oneof![1usize..100, 1000usize..300_000];
    let method = prop_oneof![
        3 => len().prop_map(Send::Write),
        1 => len().prop_map(Send::WriteVectored),
        2 => len().prop_map(Send::WriteAll),
        1 => len().prop_map(Send::File),
        1 => len().prop_map(Send::Message),
    ];
    calls(method.boxed(), 100_000)
}

/// Calls `$call` on the stream, or on a half of it.
macro_rules! on_half {
    ($stream:ident, $split:expr, $half:tt, |$it:ident| $call:expr) => {
        match $split {
            Split::None => {
                let $it = &mut $stream;
                $call
            }
            Split::Borrowed => {
                let $it = &mut $stream.split().$half;
                $call
            }
            Split::Owned => {
                let mut halves = $stream.into_split();
                let result = {
                    let $it = &mut halves.$half;
                    $call
                };
                $stream = halves.0.reunite(halves.1).unwrap();
                result
            }
        }
    };
}

/// The receiving methods of a type of stream.
macro_rules! receive {
    ($stream:ident, $call:expr, $write:expr, |$it:ident, $len:ident| $message:expr) => {{
        let call = &$call;
        on_half!($stream, call.split, 0, |$it| match call.method {
            Receive::Read($len) => {
                let read = async { filled($it.read(vec![0; $len]).await) };
                received(call, Box::pin(read), &mut $write).await
            }
            Receive::ReadCapacity($len) => {
                let read = async { filled($it.read(Vec::with_capacity($len)).await) };
                received(call, Box::pin(read), &mut $write).await
            }
            Receive::ReadVectored($len, count) => {
                let read = async {
                    let (result, bufs) = $it.read_vectored(vec![vec![0; $len]; count]).await;
                    filled((result, bufs.concat()))
                };
                received(call, Box::pin(read), &mut $write).await
            }
            Receive::ReadExact($len) => {
                // A dropped one loses the bytes that it has read.
                let call = Call { is_dropped: false, ..call.clone() };
                let read = async { filled($it.read_exact(vec![0; $len]).await.map_len($len)) };
                received(&call, Box::pin(read), &mut $write).await
            }
            Receive::Recv => {
                let read = async { $it.recv().await.unwrap().to_vec() };
                received(call, Box::pin(read), &mut $write).await
            }
            Receive::Peek($len) => {
                let read = async { filled($it.peek(vec![0; $len]).await) };
                received(call, Box::pin(read), &mut $write).await
            }
            Receive::RecvMessage($len) => {
                let read = async { filled($message) };
                received(call, Box::pin(read), &mut $write).await
            }
        })
    }};
}

trait MapLen {
    fn map_len(self, len: usize) -> (std::io::Result<usize>, Vec<u8>);
}

impl MapLen for (std::io::Result<()>, Vec<u8>) {
    fn map_len(self, len: usize) -> (std::io::Result<usize>, Vec<u8>) {
        (self.0.map(|()| len), self.1)
    }
}

/// Returns the bytes that a receive has brought.
fn filled((result, mut buf): (std::io::Result<usize>, Vec<u8>)) -> Vec<u8> {
    buf.truncate(result.unwrap());
    buf
}

/// Polls a receive as the events of its call say, and then has enough bytes come for it. Resolves to its
/// output, unless the call drops it.
async fn received<M, F: Future + Unpin>(
    call: &Call<M>,
    future: F,
    write: &mut impl FnMut(usize),
) -> Option<F::Output> {
    match during(&call.events, call.is_dropped, future, &mut *write).await {
        Ok(output) => Some(output),
        Err(None) => None,
        Err(Some(future)) => {
            write(LEN_MAX);
            Some(must("a receive", future).await)
        }
    }
}

/// Polls a send as the events of its call say, and then makes room for it. Resolves to its output, unless
/// the call drops it.
async fn sent<M, F: Future + Unpin>(
    call: &Call<M>,
    future: F,
    read: &mut impl FnMut(usize),
) -> Option<F::Output> {
    match during(&call.events, call.is_dropped, future, &mut *read).await {
        Ok(output) => Some(output),
        Err(None) => None,
        Err(Some(mut future)) => {
            let served = async {
                loop {
                    read(1);
                    let pause = Duration::from_millis(1);
                    if let Ok(output) = sakia::time::timeout(pause, &mut future).await {
                        return output;
                    }
                }
            };
            Some(must("a send", served).await)
        }
    }
}

/// Sends bytes of the stream by plain calls of its peer.
struct Feed {
    peer: OwnedFd,
    sent: usize,
}

impl Feed {
    fn of(peer: &impl AsFd) -> Self {
        Self { peer: peer.as_fd().try_clone_to_owned().unwrap(), sent: 0 }
    }

    fn send(&mut self, count: usize) {
        let bytes: Vec<u8> = (self.sent..self.sent + count).map(byte).collect();
        self.sent += send(&self.peer, &bytes, SendFlags::DONTWAIT).unwrap_or(0);
    }
}

/// Checks a receive's bytes. Returns the number of bytes received after it.
fn check_received(call: &Call<Receive>, received: usize, bytes: &[u8]) -> usize {
    assert!(!bytes.is_empty(), "no end");
    let expected: Vec<u8> = (received..received + bytes.len()).map(byte).collect();
    assert_eq!(bytes, expected, "{:?}", call.method);
    if matches!(call.method, Receive::Peek(_)) { received } else { received + bytes.len() }
}

/// Makes a test of receives on a type of stream.
macro_rules! received_in_order {
    ($near:expr, $far:expr, $calls:expr, $end:expr, |$it:ident, $len:ident| $message:expr) => {{
        let (mut near, far) = ($near, $far);
        let mut feed = Feed::of(&far);
        let mut count = 0;
        for call in $calls {
            let mut write = |count: usize| feed.send(count);
            let bytes = receive!(near, call, write, |$it, $len| $message);
            if let Some(bytes) = bytes {
                count = check_received(&call, count, &bytes);
            }
        }
        let end: End = $end;
        if matches!(end, End::ShutdownOfReceives) {
            // Bytes that have come by then are received.
            near.shutdown(Shutdown::Read).await.unwrap();
        }
        rustix::net::shutdown(&feed.peer, rustix::net::Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        match end {
            End::ToStd => {
                let (mut std, ahead) = must("the stream for std", near.into_std()).await.unwrap();
                std.set_nonblocking(false).unwrap();
                rest = ahead;
                std.read_to_end(&mut rest).unwrap();
            }
            _ => {
                let (result, bytes) = must("the end", near.read_to_end(rest)).await;
                rest = bytes;
                assert_eq!(result.unwrap(), rest.len());
                assert!(near.recv().await.unwrap().is_empty(), "after the end");
            }
        }
        let expected: Vec<u8> = (count..feed.sent).map(byte).collect();
        assert_eq!(rest, expected);
    }};
}

fn ends() -> impl Strategy<Value = End> {
    prop_oneof![Just(End::ShutdownByPeer), Just(End::ShutdownOfReceives), Just(End::ToStd)]
}

fn bytes_of_tcp_come_in_order(policy: Policy) {
    check(policy, (receives(), ends()), |(calls, end)| async move {
        let (near, far) = pair().await;
        received_in_order!(near, far, calls, end, |it, len| it.read(vec![0; len]).await);
    });
}

fn bytes_of_unix_streams_come_in_order(policy: Policy) {
    check(policy, (receives(), ends()), |(calls, end)| async move {
        let (near, far) = UnixStream::pair().unwrap();
        received_in_order!(near, far, calls, end, |it, len| {
            let (result, buf) = it.recv_message(vec![0; len], 64).await;
            (result.map(|(count, _)| count), buf)
        });
    });
}

/// Returns a file with these bytes.
fn file_of(bytes: &[u8]) -> File {
    let memory = rustix::fs::memfd_create("bytes", MemfdFlags::CLOEXEC).unwrap();
    let mut file = std::fs::File::from(memory);
    file.write_all(bytes).unwrap();
    File::try_from(OwnedFd::from(file)).unwrap()
}

/// Makes a test of sends on a type of stream. Each send has bytes of its own: those of one that has ended are
/// all received, those of a dropped one in part, and before those of the next.
macro_rules! sent_in_order {
    ($near:expr, $far:expr, $calls:expr, |$it:ident, $bytes:ident| $message:expr) => {{
        let (mut near, far) = ($near, $far);
        let peer = far.as_fd().try_clone_to_owned().unwrap();
        let mut all = Vec::new();
        let mut take = |count: usize| {
            let mut buf = vec![0; count];
            let count = recv(&peer, &mut buf, RecvFlags::DONTWAIT).map_or(0, |(count, _)| count);
            all.extend_from_slice(&buf[..count]);
        };
        // The least and the most bytes of each send.
        let mut bounds = Vec::new();
        for (number, call) in $calls.iter().enumerate() {
            let (Send::Write(len)
            | Send::WriteVectored(len)
            | Send::WriteAll(len)
            | Send::File(len)
            | Send::Message(len)) = call.method;
            let $bytes = vec![byte(number); len];
            let mut other = |count: usize| take(count.max(1 << 16));
            let ended = on_half!(near, call.split, 1, |$it| match call.method {
                Send::Write(_) => {
                    let write = async { $it.write($bytes).await.0.unwrap() };
                    sent(call, Box::pin(write), &mut other).await
                }
                Send::WriteVectored(_) => {
                    let parts = $bytes.chunks(len.div_ceil(2)).map(<[u8]>::to_vec);
                    let parts: Vec<Vec<u8>> = parts.collect();
                    let write = async { $it.write_vectored(parts).await.0.unwrap() };
                    sent(call, Box::pin(write), &mut other).await
                }
                Send::WriteAll(_) => {
                    let write = async { $it.write_all($bytes).await.0.map(|()| len).unwrap() };
                    sent(call, Box::pin(write), &mut other).await
                }
                Send::File(_) => {
                    let file = file_of(&$bytes);
                    let send = async {
                        let (result, sent) = $it.send_file(&file, ..).await;
                        result.unwrap();
                        sent as usize
                    };
                    sent(call, Box::pin(send), &mut other).await
                }
                Send::Message(_) => {
                    let send = async { $message.unwrap() };
                    sent(call, Box::pin(send), &mut other).await
                }
            });
            bounds.push(ended.map_or((0, len), |count| (count, count)));
        }
        must("the shutdown", async {
            let mut shutdown = Box::pin(near.shutdown(Shutdown::Write));
            loop {
                take(1 << 20);
                let pause = Duration::from_millis(1);
                if let Ok(result) = sakia::time::timeout(pause, &mut shutdown).await {
                    return result.unwrap();
                }
            }
        })
        .await;
        let mut far = far.into_std().await.unwrap().0;
        far.set_nonblocking(false).unwrap();
        far.read_to_end(&mut all).unwrap();
        let mut rest = &all[..];
        for (number, (least, most)) in bounds.into_iter().enumerate() {
            let count = rest.iter().take_while(|&&other| other == byte(number)).count();
            assert!((least..=most).contains(&count), "{count} of send {number}: {least} to {most}");
            rest = &rest[count..];
        }
        assert_eq!(rest.len(), 0, "bytes that overtook others, or came twice");
    }};
}

fn bytes_of_tcp_leave_in_order(policy: Policy) {
    check(policy, sends(), |calls| async move {
        let (near, far) = pair().await;
        sent_in_order!(near, far, calls, |it, bytes| it.write(bytes).await.0);
    });
}

fn bytes_of_unix_streams_leave_in_order(policy: Policy) {
    check(policy, sends(), |calls| async move {
        let (near, far) = UnixStream::pair().unwrap();
        sent_in_order!(near, far, calls, |it, bytes| {
            it.send_message(bytes, ControlMessages::new()).await.0
        });
    });
}
