//! The machine: its description, and the load of other programs on it during a run.

use std::fs;
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use sakia_bench_support::usage::{Ticks, Usage};
use sakia_driver::MountTable;
use serde::Serialize;

use crate::measure::kib_of;
use crate::net::Place;

/// Facts about the machine that put a result in context.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// Processors that this process may use.
    pub cpus: usize,
    /// The kernel's release.
    pub kernel: String,
    /// The architecture.
    pub architecture: String,
    /// The total memory.
    pub memory_bytes: u64,
    /// The directory with the inputs. Bytes that are not UTF-8 are replaced.
    pub directory: String,
    /// The type of the file system there.
    pub file_system: String,
    /// The place for connections, in experiments that make some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Place>,
    /// Sakia's version.
    pub version: &'static str,
    /// Set if the program was built with optimization.
    pub optimized: bool,
}

impl Machine {
    /// Returns this machine, with inputs in `directory`. Unknown facts are empty, or 0.
    pub fn detect(directory: &Path) -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let uname = rustix::system::uname();
        let mounts = MountTable::read().unwrap_or_default();
        let directory = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
        let mount = mounts.find_by_path(&directory);
        Self {
            cpu: cpu_name(&read("/proc/cpuinfo")).unwrap_or_default().to_owned(),
            cpus: thread::available_parallelism().map_or(0, usize::from),
            kernel: uname.release().to_string_lossy().into_owned(),
            architecture: uname.machine().to_string_lossy().into_owned(),
            memory_bytes: kib_of(&read("/proc/meminfo"), "MemTotal:").unwrap_or(0) << 10,
            file_system: mount.map_or_else(String::new, |mount| mount.file_system.clone()),
            directory: directory.to_string_lossy().into_owned(),
            network: None,
            version: env!("CARGO_PKG_VERSION"),
            optimized: !cfg!(debug_assertions),
        }
    }

    /// Returns whether the inputs are on a file system in memory, where dropping caches has no effect.
    pub(crate) fn is_in_memory(&self) -> bool {
        ["tmpfs", "ramfs"].contains(&self.file_system.as_str())
    }

    /// Returns the facts in one line.
    pub fn describe(&self) -> String {
        let Self { cpu, cpus, kernel, architecture, memory_bytes, file_system, network, .. } = self;
        let cpu = if cpu.is_empty() { "unknown processor" } else { cpu };
        let memory = *memory_bytes as f64 / f64::from(1 << 30);
        let place = network.as_ref().map_or_else(|| file_system.clone(), Place::describe);
        format!(
            "{cpu} ({architecture}), {cpus} CPUs, {memory:.0} GiB of memory, Linux {kernel}, {place}"
        )
    }
}

/// Returns the memory available for a page cache; `None` if `/proc` does not have it.
pub fn memory_available_bytes() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    kib_of(&meminfo, "MemAvailable:").map(|kib| kib << 10)
}

/// Returns the processors that this process may use.
pub(crate) fn processors() -> io::Result<impl Iterator<Item = usize>> {
    let usable = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(move |&processor| usable.is_set(processor)))
}

/// Restricts this thread, and those that it will start, to these processors.
pub(crate) fn keep_to(processors: &[usize]) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    processors.iter().for_each(|&processor| set.set(processor));
    sched_setaffinity(None, &set)
        .with_context(|| format!("cannot pin to the processors {processors:?}"))
}

fn cpu_name(cpuinfo: &str) -> Option<&str> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, name)| name.trim())
}

/// A run is noisy if other programs took at least this many processors.
pub const FOREIGN_MAX: f64 = 0.15;
/// A run is noisy if other machines took at least this many processors.
pub const STEAL_MAX: f64 = 0.05;
/// The error of `/proc/stat` over any time: it counts in hundredths of a second, and rounds each of a few
/// kinds down. This much does not make a run noisy.
const RESOLUTION_NS: u64 = 20_000_000;

/// Watches the processor time that other programs take.
#[derive(Debug)]
pub struct Watch {
    begin: Instant,
    machine: Ticks,
    own: u64,
}

/// Processor time that was taken by others during a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Noise {
    /// The number of processors that other programs, and the kernel for them, took on average.
    pub foreign_cores: f64,
    /// The number of processors that the host of a virtual machine took away on average.
    pub steal_cores: f64,
    /// Set if it is more than a reliable result allows.
    #[serde(rename = "noisy")]
    pub is_noisy: bool,
}

impl Watch {
    /// Starts watching.
    ///
    /// # Errors
    /// Those of [`Usage`].
    pub fn start() -> io::Result<Self> {
        Ok(Self { begin: Instant::now(), machine: Ticks::now(), own: own_ns()? })
    }

    /// Returns the processor time that others took since the start. The time of child processes counts as
    /// this program's only after they have been waited for.
    ///
    /// # Errors
    /// Those of [`Usage`].
    pub fn stop(self) -> io::Result<Noise> {
        let own = own_ns()?.saturating_sub(self.own);
        Ok(between(self.machine, Ticks::now(), own, self.begin.elapsed()))
    }
}

/// Returns the processor time of this process, and of the children it waited for.
fn own_ns() -> io::Result<u64> {
    Ok(Usage::of_process()?.cpu_ns + Usage::of_children()?.cpu_ns)
}

/// Returns the processor time that others took between two moments; this program took `own_ns` meanwhile.
fn between(earlier: Ticks, later: Ticks, own_ns: u64, elapsed: Duration) -> Noise {
    let busy = later.busy_ns.saturating_sub(earlier.busy_ns);
    let foreign = busy.saturating_sub(own_ns);
    let steal = later.steal_ns.saturating_sub(earlier.steal_ns);
    let cores = |ns: u64| ns as f64 / (elapsed.as_nanos() as f64).max(1.0);
    let certain = |ns: u64| cores(ns.saturating_sub(RESOLUTION_NS));
    Noise {
        foreign_cores: cores(foreign),
        steal_cores: cores(steal),
        is_noisy: certain(foreign) >= FOREIGN_MAX || certain(steal) >= STEAL_MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_is_described() {
        let machine = Machine::detect(Path::new("/proc"));
        assert_eq!(machine.file_system, "proc");
        assert!(machine.cpus > 0 && machine.memory_bytes > 0);
        assert!(machine.describe().contains(&machine.kernel));
    }

    #[test]
    fn foreign_time_is_what_is_left_of_the_busy_time() {
        let second = Duration::from_secs(1);
        let ticks = |busy: u64, stolen: u64| Ticks {
            busy_ns: busy * 10_000_000,
            steal_ns: stolen * 10_000_000,
        };
        let begin = ticks(153, 10);
        // 1.2 s busy and 0.03 s stolen in a second, of which 0.9 s are our own.
        let end = ticks(273, 13);
        let noise = between(begin, end, 900_000_000, second);
        assert!((noise.foreign_cores - 0.3).abs() < 1e-9, "{noise:?}");
        assert!((noise.steal_cores - 0.03).abs() < 1e-9, "{noise:?}");
        assert!(noise.is_noisy);
        assert!(!between(begin, end, 9_000_000_000, second).is_noisy);
        // Two ticks of 10 ms are within the measurement error, however short the run.
        let end = ticks(155, 12);
        let noise = between(begin, end, 0, second / 50);
        assert!((noise.foreign_cores, noise.is_noisy) == (1.0, false), "{noise:?}");
    }
}
