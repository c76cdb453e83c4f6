//! Requests: operations as values, and their outcomes.
//!
//! A request owns all that it needs, and its memory comes back in its outcome. A [`Loop`](crate::Loop)
//! performs it, and names it by a token of the caller. This is the form for programs without futures, and for
//! other languages.

mod answer;
mod attempt;
mod buffer;
mod control;
mod file;
mod lent;
mod mailbox;
mod several;
mod signal;
mod start;
mod target;

use std::ffi::CString;
use std::io;

pub(crate) use self::answer::Answer;
pub use self::buffer::{Buffer, Foreign};
pub use self::file::FileHandle;
pub(crate) use self::file::{Closer, Descriptor};
pub use self::lent::Lent;
pub(crate) use self::mailbox::{FileId, Letter, Mailbox};
pub(crate) use self::several::{AcceptMany, Deliveries};
pub(crate) use self::signal::Signal;
pub(crate) use self::start::{Files, Started, begun, start, under_way, with_memory};
pub(crate) use self::target::Named;
pub use self::target::Target;
use crate::address::{Domain, ShutdownHow, SocketAddress, SocketType};
use crate::ops::{
    ControlMessages, OpenHow, PollEvents, Received, ReceivedControl, SetTime, StatfsResult,
    StatxResult,
};

