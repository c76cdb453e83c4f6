//! Intended differences, each with its reason. The guide has those that matter to a user.

use std::collections::HashSet;

use super::tree::{Facts, Tree};
use super::{Difference, Done, Tried};

/// The reason of an intended difference, and its condition.
pub type Known = (&'static str, fn(&Tried<'_>, &Difference) -> bool);

pub const KNOWN: &[Known] = &[
    (
        "the target of a link has its own attributes; cp looks for those of a directory at the link",
        |tried, difference| {
            let has = |tree: &Tree| {
                tree.get(&difference.path)
                    .map(|is| (is.kind, is.attributes.contains_key("user.test")))
            };
            difference.of == "attributes"
                && tried.case.has("-L")
                && has(&tried.ours.tree) == Some(('d', true))
                && has(&tried.theirs.tree) == Some(('d', false))
        },
    ),
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
        "a FIFO or socket in the way, and within a tree a device, is refused: it may wait for ever",
        |tried, _| tried.ours.said.contains("replaced by force only"),
    ),
    (
        "a FIFO or socket in the way, and within a tree a device, is replaced by force",
        |tried, difference| {
            let replaced = if tried.case.is_recursive() { "pcs" } else { "ps" };
            tried.case.has("-f")
                && tried.before.iter().any(|(path, facts)| {
                    let above = path.rsplit_once('/').map_or("", |(above, _)| above);
                    replaced.contains(facts.kind)
                        && (*path == difference.path
                            || difference.of == "time" && above == difference.path)
                })
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
        "what is there is kept, a link to nothing too; cp tries to write through it, or replaces it",
        |tried, difference| {
            let was_such = |facts: &Facts| facts.kind == 'l' && facts.behind.is_none();
            if tried.case.has("-n") && tried.before.get(&difference.path).is_some_and(was_such) {
                return true;
            }
            let leads_nowhere = [
                "dangling symlink",
                "Too many levels of symbolic links",
                "cannot stat",
                "cannot open",
            ];
            let is_told = ["success", "blame"].contains(&difference.of)
                && leads_nowhere.iter().any(|said| tried.theirs.said.contains(said));
            // The replaced link may have been one of several names.
            tried.case.has("-n")
                && (is_told || difference.of == "names")
                && tried.before.values().any(was_such)
        },
    ),
    (
        "a source that cp has written to, through a link to it, was copied afterwards",
        |tried, difference| {
            let (theirs, ours) = (&tried.theirs.tree, &tried.ours.tree);
            // A program that writes to a file changes its time, too, and may clear its set-id bits.
            let is = |tree: &Tree, path: &str| {
                tree.get(path).map(|is| (is.kind, is.contents.clone(), is.mode, is.modified))
            };
            let contents =
                |tree: &Tree, path: &str| tree.get(path).map(|is| (is.kind, is.contents.clone()));
            let written = |path: &str| is(theirs, path) != is(ours, path);
            let behind = |inode| tried.before.values().any(|facts| facts.behind == Some(inode));
            !difference.path.is_empty()
                && tried.case.is_recursive()
                && tried
                    .before
                    .iter()
                    .filter(|(path, facts)| behind(facts.inode) && written(path))
                    .any(|(path, _)| contents(theirs, path) == contents(theirs, &difference.path))
        },
    ),
    (
        "a directory is changed by its descriptor; as `DST/.`, which cp uses, it must be searched",
        |tried, difference| {
            let to = tried.case.operands.last().map_or("", |to| to.trim_end_matches(['/', '.']));
            tried.theirs.said.contains("/.': Permission denied")
                && (difference.path.is_empty() || difference.path == to)
        },
    ),
    (
        "of a source and a destination that are both of no use one is told, and another one first",
        |tried, difference| {
            difference.of == "blame"
                && !tried.theirs.succeeded
                && !tried.ours.succeeded
                && tried.case.operands.len() == 2
                && tried.theirs.blamed.len() == 1
                && tried.ours.blamed.len() == 1
        },
    ),
    ("a source is opened before what is in the way is removed", |tried, difference| {
        ["presence", "time", "names"].contains(&difference.of)
            && tried.theirs.said.contains("cannot open")
            && tried.ours.said.contains("sakia: open ")
    }),
    (
        "of several sources that are written to one file another one is written last",
        |tried, difference| {
            let to = tried.case.operands.last().map_or("", |to| to.trim_end_matches(['/', '.']));
            let Some(was) = tried.before.get(&difference.path) else { return false };
            let names = tried.before.iter().filter(|(_, is)| is.inode == was.inode);
            let is_written =
                |path: &str| path.strip_prefix(to).is_some_and(|it| it.starts_with('/'));
            ["contents", "mode", "owner", "time", "access", "holes", "attributes"]
                .contains(&difference.of)
                && was.kind == 'f'
                && names.filter(|(path, _)| is_written(path)).count() > 1
        },
    ),
    (
        "if blocks cannot be shared what exists stays as it was, and what is new is removed; cp truncates it",
        |tried, difference| {
            let is = |tree: &Tree| {
                tree.get(&difference.path).map(|is| (is.kind, is.contents.clone(), is.mode))
            };
            tried.theirs.said.contains("failed to clone")
                && !tried.ours.succeeded
                && (difference.of == "time" || is(&tried.ours.tree) == is(&tried.before))
        },
    ),
    (
        "a special file that cannot be made is tried in a private directory: what is there stays",
        |tried, difference| {
            // A link to the source may be there.
            let said = ["cannot create special file", "cannot create fifo", "are the same file"];
            tried.ours.said.contains("sakia: create ")
                && said.iter().any(|said| tried.theirs.said.contains(said))
                && match difference.of {
                    "presence" => {
                        let was = tried.before.contains_key(&difference.path);
                        was && tried.ours.tree.contains_key(&difference.path)
                    }
                    "names" => {
                        let names =
                            |tree: &Tree| tree.get(&difference.path).map(|is| is.names.clone());
                        names(&tried.ours.tree) == names(&tried.before)
                    }
                    of => of == "time",
                }
        },
    ),
    ("nothing is made of a directory that cannot be opened", |tried, difference| {
        tried.ours.said.contains("open directory")
            && match difference.of {
                "presence" => tried.theirs.tree[&difference.path].kind == 'd',
                "success" => false,
                _ => !tried.theirs.succeeded && !tried.ours.succeeded,
            }
    }),
];

