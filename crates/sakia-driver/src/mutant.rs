//! Known bugs that can be switched on, to show that the tests catch them.
//!
//! A build with `--cfg sakia_mutants` reads the environment variable `SAKIA_MUTANT` once and
//! behaves wrongly in the one place with that name, here or in a crate above. In every other build
//! `mutant!` is the constant `false`, and no wrong code is compiled in. `cargo xtask mutants` has the
//! list of them, runs for each the tests that are to catch it, and fails for one that survives.

/// True when the bug of this name is switched on.
#[cfg(sakia_mutants)]
macro_rules! mutant {
    ($name:literal) => {
        crate::mutant::is_active($name)
    };
}

/// False: this build has no bug that can be switched on.
#[cfg(not(sakia_mutants))]
macro_rules! mutant {
    ($name:literal) => {
        false
    };
}

/// Whether the bug of this name is switched on.
#[cfg(sakia_mutants)]
pub fn is_active(name: &str) -> bool {
    static ACTIVE: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    ACTIVE.get_or_init(|| std::env::var("SAKIA_MUTANT").ok()).as_deref() == Some(name)
}
