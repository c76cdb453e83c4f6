//! One suite for every backend: an operation does the same on each of them.
//!
//! Each case is a function over a [`Stage`], which makes drivers, files and pipes on one backend. The suite
//! runs all cases on all backends, and asserts how many it ran on each. A backend that this machine does not
//! offer is a loud skip, which `SAKIA_DENY_SKIPS` turns into a failure; a case that a backend may leave out
//! is listed in `skips.txt` with its reason.

#![expect(
    clippy::unwrap_used,
    reason = "the failure of a test, or of what it calls, is its report"
)]

mod connections;
mod datagrams;
mod files;
mod messages;
mod names;
mod pipes;
mod plain;
mod receivers;
mod room;
mod send_file;
mod sockets;
mod splice;
mod stage;
mod turns;

use std::sync::{Mutex, PoisonError};

use sakia_driver::{Bypass, Rules};
use stage::{Kind, Stage};

/// A case: its module, its name and its function.
type Case = (&'static str, &'static str, fn(&Stage));

/// Defines `CASES` and `SOURCES`; each case is named after its function.
macro_rules! cases {
    ($($module:ident: $($case:ident)*;)*) => {
        const CASES: &[Case] = &[$($((stringify!($module), stringify!($case), $module::$case),)*)*];
        /// The source text of each module.
        const SOURCES: &[&str] = &[$(include_str!(concat!(stringify!($module), ".rs"))),*];
    };
}

