//! Programs: what threads do, step by step. Each list of steps is a program, so that a part of one is, too.

use sakia_testkit::random::Random;

/// A step of a thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) thread: usize,
    /// Nanoseconds of the thread's clock since its last step.
    pub(super) after: u64,
    pub(super) action: Action,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    /// The sizes of the recording: events of a buffer, the clock at its begin, and the first time of threads.
    /// Counts if it comes first.
    Recording {
        room: usize,
        base: u64,
        start: u64,
    },
    /// An operation, by the index of its kind.
    Start {
        id: u64,
        kind: usize,
        fd: i32,
        bytes: u32,
        task: u64,
    },
    Submit(u64),
    ToLane {
        id: u64,
        reason: usize,
        file_system: usize,
    },
    Delay(u64),
    Complete(u64, i64),
    Resume(u64),
    Drop {
        id: u64,
        is_detached: bool,
    },
    /// A system call, by the index of its name.
    Call {
        call: usize,
        lasts: u64,
        first: u64,
        result: i64,
    },
    TurnBegins(u64),
    TurnEnds(u64),
    Spawn {
        task: u64,
        place: usize,
    },
    PollBegins(u64),
    PollEnds(u64, bool),
    ScopeBegins(u64),
    ScopeEnds(u64),
    SpanBegins(usize),
    SpanEnds(usize),
    Moment {
        name: usize,
        values: [u64; 2],
    },
    /// Page faults and workers of the kernel.
    Sample(u64, u64),
    /// The buffers are emptied.
    Drain,
    /// Operations that the kernel's tracepoint counted. Counts if it is the last one.
    HandedOver([u64; 3]),
}

pub(super) const KINDS: [&str; 12] = [
    "read",
    "write",
    "copy",
    "open",
    "close",
    "recv",
    "send",
    "send_file",
    "fsync",
    "list",
    "mkdir",
    // One whose name is not registered.
    "operation",
];
pub(super) const READ: usize = 0;
pub(super) const WRITE: usize = 1;
pub(super) const COPY: usize = 2;
const OPEN: usize = 3;
const CLOSE: usize = 4;
/// Names and numbers.
pub(super) const CALLS: [(&str, u16); 4] =
    [("io_uring_enter", 426), ("read", 0), ("statx", 332), ("another system call", 39)];
const ENTER: usize = 0;
pub(super) const REASONS: [&str; 5] = [
    "on a network or FUSE file system",
    "may wait without bound",
    "the ring has no such operation",
    "a reason",
    // The driver gave none.
    "",
];
/// The last one stands for none.
pub(super) const FILE_SYSTEMS: [&str; 4] = ["ext4", "tmpfs", "nfs4", ""];
/// The last one stands for one that is not registered.
pub(super) const PLACES: [&str; 3] = ["src/main.rs:7", "a <b> & \"c\":1", ""];
/// Some are names of the recording's own events.
pub(super) const NAMES: [&str; 8] = [
    "parse",
    "turn",
    "task runs",
    "process",
    "events lost",
    "task spawned",
    "read",
    "handed to kernel workers",
];
/// The names of a moment's values, some of which the recording's own events have.
pub(super) const VALUES: [[&str; 2]; 3] =
    [["page faults", "kernel workers"], ["key", "count"], ["task", "place"]];
pub(super) const HANDED_OVER: [&str; 3] = ["FSYNC", "MKDIRAT", "READ"];

/// Makes a random program.
pub(super) fn make(random: &mut Random) -> Vec<Step> {
    let mut maker = Maker { random, steps: Vec::new(), id: 0, thread: 0, task: 0 };
    maker.recording();
    for _ in 0..maker.random.below(7) + 1 {
        maker.thread = maker.random.below(3) as usize;
        match maker.random.below(14) {
            0 => maker.large_buffers(),
            1 => maker.page_faults(),
            2 | 3 => maker.files(),
            4 => maker.lanes(),
            5 => maker.delays(),
            6 => maker.workers(),
            7 | 8 => maker.turns(),
            9..12 => maker.again(),
            _ => maker.anything(),
        }
        if maker.random.percent(30) {
            maker.add(0, Action::Drain);
        }
    }
    maker.steps
}

