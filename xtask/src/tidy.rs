//! Properties of the repository that no other tool checks.
//!
//! Each check is a function from the repository's [`Tree`] to findings, and is listed in [`CHECKS`]. A
//! finding has a line and a message; a check changes nothing. Checks read the files that git tracks or would
//! track: also files not added yet, but not ignored ones.

mod bare;
mod cancel_safety;
mod crates;
pub(crate) mod cycles;
mod fields;
mod layers;
mod libc_free;
mod links;
mod manifest;
mod methods;
mod pages;
pub(crate) mod plain;
mod reasons;
mod refusing;
mod signatures;
mod soundness;
mod statics;
mod text;
mod tokens;
mod unfinished;
mod words;

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io::ErrorKind::{IsADirectory, NotFound};
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use tar::Archive;

use self::manifest::Manifest;
use self::tokens::Tokens;
pub(crate) use self::tokens::test_files;

/// Adds what it finds in the tree to the list.
type Check = fn(&Tree, &mut Vec<Finding>);

const CHECKS: &[Check] = &[
    bare::need_nothing,
    bare::name_nothing,
    cancel_safety::is_stated,
    crates::names_match_folders,
    crates::lints_are_inherited,
    crates::unsafe_is_forbidden,
    cycles::are_small,
    fields::are_few,
    layers::point_down,
    layers::leaves_import_nothing,
    layers::limits_are_in_one_file,
    libc_free::sources,
    libc_free::dependencies,
    links::have_targets,
    manifest::parse,
    methods::are_few,
    pages::are_short,
    plain::shrink,
    reasons::are_given,
    refusing::are_in_one_file,
    signatures::hand_nothing_over,
    soundness::names_tests,
    statics::are_listed,
    statics::of_dependencies,
    text::lines_fit,
    text::files_are_short,
    text::whitespace_is_clean,
    tokens::parse,
    unfinished::code,
    unfinished::marks,
    unfinished::ignored_tests,
    words::belong,
];

/// Runs all checks on the repository at `root` and prints the counts of [`plain`], then a line per finding.
///
/// # Errors
/// When the repository cannot be read or the findings cannot be printed.
pub(crate) fn run(root: &Path) -> anyhow::Result<ExitCode> {
    let tree = Tree::read(root)?;
    let findings = check(&tree, CHECKS);
    let mut report = format!("{}\n", plain::summary(&tree));
    report.extend(findings.iter().map(|finding| format!("{finding}\n")));
    match io::stdout().write_all(report.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            return Err(error).context("cannot print the findings");
        }
        _ => {}
    }
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the findings of `checks` in `tree`, in the order of paths and lines, without duplicates.
fn check(tree: &Tree, checks: &[Check]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for check in checks {
        check(tree, &mut findings);
    }
    findings.sort();
    findings.dedup();
    findings
}

/// A violation of a rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    /// The file, relative to the repository's root.
    path: String,
    /// The line, from 1; 1 also for what concerns the whole file.
    line: usize,
    /// The violation, in lower case, with the remedy if it is not obvious.
    message: String,
}

