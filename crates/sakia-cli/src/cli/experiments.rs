//! The arguments of `sakia bench`.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use sakia_bench::named::Named;
use sakia_bench::net::{CONGESTION, load};
use sakia_bench::{echo, file_sum, sched, send_file, sockets, tcp_sum, threads, udp};

use super::notes::{
    ECHO_NOTES, FILE_SUM_NOTES, NETWORK_NOTES, SCHED_NOTES, SEND_FILE_NOTES, SOCKETS_NOTES,
    TCP_SUM_NOTES, THREADS_NOTES, UDP_NOTES, bench_json_help,
};
use super::{MEMORY_MAX, Surroundings, bytes, copytree, costs, wal};
use crate::bench;
use crate::output::Format;

/// The largest file of an experiment.
pub(super) const FILE_BYTES_MAX: u64 = 1 << 40;
/// The largest block of an experiment.
const BLOCK_BYTES_MAX: u64 = file_sum::BLOCK_BYTES_MAX as u64;
/// The mark of a directory of build results, which cargo leaves there.
const CACHE_TAG: &str = "CACHEDIR.TAG";

/// Run an experiment: the same work done in several ways
///
/// Measures the variants of an experiment in separate processes, which alternate, and prints a table,
/// ratios, and the fastest variant on this machine with the reason. Other programs disturb the figures:
/// their use of the machine is recorded, and affected runs are counted.
#[derive(Debug, Args)]
pub(super) struct BenchArgs {
    #[command(subcommand)]
    experiment: ExperimentArgs,
}

#[derive(Debug, Subcommand)]
enum ExperimentArgs {
    FileSum(FileSumArgs),
    TcpSum(TcpSumArgs),
    Echo(EchoArgs),
    Udp(UdpArgs),
    SendFile(SendFileArgs),
    Sockets(SocketsArgs),
    Threads(ThreadsArgs),
    Sched(Box<SchedArgs>),
    Copytree(copytree::CopytreeArgs),
    Wal(wal::WalArgs),
    Costs(costs::CostsArgs),
    Baseline(costs::BaselineArgs),
}

/// Options of all experiments.
#[derive(Clone, Debug, Args)]
pub(super) struct CommonArgs {
    /// Take a quick look: little work and few runs, less than a minute
    #[arg(long)]
    pub(super) quick: bool,

    /// Runs of each variant at each point; 9 for files, 15 for connections, 3 for threads
    ///
    /// With --quick 7 of file-sum, udp, send-file and costs, 3 of the others. From 6 on, ratios have a 95 %
    /// interval.
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    runs: Option<u16>,

    /// Write JSON Lines
    ///
    /// One object per line, described below. No progress is shown.
    #[arg(long)]
    json: bool,

    /// Write a page of HTML with plots, readable without a network
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,

    /// Add the results to a file, as JSON Lines
    ///
    /// The lines are those of --json, and come after what the file has: so the results of several experiments
    /// and those of baseline are kept together.
    #[arg(long, value_name = "FILE.jsonl")]
    keep: Option<PathBuf>,
}

/// The sum of a file's bytes, read block by block
///
/// uring and ring read through io_uring, uring as the engine decides by itself; poll on epoll and
/// threads; pool hands each block to a thread and back; blocking makes plain reads; offload has a
/// thread read ahead.
///
/// The exit status is 0 if everything was measured and all sums are right, 1 if something failed, 2 for
/// wrong usage. A variant that this machine does not offer is no failure.
#[derive(Debug, Args)]
#[command(after_long_help = bench_json_help(FILE_SUM_NOTES))]
struct FileSumArgs {
    #[command(flatten)]
    common: CommonArgs,

    /// The folder for temporary files of the experiment, which are removed at the end
    ///
    /// The default is the directory of build results that the program is in, or else the one for temporary
    /// files.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// Sizes of the file; 128M,512M,1G,2G, or 256M with --quick
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',', value_parser = bytes(1, FILE_BYTES_MAX))]
    size: Vec<u64>,

    /// Bytes of each read
    #[arg(long, value_name = "BYTES", default_value = "32K", value_parser = bytes(1, BLOCK_BYTES_MAX))]
    block: u64,

    /// Drop the file from the page cache before each run
    #[arg(long)]
    cold: bool,

    /// Measure the variant offload too
    #[arg(long)]
    offload: bool,

    /// Variants: uring, ring, poll, pool, blocking, offload
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    #[arg(value_parser = parse_named::<file_sum::Variant>)]
    variants: Vec<file_sum::Variant>,
}

/// The sum of the bytes received on a TCP connection
///
/// uring and ring receive through io_uring, uring as the engine decides by itself; poll on epoll; blocking
/// makes plain reads. Another process sends. Both are in a private network namespace if this is permitted,
/// as it is to root and below `unshare --user --map-root-user`; otherwise on the machine's loopback.
///
/// The exit status is 0 if everything was measured and all sums are right, 1 if something failed, 2 for
/// wrong usage. A variant that this machine does not offer is no failure.
#[derive(Debug, Args)]
#[command(after_long_help = bench_json_help(&format!("{TCP_SUM_NOTES}\n\n{NETWORK_NOTES}")))]
struct TcpSumArgs {
    #[command(flatten)]
    common: CommonArgs,

