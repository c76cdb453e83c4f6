//! Programs: their steps, and the kernel that they run on.
//!
//! Operands are small numbers that select one of the objects that exist at that moment. Every list of steps
//! is therefore a valid program, also one that was shrunk or that a fuzzer made.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Context;
use fastrand::Rng;
use sakia_driver::sim::{FaultKind, Routes, Sim, SimBuilder};
use serde::{Deserialize, Serialize};

use crate::names::{Name, NameOp};

/// A program and its kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// The kernel that it runs on.
    pub config: Config,
    /// Its steps.
    pub steps: Vec<Step>,
}

/// A simulated kernel, and the way the driver uses it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// The seed of every choice of the kernel.
    pub seed: u64,
    /// Entries of the submission queue.
    pub sq_entries: u32,
    /// Entries of the completion queue.
    pub cq_entries: u32,
    /// Weights of the ways to complete: inline, deferred, by a worker.
    pub routes: [u16; 3],
    /// See [`SimBuilder::reorders`].
    pub reorders: bool,
    /// See [`SimBuilder::worker_delay_max`], in microseconds.
    pub worker_delay_us: u32,
    /// See [`SimBuilder::late_writes`].
    pub late_writes: u16,
    /// See [`SimBuilder::busy_on_overflow`].
    pub busy_on_overflow: bool,
    /// See [`SimBuilder::descriptors_max`].
    pub descriptors_max: u32,
    /// See [`SimBuilder::pipe_bytes`].
    pub pipe_bytes: usize,
    /// See [`SimBuilder::socket_bytes`].
    #[serde(default = "usual_socket_bytes")]
    pub socket_bytes: usize,
    /// See [`SimBuilder::plain_calls`].
    pub plain_calls: bool,
    /// See [`SimBuilder::refuses_to_wait`].
    pub refuses_to_wait: bool,
    /// The driver uses plain calls by its default rules.
    pub rules: bool,
    /// Faults by name, with their probability in 65536.
    pub faults: Vec<(String, u16)>,
}

/// The default room of a socket, in bytes.
fn usual_socket_bytes() -> usize {
    131_072
}

/// The transport of sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// On the network.
    #[default]
    Network,
    /// Within the machine, at a path.
    Path,
    /// Within the machine, under an abstract name.
    Name,
    /// Within the machine, made as a pair.
    Pair,
}

/// The user of a datagram socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Owner {
    /// Operations of the driver, one for each datagram.
    #[default]
    Operations,
    /// A receiver of the driver, and operations that send.
    Receiver,
    /// A socket of the runtime.
    Runtime,
}

/// The form of a send or receive of datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Form {
    /// The bytes alone. A send without an address goes to the peer of a connected socket.
    Bytes,
    /// The bytes with an address.
    #[default]
    Addressed,
    /// The bytes with an address and control messages.
    Message,
    /// Several datagrams at once, if the socket supports it.
    Batch,
}

/// The memory of a read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Memory {
    /// One buffer.
    Buffer,
    /// Several buffers.
    Vector,
    /// A block of registered memory.
    Fixed,
}

/// The way in which the program gives up an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Parting {
    /// By dropping it.
    Drop,
    /// By closing it, and keeping the operation.
    Close,
}

/// One end of a pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// To read from.
    Read,
    /// To write to.
    Write,
}

