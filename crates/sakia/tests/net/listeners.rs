//! Accepting.

use std::io::ErrorKind;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sakia::net::{ListenOptions, TcpListener, TcpStream};
use sakia::{Runtime, spawn_on};

use crate::support::{assert_echoes, bytes, echo, first_error, on_each_backend, poll_once, run};

on_each_backend! {
    many_are_accepted_at_once
    a_dropped_accept_loses_nobody
    a_listener_goes_to_std_and_back
    a_listener_that_does_not_block_is_taken
    what_does_not_listen_is_refused
    a_closed_listener_refuses
}

async fn many_are_accepted_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut clients = sakia::JoinSet::new();
    for number in 0..100 {
        clients.spawn(async move {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(bytes(number)).await.0.unwrap();
            client.shutdown(std::net::Shutdown::Write).await.unwrap();
            assert!(client.read_to_end(Vec::new()).await.1 == bytes(number));
        });
    }
    let mut echoes = sakia::JoinSet::new();
    for _ in 0..100 {
        echoes.spawn(echo(listener.accept().await.unwrap().0));
    }
    while let Some(outcome) = clients.join_next().await {
        outcome.unwrap();
    }
    while let Some(outcome) = echoes.join_next().await {
        outcome.unwrap().unwrap();
    }
}

async fn a_dropped_accept_loses_nobody() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    for _ in 0..50 {
        let client = {
            let mut accept = pin!(listener.accept());
            assert!(poll_once(&mut accept).await.is_pending());
            let client = TcpStream::connect(address).await.unwrap();
            poll_once(&mut accept).await.map(|accepted| (accepted.unwrap().1, client))
        };
        // The connection arrived for the first accept, or will arrive for the second.
        if let std::task::Poll::Ready((peer, client)) = client {
            assert_eq!(peer, client.local_addr().unwrap());
        }
    }
}

async fn a_listener_goes_to_std_and_back() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    {
        let mut accept = pin!(listener.accept());
        assert!(poll_once(&mut accept).await.is_pending());
    }
    let listener = listener.into_std().await.unwrap();
    let client = TcpStream::connect(address).await.unwrap();
    let (_server, peer) = listener.accept().unwrap();
    assert_eq!(peer, client.local_addr().unwrap());
    let listener = TcpListener::from_std(listener).unwrap();
    let client = TcpStream::connect(address).await.unwrap();
    assert_eq!(listener.accept().await.unwrap().1, client.local_addr().unwrap());
    listener.close().await.unwrap();
}

async fn a_listener_that_does_not_block_is_taken() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let listener = TcpListener::from_std(listener).unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = sakia::spawn(async move { listener.accept().await.unwrap().1 });
    sakia::yield_now().await;
    let client = TcpStream::connect(address).await.unwrap();
    assert_eq!(accepting.await.unwrap(), client.local_addr().unwrap());
}

async fn what_does_not_listen_is_refused() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let fd = std::os::fd::OwnedFd::from(stream);
    let error = TcpListener::from_std(fd.into()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let fd = std::os::fd::OwnedFd::from(listener);
    let error = TcpStream::from_std(fd.into()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotConnected);
}

async fn a_closed_listener_refuses() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    listener.close().await.unwrap();
    let error = first_error(async || TcpStream::connect(address).await).await;
    assert_eq!((error.kind(), error.addresses()), (ErrorKind::ConnectionRefused, &[address][..]));
}

#[test]
fn a_listener_per_thread_on_one_port() {
    let runtime = Runtime::builder().threads(2).build().unwrap();
    runtime.block_on(async {
        let options = ListenOptions::new().reuse_port(true);
        let first = options.bind("127.0.0.1:0").await.unwrap();
        let address = first.local_addr().unwrap();
        let token = sakia::CancellationToken::new();
        let bound = Arc::new(AtomicUsize::new(0));
        let servers: Vec<_> = (0..2)
            .map(|thread| {
                let (stop, bound) = (token.clone(), Arc::clone(&bound));
                spawn_on(thread, move || async move {
                    let listener = options.bind(address).await.unwrap();
                    bound.fetch_add(1, Ordering::Release);
                    let options =
                        sakia::net::ServeOptions::new().stop(async move { stop.canceled().await });
                    sakia::net::serve(listener, options, |stream, _| echo(stream)).await.unwrap()
                })
            })
            .collect();
        // Until both threads listen, one listener would get all connections.
        while bound.load(Ordering::Acquire) < 2 {
            sakia::time::sleep(Duration::from_millis(1)).await;
        }
        // The first listener would get its share of connections and serve none.
        drop(first);
        let mut served = 0;
        // The kernel picks the listener by the client's port, so with this many connections each gets some.
        while served < 64 {
            if let Ok(mut client) = TcpStream::connect(address).await {
                let is_served = client.write_all("x").await.0.is_ok()
                    && client.read_exact(vec![0; 1]).await.0.is_ok();
                served += u64::from(is_served);
            }
        }
        token.cancel();
        let mut accepted = Vec::new();
        for server in servers {
            accepted.push(server.await.unwrap().accepted);
        }
        assert!(accepted.iter().all(|&count| count > 0), "{accepted:?}");
        assert!(accepted.iter().sum::<u64>() >= 64);
    });
}

#[test]
fn nothing_is_left_after_a_server() {
    let server = || async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let options = sakia::net::ServeOptions::new();
        let mut serving = Box::pin(sakia::net::serve(listener, options, |stream, _| echo(stream)));
        let asking = Box::pin(assert_echoes(address));
        sakia::select! {
            _ = &mut serving => panic!("it ended"),
            () = asking => {},
        }
    };
    run(sakia_driver::Policy::Poll, server);
}
