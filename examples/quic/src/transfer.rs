//! A server that receives files and answers with their checksums, and its client, on any runtime for quinn.
//!
//! Each stream of a connection carries a file: the client sends its bytes and ends the stream, and the server
//! answers with the number of bytes and their checksum.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;

use anyhow::{Result, bail};
use quinn::{
    ClientConfig, Connection, Endpoint, EndpointConfig, Incoming, RecvStream, Runtime, SendStream,
    ServerConfig, VarInt,
};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use xxhash_rust::xxh3::Xxh3Default;

/// The maximum bytes of one send or receive.
pub const PIECE_BYTES: usize = 64 << 10;
/// The name in the certificate.
const NAME: &str = "localhost";

/// A server's certificate and its key.
pub struct Identity {
    /// The certificate, for the clients.
    pub certificate: CertificateDer<'static>,
    key: PrivatePkcs8KeyDer<'static>,
}

impl Identity {
    /// Generates a self-signed certificate.
    pub fn new() -> Result<Self> {
        let made = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        Ok(Self { certificate: made.cert.into(), key })
    }
}

/// Opens the endpoint of a server.
pub fn server(
    runtime: &Arc<dyn Runtime>,
    address: impl std::net::ToSocketAddrs,
    identity: Identity,
) -> Result<Endpoint> {
    let config = ServerConfig::with_single_cert(vec![identity.certificate], identity.key.into())?;
    let socket = UdpSocket::bind(address)?;
    let config = Some(config);
    Ok(Endpoint::new(EndpointConfig::default(), config, socket, Arc::clone(runtime))?)
}

/// Accepts connections until the endpoint is closed, and spawns a task for each.
pub async fn serve(runtime: Arc<dyn Runtime>, endpoint: Endpoint) {
    while let Some(incoming) = endpoint.accept().await {
        let peer = incoming.remote_address();
        runtime.spawn(Box::pin(async move {
            if let Err(error) = answer(incoming).await {
                eprintln!("connection from {peer}: {error:#}");
            }
        }));
    }
}

/// Answers the streams of a connection, one after the other, until the client closes it.
async fn answer(incoming: Incoming) -> Result<()> {
    let connection = incoming.await?;
    loop {
        let (output, input) = match connection.accept_bi().await {
            Ok(stream) => stream,
            Err(quinn::ConnectionError::ApplicationClosed(_)) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        receive(input, output).await?;
    }
}

/// The length and checksum of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total {
    /// The number of bytes.
    pub bytes: u64,
    /// The checksum of the bytes.
    pub sum: u128,
}

impl Total {
    const LEN: usize = 24;

    fn of(bytes: u64, sum: &Xxh3Default) -> Self {
        Self { bytes, sum: sum.digest128() }
    }

    fn encode(self) -> [u8; Self::LEN] {
        let mut encoded = [0; Self::LEN];
        encoded[..8].copy_from_slice(&self.bytes.to_be_bytes());
        encoded[8..].copy_from_slice(&self.sum.to_be_bytes());
        encoded
    }
}

async fn receive(mut input: RecvStream, mut output: SendStream) -> Result<()> {
    let (mut bytes, mut sum) = (0, Xxh3Default::new());
    // The pieces are quinn's own memory, in the order of the file.
    while let Some(chunk) = input.read_chunk(PIECE_BYTES, true).await? {
        sum.update(&chunk.bytes);
        bytes += chunk.bytes.len() as u64;
    }
    output.write_all(&Total::of(bytes, &sum).encode()).await?;
    output.finish()?;
    Ok(())
}

/// Connects to a server with this certificate.
pub async fn connect(
    runtime: &Arc<dyn Runtime>,
    address: SocketAddr,
    certificate: CertificateDer<'static>,
) -> Result<(Endpoint, Connection)> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate)?;
    let unspecified = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(unspecified)?;
    let config = EndpointConfig::default();
    let mut endpoint = Endpoint::new(config, None, socket, Arc::clone(runtime))?;
    endpoint.set_default_client_config(ClientConfig::with_root_certificates(Arc::new(roots))?);
    let connection = endpoint.connect(address, NAME)?.await?;
    Ok((endpoint, connection))
}

/// Sends the bytes that `next` reads to its buffer until it reads none, and checks that the server received
/// the same.
pub async fn send(
    connection: &Connection,
    mut next: impl AsyncFnMut(Vec<u8>) -> io::Result<Vec<u8>>,
) -> Result<Total> {
    let (mut output, mut input) = connection.open_bi().await?;
    let (mut bytes, mut sum) = (0, Xxh3Default::new());
    let mut piece = Vec::new();
    loop {
        piece.clear();
        piece = next(piece).await?;
        if piece.is_empty() {
            break;
        }
        sum.update(&piece);
        bytes += piece.len() as u64;
        output.write_all(&piece).await?;
    }
    output.finish()?;
    let total = Total::of(bytes, &sum);
    if input.read_to_end(Total::LEN).await? != total.encode() {
        bail!("the server has received something else");
    }
    Ok(total)
}

/// Closes the connection and waits until the server has been notified.
pub async fn close(endpoint: Endpoint, connection: Connection) {
    connection.close(VarInt::from_u32(0), b"");
    endpoint.wait_idle().await;
}