/// One step of a program. Operands named `open`, `pipe` and `op` select one of the existing objects; offsets
/// `at` and lengths `len` are in bytes.
#[expect(missing_docs, reason = "the operands of all steps are described above")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// Opens one of the files with contents: to read, to write, both, to append.
    Open { file: u8, way: u8 },
    /// Makes another handle for an open file.
    Clone { open: u8 },
    /// Reads one of the files with contents as a whole, if the page cache holds it.
    ReadWhole { file: u8, expected: u16 },
    /// Reads from an open file.
    Read { open: u8, at: u16, len: u16, memory: Memory },
    /// Writes to an open file; one that was opened to append ignores the offset.
    Write { open: u8, at: u16, len: u16, memory: Memory },
    /// Sets its size.
    Truncate { open: u8, len: u16 },
    /// Allocates a range.
    Allocate { open: u8, at: u16, len: u16 },
    /// Makes it durable.
    Sync { open: u8, data_only: bool },
    /// Asks for its size.
    Size { open: u8 },
    /// Gives up an open file, even with operations in flight on it.
    Close { open: u8, parting: Parting },
    /// Acts on names.
    Name(NameOp),
    /// Lists a directory, or the top, while no other operation uses names.
    List { directory: Option<Name> },
    /// Makes a pipe.
    Pipe,
    /// Writes to a pipe.
    Send { pipe: u8, len: u16, memory: Memory },
    /// Reads from a pipe.
    Receive { pipe: u8, len: u16, memory: Memory },
    /// Waits for an end of a pipe to become ready.
    Poll { pipe: u8, end: End },
    /// Gives up an end of a pipe.
    ClosePipe { pipe: u8, end: End, parting: Parting },
    /// Makes a connection, whose two directions are used like pipes: by listen, connect and accept, or as a
    /// pair.
    Connection { place: Place },
    /// Sends on a connection within the machine, with this number of descriptors.
    SendWith { pipe: u8, len: u16, descriptors: u8 },
    /// Receives on it, with room for this number of descriptors. With `gives_up` the receive is dropped a
    /// turn later.
    ReceiveWith {
        pipe: u8,
        len: u16,
        descriptors: u8,
        #[serde(default)]
        gives_up: bool,
    },
    /// Makes a listener within the machine.
    Listen { place: Place, backlog: u8 },
    /// Connects to a listener.
    Connect { listener: u8 },
    /// Accepts a connection, which is used like pipes once both of its ends exist.
    Accept { listener: u8 },
    /// Drops a listener.
    CloseListener { listener: u8 },
    /// Makes two datagram sockets, the first of which receives: with several receives at a time if it
    /// `is_shared`, otherwise one after the other.
    Datagrams { place: Place, owner: Owner, is_connected: bool, is_shared: bool },
    /// Sends a datagram from the second to the first, within the machine with this number of descriptors.
    SendTo {
        pair: u8,
        len: u16,
        #[serde(default)]
        form: Form,
        #[serde(default)]
        descriptors: u8,
    },
    /// Receives one, or several in a batch. With `gives_up` the receive is dropped a turn later.
    ReceiveFrom {
        pair: u8,
        len: u16,
        #[serde(default)]
        form: Form,
        #[serde(default)]
        gives_up: bool,
    },
    /// Peeks at the next one.
    PeekAt { pair: u8, len: u16 },
    /// Drops the receiving socket.
    CloseDatagrams { pair: u8 },
    /// Does nothing, through the queue.
    Nop,
    /// Waits for the plain calls of the next turn.
    NextTurn,
    /// Takes a turn that does not sleep, or sleeps for at most this number of microseconds.
    Turn { sleep_us: u16 },
    /// Advances the kernel's clock.
    Pass { us: u16 },
    /// Takes turns until an operation is done, if it can end.
    Await { op: u8 },
    /// Requests the cancellation of an operation.
    Cancel { op: u8 },
    /// Drops an operation.
    Drop { op: u8 },
    /// Forgets an operation, its memory and its descriptor.
    Forget { op: u8 },
    /// Checks that operations without a notice are not done.
    Peek,
}

/// The largest number of steps of a generated program.
const STEPS_MAX: usize = 200;
/// The largest offset and length of most transfers, in bytes.
const SMALL: u16 = 300;

