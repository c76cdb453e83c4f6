type entry = { name : string; kind : Stat.kind; inode : int }

external get_16 : Buf.memory -> int -> int = "%caml_bigstring_get16"
external get_64 : Buf.memory -> int -> int64 = "%caml_bigstring_get64"

(* struct linux_dirent64: the inode, a position, the size of the entry, the kind, and the name. *)
let name_at = 19

let entries buf len =
  let memory = Buf.memory buf in
  let byte at = Char.code (Bigarray.Array1.get memory at) in
  let rec zero at = if byte at = 0 then at else zero (at + 1) in
  let rec decode at found =
    if at + name_at >= len then List.rev found
    else
      let size = get_16 memory (at + 16) in
      if size <= 0 then List.rev found
      else
      let begins = at + name_at in
      let name = Buf.sub_string buf begins (zero begins - begins) in
      let next = at + size in
      if name = "." || name = ".." then decode next found
      else
        let kind = Stat.kind_of_int (byte (at + 18)) and inode = Int64.to_int (get_64 memory at) in
        decode next ({ name; kind; inode } :: found)
  in
  if len < 0 || len > Buf.length buf then invalid_arg "Sakia.Directory.entries";
  decode 0 []
