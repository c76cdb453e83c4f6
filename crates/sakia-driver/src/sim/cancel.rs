//! Cancellation of operations in flight.
//!
//! A cancel and its operation race, and each outcome of the race is one that the real kernel has:
//!
//! | the operation | cancel says | the operation ends |
//! |---|---|---|
//! | has ended, or never was | `ENOENT` | – |
//! | waits for a pipe | 0 | with `ECANCELED` |
//! | is with a worker that has not begun | 0 | with `ECANCELED` |
//! | is with a worker that has begun | `EALREADY` | by itself |
//! | is ready, on a pipe, and not yet examined | 0 | with `ECANCELED` |
//! | is ready, on a pipe, and being examined | `EALREADY` | by itself; with `ECANCELED` if it would wait |
//! | is ready, on a file | `ENOENT` | by itself |
//! | was canceled before | `ENOENT` | with `ECANCELED` |
//! | is stuck | `EALREADY` | never |
//!
//! Chance decides whether a worker has begun, and whether a pipe is being examined. The faults
//! `CancelTooLate` and `CancelAlready` decide for a cancel with two possible outcomes.
//!
//! Source: `io_uring_cancelation(7)`, `io_uring_prep_cancel(3)`.

use std::rc::Rc;

use rustix::io::Errno;

use super::faults::{CancelRace, FaultKind};
use super::machine::{Flight, Machine, Stage};
use super::ops::{Victims, failed};

impl Machine {
    /// Cancels one operation, or all that match. Returns the result of the cancel's completion.
    pub(super) fn cancel(&mut self, what: &Victims, all: bool, race: Option<CancelRace>) -> i32 {
        let matches = |flight: &Flight| match what {
            Victims::UserData(user_data) => flight.user_data == *user_data,
            Victims::File(file) => {
                flight.request.file.as_ref().is_some_and(|its| Rc::ptr_eq(its, file))
            }
            Victims::Any => true,
        };
        let ids = self.flights.iter().filter(|(_, flight)| matches(flight));
        let ids: Vec<u64> = ids.map(|(&id, _)| id).collect();
        let mut count = 0;
        for id in ids {
            match self.cancel_one(id, race) {
                Err(Errno::NOENT) => {}
                _ if all => count += 1,
                result => return result.map_or_else(failed, |()| 0),
            }
        }
        if all { count } else { failed(Errno::NOENT) }
    }

    fn cancel_one(&mut self, id: u64, race: Option<CancelRace>) -> Result<(), Errno> {
        let has_begun = self.random.chance(1 << 15);
        let flight = self.flights.get_mut(&id).expect("the operation is in flight");
        let (stage, may_wait) = (flight.stage, flight.request.may_wait());
        if flight.forced.is_some() {
            return Err(Errno::NOENT); // already canceled
        }
        // The possible outcome of the race, before chance decides it.
        let can_win = match stage {
            Stage::Stuck | Stage::Inline => return Err(Errno::ALREADY),
            Stage::Armed => true,
            Stage::Worker => !has_begun,
            Stage::Ready => may_wait && !has_begun,
        };
        // An armed operation would never end by itself.
        let must_win = stage == Stage::Armed;
        match race {
            Some(CancelRace::TooLate) if !must_win => {
                flight.must_end = true;
                self.count(FaultKind::CancelTooLate);
                Err(Errno::NOENT)
            }
            Some(CancelRace::Already) => {
                flight.must_end = true;
                if must_win {
                    self.cancel_now(id);
                }
                self.count(FaultKind::CancelAlready);
                Err(Errno::ALREADY)
            }
            _ if can_win => {
                self.cancel_now(id);
                Ok(())
            }
            _ => {
                flight.must_end = true;
                let is_found = stage == Stage::Worker || may_wait;
                Err(if is_found { Errno::ALREADY } else { Errno::NOENT })
            }
        }
    }

    fn cancel_now(&mut self, id: u64) {
        let flight = self.flights.get_mut(&id).expect("the operation is in flight");
        flight.forced = Some(failed(Errno::CANCELED));
        if flight.stage != Stage::Ready {
            self.make_ready(id);
        }
    }
}
