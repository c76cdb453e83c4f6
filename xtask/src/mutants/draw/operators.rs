//! What can be changed in the functions of a file.
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

use std::ops::Range;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Expr, Pat, Stmt};

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

/// Methods that take and answer the same.
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

/// All changes of the functions in `text`.
///
/// # Errors
/// It is not Rust.
pub(super) fn changes(text: &str) -> anyhow::Result<Vec<Change>> {
    let file = syn::parse_file(text)?;
    let mut finder = Finder { text, in_function: false, is_unit: false, changes: Vec::new() };
    finder.visit_file(&file);
    Ok(finder.changes)
}

struct Finder<'t> {
    text: &'t str,
    in_function: bool,
    /// The innermost function or closure is a function without a result.
    is_unit: bool,
    changes: Vec<Change>,
}

impl<'t> Finder<'t> {
    fn add(&mut self, at: usize, operator: &'static str, range: Range<usize>, wrong: String) {
        if self.in_function {
            let line = places::line_of(self.text, at);
            self.changes.push(Change { line, operator, range, wrong });
        }
    }

    /// The text of a node.
    fn of(&self, node: &impl Spanned) -> &'t str {
        &self.text[node.span().byte_range()]
    }

    fn function(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let outside = (self.in_function, self.is_unit);
        self.in_function = signature.constness.is_none();
        self.is_unit = matches!(signature.output, syn::ReturnType::Default);
        if let syn::ReturnType::Type(_, output) = &signature.output
            && let Some(Stmt::Expr(end, None)) = block.stmts.last()
        {
            let output = self.of(output).to_owned();
            self.answer(end, &output);
        }
        self.visit_block(block);
        (self.in_function, self.is_unit) = outside;
    }

    /// Another answer of a function than the expression at its end.
    fn answer(&mut self, end: &Expr, output: &str) {
        let range = end.span().byte_range();
        let answers: &[&str] = match output {
            "bool" => &["true", "false"],
            _ if output.starts_with("Option<") => &["None"],
            "u32" | "u64" | "usize" => &["0"],
            _ => &[],
        };
        let is_plain = !matches!(end, Expr::If(_) | Expr::Match(_) | Expr::Block(_));
        let present = self.of(end);
        for answer in answers.iter().filter(|&&answer| is_plain && answer != present) {
            let wrong = (*answer).to_owned();
            self.add(range.start, "answer always the same", range.clone(), wrong);
        }
    }

    fn negate(&mut self, condition: &Expr) {
        if has_let(condition) {
            return;
        }
        let range = condition.span().byte_range();
        let wrong = match condition {
            Expr::Unary(not) if matches!(not.op, syn::UnOp::Not(_)) => {
                self.of(&not.expr).to_owned()
            }
            _ => format!("!({})", self.of(condition)),
        };
        self.add(range.start, "negate a condition", range, wrong);
    }

    fn statement(&mut self, statement: &Stmt, is_last: bool) {
        let Stmt::Expr(expression, semicolon) = statement else { return };
        let is_done = semicolon.is_some();
        let is_unit = match expression {
            Expr::If(branch) => branch.else_branch.is_none(),
            Expr::ForLoop(_) | Expr::While(_) => true,
            _ => is_done || matches!(expression, Expr::Assign(_)),
        };
        if !is_unit || matches!(expression, Expr::Macro(_)) {
            return;
        }
        let range = statement.span().byte_range();
        self.add(range.start, "delete a statement", range.clone(), String::new());
        if self.is_unit && !is_last {
            self.add(range.start, "return early", range, "return;".to_owned());
        }
    }

    fn binary(&mut self, expression: &syn::ExprBinary) {
        let at = expression.op.span().byte_range();
        let (left, right) = (&*expression.left, &*expression.right);
        let swapped = match expression.op {
            BinOp::Lt(_) => "<=",
            BinOp::Le(_) => "<",
            BinOp::Gt(_) => ">=",
            BinOp::Ge(_) => ">",
            BinOp::Eq(_) => "!=",
            BinOp::Ne(_) => "==",
            BinOp::Add(_) => "-",
            BinOp::Sub(_) => "+",
            BinOp::Mul(_) => "/",
            BinOp::Div(_) => "*",
            BinOp::Shl(_) => ">>",
            BinOp::Shr(_) => "<<",
            BinOp::BitOr(_) => "&",
            BinOp::BitAnd(_) => "|",
            BinOp::AddAssign(_) => "-=",
            BinOp::SubAssign(_) => "+=",
            BinOp::BitOrAssign(_) => "&=",
            BinOp::BitAndAssign(_) => "|=",
            _ => "",
        };
        let compares = matches!(swapped, "<=" | "<" | ">=" | ">" | "!=" | "==");
        if !swapped.is_empty() {
            let operator = if compares { "swap a comparison" } else { "swap an operation" };
            self.add(at.start, operator, at.clone(), swapped.to_owned());
        }
        let is_logic = matches!(expression.op, BinOp::And(_) | BinOp::Or(_));
        let is_bits =
            matches!(expression.op, BinOp::BitOr(_) | BinOp::BitAnd(_) | BinOp::BitXor(_));
        if !is_logic && !is_bits {
            return;
        }
        let whole = expression.span().byte_range();
        for (kept, dropped) in [(left, right), (right, left)] {
            if !has_let(dropped) {
                let wrong = self.of(kept).to_owned();
                let line = dropped.span().byte_range().start;
                self.add(line, "drop an operand", whole.clone(), wrong);
            }
        }
        if is_logic {
            let chain = |operand: &Expr| {
                matches!(operand, Expr::Binary(inner)
                if matches!(inner.op, BinOp::And(_) | BinOp::Or(_)))
            };
            for operand in [left, right] {
                if !chain(operand) {
                    self.negate(operand);
                }
            }
        }
    }

    fn method(&mut self, call: &syn::ExprMethodCall) {
        let name = call.method.to_string();
        let at = call.method.span().byte_range();
        for (one, other) in METHODS {
            let swapped = if name == *one { other } else { one };
            if name == *one || name == *other {
                let swapped = (*swapped).to_owned();
                self.add(at.start, "swap a method", at.clone(), swapped);
            }
        }
        if LINKS.contains(&name.as_str()) {
            let range = call.span().byte_range();
            let wrong = self.of(&call.receiver).to_owned();
            self.add(at.start, "drop a link", range, wrong);
        }
    }

    fn arms(&mut self, arms: &[syn::Arm]) {
        let takes_all = |arm: &syn::Arm| match &arm.pat {
            Pat::Wild(_) => true,
            // A constant or a variant looks the same.
            Pat::Ident(name) => name.ident.to_string().starts_with(char::is_lowercase),
            _ => false,
        };
        for (index, arm) in arms.iter().enumerate() {
            let range = arm.span().byte_range();
            if arms[index + 1..].iter().any(takes_all) {
                self.add(range.start, "skip an arm", range, String::new());
            } else if let Expr::Block(body) = &*arm.body
                && matches!(body.block.stmts.last(), Some(Stmt::Expr(_, Some(_))))
            {
                let body = body.span().byte_range();
                self.add(range.start, "skip an arm", body, "{}".to_owned());
            }
        }
    }

    fn literal(&mut self, literal: &syn::Lit) {
        let range = literal.span().byte_range();
        match literal {
            syn::Lit::Bool(value) => {
                let wrong = (!value.value).to_string();
                self.add(range.start, "flip a constant", range, wrong);
            }
            syn::Lit::Int(number) => {
                let Ok(value) = number.base10_parse::<u128>() else { return };
                let suffix = number.suffix();
                self.add(
                    range.start,
                    "off by one",
                    range.clone(),
                    format!("{}{suffix}", value + 1),
                );
                if let Some(less) = value.checked_sub(1) {
                    self.add(range.start, "off by one", range, format!("{less}{suffix}"));
                }
            }
            _ => {}
        }
    }
}

