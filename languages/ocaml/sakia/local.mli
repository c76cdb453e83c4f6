(** A value per domain; before OCaml 5 one for the whole program. *)

type 'a key

val make : (unit -> 'a) -> 'a key
val get : 'a key -> 'a
