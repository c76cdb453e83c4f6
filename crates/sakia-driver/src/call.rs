//! Operations as calls: a function of the kernel by name, and its arguments.
//!
//! An operation describes itself twice: as the entry that a ring takes, and as a [`Call`], which the other
//! executors take (the poll backend, plain calls, threads of lanes, the simulated kernel). A call is a few
//! words and can be sent to any thread. It names memory by address and descriptors by number. Both are
//! *lent*: the code that hands a call over keeps them valid until the call has ended.
//!
//! This module states the properties of calls once: which are repeated after a signal, which act on an open
//! file and which on a path, which change nothing.
//!
//! Sources: the manual page of each call, `asm/unistd.h`.

use rustix::io::Errno;
use sakia_ring::{CURRENT_POSITION, IoVec, Sqe};

use crate::counters::OpKind;
pub use crate::sys::Direction;
pub use crate::sys::open::Open;
use crate::sys::send_file::send_file;
use crate::sys::signals::without_sigpipe;
use crate::sys::{self, abi, register, retry};

/// An operation as a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Call {
    /// Nothing.
    Nop,
    /// A read or a write.
    Transfer(Transfer),
    /// A call that may wait for a socket.
    Socket(SocketCall),
    /// Accepts connections one after the other, without reporting the peers' addresses.
    AcceptMany(SocketCall),
    /// Receives into the buffers of a group, whenever there is something.
    RecvMany {
        /// The socket.
        raw: i32,
        /// The group of provided buffers.
        group: u16,
        /// `MSG_*`.
        flags: u32,
        /// Set if each buffer is for a message, with these rooms in front of its bytes.
        message: Option<MessageRooms>,
    },
    /// Opens a path.
    Open(Open),
    /// Closes a descriptor.
    Close {
        /// The descriptor, which is given up.
        raw: i32,
    },
    /// Waits once for events on a descriptor.
    Poll {
        /// The descriptor.
        raw: i32,
        /// `POLL*`.
        events: u32,
    },
    /// Waits until another process opens a FIFO to write.
    AwaitWriter {
        /// The FIFO, open to read.
        raw: i32,
    },
    /// Locks a file, or unlocks it.
    Flock {
        /// The file.
        raw: i32,
        /// `LOCK_*`.
        operation: u32,
    },
    /// Copies from file to file. The offset `u64::MAX` is the file's own position.
    CopyFileRange {
        /// The file to read.
        from: i32,
        /// The offset at which to begin there.
        from_offset: u64,
        /// The file to write.
        to: i32,
        /// The offset at which to begin there.
        to_offset: u64,
        /// Bytes.
        len: u32,
    },
    /// A request to cancel others.
    Cancel {
        /// The operations to cancel.
        victims: Victims,
        /// Cancels all of them, and completes with their number; otherwise cancels the oldest.
        all: bool,
    },
    /// A system call that ends by itself and takes its arguments as they are.
    System(System),
}

const _: () = assert!(size_of::<Call>() <= size_of::<[u64; 8]>());

/// A call with its identity.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Request {
    /// Identifies its completion.
    pub user_data: u64,
    /// The kind of operation under which it is counted.
    pub kind: OpKind,
    /// The call to perform.
    pub call: Call,
}

/// A read or a write. The offset is that of the file; `u64::MAX` is its own position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The descriptor.
    pub raw: i32,
    /// The direction of the bytes.
    pub direction: Direction,
    /// The memory.
    pub buffers: Buffers,
    /// The offset in the file at which to begin.
    pub offset: u64,
    /// `RWF_*`.
    pub flags: u32,
}

/// The memory of a transfer. Only the kernel looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffers {
    /// One piece.
    One {
        /// Its address.
        addr: u64,
        /// Its bytes.
        len: u32,
    },
    /// Several.
    Many {
        /// The address of an array of `count` [`IoVec`].
        vector: u64,
        /// The number of pieces.
        count: u32,
    },
}

impl Transfer {
    /// Returns a read into one piece of memory.
    #[inline(always)]
    pub(crate) fn read(raw: i32, to: *mut u8, len: u32, offset: u64, flags: u32) -> Call {
        let buffers = Buffers::One { addr: address(to), len };
        Call::Transfer(Self { raw, direction: Direction::Read, buffers, offset, flags })
    }

