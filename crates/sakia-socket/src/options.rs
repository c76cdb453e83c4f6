//! The behavior of a layer's sockets.

use crate::QueueLimits;

/// The condition for buffering in memory, in place of plain calls.
///
/// # Examples
/// See [`Options`](Options#examples).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum When {
    /// Never: each call of the program is a call of the host.
    Never,
    /// When the traffic shows that it pays, and until it shows the opposite.
    #[default]
    OnEvidence,
    /// Always, to measure and test the cost of that.
    Always,
}

/// The condition for raising `SIGPIPE`, besides `EPIPE`, for a send on a broken connection.
///
/// # Examples
/// See [`Options`](Options#examples).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BrokenPipe {
    /// Never, as if every call had `MSG_NOSIGNAL`: the signal would go to the process of the library, not to
    /// the program that it serves. The caller raises its own signal with each `EPIPE` of a stream.
    #[default]
    Never,
    /// As in the kernel: with each `EPIPE` of a stream for a call without `MSG_NOSIGNAL`, in the calling
    /// thread. [`Host::raise_broken_pipe`](crate::Host::raise_broken_pipe) raises it if no call of the host
    /// has failed.
    Raise,
}

/// The behavior of a [`Layer`](crate::Layer)'s sockets.
///
/// # Examples
/// ```
/// use sakia_socket::{BrokenPipe, Kernel, Layer, Options, When};
///
/// // As the kernel alone, but for the signal, which a runtime of its own raises.
/// let mut options = Options::default();
/// options.read_ahead = When::Never;
/// options.gather = When::Never;
/// options.broken_pipe = BrokenPipe::Raise;
/// let layer = Layer::new(Kernel, options);
/// # drop(layer);
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The condition for reads to fetch more than was asked for: by default on evidence.
    pub read_ahead: When,
    /// The condition for delaying small writes, to send them together: by default never, since delayed bytes
    /// are lost if the process is killed.
    pub gather: When,
    /// The most delayed bytes of a socket, and the longest delay.
    pub limits: QueueLimits,
    /// The condition for sends to raise `SIGPIPE`: by default never.
    pub broken_pipe: BrokenPipe,
    /// The most bytes of a socket that are read ahead: 64 KiB by default.
    pub ahead_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            read_ahead: When::OnEvidence,
            gather: When::Never,
            limits: QueueLimits::default(),
            broken_pipe: BrokenPipe::Never,
            ahead_bytes: 64 << 10,
        }
    }
}
