//! The numbers of a driver that its thread publishes at each turn.

macro_rules! status {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A driver in numbers. Numbers with `_total` in their names count from a beginning on, the driver's
        /// unless they say otherwise; all others are amounts of one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct DriverStatus {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// The number of fields.
        pub(crate) const NUMBERS: usize = [$(stringify!($name)),*].len();

        impl DriverStatus {
            /// Returns every number with its name, in the order of the fields.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }

            pub(super) fn words(&self) -> [u64; NUMBERS] {
                [$(self.$name,)*]
            }

            pub(super) fn of(words: [u64; NUMBERS]) -> Self {
                let [$($name,)*] = words;
                Self { $($name,)* }
            }
        }
    };
}

status! {
    /// Entries that the kernel has not been given yet.
    sq_pending,
    /// Room for such entries.
    sq_entries,
    /// Completions that have come and have not been fetched.
    cq_ready,
    /// Room for completions.
    cq_entries,
    /// Turns that found the completion queue overflowing. No completion is lost.
    overflows_total,
    /// Entries that the kernel has or will have, requests to cancel included.
    in_flight,
    /// Operations in slots, including ended ones whose result was not taken.
    live_operations,
    /// Operations that wait for admission: the queue is full, or no credit is left.
    backlog,
    /// Bounded operations that may still be admitted.
    credits,
    /// `credits` when no bounded operation is in flight.
    credits_max,
    /// Cancel requests that may still be in flight at the same time.
    cancel_credits,
    /// `cancel_credits` when none is in flight.
    cancel_credits_max,
    /// Blocks of the registered arena.
    arena_blocks,
    /// Free blocks of the arena.
    arena_free,
    /// Buffers that receives are given, of all sizes.
    pool_buffers,
    /// Buffers of the pool that the kernel has.
    pool_provided,
    /// Free buffers of the pool.
    pool_free,
    /// Threads of the bounded lane.
    bounded_threads,
    /// Maximum number of threads of the bounded lane.
    bounded_threads_max,
    /// Operations that wait for a thread of the bounded lane.
    bounded_queued,
    /// Operations that threads of the bounded lane perform.
    bounded_running,
    /// Threads of the elastic lane.
    elastic_threads,
    /// Maximum number of threads of the elastic lane.
    elastic_threads_max,
    /// Operations that wait for a thread of the elastic lane.
    elastic_queued,
    /// Operations that threads of the elastic lane perform.
    elastic_running,
    /// Turns that were taken since the driver is [watched](crate::Driver::watch).
    turns_total,
}
