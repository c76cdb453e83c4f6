//! Kinds of events that a program registers.

use crate::recorder::{is_on, record};
use crate::{EventType, Name};

/// A kind of event that the program registers at run time: a name, and the names of two values.
///
/// # Examples
/// ```
/// let miss = sakia_trace::EventKind::register("cache miss", ["key", "bytes"]);
/// miss.record(17, 4096); // does nothing unless a recording is on
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventKind(Name);

impl EventKind {
    /// Registers a kind. A second registration of the same name replaces the names of its values.
    ///
    /// # Examples
    /// See [`EventKind`](EventKind#examples).
    pub fn register(name: &str, values: [&str; 2]) -> Self {
        let values = values.map(|value| Some(Name::register(value)));
        Self(Name::insert(name, values))
    }

    /// Records an event of this kind on the calling thread.
    ///
    /// # Examples
    /// See [`EventKind`](EventKind#examples).
    #[inline]
    pub fn record(self, first: u64, second: u64) {
        if is_on() {
            record(EventType::Registered, self.0.number().into(), first, second);
        }
    }
}
