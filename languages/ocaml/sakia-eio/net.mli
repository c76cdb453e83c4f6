(** Sockets of other kinds than streams, and the network. They may be used in any domain. *)

val listening_socket : Eio_unix.Fd.t -> [ `Unix_fd | Eio_unix.Net.listening_socket_ty ] Eio.Resource.t
(** Makes the descriptor non-blocking. *)

val datagram_socket : Eio_unix.Fd.t -> [ `Unix_fd | Eio_unix.Net.datagram_socket_ty ] Eio.Resource.t

val v : [ `Generic | `Unix ] Eio.Net.ty Eio.Resource.t
