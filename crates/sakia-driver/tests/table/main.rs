//! A table: every operation on every kind of descriptor gives the answer of the plain system call that it
//! replaces, on the ring, and on epoll and threads. "It waits" is an answer, too.
//!
//! The reference is the plain call, which the test makes itself on an equal descriptor. Where the driver's
//! documentation names another call, that is the reference:
//! - Operations wait whatever the mode of a descriptor, so the plain call is made in blocking mode.
//! - A poll to read also waits for a peer that shuts down its sending side.
//! - The bytes of a pipe are sent by `splice(2)`, since `sendfile(2)` takes no pipe.
//! - A socket whose peer has no credentials is not connected.
//!
//! Each operation is done twice, so that the second one meets the state after the first, an error included.
//! One that waits is dropped, and must leave nothing in flight. [`WANTED`] lists the other differences.
//!
//! The simulated kernel has few of these kinds; see the cases of `tests/conformance`.

#![expect(
    clippy::unwrap_used,
    reason = "the failure of a test, or of what it calls, is its report"
)]

mod answer;
mod kinds;
mod operations;

use std::cell::RefCell;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;
use sakia_driver::{Arena, Auto, Bypass, Driver, Fd, FixedBuf, Policy, Rules, Wait};
use sakia_ring::Ring;

use answer::{Answer, Told, ask, handle_signal, plainly};
use kinds::{KINDS, Kind};
use operations::Operation;

/// Held by the test that runs: whether an operation waits is judged by all other threads of the process.
static TURN: Mutex<()> = Mutex::new(());

/// The driver of the cells that are being filled, and its registered memory.
struct Stage {
    driver: Driver,
    arena: Arena,
}

thread_local! {
    static STAGE: RefCell<Option<Stage>> = const { RefCell::new(None) };
}

/// Returns a block of registered memory.
fn block() -> FixedBuf {
    STAGE.with_borrow(|stage| stage.as_ref().unwrap().arena.block().expect("one is free"))
}

/// Calls `f` with the driver.
fn with_driver<T>(f: impl FnOnce(&Driver) -> T) -> T {
    STAGE.with_borrow(|stage| f(&stage.as_ref().unwrap().driver))
}

/// Gives a descriptor to the driver.
fn adopt(fd: OwnedFd) -> Fd {
    with_driver(|driver| driver.adopt(fd))
}

/// A wanted difference.
struct Wanted {
    /// The beginnings of the kinds' names.
    kinds: &'static [&'static str],
    /// Words in the operation's name.
    operation: &'static [&'static str],
    /// The backends that have it.
    is_on_ring: bool,
    is_on_epoll: bool,
    plain: fn(&Answer) -> bool,
    driven: fn(&Answer) -> bool,
    reason: &'static str,
}

/// The only difference that a machine may lack: with a short table of mounts.
const LONG_TABLE: &str =
    "of a file of records that has a poll, a ring reads until the buffer is full";

