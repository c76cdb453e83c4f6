//! The experiment `udp`: a server that sends each datagram back to its sender.
//!
//! A datagram on a loopback costs little, so that system calls weigh more than with TCP.

use std::io;
use std::net::UdpSocket;

use sakia_bench_support::datagram_batch::DatagramBatch;
use sakia_ring::Ring;
use serde_json::{Value, json};

use crate::bytes::bytes;
use crate::cell::{Done, Outcome, Spec, Unavailable};
use crate::engine::Engine;
use crate::experiment::{About, Experiment, Focus, Params, Point, Work, against};
use crate::measure::Meter;
use crate::named::{Named, named};
use crate::net::load::{self, Messages};
use crate::net::{self, CONGESTION, Order, Place, Task};
use crate::plot::Plot;
use crate::results::{Results, Row};
use crate::run::Launcher;

/// The name of the experiment.
pub const NAME: &str = "udp";

/// The default numbers of datagrams in flight.
pub const IN_FLIGHT: [usize; 2] = [1, 32];
/// The most datagrams in flight: the default buffer of a socket has room for them if they are small.
pub const IN_FLIGHT_MAX: usize = 64;
/// The default sizes of a datagram in bytes.
pub const DATAGRAM_BYTES: [usize; 3] = [64, 512, 1500];
/// The largest datagram: a window of them fits into the default buffer of a socket.
pub const DATAGRAM_BYTES_MAX: usize = 1500;

/// Datagrams of a run with one in flight, and with several.
const REQUESTS_ALONE: u64 = 20_000;
const REQUESTS: u64 = 100_000;
/// The divisor that gives the number of warm-up messages from the number of measured ones.
const WARMUP_PART: u64 = 5;
/// A quick look divides the number of datagrams by this.
const QUICK_PART: u64 = 4;

/// Options of the experiment.
#[derive(Clone, Debug)]
pub struct Options {
    /// Numbers of datagrams in flight; each is a point with each size.
    pub in_flight: Vec<usize>,
    /// Bytes of a datagram.
    pub datagram_bytes: Vec<usize>,
    /// Datagrams of a run; `None`: enough for about half a second.
    pub requests: Option<u64>,
    /// Send a quarter of these.
    pub quick: bool,
    /// The variants, in the order in which they are shown.
    pub variants: Vec<Variant>,
    /// How the load is started; `None`: as a thread of the server's process, for tests.
    pub load: Option<Launcher>,
}

named! {
    /// A variant of the server.
    pub enum Variant {
        /// The ring: receives all available datagrams, and sends them back as a batch.
        Uring = "uring",
        /// The ring, one datagram after the other.
        Single = "single",
        /// Epoll, in batches.
        Poll = "poll",
        /// A thread with plain calls.
        Blocking = "blocking",
        /// The ring: datagrams are received ahead, into memory of the runtime, and sent back one by one.
        Ahead = "ahead",
        /// The minimum for a server: a thread with plain calls for batches.
        Floor = "floor",
        /// The least that a server on a ring pays: a thread that waits on it for one datagram at a time.
        FloorRing = "floor-ring",
    }
}

impl Variant {
    /// Those measured by default.
    pub const DEFAULT: [Self; 4] = [Self::Uring, Self::Single, Self::Poll, Self::Blocking];
}

/// The experiment.
#[derive(Debug)]
pub struct Udp {
    options: Options,
    place: Place,
    about: About,
    /// The messages of each point.
    messages: Vec<Messages>,
}

impl Udp {
    /// Determines the place for the sockets.
    ///
    /// # Errors
    /// See [`Place::detect`].
    pub fn new(options: Options) -> anyhow::Result<Self> {
        let place = Place::detect(CONGESTION)?;
        Ok(Self::at(options, place))
    }

    fn at(options: Options, place: Place) -> Self {
        let sizes = options.datagram_bytes.iter();
        let all = sizes.flat_map(|&size| options.in_flight.iter().map(move |&n| (n, size)));
        let messages: Vec<_> = all.map(|(n, size)| messages(n, size, &options)).collect();
        let variants = Variant::names(&options.variants);
        let about = About {
            title: "a server that sends datagrams back to their sender".into(),
            notes: notes(&place),
            points: messages.iter().map(point).collect(),
            pairs: against(&variants, [Variant::Blocking.name(), Variant::Poll.name()]),
            variants,
            ..place.about(NAME, Focus::Requests)
        };
        Self { options, place, about, messages }
    }
}

