//! Pipes: bytes arrive in order and complete, whatever is dropped.

use rustix::io::Errno;
use sakia_driver::sim::FaultKind;
use sakia_driver::{
    CURRENT_POSITION, ControlMessage, Fd, PollEvents, Received, ReceivedControl, ShutdownHow,
    SocketAddress,
};

use super::files::{known_errors, text};
use super::transfers::brought;
use super::{BLOCK_BYTES, Check, Role, Runner, pick};
use crate::env::Env;
use crate::held::{Output, Pending, pending};
use crate::program::{End, Memory, Parting};
use crate::stats::{Fate, Outcome};
use crate::stream::Stream;

/// Starts a receive that loses nothing when dropped.
pub(super) type Receiver = Box<dyn Fn(Ask) -> Box<dyn Pending>>;

/// The request of a receive.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ask {
    /// Any available bytes, in memory of the driver.
    Whatever,
    /// Up to this number of bytes.
    Room(usize),
    /// The same, and control messages of up to this number of bytes.
    Message(usize, usize),
}

/// The transport of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamKind {
    Pipe,
    /// One direction of a connection.
    Network,
    /// The same, within the machine.
    Unix,
}

/// More bytes than arrive at a time.
const PIECE_MAX: usize = 1 << 20;

/// A pipe of the program.
pub(crate) struct PipeModel {
    reader: Option<Fd>,
    writer: Option<Fd>,
    /// The receiver, used in place of single operations on the descriptor.
    receiver: Option<Receiver>,
    /// There is, or was, such a receiver.
    loses_nothing: bool,
    stream: Stream,
    /// A write has begun and may not be over. A second one would make the order uncertain; the same holds
    /// for reads.
    sending: Activity,
    receiving: Activity,
    /// The most bytes that a dropped read may take.
    lost_max: usize,
    /// The end was closed, not only dropped, so its operations in flight are canceled.
    is_reader_closed: bool,
    is_writer_closed: bool,
    kind: StreamKind,
    /// Descriptors sent along.
    passed: Vec<Passed>,
    /// A receive may have taken bytes and closed the descriptors sent with them.
    closes_passed: bool,
    /// The number of these that were received or never will be.
    passed_over: usize,
    /// Its bytes are unknown from now on.
    pub(crate) is_spoiled: bool,
}

/// The activity in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Activity {
    #[default]
    None,
    Held,
    GivenUp,
}

/// Descriptors that a write sends along.
struct Passed {
    segment: usize,
    numbers: Vec<usize>,
    /// Some of its bytes were sent, and so were the descriptors.
    is_sent: bool,
}

impl Activity {
    fn settle(&mut self) {
        if *self == Self::GivenUp {
            *self = Self::None;
        }
    }
}

/// The purpose of an operation on a pipe.
pub(crate) enum PipeRole {
    Send { pipe: usize, segment: usize, bytes: Vec<u8>, is_message: bool },
    Receive { pipe: usize, len: usize, is_message: bool },
    Poll { pipe: usize, end: End },
}

impl PipeRole {
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Send { is_message: true, .. } => "message send",
            Self::Receive { is_message: true, .. } => "message receive",
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
    /// Records that the program gives up an operation's result.
    pub(crate) fn give_up(&mut self, role: &PipeRole) {
        match *role {
            PipeRole::Send { .. } => self.sending = Activity::GivenUp,
            // The next receive may begin at once, and gets all bytes that this one leaves.
            PipeRole::Receive { .. } if self.loses_nothing => self.receiving = Activity::None,
            PipeRole::Receive { len, .. } => {
                self.closes_passed = true;
                self.receiving = Activity::GivenUp;
                self.lost_max = len;
            }
            PipeRole::Poll { .. } => {}
        }
    }

    /// Ends the operations that were given up.
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

