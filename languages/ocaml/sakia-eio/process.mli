(** Child processes. A child is waited for by a fiber of the switch that it belongs to, in any domain. *)

val manager : Eio_unix.Process.mgr_ty Eio.Resource.t

val pipe : sw:Eio.Switch.t -> Eio_unix.Fd.t * Eio_unix.Fd.t
(** The ends for reading and writing, non-blocking, closed on exec and with the switch.
    @raise Unix.Unix_error [EMFILE], [ENFILE]. *)