cases! {
    files:
        a_read_begins_at_its_offset
        a_read_past_the_end_is_short_then_empty
        a_read_without_room_is_refused
        an_empty_vector_is_filled_up_to_its_capacity
        what_is_not_read_into_capacity_leaves_no_length
        a_room_is_filled_by_several_reads
        the_position_moves_with_reads_that_ask_for_it
        a_write_lands_at_its_offset
        a_write_past_the_end_leaves_zeros
        appending_ignores_the_offset
        parts_are_filled_in_order
        parts_without_a_length_are_filled_up_to_their_capacity
        parts_are_written_in_order
        parts_without_room_are_refused
        a_write_of_nothing_writes_nothing
        registered_memory_reads_and_writes
        what_was_not_opened_for_it_is_refused
        a_missing_file_is_missing
        an_exclusive_file_must_not_exist
        truncating_empties
        a_path_has_a_size
        an_open_file_has_a_size
        a_missing_path_has_no_size
        what_was_written_can_be_synced
        a_closed_file_is_closed
        a_late_descriptor_is_closed;
    names:
        a_directory_is_made
        a_name_is_removed
        an_empty_directory_is_removed
        a_name_moves
        directories_move_and_do_not_get_into_themselves
        a_rename_spares_or_exchanges
        a_file_has_several_names
        a_symbolic_link_leads_on
        chains_of_links_have_an_end
        a_directory_opens_to_be_read_only
        a_confined_path_stays_beneath_its_directory
        a_path_without_links_refuses_them
        a_confined_path_can_create
        how_to_open_is_checked
        a_late_confined_descriptor_is_closed;
    room:
        a_file_gets_the_length_it_is_given
        room_is_allocated
        a_range_is_written_back
        advice_is_taken
        transfers_take_flags
        each_flag_of_a_transfer_is_taken_or_refused
        each_flag_of_a_statx_is_taken_or_refused
        a_read_that_must_not_wait_does_not
        each_family_has_a_count;
    plain:
        a_directory_is_listed
        a_directory_can_be_emptied_while_it_is_listed
        what_cannot_be_listed_is_refused
        a_link_tells_where_it_points_to
        permissions_are_set
        owners_are_kept_or_set
        times_are_set
        bytes_are_copied_from_file_to_file
        a_copy_is_refused_where_it_makes_no_sense
        a_file_system_is_synced_and_described
        a_lock_keeps_others_out
        a_dropped_lock_ends_with_its_descriptor
        extended_attributes_are_kept
        names_and_links_are_read_into_capacity
        plain_calls_have_counts;
    pipes:
        a_read_waits_for_a_write
        streams_have_no_offsets
        a_write_waits_for_room
        a_pipe_without_writers_is_at_its_end
        a_pipe_without_readers_is_broken
        a_canceled_read_says_so
        a_stream_is_read_into_capacity
        a_read_without_room_does_not_wait
        a_canceled_write_says_so
        a_dropped_read_takes_nothing_along
        readiness_comes_with_data
        readiness_to_write_is_there
        a_hang_up_is_reported
        a_canceled_poll_says_so
        a_close_ends_what_waits
        reads_of_one_pipe_are_served_in_order
        many_waiters_keep_no_file_read_out;
    splice:
        a_pipe_is_spliced_to_a_file
        a_file_is_spliced_to_a_pipe
        a_splice_waits_for_bytes_and_for_their_end
        a_splice_waits_for_room
        a_splice_goes_to_sockets_and_comes_from_them
        a_splice_waits_for_room_in_a_socket
        a_canceled_splice_moves_nothing
        a_close_ends_a_splice
        the_end_of_the_driver_ends_a_splice
        a_splice_is_refused_where_it_makes_no_sense;
    send_file:
        a_range_of_a_file_is_sent
        much_of_a_file_is_sent_piece_by_piece
        a_full_stream_refuses_a_file
        a_stream_that_sends_a_file_keeps_its_mode
        a_stream_that_sends_a_file_has_its_mode_when_that_matters
        a_stream_of_others_is_sent_to_as_it_is
        a_pipe_is_sent_on_a_stream
        a_file_is_not_sent_where_that_makes_no_sense
        a_dropped_send_of_a_file_is_sent_before_the_next
        no_file_is_sent_after_the_end
        a_file_is_sent_in_place_if_it_is_cached;
    sockets:
        a_stream_carries_bytes_both_ways
        what_is_sent_in_turn_arrives_in_order
        much_goes_through_little_room
        an_end_of_sending_is_one_of_receiving
        a_closed_connection_is_at_its_end
        unread_bytes_break_a_connection_off
        where_nobody_listens_is_refused
        an_address_is_taken_once
        a_path_is_an_address
        addresses_are_told
        an_accept_waits_for_a_connection
        a_dropped_accept_takes_no_connection_along
        a_late_connection_is_closed
        a_dropped_receive_leaves_the_bytes
        a_canceled_send_says_so
        a_shutdown_ends_what_waits
        a_close_ends_an_accept
        a_peek_leaves_the_bytes
        a_receive_that_does_not_wait_goes_ahead_of_one_that_does
        a_socket_is_received_from_into_capacity
        a_receive_without_room_is_refused
        what_must_not_wait_does_not
        what_makes_no_sense_is_refused
        messages_go_over_streams
        several_buffers_go_and_come_as_one
        sockets_are_read_and_written
        readiness_of_sockets_is_told
        both_versions_of_the_internet_work
        a_pair_of_streams_is_connected
        a_peer_tells_its_credentials
        operations_on_sockets_are_counted;
    connections:
        pieces_arrive_in_order
        a_dropped_receive_keeps_its_descriptors
        what_need_not_wait_is_done_at_once
        what_was_received_can_be_sent_on
        a_dropped_receive_of_a_connection_loses_nothing
        a_peek_shows_what_the_next_receive_brings
        a_connection_is_read_into_capacity
        a_connection_tells_its_end_after_its_bytes
        a_connection_that_was_broken_off_says_so
        a_slow_reader_holds_its_peer_back
        buffers_grow_with_what_comes
        receives_go_on_when_all_buffers_are_held
        sends_wait_for_the_one_before
        parts_are_sent_in_order
        a_dropped_wait_for_a_connection_loses_none
        one_connection_is_accepted_and_the_others_wait
        connections_that_nobody_takes_are_closed
        a_failed_accept_is_told_and_the_next_tries_again
        the_end_of_the_driver_ends_connections
        a_close_ends_a_receive;
    datagrams:
        datagrams_keep_their_bounds
        a_datagram_is_waited_for
        a_long_datagram_is_cut
        the_length_asked_of_a_stream_shows_no_old_memory
        a_datagram_goes_into_capacity
        a_socket_of_datagrams_gets_a_peer
        a_datagram_to_nobody_is_refused
        a_dropped_receive_leaves_the_datagram
        a_pair_exchanges_datagrams
        a_shutdown_ends_receives_of_datagrams
        a_batch_is_moved_by_a_plain_call
        a_datagram_is_sent_by_a_plain_call
        a_batch_counts_as_many_plain_calls;
    receivers:
        a_receiver_brings_datagrams_whole_and_in_order
        a_dropped_receive_of_a_receiver_loses_no_datagram
        a_receiver_tells_what_it_cut
        a_receiver_holds_back_a_bounded_number
        a_receiver_tells_an_error_once_and_goes_on
        descriptors_come_to_a_receiver_once
        a_close_ends_a_receiver
        a_shutdown_ends_a_receiver
        a_receiver_is_told_that_others_have_ended_it
        a_receiver_of_packets_is_told_that_its_peer_has_left
        what_a_receiver_brought_is_taken_in_order;
    messages:
        a_descriptor_is_passed_and_used
        a_socket_is_passed_and_goes_on
        control_messages_that_do_not_fit_leave_nothing_open
        descriptors_that_nobody_takes_are_closed
        a_peek_brings_copies_of_descriptors
        descriptors_bound_what_a_stream_brings
        a_message_waits_with_its_descriptors
        messages_that_make_no_sense_are_refused
        packets_tell_their_class_and_their_way
        packets_of_version_6_tell_theirs
        a_message_is_cut_into_segments;
    turns:
        a_no_op_does_nothing
        an_idle_turn_returns
        a_turn_ends_with_its_time
        tokens_come_in_the_order_of_completion
        a_queue_of_two_entries_serves_thousands
        the_end_cancels_what_waits
        results_outlive_the_driver
        nothing_starts_after_the_end
        operations_are_counted_by_kind
        what_is_canceled_before_it_is_submitted_says_so;
}

