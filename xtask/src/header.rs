//! The header of `libsakia`, made of the comments and signatures of its sources.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use cbindgen::{Builder, Config, DocumentationStyle, Language, Style};

/// The crate of the library.
pub(crate) const CRATE: &str = "crates/sakia-c";
/// The header, relative to the repository's root.
pub(crate) const HEADER: &str = "crates/sakia-c/include/sakia.h";
/// The text above all declarations, within the crate.
const CONTRACT: &str = "include/contract.txt";

/// Needs the structures above it.
const MACROS: &str = r#"
/* As `offset` of a request: the file's own position. */
#define SAKIA_CURRENT_POSITION UINT64_MAX

/* The options of a loop that say which header the program was compiled with. */
#define SAKIA_LOOP_OPTIONS \
    { sizeof(sakia_loop_options), sizeof(sakia_request), sizeof(sakia_result), 0, 0 }

/* The same for those of a queue. */
#define SAKIA_QUEUE_OPTIONS \
    { sizeof(sakia_queue_options), sizeof(sakia_request), sizeof(sakia_result), 0, 0, 0, 0 }

/* The same for those of a tree. */
#define SAKIA_TREE_OPTIONS \
    { sizeof(sakia_tree_options), 0, 0, 0, 0 }
"#;

/// Writes the header; with `check`, fails if it is not current.
///
/// # Errors
/// The sources cannot be read, or the header cannot be written.
pub(crate) fn run(root: &Path, check: bool) -> anyhow::Result<ExitCode> {
    let (path, text) = (root.join(HEADER), text(root)?);
    if check {
        let is_current = fs::read_to_string(&path).is_ok_and(|committed| committed == text);
        ensure!(is_current, "{HEADER} is not current: cargo xtask header");
    } else {
        fs::write(&path, text).context(HEADER)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn text(root: &Path) -> anyhow::Result<String> {
    let folder = root.join(CRATE);
    let contract = fs::read_to_string(folder.join(CONTRACT)).context(CONTRACT)?;
    let mut config = Config {
        language: Language::C,
        style: Style::Both,
        documentation_style: DocumentationStyle::C99,
        header: Some(format!("/*\n{}*/", prefixed(&contract))),
        include_guard: Some("SAKIA_H".into()),
        no_includes: true,
        sys_includes: ["stddef.h", "stdint.h"].map(String::from).into(),
        after_includes: Some(MACROS.into()),
        cpp_compat: true,
        usize_is_size_t: true,
        line_length: 100,
        ..Config::default()
    };
    // Those of `MACROS`.
    config.export.exclude = vec!["SAKIA_CURRENT_POSITION".into()];
    let mut builder = Builder::new().with_config(config);
    let mut sources =
        fs::read_dir(folder.join("src")).context("the sources")?.collect::<Result<Vec<_>, _>>()?;
    // The root would bring all of them once more.
    sources.retain(|entry| entry.file_name() != "lib.rs");
    // A fixed order, with the structures first.
    sources.sort_by_key(|entry| (entry.file_name() != "interface.rs", entry.file_name()));
    for source in sources {
        builder = builder.with_src(source.path());
    }
    let mut text = Vec::new();
    builder.generate().context("cbindgen")?.write(&mut text);
    String::from_utf8(text).context("the header is no text")
}

/// Returns the text as the inner lines of a comment in C.
fn prefixed(text: &str) -> String {
    text.lines().map(|line| format!(" * {line}").trim_end().to_owned() + "\n").collect::<String>()
        + " "
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
    }

    #[test]
    fn the_committed_header_is_current() {
        run(root(), true).unwrap();
    }

    /// A function that is exported without a declaration, or the other way round, is a mistake.
    #[test]
    fn the_header_declares_the_listed_symbols() {
        let text = text(root()).unwrap();
        let listed = fs::read_to_string(root().join(CRATE).join("symbols.txt")).unwrap();
        let listed: Vec<&str> = listed.lines().collect();
        let mut declared: Vec<&str> = text
            .lines()
            .filter(|line| !line.starts_with(['/', '#', ' ']))
            .filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next())
            .filter(|name| name.starts_with("sakia_"))
            .collect();
        declared.sort();
        assert_eq!(declared, listed);
    }
}