/// An operation with everything that it needs.
///
/// Without a `directory` a relative path starts at the working directory. An `offset` of
/// [`CURRENT_POSITION`](crate::CURRENT_POSITION) is the file's own position.
///
/// # Errors
/// Each operation fails as the method of [`Handle`](crate::Handle) with its name. `EBADF`: the file handle
/// was closed.
///
/// # Examples
/// See [`Loop`](crate::Loop#examples).
#[derive(Debug)]
#[non_exhaustive]
#[expect(
    missing_docs,
    reason = "the fields are the arguments of the operations' methods of `Handle`"
)]
pub enum Request {
    /// Nothing, by way of the queue.
    Nop,
    /// Reads into one buffer. The value is the number of bytes.
    Read { file: Target, buffer: Buffer, offset: u64 },
    /// Writes from one buffer. The value is the number of bytes.
    Write { file: Target, buffer: Buffer, offset: u64 },
    /// Reads into several buffers, one after the other, with these `RWF_*` flags.
    ReadVectored { file: Target, buffers: Vec<Buffer>, offset: u64, flags: u32 },
    /// Writes from several buffers, one after the other, with these `RWF_*` flags.
    WriteVectored { file: Target, buffers: Vec<Buffer>, offset: u64, flags: u32 },
    /// Opens a file, closed on exec. The value is its handle.
    Open { directory: Option<Target>, path: CString, how: OpenHow },
    /// Cancels all operations on the file, on all loops, waits for their ends, and closes it.
    Close { file: FileHandle },
    /// Makes contents durable, and with `data_only` not all of the metadata.
    Sync { file: Target, data_only: bool },
    /// Returns metadata; of the file itself if there is no path. `flags` are `AT_*`.
    Stat { directory: Option<Target>, path: Option<CString>, flags: u32 },
    /// Returns facts about the file's file system.
    StatFs { file: Target },
    /// Sets the length.
    Truncate { file: Target, len: u64 },
    /// Allocates or frees room; `mode` is that of `fallocate(2)`.
    Allocate { file: Target, mode: u32, offset: u64, len: u64 },
    /// Advises the kernel of the use of a range, as `posix_fadvise(2)`.
    Advise { file: Target, offset: u64, len: u64, advice: u32 },
    /// Makes a directory.
    MakeDirectory { directory: Option<Target>, path: CString, mode: u32 },
    /// Removes a name; a directory's with `AT_REMOVEDIR`.
    Unlink { directory: Option<Target>, path: CString, flags: u32 },
    /// Renames; `flags` are `RENAME_*`.
    Rename {
        from_directory: Option<Target>,
        from: CString,
        to_directory: Option<Target>,
        to: CString,
        flags: u32,
    },
    /// Makes another name of a file; `flags` are `AT_*`.
    Link {
        from_directory: Option<Target>,
        from: CString,
        to_directory: Option<Target>,
        to: CString,
        flags: u32,
    },
    /// Makes a symbolic link to `target`.
    Symlink { target: CString, directory: Option<Target>, link: CString },
    /// Reads the target of a symbolic link, as much as there is room for. The value is the number of bytes.
    ReadLink { directory: Option<Target>, path: CString, buffer: Buffer },
    /// Reads entries of a directory, for [`DirectoryEntries`](crate::DirectoryEntries). The value is the
    /// number of bytes.
    ReadDirectory { file: Target, buffer: Buffer },
    /// Sets access rights; of the file itself if there is no path.
    ChangeMode { directory: Option<Target>, path: Option<CString>, mode: u32, flags: u32 },
    /// Sets the owner and the group, as far as given; of the file itself if there is no path.
    ChangeOwner {
        directory: Option<Target>,
        path: Option<CString>,
        uid: Option<u32>,
        gid: Option<u32>,
        flags: u32,
    },
    /// Sets times; of the file itself if there is no path.
    SetTimes {
        directory: Option<Target>,
        path: Option<CString>,
        accessed: SetTime,
        modified: SetTime,
        flags: u32,
    },
    /// Moves a range from one file to another within the kernel. The value is the number of bytes.
    CopyRange { from: Target, from_offset: u64, to: Target, to_offset: u64, len: usize },
    /// Waits until one of the events is ready. The value is the ready events.
    Poll { file: Target, events: PollEvents },
    /// Tells of readiness until it is canceled, or the file is closed: an outcome for each turn in which one
    /// of the events is ready, with the ready events. It has level semantics: what is ready and is left so is
    /// told again by the next wait.
    ///
    /// # Examples
    /// ```
    /// use std::io::Write;
    ///
    /// use sakia_driver::{FileHandle, Loop, PollEvents, Request, Wait};
    ///
    /// let mut ring = Loop::new()?;
    /// let (reader, mut writer) = std::io::pipe()?;
    /// let reader = FileHandle::new(reader);
    /// let file = (&reader).into();
    /// let ticket = ring.submit(Request::PollMany { file, events: PollEvents::READABLE }, 1)?;
    /// assert_eq!(ring.wait(Wait::Poll)?, 0);
    /// writer.write_all(b"ab")?;
    /// for _ in 0..2 {
    ///     while ring.wait(Wait::Forever)? == 0 {}
    ///     let outcome = ring.take().expect("it is ready, as long as there are bytes");
    ///     assert!(outcome.more && outcome.result? & PollEvents::READABLE.0 as usize != 0);
    ///     assert_eq!(reader.with_fd(|fd| rustix::io::read(fd, &mut [0; 1]))??, 1);
    /// }
    /// assert_eq!(ring.wait(Wait::Poll)?, 0);
    /// ring.cancel(ticket);
    /// while ring.wait(Wait::Forever)? == 0 {}
    /// assert!(!ring.take().expect("the last").more);
    /// # std::io::Result::Ok(())
    /// ```
    PollMany { file: Target, events: PollEvents },
    /// Makes a socket, closed on exec. The value is its handle.
    Socket { domain: Domain, kind: SocketType, protocol: u32 },
    /// Gives a socket an address.
    Bind { socket: Target, address: Box<SocketAddress> },
    /// Makes a socket listen.
    Listen { socket: Target, backlog: u32 },
    /// Connects a socket.
    Connect { socket: Target, address: Box<SocketAddress> },
    /// Accepts a connection. The value is its handle and the peer's address.
    Accept { socket: Target },
    /// Accepts connections until it is canceled, or an accept fails. Each outcome has a handle. The kernel
    /// may end it with any of them: then that outcome is the last. `EINVAL`: a ring before Linux 5.19 has
    /// none.
    AcceptMany { socket: Target },
    /// Sends on a connected socket; `flags` are `MSG_*`. The value is the number of bytes.
    Send { socket: Target, buffer: Buffer, flags: u32 },
    /// Receives from a connected socket. The value is the number of bytes.
    Receive { socket: Target, buffer: Buffer, flags: u32 },
    /// Receives from a connected stream socket until the peer sends no more, or it is canceled, into memory
    /// of the loop: an outcome for each piece, whose bytes are [lent](Value::Lent) until they are given back.
    /// The kernel receives ahead, up to 256 KiB; then the peer has to wait. There may be no other receive on
    /// the socket meanwhile; a second one of these on a loop ends with `EBUSY`.
    ///
    /// # Examples
    /// ```
    /// use std::io::Write;
    /// use std::os::fd::OwnedFd;
    /// use std::os::unix::net::UnixStream;
    ///
    /// use sakia_driver::{FileHandle, Loop, Request, Value, Wait};
    ///
    /// let mut ring = Loop::new()?;
    /// let (near, mut far) = UnixStream::pair()?;
    /// let near = FileHandle::new(OwnedFd::from(near));
    /// ring.submit(Request::ReceiveMany { socket: near.into() }, 1)?;
    /// far.write_all(b"hello")?;
    /// drop(far);
    /// let mut bytes = Vec::new();
    /// loop {
    ///     match ring.take() {
    ///         Some(outcome) if outcome.more => {
    ///             let Value::Lent(lent) = outcome.value else { panic!("bytes") };
    ///             bytes.extend_from_slice(ring.bytes(&lent));
    ///             ring.give_back(lent);
    ///         }
    ///         Some(end) => break assert_eq!(end.result?, 0),
    ///         None => drop(ring.wait(Wait::Forever)?),
    ///     }
    /// }
    /// assert_eq!(bytes, b"hello");
    /// # std::io::Result::Ok(())
    /// ```
    ReceiveMany { socket: Target },
    /// Sends a datagram to an address, or to the peer if it is [unnamed](SocketAddress::is_unnamed), with
    /// control messages. The value is the number of bytes.
    ///
    /// # Examples
    /// ```
    /// use std::os::fd::OwnedFd;
    /// use std::os::unix::net::UnixDatagram;
    ///
    /// use sakia_driver::{
    ///     ControlMessages, FileHandle, Loop, Request, SocketAddress, Value, Wait,
    /// };
    ///
    /// let mut ring = Loop::new()?;
    /// let mut answer = |ring: &mut Loop| loop {
    ///     match ring.take() {
    ///         Some(outcome) => break std::io::Result::Ok(outcome),
    ///         None => ring.wait(Wait::Forever)?,
    ///     };
    /// };
    /// let (a, b) = UnixDatagram::pair()?;
    /// let (a, b) = (FileHandle::new(OwnedFd::from(a)), FileHandle::new(OwnedFd::from(b)));
    /// let file = FileHandle::new(std::fs::File::open("Cargo.toml")?);
    /// let control = ControlMessages::of_request().file(&file);
    /// ring.submit(
    ///     Request::SendMessage {
    ///         socket: a.into(),
    ///         buffer: vec![1].into(),
    ///         address: Box::new(SocketAddress::UNNAMED),
    ///         control: Box::new(control),
    ///         flags: 0,
    ///     },
    ///     1,
    /// )?;
    /// assert_eq!(answer(&mut ring)?.result?, 1);
    /// let buffer = vec![0].into();
    /// let receive = Request::ReceiveMessage { socket: b.into(), buffer, control_bytes: 64, flags: 0 };
    /// ring.submit(receive, 2)?;
    /// let Value::Message(message, _) = answer(&mut ring)?.value else { panic!("a message") };
    /// assert_eq!(message.1.descriptors.len(), 1);
    /// # drop(message);
    /// # std::io::Result::Ok(())
    /// ```
    SendMessage {
        socket: Target,
        buffer: Buffer,
        address: Box<SocketAddress>,
        control: Box<ControlMessages<FileHandle>>,
        flags: u32,
    },
    /// Receives a datagram, its sender's address, and control messages of up to so many bytes, at most
    /// 64 KiB: no datagram has more.
    ReceiveMessage { socket: Target, buffer: Buffer, control_bytes: usize, flags: u32 },
    /// Shuts a connection down, in one or both directions.
    Shutdown { socket: Target, how: ShutdownHow },
}