/// Rare differences, most depending on a file system's order of names: no number of cases is sure to have
/// each of them. 20,000 cases have had none of the first three; as all, they have an example each.
pub const KNOWN_RARE: &[Known] = &[
    (
        "what takes the place of a link to the directory it is in is made there; cp loses the way to it",
        |tried, difference| {
            let link = tried.case.operands.last().map_or("", |to| to.trim_end_matches('/'));
            let above = link.rsplit_once('/').map_or("", |(above, _)| above);
            let inode = |path: &str| tried.before.get(path).map(|facts| facts.inode);
            let is_own = |facts: &Facts| facts.behind.is_some() && facts.behind == inode(above);
            tried.before.get(link).is_some_and(is_own)
                && !tried.theirs.succeeded
                && (difference.path.is_empty() || difference.path == link)
        },
    ),
    ("a device that is written to is left as it is otherwise", |tried, difference| {
        let is_device =
            |tree: &Tree| tree.get(&difference.path).is_some_and(|is| "pc".contains(is.kind));
        ["mode", "owner", "time", "access", "attributes"].contains(&difference.of)
            && is_device(&tried.before)
            && is_device(&tried.ours.tree)
    }),
    (
        "a directory is marked until it is complete, and made writable by cp; who is not of its group \
         removes set-group-ID with either",
        |tried, difference| {
            let group = |is: &Facts| is.owner.1;
            if difference.of == "owner" {
                let path = &*difference.path;
                return tried.case.user != 0
                    && group(&tried.theirs.tree[path]) == tried.case.user
                    && above_all(path).filter_map(|path| tried.before.get(path)).any(|above| {
                        above.mode & 0o2000 != 0 && group(above) == group(&tried.ours.tree[path])
                    });
            }
            let mode = |tree: &Tree| tree.get(&difference.path).map_or(0, |is| is.mode);
            difference.of == "mode"
                && tried.case.user != 0
                && tried.theirs.tree[&difference.path].kind == 'd'
                && !tried.before.contains_key(&difference.path)
                && mode(&tried.theirs.tree) == mode(&tried.ours.tree) | 0o2000
        },
    ),
    (
        "with -n what is there stays without a look at the source, whose state then does not matter",
        |tried, difference| {
            let blamed = tried.theirs.said.lines().filter(|line| line.contains("cannot stat"));
            let is_there = |line: &str| {
                let name = line.split('\'').nth(1).and_then(|path| path.rsplit('/').next());
                name.is_some_and(|name| {
                    tried.before.keys().any(|path| path.rsplit('/').next() == Some(name))
                })
            };
            tried.case.has("-n")
                && matches!(difference.of, "success" | "blame")
                && tried.ours.said.is_empty()
                && tried.theirs.said.contains("cannot stat")
                && blamed.into_iter().all(is_there)
        },
    ),
    (
        "names of the same special file are found in another order; cp replaces those after the first",
        |tried, difference| {
            let (theirs, ours) = (&tried.theirs, &tried.ours);
            let is_one = |tree: &Tree| {
                let is = tree.get(&difference.path);
                is.is_some_and(|is| "pcs".contains(is.kind) && is.names.1 > 1)
            };
            tried.case.has("-L")
                && is_preserving(tried, "links")
                && [theirs, ours].iter().any(|done| done.said.contains("File exists"))
                && match difference.of {
                    "success" | "blame" => true,
                    "kind" | "names" => is_one(&ours.tree) || is_one(&theirs.tree),
                    _ => false,
                }
        },
    ),
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
        "names of the same file are found in another order, and the first one cannot be written to",
        |tried, difference| {
            let trees = [&tried.theirs.tree, &tried.ours.tree];
            let has_names = |is: &Facts| is.kind == 'f' && is.names.1 > 1;
            let is_refused = |done: &Done| done.said.contains("Permission denied");
            is_preserving(tried, "links")
                && (is_refused(&tried.theirs) || is_refused(&tried.ours))
                && tried.before.values().any(has_names)
                && match difference.of {
                    "success" | "blame" => true,
                    _ => {
                        let last = |path: &str| path.rsplit('/').next().map(str::to_owned);
                        let is_copy = |path: &str| last(path) == last(&difference.path);
                        let mut sources = tried.before.iter().filter(|(_, is)| has_names(is));
                        sources.any(|(path, _)| is_copy(path))
                            || trees
                                .iter()
                                .any(|tree| tree.get(&difference.path).is_some_and(has_names))
                    }
                }
        },
    ),
    (
        "a newer file stays with -u; cp replaces it by another name of a file that was older",
        |tried, difference| {
            let has_names = |path: &str| {
                let names = |is: &Facts| is.kind != 'd' && is.names.1 > 1;
                [&tried.theirs.tree, &tried.ours.tree]
                    .iter()
                    .any(|tree| tree.get(path).is_some_and(names))
            };
            // Replacing an entry changes the time of the directory.
            let is_above = |path: &str| above_all(path).last() == Some(&*difference.path);
            tried.case.has("-u")
                && (has_names(&difference.path)
                    || difference.of == "time"
                        && tried.before.keys().any(|path| is_above(path) && has_names(path))
                    || tried.theirs.said.contains("cannot create hard link"))
        },
    ),
    (
        "a source that is a destination by another name is copied before that is written to, or after",
        |tried, difference| {
            let trees = [&tried.theirs.tree, &tried.ours.tree];
            let contents = |tree: &Tree, path: &str| tree.get(path).map(|is| is.contents.clone());
            let is_written = |path: &str| {
                trees.iter().any(|tree| contents(tree, path) != contents(&tried.before, path))
            };
            let (_, sources) = tried.case.operands.split_last().unwrap();
            let is_source = |path: &str| {
                let above = |source: &String| path.starts_with(source.trim_end_matches(['/', '.']));
                sources.iter().any(above)
            };
            let is_both = |inode| {
                let mut names = tried.before.iter().filter(|(_, is)| is.inode == inode);
                names.clone().any(|(path, _)| is_source(path))
                    && names.any(|(path, _)| !is_source(path))
            };
            let copies = trees.map(|tree| contents(tree, &difference.path));
            tried
                .before
                .iter()
                .filter(|(path, is)| is.kind == 'f' && is_both(is.inode) && is_written(path))
                .any(|(path, _)| {
                    let was = contents(&tried.before, path);
                    copies.iter().any(|copy| *copy == was || *copy == contents(trees[0], path))
                })
        },
    ),
    (
        "with -u a link to what is copied first is newer than another source; cp finds it dangling",
        |tried, difference| {
            let leads = |tree: &Tree, path: &String| tree.get(path).map(|is| is.behind.is_some());
            tried.case.has("-u")
                && ["success", "blame"].contains(&difference.of)
                && tried.theirs.said.contains("dangling symlink")
                && tried.before.iter().any(|(path, is)| {
                    is.kind == 'l'
                        && is.behind.is_none()
                        && leads(&tried.ours.tree, path) == Some(true)
                })
        },
    ),
    (
        "who may not write to an entry of his own sets attributes of it nevertheless; cp loses them",
        |tried, difference| {
            let is = |tree: &Tree| tree.get(&difference.path).map(|is| is.attributes.len());
            let gives_list = |is: &Facts| {
                is.kind == 'd' && is.attributes.contains_key("system.posix_acl_default")
            };
            // The umask or an inherited list takes that right from a new file.
            let new_may_write =
                tried.case.mask & 0o200 == 0 && !tried.before.values().any(gives_list);
            let may_write = match tried.before.get(&difference.path) {
                Some(was) if was.kind == 'd' => {
                    was.mode & 0o200 != 0 || was.owner.0 != tried.case.user
                }
                // A special file was replaced.
                Some(was) if was.kind != 'f' => new_may_write,
                Some(_) => true,
                None => new_may_write,
            };
            let is_told = ["success", "blame"].contains(&difference.of)
                && tried.ours.succeeded
                && tried.theirs.said.contains("setting attribute")
                && tried.theirs.said.contains("Permission denied");
            let has_more =
                difference.of == "attributes" && is(&tried.ours.tree) > is(&tried.theirs.tree);
            tried.case.user != 0 && (!new_may_write && is_told || !may_write && has_more)
        },
    ),
    (
        "a link is read before another one is removed that leads to it and is in its way; cp loses it",
        |tried, difference| {
            let is_link =
                |tree: &Tree| tree.get(&difference.path).is_some_and(|is: &Facts| is.kind == 'l');
            tried.theirs.said.contains("cannot read symbolic link")
                && match difference.of {
                    "success" | "blame" => tried.ours.succeeded,
                    // Another source may have failed.
                    "presence" => is_link(&tried.before) && is_link(&tried.ours.tree),
                    _ => false,
                }
        },
    ),
    (
        "with -n a directory that would be copied onto itself stays without a look at its entries",
        |tried, difference| {
            let inode = |path: &str| tried.before.get(path).map(|is| is.inode);
            let (to, sources) = tried.case.operands.split_last().unwrap();
            let to = to.trim_end_matches('/');
            let is_same = |source: &String| {
                let source = source.trim_end_matches('/');
                let name = source.rsplit('/').next().unwrap_or_default();
                let there = inode(&format!("{to}/{name}"));
                there.is_some() && there == inode(source)
            };
            tried.case.has("-n")
                && ["success", "blame"].contains(&difference.of)
                && tried.theirs.said.contains("cannot overwrite non-directory")
                && sources.iter().any(is_same)
        },
    ),
    (
        "a link gets its source's group even if it cannot get the owner; cp sets both or none",
        |tried, difference| {
            let is = |tree: &Tree| tree.get(&difference.path).map(|is| (is.kind, is.owner.0));
            difference.of == "owner"
                && tried.case.user != 0
                && is_preserving(tried, "ownership")
                && is(&tried.ours.tree) == Some(('l', tried.case.user))
                && is(&tried.ours.tree) == is(&tried.theirs.tree)
        },
    ),
];

