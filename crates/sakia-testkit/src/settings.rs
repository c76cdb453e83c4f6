//! Settings of a test run, from the environment.

use std::env;
use std::time::Duration;

/// Returns the number in an environment variable, or `default` if the variable is not set.
///
/// # Panics
/// If the value is not a number.
///
/// # Examples
/// ```
/// assert_eq!(sakia_testkit::settings::number("SAKIA_TEST_DOCUMENTED", 300), 300);
/// ```
pub fn number(name: &str, default: u64) -> u64 {
    match env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")),
        Err(env::VarError::NotPresent) => default,
        Err(error) => panic!("{name}: {error}"),
    }
}

/// Returns the time after which a test fails that waits for an event: a minute, or the number of seconds in
/// `SAKIA_TEST_PATIENCE_S`.
///
/// # Examples
/// ```
/// let (sender, receiver) = std::sync::mpsc::channel();
/// std::thread::spawn(move || sender.send(1));
/// assert_eq!(receiver.recv_timeout(sakia_testkit::settings::patience()), Ok(1));
/// ```
pub fn patience() -> Duration {
    Duration::from_secs(number("SAKIA_TEST_PATIENCE_S", 60))
}
