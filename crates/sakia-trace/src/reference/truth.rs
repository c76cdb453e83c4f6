//! The deeds of a program, noted step by step: the slices and moments that a reader must find.

use super::program::{
    Action, CALLS, FILE_SYSTEMS, HANDED_OVER, KINDS, NAMES, PLACES, REASONS, VALUES,
};
use crate::read::{Slice, Value};

/// All that was recorded.
#[derive(Debug, Default)]
pub(super) struct Truth {
    pub(super) threads: Vec<Thread>,
    /// The moments of the process.
    pub(super) of_process: Vec<Slice>,
    /// Events that found their buffer full, as far as the buffers were emptied since.
    pub(super) lost: u64,
    pub(super) handed_over: Option<[u64; 3]>,
}

#[derive(Debug, Default)]
pub(super) struct Thread {
    /// Its number among all threads of the program.
    pub(super) index: usize,
    /// In the order of their ends.
    pub(super) slices: Vec<Slice>,
    pub(super) moments: Vec<Slice>,
    pub(super) operations: Vec<Operation>,
    /// Moments of operations.
    pub(super) of_operations: Vec<Slice>,
    /// The most operations that were open at a time.
    pub(super) rows: usize,
    stack: Vec<Slice>,
    open: Vec<Operation>,
}

/// An operation, from its start to the moment at which the program has its result or has given it up.
#[derive(Clone, Debug, Default)]
pub(super) struct Operation {
    pub(super) id: u64,
    pub(super) kind: &'static str,
    pub(super) begin: u64,
    pub(super) end: Option<u64>,
    pub(super) fd: i64,
    pub(super) bytes: i64,
    pub(super) task: i64,
    pub(super) way: &'static str,
    pub(super) result: Option<i64>,
    pub(super) inner: Vec<Inner>,
    /// It was put into the queue, and no call submitted it since.
    is_queued: bool,
    is_dropped: bool,
}

/// Its time in the kernel, or on a lane's thread.
#[derive(Clone, Debug)]
pub(super) struct Inner {
    pub(super) begin: u64,
    pub(super) end: Option<u64>,
    /// The reason and the file system, for a lane.
    pub(super) lane: Option<[&'static str; 2]>,
}

pub(super) fn number(name: &str, value: u64) -> (String, Value) {
    (name.into(), Value::Number(value as i64))
}

fn text(name: &str, value: &str) -> Option<(String, Value)> {
    (!value.is_empty()).then(|| (name.into(), Value::Text(value.into())))
}

impl Truth {
    /// Notes an event of a thread, at a time of the monotonic clock.
    pub(super) fn note(&mut self, index: usize, time: u64, action: Action) {
        let at = self.threads.iter().position(|thread| thread.index == index);
        let at = at.unwrap_or_else(|| {
            self.threads.push(Thread { index, ..Thread::default() });
            self.threads.len() - 1
        });
        self.threads[at].note(time, action);
    }

    /// Notes a buffer that was emptied, and the events that it had no room for since the last time.
    pub(super) fn note_lost(&mut self, index: usize, time: u64, lost: u64) {
        let thread = self.threads.iter_mut().find(|thread| thread.index == index);
        if let Some(thread) = thread.filter(|_| lost > 0) {
            self.lost += lost;
            thread.moment("events lost", "recording", time, vec![number("count", lost)]);
        }
    }

    pub(super) fn note_sample(&mut self, time: u64, [faults, user, system, workers]: [u64; 4]) {
        let arguments = vec![
            number("page faults", faults),
            number("user ticks", user),
            number("system ticks", system),
            number("kernel workers", workers),
        ];
        self.of_process.push(piece("process", "recording", time, arguments));
        self.of_process.last_mut().expect("one").end = Some(time);
    }

    /// Notes what the tracepoint counted, at the end of the recording.
    pub(super) fn note_handed_over(&mut self, time: u64, counts: [u64; 3]) {
        self.handed_over = Some(counts);
        let mut arguments: Vec<_> = HANDED_OVER.iter().zip(counts).filter(|it| it.1 > 0).collect();
        arguments.sort();
        let arguments = arguments.into_iter().map(|(name, count)| number(name, count)).collect();
        let mut moment = piece("handed to kernel workers", "recording", time, arguments);
        moment.end = Some(time);
        self.of_process.push(moment);
    }

    /// Returns the last time of all slices and moments.
    pub(super) fn last(&self) -> u64 {
        self.times().max().unwrap_or(0)
    }

