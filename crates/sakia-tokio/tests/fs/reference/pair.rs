//! Two worlds in step: each step runs on both, and its results are compared.

use std::collections::BTreeSet;
use std::io::SeekFrom;
use std::task::Poll;
use std::time::Instant;

use sakia_testkit::settings::patience;
use tokio::runtime::{Builder, Runtime};

use super::nature::{
    is_about_facts, is_begun_late, is_one_operation, is_seek, leaves_flight, reports_writes, slots,
    waits, wants_idle, wants_position,
};
use super::outcome::{Fault, Outcome, Tree, Value, in_flight, tree};
use super::place::{Kind, Place};
use super::steps::{Action, Call, How, SLOTS, Step};
use super::{ours, theirs};
use crate::support::{cool_down, current_thread, multi_thread, poll_once};

/// Bytes that a read returns at most when it is inline.
const INLINE_BYTES: usize = 256 << 10;
/// Bytes of the write that is held while a clone is used.
const HELD_BYTES: usize = 100;

/// The worlds.
pub struct Pair<'a> {
    place: &'a Place,
    has_threads: bool,
    ours: ours::World,
    theirs: theirs::World,
    our_runtime: Runtime,
    /// Its only thread for blocking work does all in the order of its beginning.
    their_runtime: Runtime,
    /// A file that may have an operation in flight.
    busy: Option<usize>,
    /// A dropped change of a file's facts may go on: a sync of the file does not wait for it.
    lasts: bool,
    /// The error of a write that a sync has returned already, and the next write or flush is to return.
    owed: [Option<Fault>; SLOTS],
    /// Files that may keep bytes of a dropped read.
    may_keep: [bool; SLOTS],
    /// There were clones.
    is_cloned: bool,
    /// Files that are no part of the tree: their facts are left alone, and their operations not dropped.
    is_special: [bool; SLOTS],
}

/// A difference, as text.
pub type Difference = String;

impl<'a> Pair<'a> {
    pub fn new(place: &'a Place, has_threads: bool) -> Self {
        place.fill();
        let ([ours, theirs], [our_side, their_side]) = (place.roots(), place.sides.clone());
        let mut builder = Builder::new_current_thread();
        Self {
            place,
            has_threads,
            ours: ours::World::new(our_side, ours),
            theirs: theirs::World::new(their_side, theirs),
            our_runtime: if has_threads { multi_thread() } else { current_thread() },
            their_runtime: builder.max_blocking_threads(1).build().unwrap(),
            busy: None,
            lasts: false,
            owed: [None; SLOTS],
            may_keep: [false; SLOTS],
            is_cloned: false,
            is_special: [false; SLOTS],
        }
    }

