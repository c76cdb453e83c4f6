//! Import cycles between the files of a crate.
//!
//! A file needs another if a path in its code, tests excepted, leads to an item that the other defines.
//! Imports and re-exports (`use`, by name, under another name or with `*`) are followed to the definition.
//! A module and all modules below it count as one file: `connection/mod.rs` with `connection/*.rs`, `buf.rs`
//! with `buf/*.rs`. So each module that the crate's root declares is a node of the graph, under its name; the
//! root, which declares and re-exports all others, is none. The files of a cycle, a strongly connected
//! component of the graph, all need each other: none can be understood, or tested, without the rest.
//!
//! Paths are those of [`super::tokens`], which include calls and definitions of macros. Items made by a
//! macro are unknown: a path into a module, to a name that is not declared there, counts as one of them.
//! Methods are ignored: their calls need no path.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::ops::RangeInclusive;
use std::path::Path;
use std::process::ExitCode;

use syn::spanned::Spanned;
use syn::visit::Visit;
use syn::{Item, ItemMacro, ItemMod, ItemUse, UseTree};

use super::{File, Finding, Tree};
use crate::lines;
use crate::test_code::TestCode;

/// The most files in a cycle.
const FILES_MAX: usize = 4;

/// Reports cycles of too many files.
pub(super) fn are_small(tree: &Tree, findings: &mut Vec<Finding>) {
    for (folder, _) in product_crates(tree) {
        for cycle in Graph::of(tree, &folder).cycles() {
            if cycle.len() > FILES_MAX {
                let files = cycle.iter().copied().collect::<Vec<_>>().join(", ");
                let message = format!(
                    "{} files need each other, at most {FILES_MAX} may: {files}; \
                     `cargo xtask tidy --cycles` says where",
                    cycle.len()
                );
                let path = format!("{folder}lib.rs");
                findings.push(Finding { path, line: 1, message });
            }
        }
    }
}

