//! The possible directory entries while operations on them are in flight.
//!
//! [`Names`] is a model of a few directories, files and links with the errors of Linux. Operations in flight
//! together may happen in any order, and one that was given up may happen late or never. So [`Worlds`]
//! follows every order at once, and drops the worlds that an outcome contradicts; when none is left, no
//! order explains the outcome.

use std::collections::{BTreeMap, BTreeSet};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// The number of names at the top, and in each directory.
const TOP: u8 = 3;
const CHILDREN: u8 = 2;

/// A path of the model: a name at the top, or one in a directory there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Name(u8);

impl Name {
    /// Returns the name of this number, modulo the number of names.
    pub fn pick(number: u8) -> Self {
        Self(number % (TOP * (1 + CHILDREN)))
    }

    /// Returns the directory that it is in; `None` at the top.
    fn parent(self) -> Option<Self> {
        let parent = self.0 / (1 + CHILDREN);
        (!self.0.is_multiple_of(1 + CHILDREN)).then_some(Self(parent * (1 + CHILDREN)))
    }

    fn is_in(self, directory: Self) -> bool {
        self.parent() == Some(directory)
    }

    /// Returns the same name in another directory.
    fn moved(self, directory: Self) -> Self {
        Self(directory.0 + self.0 % (1 + CHILDREN))
    }

    /// Returns the path, relative to the directory that holds them all.
    pub fn path(self) -> String {
        let top = char::from(b'x' + self.0 / (1 + CHILDREN));
        match self.0 % (1 + CHILDREN) {
            0 => top.to_string(),
            child => format!("{top}/{}", char::from(b'o' + child)),
        }
    }
}

/// An operation on names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum NameOp {
    /// `open(O_CREAT | O_EXCL)`.
    Create(Name),
    /// `mkdir`.
    Mkdir(Name),
    /// `unlink`.
    Unlink(Name),
    /// `rmdir`.
    Rmdir(Name),
    /// `rename`.
    Rename(Name, Name),
    /// `rename` with `RENAME_NOREPLACE`.
    Move(Name, Name),
    /// `rename` with `RENAME_EXCHANGE`.
    Exchange(Name, Name),
    /// `link`.
    Link(Name, Name),
    /// `symlink` to a missing target.
    Symlink(Name),
    /// `statx` without following a link.
    Stat(Name),
}

/// The target of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Node {
    /// A directory.
    Directory,
    /// A file with this number.
    File(u32),
    /// A dangling link with this number.
    Symlink(u32),
}

/// The result of an operation: the kind of node that `Stat` found, or an errno.
pub type NameResult = Result<Option<Kind>, i32>;

/// A kind of node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A file.
    File,
    /// A symbolic link.
    Symlink,
}

impl Node {
    fn kind(self) -> Kind {
        match self {
            Self::Directory => Kind::Directory,
            Self::File(_) => Kind::File,
            Self::Symlink(_) => Kind::Symlink,
        }
    }

    fn is_directory(self) -> bool {
        self == Self::Directory
    }
}

/// The node of each name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Names {
    nodes: BTreeMap<Name, Node>,
    made: u32,
}

impl Names {
    fn node(&self, name: Name) -> Result<Option<Node>, Errno> {
        if let Some(parent) = name.parent() {
            match self.nodes.get(&parent) {
                // A link there is dangling.
                None | Some(Node::Symlink(_)) => return Err(Errno::NOENT),
                Some(Node::File(_)) => return Err(Errno::NOTDIR),
                Some(Node::Directory) => {}
            }
        }
        Ok(self.nodes.get(&name).copied())
    }

    fn has_entries(&self, directory: Name) -> bool {
        self.nodes.keys().any(|name| name.is_in(directory))
    }

    /// Performs an operation.
    ///
    /// # Errors
    /// As Linux.
    pub fn apply(&mut self, op: NameOp) -> NameResult {
        self.perform(op).map_err(Errno::raw_os_error)
    }

