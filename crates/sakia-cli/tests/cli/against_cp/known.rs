//! Differences that are meant, each with its reason. The guide has those that matter to a user.

use super::tree::{Facts, Tree};
use super::{Difference, Tried};

/// Why a difference is meant, if it is.
type Known = (&'static str, fn(&Tried<'_>, &Difference) -> bool);

pub const KNOWN: &[Known] = &[
    (
        "a directory is not copied into itself at all: sakia looks before it makes anything",
        |tried, _| {
            let said =
                ["the source itself", "inside its source", "lies in the source", "the copy itself"];
            let ours = said.iter().any(|said| tried.ours.said.contains(said));
            ours && tried.case.is_recursive() && (!tried.theirs.succeeded || tried.case.has("-n"))
        },
    ),
    (
        "within a tree links are replaced and not written through: others may have put them there",
        |tried, difference| tried.case.is_recursive() && links_in_the_way(tried, difference),
    ),
    (
        "within a tree a device, FIFO or socket in the way is refused: it may wait for ever",
        |tried, _| tried.ours.said.contains("replaced by force only"),
    ),
    (
        "within a tree a device, FIFO or socket in the way is replaced by force",
        |tried, difference| {
            tried.case.has("-f")
                && tried.case.is_recursive()
                && tried
                    .before
                    .get(&difference.path)
                    .is_some_and(|facts| "pcs".contains(facts.kind))
        },
    ),
    (
        "a mode that is to be exact has no set-id bit that was there, or that the directory above gave",
        |tried, difference| {
            difference.of == "mode"
                && is_preserving(tried, "mode")
                && new_mode(&tried.theirs.tree, difference) & !0o7000
                    == new_mode(&tried.ours.tree, difference) & !0o7000
        },
    ),
    (
        "a directory that is named, and is in another one that is, is copied with both",
        |tried, _| tried.theirs.said.contains("will not create hard link"),
    ),
    (
        "names of the same special file are found in another order, and only the first is made anew",
        |tried, _| {
            tried.case.has("-L")
                && is_preserving(tried, "links")
                && tried.theirs.said.contains("File exists")
        },
    ),
    ("within a tree a link in the way is not newer or older than what it leads to", |tried, _| {
        tried.case.is_recursive()
            && (tried.case.has("-u") || tried.case.has("-n"))
            && tried.before.iter().any(|(path, facts)| facts.kind == 'l' && path.contains("d0/"))
    }),
    (
        "names of the same file are found in another order, and the first one is overwritten",
        |tried, difference| {
            let has_names =
                |tree: &Tree| tree.get(&difference.path).is_some_and(|is| is.names.1 > 1);
            is_preserving(tried, "links")
                && has_names(&tried.ours.tree)
                && has_names(&tried.theirs.tree)
                && ["attributes", "access", "mode", "owner"].contains(&difference.of)
        },
    ),
    (
        "a link that leads to the directory it is in is removed before what is made by way of it",
        |tried, difference| {
            let facts = tried.before.get(&difference.path);
            tried.ours.said.contains("No such file")
                && (difference.path.is_empty() || facts.is_some_and(|facts| facts.kind == 'l'))
        },
    ),
    ("a source is opened before what is in the way is removed", |tried, difference| {
        ["presence", "time", "names"].contains(&difference.of)
            && tried.theirs.said.contains("cannot open")
            && tried.ours.said.contains("sakia: open ")
    }),
    (
        "a directory has its attributes, whether or not all that is in it could be copied",
        |tried, difference| {
            tried.theirs.said.contains("cyclic symbolic link")
                && ["attributes", "mode", "time", "owner", "access"].contains(&difference.of)
        },
    ),
    ("what cannot be completed is removed", |tried, difference| {
        tried.theirs.said.contains("failed to clone")
            && !tried.ours.succeeded
            && (difference.of == "time" || !tried.ours.tree.contains_key(&difference.path))
    }),
    ("a directory is changed by its descriptor, so that it need not be searched", |tried, _| {
        tried.theirs.said.contains("/.': Permission denied")
    }),
    ("nothing is made of a directory that cannot be opened", |tried, difference| {
        tried.ours.said.contains("open directory")
            && match difference.of {
                "presence" => tried.theirs.tree[&difference.path].kind == 'd',
                "success" => false,
                _ => !tried.theirs.succeeded && !tried.ours.succeeded,
            }
    }),
];

/// Why it is meant, if it is.
pub fn reason(tried: &Tried<'_>, difference: &Difference) -> Option<&'static str> {
    KNOWN.iter().find(|(_, is_it)| is_it(tried, difference)).map(|(reason, _)| *reason)
}

/// Whether a link was replaced by what is not one, there or at what it leads to.
fn links_in_the_way(tried: &Tried<'_>, _: &Difference) -> bool {
    let is_link =
        |tree: &Tree, path: &str| tree.get(path).is_some_and(|facts: &Facts| facts.kind == 'l');
    let mut links = tried.before.iter().filter(|(_, facts)| facts.kind == 'l');
    links.any(|(path, _)| is_link(&tried.theirs.tree, path) && !is_link(&tried.ours.tree, path))
}

/// Whether an attribute is preserved; links are so by `-a` only.
fn is_preserving(tried: &Tried<'_>, what: &str) -> bool {
    let flags = &tried.case.flags;
    tried.case.has("-a")
        || flags.iter().any(|flag| flag.strip_prefix("--preserve=") == Some(what))
        || (tried.case.has("-p") && what != "links" && what != "xattr")
}

fn new_mode(tree: &Tree, difference: &Difference) -> u32 {
    tree[&difference.path].mode
}
