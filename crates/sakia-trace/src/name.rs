//! Names of events, kinds and places, each stored once and known by a number.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The most names in the registry; further ones share the name "too many names".
const NAMES_MAX: usize = 1 << 16;

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
    /// The numbers of the names in the order of their texts.
    by_text: Vec<u32>,
}

impl Registry {
    /// Returns the number of a text, or its place in `by_text`.
    fn find(&self, text: &str) -> Result<u32, usize> {
        let order = |number: &u32| self.names[*number as usize].text.as_str().cmp(text);
        self.by_text.binary_search_by(order).map(|place| self.by_text[place])
    }
}

#[derive(Debug)]
struct Entry {
    text: String,
    values: [Option<Name>; 2],
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry { names: Vec::new(), by_text: Vec::new() });

fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
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

    pub(crate) fn insert(text: &str, values: [Option<Self>; 2]) -> Self {
        let mut registry = registry();
        if let Ok(number) = registry.find(text) {
            let known = &mut registry.names[number as usize].values;
            if values != [None; 2] {
                *known = values;
            }
            return Self(number);
        }
        let text = if registry.names.len() + 1 < NAMES_MAX { text } else { "too many names" };
        match registry.find(text) {
            Ok(number) => Self(number),
            Err(place) => {
                let number = registry.names.len() as u32;
                registry.names.push(Entry { text: text.into(), values });
                registry.by_text.insert(place, number);
                Self(number)
            }
        }
    }

    /// Returns the number by which an event refers to the name.
    pub fn number(self) -> u32 {
        self.0
    }

    /// No name: one that a caller replaces.
    pub(crate) const NONE: Self = Self(u32::MAX);

    /// Returns the name of a number below [`count`](Name::count).
    pub(crate) fn from_number(number: u32) -> Self {
        Self(number)
    }

    /// Returns the number of names, which have the numbers below it.
    pub(crate) fn count() -> u64 {
        registry().names.len() as u64
    }

    /// Returns its text.
    pub(crate) fn text(self) -> String {
        registry().names.get(self.0 as usize).map_or_else(String::new, |entry| entry.text.clone())
    }

    /// Returns the names of the two values, for an [`EventKind`](crate::EventKind).
    pub(crate) fn values(self) -> [Option<Self>; 2] {
        registry().names.get(self.0 as usize).map_or([None; 2], |entry| entry.values)
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
        assert_eq!(name.text(), "once");
        assert_eq!(Name::from_number(name.number()), name);
        assert!(u64::from(name.number()) < Name::count());
    }
}