    fn perform(&mut self, op: NameOp) -> Result<Option<Kind>, Errno> {
        match op {
            NameOp::Create(name) => self.add(name, Node::File),
            NameOp::Mkdir(name) => self.add(name, |_| Node::Directory),
            NameOp::Symlink(name) => self.add(name, Node::Symlink),
            NameOp::Stat(name) => {
                return Ok(Some(self.node(name)?.ok_or(Errno::NOENT)?.kind()));
            }
            NameOp::Unlink(name) => {
                let node = self.node(name)?.ok_or(Errno::NOENT)?;
                if node.is_directory() {
                    return Err(Errno::ISDIR);
                }
                self.nodes.remove(&name);
                Ok(())
            }
            NameOp::Rmdir(name) => {
                let node = self.node(name)?.ok_or(Errno::NOENT)?;
                if !node.is_directory() {
                    return Err(Errno::NOTDIR);
                }
                if self.has_entries(name) {
                    return Err(Errno::NOTEMPTY);
                }
                self.nodes.remove(&name);
                Ok(())
            }
            NameOp::Link(from, to) => {
                let node = self.node(from)?.ok_or(Errno::NOENT)?;
                if self.node(to)?.is_some() {
                    return Err(Errno::EXIST);
                }
                if node.is_directory() {
                    return Err(Errno::PERM);
                }
                self.nodes.insert(to, node);
                Ok(())
            }
            NameOp::Rename(from, to) => self.rename(from, to),
            NameOp::Move(from, to) => {
                self.check_parents(from, to)?;
                self.node(from)?.ok_or(Errno::NOENT)?;
                match self.node(to)? {
                    Some(_) => Err(Errno::EXIST),
                    None => self.rename(from, to),
                }
            }
            NameOp::Exchange(from, to) => self.exchange(from, to),
        }
        .map(|()| None)
    }

    fn add(&mut self, name: Name, node: impl FnOnce(u32) -> Node) -> Result<(), Errno> {
        if self.node(name)?.is_some() {
            return Err(Errno::EXIST);
        }
        self.made += 1;
        self.nodes.insert(name, node(self.made));
        Ok(())
    }

    /// The kernel looks up both directories before either name.
    fn check_parents(&self, from: Name, to: Name) -> Result<(), Errno> {
        self.node(from)?;
        self.node(to).map(drop)
    }

    fn rename(&mut self, from: Name, to: Name) -> Result<(), Errno> {
        self.check_parents(from, to)?;
        let node = self.node(from)?.ok_or(Errno::NOENT)?;
        if to.is_in(from) {
            return Err(Errno::INVAL);
        }
        if from.is_in(to) {
            return Err(Errno::NOTEMPTY);
        }
        if let Some(old) = self.node(to)? {
            if from == to || !old.is_directory() && old == node {
                return Ok(()); // two names of one file: both stay
            }
            match (node.is_directory(), old.is_directory()) {
                (true, false) => return Err(Errno::NOTDIR),
                (false, true) => return Err(Errno::ISDIR),
                (true, true) if self.has_entries(to) => return Err(Errno::NOTEMPTY),
                _ => {}
            }
        }
        self.nodes.remove(&from);
        self.nodes.insert(to, node);
        if node.is_directory() {
            self.move_entries(&[(from, to)]);
        }
        Ok(())
    }

    fn exchange(&mut self, from: Name, to: Name) -> Result<(), Errno> {
        self.check_parents(from, to)?;
        let one = self.node(from)?.ok_or(Errno::NOENT)?;
        let other = self.node(to)?.ok_or(Errno::NOENT)?;
        if to.is_in(from) || from.is_in(to) {
            return Err(Errno::INVAL);
        }
        self.nodes.insert(from, other);
        self.nodes.insert(to, one);
        if from != to {
            self.move_entries(&[(from, to), (to, from)]);
        }
        Ok(())
    }

    /// Moves entries together with their directories. A directory within a directory would take entries to
    /// places where the model has no names; there is none, see [`NameOp::is_within`].
    fn move_entries(&mut self, moves: &[(Name, Name)]) {
        let target = |name: Name| {
            moves.iter().find(|(from, _)| name.is_in(*from)).map(|&(_, to)| name.moved(to))
        };
        let nodes = std::mem::take(&mut self.nodes);
        self.nodes =
            nodes.into_iter().map(|(name, node)| (target(name).unwrap_or(name), node)).collect();
    }

