//! Sleeping, deadlines, intervals, and their clock.
//!
//! Timers live in user space, on the thread that waits for them: setting and dropping one costs no system
//! call, and a thread sleeps until the next one is due. Their resolution is 1 ms, and they never fire early.
//!
//! # Virtual time
//!
//! In a runtime built with [`virtual_time`](crate::Builder::virtual_time) the clock stands still while
//! tasks run. When all of them wait, and no operation is in flight, it jumps to the next deadline. So a
//! test of a program that sleeps for hours is over at once, and gives the same result each time:
//!
//! ```
//! use std::time::Duration;
//! use sakia::time::{now, sleep};
//!
//! let runtime = sakia::Runtime::builder().virtual_time(true).build()?;
//! let elapsed = runtime.block_on(async {
//!     let begin = now();
//!     sleep(Duration::from_secs(24 * 3600)).await;
//!     begin.elapsed()
//! });
//! assert_eq!(elapsed, Duration::from_secs(24 * 3600));
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! A runtime on the [simulated kernel](crate::sim) uses that kernel's time, which is virtual too, and
//! advances for operations as it does for timers: timeouts of idle connections fire there.

mod instant;
mod interval;
mod sleep;
mod timeout;
mod timers;
mod wheel;

pub use instant::{Instant, now};
pub use interval::{Interval, MissedTicks, interval, interval_at};
pub use sleep::{Sleep, sleep, sleep_until};
pub use timeout::{Elapsed, Timeout, timeout, timeout_at};
pub(crate) use timers::Timers;
