(* Operations on numbers: each is one request, and answers with its value or raises eio's exception. *)

(* A descriptor of another program may be non-blocking, and then the kernel may answer that it would wait. *)
let rec retry op fd events f =
  match f () with
  | value when value = Raw.eagain || value = Raw.eintr ->
    let t = Sched.get () in
    let ready = if value = Raw.eintr then 0 else Sched.poll t op fd events in
    if ready < 0 then ready else retry op fd events f
  | value -> value

let small = 32 lsl 10

let move op call fd events (buf : Cstruct.t) ~at =
  retry call fd events @@ fun () ->
  let t = Sched.get () in
  Sched.request t call ~kept:buf.buffer (fun loop token ->
      if buf.len <= small then Raw.move loop op fd buf.buffer buf.off buf.len at token
      else Raw.move_much loop op fd buf.buffer buf.off buf.len at token)

let move_parts op call fd events bufs ~at =
  retry call fd events @@ fun () ->
  let t = Sched.get () in
  Sched.request t call ~kept:bufs (fun loop token -> Raw.move_parts loop op fd bufs at token)

let here = -1 (* the file's position *)

let read fd buf ~at = move Raw.op_read "read" fd Raw.pollin buf ~at

let read_parts fd bufs ~at =
  match bufs with
  | [ buf ] -> read fd buf ~at
  | bufs -> move_parts Raw.op_readv "readv" fd Raw.pollin bufs ~at

let write_parts fd bufs ~at =
  match bufs with
  | [ buf ] -> move Raw.op_write "write" fd Raw.pollout buf ~at
  | bufs -> move_parts Raw.op_writev "writev" fd Raw.pollout bufs ~at

let send fd buf = move Raw.op_send "send" fd Raw.pollout buf ~at:here
let receive fd buf = move Raw.op_receive "recv" fd Raw.pollin buf ~at:here

let checked call arg value = if value < 0 then Err.fail value call arg else value

(* A plain call that answers EAGAIN instead of waiting, and then again after readiness. *)
let rec plainly op fd events f =
  let t = Sched.get () in
  Sched.before_call t;
  match f () with
  | value when value = Raw.eagain ->
    let ready = Sched.poll t op fd events in
    if ready < 0 then ready else plainly op fd events f
  | value when value = Raw.eintr -> plainly op fd events f
  | value -> value

let on_file op call fd ~flags ~offset =
  let t = Sched.get () in
  Sched.request t call ~kept:() (fun loop token -> Raw.file loop op fd flags offset token)
  |> checked call ""

let sync fd = ignore (on_file Raw.op_sync "fsync" fd ~flags:0 ~offset:0 : int)
let truncate fd len = ignore (on_file Raw.op_truncate "ftruncate" fd ~flags:0 ~offset:len : int)

let copy_range ~from ~from_offset ~into ~into_offset ~len =
  let t = Sched.get () in
  Sched.request t "copy" ~kept:() (fun loop token ->
      Raw.copy loop from from_offset into into_offset len token)

(* Facts of a file, as `struct statx` has them. *)

let u16 = Cstruct.LE.get_uint16
let u32 buf at = Int64.logand (Int64.of_int32 (Cstruct.LE.get_uint32 buf at)) 0xffff_ffffL
let u64 = Cstruct.LE.get_uint64

let device buf at =
  let open Int64 in
  let major = u32 buf at and minor = u32 buf (at + 4) in
  let part x mask shift = shift_left (logand x mask) shift in
  logor
    (logor (part major 0xfffL 8) (part major 0xffff_f000L 32))
    (logor (part minor 0xffL 0) (part minor 0xffff_ff00L 12))

(* Whole seconds stay what they are: a fraction next to 1 must not round up. *)
let time buf at =
  let seconds = Int64.to_float (u64 buf at) in
  let time = seconds +. (Int64.to_float (u32 buf (at + 8)) /. 1e9) in
  if Float.floor time > seconds then Float.pred time else time

let kind_of_mode mode : Eio.File.Stat.kind =
  match mode lsr 12 with
  | 1 -> `Fifo
  | 2 -> `Character_special
  | 4 -> `Directory
  | 6 -> `Block_device
  | 8 -> `Regular_file
  | 10 -> `Symbolic_link
  | 12 -> `Socket
  | _ -> `Unknown

let kind buf = kind_of_mode (u16 buf 28)

let facts buf : Eio.File.Stat.t =
  {
    dev = device buf 136;
    ino = u64 buf 32;
    kind = kind buf;
    perm = u16 buf 28 land 0o7777;
    nlink = u32 buf 16;
    uid = u32 buf 20;
    gid = u32 buf 24;
    rdev = device buf 128;
    size = Optint.Int63.of_int64 (u64 buf 40);
    blksize = u32 buf 4;
    blocks = u64 buf 48;
    atime = time buf 64;
    mtime = time buf 112;
    ctime = time buf 96;
  }

(* Of [path] below the directory, or with an empty path of the file itself. *)
let stat_with fd path ~flags f =
  let t = Sched.get () in
  Pools.use (Sched.pools t).stats @@ fun memory ->
  let value =
    Sched.request t "statx" ~kept:memory (fun loop token ->
        Raw.fill loop Raw.op_stat fd path flags memory token)
  in
  if value < 0 then Error value else Ok (f (Cstruct.of_bigarray memory))

let fstat fd =
  match stat_with fd "" ~flags:0 facts with
  | Ok facts -> facts
  | Error value -> Err.fail value "fstat" ""

(* Operations on names. A negative number is the working directory. *)

let on_name op call fd path ?(flags = 0) ?(mode = 0) ?(resolve = 0) () =
  let t = Sched.get () in
  Sched.request t call ~kept:() (fun loop token -> Raw.name loop op fd path flags mode resolve token)

let on_names op call fd path fd2 path2 =
  let t = Sched.get () in
  Sched.request t call ~kept:() (fun loop token -> Raw.names loop op fd path fd2 path2 token)
  |> checked call path |> ignore

let no_nul call path =
  if String.contains path '\000' then raise (Eio_unix.Err.v Unix.ENOENT call path)

let openat2 fd path ~flags ~mode ~resolve =
  no_nul "openat2" path;
  let rec again () =
    match on_name Raw.op_open "openat2" fd path ~flags ~mode ~resolve () with
    | value when value = Raw.eagain && resolve <> 0 -> again () (* a directory was moved meanwhile *)
    | value -> value
  in
  again ()
