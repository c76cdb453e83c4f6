//! Injected faults, by probability or by script.
//!
//! A fault is chosen when an entry is consumed, or when an enter begins, and counted when it takes effect: a
//! short read of one byte is not counted.

use std::time::Duration;

use rustix::io::Errno;
use sakia_ring::Opcode;

use super::entry::{Asked, Name};
use super::random::Random;
use super::sockets::Fate;
use crate::call::{Buffers, Call, Direction, Function, SocketCall, System, Transfer, Verb};

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The kinds of fault that the simulation injects.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum FaultKind {
            $($(#[$doc])* $name,)*
        }

        impl FaultKind {
            /// Every kind.
            pub const ALL: &[Self] = &[$(Self::$name,)*];
        }
    };
}

kinds! {
    /// A submit or enter consumes fewer entries than are pending, and does nothing else.
    PartialSubmit,
    /// A submit or enter fails with `EINTR`.
    EnterInterrupted,
    /// A submit or enter fails with `EAGAIN`.
    EnterAgain,
    /// A submit or enter fails with `EBUSY`.
    EnterBusy,
    /// A submit or enter fails with an errno that is not temporary; `EBADR` when by probability.
    EnterFailed,
    /// The completion queue has fewer places than its size during one submit or enter.
    ShortCq,
    /// A read or write moves fewer bytes than it could.
    ShortTransfer,
    /// An operation fails without effect, except that a close takes effect.
    Errno,
    /// An operation fails with the kernel's own `ERESTARTSYS` (512).
    Restart,
    /// A cancel finds its operation gone (`ENOENT`), and the operation ends by itself.
    CancelTooLate,
    /// A cancel finds its operation running (`EALREADY`).
    CancelAlready,
    /// A second completion with the same `user_data` comes some time after the first. A driver can tell it
    /// from a later operation's only if no two operations have the same `user_data`.
    Duplicate,
    /// A completion comes with a `user_data` that no operation in flight has.
    Stale,
    /// A completion goes to the overflow list although there is a place for it.
    Held,
    /// A sync, or a durable write, fails with `EIO`, and its data is lost: the next sync succeeds, readers
    /// still see the data, and it is gone after a crash. The failure is reported once to every file that was
    /// open.
    FsyncFailed,
    /// An operation never completes, canceled or not.
    Stuck,
    /// A plain call that must not block would have to.
    PlainBlocks,
    /// A plain read that must not block returns 0 before the end of the file.
    PlainEnd,
    /// A plain call takes up to 20 ms, during which the thread waits.
    PlainStall,
    /// A connection is reset when one of its ends sends or receives: data in transit is lost, and each end
    /// gets `ECONNRESET`.
    Reset,
    /// A datagram on the network does not arrive.
    DatagramLost,
    /// A datagram on the network arrives twice.
    DatagramDuplicated,
    /// A datagram on the network overtakes the one before.
    DatagramReordered,
    /// A receive into provided buffers fails with `ENOBUFS` although there are some.
    NoBuffers,
    /// A file server returns an errno of its choice for an operation that it has performed; see
    /// [`Fault::ServerErrno`]. By probability, any errno that a server can send: 1 to 511.
    ServerErrno,
    /// A multishot operation ends without a reason, with a last completion like the earlier ones.
    MultishotEnded,
}

impl FaultKind {
    /// Faults of a network, not of a kernel: connections are reset, and datagrams are lost, duplicated or
    /// reordered.
    pub const NETWORK: [Self; 4] =
        [Self::Reset, Self::DatagramLost, Self::DatagramDuplicated, Self::DatagramReordered];
    /// Faults of a file server, not of a kernel alone.
    pub const SERVER: [Self; 1] = [Self::ServerErrno];
}

/// The number of fault kinds.
const KINDS: usize = FaultKind::ALL.len();

