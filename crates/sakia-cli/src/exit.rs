//! The end of the program.

use std::io;
use std::process::ExitCode;

/// The end of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// 0: all done, or nothing reads standard output any more.
    Success,
    /// 1: something failed and was reported. After the failure of an input or an entry the others were done;
    /// other failures end the program.
    Failure,
    /// 2: the command line is wrong.
    Usage,
    /// The exit status of another program that was run.
    Status(u8),
    /// The program dies of this signal, as it would have without a handler. Shells show 128 more.
    Signal(i32),
}

impl Exit {
    /// Returns the status for `main`; does not return for a signal.
    pub fn leave(self) -> ExitCode {
        ExitCode::from(self.status())
    }

    /// Ends the program from any thread: to wake the main thread for it would take longer.
    pub fn leave_now(self) -> ! {
        std::process::exit(self.status().into())
    }

    /// Returns the exit status; does not return for a signal.
    fn status(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Failure => 1,
            Self::Usage => 2,
            Self::Status(status) => status,
            Self::Signal(signal) => {
                // Returns only for signals that do not kill; the program watches none of those.
                signal_hook::low_level::emulate_default_handler(signal).ok();
                1
            }
        }
    }
}

/// Returns whether standard output has no reader any more, which is no failure: `sakia sum … | head`.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let is_broken = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    error.chain().any(|cause| {
        let json = cause.downcast_ref::<serde_json::Error>();
        cause.downcast_ref::<io::Error>().is_some_and(is_broken)
            || json.is_some_and(|error| error.io_error_kind() == Some(io::ErrorKind::BrokenPipe))
    })
}
