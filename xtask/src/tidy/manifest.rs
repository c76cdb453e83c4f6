//! Facts from a `Cargo.toml` for the checks.

use toml::de::{DeTable, DeValue};

use super::{File, Finding, Tree};

/// Reports manifests that are not TOML; the other checks pass over them.
pub(super) fn parse(tree: &Tree, findings: &mut Vec<Finding>) {
    for file in tree.files.iter().filter(|file| file.name() == "Cargo.toml") {
        if let Err(error) = DeTable::parse(&file.text) {
            let line = error.span().map_or(1, |span| file.line_at(span.start));
            findings.push(Finding::new(file, line, format!("not TOML: {}", error.message())));
        }
    }
}

/// A parsed `Cargo.toml`.
pub(super) struct Manifest<'a> {
    pub(super) file: &'a File,
    table: DeTable<'a>,
}

/// The kind of table that a dependency stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Section {
    /// `[dependencies]`, also for a target.
    Normal,
    /// `[dev-dependencies]`, also for a target.
    Dev,
    /// `[build-dependencies]`, also for a target.
    Build,
    /// `[workspace.dependencies]`.
    Workspace,
}

const SECTIONS: [(&str, Section); 3] = [
    ("dependencies", Section::Normal),
    ("dev-dependencies", Section::Dev),
    ("build-dependencies", Section::Build),
];

/// An entry of a dependency table.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Dependency {
    pub(super) section: Section,
    /// The package, by its own name even if the entry renames it.
    pub(super) package: String,
    /// The line that the entry begins at, from 1.
    pub(super) line: usize,
    /// It has `workspace = true`.
    pub(super) inherited: bool,
    /// It has a path.
    pub(super) local: bool,
}

impl<'a> Manifest<'a> {
    pub(super) fn parse(file: &'a File) -> Result<Self, toml::de::Error> {
        let table = DeTable::parse(&file.text)?.into_inner();
        Ok(Self { file, table })
    }

    /// Returns its folder, relative to the repository's root; empty for the root.
    pub(super) fn folder(&self) -> &'a str {
        self.file.path.rsplit_once('/').map_or("", |(folder, _)| folder)
    }

    /// Returns the package's name; none for a workspace without a package.
    pub(super) fn name(&self) -> Option<&str> {
        text(table(&self.table, "package")?, "name")
    }

    /// Returns whether the crate inherits its lints from the workspace.
    pub(super) fn inherits_lints(&self) -> bool {
        table(&self.table, "lints").is_some_and(|lints| is_true(lints, "workspace"))
    }

    /// Returns the level of a lint that a workspace sets for its crates.
    pub(super) fn workspace_lint(&self, tool: &str, lint: &str) -> Option<&str> {
        let lints = table(table(table(&self.table, "workspace")?, "lints")?, tool)?;
        text(lints, lint).or_else(|| text(table(lints, lint)?, "level"))
    }

    /// Returns the entries of all dependency tables.
    pub(super) fn dependencies(&self) -> Vec<Dependency> {
        let targets = table(&self.table, "target").into_iter().flat_map(DeTable::values);
        let targets = targets.filter_map(|target| target.get_ref().as_table());
        let mut found = Vec::new();
        for parent in [&self.table].into_iter().chain(targets) {
            for (name, section) in SECTIONS {
                self.add(table(parent, name), section, &mut found);
            }
        }
        let workspace = table(&self.table, "workspace");
        let entries = workspace.and_then(|workspace| table(workspace, "dependencies"));
        self.add(entries, Section::Workspace, &mut found);
        found
    }

    fn add(&self, entries: Option<&DeTable<'_>>, section: Section, found: &mut Vec<Dependency>) {
        for (key, value) in entries.into_iter().flatten() {
            let details = value.get_ref().as_table();
            let package = details.and_then(|details| text(details, "package"));
            found.push(Dependency {
                section,
                package: package.unwrap_or(key.get_ref()).to_owned(),
                line: self.file.line_at(key.span().start),
                inherited: details.is_some_and(|details| is_true(details, "workspace")),
                local: details.is_some_and(|details| details.contains_key("path")),
            });
        }
    }
}

fn table<'a, 'i>(parent: &'a DeTable<'i>, key: &str) -> Option<&'a DeTable<'i>> {
    parent.get(key)?.get_ref().as_table()
}

fn text<'a>(parent: &'a DeTable<'_>, key: &str) -> Option<&'a str> {
    parent.get(key)?.get_ref().as_str()
}

fn is_true(parent: &DeTable<'_>, key: &str) -> bool {
    parent.get(key).and_then(|value| DeValue::as_bool(value.get_ref())) == Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::findings;

    fn file(text: &str) -> File {
        File::new("crates/a/Cargo.toml", text)
    }

    #[test]
    fn broken_toml_is_found() {
        assert_eq!(findings(parse, &[("Cargo.toml", "[package]\nname = \"a\"\n")]), [""; 0]);
        let found = findings(parse, &[("Cargo.toml", "[package]\nname =\n")]);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("Cargo.toml:2: not TOML: "), "{found:?}");
    }

    #[test]
    fn every_way_to_write_a_dependency_is_read() {
        let file = file(
            "[dependencies]\n\
             a = \"1\"\n\
             b.workspace = true\n\
             c = { path = \"../c\" }\n\
             [dev-dependencies.d]\n\
             package = \"e\"\n\
             [target.'cfg(unix)'.build-dependencies]\n\
             f = { workspace = true, features = [\n\"x\"] }\n\
             [workspace.dependencies]\n\
             g = \"1\"\n",
        );
        let manifest = Manifest::parse(&file).unwrap();
        let entry = |section, package: &str, line, inherited, local| Dependency {
            section,
            package: package.into(),
            line,
            inherited,
            local,
        };
        let expected = [
            entry(Section::Normal, "a", 2, false, false),
            entry(Section::Normal, "b", 3, true, false),
            entry(Section::Normal, "c", 4, false, true),
            entry(Section::Dev, "e", 5, false, false),
            entry(Section::Build, "f", 8, true, false),
            entry(Section::Workspace, "g", 11, false, false),
        ];
        assert_eq!(manifest.dependencies(), expected);
    }

    #[test]
    fn name_folder_and_lints_are_read() {
        let file = file(
            "[package]\nname = \"a\"\n[lints]\nworkspace = true\n\
             [workspace.lints.rust]\nx = \"deny\"\ny = { level = \"warn\" }\n",
        );
        let manifest = Manifest::parse(&file).unwrap();
        assert_eq!((manifest.name(), manifest.folder()), (Some("a"), "crates/a"));
        assert!(manifest.inherits_lints());
        assert_eq!(manifest.workspace_lint("rust", "x"), Some("deny"));
        assert_eq!(manifest.workspace_lint("rust", "y"), Some("warn"));
        assert_eq!(manifest.workspace_lint("clippy", "x"), None);
    }
}
