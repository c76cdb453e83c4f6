(* The C functions. The library's other modules check what reaches them. *)

type memory = (char, Bigarray.int8_unsigned_elt, Bigarray.c_layout) Bigarray.Array1.t
type file
type loop
type queue
type waker
type tree

(* The most bytes that a call moves with the runtime lock held. *)
let small = 32 * 1024

external error_of_code : int -> Unix.error = "sakia_ml_error_of_code"
external constants : unit -> int array = "sakia_ml_constants"
external file_none : unit -> file = "sakia_ml_file_none"
external file_adopt : file -> int -> int = "sakia_ml_file_adopt"
external file_lend : file -> int -> int = "sakia_ml_file_lend"
external file_duplicate : file -> int -> int = "sakia_ml_file_duplicate"
external file_number : file -> int = "sakia_ml_file_number" [@@noalloc]

external file_take : file -> memory -> (int[@untagged]) -> unit
  = "sakia_ml_file_take_byte" "sakia_ml_file_take"
  [@@noalloc]

external file_drop : memory -> (int[@untagged]) -> unit = "sakia_ml_file_drop_byte" "sakia_ml_file_drop"
  [@@noalloc]

external try_read : file -> memory -> (int[@untagged]) -> (int[@untagged]) -> (int[@untagged]) ->
  (int[@untagged])
  = "sakia_ml_try_read_byte" "sakia_ml_try_read"
  [@@noalloc]

external try_write : file -> memory -> (int[@untagged]) -> (int[@untagged]) -> (int[@untagged]) ->
  (int[@untagged])
  = "sakia_ml_try_write_byte" "sakia_ml_try_write"
  [@@noalloc]

external try_recv : file -> memory -> (int[@untagged]) -> (int[@untagged]) -> (int[@untagged]) ->
  (int[@untagged])
  = "sakia_ml_try_recv_byte" "sakia_ml_try_recv"
  [@@noalloc]

external try_send : file -> memory -> (int[@untagged]) -> (int[@untagged]) -> (int[@untagged]) ->
  (int[@untagged])
  = "sakia_ml_try_send_byte" "sakia_ml_try_send"
  [@@noalloc]

external try_read_large : file -> memory -> int -> int -> int -> int = "sakia_ml_try_read_large"
external try_write_large : file -> memory -> int -> int -> int -> int = "sakia_ml_try_write_large"
external try_recv_large : file -> memory -> int -> int -> int -> int = "sakia_ml_try_recv_large"
external try_send_large : file -> memory -> int -> int -> int -> int = "sakia_ml_try_send_large"

external try_read_bytes : file -> bytes -> (int[@untagged]) -> (int[@untagged]) -> (int[@untagged]) ->
  (int[@untagged])
  = "sakia_ml_try_read_bytes_byte" "sakia_ml_try_read_bytes"
  [@@noalloc]

external try_write_bytes : file -> bytes -> (int[@untagged]) -> (int[@untagged]) -> (int[@untagged]) ->
  (int[@untagged])
  = "sakia_ml_try_write_bytes_byte" "sakia_ml_try_write_bytes"
  [@@noalloc]

external try_recv_bytes : file -> bytes -> (int[@untagged]) -> (int[@untagged]) -> (int[@untagged]) ->
  (int[@untagged])
  = "sakia_ml_try_recv_bytes_byte" "sakia_ml_try_recv_bytes"
  [@@noalloc]

external try_send_bytes : file -> bytes -> (int[@untagged]) -> (int[@untagged]) -> (int[@untagged]) ->
  (int[@untagged])
  = "sakia_ml_try_send_bytes_byte" "sakia_ml_try_send_bytes"
  [@@noalloc]

(* `Obj.t`: a file or a path, or the integer 0 for none. *)

external try_stat : Obj.t -> Obj.t -> (int[@untagged]) -> memory -> (int[@untagged]) -> (int[@untagged])
  = "sakia_ml_try_stat_byte" "sakia_ml_try_stat"
  [@@noalloc]

external try_open : Obj.t -> string -> (int[@untagged]) -> (int[@untagged]) -> file -> (int[@untagged])
  = "sakia_ml_try_open_byte" "sakia_ml_try_open"
  [@@noalloc]

(* Either the object, or a negative error number. *)
external loop_new : int -> int -> Obj.t = "sakia_ml_loop_new"
external loop_refusal : loop -> (int[@untagged]) = "sakia_ml_loop_refusal_byte" "sakia_ml_loop_refusal"
  [@@noalloc]
external loop_room : loop -> int -> int = "sakia_ml_loop_room"

external loop_submit : loop -> (int[@untagged]) -> 'request -> (int[@untagged])
  = "sakia_ml_loop_submit_byte" "sakia_ml_loop_submit"
  [@@noalloc]

external loop_submit_large : loop -> int -> 'request -> int = "sakia_ml_loop_submit_large"

external loop_take : loop -> memory -> (int[@untagged]) -> (int[@untagged])
  = "sakia_ml_loop_take_byte" "sakia_ml_loop_take"
  [@@noalloc]

external loop_poll : loop -> memory -> (int[@untagged]) -> (int[@untagged])
  = "sakia_ml_loop_poll_byte" "sakia_ml_loop_poll"
  [@@noalloc]

external loop_wait : loop -> memory -> int -> int -> int = "sakia_ml_loop_wait"

external loop_cancel : loop -> (int[@untagged]) -> (int[@untagged])
  = "sakia_ml_loop_cancel_byte" "sakia_ml_loop_cancel"
  [@@noalloc]

external loop_under_way : loop -> (int[@untagged]) = "sakia_ml_loop_under_way_byte" "sakia_ml_loop_under_way"
  [@@noalloc]

external loop_pollable : loop -> int = "sakia_ml_loop_pollable"
external loop_why_no_ring : loop -> string = "sakia_ml_loop_why_no_ring"

external loop_received : loop -> nativeint -> int -> memory -> int -> int -> int
  = "sakia_ml_loop_received_byte" "sakia_ml_loop_received"
  [@@noalloc]

external loop_give_back : loop -> int64 -> int = "sakia_ml_loop_give_back"
external loop_stop : loop -> int -> (int64, Bigarray.int64_elt, Bigarray.c_layout) Bigarray.Array1.t ->
  int -> int
  = "sakia_ml_loop_stop"
external loop_free : loop -> int = "sakia_ml_loop_free"
external loop_waker : loop -> Obj.t = "sakia_ml_loop_waker"
external waker_wake : waker -> unit = "sakia_ml_waker_wake" [@@noalloc]
external queue_new : int -> int -> int -> Obj.t = "sakia_ml_queue_new"
external queue_submit : queue -> int -> 'request -> memory -> bool -> int = "sakia_ml_queue_submit"

external queue_take : queue -> memory -> (int[@untagged]) -> (int[@untagged])
  = "sakia_ml_queue_take_byte" "sakia_ml_queue_take"
  [@@noalloc]

external queue_wait : queue -> memory -> int -> int -> int = "sakia_ml_queue_wait"
external queue_cancel : queue -> int64 -> int = "sakia_ml_queue_cancel"
external queue_under_way : queue -> int = "sakia_ml_queue_under_way"
external queue_pollable : queue -> int = "sakia_ml_queue_pollable"
external queue_why_no_ring : queue -> string = "sakia_ml_queue_why_no_ring"
external queue_waker : queue -> Obj.t = "sakia_ml_queue_waker"
external queue_stop : queue -> int -> (int64, Bigarray.int64_elt, Bigarray.c_layout) Bigarray.Array1.t ->
  int -> int
  = "sakia_ml_queue_stop"
external tree_new : string -> Obj.t -> int -> int -> int -> Obj.t = "sakia_ml_tree_new"
external tree_counts : tree -> (int64, Bigarray.int64_elt, Bigarray.c_layout) Bigarray.Array1.t -> int
  = "sakia_ml_tree_counts"
external tree_failure : tree -> Obj.t = "sakia_ml_tree_failure"
external tree_wait : tree -> int -> int = "sakia_ml_tree_wait"
external tree_pollable : tree -> int = "sakia_ml_tree_pollable"
external tree_cancel : tree -> int = "sakia_ml_tree_cancel"
external address_encode : Unix.sockaddr -> Obj.t = "sakia_ml_address_encode"
external address_decode : memory -> int -> int -> Obj.t = "sakia_ml_address_decode"
external message_size : unit -> int = "sakia_ml_message_size"
external message_header : unit -> int = "sakia_ml_message_header"
external message_prepare : memory -> memory -> int -> int -> int -> unit = "sakia_ml_message_prepare"
external message_facts : memory -> int * int * int = "sakia_ml_message_facts"
external message_descriptors : memory -> int array = "sakia_ml_message_descriptors"
external times : int -> int -> int -> int -> string = "sakia_ml_times"
external fd_of : Unix.file_descr -> int = "%identity"
external fd_to : int -> Unix.file_descr = "%identity"

let none = Obj.repr 0
let fail error operation name = raise (Unix.Unix_error (error_of_code (-error), operation, name))

(* Raises for a negative number, and returns any other. *)
let check operation name number = if number < 0 then fail number operation name else number

(* What a C function returns instead of an object is an error number. *)
let check_object operation name it =
  if Obj.is_int it then fail (Obj.obj it : int) operation name else Obj.obj it

(* Objects that the collector may not take, by a number. No lock: a child of fork(2) might find it locked. *)
module Roots = struct
  module Table = Map.Make (Int)

  let next = Atomic.make 0
  let table = Atomic.make Table.empty

  let rec change f =
    let old = Atomic.get table in
    if not (Atomic.compare_and_set table old (f old)) then change f

  let add it =
    let id = Atomic.fetch_and_add next 1 in
    change (Table.add id (Obj.repr it));
    id

  let remove id = change (Table.remove id)
end
