//! Random programs that adopt, lend, pass, duplicate, forget and close descriptors, so that numbers are lent
//! while they are in use and used again soon: each byte must go where its descriptor leads.
//!
//! A program is a list of steps from a seed. Each step chooses among the objects that are there, so that a
//! program stays one when steps are left out: a failing program is printed in its smallest form.
//! `SAKIA_TEST_NUMBER_PROGRAMS` sets the number of programs for each backend.

mod lent_again;
mod program;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use sakia_driver::{Bypass, Driver, Epoll, Rules, Uring};
use sakia_ring::Ring;
use sakia_testkit::{settings, shrink};

use self::program::{Program, Step};
use self::world::World;
use crate::children;
use crate::support::Watch;

/// The usual number of programs for each backend.
const PROGRAMS: u64 = 1500;

/// The ring, with registration after the first transfer.
pub fn scene_ring() {
    run_all(|program| {
        let sizes = Ring::builder().sq_entries(program.entries).cq_entries(2 * program.entries);
        let mut ring = Uring::from_builder(sizes).unwrap();
        ring.register_files_after(1);
        Driver::new(ring)
    });
}

pub fn scene_epoll() {
    run_all(|_| Driver::new(Epoll::new().unwrap()));
}

#[test]
fn each_byte_goes_where_its_descriptor_leads_on_the_ring() {
    children::run("numbers_on_the_ring");
}

#[test]
fn each_byte_goes_where_its_descriptor_leads_on_epoll() {
    children::run("numbers_on_epoll");
}

fn run_all(make: impl Fn(&Program) -> Driver) {
    let play = |program: &Program| {
        let before = count_open();
        let driver = make(program);
        if program.has_plain_calls {
            driver.set_bypass(Bypass::Rules(Rules::default()));
        }
        World::new(driver).play(&program.steps);
        // Threads may still close files.
        let watch = Watch::new();
        while count_open() != before {
            watch.check(|| format!("{before} descriptors, of {} that are open", count_open()));
            std::thread::yield_now();
        }
    };
    // The first driver makes what all drivers of the process share.
    drop(make(&Program::random(0)));
    let mut steps = 0;
    for seed in 0..settings::number("SAKIA_TEST_NUMBER_PROGRAMS", PROGRAMS) {
        let program = Program::random(seed);
        steps += program.steps.len();
        if catch_unwind(AssertUnwindSafe(|| play(&program))).is_err() {
            std::panic::set_hook(Box::new(|_| {}));
            let with = |steps: &[Step]| Program { steps: steps.to_vec(), ..program.clone() };
            let fails =
                |steps: &[Step]| catch_unwind(AssertUnwindSafe(|| play(&with(steps)))).is_err();
            let smallest = with(&shrink::smallest(program.steps.clone(), fails));
            let _ = std::panic::take_hook();
            eprintln!("seed {seed}: {smallest:#?}");
            play(&smallest);
            panic!("the program of seed {seed} fails only sometimes");
        }
    }
    assert!(steps > 0);
}

fn count_open() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}
