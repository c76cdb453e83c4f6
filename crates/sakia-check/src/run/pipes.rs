//! Pipes: what is sent comes out, in order and whole, whoever drops what.

use rustix::io::Errno;
use sakia_driver::sim::FaultKind;
use sakia_driver::{CURRENT_POSITION, Fd, PollEvents, ShutdownHow};

use super::files::{known_errors, text};
use super::transfers::brought;
use super::{BLOCK_BYTES, Check, Role, Runner, pick};
use crate::env::Env;
use crate::held::{Output, Pending, pending};
use crate::program::{End, Memory, Parting};
use crate::stats::Fate;
use crate::stream::Stream;

/// Starts a receive that loses nothing when dropped: into so many bytes of its own, or of whatever has come.
pub(super) type Receiver = Box<dyn Fn(Option<usize>) -> Box<dyn Pending>>;

/// More than comes at a time.
const PIECE_MAX: usize = 1 << 20;

/// A pipe of the program.
pub(crate) struct PipeModel {
    reader: Option<Fd>,
    writer: Option<Fd>,
    /// What receives, in place of single operations on the descriptor.
    receiver: Option<Receiver>,
    /// There is, or was, such a one.
    loses_nothing: bool,
    stream: Stream,
    /// A write, or a read, has begun and may not be over. A second would make the order uncertain.
    sending: Activity,
    receiving: Activity,
    /// Bytes that a read whose handle was dropped may take.
    lost_max: usize,
    /// The end was closed, not only dropped: what is under way there is canceled.
    is_reader_closed: bool,
    is_writer_closed: bool,
    /// It is one direction of a connection.
    is_socket: bool,
    /// Nothing can be said about it any more.
    pub(crate) is_spoiled: bool,
}

/// Whether something is under way in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Activity {
    #[default]
    None,
    Held,
    GivenUp,
}

impl Activity {
    fn settle(&mut self) {
        if *self == Self::GivenUp {
            *self = Self::None;
        }
    }
}

/// What an operation on a pipe is to do.
pub(crate) enum PipeRole {
    Send { pipe: usize, segment: usize, bytes: Vec<u8> },
    Receive { pipe: usize, len: usize },
    Poll { pipe: usize, end: End },
}

impl PipeRole {
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Send { .. } => "pipe write",
            Self::Receive { .. } => "pipe read",
            Self::Poll { .. } => "poll",
        }
    }

    pub(crate) fn pipe(&self) -> usize {
        match *self {
            Self::Send { pipe, .. } | Self::Receive { pipe, .. } | Self::Poll { pipe, .. } => pipe,
        }
    }

    fn end(&self) -> End {
        match *self {
            Self::Send { .. } => End::Write,
            Self::Receive { .. } => End::Read,
            Self::Poll { end, .. } => end,
        }
    }
}

impl PipeModel {
    /// The program does not want to know how an operation ends.
    pub(crate) fn give_up(&mut self, role: &PipeRole) {
        match *role {
            PipeRole::Send { .. } => self.sending = Activity::GivenUp,
            // The next one may begin at once, and finds all that this one leaves.
            PipeRole::Receive { .. } if self.loses_nothing => self.receiving = Activity::None,
            PipeRole::Receive { len, .. } => {
                self.receiving = Activity::GivenUp;
                self.lost_max = len;
            }
            PipeRole::Poll { .. } => {}
        }
    }

    /// What was given up is over.
    pub(crate) fn settle(&mut self) {
        if self.receiving == Activity::GivenUp {
            self.stream.maybe_received(self.lost_max);
        }
        self.sending.settle();
        self.receiving.settle();
    }

    /// Drops both ends.
    pub(crate) fn part_with_ends(&mut self) {
        self.reader = None;
        self.receiver = None;
        self.writer = None;
    }

    fn end(&self, end: End) -> Option<&Fd> {
        match end {
            End::Read => self.reader.as_ref(),
            End::Write => self.writer.as_ref(),
        }
    }

