//! The memory of connections: little while they wait, and none after their end.

use std::io::{BufRead, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Resource, getrlimit, setrlimit};
use sakia::Runtime;
use sakia::net::TcpListener;
use sakia_testkit::alloc_count::{measure, thread_counts};
use sakia_testkit::{settings, skip};

/// The number of waiting connections.
const IDLE: u64 = 10_000;
/// The maximum number of bytes of the server's memory for each of them.
const IDLE_BYTES_MAX: i64 = 2 << 10;

fn loopback() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}

/// Raises this process's limit of descriptors as far as possible. Returns whether it suffices.
fn may_open(descriptors: u64) -> bool {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).is_ok()
        && limit.maximum.is_none_or(|maximum| maximum >= descriptors)
}

/// The variable with the address to which the clients' process connects.
const ADDRESS: &str = "SAKIA_TEST_IDLE_ADDRESS";

/// Runs the clients. They have their own process, since one process cannot have the descriptors of both
/// sides. For each line on standard input some of them send a request, and it prints a line when they have
/// their answers.
#[test]
#[ignore = "part of another test"]
fn clients() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    assert!(may_open(IDLE + 100));
    let connect = |_| TcpStream::connect(&address).unwrap();
    let mut clients: Vec<TcpStream> = (0..IDLE).map(connect).collect();
    for line in std::io::stdin().lines() {
        assert_eq!(line.unwrap(), "ask");
        for client in clients.iter_mut().step_by(SOME) {
            client.write_all(b"are you there?").unwrap();
        }
        for client in clients.iter_mut().step_by(SOME) {
            let mut answer = [0; 14];
            client.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"are you there?");
        }
        println!("\nanswered");
    }
}

/// Every 97th client sends a request.
const SOME: usize = 97;

#[test]
fn ten_thousand_connections_wait_in_little_memory() {
    measure(|| ()); // fails loudly if nothing is counted
    if !may_open(IDLE + 1_000) {
        skip!("no more than {:?} descriptors are allowed", getrlimit(Resource::Nofile).maximum);
    }
    let runtime = Runtime::new().unwrap();
    let program = std::env::current_exe().unwrap();
    let head = std::fs::read(&program).unwrap()[..64].to_vec();
    runtime.block_on(async {
        let listener = TcpListener::bind(loopback()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut servers = Vec::with_capacity(IDLE as usize);
        let serve = async |servers: &mut Vec<_>| {
            let (mut stream, _) = listener.accept().await.unwrap();
            let server = async move {
                loop {
                    let bytes = stream.recv().await.unwrap();
                    if bytes.is_empty() {
                        break;
                    }
                    stream.write_all(bytes).await.0.unwrap();
                }
            };
            servers.push(sakia::spawn(server));
        };
        let mut clients = Command::new(&program)
            .args(["idle::clients", "--exact", "--ignored", "--nocapture"])
            .env(ADDRESS, address.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // Allocate the memory that is needed once for any number of connections.
        serve(&mut servers).await;
        sakia::time::sleep(Duration::from_millis(1)).await;
        let before = thread_counts();
        while servers.len() < IDLE as usize {
            serve(&mut servers).await;
        }
        // Each connection has begun to receive.
        sakia::time::sleep(Duration::from_millis(1)).await;
        let grown = thread_counts().since(before);
        let held = grown.bytes_allocated.wrapping_sub(grown.bytes_deallocated) as i64;
        let each = held / IDLE as i64;
        eprintln!("{each} bytes for each of {IDLE} connections that wait");
        assert!(each < IDLE_BYTES_MAX, "{each} bytes for each connection");
        // Some connections send requests meanwhile, and are answered.
        let mut ask = clients.stdin.take().unwrap();
        let answers = std::io::BufReader::new(clients.stdout.take().unwrap());
        writeln!(ask, "ask").unwrap();
        let waiting = sakia::spawn_blocking(move || {
            let mut lines = answers.lines();
            (lines.any(|line| line.unwrap() == "answered"), lines)
        });
        assert_eq!(&sakia::fs::read(&program).await.unwrap()[..64], head);
        let (is_answered, _lines) = waiting.await.unwrap();
        assert!(is_answered);
        drop(ask);
        for server in servers {
            server.await.unwrap();
        }
        assert!(clients.wait().unwrap().success());
    });
}

/// Returns the number of sockets with this local port, the listener included, that are not in TIME_WAIT.
fn open_on(port: u16) -> usize {
    const TIME_WAIT: &str = "06";
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let is_ours = |line: &&str| {
        let mut fields = line.split_whitespace().skip(1);
        let (local, state) = (fields.next().unwrap(), fields.nth(1).unwrap());
        local.ends_with(&format!(":{port:04X}")) && state != TIME_WAIT
    };
    table.lines().skip(1).filter(is_ours).count()
}

/// The maximum number of bytes that may be left of all ended connections.
const BYTES_LEFT_MAX: i64 = 256 << 10;

/// Connections begin and end, 20,000 of them or `SAKIA_TEST_ACCEPTS`.
#[test]
fn connections_that_are_gone_leave_nothing() {
    let count = settings::number("SAKIA_TEST_ACCEPTS", 20_000);
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind(loopback()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (start, begun) = std::sync::mpsc::channel::<u64>();
        let (report, done) = std::sync::mpsc::channel();
        let client = std::thread::spawn(move || {
            for number in begun {
                for _ in 0..number {
                    let client = TcpStream::connect(address).unwrap();
                    // A reset connection leaves no port in the state TIME_WAIT.
                    rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
                }
                report.send(()).unwrap();
            }
        });
        // The loop never ends. It ignores connections that were reset before they were accepted.
        sakia::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let server = async move {
                    while stream.recv().await.is_ok_and(|bytes| !bytes.is_empty()) {}
                };
                sakia::spawn(server).detach();
            }
        })
        .detach();
        let port = address.port();
        let accept = async |number| {
            start.send(number).unwrap();
            while done.try_recv().is_err() {
                sakia::time::sleep(Duration::from_millis(1)).await;
            }
            // Waits until only the listener, its accept and the task that awaits it are left.
            let mut left = Vec::new();
            for _ in 0..60_000 {
                left.clear();
                left.extend([runtime.live_tasks(), open_on(port)]);
                left.extend([runtime.live_operations() as usize, runtime.in_flight() as usize]);
                if left.iter().all(|&left| left <= 1) {
                    return;
                }
                sakia::time::sleep(Duration::from_millis(1)).await;
            }
            panic!("tasks, connections, operations and entries are left: {left:?}");
        };
        accept(5_000).await;
        // A new maximum of simultaneous connections keeps the memory for that number. This happens now and
        // then, while a leak would show each time.
        let mut held = Vec::new();
        while held.last().is_none_or(|&held| held >= BYTES_LEFT_MAX) {
            assert!(held.len() < 5, "{held:?} bytes are left of {count} connections each time");
            let before = thread_counts();
            accept(count).await;
            let grown = thread_counts().since(before);
            held.push(grown.bytes_allocated.wrapping_sub(grown.bytes_deallocated) as i64);
        }
        eprintln!("{held:?} bytes are left of {count} connections each time");
        drop(start);
        client.join().unwrap();
    });
}