    /// Returns the first one.
    pub(super) fn first(&self) -> u64 {
        self.times().min().unwrap_or(0)
    }

    fn times(&self) -> impl Iterator<Item = u64> {
        let of = |slice: &Slice| [slice.begin, slice.end.unwrap_or(slice.begin)];
        let threads = self.threads.iter().flat_map(move |thread| {
            let slices = thread.slices.iter().chain(&thread.stack).chain(&thread.moments);
            let operations = thread.operations.iter().chain(&thread.open).flat_map(|it| {
                let whole = [it.begin, it.end.unwrap_or(it.begin)];
                let inner = it.inner.iter().flat_map(|it| [it.begin, it.end.unwrap_or(it.begin)]);
                whole.into_iter().chain(inner)
            });
            slices.chain(&thread.of_operations).flat_map(of).chain(operations)
        });
        threads.chain(self.of_process.iter().flat_map(of))
    }

    /// Notes the end of the file: what is open has no end.
    pub(super) fn finish(&mut self) {
        // The clocks of the threads that told of them differ.
        self.of_process.sort_by_key(|moment| moment.begin);
        for thread in &mut self.threads {
            thread.slices.extend(thread.stack.drain(..).rev());
            thread.operations.append(&mut thread.open);
            thread.operations.sort_by_key(|operation| operation.begin);
        }
    }
}

fn piece(name: &str, category: &str, begin: u64, arguments: Vec<(String, Value)>) -> Slice {
    Slice { name: name.into(), category: category.into(), begin, arguments, ..Slice::default() }
}

impl Thread {
    fn begin(&mut self, name: &str, category: &str, time: u64, arguments: Vec<(String, Value)>) {
        let depth = self.stack.len();
        self.stack.push(Slice { depth, ..piece(name, category, time, arguments) });
    }

    fn end(&mut self, time: u64, arguments: Vec<(String, Value)>) {
        let Some(mut slice) = self.stack.pop() else { return };
        slice.end = Some(time);
        slice.arguments.extend(arguments);
        self.slices.push(slice);
    }

    fn moment(&mut self, name: &str, category: &str, time: u64, arguments: Vec<(String, Value)>) {
        let depth = self.stack.len();
        let moment = piece(name, category, time, arguments);
        self.moments.push(Slice { depth, end: Some(time), ..moment });
    }

    fn find(&mut self, id: u64) -> Option<&mut Operation> {
        self.open.iter_mut().find(|operation| operation.id == id)
    }

    /// The operation is over for the program.
    fn over(&mut self, id: u64, time: u64) {
        let Some(at) = self.open.iter().position(|operation| operation.id == id) else { return };
        let mut operation = self.open.remove(at);
        operation.leave(time);
        operation.end = Some(time);
        self.operations.push(operation);
    }

    fn of_operation(&mut self, id: u64, name: &str, time: u64, arguments: Vec<(String, Value)>) {
        let Some(operation) = self.find(id) else { return };
        let is_inner = operation.inner.last().is_some_and(|inner| inner.end.is_none());
        let depth = 1 + usize::from(is_inner);
        let moment = piece(name, "operation", time, arguments);
        self.of_operations.push(Slice { depth, end: Some(time), ..moment });
    }

