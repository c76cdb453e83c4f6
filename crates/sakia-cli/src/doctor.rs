//! `sakia doctor`: the io_uring features of this machine, remedies if there are none, and the driver's
//! behavior on the mounted file systems.
//!
//! First the [`Findings`] are gathered, which are the JSON object; the human layout is made from them.

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use anyhow::Context;
use rustix::process::{Resource, getrlimit};
use sakia_driver::{Auto, Choice, Driver, NoBackend, Policy, Streams};
use sakia_ring::{Opcode, Ring, SetupError, SetupStep};
use serde::{Serialize, Serializer};

use crate::exit::Exit;
use crate::mounts::{self, Failure, Mount, Place};
use crate::name::Shown;
use crate::output::{Format, complain, message, print};

/// Options of `sakia doctor`.
#[derive(Debug)]
pub struct Options {
    pub format: Format,
    /// The policy set in the environment.
    pub policy: Policy,
    /// Paths whose file systems are examined.
    pub places: Vec<Place>,
}

/// The operations that the engine uses.
const USED: [Opcode; 14] = [
    Opcode::NOP,
    Opcode::READ,
    Opcode::WRITE,
    Opcode::READV,
    Opcode::WRITEV,
    Opcode::READ_FIXED,
    Opcode::WRITE_FIXED,
    Opcode::OPENAT,
    Opcode::CLOSE,
    Opcode::STATX,
    Opcode::FSYNC,
    Opcode::POLL_ADD,
    Opcode::ASYNC_CANCEL,
    Opcode::MSG_RING,
];

/// Locked memory below which a ring of the default size may fail beside others of the same user.
const MEMLOCK_COMFORT_BYTES: u64 = 1 << 20;

/// Gathers the findings and prints them.
///
/// # Errors
/// Standard output cannot be written.
pub fn run(options: &Options) -> anyhow::Result<Exit> {
    let findings = Findings::gather(options);
    let text = match options.format {
        Format::Human => findings.to_string(),
        Format::Json => serde_json::to_string(&findings).context("json")?,
    };
    print(text.trim_end())?;
    for Failure { path, error, .. } in &findings.failures {
        complain(format_args!("{}: open: {error}", Shown(path.as_os_str())));
    }
    Ok(match &findings.ring {
        Found::Granted(_) if findings.failures.is_empty() => Exit::Success,
        Found::Granted(_) => Exit::Failure,
        Found::Refused { error, .. } => {
            complain(format_args!("io_uring is not available: {error}"));
            Exit::Failure
        }
    })
}

/// All findings.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename = "doctor")]
struct Findings {
    kernel: Kernel,
    limits: Limits,
    sandbox: Sandbox,
    ring: Found,
    poll: FoundPoll,
    backend: Chosen,
    mounts: Vec<Mount>,
    /// Paths that could not be looked up.
    failures: Vec<Failure>,
    /// Suggested changes, a sentence each.
    advice: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Kernel {
    release: String,
    architecture: String,
    /// CPUs that this process may use.
    cpus: usize,
    /// `kernel.io_uring_disabled`; `null` before 6.6.
    io_uring_disabled: Option<u8>,
    /// `kernel.io_uring_group`.
    io_uring_group: Option<i64>,
}

#[derive(Debug, Serialize)]
struct Limits {
    memlock_bytes: Limit,
    open_files: Limit,
}

/// A resource limit; `null` is unlimited.
#[derive(Clone, Copy, Debug, Serialize)]
struct Limit {
    soft: Option<u64>,
    hard: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Sandbox {
    /// `none`, `strict`, `filter`; `null` if `/proc` does not have it.
    seccomp: Option<&'static str>,
    no_new_privileges: Option<bool>,
    /// Signs of a container.
    container_hints: Vec<String>,
}

/// The outcome of setting up a ring.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Found {
    Granted(Granted),
    Refused {
        available: bool,
        errno: Option<i32>,
        error: String,
        /// The likely cause and the remedy.
        hint: Option<String>,
        steps: Vec<Step>,
    },
}

/// A ring as the kernel granted it.
#[derive(Debug, Serialize)]
struct Granted {
    available: bool,
    sq_entries: u32,
    cq_entries: u32,
    flags: Vec<&'static str>,
    features: Vec<&'static str>,
    registered_fd: bool,
    registered_waits: bool,
    no_iowait: bool,
    steps: Vec<Step>,
    /// `null`: the kernel does not report them.
    operations: Option<Operations>,
}

/// The outcome of an operation on epoll and threads: the available operations, or the error.
#[derive(Debug, Serialize)]
struct FoundPoll {
    available: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    operations: Option<Operations>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// The backend that programs get.
#[derive(Debug, Serialize)]
struct Chosen {
    /// The backend of `auto`; `null` if there is none.
    auto: Option<&'static str>,
    /// The reason.
    why: String,
    /// The value of `SAKIA_DRIVER`.
    wanted: &'static str,
    /// The mode of streams, unless a program sets another one.
    streams: &'static str,
}

/// A step down from the best configuration.
#[derive(Debug, Serialize)]
struct Step {
    what: &'static str,
    errno: i32,
    message: String,
}

impl From<&SetupStep> for Step {
    fn from(step: &SetupStep) -> Self {
        let reason = io::Error::from_raw_os_error(step.errno);
        Self { what: step.what, errno: step.errno, message: message(&reason) }
    }
}

/// The operations in use, and whether the kernel has them.
#[derive(Debug)]
struct Operations(Vec<(String, bool)>);

impl Operations {
    fn used(is_supported: impl Fn(Opcode) -> bool) -> Self {
        let name = |opcode: Opcode| opcode.name().unwrap_or("?").to_ascii_lowercase();
        Self(USED.iter().map(|&opcode| (name(opcode), is_supported(opcode))).collect())
    }

