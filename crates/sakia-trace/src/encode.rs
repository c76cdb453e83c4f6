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
    CALL category::CALL,
    TURN category::TURN,
    TASK category::TASK,
    SCOPE "scope",
    SPAN "span",
    PROGRAM "program",
    RECORDING category::RECORDING,
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
    PROCESS sample::NAME,
    FAULTS sample::FAULTS,
    USER sample::USER,
    SYSTEM sample::SYSTEM,
    WORKERS sample::WORKERS,
}

/// Categories by which events are known that have a name as the program's own may have.
pub(crate) mod category {
    pub(crate) const CALL: &str = "system call";
    pub(crate) const TURN: &str = "turn";
    pub(crate) const TASK: &str = "task";
    /// Facts about the recording itself and about the process.
    pub(crate) const RECORDING: &str = "recording";
}

/// Values of the argument `way`: how an operation was done.
pub(crate) mod way {
    pub(crate) const PLAIN: &str = "plain call";
    pub(crate) const QUEUE: &str = "queue";
    pub(crate) const LANE: &str = "lane";
}

/// Numbers of an event, from which its shape's arguments take theirs.
type Values = [u64; 4];

/// A type of event in the file.
#[derive(Debug)]
struct Shape {
    /// Of the schema's types.
    kind: u64,
    /// Its name, if all such events have one name; the end of a slice has none.
    name: Option<&'static StaticName>,
    category: &'static StaticName,
    /// Name, form and place in the [`Values`]. A [`Form::Text`] is the number of a name there.
    arguments: &'static [(&'static StaticName, Form, u8)],
}

macro_rules! shapes {
    ($($shape:ident: $kind:ident $name:expr, $category:ident,
       [$($argument:ident $form:ident $at:literal),*];)*) => {
        $(static $shape: Shape = Shape {
            kind: event::$kind,
            name: $name,
            category: &$category,
            arguments: &[$((&$argument, Form::$form, $at)),*],
        };)*
    };
}

// Events that are written as they are have the values `id`, `a` and `b`.
shapes! {
    STARTED: SLICE_BEGIN None, OPERATION, [OPERATION Uint 0, DESCRIPTOR Int 1, BYTES Uint 2, TASK Uint 3];
    KERNEL_HAS_IT: SLICE_BEGIN Some(&IN_KERNEL), OPERATION, [];
    LANE_HAS_IT: SLICE_BEGIN Some(&ON_LANE), OPERATION, [REASON Text 1, FILE_SYSTEM Text 2];
    IS_DELAYED: INSTANT Some(&DELAYED), OPERATION, [REASON Text 1];
    IS_DROPPED: INSTANT Some(&DROPPED), OPERATION, [];
    TAKEN: SLICE_END None, OPERATION, [WAY Text 0, RESULT Int 1];
    WITHOUT_RESULT: SLICE_END None, OPERATION, [WAY Text 0];
    ENDED: SLICE_END None, PROGRAM, [];
    TURN_BEGINS: SLICE_BEGIN Some(&TURN), TURN, [TO_SUBMIT Uint 0, IN_FLIGHT Uint 1, MAY_SLEEP Uint 2];
    TURN_ENDS: SLICE_END None, TURN, [FINISHED Uint 0];
    SPAWNED: INSTANT Some(&TASK_SPAWNED), TASK, [TASK Uint 0, PARENT Uint 1, PLACE Text 2];
    TASK_RUNS: SLICE_BEGIN Some(&POLL), TASK, [TASK Uint 0];
    TASK_RETURNS: SLICE_END None, TASK, [HAS_ENDED Uint 1];
    SCOPE_BEGUN: INSTANT Some(&SCOPE_BEGINS), SCOPE, [SCOPE Uint 0, TASK Uint 1];
    SCOPE_ENDED: INSTANT Some(&SCOPE_ENDS), SCOPE, [SCOPE Uint 0, TASK Uint 1];
    SPAN_BEGUN: SLICE_BEGIN None, SPAN, [];
    ARE_LOST: INSTANT Some(&LOST), RECORDING, [COUNT Uint 0];
    SAMPLED: INSTANT Some(&PROCESS), RECORDING,
        [FAULTS Uint 0, USER Uint 1, SYSTEM Uint 2, WORKERS Uint 3];
}

/// An argument of an event.
#[derive(Clone, Copy, Debug)]
struct Argument {
    name: Name,
    form: Form,
    value: u64,
}

/// The thread whose events follow.
#[derive(Debug)]
pub(crate) struct ThreadInfo {
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    pub(crate) name: String,
}

