//! The stage of a case: one backend, with files, pipes and sockets of its kernel.

use std::cell::RefCell;
use std::ffi::CString;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{Mode, OFlags};
use sakia_driver::sim::{Sim, SimHandle};
use sakia_driver::{
    Auto, Bypass, Credentials, Domain, Driver, Fd, KindCounters, Op, OpKind, Operation, Policy,
    SocketAddress, SocketType, Streams, Wait,
};
use sakia_ring::Ring;

/// The maximum number of turns in which a case waits for an event.
const TURNS_MAX: u32 = 100_000;

/// The next number in the name of a socket.
static NEXT_NAME: AtomicU32 = AtomicU32::new(0);

/// The backend of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Uring,
    /// A ring whose streams receive by readiness.
    Readiness,
    Poll,
    Sim,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Uring => "uring",
            Self::Readiness => "readiness",
            Self::Poll => "poll",
            Self::Sim => "sim",
        })
    }
}

/// Returns the cases that a backend may leave out.
pub fn skips(kind: Kind) -> Vec<&'static str> {
    include_str!("skips.txt")
        .lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty())
        .filter_map(|line| {
            let (name, reason) = line.split_once(':').expect("a skip says why");
            assert!(!reason.trim().is_empty(), "a skip says why");
            let (backend, case) = name.split_once(' ').expect("a skip names backend and case");
            (backend == kind.to_string()).then_some(case)
        })
        .collect()
}

/// The environment of one case.
pub struct Stage {
    kind: Kind,
    /// The operations that are tried as plain calls before the queue.
    bypass: Bypass,
    /// The directory of the case's files on a real kernel; removed at the end.
    directory: PathBuf,
    /// The simulated kernel of the driver that was made last.
    sim: RefCell<Option<SimHandle>>,
}

impl Stage {
    /// Returns whether the kernel performs the entries of one submission in any order.
    pub fn reorders(&self) -> bool {
        self.kind == Kind::Sim
    }

