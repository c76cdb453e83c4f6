(* Directories and names.

   A path below a directory may not leave it: each operation opens the path's directory, or the path itself,
   by `openat2(2)` with RESOLVE_BENEATH, and works on what was opened. Where that call is refused, the way is
   walked step by step. *)

open Eio.Std
module Fd = Eio_unix.Fd

type place =
  | Below of Fd.t
  | Cwd (* confined to the working directory *)
  | Fs (* not confined *)

(* Asked once. The ring does not ask the filter of this process, so a request would not tell. *)
let has_openat2 = Raw.has_openat2 ()

let ignoring_empty path = if path = "" then "." else path

let owned ~sw number = Fd.of_unix ~sw ~seekable:true ~close_unix:true (Raw.descriptor number)

let with_number op place f =
  match place with
  | Below fd -> Fd.use_exn op fd (fun fd -> f (Raw.number fd))
  | Cwd | Fs -> f (-1)

(* The number of the opened file, which is the caller's, or a negative error number. *)
let open_number place path ~flags ~mode =
  let path = ignoring_empty path in
  with_number "openat" place @@ fun fd ->
  match place with
  | Fs -> Io.openat2 fd path ~flags ~mode ~resolve:0
  | Below _ | Cwd when has_openat2 -> Io.openat2 fd path ~flags ~mode ~resolve:Raw.resolve_beneath
  | Below _ | Cwd ->
    Io.no_nul "openat" path;
    Eio_unix.run_in_systhread ~label:"openat" (fun () -> Raw.open_beneath fd path flags mode)

let openat ~sw place path ~flags ~mode =
  let number = open_number place path ~flags ~mode in
  if number < 0 then (
    Switch.check sw;
    Err.fail number "openat" path)
  else owned ~sw number

let close_number number = Unix.close (Raw.descriptor number)

(* Runs [f] with a number for the directory that has the last component of the path, and that component. A
   slash at the end goes: with it the kernel would follow a link. *)
let with_parent op place path f =
  let leaf = Filename.basename path and parent = Filename.dirname path in
  let opened path leaf =
    let number = open_number place path ~flags:(Raw.o_path lor Raw.o_directory) ~mode:0 in
    if number < 0 then Err.fail number op path
    else Fun.protect ~finally:(fun () -> close_number number) (fun () -> f number leaf)
  in
  Io.no_nul op path;
  match place with
  | Fs -> f (-1) (ignoring_empty path)
  | _ when leaf = ".." -> opened path "."
  | _ when parent = "." && leaf <> "/" -> with_number op place (fun fd -> f fd leaf)
  | _ -> opened parent leaf

type (_, _, _) Eio.Resource.pi += Place : ('t, 't -> place, [> `Sakia_dir ]) Eio.Resource.pi

let place_of (Eio.Resource.T (t, ops)) =
  match Eio.Resource.get_opt ops Place with
  | Some f -> Some (f t)
  | None -> None

let failing call path value = if value < 0 then Err.fail value call path

let mkdir place path ~perm =
  with_parent "mkdir" place path @@ fun fd leaf ->
  Io.on_name Raw.op_mkdir "mkdir" fd leaf ~mode:perm () |> failing "mkdir" path

let remove place path ~flags =
  with_parent "unlink" place path @@ fun fd leaf ->
  Io.on_name Raw.op_unlink "unlinkat" fd leaf ~flags () |> failing "unlinkat" path

let rename place path place2 path2 =
  with_parent "rename" place path @@ fun fd leaf ->
  with_parent "rename" place2 path2 @@ fun fd2 leaf2 ->
  Io.on_names Raw.op_rename "renameat" fd leaf fd2 leaf2

let symlink ~link_to place path =
  Io.no_nul "symlink" link_to;
  with_parent "symlink" place path @@ fun fd leaf ->
  Io.on_names Raw.op_symlink "symlinkat" fd leaf (-1) link_to

let rec filled op call fd leaf path size =
  let t = Sched.get () in
  let read memory =
    Sched.request t call ~kept:memory (fun loop token -> Raw.fill loop op fd leaf 0 memory token)
  in
  let text memory count = Cstruct.to_string (Cstruct.of_bigarray memory) ~len:count in
  let result =
    if size = Pools.names_size then
      Pools.use (Sched.pools t).names (fun memory ->
          let count = read memory in
          if count >= 0 && count < size then Ok (text memory count) else Error count)
    else
      let memory = Bigarray.(Array1.create char c_layout size) in
      let count = read memory in
      if count >= 0 && count < size then Ok (text memory count) else Error count
  in
  match result with
  | Ok text -> text
  | Error count when count < 0 -> Err.fail count call path
  | Error _ -> filled op call fd leaf path (4 * size)

let read_link place path =
  with_parent "readlink" place path @@ fun fd leaf ->
  filled Raw.op_readlink "readlink" fd leaf path Pools.names_size

(* A name that is no link is looked at as it is; a link below a directory is opened first, to stay below it.
   *)
let stat place path ~follow =
  let exactly fd leaf ~flags =
    match Io.stat_with fd leaf ~flags Io.facts with
    | Ok facts -> facts
    | Error value -> Err.fail value "statx" path
  in
  match place with
  | Fs when follow ->
    Io.no_nul "statx" path;
    exactly (-1) (ignoring_empty path) ~flags:0
  | Below fd when path = "" -> Fd.use_exn "statx" fd (fun fd -> exactly (Raw.number fd) "" ~flags:0)
  | _ ->
    let facts = with_parent "statx" place path (exactly ~flags:Raw.at_symlink_nofollow) in
    if follow && facts.kind = `Symbolic_link then (
      let number = open_number place path ~flags:Raw.o_path ~mode:0 in
      if number < 0 then Err.fail number "statx" path;
      Fun.protect ~finally:(fun () -> close_number number) (fun () -> exactly number "" ~flags:0))
    else facts

(* Runs [f] with what the path leads to, opened for its name only. *)
let with_opened call place path ~follow f =
  Switch.run ~name:call @@ fun sw ->
  let flags = if follow then Raw.o_path else Raw.o_path lor Raw.o_nofollow in
  f (openat ~sw place path ~flags ~mode:0)

let at_empty_path = 0x1000

let chmod place path ~follow ~perm =
  with_opened "chmod" place path ~follow @@ fun fd ->
  Eio_unix.run_in_systhread ~label:"chmod" @@ fun () ->
  try Eio_unix.Private.chmod fd "" ~flags:at_empty_path ~mode:perm
  with Unix.Unix_error ((ENOSYS | EOPNOTSUPP | EINVAL), _, _) as ex -> (
    (* Before Linux 6.6 only a path leads to a file that was opened so. *)
    try Fd.use_exn "chmod" fd (fun fd -> Unix.chmod (Printf.sprintf "/proc/self/fd/%d" (Raw.number fd)) perm)
    with Unix.Unix_error _ -> raise ex)

let chown place path ~follow ~uid ~gid =
  with_opened "chown" place path ~follow @@ fun fd ->
  Eio_unix.run_in_systhread ~label:"chown" @@ fun () ->
  Eio_unix.Private.chown fd "" ~flags:at_empty_path ~uid ~gid

(* Some entries of an open directory; none at its end. *)
let some_entries fd =
  let t = Sched.get () in
  Pools.use (Sched.pools t).entries @@ fun memory ->
  Fd.use_exn "read_dir" fd @@ fun fd ->
  let fd = Raw.number fd in
  let rec read () =
    match
      Sched.request t "getdents" ~kept:memory (fun loop token ->
          Raw.fill loop Raw.op_read_directory fd "" 0 memory token)
    with
    | 0 -> []
    | count when count < 0 -> Err.fail count "getdents" ""
    | count -> (
      match Raw.entries memory count with
      | [] -> read () (* "." and ".." alone *)
      | entries -> entries)
  in
  read ()

let with_directory place path f =
  Switch.run ~name:"read_dir" @@ fun sw ->
  f (openat ~sw place path ~flags:(Raw.o_rdonly lor Raw.o_directory) ~mode:0)

let read_dir place path =
  with_directory place path @@ fun fd ->
  let rec all names =
    match some_entries fd with
    | [] -> names
    | entries -> all (List.fold_left (fun names (_, name) -> name :: names) names entries)
  in
  all []

let with_dir_entries place path f =
  with_directory place path @@ fun fd ->
  let rec more () =
    match some_entries fd with
    | [] -> Seq.Nil
    | entries -> Seq.append (List.to_seq entries) more ()
  in
  f more

module rec Dir : sig
  include Eio.Fs.Pi.DIR

  val make : label:string -> path:string -> place -> t
  val place : t -> place
  val close : t -> unit
end = struct
  type t = { place : place; label : string; path : string (* as the program would write it *) }

  let make ~label ~path place = { place; label; path = (if path = "." then "" else path) }
  let place t = t.place

  let close t =
    match t.place with
    | Below fd -> Fd.close fd
    | Cwd | Fs -> invalid_arg "the working directory is not closed"

  let link_flag follow = if follow then 0 else Raw.o_nofollow

  let open_in t ~sw ~follow path =
    let fd = openat ~sw t.place path ~flags:(Raw.o_rdonly lor link_flag follow) ~mode:0 in
    (Flow.of_fd ~is_named:true fd :> Eio.File.ro_ty r)

  let open_out t ~sw ~follow ~append ~create path =
    let mode, flags =
      match create with
      | `Never -> (0, 0)
      | `If_missing perm -> (perm, Raw.o_creat)
      | `Or_truncate perm -> (perm, Raw.o_creat lor Raw.o_trunc)
      | `Exclusive perm -> (perm, Raw.o_creat lor Raw.o_excl)
    in
    let flags = flags lor Raw.o_rdwr lor link_flag follow lor if append then Raw.o_append else 0 in
    let fd = openat ~sw t.place path ~flags ~mode in
    (* A file that was made just now is a regular one. *)
    let is_regular = flags land Raw.o_excl <> 0 in
    (Flow.of_fd ~is_named:true ~is_regular fd :> Eio.File.rw_ty r)

  let mkdir t ~perm path = mkdir t.place path ~perm
  let unlink t path = remove t.place path ~flags:0
  let rmdir t path = remove t.place path ~flags:Raw.at_removedir
  let read_dir t path = read_dir t.place path
  let with_dir_entries t path f = with_dir_entries t.place path f
  let read_link t path = read_link t.place path
  let stat t ~follow path = stat t.place path ~follow
  let symlink ~link_to t path = symlink ~link_to t.place path
  let chmod t ~follow ~perm path = Err.run (chmod t.place ~follow ~perm) path

  let chown ~follow ?(uid = -1L) ?(gid = -1L) t path =
    Err.run (chown t.place ~follow ~uid ~gid) path

  let rename t path dir2 path2 =
    match place_of dir2 with
    | Some place2 -> rename t.place path place2 path2
    | None -> invalid_arg "the new name's directory is not one of this backend"

  let native_path t path =
    if not (Filename.is_relative path) then path
    else
      match Filename.concat t.path path with
      | "" | "." -> "."
      | path when Filename.is_implicit path -> "./" ^ path
      | path -> path

  let native t path = Some (native_path t path)

  let open_subtree t ~sw path =
    let fd = openat ~sw t.place path ~flags:(Raw.o_path lor Raw.o_directory) ~mode:0 in
    let dir = make ~label:(Filename.basename path) ~path:(native_path t path) (Below fd) in
    Eio.Resource.T (dir, Handler.v)

  let pp f t = Fmt.string f (String.escaped t.label)

  include Eio_utils.Posix_path
end

and Handler : sig
  val v : (Dir.t, [ `Dir | `Close ]) Eio.Resource.handler
end = struct
  let v =
    Eio.Resource.handler
      [ H (Eio.Fs.Pi.Dir, (module Dir)); H (Eio.Resource.Close, Dir.close); H (Place, Dir.place) ]
end

let dir ~label place =
  (Eio.Path.of_dir (Eio.Resource.T (Dir.make ~label ~path:"" place, Handler.v)) :> Eio.Fs.dir_ty Eio.Path.t)

let fs = dir ~label:"fs" Fs
let cwd = dir ~label:"cwd" Cwd
