//! Tests of the runtime, a module per subject.

#![expect(
    clippy::unwrap_used,
    reason = "the failure of a test, or of what it calls, is its report"
)]

/// Makes tests of these functions, on each backend.
macro_rules! on_each_backend {
    ($($name:ident)*) => {
        mod uring {
            $(
                #[test]
                fn $name() {
                    if let Err(error) = sakia_ring::Ring::builder().build() {
                        return crate::refused::children::announce_skip(&error.to_string());
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

mod blocking;
mod budget;
mod buffered_files;
#[cfg(all(feature = "futures-io", feature = "hyper", feature = "tokio"))]
mod compat;
// Its programs use these features of the library that it finds: without them it would find an older one.
#[cfg(all(feature = "sim", feature = "tokio"))]
mod compile_errors;
mod copies;
mod counted;
mod dropped;
mod files;
mod foreign;
mod inspecting;
mod macros;
mod metrics;
mod mocks;
mod models;
mod nesting;
mod numbers;
mod pipes;
mod places;
mod processes;
mod readers;
mod readiness;
mod ready_loops;
mod refused;
mod rounds;
mod shutdown;
mod signals;
mod small_files;
mod structured;
mod tasks;
mod teardown;
mod time;
mod unfinished;
mod writers;

#[cfg(not(feature = "sim"))]
#[test]
fn without_the_simulated_kernel() {
    let left_out = "the tests on the simulated kernel: they need the feature `sim`";
    refused::children::announce_skip(left_out);
}
