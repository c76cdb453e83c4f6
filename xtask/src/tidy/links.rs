//! Links between our documents have targets.

use std::ops::Range;

use pulldown_cmark::{Event, LinkType, Parser, Tag};

use super::{File, Finding, Tree};

/// Every relative link in a Markdown file points at a file or a folder of this repository.
pub(super) fn have_targets(tree: &Tree, findings: &mut Vec<Finding>) {
    for file in tree.files_of(&["md"]) {
        for (target, range) in links(&file.text) {
            if !is_address(&target) && !exists(tree, file, &target) {
                let message = format!("link to {target}, which is not in this repository");
                findings.push(Finding::new(file, file.line_at(range.start), message));
            }
        }
    }
}

/// Returns the targets of links and images, as they are written, and their places.
fn links(text: &str) -> Vec<(String, Range<usize>)> {
    let target = |(event, range): (Event<'_>, _)| match event {
        Event::Start(Tag::Link { link_type: LinkType::Autolink | LinkType::Email, .. }) => None,
        Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
            Some((dest_url.to_string(), range))
        }
        _ => None,
    };
    Parser::new(text).into_offset_iter().filter_map(target).collect()
}

/// Returns whether the target begins with a scheme, as in `https:` and `mailto:`.
fn is_address(target: &str) -> bool {
    let scheme = target.split_once(':').map(|(scheme, _)| scheme);
    scheme.is_some_and(|scheme| !scheme.is_empty() && scheme.chars().all(char::is_alphanumeric))
}

/// Returns whether the target, relative to `file`, is a path of the tree. The part after `#` is ignored.
fn exists(tree: &Tree, file: &File, target: &str) -> bool {
    let target = target.split(['#', '?']).next().unwrap_or_default();
    if target.is_empty() {
        return true;
    }
    // From the repository's root, or from the file's folder.
    let from_root = target.strip_prefix('/');
    let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut parts: Vec<&str> = match from_root {
        Some(_) => Vec::new(),
        None => folder.split('/').collect(),
    };
    for part in from_root.unwrap_or(target).split('/') {
        match part {
            ".." if parts.pop().is_none_or(str::is_empty) => return false,
            "" | "." | ".." => {}
            part => parts.push(part),
        }
    }
    parts.retain(|part| !part.is_empty());
    let path = parts.join("/");
    let inside = format!("{path}/");
    path.is_empty()
        || tree.paths.contains(&path)
        || tree.paths.range(inside.clone()..).next().is_some_and(|next| next.starts_with(&inside))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::findings;

    /// Returns the findings in a document at `path` in a small repository.
    fn of(path: &str, text: &str) -> Vec<String> {
        let files = [
            (path, text),
            ("LICENSE", ""),
            ("docs/guide.md", "# Guide\n"),
            ("docs/img/a.svg", ""),
            ("crates/a/src/lib.rs", ""),
        ];
        findings(have_targets, &files)
    }

    #[test]
    fn good_links_pass() {
        let text = "[a](docs/guide.md) [b](docs/guide.md#part) [c](#part) [d](docs) [e](docs/)\n\
                    ![f](docs/img/a.svg) [g][ref] [h](/LICENSE) [i](./LICENSE) [j](.)\n\
                    <https://a.org/x> [k](https://a.org/x) [l](mailto:a@b.org) <a@b.org>\n\n\
                    `[m](nowhere)`\n\n```\n[n](nowhere)\n```\n\n[ref]: crates/a\n";
        assert_eq!(of("README.md", text), [""; 0]);
        let text =
            "[a](guide.md) [b](../LICENSE) [c](../docs/img/a.svg) [d](../crates/a/src) [e](..)\n";
        assert_eq!(of("docs/more.md", text), [""; 0]);
    }

    #[test]
    fn links_to_nowhere_are_found() {
        let expected = ["README.md:2: link to docs/missing.md, which is not in this repository"];
        assert_eq!(of("README.md", "x\n[a](docs/missing.md)\n"), expected);
        for bad in ["guide.md", "docs/guide", "/guide.md", "../LICENSE", "doc", "docs/guide.md/x"] {
            assert_eq!(of("README.md", &format!("[a]({bad})\n")).len(), 1, "{bad}");
        }
        assert_eq!(of("docs/more.md", "[a][r]\n\n[r]: docs/guide.md\n").len(), 1);
        assert_eq!(of("docs/more.md", "![a](../../LICENSE)\n").len(), 1);
    }
}