    /// Returns the names of the supported operations, or of the others.
    fn named(&self, supported: bool) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(_, has)| *has == supported).map(|(name, _)| name.as_str())
    }
}

impl Serialize for Operations {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, supported)| (name, supported)))
    }
}

impl Findings {
    fn gather(options: &Options) -> Self {
        // One ring, as in a program: the locked memory of rings is summed up, and stays charged for a while
        // after their end.
        let chosen = Auto::new(Policy::Auto, Ring::builder());
        let (ring, backend) = (Found::of(&chosen), Chosen::of(&chosen, options.policy));
        let wanted = chosen
            .ok()
            .map(|(backend, _)| backend)
            .filter(|backend| options.policy != Policy::Poll || matches!(backend, Auto::Epoll(_)));
        let (mounts, failures) = mounts::gather(&options.places, wanted);
        let mut findings = Self {
            kernel: Kernel::gather(),
            limits: Limits {
                memlock_bytes: Limit::of(Resource::Memlock),
                open_files: Limit::of(Resource::Nofile),
            },
            sandbox: Sandbox::gather(),
            ring,
            poll: FoundPoll::gather(),
            backend,
            mounts,
            failures,
            advice: Vec::new(),
        };
        findings.advice = findings.advise();
        findings
    }

    /// Returns the suggested changes.
    fn advise(&self) -> Vec<String> {
        let mut advice = Vec::new();
        match &self.ring {
            Found::Refused { error, hint, .. } => {
                advice.push(hint.clone().unwrap_or_else(|| error.clone()));
            }
            Found::Granted(Granted { steps, operations, .. }) => {
                for step in steps {
                    advice.push(format!("{}: {}", step.what, remedy(step)));
                }
                let missing: Vec<_> =
                    operations.iter().flat_map(|operations| operations.named(false)).collect();
                if !missing.is_empty() {
                    advice
                        .push(format!("the kernel lacks {}; use a newer one", missing.join(", ")));
                }
            }
        }
        if let Some(soft) = self.limits.memlock_bytes.soft
            && soft < MEMLOCK_COMFORT_BYTES
        {
            advice.push(format!(
                "the limit on locked memory is {} KiB for all rings of the user; raise it with \
                 `ulimit -l` or LimitMEMLOCK=",
                soft / 1024
            ));
        }
        advice
    }
}

/// Returns the remedy of a step down.
fn remedy(step: &Step) -> &'static str {
    match rustix::io::Errno::from_raw_os_error(step.errno) {
        rustix::io::Errno::NOMEM => "raise the limit on locked memory (`ulimit -l`, LimitMEMLOCK=)",
        rustix::io::Errno::BUSY => "fewer rings per thread",
        rustix::io::Errno::INVAL => "a newer kernel has it; nothing is wrong without",
        _ => "a filter may forbid it; nothing is wrong without",
    }
}

