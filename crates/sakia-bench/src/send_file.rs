//! The experiment `send-file`: a server that sends a cached file.
//!
//! The kernel sends the pages without copying, so that the rest is calls, and waiting for room.

use std::fs::File;
use std::io::{self, Read};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use sakia::io::BufResultExt;
use sakia_bench_support::careful_send::careful_send;
use sakia_bench_support::ring_send::{Counts, RingSender};
use sakia_driver::SEND_FILE_BYTES_MAX;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::bytes::bytes;
use crate::cell::{Done, Outcome, Spec};
use crate::engine::Engine;
use crate::experiment::{About, Experiment, Focus, Params, Point, Work, against};
use crate::measure::Meter;
use crate::named::{Named, named};
use crate::net::load::{self, Messages};
use crate::net::{self, CONGESTION, Order, Place, Task};
use crate::plot::Plot;
use crate::results::{Results, Row};
use crate::run::Launcher;
use crate::scratch;

/// The name of the experiment.
pub const NAME: &str = "send-file";

/// The largest file.
pub const FILE_BYTES_MAX: u64 = 4 << 30;
/// Approximate number of bytes that a run sends.
const BYTES: u64 = 1 << 30;
/// The divisor that gives the number of warm-up requests from the number of measured ones.
const WARMUP_PART: u64 = 5;
/// A quick look divides the number of sends of small files by this.
const QUICK_PART: u64 = 4;
/// Names of counters: sends by a ring; then those zero-copy sends that the kernel has copied.
const SENDS: &str = "ring.sends";
const COPIED: &str = "ring.sends_copied";
/// Bytes of a piece that is read and written.
const PIECE_BYTES: usize = 64 << 10;

/// Options of the experiment.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of the file; each is a point.
    pub sizes: Vec<u64>,
    /// The number of times that a run sends it; `None`: about a GiB, and at least once.
    pub requests: Option<u64>,
    /// Send a quarter of that.
    pub quick: bool,
    /// The variants, in the order in which they are shown.
    pub variants: Vec<Variant>,
    /// How the load is started; `None`: as a thread of the server's process, for tests.
    pub load: Option<Launcher>,
}

named! {
    /// A variant of the server.
    pub enum Variant {
        /// `send_file` on the ring.
        Uring = "uring",
        /// `send_file` on epoll.
        Poll = "poll",
        /// Reads and writes on the ring.
        Copy = "copy",
        /// A thread with a loop of `sendfile(2)`.
        Blocking = "blocking",
        /// The minimum for a server with non-blocking calls: a thread with `sendfile(2)` and `poll(2)`.
        Floor = "floor",
        /// The minimum with the guarantees of `send_file`: as `floor`, by calls that raise no `SIGPIPE` and
        /// wait for no device.
        Careful = "careful",
        /// The same bytes from memory, by sends of a ring.
        Send = "send",
        /// The same bytes by zero-copy sends, which the kernel may copy anyway.
        SendZc = "send-zc",
    }
}

impl Variant {
    /// Those measured by default.
    pub const DEFAULT: [Self; 4] = [Self::Uring, Self::Poll, Self::Copy, Self::Blocking];
}

/// The experiment.
#[derive(Debug)]
pub struct SendFile {
    options: Options,
    place: Place,
    about: About,
    /// The requests of each point.
    messages: Vec<Messages>,
    /// The directory with the files.
    directory: TempDir,
}

/// The input of a server besides its task.
#[derive(Debug, Serialize, Deserialize)]
struct Input {
    #[serde(flatten)]
    task: Task,
    file: PathBuf,
}

impl SendFile {
    /// Determines the place for the sockets, and makes a directory for the files.
    ///
    /// # Errors
    /// See [`Place::detect`]. As `mkdir(2)`.
    pub fn new(options: Options) -> anyhow::Result<Self> {
        let place = Place::detect(CONGESTION)?;
        Self::at(options, place)
    }

