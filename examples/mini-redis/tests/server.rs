//! Tests the program through its network interface, on a ring if the kernel has one, and on epoll.

#![allow(clippy::unwrap_used, reason = "a failure is the report")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;

/// A running server.
struct Server {
    child: Child,
    output: BufReader<ChildStdout>,
    address: String,
}

impl Server {
    fn start(driver: Option<&str>) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mini-redis"));
        command
            .arg("127.0.0.1:0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        if let Some(driver) = driver {
            command.env("SAKIA_DRIVER", driver);
        }
        let mut child = command.spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let address = line.trim_end().strip_prefix("listening on ").unwrap().to_owned();
        Self { child, output, address }
    }

    fn connect(&self) -> Client {
        Client { stream: TcpStream::connect(&self.address).unwrap() }
    }

    /// Sends SIGTERM and returns the rest of the program's output.
    fn stop(mut self) -> String {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        let mut text = String::new();
        self.output.read_to_string(&mut text).unwrap();
        assert!(self.child.wait().unwrap().success());
        text
    }

    /// Returns the resident memory of the server in bytes.
    fn memory(&self) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let text = std::fs::read_to_string(path).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

struct Client {
    stream: TcpStream,
}

impl Client {
    fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).unwrap();
    }

    fn expect(&mut self, bytes: impl AsRef<[u8]>) {
        let expected = bytes.as_ref();
        let mut received = vec![0; expected.len()];
        self.stream.read_exact(&mut received).unwrap();
        assert_eq!(received.escape_ascii().to_string(), expected.escape_ascii().to_string());
    }

    fn ask(&mut self, command: &str, reply: &str) {
        self.send(format!("{command}\r\n"));
        self.expect(format!("{reply}\r\n"));
    }

    /// Reads to the end of the stream. A reset counts as an end, since the server does not read refused
    /// input.
    fn rest(&mut self) -> String {
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).ok();
        String::from_utf8(rest).unwrap()
    }
}

/// Runs the test on both drivers. If the environment names a driver, the first run uses that one.
fn on_each_driver(test: impl Fn(&Server)) {
    for driver in [None, Some("poll")] {
        let server = Server::start(driver);
        test(&server);
        server.stop();
    }
}

#[test]
fn commands_are_answered() {
    on_each_driver(|server| {
        let mut client = server.connect();
        for (command, reply) in [
            ("PING", "+PONG"),
            ("ping hello", "$5\r\nhello"),
            ("PING a b", "-ERR wrong number of arguments for 'ping' command"),
            ("GET a", "$-1"),
            ("GET", "-ERR wrong number of arguments for 'get' command"),
            ("SET a 1", "+OK"),
            ("GET a", "$1\r\n1"),
            ("SET a 2 NX", "$-1"),
            ("SET b 2 XX", "$-1"),
            ("SET b 2 nx ex 100", "+OK"),
            ("TTL b", ":100"),
            ("SET a 3 XX", "+OK"),
            ("SET a 3 NX XX", "-ERR syntax error"),
            ("SET a 3 EX", "-ERR syntax error"),
            ("SET a 3 EX 0", "-ERR invalid expire time in 'set' command"),
            ("SET a 3 PX 9223372036854775807", "+OK"),
            ("SET a 3 EX 9223372036854775807", "-ERR invalid expire time in 'set' command"),
            ("SET a 3 EX x", "-ERR value is not an integer or out of range"),
            ("SET a 3", "+OK"),
            ("TTL a", ":-1"),
            ("TTL none", ":-2"),
            ("INCR a", ":4"),
            ("INCR new", ":1"),
            ("EXISTS a a none", ":2"),
            ("EXPIRE a 50", ":1"),
            ("TTL a", ":50"),
            ("EXPIRE none 50", ":0"),
            ("EXPIRE a -1", ":1"),
            ("EXISTS a", ":0"),
            ("DEL a b new", ":2"),
            ("PUBLISH nobody 1", ":0"),
            ("CONFIG GET save", "*2\r\n$4\r\nsave\r\n$0\r\n"),
            ("CONFIG GET appendonly", "*2\r\n$10\r\nappendonly\r\n$2\r\nno"),
            ("CONFIG SET save 1", "-ERR unknown subcommand; there is GET"),
            ("COMMAND DOCS", "*0"),
            ("FLY", "-ERR unknown command 'FLY'"),
            ("UNSUBSCRIBE", "*3\r\n$11\r\nunsubscribe\r\n$-1\r\n:0"),
            ("SET short 1 PX 1", "+OK"),
        ] {
            client.ask(command, reply);
        }
        // The key expires eventually.
        loop {
            client.send("EXISTS short\r\n");
            let mut reply = [0; 4];
            client.stream.read_exact(&mut reply).unwrap();
            match &reply {
                b":0\r\n" => break,
                b":1\r\n" => thread::yield_now(),
                other => panic!("{}", other.escape_ascii()),
            }
        }
        client.ask("QUIT", "+OK");
        assert_eq!(client.rest(), "");
    });
}

