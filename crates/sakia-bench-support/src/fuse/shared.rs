//! State shared by the test's threads and the server: files, rules, and waiting requests.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustix::io::Errno;

use super::protocol::{self, Fields, Header, Reply};
use super::script::{HeldRequest, Opcode, Outcome, Rule};
use crate::blocked::PATIENCE;

/// The node of the root directory; files have the numbers that follow.
pub(super) const ROOT: u64 = 1;
const FIRST_FILE: u64 = 2;

/// The reported block size of the file system.
const BLOCK_BYTES: usize = 4096;
/// The largest write in bytes.
pub(super) const WRITE_BYTES_MAX: usize = 1 << 20;

/// Files, script and bookkeeping, and notification of changes.
#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    /// Notified after the server has changed the state.
    changed: Condvar,
    /// Wakes the server: the writing end of a FIFO. Only the test's threads have it.
    waker: OwnedFd,
}

impl Shared {
    pub fn new(options: Options, nodes: Vec<Node>, waker: OwnedFd) -> Self {
        let state = State { options, nodes, ..State::default() };
        Self { state: Mutex::new(state), changed: Condvar::new(), waker }
    }

    /// A panic while the lock was held is a failed test; the rest is its cleanup.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the server check the state again.
    pub fn wake(&self) {
        // It fails when the pipe is full, which wakes as well.
        let _ = rustix::io::write(&self.waker, &[0]);
    }

    /// Notifies the threads in [`Self::wait_until`].
    pub fn tell(&self) {
        self.changed.notify_all();
    }

    /// Waits until `is_due` returns true. Returns false after [`PATIENCE`].
    pub fn wait_until(&self, is_due: impl Fn(&State) -> bool) -> bool {
        let waited = self.changed.wait_timeout_while(self.lock(), PATIENCE, |state| !is_due(state));
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

/// The configuration of the file system, constant for its life.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Options {
    pub direct_io: bool,
    pub keep_cache: bool,
    pub attributes_expire: bool,
    /// Entries that exist only in listings.
    pub invented: u64,
}

/// A file or a symbolic link. It remains after its name is removed: it may be open.
#[derive(Debug)]
pub(super) struct Node {
    name: Option<Vec<u8>>,
    /// The target of a link.
    content: Vec<u8>,
    /// `S_IFREG` or `S_IFLNK`.
    kind: u32,
    mode: u32,
    /// Increases when the test changes the content behind the kernel's back.
    mtime: u64,
}

impl Node {
    pub fn new(name: &[u8], content: Vec<u8>) -> Self {
        Self { name: Some(name.to_vec()), content, kind: REGULAR, mode: 0o644, mtime: 1 }
    }

    pub fn link(name: &[u8], target: Vec<u8>) -> Self {
        Self { kind: LINK, mode: 0o777, ..Self::new(name, target) }
    }

    /// Returns the type of its entry in a directory, `DT_REG` or `DT_LNK`.
    fn entry_kind(&self) -> u32 {
        self.kind >> 12
    }
}

/// A request without an answer yet.
#[derive(Debug)]
pub(super) struct Parked {
    bytes: Vec<u8>,
    until: Until,
    then: Outcome,
}

impl Parked {
    /// Returns whether it waits at the gate of this number.
    fn is_at(&self, gate: u64) -> bool {
        matches!(self.until, Until::Gate(at, _) if at == gate)
    }

    /// Returns the time of its answer, if it is known.
    fn time(&self) -> Option<Instant> {
        match (self.until, self.then) {
            (_, Outcome::Never) | (Until::Gate(..), _) => None,
            (Until::Time(time), _) => Some(time),
        }
    }
}

/// The condition that a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    /// The clock.
    Time(Instant),
    /// A gate, by its number, and a delay after it.
    Gate(u64, std::time::Duration),
}

#[derive(Debug, Default)]
pub(super) struct State {
    options: Options,
    nodes: Vec<Node>,
    /// Each with the number of fitting requests seen.
    pub rules: Vec<(Rule, u64)>,
    /// Every gate, with whether it is open.
    pub gates: BTreeMap<u64, bool>,
    gates_made: u64,
    /// All waiting requests.
    pub parked: Vec<Parked>,
    counts: BTreeMap<Opcode, u64>,
    /// The owners of descriptors that were closed, oldest first.
    pub closers: Vec<u64>,
    /// The server is to end.
    pub stop: bool,
}

// ---- the script --------------------------------------------------------------------------------

impl State {
    /// Adds a rule whose requests wait at a new gate, which is closed. Returns the gate's number.
    pub fn add_gate(&mut self, mut rule: Rule) -> u64 {
        self.gates_made += 1;
        rule.gate = Some(self.gates_made);
        self.gates.insert(self.gates_made, false);
        self.rules.push((rule, 0));
        self.gates_made
    }

