(** The scheduler of one domain: fibers, timers, and a loop of libsakia.

    A function with a {!t} is for the thread that runs it. One that suspends the fiber needs a fiber of
    {!run}; others run meanwhile. *)

type t

val get : unit -> t
(** Returns the scheduler of the calling fiber: a domain may run one on each of its threads.
    @raise Effect.Unhandled outside of {!run}. *)

val pools : t -> Pools.t
val why_no_ring : t -> string option

val under_way : t -> int
(** Returns the number of requests that have not ended. *)

(** {1 Requests} *)

val request : t -> string -> kept:'a -> (Raw.loop -> int -> int) -> int
(** [request t op ~kept submit] submits a request by [submit loop token], a function of {!Raw}, suspends
    the fiber until its result, and returns that: a value, or a negative error number. Where as many
    requests are under way as may be, the fiber first waits for room. [submit] is called again then.

    [kept] is what the request uses. It stays alive until the result; if the request does not end when the
    scheduler does, for ever.

    A cancellation of the fiber cancels the request. A request that has ended with a value returns it, and
    the fiber stays canceled.
    @raise Eio.Cancel.Cancelled the fiber was canceled before, or the request had no effect.
    @raise exn what [submit] raises. *)

val poll : t -> string -> int -> int -> int
(** [poll t op fd events] is a request that waits for one of the events, and returns those that are ready. *)

val before_call : t -> unit
(** Precedes a plain call, which may be done at once: other fibers run if this one has made 8 in a row, or
    has made them for 50 µs.
    @raise Eio.Cancel.Cancelled the fiber was canceled. *)

val pass : unit -> unit
(** Puts the calling fiber at the end of the queue. No point of cancellation. *)

val sleep_until : Mtime.t -> unit
(** @raise Eio.Cancel.Cancelled the fiber was canceled. *)

(** {1 Running} *)

type exit = [ `Exit_scheduler ]

(** Effects that the scheduler does not handle itself. *)
type handler = { effc : 'a. 'a Effect.t -> (('a, exit) Effect.Deep.continuation -> exit) option }

val under_way_max : int Atomic.t
(** The most requests of a scheduler that may be under way, for those that begin later, in any domain. *)

val run : extra:handler -> ('a -> 'b) -> 'a -> 'b
(** [run ~extra main arg] runs [main arg] as a fiber on the calling thread, until that fiber and all that
    it forked have ended. At the end the loop waits for a second for requests under way.
    @raise Unix.Unix_error there is no loop.
    @raise exn what [main] raises. *)