#[test]
fn pipelines_are_answered_in_order() {
    on_each_driver(|server| {
        let mut client = server.connect();
        let count = 20_000;
        let mut sender = Client { stream: client.stream.try_clone().unwrap() };
        let sending = thread::spawn(move || {
            for number in 0..count {
                sender.send(format!("*2\r\n$4\r\nINCR\r\n$1\r\na\r\nPING {number}\r\n"));
            }
        });
        for number in 0..count {
            let text = number.to_string();
            client.expect(format!(":{}\r\n${}\r\n{text}\r\n", number + 1, text.len()));
        }
        sending.join().unwrap();
    });
}

#[test]
fn values_of_a_megabyte_pass() {
    on_each_driver(|server| {
        let mut client = server.connect();
        let value: Vec<u8> =
            (0..1 << 20).map(|number: u32| (number.wrapping_mul(number) >> 7) as u8).collect();
        client.send(b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1048576\r\n");
        client.send(&value);
        client.send(b"\r\nGET a\r\n");
        client.expect(b"+OK\r\n$1048576\r\n");
        let mut received = vec![0; value.len()];
        client.stream.read_exact(&mut received).unwrap();
        assert!(received == value);
        client.expect("\r\n");
    });
}

#[test]
fn hostile_clients_get_no_memory() {
    on_each_driver(|server| {
        let before = server.memory();
        let mut clients = Vec::new();
        for (bytes, error) in [
            (&b"*1\r\n$1000000000000\r\n"[..], "invalid bulk length"),
            (b"*1000000000000\r\n", "invalid multibulk length"),
            (b"*1\r\n*1\r\n*1\r\n", "expected '$'"),
        ] {
            let mut client = server.connect();
            client.send(bytes);
            assert_eq!(client.rest(), format!("-ERR Protocol error: {error}\r\n"));
        }
        // The server reserves no memory for announced bytes that it has not received.
        for _ in 0..500 {
            let mut client = server.connect();
            client.send(b"*1000\r\n$1048576\r\n");
            clients.push(client);
        }
        // A line without an end.
        let mut client = server.connect();
        for _ in 0..100 {
            if client.stream.write_all(&[b'a'; 1 << 20]).is_err() {
                break;
            }
        }
        // Replies that the client does not read.
        let mut idle = server.connect();
        idle.send(b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1000000\r\n");
        idle.send(vec![b'a'; 1_000_000]);
        idle.send(b"\r\n");
        idle.expect("+OK\r\n");
        idle.send(b"GET a\r\n".repeat(10_000));
        // Keys that are never removed.
        let mut greedy = server.connect();
        let mut number = 0;
        let refused = loop {
            greedy.send(format!(
                "*3\r\n$3\r\nSET\r\n$3\r\n{number}\r\n$1000000\r\n",
                number = number % 900 + 100
            ));
            greedy.send(vec![b'a'; 1_000_000]);
            greedy.send("\r\n");
            let mut reply = [0; 5];
            greedy.stream.read_exact(&mut reply).unwrap();
            if &reply != b"+OK\r\n" {
                break reply;
            }
            number += 1;
        };
        assert_eq!((&refused, number), (b"-OOM ", 267));
        // The server still answers other clients.
        server.connect().ask("PING", "+PONG");
        let grown = server.memory().saturating_sub(before);
        assert!(grown < 400 << 20, "{grown} bytes");
    });
}

#[test]
fn subscribers_get_messages_in_order() {
    on_each_driver(|server| {
        let mut subscriber = server.connect();
        subscriber.ask(
            "SUBSCRIBE a b",
            "*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n*3\r\n$9\r\nsubscribe\r\n$1\r\nb\r\n:2",
        );
        subscriber.ask(
            "GET a",
            "-ERR only SUBSCRIBE / UNSUBSCRIBE / PING / QUIT are allowed in this context",
        );
        subscriber.ask("PING", "*2\r\n$4\r\npong\r\n$0\r\n");
        let mut publisher = server.connect();
        for number in 100..1000 {
            let channel = if number % 3 == 0 { "b" } else { "a" };
            publisher.ask(&format!("PUBLISH {channel} {number}"), ":1");
            publisher.ask("PUBLISH c 1", ":0");
        }
        for number in 100..1000 {
            let channel = if number % 3 == 0 { "b" } else { "a" };
            subscriber
                .expect(format!("*3\r\n$7\r\nmessage\r\n$1\r\n{channel}\r\n$3\r\n{number}\r\n"));
        }
        subscriber.ask("UNSUBSCRIBE a", "*3\r\n$11\r\nunsubscribe\r\n$1\r\na\r\n:1");
        publisher.ask("PUBLISH a 1", ":0");
        subscriber.ask("UNSUBSCRIBE", "*3\r\n$11\r\nunsubscribe\r\n$1\r\nb\r\n:0");
        subscriber.ask("GET none", "$-1");
        subscriber.ask("SUBSCRIBE a", "*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1");
        drop(subscriber);
        // The server sees the end of the subscriber's connection eventually.
        loop {
            publisher.send("PUBLISH a 1\r\n");
            let mut reply = [0; 4];
            publisher.stream.read_exact(&mut reply).unwrap();
            if &reply == b":0\r\n" {
                break;
            }
        }
    });
}

#[test]
fn a_slow_subscriber_is_cut_off() {
    on_each_driver(|server| {
        let mut slow = server.connect();
        slow.ask("SUBSCRIBE a", "*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1");
        let mut publisher = server.connect();
        let command = format!("PUBLISH a {}", "x".repeat(50_000));
        let mut received = 0;
        loop {
            publisher.send(format!("{command}\r\n"));
            let mut reply = [0; 4];
            publisher.stream.read_exact(&mut reply).unwrap();
            if &reply == b":0\r\n" {
                break;
            }
            received += 1;
            // The kernel buffers some megabytes of it.
            assert!(received < 2000, "it is never cut off");
        }
        let rest = slow.rest();
        assert!(rest.len() <= received * 50_100 && rest.starts_with("*3\r\n$7\r\nmessage\r\n"));
        publisher.ask("PING", "+PONG");
    });
}

#[test]
fn it_ends_in_good_order() {
    for driver in [None, Some("poll")] {
        let server = Server::start(driver);
        let mut idle = server.connect();
        idle.ask("PING", "+PONG");
        let mut subscriber = server.connect();
        subscriber.ask("SUBSCRIBE a", "*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1");
        let mut within = server.connect();
        within.ask("SET a 1 EX 1000", "+OK");
        within.send("*2\r\n$3\r\nGET");
        let text = server.stop();
        assert!(text.contains("accepted: 3") && text.contains("completed: 3"), "{text}");
        assert_eq!((idle.rest(), subscriber.rest(), within.rest()), Default::default());
    }
}
