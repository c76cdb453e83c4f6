//! Situations in which runtimes on a ring are known to fail; each test is named after its situation.
//! Further ones are tested beside the code that they concern.

pub mod cancellation;
pub mod crowds;
mod endings;
mod streams;
