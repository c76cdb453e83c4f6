//! Support for the tests.

use std::future::{Future, poll_fn};
use std::net::{SocketAddr, UdpSocket};
use std::pin::Pin;
use std::process::{Command, Output, Stdio};
use std::task::Poll;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType};
use sakia::Runtime;
use sakia::net::{TcpListener, TcpStream};
use sakia_driver::Policy;
use sakia_ring::Ring;
use sakia_testkit::settings::patience;

/// Makes tests of these functions, on each backend. Each function runs within its own runtime. Its test
/// hangs if tasks are left that do not end.
macro_rules! on_each_backend {
    ($($name:ident)*) => {
        mod uring {
            $(
                #[test]
                fn $name() {
                    if let Some(reason) = crate::support::why_no_ring() {
                        return sakia_testkit::place::announce_skip(
                            concat!(module_path!(), "::", stringify!($name)), &reason,
                        );
                    }
                    crate::support::run(sakia_driver::Policy::Uring, super::$name);
                }
            )*
        }
        mod poll {
            $(
                #[test]
                fn $name() {
                    crate::support::run(sakia_driver::Policy::Poll, super::$name);
                }
            )*
        }
    };
}
pub(crate) use on_each_backend;

/// Returns the reason why this machine has no ring, or `None` if it has one.
pub fn why_no_ring() -> Option<String> {
    Ring::builder().build().err().map(|error| error.to_string())
}

pub fn runtime(policy: Policy) -> Runtime {
    Runtime::builder().backend(policy).build().unwrap()
}

pub fn run<F: Future<Output = ()>>(policy: Policy, test: impl FnOnce() -> F) {
    let runtime = runtime(policy);
    runtime.block_on(async {
        test().await;
        // Tasks that are dropped at the end of the test end in later turns.
        while runtime.live_tasks() > 0 {
            sakia::time::sleep(Duration::from_millis(1)).await;
        }
    });
    let counters = runtime.counters();
    assert_eq!((counters.leaked, counters.stale), (0, 0));
}

/// Returns the ends of a connection: the client's and the accepted one.
pub async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (server, peer) = listener.accept().await.unwrap();
    assert_eq!(peer, client.local_addr().unwrap());
    (client, server)
}

/// Returns a connection whose peer is a socket of `std`: calls on it take effect at once.
pub async fn pair_with_std() -> (TcpStream, std::net::TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (listener.accept().await.unwrap().0, client)
}

/// Closes a connection so that its peer sees a reset.
pub fn reset(stream: std::net::TcpStream) {
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    drop(stream);
}

/// Returns an address on which no socket listens. A socket stays bound to it, so that no other test gets
/// the port.
pub fn address_without_listener(address: &str) -> SocketAddr {
    let address: SocketAddr = address.parse().unwrap();
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket(family, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &address).unwrap();
    let bound = rustix::net::getsockname(&socket).unwrap();
    std::mem::forget(socket);
    bound.try_into().unwrap()
}

/// Returns a bound socket that rejects all datagrams (`ECONNREFUSED` for a connected sender) until it is
/// connected to their sender: it is its own peer.
///
/// The port of a closed socket could be given to another test, and a child that another test forks may keep
/// the socket open for a moment.
pub fn rejecting(address: &str) -> UdpSocket {
    let socket = UdpSocket::bind(address).unwrap();
    socket.connect(socket.local_addr().unwrap()).unwrap();
    socket
}

/// Calls `attempt` until it fails, and returns the error: a child that another test forks may keep a socket
/// open for a moment after it was closed.
pub async fn first_error<T, E>(mut attempt: impl AsyncFnMut() -> Result<T, E>) -> E {
    let begin = Instant::now();
    loop {
        match attempt().await {
            Err(error) => return error,
            Ok(_) => assert!(begin.elapsed() < patience(), "it does not fail"),
        }
        sakia::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Polls a future once, with the caller's waker.
pub async fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(Pin::new(&mut *future).poll(cx))).await
}

pub fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|index| (index * 7 % 251) as u8).collect()
}

/// Sends back all received bytes.
pub async fn echo(mut stream: TcpStream) -> std::io::Result<()> {
    loop {
        let bytes = stream.recv().await?;
        if bytes.is_empty() {
            return Ok(());
        }
        stream.write_all(bytes).await.0?;
    }
}

/// Asserts that the server at this address sends bytes back.
pub async fn assert_echoes(address: SocketAddr) {
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all("there?").await.0.unwrap();
    assert_eq!(client.read_exact(vec![0; 6]).await.1, b"there?");
}

const SCENE: &str = "SAKIA_NET_SCENE";

/// Returns the arguments that play a scene: an ignored test of this binary, in its own process.
pub fn scene_arguments(scene: &str) -> Vec<String> {
    let name = format!("scenes::{scene}");
    [&name, "--exact", "--ignored", "--nocapture"].map(str::to_owned).into()
}

/// Returns the backend of this process's scene. `None` in other processes, even if ignored tests are asked
/// for.
pub fn scene_policy() -> Option<Policy> {
    match std::env::var(SCENE).ok()?.as_str() {
        "poll" => Some(Policy::Poll),
        _ => Some(Policy::Uring),
    }
}

/// Adds the variables that a process needs to play a scene on this backend.
pub fn as_scene(command: &mut Command, policy: Policy) -> &mut Command {
    command.env(SCENE, if policy == Policy::Poll { "poll" } else { "uring" }).stderr(Stdio::piped())
}

#[track_caller]
pub fn assert_played(output: &Output) {
    let [stdout, stderr] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    assert!(output.status.success(), "{}\n{stdout}\n{stderr}", output.status);
    assert!(stdout.contains("1 passed"), "there is no such scene\n{stdout}");
}

/// Plays a scene in its own process.
#[track_caller]
pub fn play(scene: &str, policy: Policy) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(scene_arguments(scene)).stdout(Stdio::piped());
    assert_played(&as_scene(&mut command, policy).output().unwrap());
}
