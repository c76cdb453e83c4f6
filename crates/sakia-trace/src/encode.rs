//! Conversion of events to packets of Perfetto's format.
//!
//! Each thread has a track with its turns, tasks, system calls and spans. Its operations are on tracks of
//! their own, as many as were ever in flight at a time: a slice from the start of an operation to the moment
//! at which the program takes the result, and in it a slice for the time in the kernel or on a lane's thread.
//!
//! The [shape](Shape) of each type of event is in a table, and all are written by the same code.

use crate::event::Queued;
use crate::event_packet::{ARGUMENTS_MAX, EventPacket, Form, SEQUENCE};
use crate::in_flight::{InFlight, Operation};
use crate::protobuf::Message;
use crate::schema::{clock, defaults, event, interned, packet, trace, track};
use crate::{Event, EventType, Name, StaticName};
use crate::{sample, system_calls};

/// The track of the process.
const PROCESS_TRACK: u64 = 1;
/// The track of its samples.
pub(crate) const SAMPLES_TRACK: u64 = 2;

macro_rules! names {
    ($($name:ident $text:expr,)*) => {
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
    FILE_SYSTEM "file system",
    IN_FLIGHT "in flight",
    TO_SUBMIT "to submit",
    FINISHED "finished",
    MAY_SLEEP "may sleep",
    PARENT "parent",
    PLACE "place",
    HAS_ENDED "has ended",
    COUNT "count",
    SCOPE_BEGINS "scope begins",
    SCOPE_ENDS "scope ends",
    FIRST "a",
    SECOND "b",
    PLAIN way::PLAIN,
    QUEUE way::QUEUE,
    LANE way::LANE,
}

/// Values of the argument `way`: how an operation was done.
pub(crate) mod way {
    pub(crate) const PLAIN: &str = "plain call";
    pub(crate) const QUEUE: &str = "queue";
    pub(crate) const LANE: &str = "lane";
}

/// A type of event in the file.
#[derive(Debug)]
struct Shape {
    /// Of the schema's types.
    kind: u64,
    /// Its name, if all such events have one name; the end of a slice has none.
    name: Option<&'static StaticName>,
    category: &'static StaticName,
    /// In the order of the values. A [`Form::Text`] is the number of a name here.
    arguments: &'static [(&'static StaticName, Form)],
}

macro_rules! shapes {
    ($($shape:ident: $kind:ident $name:expr, $category:ident, [$($argument:ident $form:ident),*];)*) => {
        $(static $shape: Shape = Shape {
            kind: event::$kind,
            name: $name,
            category: &$category,
            arguments: &[$((&$argument, Form::$form)),*],
        };)*
    };
}

shapes! {
    STARTED: SLICE_BEGIN None, OPERATION, [OPERATION Uint, DESCRIPTOR Int, BYTES Uint, TASK Uint];
    KERNEL_HAS_IT: SLICE_BEGIN Some(&IN_KERNEL), OPERATION, [];
    LANE_HAS_IT: SLICE_BEGIN Some(&ON_LANE), OPERATION, [REASON Text, FILE_SYSTEM Text];
    IS_DELAYED: INSTANT Some(&DELAYED), OPERATION, [REASON Text];
    IS_DROPPED: INSTANT Some(&DROPPED), OPERATION, [];
    TAKEN: SLICE_END None, OPERATION, [WAY Text, RESULT Int];
    ENDED: SLICE_END None, OPERATION, [];
    TURN_BEGINS: SLICE_BEGIN Some(&TURN), TURN, [TO_SUBMIT Uint, IN_FLIGHT Uint, MAY_SLEEP Uint];
    TURN_ENDS: SLICE_END None, TURN, [FINISHED Uint];
    SPAWNED: INSTANT Some(&TASK_SPAWNED), TASK, [TASK Uint, PARENT Uint, PLACE Text];
    TASK_RUNS: SLICE_BEGIN Some(&POLL), TASK, [TASK Uint];
    TASK_RETURNS: SLICE_END None, TASK, [HAS_ENDED Uint];
    SCOPE_BEGUN: INSTANT Some(&SCOPE_BEGINS), SCOPE, [SCOPE Uint, TASK Uint];
    SCOPE_ENDED: INSTANT Some(&SCOPE_ENDS), SCOPE, [SCOPE Uint, TASK Uint];
    SPAN_BEGUN: SLICE_BEGIN None, SPAN, [];
    ARE_LOST: INSTANT Some(&LOST), PROGRAM, [COUNT Uint];
}

