(* Requests that do not end when their loop or queue is stopped: the program's own memory, which the kernel
   may still use, stays for ever. The memory of those that have ended does not. *)

open Sakia
open Support

let stays what memory = check (what ^ ": the memory of what leaked stays") (not (Memory.is_freed memory))
let freed what memory = check (what ^ ": the memory of what has ended is freed") (Memory.is_freed memory)
let collect = Memory.collect

(* [submit] is given a buffer. *)
let lent submit = Memory.give (fun memory -> submit (Buf.of_bigarray memory))

let read file buf = Request.read file buf ~pos:0 ~len:Memory.size ~offset:Flags.current_position

let pipe () =
  let reader, writer = Unix.pipe ~cloexec:true () in
  (File.adopt reader, writer)

let write writer = equal_int "write" 1 (Unix.write writer (Bytes.make 1 'x') 0 1)

(* Without time for the end, a read of a pipe leaks. *)
let on_loop mode what =
  let loop = Loop.create ~mode () in
  let file, writer = pipe () in
  let submit datum buf = ignore (Loop.submit loop (read file buf) datum : Loop.ticket) in
  let answered = lent (submit "answered") in
  write writer;
  wait_until loop (fun _ _ -> ()) (fun () -> Loop.under_way loop = 0);
  let leaked = List.init 3 (fun _ -> lent (submit "leaked")) in
  ignore (Loop.wait ~timeout_ns:0 loop (fun _ _ -> ()) : int);
  collect ();
  freed what answered;
  List.iter (stays what) leaked;
  let canceled = lent (submit "canceled") in
  let names = Loop.stop ~limit_ns:0 loop in
  check "what had ended is not told as leaked" (List.for_all (( <> ) "answered") names);
  let again = Loop.stop ~limit_ns:0 loop in
  check "the same again" (List.length again <= List.length names);
  let names_of name = List.length (List.filter (( = ) name) names) in
  equal_int "leaked" 3 (names_of "leaked");
  (* What did not reach the kernel ends, or leaks as the others. *)
  ignore (Loop.take loop (fun name outcome ->
      equal_string "the result of" "canceled" name;
      check "canceled" (Outcome.is_canceled outcome)) : int);
  collect ();
  List.iter (stays what) leaked;
  Loop.free loop;
  collect ();
  List.iter (stays what) leaked;
  if names_of "canceled" = 0 then freed what canceled else stays what canceled;
  Unix.close writer

let on_queue mode what =
  let queue = Queue.create ~mode () in
  let file, writer = pipe () in
  let submit datum buf =
    match Queue.submit queue (read file buf) datum with
    | Under_way _ -> ()
    | Done _ -> fail "a read of an empty pipe has ended"
  in
  let answered = lent (submit "answered") in
  write writer;
  while Queue.under_way queue > 0 do
    ignore (Queue.wait ~timeout_ns:minute queue (fun _ _ -> ()) : int)
  done;
  let others = List.init 3 (fun _ -> lent (submit "leaked")) in
  collect ();
  freed what answered;
  List.iter (stays what) others;
  (* Its threads may be quicker than the stop. *)
  let leaked = List.length (Queue.stop ~limit_ns:0 queue) in
  let ended = ref 0 in
  while Queue.take queue (fun _ outcome -> check "canceled" (Outcome.is_canceled outcome); incr ended) > 0 do
    ()
  done;
  collect ();
  let free = List.length (List.filter Memory.is_freed others) in
  if leaked = 3 then List.iter (stays what) others
  else check (what ^ ": the memory of what leaked stays") (free <= 3 - leaked);
  Unix.close writer

(* A read that has reached the server of a file system does not end, however long the stop waits. The server
   answers after the loop is freed: the kernel writes the bytes to the memory, which is still there. *)
let on_file_system mode what =
  Fuse.with_file (fun server ->
      let loop = Loop.create ~mode () in
      let file = File.adopt (Unix.openfile server.Fuse.path [ Unix.O_RDONLY; O_CLOEXEC ] 0) in
      let other, writer = pipe () in
      let submit file buf = ignore (Loop.submit loop (read file buf) () : Loop.ticket) in
      let leaked = lent (submit file) in
      ignore (Loop.wait ~timeout_ns:0 loop (fun () _ -> ()) : int);
      check "the read has come to the server" (Fuse.hears server "r");
      let answered = lent (submit other) in
      write writer;
      wait_until loop (fun () _ -> ()) (fun () -> Loop.under_way loop = 1);
      let canceled = lent (submit other) in
      ignore (Loop.wait ~timeout_ns:0 loop (fun () _ -> ()) : int);
      equal_int "leaked" 1 (List.length (Loop.stop ~limit_ns:100_000_000 loop));
      equal_int "canceled" 1 (Loop.take loop (fun () it -> check "canceled" (Outcome.is_canceled it)));
      Loop.free loop;
      collect ();
      List.iter (freed what) [ answered; canceled ];
      stays what leaked;
      check "not written yet" (Memory.last leaked = '-');
      Fuse.answer_reads server;
      check (what ^ ": the late bytes come") (Memory.becomes leaked 'z');
      collect ();
      stays what leaked;
      Unix.close writer)

let modes f =
  if Loop.with_loop (fun loop -> Loop.why_no_ring loop = None) then f Loop.Ring "on a ring";
  f Loop.Poll "without a ring"

let of_loops () = modes on_loop
let of_queues () = modes on_queue

let of_a_file_system () =
  modes (fun mode what ->
      match on_file_system mode what with
      | Ok () -> ()
      | Error why -> skip "leaks of a file system" why)
