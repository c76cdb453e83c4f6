//! A host that lies about everything: the driver does not panic, and frees no memory that the host may still
//! use.
//!
//! The bytes decide the host's answers and the calls of the driver. Here they follow from seeds; in `fuzz/` a
//! fuzzer generates them, with this file.

use std::fs::File;
use std::ops::ControlFlow;
use std::rc::{Rc, Weak};
use std::time::Duration;

use sakia_driver::{Driver, Fd, Op, Uring, Wait};
use sakia_driver::{Nop, Open, Read, Write};
use sakia_ring::Builder;
use sakia_testkit::hostile::Hostile;

/// The length of a buffer.
const LEN: usize = 32;
/// The maximum number of operations that are held.
const HELD_MAX: usize = 40;
/// The number of turns in which all operations end once the host is honest.
const TURNS_MAX: u32 = 200;

/// An operation that was started and is held.
enum Held {
    Read(Op<Read<Vec<u8>>>),
    Write(Op<Write<Rc<[u8]>>>),
    Open(Op<Open>),
    Nop(Op<Nop>),
}

impl Held {
    fn cancel(&mut self) {
        match self {
            Self::Read(op) => op.cancel(),
            Self::Write(op) => op.cancel(),
            Self::Open(op) => op.cancel(),
            Self::Nop(op) => op.cancel(),
        }
    }

    /// Takes the result if there is one, and checks that it makes sense. An opened file goes to `opened`.
    fn is_over(&mut self, opened: &mut Vec<Fd>) -> bool {
        match self {
            Self::Read(op) => op.try_take().is_some_and(|(result, buf)| {
                assert_eq!(buf.len(), LEN);
                assert!(result.is_err() || result.is_ok_and(|count| count <= LEN));
                true
            }),
            Self::Write(op) => op.try_take().is_some_and(|(result, _)| {
                assert!(result.is_err() || result.is_ok_and(|count| count <= LEN));
                true
            }),
            Self::Open(op) => op.try_take().is_some_and(|result| {
                opened.extend(result);
                true
            }),
            Self::Nop(op) => op.try_take().is_some(),
        }
    }
}

/// A driver on a host that lies, with its operations.
struct Play {
    host: Hostile,
    driver: Driver,
    /// A file and a device, and the files that the host has opened.
    files: Vec<Fd>,
    held: Vec<Held>,
    /// The buffers of writes that were not freed at the last check.
    buffers: Vec<Weak<[u8]>>,
}

impl Play {
    /// Returns `None` if the host does not even grant a ring.
    fn new(bytes: &[u8], may_fail: bool) -> Option<Self> {
        let host = Hostile::new(bytes).may_fail(may_fail);
        let (sq_entries, cq_entries) = (1 << (host.byte() % 4), 1 << (host.byte() % 6));
        let builder =
            Builder::with_host(host.clone()).sq_entries(sq_entries).cq_entries(cq_entries);
        let driver = Driver::new(Uring::from_ring(builder.build().ok()?));
        let open = |path| driver.adopt(File::open(path).expect("every machine has it").into());
        let files = vec![open("/proc/self/exe"), open("/dev/zero")];
        Some(Self { host, driver, files, held: Vec::new(), buffers: Vec::new() })
    }

    fn choose(&self, count: usize) -> usize {
        usize::from(self.host.byte()) % count
    }

    /// Performs one step. Breaks if the driver reports that its ring is of no use any more.
    fn step(&mut self) -> ControlFlow<()> {
        match self.host.byte() {
            0..144 => self.start(),
            choice @ 144..192 if !self.held.is_empty() => {
                let index = self.choose(self.held.len());
                match choice {
                    144..168 => drop(self.held.swap_remove(index)),
                    _ => self.held[index].cancel(),
                }
            }
            192..200 => self.files.truncate(2),
            _ => return self.turn(),
        }
        ControlFlow::Continue(())
    }

