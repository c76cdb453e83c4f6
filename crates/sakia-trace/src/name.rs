//! Names of events, kinds and places, each stored once and known by a number.

use std::collections::HashMap;
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

#[derive(Debug, Default)]
struct Registry {
    names: Vec<Entry>,
    numbers: HashMap<String, u32>,
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) text: String,
    /// The names of the two values, for an [`EventKind`].
    pub(crate) values: [Option<Name>; 2],
}

static REGISTRY: Mutex<Option<Registry>> = Mutex::new(None);

fn registry() -> MutexGuard<'static, Option<Registry>> {
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
        let registry = registry.get_or_insert_default();
        if let Some(&number) = registry.numbers.get(text) {
            let known = &mut registry.names[number as usize].values;
            if values != [None; 2] {
                *known = values;
            }
            return Self(number);
        }
        let text = if registry.names.len() + 1 < NAMES_MAX { text } else { "too many names" };
        if let Some(&number) = registry.numbers.get(text) {
            return Self(number);
        }
        let number = registry.names.len() as u32;
        registry.names.push(Entry { text: text.into(), values });
        registry.numbers.insert(text.into(), number);
        Self(number)
    }

    /// Returns the number by which an event refers to the name.
    pub fn number(self) -> u32 {
        self.0
    }

    pub(crate) fn of_number(number: u64) -> Option<Self> {
        let number = u32::try_from(number).ok()?;
        let is_known = registry().as_ref().is_some_and(|all| (number as usize) < all.names.len());
        is_known.then_some(Self(number))
    }

    pub(crate) fn entry(self) -> Entry {
        let registry = registry();
        registry.as_ref().map_or_else(
            || Entry { text: String::new(), values: [None; 2] },
            |all| all.names[self.0 as usize].clone(),
        )
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
        assert_eq!(name.entry().text, "once");
        assert_eq!(Name::of_number(name.number().into()), Some(name));
        assert_eq!(Name::of_number(u64::MAX), None);
    }
}
