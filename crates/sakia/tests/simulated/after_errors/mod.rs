//! The next thing after an error: nothing may remember it.
//!
//! A random program of public operations runs on the simulated kernel, again and again: as it is; with a
//! fault at one operation of the kernel, which has no effect there but its error; and as that error says that
//! it was, without the step that reported it, or with the part of the step that was done. Nothing else may
//! differ between the last two: the results of all other steps, the files at the end, descriptors that are
//! left open. An error that lasts is reported by one step. One that is temporary is reported by none, and
//! changes nothing. Then the program runs once more as it is, on a new runtime, and the kernel must see what
//! it saw at first.
//!
//! Each program ends with steps that use every object once more, so that something comes after each error.
//!
//! Left out, since their first error is meant to last: `Writer` and `GroupCommit`; a model of rounds compares
//! the latter. Left out, since the simulated kernel has none: processes, signals, terminals, lookups.
//! Networks and lying file servers are for other tests.

mod each_call;
mod steps;
mod world;

use rustix::io::Errno;
use sakia::Runtime;
use sakia::sim::{Fault, Opcode, PlainFault, Sim, Target};
use sakia_testkit::random::{Random, programs};

use self::steps::{Done, Step, epilogue, everything};
use self::world::{NAMES, World};

/// The steps of a program before those that use every object once more.
const STEPS: u64 = 6;
/// Errors that last.
const LASTING: [Errno; 6] =
    [Errno::IO, Errno::ACCESS, Errno::NOMEM, Errno::MFILE, Errno::NOSPC, Errno::CONNRESET];
/// The operations of the kernel that fail. A close is missing, whose error has no effect on what comes after
/// it.
const FAILING: [Opcode; 20] = [
    Opcode::READ,
    Opcode::READV,
    Opcode::WRITE,
    Opcode::WRITEV,
    Opcode::FSYNC,
    Opcode::OPENAT,
    Opcode::STATX,
    Opcode::MKDIRAT,
    Opcode::UNLINKAT,
    Opcode::RENAMEAT,
    Opcode::LINKAT,
    Opcode::SYMLINKAT,
    Opcode::FTRUNCATE,
    Opcode::SOCKET,
    Opcode::CONNECT,
    Opcode::ACCEPT,
    Opcode::SEND,
    Opcode::SENDMSG,
    Opcode::RECV,
    Opcode::RECVMSG,
];

/// The operations that are not done again after a signal: those that change names, and may have done so; and
/// the making of a socket, which no signal interrupts.
const DONE_ONCE: [Opcode; 6] = [
    Opcode::MKDIRAT,
    Opcode::UNLINKAT,
    Opcode::RENAMEAT,
    Opcode::LINKAT,
    Opcode::SYMLINKAT,
    Opcode::SOCKET,
];

/// A fault: so many operations of a kind succeed, the next one fails with an errno that lasts, or with one
/// that is temporary.
#[derive(Clone, Copy, Debug)]
struct Failing {
    opcode: Opcode,
    skip: u32,
    errno: Option<Errno>,
}

/// A part of a program.
#[derive(Clone, Debug)]
enum Part {
    Step(Step),
    /// The way of all operations that have several, and what fails. The last one counts.
    Fault {
        is_plain: bool,
        failing: Failing,
    },
}

/// A run of a program.
#[derive(Debug, PartialEq)]
struct Seen {
    done: Vec<Done>,
    /// The files that are left.
    files: Vec<(&'static str, Option<Vec<u8>>)>,
    /// Descriptors that are open after the end of the runtime.
    open: usize,
}

struct Run {
    seen: Seen,
    /// The fault took effect.
    is_hit: bool,
    /// A hash over all that the kernel saw.
    log: u64,
}

fn run(steps: &[Step], is_plain: bool, failing: Option<Failing>) -> Run {
    let sim = Sim::builder(7).plain_calls(is_plain).reorders(false).build();
    let kernel = sim.handle();
    World::prepare(&kernel);
    let runtime = Runtime::builder().build_simulated(sim).unwrap();
    let done = runtime.block_on(async {
        let mut world = World::new().await;
        if let Some(Failing { opcode, skip, errno }) = failing {
            let target = Target::opcode(opcode).skip(skip);
            let errno = errno.map(Errno::raw_os_error);
            if is_plain {
                let fault = errno.map_or(PlainFault::WouldBlock, PlainFault::Errno);
                kernel.script_plain(target, fault);
            } else {
                kernel.script(target, Fault::Errno(errno.unwrap_or(Errno::INTR.raw_os_error())));
            }
        }
        let mut done = Vec::new();
        for step in steps {
            done.push(step.perform(&mut world).await);
        }
        done
    });
    let is_hit = failing.is_some() && kernel.scripted() == 0;
    drop(runtime);
    let files = NAMES.iter().map(|&name| (name, kernel.contents(name))).collect();
    let seen = Seen { done, files, open: kernel.open_descriptors() };
    Run { seen, is_hit, log: kernel.log_hash() }
}

/// A program with no fault yet.
struct Case {
    steps: Vec<Step>,
    is_plain: bool,
    /// The run of it as it is.
    first: Run,
}

impl Case {
    fn new(steps: Vec<Step>, is_plain: bool) -> Self {
        let first = run(&steps, is_plain, None);
        Self { steps, is_plain, first }
    }

