(** Files, sockets, pipes and devices as eio's flows. They may be used in any domain. *)

type t

val make : ?is_named:bool -> ?is_regular:bool -> Eio_unix.Fd.t -> t
(** @param is_named it was opened by a path: then a FIFO is read after its first writer has come.
    @param is_regular it is known to be a regular file; the kernel is asked otherwise. *)

val read : t -> Cstruct.t -> int
(** Suspends the fiber until there are bytes, and returns their number, 0 at the end.
    @raise Eio.Io as [read].
    @raise Eio.Cancel.Cancelled the fiber was canceled, and no byte is lost. *)

val of_fd :
  ?is_named:bool ->
  ?is_regular:bool ->
  Eio_unix.Fd.t ->
  [< `Unix_fd | Eio_unix.Net.stream_socket_ty | Eio.File.rw_ty ] Eio.Resource.t
(** As {!make}. The caller says by the type what the descriptor can do. *)

val secure_random : Eio.Flow.source_ty Eio.Resource.t
(** The kernel's random bytes. For any domain. *)
