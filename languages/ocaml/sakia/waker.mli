(** Ends waits of a loop or a queue, from any domain and thread, signal handlers and finalizers. *)

type t

(** Ends the wait, or the next one. Does nothing after the end of the loop, and in a forked child. Put the
    message where the loop looks next before. *)
val wake : t -> unit

(**/**)

val of_object : Raw.waker -> t