impl Request {
    /// Returns a request to read.
    ///
    /// # Examples
    /// See [`Loop`](crate::Loop#examples).
    pub fn read(file: impl Into<Target>, buffer: Buffer, offset: u64) -> Self {
        Self::Read { file: file.into(), buffer, offset }
    }

    /// Returns a request to write.
    ///
    /// # Examples
    /// See [`Loop`](crate::Loop#examples).
    pub fn write(file: impl Into<Target>, buffer: Buffer, offset: u64) -> Self {
        Self::Write { file: file.into(), buffer, offset }
    }

    /// Returns whether outcomes may come until it is canceled, or its file ends. A queue refuses such a
    /// request.
    ///
    /// # Examples
    /// ```
    /// assert!(!sakia_driver::Request::Nop.goes_on());
    /// ```
    pub fn goes_on(&self) -> bool {
        matches!(self, Self::PollMany { .. } | Self::AcceptMany { .. } | Self::ReceiveMany { .. })
    }
}

/// Everything but a number with which a request ends: its memory, and what it made or found.
///
/// # Examples
/// See [`Loop`](crate::Loop#examples).
#[derive(Debug, Default)]
#[non_exhaustive]
pub enum Value {
    /// Nothing.
    #[default]
    None,
    /// The memory that the request had.
    Buffer(Buffer),
    /// The memory that the request had.
    Buffers(Vec<Buffer>),
    /// A file that was opened, or a socket that was made or accepted.
    File(FileHandle),
    /// A connection, and the address of its peer.
    Connection(Box<(FileHandle, SocketAddress)>),
    /// Metadata.
    Stat(Box<StatxResult>),
    /// Facts about a file system.
    StatFs(Box<StatfsResult>),
    /// Bytes in memory of the loop.
    Lent(Lent),
    /// A datagram, and the memory that the request had.
    Message(Box<(Received, ReceivedControl<FileHandle>)>, Buffer),
}

