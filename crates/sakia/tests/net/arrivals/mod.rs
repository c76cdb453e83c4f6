//! Arrivals in order: random programs that mix all receiving methods of one object, against a model of its
//! arrivals.
//!
//! A program starts receives, polls them, drops them, forgets them, limits their time, and has several tasks
//! wait, while datagrams, connections or bytes arrive. The model ([`model`]) knows the order of arrivals, and
//! checks each result for order, loss and doubles. At the end enough has arrived for all receives under way,
//! and each of them must end.
//!
//! `SAKIA_ARRIVALS_SEEDS` sets the number of programs of each test, and `SAKIA_ARRIVALS_FIRST_SEED` the
//! first of them. A failing program is reduced.

mod accepts;
mod datagrams;
mod model;
mod pipes;
mod receives;
mod sends;
mod streams;

use std::cell::Cell;
use std::fmt::Debug;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use sakia_driver::Policy;
use sakia_testkit::settings::number;

use crate::support::runtime;

/// The number of programs of each test.
const SEEDS: u64 = 40;
/// The most tries for making a failing program smaller.
const SHRINKS_MAX: u32 = 3000;
/// The most time for making a failing program smaller.
const SHRINK_MS: u32 = 60_000;

/// The time after which a receive for which enough has arrived is said to be forgotten. A minute is the
/// patience of other tests; while a program is reduced, each try may last as long.
fn patience(is_first: bool) -> Duration {
    if is_first { sakia_testkit::settings::patience() } else { Duration::from_secs(3) }
}

thread_local! {
    /// The number of programs of this thread that have failed.
    static FAILED: Cell<u32> = const { Cell::new(0) };
}

/// Waits for an event that must come.
async fn must<F: Future>(what: &str, future: F) -> F::Output {
    let limit = patience(FAILED.get() == 0);
    let ended = sakia::time::timeout(limit, future).await;
    ended.unwrap_or_else(|_| panic!("forgotten: {what}"))
}

/// Runs the programs of all seeds, each within a runtime of its own, and reduces the first that fails.
fn check<P, F>(policy: Policy, programs: impl Strategy<Value = P>, perform: impl Fn(P) -> F)
where
    P: Debug + Clone,
    F: Future<Output = ()>,
{
    let first = number("SAKIA_ARRIVALS_FIRST_SEED", 0);
    for seed in first..first + number("SAKIA_ARRIVALS_SEEDS", SEEDS) {
        let config = Config {
            cases: 1,
            failure_persistence: None,
            max_shrink_iters: SHRINKS_MAX,
            max_shrink_time: SHRINK_MS,
            ..Config::default()
        };
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let mut runner = TestRunner::new_with_rng(config, rng);
        let ran = runner.run(&programs, |program| {
            let runtime = runtime(policy);
            let run = || runtime.block_on(perform(program));
            catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
                FAILED.set(FAILED.get() + 1);
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
                TestCaseError::fail(text.to_owned())
            })
        });
        match ran {
            Ok(()) => {}
            Err(TestError::Fail(reason, program)) => panic!("seed {seed}: {reason}\n{program:?}"),
            Err(TestError::Abort(reason)) => panic!("seed {seed}: {reason}"),
        }
    }
}

/// Makes tests of these functions, on each backend. Each gets the backend.
macro_rules! on_backends {
    ($($name:ident)*) => {
        mod uring {
            $(
                #[test]
                fn $name() {
                    if let Some(reason) = crate::support::why_no_ring() {
                        return sakia_testkit::place::announce_skip(
                            concat!(module_path!(), "::", stringify!($name)), &reason,
                        );
                    }
                    super::$name(sakia_driver::Policy::Uring);
                }
            )*
        }
        mod poll {
            $(
                #[test]
                fn $name() {
                    super::$name(sakia_driver::Policy::Poll);
                }
            )*
        }
    };
}
use on_backends;

/// Lets the driver take some turns.
async fn turns(count: u8) {
    for _ in 0..count {
        sakia::yield_now().await;
    }
}
