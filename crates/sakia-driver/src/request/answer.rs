//! The answers to requests: outputs of operations of any type as values of one type.

use std::io;

use super::{Buffer, FileHandle, Value};
use crate::address::SocketAddress;
use crate::buf::BufResult;
use crate::fd::Fd;
use crate::ops::{PollEvents, Received, ReceivedControl, StatfsResult, StatxResult};

/// An [outcome](super::Outcome) without its token.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) result: io::Result<usize>,
    pub(crate) value: Value,
}

impl Answer {
    /// The answer of a descriptor that an operation has just made.
    pub(crate) fn file(fd: Fd) -> Self {
        Self { result: Ok(0), value: Value::File(handle_of(fd)) }
    }

    /// The answer of an operation without memory.
    #[inline(always)]
    pub(crate) fn number(result: io::Result<usize>) -> Self {
        Self { result, value: Value::None }
    }

    fn of<T>(result: io::Result<T>, value: impl FnOnce(T) -> Value) -> Self {
        match result {
            Ok(output) => Self { result: Ok(0), value: value(output) },
            Err(error) => Self::number(Err(error)),
        }
    }
}

/// Implemented for the outputs of operations that requests name.
pub(crate) trait IntoAnswer {
    fn into_answer(self) -> Answer;
}

impl IntoAnswer for io::Result<()> {
    #[inline(always)]
    fn into_answer(self) -> Answer {
        Answer::number(self.map(|()| 0))
    }
}

impl IntoAnswer for io::Result<usize> {
    fn into_answer(self) -> Answer {
        Answer::number(self)
    }
}

impl IntoAnswer for BufResult<usize, Buffer> {
    #[inline(always)]
    fn into_answer(self) -> Answer {
        Answer { result: self.0, value: Value::Buffer(self.1) }
    }
}

impl IntoAnswer for BufResult<usize, Vec<u8>> {
    fn into_answer(self) -> Answer {
        Answer { result: self.0, value: Value::Buffer(Buffer::Vec(self.1)) }
    }
}

impl IntoAnswer for BufResult<usize, Vec<Buffer>> {
    fn into_answer(self) -> Answer {
        Answer { result: self.0, value: Value::Buffers(self.1) }
    }
}

impl IntoAnswer for BufResult<(Received, ReceivedControl), Buffer> {
    fn into_answer(self) -> Answer {
        match self.0 {
            Ok(message) => {
                let result = Ok(message.0.len);
                Answer { result, value: Value::Message(Box::new(message), self.1) }
            }
            Err(error) => Answer { result: Err(error), value: Value::Buffer(self.1) },
        }
    }
}

impl IntoAnswer for io::Result<PollEvents> {
    fn into_answer(self) -> Answer {
        Answer::number(self.map(|events| events.0 as usize))
    }
}

impl IntoAnswer for io::Result<StatxResult> {
    fn into_answer(self) -> Answer {
        Answer::of(self, |stat| Value::Stat(Box::new(stat)))
    }
}

impl IntoAnswer for io::Result<StatfsResult> {
    fn into_answer(self) -> Answer {
        Answer::of(self, |facts| Value::StatFs(Box::new(facts)))
    }
}

impl IntoAnswer for io::Result<Fd> {
    fn into_answer(self) -> Answer {
        Answer::of(self, |fd| Value::File(handle_of(fd)))
    }
}

impl IntoAnswer for io::Result<(Fd, SocketAddress)> {
    fn into_answer(self) -> Answer {
        Answer::of(self, |(fd, peer)| Value::Connection(Box::new((handle_of(fd), peer))))
    }
}

/// Returns the handle of a file that an operation has just made.
fn handle_of(fd: Fd) -> FileHandle {
    let owned = fd.into_owned();
    FileHandle::from(owned.expect("a new descriptor of the driver's own has one user"))
}
