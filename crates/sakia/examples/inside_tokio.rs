//! A runtime inside a tokio program, on one of its threads.
//!
//! Tokio watches the runtime's descriptor with `AsyncFd`; a tokio task lets the runtime run whenever that
//! is readable or the runtime's next timer is due. Both kinds of tasks go on side by side and talk through
//! a channel.
//!
//! Run it with `cargo run -p sakia --example inside_tokio`.

use std::error::Error;
use std::time::Duration;

use sakia::Runtime;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let runtime = Runtime::new()?;
    let (sender, receiver) = async_channel::bounded(4);

    // Tasks of the runtime: they sleep on its timers, and speak to tokio through the channel.
    let producer = runtime.spawn(async move {
        for number in 1..=5 {
            sakia::time::sleep(Duration::from_millis(10)).await;
            if sender.send(number).await.is_err() {
                break;
            }
        }
    });

    // A task of tokio's listens.
    let local = tokio::task::LocalSet::new();
    let sum = local.spawn_local(async move {
        let mut sum = 0;
        while let Ok(number) = receiver.recv().await {
            println!("tokio heard {number}");
            sum += number;
        }
        sum
    });

    // And the bridge.
    let bridge = async move {
        // SAFETY: an owned descriptor stays open, and the same, until it is dropped with the `AsyncFd`.
        let pollable =
            unsafe { AsyncFd::register_with_interest(runtime.pollable()?, Interest::READABLE)? };
        loop {
            while runtime.run_once(Duration::ZERO)? {
                tokio::task::yield_now().await;
            }
            if producer.is_finished() {
                break;
            }
            let next_timer = runtime.next_timer().unwrap_or(Duration::MAX);
            tokio::select! {
                // `run_once` makes the descriptor unreadable again: tokio is to ask anew.
                ready = pollable.readable() => ready?.clear_ready(),
                () = tokio::time::sleep(next_timer) => {}
            }
        }
        Ok::<_, std::io::Error>(())
    };
    local.run_until(bridge).await?;
    let sum = local.run_until(sum).await?;
    println!("sum {sum}");
    assert_eq!(sum, 15);
    Ok(())
}
