//! Counters of a driver's activity.

macro_rules! counters {
    (
        $(#[$about:meta])* $type:ident $(with $(#[$of_rest:meta])* $rest:ident: $rest_type:ty)?;
        $($(#[$doc:meta])* $name:ident,)*
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $type {
            $($(#[$doc])* pub $name: u64,)*
            $($(#[$of_rest])* pub(crate) $rest: $rest_type,)?
        }

        impl $type {
            /// Returns every field that is a number, with its name, in the order of the fields.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }

            /// Adds the other's counts.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
                $(
                    let pairs = self.$rest.iter_mut().zip(&other.$rest);
                    pairs.for_each(|(mine, its)| mine.add(its));
                )?
            }
        }
    };
}

counters! {
    /// Totals since the driver was made. Each costs one addition where it is counted.
    ///
    /// # Examples
    /// With `run` of [`Driver`](crate::Driver#examples):
    /// ```
    /// use sakia_driver::OpKind;
    ///
    /// # use std::future::Future;
    /// # fn run<F: Future>(driver: &sakia_driver::Driver, future: F) -> std::io::Result<F::Output> {
    /// #     let mut future = std::pin::pin!(future);
    /// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// #     loop {
    /// #         if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut context) {
    /// #             return Ok(output);
    /// #         }
    /// #         driver.turn(sakia_driver::Wait::Forever)?;
    /// #     }
    /// # }
    /// # fn main() -> std::io::Result<()> {
    /// # let driver = sakia_driver::Driver::new(sakia_driver::Auto::detect()?.0);
    /// let file = driver.adopt(std::fs::File::open("Cargo.toml")?.into());
    /// run(&driver, driver.read(&file, vec![0; 9], 0))?.0?;
    /// let counters = driver.counters();
    /// assert_eq!((counters.started, counters.finished, counters.orphaned), (1, 1, 0));
    /// assert_eq!(counters.of(OpKind::Read).submitted, 1);
    /// for (name, count) in counters.iter().filter(|&(_, count)| count > 0) {
    ///     println!("{name}: {count}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    Counters with
        /// By kind of operation; see [`Counters::of`].
        kinds: [KindCounters; OpKind::COUNT];
    /// Operations started.
    started,
    /// Operations whose last completion came, or that ended before they reached the kernel.
    finished,
    /// Entries given to the kernel, requests to cancel included.
    pushed,
    /// Calls of `io_uring_enter(2)`.
    enters,
    /// Enters that were ready to sleep.
    waits,
    /// Completions copied out of the queue.
    completions,
    /// Completions that were not their operation's last.
    delivered,
    /// Receives that found no provided buffer, and brought memory of their own.
    pool_misses,
    /// Operations that had to wait for admission: queue full or no credit left.
    backlogged,
    /// Operations that waited for another turn's plain calls.
    deferred,
    /// Operations dropped before they were done.
    orphaned,
    /// Entries taken back before they reached the kernel.
    revoked,
    /// Requests to cancel given to the kernel.
    cancels,
    /// Completions of unknown or finished operations; ignored.
    stale,
    /// Turns that found the completion queue overflowing. No completion is lost.
    overflows,
    /// Enters that the kernel answered with `EINTR`, `EAGAIN` or `EBUSY`.
    retries,
    /// Waits for many sends that the kernel ended before all sends were done.
    drains_missed,
    /// Wakes by other threads, as far as completions tell.
    remote_wakes,
    /// Operations in a pooled block, too large for their slot's own memory.
    pooled,
    /// Operations in an allocation of their own, too large for a pooled block.
    boxed,
    /// Files that were registered with the ring after many transfers through it.
    registered_files,
    /// Failed `close(2)` calls whose caller was gone.
    close_errors,
    /// Operations that never finished, and whose memory was leaked at the end.
    leaked,
}

impl Counters {
    /// Returns the counters of one kind of operation.
    ///
    /// # Examples
    /// See [`Counters`](Counters#examples).
    pub fn of(&self, kind: OpKind) -> KindCounters {
        self.kinds[kind as usize]
    }
}

counters! {
    /// The ways that operations of one kind took. An operation may be counted in several fields: one that
    /// would have blocked, and then went to a lane, in both.
    KindCounters;
    /// Given to the backend.
    submitted,
    /// Done as a plain system call on the driver's thread.
    inline,
    /// Tried as a plain call, which would have blocked.
    would_block,
    /// Given to a thread of a lane.
    lane,
    /// Handed by the kernel to one of its workers, if the backend knows: a ring does not.
    punted,
}

macro_rules! op_kinds {
    ($($(#[$doc:meta])* $kind:ident $name:literal;)*) => {
        /// A kind of operation, for counting.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum OpKind {
            $($(#[$doc])* $kind,)*
        }

        impl OpKind {
            pub(crate) const COUNT: usize = Self::ALL.len();

            /// All kinds, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$kind,)*];

            /// Returns the name of the kind, in lower case.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }
        }
    };
}

op_kinds! {
    /// Nothing.
    Nop "nop";
    /// Reads of every form.
    Read "read";
    /// Writes of every form.
    Write "write";
    /// Opening.
    Open "open";
    /// Closing.
    Close "close";
    /// Queries about a file, or about a file system.
    Statx "statx";
    /// Making a file or a file system durable.
    Fsync "fsync";
    /// Making a directory.
    Mkdir "mkdir";
    /// Removing a name.
    Unlink "unlink";
    /// Moving a name.
    Rename "rename";
    /// Making a link of either sort.
    Link "link";
    /// Reading the target of a symbolic link.
    Readlink "readlink";
    /// Allocating and freeing room within a file.
    Allocate "allocate";
    /// Changing the length of a file.
    Truncate "truncate";
    /// Advice on the future use of a file.
    Advise "advise";
    /// Listing a directory.
    List "list";
    /// Copying within the kernel.
    Copy "copy";
    /// Sending a file within the kernel.
    SendFile "send_file";
    /// Permissions, owners, times, and extended attributes.
    Attribute "attribute";
    /// Locking a file, and unlocking.
    Lock "lock";
    /// Making, binding, listening on and shutting down a socket.
    Socket "socket";
    /// Accepting a connection.
    Accept "accept";
    /// Connecting.
    Connect "connect";
    /// Sends of every form.
    Send "send";
    /// Receives of every form.
    Recv "recv";
    /// Waiting for readiness.
    Poll "poll";
    /// Requests to cancel.
    Cancel "cancel";
    /// Anything else.
    Other "other";
}