    /// Returns the names in a directory, or at the top, with their kinds.
    pub fn list(&self, directory: Option<Name>) -> BTreeMap<String, Kind> {
        let within = self.nodes.iter().filter(|(name, _)| name.parent() == directory);
        let last = |name: &Name| {
            let path = name.path();
            path.rsplit('/').next().expect("a path has a last part").to_owned()
        };
        within.map(|(name, node)| (last(name), node.kind())).collect()
    }
}

impl NameOp {
    /// Returns whether it keeps directories at the top, the only place where the model has names for their
    /// entries.
    pub fn is_within(self) -> bool {
        match self {
            Self::Mkdir(name) => name.parent().is_none(),
            Self::Rename(from, to) | Self::Move(from, to) => {
                from.parent().is_some() || to.parent().is_none() || to.is_in(from)
            }
            Self::Exchange(from, to) => {
                from.parent().is_none() == to.parent().is_none() || to.is_in(from) || from.is_in(to)
            }
            _ => true,
        }
    }
}

/// The number of an operation in flight.
pub type OpId = u64;

/// One possible history.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct World {
    names: Names,
    /// Operations that have happened, with outcomes not reported yet.
    happened: BTreeMap<OpId, NameResult>,
}

/// All possible histories.
#[derive(Clone, Debug)]
pub struct Worlds {
    worlds: BTreeSet<World>,
    /// Operations that have begun, with outcomes not reported yet.
    under_way: BTreeMap<OpId, NameOp>,
}

impl Default for Worlds {
    fn default() -> Self {
        Self::of(Names::default())
    }
}

impl Worlds {
    fn of(names: Names) -> Self {
        let world = World { names, happened: BTreeMap::new() };
        Self { worlds: BTreeSet::from([world]), under_way: BTreeMap::new() }
    }

    /// Returns the number of operations with an open outcome.
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// Begins an operation.
    pub fn begin(&mut self, id: OpId, op: NameOp) {
        self.under_way.insert(id, op);
    }

    /// Adds the worlds in which operations in flight have happened.
    fn close(&mut self) {
        let mut new: Vec<World> = self.worlds.iter().cloned().collect();
        while let Some(world) = new.pop() {
            for (&id, &op) in &self.under_way {
                if world.happened.contains_key(&id) {
                    continue;
                }
                let mut next = world.clone();
                let result = next.names.apply(op);
                next.happened.insert(id, result);
                if self.worlds.insert(next.clone()) {
                    new.push(next);
                }
            }
        }
    }

    fn retain(&mut self, keep: impl Fn(&mut World) -> bool) {
        let worlds = std::mem::take(&mut self.worlds);
        self.worlds =
            worlds.into_iter().filter_map(|mut world| keep(&mut world).then_some(world)).collect();
    }

    /// Ends an operation with this result.
    ///
    /// # Errors
    /// No order of the operations in flight explains it.
    pub fn end(&mut self, id: OpId, result: NameResult) -> Result<(), String> {
        self.close();
        let op = self.under_way.remove(&id).expect("the operation is under way");
        let possible: BTreeSet<NameResult> =
            self.worlds.iter().filter_map(|world| world.happened.get(&id).copied()).collect();
        self.retain(|world| world.happened.remove(&id) == Some(result));
        if self.worlds.is_empty() {
            return Err(format!("{op:?} gave {result:?}, where {possible:?} are possible"));
        }
        Ok(())
    }

    /// Ends an operation that failed without effect.
    pub fn fail(&mut self, id: OpId) {
        self.under_way.remove(&id);
        self.retain(|world| !world.happened.contains_key(&id));
    }

    /// Checks the entries of a directory, or of the top, when nothing is in flight.
    ///
    /// # Errors
    /// The entries differ.
    pub fn check_list(
        &mut self,
        directory: Option<Name>,
        found: &BTreeMap<String, Kind>,
    ) -> Result<(), String> {
        let possible: BTreeSet<_> =
            self.worlds.iter().map(|world| world.names.list(directory)).collect();
        self.retain(|world| world.names.list(directory) == *found);
        if self.worlds.is_empty() {
            return Err(format!("{directory:?} has {found:?}, where {possible:?} are possible"));
        }
        Ok(())
    }

