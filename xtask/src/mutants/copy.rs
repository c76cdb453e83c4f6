//! A copy of the tree in which each known bug can be switched on.
//!
//! A function with known bugs has an additional body for each. The environment variable `SAKIA_MUTANT`
//! chooses one; it is read once per bug.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, bail, ensure};

use super::known::{Bug, Edit};
use super::places::{self, Place};
use crate::tidy;

/// The root of a crate that uses the standard library for its tests only.
const WITHOUT_STD: &str = "#[cfg(test)]\nextern crate std;";

/// Makes the copy of the tree at `root`, or updates an older copy. Unchanged files keep their times, so that
/// only the others are rebuilt.
///
/// # Errors
/// A file cannot be read or written, or a bug's text is not there.
pub(super) fn make(root: &Path, copy: &Path, bugs: &[Bug]) -> anyhow::Result<()> {
    let mut by_file: BTreeMap<&str, Vec<Edit<'_>>> = BTreeMap::new();
    for edit in bugs.iter().flat_map(Bug::edits) {
        by_file.entry(edit.file).or_default().push(edit);
    }
    let mut files = BTreeSet::new();
    tidy::for_each_file(root, |name, mut content| {
        if let Some(edits) = by_file.remove(name.as_str()) {
            let text = String::from_utf8(content).context(format!("{name} is not UTF-8"))?;
            content = patch(&text, &edits).context(name.clone())?.into_bytes();
        }
        if name.ends_with("/src/lib.rs") && has_bugs(&name, bugs) {
            // The environment switches a bug on, for which a crate needs the standard library.
            let text = String::from_utf8(content).context(format!("{name} is not UTF-8"))?;
            content = text.replace(WITHOUT_STD, "extern crate std;").into_bytes();
        }
        write(&copy.join(&name), &content)?;
        files.insert(name);
        Ok(())
    })?;
    if let Some((file, edits)) = by_file.first_key_value() {
        bail!("{}: there is no file {file}", edits[0].bug);
    }
    remove_others(copy, copy, &files)
}

/// Returns true if `name` is the root of a crate, and some of the bugs are in the crate.
fn has_bugs(name: &str, bugs: &[Bug]) -> bool {
    let folder = name.trim_end_matches("lib.rs");
    bugs.iter().flat_map(Bug::edits).any(|edit| edit.file.starts_with(folder))
}

