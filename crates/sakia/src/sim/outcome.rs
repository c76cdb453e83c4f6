//! The types that the body of a test may return.

use std::fmt::Debug;

/// The result of a test's body: nothing, or a `Result` whose error fails the test.
#[diagnostic::on_unimplemented(
    message = "the body of a test does not return `{Self}`",
    label = "neither `()` nor a `Result<(), E>`",
    note = "end the body with a `;`, or with `Ok::<_, sakia::Error>(())` if it uses `?`"
)]
pub trait Outcome: sealed::Sealed {
    /// Returns the error as text.
    #[doc(hidden)]
    fn into_error(self) -> Option<String>;
}

impl Outcome for () {
    fn into_error(self) -> Option<String> {
        None
    }
}

impl<E: Debug> Outcome for Result<(), E> {
    fn into_error(self) -> Option<String> {
        self.err().map(|error| format!("{error:?}"))
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for () {}
    impl<E> Sealed for Result<(), E> {}
}