/// The fault of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// It moves at most this many bytes, at least one.
    Short(u32),
    /// It fails with this errno without effect, except that a close takes effect.
    Errno(i32),
    /// It fails with the kernel's own `ERESTARTSYS` (512).
    Restart,
    /// For a cancel: it returns `ENOENT`, and its victim ends by itself. Without effect if the victim would
    /// not end.
    CancelTooLate,
    /// For a cancel: it returns `EALREADY`. Its victim ends by itself or is canceled.
    CancelAlready,
    /// A second completion follows some time after the first.
    Duplicate,
    /// A completion with an unknown `user_data` follows some time after its own.
    Stale,
    /// Its completion goes to the overflow list.
    Held,
    /// It never completes.
    Stuck,
    /// A sync, or a durable write, fails with `EIO`, and its data is lost; see [`FaultKind::FsyncFailed`].
    /// Without effect on other operations.
    FsyncFailed,
    /// It takes this long in a worker. Not counted as a fault.
    Delay(Duration),
    /// The connection on which it sends or receives is reset.
    Reset,
    /// The datagram that it sends on the network does not arrive.
    DatagramLost,
    /// The datagram that it sends on the network arrives twice.
    DatagramDuplicated,
    /// The datagram that it sends on the network overtakes the one before.
    DatagramReordered,
    /// For a receive into provided buffers: after this many completions it fails with `ENOBUFS` although
    /// there are some. Without effect on other operations.
    NoBuffers(u32),
    /// An operation on a file is performed, but returns this errno: a descriptor that it opened is closed
    /// again, bytes that it wrote stay. Without effect on other operations, and on those that fail by
    /// themselves.
    ServerErrno(i32),
    /// For a multishot operation: after this many completions its next one, with a result like the others, is
    /// its last. Without effect on other operations.
    MultishotEnded(u32),
}

/// The fault of one submit or enter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EnterFault {
    /// It consumes at most this many entries and returns at once. With 0 it fails with `EAGAIN`.
    Partial(u32),
    /// It fails with this errno and consumes nothing.
    Errno(i32),
    /// It consumes at most this many entries, and fails with this errno nevertheless.
    ErrnoAfter(u32, i32),
    /// The completion queue has only this many free places while it lasts.
    ShortCq(u32),
}

/// The fault of one plain call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlainFault {
    /// A call that must not block would have to. Without effect on other calls.
    WouldBlock,
    /// It moves at most this many bytes, at least one.
    Short(u32),
    /// A call that must not block returns 0, without effect. Without effect on other calls.
    End,
    /// It fails with this errno, without effect.
    Errno(i32),
    /// It takes this long, and the thread waits meanwhile.
    Stall(Duration),
    /// It takes this long, and the thread does not wait. Not counted as a fault.
    Busy(Duration),
}

/// The operations that a scripted fault is meant for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Target {
    name: Option<Name>,
    user_data: Option<u64>,
    skip: u32,
}

impl Target {
    /// Returns all operations.
    pub const fn any() -> Self {
        Self { name: None, user_data: None, skip: 0 }
    }

    /// Returns the operations of entries with this opcode, and of equivalent calls.
    pub const fn opcode(opcode: Opcode) -> Self {
        Self { name: Some(Name::of_opcode(opcode)), ..Self::any() }
    }

    /// Returns the calls of this system call that have no equivalent entry.
    pub const fn function(function: Function) -> Self {
        Self { name: Some(Name::of_function(function)), ..Self::any() }
    }

    /// Returns the calls of `copy_file_range(2)`.
    pub const fn copy_file_range() -> Self {
        Self { name: Some(Name::COPY_FILE_RANGE), ..Self::any() }
    }

    /// Returns the operations with this `user_data`.
    pub const fn user_data(user_data: u64) -> Self {
        Self { user_data: Some(user_data), ..Self::any() }
    }

    /// Returns the same operations without the first `count`.
    #[must_use]
    pub const fn skip(mut self, count: u32) -> Self {
        self.skip = count;
        self
    }