/// The outcome of a request.
///
/// # Examples
/// See [`Loop`](crate::Loop#examples).
#[derive(Debug)]
#[must_use = "it has the memory of the request, and its error"]
pub struct Outcome {
    /// The token with which the request was submitted.
    pub token: u64,
    /// More outcomes of this request will follow. Each request has one that is the last.
    pub more: bool,
    /// A number of bytes, or the bits of [ready events](PollEvents); 0 for operations without a number.
    pub result: io::Result<usize>,
    /// The rest. The memory of a request that failed is here, too.
    pub value: Value,
}

impl Outcome {
    /// Returns the vector that the request had. `None` if it had none, several, or memory of another owner.
    ///
    /// # Examples
    /// See [`Loop`](crate::Loop#examples).
    #[inline]
    pub fn into_vec(self) -> Option<Vec<u8>> {
        match self.value {
            Value::Buffer(buffer) | Value::Message(_, buffer) => buffer.into_vec(),
            _ => None,
        }
    }

    /// Returns the file that was opened, made or accepted.
    ///
    /// # Examples
    /// See [`Request::Open`].
    pub fn into_file(self) -> Option<FileHandle> {
        match self.value {
            Value::File(file) => Some(file),
            Value::Connection(connection) => Some(connection.0),
            _ => None,
        }
    }
}