    /// Removes a gate; its waiting requests continue.
    pub fn remove_gate(&mut self, id: u64) {
        self.gates.remove(&id);
        self.rules.retain(|(rule, _)| rule.gate != Some(id));
    }

    pub fn held_at(&self, id: u64) -> usize {
        self.parked.iter().filter(|parked| parked.is_at(id)).count()
    }

    pub fn pass(&mut self, id: u64, count: usize) {
        for parked in self.parked.iter_mut().filter(|parked| parked.is_at(id)).take(count) {
            if let Until::Gate(_, delay) = parked.until {
                parked.until = Until::Time(Instant::now() + delay);
            }
        }
    }

    pub fn first_at(&self, id: u64) -> Option<HeldRequest> {
        let parked = self.parked.iter().find(|parked| parked.is_at(id))?;
        let (header, mut fields) = protocol::parse(&parked.bytes)?;
        let opcode = Opcode(header.opcode);
        let (_handle, offset, len) = (fields.u64(), fields.u64(), fields.u32());
        let has_range = matches!(opcode, Opcode::READ | Opcode::WRITE);
        let (offset, len) = if has_range { (offset, len.into()) } else { (0, 0) };
        Some(HeldRequest { opcode, offset, len })
    }

    pub fn pass_as(&mut self, id: u64, outcome: Outcome) {
        if let Some(parked) = self.parked.iter_mut().find(|parked| parked.is_at(id)) {
            parked.then = outcome;
            self.pass(id, 1);
        }
    }

    /// Removes all rules, opens all gates, and fails the requests without an answer.
    pub fn release(&mut self) {
        self.rules.clear();
        self.gates.values_mut().for_each(|open| *open = true);
        for parked in &mut self.parked {
            if matches!(parked.then, Outcome::Never) {
                parked.then = Outcome::Errno(Errno::IO.raw_os_error());
            }
            parked.until = Until::Time(Instant::now());
        }
    }

    pub fn count(&self, opcode: Opcode) -> u64 {
        self.counts.get(&opcode).copied().unwrap_or(0)
    }

    /// Returns the outcome of the first rule that fits.
    fn verdict(&mut self, opcode: Opcode, file: Option<&[u8]>) -> Option<Rule> {
        for (rule, seen) in &mut self.rules {
            if rule.fits(opcode, file) && *seen < rule.skip.saturating_add(rule.times) {
                *seen += 1;
                if *seen > rule.skip {
                    return Some(rule.clone());
                }
            }
        }
        None
    }

    /// Handles a request. Returns its answer, unless it waits or gets none.
    pub fn accept(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        let (header, fields) = protocol::parse(bytes)?;
        let opcode = Opcode(header.opcode);
        *self.counts.entry(opcode).or_default() += 1;
        if protocol::UNANSWERED.contains(&header.opcode) {
            return None;
        }
        if opcode == Opcode::INIT {
            return Some(init(header, fields));
        }
        if opcode == Opcode::FLUSH {
            let mut fields = fields;
            let (_handle, _unused) = (fields.u64(), fields.u64());
            self.closers.push(fields.u64());
        }
        let file = self.file_of(header, fields);
        let Some(rule) = self.verdict(opcode, file.as_deref()) else {
            return Some(self.answer(header, fields, Outcome::Done));
        };
        let until = match rule.gate.filter(|gate| self.gates.get(gate) == Some(&false)) {
            Some(gate) => Until::Gate(gate, rule.delay),
            None => Until::Time(Instant::now() + rule.delay),
        };
        let parked = Parked { bytes: bytes.to_vec(), until, then: rule.outcome };
        if parked.time().is_some() && rule.delay.is_zero() {
            return Some(self.answer(header, fields, rule.outcome));
        }
        self.parked.push(parked);
        None
    }

    /// Returns the answers that are due, and the time of the next one.
    pub fn due(&mut self) -> (Vec<Vec<u8>>, Option<Instant>) {
        let now = Instant::now();
        for parked in &mut self.parked {
            if let Until::Gate(gate, delay) = parked.until
                && self.gates.get(&gate) != Some(&false)
            {
                parked.until = Until::Time(now + delay);
            }
        }
        let is_due = |parked: &mut Parked| parked.time().is_some_and(|time| time <= now);
        let due: Vec<Parked> = self.parked.extract_if(.., is_due).collect();
        let next = self.parked.iter().filter_map(Parked::time).min();
        let answers = due.iter().filter_map(|parked| {
            let (header, fields) = protocol::parse(&parked.bytes)?;
            Some(self.answer(header, fields, parked.then))
        });
        (answers.collect(), next)
    }
}

