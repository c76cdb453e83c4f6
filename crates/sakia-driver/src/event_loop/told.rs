//! The news of requests that go on, as outcomes. Received bytes are lent to the program until it gives them
//! back.

use std::collections::VecDeque;

use slab::Slab;

use super::lasting::News;
use crate::connection::RecvBuf;
use crate::request::{Lent, Outcome, Value};

/// Outcomes to take, and the bytes that they lend.
#[derive(Default)]
pub(super) struct Told {
    /// Oldest first.
    pub(super) ready: VecDeque<Outcome>,
    pub(super) lent: LentBytes,
}

impl Told {
    /// Adds news as an outcome. Its bytes are lent from now on.
    pub(super) fn tell(&mut self, token: u64, news: News) {
        let (more, result, value) = match news {
            News::Ready(events) => (true, Ok(events.0 as usize), Value::None),
            News::Bytes(bytes) => (true, Ok(bytes.len()), Value::Lent(self.lent.lend(bytes))),
            News::End(result) => (false, result, Value::None),
        };
        self.ready.push_back(Outcome { token, more, result, value });
    }
}

/// The bytes that are lent, by the indexes of their names, each with its generation.
#[derive(Default)]
pub(super) struct LentBytes {
    bytes: Slab<(u32, RecvBuf)>,
    generations: u32,
}

impl LentBytes {
    fn lend(&mut self, bytes: RecvBuf) -> Lent {
        // Not 0, so that no name is 0.
        self.generations = self.generations.checked_add(1).unwrap_or(1);
        let index = self.bytes.insert((self.generations, bytes)) as u32;
        Lent { index, generation: self.generations }
    }

    /// Returns the bytes with this name; none if there are none.
    pub(super) fn bytes(&self, lent: &Lent) -> &[u8] {
        match self.bytes.get(lent.index as usize) {
            Some((generation, bytes)) if *generation == lent.generation => bytes,
            _ => &[],
        }
    }

    pub(super) fn give_back(&mut self, lent: &Lent) {
        let known = self.bytes.get(lent.index as usize);
        if known.is_some_and(|(generation, _)| *generation == lent.generation) {
            self.bytes.remove(lent.index as usize);
        }
    }
}
