//! Warnings of turns and operations that take too long: their contents and their receiver.

use std::ffi::OsStr;
use std::fmt;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use sakia_driver::{Lane, PlainCall, TaskOrigin, WatchLimits};

use super::Operation;

/// The limits of a runtime, and the receiver of its warnings; for
/// [`Builder::warnings`](crate::Builder::warnings).
///
/// There are three limits, each of which can be turned off by `None`:
/// - [`turn`](Warnings::turn), 100 ms: tasks kept the thread for longer before it returned to its driver, or
///   the driver took as long without a sleep. Reported when it is over: a task that never returns is seen by
///   an [`Inspector`](super::Inspector).
/// - [`operation`](Warnings::operation), 1 s: an operation that ends by itself, such as a read of a file, has
///   not ended, on the ring or on a lane. Receives, accepts and the like do not end by themselves.
/// - [`lane`](Warnings::lane), 10 s: an operation has kept a thread of a lane busy, whether or not it ends
///   by itself; the open of a FIFO without a peer, say.
///
/// Each operation is reported once per limit. On the simulated kernel the times are virtual.
///
/// Without a call of the builder the environment variable `SAKIA_WARNINGS` decides: `off`, or `log` with
/// limits after it, such as `log,turn=50ms,operation=2s,lane=off`. Without that there are no warnings.
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use sakia::Runtime;
/// use sakia::inspect::Warnings;
///
/// let warnings = Warnings::log().turn(Duration::from_millis(50)).lane(None);
/// let same = Warnings::from_environment(Some("log,turn=50ms,lane=off".as_ref()))?;
/// assert_eq!(warnings.to_string(), same.to_string());
/// let runtime = Runtime::builder().warnings(warnings).build()?;
/// assert!(runtime.block_on(async { true }));
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone)]
pub struct Warnings {
    turn: Option<Duration>,
    limits: WatchLimits,
    sink: Sink,
}

/// The receiver of warnings.
#[derive(Clone)]
enum Sink {
    Off,
    Log,
    Callback(Arc<dyn Fn(&Warning) + Send + Sync>),
}

impl Default for Warnings {
    fn default() -> Self {
        Self::off()
    }
}

impl Warnings {
    fn to(sink: Sink) -> Self {
        let limits = WatchLimits::new(Some(Duration::from_secs(1)), Some(Duration::from_secs(10)));
        Self { turn: Some(Duration::from_millis(100)), limits, sink }
    }

    /// Returns settings without warnings; nothing is measured.
    pub fn off() -> Self {
        Self::to(Sink::Off)
    }

    /// Returns settings that print a line on standard error for each warning, beginning with `sakia: `.
    ///
    /// # Examples
    /// See [`Warnings`](Warnings#examples).
    pub fn log() -> Self {
        Self::to(Sink::Log)
    }

    /// Returns settings that call `callback` with each warning, on the runtime's thread that it concerns,
    /// between two turns. The callback may use the runtime: spawn, inspect, wake. Warnings that become due
    /// while it runs wait for its end. A panic in it ends that call only.
    ///
    /// # Examples
    /// See [`inspect`](crate::inspect#examples).
    pub fn callback(callback: impl Fn(&Warning) + Send + Sync + 'static) -> Self {
        Self::to(Sink::Callback(Arc::new(callback)))
    }

    /// Sets how long tasks may keep the thread, or the driver without a sleep.
    ///
    /// # Examples
    /// See [`Warnings`](Warnings#examples).
    #[must_use]
    pub fn turn(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.turn = limit.into();
        self
    }

    /// Sets how long an operation may take, if it is one that ends by itself.
    #[must_use]
    pub fn operation(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.limits.operation = limit.into();
        self
    }

    /// Sets how long an operation may keep a lane's thread busy.
    ///
    /// # Examples
    /// See [`Warnings`](Warnings#examples).
    #[must_use]
    pub fn lane(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.limits.lane = limit.into();
        self
    }

