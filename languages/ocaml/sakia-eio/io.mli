(** Requests of the calling fiber, which is suspended until the result. A function that returns a number
    returns the value, or a negative error number. Files are numbers, which stay open until then; [-1]
    stands for the working directory. Each raises [Eio.Cancel.Cancelled] if the fiber is canceled before
    the request had its effect. *)

val checked : string -> string -> int -> int
(** [checked call arg value] returns the value.
    @raise Eio.Io if it is an error. *)

val no_nul : string -> string -> unit
(** [no_nul call path] precedes {!on_name} and {!on_names}.
    @raise Eio.Io [ENOENT], for a path with a zero in it. *)

val plainly : string -> int -> int -> (unit -> int) -> int
(** [plainly op fd events call] calls a function that never waits, again after readiness for [events] as
    long as it returns {!Raw.eagain}, and at once after {!Raw.eintr}. *)

(** {1 Bytes}

    On a non-blocking descriptor that is not ready they wait, as on any other. Memory is the request's
    until they return. *)

val small : int
(** 32 KiB: with more, the runtime lock is released. *)

val here : int
(** As [at]: the file's own position. *)

val read : int -> Cstruct.t -> at:int -> int

val read_parts : int -> Cstruct.t list -> at:int -> int
(** Into at most 1024 parts. *)

val write_parts : int -> Cstruct.t list -> at:int -> int
(** As {!read_parts}. *)

val send : int -> Cstruct.t -> int
val receive : int -> Cstruct.t -> int

val copy_range : from:int -> from_offset:int -> into:int -> into_offset:int -> len:int -> int
(** Copies within the kernel, and moves no position. *)

(** {1 Files} *)

val sync : int -> unit
(** @raise Eio.Io as [fsync]. *)

val truncate : int -> int -> unit
(** [truncate fd len].
    @raise Eio.Io as [ftruncate]. *)

val fstat : int -> Eio.File.Stat.t
(** @raise Eio.Io as [fstat]. *)

(** {1 Names} *)

val openat2 : int -> string -> flags:int -> mode:int -> resolve:int -> int
(** Returns a number, the caller's.
    @raise Eio.Io [ENOENT], for a path with a zero in it. *)

val on_name : int -> string -> int -> string -> ?flags:int -> ?mode:int -> ?resolve:int -> unit -> int
(** [on_name op call fd path ()] is {!Raw.name}; [call] is for traces. *)

val on_names : int -> string -> int -> string -> int -> string -> unit
(** [on_names op call fd path fd2 path2] is {!Raw.names}.
    @raise Eio.Io if it fails. *)

val stat_with : int -> string -> flags:int -> (Cstruct.t -> 'a) -> ('a, int) result
(** [stat_with fd path ~flags f] returns [f] of the [struct statx] of [path] or, if that is empty, of the
    file itself; or a negative error number. [f] does not keep the memory. *)

val facts : Cstruct.t -> Eio.File.Stat.t
(** Decodes a [struct statx], as {!stat_with} gives it. *)

val kind : Cstruct.t -> Eio.File.Stat.kind
(** As {!facts}, the kind alone. *)