/// Turns events into packets.
#[derive(Debug, Default)]
pub(crate) struct Encoder {
    out: Message,
    /// Threads so far.
    threads: u64,
    /// Names that the file has: those of lower numbers.
    named: u32,
    /// Nanoseconds of `CLOCK_MONOTONIC` at which the recording began.
    base: u64,
}

/// A thread as its events so far left it.
#[derive(Debug)]
pub(crate) struct Thread {
    track: u64,
    operations: InFlight,
    /// The operations [in the queue](Operation::is_queued).
    queued: Vec<u64>,
    lost: u64,
}

/// The process or thread that a track is of.
struct Owner<'a> {
    /// The field of the track's descriptor, and the field of the name in it.
    fields: [u32; 2],
    /// Numbers by their field.
    numbers: &'a [(u32, u32)],
}

impl Encoder {
    /// Makes an encoder of events since `base`, in nanoseconds of `CLOCK_MONOTONIC`.
    pub(crate) fn new(base: u64) -> Self {
        Self { base, ..Self::default() }
    }

    /// Begins a file: the process, and what `CLOCK_REALTIME` and `CLOCK_BOOTTIME` were at the begin.
    pub(crate) fn begin(&mut self, pid: u32, name: &str, [realtime, boottime]: [u64; 2]) {
        let base = self.base;
        self.packet(packet::STATE_CLEARED, |message| {
            message.uint(packet::FIRST_ON_SEQUENCE, 1);
            message.nested(packet::TRACE_PACKET_DEFAULTS, |message| {
                message.uint(defaults::TIMESTAMP_CLOCK, clock::MONOTONIC);
            });
            message.nested(packet::CLOCK_SNAPSHOT, |message| {
                add_clock(message, clock::REALTIME, realtime);
                add_clock(message, clock::MONOTONIC, base);
                add_clock(message, clock::BOOTTIME, boottime);
            });
        });
        let numbers = &[(track::PROCESS_PID, pid)];
        let process = Owner { fields: [track::PROCESS, track::PROCESS_NAME], numbers };
        self.track(PROCESS_TRACK, 0, Some(process), name);
        self.track(SAMPLES_TRACK, PROCESS_TRACK, None, sample::NAME);
    }

    /// Adds numbers of the whole process.
    pub(crate) fn sample(&mut self, time: u64, values: &sample::Values) {
        self.shaped(SAMPLES_TRACK, time, &SAMPLED, None, values);
    }

    /// Adds a thread.
    #[inline(never)]
    pub(crate) fn thread(&mut self, info: &ThreadInfo) -> Thread {
        self.threads += 1;
        let track = self.threads << 32;
        let numbers = &[(track::THREAD_PID, info.pid), (track::THREAD_TID, info.tid)];
        let owner = Owner { fields: [track::THREAD, track::THREAD_NAME], numbers };
        self.track(track, PROCESS_TRACK, Some(owner), &info.name);
        Thread { track, operations: InFlight::default(), queued: Vec::new(), lost: 0 }
    }

    /// Adds an event of a thread; each thread's come in the order in which it recorded them.
    pub(crate) fn event(&mut self, thread: &mut Thread, it: Event) {
        let mut name = None;
        let shape = match it.kind {
            EventType::SystemCall => return self.system_call(thread, it),
            EventType::Queued => return self.started(thread, it),
            EventType::Submitted
            | EventType::ToLane
            | EventType::Delayed
            | EventType::Completed
            | EventType::Resumed
            | EventType::Dropped => return self.operation(thread, it),
            EventType::Registered => return self.registered(thread, it),
            EventType::SpanBegin => {
                name = self.name(it.id);
                if name.is_none() {
                    return;
                }
                &SPAN_BEGUN
            }
            EventType::SpanEnd => &ENDED,
            EventType::TurnBegin => &TURN_BEGINS,
            EventType::TurnEnd => &TURN_ENDS,
            EventType::TaskSpawned => &SPAWNED,
            EventType::PollBegin => &TASK_RUNS,
            EventType::PollEnd => &TASK_RETURNS,
            EventType::ScopeBegin => &SCOPE_BEGUN,
            EventType::ScopeEnd => &SCOPE_ENDED,
        };
        self.shaped(thread.track, it.time, shape, name, &values(it));
    }

