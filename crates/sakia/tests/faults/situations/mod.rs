//! Situations in which runtimes on a ring are known to fail: a test is named after its situation. Others
//! of the kind are tested beside the code that they concern.

pub mod cancellation;
pub mod crowds;
mod endings;
mod streams;
