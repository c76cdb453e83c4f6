(** Timers in the order of their times, and of their registrations at the same time. *)

type t
type timer

val create : unit -> t

(** Nanoseconds of a clock that is never set. *)
val now : unit -> int

(** [add timers delay repeat f]: in seconds. It fires in a later {!turn} than the current one. *)
val add : t -> float -> bool -> (unit -> unit) -> timer

val stop : t -> timer -> unit

(** Makes what was added ready to fire. *)
val begin_turn : t -> unit

(** Nanoseconds until the next one, after {!begin_turn}; negative without one. *)
val next : t -> int

(** Calls the functions of those whose time has come. *)
val turn : t -> unit
