//! The operations under way in a driver, for display.
//!
//! Made on request, from the slots alone: nothing is recorded while operations run.

use crate::core::Core;
use crate::counters::OpKind;
use crate::operation::{Class, InPlace};
use crate::slab::{SlotRef, SlotState, flag};

/// The stage of an operation.
///
/// # Examples
/// See [`Handle::operations`](crate::Handle::operations).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stage {
    /// The close of a descriptor that is still in use. It waits for the last clone to go.
    Parked,
    /// It waits in the driver, for room or for the next turn.
    Queued,
    /// The kernel has it, or gets it with the next turn.
    InFlight,
    /// It has ended, and its result was not taken.
    Done,
    /// The driver has ended and could not get it back from the kernel.
    Lost,
}

/// An operation that has a slot. From [`Handle::operations`](crate::Handle::operations).
///
/// # Examples
/// See [`Handle::operations`](crate::Handle::operations).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LiveOperation {
    /// The name of its type, such as `Read` or `Open`.
    pub kind: &'static str,
    /// The `user_data` of its entry. No other operation of the driver has the same.
    pub user_data: u64,
    /// The stage that it has reached.
    pub stage: Stage,
    /// The descriptor that its entry names. `None` while the kernel has the operation, whose memory is then
    /// the kernel's, too.
    pub descriptor: Option<i32>,
    /// Set once no caller waits for it any more.
    pub is_orphan: bool,
    /// The kind that counts it.
    pub op_kind: OpKind,
    /// It ends by itself and holds room for its completion. An operation that was given to a lane holds none.
    pub is_bounded: bool,
    /// Its cancellation was requested.
    pub is_cancel_asked: bool,
}

impl Core {
    /// Returns every operation that has a slot, in the order of the slots.
    pub(crate) fn live_operations(&mut self) -> Vec<LiveOperation> {
        self.slab.slots().filter_map(|slot| self.describe(slot)).collect()
    }

    fn describe(&mut self, slot: SlotRef) -> Option<LiveOperation> {
        let user_data = self.slab.key(slot).user_data();
        let header = self.slab.header(slot);
        let stage = match header.state {
            SlotState::Free => return None,
            SlotState::Backlog if header.has(flag::PARKED) => Stage::Parked,
            SlotState::Backlog => Stage::Queued,
            SlotState::Pushed => Stage::InFlight,
            SlotState::Done | SlotState::Disposing => Stage::Done,
            SlotState::Lost => Stage::Lost,
        };
        let is_orphan = header.has(flag::ORPHAN);
        let is_bounded = header.class == Class::Bounded;
        let is_cancel_asked = header.has(flag::CANCEL_LISTED | flag::CANCEL_SENT);
        let vtable = header.vtable.expect("a slot in use holds an operation");
        let descriptor = matches!(stage, Stage::Parked | Stage::Queued).then(|| {
            // In the state `Backlog` the call is made anew before the operation is performed.
            self.in_cell(slot).call().descriptor()
        });
        let descriptor = descriptor.flatten();
        Some(LiveOperation {
            kind: short((vtable.name)()),
            user_data,
            stage,
            descriptor,
            is_orphan,
            op_kind: vtable.kind,
            is_bounded,
            is_cancel_asked,
        })
    }
}

/// Returns the last part of a type's path, without its parameters.
fn short(path: &'static str) -> &'static str {
    let path = path.split_once('<').map_or(path, |(path, _)| path);
    path.rsplit_once("::").map_or(path, |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use sakia_testkit::random::Random;

    use super::*;
    use crate::sim::Sim;
    use crate::{CURRENT_POSITION, Driver, Wait, WatchLimits};

    #[test]
    fn names_are_short() {
        assert_eq!(short("a::b::Read<alloc::vec::Vec<u8>>"), "Read");
        assert_eq!(short("Nop"), "Nop");
    }

    #[test]
    fn operations_are_listed_with_their_stage() {
        let sim = Sim::new(1);
        let kernel = sim.handle();
        let driver = Driver::new(sim);
        assert_eq!(driver.operations(), []);
        let (raw, _) = kernel.pipe();
        let fd = driver.adopt_simulated(raw);
        let read = driver.read(&fd, vec![0; 4], CURRENT_POSITION);
        let orphan = driver.read(&fd, vec![0; 4], CURRENT_POSITION);
        driver.turn(Wait::Poll).unwrap();
        let close = driver.close(fd.clone());
        drop(orphan);
        let operations = driver.operations();
        let seen: Vec<_> = operations
            .iter()
            .map(|live| (live.kind, live.stage, live.descriptor, live.is_orphan))
            .collect();
        let expected = [
            ("Read", Stage::InFlight, None, false),
            ("Read", Stage::InFlight, None, true),
            ("Close", Stage::Parked, Some(raw), false),
            // The request that cancels the other operations.
            ("CancelFd", Stage::InFlight, None, true),
        ];
        assert_eq!(seen, expected);
        let flights = kernel.flights();
        assert_eq!(flights.len(), 2);
        assert_eq!(flights[0].user_data, operations[0].user_data);
        assert_eq!((flights[0].descriptor, flights[0].is_stuck), (Some(raw), false));
        drop((read, fd, close));
    }

    /// Observers see of an operation just that which the driver has of it, at each moment of its life.
    #[test]
    fn observers_see_what_the_driver_has() {
        let mut seen_orphans = 0;
        for seed in 0..if cfg!(miri) { 2 } else { 50 } {
            let mut random = Random::new(seed);
            let sim = Sim::new(seed);
            let kernel = sim.handle();
            let driver = Driver::new(sim);
            let observer = driver.watch(WatchLimits::default());
            let (mut fds, mut reads, mut closes) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..if cfg!(miri) { 12 } else { 60 } {
                let which = random.below(100) as usize;
                match random.below(7) {
                    0 => fds.push(driver.adopt_simulated(kernel.pipe().0)),
                    1 | 2 if !fds.is_empty() => {
                        let fd = &fds[which % fds.len()];
                        reads.push(driver.read(fd, vec![0; 4], CURRENT_POSITION));
                    }
                    3 if !reads.is_empty() => drop(reads.swap_remove(which % reads.len())),
                    // It cancels the reads, by a request that has no caller.
                    4 if !fds.is_empty() => {
                        closes.push(driver.close(fds[which % fds.len()].clone()));
                    }
                    5 if !fds.is_empty() => drop(fds.swap_remove(which % fds.len())),
                    _ => drop(driver.turn(Wait::Poll).unwrap()),
                }
                driver.publish();
                let all = driver.operations();
                for observed in observer.operations() {
                    let its = all.iter().find(|live| live.user_data == observed.user_data);
                    let live = its.unwrap_or_else(|| panic!("{seed}: there is no {observed:?}"));
                    let (its, expected) = (
                        (observed.kind, observed.is_orphan, observed.is_cancel_asked),
                        (live.op_kind, live.is_orphan, live.is_cancel_asked),
                    );
                    assert_eq!(its, expected, "{seed}: {observed:?} {live:?}");
                    seen_orphans += u32::from(live.is_orphan);
                }
            }
        }
        assert!(cfg!(miri) || seen_orphans > 100, "{seen_orphans}");
    }
}