    /// Returns the possible errors of operations on a connection that the peer or the network has ended.
    fn errors_of_connection(&self, is_reset: bool) -> &'static [Errno] {
        let is_ended = self.reader.is_none() || self.writer.is_none() || is_reset;
        if self.is_socket() && is_ended { &[Errno::PIPE, Errno::CONNRESET] } else { &[] }
    }

    fn is_socket(&self) -> bool {
        self.kind != StreamKind::Pipe
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
            self.add_stream(reader, None, writer, StreamKind::Pipe);
        }
        Ok(())
    }

    /// Adds a stream with these ends.
    pub(super) fn add_stream(
        &mut self,
        reader: Fd,
        receiver: Option<Receiver>,
        writer: Fd,
        kind: StreamKind,
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
            kind,
            passed: Vec::new(),
            closes_passed: false,
            passed_over: 0,
            // Bytes that were sent are lost when the connection is reset.
            is_spoiled: kind != StreamKind::Pipe && self.has(FaultKind::Reset),
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
        let is_socket = self.pipes[pipe].is_socket();
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
        self.hold(Role::Pipe(PipeRole::Send { pipe, segment, bytes, is_message: false }), op);
    }

    /// Sends bytes and descriptors.
    pub(super) fn send_with(&mut self, number: u8, len: u16, descriptors: u8) -> Check {
        let Some(pipe) = self.pick_unix(number) else { return Ok(()) };
        let Some(fd) = self.pipes[pipe].writer.clone() else { return Ok(()) };
        if self.pipes[pipe].sending != Activity::None {
            return Ok(());
        }
        let bytes = text(self.started + 1, len.into());
        let (control, numbers) = self.probes(descriptors)?;
        let its = &mut self.pipes[pipe];
        let segment = its.stream.begin(bytes.clone());
        if !numbers.is_empty() && !bytes.is_empty() {
            its.passed.push(Passed { segment, numbers, is_sent: false });
        }
        its.sending = Activity::Held;
        let (buf, to) = (self.env.buffer(bytes.clone()), SocketAddress::UNNAMED);
        let op = pending(self.driver.send_message(&fd, buf, &to, control, 0), |(result, buf)| {
            Output::Bytes(result, buf.to_vec())
        });
        let is_message = true;
        self.hold(Role::Pipe(PipeRole::Send { pipe, segment, bytes, is_message }), op);
        Ok(())
    }

    /// Receives bytes and descriptors.
    pub(super) fn receive_with(&mut self, number: u8, len: u16, descriptors: u8) {
        let Some(pipe) = self.pick_unix(number) else { return };
        let Some(fd) = self.pipes[pipe].reader.clone() else { return };
        if self.pipes[pipe].receiving != Activity::None {
            return;
        }
        let (len, is_capacity) = (usize::from(len), self.fills_capacity());
        let control_bytes = ControlMessage::space(4 * usize::from(descriptors));
        let op = if let Some(receiver) = &self.pipes[pipe].receiver {
            receiver(Ask::Message(len, control_bytes))
        } else {
            let op = self.driver.recv_message(&fd, self.room(len), control_bytes, 0);
            pending(op, move |(result, buf): (std::io::Result<(Received, _)>, E::Buf)| match result
            {
                Ok((received, _)) if is_capacity && buf.len() != received.len => {
                    Output::Bytes(Ok(usize::MAX), buf.to_vec())
                }
                Ok((received, control)) => Output::Message(Ok(received.len), buf.to_vec(), control),
                Err(error) => Output::Bytes(Err(error), buf.to_vec()),
            })
        };
        self.pipes[pipe].receiving = Activity::Held;
        self.hold(Role::Pipe(PipeRole::Receive { pipe, len, is_message: true }), op);
    }

    /// Returns the stream within the machine that a number selects.
    fn pick_unix(&self, number: u8) -> Option<usize> {
        let is_unix = |pipe: &&usize| self.pipes[**pipe].kind == StreamKind::Unix;
        let pipes: Vec<usize> = (0..self.pipes.len()).collect();
        let streams: Vec<&usize> = pipes.iter().filter(is_unix).collect();
        pick(number.into(), streams.len()).map(|index| *streams[index])
    }

    /// Checks the descriptors received: they must be of one write, later than the earlier ones.
    fn take_passed(&mut self, pipe: usize, control: ReceivedControl) -> Check {
        if control.is_truncated {
            self.stats.outcome(Outcome::DescriptorCut);
        }
        let numbers = self.numbers(&control.descriptors)?;
        let its = &mut self.pipes[pipe];
        its.closes_passed |= control.is_truncated;
        if numbers.is_empty() {
            return Ok(());
        }
        let is_it = |passed: &Passed| match control.is_truncated {
            true => passed.numbers.starts_with(&numbers),
            false => passed.numbers == numbers,
        };
        let waiting = &its.passed[its.passed_over..];
        let Some(index) = waiting.iter().position(is_it) else {
            return Err(format!("descriptors {numbers:?} come out of turn"));
        };
        if !its.closes_passed && waiting[..index].iter().any(|passed| passed.is_sent) {
            return Err(format!("descriptors {numbers:?} come, and those before did not"));
        }
        its.passed_over += index + 1;
        if self.config.seed.is_multiple_of(2) {
            self.kept.push(control);
        }
        Ok(())
    }

    pub(super) fn receive(&mut self, number: u8, len: u16, memory: Memory) {
        let Some(pipe) = self.pick_pipe(number) else { return };
        let Some(fd) = self.pipes[pipe].reader.clone() else { return };
        if self.pipes[pipe].receiving != Activity::None {
            return;
        }
        self.pipes[pipe].closes_passed = true;
        let (len, op) = if let Some(receiver) = &self.pipes[pipe].receiver {
            match memory {
                Memory::Vector => (len.into(), receiver(Ask::Room(len.into()))),
                Memory::Buffer | Memory::Fixed => (PIECE_MAX, receiver(Ask::Whatever)),
            }
        } else if self.pipes[pipe].is_socket() {
            let is_capacity = self.fills_capacity();
            let op = self.driver.recv(&fd, self.room(len.into()), 0);
            let read = move |(result, buf): (_, E::Buf)| brought(is_capacity, result, buf.to_vec());
            (len.into(), pending(op, read))
        } else {
            self.start_read(&fd, CURRENT_POSITION, len.into(), memory)
        };
        self.pipes[pipe].receiving = Activity::Held;
        self.hold(Role::Pipe(PipeRole::Receive { pipe, len, is_message: false }), op);
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
        if parting == Parting::Drop || its.is_socket() && end == End::Read {
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
        let op = if self.pipes[pipe].is_socket() {
            pending(self.driver.shutdown_socket(&fd, ShutdownHow::Sends), Output::Done)
        } else {
            pending(self.driver.close(fd), Output::Done)
        };
        self.hold(Role::Close, op);
    }

    /// Handles the end of an operation on a pipe.
    pub(super) fn end_pipe(&mut self, role: PipeRole, is_canceled: bool, output: Output) -> Check {
        let pipe = role.pipe();
        let is_spoiled = self.pipes[pipe].is_spoiled;
        let output = match output {
            Output::Message(result, bytes, control) => {
                if !is_spoiled {
                    self.take_passed(pipe, control)?;
                }
                Output::Bytes(result, bytes)
            }
            output => output,
        };
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
                for passed in its.passed.iter_mut().filter(|passed| passed.segment == segment) {
                    passed.is_sent = count > 0;
                }
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