    /// Notes the number of events of a thread lost so far. Returns how many of them are new.
    pub(crate) fn lost(&mut self, thread: &mut Thread, time: u64, lost: u64) -> u64 {
        let more = lost - thread.lost;
        if more > 0 {
            thread.lost = lost;
            self.shaped(thread.track, time, &ARE_LOST, None, &[more, 0, 0, 0]);
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

    fn started(&mut self, thread: &mut Thread, it: Event) {
        // Its end was lost, if there is one.
        self.ended(thread, it.id, it.time);
        let way = PLAIN.get().number();
        let operation = Operation { id: it.id, way, ..Operation::default() };
        let (row, is_new) = thread.operations.insert(operation);
        let track = thread.track_of(row);
        if is_new {
            self.track(track, thread.track, None, "operations");
        }
        let Queued { kind, fd, bytes } = Queued::unpack(it.a);
        let name = self.name(kind.into()).unwrap_or_else(|| OPERATION.get());
        let values = [it.id, i64::from(fd) as u64, bytes.into(), it.b];
        self.shaped(track, it.time, &STARTED, Some(name), &values);
    }

    /// Adds an event of an operation that was started.
    fn operation(&mut self, thread: &mut Thread, it: Event) {
        let Event { time, kind, id, a, .. } = it;
        let Some(row) = thread.operations.find(id) else { return };
        let track = thread.track_of(row);
        let operation = thread.operations.get(row);
        let mut is_over = false;
        match kind {
            EventType::Submitted => {
                operation.way = QUEUE.get().number();
                if !std::mem::replace(&mut operation.is_queued, true) {
                    thread.queued.push(id);
                }
            }
            EventType::ToLane => {
                leave_queue(&mut thread.queued, operation);
                operation.way = LANE.get().number();
                self.inner(track, operation, time, Some((&LANE_HAS_IT, &values(it))));
            }
            EventType::Delayed => self.shaped(track, time, &IS_DELAYED, None, &values(it)),
            EventType::Completed => {
                leave_queue(&mut thread.queued, operation);
                operation.result = Some(a as i64);
                is_over = operation.is_dropped;
                self.inner(track, operation, time, None);
            }
            EventType::Dropped => {
                operation.is_dropped = true;
                is_over = operation.result.is_some();
                if a == 0 {
                    self.shaped(track, time, &IS_DROPPED, None, &[0; 4]);
                }
            }
            _ => is_over = true,
        }
        if is_over {
            self.ended(thread, id, time);
        }
    }

    /// Ends the slice of an operation, if there is one: it is over for the program.
    #[inline(never)]
    fn ended(&mut self, thread: &mut Thread, id: u64, time: u64) {
        let Some((row, mut operation)) = thread.operations.remove(id) else { return };
        let track = thread.track_of(row);
        leave_queue(&mut thread.queued, &mut operation);
        self.inner(track, &mut operation, time, None);
        let (shape, result) = match operation.result {
            Some(result) => (&TAKEN, result),
            None => (&WITHOUT_RESULT, 0),
        };
        self.shaped(track, time, shape, None, &[operation.way.into(), result as u64, 0, 0]);
    }

    /// Ends the slice within an operation's, if one is open, and begins the next one.
    #[inline(never)]
    fn inner(
        &mut self,
        track: u64,
        operation: &mut Operation,
        time: u64,
        next: Option<(&Shape, &Values)>,
    ) {
        if std::mem::replace(&mut operation.is_inner_open, next.is_some()) {
            self.shaped(track, time, &ENDED, None, &[0; 4]);
        }
        if let Some((shape, values)) = next {
            self.shaped(track, time, shape, None, values);
        }
    }

    fn system_call(&mut self, thread: &mut Thread, it: Event) {
        let (number, duration) = (it.id as u16, it.id >> 16);
        let begin = it.time.saturating_sub(duration);
        if u32::from(number) == system_calls::ENTER {
            for id in thread.queued.drain(..) {
                if let Some(row) = thread.operations.find(id) {
                    let (track, operation) =
                        (thread.track + 1 + row as u64, thread.operations.get(row));
                    operation.is_queued = false;
                    self.inner(track, operation, begin, Some((&KERNEL_HAS_IT, &[0; 4])));
                }
            }
        }
        // A copy's recording has little else: no look at a shape.
        let arguments = [
            Argument { name: DESCRIPTOR.get(), form: Form::Int, value: it.a as i32 as i64 as u64 },
            Argument { name: RESULT.get(), form: Form::Int, value: it.b },
        ];
        let names = Some([system_calls::name(number), CALL.get()]);
        self.track_event(thread.track, begin, event::SLICE_BEGIN, names, &arguments);
        self.track_event(thread.track, it.time, event::SLICE_END, None, &[]);
    }

    fn registered(&mut self, thread: &mut Thread, it: Event) {
        let Some(name) = self.name(it.id) else { return };
        let [first, second] = name.values();
        let argument = |name: Option<Name>, otherwise: &StaticName, value| {
            let name = name.unwrap_or_else(|| otherwise.get());
            Argument { name, form: Form::Uint, value }
        };
        let arguments = [argument(first, &FIRST, it.a), argument(second, &SECOND, it.b)];
        let names = Some([name, PROGRAM.get()]);
        self.track_event(thread.track, it.time, event::INSTANT, names, &arguments);
    }

    /// Returns the name of this number, if there is one. The file has it then.
    #[inline(never)]
    fn name(&mut self, number: u64) -> Option<Name> {
        if number >= self.named.into() {
            self.write_names();
        }
        (number < self.named.into()).then(|| Name::from_number(number as u32))
    }

    /// Adds an event of a shape. `name` is for one whose shape has none.
    #[inline(never)]
    fn shaped(&mut self, on: u64, time: u64, shape: &Shape, name: Option<Name>, values: &Values) {
        let name = name.or_else(|| shape.name.map(StaticName::get));
        let mut arguments =
            [Argument { name: Name::NONE, form: Form::Uint, value: 0 }; ARGUMENTS_MAX];
        let mut count = 0;
        for ((name, form, at), argument) in shape.arguments.iter().zip(&mut arguments) {
            let value = values[usize::from(*at) % values.len()];
            *argument = Argument { name: name.get(), form: *form, value };
            count += 1;
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
            event.names(self.iid(name), self.iid(category));
        }
        for Argument { name, form, value } in arguments {
            let mut value = *value;
            if *form == Form::Text {
                // A file system may have no name.
                let Some(text) = self.name(value) else { continue };
                value = iid(text).into();
            }
            event.argument(self.iid(*name), *form, value);
        }
        self.out.0.extend_from_slice(event.finish());
    }

    /// Returns the identifier of a name, which the file has then.
    #[inline(always)]
    fn iid(&mut self, name: Name) -> u32 {
        if name.number() >= self.named {
            self.write_names();
        }
        iid(name)
    }

    /// Adds a packet with all names that were registered since the last one, for each of their uses: a
    /// program has few, and events need no look at which of them the file has.
    #[cold]
    #[inline(never)]
    fn write_names(&mut self) {
        let (first, begin) = (self.named, self.out.0.len());
        let mut count = first;
        self.packet(packet::NEEDS_STATE, |message| {
            message.nested(packet::INTERNED_DATA, |message| {
                Name::each_from(first, |name, text| {
                    add_name(message, &interned::FIELDS, name, text);
                    count = name.number() + 1;
                });
            });
        });
        if count == first {
            self.out.0.truncate(begin);
        }
        self.named = count;
    }

    /// Adds a track; `parent` is zero for none.
    #[inline(never)]
    fn track(&mut self, uuid: u64, parent: u64, owner: Option<Owner<'_>>, name: &str) {
        self.packet(0, |message| {
            message.nested(packet::TRACK_DESCRIPTOR, |message| {
                message.uint(track::UUID, uuid);
                if parent != 0 {
                    message.uint(track::PARENT, parent);
                }
                let Some(Owner { fields: [field, name_field], numbers }) = owner else {
                    return message.string(track::NAME, name);
                };
                message.nested(field, |message| {
                    for (field, number) in numbers {
                        message.uint(*field, (*number).into());
                    }
                    message.string(name_field, name);
                });
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

impl Thread {
    /// Returns the track of the operation in a row.
    fn track_of(&self, row: usize) -> u64 {
        self.track + 1 + row as u64
    }
}

/// An operation is no longer in the queue: no call will submit it.
#[inline(never)]
fn leave_queue(queued: &mut Vec<u64>, operation: &mut Operation) {
    if std::mem::take(&mut operation.is_queued)
        && let Some(at) = queued.iter().position(|queued| *queued == operation.id)
    {
        queued.swap_remove(at);
    }
}

/// The values of an event that is written as it is.
fn values(it: Event) -> Values {
    [it.id, it.a, it.b, 0]
}

#[inline(never)]
fn add_clock(message: &mut Message, id: u64, time: u64) {
    message.nested(clock::CLOCKS, |message| {
        message.uint(clock::ID, id);
        message.uint(clock::TIMESTAMP, time);
    });
}

/// Adds a name to each of the fields.
#[inline(never)]
fn add_name(message: &mut Message, fields: &[u32], name: Name, text: &str) {
    for &field in fields {
        message.nested(field, |message| {
            message.uint(interned::IID, iid(name).into());
            message.string(interned::NAME, text);
        });
    }
}

/// Identifiers of interned names begin with one.
fn iid(name: Name) -> u32 {
    name.number() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_no_name_has_is_no_name() {
        let mut encoder = Encoder::new(0);
        Name::register("the last one");
        for _ in 0..3 {
            let number = u64::from(encoder.named);
            // Other tests register names at the same time.
            assert_eq!(encoder.name(number).is_some(), number < u64::from(encoder.named));
        }
    }
}