/// An argument of an event.
#[derive(Clone, Copy, Debug)]
struct Argument {
    name: Name,
    form: Form,
    value: u64,
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
    /// The numbers of the names of system calls and one, or zero, by the calls' numbers.
    calls: Vec<u32>,
    /// Names that the next packet brings.
    new: Vec<(u32, Name)>,
    /// Names that were registered when it was last looked: no number below is unknown.
    registered: u64,
    /// Nanoseconds of `CLOCK_MONOTONIC` at which the recording began.
    base: u64,
}

#[derive(Debug)]
struct Thread {
    track: u64,
    operations: InFlight,
    /// In the queue since the last call that submits.
    queued: Vec<u64>,
    lost: u64,
}

impl Encoder {
    /// Begins a file: clocks and the process.
    pub(crate) fn begin(&mut self, pid: u32, name: &str, clocks: [u64; 3]) {
        self.base = clocks[1];
        self.packet(packet::STATE_CLEARED, |message| {
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
        self.packet(0, |message| {
            message.nested(packet::TRACK_DESCRIPTOR, |message| {
                message.uint(track::UUID, PROCESS_TRACK);
                message.nested(track::PROCESS, |message| {
                    message.uint(track::PROCESS_PID, pid.into());
                    message.string(track::PROCESS_NAME, name);
                });
            });
        });
        self.track(SAMPLES_TRACK, PROCESS_TRACK, sample::NAME);
    }

    /// Adds numbers of the whole process.
    pub(crate) fn sample(&mut self, time: u64, values: &sample::Values) {
        let arguments = values.map(|(name, value)| {
            let name = Name::register(name);
            Argument { name, form: Form::Uint, value }
        });
        let name = Name::register(sample::NAME);
        let names = Some([name, PROGRAM.get()]);
        self.track_event(SAMPLES_TRACK, time, event::INSTANT, names, &arguments);
    }

    /// Adds a thread. Returns its index.
    pub(crate) fn thread(&mut self, info: &ThreadInfo) -> usize {
        let index = self.threads.len();
        let track = (index as u64 + 1) << 32;
        let operations = InFlight::default();
        self.threads.push(Thread { track, operations, queued: Vec::new(), lost: 0 });
        self.packet(0, |message| {
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
        let Event { time, id, a, b, .. } = it;
        let (shape, name, values) = match it.kind {
            EventType::SystemCall => return self.system_call(thread, it),
            EventType::Queued => return self.started(thread, it),
            EventType::Submitted => {
                if self.set_way(thread, id, &QUEUE) {
                    self.threads[thread].queued.push(id);
                }
                return;
            }
            EventType::ToLane => {
                self.set_way(thread, id, &LANE);
                return self.open_inner(thread, id, time, &LANE_HAS_IT, &[a, b]);
            }
            EventType::Delayed => {
                if let Some(track) = self.track_of(thread, id) {
                    self.shaped(track, time, &IS_DELAYED, None, &[a]);
                }
                return;
            }
            EventType::Completed => return self.completed(thread, id, time, a as i64),
            EventType::Resumed => return self.ended(thread, id, time),
            EventType::Dropped => return self.dropped(thread, id, time, a == 0),
            EventType::Registered => return self.registered(thread, it),
            EventType::SpanBegin => match self.name(id) {
                Some(name) => (&SPAN_BEGUN, Some(name), [0; 3]),
                None => return,
            },
            EventType::SpanEnd => (&ENDED, None, [0; 3]),
            EventType::TurnBegin => (&TURN_BEGINS, None, [id, a, b]),
            EventType::TurnEnd => (&TURN_ENDS, None, [id, 0, 0]),
            EventType::TaskSpawned => (&SPAWNED, None, [id, a, b]),
            EventType::PollBegin => (&TASK_RUNS, None, [id, 0, 0]),
            EventType::PollEnd => (&TASK_RETURNS, None, [a, 0, 0]),
            EventType::ScopeBegin => (&SCOPE_BEGUN, None, [id, a, 0]),
            EventType::ScopeEnd => (&SCOPE_ENDED, None, [id, a, 0]),
        };
        self.shaped(self.threads[thread].track, time, shape, name, &values);
    }

    /// Notes the number of events of a thread lost so far. Returns how many of them are new.
    pub(crate) fn lost(&mut self, thread: usize, time: u64, lost: u64) -> u64 {
        let its = &mut self.threads[thread];
        let more = lost - its.lost;
        if more > 0 {
            its.lost = lost;
            let on = its.track;
            self.shaped(on, time, &ARE_LOST, None, &[more]);
        }
        more
    }

    /// Returns the bytes that were encoded since the last [`clear`](Encoder::clear).
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.out.0
    }

    /// Forgets these bytes. Their memory is used again.
    pub(crate) fn clear(&mut self) {
        self.out.0.clear();
    }

    fn started(&mut self, thread: usize, it: Event) {
        // Its end was lost, if there is one.
        self.ended(thread, it.id, it.time);
        let its = &mut self.threads[thread];
        let way = PLAIN.get().number();
        let operation =
            Operation { id: it.id, way, is_inner_open: false, is_dropped: false, result: None };
        let (row, is_new) = its.operations.insert(operation);
        let (parent, track) = (its.track, its.track + 1 + row as u64);
        if is_new {
            self.track(track, parent, "operations");
        }
        let Queued { kind, fd, bytes } = Queued::unpack(it.a);
        let name = self.name(kind.into()).unwrap_or_else(|| OPERATION.get());
        let values = [it.id, i64::from(fd) as u64, bytes.into(), it.b];
        self.shaped(track, it.time, &STARTED, Some(name), &values);
    }

    fn completed(&mut self, thread: usize, id: u64, time: u64, result: i64) {
        let its = &mut self.threads[thread];
        if let Some(at) = its.queued.iter().position(|queued| *queued == id) {
            its.queued.swap_remove(at);
        }
        let Some(row) = its.operations.find(id) else { return };
        let operation = its.operations.get(row);
        operation.result = Some(result);
        let is_dropped = operation.is_dropped;
        self.close_inner(thread, id, time);
        if is_dropped {
            self.ended(thread, id, time);
        }
    }

    fn dropped(&mut self, thread: usize, id: u64, time: u64, is_told: bool) {
        let Some(track) = self.track_of(thread, id) else { return };
        if is_told {
            self.shaped(track, time, &IS_DROPPED, None, &[]);
        }
        let its = &mut self.threads[thread];
        let Some(row) = its.operations.find(id) else { return };
        let operation = its.operations.get(row);
        operation.is_dropped = true;
        if operation.result.is_some() {
            self.ended(thread, id, time);
        }
    }

    /// Ends the slice of an operation: it is over for the program.
    fn ended(&mut self, thread: usize, id: u64, time: u64) {
        self.close_inner(thread, id, time);
        let its = &mut self.threads[thread];
        let Some((row, operation)) = its.operations.remove(id) else { return };
        let track = its.track + 1 + row as u64;
        let values = [operation.way.into(), operation.result.unwrap_or(0) as u64];
        let count = if operation.result.is_some() { 2 } else { 1 };
        self.shaped(track, time, &TAKEN, None, &values[..count]);
    }

    fn system_call(&mut self, thread: usize, it: Event) {
        let (number, duration) = (usize::from(it.id as u16), it.id >> 16);
        let begin = it.time.saturating_sub(duration);
        if number == system_calls::ENTER as usize {
            for id in std::mem::take(&mut self.threads[thread].queued) {
                self.open_inner(thread, id, begin, &KERNEL_HAS_IT, &[]);
            }
        }
        let name = match self.calls.get(number).and_then(|number| number.checked_sub(1)) {
            Some(name) => Name::from_number(name),
            None => self.name_of_call(number),
        };
        // A copy's recording has little else: no look at a shape, and none at names that the file has.
        let on = self.threads[thread].track;
        let mut call = EventPacket::new(self.base + begin, event::SLICE_BEGIN, on);
        call.names(iid(name), iid(CALL.get()));
        call.argument(iid(DESCRIPTOR.get()), Form::Int, it.a as i32 as i64 as u64);
        call.argument(iid(RESULT.get()), Form::Int, it.b);
        self.out.0.extend_from_slice(call.finish());
        let mut end = EventPacket::new(self.base + it.time, event::SLICE_END, on);
        self.out.0.extend_from_slice(end.finish());
    }

    /// Returns the name of a system call, which the file has from now on with the others of the event.
    #[cold]
    #[inline(never)]
    fn name_of_call(&mut self, number: usize) -> Name {
        let name = match system_calls::name(number as u32) {
            Some(name) => Name::register(name),
            None => Name::register(&format!("system call {number}")),
        };
        if number >= self.calls.len() {
            self.calls.resize(number + 1, 0);
        }
        self.calls[number] = name.number() + 1;
        self.intern(interned::EVENT_NAMES, name);
        self.intern(interned::CATEGORIES, CALL.get());
        self.intern(interned::ANNOTATION_NAMES, DESCRIPTOR.get());
        self.intern(interned::ANNOTATION_NAMES, RESULT.get());
        if !self.new.is_empty() {
            self.bring_names();
        }
        name
    }

    fn registered(&mut self, thread: usize, it: Event) {
        let Some(name) = self.name(it.id) else { return };
        let [first, second] = name.values();
        let argument = |name: Option<Name>, otherwise: &StaticName, value| {
            let name = name.unwrap_or_else(|| otherwise.get());
            Argument { name, form: Form::Uint, value }
        };
        let arguments = [argument(first, &FIRST, it.a), argument(second, &SECOND, it.b)];
        let on = self.threads[thread].track;
        self.track_event(on, it.time, event::INSTANT, Some([name, PROGRAM.get()]), &arguments);
    }

    fn track_of(&self, thread: usize, id: u64) -> Option<u64> {
        let its = &self.threads[thread];
        its.operations.find(id).map(|row| its.track + 1 + row as u64)
    }

    /// Returns whether there is such an operation.
    fn set_way(&mut self, thread: usize, id: u64, way: &StaticName) -> bool {
        let operations = &mut self.threads[thread].operations;
        let row = operations.find(id);
        if let Some(row) = row {
            operations.get(row).way = way.get().number();
        }
        row.is_some()
    }

    fn open_inner(&mut self, thread: usize, id: u64, time: u64, shape: &Shape, values: &[u64]) {
        self.close_inner(thread, id, time);
        let its = &mut self.threads[thread];
        let Some(row) = its.operations.find(id) else { return };
        its.operations.get(row).is_inner_open = true;
        let track = its.track + 1 + row as u64;
        self.shaped(track, time, shape, None, values);
    }

    fn close_inner(&mut self, thread: usize, id: u64, time: u64) {
        let its = &mut self.threads[thread];
        let Some(row) = its.operations.find(id) else { return };
        if std::mem::take(&mut its.operations.get(row).is_inner_open) {
            let track = its.track + 1 + row as u64;
            self.track_event(track, time, event::SLICE_END, None, &[]);
        }
    }

    /// Returns the name of this number, if there is one.
    fn name(&mut self, number: u64) -> Option<Name> {
        if number >= self.registered {
            self.registered = Name::count();
        }
        (number < self.registered).then(|| Name::from_number(number as u32))
    }

    /// Adds an event of a shape. `name` is for one whose shape has none.
    #[inline(never)]
    fn shaped(&mut self, on: u64, time: u64, shape: &Shape, name: Option<Name>, values: &[u64]) {
        let name = name.or_else(|| shape.name.map(StaticName::get));
        let mut arguments =
            [Argument { name: Name::NONE, form: Form::Uint, value: 0 }; ARGUMENTS_MAX];
        let mut count = 0;
        for ((name, form), &value) in shape.arguments.iter().zip(values) {
            if *form != Form::Text || self.name(value).is_some() {
                arguments[count] = Argument { name: name.get(), form: *form, value };
                count += 1;
            }
        }
        let names = name.map(|name| [name, shape.category.get()]);
        self.track_event(on, time, shape.kind, names, &arguments[..count]);
    }

    #[inline(never)]
    fn track_event(
        &mut self,
        on: u64,
        time: u64,
        kind: u64,
        names: Option<[Name; 2]>,
        arguments: &[Argument],
    ) {
        let mut event = EventPacket::new(self.base + time, kind, on);
        if let Some([name, category]) = names {
            self.intern(interned::EVENT_NAMES, name);
            self.intern(interned::CATEGORIES, category);
            event.names(iid(name), iid(category));
        }
        for Argument { name, form, value } in arguments {
            self.intern(interned::ANNOTATION_NAMES, *name);
            let mut value = *value;
            if *form == Form::Text {
                let text = Name::from_number(value as u32);
                self.intern(interned::TEXTS, text);
                value = iid(text).into();
            }
            event.argument(iid(*name), *form, value);
        }
        if !self.new.is_empty() {
            self.bring_names();
        }
        self.out.0.extend_from_slice(event.finish());
    }

    #[inline(always)]
    fn intern(&mut self, field: u32, name: Name) {
        // The fields differ in their three lowest bits.
        let bit = 1 << (field % 8);
        if self.known.get(name.number() as usize).is_none_or(|known| known & bit == 0) {
            self.intern_new(field, bit, name);
        }
    }

    #[cold]
    #[inline(never)]
    fn intern_new(&mut self, field: u32, bit: u8, name: Name) {
        let number = name.number() as usize;
        if number >= self.known.len() {
            self.known.resize(number + 1, 0);
        }
        self.known[number] |= bit;
        self.new.push((field, name));
    }

    /// Adds a packet with the names that the next event has.
    #[cold]
    #[inline(never)]
    fn bring_names(&mut self) {
        let new = std::mem::take(&mut self.new);
        self.packet(packet::NEEDS_STATE, |message| {
            message.nested(packet::INTERNED_DATA, |message| {
                for (field, name) in new {
                    message.nested(field, |message| {
                        message.uint(interned::IID, iid(name).into());
                        message.string(interned::NAME, &name.text());
                    });
                }
            });
        });
    }

    /// Adds a track.
    #[inline(never)]
    fn track(&mut self, uuid: u64, parent: u64, name: &str) {
        self.packet(0, |message| {
            message.nested(packet::TRACK_DESCRIPTOR, |message| {
                message.uint(track::UUID, uuid);
                message.uint(track::PARENT, parent);
                message.string(track::NAME, name);
            });
        });
    }

    fn packet(&mut self, flags: u64, fill: impl FnOnce(&mut Message)) {
        self.out.nested(trace::PACKET, |message| {
            message.uint(packet::SEQUENCE, SEQUENCE);
            if flags != 0 {
                message.uint(packet::SEQUENCE_FLAGS, flags);
            }
            fill(message);
        });
    }
}

/// Identifiers of interned names begin with one.
fn iid(name: Name) -> u32 {
    name.number() + 1
}
