//! The known bugs: what is wrong with each, and which tests are to catch it.
//!
//! Tests that catch a bug at once are named rather than those that hang with it.

use super::{Mutant, Suite, Tests};

/// What random programs are to find, besides the tests of [`ALL`], within a thousand seeds.
const SWEPT: &[&str] = &[
    "again_is_fatal",
    "allowance_never_renewed",
    "close_does_not_wait",
    "credit_not_returned",
    "dropped_close_forgotten",
    "eintr_forgets_in_flight",
    "free_on_drop",
    "late_open_leaks",
    "lost_handle_waits",
    "no_generation_check",
    "nowait_zero_is_the_end",
    "panic_loses_wakes",
    "read_ignores_offset",
    "restart_code_leaks",
    "teardown_frees",
    "vectored_unclamped",
    "wakes_inside_borrow",
];

/// The bugs of [`SWEPT`], with the random programs as their tests.
pub(super) fn swept() -> impl Iterator<Item = Mutant<'static>> {
    let is_swept = |mutant: &&Mutant<'_>| SWEPT.contains(&mutant.name);
    let tests = Tests { suite: Suite::Sweep, words: "a_thousand_seeds" };
    ALL.iter().filter(is_swept).map(move |mutant| Mutant { tests, ..*mutant })
}

/// `name: "what is wrong" => Suite "words in the names of tests";`
macro_rules! table {
    ($($name:ident: $what:literal => $suite:ident $words:literal;)*) => {
        /// All of them.
        pub(super) const ALL: &[Mutant<'static>] = &[$(Mutant {
            name: stringify!($name),
            what: $what,
            tests: Tests { suite: Suite::$suite, words: $words },
            in_turn: true,
        },)*];
    };
}

