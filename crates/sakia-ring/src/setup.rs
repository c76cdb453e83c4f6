//! Creating a ring: the ladder from the best configuration down to a refusal.
//!
//! Features are probed by trying them, never by the kernel's version. Every step down leaves its reason in
//! the [`SetupReport`]. A kernel that offers no usable ring is a *refusal* ([`SetupError::is_refusal`]). Any
//! other failure, such as having no descriptor left, gives no ring either; in both cases the caller may use
//! another way of doing I/O.
//!
//! A call interrupted by a signal is repeated; after `EAGAIN` calls are repeated up to three times per
//! set-up, with pauses of 7 ms in total; see [`Patience`].
//!
//! A ring is always created disabled, since the kernel accepts a region for registered waits only then, and
//! enabled on the thread that will own it. Source: `io_uring_setup(2)`.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::Resource;

use crate::fork::Sentinel;
use crate::host::{Host, Kernel};
use crate::ring::{DisabledRing, Parts, Ring, next_ring_id};
use crate::shared::{CQ_ENTRIES_MAX, Queues, SQ_ENTRIES_MAX};
use crate::sys::{self, Params};
use crate::wait::WaitRegion;

/// Setup flags that every usable ring has: kernel 6.1.
const REQUIRED: u32 = sys::IORING_SETUP_SINGLE_ISSUER
    | sys::IORING_SETUP_DEFER_TASKRUN
    | sys::IORING_SETUP_TASKRUN_FLAG
    | sys::IORING_SETUP_SUBMIT_ALL
    | sys::IORING_SETUP_CQSIZE
    | sys::IORING_SETUP_CLAMP
    | sys::IORING_SETUP_R_DISABLED;

/// Features that every usable ring has; every 6.1 kernel has them.
const REQUIRED_FEATURES: u32 = sys::IORING_FEAT_SINGLE_MMAP
    | sys::IORING_FEAT_NODROP
    | sys::IORING_FEAT_SUBMIT_STABLE
    | sys::IORING_FEAT_EXT_ARG;

/// The ladder shrinks a submission queue no further than this.
const SQ_ENTRIES_MIN: u32 = 32;

/// Requested configuration of a ring. Sizes are requests: see [`SetupReport`] for the granted ones.
///
/// # Examples
/// ```
/// use sakia_ring::Ring;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let ring = Ring::builder().sq_entries(10).cq_entries(100).build()?;
/// assert_eq!((ring.sq_entries(), ring.cq_entries()), (16, 128), "powers of two");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Builder<H: Host = Kernel> {
    sq_entries: u32,
    cq_entries: u32,
    registered_fd: bool,
    registered_wait: bool,
    sq_array: bool,
    restrictions: Vec<Restriction>,
    host: H,
}

impl Builder {
    /// Returns a builder for 256 submission and 4096 completion entries (about 84 KiB of locked memory).
    pub fn new() -> Self {
        Self::with_host(Kernel)
    }
}

impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}

impl<H: Host> Builder<H> {
    /// Returns the same builder, on an embedder's host.
    pub fn with_host(host: H) -> Self {
        Self {
            sq_entries: 256,
            cq_entries: 4096,
            registered_fd: true,
            registered_wait: true,
            sq_array: false,
            restrictions: Vec::new(),
            host,
        }
    }

    /// Requests this number of submission entries. Rounded up to a power of two; 1 to 32,768.
    ///
    /// # Examples
    /// See [`Builder`](Builder#examples).
    #[must_use]
    pub fn sq_entries(mut self, entries: u32) -> Self {
        self.sq_entries = entries;
        self
    }

    /// Requests this number of completion entries. Rounded up to a power of two; at least the number of
    /// submission entries, at most 65,536.
    ///
    /// # Examples
    /// See [`Builder`](Builder#examples).
    #[must_use]
    pub fn cq_entries(mut self, entries: u32) -> Self {
        self.cq_entries = entries;
        self
    }

    /// Returns the requested sizes of the submission and the completion queue, in entries.
    pub fn wanted_entries(&self) -> (u32, u32) {
        queue_sizes(self.sq_entries, self.cq_entries)
    }

