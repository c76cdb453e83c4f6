(* Random programs of fibers, which have the same results on this backend as on eio's own one: `random_fibers
   SEED COUNT`.

   A program's result does not depend on which of its fibers runs first: races are between what ends and what
   never does, and files are each of one fiber. What may differ is no part of a result: numbers of
   descriptors, times, texts of errors. *)

open Eio.Std

let ( / ) = Eio.Path.( / )

type program =
  | Value of int
  | Yield
  | Sleep of int (* microseconds *)
  | Fail_with of int
  | All of program list (* at the same time *)
  | Sequence of program list
  | Against_never of program
  | Never_for of int
  | Within of program (* a minute, so never too late *)
  | Stopped of blocking (* what waits for ever, and is canceled after some turns *)
  | One_fails of program list (* all of them with what never ends, and one that fails *)
  | On_domain of program
  | On_thread of int
  | File of int * edit list
  | Tree of int
  | Escape of int
  | Copy of int
  | Pipe of int list
  | Tcp of int list
  | Unix_stream of int list
  | Datagrams of int list
  | Pass of int
  | Child of int
  | Stream of int list

and blocking = On_pipe | On_accept | On_sleep | On_receive | On_full_pipe | On_promise | On_readable

and edit =
  | Write of int * int
  | Read of int * int
  | Truncate of int
  | Append of int
  | Stat
  | Whole
  | Parts of int * int list

let sizes = [| 0; 1; 7; 100; 4095; 4096; 5000; 40_000; 300_000 |]

let rec generate rng depth =
  let int n = Random.State.int rng n in
  let size () = sizes.(int (Array.length sizes)) in
  let list n f = List.init (1 + int n) (fun _ -> f ()) in
  let sub () = generate rng (depth - 1) in
  let edit () =
    match int 8 with
    | 0 | 1 -> Write (int 50_000, size ())
    | 2 | 3 -> Read (int 60_000, size ())
    | 4 -> Truncate (int 60_000)
    | 5 -> Append (size ())
    | 6 -> Parts (int 10_000, list 5 size)
    | _ -> if int 2 = 0 then Stat else Whole
  in
  let chunks () = list 6 size in
  match int (if depth > 0 then 27 else 17) with
  | 0 -> Value (int 1000)
  | 1 -> Yield
  | 2 -> Sleep (int 2000)
  | 3 -> Stopped [| On_pipe; On_accept; On_sleep; On_receive; On_full_pipe; On_promise; On_readable |].(int 7)
  | 4 -> Never_for (int 3)
  | 5 -> On_thread (int 1000)
  | 6 | 7 -> File (int 3, list 6 edit)
  | 8 -> Tree (1 + int 4)
  | 9 -> Escape (int 8)
  | 10 -> Copy (size ())
  | 11 -> Pipe (chunks ())
  | 12 -> Tcp (chunks ())
  | 13 -> Unix_stream (chunks ())
  | 14 -> Datagrams (list 4 (fun () -> 1 + int 2000))
  | 15 -> Pass (1 + int 5000)
  | 16 -> if int 8 = 0 then Child (int 2000) else Stream (list 5 (fun () -> int 100))
  | 17 | 18 | 19 -> All (list 4 sub)
  | 20 | 21 -> Sequence (list 4 sub)
  | 22 -> Against_never (sub ())
  | 23 -> Within (sub ())
  | 24 -> One_fails (list 3 sub)
  | 25 -> if int 3 = 0 then On_domain (sub ()) else sub ()
  | _ -> if int 3 = 0 then Sequence [ sub (); Fail_with (int 9) ] else sub ()

exception Wanted of int

(* An error as both backends have it. *)
let rec name_of = function
  | Wanted n -> Printf.sprintf "wanted %d" n
  | Eio.Time.Timeout -> "timeout"
  | Eio.Cancel.Cancelled ex -> "cancelled by " ^ name_of ex
  | Eio.Exn.Multiple exs -> String.concat "+" (List.sort compare (List.map (fun (ex, _) -> name_of ex) exs))
  | Eio.Io (Eio.Fs.E (Not_found _), _) -> "not found"
  | Eio.Io (Eio.Fs.E (Already_exists _), _) -> "exists"
  | Eio.Io (Eio.Fs.E (Permission_denied _), _) -> "denied"
  | Eio.Io (Eio.Fs.E Symlink, _) -> "link"
  | Eio.Io (Eio.Net.E (Connection_reset _), _) -> "reset"
  | Eio.Io (Eio.Exn.X (Eio_unix.Unix_error (code, _, _)), _) -> Unix.error_message code
  | End_of_file -> "end"
  | ex -> Printexc.to_string ex

let caught f =
  match f () with
  | x -> x
  | exception ((Wanted _ | Eio.Io _ | End_of_file | Eio.Time.Timeout | Eio.Exn.Multiple _) as ex) ->
    "(" ^ name_of ex ^ ")"

let digest text =
  Printf.sprintf "%d:%s" (String.length text) (String.sub (Digest.to_hex (Digest.string text)) 0 8)

let text seed size = String.init size (fun i -> Char.chr ((seed + (i * 7) + (i lsr 8)) land 255))

type world = { env : Eio_unix.Stdenv.base; root : Eio.Fs.dir_ty Eio.Path.t; names : int Atomic.t }

let fresh world = world.root / Printf.sprintf "n%d" (Atomic.fetch_and_add world.names 1)

let write_chunks flow chunks =
  List.iteri (fun i size -> Eio.Flow.copy_string (text i size) flow) chunks

let sent chunks = digest (String.concat "" (List.mapi text chunks))

let never () = Fiber.await_cancel ()

let block world = function
  | On_pipe ->
    Switch.run @@ fun sw ->
    let r, _w = Eio_unix.pipe sw in
    ignore (Eio.Flow.single_read r (Cstruct.create 1) : int)
  | On_accept ->
    Switch.run @@ fun sw ->
    let listener = Eio.Net.listen ~sw ~backlog:1 world.env#net (`Tcp (Eio.Net.Ipaddr.V4.loopback, 0)) in
    ignore (Eio.Net.accept ~sw listener)
  | On_sleep -> Eio.Time.sleep world.env#clock 600.
  | On_receive ->
    Switch.run @@ fun sw ->
    let a, _b = Eio_unix.Net.socketpair_stream ~sw () in
    ignore (Eio.Flow.single_read a (Cstruct.create 100) : int)
  | On_full_pipe ->
    Switch.run @@ fun sw ->
    let _r, w = Eio_unix.pipe sw in
    Eio.Flow.copy_string (String.make 1_000_000 'x') w
  | On_promise -> Promise.await (fst (Promise.create ()))
  | On_readable ->
    Switch.run @@ fun sw ->
    let r, _w = Eio_unix.pipe sw in
    Eio_unix.Fd.use_exn "wait" (Eio_unix.Resource.fd r) Eio_unix.await_readable