    /// Returns whether the fault takes effect.
    ///
    /// # Errors
    /// How it does more than that.
    fn check(&self, failing: Failing) -> Result<bool, String> {
        let Self { steps, is_plain, first } = self;
        let faulty = run(steps, *is_plain, Some(failing));
        let mut pairs = first.seen.done.iter().zip(&faulty.seen.done);
        let Some(place) = pairs.position(|(first, faulty)| first != faulty) else {
            let may_be_silent = !faulty.is_hit || failing.errno.is_none() || self.hides(failing);
            if may_be_silent && faulty.seen == first.seen {
                return Ok(faulty.is_hit);
            }
            return Err(format!("no step reports it: {steps:?}"));
        };
        let (step, done) = (&steps[place], &faulty.seen.done[place]);
        let errno = failing.errno.map(Errno::raw_os_error);
        if errno.is_none() || done.errno != errno {
            return Err(format!("{step:?}: {done:?} where it was {:?}", first.seen.done[place]));
        }
        let mut differences = String::new();
        for parts in step.parts(done) {
            let Some(difference) = self.difference(place, &parts, &faulty.seen) else {
                return Ok(true);
            };
            differences += &difference;
        }
        Err(format!("{step:?} reports {done:?}\n{differences}"))
    }

    /// Returns whether no step need report this fault, although it lasts.
    fn hides(&self, Failing { opcode, .. }: Failing) -> bool {
        match opcode {
            // A directory that is there is enough.
            Opcode::MKDIRAT => self.steps.contains(&Step::CreateDirAll),
            // The queue reads of a whole file all that a plain call cannot.
            Opcode::READ | Opcode::OPENAT | Opcode::STATX => self.is_plain,
            _ => false,
        }
    }

    /// Returns how a run with these steps in place of one differs from what a fault in it left.
    fn difference(&self, place: usize, parts: &[Step], faulty: &Seen) -> Option<String> {
        let (before, after) = (&self.steps[..place], &self.steps[place + 1..]);
        let mut seen = run(&[before, parts, after].concat(), self.is_plain, None).seen;
        seen.done.drain(place..place + parts.len());
        let mut expected = faulty.done.clone();
        expected.remove(place);
        if seen.done == expected && seen.files == faulty.files && seen.open == faulty.open {
            return None;
        }
        let at = seen.done.iter().zip(&expected).position(|(one, other)| one != other);
        Some(match at {
            Some(at) => format!(
                "as {parts:?}: {:?} brings {:?}, and {:?} after the error\n",
                [before, after].concat()[at],
                seen.done[at],
                expected[at]
            ),
            None => format!("as {parts:?}: {seen:?}, and {faulty:?} after the error\n"),
        })
    }

    /// Returns whether the kernel sees what it saw at first, on a new runtime.
    fn is_as_before(&self) -> bool {
        run(&self.steps, self.is_plain, None).log == self.first.log
    }
}

/// Returns how a program fails.
fn check(program: &[Part]) -> Option<String> {
    let mut steps = Vec::new();
    let mut fault = None;
    for part in program {
        match part {
            Part::Step(step) => steps.push(step.clone()),
            Part::Fault { is_plain, failing } => fault = Some((*is_plain, *failing)),
        }
    }
    let (is_plain, failing) = fault?;
    steps.extend(epilogue());
    let case = Case::new(steps, is_plain);
    if let Err(failure) = case.check(failing) {
        return Some(failure);
    }
    (!case.is_as_before()).then(|| "a new runtime does something else after it".to_owned())
}

#[test]
fn nothing_remembers_an_error() {
    let make = |random: &mut Random| {
        let errno = LASTING.get(random.below(LASTING.len() as u64 + 2) as usize).copied();
        let opcode = random.one_of(&FAILING);
        let errno = errno.or(DONE_ONCE.contains(&opcode).then_some(Errno::INTR));
        let failing = Failing { opcode, skip: random.below(6) as u32, errno };
        let fault = Part::Fault { is_plain: random.percent(50), failing };
        let steps = (0..STEPS).map(|_| Part::Step(Step::random(random)));
        [fault].into_iter().chain(steps).collect()
    };
    programs(60, make, check);
}

/// Each operation of the kernel in a program with every step fails once.
#[test]
fn nothing_remembers_the_error_of_any_operation() {
    let mut hit = 0;
    for is_plain in [false, true] {
        let case = Case::new([everything(), epilogue()].concat(), is_plain);
        for opcode in FAILING {
            for errno in [Some(Errno::IO), None] {
                let errno = errno.or(DONE_ONCE.contains(&opcode).then_some(Errno::INTR));
                for skip in 0.. {
                    let failing = Failing { opcode, skip, errno };
                    match case.check(failing) {
                        Ok(true) => hit += 1,
                        Ok(false) => break,
                        Err(failure) => panic!("{failing:?}, plain {is_plain}: {failure}"),
                    }
                }
            }
        }
        assert!(case.is_as_before(), "a new runtime does something else");
    }
    assert!(hit > 100, "{hit}");
}
