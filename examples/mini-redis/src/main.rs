//! `mini-redis [ADDRESS]`: a small Redis on Sakia.
//!
//! It prints its address, serves until SIGINT or SIGTERM, and prints the number of its connections. Try it
//! with `redis-cli -p PORT` or `redis-benchmark -p PORT -t get,set -P 16`.

use std::env;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mini_redis::{Database, Limits, remove_expired};
use sakia::compat::Compat;
use sakia::net::{ListenOptions, ServeOptions, serve};
use sakia::shutdown::on_signals;
use sakia::signal::SignalKind;

/// The maximum size of all keys and values.
const DATABASE_BYTES_MAX: usize = 256 << 20;
/// The maximum number of concurrent connections; further ones wait to be accepted.
const CONNECTIONS_MAX: usize = 10_000;
/// The time that a client has to receive the last reply after the stop.
const DEADLINE: Duration = Duration::from_secs(5);

#[sakia::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = env::args().nth(1).unwrap_or_else(|| "127.0.0.1:6379".into());
    let listener = ListenOptions::new().nodelay(true).bind(address).await?;
    let shutdown = on_signals([SignalKind::INTERRUPT, SignalKind::TERMINATE])?;
    println!("listening on {}", listener.local_addr()?);

    let database = Arc::new(Database::new(DATABASE_BYTES_MAX));
    // The generic code takes a timer, and this is the runtime's.
    let sleep_until =
        |at: Instant| sakia::time::sleep(at.saturating_duration_since(Instant::now()));
    sakia::spawn(remove_expired(Arc::clone(&database), sleep_until)).detach();

    let stop = shutdown.clone();
    let options = ServeOptions::new()
        .max_connections(CONNECTIONS_MAX)
        .stop(async move { stop.requested().await })
        .deadline(DEADLINE)
        .on_error(|error| eprintln!("{error}"));
    let served = serve(listener, options, move |stream, _| {
        let (database, shutdown) = (Arc::clone(&database), shutdown.clone());
        async move {
            let stream = Compat::unbuffered(stream);
            let stop = async move { shutdown.requested().await };
            mini_redis::serve(stream, database, Limits::default(), stop).await
        }
    })
    .await?;
    println!("{served:?}");
    Ok(())
}