table! {
    // The driver's core: slots, admission, cancellation, the end.

    free_on_drop: "dropping a handle frees the memory of an operation in flight"
        => Driver "drop_in_every_state arena";
    no_generation_check: "a completion is accepted for whatever is in the slot now"
        => Driver "stale_and_duplicate";
    cancel_dropped_when_full: "a request to cancel that finds no room is forgotten"
        => Driver "drop_in_every_state endless_waiters";
    full_queue_sleeps: "a turn sleeps while operations wait for places that its enter makes"
        => Driver "full_queue";
    revoked_succeeds: "an entry that was taken back reports the no-op's result as its own"
        => Driver "drop_in_every_state";
    close_does_not_wait: "a descriptor is closed while operations on it are in flight"
        => Driver "descriptor_reused";
    credit_not_returned: "a bounded operation keeps its credit for ever"
        => Driver "drop_in_every_state endless_waiters";
    waiting_holds_credit: "operations that wait for ever use up the credits of others"
        => Driver "endless_waiters";
    teardown_frees: "the end of the driver frees what the kernel still holds"
        => Driver "arena undrainable";
    panic_loses_wakes: "a waker that panics takes the wakes after it along"
        => Driver "waker_panics";
    fork_unnoticed: "a forked child uses its parent's ring"
        => Driver "forked_child";
    more_is_last: "a completion that announces more ends the operation"
        => Driver "stale_and_duplicate";
    late_open_leaks: "a descriptor that was opened for nobody stays open"
        => Driver "drop_in_every_state";
    late_accept_leaks: "a connection that was accepted for nobody stays open"
        => Driver "drop_of_sockets";
    eintr_forgets_in_flight: "a signal makes the driver forget what is in flight"
        => Driver "interruptions";
    again_is_fatal: "a kernel that has no room for the moment ends the driver"
        => Driver "interruptions";
    excess_cancels_count: "completions of requests to cancel are believed, however many come"
        => Driver "stale_and_duplicate";
    newcomers_overtake: "an operation is pushed although older ones of its class wait for room"
        => Driver "tiny_ring";
    dropped_close_forgotten: "dropping the handle of a pending close leaves the descriptor open"
        => Driver "descriptor_reused";
    registered_file_kept: "a file that was registered with the ring stays there when it is closed"
        => Driver "registered_files";
    foreign_fd_accepted: "a descriptor of another driver is used as if it were the driver's own"
        => Driver "descriptor_reused";
    memory_not_kept: "the driver's memory is freed though handles of operations refer to it"
        => Driver "handles_after_the_end";
    lost_handle_waits: "a handle whose operation was given up waits for ever"
        => Driver "undrainable";
    wakes_inside_borrow: "a waker is called while the driver is borrowed"
        => Driver "reentrancy";
    dispose_panic_keeps_slot: "an operation whose disposal panics keeps its slot"
        => Driver "waker_panics";
    every_push_enters: "each operation is submitted alone"
        => Driver "counted";
    idle_enters: "a turn with nothing to do enters the kernel"
        => Driver "counted";
    drain_never_learns: "what is ready at once is fetched 20 completions at a time"
        => Driver "counted";
    blocks_not_reused: "the memory of large operations is allocated anew each time"
        => Allocations "large_operations";
    vectored_unclamped: "more buffers are passed to the kernel than it takes"
        => Driver "vectored";
    read_ignores_offset: "every read begins at the start of the file"
        => Conformance "every_case";
    host_counts_trusted: "a host may say that more bytes were moved than were asked for"
        => Driver "injected_results";
    restart_code_leaks: "the kernel's restart codes are reported as errors of their own"
        => Driver "reading";
    late_receive_lost: "what was received for a dropped read is lost"
        => Conformance "every_case_on_the_ring";
    turns_not_taken: "operations of one direction of a connection are in flight together"
        => Driver "multishot";
    inbox_without_bound: "a connection receives without bound what nobody takes"
        => Driver "multishot";
    arrivals_without_bound: "a listener accepts without bound what nobody takes"
        => Driver "multishot";
    unprovided_buffer_taken: "a completion may name a buffer that the kernel does not have"
        => Driver "multishot";
    sends_not_counted: "what many sends bring is fetched 20 completions at a time"
        => Driver "multishot";
    lost_receives_not_told: "whoever waits for an operation that was given up waits for ever"
        => Driver "multishot";
    lack_of_workers_told: "what the kernel has no worker for ends as if somebody had canceled it"
        => Faults "limits::uring::of_threads";

    // Plain calls in place of the queue, and lanes beside a ring.

    nowait_zero_is_the_end: "a read that must not wait and brings nothing ends the file"
        => DriverUnits "tests::bypass::zero_without_waiting";
    unsupported_not_learned: "a file system that cannot refuse to wait is asked again and again"
        => DriverUnits "tests::bypass::what_cannot_refuse";
    heat_never_learns: "each read of a cold file is tried first"
        => DriverUnits "tests::bypass::what_would_block";
    breaker_never_opens: "plain calls go on however long the last ones took"
        => DriverUnits "tests::bypass::plain_writes_stop tests::bypass::a_few_slow";
    breaker_never_patient: "a disk that stands still is tried again at the same short intervals"
        => DriverUnits "tests::bypass::plain_writes_stop";
    whole_size_not_checked: "a short read counts as a whole file"
        => DriverUnits "tests::bypass::a_whole_file";
    allowance_never_renewed: "what was left for the next turns is never done"
        => Driver "bypass::what_exceeds_a_turn";
    plain_calls_without_limit: "a task that works long between plain calls keeps all others waiting"
        => Simulated "rounds::a_timer_fires_between_reads rounds::tasks_take_turns";
    dropped_deferred_forgotten: "dropping what waits for the next turn keeps its memory"
        => Driver "bypass::a_deferred_read_that_is_dropped";
    vectored_counts_parts_as_bytes: "a turn copies any number of bytes if they are in few parts"
        => Driver "bypass::large_copies";
    direct_read_plainly: "a read past the page cache is waited for on the driver's thread"
        => Driver "bypass::direct_io";
    durable_written_plainly: "a durable write is waited for on the driver's thread"
        => Driver "bypass::durable_writes";
    foreign_block_used: "a plain call uses registered memory of another driver"
        => Driver "bypass::registered_memory_of_another";
    remote_read_plainly: "a read that a server answers is waited for on the driver's thread"
        => Driver "bypass_lanes::reads_and_writes_of_a_remote_file";
    remote_closed_plainly: "a server is waited for on the driver's thread to close a file"
        => Driver "bypass_lanes::closing_a_remote_file";
    file_size_limit_ignored: "a plain write beyond the limit on the size of files kills the process"
        => Driver "bypass::a_limit_on_the_size";
    lane_cancel_sent_to_ring: "a cancel of what a lane has goes to the ring, which knows nothing of it"
        => Driver "bypass_lanes::what_waits_for_a_thread";
    lane_results_do_not_wake: "a turn sleeps on when a thread of a lane is done"
        => Driver "bypass_lanes::a_result_wakes";

    // The backend on epoll and threads: the lanes.

    lane_without_bound: "a lane starts a thread for each job"
        => DriverUnits "tests::lanes tests::opens::a_full_elastic_lane";
    newest_job_first: "a lane performs the job that came last first"
        => DriverUnits "tests::lanes";
    lane_thread_ends_on_job: "a thread that gives up waiting does not look at the queue again"
        => DriverUnits "tests::lanes::work_that_comes";
    jobs_without_threads_wait: "jobs of a lane that gets no thread wait for ever"
        => DriverUnits "tests::sandbox::without_threads";
    endless_jobs_on_bounded: "what may wait for ever stays on the lane for what ends"
        => DriverUnits "tests::opens::a_full_elastic_lane tests::opens::opening_a_fifo";
    fifo_opened_to_find_out: "a FIFO is opened without waiting, which its other side sees"
        => DriverUnits "tests::opens::opening_a_fifo";
    socket_mode_kept: "a socket stays in the mode that it is put into for a call"
        => DriverUnits "epoll::tests::sockets::sockets_made_here";
    given_socket_is_own: "a socket that was given away is still taken for one's own"
        => DriverUnits "epoll::tests::sockets::a_socket_that_was_given";
    others_sockets_are_own: "the mode of sockets is changed that others made"
        => DriverUnits "epoll::tests::sockets::a_listener_of_others";
    opened_files_nonblocking: "files stay in the mode in which they were opened to find out"
        => DriverUnits "tests::opens::files_are_opened";
    running_job_canceled: "a job that a thread performs is reported as canceled"
        => DriverUnits "tests::cancel::a_job_is_canceled";
    canceled_try_waits_again: "what was canceled while a thread tried it waits on"
        => DriverUnits "tests::cancel::an_operation_that_a_thread_tries";
    end_keeps_queued_jobs: "jobs begin after the backend's end"
        => DriverUnits "tests::lanes::the_end_does_not_wait";
    stuck_job_told_again: "a stuck job is reported again and again"
        => DriverUnits "tests::opens::a_stuck_open";
    sleep_ignores_stuck: "a sleep goes on when a job has become stuck"
        => DriverUnits "tests::opens::a_stuck_open";
    lanes_see_signals: "signals are delivered to the lanes' threads"
        => DriverUnits "sys::signals tests::lanes::threads_have_names";

    // Its inbox, and who wakes it.

    sleeping_epoll_not_woken: "a result wakes nobody"
        => DriverUnits "epoll::inbox";
    epoll_sleeps_on_news: "it sleeps though there is a result"
        => DriverUnits "epoll::inbox::tests::a_wake_before";
    late_result_kept: "a descriptor that is opened after the end stays open"
        => DriverUnits "epoll::inbox::tests::a_closed_inbox";
    foreign_loop_not_told: "a foreign loop that polls is not told of results"
        => DriverUnits "tests::wakes::a_foreign_loop";
    watch_ignores_present: "a foreign loop is not told of what was there when it came"
        => DriverUnits "tests::wakes::a_foreign_loop";
    busy_loop_sees_no_events: "a loop that never sleeps never looks at epoll"
        => DriverUnits "tests::wakes::a_loop_that_never_sleeps";
    interruption_hides_results: "a signal is reported though there are results"
        => DriverUnits "tests::wakes::a_signal";
    child_uses_epoll: "a forked child uses its parent's epoll set and threads"
        => DriverUnits "tests::fork tests::sandbox::without_memory";

    // Its queues, and what it watches.

    overflow_is_overtaken: "completions overtake those that found the queue full"
        => DriverUnits "epoll::queue";
    other_entry_revoked: "another entry than asked for is taken back"
        => DriverUnits "epoll::queue";
    late_reads_overtake: "a read takes what came for one that waits already"
        => DriverUnits "tests::streams::a_late_read";
    watch_not_armed_again: "a descriptor is watched for one event only"
        => DriverUnits "tests::streams::a_read_waits";
    watch_not_renewed: "a number that was closed and is used again is not watched"
        => DriverUnits "epoll::registry tests::streams::a_number";
    event_of_old_file: "an event of a file that was closed is taken for one of the new"
        => DriverUnits "epoll::registry";
    watch_never_rests: "events for nothing keep the thread busy"
        => DriverUnits "epoll::registry";
    rest_without_end: "a watch that rests is not looked after"
        => DriverUnits "tests::streams::a_watch_that_rests";
    foreign_loop_misses_rest: "a watch rests though only a foreign loop could end it"
        => DriverUnits "tests::wakes::nothing_rests";
    close_leaves_waiters: "operations wait for a descriptor that was closed"
        => DriverUnits "tests::cancel::closing";
    lasting_watch_kept: "a number is watched on for the file that had it before"
        => DriverUnits "epoll::registry";
    newest_buffer_first: "the buffer that was provided last is used first"
        => DriverUnits "epoll::group";
    used_buffer_stays: "a buffer that a completion has named is used again"
        => DriverUnits "epoll::group epoll::tests::multishot";
    multishot_without_end: "a peer that always sends keeps all others waiting"
        => DriverUnits "epoll::tests::multishot::a_peer_that_always";

    // How it moves bytes.

    short_transfer_is_whole: "a part is reported as all that was asked for"
        => DriverUnits "tests::streams::data_that_is_there";
    blocking_write_unclipped: "a thread writes more than there is known to be room for"
        => DriverUnits "epoll::transfer";
    sigpipe_raised: "a write to nobody raises a signal"
        => DriverUnits "tests::streams::writing_to_nobody";
    sigpipe_left_pending: "the signal of a write to nobody comes a little later"
        => DriverUnits "tests::streams::writing_to_nobody";
    sigpipe_of_others_taken: "a signal that was pending before is taken along"
        => DriverUnits "sys::signals";

    // The runtime's threads: tasks, wakes, sleeping.

    sleeping_thread_not_woken: "a wake from another thread wakes nobody"
        => RuntimeOnPoll "tasks::wakes_from_another_thread";
    parks_with_mail: "a thread sleeps though a task was sent to it"
        => RuntimeOnUring "counted::a_million teardown::uring::while_tasks_are_sent";
    main_wake_lost: "a future that wakes itself outside of tasks is forgotten"
        => RuntimeOnPoll "teardown::poll::of_a_runtime_without_tasks";
    batch_without_end: "tasks that always yield keep timers and operations waiting"
        => RuntimeOnUring "teardown::uring::of_one_round time::timers_fire_while";
    busy_thread_starves_driver: "operations end only when no task is ready"
        => RuntimeOnUring "teardown::uring::is_not_kept_waiting_by_tasks";
    newest_task_first: "the task that was woken last runs first"
        => RuntimeOnPoll "budget::a_thousand_files";
    panic_escapes_task: "a panic of a task is one of its runtime"
        => RuntimeOnPoll "tasks::a_panic";
    destructor_panic_escapes: "a panic in a task's destructor is one of its runtime"
        => RuntimeOnPoll "tasks::a_destructor";
    abort_detaches: "an aborted task goes on"
        => RuntimeOnPoll "blocking::aborted tasks::an_aborted";
    cancel_does_not_wait: "canceling a task does not wait for its end"
        => RuntimeOnPoll "structured::a_set_aborts";
    ended_tasks_counted: "tasks that have ended count as alive"
        => RuntimeOnPoll "tasks::results_come_back";
    ended_tasks_listed: "the wakers of tasks that have ended are kept"
        => RuntimeUnits "executor";

    // Its end.

    tasks_outlive_runtime: "tasks that wait are not dropped with their runtime"
        => RuntimeOnPoll "tasks::tasks_end_with_their_runtime";
    late_tasks_left: "tasks that are started while their runtime ends are not dropped"
        => RuntimeOnPoll "teardown::poll::of_tasks_that_start_others";
    threads_not_joined: "the end of a runtime does not wait for its threads"
        => RuntimeOnPoll "teardown::poll::of_tasks_on_other_threads";

    // A runtime in a foreign loop.

    run_once_ignores_limit: "it sleeps for longer than the loop allows"
        => RuntimeOnPoll "counted::a_runtime_with_nothing_to_do";
    run_once_does_not_park: "a wake from another thread does not make the descriptor readable"
        => RuntimeOnPoll "foreign::what_other_threads";
    pollable_never_quiet: "the descriptor stays readable"
        => RuntimeOnUring "foreign::what_comes";

    // Time.

    cascade_fires_early: "timers fire when their slot is reached"
        => RuntimeUnits "wheel";
    deadline_of_slot: "the next deadline is that of a slot"
        => RuntimeUnits "wheel";
    timers_early: "deadlines are rounded down"
        => RuntimeOnPoll "time::deadlines_within";
    sleeps_past_timers: "a thread that sleeps forgets its timers"
        => RuntimeUnits "timers";
    dropped_timer_stays: "a timer that was dropped wakes the thread"
        => RuntimeOnPoll "time::a_timer_can_be_dropped time::a_waker_may";
    timer_wakes_first_task: "a timer wakes the task that polled it first"
        => RuntimeOnPoll "time::the_task_that_polled_last";
    reset_timer_not_moved: "a timer that was moved fires when it would have"
        => RuntimeOnPoll "time::a_reset_timer";
    timeout_looks_at_time_first: "a future that is ready in time loses"
        => RuntimeOnPoll "time::a_timeout_is_won";
    interval_drifts: "ticks are counted from when the last was taken"
        => RuntimeOnPoll "time::missed_ticks";
    time_passes_with_operations: "virtual time passes while an operation is in flight"
        => RuntimeUnits "timers";

    // Tasks that belong together.

    dropped_set_detaches: "the tasks of a set that is dropped go on"
        => RuntimeOnPoll "structured::a_dropped_set";
    abort_all_is_lazy: "the tasks of an aborted set end when they are asked for"
        => RuntimeOnPoll "structured::a_dropped_set";
    scope_ends_with_body: "a scope does not wait for its children"
        => RuntimeOnPoll "structured::a_scope_waits";
    new_child_unnoticed: "a child that another task starts waits for the next wake"
        => RuntimeOnPoll "structured::a_child_that_another_task";
    queued_children_leak: "children that have not begun outlive their scope"
        => RuntimeOnPoll "structured::a_dropped_scope";
    failure_spares_siblings: "the siblings of a child that failed go on"
        => RuntimeOnPoll "structured::the_first_failure";
    failed_scope_does_not_wait: "a scope that failed ends before its children"
        => RuntimeOnPoll "structured::the_first_failure";
    failed_scope_takes_more: "a scope that failed starts children"
        => RuntimeOnPoll "structured::a_scope_that_fails";
    dropped_scope_detaches: "the children of a scope that is dropped go on"
        => RuntimeOnPoll "structured::a_spawned_scope_dropped";
    loop_without_limit: "a concurrent loop takes all items at once"
        => RuntimeOnPoll "structured::a_loop_keeps";
    task_local_stays: "a task's value is seen by others"
        => RuntimeOnPoll "structured::values_follow";

    // Tokens and budgets.

    cancel_wakes_one: "of those who wait for a token one is woken"
        => RuntimeOnPoll "structured::everybody_who_waits";
    cancel_stops_at_children: "tokens below the children are not canceled"
        => RuntimeOnPoll "structured::a_long_chain";
    late_child_not_canceled: "the child of a canceled token is not canceled"
        => RuntimeOnPoll "structured::racing_children";
    dropped_tokens_listed: "tokens that were dropped stay in the tree"
        => RuntimeUnits "cancel";
    budget_overtakes: "a request that fits overtakes one that waits"
        => RuntimeOnPoll "budget::requests_are_served";
    release_serves_one: "a share that comes back is given to one request at most"
        => RuntimeOnPoll "budget::requests_are_served";
    dropped_request_blocks: "a request that is dropped keeps those behind it waiting"
        => RuntimeOnPoll "budget::a_dropped_request";
    unseen_grant_lost: "the share of a request that is dropped unseen is lost"
        => RuntimeUnits "budget";
    permit_not_returned: "a permit's share does not come back"
        => RuntimeUnits "budget";

    // Code that blocks.

    blocking_panic_escapes: "a panic of blocking code is reported as a cancellation"
        => RuntimeOnPoll "blocking::a_panic";
    idle_thread_not_woken: "work waits though a thread is idle"
        => RuntimeOnPoll "blocking::aborted_work blocking::results_come_back";
    pool_thread_ends_on_work: "a thread that gives up waiting does not look at the queue again"
        => RuntimeOnPoll "blocking::work_that_comes";
    pool_without_cap: "there is a thread for each piece of work"
        => RuntimeOnPoll "blocking::threads_are_started";
    pool_threads_stay: "idle threads outlive their pool"
        => RuntimeUnits "blocking";
    room_not_given_back: "a piece of work keeps its place in the queue"
        => RuntimeOnPoll "blocking::a_full_queue";
    detached_work_lost: "work that was held back is dropped with its handle"
        => RuntimeOnPoll "blocking::dropped_handles";
    aborted_work_keeps_place: "work that was held back and aborted waits in the queue"
        => RuntimeOnPoll "blocking::aborted_work";

    // What random programs alone are to find.

    cancel_overrides_value: "what was to be canceled counts as canceled, though it was done"
        => Sweep "a_thousand_seeds";
    first_waker_kept: "who asks again with another waker is told by the first"
        => Sweep "a_thousand_seeds";
    token_lost: "an operation that is done is not reported by its token"
        => Sweep "a_thousand_seeds";
    written_count_is_length: "a short write counts as a whole one"
        => Sweep "a_thousand_seeds";
    open_drops_flags: "files are opened without cutting, appending or exclusion"
        => Sweep "a_thousand_seeds";
    rename_drops_flags: "names are replaced that were not to be"
        => Sweep "a_thousand_seeds";
    unlink_drops_flags: "directories are removed like files"
        => Sweep "a_thousand_seeds";
    vectored_reversed: "the buffers of a vector are used from the last to the first"
        => Sweep "a_thousand_seeds";

    // What is durable.

    save_not_synced: "a file that is saved gets its name before its contents are durable"
        => RuntimeOnPoll "crashes::a_saved_file";
    saved_name_not_synced: "a file counts as saved before its name is durable"
        => RuntimeOnPoll "crashes::a_saved_file";
    durable_name_not_synced: "a file counts as durable before its name is"
        => RuntimeOnPoll "crashes::what_was_written_durably";
    directory_of_link_synced: "of a link's target not its own name is made durable"
        => RuntimeOnPoll "crashes::a_file_made_durable_through_a_link";
    durable_write_is_plain: "a durable write is a write"
        => RuntimeOnPoll "crashes::single_writes";
    running_sync_serves_all: "a commit is served by a sync that began before it"
        => RuntimeOnPoll "crashes::what_a_group_has_committed";
    failed_sync_tried_again: "a sync that failed is tried again, and believed"
        => RuntimeOnPoll "crashes::a_lost_sync crashes::what_a_group_has_committed";

    // The network.

    only_first_address_tried: "when nobody answers at the first address, the others are not tried"
        => Net "streams::poll::the_first_address";
    tried_addresses_unnamed: "an error names the last address only"
        => Net "streams::poll::without_an_answer";
    short_send_is_whole: "writing all to a connection ends with the first part"
        => Net "simulated::a_lot";
    dropped_half_leaves_open: "the peer does not learn that the half that writes was dropped"
        => Net "simulated::a_dropped_write_half";
    broken_connection_fails_accept: "a connection that broke off before it was accepted is an error"
        => Net "bad_peers::poll::reset_before";
    serving_ends_without_descriptors: "a server ends when there is no descriptor left"
        => Net "simulated::descriptors";
    serving_ignores_the_most: "a server takes more connections than it may"
        => Net "serving::poll::no_more";
    serving_ignores_deadline: "a server that is to stop waits for all connections"
        => Net "simulated::a_server";

    // The engine below other runtimes.

    engine_stop_does_not_wait: "an engine has stopped while requests are under way"
        => Engine "ends::poll::a_stop_waits";
    stopped_engine_attempts: "a stopped engine does what takes no wait"
        => Engine "files::poll::many_requests_are_one";
    engine_used_after_fork: "a forked child waits for threads of its parent"
        => Engine "ends::poll::a_forked_child";
    engine_offset_is_position: "an offset that is too large is taken for the file's position"
        => Engine "files::poll::the_position";
    part_of_transfer_lost: "what was transferred in earlier parts is not told"
        => Engine "files::poll::what_is_large";
    short_read_is_all: "a read that took no wait is all there is, though there is more"
        => Engine "files::poll::what_is_large";
    large_in_one_turn: "others have no turn while much is read"
        => Engine "files::poll::what_is_large";
    opened_now_stays_nonblocking: "a file that was opened at once cannot block"
        => Engine "paths::poll::what_is_cached";
    fifo_read_at_once: "a FIFO without a writer is at its end"
        => Engine "files::poll::a_fifo";
    batch_is_not_bounded: "one batch is under way as a whole, and others wait for all of it"
        => Engine "files::poll::a_batch";
    remote_opened_here: "who asks for a file waits for its server"
        => Engine "remote::poll::to_open";
    remote_closed_here: "who drops a file waits for its server"
        => Engine "remote::poll::to_close";

    // Signals, processes, forks, shutdown, streams.

    forked_child_runs_tasks: "a forked child runs its parent's tasks once more"
        => Faults "forks_and_panics::uring::forks";
    signals_taken_in_parts: "many signals are several"
        => RuntimeOnPoll "signals::many_signals";
    dropped_listener_stays: "a listener that was dropped is told of signals"
        => RuntimeUnits "signal";
    dropped_child_stays_zombie: "a child that was dropped is not reaped"
        => RuntimeOnPoll "processes::a_dropped_child";
    reaper_not_woken: "the thread that reaps does not learn of a child"
        => RuntimeOnPoll "processes::a_dropped_child";
    wait_keeps_stdin_open: "a child that reads to the end is waited for without closing its input"
        => RuntimeOnPoll "processes::waiting_closes";
    child_not_killed: "a child that was to be killed goes on"
        => RuntimeOnPoll "processes::kill_on_drop";
    drain_ignores_deadline: "a shutdown waits for all work"
        => RuntimeOnPoll "shutdown::the_deadline";
    end_of_work_unnoticed: "a shutdown does not learn that the last work has ended"
        => RuntimeOnPoll "shutdown::work_is_waited_for";
    short_write_is_whole: "writing all ends with the first part"
        => RuntimeOnPoll "pipes::a_lot_goes_through";
    interruption_ends_try: "a call that a signal interrupted is not tried again"
        => RuntimeOnPoll "readiness::errors_end";
}
