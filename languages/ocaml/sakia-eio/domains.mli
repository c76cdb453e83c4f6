(** Schedulers with all effects of eio handled, in this domain and others. *)

val run_loop : ('a -> 'b) -> 'a -> 'b
(** {!Sched.run}. *)

val manager : Eio.Domain_manager.ty Eio.Resource.t
(** Runs functions in new domains. The calling fiber is suspended until the domain has ended, its loop
    included. *)
