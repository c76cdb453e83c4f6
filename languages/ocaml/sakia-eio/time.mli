(** eio's clocks. A sleep suspends the calling fiber, in any domain. *)

val mono_clock : Eio.Time.Mono.ty Eio.Resource.t
(** It is never set. *)

val clock : float Eio.Time.clock_ty Eio.Resource.t
(** The time of day. [sleep_until] computes the length of its sleep at its beginning: a later change of the
    clock has no effect on it. *)
