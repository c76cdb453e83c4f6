(** Files, sockets and pipes: counted handles, for any domain, thread, loop and queue.

    A handle that nothing refers to is given back by the collector, and its descriptor is closed once no
    request uses it. A program closes a file at a time of its choice with {!Request.close}: that ends its
    requests with [EBADF], and tells the error of the close. A handle may be used after that, and is an
    error. *)

type t

(** {1 Handles} *)

(** Takes the descriptor over: the library closes it, and the program may not use the number any more.
    @param name for errors and {!name}.
    @raise Unix.Unix_error [EBADF]. *)
val adopt : ?name:string -> Unix.file_descr -> t

(** A handle for a descriptor that stays the program's, which keeps it open until a {!Request.close} of the
    handle was answered.
    @raise Unix.Unix_error [EBADF]. *)
val lend : ?name:string -> Unix.file_descr -> t

(** A handle with a descriptor of its own for the same open file.
    @raise Unix.Unix_error [EBADF], [EMFILE]. *)
val duplicate : ?name:string -> Unix.file_descr -> t

(** The number, for calls that this library does not offer. It is open as long as the handle is reachable
    and not closed. The program does not close it. *)
val number : t -> Unix.file_descr

val name : t -> string

(** {1 Calls that never wait}

    They need no loop, and hold the runtime lock for at most 32 KiB. Each returns {!would_wait} if it might
    wait, or lately would have: then submit a request. What they do at once they do again and again: a fiber
    that uses them yields now and then. *)

(** [-1]. *)
val would_wait : int

(** [try_read file memory ~pos ~len ~offset] reads up to [len] bytes, and returns their number, 0 at the
    end, or {!would_wait}. [offset] may be {!Flags.current_position}. At most 256 KiB.
    @raise Invalid_argument out of the memory's bounds.
    @raise Unix.Unix_error as [read]. *)
val try_read : t -> Buf.memory -> pos:int -> len:int -> offset:int -> int

(** As {!try_read}, as [write]. *)
val try_write : t -> Buf.memory -> pos:int -> len:int -> offset:int -> int

(** Receives what has arrived at a socket, as {!try_read}.
    @param flags [MSG_PEEK] or 0. *)
val try_recv : ?flags:int -> t -> Buf.memory -> pos:int -> len:int -> int

(** Sends as much as there is room for, and raises no [SIGPIPE].
    @param flags [MSG_MORE] or 0. *)
val try_send : ?flags:int -> t -> Buf.memory -> pos:int -> len:int -> int

(** The same with OCaml's own memory, at most 32 KiB. *)

val try_read_bytes : t -> bytes -> pos:int -> len:int -> offset:int -> int
val try_write_bytes : t -> bytes -> pos:int -> len:int -> offset:int -> int
val try_recv_bytes : t -> bytes -> pos:int -> len:int -> int
val try_send_bytes : t -> bytes -> pos:int -> len:int -> int

(** [try_stat ?dir ?flags path] is the status of a path that the kernel has in its caches; [None] if the
    call might wait. *)
val try_stat : ?dir:t -> ?flags:int -> string -> Stat.t option

(** The status of the file itself. *)
val try_fstat : t -> Stat.t option

(** [try_open ?dir ?resolve path ~flags] opens what exists and is in the kernel's caches; [None] if that
    might wait, and for new files.
    @param flags [O_*] of {!Flags}.
    @param resolve [RESOLVE_*]. *)
val try_open : ?dir:t -> ?resolve:int -> string -> flags:int -> t option

(**/**)

val handle : t -> Raw.file
val of_handle : string -> Raw.file -> t
