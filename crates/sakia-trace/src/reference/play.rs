//! Plays a program: its events go through buffers and the encoder, and into the truth.

use std::fs;

use super::program::{
    Action, CALLS, FILE_SYSTEMS, HANDED_OVER, KINDS, NAMES, PLACES, REASONS, Step,
};
use super::truth::{Truth, names_of_values};
use crate::buffer::Buffer;
use crate::encode::{Encoder, Thread, ThreadInfo};
use crate::{Event, EventType, Name, Queued, add_handed_over};

/// The remains of a program.
pub(super) struct Played {
    /// The file.
    pub(super) bytes: Vec<u8>,
    pub(super) truth: Truth,
    /// The clocks at the begin: monotonic, real, since the boot.
    pub(super) clocks: [u64; 3],
    /// How a buffer was wrong.
    pub(super) wrong: Option<String>,
}

/// A thread that has recorded something.
struct Recorded {
    index: usize,
    buffer: Buffer,
    /// The part that the file has of it, once its buffer was emptied.
    thread: Option<Thread>,
    held: usize,
    /// Events that were lost since the buffer was emptied.
    lost: u64,
}

struct Player {
    room: usize,
    base: u64,
    clocks: [u64; 3],
    /// The least time of each thread's next operation.
    least: [u64; 3],
    threads: Vec<Recorded>,
    encoder: Encoder,
    truth: Truth,
    wrong: Option<String>,
}

pub(super) fn play(steps: &[Step]) -> Played {
    let (room, base, start) = match steps.first().map(|step| step.action) {
        Some(Action::Recording { room, base, start }) => (room, base, start),
        _ => (1 << 14, 1_000_000, 0),
    };
    let mut player = Player {
        room,
        base,
        clocks: [start; 3],
        least: [0; 3],
        threads: Vec::new(),
        encoder: Encoder::new(base),
        truth: Truth::default(),
        wrong: None,
    };
    let clocks = [base, 1_700_000_000_000_000_007, base + 3];
    player.encoder.begin(77, "program", [clocks[1], clocks[2]]);
    let mut handed_over = None;
    for step in steps {
        let Step { thread, after, action } = *step;
        let lasts = if let Action::Call { lasts, .. } = action { lasts } else { 0 };
        let mut time = player.clocks[thread] + after + lasts;
        if let Action::Start { .. } = action {
            // No two operations of a thread start at the same time: they would have no order.
            time = time.max(player.least[thread]);
            player.least[thread] = time + 1;
        }
        player.clocks[thread] = time;
        match action {
            Action::Recording { .. } => {}
            Action::Drain => player.drain(),
            Action::HandedOver(counts) => handed_over = Some(counts),
            Action::Sample(faults, workers) => {
                let values = [faults, time % 7, time % 11, workers];
                player.encoder.sample(time, &values);
                player.truth.note_sample(player.base + time, values);
            }
            _ => player.record(thread, time, action),
        }
    }
    player.drain();
    let Player { encoder, mut truth, wrong, .. } = player;
    let mut bytes = encoder.bytes().to_vec();
    if let Some(counts) = handed_over {
        bytes = add(&bytes, counts, truth.threads.first().map(|thread| thread.index));
        // Without a thread, no operation is one of the program.
        let counts = if truth.threads.is_empty() { [0; 3] } else { counts };
        truth.note_handed_over(truth.last(), counts);
    }
    Played { bytes, truth, clocks, wrong }
}

/// Adds what the tracepoint counted for a thread of the program, and for another program.
fn add(bytes: &[u8], counts: [u64; 3], thread: Option<usize>) -> Vec<u8> {
    let path = std::env::temp_dir().join(format!("sakia-trace-reference-{}", std::process::id()));
    fs::write(&path, bytes).expect("a file");
    let mut events = vec![(7, "FSYNC")];
    for (name, count) in HANDED_OVER.iter().zip(counts) {
        let its = thread.map(|index| (100 + index as u64, *name));
        (0..count).for_each(|_| events.extend(its));
    }
    let sum = events.len() as u64 - 1;
    assert_eq!(add_handed_over(&path, events).expect("a recording"), sum);
    let bytes = fs::read(&path).expect("a file");
    fs::remove_file(&path).expect("a file");
    bytes
}

