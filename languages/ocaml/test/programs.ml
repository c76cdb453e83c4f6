(* Random programs of file operations, run by Sakia in one directory and by Unix in another: the same
   results, the same errors, and the same files at the end. *)

open Sakia
open Support

type outcome = Number of int | Text of string | Error of Unix.error

let show = function
  | Number number -> string_of_int number
  | Text text when String.length text > 100 -> Printf.sprintf "%d bytes, %s" (String.length text)
    (Digest.to_hex (Digest.string text))
  | Text text -> Printf.sprintf "%S" text
  | Error error -> Unix.error_message error

type pair = { file : File.t; fd : Unix.file_descr; mutable closed : bool }

type state = {
  random : Random.State.t;
  perform : Request.t -> Outcome.t;
  ours : string;
  theirs : string;
  folder : File.t;
  pairs : pair option array;
}

let int state bound = Random.State.int state.random bound
let pick state array = array.(int state (Array.length array))
let names = [| "a"; "b"; "c"; "d"; "d/a"; "d/b"; "d/d"; "e"; "d/e/f"; "a/x"; "." |]
let name state = pick state names
let attempt f = match f () with it -> it | exception Unix.Unix_error (error, _, _) -> Error error
let there state path = Filename.concat state.theirs path
let value state request = attempt (fun () -> Number (Outcome.get request (state.perform request)))
let nothing f = attempt (fun () -> f (); Number 0)
let trace = Sys.getenv_opt "SAKIA_TEST_TRACE" <> None

let same what expected found =
  if trace then Printf.printf "%s: %s, %s\n%!" what (show expected) (show found);
  equal show what expected found

let random_bytes state len = Bytes.init len (fun _ -> Char.chr (int state 256))

(* One operation of each kind: a description, and what Unix and Sakia make of it. *)

let open_file state =
  let path = name state in
  let access = pick state [| Unix.O_RDONLY; O_WRONLY; O_RDWR |] in
  let maybe flag = if int state 3 = 0 then [ flag ] else [] in
  let flags = (access :: maybe Unix.O_CREAT) @ maybe Unix.O_EXCL @ maybe Unix.O_TRUNC @ maybe Unix.O_APPEND in
  let perm = pick state [| 0o600; 0o644; 0o400 |] in
  let slot = int state (Array.length state.pairs) in
  let numbers = Flags.of_open_flags flags in
  let ours () =
    let tried = if int state 2 = 0 then File.try_open ~dir:state.folder path ~flags:numbers else None in
    match tried with
    | Some file -> file
    | None ->
      let request = Request.open_ ~dir:state.folder path ~flags:numbers ~perm in
      Outcome.file request (state.perform request)
  in
  let theirs = match Unix.openfile (there state path) (Unix.O_CLOEXEC :: flags) perm with
    | fd -> Ok fd
    | exception Unix.Unix_error (error, _, _) -> Stdlib.Error error
  in
  let ours = match ours () with file -> Ok file | exception Unix.Unix_error (error, _, _) ->
    Stdlib.Error error in
  match (theirs, ours) with
  | Ok fd, Ok file ->
    (match state.pairs.(slot) with
    | Some old when not old.closed ->
      ignore (value state (Request.close old.file) : outcome);
      Unix.close old.fd
    | _ -> ());
    state.pairs.(slot) <- Some { file; fd; closed = false }
  | Stdlib.Error expected, Stdlib.Error found -> same ("open " ^ path) (Error expected) (Error found)
  | Stdlib.Error expected, Ok _ -> same ("open " ^ path) (Error expected) (Number 0)
  | Ok _, Stdlib.Error found -> same ("open " ^ path) (Number 0) (Error found)

let with_pair state f =
  match state.pairs.(int state (Array.length state.pairs)) with
  | Some pair when not pair.closed -> f pair
  | _ -> open_file state

(* Reads by one of the ways that there are. A call that does not wait brings what is in memory, and a
   request the rest. *)
let read_ours state file len offset =
  let buf = Buf.take len in
  let rec request total =
    let offset = if offset < 0 then offset else offset + total in
    let request' = Request.read file buf ~pos:total ~len:(len - total) ~offset in
    let count = Outcome.get request' (state.perform request') in
    if count = 0 || total + count = len then total + count else request (total + count)
  in
  let rest count = if count = File.would_wait then request 0 else if count = 0 || count = len then
    count else request count in
  let way = int state 4 in
  if trace then Printf.printf "way %d, %d bytes at %d\n%!" way len offset;
  let count =
    match way with
    | 0 -> rest (File.try_read file (Buf.memory buf) ~pos:0 ~len ~offset)
    | 1 ->
      let bytes = Bytes.create len in
      let count = File.try_read_bytes file bytes ~pos:0 ~len ~offset in
      if count > 0 then Buf.blit_of_bytes bytes 0 buf 0 count;
      rest count
    | 2 when len > 2 ->
      let half = len / 2 in
      let request = Request.readv file [ (buf, 0, half); (buf, half, len - half) ] ~offset in
      rest (Outcome.get request (state.perform request))
    | _ -> request 0
  in
  let text = Buf.sub_string buf 0 count in
  Buf.give buf;
  Text text

