//! The file of a log, of which each write and each sync is held.

use std::sync::atomic::{AtomicU64, Ordering};

use super::model::Call;
use super::program::Answer;
use crate::fuse::{Fuse, Gate, Opcode, Rule};

const EINTR: i32 = 4;

/// A file, of which the writes and syncs are held.
pub struct HeldFile {
    pub name: String,
    writes: Gate,
    syncs: Gate,
}

impl HeldFile {
    /// Makes a file with these bytes.
    pub fn new(fuse: &Fuse, contents: &[u8]) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("log-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        std::fs::write(fuse.join(&name), contents).expect("a file in memory can be written");
        let [writes, syncs] =
            [Opcode::WRITE, Opcode::FSYNC].map(|opcode| fuse.hold(Rule::on(opcode).file(&name)));
        Self { name, writes, syncs }
    }

    /// Returns the call that waits for its answer.
    pub fn held(&self) -> Option<Call> {
        if let Some(write) = self.writes.first() {
            return Some(Call::Write { offset: write.offset, len: write.len });
        }
        self.syncs.first().map(|_| Call::Sync)
    }

    /// Answers the call that waits.
    pub fn answer(&self, call: Call, answer: Answer) {
        let rule = match answer {
            Answer::Done => Rule::any(),
            Answer::Short(most) => Rule::any().short(most as usize),
            Answer::Zero => Rule::any().short(0),
            Answer::Errno(errno) => Rule::any().errno(errno),
            Answer::Interrupted => Rule::any().errno(EINTR),
        };
        let gate = if call == Call::Sync { &self.syncs } else { &self.writes };
        gate.pass_as(&rule);
    }

    /// Has all calls done, those that wait and those to come.
    pub fn open_gates(&self) {
        self.writes.open();
        self.syncs.open();
    }
}
