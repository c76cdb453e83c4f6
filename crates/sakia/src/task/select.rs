//! A few futures at once, within the calling task.
//!
//! The macros make a tuple of their futures; the traits here, for tuples of up to eight, do the work.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use crate::random;

/// Waits for all of up to eight futures, side by side, and returns their values as a tuple.
///
/// Each future is dropped as soon as it has ended.
///
/// # Examples
/// ```
/// sakia::block_on(async {
///     let (number, text) = sakia::join!(async { 1 }, async { "one" });
///     assert_eq!((number, text), (1, "one"));
/// });
/// ```
#[macro_export]
macro_rules! join {
    ($($future:expr),+ $(,)?) => {
        $crate::__private::Join::join(($($future,)+)).await
    };
}

/// Waits for all of up to eight futures of `Result`s, or for the first error; then the others are dropped.
///
/// # Examples
/// ```
/// sakia::block_on(async {
///     let both = sakia::try_join!(async { Ok::<_, String>(1) }, async { Ok(2) });
///     assert_eq!(both, Ok((1, 2)));
///     let failed = sakia::try_join!(std::future::pending::<Result<(), _>>(), async { Err::<(), _>(3) });
///     assert_eq!(failed, Err(3));
/// });
/// ```
#[macro_export]
macro_rules! try_join {
    ($($future:expr),+ $(,)?) => {
        $crate::__private::TryJoin::try_join(($($future,)+)).await
    };
}

/// Waits for the first of up to eight futures, and runs its branch: `pattern = future => body`. A comma ends
/// a branch; after a block it may be left out.
///
/// The other futures are dropped before the body runs: the section *Cancel safety* of a method says what is
/// lost with its future. Pass `&mut` of a pinned future to keep it. Patterns must match any value. If several
/// futures are ready, one is chosen at random, so that none starves in a loop. In the body `await`, `?`,
/// `break` and `return` mean what they mean around the macro.
///
/// # Examples
/// ```
/// use std::future::pending;
///
/// sakia::block_on(async {
///     let token = sakia::CancellationToken::new();
///     let outcome = sakia::select! {
///         number = async { 1 } => format!("number {number}"),
///         () = token.canceled() => {
///             "canceled".into()
///         }
///         _ = pending::<()>() => unreachable!(),
///     };
///     assert_eq!(outcome, "number 1");
/// });
/// ```
#[macro_export]
macro_rules! select {
    ($($branches:tt)+) => {
        $crate::__select_branches!([] $($branches)+)
    };
}

/// The branches of [`select!`], taken one by one: those found, and the others.
#[doc(hidden)]
#[macro_export]
macro_rules! __select_branches {
    ([$($pattern:pat, $future:expr, $body:expr;)+]) => {{
        // A separate statement: nothing borrowed by the futures lasts into the bodies.
        let selected = $crate::__private::Select::select(($($future,)+)).await;
        $crate::__select_arms!(selected, [], [A B C D E F G H], $($pattern => $body,)+)
    }};
    ([$($found:tt)*] $pattern:pat = $future:expr => $body:block, $($rest:tt)*) => {
        $crate::__select_branches!([$($found)* $pattern, $future, $body;] $($rest)*)
    };
    ([$($found:tt)*] $pattern:pat = $future:expr => $body:block $($rest:tt)*) => {
        $crate::__select_branches!([$($found)* $pattern, $future, $body;] $($rest)*)
    };
    ([$($found:tt)*] $pattern:pat = $future:expr => $body:expr $(, $($rest:tt)*)?) => {
        $crate::__select_branches!([$($found)* $pattern, $future, $body;] $($($rest)*)?)
    };
}

/// The match of [`select!`], which pairs the branches with the variants.
#[doc(hidden)]
#[macro_export]
macro_rules! __select_arms {
    ($selected:expr, [$($arms:tt)*], [$($variant:ident)*],) => {
        match $selected { $($arms)* }
    };
    ($selected:expr, [$($arms:tt)*], [], $($rest:tt)+) => {
        ::std::compile_error!("`select!` takes up to eight futures")
    };
    (
        $selected:expr, [$($arms:tt)*], [$variant:ident $($variants:ident)*],
        $pattern:pat => $body:expr, $($rest:tt)*
    ) => {
        $crate::__select_arms!(
            $selected,
            [$($arms)* $crate::__private::Selected::$variant($pattern) => $body,],
            [$($variants)*],
            $($rest)*
        )
    };
}

/// The value of the first future of a [`select!`](crate::select). Variants without a future cannot occur, so
/// the macro's match needs no arms for them.
#[derive(Debug)]
#[expect(missing_docs, reason = "for the macro: a variant per place")]
pub enum Selected<
    A,
    B = Infallible,
    C = Infallible,
    D = Infallible,
    E = Infallible,
    F = Infallible,
    G = Infallible,
    H = Infallible,
> {
    A(A),
    B(B),
    C(C),
    D(D),
    E(E),
    F(F),
    G(G),
    H(H),
}