let both_ways chunks into from ~finish =
  let (), got =
    Fiber.pair (fun () -> write_chunks into chunks; finish ()) (fun () -> Eio.Flow.read_all from)
  in
  if digest got = sent chunks then "=" ^ digest got else "changed " ^ digest got

let file world mode edits =
  Switch.run @@ fun sw ->
  let path = fresh world in
  let file = Eio.Path.open_out ~sw ~append:(mode = 2) ~create:(`Exclusive 0o644) path in
  let at n = Optint.Int63.of_int n in
  List.mapi
    (fun i edit ->
      match edit with
      | Write (_, 0) | Read (_, 0) | Append 0 -> "0"
      | Write (offset, size) ->
        Eio.File.pwrite_all file ~file_offset:(at offset) [ Cstruct.of_string (text i size) ];
        "w"
      | Read (offset, size) -> (
        let buf = Cstruct.create size in
        match Eio.File.pread_exact file ~file_offset:(at offset) [ buf ] with
        | () -> digest (Cstruct.to_string buf)
        | exception End_of_file -> "e")
      | Truncate size -> Eio.File.truncate file (at size); "t"
      | Append size -> Eio.Flow.copy_string (text i size) file; "a"
      | Stat ->
        let stat = Eio.File.stat file in
        Printf.sprintf "%d %o" (Optint.Int63.to_int stat.size) stat.perm
      | Whole -> digest (Eio.Path.load path)
      | Parts (offset, sizes) ->
        let parts = List.map (fun size -> Cstruct.of_string (text i size)) sizes in
        Eio.File.pwrite_all file ~file_offset:(at offset) parts;
        "p")
    edits
  |> String.concat " "

let tree world n =
  let dir = fresh world in
  Eio.Path.mkdirs ~perm:0o750 (dir / "a" / "b");
  Fiber.List.iter
    (fun i -> Eio.Path.save ~create:(`Exclusive 0o600) (dir / "a" / Printf.sprintf "f%d" i) (text i i))
    (List.init n Fun.id);
  Eio.Path.symlink ~link_to:"a/f0" (dir / "link");
  Eio.Path.rename (dir / "a" / "f0") (dir / "a" / "g");
  Eio.Path.symlink ~link_to:"b" (dir / "a" / "to");
  let seen = Eio.Path.read_dir (dir / "a") |> String.concat " " in
  let kinds =
    Eio.Path.with_dir_entries (dir / "a") (fun entries ->
        List.of_seq entries |> List.map snd |> List.sort compare |> String.concat " ")
  in
  let link = Eio.Path.read_link (dir / "link") in
  let dangling = caught (fun () -> Eio.Path.load (dir / "link")) in
  let stat ~follow = Fmt.str "%a" Eio.File.Stat.pp_kind (Eio.Path.stat ~follow (dir / "a" / "to")).kind in
  let kinds = kinds ^ stat ~follow:true ^ stat ~follow:false in
  let full = caught (fun () -> Eio.Path.rmdir dir; "?") in
  Eio.Path.rmtree dir;
  String.concat "/" [ seen; kinds; link; dangling; full; string_of_bool (Eio.Path.is_directory dir) ]

