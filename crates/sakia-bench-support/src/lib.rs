//! Shared tools of experiments and tests: file systems that behave badly, Linux AIO, a timed host.
//!
//! The file systems need root, and are skipped loudly without. Everything here may be used from any thread.
//!
//! # Examples
//! The ratio of two programs, measured in turn, with its confidence interval:
//! ```
//! use sakia_bench_support::stats::Ratio;
//!
//! let rounds = [(2.0, 4.0), (2.1, 4.0), (1.9, 4.0), (2.0, 4.1), (2.2, 4.0), (2.0, 3.9)];
//! let ratio = Ratio::of(rounds).expect("there are rounds");
//! let [low, high] = ratio.ci95.expect("there are enough of them");
//! assert!(0.4 < low && low < ratio.median && ratio.median < high && high < 0.6);
//! ```
//!
//! # Modules
//! File systems:
//! - [`fuse`]: a file system whose every answer is scripted: late, short, an error, never.
//! - [`throttled`]: an ext4 on a disk that stalls on command.
//! - [`small_fs`]: file systems that are soon full, or whose disk loses its end.
//!
//! [`timed_host`] is a host for rings that has a clock. [`aio`] is Linux AIO, and a scheduler on it: the
//! experiment `sched` compares the engine with it.
//!
//! Limit programs of experiments, which need unsafe code: [`ring_send`], [`datagram_batch`] and
//! [`careful_send`].
//!
//! [`stats`] has medians and their intervals, and [`usage`] the machine's resources used by a program, for
//! all measurements.
//!
//! [`mix`] scatters numbers.
//!
//! [`blocked`] detects that a thread is blocked in the kernel; [`place`] has the shared parts of the file
//! systems: skips, scratch directories, leftovers.

pub mod aio;
pub mod blocked;
pub mod careful_send;
pub mod datagram_batch;
pub mod fuse;
mod loop_device;
pub mod place;
pub mod ring_send;
pub mod small_fs;
pub mod stats;
pub mod throttled;
pub mod timed_host;
pub mod usage;

/// Scatters a number over 64 bits (splitmix64).
#[inline]
pub fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