    fn start(&mut self) {
        if self.held.len() == HELD_MAX {
            return;
        }
        let choice = self.host.byte();
        let fd = &self.files[self.choose(self.files.len())];
        self.held.push(match choice % 8 {
            0..3 => Held::Read(self.driver.read(fd, vec![0; LEN], 0)),
            3..6 => {
                let buf: Rc<[u8]> = Rc::new([7; LEN]);
                self.buffers.push(Rc::downgrade(&buf));
                Held::Write(self.driver.write(fd, buf, 0))
            }
            6 => Held::Open(self.driver.open(None, c"file".to_owned(), 0, 0)),
            _ => Held::Nop(self.driver.nop()),
        });
    }

    fn turn(&mut self) -> ControlFlow<()> {
        // A 0 sleeps, which is needed once the bytes are used up: the host reports nothing unless asked.
        let wait = match self.host.byte() {
            0..128 => Wait::For(Duration::from_micros(1)),
            _ => Wait::Poll,
        };
        let result = self.driver.turn(wait);
        self.held.retain_mut(|held| !held.is_over(&mut self.files));
        self.check_buffers();
        if result.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Asserts that no buffer was freed that the host may use. The host also checks the bytes by itself.
    fn check_buffers(&mut self) {
        let lent = self.host.lent();
        self.buffers.retain(|buffer| {
            let addr = buffer.as_ptr().cast::<u8>().expose_provenance() as u64;
            let is_freed = buffer.strong_count() == 0;
            assert!(!(is_freed && lent.contains(&addr)), "a buffer was freed early");
            !is_freed
        });
    }

    /// Takes turns with an honest host until everything has ended.
    fn finish(&mut self) -> ControlFlow<()> {
        // A turn that finished something reports its failure with the next.
        self.turn()?;
        for _ in 0..TURNS_MAX {
            if self.held.is_empty() && self.driver.live_operations() == 0 {
                break;
            }
            self.turn()?;
        }
        assert_eq!(
            (self.held.len(), self.driver.live_operations()),
            (0, 0),
            "something never ends"
        );
        ControlFlow::Continue(())
    }
}

/// Plays the program in `bytes`. `may_fail` as for [`Hostile`]: it leaks.
///
/// # Panics
/// If the driver misbehaves.
pub fn play(bytes: &[u8], may_fail: bool) {
    let Some(mut play) = Play::new(bytes, may_fail) else { return };
    let mut is_useful = ControlFlow::Continue(());
    while is_useful.is_continue() && !play.host.is_over() {
        is_useful = play.step();
    }
    if is_useful.is_continue() {
        is_useful = play.finish();
    }
    let Play { host, driver, mut files, held, buffers } = play;
    drop(held);
    // The host closes none of them.
    let ours: Vec<_> = files.drain(..2).map(Fd::into_owned).collect();
    assert!(is_useful.is_break() || ours.iter().all(Result::is_ok), "a file is still in use");
    drop((ours, files));
    // An honest host closes the other files.
    let limit = if is_useful.is_continue() { Duration::from_secs(10) } else { Duration::ZERO };
    let leaked = driver.shutdown(limit).leaked;
    assert!(is_useful.is_break() || leaked == 0, "{leaked} operations were leaked");
    drop((host, buffers));
}

#[cfg(test)]
mod tests {
    use super::play;

    fn play_seeds(seeds: std::ops::Range<u64>, may_fail: bool) {
        for seed in seeds {
            let mut random = crate::support::Random::new(seed);
            let len = 16 + random.below(600);
            let bytes: Vec<u8> = (0..len).map(|_| random.below(256) as u8).collect();
            play(&bytes, may_fail);
        }
    }

    #[test]
    fn lies_of_many_seeds_do_no_harm() {
        play_seeds(1..5001, false);
    }

    /// Runs few seeds, since other tests of this process need descriptors with small numbers.
    #[test]
    fn nor_do_failures_that_end_the_ring() {
        play_seeds(5001..5051, true);
    }
}