/// Prints all cycles, and where their files need each other.
///
/// # Errors
/// The repository cannot be read.
pub(crate) fn print(root: &Path) -> anyhow::Result<ExitCode> {
    let tree = Tree::read(root)?;
    for (folder, name) in product_crates(&tree) {
        print!("{}", Graph::of(&tree, &folder).describe(&name));
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the source folder, with a final `/`, and the name of each library.
fn product_crates(tree: &Tree) -> Vec<(String, String)> {
    let crates = tree.crates().filter_map(|manifest| {
        let name = manifest.name().filter(|name| lines::is_product(name))?;
        Some((format!("{}/src/", manifest.folder()), name.to_owned()))
    });
    crates.collect()
}

/// The dependencies between modules below the root, each with the place of its first use.
#[derive(Debug, Default)]
struct Graph(BTreeMap<String, BTreeMap<String, Place>>);

/// A path of a file, and a line.
type Place = (String, usize);

impl Graph {
    /// Returns the graph of the crate whose source is in `folder`.
    fn of(tree: &Tree, folder: &str) -> Self {
        let mut graph = Self::default();
        let files = tree.sources(&[folder]);
        let mut names = Names::default();
        let mut inline = Vec::new();
        for file in &files {
            inline.push(names.add(file, folder));
        }
        for (file, inline) in files.iter().zip(&inline) {
            let (Some(tokens), Some(own)) = (file.tokens(), module_of(&file.path, folder)) else {
                continue;
            };
            let Some(node) = own.first() else { continue };
            for path in tokens.product_paths() {
                let inner = inline.iter().rev().find(|(lines, _)| lines.contains(&path.line));
                let module = inner.map_or(&own, |(_, module)| module);
                if let Some(Target::Item(at)) = names.resolve(module, &path.segments)
                    && let Some(needed) = at.first().filter(|needed| *needed != node)
                {
                    let place = || (file.path.clone(), path.line);
                    let needs = graph.0.entry(node.clone()).or_default();
                    needs.entry(needed.clone()).or_insert_with(place);
                }
            }
        }
        graph
    }

    /// Returns the nodes reachable from a node.
    fn reached<'a>(&'a self, node: &'a str) -> BTreeSet<&'a str> {
        let mut reached = BTreeSet::new();
        let mut left = vec![node];
        while let Some(node) = left.pop() {
            let needed = self.0.get(node).into_iter().flat_map(BTreeMap::keys);
            left.extend(needed.map(String::as_str).filter(|needed| reached.insert(*needed)));
        }
        reached
    }

    /// Returns the strongly connected components of more than one file, the largest first.
    fn cycles(&self) -> Vec<BTreeSet<&str>> {
        let reached: BTreeMap<&str, _> =
            self.0.keys().map(|node| (node.as_str(), self.reached(node))).collect();
        let mut cycles = BTreeSet::new();
        for (node, others) in &reached {
            let reaches_back =
                |other: &&&str| reached.get(*other).is_some_and(|of| of.contains(node));
            let cycle: BTreeSet<&str> = others.iter().filter(reaches_back).copied().collect();
            if !cycle.is_empty() {
                cycles.insert(cycle);
            }
        }
        let mut cycles: Vec<_> = cycles.into_iter().collect();
        cycles.sort_by_key(|cycle| std::cmp::Reverse(cycle.len()));
        cycles
    }

    fn describe(&self, name: &str) -> String {
        let mut text = String::new();
        for cycle in self.cycles() {
            writeln!(text, "{name}: {} files need each other", cycle.len()).ok();
            for &node in &cycle {
                for (needed, (path, line)) in &self.0[node] {
                    if cycle.contains(needed.as_str()) {
                        writeln!(text, "  {node} needs {needed}: {path}:{line}").ok();
                    }
                }
            }
        }
        text
    }
}

/// A module's path from the crate's root, whose own is empty.
type Module = Vec<String>;

/// Returns the module of a file in the folder of the crate's source.
fn module_of(path: &str, folder: &str) -> Option<Module> {
    let inner = path.strip_prefix(folder)?.strip_suffix(".rs")?;
    let mut module: Module = inner.split('/').map(str::to_owned).collect();
    if inner == "lib" || module.last().is_some_and(|last| last == "mod") {
        module.pop();
    }
    Some(module)
}

/// The target of a path.
#[derive(Debug, PartialEq, Eq)]
enum Target {
    Module(Module),
    /// An item of this module.
    Item(Module),
}

/// A module, a name in it, and whether the name is the last of a path.
type Question = (Module, String, bool);

/// The declarations of a crate's modules.
#[derive(Debug, Default)]
struct Names(BTreeMap<Module, Scope>);

/// The declarations of a module besides other modules.
#[derive(Debug, Default)]
struct Scope {
    items: BTreeSet<String>,
    /// The names imported by `use`, with their paths.
    imports: Vec<(String, Vec<String>)>,
    /// The paths before `::*`.
    globs: Vec<Vec<String>>,
}

/// The lines of a module that is written within a file, and its path.
type Inline = (RangeInclusive<usize>, Module);

impl Names {
    /// Adds the declarations of a file. Returns the modules written in it, an inner one after the outer one.
    fn add(&mut self, file: &File, folder: &str) -> Vec<Inline> {
        let (Some(parsed), Some(module)) = (file.parsed(), module_of(&file.path, folder)) else {
            return Vec::new();
        };
        let mut declared =
            Declared { names: self, module, for_tests: TestCode::of(parsed), inline: Vec::new() };
        declared.items(&parsed.items);
        declared.inline
    }

    /// Returns the target of a path written in `module`, if it is of this crate.
    fn resolve(&self, module: &[String], path: &[String]) -> Option<Target> {
        self.follow(module, path, &mut Vec::new())
    }

    fn follow(
        &self,
        module: &[String],
        path: &[String],
        open: &mut Vec<Question>,
    ) -> Option<Target> {
        let (first, mut rest) = path.split_first()?;
        let mut at = match first.as_str() {
            "crate" => Vec::new(),
            "self" => module.to_vec(),
            "super" => module.split_last()?.1.to_vec(),
            name => match self.find(module, name, rest.is_empty(), open)? {
                Target::Module(module) => module,
                item @ Target::Item(_) => return Some(item),
            },
        };
        while let Some((name, after)) = rest.split_first() {
            at = match name.as_str() {
                "super" => at.split_last()?.1.to_vec(),
                "*" | "self" => break,
                name => match self.find(&at, name, after.is_empty(), open) {
                    Some(Target::Module(module)) => module,
                    Some(item) => return Some(item),
                    None => return Some(Target::Item(at)),
                },
            };
            rest = after;
        }
        Some(Target::Module(at))
    }

    /// Returns the meaning of the name in the module. A module and another item may have the same name: the
    /// last name of a path is preferably the item, the others are the module. `open` has the questions that
    /// wait for this answer, since imports can lead to each other.
    fn find(
        &self,
        module: &[String],
        name: &str,
        is_last: bool,
        open: &mut Vec<Question>,
    ) -> Option<Target> {
        let question = (module.to_vec(), name.to_owned(), is_last);
        if open.contains(&question) {
            return None;
        }
        open.push(question);
        let found = self.look_up(module, name, is_last, open);
        open.pop();
        found
    }

    fn look_up(
        &self,
        module: &[String],
        name: &str,
        is_last: bool,
        open: &mut Vec<Question>,
    ) -> Option<Target> {
        let scope = self.0.get(module)?;
        let child = [module, &[name.to_owned()]].concat();
        let child = self.0.contains_key(&child).then_some(Target::Module(child));
        if child.is_some() && !is_last {
            return child;
        }
        if scope.items.contains(name) {
            return Some(Target::Item(module.to_vec()));
        }
        let mut imported = scope.imports.iter().filter(|(import, _)| import == name);
        let import = imported.find_map(|(_, path)| self.follow(module, path, open));
        import.or(child).or_else(|| {
            scope.globs.iter().find_map(|glob| match self.follow(module, glob, open)? {
                Target::Module(inner) => self.find(&inner, name, is_last, open),
                Target::Item(_) => None,
            })
        })
    }
}

/// Collects the declarations of a file.
struct Declared<'a> {
    names: &'a mut Names,
    /// The module being visited.
    module: Module,
    for_tests: TestCode<'a>,
    inline: Vec<Inline>,
}

impl Declared<'_> {
    /// Visits the items of a module.
    fn items(&mut self, items: &[Item]) {
        self.names.0.entry(self.module.clone()).or_default();
        for item in items {
            if self.for_tests.has(item.span()) {
                continue;
            }
            let name = match item {
                Item::Const(item) => Some(&item.ident),
                Item::Enum(item) => Some(&item.ident),
                Item::Fn(item) => Some(&item.sig.ident),
                Item::Macro(item) => item.ident.as_ref(),
                Item::Static(item) => Some(&item.ident),
                Item::Struct(item) => Some(&item.ident),
                Item::Trait(item) => Some(&item.ident),
                Item::TraitAlias(item) => Some(&item.ident),
                Item::Type(item) => Some(&item.ident),
                Item::Union(item) => Some(&item.ident),
                _ => None,
            };
            if let Some(name) = name {
                self.scope().items.insert(name.to_string());
            }
            if let Item::Macro(ItemMacro { ident: Some(name), attrs, .. }) = item
                && attrs.iter().any(|attribute| attribute.path().is_ident("macro_export"))
            {
                let path = [&self.module[..], &[name.to_string()]].concat();
                self.names.0.entry(Vec::new()).or_default().imports.push((name.to_string(), path));
            }
            self.visit_item(item);
        }
    }

    fn scope(&mut self) -> &mut Scope {
        self.names.0.entry(self.module.clone()).or_default()
    }

    fn import(&mut self, tree: &UseTree, before: &[String]) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        let (name, path) = match tree {
            UseTree::Path(path) => return self.import(&path.tree, &with(&path.ident)),
            UseTree::Group(group) => {
                return group.items.iter().for_each(|tree| self.import(tree, before));
            }
            UseTree::Glob(_) => return self.scope().globs.push(before.to_vec()),
            UseTree::Name(name) => (&name.ident, with(&name.ident)),
            UseTree::Rename(renamed) => (&renamed.rename, with(&renamed.ident)),
        };
        // `use a::b::{self}` imports `b`.
        let of_module = before.last().filter(|_| name == "self");
        let name = of_module.cloned().unwrap_or_else(|| name.to_string());
        self.scope().imports.push((name, path));
    }
}

