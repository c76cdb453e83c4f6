//! Names for operations that survive the operation.
//!
//! The kernel hands back a [`Key`] with each completion: a slot's index with the generation that the slot
//! had, never a pointer. A key whose operation has ended matches nothing.

/// Names one operation of one driver. In a completion's `user_data`, from the high bits down:
/// generation (32), index (24), kind (8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key(u64);

/// The request or event that a completion belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// An operation in a slot.
    Operation = 0,
    /// The driver's request to cancel something; has no slot.
    Cancel = 1,
    /// Another thread woke the driver; has neither slot nor entry.
    Wake = 2,
    /// A thread of a lane has something for the backend; has no slot.
    Lane = 3,
    /// A time has come; has no slot.
    Alarm = 4,
}

/// The maximum number of slots of a driver: the width of the index.
pub(crate) const SLOTS_MAX: u32 = 1 << 24;

impl Key {
    #[inline(always)]
    pub(crate) fn new(index: u32, generation: u32) -> Self {
        Self(u64::from(generation) << 32 | u64::from(index) << 8)
    }

    /// Returns the key as the kernel carries it.
    #[inline(always)]
    pub(crate) fn user_data(self) -> u64 {
        self.0
    }

    /// Returns the `user_data` of a request to cancel this operation.
    #[inline(always)]
    pub(crate) fn cancel_user_data(self) -> u64 {
        self.0 | Kind::Cancel as u64
    }

    #[inline(always)]
    pub(crate) fn from_user_data(user_data: u64) -> Self {
        Self(user_data & !0xff)
    }

    #[inline(always)]
    pub(crate) fn index(self) -> u32 {
        (self.0 >> 8) as u32 & (SLOTS_MAX - 1)
    }

    #[inline(always)]
    pub(crate) fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

impl Kind {
    /// Returns the key in a `user_data`; `None` if the completion is not the driver's.
    #[inline(always)]
    pub(crate) fn of(user_data: u64) -> Option<Self> {
        match user_data as u8 {
            0 => Some(Self::Operation),
            1 => Some(Self::Cancel),
            2 => Some(Self::Wake),
            3 => Some(Self::Lane),
            4 => Some(Self::Alarm),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_keeps_index_generation_and_kind() {
        let key = Key::new(SLOTS_MAX - 1, u32::MAX);
        assert_eq!((key.index(), key.generation()), (SLOTS_MAX - 1, u32::MAX));
        assert_eq!(Kind::of(key.user_data()), Some(Kind::Operation));
        assert_eq!(Kind::of(key.cancel_user_data()), Some(Kind::Cancel));
        assert_eq!(Key::from_user_data(key.cancel_user_data()), key);
        assert_eq!(Kind::of(key.user_data() | 0x80), None);
    }
}
