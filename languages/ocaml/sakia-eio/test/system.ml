(* Tests of all that reaches beyond the scheduler: signals, processes, threads of others, the end after a
   failure. *)

open Eio.Std

let ( / ) = Eio.Path.( / )

let test name f =
  Printf.printf "%s\n%!" name;
  Eio_sakia_main.run f

(* A handler wakes a fiber, whether the domain sleeps, runs, or is just about to sleep. *)
let signals env =
  let caught = Eio.Condition.create () and count = Atomic.make 0 in
  let old =
    Sys.signal Sys.sigusr1
      (Signal_handle
         (fun _ ->
           Atomic.incr count;
           Eio.Condition.broadcast caught))
  in
  for i = 1 to 300 do
    let seen = Atomic.get count in
    Fiber.both
      (fun () ->
        Eio.Condition.loop_no_mutex caught (fun () -> if Atomic.get count > seen then Some () else None))
      (fun () ->
        match i mod 3 with
        | 0 -> Unix.kill (Unix.getpid ()) Sys.sigusr1
        | 1 ->
          ignore
            (Thread.create
               (fun () ->
                 Thread.delay (float (i mod 7) *. 0.0005);
                 Unix.kill (Unix.getpid ()) Sys.sigusr1)
               ()
              : Thread.t)
        | _ ->
          Fiber.yield ();
          Unix.kill (Unix.getpid ()) Sys.sigusr1)
  done;
  ignore env;
  Sys.set_signal Sys.sigusr1 old

