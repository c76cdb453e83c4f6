//! The way in which streams receive and send: by the queue, or by readiness and plain calls.
//!
//! A ring receives when bytes come, and sends with its next enter: two thirtieths of a system call for each
//! message of 64 connections. An epoll set reports which connections are ready, and each message is two plain
//! calls. Which is cheaper depends on the processor: on its cost of a system call against that of a ring's
//! work for a task. So a driver may learn it, with a [`Chooser`], from the processor time of its own thread:
//! an epoch is [`EPOCH`] messages, at whose ends that time is read.
//!
//! A connection changes its way when its next message comes. So after a change the messages are first
//! counted, [`SETTLING`] at a time, until nearly all come the new way; only then does the epoch begin.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use super::chooser::Chooser;
use crate::sys::Processor;

/// The way in which the connections of a driver receive and send.
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
    /// As `Learned`; but on a family of processors of which figures show that one way is the cheaper for all
    /// loads, by that way and without measuring: by the queue on AMD's and on Intel's Emerald Rapids.
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

/// The way of a driver's streams and its measured costs. See [`Handle::streams`](crate::Handle::streams).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamFigures {
    /// The setting, with the outcome in place of `Auto`.
    pub setting: Streams,
    /// The way that connections use outside of trials: `Queue` or `Readiness`.
    pub way: Streams,
    /// The processor time of a message by the queue and by readiness, the program's own work included;
    /// `None` as long as it was not measured.
    pub costs: [Option<Duration>; 2],
    /// The number of comparisons of the two ways.
    pub comparisons: u64,
    /// The number of comparisons that changed the way.
    pub changes: u64,
}

/// One of the two ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Way {
    #[default]
    Queue = 0,
    Readiness = 1,
}

impl Way {
    /// Both.
    pub(crate) const ALL: [Self; 2] = [Self::Queue, Self::Readiness];
}

/// Returns whether figures show that the queue is the way to use on this kind of processors, without
/// measuring. From 1 to 512 connections and from 64 bytes to 16 KiB readiness takes 1.07 to 1.39 of the
/// queue's processor time per message on AMD EPYC (family 25), and 0.87 to 1.23 on Emerald Rapids, where
/// learning takes up to 1.25.
fn is_queue_cheaper() -> bool {
    matches!(Processor::current(), Processor::Amd | Processor::EmeraldRapids)
}

/// Units of an epoch.
const EPOCH: u32 = 512;
/// Units that are counted to find out whether the connections use the new way.
const SETTLING: u32 = 128;
/// With fewer messages by the other way meanwhile they do.
const LATE_MAX: u32 = 4;
/// The most such counts. With still more connections a change costs more than it can win.
const SETTLINGS_MAX: u32 = 32;
/// The most times that an epoch begins again because of connections that come the other way.
const RESTARTS_MAX: u32 = 16;
/// Bytes whose copy costs about as much as the rest of a message.
const BYTES_PER_UNIT: u32 = 8 << 10;

/// The way of a driver's streams, which its connections share.
#[derive(Debug, Default)]
pub(crate) struct StreamWays {
    setting: Cell<Streams>,
    /// The way of new receives.
    way: Cell<Way>,
    /// Units until the next step.
    left: Cell<u32>,
    /// Units of this step so far: at least the length of the step, since those of a turn come at once.
    units: Cell<u32>,
    /// Messages of this step that came the other way.
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
    /// Connections change their way. The number of times that too many had not.
    Settling(u32),
    /// The epoch has begun at this processor time of the thread. The number of times that it began again.
    Measuring(Duration, u32),
}

impl Default for Learning {
    fn default() -> Self {
        Self { chooser: Chooser::new(), stage: Stage::Settling(0) }
    }
}

impl StreamWays {
    /// Changes the setting. `is_able` says that the backend has both ways.
    pub(crate) fn set(&self, setting: Streams, is_able: bool) {
        let setting = if is_able { setting.on_this_processor() } else { Streams::Queue };
        self.setting.set(setting);
        self.learning.replace(Learning::default());
        self.way.set(if setting == Streams::Readiness { Way::Readiness } else { Way::Queue });
        self.left.set(SETTLING);
        self.late.set(0);
        self.units.set(0);
    }

