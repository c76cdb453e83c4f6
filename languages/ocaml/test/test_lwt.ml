(* The tests of `sakia-lwt`: the engine against Lwt's own, and files against Lwt_io's. *)

open Lwt.Infix
open Support

(* So few descriptors that not all connections have one. *)
let few = int_of_string (String.trim (let channel = Unix.open_process_in "ulimit -n" in let line =
  input_line channel in ignore (Unix.close_process_in channel : Unix.process_status); if line =
    "unlimited" then "1000000" else line)) < 300

let random () = Random.State.make [| seed |]
let lwt_main promise = Lwt_main.run (Lwt.pick [ promise; (Lwt_unix.sleep 120. >>= fun () ->
  Lwt.fail_with "two minutes") ])

(* ---- sockets, by a program that knows nothing of the engine ---- *)

let echo_server connections =
  let listener = Lwt_unix.socket ~cloexec:true Unix.PF_INET Unix.SOCK_STREAM 0 in
  Lwt_unix.bind listener (Unix.ADDR_INET (Unix.inet_addr_loopback, 0)) >|= fun () ->
  Lwt_unix.listen listener 128;
  let serve fd =
    let bytes = Bytes.create 1000 in
    let rec write pos count =
      if count = 0 then Lwt.return_unit
      else Lwt_unix.write fd bytes pos count >>= fun written -> write (pos + written) (count - written)
    in
    let rec go () =
      Lwt_unix.read fd bytes 0 1000 >>= fun count ->
      if count = 0 then Lwt_unix.close fd else write 0 count >>= go
    in
    go ()
  in
  let rec accept n served =
    if n = 0 then Lwt.join served >>= fun () -> Lwt_unix.close listener
    else Lwt_unix.accept ~cloexec:true listener >>= fun (fd, _) -> accept (n - 1) (serve fd :: served)
  in
  (Lwt_unix.getsockname listener, accept connections [])

(* Each client sends a stream of random pieces, and compares what comes back. *)
let echo_client random address bytes =
  let fd = Lwt_unix.socket ~cloexec:true Unix.PF_INET Unix.SOCK_STREAM 0 in
  Lwt_unix.connect fd address >>= fun () ->
  let text = String.init bytes (fun _ -> Char.chr (Random.State.int random 256)) in
  let rec send pos =
    if pos = bytes then begin
      Lwt_unix.shutdown fd Unix.SHUTDOWN_SEND;
      Lwt.return_unit
    end
    else
      let len = min (1 + Random.State.int random 5000) (bytes - pos) in
      Lwt_unix.write_string fd text pos len >>= fun written ->
      (if Random.State.int random 4 = 0 then Lwt_unix.sleep 0.001 else Lwt.return_unit) >>= fun () ->
      disturb random;
      send (pos + written)
  in
  let received = Buffer.create bytes and piece = Bytes.create 3000 in
  let rec receive () =
    Lwt_unix.read fd piece 0 3000 >>= fun count ->
    if count = 0 then Lwt.return_unit
    else begin
      Buffer.add_subbytes received piece 0 count;
      receive ()
    end
  in
  Lwt.join [ send 0; receive () ] >>= fun () ->
  check "the same bytes" (String.equal text (Buffer.contents received));
  Lwt_unix.close fd

let echo ~connections () =
  let random = random () in
  lwt_main
    ( echo_server connections >>= fun (address, served) ->
      Lwt.join (served :: List.init connections (fun _ -> echo_client random address 20_000)) )

(* ---- timers ---- *)

(* The order in which timers fire, of which some are stopped by others, and some repeat. *)
let rec timer_order random =
  let start = Random.State.copy random and before = Unix.gettimeofday () in
  let fired = ref [] and events = Array.make 40 Lwt_engine.fake_event in
  let delays = Array.init 40 (fun i -> 0.01 *. float_of_int (1 + i)) in
  for i = 39 downto 1 do
    let j = Random.State.int random (i + 1) in
    let delay = delays.(i) in
    delays.(i) <- delays.(j);
    delays.(j) <- delay
  done;
  let stops = Array.init 40 (fun _ -> Random.State.int random 40) in
  Array.iteri
    (fun i delay ->
      events.(i) <-
        Lwt_engine.on_timer delay false (fun event ->
            Lwt_engine.stop_event event;
            fired := i :: !fired;
            if i mod 4 = 0 then Lwt_engine.stop_event events.(stops.(i))))
    delays;
  let ticks = ref 0 in
  let repeated =
    Lwt_engine.on_timer 0.025 true (fun event ->
        incr ticks;
        if !ticks = 3 then Lwt_engine.stop_event event)
  in
  ignore repeated;
  let registered = Unix.gettimeofday () -. before in
  let rec until () = if !ticks >= 3 then Lwt.return_unit else Lwt_unix.sleep 0.01 >>= until in
  lwt_main (Lwt_unix.sleep 0.5 >>= until);
  equal_int "ticks" 3 !ticks;
  (* On a machine that stands still between two registrations the order is another. *)
  if registered < 0.008 then List.rev !fired else timer_order (Random.State.copy start)

