//! Known bugs that can be switched on, to show that the tests catch them.
//!
//! A build with `--cfg sakia_mutants` reads the environment variable `SAKIA_MUTANT` once and
//! behaves wrongly in the one place with that name. In every other build `mutant!` is the
//! constant `false`, and no wrong code is compiled in. `cargo xtask mutants` runs the suite for each
//! name in [`ALL`] and fails for one that survives.

/// True when the bug of this name is switched on.
macro_rules! mutant {
    ($name:literal) => {
        cfg!(sakia_mutants) && crate::mutant::is_active($name)
    };
}

/// Every bug that can be switched on, with what is wrong then.
pub const ALL: &[(&str, &str)] = &[
    ("free_on_drop", "dropping a handle frees the memory of an operation in flight"),
    ("no_generation_check", "a completion is accepted for whatever is in the slot now"),
    ("cancel_dropped_when_full", "a request to cancel that finds no room is forgotten"),
    ("revoked_succeeds", "an entry that was taken back reports the no-op's result as its own"),
    ("close_does_not_wait", "a descriptor is closed while operations on it are in flight"),
    ("credit_not_returned", "a bounded operation keeps its credit for ever"),
    ("waiting_holds_credit", "operations that wait for ever use up the credits of others"),
    ("teardown_frees", "the end of the driver frees what the kernel still holds"),
    ("panic_loses_wakes", "a waker that panics takes the wakes after it along"),
    ("fork_unnoticed", "a forked child uses its parent's ring"),
    ("more_is_last", "a completion that announces more ends the operation"),
    ("late_open_leaks", "a descriptor that was opened for nobody stays open"),
    ("eintr_forgets_in_flight", "a signal makes the driver forget what is in flight"),
    ("again_is_fatal", "a kernel that has no room for the moment ends the driver"),
    ("excess_cancels_count", "completions of requests to cancel are believed, however many come"),
    ("newcomers_overtake", "an operation is pushed although older ones of its class wait for room"),
    (
        "dropped_close_forgotten",
        "dropping the handle of a pending close leaves the descriptor open",
    ),
    (
        "foreign_fd_accepted",
        "a descriptor of another driver is used as if it were the driver's own",
    ),
    ("memory_not_kept", "the driver's memory is freed though handles of operations refer to it"),
    ("lost_handle_waits", "a handle whose operation was given up waits for ever"),
    ("wakes_inside_borrow", "a waker is called while the driver is borrowed"),
    ("dispose_panic_keeps_slot", "an operation whose disposal panics keeps its slot"),
    ("every_push_enters", "each operation is submitted alone"),
    ("idle_enters", "a turn with nothing to do enters the kernel"),
    ("drain_never_learns", "what is ready at once is fetched 20 completions at a time"),
    ("blocks_not_reused", "the memory of large operations is allocated anew each time"),
    ("vectored_unclamped", "more buffers are passed to the kernel than it takes"),
    ("read_ignores_offset", "every read begins at the start of the file"),
    ("restart_code_leaks", "the kernel's restart codes are reported as errors of their own"),
];

#[doc(hidden)]
/// Whether the bug of this name is switched on.
pub fn is_active(name: &str) -> bool {
    static ACTIVE: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    ACTIVE.get_or_init(|| std::env::var("SAKIA_MUTANT").ok()).as_deref() == Some(name)
}
