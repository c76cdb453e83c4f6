(** The C part. It checks nothing: the scheduler and its users keep the rules below.

    A function with a {!loop} is for the thread that made the loop, unless it says otherwise. Where one is
    [noalloc] it neither waits nor moves more than 32 KiB, and holds the runtime lock. Files are numbers,
    which stay open until the request's result was taken; [-1] stands for the working directory. An offset
    of [-1] is the file's own position. A negative value is an error number. *)

type loop

type memory = Cstruct.buffer
(** Memory that a request uses stays alive, and is neither read nor changed, until its result was taken. *)

(** {1 Loops} *)

external loop : int -> loop = "eio_sakia_loop"
(** [loop under_way_max] makes a loop for the calling thread. {!stop} frees it; no finalizer does.
    @raise Unix.Unix_error the reason why there is none. *)

external why_no_ring : loop -> string = "eio_sakia_why_no_ring"
(** Returns the reason, as text; an empty one if there is a ring. *)

external take : loop -> bytes -> int = "eio_sakia_take" [@@noalloc]
(** [take loop results] writes results that are there, without a system call: for each a token and a value,
    of 8 bytes each, in the machine's order. [results] has room for {!results_max} of them. Returns their
    number. *)

external wait : loop -> bytes -> int -> bool -> int = "eio_sakia_wait"
(** [wait loop results timeout_ns guarded] submits, waits for results and writes them as {!take}, with the
    runtime lock released. A negative timeout is none. With [guarded] a signal that comes just ahead of the
    sleep ends it; that takes three more system calls.
    @raise Unix.Unix_error the loop is of no more use.
    @raise exn what a signal's handler raises. *)

external cancel : loop -> (int[@untagged]) -> unit = "eio_sakia_cancel_byte" "eio_sakia_cancel" [@@noalloc]
(** [cancel loop token] asks for the end of a request, whose result comes in any case. Nothing for a
    request that was done by its submission, and after {!stop}. *)

external stop : loop -> int -> int array = "eio_sakia_stop"
(** [stop loop limit_ns] cancels what is under way, waits for it with the runtime lock released, and frees
    the loop. Results that were not taken are lost, and their files closed. Returns the tokens of requests
    that did not end: the kernel may use their memory for ever. *)

val results_max : int

(** {1 Wakers} *)

type waker

external waker : loop -> waker = "eio_sakia_waker"
(** @raise Unix.Unix_error [EMFILE], [ENFILE]. *)

external wake : waker -> unit = "eio_sakia_wake" [@@noalloc]
(** Ends the loop's wait, or the next one. For any thread, signal handler and finalizer. Nothing after
    {!leave_waker}. *)

external leave_waker : waker -> unit = "eio_sakia_leave_waker" [@@noalloc]
(** Ends the use of the waker by the loop, once, before or after {!stop}. Its descriptor is closed then, or
    by the last {!wake} under way. *)

(** {1 Requests}

    The last argument of each is a token, small and not in use. Each returns the request's value or error
    number if it is there, else {!pending} or {!full}. Paths and addresses are copied. *)

val pending : int
(** The result comes with its token, by {!take} or {!wait}. *)

val full : int
(** As many requests are under way as may be: nothing was submitted. All error numbers are above
    {!pending}. *)

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
(** [move loop op fd memory pos len offset token] reads, writes, sends or receives up to 32 KiB. Sends and
    receives have no offset. *)

external move_much : loop -> int -> int -> memory -> int -> int -> int -> int -> int
  = "eio_sakia_move_much_byte" "eio_sakia_move_much"
(** As {!move} with any length, and with the runtime lock released. *)

external move_parts : loop -> int -> int -> Cstruct.t list -> int -> int -> int
  = "eio_sakia_move_parts_byte" "eio_sakia_move_parts"
(** [move_parts loop op fd parts offset token] is {!op_readv} or {!op_writev} of the first 1024 parts,
    without the runtime lock if they have more than 32 KiB. *)

external file :
  loop ->
  (int[@untagged]) ->
  (int[@untagged]) ->
  (int[@untagged]) ->
  (int[@untagged]) ->
  (int[@untagged]) ->
  (int[@untagged]) = "eio_sakia_file_byte" "eio_sakia_file"
[@@noalloc]
(** [file loop op fd flags offset token] is an operation without memory: {!op_sync}, {!op_truncate},
    {!op_poll}. *)

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
(** [name loop op fd path flags mode resolve token] is {!op_open}, {!op_mkdir} or {!op_unlink} of a path
    without a zero in it. The value of {!op_open} is a number, the caller's. *)

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
(** [names loop op fd path fd2 path2 token] is {!op_rename} or {!op_symlink}, to [path2]. *)

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
(** [fill loop op fd path flags memory token] fills [memory] by {!op_stat}, {!op_readlink} or
    {!op_read_directory}; with an empty path, of [fd] itself. *)

external copy : loop -> int -> int -> int -> int -> int -> int -> int
  = "eio_sakia_copy_byte" "eio_sakia_copy"
(** [copy loop from from_offset into into_offset len token] copies within the kernel, without the runtime
    lock. *)

external connect : loop -> int -> Unix.sockaddr -> int -> int = "eio_sakia_connect"
(** [connect loop fd address token].
    @raise Unix.Unix_error [ENAMETOOLONG] of a Unix socket's path. *)

(** {2 Operations, as [sakia.h] numbers them} *)

val op_read : int
val op_write : int
val op_readv : int
val op_writev : int
val op_open : int
val op_sync : int
val op_stat : int
val op_truncate : int
val op_mkdir : int
val op_unlink : int
val op_rename : int
val op_symlink : int
val op_readlink : int
val op_read_directory : int
val op_poll : int
val op_send : int
val op_receive : int

(** {1 Calls without a loop}

    For any thread. Those with [try] in their names answer {!eagain} instead of waiting. *)

type handle

external lend : int -> handle = "eio_sakia_lend"
(** Returns a handle of an open number, with what the library learns of the file. The collector frees it,
    also after the number was closed.
    @raise Unix.Unix_error [EBADF]. *)

external try_move :
  handle ->
  (int[@untagged]) ->
  memory ->
  (int[@untagged]) ->
  (int[@untagged]) ->
  (int[@untagged]) ->
  (int[@untagged]) = "eio_sakia_try_move_byte" "eio_sakia_try_move"
[@@noalloc]
(** [try_move handle writes memory pos len offset] reads, or writes if [writes] is 1, up to 32 KiB. *)

external try_move_much : handle -> int -> memory -> int -> int -> int -> int
  = "eio_sakia_try_move_much_byte" "eio_sakia_try_move_much"
(** As {!try_move}, up to 256 KiB, without the runtime lock. *)

external try_receive :
  (int[@untagged]) -> memory -> (int[@untagged]) -> (int[@untagged]) -> (int[@untagged])
  = "eio_sakia_try_receive_byte" "eio_sakia_try_receive"
[@@noalloc]
(** [try_receive fd memory pos len] receives up to 32 KiB. *)

external try_send_message :
  int -> Unix.file_descr list -> Unix.sockaddr option -> Cstruct.t list -> int
  = "eio_sakia_try_send_message"
(** [try_send_message fd descriptors destination parts] sends the first 1024 parts as one message. Raises
    no [SIGPIPE].
    @raise Unix.Unix_error [ENAMETOOLONG] of a Unix socket's path. *)

external try_receive_message :
  int -> int -> Cstruct.t list -> int * Unix.sockaddr option * Unix.file_descr list
  = "eio_sakia_try_receive_message"
(** [try_receive_message fd descriptors_max parts] receives a message, and returns its bytes, the sender's
    address if it has one, and descriptors, the caller's, closed on exec. *)

external facts : (int[@untagged]) -> (int[@untagged]) = "eio_sakia_facts_byte" "eio_sakia_facts" [@@noalloc]
(** Returns the kind of an open number, bits 12 to 15 of its mode, plus 16 times its size; 0 if it is not
    open. *)

external now : unit -> (int[@untagged]) = "eio_sakia_now_byte" "eio_sakia_now" [@@noalloc]
(** Returns the nanoseconds of a clock that is never set. *)

external error : int -> Unix.error = "eio_sakia_error"
(** Returns the error with this positive number. *)

external entries : memory -> int -> (Eio.File.Stat.kind * string) list = "eio_sakia_entries"
(** [entries memory len] decodes what {!op_read_directory} wrote, the last entry first, without ["."] and
    [".."]. *)

external random : memory -> int -> int -> unit = "eio_sakia_random"
(** [random memory pos len] fills memory with random bytes, without the runtime lock. It waits for the
    kernel's first seed after the start of the machine. *)

external spawn : Unix.file_descr -> Eio_unix.Private.Fork_action.c_action list -> int
  = "eio_sakia_spawn"
(** [spawn errors actions] forks a child that performs the actions, and writes a failure to [errors].
    Returns its process number, which the caller waits for.
    @raise Unix.Unix_error as [fork]. *)

external pidfd : int -> int = "eio_sakia_pidfd"
(** Returns a descriptor, the caller's, of a child that was not waited for; -1 where the kernel has none,
    before Linux 5.3. *)

external has_openat2 : unit -> bool = "eio_sakia_has_openat2"
(** Returns whether the filters of this process let it call [openat2(2)]. *)

external open_beneath : int -> string -> int -> int -> int = "eio_sakia_open_beneath"
(** [open_beneath fd path flags mode] is [openat2(2)] with [RESOLVE_BENEATH], of a path without a zero in
    it, by a walk without that call. Without the runtime lock, for a thread that may wait. Returns a
    number, the caller's. *)

(** {1 Numbers of the kernel's interface} *)

val eagain : int
val eintr : int
val o_rdonly : int
val o_rdwr : int
val o_creat : int
val o_excl : int
val o_trunc : int
val o_append : int
val o_directory : int
val o_nofollow : int
val o_path : int
val resolve_beneath : int
val at_removedir : int
val at_symlink_nofollow : int
val pollin : int
val pollout : int
val pollerr : int

(** {1 Descriptors are their numbers} *)

external number : Unix.file_descr -> int = "%identity"
external descriptor : int -> Unix.file_descr = "%identity"