    fn matches(&self, asked: &Asked) -> bool {
        self.name.is_none_or(|name| name == asked.name)
            && self.user_data.is_none_or(|user_data| user_data == asked.user_data)
    }
}

/// A cancel request that fails to cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CancelRace {
    TooLate,
    Already,
}

/// The chosen faults of one operation.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Plan {
    /// Maximum number of bytes to move.
    pub(super) short: Option<u32>,
    /// The errno to fail with.
    pub(super) errno: Option<i32>,
    pub(super) cancel: Option<CancelRace>,
    pub(super) duplicate: bool,
    pub(super) stale: bool,
    pub(super) held: bool,
    pub(super) stuck: bool,
    /// The operation's data is lost instead of becoming durable.
    pub(super) loses_sync: bool,
    /// The time that it takes in a worker.
    pub(super) delay: Option<Duration>,
    /// Its connection is reset.
    pub(super) reset: bool,
    /// The fate of its datagram.
    pub(super) fate: Option<Fate>,
    /// The errno that a server returns after doing what was requested.
    pub(super) server_errno: Option<i32>,
    /// The number of completions after which it finds no buffers.
    pub(super) no_buffers_after: Option<u32>,
    /// The number of completions after which the next is its last.
    pub(super) ends_after: Option<u32>,
}

impl Plan {
    fn add(&mut self, fault: Fault) {
        match fault {
            Fault::Short(len) => self.short = Some(len.max(1)),
            Fault::Errno(errno) => self.errno = Some(errno),
            Fault::Restart => self.errno = Some(ERESTARTSYS),
            Fault::CancelTooLate => self.cancel = Some(CancelRace::TooLate),
            Fault::CancelAlready => self.cancel = Some(CancelRace::Already),
            Fault::Duplicate => self.duplicate = true,
            Fault::Stale => self.stale = true,
            Fault::Held => self.held = true,
            Fault::Stuck => self.stuck = true,
            Fault::FsyncFailed => self.loses_sync = true,
            Fault::Delay(delay) => self.delay = Some(delay),
            Fault::ServerErrno(errno) => self.server_errno = Some(errno),
            Fault::Reset => self.reset = true,
            Fault::DatagramLost => self.fate = Some(Fate::Lost),
            Fault::DatagramDuplicated => self.fate = Some(Fate::Duplicated),
            Fault::DatagramReordered => self.fate = Some(Fate::Reordered),
            Fault::NoBuffers(after) => self.no_buffers_after = Some(after),
            Fault::MultishotEnded(after) => self.ends_after = Some(after),
        }
    }
}

/// "Restart the system call": a code inside the kernel that user space should never see.
pub(super) const ERESTARTSYS: i32 = 512;

/// Decides on faults, and counts them.
#[derive(Debug)]
pub(super) struct Faults {
    per_65536: [u16; KINDS],
    counts: [u64; KINDS],
    /// Faults to come for operations; the first that is due applies.
    script: Vec<(Target, Fault)>,
    /// Faults to come for enters, each with the number of enters to skip before.
    enter_script: Vec<(u32, EnterFault)>,
    /// Faults to come for plain calls; the first that is due applies.
    plain_script: Vec<(Target, PlainFault)>,
}

impl Faults {
    pub(super) fn new() -> Self {
        Self {
            per_65536: [0; KINDS],
            counts: [0; KINDS],
            script: Vec::new(),
            enter_script: Vec::new(),
            plain_script: Vec::new(),
        }
    }

    pub(super) fn set(&mut self, kind: FaultKind, per_65536: u16) {
        self.per_65536[kind as usize] = per_65536;
    }

    pub(super) fn count(&mut self, kind: FaultKind) {
        self.counts[kind as usize] += 1;
    }

    pub(super) fn injected(&self, kind: FaultKind) -> u64 {
        self.counts[kind as usize]
    }

