//! Code that exists in test builds only, because of its attributes.

use proc_macro2::Span;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Meta, Token};

/// The test code of a file.
#[derive(Default)]
pub(crate) struct TestCode<'a> {
    /// The nodes being visited, the innermost last.
    enclosing: Vec<&'a dyn Spanned>,
    /// The places of items, fields, statements and so on, their attributes included.
    pub(crate) spans: Vec<Span>,
    /// The modules in files of their own.
    pub(crate) modules: Vec<String>,
}

impl<'a> TestCode<'a> {
    pub(crate) fn of(file: &'a syn::File) -> Self {
        let mut code = Self::default();
        code.visit_file(file);
        code
    }

    /// Returns whether the code that begins there is for tests.
    pub(crate) fn has(&self, span: Span) -> bool {
        let start = span.byte_range().start;
        self.spans.iter().any(|part| part.byte_range().contains(&start))
    }
}

/// Visits nodes that may have attributes.
macro_rules! with_attributes {
    ($($visit:ident: $node:ident;)*) => {
        $(fn $visit(&mut self, node: &'a syn::$node) {
            self.enclosing.push(node);
            visit::$visit(self, node);
            self.enclosing.pop();
        })*
    };
}

impl<'a> Visit<'a> for TestCode<'a> {
    with_attributes! {
        visit_arm: Arm;
        visit_expr: Expr;
        visit_field: Field;
        visit_field_pat: FieldPat;
        visit_field_value: FieldValue;
        visit_file: File;
        visit_fn_arg: FnArg;
        visit_foreign_item: ForeignItem;
        visit_generic_param: GenericParam;
        visit_impl_item: ImplItem;
        visit_item: Item;
        visit_stmt: Stmt;
        visit_trait_item: TraitItem;
        visit_variant: Variant;
    }

    fn visit_item_mod(&mut self, item: &'a syn::ItemMod) {
        if item.content.is_none() && item.attrs.iter().any(is_for_tests) {
            self.modules.push(item.ident.to_string());
        }
        visit::visit_item_mod(self, item);
    }

    fn visit_attribute(&mut self, attribute: &'a Attribute) {
        if let Some(item) = self.enclosing.last().filter(|_| is_for_tests(attribute)) {
            self.spans.push(item.span());
        }
    }
}

/// Returns whether it is `#[cfg(test)]` or `#[test]`.
fn is_for_tests(attribute: &Attribute) -> bool {
    attribute.path().is_ident("test") || is_cfg_test(&attribute.meta)
}

/// Returns whether it is `cfg(…)` with a condition that holds in test builds only.
fn is_cfg_test(meta: &Meta) -> bool {
    match meta {
        Meta::List(list) if list.path.is_ident("cfg") => {
            list.parse_args().is_ok_and(|condition| implies_test(&condition))
        }
        _ => false,
    }
}

/// Returns whether the condition is false without `test`. A negation counts as one that may hold.
fn implies_test(condition: &Meta) -> bool {
    match condition {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) => {
            let parts = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated);
            let Ok(parts) = parts else { return false };
            if list.path.is_ident("all") {
                parts.iter().any(implies_test)
            } else {
                list.path.is_ident("any") && !parts.is_empty() && parts.iter().all(implies_test)
            }
        }
        Meta::NameValue(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_that_need_test_are_found() {
        let is_test = |text| is_cfg_test(&syn::parse_str(text).unwrap());
        for text in [
            "cfg(test)",
            "cfg(all(test, unix))",
            "cfg(all(unix, any(test, all(feature = \"a\", test)),))",
            "cfg(any(test))",
        ] {
            assert!(is_test(text), "{text}");
        }
        for text in [
            "cfg(not(test))",
            "cfg(any(test, unix))",
            "cfg(any())",
            "cfg(all(unix, any(loom, test, miri)))",
            "cfg(feature = \"test\")",
            "cfg(true)",
            "cfg_attr(test, allow(x))",
            "doc = \"test\"",
            "test",
        ] {
            assert!(!is_test(text), "{text}");
        }
    }
}
