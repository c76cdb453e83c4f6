//! Notes of the long help below the options.
//!
//! Each paragraph is one line, wrapped to the terminal's width.

pub(super) const JSON_HELP: &str = "\
JSON Lines, with --json:
  {\"type\":\"file\", \"path\":…, \"bytes\":…, \"sum\":…}
      A file that was summed.
  {\"type\":\"error\", \"path\":…, \"operation\":\"open\", \"errno\":2, \"message\":…}
      A file that failed, with the operation. Without a path: the requested backend is unavailable, or, \
with the operation \"usage\", the command line is wrong, and no further lines follow.
  {\"type\":\"summary\", \"files\":…, \"errors\":…, \"bytes\":…, \"sum\":…, \"elapsed_ns\":…, \
\"bytes_per_s\":…, \"reads\":…, \"plain_reads\":…, \"block_bytes\":…, \"depth\":…, \
\"driver\":\"uring\", \"refusal\":…, \"counters\":{…}}
      The last line, unless a signal ended the program. plain_reads counts those of the reads that were \
plain calls on the program's own thread. The driver is uring or poll; the refusal is the reason, if \
poll is used for lack of a ring. The counters are those of the engine.

A path that is not UTF-8 is given as \"path_bytes\", in base64, instead of \"path\".";

pub(super) const ENVIRONMENT_HELP: &str = "\
Environment:
  SAKIA_DRIVER
      auto (the ring if there is one, else poll; the default), uring (the ring, or fail), poll \
(epoll and threads)";

/// Returns the notes on the JSON output of all experiments, with those of one of them.
pub(super) fn bench_json_help(notes: &str) -> String {
    format!(
        "\
JSON Lines, with --json:
  {{\"type\":\"machine\", \"experiment\":…, \"cpu\":…, \"cpus\":…, \"kernel\":…, \"architecture\":…, \
\"memory_bytes\":…, \"directory\":…, \"file_system\":…, \"version\":…, \"optimized\":…}}
      The first line.
  {{\"type\":\"run\", \"experiment\":…, \"variant\":…, \"params\":{{…}}, \"round\":…, \"wall_ns\":…, \
\"cpu_ns\":…, \"voluntary_switches\":…, \"involuntary_switches\":…, \"threads_max\":…, \
\"peak_rss_bytes\":…, \"process_wall_ns\":…, \"process_cpu_ns\":…, \"foreign_cores\":…, \
\"steal_cores\":…, \"noisy\":…, \"sum\":…}}
      After each run. foreign_cores and steal_cores are the processors that other programs, and the \
host of a virtual machine, took; a run is noisy from 0.15 and 0.05 on. Runs of a round are compared \
in pairs.
  {{\"type\":\"result\", \"experiment\":…, \"variant\":…, \"params\":{{…}}, \"runs\":…, \
\"wall_ns\":{{\"median\":…, \"min\":…, \"max\":…}}, \"cpu_ns\":{{…}}, \"voluntary_switches\":…, \
\"involuntary_switches\":…, \"threads_max\":…, \"peak_rss_bytes\":…, \"ops_per_s\":…, \
\"bytes_per_s\":…, \"counters\":{{…}}}}
      For each variant and point, at the end. The counters are those of the run with the median time.
  {{\"type\":\"missing\", \"experiment\":…, \"variant\":…, \"reason\":…}}
      A variant that could not be measured.
  {{\"type\":\"summary\", \"experiment\":…, \"ratios\":[{{\"of\":\"uring/pool\", \"params\":{{…}}, \
\"wall\":…, \"cpu\":…, \"ci95\":[…,…], \"ci95_cpu\":[…,…], \"cpu_best\":…}}]}}
      The last line, unless a signal ended the program. Ratios of times: medians over the rounds, and \
the intervals that contain those of wall and processor time with 95 % probability (order statistics); \
null for fewer than 6 runs. cpu_best is the ratio of the smallest processor times of all rounds.

{notes}"
    )
}

pub(super) const FILE_SUM_NOTES: &str = "The params are size_bytes and block_bytes.";
pub(super) const TCP_SUM_NOTES: &str = "The params are size_bytes and block_bytes.";
pub(super) const ECHO_NOTES: &str = "The params are connections and message_bytes.";
pub(super) const UDP_NOTES: &str = "The params are in_flight and datagram_bytes.";
pub(super) const SEND_FILE_NOTES: &str = "The params are file_bytes.";
pub(super) const SOCKETS_NOTES: &str = "\
The params are cell and exit_us; the counters are the calls of the host by name, and exits, the number of \
those that left the enclave.";
/// Notes of experiments on connections.
pub(super) const NETWORK_NOTES: &str = "\
The machine also has \"network\":{\"namespace\":…, \"congestion\":…, \"processors\":[…,…]}: whether the \
connections are in a namespace of their own, the congestion control, and the processors of server and \
load, or null.";
pub(super) const THREADS_NOTES: &str = "\
The params are place, reads and size_bytes; the counters are the numbers of threads by kind.";
pub(super) const WAL_NOTES: &str = "\
The params are place, writers, record_bytes and records; the counters are syncs and what a driver counts; \
those of fixed and by-latency syncs, limit (at the end), under_way_max, and median and max of call_ns of a \
write, and of record_ns with its wait for admission.";
pub(super) const SCHED_NOTES: &str = "\
The params are threads, files, read_bytes, reads, read_step_bytes, the same for writes, with --utilization \
depth and computation_steps, and those of mix, direct, cold and sparse that are true. Counters of \
--utilization are computing_ns, in_flight_ns, overlap_ns, operations_in_flight_ns (the sum over all \
operations), and utilization_permille.";
pub(super) const COSTS_NOTES: &str = "\
The param is operations: the times are for this number. The counters of nop-64-recorded and event are events \
and events_lost, those of nop-64-measured latency_ns_p50 and latency_ns_p99.";
pub(super) const BASELINE_NOTES: &str = "\
The params are part (sequential-read, sequential-write, random-read, random-write or copy), and size_bytes \
and block_bytes, or files and directories.";
pub(super) const COPYTREE_NOTES: &str = "\
The params are tree, place, files, directories, bytes, cores, and those of cold, after_delete, \
article and archive that are true. The counters are those that Sakia reports of a copy, times in \
microseconds, and disk_read_bytes, the bytes from disk that programs had to wait for.";