    /// Bytes to be sent; 256M,1G,2G, or 256M with --quick
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',', value_parser = bytes(1, FILE_BYTES_MAX))]
    size: Vec<u64>,

    /// Bytes of each read
    #[arg(long, value_name = "BYTES", default_value = "128K", value_parser = bytes(1, BLOCK_BYTES_MAX))]
    block: u64,

    /// The congestion control of both sides
    #[arg(long, value_name = "NAME", default_value = CONGESTION)]
    congestion: String,

    /// Variants: uring, ring, poll, blocking, uring-recv, poll-recv
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    #[arg(value_parser = parse_named::<tcp_sum::Variant>)]
    variants: Vec<tcp_sum::Variant>,
}

/// A server that sends back what it receives over TCP
///
/// uring and ring serve through io_uring, uring as the engine decides by itself; poll on epoll; blocking has
/// a thread for each connection. All figures are those of the server; another process, the same for all
/// variants, has the other ends of the connections, each with one message in flight, and compares the echo.
/// Both are in a private network namespace if this is permitted, as it is to root and below `unshare --user
/// --map-root-user`; otherwise on the machine's loopback.
///
/// The exit status is 0 if everything was measured and all bytes came back, 1 if something failed, 2 for
/// wrong usage. A variant that this machine does not offer is no failure.
#[derive(Debug, Args)]
#[command(after_long_help = bench_json_help(&format!("{ECHO_NOTES}\n\n{NETWORK_NOTES}")))]
struct EchoArgs {
    #[command(flatten)]
    common: CommonArgs,

    /// Connections
    #[arg(long, value_name = "COUNT,…", value_delimiter = ',', default_value = "1,64,512")]
    #[arg(value_parser = parse_count::<{ echo::CONNECTIONS_MAX }>)]
    connections: Vec<usize>,

    /// Bytes of a message, 8 to 1M
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',', default_value = "64,16K")]
    #[arg(value_parser = bytes(load::MESSAGE_BYTES_MIN as u64, load::MESSAGE_BYTES_MAX as u64))]
    message: Vec<u64>,

    /// Requests of a run, over all connections; by default as many as take about half a second
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,

    /// The congestion control of both sides
    #[arg(long, value_name = "NAME", default_value = CONGESTION)]
    congestion: String,

    /// Measure the variant spin too: uring, with both ends polling for work before they sleep
    ///
    /// It takes a processor for each end all the time, and makes no sense without two.
    #[arg(long)]
    spin: bool,

    /// Variants: uring, ring, poll, blocking, spin
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    #[arg(value_parser = parse_named::<echo::Variant>)]
    variants: Vec<echo::Variant>,
}

/// A server that sends datagrams back to their sender
///
/// uring has a task on io_uring that receives and sends in batches, poll the same on epoll; single has a
/// task that takes a datagram at a time; blocking is a thread with plain calls. The load is another process,
/// which compares every echoed byte.
#[derive(Debug, Args)]
#[command(after_long_help = bench_json_help(&format!("{UDP_NOTES}\n\n{NETWORK_NOTES}")))]
struct UdpArgs {
    #[command(flatten)]
    common: CommonArgs,

    /// Datagrams in flight at a time, up to 64
    #[arg(long, value_name = "COUNT,…", value_delimiter = ',', default_value = "1,32")]
    #[arg(value_parser = parse_count::<{ udp::IN_FLIGHT_MAX }>)]
    in_flight: Vec<usize>,

    /// Bytes of a datagram, 8 to 1500
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',', default_value = "64,512,1500")]
    #[arg(value_parser = bytes(load::MESSAGE_BYTES_MIN as u64, udp::DATAGRAM_BYTES_MAX as u64))]
    datagram: Vec<u64>,

    /// Datagrams of a run; by default as many as take about half a second
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,

    /// Variants: uring, single, poll, blocking
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    #[arg(value_parser = parse_named::<udp::Variant>)]
    variants: Vec<udp::Variant>,
}

/// A server that sends a cached file repeatedly
///
/// uring has a task on io_uring that calls send_file, poll the same on epoll; blocking is a thread with a
/// loop of sendfile; copy has a task on io_uring that reads the file and writes it in pieces of 64 KiB.
/// Measured on request: floor, a thread with sendfile and poll, on a socket in non-blocking mode; send and
/// send-zc, a thread with a ring that sends the bytes from memory, by plain and by zero-copy sends. The load
/// is another process, which receives the files, and adds up their bytes.
#[derive(Debug, Args)]
#[command(after_long_help = bench_json_help(&format!("{SEND_FILE_NOTES}\n\n{NETWORK_NOTES}")))]
struct SendFileArgs {
    #[command(flatten)]
    common: CommonArgs,

