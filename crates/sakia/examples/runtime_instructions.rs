//! Performs one kind of operation in a runtime and nothing else, for counting instructions.
//!
//! `cargo xtask instructions` runs this under callgrind, twice per operation with different counts, so
//! that the difference is the cost of the operations alone. All are done by tasks, one after another; those
//! of `echo` in rounds, with one request on each connection.
//!
//! The client of `echo` is this program again, in a process of its own. A round is the same each time: every
//! task waits for its connection, and the server's thread stops until all requests have arrived. So the
//! count depends neither on the client's speed nor on the machine's load.
//!
//! Those of `datagrams` come in rounds, too, of so many at a time, from a plain socket of this thread, whose
//! calls are counted along.
//!
//! `echo-no-tasks` is the limit program of `echo`: the same rounds on the same driver, whose results are
//! taken without a runtime, a task or a waker. So its count is that of the driver alone, on a ring.
//!
//! Usage: `runtime_instructions DRIVER OPERATION COUNT`, with the driver `uring` or `poll`, and the operation
//! `yield`, `spawn`, `read-at FILE`, `read-at-uncached FILE`, `read FILE`, `datagrams IN-FLIGHT`,
//! `echo CONNECTIONS` or `echo-no-tasks CONNECTIONS`, whose argument comes last.

use std::cell::Cell;
use std::error::Error;
use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::pin::pin;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use futures_util::task::AtomicWaker;
use rustix::event::{PollFd, PollFlags, poll};
use sakia::Runtime;
use sakia::fs::{self, File};
use sakia::io::BufResultExt;
use sakia::net;
use sakia_driver::{Driver, Policy, Streams, Wait};

const BLOCK_BYTES: usize = 4096;
const MESSAGE_BYTES: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let ["client", address, connections] = arguments[..] {
        return Ok(client(address.parse()?, connections.parse()?)?);
    }
    let [driver, operation, count, ref rest @ ..] = arguments[..] else {
        return Err(
            "usage: runtime_instructions uring|poll OPERATION COUNT [FILE|CONNECTIONS]".into()
        );
    };
    let policy = match driver {
        "uring" => Policy::Uring,
        "poll" => Policy::Poll,
        other => return Err(format!("no driver {other}").into()),
    };
    let count = count.parse()?;
    if let ("uring", "echo-no-tasks", [connections]) = (driver, operation, rest) {
        let done = echoes_without_tasks(&Driver::uring()?, count, connections.parse()?)?;
        assert_eq!(done, count);
        return Ok(());
    }
    // One way for all rounds: learning would have some go the other.
    let runtime = Runtime::builder().backend(policy).streams(Streams::Queue).build()?;
    let done = match (operation, rest) {
        ("yield", []) => run(&runtime, yields(count)),
        ("spawn", []) => run(&runtime, spawns(count)),
        ("read-at", [file]) => run(&runtime, reads_at(count, file.into())),
        ("read-at-uncached", [file]) => run(&runtime, uncached_reads_at(count, file.into())),
        ("read", [file]) => run(&runtime, reads(count, file.into())),
        ("datagrams", [in_flight]) => run(&runtime, datagrams(count, in_flight.parse()?)),
        ("echo", [connections]) => run(&runtime, echoes(count, connections.parse()?)),
        _ => return Err(format!("no operation {operation} with {} arguments", rest.len()).into()),
    }?;
    assert_eq!(done, count);
    Ok(())
}

/// Runs it as a task, as most of a program is.
fn run(
    runtime: &Runtime,
    operations: impl Future<Output = io::Result<usize>> + 'static,
) -> io::Result<usize> {
    runtime.block_on(runtime.spawn(operations)).expect("no task here panics or is aborted")
}

async fn yields(count: usize) -> io::Result<usize> {
    let mut done = 0;
    for _ in 0..count {
        sakia::yield_now().await;
        done += 1;
    }
    Ok(done)
}