    fn at(options: Options, place: Place) -> anyhow::Result<Self> {
        let directory = scratch::directory("sakia-bench-", &std::env::temp_dir())?;
        let messages: Vec<_> = options.sizes.iter().map(|&size| messages(size, &options)).collect();
        let variants = Variant::names(&options.variants);
        let about = About {
            title: "a server that sends a cached file".into(),
            notes: notes(&place),
            points: messages.iter().map(point).collect(),
            pairs: pairs(&variants),
            variants,
            ..place.about(NAME, Focus::Requests)
        };
        Ok(Self { options, place, about, messages, directory })
    }

    fn file(&self, point: usize) -> PathBuf {
        self.directory.path().join(self.messages[point].message_bytes.to_string())
    }
}

/// Returns the pairs of variants to compare.
fn pairs(variants: &[&'static str]) -> Vec<(&'static str, &'static str)> {
    let mut pairs = against(variants, [Variant::Blocking.name(), Variant::Copy.name()]);
    if [Variant::SendZc, Variant::Send].iter().all(|one| variants.contains(&one.name())) {
        pairs.push((Variant::SendZc.name(), Variant::Send.name()));
    }
    pairs
}

/// Returns the notes on the method.
fn notes(place: &Place) -> Vec<String> {
    vec![
        format!("Sockets are here: {}.", place.describe()),
        "All figures are those of the server. The load is another process, the same for all \
         variants: one thread with plain calls, which says how often the file is to be sent, \
         receives it, and adds up its bytes."
            .into(),
        format!(
            "The file was written before, and is in the page cache. It is sent once in \
             {WARMUP_PART} times, and once at least, before what is measured."
        ),
        "uring, poll: a runtime of one thread and one task, which calls send_file; copy: reads and \
         writes of 64 KiB on the ring. blocking: a thread with sendfile; floor: a thread with sendfile of \
         1 MiB at most on a socket in non-blocking mode, and poll when it is full; careful: the same with \
         cachestat and a mask of signals around each, as send_file has them."
            .into(),
        "send, send-zc: a thread with a ring that sends the bytes from memory, by IORING_OP_SEND and \
         IORING_OP_SEND_ZC. It has one send under way, and does not wait for notifications."
            .into(),
        "Of processor time, 5 % more or less are a tie.".into(),
    ]
}

fn messages(size: u64, options: &Options) -> Messages {
    let part = if options.quick { QUICK_PART } else { 1 };
    let requests = options.requests.unwrap_or((BYTES / size / part).max(1));
    let (warmup, message_bytes) = (requests.div_ceil(WARMUP_PART), size as usize);
    Messages { connections: 1, message_bytes, window: 1, warmup, requests }
}

fn point(messages: &Messages) -> Point {
    let Messages { message_bytes, requests, .. } = *messages;
    let mut params = Params::new();
    params.insert("file_bytes".into(), message_bytes.into());
    let work = Work { operations: requests, bytes: requests * message_bytes as u64 };
    Point { params, label: bytes(message_bytes as u64), work }
}

impl Experiment for SendFile {
    fn about(&self) -> &About {
        &self.about
    }

    fn prepare(&mut self, point: usize, _is_stopped: &dyn Fn() -> bool) -> anyhow::Result<u64> {
        let (path, messages) = (self.file(point), self.messages[point]);
        let write = |path: &Path| {
            load::write_stream(File::create(path)?, messages.message_bytes as u64)?;
            // Dirty pages are written back now: a later write-back would take time from the variants.
            File::open(path)?.sync_all()
        };
        write(&path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(load::Work::Answers(messages).expected())
    }

    fn input(&self, point: usize) -> Value {
        let work = load::Work::Answers(self.messages[point]);
        let order = Order { place: self.place.clone(), work, spin: false };
        let block_bytes = self.messages[point].message_bytes;
        let task = Task { order, block_bytes, load: self.options.load.clone() };
        json!(Input { task, file: self.file(point) })
    }

    fn reason(&self, row: &Row) -> Option<String> {
        let work = self.about.points[row.point].work;
        let cpu = row.cpu_ns.median as f64 / work.bytes as f64;
        let a_file = |count: u64| count as f64 / work.operations as f64;
        let switches = a_file(row.voluntary_switches);
        let calls = ["send_file.inline", "send_file.lane"].map(|name| a_file(row.count(name)));
        let calls = match Variant::by_name(row.variant)? {
            Variant::Blocking => "sendfile until all is sent".to_owned(),
            Variant::Floor => "sendfile and poll".to_owned(),
            Variant::Careful => "cachestat, two masks, sendfile and poll".to_owned(),
            Variant::Send => format!("{:.1} sends", a_file(row.count(SENDS))),
            Variant::SendZc => {
                let [sends, copied] = [SENDS, COPIED].map(|name| a_file(row.count(name)));
                format!("{sends:.1} sends, of which the kernel copied {copied:.1} all the same")
            }
            Variant::Copy => "no send_file".to_owned(),
            Variant::Uring | Variant::Poll => {
                format!("{:.1} calls in place and {:.1} of a lane", calls[0], calls[1])
            }
        };
        Some(format!("{cpu:.4} ns of processor a byte; a file: {calls}, {switches:.1} switches"))
    }

    fn plots(&self, results: &Results) -> Vec<Plot> {
        let place = |row: &Row| {
            let work = self.about.points[row.point].work;
            let x = self.messages[row.point].message_bytes as f64 / f64::from(1 << 10);
            Some((x, row.cpu_ns.median as f64 / work.bytes.max(1) as f64))
        };
        vec![Plot {
            title: "Processor time of a byte".into(),
            x_label: "KiB of the file".into(),
            y_label: "ns (median)".into(),
            series: results.series(place),
            ..Plot::default()
        }]
    }
}

/// See [`cell::run_cell`](crate::cell::run_cell).
pub(crate) fn run_cell(spec: &Spec) -> anyhow::Result<Outcome> {
    let Input { file, .. } = spec.task()?;
    net::run_cell(spec, |variant, task, meter| work(variant, &task, file, meter))
}

fn work(variant: Variant, task: &Task, file: PathBuf, meter: &mut Meter) -> anyhow::Result<Done> {
    let engine = match variant {
        Variant::Uring => Engine::URING,
        Variant::Poll => Engine::POLL,
        Variant::Copy => {
            let serve = move |stream| copy(stream, file.clone());
            return net::through_runtime(task, meter, Engine::URING, serve);
        }
        Variant::Blocking => {
            let serve = move |stream| send_blocking(&stream, &file);
            return net::serve_blocking(task, meter, serve);
        }
        Variant::Send | Variant::SendZc => {
            return send_memory(task, &file, meter, variant == Variant::SendZc);
        }
        Variant::Floor | Variant::Careful => {
            let is_careful = variant == Variant::Careful;
            let serve = move |stream| send_ready(&stream, &file, is_careful);
            return net::serve_blocking(task, meter, serve);
        }
    };
    net::through_runtime(task, meter, engine, move |stream| send(stream, file.clone()))
}

/// Returns the number of answers that the load asks for next; 0 at the end.
async fn asked(stream: &mut sakia::net::TcpStream) -> u64 {
    let number = stream.read_exact(vec![0; 8]).await.buffer().ok();
    number.and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_be_bytes)
}

async fn send(mut stream: sakia::net::TcpStream, path: PathBuf) -> io::Result<u64> {
    let file = sakia::fs::File::open(path).await?;
    let len = file.len().await?;
    loop {
        let count = asked(&mut stream).await;
        for _ in 0..count {
            stream.send_file(&file, 0..len).await.value()?;
        }
        if count == 0 {
            return Ok(0);
        }
    }
}

async fn copy(mut stream: sakia::net::TcpStream, path: PathBuf) -> io::Result<u64> {
    let file = sakia::fs::File::open(path).await?;
    let len = file.len().await?;
    let mut piece = Vec::with_capacity(PIECE_BYTES);
    loop {
        let count = asked(&mut stream).await;
        for _ in 0..count {
            let mut at = 0;
            while at < len {
                let (count, read) = file.read_at(piece, at).await.both()?;
                at += count as u64;
                piece = stream.write_all(read).await.buffer()?;
                piece.clear();
            }
        }
        if count == 0 {
            return Ok(0);
        }
    }
}

fn send_blocking(mut stream: &TcpStream, path: &Path) -> io::Result<u64> {
    let file = File::open(path)?;
    let len = file.metadata()?.len();
    let mut asked = [0; 8];
    while stream.read_exact(&mut asked).is_ok() {
        for _ in 0..u64::from_be_bytes(asked) {
            let mut at = 0;
            while at < len {
                let left = (len - at) as usize;
                match rustix::fs::sendfile(stream, &file, Some(&mut at), left) {
                    Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
    Ok(0)
}

/// Sends the file's content by a ring, from memory.
fn send_memory(
    task: &Task,
    path: &Path,
    meter: &mut Meter,
    zero_copy: bool,
) -> anyhow::Result<Done> {
    let bytes: Arc<[u8]> = std::fs::read(path)?.into();
    let counts = Arc::new(Mutex::new((0, 0)));
    let its = Arc::clone(&counts);
    let serve = move |mut stream: TcpStream| {
        let mut sender = RingSender::new((*bytes).into(), zero_copy)?;
        let mut asked = [0; 8];
        while stream.read_exact(&mut asked).is_ok() {
            let before = sender.counts();
            for _ in 0..u64::from_be_bytes(asked) {
                sender.send(&stream)?;
            }
            // Only then the buffer belongs to the program again.
            sender.settle()?;
            let Counts { sends, copied, .. } = sender.counts();
            let (sends, copied) = (sends - before.sends, copied - before.copied);
            // Only the last request is measured.
            *its.lock().unwrap_or_else(PoisonError::into_inner) = (sends, copied);
        }
        Ok(0)
    };
    let mut done = net::serve_blocking(task, meter, serve)?;
    let (sends, copied) = *counts.lock().unwrap_or_else(PoisonError::into_inner);
    for (name, count) in [(SENDS, sends), (COPIED, copied)] {
        done.counters.insert(name.into(), count);
    }
    Ok(done)
}

/// As [`send_blocking`], but no call waits for the peer: `poll(2)` does.
fn send_ready(mut stream: &TcpStream, path: &Path, is_careful: bool) -> io::Result<u64> {
    let file = File::open(path)?;
    let len = file.metadata()?.len();
    let send = |stream: &TcpStream, at: &mut u64, wanted| {
        if is_careful {
            return careful_send(stream, &file, at, wanted);
        }
        Ok(rustix::fs::sendfile(stream, &file, Some(at), wanted)?)
    };
    let mut asked = [0; 8];
    while stream.read_exact(&mut asked).is_ok() {
        stream.set_nonblocking(true)?;
        for _ in 0..u64::from_be_bytes(asked) {
            let mut at = 0;
            while at < len {
                let wanted = (len - at).min(SEND_FILE_BYTES_MAX as u64) as usize;
                let is_full = match send(stream, &mut at, wanted) {
                    Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Ok(count) => count < wanted,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => true,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => false,
                    Err(error) => return Err(error),
                };
                if is_full {
                    poll(&mut [PollFd::new(&stream, PollFlags::OUT)], None)?;
                }
            }
        }
        stream.set_nonblocking(false)?;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell;

    #[test]
    fn every_variant_sends_the_file() {
        let options = Options {
            sizes: vec![1, 200_000, 3 << 20],
            requests: Some(7),
            quick: false,
            variants: Variant::ALL.to_vec(),
            load: None,
        };
        let congestion = CONGESTION.to_owned();
        let place = Place { namespace: false, congestion, processors: None };
        let mut files = SendFile::at(options, place).unwrap();
        for point in 0..files.messages.len() {
            let expected = files.prepare(point, &|| false).unwrap();
            for variant in Variant::ALL {
                let (variant, input) = (variant.name().to_owned(), files.input(point));
                let spec = Spec { experiment: NAME.into(), variant, input };
                match cell::run_cell(&serde_json::to_string(&spec).unwrap()).unwrap() {
                    Outcome::Measured(measured) => {
                        assert_eq!(measured.sum, expected, "{} {point}", spec.variant);
                    }
                    Outcome::Unavailable(reason) => {
                        let denied = std::env::var_os("SAKIA_DENY_SKIPS").is_some();
                        assert!(!denied, "skips are denied, and {} must: {reason}", spec.variant);
                        eprintln!("SKIP {}: {reason}", spec.variant);
                    }
                }
            }
        }
    }
}