    /// Enables or disables registering the ring's descriptor, which makes each enter a little cheaper. On by
    /// default. A thread has 16 places for them; a ring that gets none works without.
    #[must_use]
    pub fn registered_fd(mut self, registered: bool) -> Self {
        self.registered_fd = registered;
        self
    }

    /// Enables or disables registering memory for the timeouts of waits (kernel 6.13). On by default; if it
    /// is refused, the ring passes timeouts with each call.
    #[must_use]
    pub fn registered_wait(mut self, registered: bool) -> Self {
        self.registered_wait = registered;
        self
    }

    /// Keeps or drops the indirection array that kernels before 6.6 need. Off by default; the builder adds
    /// the array when the kernel requires it.
    #[must_use]
    pub fn sq_array(mut self, array: bool) -> Self {
        self.sq_array = array;
        self
    }

    /// Restricts the ring to these requests, permanently. With none, all are allowed.
    ///
    /// # Examples
    /// ```
    /// use sakia_ring::{Cqe, Opcode, Restriction, Ring, Sqe};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut ring = Ring::builder().restrict([Restriction::Opcode(Opcode::NOP)]).build()?;
    /// // SAFETY: neither names memory or a descriptor.
    /// let pushed = unsafe { (ring.push(Sqe::nop()), ring.push(Sqe::cancel_all())) };
    /// assert!(pushed.0.is_some() && pushed.1.is_some());
    /// ring.enter(2, None)?;
    /// let mut completions = [Cqe::default(); 2];
    /// assert_eq!(ring.reap(&mut completions), 2);
    /// assert!(completions[0].result().is_ok() && completions[1].result().is_err());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn restrict(mut self, allowed: impl IntoIterator<Item = Restriction>) -> Self {
        self.restrictions.extend(allowed);
        self
    }

    /// Sets the ring up for the calling thread.
    ///
    /// # Errors
    /// [`SetupError`], which tells a refusal from another failure.
    ///
    /// # Examples
    /// See [`Builder`](Builder#examples).
    pub fn build(self) -> Result<Ring<H>, SetupError> {
        self.build_disabled()?.enable()
    }

    /// Sets the ring up without an owner; the thread that will own it enables it.
    ///
    /// # Errors
    /// [`SetupError`], which tells a refusal from another failure.
    ///
    /// # Examples
    /// See [`DisabledRing`](DisabledRing#examples).
    pub fn build_disabled(self) -> Result<DisabledRing<H>, SetupError> {
        let mut report = SetupReport::default();
        let mut patience = Patience::new();
        let sentinel = patience
            .attempt(Sentinel::new)
            .map_err(|error| SetupError::new("madvise", error, &report))?;
        let (fd, queues, params) = self.descend(&mut report, &mut patience)?;
        report.sq_entries = params.sq_entries;
        report.cq_entries = params.cq_entries;
        report.setup_flags = params.flags;
        report.features = params.features;
        let mut parts = Parts {
            queues,
            wait: None,
            sentinel,
            origin: sentinel,
            id: next_ring_id(),
            fd,
            host: self.host,
        };
        if params.features & REQUIRED_FEATURES != REQUIRED_FEATURES {
            let error = io::Error::from(Errno::INVAL);
            return Err(SetupError::new("io_uring_setup", error, &report));
        }
        if self.registered_wait {
            match patience.attempt(|| WaitRegion::register(&parts.host, parts.fd.as_fd())) {
                Ok(wait) => parts.wait = Some(wait),
                Err(error) => report.step("registered waits are off", &error),
            }
            report.registered_wait = parts.wait.is_some();
        }
        let restricted = patience.attempt(|| register_restrictions(&parts, &self.restrictions));
        if let Err(error) = restricted {
            return Err(SetupError::new("io_uring_register(RESTRICTIONS)", error, &report));
        }
        Ok(DisabledRing { parts, registered_fd: self.registered_fd, report, patience })
    }

    /// Reduces the request until the kernel grants a ring.
    fn descend(
        &self,
        report: &mut SetupReport,
        patience: &mut Patience,
    ) -> Result<(OwnedFd, Queues, Params), SetupError> {
        let (mut sq_entries, mut cq_entries) = self.wanted_entries();
        let sq_min = sq_entries.min(SQ_ENTRIES_MIN);
        let mut optional = if self.sq_array { 0 } else { sys::IORING_SETUP_NO_SQARRAY };
        loop {
            let attempt = patience.attempt(|| {
                // SAFETY: plain integers, for which zero is a value.
                let mut params: Params = unsafe { std::mem::zeroed() };
                params.flags = REQUIRED | optional;
                params.cq_entries = cq_entries;
                // SAFETY: the flags set above have neither NO_MMAP nor ATTACH_WQ, so that the parameters
                // name no memory and no ring.
                let fd = unsafe { self.host.setup(sq_entries, &mut params) }?;
                let queues = Queues::map(&self.host, fd.as_fd(), &params)?;
                Ok((fd, queues, params))
            });
            let error = match attempt {
                Ok(granted) => return Ok(granted),
                Err(error) => error,
            };
            match Errno::from_io_error(&error) {
                Some(Errno::INVAL) if optional != 0 => {
                    report.step("the indirection array is on (NO_SQARRAY needs 6.6)", &error);
                    optional = 0;
                }
                Some(Errno::NOMEM) if cq_entries > sq_entries * 4 => {
                    report.step("the completion queue is halved", &error);
                    cq_entries /= 2;
                }
                Some(Errno::NOMEM) if sq_entries > sq_min => {
                    report.step("both queues are halved", &error);
                    sq_entries /= 2;
                    cq_entries /= 2;
                }
                _ => return Err(SetupError::new("io_uring_setup", error, report)),
            }
        }
    }
}