    pub(super) fn script(&mut self, target: Target, fault: Fault) {
        self.script.push((target, fault));
    }

    pub(super) fn script_enter(&mut self, skip: u32, fault: EnterFault) {
        self.enter_script.push((skip, fault));
    }

    pub(super) fn script_plain(&mut self, target: Target, fault: PlainFault) {
        self.plain_script.push((target, fault));
    }

    /// Returns the number of scripted faults that have not taken effect.
    pub(super) fn scripted(&self) -> usize {
        self.script.len() + self.enter_script.len() + self.plain_script.len()
    }

    fn rolls(&self, kind: FaultKind, random: &mut Random) -> bool {
        random.chance(self.per_65536[kind as usize])
    }

    /// Chooses the faults of an operation.
    pub(super) fn for_op(&mut self, asked: &Asked, random: &mut Random) -> Plan {
        let mut plan = Plan::default();
        if let Some(fault) = take_due(&mut self.script, asked) {
            plan.add(fault);
        }
        // A refused operation fails by itself.
        if let Ok(call) = &asked.call {
            self.roll_call(call, random, &mut plan);
        }
        plan.duplicate |= self.rolls(FaultKind::Duplicate, random);
        plan.stale |= self.rolls(FaultKind::Stale, random);
        plan.held |= self.rolls(FaultKind::Held, random);
        plan
    }

    /// Chooses the faults of a call by probability.
    fn roll_call(&self, call: &Call, random: &mut Random, plan: &mut Plan) {
        self.roll_failure(call, random, plan);
        if let Call::Cancel { .. } = call
            && plan.cancel.is_none()
        {
            if self.rolls(FaultKind::CancelTooLate, random) {
                plan.cancel = Some(CancelRace::TooLate);
            } else if self.rolls(FaultKind::CancelAlready, random) {
                plan.cancel = Some(CancelRace::Already);
            }
        }
        let is_served = self.per_65536[FaultKind::ServerErrno as usize] > 0;
        if is_served && self.rolls(FaultKind::ServerErrno, random) && plan.server_errno.is_none() {
            plan.server_errno = Some(server_errno(call, random));
        }
        self.roll_network(call, random, plan);
        self.roll_multishot(call, random, plan);
    }

    /// Chooses failures by probability, for operations that can fail.
    fn roll_failure(&self, call: &Call, random: &mut Random, plan: &mut Plan) {
        let errnos = errnos(call);
        if errnos.is_empty() {
            return;
        }
        if self.rolls(FaultKind::ShortTransfer, random) && plan.short.is_none() {
            // For a vector, `len` is the number of buffers, so the transfer is very short.
            plan.short = Some(1 + random.below(len(call).max(1)) as u32);
        }
        if self.rolls(FaultKind::Errno, random) && plan.errno.is_none() {
            let errno = errnos[random.below(errnos.len() as u64) as usize];
            plan.errno = Some(errno.raw_os_error());
        }
        if let Call::Close { .. } = call {
            return;
        }
        if self.rolls(FaultKind::Restart, random) && plan.errno.is_none() {
            plan.errno = Some(ERESTARTSYS);
        }
        plan.stuck |= self.rolls(FaultKind::Stuck, random);
        plan.loses_sync |= self.loses_sync(call, random);
    }

    /// Returns whether the operation's data is lost instead of becoming durable. Always false for other
    /// operations.
    pub(super) fn loses_sync(&self, call: &Call, random: &mut Random) -> bool {
        let may_sync = match call {
            Call::Transfer(transfer) => transfer.direction == Direction::Write,
            Call::System(System { function, .. }) => {
                matches!(function, Function::Fsync | Function::Fdatasync | Function::Syncfs)
            }
            _ => false,
        };
        may_sync && self.rolls(FaultKind::FsyncFailed, random)
    }