/// Returns the reason of an intended difference.
pub fn reason(tried: &Tried<'_>, difference: &Difference) -> Option<&'static str> {
    if difference.of == super::MIXED {
        return None;
    }
    KNOWN
        .iter()
        .chain(KNOWN_RARE)
        .chain(super::odd::KNOWN)
        .find(|(_, is_it)| is_it(tried, difference))
        .map(|(reason, _)| *reason)
}

/// Returns whether the difference is about a link that another kind of entry replaced, or about its target.
fn links_in_the_way(tried: &Tried<'_>, difference: &Difference) -> bool {
    let is_link =
        |tree: &Tree, path: &str| tree.get(path).is_some_and(|facts: &Facts| facts.kind == 'l');
    let links: Vec<_> = tried
        .before
        .iter()
        .filter(|(path, facts)| {
            facts.kind == 'l'
                && is_link(&tried.theirs.tree, path)
                && !is_link(&tried.ours.tree, path)
        })
        .collect();
    let inodes: HashSet<_> =
        links.iter().flat_map(|(_, link)| [Some(link.inode), link.behind]).flatten().collect();
    // cp may have written to another file of the copy, created earlier.
    let theirs = &tried.theirs.tree;
    let written: HashSet<_> =
        links.iter().filter_map(|(path, _)| theirs.get(*path)?.behind).collect();
    let is_met = |path: &str| {
        tried.before.get(path).is_some_and(|is| inodes.contains(&is.inode))
            || theirs.get(path).is_some_and(|is| written.contains(&is.inode))
    };
    let path = &*difference.path;
    match difference.of {
        "success" | "blame" | "told" => !links.is_empty(),
        // Creating or removing an entry changes the time of the directory.
        "time" => {
            let above =
                |path: &str| path.rsplit_once('/').map_or("", |(above, _)| above).to_owned();
            is_met(path)
                || above_all(path).any(is_met)
                || tried.before.keys().any(|met| is_met(met) && above(met) == path)
        }
        // The link became a name of the same copy.
        _ if links.iter().any(|(link, _)| is_same(&tried.ours.tree, link, path)) => true,
        _ => above_all(path).chain([path]).any(is_met),
    }
}

fn is_same(tree: &Tree, one: &str, other: &str) -> bool {
    let inode = |path| tree.get(path).map(|facts: &Facts| facts.inode);
    inode(one).is_some() && inode(one) == inode(other)
}

/// Returns the parents of a path.
fn above_all(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(end, _)| &path[..end])
}

/// Returns whether the command preserves an attribute; `-p` includes neither links nor extended attributes.
fn is_preserving(tried: &Tried<'_>, what: &str) -> bool {
    let flags = &tried.case.flags;
    tried.case.has("-a")
        || flags.iter().any(|flag| flag.strip_prefix("--preserve=") == Some(what))
        || (tried.case.has("-p") && what != "links" && what != "xattr")
}

fn new_mode(tree: &Tree, difference: &Difference) -> u32 {
    tree[&difference.path].mode
}
