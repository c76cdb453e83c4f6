//! The driver on the simulated kernel: random programs under every fault.

use std::time::Duration;

use sakia_ring::{CURRENT_POSITION, Opcode, SignalMask};

use crate::sim::random::Random;
use crate::sim::{Fault, FaultKind, Sim, SimHandle, Target};
use crate::{
    Doing, Driver, DriverStatus, Fd, ObservedOperation, Observer, Op, OpKind, OperationState,
    Overdue, Read, Stage, TaskOrigin, Wait, WatchLimits, Write,
};

/// The size of the file. The byte at each offset is the offset.
const FILE_BYTES: u64 = 256;
const READ_BYTES: u64 = 40;

type ReadOp = Op<Read<Vec<u8>>>;
type WriteOp = Op<Write<Vec<u8>>>;

/// A driver on a kernel with tiny queues that misbehaves often, and the program's operations in flight.
struct Program {
    driver: Driver,
    random: Random,
    /// Reads of the file with their offsets.
    reads: Vec<(u64, ReadOp)>,
    pipe_reads: Vec<ReadOp>,
    pipe_writes: Vec<WriteOp>,
}

impl Program {
    /// Starts, drops, cancels or forgets an operation.
    fn step(&mut self, file: &Fd, pipe: &(Fd, Fd)) {
        let driver = &self.driver;
        match self.random.below(6) {
            0 | 1 => {
                let offset = self.random.below(FILE_BYTES - READ_BYTES);
                let read = driver.read(file, vec![0; READ_BYTES as usize], offset);
                self.reads.push((offset, read));
            }
            2 => drop(driver.read(&pipe.0, vec![0; 10], CURRENT_POSITION)),
            3 => {
                let mut read = driver.read(&pipe.0, vec![0; 10], CURRENT_POSITION);
                if self.random.below(2) == 0 {
                    read.cancel();
                }
                self.pipe_reads.push(read);
            }
            4 => self.pipe_writes.push(driver.write(&pipe.1, vec![7; 5], CURRENT_POSITION)),
            _ => drop(driver.fsync(file, false)),
        }
        if self.random.below(3) == 0 {
            driver.turn(Wait::Poll).unwrap();
        }
        if self.random.below(4) == 0 {
            driver.turn(Wait::For(Duration::from_micros(300))).unwrap();
        }
        if self.random.below(5) == 0 {
            self.pipe_reads.clear();
            self.pipe_writes.clear();
        }
    }

    /// Takes the results that are ready, and compares the bytes read with the file's.
    fn check(&mut self) {
        self.reads.retain_mut(|(offset, read)| {
            let Some((result, buf)) = read.try_take() else { return true };
            if let Ok(len) = result {
                assert!(len > 0, "a read within the file is not its end");
                for (place, &byte) in buf[..len].iter().enumerate() {
                    assert_eq!(u64::from(byte), *offset + place as u64);
                }
            }
            false
        });
    }
}

/// Opens the file, and retries as often as that fails.
fn open(driver: &Driver) -> Fd {
    for _ in 0..1000 {
        let mut open = driver.open(None, c"file".to_owned(), 2, 0);
        let opened = loop {
            driver.turn(Wait::For(Duration::from_millis(2))).unwrap();
            if let Some(opened) = open.try_take() {
                break opened;
            }
        };
        if let Ok(file) = opened {
            return file;
        }
    }
    panic!("the file cannot be opened");
}