(* One comes after the domain has slept for a while, from another process. *)
let late_signal env =
  let caught, resolver = Promise.create () in
  let old = Sys.signal Sys.sigusr1 (Signal_handle (fun _ -> Promise.resolve resolver ())) in
  Switch.run (fun sw ->
      let command = Printf.sprintf "sleep 0.05; kill -USR1 %d" (Unix.getpid ()) in
      ignore (Eio.Process.spawn ~sw env#process_mgr [ "sh"; "-c"; command ]);
      Promise.await caught);
  Sys.set_signal Sys.sigusr1 old

let processes env =
  let mgr = env#process_mgr in
  (* Many at the same time. *)
  Fiber.List.iter ~max_fibers:8
    (fun i ->
      let out = Eio.Process.parse_out mgr Eio.Buf_read.line [ "sh"; "-c"; Printf.sprintf "echo %d" i ] in
      assert (out = string_of_int i))
    (List.init 40 Fun.id);
  Switch.run (fun sw ->
      let child = Eio.Process.spawn ~sw mgr [ "sh"; "-c"; "exit 7" ] in
      assert (Eio.Process.await child = `Exited 7);
      Eio.Process.signal child Sys.sigkill (* it has ended *));
  Switch.run (fun sw ->
      let child = Eio.Process.spawn ~sw mgr [ "sleep"; "1000" ] in
      Eio.Process.signal child Sys.sigterm;
      assert (Eio.Process.await child = `Signaled Sys.sigterm));
  (* The end of the switch kills. *)
  let pid = Switch.run (fun sw -> Eio.Process.pid (Eio.Process.spawn ~sw mgr [ "sleep"; "1000" ])) in
  (match Unix.kill pid 0 with
   | exception Unix.Unix_error (ESRCH, _, _) -> ()
   | () -> assert false);
  (match Eio.Process.run mgr [ "/no/such/program" ] with
   | exception Eio.Io (Eio.Process.E (Executable_not_found _), _) -> ()
   | exception Eio.Io (Eio.Fs.E (Not_found _), _) -> ()
   | () -> assert false);
  (* A child has none of the ring's descriptors. *)
  let listed = Eio.Process.parse_out mgr Eio.Buf_read.take_all [ "ls"; "-l"; "/proc/self/fd" ] in
  let is_ring word = String.starts_with ~prefix:"anon_inode" word in
  assert (not (List.exists is_ring (String.split_on_char ' ' listed)))

(* Threads that are none of eio's resolve promises. *)
let threads _ =
  Fiber.List.iter
    (fun i ->
      let promise, resolver = Promise.create () in
      let thread =
        Thread.create
          (fun () ->
            if i mod 2 = 0 then Thread.delay 0.001;
            Promise.resolve resolver i)
          ()
      in
      assert (Promise.await promise = i);
      Thread.join thread)
    (List.init 100 Fun.id)

exception Wanted

(* The main fiber fails while others wait: all end, and the next loop works. *)
let failure () =
  match
    Eio_sakia_main.run (fun env ->
        Switch.run @@ fun sw ->
        let r, _w = Eio_unix.pipe sw in
        Fiber.all
          [
            (fun () -> ignore (Eio.Flow.single_read r (Cstruct.create 1) : int));
            (fun () -> Eio.Time.sleep env#clock 600.);
            (fun () -> Fiber.yield (); raise Wanted);
          ])
  with
  | () -> assert false
  | exception Wanted -> ()

(* Another loop on another thread of the same domain. *)
let two_loops env =
  let run n () =
    Eio_sakia_main.run (fun env ->
        Eio.Time.sleep env#clock 0.001;
        let dir = env#cwd / Printf.sprintf "two-%d-%d" (Unix.getpid ()) n in
        Eio.Path.save ~create:(`Or_truncate 0o600) dir (String.make 50_000 'a');
        assert (String.length (Eio.Path.load dir) = 50_000);
        Eio.Path.unlink dir)
  in
  let results = List.init 4 (fun n -> fun () -> Eio_unix.run_in_systhread (run n)) in
  Fiber.all ((fun () -> Eio.Time.sleep env#clock 0.002) :: results)

let trees env =
  let dir = env#cwd / Printf.sprintf "trees-%d" (Unix.getpid ()) in
  Eio.Path.mkdirs ~perm:0o700 (dir / "a" / "b" / "c");
  for i = 1 to 50 do
    let path = dir / "a" / "b" / Printf.sprintf "f%d" i in
    Eio.Path.save ~create:(`Exclusive 0o600) path (String.make (i * 100) 'x')
  done;
  let counts = Eio_sakia.copy_tree (dir / "a") (dir / "copy") in
  assert (counts.files = 50 && counts.directories = 3 && counts.failures = 0);
  assert (String.length (Eio.Path.load (dir / "copy" / "b" / "f50")) = 5000);
  (match Eio_sakia.copy_tree (dir / "none") (dir / "other") with
   | exception Eio.Io (Eio.Fs.E (Not_found _), _) -> ()
   | _ -> assert false);
  (match Eio_sakia.copy_tree (dir / ".." / ".." / "etc") (dir / "other") with
   | exception Eio.Io (Eio.Fs.E (Permission_denied _), _) -> ()
   | _ -> assert false);
  (* A link may lead out of the directory. *)
  Eio.Path.symlink ~link_to:"/etc" (dir / "link");
  let refused f =
    match f () with
    | exception Eio.Io (Eio.Fs.E Symlink, _) -> ()
    | (_ : Sakia.Tree.counts) -> assert false
  in
  refused (fun () -> Eio_sakia.copy_tree (dir / "link") (dir / "other"));
  refused (fun () -> Eio_sakia.copy_tree (dir / "a") (dir / "link"));
  Eio.Path.unlink (dir / "link");
  let counts = Eio_sakia.remove_tree dir in
  assert (counts.files = 100 && counts.failures = 0);
  assert (Eio.Path.kind ~follow:false dir = `Not_found)

(* A tree has a descriptor, which a canceled one gives back after its end. *)
let canceled_trees env =
  let dir = env#cwd / Printf.sprintf "canceled-%d" (Unix.getpid ()) in
  Eio.Path.mkdirs ~perm:0o700 (dir / "a");
  for i = 1 to 50 do
    Eio.Path.save ~create:(`Exclusive 0o600) (dir / "a" / string_of_int i) "x"
  done;
  let descriptors () =
    Gc.full_major ();
    Array.length (Sys.readdir "/proc/self/fd")
  in
  let before = descriptors () in
  for i = 1 to 10 do
    let begun, resolver = Promise.create () in
    let progress _ = ignore (Promise.try_resolve resolver () : bool) in
    Fiber.first
      (fun () ->
        let copy = dir / Printf.sprintf "to%d" i in
        ignore (Eio_sakia.copy_tree ~progress (dir / "a") copy : Sakia.Tree.counts))
      (fun () ->
        Promise.await begun;
        if i mod 2 = 0 then Fiber.yield ())
  done;
  let rec until_freed tries =
    if descriptors () > before then (
      assert (tries > 0);
      Eio.Time.sleep env#clock 0.01;
      until_freed (tries - 1))
  in
  until_freed 1000;
  Eio.Path.rmtree dir

(* More requests than a program has descriptors are under way, and all end. *)
let many env =
  let count = ref 0 in
  Switch.run (fun sw ->
      let r, w = Eio_unix.pipe sw in
      for _ = 1 to 5000 do
        Fiber.fork ~sw (fun () ->
            ignore (Eio.Flow.single_read r (Cstruct.create 1) : int);
            incr count)
      done;
      Fiber.yield ();
      Eio.Flow.copy_string (String.make 5000 'x') w);
  ignore env;
  assert (!count = 5000)

(* A fiber whose calls never wait lets others run: a device without end, a file in memory, a socket that is
   full of bytes, a name that is looked at. *)
let fairness env =
  let dir = env#cwd / Printf.sprintf "fair-%d" (Unix.getpid ()) in
  Eio.Path.save ~create:(`Or_truncate 0o600) dir (String.make 10_000 'a');
  let buf = Cstruct.create 100 in
  let turns f =
    let others = ref 0 in
    Fiber.first
      (fun () ->
        for _ = 1 to 80 do
          f ()
        done)
      (fun () ->
        while true do
          incr others;
          Fiber.yield ()
        done);
    !others
  in
  let at_least name expected f =
    let turns = turns f in
    if turns < expected then failwith (Printf.sprintf "%s: others had %d turns, not %d" name turns expected)
  in
  Switch.run (fun sw ->
      let zero = Eio.Path.open_in ~sw (env#fs / "/dev/zero") in
      at_least "device" 80 (fun () -> ignore (Eio.Flow.single_read zero buf : int));
      let file = Eio.Path.open_in ~sw dir in
      at_least "file" 9 (fun () ->
          ignore (Eio.File.pread file ~file_offset:Optint.Int63.zero [ buf ] : int));
      let a, b = Eio_unix.Net.socketpair_stream ~sw () in
      Eio.Flow.copy_string (String.make 20_000 'b') a;
      at_least "socket" 9 (fun () -> ignore (Eio.Flow.single_read b buf : int));
      at_least "name" 9 (fun () -> ignore (Eio.Path.stat ~follow:true dir : Eio.File.Stat.t)));
  Eio.Path.unlink dir

(* Fibers whose requests find as many under way as may be wait for room, and all have their turn. *)
let few_under_way () =
  Eio_sakia.run_limited ~under_way_max:8 @@ fun _ ->
  Switch.run @@ fun sw ->
  let r, w = Eio_unix.pipe sw in
  Eio.Flow.copy_string "x" w;
  let number flow = Eio_unix.Fd.use_exn "number" (Eio_unix.Resource.fd flow) Fun.id in
  let count = ref 0 in
  Fiber.List.iter
    (fun i ->
      if i mod 2 = 0 then Eio_unix.await_readable (number r)
      else Eio_unix.Fd.use_exn "number" (Eio_unix.Resource.fd w) Eio_unix.await_writable;
      incr count)
    (List.init 300 Fun.id);
  assert (!count = 300);
  assert (Eio_sakia.under_way () = 0)

let () =
  test "signals" signals;
  test "a late signal" late_signal;
  test "processes" processes;
  test "threads" threads;
  failure ();
  test "two loops" two_loops;
  test "many" many;
  (match Sys.getenv_opt "EIO_BACKEND" with
   | None | Some "sakia" ->
     few_under_way ();
     test "fairness" fairness;
     test "trees" trees;
     test "canceled trees" canceled_trees
   | _ -> ());
  print_endline "all passed"