// ---- the files ---------------------------------------------------------------------------------

impl State {
    /// Returns the content of a file for modification. The kernel learns of a change when it requests
    /// attributes next.
    pub fn content_mut(&mut self, name: &str) -> Option<&mut Vec<u8>> {
        let index = self.find(name.as_bytes())?;
        self.nodes[index].mtime += 1;
        Some(&mut self.nodes[index].content)
    }

    pub fn content(&self, name: &str) -> Option<&[u8]> {
        self.find(name.as_bytes()).map(|index| &*self.nodes[index].content)
    }

    fn find(&self, name: &[u8]) -> Option<usize> {
        self.nodes.iter().position(|node| node.name.as_deref() == Some(name))
    }

    fn node(&mut self, number: u64) -> Result<&mut Node, Errno> {
        let index = number.checked_sub(FIRST_FILE).and_then(|index| usize::try_from(index).ok());
        index.and_then(|index| self.nodes.get_mut(index)).ok_or(Errno::ISDIR)
    }

    /// Returns the name of the file that a request is about.
    fn file_of(&mut self, header: Header, mut fields: Fields<'_>) -> Option<Vec<u8>> {
        // Fields of 8 bytes before the name.
        let before = match Opcode(header.opcode) {
            Opcode::LOOKUP | Opcode::UNLINK => 0,
            Opcode::RENAME => 1,
            Opcode::CREATE | Opcode::RENAME2 => 2,
            _ => return self.node(header.node).ok()?.name.clone(),
        };
        (0..before).for_each(|_| _ = fields.u64());
        Some(fields.name().to_vec())
    }

    fn answer(&mut self, header: Header, fields: Fields<'_>, outcome: Outcome) -> Vec<u8> {
        let limit = match outcome {
            Outcome::Errno(errno) => return Reply::new().finish(header.unique, errno),
            Outcome::Short(bytes) => bytes,
            Outcome::Done | Outcome::Never => usize::MAX,
        };
        let mut reply = Reply::new();
        match self.perform(header, fields, limit, &mut reply) {
            Ok(()) => reply.finish(header.unique, 0),
            Err(errno) => Reply::new().finish(header.unique, errno.raw_os_error()),
        }
    }

    fn perform(
        &mut self,
        header: Header,
        mut fields: Fields<'_>,
        limit: usize,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        match Opcode(header.opcode) {
            Opcode::LOOKUP => {
                let index = self.find(fields.name()).ok_or(Errno::NOENT)?;
                self.entry(FIRST_FILE + index as u64, reply)?;
            }
            Opcode::GETATTR => self.attributes(header.node, reply)?,
            Opcode::SETATTR => {
                let (valid, _padding) = (fields.u32(), fields.u32());
                let (_handle, size, _owner) = (fields.u64(), fields.u64(), fields.u64());
                // Three times: seconds first, then their nanoseconds.
                let _times = ([(); 3].map(|()| fields.u64()), [(); 3].map(|()| fields.u32()));
                let mode = fields.u32();
                let node = self.node(header.node)?;
                if valid & protocol::SET_SIZE != 0 {
                    node.content.resize(to_usize(size)?, 0);
                }
                if valid & protocol::SET_MODE != 0 {
                    node.mode = mode & 0o7777;
                }
                self.attributes(header.node, reply)?;
            }
            Opcode::OPEN => {
                self.node(header.node)?;
                self.opened(reply);
            }
            Opcode::OPENDIR => {
                reply.u64(0).u64(0);
            }
            Opcode::READLINK => {
                let node = self.node(header.node)?;
                reply.bytes(&node.content);
            }
            Opcode::READ => {
                let (_handle, offset, size) = (fields.u64(), fields.u64(), fields.u32());
                let content = &self.node(header.node)?.content;
                let begin = to_usize(offset)?.min(content.len());
                let length = (size as usize).min(limit).min(content.len() - begin);
                reply.bytes(&content[begin..begin + length]);
            }
            Opcode::WRITE => {
                let (_handle, offset, size) = (fields.u64(), fields.u64(), fields.u32());
                let _flags_owner_flags = (fields.u32(), fields.u64(), fields.u64());
                let length = (size as usize).min(limit);
                let bytes = fields.rest().get(..length).ok_or(Errno::INVAL)?;
                let begin = to_usize(offset)?;
                let content = &mut self.node(header.node)?.content;
                let end = begin.checked_add(length).ok_or(Errno::FBIG)?;
                if length > 0 {
                    content.resize(content.len().max(end), 0);
                    content[begin..end].copy_from_slice(bytes);
                }
                reply.u32(length as u32).u32(0);
            }
            Opcode::CREATE => {
                let (_flags, mode) = (fields.u32(), fields.u32());
                let _umask_open = fields.u64();
                let name = fields.name();
                let index = self.find(name).unwrap_or_else(|| {
                    self.nodes.push(Node { mode: mode & 0o7777, ..Node::new(name, Vec::new()) });
                    self.nodes.len() - 1
                });
                self.entry(FIRST_FILE + index as u64, reply)?;
                self.opened(reply);
            }
            Opcode::UNLINK => {
                let index = self.find(fields.name()).ok_or(Errno::NOENT)?;
                self.nodes[index].name = None;
            }
            opcode @ (Opcode::RENAME | Opcode::RENAME2) => {
                let _directory = fields.u64();
                let flags = if opcode == Opcode::RENAME2 { fields.u64() as u32 } else { 0 };
                let (old, new) = (fields.name(), fields.name());
                match flags {
                    0 => {}
                    // RENAME_NOREPLACE.
                    1 if self.find(new).is_none() => {}
                    1 => return Err(Errno::EXIST),
                    _ => return Err(Errno::INVAL),
                }
                self.rename(old, new)?;
            }
            Opcode::STATFS => {
                let blocks = 1 << 20;
                reply.u64(blocks).u64(blocks).u64(blocks).u64(1 << 16).u64(1 << 16);
                reply.u32(BLOCK_BYTES as u32).u32(255).u32(BLOCK_BYTES as u32);
                reply.bytes(&[0; 28]);
            }
            Opcode::READDIR => {
                let (_handle, offset, size) = (fields.u64(), fields.u64(), fields.u32());
                self.entries(offset, size as usize, reply);
            }
            Opcode::FLUSH
            | Opcode::FSYNC
            | Opcode::FSYNCDIR
            | Opcode::RELEASE
            | Opcode::RELEASEDIR => {}
            Opcode::FALLOCATE => return Err(Errno::OPNOTSUPP),
            // The kernel then works without it, and does not ask again.
            _ => return Err(Errno::NOSYS),
        }
        Ok(())
    }

