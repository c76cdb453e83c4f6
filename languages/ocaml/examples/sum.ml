(* Counts the bytes of a file by the loop itself: 16 reads are under way. *)

open Sakia

let block = 65536

let () =
  Loop.with_loop @@ fun loop ->
  let request = Request.open_ Sys.argv.(1) ~flags:Flags.o_rdonly ~perm:0 in
  let file = ref None and total = ref 0 and next = ref 0 in
  ignore (Loop.submit loop request (fun outcome -> file := Some (Outcome.file request outcome)));
  while !file = None do
    ignore (Loop.wait loop (fun f outcome -> f outcome))
  done;
  let file = Option.get !file in
  (* Each answer is followed by the next read, until one brings nothing. *)
  let rec read buf offset pos =
    let request = Request.read file buf ~pos ~len:(block - pos) ~offset:(offset + pos) in
    ignore (Loop.submit loop request (fun outcome -> answer buf offset pos (Outcome.get request outcome)))
  and answer buf offset pos count =
    total := !total + count;
    if count > 0 && pos + count < block then read buf offset (pos + count)
    else if count > 0 then advance buf
    else Buf.give buf
  and advance buf =
    let offset = !next in
    next := offset + block;
    read buf offset 0
  in
  for _ = 1 to 16 do
    advance (Buf.take block)
  done;
  while Loop.under_way loop > 0 do
    ignore (Loop.wait loop (fun f outcome -> f outcome))
  done;
  Printf.printf "%d bytes\n" !total