(* A path that would leave the directory is refused, whatever way it takes. *)
let escape world n =
  let dir = fresh world in
  Eio.Path.mkdirs ~perm:0o700 (dir / "in" / "deep");
  Eio.Path.save ~create:(`Exclusive 0o600) (dir / "out") "secret";
  Eio.Path.symlink ~link_to:"../out" (dir / "in" / "link");
  Eio.Path.symlink ~link_to:"deep/../link2" (dir / "in" / "twice");
  Eio.Path.symlink ~link_to:"/etc" (dir / "in" / "abs");
  Eio.Path.symlink ~link_to:"." (dir / "in" / "self");
  Eio.Path.symlink ~link_to:"loop" (dir / "in" / "loop");
  Eio.Path.with_subtree (dir / "in") @@ fun inner ->
  let path =
    [|
      "../out"; "link"; "abs/passwd"; "deep/../../out"; "self/self/../out"; "twice"; "loop"; "deep/../new";
    |].(n)
  in
  let load = caught (fun () -> Eio.Path.load (inner / path)) in
  let save = caught (fun () -> Eio.Path.save ~create:(`Or_truncate 0o600) (inner / path) "x"; "saved") in
  let made = caught (fun () -> Eio.Path.mkdir ~perm:0o700 (inner / path / "d"); "made") in
  let kind () = (Eio.Path.stat ~follow:true (inner / path)).kind in
  let kind = caught (fun () -> Fmt.str "%a" Eio.File.Stat.pp_kind (kind ())) in
  String.concat "/" [ load; save; made; kind; Eio.Path.load (dir / "out") ]