let write_ours state file bytes offset =
  let len = Bytes.length bytes in
  let buf = Buf.take len in
  Buf.blit_of_bytes bytes 0 buf 0 len;
  let request () = value state (Request.write file buf ~pos:0 ~len ~offset) in
  let or_request count =
    if trace then Printf.printf "tried: %d\n%!" count;
    if count = File.would_wait then request () else Number count
  in
  let outcome =
    let way = int state 4 in
    if trace then Printf.printf "way %d, %d bytes at %d\n%!" way len offset;
    match way with
    | 0 -> attempt (fun () -> or_request (File.try_write file (Buf.memory buf) ~pos:0 ~len ~offset))
    | 1 when len <= 32768 -> attempt (fun () -> or_request (File.try_write_bytes file bytes ~pos:0 ~len
      ~offset))
    | 2 when len > 2 ->
      let half = len / 2 in
      value state (Request.writev file [ (buf, 0, half); (buf, half, len - half) ] ~offset)
    | _ -> request ()
  in
  if not (Buf.is_used buf) then Buf.give buf;
  outcome

let lengths = [| 1; 2; 100; 4096; 5000; 32768; 40000 |]

(* The position is moved there and back again, since Unix has no positional calls. *)
let at_offset fd offset f =
  let before = Unix.lseek fd 0 Unix.SEEK_CUR in
  ignore (Unix.lseek fd offset Unix.SEEK_SET : int);
  Fun.protect ~finally:(fun () -> ignore (Unix.lseek fd before Unix.SEEK_SET : int)) f

let read_text fd len =
  let bytes = Bytes.create len in
  (* Unix reads at most 64 KiB. *)
  Text (Bytes.sub_string bytes 0 (Unix.read fd bytes 0 len))

let read state =
  with_pair state (fun { file; fd; _ } ->
      let len = pick state lengths in
      if int state 2 = 0 then
        same "read" (attempt (fun () -> read_text fd len)) (attempt (fun () -> read_ours state file len (-1)))
      else
        let offset = int state 50_000 in
        same "pread"
          (attempt (fun () -> at_offset fd offset (fun () -> read_text fd len)))
          (attempt (fun () -> read_ours state file len offset)))

(* What a file holds is compared at once: an append that went elsewhere is found where it was made. *)
let write state =
  with_pair state (fun { file; fd; _ } ->
      let bytes = random_bytes state (pick state lengths) in
      let written fd = attempt (fun () -> Number (Unix.write fd bytes 0 (Bytes.length bytes))) in
      if int state 2 = 0 then same "write" (written fd) (write_ours state file bytes (-1))
      else
        let offset = int state 50_000 in
        let append = Unix.(try (fstat fd).st_size with Unix_error _ -> 0) in
        ignore append;
        same "pwrite" (attempt (fun () -> at_offset fd offset (fun () ->
          written fd))) (write_ours state file bytes offset))

let seek state =
  with_pair state (fun { file; fd; _ } ->
      let offset = int state 60_000 in
      let seek fd = attempt (fun () -> Number (Unix.lseek fd offset Unix.SEEK_SET)) in
      if (Unix.fstat fd).st_kind = S_REG then same "lseek" (seek fd) (seek (File.number file)))

let truncate state =
  with_pair state (fun { file; fd; _ } ->
      let size = int state 60_000 in
      same "ftruncate" (nothing (fun () -> Unix.ftruncate fd size)) (value state
        (Request.truncate file size)))

let close state =
  with_pair state (fun pair ->
      pair.closed <- true;
      same "close" (nothing (fun () -> Unix.close pair.fd)) (value state (Request.close pair.file));
      same "read of a closed file" (Error EBADF) (attempt (fun () -> read_ours state pair.file 10 0)))

let sync state =
  with_pair state (fun { file; fd; _ } ->
      ignore fd;
      same "fsync" (Number 0) (value state (Request.sync ~data:(int state 2 = 0) file)))

let facts (it : Unix.LargeFile.stats) =
  Printf.sprintf "%d %o %d %d %d %Ld"
    (Obj.magic it.st_kind : int)
    it.st_perm it.st_nlink it.st_uid it.st_gid
    (if it.st_kind = S_DIR then 0L else it.st_size)

