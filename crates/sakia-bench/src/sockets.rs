//! The experiment `sockets`: programs on the sockets of `sakia-socket`, inside a toy enclave.
//!
//! Each call of the host costs a set time besides its system call, as an exit of an enclave or a trap of a
//! sandbox does. Reading ahead and gathering save calls, and cost copies. The other ends of all connections
//! are plain sockets of the kernel in another process.

mod programs;
mod server;

use std::fmt::Write as _;

use sakia_socket::When;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub(crate) use self::server::run_cell;
use crate::experiment::{About, Experiment, Focus, Params, Point, Work};
use crate::named::{Named, named};
use crate::net::load::{self, Messages};
use crate::net::{CONGESTION, Order, Place, Streams, Task};
use crate::plot::Plot;
use crate::results::{Results, Row};
use crate::run::Launcher;

/// The name of the experiment.
pub const NAME: &str = "sockets";

/// The default costs of a host call besides its system call, in microseconds.
pub const EXITS_US: [u64; 4] = [0, 1, 4, 10];
/// The same in a quick look.
pub const QUICK_EXITS_US: [u64; 2] = [0, 4];
/// The largest such cost.
pub const EXIT_US_MAX: u64 = 1000;

/// Approximate time of a run of `plain` without exits; it grows with them.
const RUN_NS: u64 = 400_000_000;
/// The same in a quick look.
const QUICK_RUN_NS: u64 = 150_000_000;
/// The warm-up is one part in this many of the measured work, except for streams to the server.
const WARMUP_PART: u64 = 5;
/// The number of datagrams in flight.
const DATAGRAMS: u64 = 32;

named! {
    /// A program on the sockets.
    pub enum Program {
        /// A loop of blocking writes.
        Send = "send",
        /// A loop of blocking reads.
        Receive = "receive",
        /// An event loop that sends back what it receives.
        Events = "events",
        /// A thread for each connection, which sends back what it receives.
        Threads = "threads",
        /// A loop that sends datagrams back.
        Datagrams = "udp",
        /// The receiving loop of iperf3: a wait, then a read of each ready connection.
        SelectReceive = "iperf-receive",
        /// The sending loop of iperf3: a wait, then 10 writes by each connection that has room.
        SelectSend = "iperf-send",
    }
}

/// A program with a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The program.
    pub program: Program,
    /// The number in its name: bytes of a call, or connections.
    pub size: usize,
}

/// All cells, in the order in which they are shown.
pub const CELLS: [Cell; 22] = {
    use Program as P;
    const fn of(program: Program, size: usize) -> Cell {
        Cell { program, size }
    }
    [
        of(P::Send, 256),
        of(P::Send, 1 << 10),
        of(P::Send, 4 << 10),
        of(P::Send, 16 << 10),
        of(P::Send, 128 << 10),
        of(P::Receive, 256),
        of(P::Receive, 1 << 10),
        of(P::Receive, 4 << 10),
        of(P::Receive, 16 << 10),
        of(P::Receive, 128 << 10),
        of(P::Events, 1),
        of(P::Events, 50),
        of(P::Events, 1000),
        of(P::Threads, 64),
        of(P::Datagrams, 64),
        of(P::Datagrams, 1400),
        of(P::SelectReceive, 1),
        of(P::SelectReceive, 2),
        of(P::SelectReceive, 4),
        of(P::SelectSend, 1),
        of(P::SelectSend, 2),
        of(P::SelectSend, 4),
    ]
};

/// The cells of a quick look, by their names.
pub const QUICK_CELLS: [&str; 7] = [
    "send-256",
    "send-16K",
    "receive-256",
    "receive-16K",
    "events-50",
    "threads-64",
    "iperf-receive-1",
];

/// Bytes of a request of an event loop, and of a thread.
const REQUEST_BYTES: usize = 64;
/// Bytes of a read or write of iperf3.
const IPERF_BYTES: usize = 128 << 10;

impl Cell {
    /// Returns the name: that of the program, and bytes of a call or the number of connections.
    pub fn name(self) -> String {
        let Self { program, size } = self;
        match size % 1024 {
            0 => format!("{}-{}K", program.name(), size >> 10),
            _ => format!("{}-{size}", program.name()),
        }
    }

    /// Returns the cells of this name: one, or all of a program.
    pub fn by_name(name: &str) -> Vec<Self> {
        let is_named = |cell: &Self| cell.name() == name || cell.program.name() == name;
        CELLS.into_iter().filter(is_named).collect()
    }

    fn connections(self) -> usize {
        match self.program {
            Program::Send | Program::Receive | Program::Datagrams => 1,
            _ => self.size,
        }
    }

    /// Returns the bytes of a call, or of a message.
    fn block_bytes(self) -> usize {
        match self.program {
            Program::Send | Program::Receive | Program::Datagrams => self.size,
            Program::Events | Program::Threads => REQUEST_BYTES,
            Program::SelectReceive | Program::SelectSend => IPERF_BYTES,
        }
    }