impl Kernel {
    fn gather() -> Self {
        let uname = rustix::system::uname();
        let group = fs::read_to_string("/proc/sys/kernel/io_uring_group").ok();
        Self {
            release: uname.release().to_string_lossy().into_owned(),
            architecture: uname.machine().to_string_lossy().into_owned(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            io_uring_disabled: sakia_ring::disabled_sysctl(),
            io_uring_group: group.and_then(|text| text.trim().parse().ok()),
        }
    }
}

impl Limit {
    fn of(resource: Resource) -> Self {
        let limit = getrlimit(resource);
        Self { soft: limit.current, hard: limit.maximum }
    }
}

impl Sandbox {
    fn gather() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.map(str::trim)
        };
        let seccomp = field("Seccomp").and_then(|mode| match mode {
            "0" => Some("none"),
            "1" => Some("strict"),
            "2" => Some("filter"),
            _ => None,
        });
        let no_new_privileges = field("NoNewPrivs").map(|flag| flag == "1");
        Self { seccomp, no_new_privileges, container_hints: container_hints() }
    }
}

/// Returns the signs of a container in files.
fn container_hints() -> Vec<String> {
    let files = [
        "/.dockerenv",
        "/run/.containerenv",
        "/run/systemd/container",
        "/var/run/secrets/kubernetes.io",
    ];
    let files = files.into_iter().filter(|file| Path::new(file).exists());
    let cgroups = fs::read_to_string("/proc/1/cgroup").unwrap_or_default();
    let words = ["docker", "containerd", "kubepods", "libpod", "lxc", "crio"];
    let words = words.into_iter().filter(|word| cgroups.contains(word));
    let words = words.map(|word| format!("{word} in /proc/1/cgroup"));
    files.map(|file| format!("{file} exists")).chain(words).collect()
}

impl Found {
    /// Returns the outcome of the ring when a backend was chosen.
    fn of(chosen: &io::Result<(Auto, Choice)>) -> Self {
        match chosen {
            Ok((Auto::Uring(uring), _)) => Self::granted(uring.ring()),
            Ok((_, choice)) => Self::refused(choice.refusal(), "there is no ring"),
            Err(error) => {
                let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<NoBackend>());
                Self::refused(inner.and_then(NoBackend::refusal), &error.to_string())
            }
        }
    }

    fn granted(ring: &Ring) -> Self {
        let report = ring.report();
        let operations =
            ring.probe().ok().map(|probe| Operations::used(|opcode| probe.is_supported(opcode)));
        Self::Granted(Granted {
            available: true,
            sq_entries: report.sq_entries,
            cq_entries: report.cq_entries,
            flags: report.setup_flag_names(),
            features: report.feature_names(),
            registered_fd: report.registered_fd,
            registered_waits: report.registered_wait,
            no_iowait: report.no_iowait(),
            steps: report.steps.iter().map(Step::from).collect(),
            operations,
        })
    }

    fn refused(error: Option<&SetupError>, otherwise: &str) -> Self {
        let steps = error.map(SetupError::steps).unwrap_or_default();
        Self::Refused {
            available: false,
            errno: error.and_then(SetupError::raw_os_error),
            error: error.map_or_else(|| otherwise.to_owned(), SetupError::to_string),
            hint: error.and_then(SetupError::hint),
            steps: steps.iter().map(Step::from).collect(),
        }
    }
}

impl FoundPoll {
    /// Tries an operation on a driver without a ring.
    fn gather() -> Self {
        let attempt = || -> io::Result<Operations> {
            let (backend, _) = Auto::new(Policy::Poll, Ring::builder())?;
            // Each is a call there, except messages between rings.
            let operations = Operations::used(|opcode| opcode != Opcode::MSG_RING);
            let driver = Driver::new(backend);
            mounts::finish(&driver, driver.nop())??;
            Ok(operations)
        };
        let (operations, error) = match attempt() {
            Ok(operations) => (Some(operations), None),
            Err(error) => (None, Some(error.to_string())),
        };
        Self { available: error.is_none(), operations, error }
    }
}

impl Chosen {
    fn of(chosen: &io::Result<(Auto, Choice)>, policy: Policy) -> Self {
        let (auto, why) = match chosen {
            Ok((_, choice)) => {
                let why = choice.refusal().map(|refusal| refusal.to_string());
                (Some(choice.name()), why.unwrap_or_else(|| "the kernel grants a ring".into()))
            }
            Err(error) => (None, error.to_string()),
        };
        let wanted = match policy {
            Policy::Uring => "uring",
            Policy::Poll => "poll",
            _ => "auto",
        };
        Self { auto, why, wanted, streams: Streams::default().name() }
    }
}

// ---- the human layout --------------------------------------------------------------------------

/// Width of the column of names.
const NAME_WIDTH: usize = 18;
/// Width at which lists are broken.
const LINE_WIDTH: usize = 80;

/// Prints a name and its value; lists continue on the next line.
pub fn row(f: &mut fmt::Formatter<'_>, name: &str, value: impl fmt::Display) -> fmt::Result {
    writeln!(f, "  {name:<NAME_WIDTH$}  {value}")
}

