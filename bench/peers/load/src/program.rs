//! Loads by other programs: `wrk` for HTTP, and `redis-benchmark`.
//!
//! They check answers only for errors, so one answer is checked here before they begin.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use peers_common::{Cell, Job};

/// One in this number of requests is for the warm-up.
const WARMUP_PART: u64 = 5;
/// The key that `redis-benchmark` uses unless it is told to draw keys, and the length of its values.
const KEY: &str = "key:__rand_int__";
const VALUE_BYTES: usize = 3;

/// A load, and its server.
pub(crate) struct Program<'a> {
    job: &'a Job,
    server: SocketAddr,
    /// A sum over an answer of the server.
    pub(crate) check: u64,
}

impl<'a> Program<'a> {
    /// Sends one request to the server.
    pub(crate) fn new(job: &'a Job, server: SocketAddr) -> anyhow::Result<Self> {
        let check = match job.cell {
            Cell::Redis => {
                let value = "x".repeat(VALUE_BYTES);
                let answer = ask(server, &format!("SET {KEY} {value}\r\nGET {KEY}\r\n"))?;
                let expected = format!("+OK\r\n${VALUE_BYTES}\r\n{value}\r\n");
                ensure!(answer == expected.as_bytes(), "the server answered wrongly");
                sum(&answer)
            }
            _ => {
                let request = format!(
                    "GET /{} HTTP/1.1\r\nHost: {server}\r\nConnection: close\r\n\r\n",
                    path(job)
                );
                let answer = ask(server, &request)?;
                ensure!(answer.starts_with(b"HTTP/1.1 200 "), "the server does not answer");
                let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n");
                sum(&answer[end.context("no body came")? + 4..])
            }
        };
        Ok(Self { job, server, check })
    }

    /// Runs the load before the measurement.
    pub(crate) fn warm_up(&self) -> anyhow::Result<()> {
        match self.job.cell {
            Cell::Redis => {
                // `get` needs keys that are set.
                self.redis("set", self.job.ops.div_ceil(WARMUP_PART))?;
                self.redis(&self.job.command, self.job.ops.div_ceil(WARMUP_PART))
            }
            _ => self.wrk(1).map(drop),
        }
    }

    /// Runs the load, and returns the number of answered requests.
    pub(crate) fn run(&self) -> anyhow::Result<u64> {
        match self.job.cell {
            Cell::Redis => self.redis(&self.job.command, self.job.ops).map(|()| self.job.ops),
            _ => self.wrk(self.job.seconds),
        }
    }

    fn redis(&self, test: &str, count: u64) -> anyhow::Result<()> {
        let Job { connections, window, .. } = self.job;
        let mut command = Command::new("redis-benchmark");
        command.args(["-h", &self.server.ip().to_string()]);
        command.args(["-p", &self.server.port().to_string()]);
        command.args(["-c", &connections.to_string(), "-P", &window.to_string()]);
        command.args(["-d", &VALUE_BYTES.to_string(), "-n", &count.to_string()]);
        let (text, errors) = output(command.args(["-t", test, "--csv"]), "redis-tools")?;
        let row = format!("\"{}\"", test.to_uppercase());
        ensure!(text.lines().any(|line| line.starts_with(&row)), "redis-benchmark: {text}");
        ensure!(errors.is_empty(), "redis-benchmark: {errors}");
        Ok(())
    }

    fn wrk(&self, seconds: u64) -> anyhow::Result<u64> {
        let mut command = Command::new("wrk");
        command.args(["--threads", "1", "--connections", &self.job.connections.to_string()]);
        command.args(["--duration", &format!("{seconds}s")]);
        command.arg(format!("http://{}/{}", self.server, path(self.job)));
        let (text, _) = output(&mut command, "wrk")?;
        requests(&text)
    }
}

/// Returns the requested path.
fn path(job: &Job) -> &'static str {
    if job.cell == Cell::Body { "file" } else { "" }
}

/// Sends a request, and receives until the server closes the connection.
fn ask(server: SocketAddr, request: &str) -> anyhow::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).context("connect")?;
    stream.write_all(request.as_bytes()).context("send")?;
    // An HTTP server closes by itself, and may take a shutdown for a client that has left.
    if !request.starts_with("GET /") {
        stream.shutdown(Shutdown::Write).context("send")?;
    }
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).context("receive")?;
    Ok(answer)
}

/// Returns a sum that depends on all bytes and their order.
fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum: u64, &byte| sum.wrapping_mul(31).wrapping_add(byte.into()))
}

/// Returns a program's standard output and its report.
fn output(command: &mut Command, package: &str) -> anyhow::Result<(String, String)> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output =
        output.with_context(|| format!("run {name}; `apt-get install {package}` provides it"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if !output.status.success() {
        bail!("{name}: {}: {}", output.status, text(&output.stderr));
    }
    Ok((text(&output.stdout), text(&output.stderr)))
}

/// Returns the number of requests that `wrk` counted as answered. Any reported error is an error here.
fn requests(text: &str) -> anyhow::Result<u64> {
    for line in text.lines().map(str::trim) {
        ensure!(!line.starts_with("Socket errors"), "wrk: {line}");
        ensure!(!line.starts_with("Non-2xx"), "wrk: {line}");
    }
    let count = text.lines().find_map(|line| line.trim().split_once(" requests in "));
    count.context("wrk says not what it did")?.0.parse().context("wrk")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_wrk_are_errors() {
        let good = "Running 1s test @ http://127.0.0.1:1/\n  1 threads and 1 connections\n  \
            25000 requests in 1.00s, 2.00MB read\nRequests/sec:  25000.00\n";
        assert_eq!(requests(good).ok(), Some(25_000));
        for line in [
            "  Socket errors: connect 0, read 1, write 0, timeout 0",
            "  Non-2xx or 3xx responses: 1",
        ] {
            assert!(requests(&format!("{good}{line}\n")).is_err());
        }
        assert!(requests("").is_err());
    }
}
