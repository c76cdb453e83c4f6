//! The mode in which streams receive and send: by the queue, or by readiness and plain calls.
//!
//! A ring receives when bytes come, and sends with its next enter: two thirtieths of a system call for each
//! message of 64 connections. An epoll set reports which connections are ready, and each message is two plain
//! calls. Which is cheaper depends on the processor: on its cost of a system call against that of a ring's
//! work for a task. So a driver may learn it, with a [`Chooser`], from the processor time of its own thread:
//! an epoch is [`limits::STREAM_EPOCH`] messages, at whose ends that time is read.
//!
//! A connection changes its mode when its next message comes. So after a change the messages are first
//! counted, [`limits::SETTLING`] at a time, until nearly all come by the new mode; only then does the epoch
//! begin.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use super::chooser::Chooser;
use super::limits;
use crate::sys::Processor;

/// The mode in which the connections of a driver receive and send.
///
/// # Examples
/// See [`Handle::set_streams`](crate::Handle::set_streams).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Streams {
    /// By operations of the queue.
    #[default]
    Queue,
    /// By an epoll set, which reports connections that are ready, and plain calls. Only beside a ring of the
    /// kernel; elsewhere as `Queue`.
    Readiness,
    /// By whichever of the two costs this thread less processor time, which is measured with the program's
    /// own messages.
    Learned,
    /// As `Learned`; but by the queue, without measuring, on the processors where figures show that learning
    /// does not pay: AMD's, and Intel's Emerald Rapids.
    Auto,
}

impl Streams {
    /// All values, with their names.
    const NAMES: [(Self, &'static str); 4] = [
        (Self::Queue, "queue"),
        (Self::Readiness, "readiness"),
        (Self::Learned, "learned"),
        (Self::Auto, "auto"),
    ];

    /// Returns the value with this name: `queue`, `readiness`, `learned` or `auto`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(_, its)| *its == name).map(|(streams, _)| *streams)
    }

    /// Returns the setting that `Auto` means on this processor: `Queue` or `Learned`. All others are as they
    /// are.
    ///
    /// # Examples
    /// ```
    /// use sakia_driver::Streams;
    ///
    /// assert!(matches!(Streams::Auto.on_this_processor(), Streams::Queue | Streams::Learned));
    /// assert_eq!(Streams::Readiness.on_this_processor(), Streams::Readiness);
    /// ```
    pub fn on_this_processor(self) -> Self {
        match self {
            Self::Auto if is_queue_cheaper() => Self::Queue,
            Self::Auto => Self::Learned,
            other => other,
        }
    }

    /// Returns its name.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(streams, _)| *streams == self).map_or("", |(_, name)| name)
    }
}

/// The mode of a driver's streams and its measured costs. See [`Handle::streams`](crate::Handle::streams).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamFigures {
    /// The setting, with the outcome in place of `Auto`.
    pub setting: Streams,
    /// The mode that connections use outside of trials: `Queue` or `Readiness`.
    pub mode: Streams,
    /// The processor time of a message by the queue and by readiness, the program's own work included;
    /// `None` as long as it was not measured.
    pub costs: [Option<Duration>; 2],
    /// The number of comparisons of the two modes.
    pub comparisons: u64,
    /// The number of comparisons that changed the mode.
    pub changes: u64,
}

/// One of the two modes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum StreamMode {
    #[default]
    Queue = 0,
    Readiness = 1,
}

impl StreamMode {
    /// Both.
    pub(crate) const ALL: [Self; 2] = [Self::Queue, Self::Readiness];
}

/// Returns whether figures show that the queue is the mode to use on this kind of processors, without
/// measuring. From 1 to 512 connections and from 64 bytes to 16 KiB readiness takes 1.07 to 1.39 of the
/// queue's processor time per message on AMD EPYC (family 25), and 0.87 to 1.23 on Emerald Rapids, where
/// learning takes up to 1.25.
fn is_queue_cheaper() -> bool {
    matches!(Processor::current(), Processor::Amd | Processor::EmeraldRapids)
}

/// The mode of a driver's streams, which its connections share.
#[derive(Debug, Default)]
pub(crate) struct StreamModes {
    setting: Cell<Streams>,
    /// The mode of new receives.
    mode: Cell<StreamMode>,
    /// Units until the next step.
    left: Cell<u32>,
    /// Units of this step so far: at least the length of the step, since those of a turn come at once.
    units: Cell<u32>,
    /// Messages of this step that came by the other mode.
    late: Cell<u32>,
    /// Set if there are free buffers that the backend could have, or the next step is due.
    pub(crate) has_work: Cell<bool>,
    /// The number of turns of the driver, which wraps around.
    pub(crate) turn: Cell<u32>,
    learning: RefCell<Learning>,
}

