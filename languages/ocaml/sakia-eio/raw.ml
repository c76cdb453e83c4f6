(* Calls of the C part. What is `noalloc` neither waits nor moves more than 32 KiB. *)

type loop
type waker
type handle
type memory = Cstruct.buffer

external loop : int -> loop = "eio_sakia_loop"
external waker : loop -> waker = "eio_sakia_waker"
external wake : waker -> unit = "eio_sakia_wake" [@@noalloc]
external leave_waker : waker -> unit = "eio_sakia_leave_waker" [@@noalloc]
external why_no_ring : loop -> string = "eio_sakia_why_no_ring"
external take : loop -> bytes -> int = "eio_sakia_take" [@@noalloc]
external wait : loop -> bytes -> int -> bool -> int = "eio_sakia_wait"
external cancel : loop -> (int[@untagged]) -> unit = "eio_sakia_cancel_byte" "eio_sakia_cancel" [@@noalloc]
external stop : loop -> int -> int array = "eio_sakia_stop"

(* The answers of a submission that are no results. *)

let pending = -100_000
let full = -100_001

(* So many results fit into the memory of [take] and [wait]. *)

let results_max = 64

(* Operations, as `sakia.h` numbers them. *)

let op_read = 1
let op_write = 2
let op_readv = 3
let op_writev = 4
let op_open = 5
let op_sync = 7
let op_stat = 8
let op_truncate = 10
let op_mkdir = 13
let op_unlink = 14
let op_rename = 15
let op_symlink = 17
let op_readlink = 18
let op_read_directory = 19
let op_poll = 24
let op_send = 31
let op_receive = 32

external move :
  loop ->
  (int[@untagged]) ->
  (int[@untagged]) ->
  memory ->
  (int[@untagged]) ->
  (int[@untagged]) ->
  (int[@untagged]) ->
  (int[@untagged]) ->
  (int[@untagged]) = "eio_sakia_move_byte" "eio_sakia_move"
[@@noalloc]

external move_much : loop -> int -> int -> memory -> int -> int -> int -> int -> int
  = "eio_sakia_move_much_byte" "eio_sakia_move_much"

external move_parts : loop -> int -> int -> Cstruct.t list -> int -> int -> int
  = "eio_sakia_move_parts_byte" "eio_sakia_move_parts"

external file :
  loop ->
  (int[@untagged]) ->
  (int[@untagged]) ->
  (int[@untagged]) ->
  (int[@untagged]) ->
  (int[@untagged]) ->
  (int[@untagged]) = "eio_sakia_file_byte" "eio_sakia_file"
[@@noalloc]

external name :
  loop ->
  (int[@untagged]) ->
  (int[@untagged]) ->
  string ->
  (int[@untagged]) ->
  (int[@untagged]) ->
  (int[@untagged]) ->
  (int[@untagged]) ->
  (int[@untagged]) = "eio_sakia_name_byte" "eio_sakia_name"
[@@noalloc]

external names :
  loop ->
  (int[@untagged]) ->
  (int[@untagged]) ->
  string ->
  (int[@untagged]) ->
  string ->
  (int[@untagged]) ->
  (int[@untagged]) = "eio_sakia_names_byte" "eio_sakia_names"
[@@noalloc]

external fill :
  loop ->
  (int[@untagged]) ->
  (int[@untagged]) ->
  string ->
  (int[@untagged]) ->
  memory ->
  (int[@untagged]) ->
  (int[@untagged]) = "eio_sakia_fill_byte" "eio_sakia_fill"
[@@noalloc]

external copy : loop -> int -> int -> int -> int -> int -> int -> int
  = "eio_sakia_copy_byte" "eio_sakia_copy"

external connect : loop -> int -> Unix.sockaddr -> int -> int = "eio_sakia_connect"

(* Calls without a loop. *)

external lend : int -> handle = "eio_sakia_lend"

external try_move :
  handle ->
  (int[@untagged]) ->
  memory ->
  (int[@untagged]) ->
  (int[@untagged]) ->
  (int[@untagged]) ->
  (int[@untagged]) = "eio_sakia_try_move_byte" "eio_sakia_try_move"
[@@noalloc]

external try_move_much : handle -> int -> memory -> int -> int -> int -> int
  = "eio_sakia_try_move_much_byte" "eio_sakia_try_move_much"

external try_receive :
  (int[@untagged]) -> memory -> (int[@untagged]) -> (int[@untagged]) -> (int[@untagged])
  = "eio_sakia_try_receive_byte" "eio_sakia_try_receive"
[@@noalloc]

external try_send_message :
  int -> Unix.file_descr list -> Unix.sockaddr option -> Cstruct.t list -> int
  = "eio_sakia_try_send_message"

external try_receive_message :
  int -> int -> Cstruct.t list -> int * Unix.sockaddr option * Unix.file_descr list
  = "eio_sakia_try_receive_message"

external facts : (int[@untagged]) -> (int[@untagged]) = "eio_sakia_facts_byte" "eio_sakia_facts" [@@noalloc]
external now : unit -> (int[@untagged]) = "eio_sakia_now_byte" "eio_sakia_now" [@@noalloc]
external error : int -> Unix.error = "eio_sakia_error"
external entries : memory -> int -> (Eio.File.Stat.kind * string) list = "eio_sakia_entries"
external random : memory -> int -> int -> unit = "eio_sakia_random"

external spawn : Unix.file_descr -> Eio_unix.Private.Fork_action.c_action list -> int
  = "eio_sakia_spawn"

external pidfd : int -> int = "eio_sakia_pidfd"
external has_openat2 : unit -> bool = "eio_sakia_has_openat2"
external open_beneath : int -> string -> int -> int -> int = "eio_sakia_open_beneath"

(* Numbers of the kernel's interface. *)

let eagain = -11
let eintr = -4
let o_rdonly = 0
let o_rdwr = 2
let o_creat = 0o100
let o_excl = 0o200
let o_trunc = 0o1000
let o_append = 0o2000
let o_directory = 0o200000
let o_nofollow = 0o400000
let o_path = 0o10000000
let resolve_beneath = 8
let at_removedir = 0x200
let at_symlink_nofollow = 0x100
let pollin = 1
let pollout = 4
let pollerr = 8

(* On Unix a descriptor is its number. *)

external number : Unix.file_descr -> int = "%identity"
external descriptor : int -> Unix.file_descr = "%identity"