    /// Makes a stage. Fails with the reason if this machine does not offer the backend.
    pub fn new(kind: Kind, bypass: Bypass, name: &str) -> Result<Self, String> {
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("conformance-{kind}-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let stage = Self { kind, bypass, directory, sim: RefCell::new(None) };
        if matches!(kind, Kind::Uring | Kind::Readiness) {
            Auto::new(Policy::Uring, Ring::builder()).map_err(|error| error.to_string())?;
        }
        Ok(stage)
    }

    /// Makes a driver with the usual queues.
    pub fn driver(&self) -> Driver {
        self.driver_of(64, 256)
    }

    /// Makes a driver with queues of these sizes.
    pub fn driver_of(&self, sq_entries: u32, cq_entries: u32) -> Driver {
        let ring = Ring::builder().sq_entries(sq_entries).cq_entries(cq_entries);
        let (backend, choice) = match self.kind {
            Kind::Uring | Kind::Readiness => Auto::new(Policy::Uring, ring).unwrap(),
            Kind::Poll => Auto::new(Policy::Poll, ring).unwrap(),
            Kind::Sim => {
                let sim = Sim::builder(7).entries(sq_entries, cq_entries);
                let sim = sim.plain_calls(self.bypasses()).build();
                *self.sim.borrow_mut() = Some(sim.handle());
                Auto::simulated(sim)
            }
        };
        let driver = Driver::new(backend);
        driver.set_bypass(self.bypass.clone());
        match self.kind {
            Kind::Readiness => driver.set_streams(Streams::Readiness),
            kind => assert_eq!(choice.name(), kind.to_string()),
        }
        driver
    }

    /// Returns whether the driver makes plain calls if they are the cheaper way.
    pub fn bypasses(&self) -> bool {
        self.bypass != Bypass::Never
    }

    fn sim(&self) -> SimHandle {
        self.sim.borrow().clone().expect("the case made a driver")
    }

    /// Returns the path of a file of this case.
    pub fn path(&self, name: &str) -> CString {
        match self.kind {
            Kind::Sim => CString::new(name).unwrap(),
            Kind::Uring | Kind::Readiness | Kind::Poll => {
                CString::new(self.directory.join(name).into_os_string().into_encoded_bytes())
                    .unwrap()
            }
        }
    }

    /// Makes a file.
    pub fn create(&self, name: &str, bytes: &[u8]) {
        match self.kind {
            Kind::Sim => self.sim().create_file(name, bytes),
            Kind::Uring | Kind::Readiness | Kind::Poll => {
                std::fs::write(self.directory.join(name), bytes).unwrap()
            }
        }
    }

    /// Returns the contents of a file.
    pub fn contents(&self, name: &str) -> Vec<u8> {
        match self.kind {
            Kind::Sim => self.sim().contents(name).unwrap(),
            Kind::Uring | Kind::Readiness | Kind::Poll => {
                std::fs::read(self.directory.join(name)).unwrap()
            }
        }
    }

    /// Makes a file and opens it to read and write.
    pub fn file(&self, driver: &Driver, name: &str, bytes: &[u8]) -> Fd {
        self.create(name, bytes);
        self.open(driver, name, OFlags::RDWR)
    }

    /// Opens a file; it is an error of the case if that fails.
    pub fn open(&self, driver: &Driver, name: &str, flags: OFlags) -> Fd {
        let mode = Mode::RUSR | Mode::WUSR;
        wait(driver, driver.open(None, self.path(name), flags.bits(), mode.bits())).unwrap()
    }

    /// Makes a pipe. Returns its ends to read from and to write to.
    pub fn pipe(&self, driver: &Driver) -> (Fd, Fd) {
        match self.kind {
            Kind::Sim => {
                let (receiver, sender) = self.sim().pipe();
                (driver.adopt_simulated(receiver), driver.adopt_simulated(sender))
            }
            Kind::Uring | Kind::Readiness | Kind::Poll => {
                let (receiver, sender) = rustix::pipe::pipe().unwrap();
                (driver.adopt(receiver), driver.adopt(sender))
            }
        }
    }

    /// Makes a socket.
    pub fn socket(&self, driver: &Driver, domain: Domain, kind: SocketType) -> Fd {
        wait(driver, driver.socket(domain, kind, 0)).unwrap()
    }

    /// Returns an unused address to bind to.
    pub fn free_address(&self, domain: Domain) -> SocketAddress {
        if domain == Domain::INET {
            return SocketAddr::from(([127, 0, 0, 1], 0)).into();
        }
        let number = NEXT_NAME.fetch_add(1, Ordering::Relaxed);
        let name = format!("sakia-conformance-{}-{number}", std::process::id());
        SocketAddress::abstract_name(name).unwrap()
    }

    /// Returns the credentials that a socket reports for a peer in this process.
    pub fn credentials(&self) -> Credentials {
        if self.kind == Kind::Sim {
            return Credentials { process: 1, user: 0, group: 0 };
        }
        let [user, group] =
            [rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()];
        Credentials { process: std::process::id(), user, group }
    }

    /// Returns the machine's loopback address of IPv6. Without IPv6 the case skips that part.
    pub fn address_of_version_6(&self) -> Option<SocketAddress> {
        let address = SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, 0));
        let has_it = self.kind == Kind::Sim || std::net::TcpListener::bind(address).is_ok();
        if !has_it {
            let denied = std::env::var_os("SAKIA_DENY_SKIPS").is_some();
            assert!(!denied, "skips are denied, and there is no version 6 here");
            eprintln!("SKIP {}: no version 6 of the internet protocol here", self.kind);
        }
        has_it.then(|| address.into())
    }

    /// Returns the address of a socket by a path in the directory for sockets.
    pub fn socket_path(&self, name: &str) -> SocketAddress {
        let directory = self.socket_directory();
        if self.kind != Kind::Sim {
            std::fs::create_dir_all(&directory).unwrap();
        }
        SocketAddress::unix(directory.join(name)).unwrap()
    }

    /// Returns the directory of sockets: the path of the case's other files may be too long for an address.
    fn socket_directory(&self) -> PathBuf {
        std::env::temp_dir().join(format!("sakia-{}-{}", self.kind, std::process::id()))
    }

    /// Makes a socket that accepts connections. Returns it and its address.
    pub fn listener(&self, driver: &Driver, domain: Domain) -> (Fd, SocketAddress) {
        let listener = self.socket(driver, domain, SocketType::STREAM);
        wait(driver, driver.bind(&listener, &self.free_address(domain))).unwrap();
        wait(driver, driver.listen(&listener, 16)).unwrap();
        let address = driver.local_address(&listener).unwrap();
        (listener, address)
    }

    /// Returns a number of bytes that no socket holds whose peer does not receive.
    pub fn socket_bytes(&self) -> usize {
        16 << 20
    }

    /// Returns the identity of a descriptor's file, by which a later check tells whether it still refers to
    /// it.
    pub fn identify(&self, fd: &Fd) -> Identity {
        let raw = fd.raw();
        let link = (self.kind != Kind::Sim).then(|| link_of(raw).expect("it is open"));
        Identity { raw, link }
    }

    /// Returns whether a descriptor is still open. Its number alone proves nothing: the other tests, which
    /// run on threads of the same process, may have been given it.
    pub fn is_open(&self, identity: &Identity) -> bool {
        match &identity.link {
            None => self.sim().is_open(identity.raw),
            Some(link) => link_of(identity.raw).as_ref() == Some(link),
        }
    }

    /// Returns whether any descriptor of that file is open. On the simulated kernel, whose numbers are the
    /// driver's alone, returns whether that number is open.
    pub fn is_open_anywhere(&self, identity: &Identity) -> bool {
        let Some(link) = &identity.link else { return self.is_open(identity) };
        let numbers = std::fs::read_dir("/proc/self/fd").unwrap();
        numbers.into_iter().any(|number| {
            std::fs::read_link(number.unwrap().path()).is_ok_and(|target| target == *link)
        })
    }

    /// Counts the process's descriptors of that file. On the simulated kernel, counts all descriptors.
    pub fn copies(&self, identity: &Identity) -> usize {
        let Some(link) = &identity.link else { return self.sim().open_descriptors() };
        let numbers = std::fs::read_dir("/proc/self/fd").unwrap();
        let links = numbers.filter_map(|number| std::fs::read_link(number.ok()?.path()).ok());
        links.filter(|target| target == link).count()
    }

    /// Returns whether the backend itself performs operations by plain calls, and counts them by their way.
    pub fn counts_ways(&self) -> bool {
        self.kind == Kind::Poll
    }

    /// Asserts that `expected` operations were counted, each of them once.
    pub fn assert_count(&self, kind: OpKind, count: KindCounters, expected: u64) {
        let KindCounters { submitted, inline, lane, .. } = count;
        // A backend with ways of its own counts them for submitted operations as well.
        let performed = inline + lane;
        let counted = match (self.counts_ways(), self.bypasses()) {
            (true, true) => performed,
            (true, false) => submitted.min(performed),
            (false, _) => submitted + inline,
        };
        let name = kind.name();
        assert_eq!(counted, expected, "{name}: {count:?}");
        assert!(submitted == expected || self.bypasses(), "{name}: {count:?}");
    }

    /// Returns a number of bytes that no pipe holds.
    pub fn pipe_bytes(&self) -> usize {
        1 << 20
    }
}

