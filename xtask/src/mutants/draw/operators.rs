//! The possible changes of the functions in a file.
//!
//! | operator | change |
//! |---|---|
//! | delete a statement | an expression with its semicolon, an `if` without `else`, a loop |
//! | negate a condition | of `if`, `while`, a guard, or an operand of `&&` and `\|\|` |
//! | swap a comparison | `<` `<=`, `>` `>=`, `==` `!=` |
//! | swap an operation | `+` `-`, `*` `/`, `<<` `>>`, `\|` `&`, also with `=` |
//! | drop an operand | of `&&`, `\|\|`, `\|`, `&`, `^`; or a `!` |
//! | off by one | a number and one more, or one less |
//! | swap a method | `min` `max`, `first` `last`, `any` `all`, `push_back` `push_front` and the like |
//! | drop a link | `.filter(…)`, `.rev()`, `.min(…)` and others that keep the type |
//! | flip a constant | `true` `false`; `None` for `Some(…)` |
//! | skip an arm | an arm before one that takes all; the inside of an arm that is a block without a value |
//! | return early | in place of a statement of a function without a result |
//! | answer always the same | in place of a condition that a function ends with |
//! | swap an end | `..` `..=`; `break` `continue` |
//! | swallow an error | a default value for `Err(…)`, and for what `?` returns early |

use std::ops::Range;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Expr, Pat, Stmt, UnOp};

use crate::functions::{Function, Functions, Owner};
use crate::mutants::places;

/// A change of one place.
#[derive(Debug)]
pub(super) struct Change {
    /// The line that it shows on, from 1.
    pub(super) line: usize,
    pub(super) operator: &'static str,
    /// The bytes that it replaces.
    pub(super) range: Range<usize>,
    pub(super) wrong: String,
}

/// Methods of the same signature.
const METHODS: &[(&str, &str)] = &[
    ("min", "max"),
    ("first", "last"),
    ("any", "all"),
    ("push_back", "push_front"),
    ("pop_front", "pop_back"),
    ("is_some", "is_none"),
    ("is_ok", "is_err"),
    ("is_some_and", "is_none_or"),
    ("saturating_add", "saturating_sub"),
    ("wrapping_add", "wrapping_sub"),
    ("notify_one", "notify_all"),
    ("position", "rposition"),
    ("insert", "remove"),
];

/// Methods without which an expression has the same type.
const LINKS: &[&str] = &[
    "filter",
    "rev",
    "take",
    "skip",
    "chain",
    "min",
    "max",
    "clamp",
    "or",
    "or_else",
    "take_while",
    "skip_while",
    "step_by",
    "saturating_add",
    "saturating_sub",
    "wrapping_add",
    "wrapping_sub",
];

/// Operators that may replace each other.
const COMPARISONS: &[(&str, &str)] = &[("<", "<="), (">", ">="), ("==", "!=")];
const OPERATIONS: &[(&str, &str)] =
    &[("+", "-"), ("*", "/"), ("<<", ">>"), ("|", "&"), ("+=", "-="), ("|=", "&=")];

/// Returns the other one of a pair.
fn swapped(pairs: &[(&'static str, &'static str)], one: &str) -> Option<&'static str> {
    pairs.iter().find_map(|&(a, b)| match one {
        _ if one == a => Some(b),
        _ if one == b => Some(a),
        _ => None,
    })
}

/// Returns all changes of the functions in `text`.
///
/// # Errors
/// It is not Rust.
pub(super) fn changes(text: &str) -> anyhow::Result<Vec<Change>> {
    let file = syn::parse_file(text)?;
    let mut finder = Finder { text, is_unit: false, is_option: false, changes: Vec::new() };
    for Function { owner, signature, block, .. } in Functions::of(&file).all {
        let of_trait = match owner {
            Owner::Impl(item) => item.trait_.as_ref().and_then(|(path, _)| path.segments.last()),
            _ => None,
        };
        let is_debug = of_trait.is_some_and(|last| last.ident == "Debug");
        if let Some(block) = block.filter(|_| !is_debug && signature.constness.is_none()) {
            finder.function(signature, block);
        }
    }
    Ok(finder.changes)
}