    /// Chooses the faults of the network by probability.
    fn roll_network(&self, call: &Call, random: &mut Random, plan: &mut Plan) {
        let (is_send, is_receive) = match call {
            Call::Transfer(Transfer { direction, buffers: Buffers::One { .. }, .. }) => {
                (*direction == Direction::Write, *direction == Direction::Read)
            }
            Call::Socket(SocketCall { verb, .. }) => (
                matches!(verb, Verb::Send | Verb::SendMessage),
                matches!(verb, Verb::Recv | Verb::RecvMessage),
            ),
            Call::RecvMany { .. } => (false, true),
            _ => (false, false),
        };
        if is_send || is_receive {
            plan.reset |= self.rolls(FaultKind::Reset, random);
        }
        for (kind, fate) in [
            (FaultKind::DatagramLost, Fate::Lost),
            (FaultKind::DatagramDuplicated, Fate::Duplicated),
            (FaultKind::DatagramReordered, Fate::Reordered),
        ] {
            if is_send && self.rolls(kind, random) && plan.fate.is_none() {
                plan.fate = Some(fate);
            }
        }
    }

    /// Chooses by probability whether a multishot operation ends too early, and after how many completions.
    fn roll_multishot(&self, call: &Call, random: &mut Random, plan: &mut Plan) {
        const SHOTS_MAX: u64 = 4;
        let selects = matches!(call, Call::RecvMany { .. });
        if selects && self.rolls(FaultKind::NoBuffers, random) {
            let after = random.below(SHOTS_MAX) as u32;
            plan.no_buffers_after.get_or_insert(after);
        }
        let goes_on = selects || matches!(call, Call::AcceptMany(_));
        if goes_on && self.rolls(FaultKind::MultishotEnded, random) {
            let after = random.below(SHOTS_MAX) as u32;
            plan.ends_after.get_or_insert(after);
        }
    }

    /// Chooses the fault of a plain call.
    pub(super) fn for_plain(
        &mut self,
        call: &Call,
        nowait: bool,
        random: &mut Random,
    ) -> Option<PlainFault> {
        let asked = Asked::by_call(*call, 0);
        if let Some(fault) = take_due(&mut self.plain_script, &asked) {
            return Some(fault);
        }
        let direction = match call {
            Call::Transfer(transfer) => Some(transfer.direction),
            _ => None,
        };
        let (is_read, is_transfer) = (direction == Some(Direction::Read), direction.is_some());
        if nowait && self.rolls(FaultKind::PlainBlocks, random) {
            return Some(PlainFault::WouldBlock);
        }
        if nowait && is_read && self.rolls(FaultKind::PlainEnd, random) {
            return Some(PlainFault::End);
        }
        if is_transfer && self.rolls(FaultKind::ShortTransfer, random) {
            let len = 1 + random.below(len(call).max(1)) as u32;
            return Some(PlainFault::Short(len));
        }
        if !nowait && self.rolls(FaultKind::PlainStall, random) {
            return Some(PlainFault::Stall(Duration::from_micros(random.below(20_000))));
        }
        None
    }

    /// Chooses the fault of a submit or enter for `pending` entries and `free` free places of the completion
    /// queue.
    pub(super) fn for_enter(
        &mut self,
        pending: u32,
        free: u32,
        random: &mut Random,
    ) -> Option<EnterFault> {
        if let Some(fault) = self.scripted_enter() {
            return Some(fault);
        }
        for (kind, errno) in [
            (FaultKind::EnterInterrupted, Errno::INTR),
            (FaultKind::EnterAgain, Errno::AGAIN),
            (FaultKind::EnterBusy, Errno::BUSY),
            (FaultKind::EnterFailed, Errno::BADR),
        ] {
            if self.rolls(kind, random) {
                let errno = errno.raw_os_error();
                let consumed = random.below(u64::from(pending) + 1) as u32;
                // A signal interrupts only an enter that consumed nothing.
                let is_late = random.chance(1 << 15) && kind != FaultKind::EnterInterrupted;
                return Some(if is_late {
                    EnterFault::ErrnoAfter(consumed, errno)
                } else {
                    EnterFault::Errno(errno)
                });
            }
        }
        if pending > 0 && self.rolls(FaultKind::PartialSubmit, random) {
            return Some(EnterFault::Partial(random.below(u64::from(pending)) as u32));
        }
        if self.rolls(FaultKind::ShortCq, random) {
            return Some(EnterFault::ShortCq(random.below(u64::from(free) + 1) as u32));
        }
        None
    }

