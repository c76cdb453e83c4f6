(** Errors as eio's exceptions. *)

val fail : int -> string -> string -> 'a
(** [fail value call arg] raises for a result's negative error number.
    @raise Eio.Io always. *)

val run : ('a -> 'b) -> 'a -> 'b
(** Runs a function of [Unix].
    @raise Eio.Io for its [Unix_error]. *)
