//! The arguments of `sakia trace`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::trace::{Options, Plot, Record, Summarize};

/// Record the operations of a program on Sakia, and explain its delays
///
/// `record` runs a program with a recording on, without a rebuild. `summary` describes the recording: the
/// paths of operations, the distribution of their time, and anomalies. `plot` draws a section of it. The
/// file opens in Perfetto, https://ui.perfetto.dev.
#[derive(Debug, Args)]
pub(super) struct TraceArgs {
    #[command(subcommand)]
    command: TraceCommand,
}

#[derive(Debug, Subcommand)]
enum TraceCommand {
    /// Run a program and record its operations
    ///
    /// The program gets the file's name in the environment variable SAKIA_TRACE. Each of its processes that
    /// uses Sakia writes a file: the first with this name, others with their process number appended. Setuid
    /// programs ignore the variable. As root, with tracefs mounted, the file also has the operations that
    /// the kernel handed to its own workers. The exit status is the program's, or 1 if there is no recording
    /// at the end.
    Record {
        /// The file; a regular file of this name is replaced
        #[arg(short, long, default_value = "sakia.trace", value_name = "FILE")]
        output: PathBuf,
        /// The program and its arguments
        #[arg(
            required = true,
            trailing_var_arg = true,
            allow_hyphen_values = true,
            value_name = "CMD"
        )]
        command: Vec<OsString>,
    },
    /// Describe a recording
    Summary {
        /// The file
        file: PathBuf,
        /// Write one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Draw a section of a recording
    Plot {
        /// The file
        file: PathBuf,
        /// The picture, as SVG
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
        /// Begin of the section, in milliseconds since the first event
        #[arg(long, value_name = "MS", default_value_t = 0.0, value_parser = milliseconds)]
        from: f64,
        /// End of the section; by default the end of the recording
        #[arg(long, value_name = "MS", value_parser = milliseconds)]
        to: Option<f64>,
    },
}

impl TraceArgs {
    pub(super) fn resolve(self) -> Options {
        match self.command {
            TraceCommand::Record { output, command } => Options::Record(Record { output, command }),
            TraceCommand::Summary { file, json } => Options::Summary(Summarize { file, json }),
            TraceCommand::Plot { file, output, from, to } => {
                let duration = |time: f64| Duration::from_secs_f64(time / 1000.0);
                Options::Plot(Plot { file, output, from: duration(from), to: to.map(duration) })
            }
        }
    }
}

fn milliseconds(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_string())?;
    // A century is longer than any recording.
    if (0.0..=4e12).contains(&number) { Ok(number) } else { Err("out of range".into()) }
}