    /// Bytes of the file
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',', default_value = "200K,1G")]
    #[arg(value_parser = bytes(1, send_file::FILE_BYTES_MAX))]
    size: Vec<u64>,

    /// Number of files sent in a run; by default as many as take about half a second
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,

    /// Variants: uring, poll, copy, blocking, floor, send, send-zc
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    #[arg(value_parser = parse_named::<send_file::Variant>)]
    variants: Vec<send_file::Variant>,
}

/// Programs on sockets inside a toy enclave, where each call of the host takes an exit
///
/// The sockets are those of sakia-socket. plain makes one call of the host for each call of the program;
/// default reads ahead on evidence; gathered gathers writes on evidence, too; ahead always reads ahead; all
/// always gathers as well. The other ends are plain sockets in another process. Both are in a private
/// network namespace if this is permitted.
///
/// Cells are send-256, -1K, -4K, -16K and -128K, receive- of the same, events-1, -50 and -1000, threads-64,
/// udp-64 and -1400, iperf-receive-1, -2 and -4, iperf-send- of the same; a name without a number is all of
/// these. With --quick seven cells at exits of 0 and 4 us.
///
/// The exit status is 0 if everything was measured and all bytes are right, 1 if something failed, 2 for
/// wrong usage.
#[derive(Debug, Args)]
#[command(after_long_help = bench_json_help(&format!("{SOCKETS_NOTES}\n\n{NETWORK_NOTES}")))]
struct SocketsArgs {
    #[command(flatten)]
    common: CommonArgs,

    /// Cells, by their names or those of their programs; all
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = parse_cells)]
    cells: Vec<Cells>,

    /// Microseconds that each call of the host takes in addition to its system call; 0,1,4,10
    #[arg(long, value_name = "US,…", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u64).range(0..=sockets::EXIT_US_MAX))]
    costs: Vec<u64>,

    /// Calls, or requests, of a run; by default as many as take plain about half a second
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    operations: Option<u64>,

    /// Variants of the sockets: plain, default, gathered, ahead, all
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    #[arg(value_parser = parse_named::<sockets::Variant>)]
    variants: Vec<sockets::Variant>,
}

/// The cells that a name selects.
#[derive(Clone, Debug)]
struct Cells(Vec<sockets::Cell>);

/// The threads of a process during ten thousand unanswered reads of files
///
/// uring has an engine on io_uring and one thread that awaits all reads, poll the same on epoll and threads;
/// pool has 512 threads; blocking one for each read. Reads are held until no more begin and no thread starts
/// or ends; then all threads are counted, including the kernel's workers for rings.
///
/// disk is an ext4 whose disk is held, full the same with a queue that is soon full, fuse a file system in
/// user space. All of them require root, /dev/fuse, loop devices and mkfs.ext4. With --path only a directory
/// is needed, and nothing is held.
///
/// The exit status is 0 if everything was measured and all bytes are right, 1 if something failed, 2 for
/// wrong usage. A variant that this machine does not offer is no failure.
#[derive(Debug, Args)]
#[command(after_long_help = bench_json_help(THREADS_NOTES))]
struct ThreadsArgs {
    #[command(flatten)]
    common: CommonArgs,

    /// Reads at the same time, each of its own file; 10000, or 1000 with --quick
    #[arg(long, value_name = "COUNT", value_parser = parse_count::<{ threads::READS_MAX }>)]
    reads: Option<usize>,

    /// Bytes of each read
    #[arg(long, value_name = "BYTES", default_value = "4K", value_parser = bytes(1, BLOCK_BYTES_MAX))]
    size: u64,

    /// Bypass the page cache (O_DIRECT); sizes are then multiples of 4K
    #[arg(long)]
    direct: bool,

    /// Delay of each answer of the FUSE file system, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u16).range(0..=1000))]
    delay: u16,

    /// Count threads after this time without a new read or thread, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    settle: u16,

    /// Places of the files: disk, full, fuse
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = parse_threads_place)]
    places: Vec<threads::Place>,

    /// A directory for the files, for a place named path; it alone, unless others are named
    #[arg(long, value_name = "DIR")]
    path: Option<PathBuf>,

    /// Variants: uring, poll, pool, blocking
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    #[arg(value_parser = parse_named::<threads::Variant>)]
    variants: Vec<threads::Variant>,
}

/// File calls of many threads, done in several ways
///
/// blocking makes plain calls on each thread; aio hands them to one scheduler thread on Linux AIO; sakia is
/// the engine, as programs use it from plain threads; ring sends each to the engine's thread and ring;
/// runtime has tasks instead, with --utilization only.
/// Without --matrix or a figure it is a testbench: the requested number of reads of --rsize and writes of
/// --wsize, shared evenly by --threads threads.
///
/// The exit status is 0 if everything was measured and all bytes are right, 1 if something failed, 2 for
/// wrong usage. A variant that this machine does not offer is no failure.
#[derive(Debug, Args)]
#[command(after_long_help = bench_json_help(SCHED_NOTES))]
struct SchedArgs {
    #[command(flatten)]
    common: CommonArgs,