    /// Returns the approximate time of an operation, and its host calls if each call of the program is one.
    fn estimate(self) -> (u64, u64) {
        let of_block = |bytes: usize| 350 + bytes as u64 / 4;
        match self.program {
            Program::Send | Program::Receive => (of_block(self.size), 1),
            Program::Events if self.size == 1 => (30_000, 3),
            Program::Events | Program::Threads => (9_000, 2),
            Program::Datagrams => (4_000, 2),
            Program::SelectReceive => (of_block(IPERF_BYTES), 2),
            Program::SelectSend => (of_block(IPERF_BYTES), 2),
        }
    }

    /// Returns the work of the load.
    fn work(self, exit_us: u64, options: &Options) -> load::Work {
        let (ns, calls) = self.estimate();
        let run_ns = if options.quick { QUICK_RUN_NS } else { RUN_NS };
        // With exits the other variants make fewer and fewer calls: measuring them takes more work.
        let usual = run_ns * (5 + exit_us.min(10)) / 5 / (ns + calls * exit_us * 1000);
        let of_each = options.operations.unwrap_or(usual).div_ceil(self.connections() as u64);
        let warmup = of_each.div_ceil(WARMUP_PART);
        let (connections, block_bytes) = (self.connections(), self.block_bytes());
        let streams = |warmup| Streams { connections, block_bytes, warmup, blocks: of_each };
        let messages = |window| Messages {
            connections,
            message_bytes: block_bytes,
            window,
            warmup,
            requests: of_each,
        };
        match self.program {
            Program::Send | Program::SelectSend => load::Work::Sinks(streams(warmup)),
            Program::Receive | Program::SelectReceive => load::Work::Sources(streams(0)),
            Program::Events | Program::Threads => load::Work::Messages(messages(1)),
            Program::Datagrams => load::Work::Datagrams(messages(DATAGRAMS)),
        }
    }
}

/// The points and variants of the experiment.
#[derive(Clone, Debug)]
pub struct Options {
    /// The cells; each is a point with each exit.
    pub cells: Vec<Cell>,
    /// The costs of a host call besides its system call, in microseconds.
    pub exits_us: Vec<u64>,
    /// Calls, or requests, of a run; `None`: enough for about half a second of `plain`.
    pub operations: Option<u64>,
    /// Take fewer cells and exits, and less work.
    pub quick: bool,
    /// The variants, in the order in which they are shown.
    pub variants: Vec<Variant>,
    /// How the load is started; `None`: as a thread of the server's process, for tests.
    pub load: Option<Launcher>,
}

named! {
    /// The behavior of the sockets.
    pub enum Variant {
        /// Each call is a call of the host.
        Plain = "plain",
        /// The default of a layer: reading ahead on evidence.
        Default = "default",
        /// Reading ahead, and gathering writes, on evidence.
        Gathered = "gathered",
        /// Always reading ahead.
        Ahead = "ahead",
        /// Always reading ahead, and always gathering writes.
        All = "all",
    }
}

impl Variant {
    /// Returns the options of the layer.
    fn options(self) -> sakia_socket::Options {
        let mut options = sakia_socket::Options::default();
        let (read_ahead, gather) = match self {
            Self::Plain => (When::Never, When::Never),
            Self::Default => (options.read_ahead, options.gather),
            Self::Gathered => (options.read_ahead, When::OnEvidence),
            Self::Ahead => (When::Always, When::Never),
            Self::All => (When::Always, When::Always),
        };
        (options.read_ahead, options.gather) = (read_ahead, gather);
        options
    }
}

/// The experiment.
#[derive(Debug)]
pub struct Sockets {
    options: Options,
    place: Place,
    about: About,
    /// The work of each point.
    points: Vec<(Cell, u64, load::Work)>,
}

/// The task of a server.
#[derive(Debug, Serialize, Deserialize)]
struct Input {
    #[serde(flatten)]
    task: Task,
    program: String,
    exit_us: u64,
}

impl Sockets {
    /// Determines the place for the connections.
    ///
    /// # Errors
    /// See [`Place::detect`].
    pub fn new(options: Options) -> anyhow::Result<Self> {
        let place = Place::detect(CONGESTION)?;
        Ok(Self::at(options, place))
    }

    fn at(options: Options, place: Place) -> Self {
        let exits = &options.exits_us;
        let all = options.cells.iter().flat_map(|&cell| exits.iter().map(move |&us| (cell, us)));
        let points: Vec<_> = all.map(|(cell, us)| (cell, us, cell.work(us, &options))).collect();
        let variants = Variant::names(&options.variants);
        let plain = Variant::Plain.name();
        let others = variants.iter().filter(|&&name| name != plain);
        let about = About {
            title: "programs on sockets inside a toy enclave, from which each call takes an exit"
                .into(),
            notes: notes(&place),
            points: points.iter().map(point).collect(),
            pairs: others.map(|&name| (name, plain)).collect(),
            variants,
            ..place.about(NAME, Focus::Requests)
        };
        Self { options, place, about, points }
    }
}