/// Held to run one backend at a time: cases check whether a descriptor's number is open, and all threads of a
/// process share these numbers.
static TURN: Mutex<()> = Mutex::new(());

fn run(kind: Kind, bypass: &Bypass) {
    run_some(kind, bypass, |_| true);
}

/// Runs the cases of some modules.
fn run_some(kind: Kind, bypass: &Bypass, is_wanted: fn(&str) -> bool) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let skips = stage::skips(kind);
    let mut ran = 0;
    let wanted = CASES.iter().filter(|(module, ..)| is_wanted(module));
    for &(_, name, case) in wanted.clone() {
        if skips.contains(&name) {
            continue;
        }
        match Stage::new(kind, bypass.clone(), name) {
            Ok(stage) => {
                eprintln!("{kind}: {name}");
                case(&stage);
            }
            Err(reason) => {
                let denied = std::env::var_os("SAKIA_DENY_SKIPS").is_some();
                assert!(!denied, "skips are denied, and {kind} must skip: {reason}");
                return eprintln!("SKIP {kind}: {reason}");
            }
        }
        ran += 1;
    }
    assert_eq!(ran, wanted.count() - skips.len(), "{kind}: a skip names no case");
    println!("{kind}: {ran} cases");
}

#[test]
fn every_case_on_the_ring() {
    run(Kind::Uring, &Bypass::Never);
}

/// Receiving by readiness changes nothing for the other cases.
#[test]
fn every_case_of_streams_by_readiness() {
    run_some(Kind::Readiness, &Bypass::Never, |module| module == "connections");
}

#[test]
fn every_case_on_epoll_and_threads() {
    run(Kind::Poll, &Bypass::Never);
}

#[test]
fn every_case_on_the_simulated_kernel() {
    run(Kind::Sim, &Bypass::Never);
}

#[test]
fn every_case_with_plain_calls() {
    for kind in [Kind::Uring, Kind::Poll, Kind::Sim] {
        run(kind, &Bypass::Rules(Rules::default()));
    }
}

#[test]
fn every_case_is_on_the_list() {
    let lines = SOURCES.iter().flat_map(|source| source.lines());
    let heads = lines.filter_map(|line| line.strip_prefix("pub fn ")?.strip_suffix(": &Stage) {"));
    let heads = heads.filter_map(|head| head.split_once('('));
    let written: Vec<&str> =
        heads.filter(|(_, rest)| !rest.contains(',')).map(|(name, _)| name).collect();
    let mut listed: Vec<&str> = CASES.iter().map(|&(_, name, _)| name).collect();
    let mut missing = written.clone();
    missing.retain(|name| !listed.contains(name));
    assert_eq!(missing, [""; 0], "written, and not listed");
    listed.retain(|name| !written.contains(name));
    assert_eq!(listed, [""; 0], "listed, and of another form than the others");
}