    fn scripted_enter(&mut self) -> Option<EnterFault> {
        let due = self.enter_script.iter().position(|&(skip, _)| skip == 0);
        for (skip, _) in &mut self.enter_script {
            *skip = skip.saturating_sub(1);
        }
        due.map(|index| self.enter_script.remove(index).1)
    }
}

/// Takes the fault out of a script that is due at this operation.
fn take_due<T>(script: &mut Vec<(Target, T)>, asked: &Asked) -> Option<T> {
    let mut due = None;
    for (index, (target, _)) in script.iter_mut().enumerate() {
        if !target.matches(asked) {
            continue;
        }
        if target.skip > 0 {
            target.skip -= 1;
        } else if due.is_none() {
            due = Some(index);
        }
    }
    due.map(|index| script.remove(index).1)
}

/// Returns the kind under which a failing enter is counted.
pub(super) fn enter_kind(errno: i32) -> FaultKind {
    match Errno::from_raw_os_error(errno) {
        Errno::INTR => FaultKind::EnterInterrupted,
        Errno::AGAIN => FaultKind::EnterAgain,
        Errno::BUSY => FaultKind::EnterBusy,
        _ => FaultKind::EnterFailed,
    }
}

/// Maximum errno of a file server: the kernel accepts no others.
const SERVER_ERRNO_MAX: u64 = 511;

/// Returns an errno of a file server: any, and often one that has another meaning in the driver, above all
/// `ECANCELED`.
///
/// Ambiguous ones are left out: an operation on a name does not return an error that the name explains, and
/// `EBADF` is returned only for a descriptor that was closed.
fn server_errno(call: &Call, random: &mut Random) -> i32 {
    const NOTABLE: [Errno; 10] = [
        Errno::INTR,
        Errno::AGAIN,
        Errno::NOSYS,
        Errno::OPNOTSUPP,
        Errno::IO,
        Errno::STALE,
        Errno::NOTCONN,
        Errno::BADF,
        Errno::INVAL,
        Errno::TIMEDOUT,
    ];
    const OF_NAMES: [Errno; 7] = [
        Errno::NOENT,
        Errno::EXIST,
        Errno::NOTDIR,
        Errno::ISDIR,
        Errno::NOTEMPTY,
        Errno::INVAL,
        Errno::PERM,
    ];
    use Function::{Linkat, Mkdirat, Renameat, Statx, Symlinkat, Unlinkat};
    let is_of_name = match call {
        Call::Open(_) => true,
        Call::System(System { function, .. }) => {
            matches!(function, Statx | Mkdirat | Unlinkat | Renameat | Linkat | Symlinkat)
        }
        _ => false,
    };
    loop {
        let errno = match random.below(3) {
            0 => Errno::CANCELED,
            1 => NOTABLE[random.below(NOTABLE.len() as u64) as usize],
            _ => Errno::from_raw_os_error(1 + random.below(SERVER_ERRNO_MAX) as i32),
        };
        let is_told_apart = matches!(call, Call::Close { .. })
            || errno != Errno::BADF && !(is_of_name && OF_NAMES.contains(&errno));
        if is_told_apart {
            return errno.raw_os_error();
        }
    }
}

