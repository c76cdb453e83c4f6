//! Random trees, compared with copies of `cp`: contents, modes, owners, times, holes, attributes, links.

use std::path::Path;
use std::process::Command;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use sakia_copy::Options;

use crate::children;
use crate::support::{
    Facts, Folder, assert_same, copy_all, needs_root, run, set_attribute, some_acl, tree, without,
};
use crate::tree::{self, Item, items};

/// The mask for the kind in a mode, and the kind of directories.
const KIND: u32 = 0o170_000;
const DIRECTORY: u32 = 0o040_000;

/// The effect of the target's parent directory on new entries.
#[derive(Clone, Copy, Debug)]
enum Parent {
    Plain,
    GivesGroup,
    GivesAcl,
}

impl Parent {
    fn make(self, path: &Path) {
        std::fs::create_dir(path).unwrap();
        match self {
            Self::Plain => {}
            Self::GivesGroup => {
                run(Command::new("chgrp").arg("1234").arg(path));
                run(Command::new("chmod").arg("2755").arg(path));
            }
            Self::GivesAcl => set_attribute(path, "system.posix_acl_default", &some_acl()),
        }
    }
}

/// Two copies that must be equal.
struct Case<'a> {
    /// Letters as [`children::command`] takes them.
    letters: &'a str,
    /// Arguments of `cp`.
    arguments: &'a str,
    mask: &'a str,
    parent: Parent,
}

impl Case<'_> {
    fn check(&self, folder: &Folder, forget: impl Fn(&mut Facts)) {
        let from = folder.path("from");
        let [ours, theirs] = ["ours", "theirs"].map(|name| folder.path(name));
        for path in [&ours, &theirs] {
            self.parent.make(path);
        }
        let before = format!("umask {}", self.mask);
        let said = children::run(self.letters, &before, &from, &ours.join("copy"));
        let program = format!("{before}; exec cp {} \"$0\" \"$1\"", self.arguments);
        let mut cp = Command::new("sh");
        let output =
            cp.args(["-c", &program]).arg(&from).arg(theirs.join("copy")).output().unwrap();
        assert_eq!(said.failures == 0, output.status.success(), "{}{output:?}", said.output);
        let [is, expected] = [ours, theirs].map(|path| without(tree(&path.join("copy")), &forget));
        assert_same(&is, &expected);
    }
}

fn folder(in_memory: bool, items: &[Item]) -> Folder {
    let folder = if in_memory { Folder::in_memory() } else { Folder::new() };
    tree::make(&folder.path("from"), items);
    folder
}

fn forget_times(facts: &mut Facts) {
    facts.modified = (0, 0);
}

/// Checks a property on random values.
fn check<S: Strategy>(cases: u32, strategy: S, property: impl Fn(S::Value)) {
    let config =
        Config { cases, failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    let mut runner = TestRunner::new(config);
    let result = runner.run(&strategy, |value| {
        property(value);
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn an_archive_is_equal_to_its_source() {
    needs_root!();
    check(25, (items(0..60), any::<bool>()), |(items, in_memory)| {
        let folder = folder(in_memory, &items);
        let (from, to) = (folder.path("from"), folder.path("to"));
        copy_all(&from, &to, &Options::archive());
        assert_same(&tree(&to), &tree(&from));
        // A second copy changes nothing.
        copy_all(&from, &to, &Options::archive());
        assert_same(&tree(&to), &tree(&from));
        // A copy from one file system to another uses reads and writes.
        let other = if in_memory { Folder::new() } else { Folder::in_memory() };
        copy_all(&from, other.path("to"), &Options::archive());
        assert_same(&tree(&other.path("to")), &tree(&from));
    });
}

#[test]
fn what_cp_does() {
    needs_root!();
    let mask = prop::sample::select(vec!["022", "077", "000"]);
    let parents = vec![Parent::Plain, Parent::GivesGroup, Parent::GivesAcl];
    let strategy = (items(0..40), any::<bool>(), mask, prop::sample::select(parents));
    check(10, strategy, |(items, in_memory, mask, parent)| {
        for (letters, arguments) in [("a", "-a"), ("r", "-r"), ("p", "-rp")] {
            let folder = folder(in_memory, &items);
            let case = Case { letters, arguments, mask, parent };
            // cp adds the bit inherited from the parent to a mode that must be exact.
            let adds_bit = letters != "r" && matches!(parent, Parent::GivesGroup);
            case.check(&folder, |facts| {
                if letters == "r" {
                    forget_times(facts);
                }
                if facts.mode & KIND != DIRECTORY {
                    return;
                }
                if adds_bit {
                    facts.mode &= !0o2000;
                }
            });
        }
    });
}

#[test]
fn what_cp_does_with_links_followed() {
    needs_root!();
    let mask = prop::sample::select(vec!["022", "077"]);
    check(10, (items(0..30), mask), |(items, mask)| {
        for (letters, arguments) in [("L", "-rL"), ("pL", "-rpL")] {
            let folder = folder(true, &items);
            let case = Case { letters, arguments, mask, parent: Parent::Plain };
            case.check(&folder, forget_times);
        }
    });
}