let orders = ref []

(* The same on each engine. *)
let timers () =
  let show list = String.concat " " (List.map string_of_int list) in
  let found = timer_order (random ()) in
  List.iter (fun expected -> equal show "order" expected found) !orders;
  orders := [ found ]

let many_timers () =
  
      let random = random () in
      let pending = List.init 1000 (fun _ -> Lwt_unix.sleep (Random.State.float random 0.2)) in
      (* Most are canceled, as timeouts are. *)
      let long = List.init 2000 (fun _ -> Lwt_unix.sleep 1000.) in
      List.iter Lwt.cancel long;
      lwt_main (Lwt.join pending);
      equal_int "timers" 0 (Lwt_engine.timer_count ())

(* ---- descriptors ---- *)

let always_ready () =
  
      with_folder (fun folder ->
          let fd = Unix.openfile (Filename.concat folder "f") [ Unix.O_RDWR; O_CREAT; O_CLOEXEC ] 0o600 in
          let calls = ref 0 in
          let done_, resolver = Lwt.wait () in
          let event =
            Lwt_engine.on_readable fd (fun event ->
                incr calls;
                if !calls = 5 then begin
                  Lwt_engine.stop_event event;
                  Lwt.wakeup resolver ()
                end)
          in
          ignore event;
          lwt_main done_;
          lwt_main (Lwt_unix.sleep 0.01);
          equal_int "calls" 5 !calls;
          Unix.close fd)

(* Numbers are used again: the watcher is the new file's. And a file that is open elsewhere, whose number is
   closed, is not watched for ever. *)
