(* The tests of `sakia`, on one loop and one queue as the machine or the environment offers them. *)

open Sakia
open Support

let seconds = 1_000_000_000
let random () = Random.State.make [| seed |]
let on_loop = Programs.on_loop
let ignore_results _ _ = ()

let with_file path f =
  let file = File.adopt (Unix.openfile path [ Unix.O_RDWR; O_CREAT; O_CLOEXEC ] 0o600) in
  f file

let close loop file = equal_int "close" 0 (on_loop loop (Request.close file)).value

(* ---- results ---- *)

let programs perform =
  let random = random () in
  for _ = 1 to 4 do
    Programs.program random perform 500
  done

let programs_on_loop () = Loop.with_loop (fun loop -> programs (on_loop loop))

let programs_without_plain_calls () =
  let loop = Loop.create ~plain_calls:false () in
  programs (on_loop loop);
  Loop.free loop

let programs_on_queue () =
  let queue = Queue.create ~threads:2 () in
  programs (Programs.on_queue queue);
  check "nothing leaks" (Queue.stop queue = [])

(* Many reads under way at a time, whose buffers nothing else refers to. *)
let many_reads () =
  with_folder (fun folder ->
      let path = Filename.concat folder "file" and random = random () in
      let size = 1 lsl 20 in
      let contents = String.init size (fun i -> Char.chr ((i * 7 + (i / 256)) land 255)) in
      let channel = open_out_bin path in
      output_string channel contents;
      close_out channel;
      Loop.with_loop (fun loop ->
          with_file path (fun file ->
              let answered = ref 0 and submitted = ref 0 in
              let submit () =
                let len = 1 + Random.State.int random 60_000 in
                let offset = Random.State.int random (size - len) in
                let pooled = Random.State.bool random in
                let buf =
                  if pooled then Buf.take len
                  else Buf.of_bigarray (Bigarray.Array1.create Bigarray.char Bigarray.c_layout len)
                in
                incr submitted;
                (* A read may bring what is in memory, and the next one the rest. *)
                let rec read pos =
                  let request = Request.read file buf ~pos ~len:(len - pos) ~offset:(offset + pos) in
                  ignore (Loop.submit loop request (f pos) : Loop.ticket)
                and f pos (outcome : Outcome.t) =
                  check "bytes" (outcome.value > 0);
                  if pos + outcome.value < len then read (pos + outcome.value) else finish ()
                and finish () =
                  incr answered;
                  equal_string "contents" (String.sub contents offset len) (Buf.sub_string buf 0 len);
                  if pooled then Buf.give buf
                in
                read 0
              in
              while !submitted < 2000 do
                (* Dropped from the kernel's caches now and then, so that reads wait where there is a disk. *)
                if Random.State.int random 20 = 0 then
                  ignore (Loop.submit loop (Request.advise file ~offset:0 ~len:0
                    ~advice:4) ignore : Loop.ticket);
                for _ = 1 to Random.State.int random 64 do
                  submit ()
                done;
                disturb random;
                ignore (Loop.wait ~timeout_ns:0 loop (fun f outcome -> f outcome) : int)
              done;
              wait_until loop (fun f outcome -> f outcome) (fun () -> !answered = !submitted);
              close loop file)))

let cancellations () = Loop.with_loop (fun loop -> Cancellations.run loop (random ()) (if compact then
  2_000 else 10_000))

(* ---- sockets ---- *)

let sockets () =
  Loop.with_loop (fun loop ->
      let make () =
        let request = Request.socket ~domain:Flags.af_inet ~kind:Flags.sock_stream ~protocol:0 in
        Outcome.file request (on_loop loop request)
      in
      let ok name request = ignore (Support.equal_int name 0 (Outcome.get request (on_loop loop request))) in
      let listener = make () and client = make () in
      ok "bind" (Request.bind listener (Unix.ADDR_INET (Unix.inet_addr_loopback, 0)));
      ok "listen" (Request.listen listener ~backlog:10);
      let address = Unix.getsockname (File.number listener) in
      let peer = Buf.take 128 and accepted = ref None in
      ignore
        (Loop.submit loop (Request.accept listener peer) (fun (outcome : Outcome.t) -> accepted :=
          Some outcome)
          : Loop.ticket);
      ok "connect" (Request.connect client address);
      wait_until loop (fun f outcome -> f outcome) (fun () -> !accepted <> None);
      let outcome = Option.get !accepted in
      let server = Option.get outcome.file in
      check "the peer's address" (Request.address peer outcome.value = Unix.getsockname (File.number client));
      let buf = Buf.take 4096 in
      Buf.blit_of_string "hello, loop" 0 buf 0 11;
      equal_int "send" 11 (on_loop loop (Request.send client buf ~pos:0 ~len:11)).value;
      let received = Buf.take 4096 in
      equal_int "recv" 11 (on_loop loop (Request.recv server received ~pos:0 ~len:4096)).value;
      equal_string "received" "hello, loop" (Buf.sub_string received 0 11);
      equal_int "nothing to receive" File.would_wait (File.try_recv server (Buf.memory received) ~pos:0
        ~len:10);
      equal_int "try_send" 11 (File.try_send client (Buf.memory buf) ~pos:0 ~len:11);
      equal_int "poll" Flags.pollin (on_loop loop (Request.poll server ~events:Flags.pollin)).value;
      equal_int "try_recv" 11 (File.try_recv server (Buf.memory received) ~pos:0 ~len:4096);
      (* Bytes of the loop's own memory, until the peer sends no more. *)
      let text = Stdlib.Buffer.create 100 and ended = ref false in
      let part = Buf.take 65536 in
      ignore
        (Loop.submit loop (Request.receive_many server) (fun (outcome : Outcome.t) ->
             (match outcome.received with
             | Some bytes ->
               let len = Outcome.received_length bytes in
               is_invalid "too many bytes" (fun () -> Loop.blit_received loop bytes ~pos:1 part ~dst:0 ~len);
               Loop.blit_received loop bytes ~pos:0 part ~dst:0 ~len;
               Stdlib.Buffer.add_string text (Buf.sub_string part 0 len);
               Loop.give_back loop bytes;
               is_invalid "given back twice" (fun () -> Loop.give_back loop bytes);
               is_invalid "given back" (fun () -> Loop.blit_received loop bytes ~pos:0 part ~dst:0 ~len)
             | None -> equal_int "the end" 0 outcome.value);
             if not outcome.more then ended := true)
          : Loop.ticket);
      for _ = 1 to 100 do
        equal_int "send" 11 (on_loop loop (Request.send client buf ~pos:0 ~len:11)).value
      done;
      ok "shutdown" (Request.shutdown client Flags.shut_wr);
      wait_until loop (fun f outcome -> f outcome) (fun () -> !ended);
      equal_int "all bytes" 1100 (Stdlib.Buffer.length text);
      List.iter (close loop) [ client; server; listener ];
      List.iter Buf.give [ peer; buf; received; part ])

let messages () =
  Loop.with_loop (fun loop ->
      let a, b = Unix.socketpair ~cloexec:true Unix.PF_UNIX Unix.SOCK_DGRAM 0 in
      let a = File.adopt a and b = File.adopt b in
      let reader, writer = Unix.pipe ~cloexec:true () in
      let buf = Buf.take 4096 in
      Buf.blit_of_string "descriptor" 0 buf 0 10;
      let message = Request.message ~descriptors:4 (Buf.take 100) ~pos:0 ~len:100 in
      let found = ref None in
      ignore (Loop.submit loop (Request.recv_message b message) (fun it -> found := Some it) : Loop.ticket);
      is_invalid "a message in use" (fun () -> Request.recv_message b message);
      equal_int "sendmsg" 10 (on_loop loop (Request.send_message ~descriptors:[ writer ] a buf ~pos:0
        ~len:10)).value;
      Unix.close writer;
      wait_until loop (fun f outcome -> f outcome) (fun () -> !found <> None);
      equal_int "recvmsg" 10 (Option.get !found).Outcome.value;
      (match Request.message_descriptors message with
      | [ fd ] ->
        equal_int "through the descriptor" 1 (Unix.write fd (Bytes.make 1 'x') 0 1);
        equal_int "and out" 1 (Unix.read reader (Bytes.create 1) 0 1);
        Unix.close fd
      | list -> fail "%d descriptors" (List.length list));
      check "once" (Request.message_descriptors message = []);
      (* UDP, with addresses. *)
      let socket () =
        let fd = Unix.socket ~cloexec:true Unix.PF_INET Unix.SOCK_DGRAM 0 in
        Unix.bind fd (Unix.ADDR_INET (Unix.inet_addr_loopback, 0));
        (File.adopt fd, Unix.getsockname fd)
      in
      let c, c_address = socket () and d, d_address = socket () in
      equal_int "send" 10 (on_loop loop (Request.send_message ~address:d_address c buf ~pos:0 ~len:10)).value;
      equal_int "receive" 10 (on_loop loop (Request.recv_message d message)).value;
      check "the sender" (Request.message_address message = Some c_address);
      Unix.close reader;
      List.iter (close loop) [ a; b; c; d ])

let accept_many () =
  Loop.with_loop (fun loop ->
      let listener = Unix.socket ~cloexec:true Unix.PF_INET Unix.SOCK_STREAM 0 in
      Unix.bind listener (Unix.ADDR_INET (Unix.inet_addr_loopback, 0));
      Unix.listen listener 16;
      let address = Unix.getsockname listener and file = File.adopt listener in
      let files = ref [] and last = ref false in
      let ticket =
        Loop.submit loop (Request.accept_many file) (fun (outcome : Outcome.t) ->
            (match outcome.file with Some file -> files := file :: !files | None -> ());
            if not outcome.more then last := true)
      in
      let clients =
        List.init 8 (fun _ ->
            let fd = Unix.socket ~cloexec:true Unix.PF_INET Unix.SOCK_STREAM 0 in
            Unix.connect fd address;
            fd)
      in
      wait_until loop (fun f outcome -> f outcome) (fun () -> List.length !files = 8);
      Loop.cancel loop ticket;
      wait_until loop (fun f outcome -> f outcome) (fun () -> !last);
      List.iter Unix.close clients;
      List.iter (close loop) (file :: !files))

(* ---- wrong use ---- *)

let wrong_use () =
  let buf = Buf.take 100 and memory = Bigarray.Array1.create Bigarray.char Bigarray.c_layout 10 in
  let loop : string Loop.t = Loop.create () in
  let reader, writer = Unix.pipe ~cloexec:true () in
  let file = File.adopt reader in
  is_invalid "a length" (fun () -> Request.read file buf ~pos:0 ~len:(-1) ~offset:0);
  is_invalid "a length" (fun () -> Request.read file buf ~pos:0 ~len:(Buf.length buf + 1) ~offset:0);
  is_invalid "a position" (fun () -> Request.read file buf ~pos:max_int ~len:2 ~offset:0);
  is_invalid "memory" (fun () -> File.try_read file memory ~pos:5 ~len:6 ~offset:0);
  is_invalid "memory" (fun () -> File.try_write file memory ~pos:(-1) ~len:6 ~offset:0);
  is_invalid "bytes" (fun () -> File.try_recv_bytes file (Bytes.create 4) ~pos:0 ~len:5);
  is_invalid "an area" (fun () -> Request.stat "/" (Buf.of_bigarray memory));
  is_invalid "pieces" (fun () -> Request.readv file (List.init 1025 (fun _ -> (buf, 0, 1))) ~offset:0);
  is_invalid "entries" (fun () -> Directory.entries buf (Buf.length buf + 1));
  is_invalid "not of a pool" (fun () -> Buf.give (Buf.of_bigarray memory));
  raises "adopt" EBADF (fun () -> File.adopt (Obj.magic 9999 : Unix.file_descr));
  raises "a path with a zero" ENOENT (fun () -> Loop.submit loop (Request.unlink "a\000b") "");
  raises "no such operation" EINVAL (fun () -> Loop.submit loop (Request.by_number
    (Obj.magic 0 : Unix.file_descr) (Request.close file)) "");
  (* A buffer that a request uses. *)
  let ticket = Loop.submit loop (Request.read file buf ~pos:0 ~len:10 ~offset:(-1)) "read" in
  is_invalid "in use" (fun () -> Buf.give buf);
  ignore (Loop.wait ~timeout_ns:0 loop ignore_results : int);
  (* Within a result's function. *)
  equal_int "write" 1 (Unix.write writer (Bytes.make 1 'x') 0 1);
  let seen = ref 0 in
  wait_until loop
    (fun name outcome ->
      equal_string "datum" "read" name;
      equal_int "value" 1 outcome.value;
      incr seen;
      raises "a wait within a wait" EBUSY (fun () -> Loop.wait loop ignore_results);
      raises "a take within a wait" EBUSY (fun () -> Loop.take loop ignore_results);
      raises "an end within a wait" EBUSY (fun () -> Loop.free loop))
    (fun () -> !seen = 1);
  Loop.cancel loop ticket;
  Buf.give buf;
  is_invalid "given twice" (fun () -> Buf.give buf);
  is_invalid "given back" (fun () -> Loop.submit loop (Request.read file buf ~pos:0 ~len:10 ~offset:0) "");
  (* An exception leaves the other results. *)
  let others = ref [] in
  List.iter (fun name -> ignore (Loop.submit loop Request.nop name : Loop.ticket)) [ "a"; "b"; "c" ];
  let rec take_all tries =
    if tries = 0 then fail "no results";
    (match
       Loop.wait ~timeout_ns:minute loop (fun name _ ->
           others := name :: !others;
           if name = "a" then raise Exit)
     with
    | _ -> ()
    | exception Exit -> ());
    if List.length !others < 3 then take_all (tries - 1)
  in
  take_all 100;
  equal_string "each once" "a b c" (String.concat " " (List.sort compare !others));
  (* Elsewhere. *)
  let waker = Loop.waker loop in
  List.iter
    (fun (where, run) ->
      run (fun () ->
          let not_there name f = raises (name ^ " on another " ^ where) EPERM f in
          not_there "submit" (fun () -> ignore (Loop.submit loop Request.nop "" : Loop.ticket));
          not_there "take" (fun () -> ignore (Loop.take loop ignore_results : int));
          not_there "wait" (fun () -> ignore (Loop.wait loop ignore_results : int));
          not_there "wait" (fun () -> ignore (Loop.wait ~timeout_ns:0 loop ignore_results : int));
          not_there "cancel" (fun () -> Loop.cancel loop ticket);
          not_there "under_way" (fun () -> ignore (Loop.under_way loop : int));
          not_there "pollable" (fun () -> ignore (Loop.pollable loop : Unix.file_descr));
          not_there "waker" (fun () -> ignore (Loop.waker loop : Waker.t));
          not_there "stop" (fun () -> ignore (Loop.stop loop : string list));
          not_there "free" (fun () -> Loop.free loop);
          Waker.wake waker))
    Elsewhere.all;
  equal_int "woken" 0 (Loop.wait ~timeout_ns:minute loop ignore_results);
  equal_int "close" 0
    (let value = ref (-1) in
     ignore (Loop.submit loop (Request.close file) "close" : Loop.ticket);
     wait_until loop (fun _ outcome -> value := outcome.value) (fun () -> !value >= 0);
     !value);
  raises "a closed file" EBADF (fun () -> File.try_read file memory ~pos:0 ~len:1 ~offset:0);
  Unix.close writer;
  (* After the end. *)
  check "nothing leaks" (Loop.stop loop = []);
  Loop.free loop;
  raises "freed twice" EINVAL (fun () -> Loop.free loop);
  raises "submit" EINVAL (fun () -> Loop.submit loop Request.nop "");
  raises "wait" EINVAL (fun () -> Loop.wait loop ignore_results);
  raises "stop" EINVAL (fun () -> Loop.stop loop);
  Waker.wake waker;
  let queue = Queue.create () in
  check "nothing leaks" (Queue.stop queue = []);
  let value = ref 1 in
  (match Queue.submit queue Request.nop () with
  | Done outcome -> value := outcome.value
  | Under_way _ -> ignore (Queue.wait ~timeout_ns:minute queue (fun () outcome -> value :=
    outcome.value) : int)
  | exception Unix.Unix_error _ -> value := -Flags.ecanceled);
  equal_int "a stopped queue" (-Flags.ecanceled) !value

(* Requests are under way at the end: results can still be taken, and nothing leaks. *)
let ends_with_requests () =
  let loop : int Loop.t = Loop.create () in
  let pipes = List.init 10 (fun _ -> Unix.pipe ~cloexec:true ()) in
  let files = List.map (fun (reader, _) -> File.adopt reader) pipes in
  List.iteri
    (fun i file -> ignore (Loop.submit loop (Request.read file (Buf.take 10) ~pos:0 ~len:10
      ~offset:(-1)) i : Loop.ticket))
    files;
  ignore (Loop.wait ~timeout_ns:0 loop ignore_results : int);
  check "nothing leaks" (Loop.stop ~limit_ns:(60 * seconds) loop = []);
  let found = ref [] in
  while Loop.take loop (fun i outcome -> check "canceled" (Outcome.is_canceled outcome); found :=
    i :: !found) > 0 do () done;
  check "each once" (List.sort compare !found = List.init 10 Fun.id);
  Loop.free loop;
  let queue : int Queue.t = Queue.create () in
  List.iteri
    (fun i file ->
      match Queue.submit queue (Request.read file (Buf.take 10) ~pos:0 ~len:10 ~offset:(-1)) i with
      | Under_way _ -> ()
      | Done _ -> fail "a read of an empty pipe has ended")
    files;
  check "nothing leaks" (Queue.stop ~limit_ns:(60 * seconds) queue = []);
  let found = ref [] in
  while Queue.take queue (fun i outcome -> check "canceled" (Outcome.is_canceled outcome); found :=
    i :: !found) > 0 do () done;
  check "each once" (List.sort compare !found = List.init 10 Fun.id);
  List.iter (fun (_, writer) -> Unix.close writer) pipes;
  (* A loop that is freed at once, with requests under way. *)
  let loop : int Loop.t = Loop.create () in
  List.iteri
    (fun i file -> ignore (Loop.submit loop (Request.poll file ~events:Flags.pollin) i : Loop.ticket))
    files;
  Loop.free loop

(* ---- several threads on a queue ---- *)

let shared_queue () =
  with_folder (fun folder ->
      let path = Filename.concat folder "file" in
      let channel = open_out_bin path in
      output_string channel (String.init 65536 (fun i -> Char.chr (i / 256)));
      close_out channel;
      let queue = Queue.create ~threads:2 () in
      let file = File.adopt (Unix.openfile path [ Unix.O_RDONLY; O_CLOEXEC ] 0) in
      let answered = Atomic.make 0 and wrong = Atomic.make 0 and count = 500 and threads = 4 in
      let all = threads * count in
      let times = Array.init all (fun _ -> Atomic.make 0) in
      (* Whichever thread takes it. *)
      let finish (number, block, buf) (outcome : Outcome.t) =
        Atomic.incr times.(number);
        if outcome.value <> 256 || Buf.sub_string buf 0 256 <> String.make 256 (Char.chr block) then
          Atomic.incr wrong;
        Buf.give buf;
        Atomic.incr answered
      in
      let work thread () =
        for i = 0 to count - 1 do
          let buf = Buf.take 256 and block = i * 37 mod 256 in
          let datum = ((thread * count) + i, block, buf) in
          match Queue.submit queue (Request.read file buf ~pos:0 ~len:256 ~offset:(block * 256)) datum with
          | Done outcome -> finish datum outcome
          | Under_way _ -> if i mod 3 = 0 then ignore (Queue.take queue finish : int)
        done;
        while Atomic.get answered < all && Queue.under_way queue > 0 do
          ignore (Queue.wait ~timeout_ns:10_000_000 queue finish : int)
        done
      in
      let others = List.init (threads - 1) (fun i -> Thread.create (work (i + 1)) ()) in
      work 0 ();
      List.iter Thread.join others;
      while Atomic.get answered < all do
        ignore (Queue.wait ~timeout_ns:minute queue finish : int)
      done;
      equal_int "wrong results" 0 (Atomic.get wrong);
      Array.iter (fun it -> equal_int "results of a request" 1 (Atomic.get it)) times;
      ignore (File.name file : string);
      check "nothing leaks" (Queue.stop queue = []))

(* ---- signals and processes ---- *)

let timer interval value =
  ignore
    (Unix.setitimer Unix.ITIMER_REAL { Unix.it_interval = interval; it_value = value }
      : Unix.interval_timer_status)

let signals () =
  Loop.with_loop (fun loop ->
      let caught = ref 0 in
      let before = Sys.signal Sys.sigalrm (Sys.Signal_handle (fun _ -> incr caught)) in
      (* Repeated: a signal just before the sleep is handled after the next one. *)
      timer 0.01 0.01;
      let until = Unix.gettimeofday () +. 60. in
      while !caught < 3 && Unix.gettimeofday () < until do
        equal_int "results" 0 (Loop.wait ~timeout_ns:minute loop ignore_results)
      done;
      check "handled" (!caught >= 3);
      (* An exception of a handler ends the wait, and the loop goes on. *)
      Sys.set_signal Sys.sigalrm (Sys.Signal_handle (fun _ -> raise Exit));
      (match
         while Unix.gettimeofday () < until do
           ignore (Loop.wait ~timeout_ns:minute loop ignore_results : int)
         done
       with
      | () -> fail "no exception"
      | exception Exit -> ());
      let rec stop () = try timer 0. 0. with Exit -> stop () in
      stop ();
      Sys.set_signal Sys.sigalrm before;
      equal_int "nop" 0 (on_loop loop Request.nop).value)

(* Runs [f] with a signal every 0.2 ms, whose handler raises once after each time that its argument is set,
   until it has raised [times] times or [f] returns false. Returns how often it has raised. *)
let pestered times f =
  let raised = ref 0 and may_raise = ref false in
  let handle _ =
    if !may_raise then begin
      may_raise := false;
      incr raised;
      raise Exit
    end
  in
  let before = Sys.signal Sys.sigalrm (Sys.Signal_handle handle) in
  timer 0.0002 0.0002;
  while !raised < times && f may_raise do () done;
  timer 0. 0.;
  Sys.set_signal Sys.sigalrm before;
  !raised

(* Calls [f], in which the handler may raise. *)
let unless_raised may_raise f =
  match
    may_raise := true;
    f ();
    may_raise := false
  with
  | () -> true
  | exception Exit -> false

(* The handler of a signal that raises in any function of a loop: no result is lost or comes twice, and the
   loop is used as before. *)
let signals_at_a_loop () =
  let loop = Loop.create ~plain_calls:false () in
  let seen = Array.make 1_000_000 0 and is_sure = Array.make 1_000_000 true in
  let submitted = ref 0 in
  let note number _ = seen.(number) <- seen.(number) + 1 in
  let buf = Buf.take 8 and file = File.adopt (Unix.openfile "/dev/zero" [ O_RDONLY; O_CLOEXEC ] 0) in
  let raised =
    pestered 400 (fun may_raise ->
        for _ = 1 to 64 do
          let number = !submitted in
          incr submitted;
          let request = Request.read file buf ~pos:0 ~len:8 ~offset:0 in
          is_sure.(number) <-
            unless_raised may_raise (fun () -> ignore (Loop.submit loop request number : Loop.ticket))
        done;
        let collect = if !submitted land 64 = 0 then Loop.take else Loop.wait ~timeout_ns:1_000_000 in
        ignore (unless_raised may_raise (fun () -> ignore (collect loop note : int)) : bool);
        !submitted + 64 <= Array.length seen)
  in
  while Loop.under_way loop > 0 do ignore (Loop.wait loop note : int) done;
  check "raised" (raised > 0);
  let once number times =
    if number < !submitted then
      check "once" (times = 1 || (times = 0 && not is_sure.(number)))
  in
  Array.iteri once seen;
  Buf.give buf;
  check "nothing leaks" (Loop.stop loop = []);
  Loop.free loop

(* Handlers that raise while results are taken from a queue: each result comes once, as long as it takes. *)
let signals_at_a_queue () =
  let queue = Queue.create ~plain_calls:false () in
  let seen = Array.make 1_000_000 0 in
  let submitted = ref 0 in
  let note number _ = seen.(number) <- seen.(number) + 1 in
  let raised =
    pestered 200 (fun may_raise ->
        for _ = 1 to 64 do
          let number = !submitted in
          incr submitted;
          match Queue.submit queue Request.nop number with
          | Done outcome -> note number outcome
          | Under_way _ -> ()
        done;
        let wait () = ignore (Queue.wait ~timeout_ns:1_000_000 queue note : int) in
        ignore (unless_raised may_raise wait : bool);
        !submitted + 64 <= Array.length seen)
  in
  while Queue.take queue note > 0 || Queue.under_way queue > 0 do () done;
  check "raised" (raised > 0);
  Array.iteri (fun number times -> if number < !submitted then equal_int "once" 1 times) seen;
  check "nothing leaks" (Queue.stop queue = [])

let child f =
  flush_all ();
  match Unix.fork () with
  | 0 ->
    (* Nothing of the parent's is run at the end. *)
    let code = try f (); 0 with error -> prerr_endline (Printexc.to_string error); 1 in
    Unix.kill (Unix.getpid ()) (if code = 0 then Sys.sigkill else Sys.sigabrt)
  | pid -> (
    match Unix.waitpid [] pid with
    | _, Unix.WSIGNALED signal when signal = Sys.sigkill -> ()
    | _ -> fail "the child failed")

let forks () =
  let loop : (Outcome.t -> unit) Loop.t = Loop.create () and queue : unit Queue.t = Queue.create () in
  let reader, writer = Unix.pipe ~cloexec:true () in
  let file = File.adopt reader in
  let found = ref None in
  ignore
    (Loop.submit loop (Request.read file (Buf.take 10) ~pos:0 ~len:10 ~offset:(-1)) (fun it -> found :=
      Some it) : Loop.ticket);
  ignore (Loop.wait ~timeout_ns:0 loop (fun f outcome -> f outcome) : int);
  let waker = Loop.waker loop in
  child (fun () ->
      raises "submit" EPERM (fun () -> Loop.submit loop Request.nop ignore);
      raises "wait" EPERM (fun () -> Loop.wait loop ignore_results);
      raises "take" EPERM (fun () -> Loop.take loop ignore_results);
      raises "stop" EPERM (fun () -> Loop.stop loop);
      raises "free" EPERM (fun () -> Loop.free loop);
      raises "queue" EPERM (fun () -> Queue.submit queue Request.nop ());
      raises "queue" EPERM (fun () -> Queue.stop queue);
      Waker.wake waker;
      Gc.compact ();
      (* Its own. *)
      Loop.with_loop (fun loop ->
          let buf = Buf.take 100 in
          let request = Request.open_ "/etc/passwd" ~flags:0 ~perm:0 in
          let file = Outcome.file request (on_loop loop request) in
          check "read" ((on_loop loop (Request.read file buf ~pos:0 ~len:100 ~offset:0)).value > 0)));
  (* Another program: its descriptors are closed. *)
  equal_int "exec" 0 (Sys.command "true");
  equal_int "write" 5 (Unix.write writer (Bytes.of_string "after") 0 5);
  wait_until loop (fun f outcome -> f outcome) (fun () -> !found <> None);
  equal_int "the parent's read" 5 (Option.get !found).Outcome.value;
  close loop file;
  Unix.close writer;
  Loop.free loop;
  check "nothing leaks" (Queue.stop queue = [])

(* ---- in another event loop ---- *)

let pollable () =
  Loop.with_loop (fun loop ->
      let descriptor = Loop.pollable loop in
      let reader, writer = Unix.pipe ~cloexec:true () in
      let file = File.adopt reader and buf = Buf.take 10 in
      for _ = 1 to 100 do
        let found = ref false in
        ignore (Loop.submit loop (Request.read file buf ~pos:0 ~len:10 ~offset:(-1)) (fun _ -> found :=
          true) : Loop.ticket);
        while Loop.wait ~timeout_ns:0 loop (fun f outcome -> f outcome) > 0 do () done;
        check "not yet" (not !found);
        equal_int "write" 1 (Unix.write writer (Bytes.make 1 'x') 0 1);
        while not !found do
          (match Unix.select [ descriptor ] [] [] 60. with
          | [ _ ], _, _ -> ()
          | _ -> fail "not readable");
          while Loop.wait ~timeout_ns:0 loop (fun f outcome -> f outcome) > 0 do () done
        done
      done;
      Unix.close descriptor;
      Unix.close writer;
      close loop file)

(* ---- trees ---- *)

let trees () =
  with_folder (fun folder ->
      let from = Filename.concat folder "from" and destination = Filename.concat folder "to" in
      let rec make path depth =
        Unix.mkdir path 0o755;
        for i = 1 to 3 do
          let file = Filename.concat path (string_of_int i) in
          let channel = open_out file in
          output_string channel (String.make (i * 1000) 'x');
          close_out channel;
          if depth > 0 then make (file ^ "d") (depth - 1)
        done;
        Unix.symlink "1" (Filename.concat path "link")
      in
      make from 2;
      let copy = Tree.copy ~options:[ Tree.Archive ] from destination in
      check "copied" (Tree.wait copy = Tree.Finished);
      equal (String.concat "\n") "trees" (Programs.contents from) (Programs.contents destination);
      let counts = Tree.counts copy in
      equal_int "files" 39 counts.files;
      equal_int "failures" 0 counts.failures;
      check "no failure" (Tree.failure copy = None);
      (* A failure. *)
      let again = Tree.copy from (Filename.concat folder "no/such/folder") in
      (match Tree.wait again with Tree.Failed _ -> () | _ -> fail "it cannot work");
      let removal = Tree.remove destination in
      let descriptor = Tree.pollable removal in
      (match Unix.select [ descriptor ] [] [] 60. with [ _ ], _, _ -> () | _ -> fail "no end");
      Unix.close descriptor;
      check "removed" (Tree.wait removal = Tree.Finished);
      check "gone" (not (Sys.file_exists destination));
      raises "a path with a zero" ENOENT (fun () -> Tree.remove "a\000");
      (* Canceled, and dropped without a look at its end. *)
      let canceled = Tree.copy from destination in
      Tree.cancel canceled;
      (match Tree.wait canceled with Tree.Finished | Failed _ -> () | Running -> fail "no end"))

(* The program's own memory lives until the result was taken. *)
let roots () =
  let collect () =
    Gc.full_major ();
    Gc.full_major ()
  in
  let freed = ref 0 in
  let watched () =
    let memory = Bigarray.Array1.create Bigarray.char Bigarray.c_layout 100_000 in
    Gc.finalise (fun _ -> incr freed) memory;
    memory
  in
  Loop.with_loop (fun loop ->
      let reader, writer = Unix.pipe ~cloexec:true () in
      let file = File.adopt reader in
      let submit () =
        let buf = Buf.of_bigarray (watched ()) in
        Loop.submit loop (Request.read file buf ~pos:0 ~len:100_000 ~offset:(-1)) (fun (_ : Outcome.t) -> ())
      in
      let ticket = (Sys.opaque_identity submit) () in
      collect ();
      equal_int "freed while it is under way" 0 !freed;
      Loop.cancel loop ticket;
      wait_until loop (fun f outcome -> f outcome) (fun () -> Loop.under_way loop = 0);
      collect ();
      equal_int "freed after its result" 1 !freed;
      Unix.close writer;
      close loop file)

let memory_of_results () =
  (* An opened file that nothing takes is closed by the collector: the test's end counts descriptors. *)
  Loop.with_loop (fun loop ->
      for _ = 1 to 100 do
        let request = Request.open_ "/" ~flags:Flags.o_directory ~perm:0 in
        check "opened" ((on_loop loop request).value >= 0);
        if Random.int 10 = 0 then Gc.full_major ();
        ignore (Loop.wait ~timeout_ns:0 loop ignore_results : int)
      done;
      Gc.full_major ();
      Gc.full_major ();
      ignore (Loop.wait ~timeout_ns:0 loop ignore_results : int))

let reasons () =
  Loop.with_loop (fun loop ->
      match (Loop.why_no_ring loop, Sys.getenv_opt "SAKIA_DRIVER") with
      | None, Some "poll" -> fail "no reason"
      | None, _ -> Printf.printf "on a ring... "
      | Some why, _ -> Printf.printf "no ring: %s... " why);
  let loop : unit Loop.t = Loop.create ~mode:Loop.Poll () in
  check "a reason" (Loop.why_no_ring loop <> None);
  Loop.free loop

let () =
  if Array.length Sys.argv = 3 && Sys.argv.(1) = Fuse.argument then begin
    Fuse.serve Sys.argv.(2);
    exit 0
  end;
  Printexc.record_backtrace true;
  Printf.printf "seed %d\n%!" seed;
  run_closed "reasons" reasons;
  run_closed "forks" forks;
  run_closed "random programs on a loop" programs_on_loop;
  run_closed "random programs without plain calls" programs_without_plain_calls;
  run_closed "random programs on a queue" programs_on_queue;
  run_closed "many reads" many_reads;
  run_closed "cancellations" cancellations;
  run_closed "sockets" sockets;
  run_closed "messages" messages;
  run_closed "accept_many" accept_many;
  run_closed "wrong use" wrong_use;
  run_closed "ends with requests" ends_with_requests;
  run_closed "a shared queue" shared_queue;
  run_closed "signals" signals;
  run_closed "signals at a loop" signals_at_a_loop;
  run_closed "signals at a queue" signals_at_a_queue;
  run_closed "pollable" pollable;
  run_closed "roots" roots;
  run_closed "trees" trees;
  run_closed "results that nothing takes" memory_of_results;
  (* What leaked has descriptors. *)
  run "leaks of loops" Leaks.of_loops;
  run "leaks of queues" Leaks.of_queues;
  run "leaks of a file system" Leaks.of_a_file_system
