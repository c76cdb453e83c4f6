(** The C functions. They check no bounds and no types of [Obj.t]: the library's other modules do, and no
    program reaches them.

    A negative number is an error number. No function raises anything but [Out_of_memory] unless its
    comment says so. Those that are [noalloc] neither wait nor move more than 32 KiB, and hold the runtime
    lock. An offset below 0 is the file's own position. *)

type memory = (char, Bigarray.int8_unsigned_elt, Bigarray.c_layout) Bigarray.Array1.t

(** The most bytes that a call moves with the runtime lock held. *)
val small : int

(** The integer 0: no file, path or other block, where an [Obj.t] is wanted. *)
val none : Obj.t

(** {1 Errors} *)

(** Returns the error with this positive number. *)
external error_of_code : int -> Unix.error = "sakia_ml_error_of_code"

(** [fail error operation name] raises for a negative error number.
    @raise Unix.Unix_error always. *)
val fail : int -> string -> string -> 'a

(** [check operation name number] returns a number that is not negative.
    @raise Unix.Unix_error for a negative one. *)
val check : string -> string -> int -> int

(** [check_object operation name it] is for a function that returns an object or an error number. The
    caller says by the type what the object is.
    @raise Unix.Unix_error for an error number. *)
val check_object : string -> string -> Obj.t -> 'a

(** Returns the numbers of {!Flags}, in its order. *)
external constants : unit -> int array = "sakia_ml_constants"

(** {1 Files}

    For any domain and thread. A finalizer gives the reference back. *)

type file

(** Returns an empty handle, which one of the next functions, {!try_open} or {!file_take} fills. *)
external file_none : unit -> file = "sakia_ml_file_none"

(** [file_adopt file number] makes the descriptor the library's. *)
external file_adopt : file -> int -> int = "sakia_ml_file_adopt"

(** [file_lend file number] leaves the descriptor to the program. *)
external file_lend : file -> int -> int = "sakia_ml_file_lend"

(** [file_duplicate file number] makes a descriptor of the library's own. *)
external file_duplicate : file -> int -> int = "sakia_ml_file_duplicate"

external file_number : file -> int = "sakia_ml_file_number" [@@noalloc]

(** [file_take file results index] moves the reference of a result into a handle. *)
external file_take : file -> memory -> (int[@untagged]) -> unit
  = "sakia_ml_file_take_byte" "sakia_ml_file_take"
  [@@noalloc]

(** [file_drop results index] gives the reference of a result back, if it has one. *)
external file_drop : memory -> (int[@untagged]) -> unit = "sakia_ml_file_drop_byte" "sakia_ml_file_drop"
  [@@noalloc]

(** {2 Calls that never wait}

    [call file memory pos len last], where [last] is an offset, or the flags of a socket's call. They
    return the number of bytes; [-EAGAIN] if they might wait. *)

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

(** The same for up to 256 KiB, with the runtime lock released. *)
external try_read_large : file -> memory -> int -> int -> int -> int = "sakia_ml_try_read_large"
external try_write_large : file -> memory -> int -> int -> int -> int = "sakia_ml_try_write_large"
external try_recv_large : file -> memory -> int -> int -> int -> int = "sakia_ml_try_recv_large"
external try_send_large : file -> memory -> int -> int -> int -> int = "sakia_ml_try_send_large"

(** The same with memory of the OCaml heap. *)

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

(** [try_stat file path flags memory pos] writes a [struct statx], of 256 bytes: of a path below a file or,
    with {!none} as the file, below the working directory; with {!none} as the path, of the file itself. *)
external try_stat : Obj.t -> Obj.t -> (int[@untagged]) -> memory -> (int[@untagged]) -> (int[@untagged])
  = "sakia_ml_try_stat_byte" "sakia_ml_try_stat"
  [@@noalloc]

(** [try_open directory path flags resolve file] fills [file]. *)
external try_open : Obj.t -> string -> (int[@untagged]) -> (int[@untagged]) -> file -> (int[@untagged])
  = "sakia_ml_try_open_byte" "sakia_ml_try_open"
  [@@noalloc]

(** {1 Loops}

    For the thread that made the loop: on another, and in a forked child, they return [-EPERM], and after
    {!loop_free} [-EINVAL]. No finalizer frees a loop. ['request] is [Request.t], whose fields the C part
    knows. Memory of a request is rooted by the caller until its last result was taken.

    [results] is memory for [room] results of 48 bytes each. *)

type loop

(** [loop_new under_way_max flags] returns a {!loop}, or an error number. *)
external loop_new : int -> int -> Obj.t = "sakia_ml_loop_new"

(** Returns why the calling thread may not use the loop; 0 if it may. *)
external loop_refusal : loop -> (int[@untagged]) = "sakia_ml_loop_refusal_byte" "sakia_ml_loop_refusal"
  [@@noalloc]

(** [loop_room loop count] makes room for tokens below [count], which is more than before. *)
external loop_room : loop -> int -> int = "sakia_ml_loop_room"

(** [loop_submit loop token request] returns 1 if the request is under way, and 0 if its last result is
    there. *)
external loop_submit : loop -> (int[@untagged]) -> 'request -> (int[@untagged])
  = "sakia_ml_loop_submit_byte" "sakia_ml_loop_submit"
  [@@noalloc]

(** As {!loop_submit}, with the runtime lock released. The request has no path and no datagram. *)
external loop_submit_large : loop -> int -> 'request -> int = "sakia_ml_loop_submit_large"

(** [loop_take loop results room] writes results that are there, and returns their number. *)
external loop_take : loop -> memory -> (int[@untagged]) -> (int[@untagged])
  = "sakia_ml_loop_take_byte" "sakia_ml_loop_take"
  [@@noalloc]

(** [loop_poll loop results room] submits, looks once, and writes results as {!loop_take}. *)
external loop_poll : loop -> memory -> (int[@untagged]) -> (int[@untagged])
  = "sakia_ml_loop_poll_byte" "sakia_ml_loop_poll"
  [@@noalloc]

(** [loop_wait loop results room timeout_ns] waits, with the runtime lock released; for ever if the timeout
    is negative. It raises what a signal's handler raises. *)
external loop_wait : loop -> memory -> int -> int -> int = "sakia_ml_loop_wait"

(** [loop_cancel loop token] asks for the end of a request. Its result comes in any case. *)
external loop_cancel : loop -> (int[@untagged]) -> (int[@untagged])
  = "sakia_ml_loop_cancel_byte" "sakia_ml_loop_cancel"
  [@@noalloc]

external loop_under_way : loop -> (int[@untagged]) = "sakia_ml_loop_under_way_byte" "sakia_ml_loop_under_way"
  [@@noalloc]

(** Returns a new descriptor, the caller's. *)
external loop_pollable : loop -> int = "sakia_ml_loop_pollable"

(** Returns the reason, as text; an empty one if there is a ring, and for another thread. *)
external loop_why_no_ring : loop -> string = "sakia_ml_loop_why_no_ring"

(** [loop_received loop address pos memory dst len] copies received bytes, which the loop still lends. *)
external loop_received : loop -> nativeint -> int -> memory -> int -> int -> int
  = "sakia_ml_loop_received_byte" "sakia_ml_loop_received"
  [@@noalloc]

external loop_give_back : loop -> int64 -> int = "sakia_ml_loop_give_back"

(** [loop_stop loop limit_ns tokens room] cancels what is under way and waits for it, with the runtime lock
    released. Returns the number of requests that did not end, and writes the tokens of up to [room] of
    them. *)
external loop_stop : loop -> int -> (int64, Bigarray.int64_elt, Bigarray.c_layout) Bigarray.Array1.t ->
  int -> int
  = "sakia_ml_loop_stop"

(** Frees the loop, with the runtime lock released. Results that were not taken are lost, and their files
    closed. *)
external loop_free : loop -> int = "sakia_ml_loop_free"

(** Returns a {!waker}, or an error number. *)
external loop_waker : loop -> Obj.t = "sakia_ml_loop_waker"

(** {1 Wakers} *)

type waker

(** For any domain, thread, signal handler and finalizer. It does nothing after the end of the loop or
    queue. *)
external waker_wake : waker -> unit = "sakia_ml_waker_wake" [@@noalloc]

(** {1 Queues}

    For any domain and thread; in a forked child they return [-EPERM]. A finalizer frees the queue, and
    waits for requests that have not ended: the caller roots it until it is stopped. Memory and [results]
    are as for loops. *)

type queue

(** [queue_new under_way_max flags threads] returns a {!queue}, or an error number. *)
external queue_new : int -> int -> int -> Obj.t = "sakia_ml_queue_new"

(** [queue_submit queue token request results large] submits, with the runtime lock released if [large].
    Returns 1 if the result is there, as the first of [results], and 0 if the request is under way: then
    its ticket, 64 bits, begins the second one. *)
external queue_submit : queue -> int -> 'request -> memory -> bool -> int = "sakia_ml_queue_submit"

external queue_take : queue -> memory -> (int[@untagged]) -> (int[@untagged])
  = "sakia_ml_queue_take_byte" "sakia_ml_queue_take"
  [@@noalloc]

(** As {!loop_wait}. *)
external queue_wait : queue -> memory -> int -> int -> int = "sakia_ml_queue_wait"

external queue_cancel : queue -> int64 -> int = "sakia_ml_queue_cancel"

external queue_under_way : queue -> int = "sakia_ml_queue_under_way"

(** Returns a new descriptor, the caller's. *)
external queue_pollable : queue -> int = "sakia_ml_queue_pollable"

(** As {!loop_why_no_ring}. *)
external queue_why_no_ring : queue -> string = "sakia_ml_queue_why_no_ring"

(** Returns a {!waker}, or an error number. *)
external queue_waker : queue -> Obj.t = "sakia_ml_queue_waker"

(** As {!loop_stop}. *)
external queue_stop : queue -> int -> (int64, Bigarray.int64_elt, Bigarray.c_layout) Bigarray.Array1.t ->
  int -> int
  = "sakia_ml_queue_stop"

(** {1 Trees}

    For any domain and thread; in a forked child they return [-EPERM]. A finalizer frees the tree, and
    waits for its end: the caller roots it until that was seen. *)

type tree

(** [tree_new from into flags threads limit] begins a copy or, with {!none} for [into], a removal. Returns
    a {!tree}, or an error number. *)
external tree_new : string -> Obj.t -> int -> int -> int -> Obj.t = "sakia_ml_tree_new"

(** Writes the eight numbers of [sakia_counts]. *)
external tree_counts : tree -> (int64, Bigarray.int64_elt, Bigarray.c_layout) Bigarray.Array1.t -> int
  = "sakia_ml_tree_counts"

(** Takes a failure: returns its operation, path and positive error number; 0 if there is none, or an error
    number. *)
external tree_failure : tree -> Obj.t = "sakia_ml_tree_failure"

(** [tree_wait tree timeout_ns] waits, with the runtime lock released. Returns 1 at the end, and 0 before
    it. *)
external tree_wait : tree -> int -> int = "sakia_ml_tree_wait"

(** Returns a new descriptor, the caller's. *)
external tree_pollable : tree -> int = "sakia_ml_tree_pollable"

external tree_cancel : tree -> int = "sakia_ml_tree_cancel"

(** {1 Addresses, messages and times} *)

(** Returns the address as the kernel has it, a string, or [-ENAMETOOLONG]. *)
external address_encode : Unix.sockaddr -> Obj.t = "sakia_ml_address_encode"

(** [address_decode memory pos len] returns a [Unix.sockaddr], or [-EAFNOSUPPORT]. *)
external address_decode : memory -> int -> int -> Obj.t = "sakia_ml_address_decode"

(** Returns the bytes of the memory that a message to be received needs, and of the [struct msghdr] in
    front of it. *)
external message_size : unit -> int = "sakia_ml_message_size"
external message_header : unit -> int = "sakia_ml_message_header"

(** [message_prepare area memory pos len descriptors] prepares [area], of {!message_size} bytes, for a
    message whose bytes go to [memory]. *)
external message_prepare : memory -> memory -> int -> int -> int -> unit = "sakia_ml_message_prepare"

(** Returns where the sender's address begins, its bytes, and the flags. *)
external message_facts : memory -> int * int * int = "sakia_ml_message_facts"

(** Returns the received descriptors, which are the caller's: once. *)
external message_descriptors : memory -> int array = "sakia_ml_message_descriptors"

(** [times access access_ns change change_ns] returns two [struct timespec]. *)
external times : int -> int -> int -> int -> string = "sakia_ml_times"

(** {1 Descriptors are their numbers} *)

external fd_of : Unix.file_descr -> int = "%identity"
external fd_to : int -> Unix.file_descr = "%identity"

(** Keeps objects alive, for any domain and thread: by no lock, since a child of fork(2) might find it
    locked. *)
module Roots : sig
  (** Returns the name for {!remove}. Without that the object is kept for ever. *)
  val add : 'a -> int

  val remove : int -> unit
end