    /// Returns the way of receives that begin now.
    #[inline]
    pub(crate) fn way(&self) -> Way {
        self.way.get()
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
            way: if is_ready { Streams::Readiness } else { Streams::Queue },
            costs: [0, 1].map(|way| learning.chooser.cost(way).map(Duration::from_nanos)),
            comparisons,
            changes,
        }
    }

    /// Counts `len` bytes that came by a way. Returns true if it is not the way to use: then the receive is
    /// to end, and begin again.
    #[inline]
    pub(crate) fn note(&self, way: Way, len: u32) -> bool {
        let is_late = way != self.way.get();
        if self.setting.get() == Streams::Learned {
            let units = 1 + len / BYTES_PER_UNIT;
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
        let way = match *stage {
            Stage::Settling(_) if late < LATE_MAX => {
                *stage = Stage::Measuring(time(), 0);
                self.left.set(EPOCH);
                return;
            }
            Stage::Settling(SETTLINGS_MAX) => chooser.give_up(),
            Stage::Settling(count) => {
                *stage = Stage::Settling(count + 1);
                self.left.set(SETTLING);
                return;
            }
            // Connections that had no message for long bring the other way's cost, and that of the change.
            Stage::Measuring(_, RESTARTS_MAX) if late > units / 16 => chooser.give_up(),
            Stage::Measuring(_, count) if late > units / 16 => {
                *stage = Stage::Measuring(time(), count + 1);
                self.left.set(EPOCH);
                return;
            }
            Stage::Measuring(begin, _) => {
                let now = time();
                let took = now.saturating_sub(begin).as_nanos() as u64;
                let next = chooser.note(took / u64::from(units.max(1)));
                if Way::ALL[next] == self.way.get() {
                    *stage = Stage::Measuring(now, 0);
                    self.left.set(EPOCH);
                    return;
                }
                next
            }
        };
        *stage = Stage::Settling(0);
        self.left.set(SETTLING);
        self.way.set(Way::ALL[way]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Connections that change their way with each message, and a clock that advances with each.
    struct Load {
        ways: StreamWays,
        connections: Vec<Way>,
        /// Nanoseconds of a message, by way.
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
            let ways = StreamWays::default();
            ways.set(Streams::Learned, true);
            Self {
                ways,
                connections: vec![Way::Queue; connections],
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
                let way = self.connections[index];
                by_readiness += way as usize;
                self.clock += self.costs[way as usize];
                if self.ways.note(way, 64) {
                    self.connections[index] = self.ways.way();
                }
                self.count += 1;
                if self.count.is_multiple_of(self.turn) && self.ways.has_work.take() {
                    self.ways.learn(|| Duration::from_nanos(self.clock));
                }
            }
            by_readiness
        }

        fn way(&self) -> Streams {
            self.ways.figures().way
        }
    }

    #[test]
    fn the_cheaper_way_is_found_within_10_000_messages() {
        let numbers: &[usize] = if cfg!(miri) { &[16] } else { &[1, 16, 64, 512] };
        for &connections in numbers {
            for (costs, way) in [
                ([8_000, 5_000], Streams::Readiness),
                ([5_000, 8_000], Streams::Queue),
                ([5_000, 5_000], Streams::Queue),
            ] {
                let mut load = Load::new(connections, costs);
                load.run(10_000);
                assert_eq!(load.way(), way, "{connections} connections, {costs:?}");
                let figures = load.ways.figures();
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
            assert_eq!(load.way(), Streams::Queue, "turns of {turn}");
            let [queue, _] = load.ways.figures().costs;
            let queue = queue.expect("it was measured").as_nanos();
            assert!((4_900..5_200).contains(&queue), "{queue} in turns of {turn}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "too many messages")]
    fn after_a_change_it_is_found_again_within_10_000_messages() {
        let mut load = Load::new(64, [8_000, 5_000]);
        load.run(100_000);
        assert_eq!(load.way(), Streams::Readiness);
        load.costs = [8_000, 12_000];
        load.run(10_000);
        assert_eq!(load.way(), Streams::Queue);
        assert_eq!(load.ways.figures().changes, 2);
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
        assert_eq!(load.way(), Streams::Queue);
        assert!(changed < 15_000, "{changed}");
    }

    #[test]
    fn a_fixed_setting_learns_nothing() {
        for (setting, way) in [(Streams::Queue, Way::Queue), (Streams::Readiness, Way::Readiness)] {
            let mut load = Load::new(8, [8_000, 5_000]);
            load.ways.set(setting, true);
            load.run(20_000);
            assert_eq!(load.ways.way(), way);
            assert_eq!(load.ways.figures().comparisons, 0);
            assert!(load.connections.iter().all(|its| *its == way));
        }
        let ways = StreamWays::default();
        ways.set(Streams::Learned, false);
        assert_eq!((ways.way(), ways.figures().setting), (Way::Queue, Streams::Queue));
    }

    #[test]
    fn names_lead_back_to_their_settings() {
        for (setting, name) in Streams::NAMES {
            assert_eq!((Streams::from_name(name), setting.name()), (Some(setting), name));
        }
        assert_eq!(Streams::from_name("fast"), None);
    }
}
