(** Lwt on Sakia: an engine, and files that do not need Lwt's pool of threads.

    {[
      let () = Sakia_lwt.install ()
    ]}

    before [Lwt_main.run] is the whole change for a program of sockets and timers. Files are used through
    this module: {!open_file} and {!with_file} take the place of those of [Lwt_io].

    Everything here is for the thread that runs [Lwt_main.run]. *)

(** {1 The engine} *)

(** Watchers, timers and requests of one loop. All watchers survive [Lwt_unix.fork]; in the child, file
    operations that were under way are rejected with [Lwt.Canceled], as Lwt does it with its jobs. *)
class engine :
  ?mode:Sakia.Loop.mode
  -> unit
  -> object
       inherit Lwt_engine.t
     end

(** [install ()] makes an engine, and makes it Lwt's. Watchers and timers move to it.
    @param mode for the loop; see {!Sakia.Loop.create}. *)
val install : ?mode:Sakia.Loop.mode -> unit -> unit

(** Why files have no ring: the reason, as text; [None] if they have one. *)
val why_no_ring : unit -> string option

(** {1 Requests}

    They work with other engines, too: then the loop is watched by Lwt's engine. *)

(** Submits a request, and is its result. Lwt.cancel cancels the request, and rejects the promise at once.
    Its buffers belong to it until it has ended, canceled or not. A file that it brings after that is closed.
    @param finish runs when the buffers are the program's again. *)
val submit : ?finish:(unit -> unit) -> Sakia.Request.t -> Sakia.Outcome.t Lwt.t

(** The value, or a rejection with [Unix.Unix_error]. *)
val perform : ?finish:(unit -> unit) -> Sakia.Request.t -> int Lwt.t

(** The number of requests under way, of canceled ones, too. *)
val under_way : unit -> int

(** {1 Files}

    What the kernel has in memory is read and written by a call that never waits, on this thread. Everything
    else is a request. After a few calls that did not wait, a promise pauses, so that others run. *)

module File : sig
  type t = Sakia.File.t

  (** As [Lwt_unix.openfile]. The file is closed on exec. *)
  val openfile : string -> Unix.open_flag list -> Unix.file_perm -> t Lwt.t

  val close : t -> unit Lwt.t

  (** As [Lwt_unix.read], at the file's position. Fewer bytes than asked for are the end, or a signal's or a
      pipe's. *)
  val read : t -> bytes -> int -> int -> int Lwt.t

  val write : t -> bytes -> int -> int -> int Lwt.t
  val write_string : t -> string -> int -> int -> int Lwt.t

  (** At an offset, as [Lwt_unix.pread]. *)
  val pread : t -> bytes -> file_offset:int -> int -> int -> int Lwt.t

  val pwrite : t -> bytes -> file_offset:int -> int -> int -> int Lwt.t

  (** The same with memory of [Lwt_bytes]. With a request its bytes are copied once. *)

  val read_bigarray : t -> Lwt_bytes.t -> int -> int -> int Lwt.t
  val write_bigarray : t -> Lwt_bytes.t -> int -> int -> int Lwt.t
  val pread_bigarray : t -> Lwt_bytes.t -> file_offset:int -> int -> int -> int Lwt.t
  val pwrite_bigarray : t -> Lwt_bytes.t -> file_offset:int -> int -> int -> int Lwt.t

  val lseek : t -> int64 -> Unix.seek_command -> int64
  val fsync : t -> unit Lwt.t
  val fdatasync : t -> unit Lwt.t
  val ftruncate : t -> int -> unit Lwt.t
  val fstat : t -> Sakia.Stat.t Lwt.t
end

(** {1 Channels} *)

(** A channel for an open file. [Lwt_io.close] closes it. *)
val of_file : ?buffer:Lwt_bytes.t -> ?close:(unit -> unit Lwt.t) -> mode:'m Lwt_io.mode -> File.t ->
  'm Lwt_io.channel

(** As [Lwt_io.open_file]. *)
val open_file :
  ?buffer:Lwt_bytes.t ->
  ?flags:Unix.open_flag list ->
  ?perm:Unix.file_perm ->
  mode:'m Lwt_io.mode ->
  string ->
  'm Lwt_io.channel Lwt.t

(** As [Lwt_io.with_file]. *)
val with_file :
  ?buffer:Lwt_bytes.t ->
  ?flags:Unix.open_flag list ->
  ?perm:Unix.file_perm ->
  mode:'m Lwt_io.mode ->
  string ->
  ('m Lwt_io.channel -> 'a Lwt.t) ->
  'a Lwt.t

(** {1 Trees} *)

(** Copies as [cp -a] or, without [Archive], as [cp -r]; see {!Sakia.Tree.copy}. Canceling the promise
    cancels the copy.
    @return the counts and the failures. *)
val copy_tree :
  ?options:Sakia.Tree.option_ list -> string -> string -> (Sakia.Tree.counts * Sakia.Tree.failure list) Lwt.t

(** As [rm -r]. *)
val remove_tree : string -> (Sakia.Tree.counts * Sakia.Tree.failure list) Lwt.t
