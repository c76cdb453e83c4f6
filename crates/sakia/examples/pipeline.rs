//! A pipeline that ticks, with back-pressure.
//!
//! A source makes a reading at each tick, a stage works on each, a sink writes what comes out. Between them
//! are bounded channels: when the sink is slow the stage waits, then the source, and nothing piles up.
//! Readings that would have come meanwhile are skipped, and counted.
//!
//! Run it with `cargo run -p sakia --example pipeline`.

use std::error::Error;
use std::time::Duration;

use async_channel::{Receiver, Sender, TrySendError, bounded};
use sakia::time::{interval, sleep};

const READINGS: u32 = 20;
const TICK: Duration = Duration::from_millis(5);
/// The sink takes three ticks for each.
const SINK_DELAY: Duration = Duration::from_millis(15);

fn main() -> Result<(), Box<dyn Error>> {
    // Time is virtual: the pipeline runs as fast as it can, in the order in which it would.
    let runtime = sakia::Runtime::builder().virtual_time(true).build()?;
    runtime.block_on(async {
        let (readings, to_stage) = bounded(2);
        let (results, to_sink) = bounded(2);
        let source = sakia::spawn(source(readings));
        let stage = sakia::spawn(stage(to_stage, results));
        let sink = sakia::spawn(sink(to_sink));
        let skipped = source.await?;
        stage.await?;
        let written = sink.await?;
        println!("{written} written, {skipped} skipped");
        assert_eq!(written + skipped, READINGS);
        assert!(skipped > 0, "a slow sink must be felt by the source");
        Ok(())
    })
}

/// Makes a reading per tick; returns how many found no room.
async fn source(readings: Sender<u32>) -> u32 {
    let mut ticks = interval(TICK);
    let mut skipped = 0;
    for reading in 0..READINGS {
        ticks.tick().await;
        match readings.try_send(reading) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => skipped += 1,
            Err(TrySendError::Closed(_)) => break,
        }
    }
    skipped
}

/// Works on each reading. Waits while the sink has no room.
async fn stage(readings: Receiver<u32>, results: Sender<String>) {
    while let Ok(reading) = readings.recv().await {
        if results.send(format!("{reading} squared is {}", reading * reading)).await.is_err() {
            break;
        }
    }
}

/// Takes its time. Returns how many results there were.
async fn sink(results: Receiver<String>) -> u32 {
    let mut written = 0;
    while let Ok(result) = results.recv().await {
        sleep(SINK_DELAY).await;
        println!("{result}");
        written += 1;
    }
    written
}
