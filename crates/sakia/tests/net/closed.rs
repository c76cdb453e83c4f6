//! A dropped object is closed there and then, before its thread has another turn: listeners, streams, halves,
//! datagrams, pipes and [`Async`], whether or not the kernel still has an accept, a receive or a poll of
//! theirs.
//!
//! Each look at the other side is by a plain call of this thread, so that no turn is taken meanwhile.

use std::future::{Future, poll_fn};
use std::io::{ErrorKind, Read, Write};
use std::net as plain;
use std::os::unix::net as plain_unix;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use sakia::io::{Async, PipeReader, PipeWriter, pipe};
use sakia::net::{
    ServeOptions, TcpListener, TcpStream, UdpSocket, UnixDatagram, UnixListener, UnixStream, serve,
};
use sakia::{CancellationToken, Runtime, spawn, yield_now};
use sakia_driver::{Policy, Streams};

use crate::support::{pair_with_std, poll_once};

/// Calls a test on each backend, and with each way of streams.
fn on_each(test: impl AsyncFn()) {
    for (policy, streams) in [
        (Policy::Auto, Streams::Queue),
        (Policy::Auto, Streams::Readiness),
        (Policy::Poll, Streams::Queue),
    ] {
        let runtime = Runtime::builder().backend(policy).streams(streams).build().unwrap();
        runtime.block_on(test());
        // Nothing is left in flight.
        runtime.run_once(Duration::ZERO).unwrap();
        assert_eq!((runtime.live_operations(), runtime.in_flight()), (0, 0), "{policy:?}");
    }
}

/// Polls a future once, and lets the kernel have what it has started.
async fn begin<F: Future>(future: F) {
    let mut future = pin!(future);
    assert!(poll_once(&mut future).await.is_pending(), "it waits");
    turns().await;
}

/// Gives the driver some turns.
async fn turns() {
    for _ in 0..3 {
        yield_now().await;
    }
    sakia::time::sleep(Duration::from_micros(50)).await;
}

#[test]
fn an_address_of_a_listener_is_free_and_refuses_clients() {
    on_each(async || {
        let mut address = "127.0.0.1:0".parse().unwrap();
        for accepts in [0, 1, 2] {
            // Without `SO_REUSEADDR` of the next one it would be in use.
            let listener = TcpListener::bind(address).await.unwrap();
            address = listener.local_addr().unwrap();
            for number in 0..accepts {
                let client = plain::TcpStream::connect(address).unwrap();
                drop(listener.accept().await.unwrap());
                assert_eq!((&client).read(&mut [0]).unwrap(), 0, "{number}");
            }
            if accepts == 2 {
                begin(listener.accept()).await;
            }
            drop(listener);
            let error = plain::TcpStream::connect(address).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{accepts}");
            plain::TcpListener::bind(address).unwrap();
        }
    });
}

#[test]
fn connections_that_were_accepted_ahead_are_closed_too() {
    on_each(async || {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        begin(listener.accept()).await;
        let clients: Vec<_> = (0..3).map(|_| plain::TcpStream::connect(address).unwrap()).collect();
        turns().await;
        drop(listener);
        for mut client in clients {
            assert_closed(client.read(&mut [0]));
        }
    });
}

