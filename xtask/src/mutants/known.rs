//! The known bugs of `known.toml`, which are not in the sources: text to replace in a copy of the tree.

use anyhow::{Context, anyhow};
use serde::Deserialize;

use super::places::{self, Function, Place};
use crate::suites::Suite;

/// The content of the file; its head explains the format.
const TABLE: &str = include_str!("known.toml");

/// An entry of the file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Bug {
    pub(super) name: String,
    /// The bug's effect.
    pub(super) what: String,
    /// The path of the file from the root of the tree.
    pub(super) file: String,
    /// The function, or `Type::function`.
    pub(super) function: String,
    /// The correct text, unique in the function.
    pub(super) text: String,
    /// The wrong text.
    pub(super) wrong: String,
    /// Further texts that are replaced at the same time.
    #[serde(default)]
    pub(super) also: Vec<Also>,
    /// The suite that must catch it; without one, all possible ones are tried.
    pub(super) suite: Option<Suite>,
    /// Words in the names of those tests.
    #[serde(default)]
    pub(super) tests: String,
    /// The random programs of a thousand seeds are to find it as well.
    #[serde(default)]
    pub(super) swept: bool,
    /// A quick run has one of a few of these; the last commit chooses.
    #[serde(default)]
    pub(super) in_turn: bool,
    /// The change and the line that were drawn, if they were.
    #[cfg_attr(not(test), expect(dead_code, reason = "for readers of the file"))]
    pub(super) drawn: Option<String>,
    /// The result of the tests at the time of the draw.
    #[cfg_attr(not(test), expect(dead_code, reason = "for readers of the file"))]
    pub(super) first: Option<First>,
    /// The reason why no test can distinguish it from correct code.
    pub(super) equivalent: Option<String>,
    /// The reason why the text is gone: it was needless, or replaced.
    pub(super) gone: Option<String>,
}

/// A further text of an entry.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Also {
    /// The entry's file, if `None`.
    file: Option<String>,
    function: String,
    text: String,
    wrong: String,
}

/// A text, and its replacement when a bug is switched on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edit<'a> {
    /// The bug's name.
    pub(super) bug: &'a str,
    pub(super) file: &'a str,
    function: &'a str,
    text: &'a str,
    pub(super) wrong: &'a str,
}

/// The first result for a drawn bug.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(super) enum First {
    Caught,
    Survived,
}

#[derive(Deserialize)]
struct Table {
    bug: Vec<Bug>,
}

/// Returns all bugs that can be switched on.
///
/// # Errors
/// The file is invalid.
pub(super) fn read() -> anyhow::Result<Vec<Bug>> {
    let mut bugs = read_all()?;
    bugs.retain(|bug| bug.gone.is_none());
    Ok(bugs)
}

fn read_all() -> anyhow::Result<Vec<Bug>> {
    let table: Table = toml::from_str(TABLE).context("mutants/known.toml")?;
    Ok(table.bug)
}

impl Bug {
    /// Returns the suite that must catch it, or all of its crate.
    pub(super) fn suites(&self) -> Vec<Suite> {
        match self.suite {
            Some(suite) => vec![suite],
            None if self.file.starts_with("crates/sakia-driver/") => {
                vec![
                    Suite::DriverUnits,
                    Suite::Driver,
                    Suite::Conformance,
                    Suite::Table,
                    Suite::Sweep,
                    Suite::RuntimeOnUring,
                    Suite::RuntimeOnPoll,
                ]
            }
            None if self.file.starts_with("crates/sakia-tokio/") => vec![Suite::Tokio],
            None if self.file.starts_with("crates/sakia-trace/") => {
                vec![
                    Suite::TraceUnits,
                    Suite::Recording,
                    Suite::RecordingLife,
                    Suite::RecordingForked,
                ]
            }
            None if self.file.starts_with("crates/sakia-socket") => vec![
                Suite::SocketCoreUnits,
                Suite::SocketUnits,
                Suite::SocketSemantics,
                Suite::SocketDifferential,
                Suite::SocketWaking,
            ],
            None => vec![
                Suite::RuntimeUnits,
                Suite::Engine,
                Suite::Net,
                Suite::Simulated,
                Suite::RuntimeOnUring,
                Suite::RuntimeOnPoll,
                Suite::Faults,
            ],
        }
    }

    /// Returns the replacements of the bug.
    pub(super) fn edits(&self) -> impl Iterator<Item = Edit<'_>> {
        let Self { name, file, function, text, wrong, .. } = self;
        let also = self.also.iter().map(move |also| Edit {
            bug: name,
            file: also.file.as_ref().unwrap_or(file),
            function: &also.function,
            text: &also.text,
            wrong: &also.wrong,
        });
        [Edit { bug: name, file, function, text, wrong }].into_iter().chain(also)
    }
}

