(** Copies and removals of whole trees of files, as [cp -a] and [rm -r], on threads of the library. *)

(** It has a descriptor, and is kept until {!wait} has returned its end; then the collector frees it. *)
type t

type option_ =
  | Archive  (** an exact copy, with owners, times, links and attributes *)
  | Force  (** what cannot be opened is removed and made anew *)
  | Follow  (** symbolic links are followed *)
  | One_file_system
  | Durable  (** the copy is durable at its end *)
  | Verify  (** the copy is read again, and compared *)
  | Dry_run
  | Keep  (** entries that exist stay *)
  | Update  (** entries that exist and are not older stay *)

type counts = {
  files : int;
  directories : int;
  symlinks : int;
  hard_links : int;
  others : int;
  skipped : int;
  bytes : int;
  failures : int;
}

type failure = { operation : string; path : string; error : Unix.error }

(** [copy from destination] begins to copy; [destination] is the copy itself, not a directory for it.
    @param threads one per processor if not given.
    @param limit the most entries in progress; 64 if not given.
    @raise Unix.Unix_error it could not begin. *)
val copy : ?options:option_ list -> ?threads:int -> ?limit:int -> string -> string -> t

(** Begins to remove a tree. No link is followed. *)
val remove : ?threads:int -> ?limit:int -> string -> t

(** The counts so far. *)
val counts : t -> counts

(** Takes the oldest failure; [None] if there is none at the moment. *)
val failure : t -> failure option

type state =
  | Running
  | Finished
  | Failed of Unix.error
    (** [EUNKNOWNERR 121] ([EREMOTEIO]): some entries failed, see {!failure}; [EUNKNOWNERR 125]
          ([ECANCELED]): it was canceled, or the destination is full; others: it could not begin *)

(** Waits for the end, without the runtime lock.
    @param timeout_ns negative, the default: for ever. *)
val wait : ?timeout_ns:int -> t -> state

(** A new descriptor, the program's, which becomes readable at the end, for an event loop. *)
val pollable : t -> Unix.file_descr

(** Stops the work, and returns at once: entries in progress are completed or removed. *)
val cancel : t -> unit
