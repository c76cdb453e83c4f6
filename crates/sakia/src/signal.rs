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
//! Each listener has a pair of sockets. The handler, which may interrupt any thread anywhere, writes a byte
//! into it. A full socket has a byte in it already, so no signal is lost.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;

use signal_hook::SigId;
use signal_hook::consts;
use signal_hook::low_level;

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
    pub const INTERRUPT: Self = Self(consts::SIGINT);
    /// A polite request to end.
    #[doc(alias = "SIGTERM")]
    pub const TERMINATE: Self = Self(consts::SIGTERM);
    /// The terminal was closed. Many services take it as a request to read their configuration again.
    #[doc(alias = "SIGHUP")]
    pub const HANG_UP: Self = Self(consts::SIGHUP);
    /// The terminal's Ctrl-\.
    #[doc(alias = "SIGQUIT")]
    pub const QUIT: Self = Self(consts::SIGQUIT);
    /// Free for the program to use.
    #[doc(alias = "SIGUSR1")]
    pub const USER_1: Self = Self(consts::SIGUSR1);
    /// Free for the program to use.
    #[doc(alias = "SIGUSR2")]
    pub const USER_2: Self = Self(consts::SIGUSR2);
    /// A child process ended, stopped or went on.
    #[doc(alias = "SIGCHLD")]
    pub const CHILD: Self = Self(consts::SIGCHLD);
    /// The terminal has another size.
    #[doc(alias = "SIGWINCH")]
    pub const WINDOW_CHANGE: Self = Self(consts::SIGWINCH);
    /// A write to a pipe or socket without a reader.
    #[doc(alias = "SIGPIPE")]
    pub const PIPE: Self = Self(consts::SIGPIPE);
    /// A timer set with `alarm(2)` ran out.
    #[doc(alias = "SIGALRM")]
    pub const ALARM: Self = Self(consts::SIGALRM);

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
    receiver: Async<UnixStream>,
    /// The registration to remove.
    registered: Registered,
}

/// Unregisters when dropped.
#[derive(Debug, Default)]
struct Registered(Vec<SigId>);

impl Drop for Registered {
    fn drop(&mut self) {
        for id in self.0.drain(..) {
            low_level::unregister(id);
        }
    }
}

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
        if let Some(kind) = kinds.iter().find(|kind| consts::FORBIDDEN.contains(&kind.0)) {
            let message = format!("a process cannot listen for signal {}", kind.0);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let (receiver, sender) = UnixStream::pair()?;
        receiver.set_nonblocking(true)?;
        let receiver = Async::new(receiver)?;
        let mut registered = Registered::default();
        for kind in kinds {
            registered.0.push(low_level::pipe::register(kind.0, sender.try_clone()?)?);
        }
        Ok(Self { receiver, registered })
    }

    /// Waits until a signal has arrived since this listener last received one. Several such signals count as
    /// one.
    ///
    /// Dropping the future loses no signal: the next call has it.
    ///
    /// # Errors
    /// - `ECANCELED`: the runtime has ended.
    ///
    /// # Examples
    /// See [`signal()`](signal()#examples).
    pub async fn recv(&mut self) -> io::Result<()> {
        debug_assert!(!self.registered.0.is_empty(), "the sender is registered as long as we live");
        let mut bytes = [0; 64];
        let mut has_any = false;
        // Reads until the socket is empty, in the same poll that found a byte.
        self.receiver
            .read_with(|mut receiver| {
                loop {
                    match receiver.read(&mut bytes) {
                        Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                        Ok(_) => has_any = true,
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock && has_any => {
                            return Ok(());
                        }
                        Err(error) => return Err(error),
                    }
                }
            })
            .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_listener_is_unregistered() {
        crate::block_on(async {
            let listener = Signal::of_any(&[SignalKind::CHILD, SignalKind::WINDOW_CHANGE]);
            let listener = listener.expect("these can be listened for");
            let ids = listener.registered.0.clone();
            assert_eq!(ids.len(), 2);
            drop(listener);
            assert!(!ids.into_iter().any(low_level::unregister), "one was still registered");
        });
    }
}