    fn note(&mut self, time: u64, action: Action) {
        match action {
            Action::Start { id, kind, fd, bytes, task } => {
                self.over(id, time);
                // Sizes of 512 KiB and more are in KiB.
                let bytes =
                    if bytes < 1 << 19 { bytes } else { (bytes >> 10).min((1 << 19) - 1) << 10 };
                self.open.push(Operation {
                    id,
                    kind: KINDS[kind],
                    begin: time,
                    fd: fd.into(),
                    bytes: bytes.into(),
                    task: task as i64,
                    way: "plain call",
                    ..Operation::default()
                });
                self.rows = self.rows.max(self.open.len());
            }
            Action::Submit(id) => {
                if let Some(operation) = self.find(id) {
                    (operation.way, operation.is_queued) = ("queue", true);
                }
            }
            Action::ToLane { id, reason, file_system } => {
                if let Some(operation) = self.find(id) {
                    (operation.way, operation.is_queued) = ("lane", false);
                    operation.leave(time);
                    let lane = Some([REASONS[reason], FILE_SYSTEMS[file_system]]);
                    operation.inner.push(Inner { begin: time, end: None, lane });
                }
            }
            Action::Delay(id) => {
                let reason = text("reason", REASONS[3]).into_iter().collect();
                self.of_operation(id, "delayed", time, reason);
            }
            Action::Complete(id, result) => {
                if let Some(operation) = self.find(id) {
                    operation.is_queued = false;
                    operation.leave(time);
                    operation.result = Some(result);
                    if operation.is_dropped {
                        self.over(id, time);
                    }
                }
            }
            Action::Resume(id) => self.over(id, time),
            Action::Drop { id, is_detached } => {
                if !is_detached {
                    self.of_operation(id, "dropped", time, Vec::new());
                }
                if let Some(operation) = self.find(id) {
                    operation.is_dropped = true;
                    if operation.result.is_some() {
                        self.over(id, time);
                    }
                }
            }
            Action::Call { call, lasts, first, result } => {
                let begin = time - lasts;
                if CALLS[call].0 == "io_uring_enter" {
                    for operation in &mut self.open {
                        if std::mem::take(&mut operation.is_queued) {
                            operation.leave(begin);
                            operation.inner.push(Inner { begin, end: None, lane: None });
                        }
                    }
                }
                let arguments = vec![
                    number("descriptor", i64::from(first as i32) as u64),
                    number("result", result as u64),
                ];
                self.begin(CALLS[call].0, "system call", begin, arguments);
                self.end(time, Vec::new());
            }
            Action::TurnBegins(entries) => {
                let arguments = vec![
                    number("to submit", entries),
                    number("in flight", 4),
                    number("may sleep", 1),
                ];
                self.begin("turn", "turn", time, arguments);
            }
            Action::TurnEnds(finished) => self.end(time, vec![number("finished", finished)]),
            Action::Spawn { task, place } => {
                let mut arguments = vec![number("task", task), number("parent", 2)];
                arguments.extend(text("place", PLACES[place]));
                self.moment("task spawned", "task", time, arguments);
            }
            Action::PollBegins(task) => {
                self.begin("task runs", "task", time, vec![number("task", task)]);
            }
            Action::PollEnds(_, has_ended) => {
                self.end(time, vec![number("has ended", has_ended.into())]);
            }
            Action::ScopeBegins(scope) => {
                self.moment(
                    "scope begins",
                    "scope",
                    time,
                    vec![number("scope", scope), number("task", 3)],
                );
            }
            Action::ScopeEnds(scope) => {
                self.moment(
                    "scope ends",
                    "scope",
                    time,
                    vec![number("scope", scope), number("task", 3)],
                );
            }
            Action::SpanBegins(name) => self.begin(NAMES[name], "span", time, Vec::new()),
            Action::SpanEnds(_) => self.end(time, Vec::new()),
            Action::Moment { name, values: [a, b] } => {
                let [first, second] = names_of_values(name).unwrap_or(["a", "b"]);
                self.moment(
                    NAMES[name],
                    "program",
                    time,
                    vec![number(first, a), number(second, b)],
                );
            }
            Action::Recording { .. }
            | Action::Sample(..)
            | Action::Drain
            | Action::HandedOver(_) => {}
        }
    }
}

/// Returns the names of a moment's values, if it was registered with some.
pub(super) fn names_of_values(name: usize) -> Option<[&'static str; 2]> {
    (name > 0).then(|| VALUES[name % VALUES.len()])
}

impl Operation {
    /// It leaves the kernel, or the lane.
    fn leave(&mut self, time: u64) {
        if let Some(inner) = self.inner.last_mut() {
            inner.end = inner.end.or(Some(time));
        }
    }

    /// Returns its slice, and those within it.
    pub(super) fn slices(&self) -> Vec<Slice> {
        let mut arguments = vec![
            number("operation", self.id),
            number("descriptor", self.fd as u64),
            number("bytes", self.bytes as u64),
            number("task", self.task as u64),
        ];
        if self.end.is_some() {
            arguments.extend(text("way", self.way));
            arguments.extend(self.result.map(|result| number("result", result as u64)));
        }
        let inner = self.inner.iter().map(|inner| {
            let name = if inner.lane.is_some() { "on a lane thread" } else { "in the kernel" };
            let [reason, file_system] = inner.lane.unwrap_or_default();
            let arguments = [text("reason", reason), text("file system", file_system)];
            let arguments = arguments.into_iter().flatten().collect();
            let its = piece(name, "operation", inner.begin, arguments);
            Slice { depth: 1, end: inner.end, ..its }
        });
        let mut slices: Vec<Slice> = inner.collect();
        let whole = piece(self.kind, "operation", self.begin, arguments);
        slices.push(Slice { end: self.end, ..whole });
        slices
    }
}