/// Returns the notes on the method.
fn notes(place: &Place) -> Vec<String> {
    vec![
        format!("Sockets are here: {}.", place.describe()),
        "All figures are those of the server. The load is another process, the same for all \
         variants: one thread with plain calls, which compares each byte that comes back."
            .into(),
        format!(
            "One datagram in {WARMUP_PART} comes before what is measured. While nothing is under \
             way the measured section begins, and it ends when all answers have come."
        ),
        "uring, poll: a runtime of one thread and one task, which calls recv_batch and send_batch; \
         single: recv_from and send_to on the ring; ahead: recv_datagram and send_to on the ring. \
         blocking: a thread with recvfrom and sendto; floor: a thread with recvmmsg and sendmmsg; \
         floor-ring: a thread with a ring, on which it waits for one datagram, and sendmmsg."
            .into(),
        "Of processor time, 5 % more or less are a tie.".into(),
    ]
}

fn messages(in_flight: usize, message_bytes: usize, options: &Options) -> Messages {
    let usual = if in_flight == 1 { REQUESTS_ALONE } else { REQUESTS };
    let part = if options.quick { QUICK_PART } else { 1 };
    let requests = options.requests.unwrap_or(usual / part);
    let warmup = requests.div_ceil(WARMUP_PART);
    Messages { connections: 1, message_bytes, window: in_flight as u64, warmup, requests }
}

fn point(messages: &Messages) -> Point {
    let Messages { window, message_bytes, requests, .. } = *messages;
    let mut params = Params::new();
    params.insert("in_flight".into(), window.into());
    params.insert("datagram_bytes".into(), message_bytes.into());
    let label = format!("{window} x {}", bytes(message_bytes as u64));
    let work = Work { operations: requests, bytes: requests * message_bytes as u64 };
    Point { params, label, work }
}

impl Experiment for Udp {
    fn about(&self) -> &About {
        &self.about
    }

    fn prepare(&mut self, point: usize, _is_stopped: &dyn Fn() -> bool) -> anyhow::Result<u64> {
        Ok(load::Work::Datagrams(self.messages[point]).expected())
    }

    fn input(&self, point: usize) -> Value {
        let messages = self.messages[point];
        let work = load::Work::Datagrams(messages);
        let order = Order { place: self.place.clone(), work, spin: false };
        let block_bytes = messages.message_bytes;
        json!(Task { order, block_bytes, load: self.options.load.clone() })
    }

    fn reason(&self, row: &Row) -> Option<String> {
        let operations = self.about.points[row.point].work.operations as f64;
        let a_message = |count: u64| count as f64 / operations;
        let per_second = row.ops_per_s;
        let switches = a_message(row.voluntary_switches);
        let calls = match Variant::by_name(row.variant)? {
            Variant::Blocking => "2.000 system calls, ".into(),
            // They do not count their system calls.
            Variant::Floor | Variant::FloorRing => String::new(),
            _ => format!("{:.3} system calls, ", a_message(system_calls(row))),
        };
        Some(format!("{per_second} messages a second; a message: {calls}{switches:.3} switches"))
    }

    fn plots(&self, results: &Results) -> Vec<Plot> {
        let place = |row: &Row| {
            let messages = &self.messages[row.point];
            let cpu_us = row.cpu_ns.median as f64 / 1e3 / messages.requests.max(1) as f64;
            (messages.window > 1).then_some((messages.message_bytes as f64, cpu_us))
        };
        vec![Plot {
            title: "Processor time of a message, several under way".into(),
            x_label: "bytes".into(),
            y_label: "us (median)".into(),
            series: results.series(place),
            ..Plot::default()
        }]
    }
}

/// Returns the number of system calls of a variant on a runtime: enters or waits, and plain calls.
fn system_calls(row: &Row) -> u64 {
    let plain = ["recv.inline", "send.inline", "recv.would_block", "send.would_block"];
    row.count("enters") + plain.iter().map(|name| row.count(name)).sum::<u64>()
}

/// See [`cell::run_cell`](crate::cell::run_cell).
pub(crate) fn run_cell(spec: &Spec) -> anyhow::Result<Outcome> {
    net::run_cell(spec, work)
}

fn work(variant: Variant, task: Task, meter: &mut Meter) -> anyhow::Result<Done> {
    let bytes = task.block_bytes;
    let engine = match variant {
        Variant::Uring => Engine::URING,
        Variant::Poll => Engine::POLL,
        Variant::Single => {
            let serve = move |socket| echo_single(socket, bytes);
            return net::serve_datagrams(&task, meter, Engine::URING, serve);
        }
        Variant::Ahead => {
            return net::serve_datagrams(&task, meter, Engine::URING, echo_ahead);
        }
        Variant::Blocking => {
            let serve = move |socket| echo_blocking(&socket, bytes);
            return net::serve_datagrams_blocking(&task, meter, serve);
        }
        Variant::Floor => {
            let serve = move |socket| echo_floor(&socket, bytes);
            return net::serve_datagrams_blocking(&task, meter, serve);
        }
        Variant::FloorRing => {
            small_ring().map_err(|error| Unavailable(error.to_string()))?;
            let serve = move |socket| echo_floor_ring(&socket, bytes);
            return net::serve_datagrams_blocking(&task, meter, serve);
        }
    };
    net::serve_datagrams(&task, meter, engine, move |socket| echo(socket, bytes))
}