/// Runs one program to its end: nothing is lost, and nothing leaks. With `stuck` some operations never
/// complete.
fn run(seed: u64, stuck: bool, is_watched: bool) -> SimHandle {
    let sim = Sim::builder(seed)
        .entries(4, 8)
        .chaos(1 << 11)
        .late_writes(1 << 13)
        .pipe_bytes(16)
        .keep_log(false)
        .build();
    let kernel = sim.handle();
    kernel.create_file("file", (0..FILE_BYTES).map(|offset| offset as u8).collect::<Vec<_>>());
    let driver = Driver::new(sim);
    let observer = is_watched.then(|| driver.watch(WatchLimits::default()));
    let (receiver, sender) = kernel.pipe();
    let pipe = (driver.adopt_simulated(receiver), driver.adopt_simulated(sender));
    let file = open(&driver);
    if stuck {
        kernel.set_fault(FaultKind::Stuck, 1 << 11);
    }
    let mut program = Program {
        driver,
        random: Random::new(seed),
        reads: Vec::new(),
        pipe_reads: Vec::new(),
        pipe_writes: Vec::new(),
    };
    for _ in 0..60 {
        program.step(&file, &pipe);
        program.check();
        if let Some(observer) = &observer {
            assert_shown(observer, &program.driver);
        }
    }
    let Program { driver, reads, pipe_reads, pipe_writes, .. } = program;
    drop((reads, pipe_reads, pipe_writes, pipe, file));
    let drained = driver.shutdown(Duration::from_secs(1));
    if !stuck {
        assert_eq!(drained.leaked, 0, "seed {seed}");
        assert_eq!(kernel.open_descriptors(), 0, "seed {seed}");
    }
    if let Some(observer) = observer {
        let left = observer.operations();
        let is_lost = |operation: &ObservedOperation| operation.state == OperationState::Lost;
        assert!(left.iter().all(is_lost) && left.len() as u64 == drained.leaked, "seed {seed}");
        assert!(observer.has_ended());
    }
    // The kernel may still write to memory that it holds: the memory must exist.
    let had_memory = kernel.run_late();
    assert!(stuck || had_memory == 0, "seed {seed}");
    kernel
}

/// Asserts that the board equals the slots.
fn assert_shown(observer: &Observer, driver: &Driver) {
    let mut shown: Vec<_> = observer
        .operations()
        .iter()
        .map(|shown| {
            let stage = match shown.state {
                OperationState::Parked => Stage::Parked,
                OperationState::Delayed => Stage::Queued,
                _ => Stage::InFlight,
            };
            (shown.user_data, shown.kind, stage, shown.is_orphan, shown.is_cancel_asked)
        })
        .collect();
    let slots = driver.operations().into_iter().filter(|live| live.stage != Stage::Done);
    let mut expected: Vec<_> = slots
        .map(|live| {
            (live.user_data, live.op_kind, live.stage, live.is_orphan, live.is_cancel_asked)
        })
        .collect();
    shown.sort_unstable_by_key(|shown| shown.0);
    expected.sort_unstable_by_key(|expected| expected.0);
    assert_eq!(shown, expected);
}

/// In every second program some operations never complete; every third is watched.
#[test]
fn what_random_programs_show_is_what_their_slots_have() {
    for seed in 0..if cfg!(miri) { 4 } else { 1000 } {
        run(seed, seed % 2 == 1, seed % 3 == 0);
    }
}

#[test]
fn a_driver_that_is_watched_does_the_same() {
    for seed in 0..if cfg!(miri) { 1 } else { 50 } {
        let hashes = [false, true].map(|is_watched| run(seed, false, is_watched).log_hash());
        assert_eq!(hashes[0], hashes[1], "seed {seed}");
    }
}

#[test]
fn an_operation_that_ends_by_itself_is_overdue_once() {
    const LIMIT: Duration = Duration::from_secs(1);
    let sim = Sim::new(0);
    let kernel = sim.handle();
    kernel.create_file("f", [1; 8]);
    let driver = Driver::new(sim);
    driver.watch(WatchLimits::new(Some(LIMIT), None));
    let mut found = Vec::new();
    assert_eq!(driver.find_overdue(&mut found), None, "nothing is under way");
    let mut open = driver.open(None, c"f".to_owned(), 0, 0);
    while driver.turn(Wait::For(LIMIT)).unwrap() == 0 {}
    let file = open.try_take().unwrap().unwrap();
    let (receiver, _sender) = kernel.pipe();
    let receiver = driver.adopt_simulated(receiver);
    let waits = driver.read(&receiver, vec![0; 1], CURRENT_POSITION);
    driver.turn(Wait::Poll).unwrap();
    assert_eq!(driver.find_overdue(&mut found), None, "a pipe may wait for ever");
    kernel.script(Target::opcode(Opcode::FSYNC), Fault::Stuck);
    let task = TaskOrigin::new(5, std::panic::Location::caller());
    driver.set_doing(Doing::Task(task), driver.now());
    let stuck = driver.fsync(&file, false);
    driver.set_doing(Doing::Loop, driver.now());
    let begin = driver.now();
    driver.turn(Wait::Poll).unwrap();
    let passed = driver.now() - begin;
    assert_eq!(driver.find_overdue(&mut found), Some(LIMIT - passed));
    assert_eq!(found, []);
    while let Some(left) = driver.find_overdue(&mut found) {
        driver.turn(Wait::For(left)).unwrap();
    }
    let [Overdue { operation, lane: None }] = &found[..] else { panic!("{found:?}") };
    assert_eq!((operation.kind, operation.state), (OpKind::Fsync, OperationState::Submitted));
    assert_eq!((operation.descriptor, operation.task), (Some(file.raw()), Some(task)));
    assert!(operation.is_bounded && operation.age >= LIMIT);
    assert_eq!(driver.find_overdue(&mut found), None);
    assert_eq!(found.len(), 1, "once is enough");
    drop((waits, stuck, receiver, file));
}

