//! The job of one run of a program.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use crate::fail;

/// The experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// One task adds up the bytes of a file, block by block.
    Sum,
    /// Tasks read blocks at random places of one file.
    RandRead,
    /// Tasks read small files, each from its open to its close.
    SmallFiles,
    /// Tasks overwrite blocks at random places of one file.
    Write,
    /// Tasks yield in turn.
    Yield,
    /// A task starts others, one after the other, and takes their values.
    Spawn,
    /// A server sends back the bytes of its TCP connections.
    Echo,
    /// A server sends each datagram back.
    Udp,
    /// An HTTP server sends a few bytes.
    Http,
    /// An HTTP server sends a file.
    Body,
    /// A server of the Redis protocol.
    Redis,
}

/// The arguments of a program: the cell's name, then `key=value` for each value that differs from the
/// default.
#[derive(Clone, Debug)]
pub struct Job {
    /// The experiment.
    pub cell: Cell,
    /// The variant of the program; empty for the default one.
    pub variant: String,
    /// The file, or the folder of small files.
    pub path: PathBuf,
    /// The number of bytes of the file that are used.
    pub size: u64,
    /// The number of bytes that an operation moves.
    pub block: usize,
    /// The number of operations of all tasks together. Small files: the number of files, each of which is
    /// read once.
    pub ops: u64,
    /// The number of tasks on each thread.
    pub tasks: u64,
    /// The number of threads. If a runtime has one thread, each has its own runtime.
    pub threads: u64,
    /// Files are opened with `O_DIRECT`.
    pub direct: bool,
    /// The number that is written. Each run has its own, so that its writes differ from earlier ones.
    pub seed: u64,
    /// The number of connections to a server.
    pub connections: u64,
    /// The number of messages of a connection that are in flight at a time.
    pub window: u64,
    /// The duration of a load without a number of operations.
    pub seconds: u64,
    /// The command that a load repeats.
    pub command: String,
    /// The congestion control of both sides.
    pub congestion: String,
    /// The server's program, for the load.
    pub server: PathBuf,
    /// The address at which the load waits for the server; only servers have it.
    pub control: Option<SocketAddr>,
}

impl Cell {
    /// Returns whether the experiment is about tasks alone, without files.
    pub fn is_of_tasks(self) -> bool {
        matches!(self, Self::Yield | Self::Spawn)
    }

    /// Returns whether the experiment is about a server, which its load starts.
    pub fn is_of_servers(self) -> bool {
        matches!(self, Self::Echo | Self::Udp | Self::Http | Self::Body | Self::Redis)
    }

    /// Returns the name among the arguments.
    pub fn name(self) -> &'static str {
        let has = |(_, cell): &&(&str, Self)| *cell == self;
        CELLS.iter().find(has).expect("each cell has a name").0
    }
}

const CELLS: [(&str, Cell); 11] = [
    ("sum", Cell::Sum),
    ("randread", Cell::RandRead),
    ("smallfiles", Cell::SmallFiles),
    ("write", Cell::Write),
    ("yield", Cell::Yield),
    ("spawn", Cell::Spawn),
    ("echo", Cell::Echo),
    ("udp", Cell::Udp),
    ("http", Cell::Http),
    ("body", Cell::Body),
    ("redis", Cell::Redis),
];

impl FromStr for Cell {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = CELLS.iter().find(|(name, _)| *name == text);
        found.map(|(_, cell)| *cell).ok_or_else(|| format!("no cell {text}"))
    }
}

