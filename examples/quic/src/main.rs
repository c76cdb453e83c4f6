//! Files over QUIC, server and client, with quinn on Sakia.
//!
//! `serve` prints its address and receives files until SIGINT or SIGTERM; it answers with their checksums,
//! which the client verifies. Run it with `cargo run --release -p quic -- serve --certificate CERTIFICATE`,
//! and send a file with `cargo run --release -p quic -- send ADDRESS FILE --certificate CERTIFICATE`.
//! `compare` runs the same transfer on Sakia and on tokio, and prints the cost of each.
#![forbid(unsafe_code)]

mod compare;
mod runtime;
mod transfer;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use clap::{Parser, Subcommand};
use quinn::{Runtime, VarInt};
use rustls::pki_types::CertificateDer;
use sakia::fs::File;
use sakia::io::BufResultExt;
use sakia::shutdown::on_signals;
use sakia::signal::SignalKind;

use self::compare::On;
use self::runtime::SakiaRuntime;
use self::transfer::{Identity, PIECE_BYTES};

/// Sends files by QUIC.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Receives files
    Serve {
        /// The address to listen on; with port 0 the kernel chooses one
        #[arg(long, default_value = "127.0.0.1:0")]
        listen: String,
        /// The file to write the certificate to, which clients are to trust
        #[arg(long)]
        certificate: PathBuf,
    },
    /// Sends a file
    Send {
        /// The address of the server
        address: SocketAddr,
        file: PathBuf,
        /// The certificate that the server has written
        #[arg(long)]
        certificate: PathBuf,
    },
    /// Sends bytes to a server in this process and prints the processor time used
    Transfer {
        on: On,
        #[arg(long, default_value_t = 256 << 20)]
        bytes: u64,
    },
    /// Compares transfers on Sakia and on tokio
    Compare {
        #[arg(long, default_value_t = 9)]
        rounds: usize,
        #[arg(long, default_value_t = 256 << 20)]
        bytes: u64,
    },
}

fn main() -> Result<()> {
    match Arguments::parse().role {
        Role::Serve { listen, certificate } => sakia::block_on(serve(&listen, &certificate)),
        Role::Send { address, file, certificate } => {
            sakia::block_on(send(address, &file, &certificate))
        }
        Role::Transfer { on, bytes } => compare::transfer(on, bytes),
        Role::Compare { rounds, bytes } => compare::compare(rounds, bytes),
    }
}

async fn serve(listen: &str, certificate: &Path) -> Result<()> {
    let runtime: Arc<dyn Runtime> = Arc::new(SakiaRuntime);
    let identity = Identity::new()?;
    sakia::fs::write(certificate, identity.certificate.to_vec()).await?;
    let endpoint = transfer::server(&runtime, listen, identity)?;
    println!("listening on {}", endpoint.local_addr()?);

    let shutdown = on_signals([SignalKind::INTERRUPT, SignalKind::TERMINATE])?;
    sakia::select! {
        () = transfer::serve(runtime, endpoint.clone()) => {},
        () = shutdown.requested() => {},
    }
    endpoint.close(VarInt::from_u32(0), b"the server ends");
    endpoint.wait_idle().await;
    Ok(())
}

async fn send(address: SocketAddr, file: &Path, certificate: &Path) -> Result<()> {
    let runtime: Arc<dyn Runtime> = Arc::new(SakiaRuntime);
    let certificate = CertificateDer::from(sakia::fs::read(certificate).await?);
    let file = File::open(file).await?;
    let (endpoint, connection) = transfer::connect(&runtime, address, certificate).await?;
    let mut offset = 0;
    let sent = transfer::send(&connection, async |mut piece| {
        piece.reserve_exact(PIECE_BYTES);
        let (count, piece) = file.read_at(piece, offset).await.both()?;
        offset += count as u64;
        Ok(piece)
    });
    let total = sent.await;
    transfer::close(endpoint, connection).await;
    let total = total?;
    println!("sent {} bytes, their sum is {:032x}", total.bytes, total.sum);
    Ok(())
}
