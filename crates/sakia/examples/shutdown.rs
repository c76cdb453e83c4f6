//! A service that ends in order when it is told to.
//!
//! On SIGTERM or Ctrl-C it takes no more work, finishes what it has, at most until a deadline, and leaves.
//! Run it with `cargo run -p sakia --example shutdown`, and send it a signal; with an argument it sends
//! itself one.

use std::error::Error;
use std::time::Duration;

use sakia::signal::SignalKind;
use sakia::time::{interval, sleep, timeout};

const DEADLINE: Duration = Duration::from_secs(5);

#[sakia::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let shutdown = sakia::shutdown::on_signals([SignalKind::TERMINATE, SignalKind::INTERRUPT])?;
    if std::env::args().nth(1).is_some() {
        sakia::spawn(async {
            sleep(Duration::from_millis(100)).await;
            let pid = std::process::id().to_string();
            let kill = sakia::process::Command::new("kill").args(["-TERM", &pid]).status().await;
            kill.expect("there is a program to send signals");
        })
        .detach();
    }

    // The service: a request at each tick, each a task of its own that is counted while it runs.
    let tracker = shutdown.tracker();
    let mut requests = interval(Duration::from_millis(10));
    let mut accepted = 0;
    while !shutdown.is_requested() {
        // Whichever comes first: the next request, or the end.
        let tick = sakia::select! {
            _ = requests.tick() => true,
            _ = shutdown.requested() => false,
        };
        if tick {
            accepted += 1;
            sakia::spawn(tracker.track(serve())).detach();
        }
    }
    println!("{accepted} requests accepted, {} under way", tracker.running());

    // Drain, but not for ever.
    match shutdown.drain(sleep(DEADLINE)).await {
        Ok(()) => println!("all done"),
        Err(left) => println!("{left}: left behind"),
    }
    Ok(())
}

/// Works for a while.
async fn serve() {
    timeout(Duration::from_secs(1), sleep(Duration::from_millis(35))).await.ok();
}