    #[command(flatten)]
    mode: SchedMode,

    /// Threads; 2, or those of the matrix: 1,2,4,8,16
    #[arg(long, value_name = "COUNT,…", value_delimiter = ',')]
    #[arg(value_parser = parse_count::<{ sched::THREADS_MAX }>)]
    threads: Vec<usize>,

    /// Bytes of a read; 1000,10000,100000, or those of the matrix or figure
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',', value_parser = bytes(1, MEMORY_MAX))]
    rsize: Vec<u64>,

    /// Bytes of a write
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',', value_parser = bytes(1, MEMORY_MAX))]
    wsize: Vec<u64>,

    /// Reads of a run, over all threads; by default as many as can be measured
    ///
    /// The study had 10.
    #[arg(long, value_name = "COUNT")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=sched::COUNT_MAX))]
    nreads: Option<u64>,

    /// Writes of a run
    #[arg(long, value_name = "COUNT")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=sched::COUNT_MAX))]
    nwrites: Option<u64>,

    /// Bytes from one read of a file to the next; 0: all at its beginning
    ///
    /// The default is 0 if the page cache has the file, and otherwise the distance to the next block.
    #[arg(long, value_name = "BYTES", value_parser = bytes(0, FILE_BYTES_MAX))]
    roff: Option<u64>,

    /// The same for writes; 0, or at least the size of a write. Writes go to offsets after the reads
    #[arg(long, value_name = "BYTES", value_parser = bytes(0, FILE_BYTES_MAX))]
    woff: Option<u64>,

    /// Files to be created, and used in turn
    #[arg(long, value_name = "COUNT", default_value = "1")]
    #[arg(value_parser = parse_count::<{ sched::FILES_MAX }>)]
    nfiles: usize,

    /// Existing files to be read instead; they are never written
    #[arg(long, value_name = "FILE,…", value_delimiter = ',', conflicts_with = "nfiles")]
    files: Vec<PathBuf>,

    /// Let reads and writes alternate, in the ratio of --nreads and --nwrites; otherwise reads come first
    #[arg(long)]
    mix: bool,

    /// The folder for temporary files of the experiment, which are removed at the end
    ///
    /// The default is the directory of build results that the program is in, or else the one for temporary
    /// files.
    #[arg(long, value_name = "DIR", visible_alias = "dir")]
    path: Option<PathBuf>,

    /// Fill files with bytes (the default)
    #[arg(long, conflicts_with = "sparse")]
    dense: bool,

    /// Leave files empty: reads find holes
    #[arg(long)]
    sparse: bool,

    /// Keep the files in the page cache (the default)
    #[arg(long)]
    hot: bool,

    /// Drop files from the page cache before each run
    #[arg(long)]
    cold: bool,

    /// Bypass the page cache; sizes and offsets are rounded up to blocks
    #[arg(long)]
    direct: bool,

    /// With --utilization: reads that a thread has under way while it computes; 1,2,4,8,16
    #[arg(long, value_name = "COUNT,…", value_delimiter = ',')]
    #[arg(value_parser = parse_count::<{ sched::DEPTH_MAX }>)]
    depth: Vec<usize>,

    /// With --utilization: the time of the computation with each block; 20
    #[arg(long, value_name = "MICROSECONDS")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    compute: Option<u32>,

    /// Variants: blocking, aio, sakia, ring, runtime
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    #[arg(value_parser = parse_named::<sched::Variant>)]
    variants: Vec<sched::Variant>,
}

/// The points to measure; at most one option.
#[derive(Debug, Args)]
#[group(multiple = false)]
struct SchedMode {
    /// Reads and writes by 1 to 16 threads, of 1 kB to 100 MB each
    ///
    /// Points whose buffers would take more than 2 GiB of memory, or half of what is free, are left out.
    #[arg(long)]
    matrix: bool,

    /// Duration of a read of 1 kB to 1 MB, of two threads
    #[arg(long)]
    fig4: bool,

    /// Duration of the system calls of such a read, of one thread: through the page cache, and bypassing it
    #[arg(long)]
    fig5: bool,

    /// Duration of such a read bypassing the page cache (O_DIRECT), of one thread
    #[arg(long)]
    fig6: bool,

    /// How much a thread computes while its reads are under way: hot, cold and bypassing the page cache
    ///
    /// Utilization is the part of the time with operations in flight in which the thread computed, as in
    /// sakia trace summary. --hot, --cold and --direct narrow the choice.
    #[arg(long)]
    utilization: bool,
}