/// The state of learning.
#[derive(Debug)]
struct Learning {
    chooser: Chooser,
    stage: Stage,
}

/// The work of an epoch.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Connections change their mode. The number of times that too many had not.
    Settling(u32),
    /// The epoch has begun at this processor time of the thread. The number of times that it began again.
    Measuring(Duration, u32),
}

impl Default for Learning {
    fn default() -> Self {
        Self { chooser: Chooser::new(), stage: Stage::Settling(0) }
    }
}

impl StreamModes {
    /// Changes the setting. `is_able` says that the backend has both modes.
    pub(crate) fn set(&self, setting: Streams, is_able: bool) {
        let setting = if is_able { setting.on_this_processor() } else { Streams::Queue };
        self.setting.set(setting);
        self.learning.replace(Learning::default());
        self.mode.set(if setting == Streams::Readiness {
            StreamMode::Readiness
        } else {
            StreamMode::Queue
        });
        self.left.set(limits::SETTLING);
        self.late.set(0);
        self.units.set(0);
    }

    /// Returns the mode of receives that begin now.
    #[inline]
    pub(crate) fn mode(&self) -> StreamMode {
        self.mode.get()
    }

    /// The backend has no readiness after all.
    pub(crate) fn has_none(&self) {
        self.set(Streams::Queue, false);
    }

    pub(crate) fn figures(&self) -> StreamFigures {
        let learning = self.learning.borrow();
        let setting = self.setting.get();
        let (comparisons, changes) = learning.chooser.numbers();
        let is_ready = match setting {
            Streams::Learned => learning.chooser.best() == 1,
            _ => setting == Streams::Readiness,
        };
        StreamFigures {
            setting,
            mode: if is_ready { Streams::Readiness } else { Streams::Queue },
            costs: [0, 1].map(|mode| learning.chooser.cost(mode).map(Duration::from_nanos)),
            comparisons,
            changes,
        }
    }

    /// Counts `len` bytes that came by a mode. Returns true if it is not the mode to use: then the receive is
    /// to end, and begin again.
    #[inline]
    pub(crate) fn note(&self, mode: StreamMode, len: u32) -> bool {
        let is_late = mode != self.mode.get();
        if self.setting.get() == Streams::Learned {
            let units = 1 + len / limits::UNIT_BYTES;
            let left = self.left.get().saturating_sub(units);
            self.left.set(left);
            self.units.set(self.units.get() + units);
            self.late.set(self.late.get() + u32::from(is_late));
            if left == 0 {
                self.has_work.set(true);
            }
        }
        is_late
    }

