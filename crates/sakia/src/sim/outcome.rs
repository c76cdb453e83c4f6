//! The types that the body of a test may return.

use std::fmt::Debug;

/// The result of a test's body: nothing, or a `Result` whose error fails the test.
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
