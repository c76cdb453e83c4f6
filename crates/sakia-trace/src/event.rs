//! One event, as a thread's buffer holds it: four words.

/// The type of an event, and the meaning of its words.
///
/// # Examples
/// See [`record`](crate::record#examples).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum EventType {
    /// An operation was started. `id`: the operation; `a`: what [`Queued`] packs; `b`: the task,
    /// which the recording knows itself.
    Queued = 1,
    /// An operation was put into the ring's queue, or given to epoll. `id`: the operation.
    Submitted = 2,
    /// It was given to a lane's thread. `id`: the operation; `a`: the [reason](crate::Name); `b`: the name of
    /// the file system's type, or a number that no name has.
    ToLane = 3,
    /// An operation waits for room in the queue, or for the plain calls of a later turn. `id`: the operation;
    /// `a`: the reason.
    Delayed = 4,
    /// An operation's last completion was dispatched. `id`: the operation; `a`: the result, sign-extended.
    Completed = 5,
    /// The program took the result. `id`: the operation.
    Resumed = 6,
    /// The program will not take the result. `id`: the operation; `a`: 1 if it was started detached, 0 if its
    /// future was dropped.
    Dropped = 7,
    /// A system call, recorded at its end. `id`: number (16 bits) and duration in nanoseconds (48 bits); `a`:
    /// the first argument, a descriptor for most; `b`: the result, sign-extended, or `-errno`.
    SystemCall = 8,
    /// A turn of a driver began. `id`: entries to submit; `a`: operations in flight; `b`: 1 if it may sleep.
    TurnBegin = 9,
    /// A turn ended. `id`: operations that finished.
    TurnEnd = 10,
    /// A task was spawned. `id`: the task; `a`: the task that spawned it; `b`: the [name](crate::Name) of the
    /// place.
    TaskSpawned = 11,
    /// A task begins to run. `id`: the task.
    PollBegin = 12,
    /// The poll of a task returned. `id`: the task; `a`: 1 if it has ended; `b`: the task that runs on, or 0.
    PollEnd = 13,
    /// A scope began. `id`: the scope; `a`: the task.
    ScopeBegin = 14,
    /// A scope ended. `id`: the scope.
    ScopeEnd = 15,
    /// A span of the program began on this thread. `id`: its [name](crate::Name).
    SpanBegin = 16,
    /// The last span that began on this thread ended. `id`: its name.
    SpanEnd = 17,
    /// An event of a kind that the program registered. `id`: the [kind's](crate::EventKind) name; `a`, `b`:
    /// its values.
    Registered = 18,
}

impl EventType {
    const ALL: [Self; 18] = [
        Self::Queued,
        Self::Submitted,
        Self::ToLane,
        Self::Delayed,
        Self::Completed,
        Self::Resumed,
        Self::Dropped,
        Self::SystemCall,
        Self::TurnBegin,
        Self::TurnEnd,
        Self::TaskSpawned,
        Self::PollBegin,
        Self::PollEnd,
        Self::ScopeBegin,
        Self::ScopeEnd,
        Self::SpanBegin,
        Self::SpanEnd,
        Self::Registered,
    ];

    fn of(number: u16) -> Option<Self> {
        Self::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }
}

/// The word `a` of [`EventType::Queued`].
///
/// # Examples
/// See [`record`](crate::record#examples).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queued {
    /// The operation's kind: a [name](crate::Name), 12 bits.
    pub kind: u16,
    /// The descriptor, or -1.
    pub fd: i32,
    /// The most bytes to transfer. [`pack`](Queued::pack) stores sizes that need more than 20 bits in KiB.
    pub bytes: u32,
}

/// Larger sizes are stored in KiB.
const SMALL_MAX: u32 = (1 << 19) - 1;

impl Queued {
    /// Packs the parts into a word: kind (12 bits), size (20), descriptor (32).
    pub fn pack(self) -> u64 {
        let size = if self.bytes <= SMALL_MAX {
            self.bytes
        } else {
            1 << 19 | (self.bytes >> 10).min(SMALL_MAX)
        };
        u64::from(self.kind & 0xfff) << 52 | u64::from(size) << 32 | u64::from(self.fd as u32)
    }

    /// Unpacks a word; the reverse of [`pack`](Queued::pack).
    pub fn unpack(word: u64) -> Self {
        let size = (word >> 32) as u32 & 0xf_ffff;
        let bytes = if size >> 19 == 0 { size } else { (size & SMALL_MAX) << 10 };
        Self { kind: (word >> 52) as u16, fd: word as u32 as i32, bytes }
    }
}

/// An event with its time.
///
/// # Examples
/// See [`record`](crate::record#examples).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Nanoseconds since the recording began, 48 bits.
    pub time: u64,
    /// The type.
    pub kind: EventType,
    /// Depends on the type.
    pub id: u64,
    /// Depends on the type.
    pub a: u64,
    /// Depends on the type.
    pub b: u64,
}

impl Event {
    pub(crate) fn to_words(self) -> [u64; 4] {
        [self.time << 16 | self.kind as u64, self.id, self.a, self.b]
    }

    /// Returns the event with its whole time, of which its words have 48 bits: the one that is nearest to
    /// `now`. So a recording may last longer than three days.
    pub(crate) fn near(self, now: u64) -> Self {
        let ahead = (self.time.wrapping_sub(now) << 16) as i64 >> 16;
        Self { time: now.wrapping_add_signed(ahead), ..self }
    }

    /// Returns the event with these words; `None` if they are no event of this crate.
    pub(crate) fn from_words(words: [u64; 4]) -> Option<Self> {
        let kind = EventType::of(words[0] as u16)?;
        Some(Self { time: words[0] >> 16, kind, id: words[1], a: words[2], b: words[3] })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn types_have_the_numbers_of_their_places() {
        for (index, kind) in EventType::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index + 1);
        }
        assert_eq!((EventType::of(0), EventType::of(19)), (None, None));
    }

    proptest! {
        #[test]
        fn an_event_keeps_its_parts(time in 0_u64..1 << 48, number in 1_u16..=18, id: u64, a: u64, b: u64) {
            let kind = EventType::of(number).expect("a number of the list");
            let event = Event { time, kind, id, a, b };
            prop_assert_eq!(Event::from_words(event.to_words()), Some(event));
        }

        #[test]
        fn a_start_keeps_its_parts(kind in 0_u16..1 << 12, fd: i32, bytes: u32) {
            let unpacked = Queued::unpack(Queued { kind, fd, bytes }.pack());
            prop_assert_eq!((unpacked.kind, unpacked.fd), (kind, fd));
            if bytes <= SMALL_MAX {
                prop_assert_eq!(unpacked.bytes, bytes);
            } else {
                prop_assert_eq!(unpacked.bytes, (bytes >> 10).min(SMALL_MAX) << 10);
            }
        }
    }
}
