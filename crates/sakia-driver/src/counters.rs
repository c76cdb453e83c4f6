//! What a driver did, in numbers.

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Totals since the driver was made. Each costs one addition where it is counted.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Every counter with its name, in the order of the fields.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Operations started.
    started,
    /// Operations whose last completion came, or that ended before the kernel saw them.
    finished,
    /// Entries given to the kernel, requests to cancel included.
    pushed,
    /// Calls of `io_uring_enter(2)`.
    enters,
    /// Of these, the ones that were ready to sleep.
    waits,
    /// Completions copied out of the queue.
    completions,
    /// Operations that had to wait for admission: queue full or no credit left.
    backlogged,
    /// Operations dropped before they were done.
    orphaned,
    /// Entries taken back before the kernel saw them.
    revoked,
    /// Requests to cancel given to the kernel.
    cancels,
    /// Completions of unknown or finished operations; ignored.
    stale,
    /// Turns that found the completion queue overflowing. Nothing is lost by it.
    overflows,
    /// Enters that the kernel answered with `EINTR`, `EAGAIN` or `EBUSY`.
    retries,
    /// Times the kernel ended a wait for everything because not everything was ready.
    drains_missed,
    /// Times another thread woke this one, as far as completions tell.
    remote_wakes,
    /// Operations too large for their slot's own memory, kept in a pooled block.
    pooled,
    /// Operations too large for that too, kept in an allocation of their own.
    boxed,
    /// Descriptors whose `close(2)` failed with nobody waiting for it.
    close_errors,
    /// Operations whose memory was given up at the end because they would not finish.
    leaked,
}
