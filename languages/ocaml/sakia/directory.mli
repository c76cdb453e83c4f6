(** The entries that {!Request.read_directory} wrote. *)

type entry = { name : string; kind : Stat.kind; inode : int }

(** [entries buf len] decodes the first [len] bytes, without ["."] and [".."], in the kernel's order. *)
val entries : Buf.t -> int -> entry list
