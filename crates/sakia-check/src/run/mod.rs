//! Runs a program and compares its outcome with the models.

mod datagrams;
mod files;
mod names;
mod pipes;
mod probes;
mod sockets;
mod transfers;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use rustix::io::Errno;
use sakia_driver::sim::FaultKind;
use sakia_driver::{
    Arena, Auto, Bypass, Driver, Fd, Handle, OpKind, Policy, ReceivedControl, Rules, Streams, Wait,
};
use sakia_ring::Ring;

use crate::env::{Env, Real, Simulated};
use crate::held::{Held, Output, Pending, hook_wakers, survive_wakers};
use crate::names::Worlds;
use crate::program::{Config, Form, Program, Step};
use crate::stats::{Fate, Moment, Stats};

use self::datagrams::{DatagramModel, DatagramRole};
use self::files::{FileModel, FileRole, OpenFile};
use self::names::NameRole;
use self::pipes::{PipeModel, PipeRole};
use self::sockets::{ListenerModel, ListenerRole};

/// A deviation from the models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The deviation, as text.
    pub what: String,
}

/// The result of a check; an error names the broken rule.
type Check = Result<(), String>;

/// The expected end of an operation.
pub(crate) enum Role {
    /// Success.
    Nop,
    File(FileRole),
    Name(NameRole),
    Pipe(PipeRole),
    Datagram(DatagramRole),
    Listener(ListenerRole),
    /// A close of a descriptor.
    Close,
}

impl Role {
    /// Returns the kind of operation, for counting.
    fn kind(&self) -> &'static str {
        match self {
            Self::Nop => "nop",
            Self::File(role) => role.kind(),
            Self::Name(_) => "name",
            Self::Pipe(role) => role.kind(),
            Self::Datagram(role) => role.kind(),
            Self::Listener(role) => role.kind(),
            Self::Close => "close",
        }
    }

    /// Returns the socket whose datagrams it receives, or looks at, together with others.
    fn receives_on(&self) -> Option<usize> {
        match self {
            Self::Datagram(role @ DatagramRole::Receive { .. }) => Some(role.pair()),
            _ => None,
        }
    }

    /// Returns whether it may wait for ever. A close waits for all users of its descriptor, and a result
    /// that was not taken is a user.
    fn may_wait(&self) -> bool {
        matches!(self, Self::Pipe(_) | Self::Datagram(_) | Self::Listener(_) | Self::Close)
    }
}

/// The number of blocks of registered memory, and their size in bytes.
const BLOCKS: u32 = 4;
const BLOCK_BYTES: usize = 4096;
/// The number of turns after which an operation that ends by itself must be done, on the simulated kernel
/// and on this machine; and the number spent on one that may not end.
const TURNS_MAX: u32 = 3000;
const TURNS_TRIED: u32 = 10;
/// The longest sleep of each of these turns.
const NAP: Duration = Duration::from_millis(5);
/// The largest number of operations held.
const HELD_MAX: usize = 48;

/// A running program.
pub(crate) struct Runner<'a, E: Env> {
    env: &'a E,
    driver: Driver,
    config: &'a Config,
    arena: Option<Arena>,
    files: Vec<FileModel>,
    open: Vec<OpenFile>,
    pipes: Vec<PipeModel>,
    datagrams: Vec<DatagramModel>,
    listeners: Vec<ListenerModel>,
    /// The number of sockets with an address.
    sockets: u64,
    /// The other ends of the pipes that messages pass on.
    probes: Vec<Fd>,
    /// Control messages received and kept.
    kept: Vec<ReceivedControl>,
    worlds: Worlds,
    /// Operations on names that were given up and may still happen.
    names_given_up: Vec<u64>,
    held: Vec<Held<Role>>,
    /// Forgotten handles: their slots stay in use. They are dropped only at the end, so that many programs
    /// do not fill the memory.
    forgotten: Vec<Box<dyn Pending>>,
    /// The number of errors that only a fault explains.
    excused: u64,
    /// The number of operations started.
    started: u64,
    /// The kernel has failed permanently.
    is_dead: bool,
    stats: &'a mut Stats,
}

