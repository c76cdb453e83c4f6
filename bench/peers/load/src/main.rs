//! Starts a server in a network namespace and on a processor of its own, loads it from another processor,
//! and prints what the server measured, with the sum of what came back as the check.

use std::process::{Child, Command, ExitCode, Stdio};

use anyhow::{Context, ensure};
use peers_common::{Job, fail};
use sakia_bench::net::load::{self, Messages, Report, Work};
use sakia_bench::net::{Order, Place};
use serde_json::Value;

/// Of all messages, those that come before what is measured, as one part of so many.
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
    let requests = job.ops / job.connections;
    let messages = Messages {
        connections: job.connections as usize,
        message_bytes: job.block,
        window: job.window,
        warmup: requests.div_ceil(WARMUP_PART),
        requests,
    };
    let order = Order { place, work: Work::Messages(messages), spin: false };
    let mut server = None;
    let loaded = load::run(&order, |control| {
        let mut command = Command::new(&job.server);
        command.arg("echo").arg(format!("control={control}"));
        command.arg(format!("ops={}", requests * job.connections));
        command.arg(format!("variant={}", job.variant));
        command.arg(format!("congestion={}", job.congestion));
        server = Some(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?);
        Ok(())
    });
    let server = server.context("no server")?;
    report(server, loaded)
}

/// What the server says, completed by what the load found.
fn report(mut server: Child, loaded: anyhow::Result<Report>) -> anyhow::Result<Value> {
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
    run["check"] = loaded.sum.into();
    // What the load took is not others'.
    let foreign = run["foreign_ns"].as_u64().context("server")?;
    run["foreign_ns"] = foreign.saturating_sub(loaded.cpu_ns).into();
    Ok(run)
}