const WANTED: &[Wanted] = &[
    Wanted {
        kinds: &["file"],
        operation: &["with ReadWriteFlags(NOWAIT)"],
        is_on_ring: true,
        is_on_epoll: false,
        plain: |answer| is(answer, &Err(Errno::OPNOTSUPP)),
        driven: |answer| is(answer, &Err(Errno::AGAIN)),
        reason: "a ring does not tell that a file system lacks the flag, and a look at it costs each read",
    },
    Wanted {
        kinds: &["file"],
        operation: &["of 8 at 9223372036854775808"],
        is_on_ring: true,
        is_on_epoll: false,
        plain: |answer| is(answer, &Err(Errno::INVAL)),
        driven: |answer| is(answer, &Err(Errno::BADF)),
        reason: "of two errors, a ring reports that of the file before that of the offset",
    },
    Wanted {
        kinds: &[
            "file",
            "directory",
            "memfd",
            "/dev/",
            "/proc/self/comm",
            "/proc/self/environ",
            "namespace",
        ],
        operation: &["poll 0x2"],
        is_on_ring: true,
        is_on_epoll: true,
        plain: |answer| *answer == Answer::Waits,
        driven: |answer| is(answer, &Err(Errno::INVAL)),
        reason: "nothing ever wakes a poll for priority events of a file that has none: an error tells",
    },
    Wanted {
        kinds: &["terminal, controlling side"],
        operation: &["write", "of 4096 at the position"],
        is_on_ring: false,
        is_on_epoll: true,
        plain: |answer| is(answer, &Ok("4096".into())),
        driven: |answer| is(answer, &Ok("256".into())),
        reason: "without a way to refuse to wait, a write is as long as the room that readiness promises",
    },
    Wanted {
        kinds: &[CHANGED],
        operation: &["read of 4096"],
        is_on_ring: true,
        is_on_epoll: false,
        plain: |answer| bytes_of(answer).is_some_and(|bytes| (1..4096).contains(&bytes)),
        driven: |answer| bytes_of(answer) == Some(4096),
        reason: LONG_TABLE,
    },
];

/// Returns the number of bytes that a read has told.
fn bytes_of(answer: &Answer) -> Option<usize> {
    let Answer::Told(Ok(text)) = answer else { return None };
    text.split_once(' ')?.0.parse().ok()
}

fn is(answer: &Answer, told: &Told) -> bool {
    matches!(answer, Answer::Told(it) if it == told)
}

impl Wanted {
    fn is_on(&self, policy: Policy) -> bool {
        if policy == Policy::Poll { self.is_on_epoll } else { self.is_on_ring }
    }

    fn is(&self, cell: &Cell<'_>) -> bool {
        self.is_on(cell.policy)
            && self.kinds.iter().any(|name| cell.kind.name.starts_with(name))
            && self.operation.iter().all(|word| cell.operation.name.contains(word))
            && (self.plain)(&cell.plain)
            && (self.driven)(&cell.driven)
    }
}

/// Returns whether the operation is for other kinds: a connection is made of a connected socket, as its
/// documentation says.
fn is_out_of_contract(kind: &Kind, operation: &Operation) -> bool {
    kind.name.contains("listening") && operation.name == "recv of a connection"
}

/// A cell in which the answers differ.
struct Cell<'a> {
    policy: Policy,
    kind: &'a Kind,
    operation: &'a Operation,
    plain: Answer,
    driven: Answer,
}

/// Does an operation on a new descriptor of this kind up to twice, by plain calls and by the driver. Returns
/// the two answers each time.
fn fill(driver: &Driver, kind: &Kind, operation: &Operation) -> Option<Vec<[Answer; 2]>> {
    let subject = (kind.make)().ok()?;
    if kind.name.contains("non-blocking") {
        rustix::io::ioctl_fionbio(&subject.fd, false).unwrap();
    }
    let call = &operation.plain;
    let mut plain = vec![plainly(&|| call(subject.fd.as_fd()))];
    if plain[0] != Answer::Waits {
        plain.push(plainly(&|| call(subject.fd.as_fd())));
    }
    drop(subject); // some kinds share their locks, and their paths

    let subject = (kind.make)().unwrap();
    let fd = adopt(rustix::io::fcntl_dupfd_cloexec(&subject.fd, 0).unwrap());
    let mut answers = Vec::new();
    for plain in plain {
        let future = (operation.driven)(driver, &fd);
        let driven = ask(driver, future, plain == Answer::Waits);
        answers.push([plain, driven]);
        if answers.last().is_some_and(hangs) {
            break;
        }
    }
    drop(fd);
    driver.turn(Wait::Poll).unwrap();
    Some(answers)
}

/// Returns whether only the driver waits. That takes the test's whole patience, so the table ends there.
fn hangs([plain, driven]: &[Answer; 2]) -> bool {
    *driven == Answer::Waits && *plain != Answer::Waits
}

