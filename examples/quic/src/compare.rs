//! The same transfer on Sakia and on tokio: bytes per second of processor time.
//!
//! Each process makes one transfer, with server and client on one thread. The rounds alternate, since the
//! speed of a machine changes from minute to minute.

use std::env;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use nix::sys::resource::{UsageWho, getrusage};
use quinn::{Runtime, TokioRuntime};

use crate::runtime::SakiaRuntime;
use crate::transfer::{self, Identity, PIECE_BYTES};

/// The runtime of quinn's tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum On {
    /// This thread's Sakia runtime
    Sakia,
    /// tokio, on one thread
    Tokio,
}

/// Sends `bytes` bytes to a server in this process and prints the processor time used.
pub fn transfer(on: On, bytes: u64) -> Result<()> {
    match on {
        On::Sakia => sakia::block_on(within(Arc::new(SakiaRuntime), bytes))?,
        On::Tokio => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(within(Arc::new(TokioRuntime), bytes))?;
        }
    }
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let micros: i64 = [usage.user_time(), usage.system_time()]
        .iter()
        .map(|time| time.tv_sec() * 1_000_000 + time.tv_usec())
        .sum();
    println!("bytes {bytes} cpu_us {micros}");
    Ok(())
}

async fn within(runtime: Arc<dyn Runtime>, mut left: u64) -> Result<()> {
    let identity = Identity::new()?;
    let certificate = identity.certificate.clone();
    let server = transfer::server(&runtime, "127.0.0.1:0", identity)?;
    let address = server.local_addr()?;
    runtime.spawn(Box::pin(transfer::serve(Arc::clone(&runtime), server.clone())));
    let (endpoint, connection) = transfer::connect(&runtime, address, certificate).await?;
    transfer::send(&connection, async |mut piece| {
        let len = left.min(PIECE_BYTES as u64);
        left -= len;
        // The values of the bytes do not matter, since they are encrypted.
        piece.resize(len as usize, 7);
        Ok(piece)
    })
    .await?;
    transfer::close(endpoint, connection).await;
    server.wait_idle().await;
    Ok(())
}

/// Compares transfers of `bytes` bytes in `rounds` rounds.
pub fn compare(rounds: usize, bytes: u64) -> Result<()> {
    let mut rates = [Vec::new(), Vec::new()];
    for round in 0..rounds {
        let mut order = [0, 1];
        order.rotate_left(round % 2);
        for index in order {
            rates[index].push(rate([On::Sakia, On::Tokio][index], bytes)?);
        }
    }
    let mut ratios: Vec<f64> = rates[0].iter().zip(&rates[1]).map(|(a, b)| a / b).collect();
    let [sakia, tokio] = rates.map(|mut rates| median(&mut rates));
    println!("sakia {sakia:.1} MB per CPU second, tokio {tokio:.1}, medians of {rounds}");
    println!("ratio {:.3}, median of the rounds'", median(&mut ratios));
    Ok(())
}

/// Returns the megabytes per second of processor time of a transfer in a new process.
fn rate(on: On, bytes: u64) -> Result<f64> {
    let name = on.to_possible_value().context("no name")?;
    let mut command = Command::new(env::current_exe()?);
    command.args(["transfer", name.get_name(), "--bytes", &bytes.to_string()]);
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let micros =
        text.trim_end().rsplit_once(' ').and_then(|(_, micros)| micros.parse::<f64>().ok());
    match micros {
        Some(micros) if output.status.success() => Ok(bytes as f64 / micros),
        _ => bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)),
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
