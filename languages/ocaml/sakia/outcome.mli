(** A result of a request. *)

(** Bytes that {!Request.receive_many} has received, in memory of the loop. They are read with
    {!Loop.blit_received}, and returned with {!Loop.give_back}. *)
type received

type t = private {
  value : int;  (** at least 0, or a negative error number *)
  file : File.t option;  (** that was opened, made or accepted *)
  more : bool;  (** more results of the same request will follow *)
  received : received option;
}

(** The value.
    @raise Unix.Unix_error if it is an error, with the request's name and file or path. *)
val get : Request.t -> t -> int

(** The file.
    @raise Unix.Unix_error if the value is an error.
    @raise Invalid_argument if the operation brings none. *)
val file : Request.t -> t -> File.t

val is_canceled : t -> bool

(** The bytes. *)
val received_length : received -> int

(**/**)

val room : int

(** Memory for [room] results, which no program can reach by another name: it holds addresses. *)
val area : unit -> Buf.memory

(** The same from a pool, for one call. *)
val take_area : unit -> Buf.memory

val give_area : Buf.memory -> unit

val token : Buf.memory -> int -> int
val has_more : Buf.memory -> int -> bool

(** Allocates, and leaves the file with the result. *)
val make : Request.t -> Buf.memory -> int -> t

(** Moves the file into the outcome. Does not allocate. *)
val commit : t -> Buf.memory -> int -> unit

val address : received -> nativeint
val lent : received -> int64
val is_given : received -> bool
val set_given : received -> unit
