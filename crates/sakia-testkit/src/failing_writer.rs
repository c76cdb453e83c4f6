//! A writer of text that fails, for implementations of `Display`.

use std::fmt::{self, Display, Write};

/// A writer that takes some pieces of a text, and fails from then on.
struct Failing {
    /// The pieces that it takes yet.
    left: usize,
    /// The pieces that came after its first error.
    late: usize,
    has_failed: bool,
}

impl Write for Failing {
    fn write_str(&mut self, _: &str) -> fmt::Result {
        if let Some(left) = self.left.checked_sub(1) {
            self.left = left;
            return Ok(());
        }
        self.late += usize::from(self.has_failed);
        self.has_failed = true;
        Err(fmt::Error)
    }
}

/// Shows a value to writers that fail at these pieces of the text, until one has room for all. Returns the
/// first piece whose error is not told, or after which more is written.
pub fn untold_error(
    shown: &impl Display,
    pieces: impl IntoIterator<Item = usize>,
) -> Option<usize> {
    for piece in pieces {
        let mut writer = Failing { left: piece, late: 0, has_failed: false };
        let result = write!(writer, "{shown}");
        if !writer.has_failed {
            break;
        }
        if result.is_ok() || writer.late > 0 {
            return Some(piece);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two pieces.
    struct Shown {
        swallows: bool,
    }

    impl Display for Shown {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let first = f.write_str("a");
            if !self.swallows {
                first?;
            }
            f.write_str("b")
        }
    }

    #[test]
    fn a_swallowed_error_is_found() {
        assert_eq!(untold_error(&Shown { swallows: false }, 0..), None);
        assert_eq!(untold_error(&Shown { swallows: true }, 0..), Some(0));
        assert_eq!(untold_error(&Shown { swallows: true }, 1..), None);
    }
}