/// Repeats calls that fail for a temporary reason.
#[derive(Debug)]
pub(crate) struct Patience {
    /// The remaining repeats after interruptions by signals; the limit is far above the number of real
    /// signals.
    interruptions_left: u32,
    /// The pauses before the remaining repeats after `EAGAIN`.
    pauses: std::slice::Iter<'static, Duration>,
}

impl Patience {
    /// Less than 10 ms in total.
    const PAUSES: [Duration; 3] =
        [Duration::from_millis(1), Duration::from_millis(2), Duration::from_millis(4)];

    fn new() -> Self {
        Self { interruptions_left: 1000, pauses: Self::PAUSES.iter() }
    }

    /// Makes `call` until it succeeds, fails permanently, or no repeat is left.
    pub(crate) fn attempt<T>(&mut self, call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        self.attempt_after(&[Errno::AGAIN], call)
    }

    /// As [`attempt`](Patience::attempt), pausing after any of these errnos.
    pub(crate) fn attempt_after<T>(
        &mut self,
        passing: &[Errno],
        mut call: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            let error = match call() {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            match Errno::from_io_error(&error) {
                Some(Errno::INTR) if self.interruptions_left > 0 => self.interruptions_left -= 1,
                Some(errno) if passing.contains(&errno) => match self.pauses.next() {
                    Some(pause) => {
                        let nanos = i64::from(pause.subsec_nanos());
                        let request = rustix::thread::Timespec { tv_sec: 0, tv_nsec: nanos };
                        // A signal ends the pause early, which does no harm.
                        let _ = rustix::thread::nanosleep(&request);
                    }
                    None => return Err(error),
                },
                _ => return Err(error),
            }
        }
    }
}

/// Returns the sizes that the kernel grants for these requests.
pub(crate) fn queue_sizes(sq_entries: u32, cq_entries: u32) -> (u32, u32) {
    let sq_entries = sq_entries.clamp(1, SQ_ENTRIES_MAX).next_power_of_two();
    let cq_entries = cq_entries.clamp(sq_entries, CQ_ENTRIES_MAX).next_power_of_two();
    (sq_entries, cq_entries)
}

/// A request that a restricted ring still allows. Source: `io_uring_register(2)`,
/// `IORING_REGISTER_RESTRICTIONS`.
///
/// # Examples
/// See [`Builder::restrict`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Restriction {
    /// Entries with this opcode.
    Opcode(crate::Opcode),
    /// Entries with any of these flags and no other flags.
    FlagsAllowed(u8),
    /// This `IORING_REGISTER_*` call.
    Register(u8),
}

