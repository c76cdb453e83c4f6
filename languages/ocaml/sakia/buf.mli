(** Memory for requests: outside the OCaml heap, where it does not move.

    A fresh Bigarray costs as much as many reads, so buffers come from a pool: of the domain, or with OCaml
    4 of the program. A buffer that is not returned to a pool is freed by the collector, once no request
    uses it. *)

(** The bytes of a buffer. [Cstruct.buffer] and [Lwt_bytes.t] are the same type. *)
type memory = (char, Bigarray.int8_unsigned_elt, Bigarray.c_layout) Bigarray.Array1.t

type t

(** [take size] is a buffer of at least [size] bytes, from the pool if it has one. Its contents are those of
    an earlier use.
    @raise Invalid_argument if [size] is negative. *)
val take : int -> t

(** Returns a buffer to the pool of the calling domain. The caller must not use it afterwards.
    @raise Invalid_argument if it was given back before, if a request uses it, or if it is no buffer of a
    pool. *)
val give : t -> unit

(** The program's own memory as a buffer. It stays alive until the last result of each request that uses it
    was taken; for ever if the request leaks. Until then the program may not change it, or read what is
    written to it. *)
val of_bigarray : memory -> t

val memory : t -> memory

(** The bytes that {!memory} has. *)
val length : t -> int

(** [with_buffer size f] takes a buffer, and returns it after [f], unless a request still uses it; then the
    collector frees it after its last result. *)
val with_buffer : int -> (t -> 'a) -> 'a

(** {1 Copies} *)

(** [blit_to_bytes buf pos bytes pos' len].
    @raise Invalid_argument out of bounds. *)
val blit_to_bytes : t -> int -> bytes -> int -> int -> unit

(** [blit_of_bytes bytes pos buf pos' len].
    @raise Invalid_argument out of bounds. *)
val blit_of_bytes : bytes -> int -> t -> int -> int -> unit

(** As {!blit_of_bytes}. *)
val blit_of_string : string -> int -> t -> int -> int -> unit

(** [copy buf pos buf' pos' len].
    @raise Invalid_argument out of bounds. *)
val copy : t -> int -> t -> int -> int -> unit

(** [sub_string buf pos len].
    @raise Invalid_argument out of bounds. *)
val sub_string : t -> int -> int -> string

(** Tells that a request uses the buffer. Only for buffers of a pool. *)
val is_used : t -> bool

(**/**)

(** Memory that no program can reach by another name. *)
val own : int -> t

val lend : t -> unit
val return : t -> unit
