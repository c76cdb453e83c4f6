//! Properties of steps, by which two worlds are kept in step.

use super::steps::{Action, Call, How, PathCall};

/// Returns the file that a step uses, and the one that it replaces.
pub fn slots(action: &Action) -> (Option<usize>, Option<usize>) {
    match action {
        Action::Open { slot, .. } | Action::OpenPipe { slot } | Action::OpenFull { slot } => {
            (None, Some(*slot))
        }
        Action::Clone { slot, to } => (Some(*slot), Some(*to)),
        Action::File { slot, .. } => (Some(*slot), None),
        Action::Drop { slot } => (None, Some(*slot)),
        _ => (None, None),
    }
}

/// Returns whether its result depends on when an operation in flight ends, for which it does not wait.
pub fn waits(action: &Action) -> bool {
    matches!(
        action,
        Action::File { call: Call::Metadata | Call::SetPermissions(_) | Call::TryIntoStd, .. }
    )
}

/// Returns whether it has an effect, and waits for the operation in flight before it begins: if it is
/// dropped, its effect depends on when that ends.
pub fn is_begun_late(action: &Action) -> bool {
    match action {
        Action::File { call, .. } => {
            matches!(
                call,
                Call::Read(_) | Call::Seek(_) | Call::SetLen(_) | Call::SetPermissions(_)
            )
        }
        Action::Clone { .. } => true,
        _ => false,
    }
}

/// Returns whether it may leave a write or a seek in flight.
pub fn leaves_flight(action: &Action) -> bool {
    matches!(
        action,
        Action::File {
            call: Call::Write(_) | Call::WriteAll(_) | Call::WriteVectored(_) | Call::StartSeek(_),
            ..
        }
    )
}

/// Returns whether it returns the error of an earlier write, and so has told it.
pub fn reports_writes(call: &Call) -> bool {
    match call {
        Call::Write(_) | Call::WriteVectored(_) | Call::Flush | Call::Shutdown => true,
        Call::WriteAll(count) => *count > 0,
        _ => false,
    }
}

/// Returns whether others see the position after it. The reference does not return bytes to the file before.
pub fn wants_position(action: &Action) -> bool {
    matches!(
        action,
        Action::Clone { .. } | Action::File { call: Call::IntoStd | Call::TryIntoStd, .. }
    )
}

/// Returns whether the reference has to be idle before it: it panics if something is in flight and the
/// error of a write is kept.
pub fn wants_idle(action: &Action) -> bool {
    matches!(action, Action::File { call: Call::SetLen(_), .. })
}

/// Returns whether it seeks.
pub fn is_seek(action: &Action) -> bool {
    matches!(action, Action::File { call: Call::Seek(_) | Call::StartSeek(_), .. })
}

/// Returns whether it is about a file's facts.
pub fn is_about_facts(action: &Action) -> bool {
    matches!(
        action,
        Action::File {
            call: Call::Metadata
                | Call::SetPermissions(_)
                | Call::SetTimes { .. }
                | Call::SetLen(_),
            ..
        }
    )
}

/// Returns whether it is one operation, so that dropping it leaves both worlds with the same.
pub fn is_one_operation(action: &Action) -> bool {
    match action {
        Action::Open { how, .. } => !matches!(how, How::Options { again: true, .. }),
        Action::File { call, .. } => !matches!(
            call,
            Call::ReadExact(_)
                | Call::ReadToEnd
                | Call::ReadToString
                | Call::WriteAll(_)
                | Call::SetTimes { .. }
                | Call::StartSeek(_)
                | Call::IntoStd
                | Call::TryIntoStd
        ),
        Action::Path { call, .. } => !matches!(call, PathCall::ReadDir { .. }),
        Action::Clone { .. } | Action::Paths { .. } => true,
        _ => false,
    }
}
