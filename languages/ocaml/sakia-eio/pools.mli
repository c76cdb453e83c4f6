(** Memory for requests of one domain, whose thread alone uses it. *)

type pool

type t = private {
  stats : pool;  (** of 256 bytes, for a [struct statx] *)
  names : pool;  (** of {!names_size} bytes, for targets of links *)
  blocks : pool;  (** of 32 KiB, for copies *)
  entries : pool;  (** of 64 KiB, for directories *)
}

val names_size : int

val create : unit -> t

val use : pool -> (Cstruct.buffer -> 'a) -> 'a
(** Runs a function with memory from the pool or, if that is empty, fresh memory, whose contents are those
    of an earlier use. The pool has it again afterwards: the function returns or raises only after the last
    result of each request that uses the memory. *)
