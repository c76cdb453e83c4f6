(* A thousand domains, made and joined, a few at a time: each has a loop of its own, and uses a file and a
   path that another domain has opened. At the end nothing is left: no request, no descriptor. *)

open Eio.Std

let ( / ) = Eio.Path.( / )
let text = String.init 10_000 (fun i -> Char.chr (i land 255))

let work shared dir i =
  let buf = Cstruct.create 100 in
  Eio.File.pread_exact shared ~file_offset:(Optint.Int63.of_int (i mod 9_000)) [ buf ];
  assert (Cstruct.to_string buf = String.sub text (i mod 9_000) 100);
  let path = dir / string_of_int i in
  Eio.Path.save ~create:(`Exclusive 0o600) path text;
  Switch.run (fun sw ->
      let r, w = Eio_unix.pipe sw in
      Fiber.both
        (fun () -> Eio.Path.with_open_in path (fun file -> Eio.Flow.copy file w); Eio.Flow.close w)
        (fun () -> assert (Eio.Flow.read_all r = text)));
  Eio.Path.unlink path;
  assert (Eio_sakia.under_way () = 0);
  i

let descriptors () = Array.length (Sys.readdir "/proc/self/fd")

let () =
  let count = match Sys.argv with [| _; count |] -> int_of_string count | _ -> 1000 in
  Eio_sakia.run ignore;
  let before = descriptors () in
  let sum =
    Eio_sakia.run @@ fun env ->
    let dir = env#cwd / Printf.sprintf "domains-%d" (Unix.getpid ()) in
    Eio.Path.mkdir ~perm:0o700 dir;
    Eio.Path.save ~create:(`Exclusive 0o600) (dir / "shared") text;
    let sum =
      Eio.Path.with_open_in (dir / "shared") @@ fun shared ->
      (* Two domains of the program and two more: each takes some of the machine's. *)
      Fiber.List.map ~max_fibers:4
        (fun i -> Eio.Domain_manager.run env#domain_mgr (fun () -> work shared dir i))
        (List.init count Fun.id)
      |> List.fold_left ( + ) 0
    in
    (* A domain whose fiber fails, and one that is canceled while it waits. *)
    (match Eio.Domain_manager.run env#domain_mgr (fun () -> failwith "wanted") with
     | exception Failure text -> assert (text = "wanted")
     | () -> assert false);
    Fiber.first
      (fun () ->
        Eio.Domain_manager.run env#domain_mgr (fun () ->
            Switch.run @@ fun sw ->
            let r, _w = Eio_unix.pipe sw in
            ignore (Eio.Flow.single_read r (Cstruct.create 1) : int)))
      (fun () -> Eio.Time.sleep env#clock 0.001);
    Eio.Path.rmtree dir;
    assert (Eio_sakia.under_way () = 0);
    sum
  in
  assert (2 * sum = count * (count - 1));
  (* A thread of a loop that has ended may be about to close its own. *)
  let rec after patience =
    if descriptors () > before && patience > 0 then (
      Unix.sleepf 0.01;
      after (patience - 1))
    else descriptors ()
  in
  let after = after 3000 in
  if after <> before then failwith (Printf.sprintf "%d descriptors before, %d after" before after);
  Printf.printf "%d domains\n" count