let stat state =
  let path = name state and buf = Buf.take Stat.size in
  let follow = int state 2 = 0 in
  let theirs () = Text (facts ((if follow then Unix.LargeFile.stat else Unix.LargeFile.lstat)
    (there state path))) in
  let flags = if follow then 0 else Flags.at_symlink_nofollow in
  let ours () =
    match if int state 2 = 0 then File.try_stat ~dir:state.folder ~flags path else None with
    | Some stat -> Text (facts (Stat.to_unix stat))
    | None ->
      let request = Request.stat ~dir:state.folder ~flags path buf in
      ignore (Outcome.get request (state.perform request) : int);
      Text (facts (Stat.to_unix (Stat.of_buf buf)))
  in
  same ("stat " ^ path) (attempt theirs) (attempt ours);
  Buf.give buf

let fstat state =
  with_pair state (fun { file; fd; _ } ->
      let buf = Buf.take Stat.size in
      let request = Request.fstat file buf in
      ignore (Outcome.get request (state.perform request) : int);
      same "fstat" (Text (facts (Unix.LargeFile.fstat fd))) (Text (facts (Stat.to_unix (Stat.of_buf buf))));
      Buf.give buf)

let mkdir state =
  let path = name state and perm = pick state [| 0o700; 0o755 |] in
  same ("mkdir " ^ path)
    (nothing (fun () -> Unix.mkdir (there state path) perm))
    (value state (Request.mkdir ~dir:state.folder path ~perm))

let unlink state =
  let path = name state in
  same ("unlink " ^ path)
    (nothing (fun () -> Unix.unlink (there state path)))
    (value state (Request.unlink ~dir:state.folder path))

let rmdir state =
  let path = pick state (Array.sub names 0 10) in
  same ("rmdir " ^ path)
    (nothing (fun () -> Unix.rmdir (there state path)))
    (value state (Request.unlink ~dir:state.folder ~flags:Flags.at_removedir path))

let two state call =
  let path = name state and path2 = name state in
  (path ^ " " ^ path2, nothing (fun () -> call (there state path) (there state path2)), path, path2)

let rename state =
  let what, expected, path, path2 = two state Unix.rename in
  same ("rename " ^ what) expected (value state (Request.rename ~dir:state.folder
    ~dir2:state.folder path path2))

let link state =
  let what, expected, path, path2 = two state (fun a b -> Unix.link ~follow:false a b) in
  same ("link " ^ what) expected (value state (Request.link ~dir:state.folder ~dir2:state.folder path path2))

let symlink state =
  (* None leads out of the directory, where both programs would meet. *)
  let target = pick state [| "a"; "d"; "nothing"; "d/a"; "./b" |] and path = name state in
  same ("symlink " ^ path)
    (nothing (fun () -> Unix.symlink target (there state path)))
    (value state (Request.symlink ~dir:state.folder ~target path))

let readlink state =
  let path = name state and buf = Buf.take 4096 in
  let request = Request.readlink ~dir:state.folder path buf in
  same ("readlink " ^ path)
    (attempt (fun () -> Text (Unix.readlink (there state path))))
    (attempt (fun () -> Text (Buf.sub_string buf 0 (Outcome.get request (state.perform request)))));
  Buf.give buf

let chmod state =
  let path = name state and perm = pick state [| 0o600; 0o644; 0o755; 0o700 |] in
  same ("chmod " ^ path)
    (nothing (fun () -> Unix.chmod (there state path) perm))
    (value state (Request.chmod ~dir:state.folder path ~perm))

let utimes state =
  let path = name state and accessed = int state 1_000_000 and modified = int state 1_000_000 in
  same ("utimes " ^ path)
    (nothing (fun () -> Unix.utimes (there state path) (float_of_int accessed) (float_of_int modified)))
    (value state (Request.set_times ~dir:state.folder path ~accessed:(accessed, 0) ~modified:(modified, 0)))

let chown state =
  let path = name state in
  same ("chown " ^ path)
    (nothing (fun () -> Unix.chown (there state path) (-1) (-1)))
    (value state (Request.chown ~dir:state.folder path ~uid:(-1) ~gid:(-1)))

