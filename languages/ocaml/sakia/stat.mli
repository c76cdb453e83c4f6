(** The status of a file, from the kernel's [struct statx]. *)

type kind = Regular | Directory | Symlink | Fifo | Socket | Character | Block | Unknown

type time = { seconds : int; nanoseconds : int }

type t = {
  kind : kind;
  permissions : int;  (** without the kind *)
  links : int;
  uid : int;
  gid : int;
  inode : int;
  size : int;
  blocks : int;  (** of 512 bytes *)
  block_size : int;
  device : int * int;  (** major and minor *)
  special : int * int;  (** of a character or block device *)
  accessed : time;
  modified : time;
  changed : time;
  born : time option;
  mount : int option;  (** since Linux 5.8 *)
}

(** The bytes that a request for a status needs: 256. *)
val size : int

(** Decodes what {!Request.stat} wrote. *)
val of_buf : Buf.t -> t

(** The kind in a [d_type] of a directory's entry, or in bits 12 to 15 of a mode. *)
val kind_of_int : int -> kind

(** As [Unix.LargeFile.stats]. *)
val to_unix : t -> Unix.LargeFile.stats
