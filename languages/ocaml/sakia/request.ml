(* Fields that few operations have. The C side knows the order of both records. *)
type more = {
  file2 : Obj.t;
  fd2 : int;
  path : Obj.t;
  path2 : Obj.t;
  arg0 : int;
  arg1 : int;
  arg2 : int;
  offset2 : int;
  data : Obj.t;
  slices : Obj.t;
  control : Obj.t;
}
[@@warning "-69"]

type t = {
  name : string;
  op : int;
  file : Obj.t;
  fd : int;
  memory : Obj.t;
  pos : int;
  len : int;
  offset : int;
  flags : int;
  more : Obj.t;
  (* From here on for OCaml code. *)
  what : string;
  bufs : Buf.t list;
  large : bool;
}
[@@warning "-69"]

type encoded = t

let encoded it = it
let name it = it.name
let what it = it.what
let is_large it = it.large
let none = Raw.none
let file_of it = Obj.repr (File.handle it)
let dir_of = function Some it -> file_of it | None -> none

let lend it =
  match it.bufs with
  | [] -> ()
  | [ one ] -> Buf.lend one
  | bufs ->
    let rec lend = function
      | [] -> ()
      | buf :: rest ->
        Buf.lend buf;
        (try lend rest
         with error ->
           Buf.return buf;
           raise error)
    in
    lend bufs

(* No handler of a signal runs in here; see {!Loop.release}. *)
let return it =
  let rec return = function
    | [] -> ()
    | buf :: rest ->
      return rest;
      Buf.return buf;
      ()
  in
  return it.bufs;
  ()

let plain name op file what =
  {
    name;
    op;
    file;
    fd = -1;
    memory = none;
    pos = 0;
    len = 0;
    offset = 0;
    flags = 0;
    more = none;
    what;
    bufs = [];
    large = false;
  }

let rest =
  {
    file2 = none;
    fd2 = -1;
    path = none;
    path2 = none;
    arg0 = 0;
    arg1 = 0;
    arg2 = 0;
    offset2 = 0;
    data = none;
    slices = none;
    control = none;
  }

let of_file name op file = plain name op (file_of file) (File.name file)
let of_path name op dir path more = { (plain name op (dir_of dir) path) with more =
  Obj.repr { more with path = Obj.repr path } }

let check buf pos len name =
  if len < 0 || pos < 0 || pos > Buf.length buf - len then invalid_arg ("Sakia.Request." ^ name)

(* Written out, since these are the hot ones. *)
let transfer name op file buf pos len offset flags =
  check buf pos len name;
  {
    name;
    op;
    file = file_of file;
    fd = -1;
    memory = Obj.repr (Buf.memory buf);
    pos;
    len;
    offset;
    flags;
    more = none;
    what = File.name file;
    bufs = [ buf ];
    large = len > Raw.small;
  }

let nop = plain "nop" 0 none ""
let read file buf ~pos ~len ~offset = transfer "read" 1 file buf pos len offset 0
let write file buf ~pos ~len ~offset = transfer "write" 2 file buf pos len offset 0

let vector name op file pieces offset flags =
  let slice (buf, pos, len) =
    check buf pos len name;
    (Buf.memory buf, pos, len)
  in
  let slices = Array.of_list (List.map slice pieces) in
  if Array.length slices > 1024 then invalid_arg ("Sakia.Request." ^ name);
  let total = Array.fold_left (fun sum (_, _, len) -> sum + len) 0 slices in
  {
    (of_file name op file) with
    offset;
    flags;
    more = Obj.repr { rest with slices = Obj.repr slices };
    bufs = List.map (fun (buf, _, _) -> buf) pieces;
    large = total > Raw.small;
  }

let readv ?(flags = 0) file pieces ~offset = vector "readv" 3 file pieces offset flags
let writev ?(flags = 0) file pieces ~offset = vector "writev" 4 file pieces offset flags

let open_ ?dir ?(resolve = 0) path ~flags ~perm =
  (* As open(2), which ignores the mode unless it makes a file; openat2(2) refuses it. *)
  let makes = flags land (Flags.o_creat lor (Flags.o_tmpfile land lnot Flags.o_directory)) <> 0 in
  let arg0 = if makes then perm land 0o7777 else 0 in
  { (of_path "open" 5 dir path { rest with arg0; offset2 = resolve }) with flags }

let close file = of_file "close" 6 file
let sync ?(data = false) file = { (of_file (if data then "fdatasync" else "fsync") 7 file) with flags =
  Bool.to_int data }

let with_buf it buf len =
  check buf 0 len it.name;
  { it with memory = Obj.repr (Buf.memory buf); len; bufs = [ buf ] }

let stat ?dir ?(flags = 0) path buf = with_buf { (of_path "stat" 8 dir path rest) with flags } buf Stat.size
let fstat file buf = with_buf (of_file "fstat" 8 file) buf Stat.size
let truncate file size =
  if size < 0 then raise (Unix.Unix_error (Unix.EINVAL, "ftruncate", File.name file));
  { (of_file "ftruncate" 10 file) with offset = size }

let range name op file offset len flags =
  if offset < 0 || len < 0 then raise (Unix.Unix_error (Unix.EINVAL, name, File.name file));
  { (of_file name op file) with offset; flags; more = Obj.repr { rest with offset2 = len } }

let allocate ?(mode = 0) file ~offset ~len = range "fallocate" 11 file offset len mode
let advise file ~offset ~len ~advice = range "fadvise" 12 file offset len advice

let copy_range file ~offset file2 ~offset2 ~len =
  if len < 0 then invalid_arg "Sakia.Request.copy_range";
  { (of_file "copy_file_range" 23 file) with offset; len; more = Obj.repr { rest with file2 =
    file_of file2; offset2 } }

