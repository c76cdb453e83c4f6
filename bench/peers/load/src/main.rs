//! Starts a server in a network namespace and on its own processor, loads it from another processor, and
//! prints the server's measurements with a check of the answers.

mod program;

use std::net::SocketAddr;
use std::process::{Child, Command, ExitCode, Stdio};

use anyhow::{Context, ensure};
use peers_common::{Cell, Job, fail};
use sakia_bench::net::load::{self, Messages, Session, Work};
use sakia_bench::net::{Order, Place};
use serde_json::Value;

use self::program::Program;

/// One in this number of messages is sent before the measurement.
const WARMUP_PART: u64 = 5;

fn main() -> ExitCode {
    peers_common::main_with(|job| {
        let run = run(&job).unwrap_or_else(|error| fail("load", format!("{error:#}")));
        println!("{run}");
    })
}

fn run(job: &Job) -> anyhow::Result<Value> {
    let place = Place::detect(&job.congestion)?;
    if job.variant == "where" {
        return Ok(place.describe().into());
    }
    place.enter()?;
    let mut server = None;
    let start = |control: SocketAddr| {
        let mut command = Command::new(&job.server);
        command.arg(job.cell.name()).arg(format!("control={control}"));
        command.arg(format!("ops={}", job.ops));
        command.arg(format!("block={}", job.block));
        command.arg(format!("variant={}", job.variant));
        command.arg(format!("congestion={}", job.congestion));
        server = Some(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?);
        Ok(())
    };
    let loaded = match job.cell {
        Cell::Echo => messages(job, place, Work::Messages, start),
        Cell::Udp => messages(job, place, Work::Datagrams, start),
        _ => program(job, &place, start),
    };
    let server = server.context("no server")?;
    report(server, loaded)
}

/// The work of a load.
struct Loaded {
    ops: u64,
    check: u64,
    /// The processor time that the load took during the measurement.
    cpu_ns: u64,
}

/// Loads the server with messages, which it sends back.
fn messages(
    job: &Job,
    place: Place,
    work: fn(Messages) -> Work,
    start: impl FnOnce(SocketAddr) -> anyhow::Result<()>,
) -> anyhow::Result<Loaded> {
    let requests = job.ops / job.connections;
    let messages = Messages {
        connections: job.connections as usize,
        message_bytes: job.block,
        window: job.window,
        warmup: requests.div_ceil(WARMUP_PART),
        requests,
    };
    let order = Order { place, work: work(messages), spin: false };
    let report = load::run(&order, start)?;
    let ops = requests * job.connections;
    Ok(Loaded { ops, check: report.sum, cpu_ns: report.cpu_ns })
}

/// Loads the server with a program.
fn program(
    job: &Job,
    place: &Place,
    start: impl FnOnce(SocketAddr) -> anyhow::Result<()>,
) -> anyhow::Result<Loaded> {
    let session = Session::begin(place, start)?;
    let program = Program::new(job, session.server)?;
    program.warm_up()?;
    let (ops, cpu_ns) = session.measured(|| program.run())?;
    Ok(Loaded { ops, check: program.check, cpu_ns })
}

/// Returns the server's report, completed by the load's findings.
fn report(mut server: Child, loaded: anyhow::Result<Loaded>) -> anyhow::Result<Value> {
    let loaded = match loaded {
        Ok(loaded) => loaded,
        Err(error) => {
            server.kill().ok();
            server.wait().ok();
            return Err(error);
        }
    };
    let output = server.wait_with_output().context("server")?;
    ensure!(output.status.success(), "server: {}", output.status);
    let mut run: Value = serde_json::from_slice(&output.stdout).context("server")?;
    run["ops"] = loaded.ops.into();
    run["check"] = loaded.check.into();
    // The load's own time does not count as time of other processes.
    let foreign = run["foreign_ns"].as_u64().context("server")?;
    run["foreign_ns"] = foreign.saturating_sub(loaded.cpu_ns).into();
    Ok(run)
}