fn register_restrictions<H: Host>(parts: &Parts<H>, allowed: &[Restriction]) -> io::Result<()> {
    use sys::io_uring_register_restriction_op as op;
    if allowed.is_empty() {
        return Ok(());
    }
    let entry = |restriction: &Restriction| {
        let (kind, value) = match *restriction {
            Restriction::Opcode(opcode) => (op::IORING_RESTRICTION_SQE_OP, opcode.0),
            Restriction::FlagsAllowed(flags) => (op::IORING_RESTRICTION_SQE_FLAGS_ALLOWED, flags),
            Restriction::Register(call) => (op::IORING_RESTRICTION_REGISTER_OP, call),
        };
        sys::io_uring_restriction {
            opcode: kind as u16,
            __bindgen_anon_1: sys::io_uring_restriction__bindgen_ty_1 { sqe_op: value },
            resv: 0,
            resv2: [0; 3],
        }
    };
    let mut list: Vec<_> = allowed.iter().map(entry).collect();
    let opcode = sys::io_uring_register_op::IORING_REGISTER_RESTRICTIONS;
    // SAFETY: an array of `list.len()` restrictions, which the kernel copies.
    unsafe { parts.register(opcode, list.as_mut_ptr(), list.len() as u32)? };
    Ok(())
}

/// The granted configuration and every refused request.
///
/// # Examples
/// ```
/// use sakia_ring::Ring;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let ring = Ring::builder().build()?;
/// let report = ring.report();
/// assert!(report.sq_entries >= 256);
/// println!("{}", report.setup_flag_names().join(", "));
/// for step in &report.steps {
///     println!("refused: {step}");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SetupReport {
    /// Submission entries granted.
    pub sq_entries: u32,
    /// Completion entries granted.
    pub cq_entries: u32,
    /// The kernel's `IORING_SETUP_*` flags in use.
    pub setup_flags: u32,
    /// The kernel's `IORING_FEAT_*` bits.
    pub features: u32,
    /// The ring's descriptor has one of the thread's 16 registered places.
    pub registered_fd: bool,
    /// Timeouts of waits are passed through registered memory.
    pub registered_wait: bool,
    /// Each step down from the best configuration, in order.
    pub steps: Vec<SetupStep>,
}

/// One step down from the best configuration.
///
/// # Examples
/// See [`SetupReport`](SetupReport#examples).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetupStep {
    /// The difference from then on.
    pub what: &'static str,
    /// The errno that caused it.
    pub errno: i32,
}

impl fmt::Display for SetupStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, io::Error::from_raw_os_error(self.errno))
    }
}

impl SetupReport {
    pub(crate) fn step(&mut self, what: &'static str, error: &io::Error) {
        self.steps.push(SetupStep { what, errno: error.raw_os_error().unwrap_or(0) });
    }

    /// Returns the names of the granted setup flags, without their prefix.
    ///
    /// # Examples
    /// See [`SetupReport`](SetupReport#examples).
    pub fn setup_flag_names(&self) -> Vec<&'static str> {
        names(self.setup_flags, SETUP_FLAGS)
    }

    /// Returns the names of the kernel's features, without their prefix.
    pub fn feature_names(&self) -> Vec<&'static str> {
        names(self.features, FEATURES)
    }

    /// Returns whether waits are excluded from the system's I/O wait statistics (kernel 6.15).
    pub fn no_iowait(&self) -> bool {
        self.features & sys::IORING_FEAT_NO_IOWAIT != 0
    }
}

