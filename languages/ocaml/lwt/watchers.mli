(** Descriptors that are watched for readiness, level-triggered: an epoll set. *)

type t

val create : unit -> t

(** The set itself, which is readable while one of the descriptors is ready. *)
val number : t -> Unix.file_descr

type watcher

val add : t -> Unix.file_descr -> writing:bool -> (unit -> unit) -> watcher
val stop : t -> watcher -> unit

(** Tells the kernel of what was added and stopped. Returns whether a call may not sleep, since a descriptor
    that cannot be watched, such as a regular file, is always ready.
    @param before called before {!number} changes and the old set is closed, which is rare. *)
val flush : t -> before:(unit -> unit) -> bool

(** Finds ready descriptors, without the runtime lock.
    @return their number. *)
val wait : t -> timeout_ns:int -> int

(** The same without sleeping, and with the lock. *)
val look : t -> int

(** Calls the functions of what [wait] or [look] has found, and of what is always ready. *)
val turn : t -> int -> unit

(** Makes a new set with all watchers, after a fork. *)
val renew : t -> unit

val close : t -> unit
