//! The part of a request that is left until its result is taken.

use std::ffi::c_void;

/// Marks the token that the driver has for a request that is in the [table](Pending). A program's token with
/// this bit is in the table, too.
pub(crate) const IN_TABLE: u64 = 1 << 63;

/// Memory of the program's, to be written when the result is taken. It is the library's until then: the
/// header's contract.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// Up to so many bytes.
    Bytes(*mut u8, usize),
    /// A `struct msghdr`, which names more.
    Message(*mut c_void),
}

/// A request whose result needs more than the driver's token and number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    /// The program's token.
    pub(crate) token: u64,
    /// `None`: nothing is written.
    pub(crate) place: Option<Place>,
}

/// The table of those requests.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    rows: Vec<Option<Waiting>>,
    free: Vec<usize>,
}

impl Pending {
    /// Returns the token for the driver.
    pub(crate) fn add(&mut self, waiting: Waiting) -> u64 {
        let index = self.free.pop().unwrap_or(self.rows.len());
        if index == self.rows.len() {
            self.rows.push(None);
        }
        self.rows[index] = Some(waiting);
        IN_TABLE | index as u64
    }

    /// Returns a request that will have more results.
    pub(crate) fn get(&self, token: u64) -> Option<&Waiting> {
        self.rows.get((token & !IN_TABLE) as usize)?.as_ref()
    }

    /// Returns the request of a result, and takes it out unless it will have `more`.
    pub(crate) fn find(&mut self, token: u64, more: bool) -> Option<Waiting> {
        if more { self.get(token).copied() } else { self.take(token) }
    }

    /// Takes the request out.
    pub(crate) fn take(&mut self, token: u64) -> Option<Waiting> {
        let index = (token & !IN_TABLE) as usize;
        let waiting = self.rows.get_mut(index)?.take()?;
        self.free.push(index);
        Some(waiting)
    }

    /// Returns the program's token of a token of the driver's.
    pub(crate) fn token_of(&self, token: u64) -> u64 {
        if token & IN_TABLE == 0 {
            return token;
        }
        self.get(token).map_or(token, |waiting| waiting.token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_used_again_and_tokens_come_back() {
        let mut pending = Pending::default();
        let row = |token| Waiting { token, place: None };
        let (a, b) = (pending.add(row(7)), pending.add(row(u64::MAX)));
        assert_ne!(a, b);
        assert_eq!((pending.token_of(a), pending.token_of(5)), (7, 5));
        assert_eq!(pending.get(b).map(|waiting| waiting.token), Some(u64::MAX));
        assert_eq!(pending.take(a).map(|waiting| waiting.token), Some(7));
        assert!(pending.take(a).is_none());
        assert_eq!(pending.add(row(8)), a);
        assert_eq!((pending.token_of(a), pending.token_of(b)), (8, u64::MAX));
        assert!(pending.take(IN_TABLE | 99).is_none());
    }
}
