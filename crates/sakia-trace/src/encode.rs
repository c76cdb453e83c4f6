//! Conversion of events to packets of Perfetto's format.
//!
//! Each thread has a track with its turns, tasks, system calls and spans. Its operations are on separate
//! tracks, as many as were ever in flight at a time: an operation is a slice from its start until the program
//! takes the result, and in it a slice for the time in the kernel or on a lane's thread.

use std::collections::HashMap;

use crate::event::Queued;
use crate::name::Entry;
use crate::protobuf::Message;
use crate::schema::{clock, defaults, event, interned, packet, trace, track};
use crate::{Event, EventType, Name, StaticName};
use crate::{sample, system_calls};

/// The only packet sequence of a file.
const SEQUENCE: u64 = 1;
/// The track of the process.
const PROCESS_TRACK: u64 = 1;
/// The track of the process's samples.
const SAMPLES_TRACK: u64 = 2;

macro_rules! names {
    ($($name:ident $text:literal,)*) => {
        $(static $name: StaticName = StaticName::new($text);)*
    };
}

names! {
    OPERATION "operation",
    CALL "system call",
    TURN "turn",
    TASK "task",
    SCOPE "scope",
    SPAN "span",
    PROGRAM "program",
    IN_KERNEL "in the kernel",
    ON_LANE "on a lane thread",
    DELAYED "delayed",
    DROPPED "dropped",
    LOST "events lost",
    TASK_SPAWNED "task spawned",
    POLL "task runs",
    DESCRIPTOR "descriptor",
    BYTES "bytes",
    RESULT "result",
    WAY "way",
    REASON "reason",
    IN_FLIGHT "in flight",
    TO_SUBMIT "to submit",
    FINISHED "finished",
    MAY_SLEEP "may sleep",
    PARENT "parent",
    PLACE "place",
    HAS_ENDED "has ended",
    COUNT "count",
    FIRST "a",
    SECOND "b",
}

/// Values of the argument `way`: how an operation was done.
pub(crate) mod way {
    pub(crate) const PLAIN: &str = "plain call";
    pub(crate) const QUEUE: &str = "queue";
    pub(crate) const LANE: &str = "lane";
}

/// The value of an argument.
#[derive(Clone, Debug)]
enum Argument {
    Uint(u64),
    Int(i64),
    Text(String),
}

/// The thread whose events follow.
#[derive(Clone, Debug)]
pub(crate) struct ThreadInfo {
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    pub(crate) name: String,
}

/// Turns events into packets.
#[derive(Debug, Default)]
pub(crate) struct Encoder {
    out: Message,
    threads: Vec<Thread>,
    /// Names that were written to the file: a bit for each field of the interned data, by number.
    known: Vec<u8>,
    /// The names of system calls, by number.
    calls: HashMap<u16, Name>,
    /// Names that the next packet defines.
    new: Vec<(u32, Name)>,
    /// Nanoseconds of `CLOCK_MONOTONIC` at which the recording began.
    base: u64,
}

#[derive(Debug)]
struct Thread {
    track: u64,
    /// Operations that have not been taken or dropped, by id.
    operations: HashMap<u64, Operation>,
    /// Operations queued since the last call that submits.
    queued: Vec<u64>,
    /// Tracks of operations: true if in use.
    slots: Vec<bool>,
    lost: u64,
}

#[derive(Debug)]
struct Operation {
    slot: usize,
    way: &'static str,
    /// Set while a slice within the operation's is open.
    is_inner_open: bool,
    is_dropped: bool,
    result: Option<i64>,
}

impl Encoder {
    /// Begins a file: clocks and the process.
    pub(crate) fn begin(&mut self, pid: u32, name: &str, clocks: [u64; 3]) {
        self.base = clocks[1];
        self.packet(None, packet::STATE_CLEARED, |message| {
            message.uint(packet::FIRST_ON_SEQUENCE, 1);
            message.nested(packet::TRACE_PACKET_DEFAULTS, |message| {
                message.uint(defaults::TIMESTAMP_CLOCK, clock::MONOTONIC);
            });
            message.nested(packet::CLOCK_SNAPSHOT, |message| {
                let ids = [clock::REALTIME, clock::MONOTONIC, clock::BOOTTIME];
                for (id, time) in ids.into_iter().zip(clocks) {
                    message.nested(clock::CLOCKS, |message| {
                        message.uint(clock::ID, id);
                        message.uint(clock::TIMESTAMP, time);
                    });
                }
            });
        });
        self.packet(None, 0, |message| {
            message.nested(packet::TRACK_DESCRIPTOR, |message| {
                message.uint(track::UUID, PROCESS_TRACK);
                message.nested(track::PROCESS, |message| {
                    message.uint(track::PROCESS_PID, pid.into());
                    message.string(track::PROCESS_NAME, name);
                });
            });
        });
        self.packet(None, 0, |message| {
            message.nested(packet::TRACK_DESCRIPTOR, |message| {
                message.uint(track::UUID, SAMPLES_TRACK);
                message.uint(track::PARENT, PROCESS_TRACK);
                message.string(track::NAME, sample::NAME);
            });
        });
    }