/// As [`row`], with as many lines as the words need.
fn words<'a>(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    words: impl IntoIterator<Item = &'a str>,
) -> fmt::Result {
    let (mut name, mut line, mut is_empty) = (name, String::new(), true);
    for word in words {
        is_empty = false;
        if !line.is_empty() && NAME_WIDTH + line.len() + word.len() + 5 > LINE_WIDTH {
            row(f, std::mem::take(&mut name), &line)?;
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    row(f, name, if is_empty { "none" } else { &line })
}

pub fn yes(answer: bool) -> &'static str {
    if answer { "yes" } else { "no" }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.soft, self.hard) {
            (None, _) => f.write_str("unlimited"),
            (Some(soft), None) => write!(f, "{soft} (unlimited at most)"),
            (Some(soft), Some(hard)) if soft == hard => write!(f, "{soft}"),
            (Some(soft), Some(hard)) => write!(f, "{soft} (at most {hard})"),
        }
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kernel, limits, sandbox, ring, poll, backend, mounts, advice, .. } = self;
        writeln!(f, "system")?;
        row(f, "kernel", &kernel.release)?;
        row(f, "architecture", &kernel.architecture)?;
        row(f, "cpus", kernel.cpus)?;
        let group = kernel.io_uring_group.unwrap_or(-1);
        let disabled = match kernel.io_uring_disabled {
            Some(0) => "0 (open to all)".to_owned(),
            Some(1) => format!("1 (open to group {group} only)"),
            Some(level) => format!("{level} (closed)"),
            None => "no such sysctl (before 6.6)".to_owned(),
        };
        row(f, "io_uring_disabled", disabled)?;
        row(f, "locked memory", format_args!("{} bytes", limits.memlock_bytes))?;
        row(f, "open files", limits.open_files)?;
        row(f, "seccomp", sandbox.seccomp.unwrap_or("unknown"))?;
        row(f, "no_new_privs", sandbox.no_new_privileges.map_or("unknown", yes))?;
        let hints = sandbox.container_hints.join(", ");
        row(f, "container", if hints.is_empty() { "no sign of one" } else { &hints })?;
        writeln!(f, "\nring")?;
        write!(f, "{ring}")?;
        writeln!(f, "\npoll")?;
        row(f, "available", yes(poll.available))?;
        if let Some(operations) = &poll.operations {
            write!(f, "{operations}")?;
        }
        if let Some(error) = &poll.error {
            row(f, "error", error)?;
        }
        writeln!(f, "\nbackend")?;
        row(f, "auto chooses", backend.auto.unwrap_or("none"))?;
        row(f, "why", &backend.why)?;
        row(f, "SAKIA_DRIVER", format_args!("asks for {}", backend.wanted))?;
        let messages = match backend.auto {
            Some("uring") => "by the ring",
            _ => "by epoll and plain calls",
        };
        row(f, "messages", messages)?;
        for mount in mounts {
            write!(f, "\n{mount}")?;
        }
        writeln!(f, "\nwhat to change")?;
        if advice.is_empty() {
            writeln!(f, "  nothing: the kernel granted the best configuration")?;
        }
        for sentence in advice {
            writeln!(f, "  {sentence}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Operations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        words(f, "operations", self.named(true))?;
        words(f, "  not supported", self.named(false))
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = match self {
            Self::Refused { error, steps, .. } => {
                row(f, "available", "no")?;
                row(f, "error", error)?;
                steps
            }
            Self::Granted(ring) => {
                row(f, "available", "yes")?;
                row(f, "submission queue", format_args!("{} entries", ring.sq_entries))?;
                row(f, "completion queue", format_args!("{} entries", ring.cq_entries))?;
                row(f, "registered fd", yes(ring.registered_fd))?;
                row(f, "registered waits", yes(ring.registered_waits))?;
                row(f, "no_iowait", yes(ring.no_iowait))?;
                words(f, "flags", ring.flags.iter().copied())?;
                words(f, "features", ring.features.iter().copied())?;
                match &ring.operations {
                    None => row(f, "operations", "the kernel does not tell")?,
                    Some(operations) => write!(f, "{operations}")?,
                }
                &ring.steps
            }
        };
        if steps.is_empty() {
            row(f, "steps down", "none")?;
        }
        for (index, step) in steps.iter().enumerate() {
            let name = if index == 0 { "steps down" } else { "" };
            row(f, name, format_args!("{}: {}", step.what, step.message))?;
        }
        Ok(())
    }
}