/// The result of a run on the simulated kernel.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// [`SimHandle::log_hash`](sakia_driver::sim::SimHandle::log_hash).
    pub hash: u64,
    /// The log, if kept.
    pub log: String,
    /// The failure, if any.
    pub failure: Option<Failure>,
}

/// Runs a program on the simulated kernel.
///
/// # Errors
/// The program names a fault that does not exist.
pub fn simulated(program: &Program, keep_log: bool, stats: &mut Stats) -> anyhow::Result<Outcome> {
    let (env, sim) = Simulated::new(&program.config, keep_log)?;
    let kernel = env.kernel.clone();
    stats.program(program.steps.len());
    let driver = Driver::new(sim);
    let handle = driver.handle().clone();
    let result = run(&env, driver, program, stats).and_then(|end| check_kernel(&env, &end));
    for kind in FaultKind::ALL {
        *stats.faults.entry(format!("{kind:?}")).or_default() += kernel.injected(*kind);
    }
    count(&handle, stats);
    let failure = result.err().map(|what| Failure { what });
    Ok(Outcome { hash: kernel.log_hash(), log: kernel.log_text(), failure })
}

/// Runs a program on this machine, with files in `folder`, which is created and removed.
///
/// # Errors
/// The folder cannot be made, or there is no such backend.
pub fn real(
    program: &Program,
    policy: Policy,
    folder: std::path::PathBuf,
    stats: &mut Stats,
) -> anyhow::Result<Option<Failure>> {
    let env = Real::new(folder)?;
    stats.program(program.steps.len());
    let config = Config { seed: program.config.seed, ..Config::real() };
    let program = Program { config, steps: program.steps.clone() };
    let ring = Ring::builder().sq_entries(program.config.sq_entries);
    let (backend, _) = Auto::new(policy, ring)?;
    let driver = Driver::new(backend);
    let handle = driver.handle().clone();
    let result = run(&env, driver, &program, stats);
    count(&handle, stats);
    Ok(result.err().map(|what| Failure { what }))
}

fn count(handle: &Handle, stats: &mut Stats) {
    let counters = handle.counters();
    stats.pushed += counters.pushed;
    stats.enters += counters.enters;
    stats.plain_calls += OpKind::ALL.iter().map(|&kind| counters.of(kind).inline).sum::<u64>();
}

/// The remains of a driver.
struct Ended {
    /// Every operation had to end.
    all_ended: bool,
    forgotten: Vec<Box<dyn Pending>>,
    excused: u64,
    leaked: u64,
    stale: u64,
    /// Operations that were started, and are not counted as finished.
    unfinished: u64,
}

fn run<E: Env>(
    env: &E,
    driver: Driver,
    program: &Program,
    stats: &mut Stats,
) -> Result<Ended, String> {
    let config = &program.config;
    if config.rules {
        driver.set_bypass(Bypass::Rules(Rules::default()));
    }
    // Programs behave the same with both kinds of streams. Most backends have only one kind.
    driver.set_streams(if program.config.seed.is_multiple_of(2) {
        Streams::Queue
    } else {
        Streams::Readiness
    });
    let arena = driver.register_arena(BLOCKS, BLOCK_BYTES).ok();
    let mut runner = Runner {
        env,
        driver,
        config,
        arena,
        files: FileModel::all(),
        open: Vec::new(),
        pipes: Vec::new(),
        datagrams: Vec::new(),
        listeners: Vec::new(),
        sockets: 0,
        probes: Vec::new(),
        kept: Vec::new(),
        worlds: Worlds::default(),
        names_given_up: Vec::new(),
        held: Vec::new(),
        forgotten: Vec::new(),
        excused: 0,
        started: 0,
        is_dead: false,
        stats,
    };
    let handle = runner.driver.handle().clone();
    let hook = hook_wakers(Rc::new(move || assert!(handle.live_operations() < u32::MAX)));
    for (index, &step) in program.steps.iter().enumerate() {
        runner.step(step).map_err(|what| format!("step {index}, {step:?}: {what}"))?;
        if runner.is_dead {
            break;
        }
    }
    // Three in four programs end in good order; the others are cut off.
    if !config.seed.is_multiple_of(4) && !runner.is_dead {
        runner.finish().map_err(|what| format!("at the end: {what}"))?;
    }
    drop(hook);
    runner.end().map_err(|what| format!("after the driver's end: {what}"))
}