/// A descriptor and its file. See [`Stage::identify`].
pub struct Identity {
    raw: i32,
    /// The kernel's name of the file: the path, which only this case has, or a pipe's number, which both of
    /// its ends share. `None` on the simulated kernel.
    link: Option<PathBuf>,
}

fn link_of(raw: i32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{raw}")).ok()
}

impl Drop for Stage {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.directory).ok();
        std::fs::remove_dir_all(self.socket_directory()).ok();
    }
}

/// Takes turns until an operation is done, and returns its output.
#[track_caller]
pub fn wait<O: Operation>(driver: &Driver, mut op: Op<O>) -> O::Output {
    for _ in 0..TURNS_MAX {
        if let Some(output) = op.try_take() {
            return output;
        }
        driver.turn(Wait::Forever).unwrap();
    }
    panic!("the operation is not done after {TURNS_MAX} turns");
}

/// Takes turns until `is_done` returns true.
#[track_caller]
pub fn turn_until(driver: &Driver, mut is_done: impl FnMut() -> bool) {
    for _ in 0..TURNS_MAX {
        if is_done() {
            return;
        }
        driver.turn(Wait::For(std::time::Duration::from_millis(5))).unwrap();
    }
    panic!("the condition did not hold in {TURNS_MAX} turns");
}

/// Takes turns until nothing more can happen without new input: until several in a row bring nothing while
/// all other threads of the process sleep, workers of the kernel included; at most 20.
pub fn settle(driver: &Driver) {
    const QUIET_TURNS: u32 = 3;
    let mut quiet = 0;
    for _ in 0..20 {
        let finished = driver.turn(Wait::For(std::time::Duration::from_millis(1))).unwrap();
        quiet = if finished == 0 && are_others_asleep() { quiet + 1 } else { 0 };
        if quiet == QUIET_TURNS {
            return;
        }
    }
}

/// Returns whether all other threads of the process are in a sleep that may last for ever.
fn are_others_asleep() -> bool {
    let own = std::fs::read_link("/proc/thread-self").unwrap();
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    threads
        .map(|thread| thread.unwrap())
        .filter(|it| Some(&*it.file_name()) != own.file_name())
        .all(|thread| {
            // A thread that has just ended has no such file.
            let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            // The thread's name, before the state, may contain any characters.
            let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
            state.is_none_or(|state| state == 'S')
        })
}

/// Returns the errno of a failure.
#[track_caller]
pub fn errno<T: fmt::Debug>(result: std::io::Result<T>) -> rustix::io::Errno {
    let error = result.expect_err("it must fail");
    rustix::io::Errno::from_io_error(&error).expect("it failed with an errno")
}
