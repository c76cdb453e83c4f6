//! Attributes that take code out of all but test builds.

use syn::punctuated::Punctuated;
use syn::{Meta, Token};

/// Whether it is `cfg(…)` with a condition that holds in test builds only.
pub(crate) fn is_cfg_test(meta: &Meta) -> bool {
    match meta {
        Meta::List(list) if list.path.is_ident("cfg") => {
            list.parse_args().is_ok_and(|condition| implies_test(&condition))
        }
        _ => false,
    }
}

/// [`is_cfg_test`] for what stands between an attribute's brackets.
pub(crate) fn is_cfg_test_text(attribute: &str) -> bool {
    syn::parse_str(attribute).is_ok_and(|meta| is_cfg_test(&meta))
}

/// Whether the condition is false without `test`. A negation is taken for one that may hold.
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
