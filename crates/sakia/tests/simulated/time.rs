//! The runtime uses the kernel's simulated time, which passes while all tasks wait.

use std::time::Duration;

use sakia::fs;
use sakia::io::{PipeReader, pipe};
use sakia::sim::{Fault, Opcode, Routes, Target};
use sakia::time::{interval, now, sleep, timeout};
use sakia::{join, spawn};

use super::awkward;

const MS: Duration = Duration::from_millis(1);

#[test]
fn timeouts_of_an_idle_pipe_fire() {
    awkward().run(async |_| {
        let begin = now();
        let (mut reader, writer) = pipe().unwrap();
        for _ in 0..3 {
            assert!(timeout(30_000 * MS, reader.read(vec![0; 1])).await.is_err());
        }
        let elapsed = begin.elapsed();
        assert!(elapsed >= 90_000 * MS && elapsed < 90_500 * MS, "{elapsed:?}");
        writer.close().await
    });
}

#[test]
fn a_timeout_and_its_operation_race_and_one_wins() {
    awkward().run(async |kernel| {
        let (raw, other_end) = kernel.pipe();
        let mut reader = PipeReader::from_simulated(raw);
        let mut count = 0;
        for round in 0..20_u32 {
            kernel.write_pipe_after(
                Duration::from_micros(900 + 10 * u64::from(round)),
                other_end,
                b"x",
            );
            if timeout(MS, reader.read(vec![0; 1])).await.is_ok() {
                count += 1;
            }
            sleep(5 * MS).await;
        }
        assert!(count <= 20);
        kernel.close(other_end)
    });
}

#[test]
fn an_interval_ticks_while_operations_wait() {
    awkward().run(async |_| {
        let (mut reader, writer) = pipe().unwrap();
        let waiting = spawn(async move { reader.read_to_end(Vec::new()).await.0.unwrap() });
        let begin = now();
        let mut ticks = interval(10 * MS);
        for number in 0..10 {
            let at = ticks.tick().await;
            assert!(at.duration_since(begin) >= number * 10 * MS, "tick {number} is early");
        }
        assert!(begin.elapsed() < 95 * MS);
        writer.close().await.unwrap();
        assert_eq!(waiting.await.unwrap(), 0);
    });
}

#[test]
fn time_passes_to_the_end_of_operations_with_workers() {
    let test = awkward().kernel(|kernel| kernel.routes(Routes::WORKER).worker_delay_max(200 * MS));
    test.before(|kernel| {
        kernel.script(Target::opcode(Opcode::OPENAT), Fault::Delay(5000 * MS));
    })
    .run(async |_| {
        let begin = now();
        let (written, ()) = join!(fs::write("file", "text"), async {
            sleep(MS).await;
            assert!(begin.elapsed() < 100 * MS, "the operation holds up no timer");
        });
        written.unwrap();
        assert!(begin.elapsed() >= 5000 * MS);
    });
}

#[test]
fn sleepers_wake_in_order() {
    awkward().run(async |_| {
        let (sender, order) = async_channel::unbounded();
        for millis in [30_u32, 10, 20, 3_000_000, 10] {
            let sender = sender.clone();
            spawn(async move {
                sleep(millis * MS).await;
                sender.send(millis).await.unwrap();
            })
            .detach();
        }
        drop(sender);
        let mut woken = Vec::new();
        while let Ok(millis) = order.recv().await {
            woken.push(millis);
        }
        assert_eq!(woken, [10, 10, 20, 30, 3_000_000]);
    });
}