    fn rename(&mut self, old: &[u8], new: &[u8]) -> Result<(), Errno> {
        let index = self.find(old).ok_or(Errno::NOENT)?;
        if let Some(replaced) = self.find(new).filter(|&replaced| replaced != index) {
            self.nodes[replaced].name = None;
        }
        self.nodes[index].name = Some(new.to_vec());
        Ok(())
    }

    fn opened(&self, reply: &mut Reply) {
        let mut flags = 0;
        if self.options.direct_io {
            flags |= protocol::OPEN_DIRECT_IO;
        }
        if self.options.keep_cache {
            flags |= protocol::OPEN_KEEP_CACHE;
        }
        reply.u64(0).u32(flags).u32(0);
    }

    /// Returns how long the kernel may cache attributes, in seconds. Names are cached for ever: only the
    /// kernel changes them.
    fn attribute_seconds(&self) -> u64 {
        if self.options.attributes_expire { 0 } else { u64::from(u32::MAX) }
    }

    fn entry(&mut self, node: u64, reply: &mut Reply) -> Result<(), Errno> {
        let valid = self.attribute_seconds();
        reply.u64(node).u64(0).u64(u64::from(u32::MAX)).u64(valid).u32(0).u32(0);
        self.bare_attributes(node, reply)
    }

    fn attributes(&mut self, node: u64, reply: &mut Reply) -> Result<(), Errno> {
        reply.u64(self.attribute_seconds()).u32(0).u32(0);
        self.bare_attributes(node, reply)
    }

    fn bare_attributes(&mut self, number: u64, reply: &mut Reply) -> Result<(), Errno> {
        const DIRECTORY: u32 = 0o040_755;
        let (size, mode, links, mtime) = if number == ROOT {
            (0, DIRECTORY, 2, 1)
        } else {
            let node = self.node(number)?;
            let links = u32::from(node.name.is_some());
            (node.content.len(), node.kind | node.mode, links, node.mtime)
        };
        reply.u64(number).u64(size as u64).u64(size.div_ceil(512) as u64);
        reply.u64(1).u64(mtime).u64(1).u32(0).u32(0).u32(0);
        reply.u32(mode).u32(links).u32(0).u32(0).u32(0).u32(BLOCK_BYTES as u32).u32(0);
        Ok(())
    }

