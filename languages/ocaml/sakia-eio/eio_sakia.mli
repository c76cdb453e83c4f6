(** eio on Sakia: fibers on a ring of the kernel or, where the machine offers none, on epoll and threads.

    A program changes one line, [Eio_main.run] to [Eio_sakia.run], and nothing else. *)

val run : (Eio_unix.Stdenv.base -> 'a) -> 'a
(** [run main] runs a fiber, and all that it forks, until all have ended. *)

val why_no_ring : unit -> string option
(** Why the running domain's loop has no ring; [None] if it has one. Only within {!run}. *)