    /// With what operations on a connection may fail: its other side, or the network, has ended it.
    fn errors_of_connection(&self, is_reset: bool) -> &'static [Errno] {
        let is_ended = self.reader.is_none() || self.writer.is_none() || is_reset;
        if self.is_socket && is_ended { &[Errno::PIPE, Errno::CONNRESET] } else { &[] }
    }

    fn is_closed(&self, end: End) -> bool {
        match end {
            End::Read => self.is_reader_closed,
            End::Write => self.is_writer_closed,
        }
    }
}

impl<E: Env> Runner<'_, E> {
    pub(super) fn make_pipe(&mut self) -> Check {
        let ends = self.env.pipe(&self.driver).map_err(|error| format!("no pipe: {error}"))?;
        if let Some((reader, writer)) = ends {
            self.add_stream(reader, None, writer, false);
        }
        Ok(())
    }

    /// Adds a stream with these ends.
    pub(super) fn add_stream(
        &mut self,
        reader: Fd,
        receiver: Option<Receiver>,
        writer: Fd,
        is_socket: bool,
    ) {
        self.pipes.push(PipeModel {
            reader: Some(reader),
            writer: Some(writer),
            loses_nothing: receiver.is_some(),
            receiver,
            stream: Stream::default(),
            sending: Activity::None,
            receiving: Activity::None,
            lost_max: 0,
            is_reader_closed: false,
            is_writer_closed: false,
            is_socket,
            // Bytes that were sent are lost when the connection is reset.
            is_spoiled: is_socket && self.has(FaultKind::Reset),
        });
    }

    fn pick_pipe(&self, number: u8) -> Option<usize> {
        pick(number.into(), self.pipes.len())
    }

    pub(super) fn send(&mut self, number: u8, len: u16, memory: Memory) {
        let Some(pipe) = self.pick_pipe(number) else { return };
        let Some(fd) = self.pipes[pipe].writer.clone() else { return };
        if self.pipes[pipe].sending != Activity::None {
            return;
        }
        let is_socket = self.pipes[pipe].is_socket;
        let block = self.block(memory).filter(|_| !is_socket);
        let len = if block.is_some() { BLOCK_BYTES } else { usize::from(len) };
        let bytes = text(self.started + 1, len);
        let segment = self.pipes[pipe].stream.begin(bytes.clone());
        self.pipes[pipe].sending = Activity::Held;
        let op = if is_socket {
            let op = self.driver.send(&fd, self.env.buffer(bytes.clone()), 0);
            pending(op, |(result, buf)| Output::Bytes(result, buf.to_vec()))
        } else {
            self.start_write(&fd, CURRENT_POSITION, bytes.clone(), memory, block)
        };
        self.hold(Role::Pipe(PipeRole::Send { pipe, segment, bytes }), op);
    }

    pub(super) fn receive(&mut self, number: u8, len: u16, memory: Memory) {
        let Some(pipe) = self.pick_pipe(number) else { return };
        let Some(fd) = self.pipes[pipe].reader.clone() else { return };
        if self.pipes[pipe].receiving != Activity::None {
            return;
        }
        let (len, op) = if let Some(receiver) = &self.pipes[pipe].receiver {
            let len = Some(usize::from(len)).filter(|_| memory == Memory::Vector);
            (len.unwrap_or(PIECE_MAX), receiver(len))
        } else if self.pipes[pipe].is_socket {
            let is_capacity = self.fills_capacity();
            let op = self.driver.recv(&fd, self.room(len.into()), 0);
            let read = move |(result, buf): (_, E::Buf)| brought(is_capacity, result, buf.to_vec());
            (len.into(), pending(op, read))
        } else {
            self.start_read(&fd, CURRENT_POSITION, len.into(), memory)
        };
        self.pipes[pipe].receiving = Activity::Held;
        self.hold(Role::Pipe(PipeRole::Receive { pipe, len }), op);
    }

    pub(super) fn poll_pipe(&mut self, number: u8, end: End) {
        let Some(pipe) = self.pick_pipe(number) else { return };
        let Some(fd) = self.pipes[pipe].end(end) else { return };
        let events = match end {
            End::Read => PollEvents::READABLE,
            End::Write => PollEvents::WRITABLE,
        };
        let op = pending(self.driver.poll(fd, events), Output::Ready);
        self.hold(Role::Pipe(PipeRole::Poll { pipe, end }), op);
    }

    pub(super) fn close_pipe(&mut self, number: u8, end: End, parting: Parting) {
        let Some(pipe) = self.pick_pipe(number) else { return };
        let its = &mut self.pipes[pipe];
        let fd = match end {
            End::Read => {
                its.receiver = None;
                its.reader.take()
            }
            End::Write => its.writer.take(),
        };
        let Some(fd) = fd else { return };
        if parting == Parting::Drop || its.is_socket && end == End::Read {
            return;
        }
        match end {
            End::Read => its.is_reader_closed = true,
            End::Write => its.is_writer_closed = true,
        }
        for held in &self.held {
            if let Role::Pipe(role) = &held.role
                && (role.pipe(), role.end()) == (pipe, end)
            {
                self.stats.fate(role.kind(), Self::moment(held), Fate::Closed);
            }
        }
        let op = if self.pipes[pipe].is_socket {
            pending(self.driver.shutdown_socket(&fd, ShutdownHow::Sends), Output::Done)
        } else {
            pending(self.driver.close(fd), Output::Done)
        };
        self.hold(Role::Close, op);
    }

    /// An operation on a pipe ended.
    pub(super) fn end_pipe(&mut self, role: PipeRole, is_canceled: bool, output: Output) -> Check {
        let pipe = role.pipe();
        let is_spoiled = self.pipes[pipe].is_spoiled;
        let mut known = known_errors(self.pipes[pipe].is_closed(role.end())).to_vec();
        known.extend(self.pipes[pipe].errors_of_connection(self.has(FaultKind::Reset)));
        match (role, output) {
            (PipeRole::Poll { .. }, Output::Ready(result)) => match result {
                Ok(_) => Ok(()),
                Err(error) => self.excuse(&error, is_canceled, &known),
            },
            (PipeRole::Send { segment, bytes, .. }, Output::Bytes(result, buffer)) => {
                let its = &mut self.pipes[pipe];
                its.sending = Activity::None;
                if buffer != bytes {
                    return Err("the buffer came back with other bytes".to_owned());
                }
                let count = *result.as_ref().unwrap_or(&0);
                let has_reader = its.reader.is_some();
                let ended = its.stream.sent(segment, count);
                match result {
                    Ok(count) if count > bytes.len() || count == 0 && !bytes.is_empty() => {
                        Err(format!("{count} of {} bytes", bytes.len()))
                    }
                    _ if is_spoiled => Ok(()),
                    Ok(_) => ended,
                    Err(error) => {
                        ended?;
                        if !has_reader {
                            known.push(Errno::PIPE);
                        }
                        self.excuse(&error, is_canceled, &known)
                    }
                }
            }
            (PipeRole::Receive { len, .. }, Output::Bytes(result, buffer)) => {
                let its = &mut self.pipes[pipe];
                its.receiving = Activity::None;
                match result {
                    Ok(count) if count > len => Err("more than there is room for".to_owned()),
                    _ if is_spoiled => Ok(()),
                    Ok(_) if len == 0 => Err("without room it was not refused".to_owned()),
                    Err(error) if len == 0 => self.excuse(&error, is_canceled, &[Errno::INVAL]),
                    Ok(0) if its.writer.is_some() => {
                        Err("the end, and it can be written".to_owned())
                    }
                    Ok(0) => its.stream.ended(),
                    Ok(count) => its.stream.received(&buffer[..count]),
                    Err(error) => self.excuse(&error, is_canceled, &known),
                }
            }
            _ => Err("no result of its kind".to_owned()),
        }
    }
}
