(* A request that does not end when its scheduler does: a read of a file whose server answers too late. The
   program's memory stays, since the kernel writes to it after that, and that of what has ended is freed. *)

exception Stop

let ( / ) = Eio.Path.( / )

(* The handler raises within the scheduler's sleep, where no fiber is told: only so a scheduler ends while a
   request is under way. *)
let stop_from_outside () =
  Sys.set_signal Sys.sigusr1 (Signal_handle (fun _ -> raise Stop));
  let command = Printf.sprintf "sleep 0.1; kill -USR1 %d" (Unix.getpid ()) in
  ignore (Unix.create_process "sh" [| "sh"; "-c"; command |] Unix.stdin Unix.stdout Unix.stderr : int)

let read flow memory =
  let buf = Cstruct.of_bigarray memory in
  ignore (Eio.Flow.single_read flow buf : int)

let run (server : Fuse.t) =
  let leaked = ref None and ended = ref None in
  (match
     Eio_sakia.run (fun env ->
         Eio.Switch.run @@ fun sw ->
         let r, w = Eio_unix.pipe sw in
         ended :=
           Some
             (Memory.give (fun memory ->
                  Eio.Fiber.both
                    (fun () -> read r memory)
                    (fun () -> Eio.Fiber.yield (); Eio.Flow.copy_string "x" w)));
         let file = Eio.Path.open_in ~sw (env#fs / server.path) in
         leaked := Some (Memory.give (fun memory -> Eio.Fiber.fork ~sw (fun () -> read file memory)));
         Eio_unix.await_readable server.news;
         assert (Fuse.hears server "r");
         stop_from_outside ())
   with
   | () -> failwith "the scheduler has ended by itself"
   | exception Stop -> ());
  let leaked = Option.get !leaked and ended = Option.get !ended in
  Memory.collect ();
  assert (Memory.is_freed ended);
  assert (not (Memory.is_freed leaked));
  assert (Memory.last leaked = '-');
  Fuse.answer_reads server;
  assert (Memory.becomes leaked 'z');
  Memory.collect ();
  assert (not (Memory.is_freed leaked))

let () =
  match Sys.argv with
  | [| _; argument; point |] when argument = Fuse.argument -> Fuse.serve point
  | _ ->
    (match Fuse.with_file run with
     | Ok () -> ()
     | Error why -> Support.skip "leak" why);
    print_endline "ok"