impl Finding {
    fn new(file: &File, line: usize, message: impl Into<String>) -> Self {
        Self { path: file.path.clone(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// A text file of the repository.
pub(crate) struct File {
    /// Relative to the repository's root, with `/` between the parts.
    pub(crate) path: String,
    /// The whole text.
    pub(crate) text: String,
    tokens: OnceCell<Option<Tokens>>,
    parsed: OnceCell<Option<syn::File>>,
}

impl File {
    pub(crate) fn new(path: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            text: text.into(),
            tokens: OnceCell::new(),
            parsed: OnceCell::new(),
        }
    }

    /// Returns the tokens, if it is a Rust file.
    fn tokens(&self) -> Option<&Tokens> {
        self.tokens.get_or_init(|| Tokens::scan(&self.text).ok()).as_ref()
    }

    /// Returns the items, if it is a Rust file.
    fn parsed(&self) -> Option<&syn::File> {
        self.parsed.get_or_init(|| syn::parse_file(&self.text).ok()).as_ref()
    }

    /// Returns whether the path ends in a dot and `extension`.
    pub(crate) fn is(&self, extension: &str) -> bool {
        self.path.strip_suffix(extension).is_some_and(|stem| stem.ends_with('.'))
    }

    /// Returns the path after its last `/`.
    fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    /// Returns the lines, without their ends, numbered from 1.
    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.split('\n').enumerate().map(|(index, line)| (index + 1, line))
    }

    /// Returns the number of the line with the byte at `offset`, from 1.
    fn line_at(&self, offset: usize) -> usize {
        self.text.bytes().take(offset).filter(|&byte| byte == b'\n').count() + 1
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("path", &self.path).finish_non_exhaustive()
    }
}

/// The repository's files.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    /// All files, also those that hold no text.
    pub(crate) paths: BTreeSet<String>,
    /// The text files; without `Cargo.lock`, which is generated.
    files: Vec<File>,
}

impl Tree {
    /// Reads the files that git tracks or would track.
    ///
    /// # Errors
    /// The repository cannot be read.
    pub(crate) fn read(root: &Path) -> anyhow::Result<Self> {
        let mut tree = Self::default();
        for_each_file(root, |path, bytes| {
            tree.add(path, bytes);
            Ok(())
        })?;
        Ok(tree)
    }

    /// Reads the files of a commit.
    ///
    /// # Errors
    /// There is no such commit, or the repository cannot be read.
    pub(crate) fn at(root: &Path, revision: &str) -> anyhow::Result<Self> {
        let archive = git(root, &["archive", "--format=tar", revision])?;
        let mut tree = Self::default();
        for entry in Archive::new(archive.as_slice()).entries()? {
            let mut entry = entry?;
            if entry.header().entry_type().is_file() {
                let path = entry.path()?.to_str().context("a path is not UTF-8")?.to_owned();
                let mut bytes = Vec::new();
                entry.read_to_end(&mut bytes)?;
                tree.add(path, bytes);
            }
        }
        Ok(tree)
    }

    pub(crate) fn add(&mut self, path: String, bytes: Vec<u8>) {
        self.paths.insert(path.clone());
        if path.ends_with("Cargo.lock") || bytes.contains(&0) {
            return;
        }
        if let Ok(text) = String::from_utf8(bytes) {
            self.files.push(File::new(path, text));
        }
    }

    /// Returns the text files whose path ends in a dot and one of `extensions`.
    pub(crate) fn files_of(&self, extensions: &'static [&str]) -> impl Iterator<Item = &File> {
        let wanted = |file: &&File| extensions.iter().any(|extension| file.is(extension));
        self.files.iter().filter(wanted)
    }

    /// Returns the Rust files with one of these path prefixes, except those for tests only.
    pub(crate) fn sources(&self, begins: &[&str]) -> Vec<&File> {
        let is_there = |file: &&File| begins.iter().any(|begin| file.path.starts_with(begin));
        let mut files: Vec<&File> = self.files_of(&["rs"]).filter(is_there).collect();
        let for_tests = test_files(&files);
        files.retain(|file| !for_tests.contains(&file.path.as_str()));
        files
    }

    /// Returns all `Cargo.toml` that can be parsed; a separate check reports the others.
    fn manifests(&self) -> impl Iterator<Item = Manifest<'_>> {
        let manifests = self.files.iter().filter(|file| file.name() == "Cargo.toml");
        manifests.filter_map(|file| Manifest::parse(file).ok())
    }

    /// Returns the manifests of the workspace's own crates, as listed in its root.
    fn crates(&self) -> impl Iterator<Item = Manifest<'_>> {
        self.manifests().filter(|manifest| match manifest.folder().split_once('/') {
            Some(("crates", name)) => !name.contains('/'),
            Some(_) => false,
            None => manifest.folder() == "xtask",
        })
    }
}