let mkdir ?dir path ~perm = of_path "mkdir" 13 dir path { rest with arg0 = perm }
let unlink ?dir ?(flags = 0) path = { (of_path "unlink" 14 dir path rest) with flags }

let two name op dir dir2 flags path path2 =
  { (of_path name op dir path { rest with file2 = dir_of dir2; path2 = Obj.repr path2 }) with flags }

let rename ?dir ?dir2 ?(flags = 0) path path2 = two "rename" 15 dir dir2 flags path path2
let link ?dir ?dir2 ?(flags = 0) path path2 = two "link" 16 dir dir2 flags path path2
let symlink ?dir ~target path = of_path "symlink" 17 dir path { rest with path2 = Obj.repr target }
let readlink ?dir path buf = with_buf (of_path "readlink" 18 dir path rest) buf (Buf.length buf)
let read_directory file buf = with_buf (of_file "getdents" 19 file) buf (Buf.length buf)
let chmod ?dir ?(flags = 0) path ~perm = { (of_path "chmod" 20 dir path { rest with arg0 =
  perm }) with flags }
let fchmod file ~perm = { (of_file "fchmod" 20 file) with more = Obj.repr { rest with arg0 = perm } }

let chown ?dir ?(flags = 0) path ~uid ~gid =
  { (of_path "chown" 21 dir path { rest with arg0 = uid; arg1 = gid }) with flags }

let fchown file ~uid ~gid = { (of_file "fchown" 21 file) with more = Obj.repr { rest with arg0 = uid;
  arg1 = gid } }

let times (access, access_ns) (change, change_ns) = Obj.repr (Raw.times access access_ns change change_ns)

let set_times ?dir ?(flags = 0) path ~accessed ~modified =
  { (of_path "utimensat" 22 dir path { rest with data = times accessed modified }) with flags }

let fset_times file ~accessed ~modified =
  { (of_file "futimens" 22 file) with more = Obj.repr { rest with data = times accessed modified } }

let poll file ~events = { (of_file "poll" 24 file) with flags = events }
let poll_many file ~events = { (of_file "poll" 36 file) with flags = events }

let socket ~domain ~kind ~protocol =
  { (plain "socket" 25 none "") with more = Obj.repr { rest with arg0 = domain; arg1 = kind; arg2 =
    protocol } }

let data_of name address : Obj.t =
  let it = Raw.address_encode address in
  if Obj.is_int it then Raw.fail (Obj.obj it : int) name "" else it

let with_address name op file address =
  { (of_file name op file) with more = Obj.repr { rest with data = data_of name address } }

let bind file address = with_address "bind" 26 file address
let listen file ~backlog = { (of_file "listen" 27 file) with more = Obj.repr { rest with arg0 = backlog } }
let connect file address = with_address "connect" 28 file address
let address_size = 128
let accept file buf = with_buf (of_file "accept" 29 file) buf address_size
let accept_many file = of_file "accept" 30 file
let send ?(flags = 0) file buf ~pos ~len = transfer "send" 31 file buf pos len 0 flags
let recv ?(flags = 0) file buf ~pos ~len = transfer "recv" 32 file buf pos len 0 flags
let receive_many file = of_file "recv" 37 file

let send_message ?(flags = 0) ?address ?(descriptors = []) file buf ~pos ~len =
  let data = match address with Some address -> data_of "sendmsg" address | None -> none in
  let control =
    match descriptors with [] -> none | list -> Obj.repr (Array.of_list (List.map Raw.fd_of list))
  in
  (* A datagram's bytes are few, and its address must not move. *)
  { (transfer "sendmsg" 33 file buf pos len 0 flags) with more = Obj.repr { rest with data; control };
    large = false }

type message = { area : Buf.t; bytes : Buf.t; pos : int; len : int; descriptors : int }

let message ?(descriptors = 0) buf ~pos ~len =
  check buf pos len "message";
  if descriptors < 0 then invalid_arg "Sakia.Request.message";
  { area = Buf.own (Raw.message_size ()); bytes = buf; pos; len; descriptors }

let recv_message ?(flags = 0) file { area; bytes; pos; len; descriptors } =
  if Buf.is_used area then invalid_arg "Sakia.Request.recv_message: the message is in use";
  Raw.message_prepare (Buf.memory area) (Buf.memory bytes) pos len descriptors;
  let it = with_buf { (of_file "recvmsg" 34 file) with flags } area (Raw.message_header ()) in
  { it with bufs = [ area; bytes ] }

let message_address { area; _ } =
  let pos, size, _ = Raw.message_facts (Buf.memory area) in
  if size = 0 then None
  else
    let it = Raw.address_decode (Buf.memory area) pos size in
    if Obj.is_int it then None else Some (Obj.obj it : Unix.sockaddr)

let message_flags { area; _ } =
  let _, _, flags = Raw.message_facts (Buf.memory area) in
  flags

let message_descriptors { area; _ } =
  List.map Raw.fd_to (Array.to_list (Raw.message_descriptors (Buf.memory area)))

let shutdown file how = { (of_file "shutdown" 35 file) with more = Obj.repr { rest with arg0 = how } }

let address buf len : Unix.sockaddr =
  if len < 0 || len > Buf.length buf then invalid_arg "Sakia.Request.address";
  Raw.check_object "address" "" (Raw.address_decode (Buf.memory buf) 0 len)

let by_number fd it = { it with file = none; fd = Raw.fd_of fd }
let poll_number fd ~events = { (plain "poll" 24 none "") with flags = events; fd = Raw.fd_of fd }