    /// Returns a write from one piece of memory.
    #[inline(always)]
    pub(crate) fn write(raw: i32, from: *const u8, len: u32, offset: u64, flags: u32) -> Call {
        let buffers = Buffers::One { addr: address(from), len };
        Call::Transfer(Self { raw, direction: Direction::Write, buffers, offset, flags })
    }

    /// Returns a transfer of several pieces of memory.
    pub(crate) fn vectored(
        direction: Direction,
        raw: i32,
        parts: &[IoVec],
        offset: u64,
        flags: u32,
    ) -> Call {
        let (vector, count) = (address(parts.as_ptr()), parts.len() as u32);
        let buffers = Buffers::Many { vector, count };
        Call::Transfer(Self { raw, direction, buffers, offset, flags })
    }
}

/// An action on a socket that may wait for its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Accepts a connection.
    Accept,
    /// Connects.
    Connect,
    /// Sends one piece of memory.
    Send,
    /// Receives into one piece of memory.
    Recv,
    /// Sends a message.
    SendMessage,
    /// Receives a message.
    RecvMessage,
}

impl Verb {
    /// Returns whether it sends.
    pub(crate) fn sends(self) -> bool {
        matches!(self, Self::Send | Self::SendMessage)
    }
}

/// An operation on a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketCall {
    /// The socket.
    pub raw: i32,
    /// The action.
    pub verb: Verb,
    /// The system call's arguments after the descriptor, without the flags.
    pub args: [usize; 2],
    /// `MSG_*`, or `SOCK_*` of an accept.
    pub flags: u32,
}

impl SocketCall {
    pub(crate) fn on(verb: Verb, raw: i32, args: [usize; 2], flags: u32) -> Call {
        Call::Socket(Self { raw, verb, args, flags })
    }
}

/// The rooms at the front of a provided buffer that a message is received into, behind a header of four
/// numbers (`struct io_uring_recvmsg_out`): the length of the address, that of the control messages, that of
/// the message, and `MSG_*` flags. The message's bytes follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageRooms {
    /// Bytes for the sender's address.
    pub name: u32,
    /// Bytes for control messages.
    pub control: u32,
}

impl MessageRooms {
    /// The offset of the address.
    pub(crate) const NAME_AT: usize = 4 * size_of::<u32>();

    /// Returns the offset of the control messages.
    pub(crate) const fn control_at(self) -> usize {
        Self::NAME_AT + self.name as usize
    }

    /// Returns the offset of the message's bytes.
    pub(crate) const fn payload_at(self) -> usize {
        self.control_at() + self.control as usize
    }
}

/// The operations that a request to cancel is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victims {
    /// Those with this `user_data`.
    UserData(u64),
    /// Those on this descriptor.
    Descriptor(i32),
    /// All operations.
    Any,
}

impl Victims {
    /// Returns the request as a call: for one operation with this `user_data`, or for all other victims.
    pub(crate) fn call(self) -> Call {
        Call::Cancel { victims: self, all: !matches!(self, Self::UserData(_)) }
    }

    /// Returns the request with the number that identifies its completion.
    pub(crate) fn request(self, user_data: u64) -> Request {
        Request { user_data, kind: OpKind::Cancel, call: self.call() }
    }

    /// Returns the request as a ring takes it.
    pub(crate) fn entry(self) -> Sqe {
        match self {
            Self::UserData(user_data) => Sqe::cancel(user_data),
            Self::Descriptor(raw) => Sqe::cancel_fd(raw),
            Self::Any => Sqe::cancel_all(),
        }
    }
}

/// A system call with its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct System {
    /// Its name.
    pub function: Function,
    /// As the kernel takes them.
    pub args: [usize; 6],
}

macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident = $number:ident: $($property:ident)*;)*) => {
        /// System calls that end by themselves, by name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        #[repr(u32)]
        pub enum Function {
            $($(#[$doc])* $name = abi::$number,)*
        }

        impl Function {
            /// All of them.
            #[cfg(any(test, feature = "sim"))]
            pub(crate) const ALL: &[Self] = &[$(Self::$name,)*];

            const fn properties(self) -> Properties {
                match self {
                    $(Self::$name => Properties { $($property: true,)* ..Properties::NONE },)*
                }
            }
        }
    };
}

/// The properties of a system call besides its arguments.
#[derive(Clone, Copy)]
struct Properties {
    /// Not to be repeated after a signal: an interrupted call may have been done, and a second one would give
    /// another result.
    once: bool,
    /// It acts on the path that is its second argument, unless that is null.
    path: bool,
    /// It waits neither for a peer nor for a device.
    short: bool,
    /// It changes nothing.
    pure: bool,
    /// It may write to a pipe or socket without a reader, which would raise `SIGPIPE`.
    writes: bool,
}

impl Properties {
    const NONE: Self = Self { once: false, path: false, short: false, pure: false, writes: false };
}

functions! {
    /// `bind(2)`.
    Bind = __NR_bind: ;
    /// `fadvise64(2)`.
    Fadvise = __NR_fadvise64: ;
    /// `fallocate(2)`.
    Fallocate = __NR_fallocate: once;
    /// `fcntl(2)`, with the commands that ask for or set the status flags.
    Fcntl = __NR_fcntl: short;
    /// `fchmod(2)`.
    Fchmod = __NR_fchmod: ;
    /// `fchmodat(2)`, which has no flags and is there on every kernel.
    Fchmodat = __NR_fchmodat: path;
    /// `fchmodat2(2)`.
    Fchmodat2 = __NR_fchmodat2: path;
    /// `fchown(2)`.
    Fchown = __NR_fchown: ;
    /// `fchownat(2)`.
    Fchownat = __NR_fchownat: path;
    /// `fdatasync(2)`.
    Fdatasync = __NR_fdatasync: ;
    /// `fgetxattr(2)`.
    Fgetxattr = __NR_fgetxattr: pure;
    /// `flistxattr(2)`.
    Flistxattr = __NR_flistxattr: ;
    /// `fremovexattr(2)`.
    Fremovexattr = __NR_fremovexattr: once;
    /// `fsetxattr(2)`.
    Fsetxattr = __NR_fsetxattr: once;
    /// `fstatfs(2)`.
    Fstatfs = __NR_fstatfs: ;
    /// `fsync(2)`.
    Fsync = __NR_fsync: ;
    /// `ftruncate(2)`.
    Ftruncate = __NR_ftruncate: ;
    /// `getdents64(2)`.
    Getdents = __NR_getdents64: ;
    /// `getpeername(2)`.
    Getpeername = __NR_getpeername: short pure;
    /// `getsockname(2)`.
    Getsockname = __NR_getsockname: short pure;
    /// `getsockopt(2)`.
    Getsockopt = __NR_getsockopt: short pure;
    /// `linkat(2)`.
    Linkat = __NR_linkat: once path;
    /// `listen(2)`.
    Listen = __NR_listen: short;
    /// `lseek(2)`. A position beyond the largest result of a completion comes as that.
    Lseek = __NR_lseek: short;
    /// `mkdirat(2)`.
    Mkdirat = __NR_mkdirat: once path;
    /// `prlimit64(2)`, which asks for a limit of this process.
    Prlimit = __NR_prlimit64: short pure;
    /// `readlinkat(2)`.
    Readlinkat = __NR_readlinkat: path;
    /// `recvmmsg(2)`, with flags that forbid waiting.
    Recvmmsg = __NR_recvmmsg: ;
    /// `renameat2(2)`.
    Renameat = __NR_renameat2: once path;
    /// `sendfile(2)` to a socket, as far as that has room. The fifth argument is not the kernel's: it tells
    /// how the socket's mode may be changed.
    Sendfile = __NR_sendfile: writes;
    /// `sendmmsg(2)`, with flags that forbid waiting.
    Sendmmsg = __NR_sendmmsg: ;
    /// `sendto(2)`, with flags that forbid waiting.
    Sendto = __NR_sendto: ;
    /// `shutdown(2)`.
    Shutdown = __NR_shutdown: short;
    /// `socket(2)`.
    Socket = __NR_socket: short;
    /// `socketpair(2)`.
    Socketpair = __NR_socketpair: short;
    /// `splice(2)`, with flags that forbid waiting for a pipe.
    Splice = __NR_splice: writes;
    /// `statx(2)`.
    Statx = __NR_statx: path pure;
    /// `symlinkat(2)`.
    Symlinkat = __NR_symlinkat: once path;
    /// `sync_file_range(2)`.
    SyncFileRange = __NR_sync_file_range: ;
    /// `syncfs(2)`.
    Syncfs = __NR_syncfs: ;
    /// `unlinkat(2)`.
    Unlinkat = __NR_unlinkat: once path;
    /// `utimensat(2)`; without a path it acts on the descriptor itself.
    Utimensat = __NR_utimensat: path;
}

impl System {
    /// Returns a system call with these arguments.
    pub(crate) fn of<const N: usize>(function: Function, args: [usize; N]) -> Call {
        let mut all = [0; 6];
        all[..N].copy_from_slice(&args);
        Call::System(Self { function, args: all })
    }

    /// Returns a system call on an open file, with these arguments after the descriptor.
    pub(crate) fn on<const N: usize>(function: Function, raw: i32, args: [usize; N]) -> Call {
        let mut all = [0; 6];
        all[0] = register(raw);
        all[1..][..N].copy_from_slice(&args);
        Call::System(Self { function, args: all })
    }

    /// Returns whether the call waits neither for a peer nor for a device.
    pub(crate) fn is_short(&self) -> bool {
        self.function.properties().short
    }

    /// Performs the call.
    ///
    /// # Errors
    /// Its errno; `EOPNOTSUPP` for a call that this kernel does not have.
    ///
    /// # Safety
    ///
    /// - The memory and the descriptors that it names are lent.
    pub(crate) unsafe fn run(self) -> Result<usize, Errno> {
        let Self { function, args } = self;
        // SAFETY: the caller lends the memory and the descriptors that the arguments name.
        let call = || unsafe { sys::shared_syscall(function as u32, args) };
        let result = match function.properties() {
            // SAFETY: as above.
            _ if function == Function::Sendfile => unsafe { send_file(args) },
            _ if function == Function::Lseek => call().map(|at| at.min(i32::MAX as usize)),
            Properties { once: true, .. } => call(),
            Properties { writes: true, .. } => without_sigpipe(|| retry(call)),
            _ => retry(call),
        };
        result.map_err(|errno| if errno == Errno::NOSYS { Errno::OPNOTSUPP } else { errno })
    }
}

impl Call {
    /// Returns the descriptor on which a cancel request finds the operation. As with a ring, it is `None` if
    /// the descriptor only tells where a path begins, and for a close.
    pub(crate) fn acts_on(&self) -> Option<i32> {
        match self {
            Self::Open(_) | Self::Close { .. } | Self::Cancel { .. } => None,
            Self::System(System { function: Function::Symlinkat, .. }) => None,
            Self::System(System { function, args })
                if function.properties().path && args[1] != 0 =>
            {
                None
            }
            _ => self.descriptor(),
        }
    }

    /// Returns the first descriptor that the call names, including a directory at which a path begins.
    pub(crate) fn descriptor(&self) -> Option<i32> {
        let raw = match *self {
            Self::Transfer(Transfer { raw, .. })
            | Self::Socket(SocketCall { raw, .. })
            | Self::AcceptMany(SocketCall { raw, .. })
            | Self::RecvMany { raw, .. }
            | Self::Open(Open { dir: raw, .. })
            | Self::Close { raw }
            | Self::Poll { raw, .. }
            | Self::AwaitWriter { raw }
            | Self::Flock { raw, .. }
            | Self::CopyFileRange { from: raw, .. }
            | Self::Cancel { victims: Victims::Descriptor(raw), .. } => raw,
            Self::System(System {
                function: Function::Prlimit | Function::Socket | Function::Socketpair,
                ..
            })
            | Self::Nop
            | Self::Cancel { .. } => return None,
            // The first argument is the address of the link's target.
            Self::System(System { function: Function::Symlinkat, args }) => args[1] as i32,
            Self::System(System { args, .. }) => args[0] as i32,
        };
        Some(raw).filter(|&raw| raw >= 0)
    }

    /// Returns whether its result is the number of a new socket.
    #[inline(always)]
    pub(crate) fn makes_socket(self) -> bool {
        match self {
            Self::Socket(call) => call.verb == Verb::Accept,
            Self::System(system) => system.function == Function::Socket,
            _ => false,
        }
    }

    /// Returns whether it reads or writes at the file's own position.
    pub(crate) fn is_at_position(&self) -> bool {
        matches!(self, Self::Transfer(transfer) if transfer.offset == CURRENT_POSITION)
    }

    /// Returns whether the call changes nothing, so that it may be done twice. A read at the file's own
    /// position moves that position, and is therefore not pure.
    pub(crate) fn is_pure_read(&self) -> bool {
        match self {
            Self::Transfer(Transfer { direction, offset, .. }) => {
                *direction == Direction::Read && *offset != CURRENT_POSITION
            }
            Self::System(system) => system.function.properties().pure,
            _ => false,
        }
    }
}

/// Returns the result as a completion has it.
#[inline(always)]
pub(crate) fn outcome(result: Result<usize, Errno>) -> i32 {
    // No call requests more than `i32::MAX`, and a transfer moves at most `MAX_RW_BYTES`.
    result.map_or_else(failed, |count| count as i32)
}

/// Returns the errno as the result of a completion.
#[inline(always)]
pub(crate) fn failed(errno: Errno) -> i32 {
    -errno.raw_os_error()
}

/// Returns an address as a call has it. The kernel reaches the memory by that number alone.
#[inline(always)]
pub(crate) fn address<T>(pointer: *const T) -> u64 {
    pointer.expose_provenance() as u64
}

/// Returns an address as the argument of a system call.
pub(crate) fn word<T>(pointer: *const T) -> usize {
    pointer.expose_provenance()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_call_counts_among_the_operations_of_its_file_and_not_of_a_folder() {
        let acts_on = |function, args: [usize; 2]| System::on(function, 7, args).acts_on();
        assert_eq!(acts_on(Function::Ftruncate, [0, 0]), Some(7));
        assert_eq!(acts_on(Function::Mkdirat, [8, 0]), None);
        assert_eq!(acts_on(Function::Utimensat, [8, 16]), None);
        assert_eq!(acts_on(Function::Utimensat, [0, 16]), Some(7));
        // The directory of the new link, not half of an address.
        let link = System::of(Function::Symlinkat, [0x7f00_0000_0009, 0, 16]);
        assert_eq!((link.acts_on(), link.descriptor()), (None, Some(0)));
        assert_eq!(System::of(Function::Socket, [2, 1, 0]).descriptor(), None);
    }

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls")]
    fn a_call_that_writes_where_nobody_reads_raises_no_signal() {
        const SIGPIPE: sys::SignalSet = 1 << 12;
        let splice = || {
            let (reader, writer) = rustix::pipe::pipe().unwrap();
            let (nobody, broken) = rustix::pipe::pipe().unwrap();
            rustix::io::write(&writer, b"x").unwrap();
            drop(nobody);
            sys::signal_mask(sys::MaskChange::Block, SIGPIPE).unwrap();
            let (from, to) = (reader.as_raw_fd(), register(broken.as_raw_fd()));
            let Call::System(call) = System::on(Function::Splice, from, [0, to, 0, 1, 0]) else {
                panic!("it is a system call")
            };
            // SAFETY: it names two pipes of this function, and no memory.
            let result = unsafe { call.run() };
            (result, sys::signals_pending().unwrap() & SIGPIPE)
        };
        // The call runs on a thread of its own, whose mask it changes.
        assert_eq!(std::thread::spawn(splice).join().unwrap(), (Err(Errno::PIPE), 0));
    }

    #[test]
    fn descriptors_are_sign_extended() {
        let Call::System(System { args, .. }) = System::on(Function::Fsync, -100, []) else {
            panic!("it is a system call")
        };
        assert_eq!(args, [-100_isize as usize, 0, 0, 0, 0, 0]);
    }
}