/// Whether the expression binds something, as in `a && let b = c`.
fn has_let(expression: &Expr) -> bool {
    match expression {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

impl<'a> Visit<'a> for Finder<'_> {
    fn visit_item_mod(&mut self, item: &'a syn::ItemMod) {
        if !places::is_for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'a syn::ItemImpl) {
        let of_trait = item.trait_.as_ref().and_then(|(path, _)| path.segments.last());
        if !places::is_for_tests(&item.attrs) && of_trait.is_none_or(|last| last.ident != "Debug") {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'a syn::ItemFn) {
        if !places::is_for_tests(&item.attrs) {
            self.function(&item.sig, &item.block);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
        if !places::is_for_tests(&item.attrs) {
            self.function(&item.sig, &item.block);
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'a syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.function(&item.sig, block);
        }
    }

    // What is assigned while the program is compiled cannot be switched on, and is not looked at: the
    // bounds of arrays and the like. Nor are attributes and types.
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

    fn visit_expr_if(&mut self, branch: &'a syn::ExprIf) {
        self.negate(&branch.cond);
        visit::visit_expr_if(self, branch);
    }

    fn visit_expr_while(&mut self, cycle: &'a syn::ExprWhile) {
        self.negate(&cycle.cond);
        visit::visit_expr_while(self, cycle);
    }

    fn visit_pat_guard(&mut self, guard: &'a syn::PatGuard) {
        self.negate(&guard.guard);
        visit::visit_pat_guard(self, guard);
    }

    fn visit_expr_binary(&mut self, expression: &'a syn::ExprBinary) {
        self.binary(expression);
        visit::visit_expr_binary(self, expression);
    }

    fn visit_expr_unary(&mut self, expression: &'a syn::ExprUnary) {
        if matches!(expression.op, syn::UnOp::Not(_)) {
            let range = expression.span().byte_range();
            let wrong = self.of(&expression.expr).to_owned();
            self.add(range.start, "drop an operand", range, wrong);
        }
        visit::visit_expr_unary(self, expression);
    }

    fn visit_expr_method_call(&mut self, call: &'a syn::ExprMethodCall) {
        self.method(call);
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_call(&mut self, call: &'a syn::ExprCall) {
        if self.of(&call.func) == "Some" {
            let range = call.span().byte_range();
            self.add(range.start, "flip a constant", range, "None".to_owned());
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_expr_match(&mut self, expression: &'a syn::ExprMatch) {
        self.arms(&expression.arms);
        visit::visit_expr_match(self, expression);
    }

    fn visit_expr_lit(&mut self, literal: &'a syn::ExprLit) {
        self.literal(&literal.lit);
    }

    fn visit_expr_range(&mut self, range: &'a syn::ExprRange) {
        let at = range.limits.span().byte_range();
        if range.end.is_some() {
            let is_open = matches!(range.limits, syn::RangeLimits::HalfOpen(_));
            let wrong = if is_open { "..=" } else { ".." };
            self.add(at.start, "swap an end", at, wrong.to_owned());
        }
        visit::visit_expr_range(self, range);
    }

    fn visit_expr_break(&mut self, expression: &'a syn::ExprBreak) {
        if expression.expr.is_none() && expression.label.is_none() {
            let range = expression.span().byte_range();
            self.add(range.start, "swap an end", range, "continue".to_owned());
        }
        visit::visit_expr_break(self, expression);
    }

    fn visit_expr_continue(&mut self, expression: &'a syn::ExprContinue) {
        if expression.label.is_none() {
            let range = expression.span().byte_range();
            self.add(range.start, "swap an end", range, "break".to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What can be done to the only line of a function: operator and the line then.
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
