//! The cost of durable writes of one file, by tasks that each overwrite a place of their own, and wait until
//! it is durable.
//!
//! Run it with `cargo run --release -p sakia --example durable_writes -- DIRECTORY [TASKS [WRITES]]`. It
//! prints a line for each round and way, which alternate: the writes in a second, and the processor time of
//! each.
//! - `runtime`: `fs::File::write_durable_at` of a runtime of one thread;
//! - `engine`: `engine::File::write_durable_at`, awaited by tasks of tokio;
//! - `tokio`: a write, then a sync, each on a thread of tokio's pool, as with `tokio::fs`.

use std::error::Error;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sakia::fs::{self, OpenOptions};
use sakia::io::BufResultExt;
use sakia::{Engine, block_on, spawn};

/// Bytes between two tasks' places.
const APART: u64 = 4096;
/// Bytes of a write.
const LEN: usize = 256;
const ROUNDS: u32 = 9;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().ok_or("usage: durable_writes DIRECTORY [TASKS [WRITES]]")?;
    let mut number = |default: u64| arguments.next().map_or(Ok(default), |text| text.parse());
    let (tasks, writes) = (number(32)?, number(100)?);
    let path = Path::new(&directory).join(format!("durable-writes-{}", std::process::id()));
    for round in 0..ROUNDS {
        for (name, way) in
            [("runtime", by_runtime as Way), ("engine", by_engine), ("tokio", by_tokio)]
        {
            std::fs::write(&path, vec![0; (tasks * APART) as usize])?;
            std::fs::File::open(&path)?.sync_all()?;
            let (begin, time) = (Instant::now(), processor_time());
            way(&path, tasks, writes)?;
            let (took, time) = (begin.elapsed().as_secs_f64(), processor_time() - time);
            let count = (tasks * writes) as f64;
            println!(
                "{round} {name:8} {:8.0} writes/s {:6.1} us of processor time each",
                count / took,
                time.as_secs_f64() / count * 1e6
            );
            let bytes = std::fs::read(&path)?;
            let is_written = |task: u64| bytes[(task * APART) as usize..][..LEN] == [1; LEN];
            assert!((0..tasks).all(is_written), "{name}: bytes are missing");
        }
    }
    std::fs::remove_file(&path)?;
    Ok(())
}

/// Makes each task's writes to the file, and waits for them.
type Way = fn(&Path, u64, u64) -> Result<(), Box<dyn Error>>;

fn by_runtime(path: &Path, tasks: u64, writes: u64) -> Result<(), Box<dyn Error>> {
    block_on(async {
        let file = Rc::new(OpenOptions::new().write(true).open(path).await?);
        let write = |task| {
            let file: Rc<fs::File> = Rc::clone(&file);
            spawn(async move {
                for _ in 0..writes {
                    file.write_durable_at(vec![1; LEN], task * APART).await.value()?;
                }
                std::io::Result::Ok(())
            })
        };
        for task in (0..tasks).map(write).collect::<Vec<_>>() {
            task.await??;
        }
        Ok(())
    })
}

fn by_engine(path: &Path, tasks: u64, writes: u64) -> Result<(), Box<dyn Error>> {
    on_tokio(async {
        let file = Engine::global()?.open_with(path, OpenOptions::new().write(true)).await?;
        let write = |task| {
            let file = file.clone();
            tokio::spawn(async move {
                for _ in 0..writes {
                    file.write_durable_at(vec![1; LEN], task * APART).await.0?;
                }
                std::io::Result::Ok(())
            })
        };
        for task in (0..tasks).map(write).collect::<Vec<_>>() {
            task.await??;
        }
        Ok(())
    })
}

fn by_tokio(path: &Path, tasks: u64, writes: u64) -> Result<(), Box<dyn Error>> {
    on_tokio(async {
        let file = Arc::new(std::fs::OpenOptions::new().write(true).open(path)?);
        let write = |task| {
            let file = Arc::clone(&file);
            tokio::spawn(async move {
                for _ in 0..writes {
                    let its = Arc::clone(&file);
                    let write = move || its.write_all_at(&[1; LEN], task * APART);
                    tokio::task::spawn_blocking(write).await??;
                    let its = Arc::clone(&file);
                    tokio::task::spawn_blocking(move || its.sync_data()).await??;
                }
                std::io::Result::Ok(())
            })
        };
        for task in (0..tasks).map(write).collect::<Vec<_>>() {
            task.await??;
        }
        Ok(())
    })
}

fn on_tokio(work: impl Future<Output = Result<(), Box<dyn Error>>>) -> Result<(), Box<dyn Error>> {
    tokio::runtime::Builder::new_multi_thread().build()?.block_on(work)
}

/// Returns the processor time of this process so far, that of the kernel's workers for it included.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