    /// Adds samples of the whole process.
    pub(crate) fn sample(&mut self, time: u64, values: &[(&'static str, u64)]) {
        let arguments =
            values.iter().map(|(name, value)| (Name::register(name), Argument::Uint(*value)));
        let arguments: Vec<_> = arguments.collect();
        self.instant(SAMPLES_TRACK, time, Name::register(sample::NAME), &PROGRAM, &arguments);
    }

    /// Adds a thread. Returns its index.
    pub(crate) fn thread(&mut self, info: &ThreadInfo) -> usize {
        let index = self.threads.len();
        let track = (index as u64 + 1) << 32;
        self.threads.push(Thread {
            track,
            operations: HashMap::new(),
            queued: Vec::new(),
            slots: Vec::new(),
            lost: 0,
        });
        self.packet(None, 0, |message| {
            message.nested(packet::TRACK_DESCRIPTOR, |message| {
                message.uint(track::UUID, track);
                message.uint(track::PARENT, PROCESS_TRACK);
                message.nested(track::THREAD, |message| {
                    message.uint(track::THREAD_PID, info.pid.into());
                    message.uint(track::THREAD_TID, info.tid.into());
                    message.string(track::THREAD_NAME, &info.name);
                });
            });
        });
        index
    }

    /// Adds an event of a thread; each thread's come in the order in which it recorded them.
    pub(crate) fn event(&mut self, thread: usize, it: Event) {
        let on = self.threads[thread].track;
        let Event { time, id, a, b, .. } = it;
        match it.kind {
            EventType::Queued => self.started(thread, it),
            EventType::Submitted => {
                if let Some(operation) = self.threads[thread].operations.get_mut(&id) {
                    operation.way = way::QUEUE;
                    self.threads[thread].queued.push(id);
                }
            }
            EventType::ToLane => {
                self.set_way(thread, id, way::LANE);
                let reason = Self::reason(a);
                self.open_inner(thread, id, time, &ON_LANE, &reason);
            }
            EventType::Delayed => {
                if let Some(track) = self.track_of(thread, id) {
                    let reason = Self::reason(a);
                    self.instant(track, time, DELAYED.get(), &OPERATION, &reason);
                }
            }
            EventType::Completed => self.completed(thread, id, time, a as i64),
            EventType::Resumed => self.ended(thread, id, time),
            EventType::Dropped => {
                if let Some(track) = self.track_of(thread, id) {
                    if a == 0 {
                        self.instant(track, time, DROPPED.get(), &OPERATION, &[]);
                    }
                    let operation = self.threads[thread].operations.get_mut(&id);
                    let is_over = operation.is_some_and(|operation| {
                        operation.is_dropped = true;
                        operation.result.is_some()
                    });
                    if is_over {
                        self.ended(thread, id, time);
                    }
                }
            }
            EventType::SystemCall => self.system_call(thread, it),
            EventType::TurnBegin => {
                let arguments = [
                    (TO_SUBMIT.get(), Argument::Uint(id)),
                    (IN_FLIGHT.get(), Argument::Uint(a)),
                    (MAY_SLEEP.get(), Argument::Uint(b)),
                ];
                self.begin_slice(on, time, TURN.get(), &TURN, &arguments);
            }
            EventType::TurnEnd => {
                self.end_slice(on, time, &[(FINISHED.get(), Argument::Uint(id))]);
            }
            EventType::TaskSpawned => {
                let mut arguments =
                    vec![(TASK.get(), Argument::Uint(id)), (PARENT.get(), Argument::Uint(a))];
                if let Some(place) = Name::of_number(b) {
                    arguments.push((PLACE.get(), Argument::Text(place.entry().text)));
                }
                self.instant(on, time, TASK_SPAWNED.get(), &TASK, &arguments);
            }
            EventType::PollBegin => {
                let arguments = [(TASK.get(), Argument::Uint(id))];
                self.begin_slice(on, time, POLL.get(), &TASK, &arguments);
            }
            EventType::PollEnd => {
                self.end_slice(on, time, &[(HAS_ENDED.get(), Argument::Uint(a))]);
            }
            EventType::ScopeBegin | EventType::ScopeEnd => {
                let arguments =
                    vec![(SCOPE.get(), Argument::Uint(id)), (TASK.get(), Argument::Uint(a))];
                let name =
                    if it.kind == EventType::ScopeBegin { "scope begins" } else { "scope ends" };
                self.instant(on, time, Name::register(name), &SCOPE, &arguments);
            }
            EventType::SpanBegin => {
                if let Some(name) = Name::of_number(id) {
                    self.begin_slice(on, time, name, &SPAN, &[]);
                }
            }
            EventType::SpanEnd => self.end_slice(on, time, &[]),
            EventType::Registered => {
                if let Some(name) = Name::of_number(id) {
                    let Entry { values, .. } = name.entry();
                    let arguments = [
                        (values[0].unwrap_or_else(|| FIRST.get()), Argument::Uint(a)),
                        (values[1].unwrap_or_else(|| SECOND.get()), Argument::Uint(b)),
                    ];
                    self.instant(on, time, name, &PROGRAM, &arguments);
                }
            }
        }
    }

    /// Notes the number of events of a thread lost so far. Returns how many of them are new.
    pub(crate) fn lost(&mut self, thread: usize, time: u64, lost: u64) -> u64 {
        let its = &mut self.threads[thread];
        let more = lost - its.lost;
        if more > 0 {
            its.lost = lost;
            let on = its.track;
            self.instant(on, time, LOST.get(), &PROGRAM, &[(COUNT.get(), Argument::Uint(more))]);
        }
        more
    }

    /// Returns the bytes that were encoded since the last call.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out.0)
    }

    pub(crate) fn len(&self) -> usize {
        self.out.0.len()
    }

    fn reason(number: u64) -> Vec<(Name, Argument)> {
        let name = Name::of_number(number);
        name.map(|name| (REASON.get(), Argument::Text(name.entry().text))).into_iter().collect()
    }

    fn started(&mut self, thread: usize, it: Event) {
        let its = &mut self.threads[thread];
        let slot = its.slots.iter().position(|is_used| !is_used).unwrap_or(its.slots.len());
        let track = its.track + 1 + slot as u64;
        let is_new = slot == its.slots.len();
        if is_new {
            its.slots.push(true);
        }
        its.slots[slot] = true;
        let operation = Operation {
            slot,
            way: way::PLAIN,
            is_inner_open: false,
            is_dropped: false,
            result: None,
        };
        if let Some(before) = its.operations.insert(it.id, operation) {
            its.slots[before.slot] = false; // its end was lost
        }
        if is_new {
            let parent = its.track;
            self.packet(None, 0, |message| {
                message.nested(packet::TRACK_DESCRIPTOR, |message| {
                    message.uint(track::UUID, track);
                    message.uint(track::PARENT, parent);
                    message.string(track::NAME, "operations");
                });
            });
        }
        let Queued { kind, fd, bytes } = Queued::unpack(it.a);
        let name = Name::of_number(kind.into()).unwrap_or_else(|| OPERATION.get());
        let arguments = [
            (OPERATION.get(), Argument::Uint(it.id)),
            (DESCRIPTOR.get(), Argument::Int(fd.into())),
            (BYTES.get(), Argument::Uint(bytes.into())),
            (TASK.get(), Argument::Uint(it.b)),
        ];
        self.begin_slice(track, it.time, name, &OPERATION, &arguments);
    }

    fn completed(&mut self, thread: usize, id: u64, time: u64, result: i64) {
        let its = &mut self.threads[thread];
        its.queued.retain(|queued| *queued != id);
        let Some(operation) = its.operations.get_mut(&id) else { return };
        operation.result = Some(result);
        let is_dropped = operation.is_dropped;
        self.close_inner(thread, id, time);
        if is_dropped {
            self.ended(thread, id, time);
        }
    }

    /// Ends the slice of an operation: it is over for the program.
    fn ended(&mut self, thread: usize, id: u64, time: u64) {
        self.close_inner(thread, id, time);
        let its = &mut self.threads[thread];
        let Some(operation) = its.operations.remove(&id) else { return };
        its.slots[operation.slot] = false;
        let track = its.track + 1 + operation.slot as u64;
        let mut arguments = vec![(WAY.get(), Argument::Text(operation.way.into()))];
        arguments.extend(operation.result.map(|result| (RESULT.get(), Argument::Int(result))));
        self.end_slice(track, time, &arguments);
    }

    fn system_call(&mut self, thread: usize, it: Event) {
        let (number, duration) = (it.id as u16, it.id >> 16);
        let begin = it.time.saturating_sub(duration);
        if u32::from(number) == system_calls::ENTER {
            for id in std::mem::take(&mut self.threads[thread].queued) {
                self.open_inner(thread, id, begin, &IN_KERNEL, &[]);
            }
        }
        let on = self.threads[thread].track;
        let name =
            *self.calls.entry(number).or_insert_with(|| match system_calls::name(number.into()) {
                Some(name) => Name::register(name),
                None => Name::register(&format!("system call {number}")),
            });
        let arguments = [
            (DESCRIPTOR.get(), Argument::Int(it.a as i32 as i64)),
            (RESULT.get(), Argument::Int(it.b as i64)),
        ];
        self.begin_slice(on, begin, name, &CALL, &arguments);
        self.end_slice(on, it.time, &[]);
    }

    fn track_of(&self, thread: usize, id: u64) -> Option<u64> {
        let its = &self.threads[thread];
        its.operations.get(&id).map(|operation| its.track + 1 + operation.slot as u64)
    }

    fn set_way(&mut self, thread: usize, id: u64, way: &'static str) {
        if let Some(operation) = self.threads[thread].operations.get_mut(&id) {
            operation.way = way;
        }
    }

    fn open_inner(
        &mut self,
        thread: usize,
        id: u64,
        time: u64,
        name: &StaticName,
        arguments: &[(Name, Argument)],
    ) {
        self.close_inner(thread, id, time);
        let Some(track) = self.track_of(thread, id) else { return };
        if let Some(operation) = self.threads[thread].operations.get_mut(&id) {
            operation.is_inner_open = true;
        }
        self.begin_slice(track, time, name.get(), &OPERATION, arguments);
    }

    fn close_inner(&mut self, thread: usize, id: u64, time: u64) {
        let operation = self.threads[thread].operations.get_mut(&id);
        if operation.is_some_and(|operation| std::mem::take(&mut operation.is_inner_open))
            && let Some(track) = self.track_of(thread, id)
        {
            self.end_slice(track, time, &[]);
        }
    }

    fn begin_slice(
        &mut self,
        on: u64,
        time: u64,
        name: Name,
        category: &StaticName,
        arguments: &[(Name, Argument)],
    ) {
        self.track_event(on, time, event::SLICE_BEGIN, Some((name, category)), arguments);
    }

    fn end_slice(&mut self, on: u64, time: u64, arguments: &[(Name, Argument)]) {
        self.track_event(on, time, event::SLICE_END, None, arguments);
    }

    fn instant(
        &mut self,
        on: u64,
        time: u64,
        name: Name,
        category: &StaticName,
        arguments: &[(Name, Argument)],
    ) {
        self.track_event(on, time, event::INSTANT, Some((name, category)), arguments);
    }

    fn track_event(
        &mut self,
        on: u64,
        time: u64,
        kind: u64,
        name: Option<(Name, &StaticName)>,
        arguments: &[(Name, Argument)],
    ) {
        if let Some((name, category)) = name {
            self.intern(interned::EVENT_NAMES, name);
            self.intern(interned::CATEGORIES, category.get());
        }
        for (name, _) in arguments {
            self.intern(interned::ANNOTATION_NAMES, *name);
        }
        self.packet(Some(time), packet::NEEDS_STATE, |message| {
            message.nested(packet::TRACK_EVENT, |message| {
                message.uint(event::TYPE, kind);
                message.uint(event::TRACK, on);
                if let Some((name, category)) = name {
                    message.uint(event::NAME_IID, iid(name));
                    message.uint(event::CATEGORY_IIDS, iid(category.get()));
                }
                for (name, value) in arguments {
                    message.nested(event::ANNOTATIONS, |message| {
                        message.uint(event::ANNOTATION_NAME_IID, iid(*name));
                        match value {
                            Argument::Uint(value) => message.uint(event::ANNOTATION_UINT, *value),
                            Argument::Int(value) => message.int(event::ANNOTATION_INT, *value),
                            Argument::Text(text) => message.string(event::ANNOTATION_STRING, text),
                        }
                    });
                }
            });
        });
    }

    fn intern(&mut self, field: u32, name: Name) {
        let number = name.number() as usize;
        if number >= self.known.len() {
            self.known.resize(number + 1, 0);
        }
        if self.known[number] & 1 << field == 0 {
            self.known[number] |= 1 << field;
            self.new.push((field, name));
        }
    }

    fn packet(&mut self, time: Option<u64>, flags: u64, fill: impl FnOnce(&mut Message)) {
        let (base, new) = (self.base, &mut self.new);
        self.out.nested(trace::PACKET, |message| {
            if let Some(time) = time {
                message.uint(packet::TIMESTAMP, base + time);
            }
            message.uint(packet::SEQUENCE, SEQUENCE);
            if flags != 0 {
                message.uint(packet::SEQUENCE_FLAGS, flags);
            }
            if !new.is_empty() {
                message.nested(packet::INTERNED_DATA, |message| {
                    for (field, name) in new.drain(..) {
                        message.nested(field, |message| {
                            message.uint(interned::IID, iid(name));
                            message.string(interned::NAME, &name.entry().text);
                        });
                    }
                });
            }
            fill(message);
        });
    }
}

/// Returns the identifier of an interned name. Identifiers begin with one.
fn iid(name: Name) -> u64 {
    u64::from(name.number()) + 1
}