/// Returns the notes on the method.
fn notes(place: &Place) -> Vec<String> {
    vec![
        format!(
            "Connections are made here: {}; TCP_NODELAY is set on both sides, but not by programs that \
             send streams.",
            place.describe()
        ),
        "All figures are those of the process on the sockets. The other ends are plain sockets in \
         another process, the same for all variants. Messages are compared byte by byte, of streams \
         one byte in 64 is added up."
            .into(),
        "Before each call of the host a loop burns the time of an exit; but not before the clock is \
         read. All threads of the process are on one processor, the load is on another one."
            .into(),
        "plain: each call of the program is one of the host. default: reads are made ahead on \
         evidence. gathered: writes are gathered on evidence, too. ahead: reads are always made \
         ahead. all: and writes always gathered."
            .into(),
        "send, receive: blocking calls of so many bytes. events: requests and replies of 64 bytes, by \
         a set and non-blocking calls with 16 KiB of memory. threads: the same by a thread for each \
         connection, whose reads ask for 64 bytes. udp: 32 datagrams under way. iperf: select, then a \
         read of 128 KiB, or up to 10 writes of 128 KiB, of each connection that is ready."
            .into(),
        "Of processor time, 5 % more or less are a tie.".into(),
    ]
}

fn point(&(cell, exit_us, work): &(Cell, u64, load::Work)) -> Point {
    let mut params = Params::new();
    params.insert("cell".into(), cell.name().into());
    params.insert("exit_us".into(), exit_us.into());
    let of_each = match work {
        load::Work::Sources(streams) | load::Work::Sinks(streams) => streams.blocks,
        load::Work::Messages(messages) | load::Work::Datagrams(messages) => messages.requests,
        load::Work::Stream(_) | load::Work::Answers(_) => 0,
    };
    let operations = of_each * cell.connections() as u64;
    let work = Work { operations, bytes: operations * cell.block_bytes() as u64 };
    Point { params, label: format!("{} {exit_us} us", cell.name()), work }
}

impl Experiment for Sockets {
    fn about(&self) -> &About {
        &self.about
    }

    fn prepare(&mut self, point: usize, _is_stopped: &dyn Fn() -> bool) -> anyhow::Result<u64> {
        Ok(self.points[point].2.expected())
    }

    fn input(&self, point: usize) -> Value {
        let (cell, exit_us, work) = self.points[point];
        let order = Order { place: self.place.clone(), work, spin: false };
        let block_bytes = cell.block_bytes();
        let task = Task { order, block_bytes, load: self.options.load.clone() };
        json!(Input { task, program: cell.program.name().into(), exit_us })
    }

    fn reason(&self, row: &Row) -> Option<String> {
        let work = self.about.points[row.point].work;
        let of_each = |count: u64| count as f64 / work.operations.max(1) as f64;
        let mut reason = format!("an operation: {:.3} host calls", of_each(row.count(EXITS)));
        let calls = row.counters.iter().filter(|(name, _)| name.as_str() != EXITS);
        let mut calls: Vec<_> = calls.map(|(name, &count)| (count, name)).collect();
        calls.sort_unstable_by(|a, b| b.cmp(a));
        for (index, (count, name)) in calls.into_iter().take(4).enumerate() {
            let before = if index == 0 { ':' } else { ',' };
            write!(reason, "{before} {name} {:.3}", of_each(count)).ok()?;
        }
        let per_second = bytes_per_second(row.bytes_per_s);
        write!(reason, "; {per_second}").ok()?;
        Some(reason)
    }

    fn plots(&self, results: &Results) -> Vec<Plot> {
        let of_cell = |&cell: &Cell| {
            let place = |row: &Row| {
                let (its, exit_us, _) = self.points[row.point];
                let operations = self.about.points[row.point].work.operations.max(1);
                let cpu_us = row.cpu_ns.median as f64 / 1e3 / operations as f64;
                (its == cell).then_some((exit_us as f64, cpu_us))
            };
            Plot {
                title: format!("Processor time of an operation, {}", cell.name()),
                x_label: "us of an exit".into(),
                y_label: "us (median)".into(),
                series: results.series(place),
                ..Plot::default()
            }
        };
        if self.options.exits_us.len() < 2 {
            return Vec::new();
        }
        self.options.cells.iter().map(of_cell).collect()
    }
}

/// The counter of all calls that leave the enclave.
const EXITS: &str = "exits";

fn bytes_per_second(count: u64) -> String {
    format!("{:.0} MB a second", count as f64 / 1e6)
}

#[cfg(test)]
mod tests;
