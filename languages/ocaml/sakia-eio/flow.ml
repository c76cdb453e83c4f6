open Eio.Std
module Fd = Eio_unix.Fd

type kind = Unknown | Regular | Socket | Character | Fifo | Other

type t = {
  fd : Fd.t;
  is_named : bool; (* it was opened by a path *)
  mutable kind : kind;
  mutable handle : Raw.handle option; (* of a regular file, for calls that are tried *)
  mutable is_hot : bool; (* the last receive filled its memory, so that more has likely arrived *)
}

let make ?(is_named = false) ?(is_regular = false) fd =
  { fd; is_named; kind = (if is_regular then Regular else Unknown); handle = None; is_hot = false }

(* The kind and the size, by a system call. *)
let look t number =
  let facts = Raw.facts number in
  let kind =
    match facts land 15 with
    | 8 -> Regular
    | 12 -> Socket
    | 2 -> Character
    | 1 -> Fifo
    | _ -> Other
  in
  t.kind <- kind;
  (kind, facts asr 4)

let kind t number =
  match t.kind with
  | Unknown -> fst (look t number)
  | kind -> kind

(* Runs with the descriptor's number. A device may always be ready, so others go first. *)
let use op t f =
  Fd.use_exn op t.fd @@ fun fd ->
  let number = Raw.number fd in
  let kind = kind t number in
  if kind = Character then Sched.pass ();
  f number kind

(* A FIFO that nobody has opened for writing yet has no end: its reader waits. *)
let await_writer t number kind =
  if kind = Fifo && t.is_named then
    Io.checked "read" "" (Sched.poll (Sched.get ()) "read" number Raw.pollin) |> ignore

let end_of_file count = if count = 0 then raise End_of_file else count

(* Messages are smaller than that, and rarely follow each other at once. *)
let bulk = 4096

let receive t number (buf : Cstruct.t) =
  let by_request () = Io.receive number buf in
  let value =
    if t.is_hot && buf.len <= Io.small then (
      Sched.before_call (Sched.get ());
      match Raw.try_receive number buf.buffer buf.off buf.len with
      | value when value = Raw.eagain || value = Raw.eintr -> by_request ()
      | value -> value)
    else by_request ()
  in
  t.is_hot <- value = buf.len && value >= bulk;
  value

let handle t number =
  match t.handle with
  | Some handle -> handle
  | None ->
    let handle = Raw.lend number in
    t.handle <- Some handle;
    handle

(* Moves bytes of a regular file: by a plain call if that needs no wait, else by a request. *)
let move_regular t number ~writes (buf : Cstruct.t) ~at ~by_request =
  let handle = handle t number in
  Sched.before_call (Sched.get ());
  let direction = Bool.to_int writes in
  let value =
    if buf.len <= Io.small then Raw.try_move handle direction buf.buffer buf.off buf.len at
    else Raw.try_move_much handle direction buf.buffer buf.off buf.len at
  in
  if value = Raw.eagain || value = Raw.eintr then by_request () else value

let read_at t number kind bufs ~at =
  match bufs with
  | [ (buf : Cstruct.t) ] when kind = Regular && buf.len > 0 ->
    move_regular t number ~writes:false buf ~at ~by_request:(fun () -> Io.read number buf ~at)
  | bufs -> Io.read_parts number bufs ~at

let write_at t number kind bufs ~at =
  match bufs with
  | [ (buf : Cstruct.t) ] when kind = Regular && buf.len > 0 ->
    move_regular t number ~writes:true buf ~at ~by_request:(fun () -> Io.write_parts number bufs ~at)
  | bufs -> Io.write_parts number bufs ~at

let read t buf =
  use "read" t @@ fun number kind ->
  await_writer t number kind;
  let value = if kind = Socket then receive t number buf else read_at t number kind [ buf ] ~at:Io.here in
  Io.checked "read" "" value

let first_parts bufs =
  if List.compare_length_with bufs 1024 <= 0 then bufs else List.filteri (fun i _ -> i < 1024) bufs

let write t bufs =
  use "write" t @@ fun number kind ->
  Io.checked "write" ""
    (match bufs with
     | [ buf ] when kind = Socket -> Io.send number buf
     | bufs -> write_at t number kind (first_parts bufs) ~at:Io.here)

let rec write_all t (buf : Cstruct.t) =
  let count = write t [ buf ] in
  if count < buf.len then write_all t (Cstruct.shift buf count)

let seek t offset whence =
  Fd.use_exn "lseek" t.fd @@ fun fd ->
  let whence =
    match whence with
    | `Set -> Unix.SEEK_SET
    | `Cur -> Unix.SEEK_CUR
    | `End -> Unix.SEEK_END
  in
  Err.run (fun () -> Unix.LargeFile.lseek fd offset whence) ()

(* One request copies so much at most: a cancellation is heeded after it. *)
let piece = 1 lsl 30

(* Copies what [src], a file of this size, has after its position, within the kernel, as far as it can: files
   may be none for that. Returns whether it came to the end. *)
let copy_within_kernel src dst ~size =
  let position t = Int64.to_int (seek t 0L `Cur) in
  let set t at = ignore (seek t (Int64.of_int at) `Set : int64) in
  let from_offset = position src and into_offset = position dst in
  let copied = ref 0 in
  let rec copy () =
    let value =
      use "copy" src @@ fun from _ ->
      use "copy" dst @@ fun into _ ->
      let from_offset = from_offset + !copied and into_offset = into_offset + !copied in
      Io.copy_range ~from ~from_offset ~into ~into_offset ~len:piece
    in
    if value > 0 then (
      copied := !copied + value;
      if from_offset + !copied <> size then copy ())
  in
  Fun.protect copy ~finally:(fun () ->
      if !copied > 0 then (
        set src (from_offset + !copied);
        set dst (into_offset + !copied)));
  !copied > 0 && from_offset + !copied = size

(* Copies by way of memory, until the source ends; a larger regular file within the kernel, by one request. *)
let copy_flow src dst =
  let s = Sched.get () in
  Pools.use (Sched.pools s).blocks @@ fun memory ->
  let buf = Cstruct.of_bigarray memory in
  let rec plain () =
    match read src buf with
    | 0 -> ()
    | count ->
      write_all dst (Cstruct.sub buf 0 count);
      plain ()
  in
  let facts t look = Fd.use t.fd ~if_closed:(fun () -> (Other, 0)) (fun fd -> look t (Raw.number fd)) in
  match facts src look with
  | Regular, size when fst (facts dst (fun t number -> (kind t number, 0))) = Regular ->
    (* A file that was copied as far as it went a moment ago is not asked again for more. *)
    if size > buf.len then (if not (copy_within_kernel src dst ~size) then plain ())
    else
      let count = read src buf in
      write_all dst (Cstruct.sub buf 0 count);
      if count > 0 && count <> size then plain ()
  | _ -> plain ()

module Impl = struct
  type nonrec t = t
  type tag = [ `Generic | `Unix ]

  let fd t = t.fd
  let close t = Fd.close t.fd
  let read_methods = []
  let single_read t buf = end_of_file (read t buf)
  let single_write t bufs = write t bufs

  let pread t ~file_offset bufs =
    use "pread" t @@ fun number kind ->
    await_writer t number kind;
    read_at t number kind (first_parts bufs) ~at:(Optint.Int63.to_int file_offset)
    |> Io.checked "pread" "" |> end_of_file

  let pwrite t ~file_offset bufs =
    use "pwrite" t @@ fun number kind ->
    write_at t number kind (first_parts bufs) ~at:(Optint.Int63.to_int file_offset) |> Io.checked "pwrite" ""

  let stat t = use "fstat" t @@ fun number _ -> Io.fstat number
  let seek t offset whence = Optint.Int63.of_int64 (seek t (Optint.Int63.to_int64 offset) whence)
  let sync t = use "fsync" t @@ fun number _ -> Io.sync number
  let truncate t len = use "ftruncate" t @@ fun number _ -> Io.truncate number (Optint.Int63.to_int len)

  let copy_from (type src) (module Src : Eio.Flow.Pi.SOURCE with type t = src) (src : src) t =
    let s = Sched.get () in
    let rec by_methods : src Eio.Flow.read_method list -> unit = function
      | Eio.Flow.Read_source_buffer read :: _ ->
        while true do
          read src (single_write t)
        done
      | _ :: rest -> by_methods rest
      | [] ->
        Pools.use (Sched.pools s).blocks @@ fun memory ->
        let buf = Cstruct.of_bigarray memory in
        while true do
          write_all t (Cstruct.sub buf 0 (Src.single_read src buf))
        done
    in
    try by_methods Src.read_methods with End_of_file -> ()

  type (_, _, _) Eio.Resource.pi += Flow : ('t, 't -> t, [> `Unix_fd ]) Eio.Resource.pi

  let copy t ~src:(Eio.Resource.T (src, ops)) =
    match Eio.Resource.get_opt ops Flow with
    | Some flow -> copy_flow (flow src) t
    | None -> copy_from (Eio.Resource.get ops Eio.Flow.Pi.Source) src t

  let shutdown t command =
    let command =
      match command with
      | `Receive -> Unix.SHUTDOWN_RECEIVE
      | `Send -> Unix.SHUTDOWN_SEND
      | `All -> Unix.SHUTDOWN_ALL
    in
    Fd.use_exn "shutdown" t.fd @@ fun fd ->
    try Err.run (Unix.shutdown fd) command with
    | Eio.Io (Eio.Exn.X (Eio_unix.Unix_error (Unix.ENOTCONN, _, _)), _) -> ()

  let send_msg t ~fds bufs =
    use "send_msg" t @@ fun number _ ->
    Fd.use_exn_list "send_msg" fds @@ fun fds ->
    Io.plainly "send_msg" number Raw.pollout (fun () ->
        Raw.try_send_message number fds None (first_parts bufs))
    |> Io.checked "send_msg" ""

  let recv_msg_with_fds t ~sw ~max_fds bufs =
    use "recv_msg" t @@ fun number _ ->
    let fds = ref [] in
    let count =
      Io.plainly "recv_msg" number Raw.pollin (fun () ->
          let count, _, received = Raw.try_receive_message number max_fds (first_parts bufs) in
          fds := received;
          count)
      |> Io.checked "recv_msg" ""
    in
    (count, Fd.of_unix_list ~sw !fds)

  let setsockopt t opt v = Eio_unix.Private.setsockopt t.fd opt v
  let getsockopt t opt = Eio_unix.Private.getsockopt t.fd opt
end

let handler =
  Eio.Resource.handler
    (Eio.Resource.H (Impl.Flow, Fun.id) :: Eio.Resource.bindings (Eio_unix.Pi.flow_handler (module Impl)))

let of_fd ?is_named ?is_regular fd =
  let r = Eio.Resource.T (make ?is_named ?is_regular fd, handler) in
  (r : [ `Unix_fd | Eio_unix.Net.stream_socket_ty | Eio.File.rw_ty ] r
    :> [< `Unix_fd | Eio_unix.Net.stream_socket_ty | Eio.File.rw_ty ] r)

module Secure_random = struct
  type t = unit

  let read_methods = []

  let single_read () (buf : Cstruct.t) =
    Raw.random buf.buffer buf.off buf.len;
    buf.len
end

let secure_random = Eio.Resource.T ((), Eio.Flow.Pi.source (module Secure_random))