struct Maker<'a> {
    random: &'a mut Random,
    steps: Vec<Step>,
    /// The last operation.
    id: u64,
    thread: usize,
    task: u64,
}

impl Maker<'_> {
    fn add(&mut self, after: u64, action: Action) {
        self.steps.push(Step { thread: self.thread, after, action });
    }

    /// Returns `at`, or a number next to it.
    fn about(&mut self, at: u64) -> u64 {
        at.saturating_sub(1) + self.random.below(3)
    }

    fn recording(&mut self) {
        let room =
            self.random.one_of(&[2, 16, 64, 256, 1 << 13, 1 << 14, 1 << 14, 1 << 14, 1 << 14]);
        let base = self.random.one_of(&[0, 1, 98_765_432_123, 1 << 48, (1 << 62) - 1]);
        let start =
            self.random.one_of(&[0, 7, 123_456, (1 << 48) - 90_000, (1 << 48) + 5, (3 << 48) - 1]);
        self.add(0, Action::Recording { room, base, start });
    }

    fn start(&mut self, after: u64, kind: usize, fd: i32, bytes: u32) -> u64 {
        self.id += 1;
        let (id, task) = (self.id, self.task);
        self.add(after, Action::Start { id, kind, fd, bytes, task });
        id
    }

    fn plain(&mut self, kind: usize, fd: i32, bytes: u32, result: i64) {
        let after = self.random.one_of(&[0, 10]);
        let id = self.start(after, kind, fd, bytes);
        self.add(100, Action::Complete(id, result));
        self.add(5, Action::Resume(id));
    }

    /// An operation whose result is taken `parts` nanoseconds after its start, submission and completion.
    fn queued(&mut self, kind: usize, fd: i32, result: i64, [submit, kernel, resume]: [u64; 3]) {
        let after = self.random.one_of(&[0, 10]);
        let id = self.start(after, kind, fd, 4096);
        self.add(0, Action::Submit(id));
        self.add(submit, Action::Call { call: ENTER, lasts: kernel.min(300), first: 3, result: 1 });
        self.add(kernel - kernel.min(300), Action::Complete(id, result));
        self.add(resume, Action::Resume(id));
    }

    fn on_lane(&mut self, kind: usize, fd: i32, result: i64, reason: usize, file_system: usize) {
        let after = self.random.one_of(&[0, 10]);
        let id = self.start(after, kind, fd, 4096);
        self.add(3, Action::ToLane { id, reason, file_system });
        self.add(900, Action::Complete(id, result));
        self.add(20, Action::Resume(id));
    }

    fn large_buffers(&mut self) {
        let asked = self.random.one_of(&[65_535_u32, 65_536, 524_287, 524_288, 1 << 20, 3 << 20]);
        let wasteful = self.random.one_of(&[3, 15, 16, 16, 17, 30]);
        let others = self.random.one_of(&[0, 0, 15, 16, 17]);
        let step = self.random.below(2) * self.random.below(3);
        for number in 0..wasteful {
            let got = i64::from(asked / 8) - (number * step) as i64;
            self.plain(READ, 5, asked, got);
        }
        for number in 0..others {
            let got = self.random.one_of(&[i64::from(asked), i64::from(asked / 8) + 1, 0, -5]);
            self.plain(READ, number, asked, got);
        }
    }

    fn page_faults(&mut self) {
        let faults = self.about(2000);
        self.add(50, Action::Sample(1000, 0));
        let transfers =
            if self.random.percent(20) { self.about(1000) } else { self.random.below(9) };
        for _ in 0..transfers {
            self.plain(WRITE, 5, 10, 10);
        }
        self.add(50, Action::Sample(1000 + faults, 0));
    }

    /// Files that are read and written, one block after the other or not.
    fn files(&mut self) {
        let files = self.about(8) + self.random.below(3);
        let serial_percent = self.random.one_of(&[0, 60, 80, 100, 100]);
        let (plain_percent, is_queued) =
            (self.random.one_of(&[0, 50, 100]), self.random.percent(50));
        let (first, mut fd) = (self.random.below(100) as i32, 0);
        for file in 0..files as i32 {
            let is_new = self.random.percent(80);
            fd = if is_new { first + 2 * file % 3 } else { fd };
            self.task = self.random.below(2) * 2 + 3;
            if is_new {
                self.plain(OPEN, -100, 0, fd.into());
                self.plain(OPEN, -100, 0, i64::from(fd) + 100);
            }
            if self.random.percent(plain_percent) {
                let kind = self.random.one_of(&[READ, READ, READ, COPY]);
                for _ in 0..self.random.below(3) + 1 {
                    self.plain(kind, fd, 4096, 4096);
                    if self.random.percent(10) {
                        self.task += 1;
                    }
                    self.plain(WRITE, fd + 100, 4096, 4096);
                }
                self.plain(kind, fd, 4096, 0);
            } else if self.random.percent(serial_percent) {
                for kind in [READ, WRITE, READ, WRITE] {
                    match is_queued {
                        true => self.queued(kind, fd, 4096, [100, 5000, 40]),
                        false => self.on_lane(kind, fd, 4096, 0, 0),
                    }
                }
            } else {
                let ids = [(); 2].map(|()| self.start(7, READ, fd, 4096));
                ids.iter().for_each(|&id| self.add(1, Action::Submit(id)));
                self.add(9, Action::Call { call: ENTER, lasts: 80, first: 3, result: 2 });
                ids.iter().for_each(|&id| self.add(500, Action::Complete(id, 4096)));
                ids.iter().for_each(|&id| self.add(5, Action::Resume(id)));
            }
            if self.random.percent(60) {
                self.plain(CLOSE, fd, 0, 0);
            }
        }
        self.task = 0;
    }

    fn lanes(&mut self) {
        let kind = self.random.one_of(&[READ, WRITE, COPY, OPEN, 5, 8, 10]);
        let lane = self.about(16);
        let reason = self.random.below(REASONS.len() as u64) as usize;
        let (other, share) =
            (self.random.below(REASONS.len() as u64) as usize, self.random.one_of(&[0, 49, 90]));
        let one = self.random.below(FILE_SYSTEMS.len() as u64) as usize;
        let second = self.random.below(FILE_SYSTEMS.len() as u64) as usize;
        for _ in 0..lane {
            let reason = if self.random.percent(share) { other } else { reason };
            let file_system = if self.random.percent(40) { second } else { one };
            self.on_lane(kind, 9, 1, reason, file_system);
        }
        let plain = if self.random.percent(30) {
            9 * lane - 1 + self.random.below(3)
        } else {
            self.random.below(9)
        };
        for _ in 0..plain {
            self.plain(kind, 9, 0, 0);
        }
    }

    fn delays(&mut self) {
        let (kind, count) = (self.random.one_of(&[READ, 5, 8]), self.about(16));
        let mut parts = [100, 400, 70];
        let at = self.random.one_of(&[0, 2]);
        parts[at] = self.random.one_of(&[49_999, 50_000, 50_001, 50_002, 90_000]);
        parts[1] = if self.random.percent(50) { self.about(parts[at] / 2) } else { 2000 };
        for number in 0..count {
            let mut its = parts;
            its[at] = its[at] + number - count / 2;
            self.queued(kind, 5, 1, its);
        }
    }

    fn workers(&mut self) {
        let kind = self.random.one_of(&[READ, 6, 8, 10, 11]);
        for _ in 0..self.random.below(3) {
            self.queued(kind, 5, 1, [100, 5000, 40]);
        }
        let workers = self.random.below(3);
        self.add(1, Action::Sample(10, workers));
        if self.random.percent(30) {
            let counts = [(); 3].map(|()| self.random.below(3));
            self.add(1, Action::HandedOver(counts));
        }
    }

    /// Turns, with tasks that run in between.
    fn turns(&mut self) {
        for _ in 0..self.random.below(20) {
            self.add(10, Action::TurnBegins(1));
            if self.random.percent(50) {
                self.add(5, Action::Call { call: ENTER, lasts: 50, first: 3, result: 0 });
            }
            self.add(self.task, Action::TurnEnds(2));
            for _ in 0..self.random.below(3) {
                let task = self.random.below(4) + 1;
                if self.random.percent(40) {
                    let place = self.random.below(PLACES.len() as u64) as usize;
                    self.add(3, Action::Spawn { task, place });
                }
                let lasts = self.random.one_of(&[0, 10, 1000, 33_333, 900_000, 40_000_000]);
                self.add(10, Action::PollBegins(task));
                self.task = task;
                if self.random.percent(40) {
                    let lasts = self.random.below(200);
                    self.add(7, Action::Call { call: 2, lasts, first: u64::MAX, result: -2 });
                }
                if self.random.percent(40) {
                    self.queued(READ, 5, 100, [10, 2000, 60]);
                }
                self.add(lasts, Action::PollEnds(task, false));
                self.task = 0;
            }
        }
    }

    /// An operation on several ways, and then another one with its number.
    fn again(&mut self) {
        let kind = self.random.below(KINDS.len() as u64) as usize;
        let id = self.start(10, kind, 5, 4096);
        for _ in 0..self.random.below(3) + 1 {
            let reason = self.random.below(5) as usize;
            let steps = [
                Action::Submit(id),
                Action::Call { call: ENTER, lasts: 80, first: 3, result: 1 },
                Action::ToLane { id, reason, file_system: 1 },
                Action::Submit(id),
                Action::Call { call: ENTER, lasts: 0, first: 3, result: 1 },
                Action::Drop { id, is_detached: reason > 2 },
                Action::Complete(id, 7),
                Action::Resume(id),
            ];
            for step in steps {
                if self.random.percent(50) {
                    let after = self.random.one_of(&[0, 1, 70, 60_000]);
                    self.add(after, step);
                }
            }
            if self.random.percent(50) {
                self.add(3, Action::Start { id, kind, fd: 5, bytes: 10, task: 1 });
            }
        }
    }

    /// Steps that need not make sense: some begin or end what is not there.
    fn anything(&mut self) {
        for _ in 0..self.random.below(60) {
            self.thread = self.random.below(3) as usize;
            let after = self.random.one_of(&[0, 0, 1, 50, 999, 1_234_567]);
            let id = self.id.saturating_sub(self.random.below(4));
            let index = self.random.below(5) as usize;
            let number = self.random.one_of(&[0, 1, 127, 128, 1 << 21, 1 << 56, u64::MAX]);
            let action = match self.random.below(26) {
                0..4 => {
                    let kind = self.random.below(KINDS.len() as u64) as usize;
                    let bytes = self.random.one_of(&[0, 4096, 524_287, 524_289, u32::MAX]);
                    let fd = self.random.one_of(&[-1, 0, 5, i32::MAX, i32::MIN]);
                    self.start(after, kind, fd, bytes);
                    continue;
                }
                4 => Action::Start { id, kind: index, fd: 5, bytes: 7, task: number },
                5..7 => Action::Submit(id),
                7 => Action::ToLane { id, reason: index, file_system: index % 4 },
                8 => Action::Delay(id),
                9..12 => Action::Complete(id, number as i64),
                12..14 => Action::Resume(id),
                14 => Action::Drop { id, is_detached: index > 2 },
                15..17 => {
                    let lasts = self.random.one_of(&[0, 1, 500, 1_000_000]);
                    Action::Call { call: index % 4, lasts, first: number, result: number as i64 }
                }
                17 => Action::TurnBegins(number),
                18 => Action::TurnEnds(number),
                19 => Action::SpanBegins(self.random.below(NAMES.len() as u64) as usize),
                20 => Action::SpanEnds(index),
                21 => Action::Moment {
                    name: self.random.below(NAMES.len() as u64) as usize,
                    values: [number, self.random.word()],
                },
                22 => self.random.one_of(&[Action::ScopeBegins(number), Action::ScopeEnds(number)]),
                23 => Action::PollBegins(number),
                24 => Action::PollEnds(number, index > 2),
                _ => Action::Drain,
            };
            self.add(after, action);
        }
    }
}