impl<'ast> Visit<'ast> for Declared<'_> {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if let Some((_, items)) = &item.content {
            let outside = self.module.clone();
            self.module.push(item.ident.to_string());
            let lines = item.span().start().line..=item.span().end().line;
            self.inline.push((lines, self.module.clone()));
            self.items(items);
            self.module = outside;
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.import(&item.tree, &[]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: (&str, &str) = ("crates/a/Cargo.toml", "[package]\nname = \"a\"\n");

    /// Returns the edges between modules of a crate `a` of these files.
    fn edges(files: &[(&str, &str)]) -> Vec<String> {
        let tree = tree(files);
        let graph = Graph::of(&tree, "crates/a/src/");
        let edge = |(node, needed): (&String, &BTreeMap<String, Place>)| {
            needed.keys().map(|needed| format!("{node} {needed}")).collect::<Vec<_>>()
        };
        graph.0.iter().flat_map(edge).collect()
    }

    fn tree(files: &[(&str, &str)]) -> Tree {
        let mut tree = Tree::default();
        tree.add(MANIFEST.0.to_owned(), MANIFEST.1.as_bytes().to_vec());
        // The test need not list the root's declarations.
        if files.iter().all(|(path, _)| *path != "lib.rs") {
            tree.add("crates/a/src/lib.rs".to_owned(), Vec::new());
        }
        for (path, text) in files {
            tree.add(format!("crates/a/src/{path}"), text.as_bytes().to_vec());
        }
        tree
    }

    const X: (&str, &str) = ("x.rs", "pub struct X;\npub fn f() {}\n");

    #[test]
    fn paths_in_imports_types_expressions_and_macros_are_edges() {
        for text in [
            "use crate::x::X;",
            "use super::x::{X as Y};",
            "use crate::{x::X};",
            "fn g(x: &crate::x::X) {}",
            "fn g() { crate::x::f() }",
            "use crate::x; fn g() { x::f() }",
            "use super::x as y; fn g() { y::f() }",
            "fn g() { use crate::x; println!(\"{:?}\", x::f()) }",
            "macro_rules! m { () => { $crate::x::X }; }",
            "use crate::x::*; fn g() { f() }",
            "mod inner { fn g() { super::super::x::f() } }",
            "fn g() { crate::x::made_by_a_macro() }",
        ] {
            assert_eq!(edges(&[X, ("y.rs", text)]), ["y x"], "{text}");
        }
    }

    #[test]
    fn mentions_that_need_no_item_are_no_edges() {
        for text in [
            "use crate::x;",
            "fn g(x: u32) -> u32 { x }",
            "// crate::x::f()",
            "#[cfg(test)] mod tests { use crate::x::X; }",
            "#[cfg(test)] use crate::x::X;",
            "use x::X;",
            "mod inner { pub fn f() {} } fn g() { inner::f() }",
        ] {
            assert_eq!(edges(&[X, ("y.rs", text)]), [""; 0], "{text}");
        }
        let test_file = [X, ("y.rs", "#[cfg(test)] mod deep;"), ("y/deep.rs", "use crate::x::X;")];
        assert_eq!(edges(&test_file), [""; 0]);
    }

    #[test]
    fn edges_lead_to_the_definition() {
        let root = ("lib.rs", "mod w; mod x; mod y;\npub use w::{V, f as g};\n");
        let between =
            ("w.rs", "pub mod deep; pub use crate::x::{X as V, f};\npub use crate::w::deep::*;\n");
        let deep = ("w/deep.rs", "pub use crate::x::*;\n");
        for text in
            ["use crate::V;", "use crate::w::V;", "fn h() { crate::g() }", "use crate::w::X;"]
        {
            assert_eq!(edges(&[root, between, deep, X, ("y.rs", text)]), ["w x", "y x"], "{text}");
        }
    }

    #[test]
    fn exported_macros_are_those_of_the_root() {
        let exported = ("x.rs", "#[macro_export]\nmacro_rules! m { () => {}; }\n");
        assert_eq!(edges(&[exported, ("y.rs", "crate::m!();")]), ["y x"]);
    }

    #[test]
    fn items_and_modules_of_the_same_name_are_told_apart() {
        let files = [
            ("lib.rs", "mod x; mod y; pub use x::f;\n"),
            ("x.rs", "mod f; pub use self::f::f;\n"),
            ("x/f.rs", "pub fn f() {}\npub fn h() {}\n"),
        ];
        for text in ["use crate::f;", "use crate::x::f; fn g() { f() }", "use crate::x::f::h;"] {
            assert_eq!(edges(&[&files[..], &[("y.rs", text)]].concat()), ["y x"], "{text}");
        }
    }

    #[test]
    fn a_module_and_those_below_it_are_one() {
        let files = [
            ("x/mod.rs", "mod deep; pub use deep::X;\n"),
            ("x/deep.rs", "pub struct X(crate::y::Y);\n"),
            ("y.rs", "mod deep; pub struct Y;\n"),
            ("y/deep.rs", "use super::Y; use super::super::x::X;\n"),
        ];
        assert_eq!(edges(&files), ["x y", "y x"]);
    }

    #[test]
    fn imports_that_lead_to_each_other_end() {
        let files = [
            ("x.rs", "pub use crate::y::*;\n"),
            ("y.rs", "pub use crate::x::*;\nuse crate::x::Z;\n"),
        ];
        assert_eq!(edges(&files), ["y x"]);
    }

    #[test]
    fn cycles_are_the_files_that_reach_each_other() {
        let files = [
            ("a.rs", "use crate::b::B; pub struct A;\n"),
            ("b.rs", "use crate::c::C; pub struct B;\n"),
            ("c.rs", "use crate::a::A; pub struct C;\n"),
            ("d.rs", "use crate::a::A; pub struct D;\n"),
            ("e.rs", "use crate::f::F; pub struct E;\n"),
            ("f.rs", "use crate::e::E; use crate::d::D; pub struct F;\n"),
        ];
        let tree = tree(&files);
        let graph = Graph::of(&tree, "crates/a/src/");
        assert_eq!(graph.cycles(), [["a", "b", "c"].into(), ["e", "f"].into()]);
        let expected = "a: 2 files need each other\n  \
            e needs f: crates/a/src/e.rs:1\n  f needs e: crates/a/src/f.rs:1\n";
        assert!(graph.describe("a").ends_with(expected), "{}", graph.describe("a"));
    }

    #[test]
    fn large_cycles_are_found() {
        let ring = |size: usize| {
            let file = |index: usize| {
                let text = format!("use crate::m{}::S; pub struct S;\n", (index + 1) % size);
                (format!("m{index}.rs"), text)
            };
            let files: Vec<_> = (0..size).map(file).collect();
            let files = files.iter().map(|(path, text)| (path.as_str(), text.as_str()));
            let mut findings = Vec::new();
            are_small(&tree(&files.collect::<Vec<_>>()), &mut findings);
            findings.iter().map(Finding::to_string).collect::<Vec<_>>()
        };
        assert_eq!(ring(4), [""; 0]);
        let expected = "crates/a/src/lib.rs:1: 5 files need each other, at most 4 may: \
                        m0, m1, m2, m3, m4; `cargo xtask tidy --cycles` says where";
        assert_eq!(ring(5), [expected]);
    }
}