impl Config {
    /// Returns a kernel that follows from the seed. Each has some of the faults, so that each fault occurs
    /// with and without the others.
    pub fn random(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x5eed_c0de);
        let sq_entries = 1 << rng.u32(0..5);
        let cq_entries = sq_entries << rng.u32(1..4);
        let mut routes = [rng.u16(0..4), rng.u16(0..4), rng.u16(0..4)];
        if routes == [0; 3] {
            routes = [1; 3];
        }
        let mut faults = if rng.u8(0..8) == 0 { Vec::new() } else { random_faults(&mut rng) };
        if seed % 4 == 3 {
            // Errors on files of a network file system.
            faults.push(("ServerErrno".to_owned(), 1 << Rng::with_seed(seed).u16(11..15)));
        }
        Self {
            seed,
            sq_entries,
            cq_entries: cq_entries.max(4),
            routes,
            reorders: rng.bool(),
            worker_delay_us: 1 << rng.u32(0..14),
            late_writes: if rng.bool() { 1 << rng.u32(6..15) } else { 0 },
            busy_on_overflow: rng.u8(0..4) == 0,
            descriptors_max: if rng.u8(0..4) == 0 { rng.u32(8..16) } else { 1024 },
            pipe_bytes: if rng.bool() { rng.usize(1..64) } else { 65_536 },
            // Drawn separately, so that the other choices of a seed stay the same.
            socket_bytes: [usual_socket_bytes(), usual_socket_bytes(), 2000, 400]
                [Rng::with_seed(seed ^ 0x050c_4e75).usize(0..4)],
            plain_calls: rng.u8(0..4) != 0,
            refuses_to_wait: rng.u8(0..4) != 0,
            rules: rng.u8(0..4) != 0,
            faults,
        }
    }

    /// Returns the configuration for a driver on a real kernel, without faults.
    pub fn real() -> Self {
        // A datagram there takes much more room than its bytes.
        let socket_bytes = 10_000;
        Self { faults: Vec::new(), rules: true, plain_calls: true, socket_bytes, ..Self::random(0) }
    }

    /// Returns the probability of a fault, in 65536.
    pub fn chance(&self, kind: FaultKind) -> u16 {
        let name = format!("{kind:?}");
        self.faults.iter().find(|(its, _)| *its == name).map_or(0, |&(_, chance)| chance)
    }

    /// Builds the kernel.
    ///
    /// # Errors
    /// A fault that does not exist.
    pub fn build(&self, keep_log: bool) -> anyhow::Result<Sim> {
        let [inline, deferred, worker] = self.routes;
        let mut builder: SimBuilder = Sim::builder(self.seed)
            .entries(self.sq_entries, self.cq_entries)
            .routes(Routes { inline, deferred, worker })
            .reorders(self.reorders)
            .worker_delay_max(Duration::from_micros(self.worker_delay_us.into()))
            .late_writes(self.late_writes)
            .busy_on_overflow(self.busy_on_overflow)
            .descriptors_max(self.descriptors_max)
            .pipe_bytes(self.pipe_bytes)
            .socket_bytes(self.socket_bytes)
            .plain_calls(self.plain_calls)
            .refuses_to_wait(self.refuses_to_wait)
            .keep_log(keep_log);
        if self.chance(FaultKind::ServerErrno) > 0 {
            builder = builder.file_system("fuse");
        }
        for (name, chance) in &self.faults {
            let kind = FaultKind::ALL.iter().find(|kind| format!("{kind:?}") == *name);
            let kind = kind.with_context(|| format!("no fault is called {name}"))?;
            builder = builder.fault(*kind, *chance);
        }
        Ok(builder.build())
    }
}

/// Returns each fault in half of the cases; faults that disable a driver are rare.
fn random_faults(rng: &mut Rng) -> Vec<(String, u16)> {
    let mut faults = Vec::new();
    for kind in FaultKind::ALL.iter().filter(|kind| !FaultKind::SERVER.contains(kind)) {
        let is_fatal = matches!(kind, FaultKind::Stuck | FaultKind::EnterFailed);
        // These affect only datagrams and multishot operations, which are few.
        let is_rare = matches!(
            kind,
            FaultKind::NoBuffers
                | FaultKind::MultishotEnded
                | FaultKind::DatagramLost
                | FaultKind::DatagramDuplicated
                | FaultKind::DatagramReordered
        );
        let (is_in, chance) = if is_fatal {
            (rng.u8(0..16) == 0, 1 << rng.u16(8..12))
        } else if is_rare {
            (rng.bool(), 1 << rng.u16(13..16))
        } else {
            (rng.bool(), 1 << rng.u16(7..14))
        };
        if is_in {
            faults.push((format!("{kind:?}"), chance));
        }
    }
    faults
}

impl Program {
    /// Returns the program and the kernel of a seed.
    pub fn random(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let longest = [8, 40, STEPS_MAX][rng.usize(0..3)];
        let count = rng.usize(1..=longest);
        // Kinds of steps that are rare in one program are frequent in another.
        let mut weights: [u16; 6] = std::array::from_fn(|_| [0, 1, 4, 16][rng.usize(0..4)]);
        if seed % 6 == 1 {
            // Sockets, and the fates of their operations.
            weights = [0, 0, 0, 8, 12, 24];
        }
        let steps = (0..count).map(|_| random_step(&mut rng, &weights)).collect();
        Self { config: Config::random(seed), steps }
    }

