//! Programs: steps from a seed.

use crate::support::Random;

/// The most steps of a program.
const STEPS_MAX: u64 = 80;

/// The action of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// `std` opens an object.
    Open,
    /// The driver opens a file.
    OpenHere,
    /// Gives a descriptor to the driver.
    Adopt,
    /// Offers a number to the driver that it has already.
    AdoptAgain,
    Lend,
    /// Lends a number that the driver has already.
    LendAgain,
    Duplicate,
    /// Sends a descriptor through a socket to the driver itself.
    Pass,
    /// The same, and the receive is dropped.
    PassAndDrop,
    Give,
    Drop,
    DropOutside,
    Forget,
    Close,
    Read,
    Write,
    Poll,
    /// Receives as a connection.
    Receive,
    /// The peer of a stream shuts its side down.
    HangUp,
    Finish,
    DropOperation,
    Cancel,
    ForgetOperation,
    Turn,
    Drain,
}

/// The verbs, the frequent ones several times.
const VERBS: &[Verb] = &[
    Verb::Open,
    Verb::Open,
    Verb::OpenHere,
    Verb::Adopt,
    Verb::Adopt,
    Verb::Adopt,
    Verb::AdoptAgain,
    Verb::Lend,
    Verb::Lend,
    Verb::LendAgain,
    Verb::LendAgain,
    Verb::LendAgain,
    Verb::Duplicate,
    Verb::Pass,
    Verb::PassAndDrop,
    Verb::Give,
    Verb::Give,
    Verb::Drop,
    Verb::Drop,
    Verb::Drop,
    Verb::Drop,
    Verb::DropOutside,
    Verb::DropOutside,
    Verb::Forget,
    Verb::Close,
    Verb::Close,
    Verb::Read,
    Verb::Read,
    Verb::Read,
    Verb::Read,
    Verb::Read,
    Verb::Write,
    Verb::Write,
    Verb::Write,
    Verb::Write,
    Verb::Poll,
    Verb::Receive,
    Verb::Receive,
    Verb::HangUp,
    Verb::Finish,
    Verb::Finish,
    Verb::Finish,
    Verb::Finish,
    Verb::DropOperation,
    Verb::DropOperation,
    Verb::Cancel,
    Verb::ForgetOperation,
    Verb::Turn,
    Verb::Turn,
    Verb::Drain,
];

/// A step. The numbers choose among the objects that are there, the latest for zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub verb: Verb,
    pub which: u8,
    pub place: u8,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Entries of the submission queue.
    pub entries: u32,
    /// The driver makes plain calls where its rules say so.
    pub has_plain_calls: bool,
    pub steps: Vec<Step>,
}

impl Program {
    pub fn random(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let entries = [2, 8, 64][random.below(3) as usize];
        let has_plain_calls = random.below(3) == 0;
        let count = 5 + random.below(STEPS_MAX);
        let steps = (0..count).map(|_| {
            let verb = VERBS[random.below(VERBS.len() as u64) as usize];
            // Mostly the latest objects, so that steps meet.
            let bound = 1 + random.below(8);
            let which = random.below(bound) as u8;
            Step { verb, which, place: random.below(4) as u8 }
        });
        Self { entries, has_plain_calls, steps: steps.collect() }
    }
}