#[test]
fn the_numbers_of_a_driver_are_shown_as_they_were_published() {
    let sim = Sim::builder(0).entries(4, 8).build();
    let kernel = sim.handle();
    let driver = Driver::new(sim);
    let observer = driver.watch(WatchLimits::default());
    assert_eq!(observer.status().map(|status| status.credits), Some(7));
    let (receiver, sender) = kernel.pipe();
    let [receiver, _sender] = [receiver, sender].map(|raw| driver.adopt_simulated(raw));
    let reads: Vec<_> =
        (0..2).map(|_| driver.read(&receiver, vec![0; 1], CURRENT_POSITION)).collect();
    driver.publish();
    let status = observer.status().unwrap();
    assert_eq!((status.sq_pending, status.sq_entries, status.cq_entries), (2, 4, 8));
    assert_eq!((status.in_flight, status.live_operations), (2, 2));
    let states = || observer.operations().iter().map(|shown| shown.state).collect::<Vec<_>>();
    assert_eq!(states(), [OperationState::Queued; 2]);
    driver.turn(Wait::Poll).unwrap();
    driver.publish();
    assert_eq!(states(), [OperationState::Submitted; 2]);
    assert_eq!(observer.status().map(|status| status.sq_pending), Some(0));
    assert_eq!(observer.status(), Some(DriverStatus { turns_total: 2, ..driver.status() }));
    drop(reads);
}

/// An ending driver sleeps although its tokens are not read: without a sleep, no time would pass.
#[test]
fn an_end_with_unreported_tokens_sleeps_until_the_kernel_is_done() {
    let sim = Sim::new(0);
    let kernel = sim.handle();
    kernel.create_file("f", [1; 8]);
    let driver = Driver::new(sim);
    let mut open = driver.open(None, c"f".to_owned(), 0, 0);
    while driver.turn(Wait::For(Duration::from_secs(1))).unwrap() == 0 {}
    let file = open.try_take().unwrap().unwrap();
    kernel.script(Target::opcode(Opcode::FSYNC), Fault::Stuck);
    let stuck = driver.fsync(&file, false);
    let mut nop = driver.nop();
    nop.set_token(7);
    driver.turn(Wait::For(Duration::from_millis(10))).unwrap();
    let (handle, begin) = (driver.handle().clone(), kernel.now());
    let before = handle.counters().enters;
    assert_eq!(driver.shutdown(Duration::from_secs(1)).leaked, 1);
    assert!(kernel.now() - begin >= Duration::from_secs(1));
    let enters = handle.counters().enters - before;
    assert!(enters < 1000, "{enters} enters in a second");
    drop((stuck, nop, file));
}

/// Signals are the process', which the simulated kernel does not stop.
#[test]
fn a_turn_with_a_signal_mask_is_refused() {
    let driver = Driver::new(Sim::builder(1).build());
    let nop = driver.nop();
    for wait in [Wait::Poll, Wait::For(Duration::from_secs(1)), Wait::Forever] {
        let error = driver.turn_with_signals(wait, &SignalMask::NONE).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::Unsupported);
    }
    assert_eq!((driver.counters().enters, driver.in_flight()), (0, 1));
    drop(nop);
}
