//! Descriptors passed in messages: ends of pipes, identified through the other end.

use sakia_driver::{ControlMessages, Fd};

use super::Runner;
use crate::env::Env;
use crate::stats::Outcome;

/// The largest number of pipes that a program passes on.
const PROBES_MAX: usize = 24;

impl<E: Env> Runner<'_, E> {
    /// Returns control messages with up to `count` descriptors, and their numbers; fewer if no more pipes
    /// can be made. Only the messages own the descriptors.
    pub(super) fn probes(&mut self, count: u8) -> Result<(ControlMessages, Vec<usize>), String> {
        let (mut control, mut numbers) = (ControlMessages::new(), Vec::new());
        for _ in 0..count {
            if self.probes.len() >= PROBES_MAX {
                break;
            }
            let pipe = self.env.pipe(&self.driver).map_err(|error| format!("no pipe: {error}"))?;
            let Some((reader, writer)) = pipe else { break };
            control = control.descriptor(&writer);
            numbers.push(self.probes.len());
            self.probes.push(reader);
        }
        Ok((control, numbers))
    }

    /// Returns the numbers of descriptors received in a message.
    pub(super) fn numbers(&mut self, descriptors: &[Fd]) -> Result<Vec<usize>, String> {
        let find = |fd: &Fd| {
            let is_marked = self.env.mark(fd);
            let mut readers = self.probes.iter();
            readers.position(|reader| self.env.is_marked(reader)).filter(|_| is_marked)
        };
        let numbers: Option<Vec<usize>> = descriptors.iter().map(find).collect();
        if !descriptors.is_empty() {
            self.stats.outcome(Outcome::DescriptorPassed);
        }
        numbers.ok_or_else(|| "a descriptor came that was not sent".to_owned())
    }
}
