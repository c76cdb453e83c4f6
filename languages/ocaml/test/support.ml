open Sakia

let seed = match Sys.getenv_opt "SAKIA_TEST_SEED" with Some seed -> int_of_string seed | None -> 1
let compact = Array.mem "--compact" Sys.argv
let fail format = Printf.ksprintf failwith format
let check name condition = if not condition then fail "not so: %s" name

(* Says that a test proves nothing on this machine. With SAKIA_DENY_SKIPS=1 that is a failure, unless the test
   is in SAKIA_OCAML_SKIPS, names with commas between them. *)
let skip name why =
  let variable name = Option.value ~default:"" (Sys.getenv_opt name) in
  let allowed = List.mem name (String.split_on_char ',' (variable "SAKIA_OCAML_SKIPS")) in
  if variable "SAKIA_DENY_SKIPS" = "1" && not allowed then
    fail "a skip that is not in SAKIA_OCAML_SKIPS: %s" why;
  Printf.printf "SKIP: %s... " why

let equal show name expected found =
  if expected <> found then fail "%s: expected %s, found %s" name (show expected) (show found)

let equal_int = equal string_of_int
let equal_string = equal (Printf.sprintf "%S")

(* The collector's work, where a test asks for it: only with --compact does it take place. *)
let disturb random = if compact && Random.State.int random 50 = 0 then Gc.compact ()

(* The open descriptors, and what they lead to. Without /proc, which is not everywhere. *)
let descriptors () =
  let one number =
    match Unix.fstat (Obj.magic (number : int) : Unix.file_descr) with
    | exception Unix.Unix_error _ -> []
    | { Unix.st_kind; _ } -> (
      match Unix.readlink (Printf.sprintf "/proc/self/fd/%d" number) with
      | target -> [ Printf.sprintf "%d %s" number target ]
      | exception Unix.Unix_error _ -> [ Printf.sprintf "%d of kind %d" number (Obj.magic st_kind : int) ])
  in
  List.concat_map one (List.init 1024 Fun.id)

let rec remove path =
  match Unix.lstat path with
  | { Unix.st_kind = S_DIR; _ } ->
    (* The owner of the test may be an ordinary user. *)
    Unix.chmod path 0o700;
    Array.iter (fun name -> remove (Filename.concat path name)) (Sys.readdir path);
    Unix.rmdir path
  | _ -> Unix.unlink path
  | exception Unix.Unix_error (ENOENT, _, _) -> ()

let folders = ref 0

let with_folder f =
  incr folders;
  let path = Filename.concat (Filename.get_temp_dir_name ()) (Printf.sprintf "sakia-ocaml-%d-%d"
    (Unix.getpid ()) !folders) in
  remove path;
  Unix.mkdir path 0o700;
  Fun.protect ~finally:(fun () -> remove path) (fun () -> f path)

let error_number f = match f () with _ -> None | exception Unix.Unix_error (error, _, _) -> Some error

let show_error = function None -> "no error" | Some error -> Unix.error_message error

let raises name error f = equal show_error name (Some error) (error_number f)

let is_invalid name f =
  match f () with
  | _ -> fail "%s: no exception" name
  | exception Invalid_argument _ -> ()

let minute = 60_000_000_000

(* Waits for results until a condition holds: a minute without any is a failure. *)
let wait_until loop f condition =
  while not (condition ()) do
    let before = Unix.gettimeofday () in
    let count = Loop.wait ~timeout_ns:minute loop f in
    if count = 0 && Unix.gettimeofday () -. before > 59. then fail "no result for a minute"
  done

let run name f =
  Printf.printf "%s... %!" name;
  let before = Unix.gettimeofday () in
  (try f ()
   with error ->
     Printf.printf "failed, seed %d: %s\n%!" seed (Printexc.to_string error);
     Printexc.print_backtrace stdout;
     exit 1);
  Printf.printf "%.1f s\n%!" (Unix.gettimeofday () -. before)

(* All descriptors are closed at the end of a test, and no request is under way. *)
let run_closed ?(settle = ignore) name f =
  run name (fun () ->
      Gc.full_major ();
      settle ();
      let before = descriptors () in
      f ();
      (* Handles are given back by finalizers, the first of them those of what refers to others. *)
      Gc.full_major ();
      Gc.full_major ();
      (* Threads of a loop that has ended close theirs when they end. *)
      let rec after tries =
        let found = descriptors () in
        if List.length found > List.length before && tries > 0 then begin
          Unix.sleepf 0.01;
          settle ();
          after (tries - 1)
        end
        else found
      in
      let after = after 1000 in
      check (Printf.sprintf "as many descriptors as before (%s)" (String.concat ", " after))
        (List.length after <= List.length before))
