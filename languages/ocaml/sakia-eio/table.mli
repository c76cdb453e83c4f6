(** Suspended fibers by the tokens of their requests. Tokens are small and used again. For the domain's
    thread. *)

type t

type job =
  | Nobody
      (** no fiber yet, or never: the handler of a signal has raised between the submission and the suspension *)
  | Waiting of int Eio_utils.Suspended.t  (** for a value *)
  | Watching of { fiber : unit Eio_utils.Suspended.t; call : string }
      (** for readiness; [call] is for errors *)

val create : unit -> t

val reserve : t -> Obj.t -> int
(** Returns a token for a submission, with {!Nobody}. It is in use until {!release} or {!take}; so long the
    object stays alive, which the request uses. *)

val release : t -> int -> unit
(** Ends the use of a token, which has {!Nobody}. *)

val set : t -> int -> job -> unit

val job : t -> int -> job

val kept : t -> int -> Obj.t
(** Returns the object of a token that is in use. *)

val take : t -> int -> job
(** Removes the job of a token, and releases the token. *)

val used : t -> int
(** Returns the number of tokens in use. *)
