//! The experiment `echo`: a server that sends back the messages it receives, to one client or many.
//!
//! Nearly all of the time is the kernel's TCP, so that no engine can be much faster than another. But an
//! engine can be slower: this experiment shows whether it is, and its system calls.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::bytes::bytes;
use crate::cell::{Done, Outcome, Spec};
use crate::engine::Engine;
use crate::experiment::{About, Experiment, Focus, Params, Point, Work, against};
use crate::measure::Meter;
use crate::named::{Named, named};
use crate::net::load::{self, Messages};
use crate::net::{self, Order, Place, Task};
use crate::plot::Plot;
use crate::results::{Results, Row};
use crate::run::Launcher;

/// The name of the experiment.
pub const NAME: &str = "echo";

/// The default numbers of connections.
pub const CONNECTIONS: [usize; 3] = [1, 64, 512];
/// The most connections: a descriptor each, in both processes.
pub const CONNECTIONS_MAX: usize = 10_000;
/// The default sizes of a message in bytes.
pub const MESSAGE_BYTES: [usize; 2] = [64, 16 << 10];
/// Bytes of memory that a blocking server receives into.
const BUFFER_BYTES: usize = 16 << 10;

/// The time for which `spin` polls before it sleeps: longer than a round trip.
const SPIN: Duration = Duration::from_millis(1);

/// Requests of a run, so that it takes about half a second: with one connection, where each side sleeps until
/// the other one has answered, and with several.
const REQUESTS_ALONE: u64 = 8_000;
const REQUESTS: u64 = 100_000;
/// Runs with larger messages than this have fewer requests.
const LARGE_BYTES: usize = 4096;
const REQUESTS_LARGE: u64 = 40_000;
/// The divisor that gives the number of warm-up messages from the number of measured ones.
const WARMUP_PART: u64 = 5;
/// A quick look divides the number of requests by this.
const QUICK_PART: u64 = 4;

/// Options of the experiment.
#[derive(Clone, Debug)]
pub struct Options {
    /// Numbers of connections; each is a point with each size.
    pub connections: Vec<usize>,
    /// Bytes of a message, [`load::MESSAGE_BYTES_MIN`] to [`load::MESSAGE_BYTES_MAX`].
    pub message_bytes: Vec<usize>,
    /// Requests of a run, over all connections; `None`: enough for about half a second.
    pub requests: Option<u64>,
    /// Make a quarter of the requests.
    pub quick: bool,
    /// The variants, in the order in which they are shown.
    pub variants: Vec<Variant>,
    /// The congestion control.
    pub congestion: String,
    /// How the load is started; `None`: as a thread of the server's process, for tests.
    pub load: Option<Launcher>,
}

named! {
    /// A variant of the server.
    pub enum Variant {
        /// The ring, as the driver decides by itself.
        Uring = "uring",
        /// The ring, without plain calls.
        Ring = "ring",
        /// The ring with epoll beside it, which reports connections for plain calls.
        Readiness = "readiness",
        /// Epoll.
        Poll = "poll",
        /// A thread for each connection, and plain calls.
        Blocking = "blocking",
        /// As `uring`, and both ends poll before they sleep.
        Spin = "spin",
    }
}

impl Variant {
    /// Those measured by default.
    pub const DEFAULT: [Self; 5] =
        [Self::Uring, Self::Ring, Self::Readiness, Self::Poll, Self::Blocking];
}

/// The experiment.
#[derive(Debug)]
pub struct Echo {
    options: Options,
    place: Place,
    about: About,
    /// The messages of each point.
    messages: Vec<Messages>,
}

impl Echo {
    /// Determines the place for the connections.
    ///
    /// # Errors
    /// See [`Place::detect`].
    pub fn new(options: Options) -> anyhow::Result<Self> {
        let place = Place::detect(&options.congestion)?;
        Ok(Self::at(options, place))
    }

    fn at(options: Options, place: Place) -> Self {
        let sizes = options.message_bytes.iter();
        let all = sizes.flat_map(|&size| options.connections.iter().map(move |&n| (n, size)));
        let messages: Vec<_> = all.map(|(n, size)| messages(n, size, &options)).collect();
        let variants = Variant::names(&options.variants);
        let mut pairs = against(&variants, [Variant::Poll.name(), Variant::Blocking.name()]);
        if options.variants.contains(&Variant::Spin) {
            pairs.push((Variant::Spin.name(), Variant::Uring.name()));
        }
        let about = About {
            title:
                "a server that sends back what it receives over TCP, one message at a time by each \
                    connection"
                    .into(),
            notes: notes(&place),
            points: messages.iter().map(point).collect(),
            variants,
            pairs,
            ..place.about(NAME, Focus::Requests)
        };
        Self { options, place, about, messages }
    }
}

