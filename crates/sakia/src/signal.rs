//! Signals of the process.
//!
//! A [`Signal`] listens for one or several kinds. Any number may listen at once, on any threads; each of them
//! receives every signal. Signals coalesce: a listener receives those that arrived since it last looked as
//! one, as the kernel itself keeps one pending of each kind.
//!
//! The first listener for a kind changes the signal's effect on the process, for good: dropping the last
//! listener does not bring back the default, so `SIGINT` is then ignored rather than deadly. A program that
//! stops listening and wants to die of the signal must restore the default action itself.
//!
//! Each listener has an eventfd. The handler, which may interrupt any thread anywhere, adds to its counter,
//! so no signal is lost. It calls the handler that the program had before, too.
//!
//! A forked child has listeners of its own: its signals do not reach its parent's, and those of its parent do
//! not reach the child's. [`Signal::recv`] on a listener of the parent's is an error that says so.

use std::io;

use rustix::process::Signal as Number;
use sakia_driver::signals::SignalListener;

use crate::io::Async;

/// A signal.
///
/// # Examples
/// ```
/// use sakia::signal::SignalKind;
///
/// assert_eq!(SignalKind::from_raw(15), SignalKind::TERMINATE);
/// assert_eq!(SignalKind::INTERRUPT.as_raw(), 2);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SignalKind(i32);

impl SignalKind {
    /// The terminal's Ctrl-C.
    #[doc(alias = "SIGINT")]
    pub const INTERRUPT: Self = Self(Number::INT.as_raw());
    /// A polite request to end.
    #[doc(alias = "SIGTERM")]
    pub const TERMINATE: Self = Self(Number::TERM.as_raw());
    /// The terminal was closed. Many services take it as a request to read their configuration again.
    #[doc(alias = "SIGHUP")]
    pub const HANG_UP: Self = Self(Number::HUP.as_raw());
    /// The terminal's Ctrl-\.
    #[doc(alias = "SIGQUIT")]
    pub const QUIT: Self = Self(Number::QUIT.as_raw());
    /// Free for the program to use.
    #[doc(alias = "SIGUSR1")]
    pub const USER_1: Self = Self(Number::USR1.as_raw());
    /// Free for the program to use.
    #[doc(alias = "SIGUSR2")]
    pub const USER_2: Self = Self(Number::USR2.as_raw());
    /// A child process ended, stopped or went on.
    #[doc(alias = "SIGCHLD")]
    pub const CHILD: Self = Self(Number::CHILD.as_raw());
    /// The terminal has another size.
    #[doc(alias = "SIGWINCH")]
    pub const WINDOW_CHANGE: Self = Self(Number::WINCH.as_raw());
    /// A write to a pipe or socket without a reader.
    #[doc(alias = "SIGPIPE")]
    pub const PIPE: Self = Self(Number::PIPE.as_raw());
    /// A timer set with `alarm(2)` ran out.
    #[doc(alias = "SIGALRM")]
    pub const ALARM: Self = Self(Number::ALARM.as_raw());

    /// Returns the signal with the kernel's number `raw`.
    pub const fn from_raw(raw: i32) -> Self {
        Self(raw)
    }

    /// Returns the kernel's number.
    pub const fn as_raw(self) -> i32 {
        self.0
    }
}

/// Listens for signals. See [`signal`].
///
/// It receives all signals from its creation on, whether or not a task waits at that time.
///
/// # Examples
/// See [`signal()`](signal()#examples).
#[derive(Debug)]
pub struct Signal {
    listener: Async<SignalListener>,
}

/// The signals that no program can or should listen for.
const FORBIDDEN: [Number; 5] = [Number::KILL, Number::STOP, Number::ILL, Number::FPE, Number::SEGV];

/// Listens for signals of one kind. See the [module](self) for the effect on the process.
///
/// # Errors
/// - `InvalidInput`: no program can or should listen for it (`SIGKILL`, `SIGSTOP`, `SIGSEGV`, `SIGILL`,
///   `SIGFPE`). `EINVAL`: there is no such signal.
/// - `EMFILE`, `ENFILE`: no descriptors left.
///
/// # Panics
/// Outside of a runtime, and on a simulated kernel.
///
/// # Examples
/// ```
/// use sakia::signal::{SignalKind, signal};
///
/// # fn main() -> std::io::Result<()> {
/// sakia::block_on(async {
///     let mut hang_ups = signal(SignalKind::HANG_UP)?;
///     signal_hook::low_level::raise(SignalKind::HANG_UP.as_raw())?;
///     hang_ups.recv().await?; // read the configuration again
///     let error = signal(SignalKind::from_raw(9)).unwrap_err();
///     assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
///     Ok(())
/// })
/// # }
/// ```
#[doc(alias = "sigaction")]
pub fn signal(kind: SignalKind) -> io::Result<Signal> {
    Signal::of_any(&[kind])
}

/// Waits for the next Ctrl-C (`SIGINT`). The future listens from its first poll until it is dropped.
///
/// # Cancel safety
/// Dropping the future ends the listening: a Ctrl-C between two calls is lost, and does not end the process.
/// A [`Signal`] that is kept loses none.
///
/// # Errors
/// As for [`signal`].
///
/// # Panics
/// Outside of a runtime, and on a simulated kernel.
///
/// # Examples
/// ```no_run
/// sakia::block_on(async {
///     sakia::signal::ctrl_c().await.unwrap();
///     assert!(true, "reached once the terminal's Ctrl-C was pressed");
/// });
/// ```
pub async fn ctrl_c() -> io::Result<()> {
    signal(SignalKind::INTERRUPT)?.recv().await
}

impl Signal {
    /// Listens for signals of several kinds, without distinguishing them.
    ///
    /// # Errors
    /// As for [`signal`].
    ///
    /// # Panics
    /// Outside of a runtime, and on a simulated kernel.
    ///
    /// # Examples
    /// ```
    /// use sakia::signal::{Signal, SignalKind};
    ///
    /// # sakia::block_on(async {
    /// let mut signals = Signal::of_any(&[SignalKind::USER_1, SignalKind::USER_2])?;
    /// signal_hook::low_level::raise(SignalKind::USER_2.as_raw())?;
    /// signals.recv().await?;
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    pub fn of_any(kinds: &[SignalKind]) -> io::Result<Self> {
        if let Some(kind) =
            kinds.iter().find(|kind| FORBIDDEN.iter().any(|signal| signal.as_raw() == kind.0))
        {
            let message = format!("a process cannot listen for signal {}", kind.0);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        // Negative numbers become large ones, which no signal has.
        let listener = SignalListener::new(kinds.iter().map(|kind| kind.0 as u32))?;
        Ok(Self { listener: Async::new(listener)? })
    }

    /// Waits until a signal has arrived since this listener last received one. Several such signals count as
    /// one.
    ///
    /// # Cancel safety
    /// Dropping the future loses no signal: the next call has it.
    ///
    /// # Errors
    /// - `ECANCELED`: the runtime has ended. In a forked child always, if the listener is its parent's.
    ///
    /// # Examples
    /// See [`signal()`](signal()#examples).
    pub async fn recv(&mut self) -> io::Result<()> {
        self.listener
            .read_with(|listener| match listener.take()? {
                true => Ok(()),
                false => Err(io::ErrorKind::WouldBlock.into()),
            })
            .await
    }
}
