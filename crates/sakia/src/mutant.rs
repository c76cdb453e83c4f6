//! Known bugs that can be switched on, as in `sakia_driver::mutant`, of the runtime.

/// True when the bug of this name is switched on.
#[cfg(sakia_mutants)]
macro_rules! mutant {
    ($name:literal) => {
        sakia_driver::mutant::is_active($name)
    };
}

/// False: this build has no bug that can be switched on.
#[cfg(not(sakia_mutants))]
macro_rules! mutant {
    ($name:literal) => {
        false
    };
}
