//! The interface of a backend is small.

use syn::{Item, TraitItem};

use super::{Finding, Tree};

/// The file with the traits.
const FILE: &str = "crates/sakia-driver/src/backend.rs";
/// The traits that an embedder implements together.
const TRAITS: [&str; 2] = ["Backend", "Calls"];
/// The most methods that they have together.
const METHODS_MAX: usize = 40;

/// [`TRAITS`] have no more than [`METHODS_MAX`] methods, those with a body included.
pub(super) fn are_few(tree: &Tree, findings: &mut Vec<Finding>) {
    for file in tree.sources(&[FILE]) {
        let Some(parsed) = file.parsed() else { continue };
        let methods = |name: &str| {
            parsed.items.iter().find_map(|item| match item {
                Item::Trait(item) if item.ident == name => {
                    let is_method = |item: &&TraitItem| matches!(item, TraitItem::Fn(_));
                    Some(item.items.iter().filter(is_method).count())
                }
                _ => None,
            })
        };
        for name in TRAITS.iter().filter(|name| methods(name).is_none()) {
            findings.push(Finding::new(file, 1, format!("there is no trait `{name}`")));
        }
        let count: usize = TRAITS.iter().filter_map(|name| methods(name)).sum();
        if count > METHODS_MAX {
            let message = format!("{TRAITS:?} have {count} methods, more than {METHODS_MAX}");
            findings.push(Finding::new(file, 1, message));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::findings;

    /// Traits with this many methods.
    fn of(backend: usize, calls: usize) -> String {
        let methods = |count| "    fn a(&self) {}\n".repeat(count);
        let [backend, calls] = [backend, calls].map(methods);
        format!("trait Backend {{\n    const A: u8;\n{backend}}}\ntrait Calls {{\n{calls}}}\n")
    }

    #[test]
    fn one_method_too_many_is_found() {
        assert_eq!(findings(are_few, &[(FILE, &of(28, 12))]), [""; 0]);
        let expected = format!("{FILE}:1: [\"Backend\", \"Calls\"] have 41 methods, more than 40");
        assert_eq!(findings(are_few, &[(FILE, &of(28, 13))]), [expected]);
    }

    #[test]
    fn a_trait_by_another_name_is_found() {
        let expected = format!("{FILE}:1: there is no trait `Calls`");
        assert_eq!(findings(are_few, &[(FILE, "trait Backend {}")]), [expected]);
    }
}