    /// Returns the program and the kernel in these bytes: eight bytes of a seed for the kernel, then eight
    /// for each step.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let (words, _) = bytes.as_chunks();
        let mut words = words.iter().map(|&word| u64::from_le_bytes(word));
        let config = Config::random(words.next().unwrap_or(0));
        let step = |word| random_step(&mut Rng::with_seed(word), &[2; 6]);
        Self { config, steps: words.take(STEPS_MAX).map(step).collect() }
    }

    /// Returns the program as text: a line for the kernel, and one for each step.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        let config = serde_json::to_string(&self.config).expect("numbers and names are JSON");
        writeln!(text, "{config}").expect("a string takes all text");
        for step in &self.steps {
            let step = serde_json::to_string(step).expect("numbers and names are JSON");
            writeln!(text, "{step}").expect("a string takes all text");
        }
        text
    }

    /// Parses a program. Lines that begin with `#` are comments.
    ///
    /// # Errors
    /// A line that is no part of a program.
    pub fn from_text(text: &str) -> anyhow::Result<Self> {
        let lines = text.lines().enumerate();
        let mut lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let (_, config) = lines.next().context("there is no line for the kernel")?;
        let config = serde_json::from_str(config).context("the line for the kernel")?;
        let step = |(index, line)| {
            serde_json::from_str(line).with_context(|| format!("line {}: {line}", index + 1))
        };
        Ok(Self { config, steps: lines.map(step).collect::<anyhow::Result<_>>()? })
    }
}

/// Returns a random step. The weights are for files, names, pipes, time, fates of operations, and sockets.
fn random_step(rng: &mut Rng, weights: &[u16; 6]) -> Step {
    let sum: u16 = weights.iter().map(|weight| weight + 1).sum();
    let mut number = rng.u16(0..sum);
    let mut group = 0;
    while number > weights[group] {
        number -= weights[group] + 1;
        group += 1;
    }
    match group {
        0 => file_step(rng),
        1 => name_step(rng),
        2 => pipe_step(rng),
        3 => time_step(rng),
        4 => op_step(rng),
        _ => socket_step(rng),
    }
}

fn len(rng: &mut Rng) -> u16 {
    match rng.u8(0..16) {
        0 => 0,
        1 => rng.u16(0..10_000),
        _ => rng.u16(1..SMALL),
    }
}

fn at(rng: &mut Rng) -> u16 {
    if rng.u8(0..16) == 0 { rng.u16(0..5_000) } else { rng.u16(0..SMALL) }
}

fn memory(rng: &mut Rng) -> Memory {
    match rng.u8(0..8) {
        0 => Memory::Fixed,
        1..4 => Memory::Vector,
        _ => Memory::Buffer,
    }
}

fn parting(rng: &mut Rng) -> Parting {
    if rng.bool() { Parting::Drop } else { Parting::Close }
}

fn file_step(rng: &mut Rng) -> Step {
    let (open, at, len) = (rng.u8(..), at(rng), len(rng));
    match rng.u8(0..26) {
        0..4 => Step::Open { file: rng.u8(0..4), way: rng.u8(0..5) },
        4 => Step::Clone { open },
        5..12 => Step::Read { open, at, len, memory: memory(rng) },
        12..18 => Step::Write { open, at, len, memory: memory(rng) },
        18 => Step::Truncate { open, len },
        19 => Step::Allocate { open, at, len },
        20 => Step::ReadWhole { file: rng.u8(0..4), expected: len },
        21..23 => Step::Sync { open, data_only: rng.bool() },
        23 => Step::Size { open },
        _ => Step::Close { open, parting: parting(rng) },
    }
}

fn name_step(rng: &mut Rng) -> Step {
    let (one, other) = (Name::pick(rng.u8(..)), Name::pick(rng.u8(..)));
    Step::Name(match rng.u8(0..24) {
        0..4 => NameOp::Create(one),
        4..8 => NameOp::Mkdir(one),
        8..10 => NameOp::Unlink(one),
        10..12 => NameOp::Rmdir(one),
        12..16 => NameOp::Rename(one, other),
        16 => NameOp::Move(one, other),
        17 => NameOp::Exchange(one, other),
        18 => NameOp::Link(one, other),
        19 => NameOp::Symlink(one),
        20..22 => NameOp::Stat(one),
        _ => return Step::List { directory: rng.bool().then_some(one) },
    })
}

