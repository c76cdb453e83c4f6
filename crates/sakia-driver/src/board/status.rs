//! The numbers of a driver that its thread publishes at each turn.

macro_rules! status {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A driver in numbers, as of its last turn. Each is a present amount, except those called `_total`,
        /// which count since the driver was made.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct DriverStatus {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// How many they are.
        pub(crate) const NUMBERS: usize = [$(stringify!($name)),*].len();

        impl DriverStatus {
            /// Every number with its name, in the order of the fields.
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
    /// Turns that found the completion queue overflowing. Nothing is lost by it.
    overflows_total,
    /// Entries that the kernel has or will have, requests to cancel included.
    in_flight,
    /// Operations in slots, those included that are over and whose result was not taken.
    live_operations,
    /// Operations that wait for admission: the queue is full, or no credit is left.
    backlog,
    /// Bounded operations that may still be admitted.
    credits,
    /// The same when none is in flight.
    credits_max,
    /// Requests to cancel that may still be made at the same time.
    cancel_credits,
    /// The same when none is under way.
    cancel_credits_max,
    /// Blocks of the registered arena.
    arena_blocks,
    /// Those of them that are free.
    arena_free,
    /// Buffers that receives take from, of all sizes.
    pool_buffers,
    /// Those of them that the kernel has.
    pool_provided,
    /// Those of them that are free.
    pool_free,
    /// Threads of the bounded lane.
    bounded_threads,
    /// The most that it may have.
    bounded_threads_max,
    /// Operations that wait for a thread of it.
    bounded_queued,
    /// Operations that a thread of it performs.
    bounded_running,
    /// Threads of the elastic lane.
    elastic_threads,
    /// The most that it may have.
    elastic_threads_max,
    /// Operations that wait for a thread of it.
    elastic_queued,
    /// Operations that a thread of it performs.
    elastic_running,
    /// Turns that were taken.
    turns_total,
}