/// Checks the simulated kernel after the end of the driver.
fn check_kernel(env: &Simulated, end: &Ended) -> Check {
    let kernel = &env.kernel;
    let injected = |kind| kernel.injected(kind);
    let ghosts = injected(FaultKind::Duplicate) + injected(FaultKind::Stale);
    if end.stale > ghosts {
        return Err(format!("{} completions were unknown, and {ghosts} were made up", end.stale));
    }
    let faults = [FaultKind::Errno, FaultKind::Restart, FaultKind::ServerErrno];
    let faults: u64 = faults.into_iter().map(injected).sum();
    if end.excused > faults {
        return Err(format!("{} errors, and {faults} were made up", end.excused));
    }
    if kernel.closes_in_vain() > 0 {
        return Err(format!("{} numbers were closed twice", kernel.closes_in_vain()));
    }
    kernel.run_late();
    if kernel.freed_early() > 0 {
        return Err(format!("{} buffers were freed too early", kernel.freed_early()));
    }
    if !end.all_ended {
        return Ok(());
    }
    let left = kernel.in_flight();
    // Only its number identifies a cancel request. An invented completion may end one in the driver's
    // books, and the request may still be in flight when the driver ends. It uses no memory.
    if end.leaked > 0 || left as u64 > ghosts {
        return Err(format!("{} operations were leaked, {left} are in flight", end.leaked));
    }
    if end.forgotten.is_empty() && end.unfinished != 0 {
        return Err(format!("{} more operations were started than finished", end.unfinished));
    }
    if end.forgotten.is_empty() && kernel.open_descriptors() != 0 {
        return Err(format!("{} descriptors are still open", kernel.open_descriptors()));
    }
    Ok(())
}

