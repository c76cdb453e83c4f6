//! Expansion of the attributes.

use proc_macro2::{TokenStream, TokenTree};
use quote::{ToTokens, quote, quote_spanned};
use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Error, Expr, ItemFn, Lit, MetaNameValue, Result, ReturnType, Token};

/// The kind of attribute.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Main,
    Test,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Main => "#[sakia::main]",
            Self::Test => "#[sakia::test]",
        }
    }
}

/// Returns the function to compile instead, or the error to show. With the error comes a function of that
/// name, so that its uses compile.
pub(crate) fn expand(kind: Kind, options: TokenStream, function: TokenStream) -> TokenStream {
    try_expand(kind, options, function.clone()).unwrap_or_else(|error| {
        let error = error.into_compile_error();
        let Ok(ItemFn { vis, mut sig, .. }) = syn::parse2(function.clone()) else {
            return quote! { #error #function };
        };
        sig.asyncness = None;
        quote! { #error #vis #sig { ::core::unreachable!() } }
    })
}

fn try_expand(kind: Kind, options: TokenStream, function: TokenStream) -> Result<TokenStream> {
    let function: ItemFn = syn::parse2(function)?;
    check(kind, &function)?;
    let threads = threads(kind, options)?;
    let ItemFn { attrs, vis, mut sig, block, .. } = function;
    let test = (kind == Kind::Test).then(|| quote! { #[::core::prelude::v1::test] });
    // A closure takes the arguments, `self` and generic parameters with it. It has a result type, unlike a
    // block, so that errors in it read as in any other function. A closure cannot have the type `impl Trait`.
    let output = (!has_impl_trait(&sig.output)).then_some(&sig.output);
    let body = quote! { async move || #output #block };
    sig.asyncness = None;
    let threads = threads.map(|threads| quote_spanned! { threads.span() => .threads(#threads) });
    Ok(quote! {
        #(#attrs)*
        #test
        #vis #sig {
            let builder = ::sakia::Runtime::builder()#threads;
            let runtime = match builder.build() {
                ::core::result::Result::Ok(runtime) => runtime,
                ::core::result::Result::Err(error) => ::core::panic!("no runtime: {error}"),
            };
            #[allow(clippy::redundant_closure_call)]
            runtime.block_on((#body)())
        }
    })
}

/// Returns whether the result's type has an `impl Trait` in it.
fn has_impl_trait(output: &ReturnType) -> bool {
    fn is_in(tokens: TokenStream) -> bool {
        tokens.into_iter().any(|token| match token {
            TokenTree::Ident(word) => word == "impl",
            TokenTree::Group(group) => is_in(group.stream()),
            _ => false,
        })
    }
    is_in(output.to_token_stream())
}

/// Checks that the function can be run as what the attribute makes it: a program's `main` and a test have no
/// arguments.
fn check(kind: Kind, function: &ItemFn) -> Result<()> {
    let name = kind.name();
    let signature = &function.sig;
    if signature.asyncness.is_none() {
        return Err(Error::new(signature.fn_token.span, format!("{name} needs an `async fn`")));
    }
    let called_by_none = match kind {
        Kind::Main if signature.ident == "main" => Some("`main`"),
        Kind::Main => None,
        Kind::Test => Some("a test"),
    };
    if let Some(it) = called_by_none {
        if let Some(argument) = signature.inputs.first() {
            return Err(Error::new(argument.span(), format!("{it} takes no arguments")));
        }
        if let Some(parameter) = signature.generics.params.first() {
            return Err(Error::new(parameter.span(), format!("{it} takes no generic parameters")));
        }
    }
    let is_test = |attribute: &&syn::Attribute| attribute.path().is_ident("test");
    if let Some(attribute) = function.attrs.iter().find(is_test) {
        return Err(Error::new(attribute.span(), format!("{name} takes the place of `#[test]`")));
    }
    Ok(())
}

/// Returns the option `threads`, if it is given.
fn threads(kind: Kind, options: TokenStream) -> Result<Option<Expr>> {
    let name = kind.name();
    let parser = Punctuated::<MetaNameValue, Token![,]>::parse_terminated;
    let form = |error: Error| {
        Error::new(error.span(), format!("{name} takes `threads = N` or nothing: {error}"))
    };
    let mut threads = None;
    for option in parser.parse2(options).map_err(form)? {
        let span = option.path.span();
        if !option.path.is_ident("threads") {
            return Err(Error::new(span, format!("{name} has the option `threads = N` only")));
        }
        if threads.is_some() {
            return Err(Error::new(span, "`threads` is there twice"));
        }
        if let Expr::Lit(literal) = &option.value {
            let is_count = matches!(&literal.lit, Lit::Int(count)
                if count.base10_parse::<usize>().is_ok_and(|count| count > 0));
            if !is_count {
                return Err(Error::new(literal.span(), "a runtime has one thread or more"));
            }
        }
        threads = Some(option.value);
    }
    Ok(threads)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(kind: Kind, options: TokenStream, function: TokenStream) -> String {
        expand(kind, options, function).to_string()
    }

    #[track_caller]
    fn fails(kind: Kind, options: TokenStream, function: TokenStream, message: &str) {
        let text = expanded(kind, options, function);
        assert!(text.contains("compile_error"), "{text}");
        assert!(text.contains(message), "{text}");
    }

    #[test]
    fn functions_are_no_longer_async() {
        let body = quote! { async fn main() -> R { work().await } };
        let text = expanded(Kind::Main, quote! {}, body);
        let file: syn::File = syn::parse_str(&text).unwrap();
        let [syn::Item::Fn(function)] = &file.items[..] else { panic!("{text}") };
        assert!(function.sig.asyncness.is_none() && function.attrs.is_empty());
        assert!(!text.contains("threads"));
    }

    #[test]
    fn attributes_and_options_are_kept() {
        let function = quote! { #[cold] pub async fn works() {} };
        let text = expanded(Kind::Test, quote! { threads = COUNT + 1, }, function);
        let file: syn::File = syn::parse_str(&text).unwrap();
        let [syn::Item::Fn(function)] = &file.items[..] else { panic!("{text}") };
        assert_eq!(function.attrs.len(), 2, "`cold` and `test`");
        assert!(text.contains("threads (COUNT + 1)"), "{text}");
    }

    #[test]
    fn mistakes_are_named() {
        use Kind::{Main, Test};
        let good = quote! { async fn f() {} };
        fails(Main, quote! {}, quote! { fn main() {} }, "#[sakia::main] needs an `async fn`");
        fails(Main, quote! {}, quote! { async fn main(_: u8) {} }, "`main` takes no arguments");
        fails(Test, quote! {}, quote! { async fn f(_: u8) {} }, "a test takes no arguments");
        fails(Test, quote! {}, quote! { async fn f<T>() {} }, "a test takes no generic parameters");
        fails(Test, quote! {}, quote! { #[test] async fn f() {} }, "the place of `#[test]`");
        fails(Main, quote! { flavor = "x" }, good.clone(), "the option `threads = N` only");
        fails(Main, quote! { 4 }, good.clone(), "takes `threads = N` or nothing");
        fails(Main, quote! { threads = 0 }, good.clone(), "one thread or more");
        fails(Main, quote! { threads = "2" }, good.clone(), "one thread or more");
        fails(Main, quote! { threads = 1, threads = 2 }, good, "`threads` is there twice");
        fails(Main, quote! {}, quote! { struct NoFunction; }, "expected");
    }
}