struct Finder<'t> {
    text: &'t str,
    /// The innermost function or closure is a function without a result.
    is_unit: bool,
    /// The function has an `Option`, so `?` is no error there.
    is_option: bool,
    changes: Vec<Change>,
}

impl<'t> Finder<'t> {
    /// Adds a replacement of a node, shown on its first line.
    fn replace(&mut self, operator: &'static str, node: &impl Spanned, wrong: impl Into<String>) {
        self.replace_at(node, operator, node, wrong);
    }

    /// Adds a replacement of a node, shown on the first line of `at`.
    fn replace_at(
        &mut self,
        at: &impl Spanned,
        operator: &'static str,
        node: &impl Spanned,
        wrong: impl Into<String>,
    ) {
        let line = places::line_of(self.text, at.span().byte_range().start);
        let (range, wrong) = (node.span().byte_range(), wrong.into());
        self.changes.push(Change { line, operator, range, wrong });
    }

    /// Returns the text of a node.
    fn of(&self, node: &impl Spanned) -> &'t str {
        &self.text[node.span().byte_range()]
    }

    fn function(&mut self, signature: &syn::Signature, block: &syn::Block) {
        self.is_unit = matches!(signature.output, syn::ReturnType::Default);
        self.is_option = self.of(&signature.output).starts_with("-> Option<");
        if let syn::ReturnType::Type(_, output) = &signature.output
            && let Some(Stmt::Expr(end, None)) = block.stmts.last()
        {
            self.answer(end, self.of(output));
        }
        self.visit_block(block);
    }

    /// Adds another result of a function that ends with this expression.
    fn answer(&mut self, end: &Expr, output: &str) {
        let answers: &[&str] = match output {
            "bool" => &["true", "false"],
            _ if output.starts_with("Option<") => &["None"],
            "u32" | "u64" | "usize" => &["0"],
            _ => &[],
        };
        let is_plain = !matches!(end, Expr::If(_) | Expr::Match(_) | Expr::Block(_));
        let present = self.of(end);
        for &answer in answers.iter().filter(|&&answer| is_plain && answer != present) {
            self.replace("answer always the same", end, answer);
        }
    }

    fn negate(&mut self, condition: &Expr) {
        if has_let(condition) {
            return;
        }
        let wrong = match condition {
            Expr::Unary(not) if matches!(not.op, UnOp::Not(_)) => self.of(&not.expr).to_owned(),
            _ => format!("!({})", self.of(condition)),
        };
        self.replace("negate a condition", condition, wrong);
    }

    fn statement(&mut self, statement: &Stmt, is_last: bool) {
        let Stmt::Expr(expression, semicolon) = statement else { return };
        let is_unit = match expression {
            Expr::If(branch) => branch.else_branch.is_none(),
            Expr::ForLoop(_) | Expr::While(_) => true,
            _ => semicolon.is_some() || matches!(expression, Expr::Assign(_)),
        };
        if !is_unit || matches!(expression, Expr::Macro(_)) {
            return;
        }
        self.replace("delete a statement", statement, "");
        if self.is_unit && !is_last {
            self.replace("return early", statement, "return;");
        }
    }

    fn binary(&mut self, expression: &syn::ExprBinary) {
        let (left, right) = (&*expression.left, &*expression.right);
        let sign = self.of(&expression.op);
        if let Some(other) = swapped(COMPARISONS, sign) {
            self.replace("swap a comparison", &expression.op, other);
        }
        if let Some(other) = swapped(OPERATIONS, sign) {
            self.replace("swap an operation", &expression.op, other);
        }
        let is_logic = |op: &BinOp| matches!(op, BinOp::And(_) | BinOp::Or(_));
        if !is_logic(&expression.op) && !["|", "&", "^"].contains(&sign) {
            return;
        }
        for (kept, dropped) in [(left, right), (right, left)] {
            if !has_let(dropped) {
                self.replace_at(dropped, "drop an operand", expression, self.of(kept));
            }
        }
        let is_chain =
            |operand: &Expr| matches!(operand, Expr::Binary(inner) if is_logic(&inner.op));
        for operand in [left, right] {
            if is_logic(&expression.op) && !is_chain(operand) {
                self.negate(operand);
            }
        }
    }

    fn method(&mut self, call: &syn::ExprMethodCall) {
        let name = call.method.to_string();
        if let Some(other) = swapped(METHODS, &name) {
            self.replace("swap a method", &call.method, other);
        }
        if LINKS.contains(&name.as_str()) {
            self.replace_at(&call.method, "drop a link", call, self.of(&call.receiver));
        }
    }

    fn arms(&mut self, arms: &[syn::Arm]) {
        let takes_all = |arm: &syn::Arm| match &arm.pat {
            Pat::Wild(_) => true,
            // A constant or a variant has the same syntax.
            Pat::Ident(name) => name.ident.to_string().starts_with(char::is_lowercase),
            _ => false,
        };
        for (index, arm) in arms.iter().enumerate() {
            if arms[index + 1..].iter().any(takes_all) {
                self.replace("skip an arm", arm, "");
            } else if let Expr::Block(body) = &*arm.body
                && matches!(body.block.stmts.last(), Some(Stmt::Expr(_, Some(_))))
            {
                self.replace_at(arm, "skip an arm", body, "{}");
            }
        }
    }

    fn literal(&mut self, literal: &syn::Lit) {
        match literal {
            syn::Lit::Bool(value) => {
                self.replace("flip a constant", literal, (!value.value).to_string());
            }
            syn::Lit::Int(number) => {
                let Ok(value) = number.base10_parse::<u128>() else { return };
                for other in [value.checked_add(1), value.checked_sub(1)].into_iter().flatten() {
                    let wrong = format!("{other}{}", number.suffix());
                    self.replace("off by one", literal, wrong);
                }
            }
            _ => {}
        }
    }
}

