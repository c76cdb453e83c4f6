(** A main for programs that choose their backend when they start. *)

val run : (Eio_unix.Stdenv.base -> 'a) -> 'a
(** {!Eio_sakia.run}, or the backend that the environment variable [EIO_BACKEND] names: [sakia], [linux] or
    [posix].
    @raise Invalid_argument for another name. *)
