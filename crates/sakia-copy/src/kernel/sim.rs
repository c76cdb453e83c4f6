//! System calls that fail on command.
//!
//! A [`Plan`] chooses the calls of a thread that fail, and their faults. The same plan on the same tree has
//! the same effect, so that each single failure can be tried, and a bad one be reproduced.

use std::cell::RefCell;

use rustix::io::Errno;

/// The fault of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It does nothing, and returns the error.
    Errno(Errno),
    /// It moves half of the requested bytes.
    Short,
}

/// The calls that fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// The call of this number, from 0.
    One(usize, Fault),
    /// The call of this number, and all removals after it.
    OneAndRemovals(usize, Fault),
    /// All calls with these names.
    Refused(&'static [&'static str], Errno),
    /// The process is killed before this one: it and all after it do nothing.
    Killed(usize),
    /// One in this many calls, at random, with one of its [faults].
    Random { one_in: u64, seed: u64 },
}

/// The plan of a thread, and its calls so far.
#[derive(Default)]
struct PlanState {
    plan: Option<Plan>,
    calls: Vec<&'static str>,
    /// A callback before the call of this number, from 0.
    before: Option<(usize, Box<dyn FnOnce()>)>,
}

thread_local! {
    static STATE: RefCell<PlanState> = RefCell::default();
}

/// Runs `act` with that plan. Also returns the names of the thread's system calls meanwhile.
pub(crate) fn run<T>(plan: Option<Plan>, act: impl FnOnce() -> T) -> (T, Vec<&'static str>) {
    STATE.set(PlanState { plan, ..PlanState::default() });
    let value = act();
    (value, STATE.take().calls)
}

/// As [`run`]; `stop` is called before the call of this number, from 0.
pub(crate) fn run_until<T>(
    plan: Option<Plan>,
    call: usize,
    stop: impl FnOnce() + 'static,
    act: impl FnOnce() -> T,
) -> (T, Vec<&'static str>) {
    let before = Some((call, Box::new(stop) as Box<dyn FnOnce()>));
    STATE.set(PlanState { plan, before, ..PlanState::default() });
    let value = act();
    (value, STATE.take().calls)
}

/// Sets the plan of this thread from now on, and a callback before its next call.
pub(crate) fn set(plan: Option<Plan>, before: Option<Box<dyn FnOnce()>>) {
    let before = before.map(|before| (0, before));
    STATE.set(PlanState { plan, before, ..PlanState::default() });
}

/// Returns the possible faults of a call. Those of the first list lose nothing: the call is repeated, or
/// replaced by another.
pub(crate) fn faults(call: &str) -> (&'static [Fault], &'static [Fault]) {
    use Fault::{Errno as E, Short};
    const INTERRUPTED: &[Fault] = &[E(Errno::INTR)];
    const TRANSFERS: &[Fault] = &[E(Errno::INTR), Short];
    const MADE: &[Fault] = &[E(Errno::ACCESS), E(Errno::NOSPC), E(Errno::IO), E(Errno::ROFS)];
    const CHANGED: &[Fault] = &[E(Errno::PERM), E(Errno::IO)];
    /// Answers of a filter, an old kernel or a file system to a call that has an alternative.
    const REFUSED: [Fault; 4] =
        [E(Errno::PERM), E(Errno::NOSYS), E(Errno::OPNOTSUPP), E(Errno::INVAL)];
    const BROKEN: &[Fault] = &[E(Errno::IO)];
    match call {
        "openat" => (INTERRUPTED, MADE),
        "openat2" => (
            &[E(Errno::AGAIN), REFUSED[0], REFUSED[1], REFUSED[2], REFUSED[3]],
            &[E(Errno::ACCESS), E(Errno::NOENT), E(Errno::IO), E(Errno::NFILE)],
        ),
        "preadv2" => {
            (&[E(Errno::AGAIN), REFUSED[0], REFUSED[1], REFUSED[2], REFUSED[3], Short], BROKEN)
        }
        "pread" => (TRANSFERS, BROKEN),
        "pwrite" => (TRANSFERS, &[E(Errno::NOSPC), E(Errno::DQUOT), E(Errno::IO)]),
        "copy_file_range" => (
            &[
                E(Errno::INTR),
                E(Errno::XDEV),
                E(Errno::IO),
                REFUSED[0],
                REFUSED[1],
                REFUSED[2],
                REFUSED[3],
                Short,
            ],
            &[E(Errno::NOSPC)],
        ),
        "sendfile" => (
            &[E(Errno::INTR), E(Errno::IO), REFUSED[0], REFUSED[1], REFUSED[2], REFUSED[3], Short],
            &[E(Errno::NOSPC)],
        ),
        "ioctl_ficlone" | "fadvise" => {
            (&[E(Errno::IO), REFUSED[0], REFUSED[1], REFUSED[2], REFUSED[3]], &[])
        }
        "mkdirat" | "symlinkat" | "mknodat" | "linkat" | "renameat_with" => (INTERRUPTED, MADE),
        "fchmod" | "fchown" | "futimens" | "chmodat" | "chownat" | "utimensat" => {
            (INTERRUPTED, CHANGED)
        }
        "seek" | "entries" => (&[], BROKEN),
        name if name.ends_with("xattr") => (&[], BROKEN),
        _ => (INTERRUPTED, BROKEN),
    }
}

