//! Names of events, kinds and places, each stored once and known by a number.

use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::lock::Lock;

/// The most names in the registry; further ones share the name "too many names".
const NAMES_MAX: usize = 1 << 16;
const TOO_MANY: &str = "too many names";

/// A registered name.
///
/// # Examples
/// ```
/// use sakia_trace::Name;
///
/// let name = Name::register("parse");
/// assert_eq!(name, Name::register("parse"));
/// assert_ne!(name, Name::register("print"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(u32);

#[derive(Debug)]
struct Registry {
    names: Vec<Entry>,
    /// A hash of each text. They are compared one by one: a program has some hundred names, and a map or an
    /// order takes several times the code, which each program on Sakia has.
    hashes: Vec<u32>,
}

impl Registry {
    /// Returns the number of a text with this hash.
    #[inline(never)]
    fn find(&self, text: &str, hash: u32) -> Option<u32> {
        let mut hashes = (0..).zip(&self.hashes);
        hashes.find_map(|(number, &its)| {
            let is_it = its == hash && self.names[number as usize].text == text;
            is_it.then_some(number)
        })
    }
}

/// Returns the FNV-1a hash.
fn hash(text: &str) -> u32 {
    let add = |hash: u32, &byte: &u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    text.as_bytes().iter().fold(0x811c_9dc5, add)
}

#[derive(Debug)]
struct Entry {
    text: String,
    values: [Option<Name>; 2],
}

static REGISTRY: Lock<Registry> = Lock::new(Registry { names: Vec::new(), hashes: Vec::new() });

/// Locks the names, which a forked child has from its parent. `None` in a child that cannot.
#[inline(never)]
fn registry() -> Option<MutexGuard<'static, Registry>> {
    REGISTRY.lock(|_| ())
}

/// Returns whether this is a forked child that has no names.
pub(crate) fn are_lost() -> bool {
    registry().is_none()
}

impl Name {
    /// Returns the name for `text`, which is registered if it is new. Takes a lock: for the hot path keep the
    /// result, or use a [`StaticName`]. A program may register 65,536 names; further ones become
    /// "too many names".
    ///
    /// # Examples
    /// See [`Name`](Name#examples).
    pub fn register(text: &str) -> Self {
        Self::insert(text, [None; 2])
    }

    #[inline(never)]
    pub(crate) fn insert(mut text: &str, values: [Option<Self>; 2]) -> Self {
        let Some(mut registry) = registry() else { return Self::UNKNOWN };
        loop {
            let hash = hash(text);
            if let Some(number) = registry.find(text, hash) {
                if values != [None; 2] {
                    registry.names[number as usize].values = values;
                }
                return Self(number);
            }
            // There is room for that name.
            if registry.names.len() + 1 >= NAMES_MAX && text != TOO_MANY {
                text = TOO_MANY;
                continue;
            }
            registry.names.push(Entry { text: text.into(), values });
            registry.hashes.push(hash);
            return Self(registry.names.len() as u32 - 1);
        }
    }

    /// Returns the number by which an event refers to the name.
    pub fn number(self) -> u32 {
        self.0
    }

    /// Each name of a process that cannot have a recording.
    const UNKNOWN: Self = Self(NAMES_MAX as u32);

    /// No name: one that a caller replaces.
    pub(crate) const NONE: Self = Self(u32::MAX);

    /// Returns the name of a number that [`each_from`](Name::each_from) has brought.
    pub(crate) fn from_number(number: u32) -> Self {
        Self(number)
    }

    /// Calls `each` with the names from this number on, in order, and their texts. It must not use names
    /// itself.
    pub(crate) fn each_from(first: u32, mut each: impl FnMut(Self, &str)) {
        let Some(registry) = registry() else { return };
        let new = registry.names.get(first as usize..).unwrap_or_default();
        for (number, entry) in (first..).zip(new) {
            each(Self(number), &entry.text);
        }
    }

    /// Returns the names of the two values, for an [`EventKind`](crate::EventKind).
    #[inline(never)]
    pub(crate) fn values(self) -> [Option<Self>; 2] {
        registry().and_then(|it| Some(it.names.get(self.0 as usize)?.values)).unwrap_or_default()
    }
}

/// A name in the program's text, registered when it is first used.
///
/// # Examples
/// ```
/// static PARSE: sakia_trace::StaticName = sakia_trace::StaticName::new("parse");
/// assert_eq!(PARSE.get(), PARSE.get());
/// ```
#[derive(Debug)]
pub struct StaticName {
    text: &'static str,
    /// The name's number plus one; zero before it is registered.
    number: AtomicU32,
}

impl StaticName {
    /// Returns a name with the text `text`.
    ///
    /// # Examples
    /// See [`StaticName`](StaticName#examples).
    pub const fn new(text: &'static str) -> Self {
        Self { text, number: AtomicU32::new(0) }
    }

    /// Returns the registered name.
    ///
    /// # Examples
    /// See [`StaticName`](StaticName#examples).
    #[inline(never)]
    pub fn get(&self) -> Name {
        if let Some(number) = self.number.load(Ordering::Relaxed).checked_sub(1) {
            return Name(number);
        }
        let name = Name::register(self.text);
        self.number.store(name.0 + 1, Ordering::Relaxed);
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_registered_once() {
        let name = Name::register("once");
        assert_eq!(name, Name::register("once"));
        assert_ne!(name, Name::register("twice"));
        assert_eq!(Name::from_number(name.number()), name);
        let mut found = Vec::new();
        Name::each_from(name.number(), |its, text| found.push((its, text.to_owned())));
        assert_eq!(found[0], (name, "once".to_owned()));
    }

    #[test]
    fn names_of_the_same_hash_are_two() {
        assert_eq!(hash("costarring"), hash("liquid"));
        let names = ["costarring", "liquid"].map(Name::register);
        assert_ne!(names[0], names[1]);
        assert_eq!(names, ["costarring", "liquid"].map(Name::register));
    }
}
