//! Random programs.

use sakia_bench_support::mix;

use super::{How, What};

const ENOSPC: i32 = 28;
const EIO: i32 = 5;
const EDQUOT: i32 = 122;

/// The answer to a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Done,
    /// A write moves at most this number of bytes.
    Short(u64),
    /// A write moves no byte.
    Zero,
    Errno(i32),
    /// `EINTR`: the call is made again.
    Interrupted,
}

/// A step of a program. Numbers of requests count those that are open, and wrap around.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Makes a request, and has it begin in one of these ways.
    Start(What, How),
    /// Polls a request, whether it was woken or not.
    Poll(usize),
    /// Drops a request.
    Drop(usize),
    /// Answers the system call under way.
    Answer(Answer),
    /// Answers up to this number of calls well.
    Pass(usize),
    /// Drops the log and all requests, finishes the rounds, and opens the file again.
    Reopen,
    /// Stops the engine.
    Stop,
}

/// Numbers that follow from a seed.
struct Random(u64);

impl Random {
    /// Returns a number below `limit`.
    fn below(&mut self, limit: usize) -> usize {
        self.0 = mix(self.0);
        (self.0 % limit as u64) as usize
    }

    fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// Returns the program of a seed, for a log whose requests begin in these ways.
pub fn program(seed: u64, ways: &[How]) -> Vec<Step> {
    let random = &mut Random(mix(seed ^ 0x70d5));
    // A failure is final: some programs have none, and others many, since they open the log again.
    let (failures, reopenings) = random.one_of(&[(0, 2), (2, 4), (7, 8)]);
    let appends = random.one_of(&[0, 2, 5]);
    // In some programs many requests wait for the same round.
    let starts = random.one_of(&[40, 50, 62]);
    let steps = 8 + random.below(40);
    let step = |random: &mut Random| match random.below(100) {
        percent if percent < starts => start(random, ways, appends),
        ..63 => Step::Poll(random.below(64)),
        63..68 => Step::Drop(random.below(64)),
        68..76 => Step::Pass(1 + random.below(4)),
        76..91 => Step::Answer(answer(random, failures)),
        percent if percent < 91 + reopenings => Step::Reopen,
        99 => Step::Stop,
        _ => Step::Pass(3),
    };
    (0..steps).map(|_| step(random)).collect()
}

fn start(random: &mut Random, ways: &[How], appends: usize) -> Step {
    let len = match random.below(20) {
        0..2 => 0,
        2..14 => 1 + random.below(300),
        14..18 => 4096 + random.below(3000),
        // On both sides of the size from which a record has a buffer of its own.
        18 => (64 << 10) + random.below(2),
        _ => 70_000,
    };
    let what = match random.below(10) {
        number if number < appends => What::Append(len),
        8.. => What::Commit,
        _ => What::Durable(len),
    };
    Step::Start(what, random.one_of(ways))
}

fn answer(random: &mut Random, failures: usize) -> Answer {
    match random.below(12) {
        number if number < failures => match random.below(4) {
            0 => Answer::Zero,
            _ => Answer::Errno(random.one_of(&[ENOSPC, EIO, EDQUOT])),
        },
        ..10 if random.below(3) > 0 => Answer::Short(1 + random.below(200) as u64),
        10 => Answer::Interrupted,
        _ => Answer::Done,
    }
}
