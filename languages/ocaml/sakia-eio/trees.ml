(* Whole trees, by threads of the library. *)

(* The name of a path for the library's threads, during [f]. Below a confined directory it begins at an open
   descriptor of its parent; a link there might lead elsewhere. *)
let with_name ?(may_be_link = false) (dir, path) f =
  match Fs.place_of dir with
  | None -> invalid_arg "the path is not one of this backend"
  | Some Fs -> f path
  | Some ((Below _ | Cwd) as place) ->
    Fs.with_parent "tree" place path @@ fun fd leaf ->
    (match Io.stat_with fd leaf ~flags:Raw.at_symlink_nofollow Io.kind with
     | Ok `Symbolic_link when not may_be_link -> raise (Eio.Fs.err Symlink)
     | Ok _ | Error _ -> ());
    f (if fd < 0 then "./" ^ leaf else Printf.sprintf "/proc/self/fd/%d/%s" fd leaf)

let is_confined (dir, _) =
  match Fs.place_of dir with
  | Some Fs -> false
  | _ -> true

let rec tell tree failure =
  match Sakia.Tree.failure tree with
  | None -> ()
  | Some it ->
    failure it;
    tell tree failure

let pause = 0.1

(* Waits for the end; a cancellation stops the work, and is told after its end. *)
let await tree ~progress ~failure =
  let ended = Sakia.Tree.pollable tree in
  Fun.protect ~finally:(fun () -> Unix.close ended) @@ fun () ->
  let rec report () =
    tell tree failure;
    progress (Sakia.Tree.counts tree);
    Eio_unix.sleep pause;
    report ()
  in
  (try Eio.Fiber.first (fun () -> Eio_unix.await_readable ended) report
   with ex ->
     let bt = Printexc.get_raw_backtrace () in
     Sakia.Tree.cancel tree;
     Eio.Cancel.protect (fun () -> Eio_unix.await_readable ended);
     (* A tree is kept until its end was seen. *)
     ignore (Sakia.Tree.wait tree : Sakia.Tree.state);
     Printexc.raise_with_backtrace ex bt);
  let state = Sakia.Tree.wait tree in
  tell tree failure;
  match state with
  | Running -> assert false
  | Finished -> Sakia.Tree.counts tree
  | Failed error -> raise (Eio_unix.Err.v error "tree" "")

let run ?(progress = ignore) ?failure begin_ =
  let first = ref None in
  let failure_or_first it =
    match failure with
    | Some failure -> failure it
    | None -> if !first = None then first := Some it
  in
  match await (Err.run begin_ ()) ~progress ~failure:failure_or_first with
  | counts -> counts
  | exception (Eio.Io _ as ex) -> (
    match !first with
    | Some (it : Sakia.Tree.failure) -> raise (Eio_unix.Err.v it.error it.operation it.path)
    | None -> raise ex)

let copy ?(options = []) ?threads ?limit ?progress ?failure from into =
  if (is_confined from || is_confined into) && List.mem Sakia.Tree.Follow options then
    invalid_arg "copy_tree: links that are followed leave a confined directory";
  with_name from @@ fun from ->
  with_name into @@ fun into ->
  run ?progress ?failure (fun () -> Sakia.Tree.copy ~options ?threads ?limit from into)

let remove ?threads ?limit ?progress ?failure path =
  with_name ~may_be_link:true path @@ fun path ->
  run ?progress ?failure (fun () -> Sakia.Tree.remove ?threads ?limit path)