/// Returns the name of the experiment, and its options.
pub(super) fn resolve(
    args: BenchArgs,
    surroundings: &Surroundings,
) -> (&'static str, bench::Options) {
    use {ExperimentArgs as Of, bench::Which};
    let common = match &args.experiment {
        Of::FileSum(args) => &args.common,
        Of::TcpSum(args) => &args.common,
        Of::Echo(args) => &args.common,
        Of::Udp(args) => &args.common,
        Of::SendFile(args) => &args.common,
        Of::Sockets(args) => &args.common,
        Of::Threads(args) => &args.common,
        Of::Sched(args) => &args.common,
        Of::Copytree(args) => &args.common,
        Of::Wal(args) => &args.common,
        Of::Costs(args) => &args.common,
        Of::Baseline(args) => &args.common,
    };
    let common = common.clone();
    let (name, experiment, runs) = match args.experiment {
        Of::FileSum(args) => (file_sum::NAME, Which::FileSum(resolve_file_sum(args)), 9),
        Of::TcpSum(args) => (tcp_sum::NAME, Which::TcpSum(resolve_tcp_sum(args)), 15),
        Of::Echo(args) => (echo::NAME, Which::Echo(resolve_echo(args)), 15),
        Of::Udp(args) => (udp::NAME, Which::Udp(resolve_udp(args)), 15),
        Of::SendFile(args) => (send_file::NAME, Which::SendFile(resolve_send_file(args)), 15),
        Of::Sockets(args) => (sockets::NAME, Which::Sockets(resolve_sockets(args)), 15),
        Of::Threads(args) => (threads::NAME, Which::Threads(resolve_threads(args)), 3),
        Of::Sched(args) => (sched::NAME, Which::Sched(Box::new(resolve_sched(*args))), 9),
        Of::Copytree(args) => {
            (sakia_bench::copytree::NAME, Which::CopyTree(Box::new(args.resolve())), 9)
        }
        Of::Wal(args) => (sakia_bench::wal::NAME, Which::Wal(args.resolve()), 9),
        Of::Costs(args) => (sakia_bench::costs::NAME, Which::Costs(args.resolve()), 9),
        Of::Baseline(args) => (sakia_bench::baseline::NAME, Which::Baseline(args.resolve()), 9),
    };
    let quick_runs = match experiment {
        Which::FileSum(_) | Which::Udp(_) | Which::SendFile(_) | Which::Costs(_) => 7,
        _ => 3,
    };
    let options = bench::Options {
        experiment,
        runs: common.runs.map_or(if common.quick { quick_runs } else { runs }, usize::from),
        format: if common.json { Format::Json } else { Format::Human },
        report: common.report,
        keep: common.keep,
        progress: !common.json && surroundings.err_is_terminal,
    };
    (name, options)
}

fn resolve_file_sum(args: FileSumArgs) -> file_sum::Options {
    use file_sum::{QUICK_SIZE, SIZES, Variant};
    let mut variants = or(args.variants, &Variant::DEFAULT);
    variants.extend(args.offload.then_some(Variant::Offload));
    file_sum::Options {
        sizes: or(args.size, if args.common.quick { &[QUICK_SIZE] } else { &SIZES }),
        block_bytes: args.block as usize,
        cold: args.cold,
        variants: Variant::in_order(&variants),
        directory: args.dir.unwrap_or_else(default_directory),
    }
}

fn resolve_tcp_sum(args: TcpSumArgs) -> tcp_sum::Options {
    use tcp_sum::{QUICK_SIZE, SIZES, Variant};
    tcp_sum::Options {
        sizes: or(args.size, if args.common.quick { &[QUICK_SIZE] } else { &SIZES }),
        block_bytes: args.block as usize,
        variants: Variant::in_order(&or(args.variants, &Variant::DEFAULT)),
        congestion: args.congestion,
        load: None,
    }
}

fn resolve_echo(args: EchoArgs) -> echo::Options {
    use echo::Variant;
    let mut variants = or(args.variants, &Variant::DEFAULT);
    variants.extend(args.spin.then_some(Variant::Spin));
    echo::Options {
        connections: args.connections,
        message_bytes: args.message.into_iter().map(|bytes| bytes as usize).collect(),
        requests: args.requests,
        quick: args.common.quick,
        variants: Variant::in_order(&variants),
        congestion: args.congestion,
        load: None,
    }
}

fn resolve_udp(args: UdpArgs) -> udp::Options {
    use udp::Variant;
    udp::Options {
        in_flight: args.in_flight,
        datagram_bytes: args.datagram.into_iter().map(|bytes| bytes as usize).collect(),
        requests: args.requests,
        quick: args.common.quick,
        variants: Variant::in_order(&or(args.variants, &Variant::DEFAULT)),
        load: None,
    }
}

fn resolve_send_file(args: SendFileArgs) -> send_file::Options {
    use send_file::Variant;
    send_file::Options {
        sizes: args.size,
        requests: args.requests,
        quick: args.common.quick,
        variants: Variant::in_order(&or(args.variants, &Variant::DEFAULT)),
        load: None,
    }
}