    /// Ends operations that were given up: each has happened, or never will.
    pub fn settle(&mut self, given_up: &[OpId]) {
        self.close();
        for id in given_up {
            self.under_way.remove(id);
        }
        let worlds = std::mem::take(&mut self.worlds);
        let settled = worlds.into_iter().map(|mut world| {
            world.happened.retain(|id, _| !given_up.contains(id));
            world
        });
        self.worlds = settled.collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const X: Name = Name(0);
    const X_P: Name = Name(1);
    const Y: Name = Name(3);
    const Y_P: Name = Name(4);

    fn code(errno: Errno) -> NameResult {
        Err(errno.raw_os_error())
    }

    #[test]
    fn names_are_paths() {
        let paths: Vec<String> = (0..9).map(|number| Name::pick(number).path()).collect();
        assert_eq!(paths, ["x", "x/p", "x/q", "y", "y/p", "y/q", "z", "z/p", "z/q"]);
        assert_eq!(Name::pick(9), X);
        assert_eq!(X_P.moved(Y), Y_P);
    }

    #[test]
    fn the_model_has_the_errors_of_linux() {
        let mut names = Names::default();
        for (op, result) in [
            (NameOp::Create(X_P), code(Errno::NOENT)),
            (NameOp::Mkdir(X), Ok(None)),
            (NameOp::Create(X_P), Ok(None)),
            (NameOp::Create(X_P), code(Errno::EXIST)),
            (NameOp::Rmdir(X), code(Errno::NOTEMPTY)),
            (NameOp::Unlink(X), code(Errno::ISDIR)),
            (NameOp::Rename(X, X_P), code(Errno::INVAL)),
            (NameOp::Rename(X_P, X), code(Errno::NOTEMPTY)),
            (NameOp::Link(X, Y), code(Errno::PERM)),
            (NameOp::Link(X_P, Y), Ok(None)),
            (NameOp::Rename(Y, X_P), Ok(None)),
            (NameOp::Stat(Y), Ok(Some(Kind::File))),
            (NameOp::Rename(X, Y), code(Errno::NOTDIR)),
            (NameOp::Exchange(X, Y), Ok(None)),
            (NameOp::Stat(Y_P), Ok(Some(Kind::File))),
            (NameOp::Stat(X_P), code(Errno::NOTDIR)),
            (NameOp::Move(X, Y), code(Errno::EXIST)),
        ] {
            assert_eq!(names.apply(op), result, "{op:?}");
        }
    }

    #[test]
    fn any_order_of_what_is_under_way_is_possible() {
        let mut worlds = Worlds::default();
        worlds.begin(1, NameOp::Mkdir(X));
        worlds.begin(2, NameOp::Create(X_P));
        let mut other = worlds.clone();
        assert_eq!(worlds.end(2, Ok(None)), Ok(()));
        assert!(worlds.clone().end(1, code(Errno::EXIST)).is_err());
        assert_eq!(worlds.end(1, Ok(None)), Ok(()));
        other.end(1, Ok(None)).unwrap();
        other.end(2, code(Errno::NOENT)).unwrap();
        other.check_list(None, &BTreeMap::from([("x".to_owned(), Kind::Directory)])).unwrap();
        assert!(
            other.check_list(Some(X), &BTreeMap::from([("p".to_owned(), Kind::File)])).is_err()
        );
    }

    #[test]
    fn what_was_given_up_has_happened_or_never_will() {
        let mut worlds = Worlds::default();
        worlds.begin(1, NameOp::Mkdir(X));
        worlds.settle(&[1]);
        assert_eq!((worlds.under_way(), worlds.worlds.len()), (0, 2));
        let mut other = worlds.clone();
        for (worlds, result) in [(&mut worlds, Ok(None)), (&mut other, code(Errno::EXIST))] {
            worlds.begin(2, NameOp::Mkdir(X));
            worlds.end(2, result).unwrap();
            assert_eq!(worlds.worlds.len(), 1);
        }
        worlds.begin(3, NameOp::Rmdir(X));
        worlds.fail(3);
        worlds.begin(4, NameOp::Stat(X));
        assert_eq!(worlds.end(4, Ok(Some(Kind::Directory))), Ok(()));
    }
}