fn pipe_step(rng: &mut Rng) -> Step {
    let (pipe, len) = (rng.u8(..), len(rng));
    let end = if rng.bool() { End::Read } else { End::Write };
    match rng.u8(0..18) {
        0..2 => Step::Pipe,
        3..7 => Step::Send { pipe, len, memory: memory(rng) },
        7..12 => Step::Receive { pipe, len, memory: memory(rng) },
        12..15 => Step::Poll { pipe, end },
        2 | 15 => Step::Connection { place: place(rng) },
        _ => Step::ClosePipe { pipe, end, parting: parting(rng) },
    }
}

fn place(rng: &mut Rng) -> Place {
    [Place::Network, Place::Network, Place::Path, Place::Name, Place::Pair][rng.usize(0..5)]
}

fn form(rng: &mut Rng) -> Form {
    [Form::Bytes, Form::Addressed, Form::Message, Form::Batch][rng.usize(0..4)]
}

fn datagrams(rng: &mut Rng) -> Step {
    Step::Datagrams {
        place: place(rng),
        owner: [Owner::Operations, Owner::Receiver, Owner::Runtime][rng.usize(0..3)],
        is_connected: rng.bool(),
        is_shared: rng.u8(0..3) == 0,
    }
}

fn socket_step(rng: &mut Rng) -> Step {
    // The first pairs are used most, and the others sometimes.
    let pair = if rng.u8(0..3) == 0 { rng.u8(..) } else { 0 };
    let descriptors = rng.u8(0..4);
    let (pipe, listener) = (pair, pair);
    match rng.u8(0..50) {
        0..3 => datagrams(rng),
        3..14 => {
            // Some are too long for any transport.
            let is_huge = rng.u8(0..24) == 0;
            let len = if is_huge { rng.u16(65_508..=u16::MAX) } else { len(rng) };
            let descriptors = if rng.bool() { descriptors } else { 0 };
            Step::SendTo { pair, len, form: form(rng), descriptors }
        }
        14..23 => {
            let gives_up = rng.u8(0..3) == 0;
            Step::ReceiveFrom { pair, len: len(rng), form: form(rng), gives_up }
        }
        23..26 => Step::PeekAt { pair, len: len(rng) },
        26 if rng.u8(0..4) == 0 => Step::CloseDatagrams { pair },
        26..29 => {
            Step::Connection { place: [Place::Path, Place::Name, Place::Pair][rng.usize(0..3)] }
        }
        29..33 => Step::SendWith { pipe, len: len(rng), descriptors },
        33..37 => {
            let gives_up = rng.u8(0..3) == 0;
            Step::ReceiveWith { pipe, len: len(rng), descriptors, gives_up }
        }
        37..39 => Step::Listen {
            place: [Place::Path, Place::Name][rng.usize(0..2)],
            backlog: rng.u8(0..3),
        },
        39..44 => Step::Connect { listener },
        44..48 => Step::Accept { listener },
        48 if rng.u8(0..4) == 0 => Step::CloseListener { listener },
        48..=u8::MAX => op_step(rng),
    }
}

fn time_step(rng: &mut Rng) -> Step {
    match rng.u8(0..8) {
        0 => Step::Nop,
        1 => Step::NextTurn,
        2 => Step::Pass { us: rng.u16(0..3000) },
        3..6 => Step::Turn { sleep_us: 0 },
        _ => Step::Turn { sleep_us: rng.u16(0..3000) },
    }
}

fn op_step(rng: &mut Rng) -> Step {
    let op = rng.u8(..);
    match rng.u8(0..32) {
        0..14 => Step::Await { op },
        14..20 => Step::Cancel { op },
        20..27 => Step::Drop { op },
        27 => Step::Forget { op },
        _ => Step::Peek,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_program_and_its_text_is_the_same() {
        for seed in 0..200 {
            let program = Program::random(seed);
            assert_eq!(program, Program::random(seed));
            assert_eq!(program, Program::from_text(&program.to_text()).unwrap());
            program.config.build(false).unwrap();
        }
        assert_ne!(Program::random(1), Program::random(2));
    }

    #[test]
    fn any_bytes_are_a_program() {
        assert_eq!(Program::from_bytes(&[]).steps, []);
        assert_eq!(Program::from_bytes(&[7; 8 * 3 + 5]).steps.len(), 2);
    }

    #[test]
    fn bad_text_is_refused_with_its_line() {
        let text = Program::random(3).to_text() + "{\"Jump\":1}\n";
        let error = Program::from_text(&text).unwrap_err().to_string();
        assert!(error.contains("Jump"), "{error}");
        assert!(Program::from_text("# nothing\n").is_err());
    }
}
