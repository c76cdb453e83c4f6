//! Builds by Cargo for the other modules, and their paths.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

/// Returns a command of the current Cargo, for the workspace in `folder`.
pub(crate) fn command(folder: &Path) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(folder);
    command
}

/// Returns Cargo's target folder of the workspace in `folder`.
pub(crate) fn target_folder(folder: &Path) -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| folder.join("target"), PathBuf::from)
}

/// Runs a build, and returns Cargo's messages about it, one per line. The compiler's output goes to standard
/// error.
///
/// # Errors
/// The build fails, or Cargo cannot be run.
pub(crate) fn build(command: &mut Command) -> anyhow::Result<String> {
    command.args(["--message-format", "json-render-diagnostics"]).stderr(Stdio::inherit());
    let output = command.output().context("run cargo")?;
    ensure!(output.status.success(), "does not build");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the program of this name in Cargo's messages.
///
/// # Errors
/// There is none.
pub(crate) fn program(messages: &str, name: &str) -> anyhow::Result<PathBuf> {
    let mut programs = messages.lines().filter_map(executable);
    let program = programs.find(|path| path.ends_with(name));
    Ok(program.context("cargo names no executable")?.to_owned())
}

/// Returns the program that a message is about, if any.
pub(crate) fn executable(message: &str) -> Option<&Path> {
    let (_, rest) = message.split_once(r#""executable":""#)?;
    rest.split_once('"').map(|(path, _)| Path::new(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_by_their_names() {
        let messages = r#"{"reason":"compiler-artifact","executable":null}
{"reason":"compiler-artifact","executable":"/t/not-one"}
{"reason":"compiler-artifact","executable":"/t/one"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(program(messages, "one").unwrap(), Path::new("/t/one"));
        let error = program(messages, "two").unwrap_err().to_string();
        assert_eq!(error, "cargo names no executable");
    }
}
