//! The name of received bytes that are lent.

/// Bytes that a [`Request::ReceiveMany`](crate::Request::ReceiveMany) has received, in memory of its loop. It
/// is to be given back to that loop: memory that never is stays lent until the loop's end.
///
/// # Examples
/// See [`Request::ReceiveMany`](crate::Request::ReceiveMany).
#[derive(Debug, PartialEq, Eq, Hash)]
#[must_use = "it is to be given back"]
pub struct Lent {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl Lent {
    /// Returns the name as a number, for other languages. It is not 0.
    ///
    /// # Examples
    /// ```
    /// use sakia_driver::{Lent, Loop};
    ///
    /// // Any number is a name, at worst one of nothing.
    /// let ring = Loop::new()?;
    /// assert!(ring.bytes(&Lent::from_bits(u64::MAX)).is_empty());
    /// assert_eq!(Lent::from_bits(u64::MAX).to_bits(), u64::MAX);
    /// # std::io::Result::Ok(())
    /// ```
    pub fn to_bits(&self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// Returns the name with this number.
    ///
    /// # Examples
    /// See [`to_bits`](Lent::to_bits).
    pub fn from_bits(bits: u64) -> Self {
        Self { index: bits as u32, generation: (bits >> 32) as u32 }
    }
}
