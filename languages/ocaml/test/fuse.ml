(* A file system whose one file is read only when the test lets it: a read that has reached its server waits
   until the server answers, and no cancellation ends it.

   The server is a process of its own, this program with `--fuse`: where a thread of the process waits for a
   file system, the device must not be open in the same process, or nothing could end either. *)

let argument = "--fuse"

(* ---- the server ---- *)

let in_header = 40
let out_header = 16

let answer device ~unique ?(error = 0) body =
  let reply = Bytes.make (out_header + Bytes.length body) '\000' in
  Bytes.set_int32_ne reply 0 (Int32.of_int (Bytes.length reply));
  Bytes.set_int32_ne reply 4 (Int32.of_int error);
  Bytes.set_int64_ne reply 8 unique;
  Bytes.blit body 0 reply out_header (Bytes.length body);
  (* ENOENT: the request was withdrawn. *)
  try ignore (Unix.write device reply 0 (Bytes.length reply) : int) with Unix.Unix_error (ENOENT, _, _) -> ()

let file_node = 2L

(* A `struct fuse_attr`. *)
let set_attributes body at node =
  let mode = if node = file_node then 0o100644 else 0o040755 in
  Bytes.set_int64_ne body at node;
  Bytes.set_int64_ne body (at + 8) 1_000_000L;
  Bytes.set_int32_ne body (at + 60) (Int32.of_int mode);
  Bytes.set_int32_ne body (at + 64) 1l

let enosys = -38

let body size set =
  let body = Bytes.make size '\000' in
  set body;
  body

(* Answers a request, or returns the read that waits: its name and size. *)
let handle device request =
  let node = Bytes.get_int64_ne request 16 and unique = Bytes.get_int64_ne request 8 in
  let answer = answer device ~unique in
  match Int32.to_int (Bytes.get_int32_ne request 4) with
  | 2 | 36 | 42 -> None (* forgotten nodes, and the request to interrupt a read: there is no answer *)
  | 15 -> Some (unique, Int32.to_int (Bytes.get_int32_ne request (in_header + 16)))
  | operation ->
    (match operation with
    | 26 ->
      (* Of the protocol 7.12, whose answer is a record of 24 bytes. *)
      answer
        (body 24 (fun it ->
             Bytes.set_int32_ne it 0 7l;
             Bytes.set_int32_ne it 4 12l;
             Bytes.set_int32_ne it 20 4096l))
    | 1 ->
      answer
        (body 128 (fun it ->
             Bytes.set_int64_ne it 0 file_node;
             set_attributes it 40 file_node))
    | 3 -> answer (body 104 (fun it -> set_attributes it 16 node))
    | 14 -> answer (body 16 (fun it -> Bytes.set_int32_ne it 8 1l (* not through the page cache *)))
    | 18 -> answer Bytes.empty
    | _ -> answer ~error:enosys Bytes.empty);
    None

(* No test takes so long: then the device is closed, and with it all that waits. *)
let patience = 60.

let tell text = ignore (Unix.write_substring Unix.stdout text 0 1 : int)

let serve point =
  let device = Unix.openfile "/dev/fuse" [ Unix.O_RDWR ] 0 in
  let options = Printf.sprintf "fd=%d,rootmode=40000,user_id=0,group_id=0" (Obj.magic device : int) in
  let mount =
    Unix.create_process "mount"
      [| "mount"; "-i"; "-t"; "fuse"; "-o"; options; "sakia-test"; point |]
      Unix.stdin Unix.stderr Unix.stderr
  in
  if snd (Unix.waitpid [] mount) <> Unix.WEXITED 0 then exit 1;
  tell "m";
  let bytes = Bytes.create 65536 and waiting = ref [] in
  let rec turn () =
    match Unix.select [ device; Unix.stdin ] [] [] patience with
    | [], _, _ -> ()
    | ready, _, _ ->
      if List.mem device ready then begin
        ignore (Unix.read device bytes 0 65536 : int);
        match handle device bytes with
        | Some read ->
          waiting := read :: !waiting;
          tell "r"
        | None -> ()
      end;
      if not (List.mem Unix.stdin ready) then turn ()
      else if Unix.read Unix.stdin bytes 0 1 > 0 then begin
        List.iter (fun (unique, size) -> answer device ~unique (Bytes.make size 'z')) !waiting;
        waiting := [];
        turn ()
      end
  in
  turn ()

(* ---- the test's side ---- *)

type t = { path : string; control : Unix.file_descr; news : Unix.file_descr }

(* A byte of the server's, which comes within a minute. *)
let hears it expected =
  match Unix.select [ it.news ] [] [] 60. with
  | [ _ ], _, _ ->
    let byte = Bytes.create 1 in
    Unix.read it.news byte 0 1 = 1 && Bytes.to_string byte = expected
  | _ -> false

let answer_reads it = ignore (Unix.write_substring it.control "a" 0 1 : int)

(* Runs a function with the file, or returns why there is none. *)
let with_file f =
  if Unix.geteuid () <> 0 || not (Sys.file_exists "/dev/fuse") then Error "no root, or no /dev/fuse"
  else
    Support.with_folder (fun point ->
        let stdin, control = Unix.pipe ~cloexec:true () and news, stdout = Unix.pipe ~cloexec:true () in
        let server =
          Unix.create_process Sys.executable_name [| Sys.executable_name; argument; point |] stdin stdout
            Unix.stderr
        in
        List.iter Unix.close [ stdin; stdout ];
        let it = { path = Filename.concat point "file"; control; news } in
        let finish () =
          Unix.close control;
          ignore (Unix.waitpid [] server : int * Unix.process_status);
          Unix.close news;
          ignore (Sys.command ("umount -l " ^ Filename.quote point ^ " 2>/dev/null") : int)
        in
        Fun.protect ~finally:finish (fun () ->
            if hears it "m" then Ok (f it) else Error "a FUSE file system cannot be mounted"))
