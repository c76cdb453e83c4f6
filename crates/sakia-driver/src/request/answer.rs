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

impl From<io::Result<()>> for Answer {
    #[inline(always)]
    fn from(output: io::Result<()>) -> Self {
        Self::number(output.map(|()| 0))
    }
}

impl From<io::Result<usize>> for Answer {
    fn from(output: io::Result<usize>) -> Self {
        Self::number(output)
    }
}

impl From<BufResult<usize, Buffer>> for Answer {
    #[inline(always)]
    fn from(output: BufResult<usize, Buffer>) -> Self {
        Self { result: output.0, value: Value::Buffer(output.1) }
    }
}

impl From<BufResult<usize, Vec<Buffer>>> for Answer {
    fn from(output: BufResult<usize, Vec<Buffer>>) -> Self {
        Self { result: output.0, value: Value::Buffers(output.1) }
    }
}

impl From<BufResult<(Received, ReceivedControl), Buffer>> for Answer {
    fn from(output: BufResult<(Received, ReceivedControl), Buffer>) -> Self {
        match output.0 {
            Ok((message, control)) => {
                let (result, control) = (Ok(message.len), control.map(handle_of));
                Self { result, value: Value::Message(Box::new((message, control)), output.1) }
            }
            Err(error) => Self { result: Err(error), value: Value::Buffer(output.1) },
        }
    }
}

impl From<io::Result<PollEvents>> for Answer {
    fn from(output: io::Result<PollEvents>) -> Self {
        Self::number(output.map(|events| events.0 as usize))
    }
}

impl From<io::Result<StatxResult>> for Answer {
    fn from(output: io::Result<StatxResult>) -> Self {
        Self::of(output, |stat| Value::Stat(Box::new(stat)))
    }
}

impl From<io::Result<StatfsResult>> for Answer {
    fn from(output: io::Result<StatfsResult>) -> Self {
        Self::of(output, |facts| Value::StatFs(Box::new(facts)))
    }
}

impl From<io::Result<FileHandle>> for Answer {
    fn from(output: io::Result<FileHandle>) -> Self {
        Self::of(output, Value::File)
    }
}

impl From<io::Result<Fd>> for Answer {
    fn from(output: io::Result<Fd>) -> Self {
        Self::of(output, |fd| Value::File(handle_of(fd)))
    }
}

impl From<io::Result<(Fd, SocketAddress)>> for Answer {
    fn from(output: io::Result<(Fd, SocketAddress)>) -> Self {
        Self::of(output, |(fd, peer)| Value::Connection(Box::new((handle_of(fd), peer))))
    }
}

/// Returns the handle of a file that an operation has just made.
fn handle_of(fd: Fd) -> FileHandle {
    let owned = fd.into_owned();
    FileHandle::new(owned.expect("a new descriptor of the driver's own has one user"))
}