fn write(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    if fs::read(path).is_ok_and(|present| present == content) {
        return Ok(());
    }
    let folder = path.parent().context("a file is in a folder")?;
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(path, content))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Removes the files of an earlier copy that this one does not have.
fn remove_others(copy: &Path, folder: &Path, files: &BTreeSet<String>) -> anyhow::Result<()> {
    let is_listed = |name: &Path| name.to_str().is_some_and(|name| files.contains(name));
    for entry in
        fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?
    {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(copy, &path, files)?;
        } else if path.strip_prefix(copy).is_ok_and(|name| !is_listed(name)) {
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    Ok(())
}

/// Returns the text of a file with its known bugs.
///
/// # Errors
/// A bug's text is missing; the message shows the most similar one.
fn patch(text: &str, edits: &[Edit<'_>]) -> anyhow::Result<String> {
    let functions = places::functions(text)?;
    let places = edits.iter().map(|edit| edit.place(text, &functions));
    let places: Vec<Place> = places.collect::<Result<_, _>>()?;
    // The outermost function gets the additional body, so that each bug is in one of them.
    let outermost = |place: &Place| {
        let bodies = places.iter().map(|other| &other.function.body);
        let around = bodies.filter(|body| places::contains(body, &place.function.body));
        around.max_by_key(|body| body.len()).expect("it is around itself").clone()
    };
    // By the end of the body, and the name.
    let mut bodies: BTreeMap<usize, (Range<usize>, BTreeMap<&str, Vec<_>>)> = BTreeMap::new();
    // Ranges and their replacements.
    let mut all: Vec<(Range<usize>, String)> = Vec::new();
    for (place, edit) in places.iter().zip(edits) {
        if place.function.is_opaque {
            let (on, right, wrong) = (switch(edit.bug), &text[place.range.clone()], edit.wrong);
            let both = format!("(if {on} {{ {wrong} }} else {{ {right} }})");
            all.push((place.range.clone(), both));
            continue;
        }
        let body = outermost(place);
        let (_, bugs) = bodies.entry(body.end).or_insert((body, BTreeMap::new()));
        bugs.entry(edit.bug).or_default().push((place.range.clone(), edit.wrong.to_owned()));
    }
    for (body, bugs) in bodies.into_values() {
        let mut with_bugs = String::from("{ ");
        for (name, changes) in bugs {
            let wrong = changed(text, &body, changes).context(name.to_owned())?;
            let _ = write!(with_bugs, "if {}\n{wrong} else ", switch(name));
        }
        let _ = write!(with_bugs, "{}}}", &text[body.clone()]);
        all.push((body, with_bugs));
    }
    changed(text, &(0..text.len()), all)
}

/// Returns the expression that is true if the bug is switched on.
fn switch(name: &str) -> String {
    format!(
        "{{ static ON: std::sync::LazyLock<bool> = std::sync::LazyLock::new(|| \
         std::env::var_os(\"SAKIA_MUTANT\").is_some_and(|on| on == {name:?})); *ON }}"
    )
}

/// Returns a part of a text after some changes.
fn changed(
    text: &str,
    part: &Range<usize>,
    mut changes: Vec<(Range<usize>, String)>,
) -> anyhow::Result<String> {
    changes.sort_unstable_by_key(|(range, _)| range.start);
    let mut changed = String::new();
    let mut next = part.start;
    for (range, instead) in changes {
        ensure!(next <= range.start, "two texts overlap on line {}", places::line_of(text, next));
        changed.push_str(&text[next..range.start]);
        changed.push_str(&instead);
        next = range.end;
    }
    changed.push_str(&text[next..part.end]);
    Ok(changed)
}

/// Returns the places of the known bugs in the copy, for messages of the compiler: lines and name.
pub(super) fn lines(copy: &Path, bugs: &[Bug]) -> String {
    let mut lines = String::new();
    for bug in bugs {
        let text = fs::read_to_string(copy.join(&bug.file)).unwrap_or_default();
        let switch = format!("on == {:?})", bug.name);
        if let Some(at) = text.find(&switch) {
            let _ = writeln!(lines, "  {}:{} {}", bug.file, places::line_of(&text, at), bug.name);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const FILE: &str = "fn a(x: u32) -> u32 { x + 1 }\nfn b() { c(); fn e() { f() } d() }\n";

    fn bug(name: &str, function: &str, text: &str, wrong: &str) -> Bug {
        let [text, wrong] = [text, wrong].map(str::to_owned);
        let (name, function) = (name.to_owned(), function.to_owned());
        Bug { name, function, text, wrong, ..Bug::default() }
    }

    /// The file with bugs, the switches replaced by their names.
    fn patched(bugs: &[&Bug]) -> String {
        let edits: Vec<Edit<'_>> = bugs.iter().flat_map(|bug| bug.edits()).collect();
        let mut text = patch(FILE, &edits).unwrap();
        while let Some(begin) = text.find("{ static") {
            let end = begin + text[begin..].find("*ON }").unwrap() + 5;
            let name = text[begin..end].split('"').nth(3).unwrap().to_owned();
            text.replace_range(begin..end, &name);
        }
        text.replace('\n', " ")
    }

    #[test]
    fn each_bug_has_a_body_of_its_own() {
        let [minus, two, no_c] = [
            bug("minus", "a", "x + 1", "x - 1"),
            bug("two", "a", "+ 1", "+ 2"),
            bug("no_c", "b", "c();", ""),
        ];
        let expected = "fn a(x: u32) -> u32 { if minus { x - 1 } else if two { x + 2 } else { x + 1 }} \
                        fn b() { if no_c {  fn e() { f() } d() } else { c(); fn e() { f() } d() }} ";
        assert_eq!(patched(&[&minus, &no_c, &two]), expected);
    }

    #[test]
    fn bugs_in_a_function_and_in_one_inside_of_it_have_bodies_of_the_outer_one() {
        let [no_c, no_f] = [bug("no_c", "b", "c();", ""), bug("no_f", "e", "f()", "")];
        let patched = patched(&[&no_f, &no_c]);
        let expected = "fn b() { if no_c {  fn e() { f() } d() } else if no_f { c(); fn e() {  } d() } \
                        else { c(); fn e() { f() } d() }} ";
        assert!(patched.ends_with(expected), "{patched}");
    }

    #[test]
    fn where_all_branches_must_have_one_type_the_text_alone_is_switched() {
        let edits = [bug("two", "f", "1", "2")];
        let edits: Vec<Edit<'_>> = edits.iter().flat_map(Bug::edits).collect();
        let patched = patch("fn f() -> impl Fn() -> u8 { || 1 }", &edits).unwrap();
        let on = switch("two");
        assert_eq!(
            patched,
            format!("fn f() -> impl Fn() -> u8 {{ || (if {on} {{ 2 }} else {{ 1 }}) }}")
        );
    }

    #[test]
    fn a_bug_of_several_texts_is_one() {
        let entry = r#"
            name = "many"
            what = "several are wrong"
            file = "a.rs"
            function = "b"
            text = "d()"
            wrong = ""
            [[also]]
            function = "b"
            text = "c();"
            wrong = ""
            [[also]]
            function = "a"
            text = "1"
            wrong = "2""#;
        let expected = "fn a(x: u32) -> u32 { if many { x + 2 } else { x + 1 }} \
                        fn b() { if many {  fn e() { f() }  } else { c(); fn e() { f() } d() }} ";
        assert_eq!(patched(&[&toml::from_str(entry).unwrap()]), expected);
    }

    #[test]
    fn the_copy_follows_the_tree_and_leaves_alone_what_is_the_same() {
        let folder = std::env::temp_dir().join(format!("sakia-xtask-{}", std::process::id()));
        let (root, copy) = (folder.join("root"), folder.join("copy"));
        fs::create_dir_all(root.join("src")).unwrap();
        let git = Command::new("git").arg("init").arg("-q").arg(&root).status().unwrap();
        assert!(git.success());
        fs::write(root.join("src/a.rs"), FILE).unwrap();
        fs::write(root.join("b"), "b").unwrap();
        let mut bugs = [bug("no_c", "b", "c();", "")];
        bugs[0].file = "src/a.rs".to_owned();
        make(&root, &copy, &bugs).unwrap();
        let content = fs::read_to_string(copy.join("src/a.rs")).unwrap();
        assert!(content.contains("no_c") && content.contains("*ON"), "{content}");
        assert!(lines(&copy, &bugs).contains("src/a.rs:2 no_c"), "{}", lines(&copy, &bugs));
        let time = |name: &str| fs::metadata(copy.join(name)).unwrap().modified().unwrap();
        let before = time("src/a.rs");
        fs::remove_file(root.join("b")).unwrap();
        fs::write(root.join("c"), "c").unwrap();
        make(&root, &copy, &bugs).unwrap();
        assert_eq!(before, time("src/a.rs"));
        assert!(!copy.join("b").exists() && copy.join("c").exists());
        fs::write(root.join("src/a.rs"), "fn b() { d() }").unwrap();
        let error = format!("{:#}", make(&root, &copy, &bugs).unwrap_err());
        assert!(error.contains("src/a.rs: no_c: the text is not in b"), "{error}");
        fs::remove_dir_all(folder).unwrap();
    }
}