    /// Takes the next step, if it is due. `time` returns the processor time of the thread.
    pub(crate) fn learn(&self, time: impl FnOnce() -> Duration) {
        if self.setting.get() != Streams::Learned || self.left.get() > 0 {
            return;
        }
        let mut learning = self.learning.borrow_mut();
        let (late, units) = (self.late.take(), self.units.take());
        let Learning { chooser, stage } = &mut *learning;
        let mode = match *stage {
            Stage::Settling(_) if late < limits::LATE_MAX => {
                *stage = Stage::Measuring(time(), 0);
                self.left.set(limits::STREAM_EPOCH);
                return;
            }
            Stage::Settling(limits::SETTLINGS_MAX) => chooser.give_up(),
            Stage::Settling(count) => {
                *stage = Stage::Settling(count + 1);
                self.left.set(limits::SETTLING);
                return;
            }
            // Connections that had no message for long bring the other mode's cost, and that of the change.
            Stage::Measuring(_, limits::RESTARTS_MAX) if late > units / 16 => chooser.give_up(),
            Stage::Measuring(_, count) if late > units / 16 => {
                *stage = Stage::Measuring(time(), count + 1);
                self.left.set(limits::STREAM_EPOCH);
                return;
            }
            Stage::Measuring(begin, _) => {
                let now = time();
                let took = now.saturating_sub(begin).as_nanos() as u64;
                let next = chooser.note(took / u64::from(units.max(1)));
                if StreamMode::ALL[next] == self.mode.get() {
                    *stage = Stage::Measuring(now, 0);
                    self.left.set(limits::STREAM_EPOCH);
                    return;
                }
                next
            }
        };
        *stage = Stage::Settling(0);
        self.left.set(limits::SETTLING);
        self.mode.set(StreamMode::ALL[mode]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Connections that change their mode with each message, and a clock that advances with each.
    struct Load {
        modes: StreamModes,
        connections: Vec<StreamMode>,
        /// Nanoseconds of a message, by mode.
        costs: [u64; 2],
        clock: u64,
        /// The connection with the next message.
        next: usize,
        /// Messages of a turn, after which the next step is taken.
        turn: u64,
        count: u64,
    }

    impl Load {
        fn new(connections: usize, costs: [u64; 2]) -> Self {
            let modes = StreamModes::default();
            modes.set(Streams::Learned, true);
            Self {
                modes,
                connections: vec![StreamMode::Queue; connections],
                costs,
                clock: 0,
                next: 0,
                turn: 1,
                count: 0,
            }
        }

        /// Sends this many messages, in turn on all connections. Returns how many came by readiness.
        fn run(&mut self, messages: usize) -> usize {
            let mut by_readiness = 0;
            for _ in 0..messages {
                let index = self.next;
                self.next = (index + 1) % self.connections.len();
                let mode = self.connections[index];
                by_readiness += mode as usize;
                self.clock += self.costs[mode as usize];
                if self.modes.note(mode, 64) {
                    self.connections[index] = self.modes.mode();
                }
                self.count += 1;
                if self.count.is_multiple_of(self.turn) && self.modes.has_work.take() {
                    self.modes.learn(|| Duration::from_nanos(self.clock));
                }
            }
            by_readiness
        }

        fn mode(&self) -> Streams {
            self.modes.figures().mode
        }
    }

    #[test]
    fn the_cheaper_way_is_found_within_10_000_messages() {
        let numbers: &[usize] = if cfg!(miri) { &[16] } else { &[1, 16, 64, 512] };
        for &connections in numbers {
            for (costs, mode) in [
                ([8_000, 5_000], Streams::Readiness),
                ([5_000, 8_000], Streams::Queue),
                ([5_000, 5_000], Streams::Queue),
            ] {
                let mut load = Load::new(connections, costs);
                load.run(10_000);
                assert_eq!(load.mode(), mode, "{connections} connections, {costs:?}");
                let figures = load.modes.figures();
                assert_eq!(
                    figures.costs.map(|cost| cost.map(|it| it.as_nanos() as u64)),
                    costs.map(Some)
                );
            }
        }
    }

    /// A turn may bring more messages than an epoch has, all at once.
    #[test]
    #[cfg_attr(miri, ignore = "too many messages")]
    fn the_messages_of_long_turns_are_all_counted() {
        for turn in [20, 600, 1000, 3000] {
            let mut load = Load::new(1000, [5_000, 5_500]);
            load.turn = turn;
            load.run(100_000);
            assert_eq!(load.mode(), Streams::Queue, "turns of {turn}");
            let [queue, _] = load.modes.figures().costs;
            let queue = queue.expect("it was measured").as_nanos();
            assert!((4_900..5_200).contains(&queue), "{queue} in turns of {turn}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "too many messages")]
    fn after_a_change_it_is_found_again_within_10_000_messages() {
        let mut load = Load::new(64, [8_000, 5_000]);
        load.run(100_000);
        assert_eq!(load.mode(), Streams::Readiness);
        load.costs = [8_000, 12_000];
        load.run(10_000);
        assert_eq!(load.mode(), Streams::Queue);
        assert_eq!(load.modes.figures().changes, 2);
    }

    #[test]
    #[cfg_attr(miri, ignore = "too many messages")]
    fn the_worse_way_gets_few_messages() {
        let mut load = Load::new(64, [5_000, 8_000]);
        load.run(50_000);
        let others = load.run(1_000_000);
        assert!((1_000..15_000).contains(&others), "{others}");
    }

    #[test]
    #[cfg_attr(miri, ignore = "too many messages")]
    fn too_many_connections_to_change_stay_as_they_are() {
        let mut load = Load::new(50_000, [8_000, 5_000]);
        let changed = load.run(1_000_000);
        assert_eq!(load.mode(), Streams::Queue);
        assert!(changed < 15_000, "{changed}");
    }

    #[test]
    fn a_fixed_setting_learns_nothing() {
        for (setting, mode) in
            [(Streams::Queue, StreamMode::Queue), (Streams::Readiness, StreamMode::Readiness)]
        {
            let mut load = Load::new(8, [8_000, 5_000]);
            load.modes.set(setting, true);
            load.run(20_000);
            assert_eq!(load.modes.mode(), mode);
            assert_eq!(load.modes.figures().comparisons, 0);
            assert!(load.connections.iter().all(|its| *its == mode));
        }
        let modes = StreamModes::default();
        modes.set(Streams::Learned, false);
        assert_eq!((modes.mode(), modes.figures().setting), (StreamMode::Queue, Streams::Queue));
    }

    #[test]
    fn names_lead_back_to_their_settings() {
        for (setting, name) in Streams::NAMES {
            assert_eq!((Streams::from_name(name), setting.name()), (Some(setting), name));
        }
        assert_eq!(Streams::from_name("fast"), None);
    }
}
