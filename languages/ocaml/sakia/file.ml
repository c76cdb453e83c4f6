type t = { handle : Raw.file; name : string }

let handle it = it.handle
let of_handle name handle = { handle; name }
let name it = it.name

let make operation call name fd =
  let handle = Raw.file_none () in
  let number = Raw.fd_of fd in
  let name = match name with Some name -> name | None -> string_of_int number in
  ignore (Raw.check operation name (call handle number) : int);
  { handle; name }

let adopt ?name fd = make "adopt" Raw.file_adopt name fd
let lend ?name fd = make "lend" Raw.file_lend name fd
let duplicate ?name fd = make "dup" Raw.file_duplicate name fd
let number it = Raw.fd_to (Raw.check "number" it.name (Raw.file_number it.handle))
let would_wait = -1
let again = -Flags.eagain

let check memory pos len name =
  if len < 0 || pos < 0 || pos > Bigarray.Array1.dim memory - len then invalid_arg name

let check_bytes bytes pos len name =
  if len < 0 || pos < 0 || pos > Bytes.length bytes - len then invalid_arg name

let finish it operation result =
  if result >= 0 then result
  else if result = again then would_wait
  else Raw.fail result operation it.name

(* A read of no bytes reads none: the library refuses it. *)

let try_read it memory ~pos ~len ~offset =
  check memory pos len "Sakia.File.try_read";
  if len = 0 then 0
  else
    finish it "read"
      (if len <= Raw.small then Raw.try_read it.handle memory pos len offset
      else Raw.try_read_large it.handle memory pos len offset)

let try_write it memory ~pos ~len ~offset =
  check memory pos len "Sakia.File.try_write";
  finish it "write"
    (if len <= Raw.small then Raw.try_write it.handle memory pos len offset
    else Raw.try_write_large it.handle memory pos len offset)

let try_recv ?(flags = 0) it memory ~pos ~len =
  check memory pos len "Sakia.File.try_recv";
  if len = 0 then 0
  else
    finish it "recv"
      (if len <= Raw.small then Raw.try_recv it.handle memory pos len flags
      else Raw.try_recv_large it.handle memory pos len flags)

let try_send ?(flags = 0) it memory ~pos ~len =
  check memory pos len "Sakia.File.try_send";
  finish it "send"
    (if len <= Raw.small then Raw.try_send it.handle memory pos len flags
    else Raw.try_send_large it.handle memory pos len flags)

let try_read_bytes it bytes ~pos ~len ~offset =
  check_bytes bytes pos len "Sakia.File.try_read_bytes";
  if len = 0 then 0 else finish it "read" (Raw.try_read_bytes it.handle bytes pos (min len Raw.small) offset)

let try_write_bytes it bytes ~pos ~len ~offset =
  check_bytes bytes pos len "Sakia.File.try_write_bytes";
  finish it "write" (Raw.try_write_bytes it.handle bytes pos (min len Raw.small) offset)

let try_recv_bytes it bytes ~pos ~len =
  check_bytes bytes pos len "Sakia.File.try_recv_bytes";
  if len = 0 then 0 else finish it "recv" (Raw.try_recv_bytes it.handle bytes pos (min len Raw.small) 0)

let try_send_bytes it bytes ~pos ~len =
  check_bytes bytes pos len "Sakia.File.try_send_bytes";
  finish it "send" (Raw.try_send_bytes it.handle bytes pos (min len Raw.small) 0)

let directory = function Some { handle; _ } -> Obj.repr handle | None -> Raw.none

let stat dir path flags name =
  let area = Buf.take Stat.size in
  let result = Raw.try_stat dir path flags (Buf.memory area) 0 in
  let stat = if result >= 0 then Some (Stat.of_buf area) else None in
  Buf.give area;
  if result < 0 && result <> again then Raw.fail result "stat" name else stat

let try_stat ?dir ?(flags = 0) path = stat (directory dir) (Obj.repr path) flags path
let try_fstat it = stat (Obj.repr it.handle) Raw.none 0 it.name

let try_open ?dir ?(resolve = 0) path ~flags =
  let handle = Raw.file_none () in
  let result = Raw.try_open (directory dir) path flags resolve handle in
  if result >= 0 then Some { handle; name = path }
  else if result = again then None
  else Raw.fail result "open" path