/// Counts a call, and returns its fault.
fn at(call: &'static str) -> Option<Fault> {
    let stop = STATE.with_borrow_mut(|state| {
        let number = state.calls.len();
        state.before.take_if(|(at, _)| *at == number)
    });
    if let Some((_, stop)) = stop {
        stop();
    }
    STATE.with_borrow_mut(|state| {
        let number = state.calls.len();
        state.calls.push(call);
        match state.plan.as_mut()? {
            Plan::One(which, fault) => (*which == number).then_some(*fault),
            Plan::OneAndRemovals(which, _) if number > *which => {
                (call == "unlinkat").then_some(Fault::Errno(Errno::IO))
            }
            Plan::OneAndRemovals(which, fault) => (*which == number).then_some(*fault),
            Plan::Refused(names, errno) => names.contains(&call).then_some(Fault::Errno(*errno)),
            Plan::Killed(which) => (number >= *which).then_some(Fault::Errno(Errno::IO)),
            Plan::Random { one_in, seed } => {
                let mut random = || {
                    *seed = seed
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    *seed >> 33
                };
                if random() % *one_in != 0 {
                    return None;
                }
                let (harmless, others) = faults(call);
                let count = harmless.len() + others.len();
                let chosen = random() as usize % count;
                harmless.iter().chain(others).nth(chosen).copied()
            }
        }
    })
}

/// The calls, under their usual names.
pub(crate) mod calls {
    use std::ffi::CString;
    use std::io::IoSliceMut;
    use std::mem::MaybeUninit;
    use std::num::NonZeroU64;

    use rustix::fd::{AsFd, BorrowedFd};
    use rustix::fs::{
        Advice, AtFlags, Dev, FileType, Gid, IFlags, Mode, OFlags, RawDir, RenameFlags,
        ResolveFlags, SeekFrom, Stat, Timestamps, Uid, XattrFlags,
    };
    use rustix::io::Result;
    use rustix::path::Arg;
    use sakia_driver::{Attempt, calls as driver_calls};

    use super::{Fault, at};
    use crate::kernel::OwnedFd;

    fn gate(call: &'static str) -> Result<()> {
        match at(call) {
            Some(Fault::Errno(errno)) => Err(errno),
            _ => Ok(()),
        }
    }

    /// Returns the number of `len` bytes to move.
    fn cut(call: &'static str, len: usize) -> Result<usize> {
        match at(call) {
            Some(Fault::Errno(errno)) => Err(errno),
            Some(Fault::Short) => Ok(len.div_ceil(2)),
            None => Ok(len),
        }
    }

    macro_rules! gated {
        ($($number:ident fn $name:ident($($argument:ident: $kind:ty),*) -> $value:ty;)*) => {$(
            pub(crate) fn $name($($argument: $kind),*) -> Result<$value> {
                gate(stringify!($name))?;
                Ok(rustix::fs::$name($($argument),*)?.into())
            }
        )*};
    }

    calls_of_fs!(gated);

    pub(crate) fn pread(file: impl AsFd, buf: &mut [u8], offset: u64) -> Result<usize> {
        let len = cut("pread", buf.len())?;
        rustix::io::pread(file, &mut buf[..len], offset)
    }

    pub(crate) fn open_cached(
        dir: impl AsFd,
        path: impl Arg,
        flags: OFlags,
    ) -> Result<Attempt<OwnedFd>> {
        if let Err(errno) = gate("openat2") {
            return Attempt::of(Err(errno));
        }
        let attempt = driver_calls::open_cached(dir, path, flags, ResolveFlags::empty())?;
        Ok(attempt.map(Into::into))
    }

    pub(crate) fn read_nowait(
        file: BorrowedFd<'_>,
        buf: &mut [u8],
        offset: u64,
    ) -> Result<Attempt<usize>> {
        match cut("preadv2", buf.len()) {
            Ok(len) => {
                let mut parts = [IoSliceMut::new(&mut buf[..len])];
                driver_calls::read_nowait(file, &mut parts, Some(offset))
            }
            Err(errno) => Attempt::of(Err(errno)),
        }
    }

    pub(crate) fn read(file: impl AsFd, buf: &mut [u8]) -> Result<usize> {
        let len = cut("read", buf.len())?;
        rustix::io::read(file, &mut buf[..len])
    }

    pub(crate) fn write(file: impl AsFd, buf: &[u8]) -> Result<usize> {
        let len = cut("write", buf.len())?;
        rustix::io::write(file, &buf[..len])
    }

    pub(crate) fn pwrite(file: impl AsFd, buf: &[u8], offset: u64) -> Result<usize> {
        let len = cut("pwrite", buf.len())?;
        rustix::io::pwrite(file, &buf[..len], offset)
    }

    pub(crate) fn copy_file_range(
        from: impl AsFd,
        offset: Option<&mut u64>,
        to: impl AsFd,
        place: Option<&mut u64>,
        len: usize,
    ) -> Result<usize> {
        let len = cut("copy_file_range", len)?;
        rustix::fs::copy_file_range(from, offset, to, place, len)
    }

    pub(crate) fn sendfile(
        to: impl AsFd,
        from: impl AsFd,
        offset: Option<&mut u64>,
        len: usize,
    ) -> Result<usize> {
        let len = cut("sendfile", len)?;
        rustix::fs::sendfile(to, from, offset, len)
    }

    pub(crate) fn entries<F: AsFd>(dir: F, space: &mut [MaybeUninit<u8>]) -> Result<RawDir<'_, F>> {
        gate("entries")?;
        Ok(RawDir::new(dir, space))
    }
}