impl Player {
    fn record(&mut self, index: usize, time: u64, action: Action) {
        let at = self.threads.iter().position(|recorded| recorded.index == index);
        let at = at.unwrap_or_else(|| {
            let info =
                ThreadInfo { pid: 77, tid: 100 + index as u32, name: format!("thread <{index}>") };
            let buffer = Buffer::new(info, self.room);
            self.threads.push(Recorded { index, buffer, thread: None, held: 0, lost: 0 });
            self.threads.len() - 1
        });
        let recorded = &mut self.threads[at];
        let became_half_full = recorded.buffer.push(event(time & ((1 << 48) - 1), action));
        if recorded.held == self.room {
            recorded.lost += 1;
        } else {
            self.truth.note(index, self.base + time, action);
        }
        if became_half_full != (recorded.held == self.room / 2) {
            self.wrong = Some(format!("half full with {} of {} events", recorded.held, self.room));
        }
        recorded.held = (recorded.held + 1).min(self.room);
    }

    fn drain(&mut self) {
        for recorded in &mut self.threads {
            let now = self.clocks[recorded.index];
            let owner = &recorded.buffer.owner;
            let thread = recorded.thread.get_or_insert_with(|| self.encoder.thread(owner));
            recorded.buffer.drain(now, |event| self.encoder.event(thread, event));
            let lost = self.encoder.lost(thread, now, recorded.buffer.lost());
            if lost != recorded.lost {
                self.wrong = Some(format!("{lost} events were lost, and not {}", recorded.lost));
            }
            self.truth.note_lost(recorded.index, self.base + now, recorded.lost);
            (recorded.held, recorded.lost) = (0, 0);
        }
    }
}

/// Returns the number of a name, or one that no name has.
fn name(text: &str) -> u64 {
    if text.is_empty() { u64::MAX } else { Name::register(text).number().into() }
}

fn event(time: u64, action: Action) -> Event {
    use EventType as It;
    let (kind, id, a, b) = match action {
        Action::Start { id, kind, fd, bytes, task } => {
            let kind = if KINDS[kind] == "operation" { 4095 } else { name(KINDS[kind]) as u16 };
            (It::Queued, id, Queued { kind, fd, bytes }.pack(), task)
        }
        Action::Submit(id) => (It::Submitted, id, 0, 0),
        Action::ToLane { id, reason, file_system } => {
            (It::ToLane, id, name(REASONS[reason]), name(FILE_SYSTEMS[file_system]))
        }
        Action::Delay(id) => (It::Delayed, id, name(REASONS[3]), 0),
        Action::Complete(id, result) => (It::Completed, id, result as u64, 0),
        Action::Resume(id) => (It::Resumed, id, 0, 0),
        Action::Drop { id, is_detached } => (It::Dropped, id, is_detached.into(), 0),
        Action::Call { call, lasts, first, result } => {
            (It::SystemCall, lasts << 16 | u64::from(CALLS[call].1), first, result as u64)
        }
        Action::TurnBegins(entries) => (It::TurnBegin, entries, 4, 1),
        Action::TurnEnds(finished) => (It::TurnEnd, finished, 0, 0),
        Action::Spawn { task, place } => (It::TaskSpawned, task, 2, name(PLACES[place])),
        Action::PollBegins(task) => (It::PollBegin, task, 0, 0),
        Action::PollEnds(task, has_ended) => (It::PollEnd, task, has_ended.into(), 0),
        Action::ScopeBegins(scope) => (It::ScopeBegin, scope, 3, 0),
        Action::ScopeEnds(scope) => (It::ScopeEnd, scope, 3, 0),
        Action::SpanBegins(span) => (It::SpanBegin, name(NAMES[span]), 0, 0),
        Action::SpanEnds(span) => (It::SpanEnd, name(NAMES[span]), 0, 0),
        Action::Moment { name, values: [a, b] } => {
            let values =
                names_of_values(name).map(|values| values.map(|it| Some(Name::register(it))));
            let its = Name::insert(NAMES[name], values.unwrap_or_default());
            (It::Registered, its.number().into(), a, b)
        }
        Action::Recording { .. } | Action::Sample(..) | Action::Drain | Action::HandedOver(_) => {
            unreachable!("no event of a thread")
        }
    };
    Event { time, kind, id, a, b }
}
