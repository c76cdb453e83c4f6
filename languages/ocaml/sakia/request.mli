(** One operation: built once, submitted to a {!Loop} or a {!Queue} as often as one likes.

    Values of results: at least 0, or a negative error number, see {!Outcome}. A path begins in [dir], or
    without it in the working directory. Paths, addresses and the like are copied; buffers belong to the
    library from the submission until the last result was taken. *)

type t

(** The name of its system call, for errors. *)
val name : t -> string

(** The file or the path, for errors. *)
val what : t -> string

(** {1 Files} *)

(** The bytes read. [offset] may be {!Flags.current_position}. *)
val read : File.t -> Buf.t -> pos:int -> len:int -> offset:int -> t

(** The bytes written. *)
val write : File.t -> Buf.t -> pos:int -> len:int -> offset:int -> t

(** Reads into several pieces of memory, at most 1,024, in their order.
    @param flags [RWF_*]. *)
val readv : ?flags:int -> File.t -> (Buf.t * int * int) list -> offset:int -> t

val writev : ?flags:int -> File.t -> (Buf.t * int * int) list -> offset:int -> t

(** The result has the file.
    @param flags [O_*]. *)
val open_ : ?dir:File.t -> ?resolve:int -> string -> flags:int -> perm:int -> t

(** Cancels what is under way on the file, everywhere, and closes it. *)
val close : File.t -> t

(** @param data without metadata that reads do not need, as [fdatasync]. *)
val sync : ?data:bool -> File.t -> t

(** Writes the status of a path to a buffer of {!Stat.size} bytes.
    @param flags [AT_*]. *)
val stat : ?dir:File.t -> ?flags:int -> string -> Buf.t -> t

val fstat : File.t -> Buf.t -> t
val truncate : File.t -> int -> t

(** @param mode of [fallocate(2)]. *)
val allocate : ?mode:int -> File.t -> offset:int -> len:int -> t

(** @param advice one [POSIX_FADV_*]. *)
val advise : File.t -> offset:int -> len:int -> advice:int -> t

(** Copies within the kernel: the bytes copied. *)
val copy_range : File.t -> offset:int -> File.t -> offset2:int -> len:int -> t

(** {1 Names} *)

val mkdir : ?dir:File.t -> string -> perm:int -> t

(** @param flags [AT_REMOVEDIR] for a directory. *)
val unlink : ?dir:File.t -> ?flags:int -> string -> t

(** @param flags [RENAME_*]. *)
val rename : ?dir:File.t -> ?dir2:File.t -> ?flags:int -> string -> string -> t

(** The second path is the new name. *)
val link : ?dir:File.t -> ?dir2:File.t -> ?flags:int -> string -> string -> t

(** [symlink ?dir ~target path]. *)
val symlink : ?dir:File.t -> target:string -> string -> t

(** Writes the target to the buffer: its bytes. *)
val readlink : ?dir:File.t -> string -> Buf.t -> t

(** Writes entries for {!Directory.entries}: their bytes, 0 at the end. *)
val read_directory : File.t -> Buf.t -> t

val chmod : ?dir:File.t -> ?flags:int -> string -> perm:int -> t
val fchmod : File.t -> perm:int -> t

(** [-1] leaves an owner or a group as it is. *)
val chown : ?dir:File.t -> ?flags:int -> string -> uid:int -> gid:int -> t

val fchown : File.t -> uid:int -> gid:int -> t

(** Seconds and nanoseconds; see {!Flags.utime_now}. *)
val set_times : ?dir:File.t -> ?flags:int -> string -> accessed:int * int -> modified:int * int -> t

val fset_times : File.t -> accessed:int * int -> modified:int * int -> t

(** {1 Readiness} *)

(** The ready ones of [events], e.g. {!Flags.pollin}. *)
val poll : File.t -> events:int -> t

(** A result for each wait in which one of the events is ready, until it is canceled, or the file is closed.
    *)
val poll_many : File.t -> events:int -> t

(** {1 Sockets} *)

(** The result has the file. *)
val socket : domain:int -> kind:int -> protocol:int -> t

val bind : File.t -> Unix.sockaddr -> t
val listen : File.t -> backlog:int -> t
val connect : File.t -> Unix.sockaddr -> t

(** The result has the connection. The peer's address is written to the buffer, of at least 128 bytes, for
    {!address}: the value is the bytes of it. *)
val accept : File.t -> Buf.t -> t

(** A result with a file for each connection, until it is canceled or fails. *)
val accept_many : File.t -> t

(** @param flags [MSG_*]. *)
val send : ?flags:int -> File.t -> Buf.t -> pos:int -> len:int -> t

val recv : ?flags:int -> File.t -> Buf.t -> pos:int -> len:int -> t

(** Receives from a stream into memory of the loop: results with {!Outcome.received}, until the peer sends
    no more, or it is canceled. Not on a queue. *)
val receive_many : File.t -> t

(** Sends a datagram.
    @param descriptors which are duplicated. *)
val send_message :
  ?flags:int -> ?address:Unix.sockaddr -> ?descriptors:Unix.file_descr list -> File.t -> Buf.t ->
    pos:int -> len:int -> t

(** A datagram to be received. One request uses it at a time. *)
type message

(** [message buf ~pos ~len] receives its bytes there.
    @param descriptors the most that are received; 0 if not given. *)
val message : ?descriptors:int -> Buf.t -> pos:int -> len:int -> message

val recv_message : ?flags:int -> File.t -> message -> t

(** The sender's address, after the result; [None] if it has none, or of an unknown domain. *)
val message_address : message -> Unix.sockaddr option

(** [MSG_TRUNC] and so on. *)
val message_flags : message -> int

(** The descriptors received, which are the program's: once. *)
val message_descriptors : message -> Unix.file_descr list

val shutdown : File.t -> int -> t

(** Decodes an address of a number of bytes that {!accept} wrote.
    @raise Unix.Unix_error [EAFNOSUPPORT]. *)
val address : Buf.t -> int -> Unix.sockaddr

(** {1 Others} *)

val nop : t

(** {!poll} of an open descriptor, as {!by_number}. *)
val poll_number : Unix.file_descr -> events:int -> t

(** The same request on the open descriptor, of which the library remembers nothing. It must stay open, and
    the same file, until the last result was taken. Not for {!close}. *)
val by_number : Unix.file_descr -> t -> t

(**/**)

type encoded

val encoded : t -> encoded

(** Moves more than what the runtime lock is kept for. *)
val is_large : t -> bool

(** The buffers belong to a request from now on; and no more. *)
val lend : t -> unit

val return : t -> unit