impl<E: Env> Runner<'_, E> {
    fn step(&mut self, step: Step) -> Check {
        if self.held.len() >= HELD_MAX {
            self.await_op(0)?;
            if self.held.len() >= HELD_MAX {
                self.drop_op(0);
            }
        }
        match step {
            Step::Open { file, way } => self.open_file(file, way),
            Step::Clone { open } => self.clone_open(open),
            Step::ReadWhole { file, expected } => self.read_whole(file, expected)?,
            Step::Read { open, at, len, memory } => self.read(open, at, len, memory),
            Step::Write { open, at, len, memory } => self.write(open, at, len, memory),
            Step::Truncate { open, len } => self.truncate(open, len),
            Step::Allocate { open, at, len } => self.allocate(open, at, len),
            Step::Sync { open, data_only } => self.sync(open, data_only),
            Step::Size { open } => self.size(open),
            Step::Close { open, parting } => self.close_file(open, parting),
            Step::Name(op) => self.name(op),
            Step::List { directory } => self.list(directory)?,
            Step::Pipe => self.make_pipe()?,
            Step::Send { pipe, len, memory } => self.send(pipe, len, memory),
            Step::Receive { pipe, len, memory } => self.receive(pipe, len, memory),
            Step::Poll { pipe, end } => self.poll_pipe(pipe, end),
            Step::ClosePipe { pipe, end, parting } => self.close_pipe(pipe, end, parting),
            Step::Connection { place } => self.make_connection(place)?,
            Step::SendWith { pipe, len, descriptors } => self.send_with(pipe, len, descriptors)?,
            Step::ReceiveWith { pipe, len, descriptors, gives_up } => {
                let held = self.held.len();
                self.receive_with(pipe, len, descriptors);
                self.give_up_from(held, gives_up)?;
            }
            Step::Listen { place, backlog } => self.listen(place, backlog)?,
            Step::Connect { listener } => self.connect(listener)?,
            Step::Accept { listener } => self.accept(listener),
            Step::CloseListener { listener } => self.close_listener(listener),
            Step::Datagrams { place, owner, is_connected, is_shared } => {
                self.make_datagrams(place, owner, is_connected, is_shared)?;
            }
            Step::SendTo { pair, len, form, descriptors } => {
                self.send_datagram(pair, len, form, descriptors)?;
            }
            Step::ReceiveFrom { pair, len, form, gives_up } => {
                let held = self.held.len();
                self.receive_datagram(pair, len, form, false);
                self.give_up_from(held, gives_up)?;
            }
            Step::PeekAt { pair, len } => {
                self.receive_datagram(pair, len, Form::Addressed, true);
            }
            Step::CloseDatagrams { pair } => self.close_datagrams(pair),
            Step::Nop => {
                let op = crate::held::pending(self.driver.nop(), Output::Done);
                self.hold(Role::Nop, op);
            }
            Step::NextTurn => {
                let op = crate::held::pending(self.driver.next_turn(), Output::Done);
                self.hold(Role::Nop, op);
            }
            Step::Turn { sleep_us: 0 } => self.turn(Wait::Poll)?,
            Step::Turn { sleep_us } | Step::Pass { us: sleep_us } => {
                self.turn(Wait::For(Duration::from_micros(sleep_us.into())))?;
            }
            Step::Await { op } => self.await_op(op.into())?,
            Step::Cancel { op } => self.cancel_op(op.into()),
            Step::Drop { op } => self.drop_op(op.into()),
            Step::Forget { op } => self.forget_op(op.into()),
            Step::Peek => self.peek()?,
        }
        Ok(())
    }

    /// Returns whether this fault may happen.
    fn has(&self, kind: FaultKind) -> bool {
        self.config.chance(kind) > 0
    }

    /// Returns the error of an operation that needs a descriptor, if the descriptor table may be full.
    fn errors_of_full_table(&self) -> &'static [Errno] {
        if self.config.descriptors_max < 100 { &[Errno::MFILE] } else { &[] }
    }

    /// Returns whether operations may hang.
    fn may_hang(&self) -> bool {
        self.has(FaultKind::Stuck) || self.is_dead
    }

    fn next_id(&mut self) -> u64 {
        self.started += 1;
        self.started
    }

    /// Keeps an operation that was just started, under a new number.
    fn hold(&mut self, role: Role, pending: Box<dyn Pending>) {
        let id = self.next_id();
        self.hold_as(id, role, pending);
    }

    fn hold_as(&mut self, id: u64, role: Role, pending: Box<dyn Pending>) {
        *self.stats.operations.entry(role.kind()).or_default() += 1;
        self.held.push(Held::new(id, role, pending));
    }

    fn moment(held: &Held<Role>) -> Moment {
        if held.turns == 0 { Moment::Started } else { Moment::UnderWay }
    }

    // Turns.

    fn turn(&mut self, wait: Wait) -> Check {
        let driver = &self.driver;
        // After a panic the next turn continues with the other wakers.
        let turn = survive_wakers(|| driver.turn(wait)).unwrap_or_else(|| {
            loop {
                if let Some(turn) = survive_wakers(|| driver.turn(Wait::Poll)) {
                    break turn;
                }
            }
        });
        if let Err(error) = turn {
            if !self.has(FaultKind::EnterFailed) {
                return Err(format!("the turn failed: {error}"));
            }
            self.is_dead = true;
            return Ok(());
        }
        while let Some(token) = self.driver.next_done() {
            if let Some(held) = self.held.iter().find(|held| held.id == token) {
                held.notify();
            }
        }
        for held in &mut self.held {
            held.turns = held.turns.saturating_add(1);
        }
        self.settle();
        Ok(())
    }

    /// Ends the operations that were given up when all operations in flight are held by the program.
    /// Multishot operations without a handle do not count; they were not given up.
    fn settle(&mut self) {
        let goes_on = |kind: &str| kind.starts_with("Multi");
        if self.driver.operations().iter().any(|op| op.is_orphan && !goes_on(op.kind)) {
            return;
        }
        for file in &mut self.files {
            file.settle();
        }
        for pipe in &mut self.pipes {
            pipe.settle();
        }
        if !self.names_given_up.is_empty() {
            self.worlds.settle(&std::mem::take(&mut self.names_given_up));
        }
    }

    /// Takes turns until the operation is done, or the limit is reached.
    fn await_op(&mut self, number: usize) -> Check {
        let Some(index) = pick(number, self.held.len()) else { return Ok(()) };
        let may_wait = self.held[index].role.may_wait() || self.may_hang();
        let turns = if may_wait { TURNS_TRIED } else { TURNS_MAX };
        for _ in 0..turns {
            if let Some(output) = self.held[index].ask() {
                let held = self.held.swap_remove(index);
                return self.take(held, output);
            }
            self.turn(Wait::For(NAP))?;
            if self.is_dead {
                return Ok(());
            }
        }
        match may_wait {
            true => Ok(()),
            false => Err(format!("{} never ends", self.held[index].role.kind())),
        }
    }

    /// Checks that operations without a notice are not done.
    fn peek(&mut self) -> Check {
        self.turn(Wait::Poll)?;
        let mut index = 0;
        while index < self.held.len() {
            let was_unnoticed = self.held[index].is_unnoticed() && !self.is_shared(index);
            let Some(output) = self.held[index].ask_anyway() else {
                index += 1;
                continue;
            };
            let held = self.held.swap_remove(index);
            if was_unnoticed && !self.is_dead {
                return Err(format!("{} was done without notice: {output:?}", held.role.kind()));
            }
            self.take(held, output)?;
            // The result taken may have been the last user of a descriptor; its close is reported in a turn.
            self.turn(Wait::Poll)?;
        }
        Ok(())
    }

    /// Returns whether another receive on the same socket has a notice and was not polled since. The
    /// announced datagram goes to the receive that is polled first.
    fn is_shared(&self, index: usize) -> bool {
        let Some(socket) = self.held[index].role.receives_on() else { return false };
        let on_socket = |held: &&Held<Role>| held.role.receives_on() == Some(socket);
        self.held.iter().filter(on_socket).any(Held::is_noticed)
    }

    // Fates of operations.

    fn cancel_op(&mut self, number: usize) {
        let Some(index) = pick(number, self.held.len()) else { return };
        let held = &mut self.held[index];
        self.stats.fate(held.role.kind(), Self::moment(held), Fate::Canceled);
        if let Role::Datagram(role) = &held.role {
            self.datagrams[role.pair()].note_canceled(role);
        }
        // An operation that is not pushed yet is canceled, and its waker called, at once.
        survive_wakers(|| held.pending.cancel());
        held.is_canceled = true;
    }

    fn drop_op(&mut self, number: usize) {
        let Some(index) = pick(number, self.held.len()) else { return };
        let held = self.held.swap_remove(index);
        self.stats.fate(held.role.kind(), Self::moment(&held), Fate::Dropped);
        self.give_up(held.id, held.role);
        drop(held.pending);
    }

    /// Drops an operation that was just started, after one poll, if it is not done a turn later.
    fn give_up_from(&mut self, index: usize, gives_up: bool) -> Check {
        if !gives_up || self.held.len() == index {
            return Ok(());
        }
        if let Some(output) = self.held[index].ask() {
            let held = self.held.swap_remove(index);
            return self.take(held, output);
        }
        self.turn(Wait::Poll)?;
        self.drop_op(index);
        Ok(())
    }

    fn forget_op(&mut self, number: usize) {
        let Some(index) = pick(number, self.held.len()) else { return };
        match &self.held[index].role {
            // The operation could happen at any time until the end, so the model would know nothing about
            // names any more.
            Role::Name(_) => return,
            Role::File(role) => self.files[role.file()].is_spoiled = true,
            Role::Pipe(role) => self.pipes[role.pipe()].is_spoiled = true,
            Role::Datagram(role) => self.datagrams[role.pair()].forget(role),
            Role::Listener(role) => self.listeners[role.listener()].give_up(role),
            Role::Nop | Role::Close => {}
        }
        let held = self.held.swap_remove(index);
        self.stats.fate(held.role.kind(), Self::moment(&held), Fate::Forgotten);
        self.forgotten.push(held.pending);
    }

    /// Updates the model for a dropped operation.
    fn give_up(&mut self, id: u64, role: Role) {
        match role {
            Role::Name(_) => self.names_given_up.push(id),
            Role::File(role) => self.files[role.file()].give_up(id),
            Role::Pipe(role) => self.pipes[role.pipe()].give_up(&role),
            Role::Datagram(role) => self.datagrams[role.pair()].give_up(&role),
            Role::Listener(role) => self.listeners[role.listener()].give_up(&role),
            Role::Nop | Role::Close => {}
        }
    }

    /// Compares the result of an ended operation with the model.
    fn take(&mut self, held: Held<Role>, output: Output) -> Check {
        let moment = if held.turns == 0 { Moment::Started } else { Moment::Done };
        let kind = held.role.kind();
        self.stats.fate(kind, moment, Fate::Taken);
        if let Some(error) = output.error() {
            let errno = error.raw_os_error().map_or_else(|| error.to_string(), errno_name);
            *self.stats.errors.entry(format!("{kind} {errno}")).or_default() += 1;
        }
        let what = format!("{output:?}");
        let result = match held.role {
            Role::Nop => match output {
                Output::Done(Ok(())) => Ok(()),
                Output::Done(Err(error)) => self.excuse(&error, held.is_canceled, &[]),
                _ => Err("no result of its kind".to_owned()),
            },
            Role::Close => match output {
                Output::Done(Ok(())) => Ok(()),
                // It was closed before, through another clone.
                Output::Done(Err(error)) => {
                    self.excuse(&error, held.is_canceled, &[Errno::BADF, Errno::NOTCONN])
                }
                _ => Err("no result of its kind".to_owned()),
            },
            Role::File(role) => self.end_file(held.id, role, held.is_canceled, output),
            Role::Name(role) => self.end_name(held.id, role, held.is_canceled, output),
            Role::Pipe(role) => self.end_pipe(role, held.is_canceled, output),
            Role::Datagram(role) => self.end_datagram(role, held.is_canceled, output),
            Role::Listener(role) => self.end_listener(role, held.is_canceled, output),
        };
        result.map_err(|wrong| format!("{kind} #{} ended with {}: {wrong}", held.id, short(&what)))
    }

    /// Returns whether an error without effect is possible: known to the model, explained by a cancellation,
    /// or injected.
    fn excuse(&mut self, error: &std::io::Error, is_canceled: bool, known: &[Errno]) -> Check {
        let Some(errno) = Errno::from_io_error(error) else {
            return Err(format!("{error} is no errno"));
        };
        if known.contains(&errno) || is_canceled && errno == Errno::CANCELED {
            return Ok(());
        }
        let made_up = [
            Errno::IO,
            Errno::INTR,
            Errno::AGAIN,
            Errno::NOMEM,
            Errno::NOSPC,
            Errno::DQUOT,
            Errno::MFILE,
            Errno::NFILE,
            Errno::CANCELED,
            Errno::NOBUFS,
        ];
        // A server may answer with any error after doing what was requested. `EBADF` it reports only for a
        // file that is being closed.
        let may_fail = self.has(FaultKind::Errno) && made_up.contains(&errno)
            || self.has(FaultKind::ServerErrno) && errno != Errno::BADF;
        if may_fail || self.has(FaultKind::Restart) && errno == Errno::INTR {
            self.excused += 1;
            return Ok(());
        }
        Err("an error without a reason".to_owned())
    }

    // The end.

    /// Drops everything in good order and waits for all operations.
    fn finish(&mut self) -> Check {
        self.drain_datagrams()?;
        self.part_with_all();
        let mut turns = 0;
        while !self.held.is_empty()
            || self.driver.live_operations() as usize != self.forgotten.len()
        {
            self.take_done()?;
            // The results taken may have made connections.
            self.part_with_all();
            if turns == TURNS_TRIED {
                // An operation that holds both ends of its pipe waits for ever.
                let waits = |held: &&mut Held<Role>| {
                    matches!(held.role, Role::Pipe(_) | Role::Datagram(_) | Role::Listener(_))
                };
                self.held.iter_mut().filter(waits).for_each(|held| {
                    survive_wakers(|| held.pending.cancel());
                    held.is_canceled = true;
                });
            }
            turns += 1;
            // A forgotten operation uses its descriptor for ever.
            let is_left = !self.forgotten.is_empty()
                && self.held.iter().all(|held| matches!(held.role, Role::Close));
            if turns > TURNS_TRIED * 4 && (is_left || self.may_hang()) {
                return Ok(());
            }
            if turns > TURNS_MAX {
                let held: Vec<_> = self.held.iter().map(|held| held.role.kind()).collect();
                let live = self.driver.live_operations();
                return Err(format!("{held:?} never end, {live} are live"));
            }
            self.turn(Wait::For(NAP))?;
            if self.is_dead {
                return Ok(());
            }
        }
        self.settle();
        self.check_files()?;
        self.check_names()
    }

    /// Drops the descriptors of all operations: all but polls end because of that.
    fn part_with_all(&mut self) {
        self.open.clear();
        self.kept.clear();
        self.pipes.iter_mut().for_each(PipeModel::part_with_ends);
        self.datagrams.iter_mut().for_each(DatagramModel::part_with_ends);
        self.listeners.iter_mut().for_each(ListenerModel::part_with_ends);
    }

    /// Takes the results of all operations with a notice.
    fn take_done(&mut self) -> Check {
        let mut index = 0;
        while index < self.held.len() {
            match self.held[index].ask() {
                Some(output) => {
                    let held = self.held.swap_remove(index);
                    self.take(held, output)?;
                }
                None => index += 1,
            }
        }
        Ok(())
    }

    /// Ends the driver, then examines the operations that the program still holds.
    fn end(mut self) -> Result<Ended, String> {
        for held in &self.held {
            self.stats.fate(held.role.kind(), Self::moment(held), Fate::Ended);
        }
        let handle = self.driver.handle().clone();
        // Half of the programs drop their files first.
        if self.config.seed % 8 < 4 {
            self.part_with_all();
        }
        let Self { driver, arena, open, pipes, datagrams, listeners, .. } = self;
        let Self { probes, kept, held, forgotten, excused, .. } = self;
        let leaked = driver.shutdown(Duration::from_secs(1)).leaked;
        drop((open, pipes, datagrams, listeners, probes, kept, arena));
        // Results from before the end are kept and were not checked in order. A close may wait until
        // another result is taken; if that operation was forgotten, it waits for ever.
        let mut held = held;
        let mut count = usize::MAX;
        while held.len() < count {
            count = held.len();
            held.retain_mut(Held::is_left_waiting);
        }
        let may_wait = |role: &Role| match role {
            // Operations on the socket of a forgotten one wait for it.
            Role::Listener(_) | Role::Datagram(_) | Role::Close => !forgotten.is_empty(),
            _ => false,
        };
        held.retain(|held| !may_wait(&held.role));
        if let Some(held) = held.first() {
            let kind = held.role.kind();
            return Err(format!("{kind} #{} waits although its driver has ended", held.id));
        }
        let counters: BTreeMap<_, _> = handle.counters().iter().collect();
        let all_ended = self.config.chance(FaultKind::Stuck) == 0
            && self.config.chance(FaultKind::EnterFailed) == 0;
        let unfinished = counters["started"].wrapping_sub(counters["finished"]);
        Ok(Ended { all_ended, forgotten, excused, leaked, stale: counters["stale"], unfinished })
    }
}

/// Returns the index that a number selects of `count` objects, if there are any.
fn pick(number: usize, count: usize) -> Option<usize> {
    (count > 0).then(|| number % count)
}

/// Returns the beginning of a text that may be long.
fn short(text: &str) -> String {
    match text.char_indices().nth(200) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

fn errno_name(errno: i32) -> String {
    let text = std::io::Error::from_raw_os_error(errno).to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}