let rec run world program =
  match program with
  | Value n -> string_of_int n
  | Yield -> Fiber.yield (); "y"
  | Sleep us -> Eio.Time.sleep world.env#clock (float us *. 1e-6); "s"
  | Fail_with n -> raise (Wanted n)
  | All programs -> Fiber.List.map (fun p -> caught (fun () -> run world p)) programs |> String.concat ","
  | Sequence programs -> List.map (run world) programs |> String.concat ";"
  | Against_never p -> Fiber.first (fun () -> "f" ^ run world p) never
  | Never_for ms -> (
    match Eio.Time.with_timeout world.env#clock (float ms *. 0.001) never with
    | Ok _ -> "?"
    | Error `Timeout -> "t")
  | Within p -> (
    match Eio.Time.with_timeout world.env#clock 60. (fun () -> Ok (run world p)) with
    | Ok result -> "w" ^ result
    | Error `Timeout -> "too late")
  | Stopped what ->
    let turns = Hashtbl.hash what mod 5 in
    Fiber.first
      (fun () -> block world what; "not blocked")
      (fun () ->
        for _ = 1 to turns do
          Fiber.yield ()
        done;
        "x")
  | One_fails programs ->
    caught (fun () ->
        Fiber.all
          ((fun () ->
             List.iter (fun p -> ignore (caught (fun () -> run world p))) programs;
             raise (Wanted 77))
          :: [ never; (fun () -> block world On_pipe); (fun () -> block world On_sleep) ]);
        "?")
  | On_domain p ->
    Eio.Domain_manager.run world.env#domain_mgr (fun () -> "d" ^ caught (fun () -> run world p))
  | On_thread n -> Eio_unix.run_in_systhread (fun () -> string_of_int (n * 2))
  | File (mode, edits) -> file world mode edits
  | Tree n -> tree world n
  | Escape n -> escape world n
  | Copy size ->
    let from = fresh world and into = fresh world in
    Eio.Path.save ~create:(`Exclusive 0o600) from (text size size);
    Switch.run (fun sw ->
        let from = Eio.Path.open_in ~sw from in
        let into = Eio.Path.open_out ~sw ~create:(`Exclusive 0o640) into in
        if size > 10 then ignore (Eio.File.seek from (Optint.Int63.of_int 3) `Set);
        Eio.Flow.copy_string "ab" into;
        Eio.Flow.copy from into;
        Eio.Flow.copy_string "end" into);
    digest (Eio.Path.load into)
  | Pipe chunks ->
    Switch.run @@ fun sw ->
    let r, w = Eio_unix.pipe sw in
    both_ways chunks w r ~finish:(fun () -> Eio.Flow.close w)
  | Tcp chunks ->
    Switch.run @@ fun sw ->
    let listener = Eio.Net.listen ~sw ~backlog:4 world.env#net (`Tcp (Eio.Net.Ipaddr.V4.loopback, 0)) in
    let server, client =
      Fiber.pair
        (fun () -> fst (Eio.Net.accept ~sw listener))
        (fun () -> Eio.Net.connect ~sw world.env#net (Eio.Net.listening_addr listener))
    in
    let there = both_ways chunks client server ~finish:(fun () -> Eio.Flow.shutdown client `Send) in
    there ^ both_ways (List.rev chunks) server client ~finish:(fun () -> Eio.Flow.shutdown server `Send)
  | Unix_stream chunks ->
    Switch.run @@ fun sw ->
    let a, b = Eio_unix.Net.socketpair_stream ~sw () in
    both_ways chunks a b ~finish:(fun () -> Eio.Flow.shutdown a `Send)
  | Datagrams sizes ->
    Switch.run @@ fun sw ->
    let a, b = Eio_unix.Net.socketpair_datagram ~sw ~domain:Unix.PF_UNIX () in
    let buf = Cstruct.create 3000 in
    let send size = Eio.Net.send a [ Cstruct.of_string (text size size) ] in
    Fiber.fork ~sw (fun () -> List.iter send sizes);
    List.map
      (fun _ ->
        let _, count = Eio.Net.recv b buf in
        digest (Cstruct.to_string buf ~len:count))
      sizes
    |> String.concat "|"
  | Pass size ->
    Switch.run @@ fun sw ->
    let path = fresh world in
    Eio.Path.save ~create:(`Exclusive 0o600) path (text 1 size);
    let a, b = Eio_unix.Net.socketpair_stream ~sw () in
    Fiber.fork ~sw (fun () ->
        Switch.run @@ fun sw ->
        let file = Eio.Path.open_in ~sw path in
        Eio_unix.Net.send_msg a
          ~fds:[ Option.get (Eio_unix.Resource.fd_opt file) ]
          [ Cstruct.of_string "take "; Cstruct.of_string "this" ]);
    let buf = Cstruct.create 20 in
    let count, fds = Eio_unix.Net.recv_msg_with_fds ~sw b ~max_fds:2 [ buf ] in
    let contents =
      List.map
        (fun fd ->
          Eio_unix.Fd.use_exn "read" fd (fun fd ->
              let bytes = Bytes.create 10_000 in
              digest (Bytes.sub_string bytes 0 (Unix.read fd bytes 0 10_000))))
        fds
    in
    Printf.sprintf "%s%s" (Cstruct.to_string buf ~len:(min 5 count)) (String.concat "" contents)
  | Child size ->
    let stdin = Eio.Flow.string_source (text 5 size) in
    digest (Eio.Process.parse_out world.env#process_mgr Eio.Buf_read.take_all ~stdin [ "cat" ])
  | Stream items ->
    let stream = Eio.Stream.create 2 in
    Fiber.pair
      (fun () -> List.iter (Eio.Stream.add stream) items)
      (fun () -> List.fold_left (fun sum _ -> (sum * 3) + Eio.Stream.take stream) 0 items)
    |> fun ((), sum) -> string_of_int sum

let descriptors () =
  Sys.readdir "/proc/self/fd" |> Array.to_list
  |> List.filter_map (fun number ->
         match Unix.readlink ("/proc/self/fd/" ^ number) with
         | target -> Some (number ^ " " ^ target)
         | exception Unix.Unix_error _ -> None (* that of the look itself *))
  |> List.sort compare

let result_on run_backend seed =
  let rng = Random.State.make [| seed |] in
  let program = generate rng 4 in
  run_backend @@ fun (env : Eio_unix.Stdenv.base) ->
  let root = env#cwd / Printf.sprintf "random-%d-%d" (Unix.getpid ()) seed in
  Eio.Path.mkdir ~perm:0o700 root;
  let world = { env; root = (root :> Eio.Fs.dir_ty Eio.Path.t); names = Atomic.make 0 } in
  let compact = Sys.getenv_opt "COMPACT" <> None in
  let result =
    Fiber.first
      (fun () -> caught (fun () -> run world program))
      (fun () ->
        while true do
          if compact then Gc.compact ();
          Fiber.yield ();
          if not compact then never ()
        done;
        assert false)
  in
  Eio.Path.rmtree root;
  result

let () =
  let seed, count =
    match Sys.argv with
    | [| _; seed; count |] -> (int_of_string seed, int_of_string count)
    | _ -> (1, 150)
  in
  let failed = ref 0 in
  (* Descriptors that the backends open once for the whole process stay. *)
  Eio_posix.run ignore;
  Eio_sakia.run ignore;
  let start = descriptors () in
  for seed = seed to seed + count - 1 do
    let expected = result_on Eio_posix.run seed in
    let found = result_on Eio_sakia.run seed in
    if expected <> found then (
      incr failed;
      Printf.printf "seed %d:\n  expected %s\n  found    %s\n%!" seed expected found)
  done;
  (* A thread of a loop that has ended may be about to close its own. *)
  let rec left patience =
    match List.filter (fun it -> not (List.mem it start)) (descriptors ()) with
    | _ :: _ when patience > 0 ->
      Unix.sleepf 0.01;
      left (patience - 1)
    | left -> left
  in
  let left = left 3000 in
  if left <> [] then (
    incr failed;
    Printf.printf "descriptors left: %s\n" (String.concat ", " left));
  Printf.printf "%d programs from seed %d, %d failures%s\n" count seed !failed
    (match Eio_sakia.run (fun _ -> Eio_sakia.why_no_ring ()) with
     | None -> ""
     | Some why -> "; no ring: " ^ why);
  if !failed > 0 then exit 1