/// Returns the number of bytes that an operation may move; for a vector the number of its parts, which is
/// less.
fn len(call: &Call) -> u64 {
    match call {
        Call::Transfer(Transfer { buffers: Buffers::One { len, .. }, .. }) => (*len).into(),
        Call::Transfer(Transfer { buffers: Buffers::Many { count, .. }, .. }) => (*count).into(),
        Call::Socket(SocketCall { verb: Verb::Send | Verb::Recv, args, .. }) => args[1] as u64,
        Call::CopyFileRange { len, .. } => (*len).into(),
        Call::System(System { function: Function::Getdents, args }) => args[2] as u64,
        Call::System(System { function: Function::Sendfile, args }) => args[3] as u64,
        _ => 1,
    }
}

/// Returns the possible errors of an operation on a real machine, however correct the request. None for
/// operations on which a driver relies: nop and cancel.
fn errnos(call: &Call) -> &'static [Errno] {
    use Function as F;
    match call {
        Call::Open(_) => &[Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::INTR, Errno::IO],
        Call::Transfer(transfer) if transfer.direction == Direction::Read => {
            &[Errno::IO, Errno::INTR, Errno::AGAIN, Errno::NOMEM, Errno::CANCELED]
        }
        Call::Transfer(_) => {
            &[Errno::IO, Errno::NOSPC, Errno::DQUOT, Errno::INTR, Errno::AGAIN, Errno::CANCELED]
        }
        Call::Close { .. } => &[Errno::IO, Errno::INTR],
        Call::Poll { .. } => &[Errno::NOMEM, Errno::CANCELED],
        Call::CopyFileRange { .. } => &[Errno::IO, Errno::NOSPC, Errno::DQUOT, Errno::NOMEM],
        Call::AcceptMany(_) | Call::Socket(SocketCall { verb: Verb::Accept, .. }) => &[
            Errno::CONNABORTED,
            Errno::MFILE,
            Errno::NFILE,
            Errno::NOBUFS,
            Errno::NOMEM,
            Errno::INTR,
            Errno::CANCELED,
        ],
        Call::Socket(SocketCall { verb: Verb::Connect, .. }) => &[
            Errno::CONNREFUSED,
            Errno::TIMEDOUT,
            Errno::NETUNREACH,
            Errno::HOSTUNREACH,
            Errno::ADDRNOTAVAIL,
            Errno::INTR,
            Errno::CANCELED,
        ],
        Call::Socket(SocketCall { verb: Verb::Send | Verb::SendMessage, .. }) => {
            &[Errno::NOBUFS, Errno::NOMEM, Errno::INTR, Errno::AGAIN, Errno::CANCELED]
        }
        Call::Socket(_) | Call::RecvMany { .. } => {
            &[Errno::NOMEM, Errno::INTR, Errno::AGAIN, Errno::CANCELED]
        }
        Call::System(System { function, .. }) => match function {
            F::Fsync | F::Fdatasync | F::Syncfs => &[Errno::IO, Errno::NOSPC, Errno::DQUOT],
            F::Statx | F::Getdents | F::Readlinkat => &[Errno::IO, Errno::NOMEM, Errno::INTR],
            F::Mkdirat | F::Symlinkat | F::Linkat | F::Renameat => {
                &[Errno::IO, Errno::NOSPC, Errno::DQUOT, Errno::NOMEM]
            }
            F::Unlinkat | F::Ftruncate => &[Errno::IO, Errno::NOSPC, Errno::INTR],
            F::Fallocate => &[Errno::IO, Errno::NOSPC, Errno::DQUOT, Errno::INTR],
            F::Fsetxattr | F::Fgetxattr => &[Errno::IO, Errno::NOSPC, Errno::NOMEM],
            F::Fchmod | F::Fchmodat | F::Fchmodat2 => &[Errno::IO, Errno::ROFS],
            F::Fchown | F::Fchownat | F::Utimensat => &[Errno::IO, Errno::ROFS],
            F::Sendfile => &[Errno::IO, Errno::NOMEM, Errno::INTR, Errno::AGAIN],
            F::Socket => &[Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM],
            F::Bind | F::Listen => &[Errno::ADDRINUSE, Errno::NOMEM, Errno::ACCESS],
            _ => &[],
        },
        Call::Nop | Call::Cancel { .. } | Call::Flock { .. } | Call::AwaitWriter { .. } => &[],
    }
}

