//! Counts of what programs did, to find cases that never occurred.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

/// The state of an operation at the moment of its fate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Moment {
    /// It was started, and no turn was taken since.
    Started,
    /// Turns were taken, and it is not done.
    UnderWay,
    /// It is done, and its result was not taken.
    Done,
}

/// The fates of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// Its result was taken.
    Taken,
    /// Its cancellation was requested.
    Canceled,
    /// Its handle was dropped.
    Dropped,
    /// Its handle was forgotten.
    Forgotten,
    /// Its descriptor was closed.
    Closed,
    /// Its driver ended.
    Ended,
}

/// Outcomes worth counting that no step causes for certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// A datagram without bytes came.
    DatagramEmpty,
    /// A datagram came that was longer than its room.
    DatagramCut,
    /// A datagram was too long to be sent.
    DatagramTooLong,
    /// One send made several datagrams.
    DatagramSegments,
    /// A datagram came twice.
    DatagramRepeated,
    /// A datagram came before another that was sent earlier.
    DatagramOvertakes,
    /// A send of a datagram was refused, since its receiver was gone.
    DatagramRefused,
    /// Datagrams were sent but did not come.
    DatagramMissing,
    /// A batch received several datagrams.
    BatchOfSeveral,
    /// A peek showed a datagram.
    Peeked,
    /// A receive was dropped, and the bytes that it may have taken came to a later one.
    KeptForLater,
    /// A receiver of the driver brought a datagram.
    ReceiverBrings,
    /// A descriptor came with a message.
    DescriptorPassed,
    /// There was no room for a descriptor.
    DescriptorCut,
    /// A connection was made by way of a listener within the machine.
    Accepted,
    /// A connect found the queue of a listener full, and was done later.
    ConnectWaited,
}

impl Outcome {
    /// All outcomes.
    pub const ALL: [Self; 16] = [
        Self::DatagramEmpty,
        Self::DatagramCut,
        Self::DatagramTooLong,
        Self::DatagramSegments,
        Self::DatagramRepeated,
        Self::DatagramOvertakes,
        Self::DatagramRefused,
        Self::DatagramMissing,
        Self::BatchOfSeveral,
        Self::Peeked,
        Self::KeptForLater,
        Self::ReceiverBrings,
        Self::DescriptorPassed,
        Self::DescriptorCut,
        Self::Accepted,
        Self::ConnectWaited,
    ];
}

/// The kinds of operations of programs.
const OPERATIONS: [&str; 24] = [
    "accept",
    "allocate",
    "close",
    "connect",
    "datagram peek",
    "datagram receive",
    "datagram send",
    "message receive",
    "message send",
    "name",
    "nop",
    "open",
    "pipe read",
    "pipe write",
    "poll",
    "read",
    "receiver receive",
    "socket peek",
    "socket receive",
    "socket send",
    "statx",
    "sync",
    "truncate",
    "write",
];

/// Counts of a number of programs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Programs.
    pub programs: u64,
    /// Programs by number of steps, in classes of 20: the key is the smallest number of a class.
    pub lengths: BTreeMap<usize, u64>,
    /// Operations by kind.
    pub operations: BTreeMap<&'static str, u64>,
    /// Faults that took effect, by kind.
    pub faults: BTreeMap<String, u64>,
    /// Outcomes by kind.
    pub outcomes: BTreeMap<Outcome, u64>,
    /// Fates of operations by kind and moment: `read/under_way/dropped`.
    pub fates: BTreeMap<String, u64>,
    /// Errors, by the operation's kind and the errno.
    pub errors: BTreeMap<String, u64>,
    /// Entries pushed to the kernel.
    pub pushed: u64,
    /// Calls of enter.
    pub enters: u64,
    /// Plain calls made in place of entries.
    pub plain_calls: u64,
}

/// The width of the classes of [`Stats::lengths`].
const CLASS: usize = 20;

impl Stats {
    /// Counts a program with this number of steps.
    pub fn program(&mut self, steps: usize) {
        self.programs += 1;
        *self.lengths.entry(steps / CLASS * CLASS).or_default() += 1;
    }

    /// Counts a fate of an operation.
    pub fn fate(&mut self, kind: &'static str, moment: Moment, fate: Fate) {
        let key = format!("{kind}/{}/{}", text(moment), text(fate));
        *self.fates.entry(key).or_default() += 1;
    }

    /// Counts an outcome.
    pub fn outcome(&mut self, outcome: Outcome) {
        *self.outcomes.entry(outcome).or_default() += 1;
    }

    /// Returns the names of the faults, kinds of operations and outcomes that never happened.
    pub fn never(&self) -> Vec<String> {
        let faults = self.faults.iter().filter(|&(_, &count)| count == 0);
        let operations = OPERATIONS.iter().filter(|&kind| !self.operations.contains_key(kind));
        let outcomes = Outcome::ALL.iter().filter(|outcome| !self.outcomes.contains_key(outcome));
        faults
            .map(|(name, _)| name.clone())
            .chain(operations.map(|&kind| kind.to_owned()))
            .chain(outcomes.map(text))
            .collect()
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: Self) {
        self.programs += other.programs;
        self.pushed += other.pushed;
        self.enters += other.enters;
        self.plain_calls += other.plain_calls;
        add(&mut self.lengths, other.lengths);
        add(&mut self.operations, other.operations);
        add(&mut self.faults, other.faults);
        add(&mut self.outcomes, other.outcomes);
        add(&mut self.fates, other.fates);
        add(&mut self.errors, other.errors);
    }
}

fn add<K: Ord>(counts: &mut BTreeMap<K, u64>, more: BTreeMap<K, u64>) {
    for (key, count) in more {
        *counts.entry(key).or_default() += count;
    }
}

fn text(value: impl Serialize) -> String {
    let text = serde_json::to_value(value).expect("names are JSON");
    text.as_str().expect("an enum without fields is a string").to_owned()
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "programs {}", self.programs)?;
        writeln!(
            f,
            "entries {}, enters {}, plain calls {}",
            self.pushed, self.enters, self.plain_calls
        )?;
        writeln!(f, "steps of a program:")?;
        for (first, count) in &self.lengths {
            writeln!(f, "  {first:>4} to {:<4} {count:>9}", first + CLASS - 1)?;
        }
        for (title, counts) in [("faults", &self.faults), ("errors", &self.errors)] {
            writeln!(f, "{title}:")?;
            for (name, count) in counts {
                writeln!(f, "  {name:<24} {count:>9}")?;
            }
        }
        writeln!(f, "operations:")?;
        for (name, count) in &self.operations {
            writeln!(f, "  {name:<24} {count:>9}")?;
        }
        writeln!(f, "outcomes:")?;
        for (outcome, count) in &self.outcomes {
            writeln!(f, "  {:<24} {count:>9}", text(outcome))?;
        }
        writeln!(f, "fates of operations, by moment:")?;
        for (name, count) in &self.fates {
            writeln!(f, "  {name:<34} {count:>9}")?;
        }
        Ok(())
    }
}