    /// Parses the environment variable `SAKIA_WARNINGS`; [`off`](Warnings::off) when it is not set, or
    /// empty.
    ///
    /// # Errors
    /// `InvalidInput` for an unknown value, with the list of known ones.
    ///
    /// # Examples
    /// See [`Warnings`](Warnings#examples).
    pub fn from_environment(value: Option<&OsStr>) -> io::Result<Self> {
        let Some(value) = value else { return Ok(Self::off()) };
        value.to_str().and_then(Self::parse).ok_or_else(|| {
            let value = value.to_string_lossy();
            let message = format!(
                "SAKIA_WARNINGS={value} is none of off, log, log,turn=100ms,operation=1s,lane=10s"
            );
            io::Error::new(io::ErrorKind::InvalidInput, message)
        })
    }

    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(',');
        let mut warnings = match parts.next()? {
            "" | "off" => Self::off(),
            "log" => Self::log(),
            _ => return None,
        };
        for part in parts {
            let (name, value) = part.split_once('=')?;
            let limit = match value {
                "off" => None,
                value => Some(duration(value)?),
            };
            warnings = match name {
                "turn" => warnings.turn(limit),
                "operation" => warnings.operation(limit),
                "lane" => warnings.lane(limit),
                _ => return None,
            };
        }
        Some(warnings)
    }

    pub(crate) fn is_off(&self) -> bool {
        matches!(self.sink, Sink::Off)
    }

    pub(super) fn turn_limit(&self) -> Option<Duration> {
        self.turn
    }

    /// Returns the limits for the driver.
    pub(crate) fn limits(&self) -> WatchLimits {
        if self.is_off() { WatchLimits::default() } else { self.limits }
    }

    /// Delivers a warning.
    pub(super) fn tell(&self, warning: &Warning) {
        match &self.sink {
            Sink::Off => {}
            // Standard error may be closed; that must not end the program.
            Sink::Log => drop(writeln!(io::stderr(), "sakia: {warning}")),
            Sink::Callback(callback) => {
                // The panic hook has printed the panic. The payload may panic when it is dropped.
                if let Err(payload) = catch_unwind(AssertUnwindSafe(|| callback(warning))) {
                    std::mem::forget(payload);
                }
            }
        }
    }
}

/// Parses a number of seconds, milliseconds or microseconds: `2s`, `100ms`, `50us`.
fn duration(text: &str) -> Option<Duration> {
    let unit = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(unit);
    let number = number.parse().ok()?;
    match unit {
        "s" => Some(Duration::from_secs(number)),
        "ms" => Some(Duration::from_millis(number)),
        "us" => Some(Duration::from_micros(number)),
        _ => None,
    }
}

/// Writes the form that [`from_environment`](Warnings::from_environment) takes, but for a callback.
impl fmt::Display for Warnings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.sink {
            Sink::Off => return f.write_str("off"),
            Sink::Log => "log",
            Sink::Callback(_) => "callback",
        })?;
        let limits =
            [("turn", self.turn), ("operation", self.limits.operation), ("lane", self.limits.lane)];
        for (name, limit) in limits {
            match limit {
                Some(limit) => write!(f, ",{name}={limit:?}")?,
                None => write!(f, ",{name}=off")?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Warnings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Warnings({self})")
    }
}

/// A turn or an operation that takes too long. Its `Display` is one line.
///
/// # Examples
/// See [`inspect`](crate::inspect#examples).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// Tasks kept the thread, or the driver did without a sleep. The turn is over now.
    #[non_exhaustive]
    Turn {
        /// The number of the runtime's thread.
        thread: usize,
        /// The length of the turn.
        took: Duration,
        /// The number of polls of tasks in it; 0 if it was the driver.
        polls: u32,
        /// The task whose poll took longest, and how long that took.
        longest: Option<(TaskOrigin, Duration)>,
        /// The plain system call that took longest, if it took at least half of the time.
        call: Option<PlainCall>,
    },
    /// An operation that ends by itself has not ended.
    #[non_exhaustive]
    Operation {
        /// The number of the runtime's thread.
        thread: usize,
        /// The operation. It goes on.
        operation: Operation,
    },
    /// An operation keeps a thread of a lane busy.
    #[non_exhaustive]
    Lane {
        /// The number of the runtime's thread whose lane it is.
        thread: usize,
        /// The lane.
        lane: Lane,
        /// The operation. It goes on.
        operation: Operation,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(text: &str) -> io::Result<String> {
        Warnings::from_environment(Some(OsStr::new(text))).map(|warnings| warnings.to_string())
    }

    #[test]
    fn the_environment_sets_limits() {
        assert!(Warnings::from_environment(None).expect("nothing is wrong").is_off());
        assert_eq!(from("").ok().as_deref(), Some("off"));
        assert_eq!(from("off").ok().as_deref(), Some("off"));
        assert_eq!(from("log").ok().as_deref(), Some("log,turn=100ms,operation=1s,lane=10s"));
        let given = "log,turn=50ms,operation=2s,lane=off";
        assert_eq!(from(given).ok().as_deref(), Some(given));
    }

    #[test]
    fn what_is_not_known_is_an_error_that_says_what_is() {
        for wrong in
            ["on", "log,", "log,turn", "log,turn=5", "log,turn=ms", "log,x=5s", "log,turn=1h"]
        {
            let error = from(wrong).expect_err(wrong);
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert!(error.to_string().contains(wrong), "{error}");
        }
    }
}
