//! The experiment `tcp-sum`: the sum of the bytes received on a TCP connection.
//!
//! It repeats an experiment with Async, an OCaml library: with one connection and blocks of 128 KiB a
//! prototype on io_uring was 2 % slower than the library's loop on epoll.

use std::io;

use anyhow::ensure;
use sakia_driver::AlignedBuf;
use serde_json::{Value, json};

use crate::bytes::{bytes, counted, sum, sum_plainly};
use crate::cell::{Done, Outcome, Spec};
use crate::engine::Engine;
use crate::experiment::{About, Experiment, Focus, against, points_of_sizes};
use crate::measure::Meter;
use crate::named::{Named, named};
use crate::net::{self, Order, Place, Task, load};
use crate::plot::Plot;
use crate::results::{Results, Row};
use crate::run::Launcher;

/// The name of the experiment.
pub const NAME: &str = "tcp-sum";

/// The default numbers of bytes sent.
pub const SIZES: [u64; 3] = [256 << 20, 1 << 30, 2 << 30];
/// The number of bytes in a quick look.
pub const QUICK_SIZE: u64 = 256 << 20;
/// The default number of bytes of each read.
pub const BLOCK_BYTES: usize = 128 << 10;
/// The largest block.
pub const BLOCK_BYTES_MAX: usize = 64 << 20;

/// Options of the experiment.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes sent; each is a point.
    pub sizes: Vec<u64>,
    /// Bytes of each read, 1 to [`BLOCK_BYTES_MAX`].
    pub block_bytes: usize,
    /// The variants, in the order in which they are shown.
    pub variants: Vec<Variant>,
    /// The congestion control.
    pub congestion: String,
    /// How the load is started; `None`: as a thread of the server's process, for tests.
    pub load: Option<Launcher>,
}

named! {
    /// A variant of the receiver.
    pub enum Variant {
        /// The ring, as the driver decides by itself.
        Uring = "uring",
        /// The ring, without plain calls.
        Ring = "ring",
        /// Epoll.
        Poll = "poll",
        /// Plain reads.
        Blocking = "blocking",
        /// As `uring`, but into the runtime's own memory.
        UringRecv = "uring-recv",
        /// As `poll`, but into the runtime's own memory.
        PollRecv = "poll-recv",
    }
}

impl Variant {
    /// Those measured by default.
    pub const DEFAULT: [Self; 4] = [Self::Uring, Self::Ring, Self::Poll, Self::Blocking];
}

/// The experiment.
#[derive(Debug)]
pub struct TcpSum {
    options: Options,
    place: Place,
    about: About,
}

impl TcpSum {
    /// Determines the place for the connections.
    ///
    /// # Errors
    /// See [`Place::detect`].
    pub fn new(options: Options) -> anyhow::Result<Self> {
        let place = Place::detect(&options.congestion)?;
        Ok(Self::at(options, place))
    }

    fn at(mut options: Options, place: Place) -> Self {
        let points = points_of_sizes(&mut options.sizes, options.block_bytes, false);
        let block = bytes(options.block_bytes as u64);
        let variants = Variant::names(&options.variants);
        let about = About {
            title: format!("sum of the bytes of a TCP connection, up to {block} at a time"),
            notes: notes(&place),
            points,
            pairs: against(&variants, [Variant::Poll.name(), Variant::Blocking.name()]),
            variants,
            ..place.about(NAME, Focus::TimeAndProcessor)
        };
        Self { options, place, about }
    }
}

/// Returns the notes on the method.
fn notes(place: &Place) -> Vec<String> {
    vec![
        format!("Connections are made here: {}.", place.describe()),
        "All figures are those of the server, which receives. The load is another process, the \
         same for all variants, which sends by plain calls of 128 KiB."
            .into(),
        "uring, ring, poll: a runtime of one thread, whose reads bring a buffer that is used again; \
         uring may make plain calls, ring makes none, poll is on epoll. uring-recv, poll-recv: the \
         bytes come in memory of the runtime. blocking: plain reads."
            .into(),
        "All but uring-recv and poll-recv receive into page-aligned memory; all add with the same \
         function."
            .into(),
    ]
}

impl Experiment for TcpSum {
    fn about(&self) -> &About {
        &self.about
    }

    fn prepare(&mut self, point: usize, _is_stopped: &dyn Fn() -> bool) -> anyhow::Result<u64> {
        Ok(load::Work::Stream(self.options.sizes[point]).expected())
    }

    fn input(&self, point: usize) -> Value {
        let work = load::Work::Stream(self.options.sizes[point]);
        let order = Order { place: self.place.clone(), work, spin: false };
        let block_bytes = self.options.block_bytes;
        json!(Task { order, block_bytes, load: self.options.load.clone() })
    }