/// The end, or a reset.
#[track_caller]
fn assert_closed(read: std::io::Result<usize>) {
    match read {
        Ok(count) => assert_eq!(count, 0),
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
}

/// Returns a connected pair. The far end blocks, and this thread with it: only a drop may have closed the
/// near one. The kernel may need a moment to tell.
async fn tcp_pair() -> (TcpStream, plain::TcpStream) {
    let (near, far) = pair_with_std().await;
    far.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    (near, far)
}

#[test]
fn a_peer_sees_the_end_of_a_dropped_stream() {
    on_each(async || {
        for state in 0..5 {
            let (mut near, mut far) = tcp_pair().await;
            match state {
                0 => {}
                // A receive is armed: the one that brought the byte goes on.
                1 => {
                    far.write_all(b"x").unwrap();
                    assert_eq!(&*near.recv().await.unwrap(), b"x");
                    turns().await;
                }
                // Its future was dropped.
                2 => begin(near.recv()).await,
                3 => begin(near.read(vec![0; 10])).await,
                // It was never given to the kernel.
                _ => {
                    let mut recv = Box::pin(near.recv());
                    assert!(poll_once(&mut recv).await.is_pending());
                }
            }
            near.write_all("answer").await.0.unwrap();
            drop(near);
            let mut got = Vec::new();
            far.read_to_end(&mut got).unwrap_or_else(|error| panic!("{state}: {error}"));
            assert_eq!(got, b"answer", "{state}");
        }
    });
}

#[test]
fn a_peer_of_unix_sockets_sees_the_end() {
    on_each(async || {
        let name = format!("sakia-closed-{}-{:?}", std::process::id(), std::thread::current().id());
        let path = std::env::temp_dir().join(name);
        std::fs::remove_file(&path).ok();
        let listener = UnixListener::bind(&path).await.unwrap();
        begin(listener.accept()).await;
        let far = plain_unix::UnixStream::connect(&path).unwrap();
        let (mut near, _) = listener.accept().await.unwrap();
        begin(near.recv()).await;
        drop(near);
        assert_eq!((&far).read(&mut [0]).unwrap(), 0);
        begin(listener.accept()).await;
        drop(listener);
        let error = plain_unix::UnixStream::connect(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        // A pair.
        let (mut one, mut other) = UnixStream::pair().unwrap();
        begin(one.recv()).await;
        drop(one);
        // Without a turn the result of this plain try is all there is.
        assert_eq!(other.read(vec![0; 1]).await.0.unwrap(), 0);
    });
}

#[test]
fn the_last_half_closes() {
    on_each(async || {
        for writer_first in [false, true] {
            let (near, mut far) = tcp_pair().await;
            let (mut reader, mut writer) = near.into_split();
            begin(reader.recv()).await;
            writer.write_all("x").await.0.unwrap();
            if writer_first {
                drop(writer);
                drop(reader);
            } else {
                drop(reader);
                drop(writer);
            }
            let mut got = Vec::new();
            far.read_to_end(&mut got).unwrap();
            assert_eq!(got, b"x");
        }
    });
}

#[test]
fn an_address_of_datagrams_is_free() {
    on_each(async || {
        let mut address = "127.0.0.1:0".parse().unwrap();
        for state in 0..5 {
            let socket = UdpSocket::bind(address).await.unwrap();
            address = socket.local_addr().unwrap();
            let sender = plain::UdpSocket::bind("127.0.0.1:0").unwrap();
            sender.send_to(b"x", address).unwrap();
            match state {
                0 => {}
                1 => assert_eq!(socket.recv(vec![0; 9]).await.0.unwrap(), 1),
                // Datagrams are received ahead.
                2 => {
                    assert_eq!(socket.recv_datagram().await.unwrap().bytes.len(), 1);
                    turns().await;
                }
                3 => {
                    assert_eq!(socket.recv(vec![0; 9]).await.0.unwrap(), 1);
                    begin(socket.recv(vec![0; 9])).await;
                }
                _ => {
                    assert_eq!(socket.recv_from(vec![0; 9]).await.0.unwrap().0, 1);
                    begin(socket.peek(vec![0; 9])).await;
                    begin(socket.recv_datagram()).await;
                }
            }
            drop(socket);
            plain::UdpSocket::bind(address).unwrap_or_else(|error| panic!("{state}: {error}"));
        }
        let (near, far) = UnixDatagram::pair().unwrap();
        begin(near.recv(vec![0; 9])).await;
        drop(near);
        let error = far.send("x").await.0.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    });
}

/// Returns the ends of a pipe, one of them as the standard library has it.
fn pipes() -> ((PipeReader, std::io::PipeWriter), (std::io::PipeReader, PipeWriter)) {
    let (reader, writer) = std::io::pipe().unwrap();
    let (other_reader, other_writer) = std::io::pipe().unwrap();
    (
        (PipeReader::from_fd(reader.into()), writer),
        (other_reader, PipeWriter::from_fd(other_writer.into())),
    )
}

#[test]
fn the_other_end_of_a_pipe_sees_the_end() {
    on_each(async || {
        for state in 0..2 {
            let ((mut reader, mut far_writer), (mut far_reader, mut writer)) = pipes();
            match state {
                0 => {}
                _ => {
                    begin(reader.read(vec![0; 9])).await;
                    writer.write_all(vec![0; 1 << 10]).await.0.unwrap();
                    begin(writer.write_all(vec![0; 1 << 20])).await;
                }
            }
            drop((reader, writer));
            let error = far_writer.write(b"x").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{state}");
            far_reader.read_to_end(&mut Vec::new()).unwrap();
        }
        // Both ends are the runtime's.
        let (mut reader, writer) = pipe().unwrap();
        drop(writer);
        assert_eq!(reader.read(vec![0; 1]).await.0.unwrap(), 0);
    });
}

#[test]
fn what_async_waits_for_is_closed_with_it() {
    on_each(async || {
        let (near, mut far) = plain_unix::UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let near = Async::new(near).unwrap();
        begin(near.readable()).await;
        drop(near);
        assert_eq!(far.read(&mut [0]).unwrap(), 0);
    });
}

#[test]
fn serve_and_an_awaited_abort_have_closed_before_they_resolve() {
    on_each(async || {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let token = CancellationToken::new();
        let stopped = token.clone();
        let options = ServeOptions::new().stop(async move { stopped.canceled().await });
        let handle = async |mut stream: TcpStream, _| stream.recv().await.map(|_| ());
        let serving = spawn(serve(listener, options, handle));
        let client = plain::TcpStream::connect(address).unwrap();
        turns().await;
        drop(client);
        token.cancel();
        assert!(serving.await.unwrap().is_ok());
        plain::TcpListener::bind(address).unwrap();

        let listener = TcpListener::bind(address).await.unwrap();
        let accepting = spawn(async move { listener.accept().await.map(|_| ()) });
        turns().await;
        accepting.abort();
        assert!(accepting.await.unwrap_err().is_canceled());
        plain::TcpListener::bind(address).unwrap();
    });
}

/// A handler that answers, drops its stream, and then computes does not hold up its peer.
#[test]
fn a_drop_within_a_task_needs_no_turn() {
    on_each(async || {
        let (mut near, mut far) = tcp_pair().await;
        let peer = std::thread::spawn(move || {
            far.write_all(b"?").unwrap();
            let mut answer = String::new();
            far.read_to_string(&mut answer).unwrap();
            answer
        });
        assert_eq!(&*near.recv().await.unwrap(), b"?");
        near.write_all("!").await.0.unwrap();
        drop(near);
        assert_eq!(peer.join().unwrap(), "!", "this thread waits for its peer");
    });
}

/// The first drop brings the end of the other's receive, too.
#[test]
fn objects_that_are_dropped_together_are_all_closed() {
    on_each(async || {
        let mut pairs = Vec::new();
        for _ in 0..3 {
            pairs.push(tcp_pair().await);
        }
        let (mut reader, writer) = pipe().unwrap();
        let (piped, mut far_writer) = std::io::pipe().unwrap();
        let mut piped = PipeReader::from_fd(piped.into());
        let (mut nears, fars): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let reads = nears.iter_mut().map(|near| Box::pin(near.read(vec![0; 9])));
        let mut reads: Vec<_> = reads.collect();
        let mut from_pipe = Box::pin(piped.read(vec![0; 9]));
        poll_fn(|cx| {
            assert!(reads.iter_mut().all(|read| read.as_mut().poll(cx).is_pending()));
            assert!(from_pipe.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        turns().await;
        drop((reads, from_pipe));
        drop((nears, piped));
        for mut far in fars {
            assert_eq!(far.read(&mut [0]).unwrap(), 0);
        }
        assert_eq!(far_writer.write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
        drop(writer);
        assert_eq!(reader.read(vec![0; 1]).await.0.unwrap(), 0);
    });
}

#[test]
fn a_listener_that_never_had_a_turn_is_closed() {
    for policy in [Policy::Auto, Policy::Poll] {
        let runtime = Runtime::builder().backend(policy).build().unwrap();
        runtime.block_on(async {
            let std = plain::TcpListener::bind("127.0.0.1:0").unwrap();
            let address = std.local_addr().unwrap();
            let listener = TcpListener::from_std(std).unwrap();
            let mut accept = Box::pin(listener.accept());
            assert!(poll_once(&mut accept).await.is_pending());
            drop(accept);
            drop(listener);
            plain::TcpListener::bind(address).unwrap();
        });
    }
}

/// Other tasks are woken by what a drop brings them, though their thread sleeps next.
#[test]
fn a_drop_loses_no_wake_of_another_task() {
    on_each(async || {
        for _ in 0..20 {
            let (mut near, _far) = tcp_pair().await;
            let (mut other, mut other_far) = tcp_pair().await;
            let waits = spawn(async move { other.recv().await.unwrap().len() });
            begin(near.recv()).await;
            other_far.write_all(b"x").unwrap();
            let (sender, receiver) = async_channel::bounded(1);
            let wakes = spawn(async move { receiver.recv().await.unwrap() });
            yield_now().await;
            std::thread::spawn(move || sender.try_send(7).unwrap()).join().unwrap();
            drop(near);
            assert_eq!((wakes.await.unwrap(), waits.await.unwrap()), (7, 1));
        }
    });
}

/// A foreign loop is told of what comes while it drops an object between two runs.
#[test]
fn a_drop_between_runs_of_a_foreign_loop_hides_nothing() {
    use rustix::event::{PollFd, PollFlags, poll};
    for policy in [Policy::Auto, Policy::Poll] {
        let runtime = Runtime::builder().backend(policy).build().unwrap();
        let pollable = runtime.pollable().unwrap();
        let (mut near, mut other, mut far) = runtime.block_on(async {
            let (mut near, _) = tcp_pair().await;
            begin(near.recv()).await;
            let (other, far) = tcp_pair().await;
            (near, other, far)
        });
        let waits = runtime.spawn(async move { other.recv().await.unwrap().len() });
        while runtime.run_once(Duration::ZERO).unwrap() {}
        far.write_all(b"x").unwrap();
        drop(std::mem::replace(&mut near, runtime.block_on(async { tcp_pair().await.0 })));
        while runtime.run_once(Duration::ZERO).unwrap() {}
        // Again, without a run after the drop.
        let waits_again = {
            let (mut other, mut far) = runtime.block_on(tcp_pair());
            let task = runtime.spawn(async move { other.recv().await.unwrap().len() });
            runtime.block_on(begin(near.recv()));
            while runtime.run_once(Duration::ZERO).unwrap() {}
            far.write_all(b"xy").unwrap();
            drop(near);
            let begin = Instant::now();
            while !task.is_finished() {
                assert!(begin.elapsed() < Duration::from_secs(20), "{policy:?}");
                let patience = rustix::time::Timespec { tv_sec: 20, tv_nsec: 0 };
                let count = poll(&mut [PollFd::new(&pollable, PollFlags::IN)], Some(&patience));
                assert_eq!(count.unwrap(), 1, "{policy:?}");
                while runtime.run_once(Duration::ZERO).unwrap() {}
            }
            task
        };
        assert_eq!(runtime.block_on(waits).unwrap(), 1);
        assert_eq!(runtime.block_on(waits_again).unwrap(), 2);
    }
}

/// A socket that lingers is closed by the queue, since its close may wait.
#[test]
fn a_drop_does_not_linger() {
    const LINGER: Option<Duration> = Some(Duration::from_secs(3));
    on_each(async || {
        let listener = plain::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let near = TcpStream::connect(address).await.unwrap();
        near.set_linger(LINGER).unwrap();
        let mut pairs = vec![(near, listener.accept().unwrap().0)];
        // It is inherited by those that are accepted, one by one or ahead.
        rustix::net::sockopt::set_socket_linger(&listener, LINGER).unwrap();
        let listener = TcpListener::from_std(listener).unwrap();
        for _ in 0..2 {
            let connect = || plain::TcpStream::connect(address).unwrap();
            let fars = [connect(), connect()];
            turns().await;
            for far in fars {
                pairs.push((listener.accept().await.unwrap().0, far));
            }
            begin(listener.accept()).await;
        }
        for (number, (mut near, far)) in pairs.into_iter().enumerate() {
            // More than the peer's buffers hold: the close would wait. Not by the descriptor, which would be
            // known to be in other hands.
            let fill = async { while near.write(vec![0; 65536]).await.0.is_ok() {} };
            sakia::time::timeout(Duration::from_millis(5), fill).await.unwrap_err();
            turns().await;
            let begin = Instant::now();
            drop(near);
            // No assertion on speed: such a close takes three seconds.
            assert!(begin.elapsed() < Duration::from_secs(2), "{number}");
            drop(far); // ends the wait
        }
    });
}