/// Returns the notes on the method.
fn notes(place: &Place) -> Vec<String> {
    vec![
        format!(
            "Connections are made here: {}; TCP_NODELAY is set on both sides.",
            place.describe()
        ),
        "All figures are those of the server. The load is another process, the same for all \
         variants: one thread on epoll, which compares each byte that comes back."
            .into(),
        format!(
            "One request in {WARMUP_PART} comes before what is measured. While nothing is under \
             way the measured section begins, and it ends when all answers have come."
        ),
        "uring, ring, poll: a runtime of one thread and a task for each connection, which calls \
         recv and write_all; uring may make plain calls, ring makes none, poll is on epoll. \
         blocking: a thread for each connection. spin: as uring, but server and load look for work \
         for 1 ms before they sleep."
            .into(),
        "Of processor time, 5 % more or less are a tie.".into(),
    ]
}

/// Returns the messages of a run with this many connections.
fn messages(connections: usize, message_bytes: usize, options: &Options) -> Messages {
    let usual = match message_bytes {
        _ if connections == 1 => REQUESTS_ALONE,
        LARGE_BYTES.. => REQUESTS_LARGE,
        _ => REQUESTS,
    };
    let part = if options.quick { QUICK_PART } else { 1 };
    let requests = options.requests.unwrap_or(usual / part);
    let of_each = requests.div_ceil(connections as u64);
    let warmup = of_each.div_ceil(WARMUP_PART);
    Messages { connections, message_bytes, window: 1, warmup, requests: of_each }
}

fn point(messages: &Messages) -> Point {
    let Messages { connections, message_bytes, requests, .. } = *messages;
    let mut params = Params::new();
    params.insert("connections".into(), connections.into());
    params.insert("message_bytes".into(), message_bytes.into());
    let operations = requests * connections as u64;
    let label = format!("{connections} x {}", bytes(message_bytes as u64));
    Point { params, label, work: Work { operations, bytes: operations * message_bytes as u64 } }
}

impl Experiment for Echo {
    fn about(&self) -> &About {
        &self.about
    }

    fn prepare(&mut self, point: usize, _is_stopped: &dyn Fn() -> bool) -> anyhow::Result<u64> {
        Ok(load::Work::Messages(self.messages[point]).expected())
    }

    fn input(&self, point: usize) -> Value {
        let work = load::Work::Messages(self.messages[point]);
        let order = Order { place: self.place.clone(), work, spin: false };
        json!(Task { order, block_bytes: BUFFER_BYTES, load: self.options.load.clone() })
    }

    fn reason(&self, row: &Row) -> Option<String> {
        let operations = self.about.points[row.point].work.operations as f64;
        let a_request = |count: u64| count as f64 / operations;
        let switches = a_request(row.voluntary_switches);
        let reason = match Variant::by_name(row.variant)? {
            Variant::Blocking => {
                format!("a request: a read and a write, {switches:.3} switches")
            }
            Variant::Uring | Variant::Ring | Variant::Readiness | Variant::Poll | Variant::Spin => {
                let plain = a_request(row.count("recv.inline") + row.count("send.inline"));
                let enters = a_request(row.count("enters"));
                let call = if row.variant == Variant::Poll.name() { "waits" } else { "enters" };
                format!(
                    "a request: {enters:.3} {call}, {plain:.3} plain calls, {switches:.3} switches"
                )
            }
        };
        Some(reason)
    }

    fn plots(&self, results: &Results) -> Vec<Plot> {
        let of_size = |&size: &usize| {
            let place = |row: &Row| {
                let messages = &self.messages[row.point];
                let x = messages.connections as f64;
                (messages.message_bytes == size).then(|| (x, cpu_us(results, row)))
            };
            Plot {
                title: format!("Processor time of a request, {}", bytes(size as u64)),
                x_label: "connections".into(),
                y_label: "us (median)".into(),
                series: results.series(place),
                ..Plot::default()
            }
        };
        self.options.message_bytes.iter().map(of_size).collect()
    }
}

/// Returns the processor time of a request in microseconds.
fn cpu_us(results: &Results, row: &Row) -> f64 {
    let operations = results.about.points[row.point].work.operations.max(1);
    row.cpu_ns.median as f64 / 1e3 / operations as f64
}

