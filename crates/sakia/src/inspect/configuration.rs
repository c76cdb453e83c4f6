//! The settings in force, and their origins.

use std::fmt;

/// The origin of a setting's value.
///
/// # Examples
/// See [`Setting`](Setting#examples).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// The default value.
    Default,
    /// A call of a method of the builder.
    Builder,
    /// An environment variable.
    Environment,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Default => "default",
            Self::Builder => "builder",
            Self::Environment => "environment",
        })
    }
}

/// A setting of a runtime.
///
/// # Examples
/// ```
/// use sakia::Runtime;
/// use sakia::inspect::Source;
///
/// let runtime = Runtime::builder().threads(2).build()?;
/// let seen = runtime.inspect();
/// let threads = seen.configuration.iter().find(|setting| setting.name == "threads").unwrap();
/// assert_eq!((&*threads.value, threads.source), ("2", Source::Builder));
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Setting {
    /// Its name: the builder's method, or a part of it.
    pub name: &'static str,
    /// The requested value; empty for facts that cannot be requested.
    pub value: String,
    /// The origin of the value.
    pub source: Source,
    /// The granted value, for settings that the kernel may refuse or reduce.
    pub granted: Option<String>,
}
