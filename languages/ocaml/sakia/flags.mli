(** Numbers of the kernel's interface, as requests take them. *)

(** {1 O_* of open(2).} *)

val o_rdonly : int
val o_wronly : int
val o_rdwr : int
val o_creat : int
val o_excl : int
val o_trunc : int
val o_append : int
val o_nonblock : int
val o_sync : int
val o_dsync : int
val o_cloexec : int
val o_direct : int
val o_directory : int
val o_nofollow : int
val o_path : int
val o_noatime : int
val o_tmpfile : int
val o_noctty : int

(** {1 AT_*.} *)

val at_removedir : int
val at_symlink_nofollow : int
val at_symlink_follow : int
val at_empty_path : int

(** {1 Events of poll(2).} *)

val pollin : int
val pollout : int
val pollerr : int
val pollhup : int
val pollpri : int
val pollrdhup : int

(** {1 MSG_* of send(2) and recv(2).} *)

val msg_peek : int
val msg_more : int
val msg_nosignal : int
val msg_dontwait : int
val msg_oob : int
val msg_trunc : int
val msg_ctrunc : int
val msg_waitall : int
val msg_cmsg_cloexec : int

(** {1 RENAME_* of renameat2(2).} *)

val rename_noreplace : int
val rename_exchange : int

(** {1 Domains and types of socket(2).} *)

val af_unix : int
val af_inet : int
val af_inet6 : int
val sock_stream : int
val sock_dgram : int
val sock_seqpacket : int
val sock_nonblock : int

(** {1 Directions of shutdown(2).} *)

val shut_rd : int
val shut_wr : int
val shut_rdwr : int

(** {1 As nanoseconds of {!Request.set_times}: now, or no change.} *)

val utime_now : int
val utime_omit : int

(** {1 Error numbers, as results have them, negative.} *)

val eagain : int
val ecanceled : int
val eperm : int
val ebadf : int
val einval : int
val enosys : int
val exdev : int
val eintr : int
val enoent : int
val ebusy : int

(** {1 RESOLVE_* of openat2(2).} *)

val resolve_no_xdev : int
val resolve_no_magiclinks : int
val resolve_no_symlinks : int
val resolve_beneath : int
val resolve_in_root : int
val resolve_cached : int

(** As an offset: the file's own position. *)
val current_position : int

(** {1 From Unix's types} *)

(** The `O_*` of a list of flags. Files of this library are closed on exec, whatever the list says. *)
val of_open_flags : Unix.open_flag list -> int

val of_domain : Unix.socket_domain -> int

(** @raise Invalid_argument for [SOCK_RAW]. *)
val of_type : Unix.socket_type -> int

val of_shutdown : Unix.shutdown_command -> int

(** The error with this (positive) number. *)
val error : int -> Unix.error