async fn spawns(count: usize) -> io::Result<usize> {
    let mut done = 0;
    for _ in 0..count {
        let handle = sakia::spawn(async { std::hint::black_box(1) });
        done += handle.await.expect("no task here panics or is aborted");
    }
    Ok(done)
}

async fn reads_at(count: usize, path: PathBuf) -> io::Result<usize> {
    let file = File::open(path).await?;
    let mut buf = vec![0; BLOCK_BYTES];
    let mut done = 0;
    for _ in 0..count {
        let (result, read) = file.read_at(buf, 0).await;
        assert_eq!(result?, BLOCK_BYTES);
        buf = read;
        done += 1;
    }
    Ok(done)
}

/// Before each read the page cache forgets the file, which no other program may have mapped.
async fn uncached_reads_at(count: usize, path: PathBuf) -> io::Result<usize> {
    let cached = std::fs::File::open(&path)?;
    // Only what the disk has can be forgotten.
    cached.sync_all()?;
    let file = File::open(path).await?;
    let mut buf = vec![0; BLOCK_BYTES];
    let mut done = 0;
    for _ in 0..count {
        rustix::fs::fadvise(&cached, 0, None, rustix::fs::Advice::DontNeed)?;
        let (result, read) = file.read_at(buf, 0).await;
        assert_eq!(result?, BLOCK_BYTES);
        buf = read;
        done += 1;
    }
    Ok(done)
}

async fn reads(count: usize, path: PathBuf) -> io::Result<usize> {
    let mut done = 0;
    for _ in 0..count {
        assert!(!fs::read(&path).await?.is_empty());
        done += 1;
    }
    Ok(done)
}

/// The number of requests to answer in this round.
#[derive(Default)]
struct Round {
    left: Cell<usize>,
    end: AtomicWaker,
}

