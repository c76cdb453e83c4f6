//! Inspections and warnings in words.

use std::fmt;
use std::time::Duration;

use sakia_driver::{Doing, DriverStatus, Lane, OperationState, TaskOrigin};

use super::{Inspection, Operation, Setting, ThreadInspection, Warning};

/// A time with its significant digits only.
struct Short(Duration);

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs_f64();
        match seconds {
            10.0.. => write!(f, "{seconds:.0} s"),
            1.0.. => write!(f, "{seconds:.1} s"),
            0.001.. => write!(f, "{:.0} ms", seconds * 1e3),
            _ => write!(f, "{:.0} us", seconds * 1e6),
        }
    }
}

struct Task(TaskOrigin);

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task {}, spawned at {}", self.0.number, self.0.spawned_at)
    }
}

fn lane(lane: Lane) -> &'static str {
    match lane {
        Lane::Bounded => "bounded",
        Lane::Elastic => "elastic",
    }
}

fn state(state: OperationState) -> &'static str {
    match state {
        OperationState::Plain => "as a plain call",
        OperationState::Parked => "waits for the descriptor's other users",
        OperationState::Delayed => "delayed",
        OperationState::Queued => "queued",
        OperationState::Submitted => "submitted",
        OperationState::Lane(Lane::Bounded) => "on the bounded lane",
        OperationState::Lane(Lane::Elastic) => "on the elastic lane",
        OperationState::Readiness => "waits in epoll",
        OperationState::Lost => "lost",
        _ => "unknown",
    }
}

/// An operation's kind, descriptor and path.
struct Subject<'a>(&'a Operation);

impl fmt::Display for Subject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(operation) = self;
        f.write_str(operation.kind.name())?;
        if let Some(descriptor) = operation.descriptor {
            write!(f, " of descriptor {descriptor}")?;
        }
        match &operation.path_now {
            // Escaped: a file's name may be anything, and the text goes to terminals.
            Some(path) => write!(f, " ({}, as of now)", path.display().to_string().escape_debug()),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Operation {
    /// Writes one line: the operation, its object, its stage, its age, and its task.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", Subject(self), state(self.state))?;
        if self.is_cancel_asked {
            f.write_str(", cancel asked")?;
        }
        if self.is_orphan {
            f.write_str(", orphan")?;
        }
        if let Some(age) = self.age {
            write!(f, ", for {}", Short(age))?;
        }
        self.task.map_or(Ok(()), |task| write!(f, ": {}", Task(task)))
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {} ({})", self.name, self.value, self.source)?;
        self.granted.as_ref().map_or(Ok(()), |granted| write!(f, ": {granted}"))
    }
}

struct Status<'a>(&'a DriverStatus);

impl fmt::Display for Status<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(s) = self;
        writeln!(
            f,
            "  queues: {} of {} entries pending, {} of {} completions ready, {} overflows",
            s.sq_pending, s.sq_entries, s.cq_ready, s.cq_entries, s.overflows_total
        )?;
        writeln!(
            f,
            "  admission: {} in flight, {} wait, {} of {} credits left, {} of {} to cancel",
            s.in_flight,
            s.backlog,
            s.credits,
            s.credits_max,
            s.cancel_credits,
            s.cancel_credits_max
        )?;
        writeln!(
            f,
            "  buffers: pool {}, of which {} with the kernel and {} free; arena {}, of which {} free",
            s.pool_buffers, s.pool_provided, s.pool_free, s.arena_blocks, s.arena_free
        )?;
        for (name, threads, most, queued, running) in [
            (
                "bounded",
                s.bounded_threads,
                s.bounded_threads_max,
                s.bounded_queued,
                s.bounded_running,
            ),
            (
                "elastic",
                s.elastic_threads,
                s.elastic_threads_max,
                s.elastic_queued,
                s.elastic_running,
            ),
        ] {
            writeln!(
                f,
                "  {name} lane: {threads} of {most} threads, {running} operations run, {queued} wait"
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for ThreadInspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "thread {}", self.number)?;
        if let Some(id) = self.thread_id {
            write!(f, " ({id})")?;
        }
        f.write_str(": ")?;
        match self.doing {
            Some(Doing::Task(task)) => write!(f, "runs {}", Task(task))?,
            Some(Doing::Outside) => f.write_str("is outside of the runtime")?,
            Some(Doing::Loop) => f.write_str("is between tasks")?,
            Some(Doing::Asleep) => f.write_str("sleeps")?,
            Some(Doing::Ended) => f.write_str("has ended")?,
            None if self.is_recorded => f.write_str("changes too fast to be read")?,
            Some(_) | None => {
                f.write_str("not recorded: use Builder::inspection or SAKIA_INSPECT=1")?;
            }
        }
        if let Some(time) = self.doing_for {
            write!(f, ", for {}", Short(time))?;
        }
        writeln!(f)?;
        if let Some(status) = &self.status {
            write!(f, "{}", Status(status))?;
        }
        for operation in &self.operations {
            writeln!(f, "  {operation}")?;
        }
        if self.unread > 0 {
            writeln!(f, "  {} operations changed too fast to be read", self.unread)?;
        }
        Ok(())
    }
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for setting in &self.configuration {
            writeln!(f, "{setting}")?;
        }
        if self.closures > 0 {
            writeln!(f, "closures of spawn_blocking that have not ended: {}", self.closures)?;
        }
        self.threads.iter().try_for_each(|thread| write!(f, "{thread}"))
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Turn { thread, took, polls, longest, call } => {
                match longest {
                    None => write!(f, "the driver of thread {thread} took {}", Short(*took))?,
                    Some((task, longest)) => {
                        write!(f, "tasks kept thread {thread} for {}", Short(*took))?;
                        write!(f, " in {polls} polls, ")?;
                        write!(f, "the longest of {}: {}", Short(*longest), Task(*task))?;
                    }
                }
                let Some(call) = call else { return Ok(()) };
                write!(f, "; of that, {} in a plain {}", Short(call.took), call.kind.name())?;
                call.descriptor.map_or(Ok(()), |raw| write!(f, " of descriptor {raw}"))
            }
            Self::Operation { thread, operation } => {
                write!(f, "an operation of thread {thread} has not ended: {operation}")
            }
            Self::Lane { thread, lane: which, operation } => {
                let which = lane(*which);
                write!(
                    f,
                    "a thread of the {which} lane of thread {thread} is occupied: {operation}"
                )
            }
        }
    }
}