impl Edit<'_> {
    /// Returns the place of its text in its file, which has `content` and these functions.
    ///
    /// # Errors
    /// The text is missing, or not unique.
    pub(super) fn place(&self, content: &str, functions: &[Function]) -> anyhow::Result<Place> {
        let found = places::find(content, functions, self.function, self.text);
        found.map_err(|message| anyhow!("{}: {message}", self.bug))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Texts of files, and their functions, by path.
    type Files = BTreeMap<String, (String, Vec<Function>)>;

    /// Finds a bug's texts in their files. If one is in another file of the crate, the error names it.
    fn check(root: &Path, files: &mut Files, bug: &Bug) -> anyhow::Result<()> {
        bug.edits().try_for_each(|edit| {
            let (content, functions) = files.entry(edit.file.to_owned()).or_insert_with(|| {
                let content = fs::read_to_string(root.join(edit.file)).unwrap_or_default();
                let functions = places::functions(&content).unwrap();
                (content, functions)
            });
            edit.place(content, functions).map(drop).map_err(|error| {
                let moved = elsewhere(root, &edit);
                let moved = moved.map_or_else(String::new, |at| format!("\n  now in {at}"));
                anyhow!("{}: {error:#}{moved}", edit.file)
            })
        })
    }

    /// Returns the file and the function of the crate that has the text.
    fn elsewhere(root: &Path, edit: &Edit<'_>) -> Option<String> {
        let (source, _) = edit.file.split_once("/src/")?;
        let mut folders = vec![root.join(source).join("src")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).ok()? {
                let path = entry.ok()?.path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                if path.extension().is_none_or(|extension| extension != "rs") {
                    continue;
                }
                let content = fs::read_to_string(&path).ok()?;
                let functions = places::functions(&content).ok()?;
                let has = |body: &str| !places::occurrences(body, edit.text).is_empty();
                let found = functions.iter().find(|f| has(&content[f.body.clone()]));
                if let Some(function) = found {
                    let file = path.strip_prefix(root).unwrap_or(&path);
                    return Some(format!("{}, {}", file.display(), function.path));
                }
            }
        }
        None
    }

    #[test]
    fn each_text_is_once_in_its_function() {
        let (root, mut files) = (crate::repository_root(), Files::new());
        let check =
            |bug: &Bug| check(&root, &mut files, bug).err().map(|error| format!("{error:#}\n"));
        let errors: String = read().unwrap().iter().filter_map(check).collect();
        assert!(errors.is_empty(), "{errors}");
    }

    #[test]
    fn a_text_that_has_moved_is_found() {
        let bug = Bug {
            name: "a_bug".to_owned(),
            file: "xtask/src/main.rs".to_owned(),
            function: "place".to_owned(),
            text: "let found = places::find(content, functions, self.function, self.text);"
                .to_owned(),
            ..Bug::default()
        };
        let error =
            check(&crate::repository_root(), &mut Files::new(), &bug).unwrap_err().to_string();
        assert!(
            error.starts_with("xtask/src/main.rs: a_bug: there is no function place"),
            "{error}"
        );
        assert!(error.ends_with("now in xtask/src/mutants/known.rs, Edit::place"), "{error}");
    }

    #[test]
    fn the_entries_say_what_and_which_tests() {
        let bugs = read_all().unwrap();
        let names: BTreeSet<_> = bugs.iter().map(|bug| &bug.name[..]).collect();
        assert_eq!(names.len(), bugs.len(), "a name stands for two bugs");
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        for Bug { name, what, text, wrong, suite, tests, equivalent, gone, drawn, first, .. } in
            &bugs
        {
            assert!(name.chars().all(is_name) && what.contains(' '), "{name}: {what}");
            assert_ne!(text, wrong, "{name}");
            assert_eq!(drawn.is_some(), first.is_some(), "{name}");
            match equivalent.as_ref().or(gone.as_ref()) {
                None => assert!(suite.is_some() && !tests.trim().is_empty(), "{name} has no tests"),
                Some(why) => {
                    // Code may be gone for other reasons than its bug; an equivalent one was not caught.
                    assert!(gone.is_some() || *first == Some(First::Survived), "{name}");
                    assert_eq!(*suite, None, "{name}");
                    assert!(why.len() > 40, "{name}: {why}");
                }
            }
        }
    }
}