fn resolve_sockets(args: SocketsArgs) -> sockets::Options {
    use sockets::{CELLS, Cell, EXITS_US, QUICK_CELLS, QUICK_EXITS_US, Variant};
    let quick = args.common.quick;
    let asked: Vec<Cell> = match quick {
        _ if !args.cells.is_empty() => {
            args.cells.into_iter().flat_map(|Cells(cells)| cells).collect()
        }
        true => QUICK_CELLS.into_iter().flat_map(Cell::by_name).collect(),
        false => CELLS.to_vec(),
    };
    sockets::Options {
        cells: CELLS.into_iter().filter(|cell| asked.contains(cell)).collect(),
        exits_us: or(args.costs, if quick { &QUICK_EXITS_US } else { &EXITS_US }),
        operations: args.operations,
        quick,
        variants: Variant::in_order(&or(args.variants, &Variant::ALL)),
        load: None,
    }
}

fn resolve_threads(args: ThreadsArgs) -> threads::Options {
    use threads::{Place, Variant};
    let mut places = args.places;
    if args.path.is_some() {
        places.push(Place::Path);
    }
    let usual = if args.common.quick { threads::QUICK_READS } else { threads::READS };
    threads::Options {
        reads: args.reads.unwrap_or(usual),
        size_bytes: args.size as usize,
        direct: args.direct,
        delay: Duration::from_millis(args.delay.into()),
        settle: Duration::from_millis(args.settle.into()),
        places: Place::in_order(&or(places, &Place::DEFAULT)),
        directory: args.path,
        variants: Variant::in_order(&or(args.variants, &Variant::ALL)),
    }
}

fn resolve_sched(args: SchedArgs) -> sched::Options {
    use sched::Variant;
    let SchedMode { matrix, fig4, fig5, fig6, utilization } = args.mode;
    let modes = [
        (matrix, sched::Mode::Matrix),
        (fig4, sched::Mode::Fig4),
        (fig5, sched::Mode::Fig5),
        (fig6, sched::Mode::Fig6),
        (utilization, sched::Mode::Utilization),
    ];
    let mode = modes.into_iter().find(|(is_set, _)| *is_set).map(|(_, mode)| mode);
    // Runs have another working directory.
    let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
    sched::Options {
        mode: mode.unwrap_or_default(),
        threads: args.threads,
        read_sizes: args.rsize,
        write_sizes: args.wsize,
        reads: args.nreads,
        writes: args.nwrites,
        read_step: args.roff,
        write_step: args.woff,
        files: args.nfiles,
        others: args.files.into_iter().map(absolute).collect(),
        mix: args.mix,
        sparse: args.sparse,
        hot: args.hot,
        cold: args.cold,
        direct: args.direct,
        depths: args.depth,
        computation: args.compute.map(|us| Duration::from_micros(us.into())),
        quick: args.common.quick,
        variants: Variant::in_order(&or(args.variants, &Variant::ALL)),
        directory: args.path.unwrap_or_else(default_directory),
    }
}

/// Returns the requested values, or the usual ones.
pub(super) fn or<T: Clone>(asked: Vec<T>, usual: &[T]) -> Vec<T> {
    if asked.is_empty() { usual.to_vec() } else { asked }
}

/// Returns the default folder for files of experiments: the folder of the build, since the one for temporary
/// files may be in memory; for an installed program the latter.
pub(super) fn default_directory() -> PathBuf {
    let program = env::current_exe().unwrap_or_default();
    let built = program.ancestors().find(|parent| parent.join(CACHE_TAG).is_file());
    let below = built.map(|target| target.join("tmp"));
    below.filter(|path| fs::create_dir_all(path).is_ok()).unwrap_or_else(env::temp_dir)
}

pub(super) fn parse_named<T: Named>(text: &str) -> Result<T, String> {
    let names = || T::NAMES.iter().map(|&(name, _)| name).collect::<Vec<_>>();
    T::by_name(text).ok_or_else(|| expected(&names()))
}

fn parse_cells(text: &str) -> Result<Cells, String> {
    let cells = sockets::Cell::by_name(text);
    if cells.is_empty() {
        let names: Vec<_> = sockets::CELLS.into_iter().map(sockets::Cell::name).collect();
        return Err(expected(&names.iter().map(String::as_str).collect::<Vec<_>>()));
    }
    Ok(Cells(cells))
}

fn parse_threads_place(text: &str) -> Result<threads::Place, String> {
    use threads::Place;
    let place = Place::by_name(text).filter(|place| Place::DEFAULT.contains(place));
    place.ok_or_else(|| expected(&Place::DEFAULT.map(Place::name)))
}

/// Parses a number from 1 to a maximum.
pub(super) fn parse_count<const MAX: usize>(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=MAX).contains(number));
    number.ok_or_else(|| format!("expected a number from 1 to {MAX}"))
}

