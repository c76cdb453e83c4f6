(** A queue takes requests from any number of domains and threads, and performs them on threads of its own.
    What ends at once is done by the thread that submits it; any thread takes the results of the rest. It is
    for files, and for threads that may block: a switch of threads costs more than a loop's requests.

    In a child of [fork] each call raises [Unix_error (EPERM, _, _)]. A queue stays until it is stopped.

    If the handler of a signal raises in a function of a queue, the results stay for the next call; that of a
    {!submit} that is done, too. *)

type 'a t

(** @param threads that perform requests, at most 64; 1 if not given.
    @param under_way_max as for {!Loop.create}. *)
val create :
  ?mode:Loop.mode -> ?plain_calls:bool -> ?under_way_max:int -> ?threads:int -> unit -> 'a t

val why_no_ring : 'a t -> string option

(** Names a request for {!cancel}. *)
type ticket

type 'a submitted =
  | Done of Outcome.t  (** it was done at once *)
  | Under_way of ticket  (** its datum will come with its result *)

(** As {!Loop.submit}. *)
val submit : 'a t -> Request.t -> 'a -> 'a submitted

val cancel : 'a t -> ticket -> unit

(** The number of requests whose last result was not taken. *)
val under_way : 'a t -> int

(** Takes results that are there, and calls the function for each. Keeps the runtime lock. If the function
    raises, the other results are left for the next call of any thread. *)
val take : 'a t -> ('a -> Outcome.t -> unit) -> int

(** As {!Loop.wait}. Several threads share the results. *)
val wait : ?timeout_ns:int -> 'a t -> ('a -> Outcome.t -> unit) -> int

(** As {!Loop.pollable}: readable while there are results to take. *)
val pollable : 'a t -> Unix.file_descr

val waker : 'a t -> Waker.t

(** As {!Loop.stop}, for all threads. Results can still be taken. *)
val stop : ?limit_ns:int -> 'a t -> 'a list
