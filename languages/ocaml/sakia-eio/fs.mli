(** Directories and names. Functions that open are for a fiber, and may be used in any domain. *)

type place =
  | Below of Eio_unix.Fd.t  (** a path stays below this directory *)
  | Cwd  (** a path stays below the working directory *)
  | Fs  (** a path leads anywhere *)

val place_of : _ Eio.Resource.t -> place option
(** Returns the place of a directory; [None] for another backend's. *)

val openat : sw:Eio.Switch.t -> place -> string -> flags:int -> mode:int -> Eio_unix.Fd.t
(** Opens a descriptor, which is closed on exec, and with the switch.
    @raise Eio.Io as [openat2(2)]; [EXDEV] of a path that leaves the place.
    @raise Eio.Cancel.Cancelled the fiber was canceled, and nothing is open. *)

val with_parent : string -> place -> string -> (int -> string -> 'a) -> 'a
(** [with_parent op place path f] runs [f] with an open number for the directory that has the last
    component of the path, [-1] for the working directory, and that component, without slashes; with ["."]
    for a path that ends with [".."]. In {!Fs} it is [-1] and the whole path. The number is closed after
    [f].
    @raise Eio.Io as {!openat}. *)

val fs : Eio.Fs.dir_ty Eio.Path.t
val cwd : Eio.Fs.dir_ty Eio.Path.t