/// A kind whose bytes other programs change: between the two calls they may mount a file system.
const CHANGED: &str = "/proc/self/mounts";

/// Asks until both answers are equal, or differ each time.
fn settled(fill: impl Fn() -> Option<Vec<[Answer; 2]>>) -> Option<Vec<[Answer; 2]>> {
    const TRIES: usize = 10;
    let differs = |answers: &Vec<[Answer; 2]>| {
        let mut answers = answers.iter();
        answers.any(|both| both[0] != both[1] && !hangs(both))
    };
    let mut answers = fill();
    for _ in 1..TRIES {
        if answers.as_ref().is_some_and(differs) {
            answers = fill();
        }
    }
    answers
}

/// Fills the table on one backend.
fn run(policy: Policy, bypass: Bypass) {
    const KINDS_MIN: usize = 55;
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    handle_signal();
    let backend = match Auto::new(policy, Ring::builder()) {
        Ok((backend, _)) => backend,
        Err(error) => {
            assert!(std::env::var_os("SAKIA_DENY_SKIPS").is_none(), "skips are denied: {error}");
            return eprintln!("SKIP: {error}");
        }
    };
    let bypasses = bypass != Bypass::Never;
    let driver = Driver::new(backend);
    driver.set_bypass(bypass);
    let arena = driver.register_arena(8, 4096).unwrap();
    STAGE.set(Some(Stage { driver, arena }));
    let operations = operations::all();
    let (mut equal, mut kinds, mut wrong) = (0, 0, Vec::new());
    let mut wanted = vec![0; WANTED.len()];
    'table: for kind in KINDS {
        let mut is_there = true;
        for operation in operations.iter().filter(|it| !is_out_of_contract(kind, it)) {
            let fill = || with_driver(|driver| fill(driver, kind, operation));
            let Some(answers) = (if kind.name == CHANGED { settled(fill) } else { fill() }) else {
                is_there = false;
                eprintln!("SKIP {}: this machine does not offer it", kind.name);
                break;
            };
            for both in answers {
                let is_end = hangs(&both);
                let [plain, driven] = both;
                if plain == driven {
                    equal += 1;
                    continue;
                }
                let cell = Cell { policy, kind, operation, plain, driven };
                match WANTED.iter().position(|wanted| wanted.is(&cell)) {
                    Some(index) => wanted[index] += 1,
                    None => wrong.push(format!(
                        "{}: {}: plainly {:?}, here {:?}",
                        kind.name, operation.name, cell.plain, cell.driven
                    )),
                }
                if is_end {
                    break 'table;
                }
            }
        }
        kinds += usize::from(is_there);
    }
    STAGE.set(None);
    println!("{policy:?}: {kinds} kinds, {} operations, {equal} equal answers", operations.len());
    for (count, wanted) in wanted.iter().zip(WANTED) {
        println!("{count} differ: {}", wanted.reason);
    }
    assert!(wrong.is_empty(), "{} answers differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(kinds >= KINDS_MIN, "only {kinds} kinds");
    for (count, it) in wanted.into_iter().zip(WANTED) {
        assert!(count == 0 || it.is_on(policy), "{}: {count} cells", it.reason);
        // With plain calls the ring may not be asked.
        let may_lack = bypasses || it.reason == LONG_TABLE;
        assert!(count > 0 || may_lack || !it.is_on(policy), "{}: no cell", it.reason);
    }
}

#[test]
fn on_the_ring() {
    run(Policy::Uring, Bypass::Never);
}

#[test]
fn on_the_ring_with_plain_calls() {
    run(Policy::Uring, Bypass::Rules(Rules::default()));
}

#[test]
fn on_epoll_and_threads() {
    run(Policy::Poll, Bypass::Never);
}

#[test]
fn on_epoll_and_threads_with_plain_calls() {
    run(Policy::Poll, Bypass::Rules(Rules::default()));
}