pub(super) fn expected(names: &[&str]) -> String {
    format!("expected one of {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;

    use super::super::{Task, parse_from};
    use super::*;

    fn task(args: &[&str]) -> Result<Task, ErrorKind> {
        let args = [&["sakia"], args].concat();
        parse_from(args, Surroundings::default()).map_err(|error| error.kind())
    }

    #[test]
    fn quick_look_is_the_default_of_what_is_not_asked_for() {
        let options = |args: &[&str]| {
            let args = [&["bench", "file-sum"], args].concat();
            let Ok(Task::Bench(options)) = task(&args) else {
                panic!("{args:?}");
            };
            let bench::Which::FileSum(experiment) = options.experiment else {
                panic!("{args:?}");
            };
            (experiment, options.runs)
        };
        let (experiment, runs) = options(&[]);
        assert_eq!((experiment.sizes, runs), (file_sum::SIZES.to_vec(), 9));
        let (experiment, runs) = options(&["--quick"]);
        assert_eq!((experiment.sizes, runs), (vec![256 << 20], 7));
        assert_eq!(experiment.variants, file_sum::Variant::DEFAULT);
        let (experiment, runs) = options(&[
            "--quick",
            "--runs",
            "7",
            "--size",
            "1M,2G",
            "--variants",
            "pool,uring",
            "--offload",
        ]);
        assert_eq!((experiment.sizes, runs), (vec![1 << 20, 2 << 30], 7));
        let names = experiment.variants.iter().map(|variant| variant.name());
        assert_eq!(names.collect::<Vec<_>>(), ["uring", "pool", "offload"]);
        for wrong in [["--size", "0"], ["--block", "65M"], ["--variants", "aio"], ["--runs", "0"]] {
            let args = [&["bench", "file-sum"], &wrong[..]].concat();
            let error = task(&args).unwrap_err();
            assert_eq!(error, ErrorKind::ValueValidation, "{wrong:?}");
        }
    }

    #[test]
    fn experiments_on_connections_have_points_and_rounds_of_their_own() {
        let options = |args: &[&str]| {
            let Ok(Task::Bench(options)) = task(args) else {
                panic!("{args:?}");
            };
            (options.experiment, options.runs)
        };
        let (bench::Which::Udp(udp), 15) = options(&["bench", "udp"]) else {
            panic!("udp was asked for");
        };
        assert_eq!(udp.in_flight, udp::IN_FLIGHT);
        assert_eq!(udp.datagram_bytes, udp::DATAGRAM_BYTES);
        assert_eq!((udp.variants, udp.quick), (udp::Variant::DEFAULT.to_vec(), false));
        let (bench::Which::Echo(echo), 15) = options(&["bench", "echo"]) else {
            panic!("echo was asked for");
        };
        assert_eq!(echo.connections, echo::CONNECTIONS);
        assert_eq!(echo.message_bytes, echo::MESSAGE_BYTES);
        assert_eq!((echo.variants, echo.quick), (echo::Variant::DEFAULT.to_vec(), false));
        let (bench::Which::TcpSum(tcp_sum), 3) =
            options(&["bench", "tcp-sum", "--quick", "--congestion", "cubic"])
        else {
            panic!("tcp-sum was asked for");
        };
        assert_eq!(tcp_sum.sizes, [tcp_sum::QUICK_SIZE]);
        assert_eq!(tcp_sum.variants, tcp_sum::Variant::DEFAULT);
        assert_eq!((tcp_sum.congestion.as_str(), tcp_sum.block_bytes), ("cubic", 128 << 10));
        let (bench::Which::Sockets(all), 15) = options(&["bench", "sockets"]) else {
            panic!("sockets was asked for");
        };
        assert_eq!(
            (all.cells, all.exits_us),
            (sockets::CELLS.to_vec(), sockets::EXITS_US.to_vec())
        );
        let (bench::Which::Sockets(some), 3) =
            options(&["bench", "sockets", "--quick", "--cells", "udp,send-256", "--costs", "7"])
        else {
            panic!("sockets was asked for");
        };
        let names: Vec<_> = some.cells.into_iter().map(sockets::Cell::name).collect();
        assert_eq!(
            (names, some.exits_us),
            (vec!["send-256".into(), "udp-64".into(), "udp-1400".into()], vec![7])
        );
        let wrong = task(&["bench", "sockets", "--cells", "send-7"]).unwrap_err();
        assert_eq!(wrong, ErrorKind::ValueValidation);
        for wrong in [["--connections", "0"], ["--message", "7"], ["--variants", "pool"]] {
            let args = [&["bench", "echo"], &wrong[..]].concat();
            let error = task(&args).unwrap_err();
            assert_eq!(error, ErrorKind::ValueValidation, "{wrong:?}");
        }
    }

    #[test]
    fn places_of_reads_are_all_that_are_held_unless_told() {
        let options = |args: &[&str]| -> Result<_, ErrorKind> {
            let args = [&["bench", "threads"], args].concat();
            match task(&args)? {
                Task::Bench(bench::Options {
                    experiment: bench::Which::Threads(threads),
                    runs,
                    ..
                }) => Ok((threads, runs)),
                other => panic!("{other:?}"),
            }
        };
        let (threads, runs) = options(&[]).unwrap();
        assert_eq!((threads.reads, runs, threads.delay), (10_000, 3, threads::DELAY));
        assert_eq!(threads.settle, threads::SETTLE);
        assert_eq!(threads.places, threads::Place::DEFAULT);
        assert_eq!(threads.variants, threads::Variant::ALL);
        let (threads, _) = options(&["--quick", "--path", "d", "--variants", "poll"]).unwrap();
        assert_eq!((threads.reads, threads.places), (1000, vec![threads::Place::Path]));
        assert_eq!(threads.variants, [threads::Variant::Poll]);
        let (threads, _) = options(&["--path", "d", "--places", "fuse,disk"]).unwrap();
        let names: Vec<_> = threads.places.iter().map(|place| place.name()).collect();
        assert_eq!(names, ["disk", "fuse", "path"]);
        for wrong in [
            &["--reads", "0"][..],
            &["--reads", "30001"],
            &["--size", "1M"],
            &["--direct", "--size", "100"],
            &["--places", "path"],
            &["--variants", "ring"],
        ] {
            assert_eq!(options(wrong).unwrap_err(), ErrorKind::ValueValidation, "{wrong:?}");
        }
    }

    #[test]
    fn testbench_has_the_flags_of_the_study() {
        let options = |args: &[&str]| {
            let args = [&["bench", "sched"], args].concat();
            match task(&args) {
                Ok(Task::Bench(bench::Options { experiment, runs, .. })) => match experiment {
                    bench::Which::Sched(options) => Ok((*options, runs)),
                    other => panic!("{other:?}"),
                },
                Err(error) => Err(error),
                other => panic!("{other:?}"),
            }
        };
        let (usual, runs) = options(&[]).unwrap();
        assert_eq!((usual.mode, runs, usual.files), (sched::Mode::Testbench, 9, 1));
        assert_eq!(usual.variants, sched::Variant::ALL);
        assert!(!(usual.mix || usual.sparse || usual.cold || usual.direct || usual.quick));
        let all = "--threads 1,16 --rsize 1000,4K --wsize 5 --nreads 10 --nwrites 20 --roff 0 --woff 1M \
                   --nfiles 3 --mix --path /x --sparse --cold --direct --variants aio,blocking --quick";
        let (all, runs) = options(&all.split_whitespace().collect::<Vec<_>>()).unwrap();
        assert_eq!((all.threads, all.read_sizes, runs), (vec![1, 16], vec![1000, 4096], 3));
        assert_eq!((all.write_sizes, all.reads, all.writes), (vec![5], Some(10), Some(20)));
        assert_eq!((all.read_step, all.write_step, all.files), (Some(0), Some(1 << 20), 3));
        assert!(all.mix && all.sparse && all.cold && all.direct && all.quick);
        assert_eq!(all.directory, PathBuf::from("/x"));
        assert_eq!(all.variants, [sched::Variant::Blocking, sched::Variant::Aio]);
        let (others, _) = options(&["--files", "/a,b"]).unwrap();
        assert!(others.others.iter().all(|path| path.is_absolute()) && others.others.len() == 2);
        for (mode, flag) in [
            (sched::Mode::Matrix, "--matrix"),
            (sched::Mode::Fig4, "--fig4"),
            (sched::Mode::Fig5, "--fig5"),
            (sched::Mode::Fig6, "--fig6"),
            (sched::Mode::Utilization, "--utilization"),
        ] {
            assert_eq!(options(&[flag]).unwrap().0.mode, mode);
        }
        let flags = ["--utilization", "--hot", "--cold", "--depth", "1,32", "--compute", "50"];
        let (utilization, _) = options(&flags).unwrap();
        assert!(utilization.hot && utilization.cold && !utilization.direct);
        assert_eq!(utilization.depths, [1, 32]);
        assert_eq!(utilization.computation, Some(Duration::from_micros(50)));
        for wrong in [
            &["--threads", "0"][..],
            &["--utilization", "--depth", "0"],
            &["--utilization", "--fig6"],
            &["--compute", "5"],
            &["--rsize", "0"],
            &["--nreads", "0"],
            &["--roff", "x"],
            &["--variants", "bio"],
            &["--matrix", "--fig4"],
            &["--dense", "--sparse"],
            &["--hot", "--cold"],
            &["--nfiles", "2", "--files", "a"],
            &["--mix", "--rsize", "1"],
        ] {
            assert!(options(wrong).is_err(), "{wrong:?}");
        }
    }
}
