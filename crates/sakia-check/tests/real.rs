//! The same programs on this machine, with the same models: this holds the models, and with them the
//! simulated kernel, against a real kernel.

use std::env;
use std::process;

use sakia_check::program::Program;
use sakia_check::run::real;
use sakia_check::stats::Stats;
use sakia_driver::Policy;

/// The number of programs on each backend.
const PROGRAMS: u64 = 300;

fn agree(policy: Policy, name: &str) {
    let mut stats = Stats::default();
    for seed in 0..PROGRAMS {
        let program = Program::random(seed);
        let folder = env::temp_dir().join(format!("sakia-check-{name}-{}-{seed}", process::id()));
        if let Some(failure) = real(&program, policy, folder, &mut stats).expect("a backend") {
            panic!("seed {seed} on {name}: {}\n{}", failure.what, program.to_text());
        }
    }
    assert_eq!(stats.programs, PROGRAMS);
    println!("{stats}");
}

#[test]
fn the_ring_does_what_the_models_say() {
    agree(Policy::Uring, "uring");
}

#[test]
fn epoll_and_threads_do_what_the_models_say() {
    agree(Policy::Poll, "poll");
}