/// Tuples of futures, to wait for the first.
#[diagnostic::on_unimplemented(
    message = "`select!` cannot wait for `{Self}`",
    label = "not one to eight futures",
    note = "`select!` takes one to eight futures; more go into a `JoinSet`, a `scope` or \
            `for_each_concurrent`"
)]
pub trait Select {
    /// The value of the first, in the variant of its place.
    type Output;

    /// Waits for the first future.
    fn select(self) -> impl Future<Output = Self::Output>;
}

/// Tuples of futures, to wait for all.
#[diagnostic::on_unimplemented(
    message = "`join!` cannot wait for `{Self}`",
    label = "not one to eight futures",
    note = "`join!` takes one to eight futures; more go into a `JoinSet`, a `scope` or \
            `for_each_concurrent`"
)]
pub trait Join {
    /// A tuple of their values.
    type Output;

    /// Waits for all futures.
    fn join(self) -> impl Future<Output = Self::Output>;
}

/// Tuples of fallible futures, to wait for all or for the first error.
#[diagnostic::on_unimplemented(
    message = "`try_join!` cannot wait for `{Self}`",
    label = "not one to eight futures of results",
    note = "`try_join!` takes one to eight futures, all of which resolve to a `Result` with the same \
            error; more go into a `spawned_scope` or `try_for_each_concurrent`"
)]
pub trait TryJoin {
    /// A tuple of their values, or the first error.
    type Output;

    /// Waits for all futures, or for the first error.
    fn try_join(self) -> impl Future<Output = Self::Output>;
}

/// Returns the order in which a `select!` polls its `count` futures: one after another, from a random one on.
///
/// A fixed rotation might fall in step with other loops that rotate themselves.
fn places(count: usize) -> impl Iterator<Item = usize> {
    let start = (random::next() >> 33) as usize % count;
    (start..count).chain(0..start)
}

macro_rules! tuples {
    ($count:literal: $($place:literal $type:ident $value:ident $future:ident),+) => {
        impl<$($type: Future),+> Select for ($($type,)+) {
            type Output = Selected<$($type::Output),+>;

            async fn select(self) -> Self::Output {
                let ($($future,)+) = self;
                $(let mut $future = pin!($future);)+
                poll_fn(|cx| {
                    for place in places($count) {
                        match place {
                            $($place => {
                                if let Poll::Ready(value) = $future.as_mut().poll(cx) {
                                    return Poll::Ready(Selected::$type(value));
                                }
                            })+
                            _ => unreachable!("a place of the tuple"),
                        }
                    }
                    Poll::Pending
                })
                .await
            }
        }

        impl<$($type: Future),+> Join for ($($type,)+) {
            type Output = ($($type::Output,)+);

            async fn join(self) -> Self::Output {
                let ($($future,)+) = self;
                $(let $future = async { Ok::<_, Infallible>($future.await) };)+
                let Ok(values) = ($($future,)+).try_join().await;
                values
            }
        }

        tuples!(@try $($type $value $future),+);
    };
    (@try $($type:ident $value:ident $future:ident),+) => {
        #[expect(non_camel_case_types, reason = "a value's type has the name of the value")]
        impl<Error, $($value, $type: Future<Output = Result<$value, Error>>),+> TryJoin
            for ($($type,)+)
        {
            type Output = Result<($($value,)+), Error>;

            async fn try_join(self) -> Self::Output {
                let ($($future,)+) = self;
                $(let mut $future = pin!(Some($future));)+
                $(let mut $value = None;)+
                poll_fn(|cx| {
                    let mut is_done = true;
                    $(if let Some(running) = $future.as_mut().as_pin_mut() {
                        match running.poll(cx) {
                            Poll::Ready(Ok(output)) => {
                                $value = Some(output);
                                $future.set(None);
                            }
                            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                            Poll::Pending => is_done = false,
                        }
                    })+
                    if is_done { Poll::Ready(Ok(())) } else { Poll::Pending }
                })
                .await?;
                Ok(($($value.expect("all have ended"),)+))
            }
        }
    };
}

tuples!(1: 0 A a fa);
tuples!(2: 0 A a fa, 1 B b fb);
tuples!(3: 0 A a fa, 1 B b fb, 2 C c fc);
tuples!(4: 0 A a fa, 1 B b fb, 2 C c fc, 3 D d fd);
tuples!(5: 0 A a fa, 1 B b fb, 2 C c fc, 3 D d fd, 4 E e fe);
tuples!(6: 0 A a fa, 1 B b fb, 2 C c fc, 3 D d fd, 4 E e fe, 5 F f ff);
tuples!(7: 0 A a fa, 1 B b fb, 2 C c fc, 3 D d fd, 4 E e fe, 5 F f ff, 6 G g fg);
tuples!(8: 0 A a fa, 1 B b fb, 2 C c fc, 3 D d fd, 4 E e fe, 5 F f ff, 6 G g fg, 7 H h fh);
