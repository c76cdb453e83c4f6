(* Cancellations before the kernel has the request, while it has it, and after it has ended it. Reads of
   pipes: no byte is lost, and each result comes once. *)

open Sakia
open Support

type moment = Before | During | After | Racing

let moments = [| Before; During; After; Racing |]

type pipe = { reader : File.t; writer : Unix.file_descr; buf : Buf.t }

let run loop random count =
  let pipes =
    Array.init 4 (fun _ ->
        let reader, writer = Unix.pipe ~cloexec:true () in
        Unix.set_nonblock writer;
        { reader = File.adopt reader; writer; buf = Buf.take 16 })
  in
  let canceled = Hashtbl.create 4 and ended = Hashtbl.create 4 in
  let note table moment = Hashtbl.replace table moment (1 + Option.value ~default:0
    (Hashtbl.find_opt table moment)) in
  let written = ref 0 and received = ref 0 and results = Array.make count 0 in
  let write pipe =
    incr written;
    equal_int "write" 1 (Unix.write pipe.writer (Bytes.make 1 'x') 0 1)
  in
  let look () = ignore (Loop.wait ~timeout_ns:0 loop (fun f outcome -> f outcome) : int) in
  for number = 0 to count - 1 do
    let pipe = pipes.(Random.State.int random 4) and moment = moments.(Random.State.int random 4) in
    let outcome = ref None in
    let f (it : Outcome.t) =
      results.(number) <- results.(number) + 1;
      outcome := Some it
    in
    let ticket = Loop.submit loop (Request.read pipe.reader pipe.buf ~pos:0 ~len:16 ~offset:(-1)) f in
    (match moment with
    | Before -> Loop.cancel loop ticket
    | During ->
      look ();
      Loop.cancel loop ticket
    | After ->
      write pipe;
      wait_until loop (fun f outcome -> f outcome) (fun () -> !outcome <> None);
      Loop.cancel loop ticket
    | Racing ->
      (* The byte and the cancellation come to the kernel in either order, or to the request between its
         steps. *)
      if Random.State.bool random then look ();
      if Random.State.bool random then begin
        write pipe;
        Loop.cancel loop ticket
      end
      else begin
        Loop.cancel loop ticket;
        write pipe
      end);
    wait_until loop (fun f outcome -> f outcome) (fun () -> !outcome <> None);
    (match Option.get !outcome with
    | it when Outcome.is_canceled it ->
      check "what had ended was not canceled" (moment <> After);
      note canceled moment
    | it ->
      check "what was canceled brings a value or nothing" (it.value > 0);
      received := !received + it.value;
      note ended moment);
    disturb random
  done;
  Loop.take loop (fun f outcome -> f outcome) |> equal_int "results that are left" 0;
  equal_int "requests under way" 0 (Loop.under_way loop);
  Array.iteri (fun i times -> equal_int (Printf.sprintf "results of request %d" i) 1 times) results;
  (* What was not received is still in the pipes. *)
  Array.iter
    (fun { reader; writer; buf } ->
      Unix.close writer;
      let bytes = Bytes.create 65536 in
      let rec drain () =
        match Unix.read (File.number reader) bytes 0 65536 with
        | 0 -> ()
        | count ->
          received := !received + count;
          drain ()
      in
      drain ();
      ignore (Programs.on_loop loop (Request.close reader) : Outcome.t);
      Buf.give buf)
    pipes;
  equal_int "bytes" !written !received;
  let total = float_of_int count in
  let share table moment = float_of_int (Option.value ~default:0 (Hashtbl.find_opt table moment)) /. total in
  check "a fifth each before, during and after"
    (List.for_all (fun moment -> share canceled moment +. share ended moment >= 0.2) [ Before; During;
      After ])
