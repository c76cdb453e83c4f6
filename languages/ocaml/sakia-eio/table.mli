(** Suspended fibers by the tokens of their requests. Tokens are small and used again. For the domain's
    thread. *)

type t

type job =
  | Nobody
  | Waiting of { fiber : int Eio_utils.Suspended.t; kept : Obj.t }
      (** for a value; [kept] is alive until then, since the request uses it *)
  | Watching of { fiber : unit Eio_utils.Suspended.t; call : string }
      (** for readiness; [call] is for errors *)

val create : unit -> t

val reserve : t -> int
(** Returns a token for a submission, with {!Nobody}. It is in use until {!release} or {!take}. *)

val release : t -> int -> unit
(** Ends the use of a token, which has {!Nobody}. *)

val set : t -> int -> job -> unit

val job : t -> int -> job

val take : t -> int -> job
(** Removes the job of a token, and releases the token. *)

val used : t -> int
(** Returns the number of tokens in use. *)
