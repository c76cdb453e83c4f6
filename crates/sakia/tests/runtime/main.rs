//! Tests of the runtime, a module per subject.

mod tasks;