impl Job {
    /// Parses the arguments. By default a job has one operation by one task.
    ///
    /// # Errors
    /// An unknown cell or key, or a value that does not parse; the text says which.
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut job = Self {
            cell: arguments.next().ok_or("no cell")?.parse()?,
            variant: String::new(),
            path: PathBuf::new(),
            size: 0,
            block: 4096,
            ops: 1,
            tasks: 1,
            threads: 1,
            direct: false,
            seed: 0,
            connections: 1,
            window: 1,
            seconds: 1,
            command: String::new(),
            congestion: "reno".into(),
            server: PathBuf::new(),
            control: None,
        };
        for argument in arguments {
            let (key, value) = argument.split_once('=').ok_or(format!("no key: {argument}"))?;
            let number = || value.parse::<u64>().map_err(|error| format!("{argument}: {error}"));
            match key {
                "variant" => job.variant = value.to_owned(),
                "path" => job.path = PathBuf::from(value),
                "size" => job.size = number()?,
                "block" => job.block = number()? as usize,
                "ops" => job.ops = number()?,
                "tasks" => job.tasks = number()?.max(1),
                "threads" => job.threads = number()?.max(1),
                "direct" => job.direct = number()? != 0,
                "seed" => job.seed = number()?,
                "connections" => job.connections = number()?.max(1),
                "window" => job.window = number()?.max(1),
                "seconds" => job.seconds = number()?.max(1),
                "command" => job.command = value.to_owned(),
                "congestion" => job.congestion = value.to_owned(),
                "server" => job.server = PathBuf::from(value),
                "control" => {
                    let address = value.parse().map_err(|error| format!("{argument}: {error}"));
                    job.control = Some(address?);
                }
                _ => return Err(format!("no key {key}")),
            }
        }
        Ok(job)
    }

    /// Returns the number of tasks on all threads.
    pub fn tasks_total(&self) -> u64 {
        self.tasks * self.threads
    }

    /// Returns the number of operations of each task. A remainder is left out for all programs alike.
    pub fn ops_per_task(&self) -> u64 {
        self.ops / self.tasks_total()
    }

    /// Returns the offsets at which task number `task` reads or writes, in order.
    pub fn offsets(&self, task: u64) -> impl Iterator<Item = u64> + use<> {
        let (blocks, block) = (self.size / self.block as u64, self.block as u64);
        let mut state = crate::block::mix(task + 1);
        (0..self.ops_per_task()).map(move |_| {
            state = crate::block::mix(state);
            // The upper half of a product is even over the blocks, and needs no division.
            ((u128::from(state) * u128::from(blocks)) >> 64) as u64 * block
        })
    }

    /// Returns the small files: first those of the first task in its order, then those of the second, and
    /// so on. The files of a task are spread over the folders, and were not created one after the other:
    /// such files lie in sequence in memory, and reads in that order would be faster.
    pub fn small_files(&self) -> Vec<PathBuf> {
        let (tasks, each) = (self.tasks_total(), self.ops_per_task());
        let places = (0..tasks).flat_map(|task| (0..each).map(move |round| round * tasks + task));
        // The factor is coprime to the usual counts, so that each file occurs once, and neighbors far
        // apart.
        places.map(|place| self.small_file(place * 7919 % self.ops)).collect()
    }

    /// Returns the same files, and those of the remainder, in the order of their creation.
    pub fn small_files_in_order(&self) -> impl Iterator<Item = PathBuf> {
        (0..self.ops).map(|number| self.small_file(number))
    }

    fn small_file(&self, number: u64) -> PathBuf {
        self.path.join(format!("{:02}/{number:06}", number % 100))
    }
}

/// Parses the arguments, and passes the job to the program's own function.
pub fn run(run: impl FnOnce(Job)) -> ExitCode {
    match Job::parse(std::env::args().skip(1)) {
        Ok(job) => {
            if job.ops_per_task() == 0 {
                fail("ops", "fewer operations than tasks");
            }
            run(job);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("usage: PROGRAM CELL [KEY=VALUE...]\n{error}");
            ExitCode::from(2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Job, String> {
        Job::parse(arguments.iter().map(|&argument| argument.to_owned()))
    }

    #[test]
    fn arguments_are_read_and_checked() {
        let job = parse(&["randread", "size=8192", "tasks=2", "direct=1"]).expect("good arguments");
        assert_eq!((job.cell, job.size, job.direct), (Cell::RandRead, 8192, true));
        assert_eq!(parse(&["nothing"]).err().as_deref(), Some("no cell nothing"));
        assert_eq!(parse(&["sum", "speed=1"]).err().as_deref(), Some("no key speed"));
        assert!(parse(&["sum", "size=much"]).is_err());
    }

    #[test]
    fn offsets_are_whole_blocks_within_the_file() {
        let job =
            parse(&["randread", "size=40960", "ops=1000", "tasks=4"]).expect("good arguments");
        for task in 0..4 {
            let offsets: Vec<u64> = job.offsets(task).collect();
            assert_eq!(offsets.len(), 250);
            assert!(offsets.iter().all(|offset| offset % 4096 == 0 && *offset < 40960));
        }
    }

    #[test]
    fn every_small_file_is_read_once() {
        let job = parse(&["smallfiles", "ops=1280", "tasks=64"]).expect("good arguments");
        let mut paths = job.small_files();
        assert!(!paths.is_sorted());
        paths.sort();
        paths.dedup();
        let mut made: Vec<PathBuf> = job.small_files_in_order().collect();
        made.sort();
        assert_eq!((paths.len(), paths), (1280, made));
    }
}
