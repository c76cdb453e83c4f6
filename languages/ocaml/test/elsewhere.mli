(** Ways to run a function elsewhere, and to wait for it. *)

val all : (string * ((unit -> unit) -> unit)) list
