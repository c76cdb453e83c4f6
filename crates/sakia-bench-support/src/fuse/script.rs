//! The script of a test: rules, and gates at which requests wait.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::shared::Shared;

/// The kind of a request, by the kernel's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[doc(alias = "fuse_opcode")]
pub struct Opcode(pub u32);

macro_rules! opcodes {
    ($($name:ident = $number:literal, $what:literal;)*) => {
        impl Opcode {
            $(#[doc = $what] pub const $name: Self = Self($number);)*
        }

        impl fmt::Display for Opcode {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match *self {
                    $(Self::$name => f.write_str(stringify!($name)),)*
                    Self(number) => write!(f, "opcode {number}"),
                }
            }
        }
    };
}

opcodes! {
    LOOKUP = 1, "A name in a directory.";
    GETATTR = 3, "Attributes: `stat`.";
    SETATTR = 4, "Attributes set: `truncate`, `chmod`.";
    READLINK = 5, "The target of a symbolic link.";
    UNLINK = 10, "A name removed.";
    RENAME = 12, "A file renamed, without flags.";
    OPEN = 14, "A file opened.";
    READ = 15, "A read, also ahead of the reader.";
    WRITE = 16, "A write.";
    STATFS = 17, "The file system's sizes.";
    RELEASE = 18, "The last use of an open file ended. The kernel does not wait for the answer.";
    FSYNC = 20, "`fsync` and `fdatasync` of a file.";
    FLUSH = 25, "A descriptor closed.";
    INIT = 26, "The first request; never scripted.";
    OPENDIR = 27, "A directory opened.";
    READDIR = 28, "Entries of a directory.";
    RELEASEDIR = 29, "A directory closed.";
    FSYNCDIR = 30, "`fsync` of a directory.";
    CREATE = 35, "A file made and opened.";
    INTERRUPT = 36, "A signal came while a request waited. Counted, and without effect.";
    FALLOCATE = 43, "Space reserved; answered `EOPNOTSUPP`.";
    RENAME2 = 45, "A file renamed, with flags.";
}

/// A selection of requests, and the answer to them.
///
/// Of the fitting rules, the one installed first applies, until it has been used up.
#[derive(Clone, Debug)]
#[must_use = "a rule counts once it is given to a file system"]
pub struct Rule {
    pub(super) opcode: Option<Opcode>,
    pub(super) file: Option<Vec<u8>>,
    pub(super) skip: u64,
    pub(super) times: u64,
    pub(super) delay: Duration,
    pub(super) gate: Option<u64>,
    pub(super) outcome: Outcome,
}

/// The effect of a rule on a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Outcome {
    /// Done as asked.
    Done,
    /// Not done; this error.
    Errno(i32),
    /// At most this number of bytes is read or written.
    Short(usize),
    /// No answer until [`Fuse::release`](super::Fuse::release), then `EIO`.
    Never,
}

impl Rule {
    /// Selects all requests except the initial `INIT`.
    pub fn any() -> Self {
        Self {
            opcode: None,
            file: None,
            skip: 0,
            times: u64::MAX,
            delay: Duration::ZERO,
            gate: None,
            outcome: Outcome::Done,
        }
    }

    /// Selects requests of this kind.
    pub fn on(opcode: Opcode) -> Self {
        Self { opcode: Some(opcode), ..Self::any() }
    }

    /// Limits the rule to requests about the file of this name.
    pub fn file(mut self, name: &str) -> Self {
        self.file = Some(name.into());
        self
    }

    /// Skips this number of fitting requests.
    pub fn skip(mut self, count: u64) -> Self {
        self.skip = count;
        self
    }

    /// Applies to this number of requests; by default, to all.
    pub fn times(mut self, count: u64) -> Self {
        self.times = count;
        self
    }

    /// Delays the answer. Other requests are answered meanwhile.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Fails the request with this error number, without doing it.
    pub fn errno(mut self, errno: i32) -> Self {
        self.outcome = Outcome::Errno(errno);
        self
    }

    /// Limits reads and writes to this number of bytes; no effect on other requests.
    ///
    /// A short read of a file with a page cache tells the kernel that the file ends there.
    pub fn short(mut self, bytes: usize) -> Self {
        self.outcome = Outcome::Short(bytes);
        self
    }

    /// Sends no answer until the file system is dropped or its requests are released.
    pub fn never(mut self) -> Self {
        self.outcome = Outcome::Never;
        self
    }

    /// Returns whether the rule applies to such a request.
    pub(super) fn fits(&self, opcode: Opcode, file: Option<&[u8]>) -> bool {
        self.opcode.is_none_or(|wanted| wanted == opcode)
            && self.file.as_deref().is_none_or(|wanted| file == Some(wanted))
    }
}

/// A gate at which the requests of a rule wait until the test opens it. Dropping it opens it and removes the
/// rule.
#[derive(Debug)]
#[must_use = "a gate that is dropped is open"]
pub struct Gate {
    pub(super) shared: Arc<Shared>,
    pub(super) id: u64,
}

impl Gate {
    /// Returns the number of requests that wait here.
    pub fn held(&self) -> usize {
        self.shared.lock().held_at(self.id)
    }

    /// Waits until at least `count` requests wait here.
    ///
    /// # Panics
    /// If fewer have come after [`PATIENCE`](crate::blocked::PATIENCE).
    #[track_caller]
    pub fn wait_held(&self, count: usize) {
        assert!(
            self.shared.wait_until(|state| state.held_at(self.id) >= count),
            "{} requests wait at the gate, not {count}",
            self.held()
        );
    }

    /// Releases the waiting requests, and lets later ones pass.
    pub fn open(&self) {
        self.set_open(true);
    }

    /// Holds requests from now on.
    pub fn close(&self) {
        self.set_open(false);
    }

    /// Releases up to `count` of the waiting requests, in the order of their arrival; the gate stays as it
    /// is.
    pub fn pass(&self, count: usize) {
        self.shared.lock().pass(self.id, count);
        self.shared.wake();
    }

    /// Returns the request that has waited here longest.
    pub fn first(&self) -> Option<HeldRequest> {
        self.shared.lock().first_at(self.id)
    }

    /// Releases the request that has waited here longest, with the outcome of this rule instead of the
    /// gate's own; the gate stays as it is.
    pub fn pass_as(&self, like: &Rule) {
        self.shared.lock().pass_as(self.id, like.outcome);
        self.shared.wake();
    }

    fn set_open(&self, open: bool) {
        self.shared.lock().gates.insert(self.id, open);
        self.shared.wake();
    }
}

/// A request that waits at a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldRequest {
    /// Its kind.
    pub opcode: Opcode,
    /// The offset of a read or a write; 0 for others.
    pub offset: u64,
    /// The bytes of a read or a write; 0 for others.
    pub len: u64,
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.shared.lock().remove_gate(self.id);
        self.shared.wake();
    }
}
