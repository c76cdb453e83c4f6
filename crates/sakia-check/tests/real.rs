//! The same programs on this machine, with the same models: this holds the models, and with them the
//! simulated kernel, against a real kernel.

use std::sync::atomic::{AtomicU64, Ordering};
use std::{env, process, thread};

use sakia_check::program::Program;
use sakia_check::run::real;
use sakia_check::stats::Stats;
use sakia_driver::Policy;

/// The number of programs on each backend.
const PROGRAMS: u64 = 300;
/// Programs that run at a time: most of their time passes in waits.
const AT_A_TIME: usize = 4;

fn agree(policy: Policy, name: &str) {
    let next = AtomicU64::new(0);
    let work = || {
        let mut stats = Stats::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= PROGRAMS {
                return stats;
            }
            let program = Program::random(seed);
            let folder = format!("sakia-check-{name}-{}-{seed}", process::id());
            let folder = env::temp_dir().join(folder);
            if let Some(failure) = real(&program, policy, folder, &mut stats).expect("a backend") {
                panic!("seed {seed} on {name}: {}\n{}", failure.what, program.to_text());
            }
        }
    };
    let mut stats = Stats::default();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..AT_A_TIME).map(|_| scope.spawn(work)).collect();
        threads.into_iter().for_each(|thread| stats.add(thread.join().expect("see above")));
    });
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
