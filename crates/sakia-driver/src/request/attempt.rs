//! Requests that end at once: on the thread that has them, or not at all.

use std::ffi::CStr;
use std::io::{self, IoSlice};

use super::{Answer, Buffer, FileHandle, Named, Outcome, Request, Target, Value};
use crate::buf::{IoBuf, IoBufMut};
use crate::decide::limits;
use crate::file_calls::FileCalls;
use crate::ops::{OpenHow, StatxResult};
use sakia_ring::CURRENT_POSITION;

impl Request {
    /// Performs the request on the calling thread, which may be any, if that needs no wait: a read or a write
    /// of up to 256 KiB, at an offset, of a file handle and memory, and a look at a path that the kernel's
    /// caches have, or an open of it, as [`FileHandle::try_stat_at`] and [`FileHandle::try_open`]. Otherwise
    /// the request comes back.
    ///
    /// # Examples
    /// ```
    /// use sakia_driver::{FileHandle, Request};
    ///
    /// let file = FileHandle::new(std::fs::File::open("Cargo.toml")?);
    /// match Request::read(&file, vec![0; 9].into(), 0).attempt(1) {
    ///     Ok(outcome) => assert_eq!(outcome.into_vec().unwrap(), b"[package]"),
    ///     Err(request) => println!("a loop or a queue has to perform {request:?}"),
    /// }
    /// # std::io::Result::Ok(())
    /// ```
    pub fn attempt(self, token: u64) -> Result<Outcome, Self> {
        let is_plain = |buffer: &Buffer, offset| {
            buffer.bytes_room() <= limits::CALLER_BYTES && offset < CURRENT_POSITION
        };
        match self {
            Self::Read { file: Target(Named::File(file)), mut buffer, offset }
                if is_plain(&buffer, offset) && buffer.bytes_room() > 0 =>
            {
                match read(&file, &mut buffer, offset) {
                    Some(result) => Ok(outcome(token, (result, buffer).into())),
                    None => Err(Self::read(file, buffer, offset)),
                }
            }
            Self::Write { file: Target(Named::File(file)), buffer, offset }
                if is_plain(&buffer, offset) =>
            {
                match write(&file, &buffer, offset) {
                    Some(result) => Ok(outcome(token, (result, buffer).into())),
                    None => Err(Self::write(file, buffer, offset)),
                }
            }
            Self::Stat { directory, path, flags } => match stat(&directory, path.as_deref(), flags)
            {
                Some(result) => Ok(outcome(token, result.into())),
                None => Err(Self::Stat { directory, path, flags }),
            },
            Self::Open { directory, path, how } => match open(&directory, &path, how) {
                Some(result) => Ok(outcome(token, result.into())),
                None => Err(Self::Open { directory, path, how }),
            },
            other => Err(other),
        }
    }

    /// Returns the outcome of a request that is not performed. It has the memory of the request.
    ///
    /// # Examples
    /// ```
    /// use std::io::{Error, ErrorKind};
    ///
    /// use sakia_driver::{FileHandle, Request};
    ///
    /// let file = FileHandle::new(std::fs::File::open("Cargo.toml")?);
    /// let outcome = Request::read(&file, vec![7; 3].into(), 0).refuse(1, ErrorKind::OutOfMemory.into());
    /// assert!(outcome.result.is_err());
    /// assert_eq!(outcome.into_vec().unwrap(), [7; 3]);
    /// # std::io::Result::Ok(())
    /// ```
    pub fn refuse(self, token: u64, error: io::Error) -> Outcome {
        let value = match self {
            Self::Read { buffer, .. }
            | Self::Write { buffer, .. }
            | Self::Send { buffer, .. }
            | Self::Receive { buffer, .. }
            | Self::SendMessage { buffer, .. }
            | Self::ReceiveMessage { buffer, .. }
            | Self::ReadLink { buffer, .. }
            | Self::ReadDirectory { buffer, .. } => Value::Buffer(buffer),
            Self::ReadVectored { buffers, .. } | Self::WriteVectored { buffers, .. } => {
                Value::Buffers(buffers)
            }
            _ => Value::None,
        };
        Outcome { token, more: false, result: Err(error), value }
    }
}

/// Returns the status of a path, or of `directory` itself. `None` if that may take a wait.
fn stat(
    directory: &Option<Target>,
    path: Option<&CStr>,
    flags: u32,
) -> Option<io::Result<StatxResult>> {
    match (handle(directory)?, path) {
        (directory, Some(path)) => FileHandle::try_stat_at(directory, path, flags),
        (Some(file), None) => file.try_stat(),
        (None, None) => None, // an error of the operation
    }
}

/// Opens a path. `None` if that may take a wait.
fn open(directory: &Option<Target>, path: &CStr, how: OpenHow) -> Option<io::Result<FileHandle>> {
    FileHandle::try_open(handle(directory)?, path, how)
}

/// Returns the handle of a directory, if one is given. `None` if it is a number, for which no thread but
/// that of its loop calls.
fn handle(directory: &Option<Target>) -> Option<Option<&FileHandle>> {
    match directory {
        None => Some(None),
        Some(Target(Named::File(file))) => Some(Some(file)),
        Some(Target(Named::Number(_))) => None,
    }
}

fn outcome(token: u64, answer: Answer) -> Outcome {
    let Answer { result, value } = answer;
    Outcome { token, more: false, result, value }
}

/// Reads all that `pread(2)` would return. `None` if that may take a wait.
fn read(file: &FileHandle, buffer: &mut Buffer, offset: u64) -> Option<io::Result<usize>> {
    file.with_calls(|fd, calls| {
        let is_empty = buffer.bytes_len() == 0;
        let room = buffer.bytes_room();
        let result = calls.read_into(fd, buffer, room, Some(offset))?;
        if let Ok(count) = result
            && count < room
            && FileCalls::has_more(fd, Some(offset.saturating_add(count as u64)))
        {
            if let Buffer::Vector(bytes) = buffer
                && is_empty
            {
                bytes.clear(); // its capacity is the room of the whole read
            }
            return None;
        }
        Some(result)
    })
}

/// Writes all bytes. `None` if that may take a wait; some may be written then, and are written again.
fn write(file: &FileHandle, buffer: &Buffer, offset: u64) -> Option<io::Result<usize>> {
    file.with_calls(|fd, calls| {
        let bytes = buffer.as_bytes();
        let result = calls.write(fd, &[IoSlice::new(bytes)], Some(offset))?;
        let is_short = matches!(result, Ok(count) if count < bytes.len());
        (!is_short).then_some(result)
    })
}
