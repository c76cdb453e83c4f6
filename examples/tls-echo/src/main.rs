//! Echo over TLS, server and client, with rustls on Sakia.
//!
//! `serve` prints its address and echoes the received bytes until SIGINT or SIGTERM. Run it with `cargo run
//! --release -p tls-echo -- serve --certificate CERTIFICATE`; it generates a certificate at start and writes
//! it to that file. `cargo run --release -p tls-echo -- send ADDRESS --certificate CERTIFICATE` sends its
//! standard input and writes the echoed bytes to its standard output.
//!
//! An attacker on the path may cut off a connection, which then ends without a `close_notify`. Both sides
//! treat such an end as an error, never as the end of the data.
#![forbid(unsafe_code)]

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use sakia::compat::Compat;
use sakia::io::{Reader, Writer, stdin, stdout};
use sakia::net::{ListenOptions, ServeOptions, TcpStream, serve};
use sakia::shutdown::on_signals;
use sakia::signal::SignalKind;
use sakia::time::timeout;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Echoes bytes over TLS.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Echoes the bytes that clients send
    Serve {
        /// The address to listen on; with port 0 the kernel chooses one
        #[arg(long, default_value = "127.0.0.1:0")]
        listen: String,
        /// The file to write the certificate to, which clients are to trust
        #[arg(long)]
        certificate: PathBuf,
    },
    /// Sends standard input and writes the echoed bytes to standard output
    Send {
        /// The address of the server
        address: String,
        /// The certificate that the server has written
        #[arg(long)]
        certificate: PathBuf,
    },
}

/// The name in the certificate.
const NAME: &str = "localhost";
/// The time limit for the handshake, and for the client to accept any echoed bytes.
const PATIENCE: Duration = Duration::from_secs(60);
/// The time that connections have after the signal.
const DEADLINE: Duration = Duration::from_secs(10);
/// The maximum payload of a TLS record.
const RECORD_BYTES: usize = 16 << 10;

#[sakia::main]
async fn main() -> Result<()> {
    match Arguments::parse().role {
        Role::Serve { listen, certificate } => run_server(&listen, &certificate).await,
        Role::Send { address, certificate } => run_client(&address, &certificate).await,
    }
}

async fn run_server(listen: &str, certificate: &Path) -> Result<()> {
    let acceptor = TlsAcceptor::from(identity(certificate).await?);
    let listener = ListenOptions::new().nodelay(true).bind(listen).await?;
    println!("listening on {}", listener.local_addr()?);

    let shutdown = on_signals([SignalKind::INTERRUPT, SignalKind::TERMINATE])?;
    let options = ServeOptions::new()
        .max_connections(10_000)
        .stop(async move { shutdown.requested().await })
        .deadline(DEADLINE)
        .on_error(|error| eprintln!("{error}"));
    let served = serve(listener, options, move |stream, _| echo(stream, acceptor.clone()));
    println!("{:?}", served.await?);
    Ok(())
}

/// Generates a key and a self-signed certificate, and writes the certificate to a file.
async fn identity(path: &Path) -> Result<Arc<ServerConfig>> {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
    sakia::fs::write(path, made.cert.pem()).await?;
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let config = ServerConfig::builder().with_no_client_auth();
    Ok(Arc::new(config.with_single_cert(vec![made.cert.into()], key.into())?))
}

/// Echoes all bytes until the client sends a `close_notify`.
async fn echo(stream: TcpStream, acceptor: TlsAcceptor) -> io::Result<()> {
    // The kernel aborts a connection whose peer acknowledges nothing for this long.
    stream.set_user_timeout(Some(PATIENCE))?;
    // No buffer in between: TLS has its own and writes whole records.
    let handshake = acceptor.accept(Compat::unbuffered(stream));
    let mut stream = timeout(PATIENCE, handshake).await.map_err(io::Error::from)??;
    let mut buf = vec![0; RECORD_BYTES];
    loop {
        // An end without `close_notify` is an error here.
        let count = stream.read(&mut buf).await?;
        if count == 0 {
            return stream.shutdown().await;
        }
        stream.write_all(&buf[..count]).await?;
        stream.flush().await?;
    }
}

async fn run_client(address: &str, certificate: &Path) -> Result<()> {
    let pem = sakia::fs::read(certificate).await?;
    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_slice(&pem);
    roots.add(certificate.context("cannot read the certificate")?)?;
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(config));

    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let name = ServerName::try_from(NAME)?;
    let stream = connector.connect(name, Compat::unbuffered(stream)).await?;

    // Both directions run concurrently: a server that cannot send does not read either.
    let (mut input, mut output) = tokio::io::split(stream);
    let send = async {
        let mut from = Compat::new(Reader::new(stdin()?));
        tokio::io::copy_buf(&mut from, &mut output).await.context("cannot send")?;
        output.shutdown().await.context("cannot end")
    };
    let receive = async {
        let mut to = Compat::new(Writer::new(stdout()?));
        tokio::io::copy(&mut input, &mut to).await.context("cannot receive")?;
        to.shutdown().await.context("cannot write")
    };
    sakia::try_join!(send, receive)?;
    Ok(())
}