#[cfg(test)]
mod tests {
    use sakia_ring::Sqe;

    use super::*;

    fn asked(user_data: u64, sqe: Sqe) -> Asked {
        // SAFETY: none of these names memory.
        unsafe { Asked::by_entry(&sqe.user_data(user_data), None) }
    }

    #[test]
    fn a_script_hits_the_operations_that_it_names_in_order() {
        let mut faults = Faults::new();
        let mut random = Random::new(0);
        faults.script(Target::opcode(Opcode::FSYNC).skip(1), Fault::Errno(5));
        faults.script(Target::opcode(Opcode::FSYNC), Fault::Stuck);
        faults.script(Target::opcode(Opcode::FSYNC), Fault::Held);
        faults.script(Target::user_data(9), Fault::Duplicate);
        let fsync = asked(0, Sqe::fsync(3, false));

        let plan = faults.for_op(&asked(9, Sqe::nop()), &mut random);
        assert!(plan.duplicate && !plan.stuck && plan.errno.is_none());
        let plan = faults.for_op(&fsync, &mut random);
        assert!(plan.stuck && plan.errno.is_none());
        let plan = faults.for_op(&fsync, &mut random);
        assert!(!plan.stuck && plan.errno == Some(5));
        assert_eq!(faults.scripted(), 1);
        let plan = faults.for_op(&fsync, &mut random);
        assert!(plan.held);
        assert_eq!(faults.scripted(), 0);
    }

    #[test]
    fn enter_faults_come_when_their_turn_is() {
        let mut faults = Faults::new();
        let mut random = Random::new(0);
        faults.script_enter(1, EnterFault::Partial(0));
        faults.script_enter(0, EnterFault::Errno(4));
        assert_eq!(faults.for_enter(1, 1, &mut random), Some(EnterFault::Errno(4)));
        assert_eq!(faults.for_enter(1, 1, &mut random), Some(EnterFault::Partial(0)));
        assert_eq!(faults.for_enter(1, 1, &mut random), None);
    }

    #[test]
    fn what_a_driver_relies_on_does_not_fail_by_chance() {
        let mut faults = Faults::new();
        let mut random = Random::new(0);
        for kind in [FaultKind::Errno, FaultKind::Restart, FaultKind::Stuck] {
            faults.set(kind, u16::MAX);
        }
        for sqe in [Sqe::nop(), Sqe::cancel(1)] {
            let plan = faults.for_op(&asked(0, sqe), &mut random);
            assert!(plan.errno.is_none() && !plan.stuck);
        }
        let plan = faults.for_op(&asked(0, Sqe::close(3)), &mut random);
        assert!(plan.errno.is_some() && !plan.stuck);
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes 120,000 draws")]
    fn a_server_sends_every_errno_that_it_can() {
        let mut faults = Faults::new();
        let mut random = Random::new(0);
        faults.set(FaultKind::ServerErrno, u16::MAX);
        for sqe in [Sqe::close(3), Sqe::fsync(3, false)] {
            let asked = asked(0, sqe);
            let draws = (0..60_000).filter_map(|_| faults.for_op(&asked, &mut random).server_errno);
            let seen: std::collections::BTreeSet<i32> = draws.collect();
            let all = 1..=SERVER_ERRNO_MAX as i32;
            let badf = Errno::BADF.raw_os_error();
            assert!(
                seen.into_iter()
                    .eq(all.filter(|&errno| { sqe.opcode == Opcode::CLOSE || errno != badf }))
            );
        }
    }
}