    /// Writes entries of the root, from that offset on, as many as fit: files, then invented ones.
    fn entries(&self, offset: u64, size: usize, reply: &mut Reply) {
        let begin = usize::try_from(offset).unwrap_or(usize::MAX);
        let files = self.nodes.iter().enumerate().skip(begin).filter_map(|(index, node)| {
            let index = index as u64;
            Some((FIRST_FILE + index, index + 1, node.entry_kind(), node.name.clone()?))
        });
        let begin = offset.saturating_sub(FIRST_INVENTED);
        let invented = (begin..self.options.invented).map(|number| {
            let place = FIRST_INVENTED + number;
            let kind = INVENTED_KINDS[(number % 3) as usize];
            (place, place + 1, kind, format!("invented-{number}").into_bytes())
        });
        for (node, next, kind, name) in files.chain(invented) {
            let padded = name.len().next_multiple_of(8);
            if reply.body_len() + 24 + padded > size {
                break;
            }
            reply.u64(node).u64(next).u32(name.len() as u32).u32(kind);
            reply.bytes(&name).bytes(&[0; 8][..padded - name.len()]);
        }
    }
}

/// `S_IFREG`.
const REGULAR: u32 = 0o100_000;
/// `S_IFLNK`.
const LINK: u32 = 0o120_000;
/// `DT_REG`, `DT_DIR` and `DT_LNK`, in turn.
const INVENTED_KINDS: [u32; 3] = [8, 4, 10];
/// The offset of the first invented entry in the directory, and its node: beyond all files.
const FIRST_INVENTED: u64 = 1 << 40;

fn to_usize(number: u64) -> Result<usize, Errno> {
    usize::try_from(number).ok().filter(|&n| n <= isize::MAX as usize).ok_or(Errno::FBIG)
}

/// Negotiates version 7.31, or the kernel's version if it is lower.
fn init(header: Header, mut fields: Fields<'_>) -> Vec<u8> {
    const MINOR: u32 = 31;
    let (_major, minor, readahead, offered) =
        (fields.u32(), fields.u32(), fields.u32(), fields.u32());
    let wanted = protocol::ASYNC_READ
        | protocol::BIG_WRITES
        | protocol::AUTO_INVAL_DATA
        | protocol::ASYNC_DIO
        | protocol::PARALLEL_DIROPS
        | protocol::MAX_PAGES;
    let mut reply = Reply::new();
    reply.u32(7).u32(minor.min(MINOR)).u32(readahead).u32(offered & wanted);
    // The limit of background requests, and the number that means congestion: large enough that requests
    // held at a gate do not block others.
    reply.u16(256).u16(192).u32(WRITE_BYTES_MAX as u32).u32(1);
    reply.u16((WRITE_BYTES_MAX / BLOCK_BYTES) as u16).u16(0).bytes(&[0; 32]);
    reply.finish(header.unique, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_have_the_sizes_of_the_kernel() {
        let header = |opcode: Opcode, node| Header { opcode: opcode.0, unique: 1, node };
        let mut state = State { nodes: vec![Node::new(b"a", vec![7; 10])], ..State::default() };
        let mut body = |opcode, node, fields: &[u8]| {
            let answer = state.answer(header(opcode, node), Fields::new(fields), Outcome::Done);
            assert_eq!(answer[4..8], [0; 4], "{opcode}");
            answer.len() - 16
        };
        assert_eq!(body(Opcode::LOOKUP, ROOT, b"a\0"), 128);
        assert_eq!(body(Opcode::GETATTR, 2, &[]), 104);
        assert_eq!(body(Opcode::OPEN, 2, &[]), 16);
        assert_eq!(body(Opcode::STATFS, ROOT, &[]), 80);
        assert_eq!(body(Opcode::OPENDIR, ROOT, &[]), 16);
        let init = init(header(Opcode::INIT, 0), Fields::new(&[0; 64]));
        assert_eq!(init.len() - 16, 64);
    }

    #[test]
    fn rules_are_used_up() {
        let mut state = State::default();
        state.rules.push((Rule::on(Opcode::READ).skip(1).times(2).errno(5), 0));
        state.rules.push((Rule::any().file("a").errno(6), 0));
        let mut errno = |opcode, file: &str| match state.verdict(opcode, Some(file.as_bytes())) {
            Some(Rule { outcome: Outcome::Errno(errno), .. }) => errno,
            _ => 0,
        };
        let reads = [(); 5].map(|()| errno(Opcode::READ, "b"));
        assert_eq!(reads, [0, 5, 5, 0, 0]);
        assert_eq!(errno(Opcode::READ, "a"), 6);
        assert_eq!(errno(Opcode::WRITE, "a"), 6);
        assert_eq!(errno(Opcode::WRITE, "b"), 0);
    }
}
