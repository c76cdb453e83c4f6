//! No unfinished code without a reason.

use super::{Finding, Tree};

/// Notes to oneself. In two parts, so that this file does not hold them.
const MARKS: [&str; 2] = [concat!("FIX", "ME"), concat!("X", "XX")];

/// No code is a placeholder.
pub(super) fn code(tree: &Tree, findings: &mut Vec<Finding>) {
    for file in tree.files_of(&["rs"]) {
        let Some(tokens) = file.tokens() else { continue };
        for path in tokens.paths.iter().filter(|path| path.is_macro) {
            if let Some(name @ ("todo" | "unimplemented")) =
                path.segments.last().map(String::as_str)
            {
                findings.push(Finding::new(file, path.line, format!("{name}!: unfinished code")));
            }
        }
    }
}

/// No file holds a note to oneself.
pub(super) fn marks(tree: &Tree, findings: &mut Vec<Finding>) {
    for file in &tree.files {
        for (number, line) in file.lines() {
            let is_part = |c: char| c.is_alphanumeric() || c == '_';
            for word in line.split(|c| !is_part(c)).filter(|word| MARKS.contains(word)) {
                findings.push(Finding::new(file, number, format!("{word}: do it, or drop it")));
            }
        }
    }
}

/// An ignored test has a reason.
pub(super) fn ignored_tests(tree: &Tree, findings: &mut Vec<Finding>) {
    for file in tree.files_of(&["rs"]) {
        let Some(tokens) = file.tokens() else { continue };
        for attribute in &tokens.attributes {
            let text = attribute.text.as_str();
            let conditional = text.starts_with("cfg_attr(") && text.ends_with(",ignore)");
            if text == "ignore" || conditional {
                let message = "an ignored test gives no reason; write #[ignore = \"why\"]";
                findings.push(Finding::new(file, attribute.line, message));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::findings;

    #[test]
    fn unfinished_code_is_found() {
        let good = "// todo!()\nfn f(todo: &str) { todo.len(); g(\"todo!()\") }\n";
        assert_eq!(findings(code, &[("a.rs", good)]), [""; 0]);
        let bad = "fn f() { todo!() }\nfn g() { std::unimplemented!(\"later\") }\n";
        let expected =
            ["a.rs:1: todo!: unfinished code", "a.rs:2: unimplemented!: unfinished code"];
        assert_eq!(findings(code, &[("a.rs", bad)]), expected);
    }

    #[test]
    fn marks_are_found() {
        let [first, second] = MARKS;
        let good = format!("mkstemp({second}{second})\n{first}_COUNT\nfixme\n");
        assert_eq!(findings(marks, &[("a.rs", &good)]), [""; 0]);
        let bad = format!("// {first}: later\n\n{second}\n");
        let expected = [
            format!("a.sh:1: {first}: do it, or drop it"),
            format!("a.sh:3: {second}: do it, or drop it"),
        ];
        assert_eq!(findings(marks, &[("a.sh", &bad)]), expected);
    }

    #[test]
    fn ignored_tests_without_reason_are_found() {
        let good = "#[test]\n#[ignore = \"takes an hour\"]\nfn f() {}\n// #[ignore]\n\
                    #[cfg_attr(miri, ignore = \"system calls\")]\nfn g() {}\n";
        assert_eq!(findings(ignored_tests, &[("a.rs", good)]), [""; 0]);
        let bad =
            "mod m {\n#[test]\n#[ignore]\nfn f() {}\n#[cfg_attr(miri, ignore)]\nfn g() {}\n}\n";
        let found = findings(ignored_tests, &[("a.rs", bad)]);
        assert_eq!(found.len(), 2);
        assert!(found[0].starts_with("a.rs:3: ") && found[1].starts_with("a.rs:5: "), "{found:?}");
    }
}