let reused_numbers () =
  
      for round = 1 to 50 do
        let reader, writer = Unix.pipe ~cloexec:true () in
        let elsewhere = Unix.dup ~cloexec:true reader in
        let calls = ref 0 in
        let event = Lwt_engine.on_readable reader (fun _ -> incr calls) in
        lwt_main (Lwt.pause ());
        Lwt_engine.stop_event event;
        Unix.close reader;
        (* Readable, and nothing watches it. *)
        equal_int "write" 1 (Unix.write writer (Bytes.make 1 'x') 0 1);
        let reader', writer' = Unix.pipe ~cloexec:true () in
        check "the number is used again" (reader' = reader);
        let got, resolver = Lwt.wait () in
        let event' =
          Lwt_engine.on_readable reader' (fun event ->
              Lwt_engine.stop_event event;
              Lwt.wakeup resolver ())
        in
        ignore event';
        lwt_main (Lwt_unix.sleep (if round = 1 then 0.02 else 0.));
        check "not readable" (Lwt.is_sleeping got);
        equal_int "write" 1 (Unix.write writer' (Bytes.make 1 'x') 0 1);
        lwt_main got;
        equal_int "calls" 0 !calls;
        List.iter Unix.close [ elsewhere; writer; reader'; writer' ]
      done

let many_watchers () =
  
      let random = random () in
      let pipes = Array.init 12 (fun _ -> Lwt_unix.pipe ~cloexec:true ()) in
      let sent = Array.make 12 0 and received = Array.make 12 0 in
      let count = 300 in
      let send i =
        let _, writer = pipes.(i) in
        let rec go left =
          if left = 0 then Lwt_unix.close writer
          else
            let len = 1 + Random.State.int random 3000 in
            Lwt_unix.write writer (Bytes.make len 'x') 0 len >>= fun written ->
            sent.(i) <- sent.(i) + written;
            go (left - 1)
        in
        go count
      and receive i =
        let reader, _ = pipes.(i) in
        let bytes = Bytes.create 1000 in
        let rec go () =
          (* Now and then a read is canceled: nothing is lost. *)
          let read = Lwt_unix.read reader bytes 0 1000 in
          if Random.State.int random 10 = 0 then Lwt.cancel read;
          Lwt.catch
            (fun () -> read >|= fun count -> Some count)
            (function Lwt.Canceled -> Lwt.return None | error -> Lwt.fail error)
          >>= function
          | None -> Lwt.pause () >>= go
          | Some 0 -> Lwt_unix.close reader
          | Some count ->
            received.(i) <- received.(i) + count;
            go ()
        in
        go ()
      in
      lwt_main (Lwt.join (List.concat (List.init 12 (fun i -> [ send i; receive i ]))));
      Array.iteri (fun i sent -> equal_int "bytes" sent received.(i)) sent

(* ---- processes and signals ---- *)

let forks () =
  
      let reader, writer = Lwt_unix.pipe ~cloexec:true () and reader', writer' =
        Lwt_unix.pipe ~cloexec:true () in
      let bytes = Bytes.create 10 in
      (* A watcher and a timer from before the fork, and file operations. *)
      let read = Lwt_unix.read reader bytes 0 10 and sleep = Lwt_unix.sleep 0.05 in
      let idle, idle_writer = Unix.pipe ~cloexec:true () in
      let idle = Sakia.File.adopt idle in
      let operation = Sakia_lwt.File.read idle (Bytes.create 1) 0 1 in
      lwt_main (Lwt.pause ());
      check "under way" (Lwt.is_sleeping operation);
      flush_all ();
      match Lwt_unix.fork () with
      | 0 ->
        let code =
          try
            lwt_main
              ( Lwt.catch (fun () -> operation >|= fun _ -> false) (fun error -> Lwt.return (error =
                Lwt.Canceled))
              >>= fun canceled ->
                check "canceled" canceled;
                sleep >>= fun () ->
                read >>= fun count ->
                equal_int "read" 5 count;
                (* Files of its own. *)
                Sakia_lwt.with_file ~mode:Lwt_io.Input "/etc/passwd" (fun channel -> Lwt_io.read channel)
                >>= fun text ->
                check "contents" (String.length text > 10);
                Lwt_unix.write_string writer' "child" 0 5 >|= fun _ -> () );
            0
          with error ->
            prerr_endline (Printexc.to_string error);
            1
        in
        Unix.kill (Unix.getpid ()) (if code = 0 then Sys.sigkill else Sys.sigabrt);
        assert false
      | pid ->
        (* The child reads first: the parent only then has anything. *)
        lwt_main
          ( Lwt_unix.write_string writer "first" 0 5 >>= fun _ ->
            Lwt.pick [ (Lwt_unix.waitpid [] pid >|= fun it -> Some it); (read >|= fun _ -> None) ] >>=
              fun first ->
            (match first with
            | Some (_, status) -> Lwt.return status
            | None ->
              (* The parent was quicker: once more, for the child. *)
              Lwt_unix.write_string writer "again" 0 5 >>= fun _ -> Lwt_unix.waitpid [] pid >|= snd)
            >>= fun status ->
            check "the child" (status = Unix.WSIGNALED Sys.sigkill);
            let got = Bytes.create 10 in
            Lwt_unix.read reader' got 0 10 >>= fun count ->
            equal_string "from the child" "child" (Bytes.sub_string got 0 count);
            Lwt.cancel read;
            Lwt_list.iter_s Lwt_unix.close [ reader; writer; reader'; writer' ] >>= fun () ->
            (* The parent's operation goes on. *)
            equal_int "write" 1 (Unix.write idle_writer (Bytes.make 1 'x') 0 1);
            operation >>= fun count ->
            equal_int "the parent's read" 1 count;
            Unix.close idle_writer;
            Sakia_lwt.File.close idle )

let processes () =
  
      lwt_main
        ( Lwt_process.pread (Lwt_process.shell "echo hello; exit 0") >>= fun text ->
          equal_string "output" "hello\n" text;
          Lwt_process.exec (Lwt_process.shell "exit 3") >|= fun status ->
          check "status" (status = Unix.WEXITED 3) )

let signals () =
  
      let caught = ref 0 in
      let waiter, resolver = Lwt.wait () in
      let id =
        Lwt_unix.on_signal Sys.sigusr1 (fun _ ->
            incr caught;
            if !caught = 3 then Lwt.wakeup resolver ())
      in
      let rec send n =
        if n = 0 then waiter
        else begin
          let before = !caught in
          Unix.kill (Unix.getpid ()) Sys.sigusr1;
          let rec until () = if !caught > before then Lwt.return_unit else Lwt_unix.sleep 0.001 >>= until in
          until () >>= fun () -> send (n - 1)
        end
      in
      lwt_main (send 3);
      Lwt_unix.disable_signal_handler id;
      (* An interrupted sleep: the handler is OCaml's. *)
      let handled = ref false in
      let before = Sys.signal Sys.sigalrm (Sys.Signal_handle (fun _ -> handled := true)) in
      ignore (Unix.setitimer Unix.ITIMER_REAL { Unix.it_interval = 0.01; it_value =
        0.01 } : Unix.interval_timer_status);
      lwt_main
        (let rec until () = if !handled then Lwt.return_unit else Lwt_unix.sleep 0.02 >>= until in
         until ());
      ignore (Unix.setitimer Unix.ITIMER_REAL { Unix.it_interval = 0.; it_value =
        0. } : Unix.interval_timer_status);
      Sys.set_signal Sys.sigalrm before

(* ---- files ---- *)

let error_of promise =
  Lwt.catch
    (fun () -> promise () >|= fun it -> Ok it)
    (function Unix.Unix_error (error, _, _) -> Lwt.return (Error error) | error -> Lwt.fail error)

let show_result show = function Ok it -> show it | Error error -> Unix.error_message error

(* The same random steps on a channel of Lwt_io and on one of Sakia's, with two files. *)
let channels () =
  let random = random () in
  with_folder (fun folder ->
      let path i = Filename.concat folder (string_of_int i) in
      let open_ i mode flags =
        error_of (fun () ->
            if i = 0 then Lwt_io.open_file ~flags:(Unix.O_CLOEXEC :: flags) ~mode (path 0)
            else Sakia_lwt.open_file ~flags ~mode (path 1))
      in
      let same what show step =
        error_of (fun () -> step 0) >>= fun expected ->
        error_of (fun () -> step 1) >|= fun found -> equal (show_result show) what expected found
      in
      let contents i =
        match open_in_bin (path i) with
        | exception Sys_error _ -> "no file"
        | channel ->
          let text = really_input_string channel (in_channel_length channel) in
          close_in channel;
          Digest.to_hex (Digest.string text)
      in
      let with_both mode flags f =
        open_ 0 mode flags >>= fun first ->
        open_ 1 mode flags >>= fun second ->
        match (first, second) with
        | Ok first, Ok second ->
          let channel i = if i = 0 then first else second in
          f channel >>= fun () -> same "close" (fun () -> "") (fun i -> Lwt_io.close (channel i))
        | Error first, Error second ->
          equal Unix.error_message "open" first second;
          Lwt.return_unit
        | _ -> fail "one channel was opened"
      in
      let int bound = Random.State.int random bound in
      let write () =
        let flags = List.nth [ [ Unix.O_TRUNC ]; []; [ Unix.O_APPEND ]; [ Unix.O_EXCL ] ] (int 4) in
        let flags = if int 6 = 0 then flags else Unix.O_CREAT :: flags in
        with_both Lwt_io.Output (Unix.O_WRONLY :: flags) (fun channel ->
            let rec steps n =
              if n = 0 then Lwt.return_unit
              else begin
                disturb random;
                (match int 4 with
                | 0 ->
                  let position = Int64.of_int (int 50_000) in
                  same "seek" (fun () -> "") (fun i -> Lwt_io.set_position (channel i) position)
                | 1 -> same "flush" (fun () -> "") (fun i -> Lwt_io.flush (channel i))
                | _ ->
                  let text = String.init (int 10_000) (fun _ -> Char.chr (32 + int 90)) in
                  let text = if int 2 = 0 then text ^ "\n" else text in
                  same "write" (fun () -> "") (fun i -> Lwt_io.write (channel i) text))
                >>= fun () -> steps (n - 1)
              end
            in
            steps (int 10))
      in
      let read () =
        with_both Lwt_io.Input [ Unix.O_RDONLY ] (fun channel ->
            let rec steps n =
              if n = 0 then Lwt.return_unit
              else begin
                disturb random;
                (match int 5 with
                | 0 ->
                  let position = Int64.of_int (int 50_000) in
                  same "seek" (fun () -> "") (fun i -> Lwt_io.set_position (channel i) position)
                | 1 ->
                  same "line" (function Some line -> Digest.to_hex (Digest.string line) | None ->
                    "end") (fun i ->
                      Lwt_io.read_line_opt (channel i))
                | 2 -> same "length" Int64.to_string (fun i -> Lwt_io.length (channel i))
                | 3 -> same "position" Int64.to_string (fun i -> Lwt.return (Lwt_io.position (channel i)))
                | _ ->
                  let count = int 9_000 in
                  let read i =
                    let bytes = Bytes.make count '-' in
                    Lwt.catch
                      (fun () -> Lwt_io.read_into_exactly (channel i) bytes 0 count >|= fun () ->
                        Bytes.to_string bytes)
                      (function End_of_file -> Lwt.return "end" | error -> Lwt.fail error)
                  in
                  same "read" (fun text -> Digest.to_hex (Digest.string text)) read)
                >>= fun () -> steps (n - 1)
              end
            in
            steps (int 10))
      in
      let rec rounds n =
        if n = 0 then Lwt.return_unit
        else
          (if int 2 = 0 then write () else read ()) >>= fun () ->
          equal_string "contents" (contents 0) (contents 1);
          if int 20 = 0 then
            List.iter (fun i -> try Unix.unlink (path i) with Unix.Unix_error (ENOENT, _, _) -> ()) [ 0; 1 ];
          rounds (n - 1)
      in
      lwt_main (rounds 200))

(* Positional reads and writes of many promises at a time, dropped from the kernel's caches, and some of
   them canceled. *)
let positional () =
  let random = random () in
  with_folder (fun folder ->
      let size = 1 lsl 20 in
      let model = Bytes.init size (fun i -> Char.chr ((i * 7 + (i / 256)) land 255)) in
      let path = Filename.concat folder "file" in
      let channel = open_out_bin path in
      output_bytes channel model;
      close_out channel;
      lwt_main
        ( Sakia_lwt.File.openfile path [ Unix.O_RDWR ] 0 >>= fun file ->
          let blocks = 64 in
          let block = size / blocks in
          (* A promise has blocks of its own. *)
          let rec work own n =
            if n = 0 then Lwt.return_unit
            else begin
              disturb random;
              let offset = (own * block) + Random.State.int random (block - 100) in
              let len = 1 + Random.State.int random (((own + 1) * block) - offset - 1) in
              let bigarray = Random.State.bool random in
              (match Random.State.int random 4 with
              | 0 ->
                let text = Bytes.init len (fun _ -> Char.chr (Random.State.int random 256)) in
                let write pos =
                  let file_offset = offset + pos in
                  if bigarray then
                    Sakia_lwt.File.pwrite_bigarray file (Lwt_bytes.of_bytes text) ~file_offset pos (len - pos)
                  else Sakia_lwt.File.pwrite file text ~file_offset pos (len - pos)
                in
                let rec all pos = if pos = len then Lwt.return_unit else write pos >>= fun count ->
                  all (pos + count) in
                all 0 >|= fun () -> Bytes.blit text 0 model offset len
              | 1 -> (
                (* A canceled read changes nothing, not even later. *)
                let bytes = Bytes.make len '-' in
                let read = Sakia_lwt.File.pread file bytes ~file_offset:offset 0 len in
                Lwt.cancel read;
                Lwt.catch (fun () -> read) (function Lwt.Canceled -> Lwt.return (-1) | error ->
                  Lwt.fail error)
                >>= function
                | -1 ->
                  Lwt_unix.sleep 0.002 >|= fun () ->
                  check "nothing is written after a cancellation" (Bytes.equal bytes (Bytes.make len '-'))
                | count ->
                  equal_string "contents" (Bytes.sub_string model offset count)
                    (Bytes.sub_string bytes 0 count);
                  Lwt.return_unit)
              | _ ->
                let bytes = Bytes.create len and memory = Lwt_bytes.create len in
                let read pos =
                  let file_offset = offset + pos in
                  if bigarray then Sakia_lwt.File.pread_bigarray file memory ~file_offset pos (len - pos)
                  else Sakia_lwt.File.pread file bytes ~file_offset pos (len - pos)
                in
                let rec all pos =
                  if pos = len then Lwt.return_unit
                  else
                    read pos >>= fun count ->
                    check "not the end" (count > 0);
                    all (pos + count)
                in
                all 0 >|= fun () ->
                let found = if bigarray then Lwt_bytes.to_string memory else Bytes.to_string bytes in
                check "contents" (String.equal (Bytes.sub_string model offset len) found))
              >>= fun () ->
              (if Random.State.int random 20 = 0 then
                 Sakia_lwt.File.fdatasync file >>= fun () ->
                 Sakia_lwt.perform (Sakia.Request.advise file ~offset:0 ~len:0 ~advice:4) >|= ignore
               else Lwt.return_unit)
              >>= fun () -> work own (n - 1)
            end
          in
          Lwt.join (List.init blocks (fun own -> work own 30)) >>= fun () ->
          let rec quiet () = if Sakia_lwt.under_way () = 0 then
            Lwt.return_unit else Lwt_unix.sleep 0.001 >>= quiet in
          quiet () >>= fun () ->
          Sakia_lwt.File.fstat file >>= fun stat ->
          equal_int "size" size stat.Sakia.Stat.size;
          Sakia_lwt.File.close file ))

(* Random cancellations of reads of pipes: before the kernel has the read, while it has it, and after it has
   ended it. Each promise ends once, each read gives its buffer back once, and each byte was read or is still
   in its pipe. Counted by what has happened: a read that was canceled in time and has a byte nevertheless was
   ended by the kernel before. *)

let cancellations_count =
  match Sys.getenv_opt "SAKIA_TEST_CANCELLATIONS" with
  | Some count -> int_of_string count
  | None -> if compact then 3000 else 10_000

type pipe = { file : Sakia.File.t; reader : Unix.file_descr; writer : Unix.file_descr; mutable bytes : int }

let new_pipe () =
  let reader, writer = Unix.pipe ~cloexec:true () in
  Unix.set_nonblock writer;
  { file = Sakia.File.adopt reader; reader; writer; bytes = 0 }

let write pipe =
  equal_int "write" 1 (Unix.write pipe.writer (Bytes.make 1 'x') 0 1);
  pipe.bytes <- pipe.bytes + 1

(* A read of one byte by a request, or by the file. A canceled one's byte is known with a request alone. *)
type read = { promise : int Lwt.t; got : unit -> int }

let begin_request pipe =
  let buf = Sakia.Buf.take 1 and finished = ref 0 in
  Sakia.Buf.blit_of_string "-" 0 buf 0 1;
  let promise =
    Sakia_lwt.perform
      ~finish:(fun () -> incr finished)
      (Sakia.Request.read pipe.file buf ~pos:0 ~len:1 ~offset:Sakia.Flags.current_position)
  in
  let got () =
    equal_int "the buffer was given back" 1 !finished;
    let count = if Sakia.Buf.sub_string buf 0 1 = "x" then 1 else 0 in
    Sakia.Buf.give buf;
    count
  in
  { promise; got }

let begin_file pipe =
  let bytes = Bytes.make 1 '-' in
  { promise = Sakia_lwt.File.read pipe.file bytes 0 1; got = (fun () -> if Bytes.get bytes 0 =
    'x' then 1 else 0) }

let rec quiet () = if Sakia_lwt.under_way () = 0 then Lwt.return_unit else Lwt.pause () >>= quiet

(* Ends a read, and returns whether it was canceled, and the bytes that it has. *)
let end_of pipe read =
  Lwt.catch
    (fun () ->
      read.promise >|= fun count ->
      equal_int "read" 1 count;
      false)
    (function Lwt.Canceled -> Lwt.return true | error -> Lwt.fail error)
  >>= fun canceled ->
  quiet () >|= fun () ->
  let got = read.got () in
  pipe.bytes <- pipe.bytes - got;
  (canceled, got)

type moment = Before | During | After | Racing

let cancellations () =
  let random = random () in
  let int bound = Random.State.int random bound in
  let pipe = new_pipe () and other = new_pipe () in
  let before = ref 0 and during = ref 0 and after = ref 0 and untold = ref 0 in
  let begin_ () = if int 4 = 0 then begin_file pipe else begin_request pipe in
  let canceled_while count read =
    end_of pipe read >|= fun (canceled, got) ->
    check "canceled" canceled;
    equal_int "bytes of a canceled read" 0 got;
    incr count
  in
  let had_ended read =
    read.promise >>= fun _ ->
    Lwt.cancel read.promise;
    end_of pipe read >|= fun (canceled, got) ->
    check "what had ended was not canceled" (not canceled);
    equal_int "bytes" 1 got;
    incr after
  in
  let rec turns n = if n = 0 then Lwt.return_unit else Lwt.pause () >>= fun () -> turns (n - 1) in
  (* The results of both reads come in one turn of the loop, and the first one's promise cancels the second:
     it has ended, and nothing was told of that yet. *)
  let ended_and_untold () =
    let first = begin_request other and second = begin_request pipe in
    let canceled = first.promise >|= fun _ -> Lwt.cancel second.promise in
    turns 1 >>= fun () ->
    write other;
    write pipe;
    canceled >>= fun () ->
    end_of other first >>= fun (_, got) ->
    equal_int "bytes" 1 got;
    end_of pipe second >|= fun (canceled, got) ->
    if canceled && got = 1 then incr untold;
    if got = 1 then incr after else incr during
  in
  let racing () =
    let read = begin_request pipe in
    turns (1 + int 2) >>= fun () ->
    if int 2 = 0 then write pipe;
    Lwt.cancel read.promise;
    if int 2 = 0 then write pipe;
    end_of pipe read >|= fun (_, got) -> if got = 1 then incr after else incr during
  in
  let one () =
    match [| Before; During; After; Racing |].(int 4) with
    | Before ->
      let read = begin_ () in
      Lwt.cancel read.promise;
      canceled_while before read
    | During ->
      let read = begin_ () in
      turns (1 + int 2) >>= fun () ->
      Lwt.cancel read.promise;
      canceled_while during read
    | After when int 2 = 0 -> ended_and_untold ()
    | After when int 2 = 0 ->
      write pipe;
      had_ended (begin_ ())
    | After ->
      let read = begin_ () in
      turns 1 >>= fun () ->
      write pipe;
      had_ended read
    | Racing -> racing ()
  in
  (* What was not read is still there. *)
  let drain pipe =
    if pipe.bytes > 0 then begin
      let count = Unix.read pipe.reader (Bytes.create 16) 0 16 in
      pipe.bytes <- pipe.bytes - count
    end;
    equal_int "bytes that were lost" 0 pipe.bytes
  in
  let rec all n =
    if n = 0 then Lwt.return_unit
    else
      one () >>= fun () ->
      List.iter drain [ pipe; other ];
      disturb random;
      all (n - 1)
  in
  let rec some left =
    if left > 0 then begin
      (* Far within the two minutes. *)
      lwt_main (all (min left 5000));
      some (left - 5000)
    end
  in
  some cancellations_count;
  Printf.printf "%d before, %d during, %d after the kernel's work... " !before !during !after;
  List.iter
    (fun count -> check "a fifth each" (5 * count >= cancellations_count))
    [ !before; !during; !after ];
  check "some were canceled with a result that was not told" (!untold > 0);
  List.iter
    (fun pipe ->
      lwt_main (Sakia_lwt.File.close pipe.file);
      Unix.close pipe.writer)
    [ pipe; other ]

(* Plain calls do not keep others from running. *)
let fairness () =
  
      with_folder (fun folder ->
          let path = Filename.concat folder "file" in
          let channel = open_out_bin path in
          output_string channel (String.make 100_000 'x');
          close_out channel;
          let others = ref 0 and stop = ref false in
          let rec other () =
            incr others;
            if !stop then Lwt.return_unit else Lwt.pause () >>= other
          in
          let running = other () in
          lwt_main
            ( Sakia_lwt.File.openfile path [ Unix.O_RDONLY ] 0 >>= fun file ->
              let bytes = Bytes.create 100 in
              let rec read n =
                if n = 0 then Lwt.return_unit
                else Sakia_lwt.File.pread file bytes ~file_offset:n 0 100 >>= fun _ -> read (n - 1)
              in
              read 1000 >>= fun () ->
              stop := true;
              check "others have run" (!others >= 10);
              running >>= fun () -> Sakia_lwt.File.close file ))

let trees () =
  
      with_folder (fun folder ->
          let from = Filename.concat folder "from" and destination = Filename.concat folder "to" in
          Unix.mkdir from 0o755;
          for i = 1 to 20 do
            let channel = open_out (Filename.concat from (string_of_int i)) in
            output_string channel (String.make 1000 'x');
            close_out channel
          done;
          lwt_main
            ( Sakia_lwt.copy_tree ~options:[ Sakia.Tree.Archive ] from destination >>= fun (counts,
              failures) ->
              equal_int "files" 20 counts.Sakia.Tree.files;
              check "no failures" (failures = []);
              Sakia_lwt.remove_tree destination >>= fun (counts, _) ->
              equal_int "files" 20 counts.Sakia.Tree.files;
              check "gone" (not (Sys.file_exists destination));
              error_of (fun () -> Sakia_lwt.copy_tree (from ^ "-none") destination) >|= function
              | Ok (_, []) -> fail "nothing to copy"
              | _ -> () ))

(* Canceled trees are freed after their ends: until then each has a descriptor. *)
let canceled_trees () =
  with_folder (fun folder ->
      let from = Filename.concat folder "from" in
      Unix.mkdir from 0o755;
      for i = 1 to 100 do
        close_out (open_out (Filename.concat from (string_of_int i)))
      done;
      let canceled = ref 0 in
      let cancel i =
        let copy = Sakia_lwt.copy_tree from (Filename.concat folder (Printf.sprintf "to%d" i)) in
        (if i mod 2 = 0 then Lwt.pause () else Lwt.return_unit) >>= fun () ->
        Lwt.cancel copy;
        Lwt.catch
          (fun () -> copy >|= ignore)
          (function
            | Lwt.Canceled ->
              incr canceled;
              Lwt.return_unit
            | error -> Lwt.fail error)
      in
      let before = List.length (descriptors ()) in
      let rec until_freed () =
        Gc.full_major ();
        if List.length (descriptors ()) <= before then Lwt.return_unit
        else Lwt_unix.sleep 0.01 >>= until_freed
      in
      lwt_main (Lwt_list.iter_s cancel (List.init 10 Fun.id) >>= until_freed);
      check "some were canceled" (!canceled > 0))

let reasons () =
  
      match (Sakia_lwt.why_no_ring (), Sys.getenv_opt "SAKIA_DRIVER") with
      | None, Some "poll" -> fail "no reason"
      | None, _ -> Printf.printf "on a ring... "
      | Some why, _ -> Printf.printf "no ring: %s... " why

(* Lwt moves its own watchers to another engine once: after that it stops those of an engine that is gone.
   So its engines follow each other in one process as they do in a program, and only timers come after the
   second change. *)
let () =
  Printexc.record_backtrace true;
  Printf.printf "seed %d, Lwt's engine is %s\n%!" seed (if Lwt_config.libev_default then
    "libev" else "select");
  (* What Lwt opens and handles for the whole program comes before the first test. *)
  let child = Unix.create_process "true" [| "true" |] Unix.stdin Unix.stdout Unix.stderr in
  Lwt_main.run (Lwt_unix.waitpid [] child >|= ignore);
  (* Without an engine of Sakia's: its loop is watched by Lwt's own. *)
  run "timers" timers;
  run "channels on Lwt's engine" channels;
  run "positional calls on Lwt's engine" positional;
  Sakia_lwt.install ();
  (* The loop closes what was dropped. *)
  let settle () =
    Lwt_main.run
      ( Sakia_lwt.perform Sakia.Request.nop >>= fun _ ->
        Lwt.pause () >>= fun () -> Sakia_lwt.File.openfile "/" [ Unix.O_RDONLY ] 0 >>= Sakia_lwt.File.close )
  in
  let run_closed name f = run_closed ~settle name f in
  run_closed "forks" forks;
  run_closed "reasons" reasons;
  run_closed "echo, 8 connections" (echo ~connections:8);
  run_closed "echo, 64 connections" (echo ~connections:(if few then 16 else 64));
  run_closed "timers" timers;
  run_closed "many timers" many_timers;
  run_closed "always ready" always_ready;
  run_closed "reused numbers" reused_numbers;
  run_closed "many watchers" many_watchers;
  run_closed "processes" processes;
  run_closed "signals" signals;
  run_closed "channels" channels;
  run_closed "positional calls" positional;
  run_closed "cancellations" cancellations;
  run_closed "fairness" fairness;
  run_closed "trees" trees;
  run_closed "canceled trees" canceled_trees;
  Lwt_engine.set (new Lwt_engine.select);
  run "timers on select" timers