/// Serves rounds of a request on each connection, until `count` were served.
async fn echoes(count: usize, connections: usize) -> io::Result<usize> {
    let mut client = Client::start(connections)?;
    let round = Rc::new(Round::default());
    for stream in &client.streams {
        let served = net::TcpStream::from_std(stream.try_clone()?)?;
        sakia::spawn(echo(served, Rc::clone(&round))).detach();
    }
    let mut done = 0;
    for _ in 0..count / connections {
        round.left.set(connections);
        client.request()?;
        poll_fn(|context| {
            round.end.register(context.waker());
            if round.left.get() == 0 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        done += connections;
    }
    client.end()?;
    Ok(done)
}

/// Serves the same rounds: takes what has arrived on each connection, and sends it back.
fn echoes_without_tasks(driver: &Driver, count: usize, connections: usize) -> io::Result<usize> {
    driver.set_streams(Streams::Queue);
    let mut client = Client::start(connections)?;
    let mut served = Vec::with_capacity(connections);
    for stream in &client.streams {
        served.push(driver.connection(driver.adopt(stream.try_clone()?.into())));
    }
    let mut sends = Vec::with_capacity(connections);
    let mut context = Context::from_waker(Waker::noop());
    let mut done = 0;
    for _ in 0..count / connections {
        client.request()?;
        while sends.len() < connections {
            driver.turn(Wait::Poll)?;
            for connection in &served[sends.len()..] {
                let Poll::Ready(bytes) = pin!(connection.recv()).poll(&mut context) else { break };
                let bytes = bytes?;
                assert_eq!(bytes.len(), MESSAGE_BYTES);
                sends.push(driver.send(connection.fd(), bytes, 0));
            }
        }
        while let Some(send) = sends.last_mut() {
            let Some((sent, _)) = send.try_take() else {
                driver.turn(Wait::Poll)?;
                continue;
            };
            assert_eq!(sent?, MESSAGE_BYTES);
            sends.pop();
            done += 1;
        }
    }
    client.end()?;
    Ok(done)
}

/// The other process of `echo`, and the server's ends of its connections.
struct Client {
    process: Child,
    control: ChildStdin,
    streams: Vec<TcpStream>,
}

impl Client {
    fn start(connections: usize) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let mut process = Command::new(std::env::current_exe()?)
            .args(["client", &listener.local_addr()?.to_string(), &connections.to_string()])
            .stdin(Stdio::piped())
            .spawn()?;
        let control = process.stdin.take().expect("the client's input is a pipe");
        let mut streams = Vec::with_capacity(connections);
        for _ in 0..connections {
            let (stream, _) = listener.accept()?;
            stream.set_nodelay(true)?;
            streams.push(stream);
        }
        Ok(Self { process, control, streams })
    }

    /// Begins a round, and waits until a request has arrived on each connection.
    fn request(&mut self) -> io::Result<()> {
        self.control.write_all(&[0])?;
        for stream in &self.streams {
            poll(&mut [PollFd::new(stream, PollFlags::IN)], None)?;
        }
        Ok(())
    }

    fn end(mut self) -> io::Result<()> {
        drop(self.control);
        assert!(self.process.wait()?.success());
        Ok(())
    }
}

async fn echo(mut stream: net::TcpStream, round: Rc<Round>) -> io::Result<()> {
    loop {
        let bytes = stream.recv().await?;
        if bytes.is_empty() {
            return Ok(());
        }
        assert_eq!(bytes.len(), MESSAGE_BYTES);
        stream.write_all(bytes).await.value()?;
        round.left.set(round.left.get() - 1);
        if round.left.get() == 0 {
            round.end.wake();
        }
    }
}

/// Sends rounds of so many datagrams to a task that sends them back, until it has done so with `count`.
async fn datagrams(count: usize, in_flight: usize) -> io::Result<usize> {
    let server = net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    client.connect(server.local_addr()?)?;
    let round = Rc::new(Round::default());
    let serving = sakia::spawn(echo_datagrams(server, Rc::clone(&round)));
    let mut message = [7; MESSAGE_BYTES];
    let mut done = 0;
    for _ in 0..count / in_flight {
        sakia::yield_now().await; // the server waits in the kernel
        round.left.set(in_flight);
        for _ in 0..in_flight {
            client.send(&message)?;
        }
        poll_fn(|context| {
            round.end.register(context.waker());
            if round.left.get() == 0 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        for _ in 0..in_flight {
            assert_eq!(client.recv(&mut message)?, MESSAGE_BYTES);
        }
        done += in_flight;
    }
    drop(serving);
    Ok(done)
}

async fn echo_datagrams(socket: net::UdpSocket, round: Rc<Round>) -> io::Result<()> {
    let mut bufs: Vec<_> = (0..64).map(|_| Vec::with_capacity(MESSAGE_BYTES)).collect();
    loop {
        let (received, mut filled) = socket.recv_batch(bufs).await.both()?;
        let senders = received.iter().map(|its| its.from);
        let answers = filled.drain(..received.len()).zip(senders).collect();
        for sent in socket.send_batch(answers).await {
            let (_, mut buf) = sent.both()?;
            buf.clear();
            filled.push(buf);
        }
        bufs = filled;
        round.left.set(round.left.get() - received.len());
        if round.left.get() == 0 {
            round.end.wake();
        }
    }
}

/// Sends a request on each connection for each byte that it reads, and takes the replies.
fn client(address: SocketAddr, connections: usize) -> io::Result<()> {
    let connect = |_| -> io::Result<TcpStream> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(stream)
    };
    let streams: Vec<TcpStream> = (0..connections).map(connect).collect::<io::Result<_>>()?;
    let message = [7; MESSAGE_BYTES];
    while io::stdin().read(&mut [0])? == 1 {
        for mut stream in &streams {
            stream.write_all(&message)?;
        }
        for mut stream in &streams {
            let mut reply = [0; MESSAGE_BYTES];
            stream.read_exact(&mut reply)?;
            assert_eq!(reply, message);
        }
    }
    Ok(())
}