fn names(bits: u32, table: &[(u32, &'static str)]) -> Vec<&'static str> {
    table.iter().filter(|(bit, _)| bits & bit != 0).map(|&(_, name)| name).collect()
}

const SETUP_FLAGS: &[(u32, &str)] = &[
    (sys::IORING_SETUP_IOPOLL, "IOPOLL"),
    (sys::IORING_SETUP_SQPOLL, "SQPOLL"),
    (sys::IORING_SETUP_CQSIZE, "CQSIZE"),
    (sys::IORING_SETUP_CLAMP, "CLAMP"),
    (sys::IORING_SETUP_R_DISABLED, "R_DISABLED"),
    (sys::IORING_SETUP_SUBMIT_ALL, "SUBMIT_ALL"),
    (sys::IORING_SETUP_TASKRUN_FLAG, "TASKRUN_FLAG"),
    (sys::IORING_SETUP_SINGLE_ISSUER, "SINGLE_ISSUER"),
    (sys::IORING_SETUP_DEFER_TASKRUN, "DEFER_TASKRUN"),
    (sys::IORING_SETUP_NO_SQARRAY, "NO_SQARRAY"),
];

const FEATURES: &[(u32, &str)] = &[
    (sys::IORING_FEAT_SINGLE_MMAP, "SINGLE_MMAP"),
    (sys::IORING_FEAT_NODROP, "NODROP"),
    (sys::IORING_FEAT_SUBMIT_STABLE, "SUBMIT_STABLE"),
    (sys::IORING_FEAT_RW_CUR_POS, "RW_CUR_POS"),
    (sys::IORING_FEAT_CUR_PERSONALITY, "CUR_PERSONALITY"),
    (sys::IORING_FEAT_FAST_POLL, "FAST_POLL"),
    (sys::IORING_FEAT_POLL_32BITS, "POLL_32BITS"),
    (sys::IORING_FEAT_SQPOLL_NONFIXED, "SQPOLL_NONFIXED"),
    (sys::IORING_FEAT_EXT_ARG, "EXT_ARG"),
    (sys::IORING_FEAT_NATIVE_WORKERS, "NATIVE_WORKERS"),
    (sys::IORING_FEAT_RSRC_TAGS, "RSRC_TAGS"),
    (sys::IORING_FEAT_CQE_SKIP, "CQE_SKIP"),
    (sys::IORING_FEAT_LINKED_FILE, "LINKED_FILE"),
    (sys::IORING_FEAT_REG_REG_RING, "REG_REG_RING"),
    (sys::IORING_FEAT_RECVSEND_BUNDLE, "RECVSEND_BUNDLE"),
    (sys::IORING_FEAT_MIN_TIMEOUT, "MIN_TIMEOUT"),
    (sys::IORING_FEAT_RW_ATTR, "RW_ATTR"),
    (sys::IORING_FEAT_NO_IOWAIT, "NO_IOWAIT"),
];

/// The reason why there is no ring.
///
/// Its `Display` is one line: the failed call, the errno, the likely cause and what to change.
///
/// # Examples
/// ```
/// use sakia_ring::Ring;
///
/// match Ring::builder().build() {
///     Ok(ring) => assert!(ring.sq_entries() > 0),
///     Err(error) if error.is_refusal() => println!("no ring here: {error}"),
///     Err(error) => println!("{error}; try again later"),
/// }
/// ```
#[derive(Debug)]
pub struct SetupError {
    /// The call that failed.
    call: &'static str,
    source: io::Error,
    /// The steps taken before.
    steps: Vec<SetupStep>,
}

impl SetupError {
    /// Returns the failure of `call`, for other set-up calls that a user of a ring depends on.
    pub fn new(call: &'static str, source: io::Error, report: &SetupReport) -> Self {
        Self { call, source, steps: report.steps.clone() }
    }

    /// Returns the errno of the failed call; `None` if the failure was not a system call's.
    pub fn raw_os_error(&self) -> Option<i32> {
        self.source.raw_os_error()
    }

    /// Returns the steps down taken before this failure.
    pub fn steps(&self) -> &[SetupStep] {
        &self.steps
    }

    /// Returns whether this machine offers no usable ring: forbidden, absent, too old, or no locked memory
    /// left. False for failures that are not about rings, such as `EMFILE`.
    ///
    /// # Examples
    /// See [`SetupError`](SetupError#examples).
    pub fn is_refusal(&self) -> bool {
        matches!(
            self.errno(),
            Some(
                Errno::NOSYS
                    | Errno::PERM
                    | Errno::ACCESS
                    | Errno::OPNOTSUPP
                    | Errno::INVAL
                    | Errno::NOMEM
            )
        )
    }

    fn errno(&self) -> Option<Errno> {
        Errno::from_io_error(&self.source)
    }

    /// Returns the likely cause and its remedy, in one sentence; `None` if the errno says it all.
    pub fn hint(&self) -> Option<String> {
        let hint = match self.errno()? {
            Errno::NOSYS => "the kernel has no io_uring, or a seccomp filter hides it; \
                 use kernel 6.1 or later and allow the io_uring system calls in the filter"
                .into(),
            Errno::PERM | Errno::ACCESS => match disabled_sysctl() {
                Some(level @ 1..) => format!(
                    "kernel.io_uring_disabled is {level}; set it to 0 with sysctl{}",
                    if level == 1 {
                        ", or add the user's group to kernel.io_uring_group"
                    } else {
                        ""
                    }
                ),
                _ => "a seccomp filter or security module forbids it (containers do by default); \
                      allow io_uring_setup, io_uring_enter and io_uring_register there"
                    .into(),
            },
            Errno::INVAL | Errno::OPNOTSUPP => {
                "the kernel lacks a needed feature (DEFER_TASKRUN and SINGLE_ISSUER are from 6.1); \
                 use kernel 6.1 or later"
                    .into()
            }
            Errno::NOMEM => {
                let limit = rustix::process::getrlimit(Resource::Memlock).current;
                let limit =
                    limit.map_or("unlimited".into(), |bytes| format!("{} KiB", bytes / 1024));
                format!(
                    "the limit on locked memory ({limit}, shared by all processes of the user) is \
                     used up; raise it with `ulimit -l` or LimitMEMLOCK="
                )
            }
            Errno::MFILE => "the process has no descriptor left; raise `ulimit -n`".into(),
            Errno::NFILE => "the system has no descriptor left; raise fs.file-max".into(),
            _ => return None,
        };
        Some(hint)
    }
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.call, self.source)?;
        match self.hint() {
            Some(hint) => write!(f, ": {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for SetupError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

impl From<SetupError> for io::Error {
    /// Keeps the kind; [`SetupError::raw_os_error`] of the inner error has the errno.
    fn from(error: SetupError) -> Self {
        io::Error::new(error.source.kind(), error)
    }
}

/// Reads the sysctl `kernel.io_uring_disabled`: 0 open, 1 for a group only, 2 closed. `None` before 6.6.
pub fn disabled_sysctl() -> Option<u8> {
    use rustix::fs::{Mode, OFlags};
    let path = "/proc/sys/kernel/io_uring_disabled";
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = [0; 4];
    let len = rustix::io::read(&file, &mut text).ok()?;
    std::str::from_utf8(&text[..len]).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_what_the_kernel_grants() {
        let sizes = [
            ((0, 0), (1, 1)),
            ((1, 1), (1, 1)),
            ((3, 5), (4, 8)),
            ((100, 0), (128, 128)),
            ((256, 4096), (256, 4096)),
            ((32_768, 65_536), (32_768, 65_536)),
            ((32_769, 65_537), (32_768, 65_536)),
            ((u32::MAX, u32::MAX), (32_768, 65_536)),
            ((u32::MAX, 0), (32_768, 32_768)),
        ];
        for ((sq, cq), granted) in sizes {
            assert_eq!(queue_sizes(sq, cq), granted, "{sq}, {cq}");
        }
    }

    #[test]
    fn each_flag_has_a_name_of_its_own() {
        for table in [SETUP_FLAGS, FEATURES] {
            let all = table.iter().fold(0, |all, (bit, _)| {
                assert!(bit.is_power_of_two() && all & bit == 0);
                all | bit
            });
            assert_eq!(names(all, table).len(), table.len());
            assert!(names(0, table).is_empty());
        }
        assert!(names(REQUIRED, SETUP_FLAGS).len() as u32 == REQUIRED.count_ones());
    }

    #[test]
    fn an_answer_that_makes_no_sense_is_not_a_refusal() {
        let source = io::Error::new(io::ErrorKind::InvalidData, "nonsense");
        let error = SetupError::new("io_uring_setup", source, &SetupReport::default());
        assert!(!error.is_refusal());
        assert_eq!((error.raw_os_error(), error.hint()), (None, None));
        assert_eq!(error.to_string(), "io_uring_setup: nonsense");
    }
}
