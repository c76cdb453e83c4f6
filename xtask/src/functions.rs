//! The functions of a Rust file, except those for tests.

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Block, ItemImpl, ItemTrait, Macro, Signature, Visibility};

use crate::test_code::TestCode;

/// A function with its context.
#[derive(Clone, Copy)]
pub(crate) struct Function<'a> {
    pub(crate) owner: Owner<'a>,
    /// The trait's visibility for a method that a trait declares.
    pub(crate) visibility: &'a Visibility,
    pub(crate) signature: &'a Signature,
    pub(crate) block: Option<&'a Block>,
}

/// The owner of the methods.
#[derive(Clone, Copy)]
pub(crate) enum Owner<'a> {
    Nothing,
    Impl(&'a ItemImpl),
    Trait(&'a ItemTrait),
}

/// The functions and macros of a file.
pub(crate) struct Functions<'a> {
    owner: Owner<'a>,
    /// An inner function comes after the one that it is in.
    pub(crate) all: Vec<Function<'a>>,
    /// Calls of macros, and their definitions, which may hold functions too.
    pub(crate) macros: Vec<&'a Macro>,
}

impl<'a> Functions<'a> {
    pub(crate) fn of(file: &'a syn::File) -> Self {
        let mut functions = Self { owner: Owner::Nothing, all: Vec::new(), macros: Vec::new() };
        functions.visit_file(file);
        let for_tests = TestCode::of(file);
        functions.all.retain(|function| !for_tests.has(function.signature.span()));
        functions.macros.retain(|item| !for_tests.has(item.span()));
        functions
    }

    fn add(
        &mut self,
        visibility: &'a Visibility,
        signature: &'a Signature,
        block: Option<&'a Block>,
    ) {
        self.all.push(Function { owner: self.owner, visibility, signature, block });
    }

    fn within(&mut self, owner: Owner<'a>, visit: impl FnOnce(&mut Self)) {
        let outside = std::mem::replace(&mut self.owner, owner);
        visit(self);
        self.owner = outside;
    }
}

impl<'a> Visit<'a> for Functions<'a> {
    fn visit_item_impl(&mut self, item: &'a ItemImpl) {
        self.within(Owner::Impl(item), |functions| visit::visit_item_impl(functions, item));
    }

    fn visit_item_trait(&mut self, item: &'a ItemTrait) {
        self.within(Owner::Trait(item), |functions| visit::visit_item_trait(functions, item));
    }

    fn visit_item_fn(&mut self, item: &'a syn::ItemFn) {
        self.add(&item.vis, &item.sig, Some(&item.block));
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
        self.add(&item.vis, &item.sig, Some(&item.block));
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'a syn::TraitItemFn) {
        if let Owner::Trait(of) = self.owner {
            self.add(&of.vis, &item.sig, item.default.as_ref());
            visit::visit_trait_item_fn(self, item);
        }
    }

    fn visit_macro(&mut self, item: &'a Macro) {
        self.macros.push(item);
    }
}