async fn echo(socket: sakia::net::UdpSocket, bytes: usize) -> io::Result<()> {
    let mut bufs: Vec<_> = (0..IN_FLIGHT_MAX).map(|_| Vec::with_capacity(bytes)).collect();
    loop {
        let (result, mut filled) = socket.recv_batch(bufs).await;
        let received = result?;
        let senders = received.iter().map(|its| its.from);
        let answers = filled.drain(..received.len()).zip(senders).collect();
        for (result, mut buf) in socket.send_batch(answers).await {
            result?;
            buf.clear();
            filled.push(buf);
        }
        bufs = filled;
    }
}

async fn echo_single(socket: sakia::net::UdpSocket, bytes: usize) -> io::Result<()> {
    let mut buf = Vec::with_capacity(bytes);
    loop {
        let (result, received) = socket.recv_from(buf).await;
        let (_, peer) = result?;
        let (result, sent) = socket.send_to(received, peer).await;
        result?;
        buf = sent;
        buf.clear();
    }
}

async fn echo_ahead(socket: sakia::net::UdpSocket) -> io::Result<()> {
    loop {
        let datagram = socket.recv_datagram().await?;
        socket.send_to(datagram.bytes, datagram.from).await.0?;
    }
}

fn echo_floor(socket: &UdpSocket, bytes: usize) -> io::Result<()> {
    let mut batch = DatagramBatch::new(IN_FLIGHT_MAX, bytes);
    loop {
        batch.receive(socket)?;
        if batch.datagrams().any(<[u8]>::is_empty) {
            return Ok(());
        }
        batch.send_back(socket)?;
    }
}

fn small_ring() -> io::Result<Ring> {
    Ring::builder().sq_entries(8).build().map_err(io::Error::other)
}

fn echo_floor_ring(socket: &UdpSocket, bytes: usize) -> io::Result<()> {
    let mut batch = DatagramBatch::new(1, bytes);
    let mut ring = small_ring()?;
    loop {
        batch.receive_by_ring(&mut ring, socket)?;
        if batch.datagrams().any(<[u8]>::is_empty) {
            return Ok(());
        }
        batch.send_back(socket)?;
    }
}

fn echo_blocking(socket: &UdpSocket, bytes: usize) -> io::Result<()> {
    let mut buffer = vec![0; bytes];
    loop {
        match socket.recv_from(&mut buffer) {
            Ok((0, _)) => return Ok(()),
            Ok((count, peer)) => socket.send_to(&buffer[..count], peer)?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) => return Err(error),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell;

    fn place() -> Place {
        Place { namespace: false, congestion: CONGESTION.to_owned(), processors: None }
    }

    #[test]
    fn every_variant_sends_back_what_it_received() {
        for (in_flight, datagram_bytes) in [(1, 8), (3, 64), (32, 1500)] {
            let options = Options {
                in_flight: vec![in_flight],
                datagram_bytes: vec![datagram_bytes],
                requests: Some(200),
                quick: false,
                variants: Variant::ALL.to_vec(),
                load: None,
            };
            let udp = Udp::at(options, place());
            let expected = load::Work::Datagrams(udp.messages[0]).expected();
            for variant in Variant::ALL {
                let (variant, input) = (variant.name().to_owned(), udp.input(0));
                let spec = Spec { experiment: NAME.into(), variant, input };
                match cell::run_cell(&serde_json::to_string(&spec).unwrap()).unwrap() {
                    Outcome::Measured(measured) => {
                        assert_eq!(measured.sum, expected, "{}", spec.variant);
                        assert!(measured.section.wall_ns > 0);
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

    #[test]
    fn points_are_windows_by_sizes() {
        let options = Options {
            in_flight: IN_FLIGHT.to_vec(),
            datagram_bytes: vec![64, 1500],
            requests: None,
            quick: true,
            variants: Variant::DEFAULT.to_vec(),
            load: None,
        };
        let udp = Udp::at(options, place());
        let labels: Vec<_> = udp.about.points.iter().map(|point| point.label.as_str()).collect();
        assert_eq!(labels, ["1 x 64 bytes", "32 x 64 bytes", "1 x 1500 bytes", "32 x 1500 bytes"]);
        assert_eq!(udp.about.points[1].work.operations, 25_000);
        let pairs = [("uring", "blocking"), ("single", "blocking"), ("poll", "blocking")];
        assert_eq!(udp.about.pairs[..3], pairs);
    }
}
