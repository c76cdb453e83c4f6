//! The system calls of a request, as `strace` sees them.
#![expect(clippy::unwrap_used, reason = "the failure of a test is its report")]

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use examples_common::{Folder, Server};

const FILE_BYTES: usize = 4096;
/// Requests at first, until the program knows its file system, and those that are counted.
const WARMUP: usize = 10;
const REQUESTS: usize = 100;

/// Gets the file as often, one request after the other on one connection.
fn get(server: &Server, path: &str, count: usize) {
    let mut stream = BufReader::new(TcpStream::connect(server.address).unwrap());
    for _ in 0..count {
        let request = format!("GET {path} HTTP/1.1\r\nhost: example\r\n\r\n");
        stream.get_mut().write_all(request.as_bytes()).unwrap();
        let mut head = String::new();
        while stream.read_line(&mut head).unwrap() > 2 {}
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        let mut body = vec![0; FILE_BYTES];
        stream.read_exact(&mut body).unwrap();
        assert!(body.iter().all(|&byte| byte == 7));
    }
}

/// Lines of a log of `strace`, each with the process, of calls between two opens of a file with a mark.
fn between_marks(log: &str) -> Vec<&str> {
    let is_mark = |line: &&str| line.contains("\"mark\"");
    let lines = log.lines().skip_while(|line| !is_mark(line));
    let lines = lines.skip_while(is_mark).take_while(|line| !is_mark(line));
    lines.collect()
}

/// An answer with a small file takes one `statx(2)` and one read, and nothing is asked about the thread. A
/// plain body of the file's length has one piece.
#[test]
fn a_small_file_is_asked_about_once_and_read_once() {
    let can_trace = Command::new("strace").args(["-o", "/dev/null", "true"]).output();
    if !can_trace.is_ok_and(|output| output.status.success()) {
        assert!(std::env::var_os("SAKIA_DENY_SKIPS").is_none(), "strace is not here, or may not");
        return eprintln!("SKIP: strace is not here, or may not trace");
    }
    let folder = Folder::new("calls");
    fs::create_dir(folder.path().join("served")).unwrap();
    fs::write(folder.path().join("served/small"), vec![7; FILE_BYTES]).unwrap();
    fs::write(folder.path().join("served/mark"), vec![7; FILE_BYTES]).unwrap();
    let log = folder.path().join("log");
    // The traced program is our child, not strace's.
    let options = ["-D", "-f", "-qq", "-s", "64", "--seccomp-bpf", "-o"].map(OsStr::new);
    const CALLS: &str = "trace=statx,newfstatat,fstat,openat,openat2,read,pread64,preadv,preadv2,getrusage";
    let program = env!("CARGO_BIN_EXE_http-files").as_ref();
    let arguments = options.into_iter().chain([log.as_os_str(), "-e".as_ref(), CALLS.as_ref()]);
    let served = folder.path().join("served");
    let server = Server::start("strace", arguments.chain([program, served.as_os_str()]));
    get(&server, "/small", WARMUP);
    get(&server, "/mark", 1);
    get(&server, "/small", REQUESTS);
    get(&server, "/mark", 1);
    server.stop();
    // The tracer ends after what it traces.
    let log = loop {
        let text = fs::read_to_string(&log).unwrap();
        if text.matches("\"mark\"").count() >= 2 {
            break text;
        }
        sleep(Duration::from_millis(1));
    };
    let calls = between_marks(&log);
    let count = |part: &str| calls.iter().filter(|line| line.contains(part)).count();
    // What belongs to the first mark's request comes after its open.
    let marked = 1;
    assert_eq!(count("statx("), REQUESTS + marked, "{calls:#?}");
    assert_eq!(count("= 4096"), REQUESTS + marked, "{calls:#?}");
    for none in ["getrusage(", "fstat(", "newfstatat("] {
        assert_eq!(count(none), 0, "{none} {calls:#?}");
    }
}