/// Returns whether the expression binds a name, as in `a && let b = c`.
fn has_let(expression: &Expr) -> bool {
    match expression {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

impl<'a> Visit<'a> for Finder<'_> {
    // Functions inside of this one are visited separately.
    fn visit_item_fn(&mut self, _: &'a syn::ItemFn) {}
    fn visit_item_impl(&mut self, _: &'a syn::ItemImpl) {}
    fn visit_item_trait(&mut self, _: &'a syn::ItemTrait) {}
    fn visit_item_mod(&mut self, _: &'a syn::ItemMod) {}

    // Values computed at compile time cannot be switched, so they are skipped: the bounds of arrays, for
    // example, and attributes and types.
    fn visit_type(&mut self, _: &'a syn::Type) {}
    fn visit_attribute(&mut self, _: &'a syn::Attribute) {}

    fn visit_block(&mut self, block: &'a syn::Block) {
        for (index, statement) in block.stmts.iter().enumerate() {
            self.statement(statement, index + 1 == block.stmts.len());
        }
        visit::visit_block(self, block);
    }

    fn visit_expr_closure(&mut self, closure: &'a syn::ExprClosure) {
        let outside = std::mem::replace(&mut self.is_unit, false);
        visit::visit_expr_closure(self, closure);
        self.is_unit = outside;
    }

    fn visit_pat_guard(&mut self, guard: &'a syn::PatGuard) {
        self.negate(&guard.guard);
        visit::visit_pat_guard(self, guard);
    }

    fn visit_expr(&mut self, expression: &'a Expr) {
        match expression {
            Expr::If(branch) => self.negate(&branch.cond),
            Expr::While(cycle) => self.negate(&cycle.cond),
            Expr::Binary(binary) => self.binary(binary),
            Expr::Unary(not) if matches!(not.op, UnOp::Not(_)) => {
                self.replace("drop an operand", not, self.of(&not.expr));
            }
            Expr::MethodCall(call) => self.method(call),
            Expr::Call(call) if self.of(&call.func) == "Some" => {
                self.replace("flip a constant", call, "None");
            }
            Expr::Call(call) if self.of(&call.func) == "Err" => {
                self.replace("swallow an error", call, "Ok(Default::default())");
            }
            Expr::Try(or_error) if !self.is_option => {
                let answer = format!("{}.unwrap_or_default()", self.of(&or_error.expr));
                self.replace_at(&or_error.question_token, "swallow an error", or_error, answer);
            }
            Expr::Match(of) => self.arms(&of.arms),
            Expr::Break(end) if end.expr.is_none() && end.label.is_none() => {
                self.replace("swap an end", end, "continue");
            }
            Expr::Continue(end) if end.label.is_none() => self.replace("swap an end", end, "break"),
            _ => {}
        }
        visit::visit_expr(self, expression);
    }

    // In patterns, too.
    fn visit_expr_lit(&mut self, literal: &'a syn::ExprLit) {
        self.literal(&literal.lit);
    }

    fn visit_expr_range(&mut self, range: &'a syn::ExprRange) {
        if range.end.is_some() {
            let is_open = matches!(range.limits, syn::RangeLimits::HalfOpen(_));
            self.replace("swap an end", &range.limits, if is_open { "..=" } else { ".." });
        }
        visit::visit_expr_range(self, range);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the possible changes of the only line of a function: operator and new line.
    fn changed(line: &str, output: &str) -> Vec<(&'static str, String)> {
        let text = format!("fn f(){output} {{\n{line}\n}}\n");
        let apply = |change: Change| {
            assert_eq!(change.line, 2);
            let mut changed = text.clone();
            changed.replace_range(change.range, &change.wrong);
            (change.operator, changed.lines().nth(1).unwrap().to_owned())
        };
        changes(&text).unwrap().into_iter().map(apply).collect()
    }

    fn has(line: &str, output: &str, operator: &str, expected: &str) {
        let all = changed(line, output);
        let is_there = all.iter().any(|(name, after)| *name == operator && after == expected);
        assert!(is_there, "{operator}: {expected} is not among {all:?}");
    }

    #[test]
    fn each_operator_changes_what_it_says() {
        has("g();", "", "delete a statement", "");
        has("if a { g() } h()", "", "return early", "return; h()");
        has("if a { g() }", "", "negate a condition", "if !(a) { g() }");
        has("if !a && b { g() }", "", "negate a condition", "if a && b { g() }");
        has("while a < b {}", "", "swap a comparison", "while a <= b {}");
        has("g(a + b)", "", "swap an operation", "g(a - b)");
        has("a |= b;", "", "swap an operation", "a &= b;");
        has("g(a | b | c)", "", "drop an operand", "g(a | b)");
        has("g(a && b)", "", "drop an operand", "g(b)");
        has("g(!a)", "", "drop an operand", "g(a)");
        has("g(7_u32)", "", "off by one", "g(6u32)");
        has("g(a.min(b))", "", "swap a method", "g(a.max(b))");
        has("g(a.filter(b).c())", "", "drop a link", "g(a.c())");
        has("g(Some(a), true)", "", "flip a constant", "g(None, true)");
        has("g(Some(a), true)", "", "flip a constant", "g(Some(a), false)");
        has("match a { 1 => b, _ => c }", "", "skip an arm", "match a {  _ => c }");
        has("match a { B => { g(); } C => {} }", "", "skip an arm", "match a { B => {} C => {} }");
        has("a.b()", " -> bool", "answer always the same", "true");
        has("a.b()", " -> Option<u8>", "answer always the same", "None");
        has("for a in 0..b {}", "", "swap an end", "for a in 0..=b {}");
        has("loop { break }", "", "swap an end", "loop { continue }");
        has("g()?;", " -> R", "swallow an error", "g().unwrap_or_default();");
        has("return Err(a);", " -> R", "swallow an error", "return Ok(Default::default());");
    }

    #[test]
    fn what_is_missing_is_no_error() {
        let all = changed("g(a?)", " -> Option<u8>");
        assert!(all.iter().all(|(operator, _)| *operator != "swallow an error"), "{all:?}");
    }

    #[test]
    fn assertions_and_tests_are_left_alone() {
        assert!(changed("debug_assert!(a < 1);", "").is_empty());
        assert!(changed("let a: [u8; 4] = b;", "").is_empty());
        let tests = "#[cfg(test)] mod tests { fn f() { g(); } } #[test] fn h() { g(); }";
        assert!(changes(tests).unwrap().is_empty());
        assert!(changes("const A: u32 = 1 + 1; const fn f() { g(); }").unwrap().is_empty());
    }
}