    /// Runs a program, and compares all that remains of it.
    pub fn check(mut self, steps: &[Step]) -> Result<(), Difference> {
        for (index, step) in steps.iter().enumerate() {
            self.step(step)
                .map_err(|difference| format!("step {index}, {step:?}: {difference}"))?;
        }
        for slot in 0..SLOTS {
            for call in [Call::Flush, Call::Seek(SeekFrom::Current(0)), Call::Metadata] {
                let last = Action::File { slot, call };
                let whole = Step { action: last, is_dropped: false };
                self.step(&whole)
                    .map_err(|difference| format!("at the end, {whole:?}: {difference}"))?;
            }
            self.drop_file(slot);
        }
        self.compare_trees()?;
        self.place.clear();
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<(), Difference> {
        match &step.action {
            Action::Compare => {
                self.settle();
                self.compare_trees()
            }
            Action::CoolDown { path } => {
                self.settle();
                for root in self.place.roots() {
                    let path = root.join(path);
                    if self.place.kind == Kind::Disk && path.is_file() {
                        cool_down(&path);
                    }
                }
                Ok(())
            }
            Action::Fill { path, count } => {
                self.settle();
                for root in self.place.roots() {
                    for number in 0..*count {
                        std::fs::write(root.join(path).join(number.to_string()), "").ok();
                    }
                }
                Ok(())
            }
            Action::Fail { is_write, errno } => {
                self.settle();
                self.place.script(Some((*is_write, *errno)));
                Ok(())
            }
            Action::Overlap { slot, to, call } => self.overlap(*slot, *to, call, step.is_dropped),
            action => self.plain_step(action, step.is_dropped),
        }
    }

    fn plain_step(&mut self, action: &Action, is_dropped: bool) -> Result<(), Difference> {
        let (from, into) = slots(action);
        if self.busy.is_some()
            && (self.busy != from || waits(action) || is_dropped && is_begun_late(action))
        {
            self.settle();
        }
        if let Some(slot) = into {
            self.drop_file(slot);
            self.is_special[slot] =
                matches!(action, Action::OpenPipe { .. } | Action::OpenFull { .. })
                    || from.is_some_and(|from| self.is_special[from]);
        }
        let is_special = from.is_some_and(|slot| self.is_special[slot]);
        if is_special && is_about_facts(action) {
            return Ok(());
        }
        // The reference gets its bytes back even if this is dropped.
        let keeps = from
            .is_some_and(|slot| self.may_keep[slot] && (wants_position(action) || is_seek(action)));
        if let Some(slot) = from {
            if wants_position(action) {
                self.put_back(slot);
            } else if wants_idle(action) {
                self.await_flight(slot);
            }
            self.may_keep[slot] &= !is_seek(action);
        }
        if let Action::File { slot, call: Call::IntoStd | Call::TryIntoStd } = action {
            // The file of `std` has no error.
            self.owed[*slot] = None;
        }
        if let Action::File { slot, call: Call::SetTimes { .. } } = action {
            self.plain_step(&Action::File { slot: *slot, call: Call::Flush }, false)?;
        }
        if let (Some(slot), true) = (from, leaves_flight(action))
            && (keeps || self.may_keep[slot] && self.is_cloned)
        {
            // If the position was moved, the reference would take what it has not written for unread. And a
            // seek that only begins may fail.
            self.plain_step(&Action::File { slot, call: Call::Seek(SeekFrom::Current(0)) }, false)?;
        }
        let is_dropped = is_dropped && !is_special && !keeps && is_one_operation(action);
        let outcomes = self.both(action, is_dropped);
        if outcomes.is_none() || leaves_flight(action) {
            self.busy = from;
        }
        self.lasts |= outcomes.is_none() && is_about_facts(action);
        match (action, &outcomes) {
            (Action::File { slot, call: Call::Read(_) }, None) => self.may_keep[*slot] = true,
            // Its error is lost; the reference returns it from a seek.
            (Action::File { slot, call: Call::SetLen(_) }, None) => self.await_flight(*slot),
            (_, Some((is, _))) if keeps && is.result.is_err() => self.align(from),
            _ => {}
        }
        self.is_cloned |= matches!(action, Action::Clone { .. });
        match outcomes {
            Some((mut is, expected)) => {
                let begin = Instant::now();
                while is == in_flight() && begin.elapsed() < patience() {
                    // A dropped call by `&self` ends by itself.
                    is = self.our_runtime.block_on(self.ours.run(action));
                }
                self.compare(action, is, &expected)
            }
            None if from.is_none() || into.is_some() => {
                self.place.script(None);
                self.end_our_runtime();
                let is = tree(&self.place.sides[0]);
                self.await_theirs();
                same_trees(&is, &tree(&self.place.sides[1]))
            }
            None => Ok(()),
        }
    }

    /// Runs it on both; if it is to be dropped, returns `None` if a poll ended neither.
    fn both(&mut self, action: &Action, is_dropped: bool) -> Option<(Outcome, Outcome)> {
        self.both_begun(action, is_dropped, is_dropped, || ())
    }

    /// Runs it on both. If it is begun first, each is polled once, and `then` is called; if neither is over,
    /// and they are to be dropped, returns `None`.
    fn both_begun(
        &mut self,
        action: &Action,
        is_begun: bool,
        is_dropped: bool,
        then: impl FnOnce(),
    ) -> Option<(Outcome, Outcome)> {
        let Self { ours, theirs, our_runtime, their_runtime, .. } = self;
        let mut is = Box::pin(ours.run(action));
        let mut expected = Box::pin(theirs.run(action));
        let (mut first, mut second) = (Poll::Pending, Poll::Pending);
        if is_begun {
            first = our_runtime.block_on(async { poll_once(is.as_mut()) });
            second = their_runtime.block_on(async { poll_once(expected.as_mut()) });
            then();
            if is_dropped && first.is_pending() && second.is_pending() {
                return None;
            }
        }
        let first = match first {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => our_runtime.block_on(is),
        };
        let second = match second {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => their_runtime.block_on(expected),
        };
        Some((first, second))
    }

    /// Compares outcomes; see [the differences](super#differences).
    fn compare(
        &mut self,
        action: &Action,
        is: Outcome,
        expected: &Outcome,
    ) -> Result<(), Difference> {
        let differ = |is: &Outcome| Err(format!("{is:?} is not {expected:?}"));
        if let Action::File { slot, call } = action {
            if reports_writes(call) && is.result.as_ref().is_err_and(|fault| fault.errno.is_none())
            {
                return Err(format!("{is:?} has no errno"));
            }
            if reports_writes(call)
                && let Some(owed) = self.owed[*slot].take()
                && is.result.as_ref().err().map(|fault| fault.kind) != Some(owed.kind)
            {
                return Err(format!("{is:?}, although a sync has returned {owed:?}"));
            }
            if is == *expected {
                return Ok(());
            }
            if matches!(call, Call::SyncAll | Call::SyncData)
                && let Err(fault) = is.result
            {
                self.owed[*slot] = Some(fault);
                return Ok(());
            }
            if let Call::Read(count) = call
                && (*count > INLINE_BYTES || self.place.kind == Kind::Disk)
            {
                return self.read_rest(*slot, is, expected);
            }
        }
        let is_same = match (&is.result, &expected.result) {
            (Err(is), Err(expected)) => {
                is.kind == expected.kind && (is.errno == expected.errno || expected.errno.is_none())
            }
            (is, expected) => is == expected,
        };
        if is_same && is.bytes == expected.bytes { Ok(()) } else { differ(&is) }
    }

    /// Compares a read that may have returned fewer bytes, by reading the others.
    fn read_rest(
        &mut self,
        slot: usize,
        is: Outcome,
        expected: &Outcome,
    ) -> Result<(), Difference> {
        let (Ok(Value::Bytes(mut all)), Ok(Value::Bytes(expected))) = (is.result, &expected.result)
        else {
            return Err(format!("a read does not return {expected:?}"));
        };
        let mut count = all.len();
        while count > 0 && all.len() < expected.len() {
            let call = Call::Read(expected.len() - all.len());
            let rest = self.our_runtime.block_on(self.ours.run(&Action::File { slot, call }));
            let Ok(Value::Bytes(rest)) = rest.result else { break };
            count = rest.len();
            all.extend(rest);
        }
        if all == *expected {
            return Ok(());
        }
        let (all, expected) = (Outcome::from(Value::Bytes(all)), Value::Bytes(expected.clone()));
        Err(format!("together {all:?} is not {:?}", Outcome::from(expected)))
    }

    fn compare_trees(&self) -> Result<(), Difference> {
        self.place.script(None);
        let [is, expected] = self.place.sides.each_ref().map(|side| tree(side));
        same_trees(&is, &expected)
    }

    /// Waits for the operation in flight, without a result.
    fn settle(&mut self) {
        if let Some(slot) = self.busy.take() {
            let sync = Action::File { slot, call: Call::SyncData };
            self.both(&sync, false);
        }
        if self.lasts {
            self.quiesce();
        }
    }

    /// Returns the bytes of a dropped read to the file of the reference, which does not do so itself.
    fn put_back(&mut self, slot: usize) {
        let seek = Action::File { slot, call: Call::Seek(SeekFrom::Current(0)) };
        self.their_runtime.block_on(self.theirs.run(&seek));
    }

    /// Waits for the operation of the reference in flight.
    fn await_flight(&mut self, slot: usize) {
        let complete = Action::File { slot, call: Call::PollComplete };
        self.their_runtime.block_on(self.theirs.run(&complete));
    }

    /// Moves the position of the reference, whose failed seek has lost the bytes of a dropped read.
    fn align(&mut self, slot: Option<usize>) {
        self.await_theirs();
        if let Some(slot) = slot
            && let (Some(ours), Some(theirs)) = (&self.ours.files[slot], &self.theirs.files[slot])
            && let Ok(position) = rustix::fs::tell(ours)
        {
            rustix::fs::seek(theirs, rustix::fs::SeekFrom::Start(position)).unwrap();
        }
    }

    /// Drops a file, perhaps with a write in flight.
    fn drop_file(&mut self, slot: usize) {
        let is_open = self.ours.files[slot].is_some();
        self.both(&Action::Drop { slot }, false);
        self.owed[slot] = None;
        self.may_keep[slot] = false;
        self.is_special[slot] = false;
        if self.busy.take_if(|busy| *busy == slot).is_some() && is_open {
            self.quiesce();
        }
    }

    /// Waits for all that was dropped.
    fn quiesce(&mut self) {
        self.lasts = false;
        self.end_our_runtime();
        self.await_theirs();
    }

    /// Takes another runtime. The one that ends waits for what was begun on it.
    fn end_our_runtime(&mut self) {
        self.our_runtime = if self.has_threads { multi_thread() } else { current_thread() };
    }

    fn await_theirs(&mut self) {
        self.their_runtime.block_on(async { tokio::task::spawn_blocking(|| ()).await }).unwrap();
    }

    /// Uses a clone while the server holds a write. The clone comes after it, and the file stays as it is.
    fn overlap(
        &mut self,
        slot: usize,
        to: usize,
        call: &Call,
        is_dropped: bool,
    ) -> Result<(), Difference> {
        self.settle();
        for slot in [slot, to] {
            self.drop_file(slot);
        }
        let Some(gates) = self.place.hold_writes() else { return Ok(()) };
        let file = |slot: usize, call: Call| Action::File { slot, call };
        let how = How::read_write();
        self.plain_step(&Action::Open { slot, path: "a".into(), how }, false)?;
        self.plain_step(&Action::Clone { slot, to }, false)?;
        if self.ours.files[to].is_none() {
            return Ok(());
        }
        self.plain_step(&file(slot, Call::Write(HELD_BYTES)), false)?;
        for gate in &gates {
            gate.wait_held(1);
        }
        let (is, expected) = (self.ours.start_seek(slot), self.theirs.start_seek(slot));
        self.compare(&file(slot, Call::PollComplete), is, &expected)?;
        let (is, expected) =
            self.both(&file(slot, Call::TryIntoStd), false).expect("it was awaited");
        self.compare(&file(slot, Call::TryIntoStd), is, &expected)?;
        let action = file(to, call.clone());
        let outcomes = self.both_begun(&action, true, is_dropped, || drop(gates));
        self.place.script(None);
        self.busy = Some(to);
        self.may_keep[to] = outcomes.is_none();
        if let Some((is, expected)) = outcomes {
            self.compare(&action, is, &expected)?;
        }
        self.settle();
        self.busy = Some(slot);
        self.plain_step(&file(slot, Call::Seek(SeekFrom::Current(0))), false)
    }
}

fn same_trees(is: &Tree, expected: &Tree) -> Result<(), Difference> {
    if is == expected {
        return Ok(());
    }
    let names: BTreeSet<_> = is.keys().chain(expected.keys()).collect();
    let differing = names.into_iter().filter(|name| is.get(*name) != expected.get(*name));
    let differences: Vec<_> = differing
        .map(|name| format!("{name:?} {:?} is not {:?}", is.get(name), expected.get(name)))
        .collect();
    Err(differences.join("\n"))
}