    fn reason(&self, row: &Row) -> Option<String> {
        let switches = counted(row.voluntary_switches, "switch", "switches");
        let reason = match Variant::by_name(row.variant)? {
            Variant::Blocking => format!("plain reads, {switches}"),
            variant => {
                let is_poll = matches!(variant, Variant::Poll | Variant::PollRecv);
                let enters = match is_poll {
                    true => counted(row.count("enters"), "wait", "waits"),
                    false => counted(row.count("enters"), "enter", "enters"),
                };
                let plain = counted(row.count("recv.inline"), "plain receive", "plain receives");
                format!("{enters}, {plain}, {} submitted, {switches}", row.count("recv.submitted"))
            }
        };
        Some(reason)
    }

    fn plots(&self, results: &Results) -> Vec<Plot> {
        let plot = |title: &str, value: fn(&Row) -> u64| {
            let x = |row: &Row| self.about.points[row.point].work.bytes as f64 / f64::from(1 << 20);
            Plot {
                title: title.into(),
                x_label: "bytes sent, MiB".into(),
                y_label: "ms (median)".into(),
                series: results.series(|row| Some((x(row), value(row) as f64 / 1e6))),
                ..Plot::default()
            }
        };
        vec![
            plot("Wall time against size", |row| row.wall_ns.median),
            plot("Processor time against size", |row| row.cpu_ns.median),
        ]
    }
}

/// See [`cell::run_cell`](crate::cell::run_cell).
pub(crate) fn run_cell(spec: &Spec) -> anyhow::Result<Outcome> {
    net::run_cell(spec, work)
}

fn work(variant: Variant, task: Task, meter: &mut Meter) -> anyhow::Result<Done> {
    let block_bytes = task.block_bytes;
    ensure!((1..=BLOCK_BYTES_MAX).contains(&block_bytes), "a block size out of range");
    let (engine, receives) = match variant {
        Variant::Uring => (Engine::URING, false),
        Variant::Ring => (Engine::RING, false),
        Variant::Poll => (Engine::POLL, false),
        Variant::UringRecv => (Engine::URING, true),
        Variant::PollRecv => (Engine::POLL, true),
        Variant::Blocking => {
            let read = move |stream| Ok(sum_plainly(stream, block_bytes)?.0);
            return net::serve_blocking(&task, meter, read);
        }
    };
    if receives {
        net::through_runtime(&task, meter, engine, sum_received)
    } else {
        net::through_runtime(&task, meter, engine, move |stream| sum_read(stream, block_bytes))
    }
}

/// Sums by reads into a buffer of the program.
async fn sum_read(mut stream: sakia::net::TcpStream, block_bytes: usize) -> io::Result<u64> {
    let mut block = AlignedBuf::zeroed(block_bytes);
    let mut total = 0u64;
    loop {
        let result;
        (result, block) = stream.read(block).await;
        match result? {
            0 => return Ok(total),
            count => total = total.wrapping_add(sum(&block[..count])),
        }
    }
}

/// Sums by receives into memory of the runtime.
async fn sum_received(mut stream: sakia::net::TcpStream) -> io::Result<u64> {
    let mut total = 0u64;
    loop {
        let bytes = stream.recv().await?;
        if bytes.is_empty() {
            return Ok(total);
        }
        total = total.wrapping_add(sum(&bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell;

    #[test]
    fn variants_agree_at_every_size() {
        let congestion = net::CONGESTION.to_owned();
        let place = Place { namespace: false, congestion, processors: None };
        for (size, block_bytes) in [(0, 4096), (1, 4096), (100_000, 1000), (3 << 20, 128 << 10)] {
            let work = load::Work::Stream(size);
            for variant in Variant::ALL {
                let order = Order { place: place.clone(), work, spin: false };
                let input = json!(Task { order, block_bytes, load: None });
                let variant = variant.name().to_owned();
                let spec = Spec { experiment: NAME.into(), variant, input };
                match cell::run_cell(&serde_json::to_string(&spec).unwrap()).unwrap() {
                    Outcome::Measured(measured) => {
                        assert_eq!(measured.sum, work.expected(), "{} {size}", spec.variant);
                    }
                    Outcome::Unavailable(reason) => {
                        let denied = std::env::var_os("SAKIA_DENY_SKIPS").is_some();
                        assert!(!denied, "skips are denied, and {} must skip", spec.variant);
                        eprintln!("SKIP {}: {reason}", spec.variant);
                    }
                }
            }
        }
    }

    #[test]
    fn names_lead_back_to_variants() {
        for variant in Variant::ALL {
            assert_eq!(Variant::by_name(variant.name()), Some(variant));
        }
    }
}
