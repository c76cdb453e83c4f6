(** A loop performs requests for the thread that made it: on a ring, or where the machine offers none on
    epoll and threads. Each request has a datum of the program's, such as a continuation, which comes back
    with its result: exactly once, or as often as {!Outcome.t.more} says.

    All functions are for the loop's thread, if nothing else is said: on another, and in a child of [fork],
    they raise [Unix_error (EPERM, _, _)]. A domain frees its loops before it ends; a loop that was not
    freed stays. *)

type 'a t

type mode =
  | Automatic  (** as the environment variable [SAKIA_DRIVER] says, else a ring if there is one *)
  | Ring  (** an error without a ring *)
  | Poll  (** epoll and threads *)

(** @param under_way_max the most requests that may be under way; 65,536 if not given.
    @param plain_calls false: no request is done by a plain system call within its submission.
    @raise Unix.Unix_error the reason why there is no loop. *)
val create : ?mode:mode -> ?plain_calls:bool -> ?under_way_max:int -> unit -> 'a t

(** Why the loop has no ring; [None] if it has one. *)
val why_no_ring : 'a t -> string option

(** {1 Requests} *)

(** Names a request for {!cancel}. *)
type ticket

(** Submits. What ends at once, such as a read of cached bytes, is done by this call, and its result can be
    taken when it returns.
    @raise Unix.Unix_error [EAGAIN]: as many are under way as may be, so take results first; [EINVAL],
    [EBADF], [ENOENT] (a path with a zero in it): the request is wrong. The datum is not kept then.
    @raise Invalid_argument a buffer was given back. *)
val submit : 'a t -> Request.t -> 'a -> ticket

(** Tells that the submission has done the request: its last result is there for {!take}. *)
val is_done : ticket -> bool

(** Asks for the end of a request. Its result comes in any case: a value if it was quicker, else
    [-ECANCELED]. Nothing for a request that has ended. *)
val cancel : 'a t -> ticket -> unit

(** The number of requests whose last result was not taken. *)
val under_way : 'a t -> int

(** {1 Results}

    The function is called once for each result, and must not call {!take} or {!wait}: that raises [EBUSY].
    It may submit and cancel. If it raises, the other results are left for the next call; as they are if the
    handler of a signal raises here. *)

(** Takes the results that are there. Makes no system call, and keeps the runtime lock. Returns their
    number. *)
val take : 'a t -> ('a -> Outcome.t -> unit) -> int

(** Takes results that are there, or else submits and waits for some, without the runtime lock.
    @param timeout_ns negative, the default: for ever; 0: it submits and looks, with the lock.
    @return their number; 0 after a signal, a wake, the timeout, and rarely for no reason. *)
val wait : ?timeout_ns:int -> 'a t -> ('a -> Outcome.t -> unit) -> int

(** A new descriptor, the program's, which is readable when a wait would bring something, for another event
    loop. Before that one sleeps, call {!wait} with [~timeout_ns:0] until it returns 0. *)
val pollable : 'a t -> Unix.file_descr

(** A handle with which any thread ends the loop's waits. *)
val waker : 'a t -> Waker.t

(** {1 Received bytes} *)

(** [blit_received loop received ~pos buf ~dst ~len].
    @raise Invalid_argument out of bounds, or after {!give_back}. *)
val blit_received : 'a t -> Outcome.received -> pos:int -> Buf.t -> dst:int -> len:int -> unit

(** Returns the memory to the loop, which receives into it again. *)
val give_back : 'a t -> Outcome.received -> unit

(** {1 The end} *)

(** Cancels what is under way, and waits for it: at most [limit_ns] nanoseconds, for ever if that is
    negative (the default). Results can still be taken. Returns the data of requests that did not end: the
    kernel may use their memory for ever, so it is kept for ever. *)
val stop : ?limit_ns:int -> 'a t -> 'a list

(** Stops the loop with a limit of a second, unless it is stopped, and frees it. Results that were not taken
    are lost, and their files closed. Later calls raise. *)
val free : 'a t -> unit

(** Makes a loop, and frees it after the function. *)
val with_loop : ?mode:mode -> (('a t) -> 'b) -> 'b