/// Reads the files that git tracks or would track in the repository at `root`, in the order of their paths.
pub(crate) fn for_each_file(
    root: &Path,
    mut take: impl FnMut(String, Vec<u8>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let listed = git(root, &["ls-files", "-z", "--cached", "--others", "--exclude-standard"])?;
    let listed = String::from_utf8(listed).context("a path is not UTF-8")?;
    for path in listed.split_terminator('\0').collect::<BTreeSet<_>>() {
        match fs::read(root.join(path)) {
            Ok(bytes) => take(path.to_owned(), bytes)?,
            // Tracked but deleted; a link to a folder, or a repository inside this one.
            Err(error) if matches!(error.kind(), NotFound | IsADirectory) => {}
            Err(error) => return Err(error).context(format!("cannot read {path}")),
        }
    }
    Ok(())
}

/// Returns the output of a git command.
fn git(root: &Path, arguments: &[&str]) -> anyhow::Result<Vec<u8>> {
    let mut command = Command::new("git");
    let output = command.arg("-C").arg(root).args(arguments).output().context("cannot run git")?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        bail!("git {}: {}", arguments[0], reason.trim_end());
    }
    Ok(output.stdout)
}

/// Returns the printed findings of `check` in a tree of the given paths and texts.
#[cfg(test)]
fn findings(check: Check, files: &[(&str, &str)]) -> Vec<String> {
    let mut tree = Tree::default();
    for &(path, text) in files {
        tree.add(path.to_owned(), text.as_bytes().to_vec());
    }
    self::check(&tree, &[check]).iter().map(Finding::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_repository_can_be_read() {
        let tree = Tree::read(&crate::repository_root()).unwrap();
        let has_text = |path| tree.files.iter().any(|file| file.path == path);
        assert!(has_text("xtask/src/tidy.rs"));
        assert!(!has_text("Cargo.lock") && tree.paths.contains("Cargo.lock"));
        assert!(tree.crates().any(|manifest| manifest.name() == Some("xtask")));
        assert!(tree.crates().any(|manifest| manifest.name() == Some("sakia-testkit")));
    }

    #[test]
    fn a_commit_of_this_repository_can_be_read() {
        let root = crate::repository_root();
        let tree = Tree::at(&root, "HEAD").unwrap();
        let file = tree.files.iter().find(|file| file.path == "xtask/src/tidy.rs").unwrap();
        assert!(file.text.starts_with("//!") && file.text.ends_with("}\n"));
        assert!(tree.paths.contains("Cargo.lock"));
        let error = Tree::at(&root, "no-such-commit").unwrap_err().to_string();
        assert!(error.starts_with("git archive: "), "{error}");
    }

    #[test]
    fn findings_are_sorted_and_print_as_path_line_message() {
        let files = [("b.rs", "\tx\n"), ("a.rs", "x\nx \n\tx\n")];
        let found = findings(text::whitespace_is_clean, &files);
        assert_eq!(found, ["a.rs:2: trailing whitespace", "a.rs:3: tab", "b.rs:1: tab"]);
    }

    #[test]
    fn binary_files_have_a_path_but_no_text() {
        let mut tree = Tree::default();
        tree.add("a.png".into(), b"PNG\0".to_vec());
        tree.add("b.md".into(), b"text \xff".to_vec());
        assert_eq!((tree.paths.len(), tree.files.len()), (2, 0));
    }

    #[test]
    fn lines_are_counted_from_one() {
        let file = File::new("a/b.rs", "x\ny\n");
        assert_eq!((file.line_at(0), file.line_at(1), file.line_at(2)), (1, 1, 2));
        assert_eq!(file.lines().nth(1), Some((2, "y")));
        assert_eq!(file.name(), "b.rs");
        assert!(file.is("rs") && !file.is("s"));
    }
}