let list state =
  let path = name state in
  let theirs () =
    match Sys.readdir (there state path) with
    | names -> Text (String.concat " " (List.sort compare (Array.to_list names)))
    | exception Sys_error _ -> Error (match Unix.stat (there state path) with _ ->
      ENOTDIR | exception Unix.Unix_error (error, _, _) -> error)
  in
  let ours () =
    let request = Request.open_ ~dir:state.folder path ~flags:Flags.(o_rdonly lor o_directory) ~perm:0 in
    let file = Outcome.file request (state.perform request) in
    let buf = Buf.take 4096 in
    let rec all found =
      let request = Request.read_directory file buf in
      match Outcome.get request (state.perform request) with
      | 0 -> found
      | len -> all (List.map (fun (it : Directory.entry) -> it.name) (Directory.entries buf len) @ found)
    in
    let names = all [] in
    Buf.give buf;
    ignore (value state (Request.close file) : outcome);
    Text (String.concat " " (List.sort compare names))
  in
  same ("list " ^ path) (attempt theirs) (attempt ours)

let copy_range state =
  with_pair state (fun { file; fd; _ } ->
      with_pair state (fun pair2 ->
          let len = pick state lengths and offset = int state 1000 in
          let regular = (Unix.fstat fd).st_kind = S_REG && (Unix.fstat pair2.fd).st_kind = S_REG in
          if regular && file != pair2.file && (Unix.fstat fd).st_ino <> (Unix.fstat pair2.fd).st_ino then
            let request = Request.copy_range file ~offset pair2.file ~offset2:offset ~len in
            match Outcome.get request (state.perform request) with
            | count ->
              let bytes = Bytes.create (max 1 count) in
              at_offset fd offset (fun () -> equal_int "copied" count (Unix.read fd bytes 0 count));
              at_offset pair2.fd offset (fun () -> equal_int "written" count
                (Unix.write pair2.fd bytes 0 count))
            | exception Unix.Unix_error ((EBADF | EINVAL), _, _) -> ()))

let operations =
  [|
    open_file; open_file; read; read; read; write; write; write; seek; truncate; close; sync; stat; stat;
      fstat; mkdir;
    mkdir; unlink; rmdir; rename; link; symlink; readlink; chmod; utimes; chown; list; copy_range;
  |]

(* The positions of both, where a descriptor has one. *)
let positions state =
  Array.iter
    (function
      | Some { file; fd; closed = false } ->
        let position fd = attempt (fun () -> Number (Unix.lseek fd 0 Unix.SEEK_CUR)) in
        let size fd = Number (Unix.fstat fd).st_size in
        (* A folder's position is its file system's own number. *)
        if (Unix.fstat fd).st_kind = S_REG then begin
          equal show ("the size of " ^ File.name file) (size fd) (size (File.number file));
          equal show ("the position of " ^ File.name file) (position fd) (position (File.number file))
        end
      | _ -> ())
    state.pairs

let rec contents path =
  let stat = Unix.LargeFile.lstat path in
  match stat.st_kind with
  | S_DIR ->
    (* The owner of the test may be an ordinary user. *)
    Unix.chmod path 0o700;
    let names = List.sort compare (Array.to_list (Sys.readdir path)) in
    facts stat :: List.concat_map (fun name -> name :: contents (Filename.concat path name)) names
  | S_LNK -> [ "-> " ^ Unix.readlink path ]
  | _ ->
    Unix.chmod path 0o600;
    let channel = open_in_bin path in
    let text = really_input_string channel (in_channel_length channel) in
    close_in channel;
    [ facts stat; Digest.to_hex (Digest.string text) ]

let program random perform count =
  with_folder (fun path ->
      let ours = Filename.concat path "ours" and theirs = Filename.concat path "theirs" in
      Unix.mkdir ours 0o700;
      Unix.mkdir theirs 0o700;
      let folder = File.adopt (Unix.openfile ours [ Unix.O_RDONLY; O_CLOEXEC ] 0) in
      let state = { random; perform; ours; theirs; folder; pairs = Array.make 4 None } in
      for _ = 1 to count do
        (pick state operations) state;
        positions state;
        disturb random
      done;
      equal (String.concat "\n") "trees" (contents theirs) (contents ours);
      Array.iter
        (function
          | Some pair when not pair.closed ->
            ignore (perform (Request.close pair.file) : Outcome.t);
            Unix.close pair.fd
          | _ -> ())
        state.pairs;
      ignore (perform (Request.close folder) : Outcome.t);
      ignore state.ours)

(* By a loop: submits, and waits for the one result. *)
let on_loop loop request =
  let found = ref None in
  ignore (Loop.submit loop request (fun outcome -> found := Some outcome) : Loop.ticket);
  wait_until loop (fun give outcome -> give outcome) (fun () -> !found <> None);
  Option.get !found

let on_queue queue request =
  match Queue.submit queue request () with
  | Done outcome -> outcome
  | Under_way _ ->
    let found = ref None in
    while !found = None do
      ignore (Queue.wait ~timeout_ns:minute queue (fun () outcome -> found := Some outcome) : int)
    done;
    Option.get !found