/// See [`cell::run_cell`](crate::cell::run_cell).
pub(crate) fn run_cell(spec: &Spec) -> anyhow::Result<Outcome> {
    net::run_cell(spec, work)
}

fn work(variant: Variant, mut task: Task, meter: &mut Meter) -> anyhow::Result<Done> {
    task.order.spin = variant == Variant::Spin;
    let engine = match variant {
        Variant::Uring => Engine::URING,
        Variant::Ring => Engine::RING,
        Variant::Readiness => Engine::READINESS,
        Variant::Poll => Engine::POLL,
        Variant::Spin => Engine { spin: SPIN, ..Engine::URING },
        Variant::Blocking => {
            let bytes = task.block_bytes;
            return net::serve_blocking(&task, meter, move |stream| echo_blocking(stream, bytes));
        }
    };
    net::through_runtime(&task, meter, engine, echo)
}

async fn echo(mut stream: sakia::net::TcpStream) -> io::Result<u64> {
    loop {
        let bytes = stream.recv().await?;
        if bytes.is_empty() {
            return Ok(0);
        }
        stream.write_all(bytes).await.0?;
    }
}

fn echo_blocking(mut stream: TcpStream, block_bytes: usize) -> io::Result<u64> {
    let mut buffer = vec![0; block_bytes];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(0),
            Ok(count) => stream.write_all(&buffer[..count])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell;

    /// Returns the place for a test's connections: the machine's loopback, on any processors.
    fn place() -> Place {
        let congestion = net::CONGESTION.to_owned();
        Place { namespace: false, congestion, processors: None }
    }

    #[test]
    fn every_variant_sends_back_what_it_received() {
        for (connections, message_bytes, window) in
            [(1, 8, 1), (3, 64, 1), (2, 16 << 10, 4), (1, 100_000, 3)]
        {
            let messages = Messages { connections, message_bytes, window, warmup: 2, requests: 20 };
            let work = load::Work::Messages(messages);
            let order = Order { place: place(), work, spin: false };
            for variant in Variant::ALL {
                let input =
                    json!(Task { order: order.clone(), block_bytes: BUFFER_BYTES, load: None });
                let variant = variant.name().to_owned();
                let spec = Spec { experiment: NAME.into(), variant, input };
                match cell::run_cell(&serde_json::to_string(&spec).unwrap()).unwrap() {
                    Outcome::Measured(measured) => {
                        assert_eq!(measured.sum, work.expected(), "{}", spec.variant);
                        assert!(measured.section.wall_ns > 0 && measured.section.threads_max > 0);
                    }
                    Outcome::Unavailable(reason) => skip(&spec.variant, &reason),
                }
            }
        }
    }

    /// Prints the reason why the variant is skipped, or fails if skips are denied.
    fn skip(variant: &str, reason: &str) {
        let denied = std::env::var_os("SAKIA_DENY_SKIPS").is_some();
        assert!(!denied, "skips are denied, and {variant} must skip: {reason}");
        eprintln!("SKIP {variant}: {reason}");
    }

    #[test]
    fn points_are_connections_by_sizes() {
        let options = Options {
            connections: vec![1, 64],
            message_bytes: vec![64, 16 << 10],
            requests: None,
            quick: false,
            variants: Variant::DEFAULT.to_vec(),
            congestion: net::CONGESTION.into(),
            load: None,
        };
        let echo = Echo::at(options, place());
        let labels: Vec<_> = echo.about.points.iter().map(|point| point.label.as_str()).collect();
        assert_eq!(labels, ["1 x 64 bytes", "64 x 64 bytes", "1 x 16 KiB", "64 x 16 KiB"]);
        let operations = echo.about.points.iter().map(|point| point.work.operations);
        assert_eq!(operations.collect::<Vec<_>>(), [8_000, 100_032, 8_000, 40_000]);
        let names = ["uring", "ring", "readiness"];
        let against = |base| names.map(|name| (name, base));
        assert_eq!(echo.about.pairs[..3], against("poll"));
        assert_eq!(echo.about.pairs[3], ("blocking", "poll"));
        assert_eq!(echo.about.pairs[4..], against("blocking"));
    }

    #[test]
    fn names_lead_back_to_variants() {
        for variant in Variant::ALL {
            assert_eq!(Variant::by_name(variant.name()), Some(variant));
        }
    }
}
