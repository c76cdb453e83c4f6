open Lwt.Infix
open Sakia

(* ---- the loop of this thread ---- *)

type datum =
  | Watchers  (** the set of watchers is readable *)
  | Call of call

and call = {
  mutable outcome : Outcome.t option;
  (* Given the outcome after it was delivered. *)
  mutable answer : Outcome.t -> unit;
  (* Rejects the promise in a forked child. *)
  mutable reject : exn -> unit;
}

type files = {
  loop : datum Loop.t;
  (* Answered calls, whose continuations run outside of the loop. *)
  ready : call Stdlib.Queue.t;
  (* Calls under way whose promises are pending. *)
  calls : (int, call) Hashtbl.t;
  mutable numbers : int;
  (* The request by which the loop watches the engine's watchers. *)
  mutable watch : Loop.ticket option;
  mutable watch_is_ready : bool;
  process : int;
}

(* The loop is made by the first request. A child of fork(2) makes another. *)
type host = {
  mode : Loop.mode;
  mutable files : files option;
  (* An engine, or a hook of Lwt's main loop, drives the loop. *)
  mutable driven : bool;
}

let new_host mode driven = { mode; files = None; driven }

(* The newest engine's. *)
let current = ref (new_host Loop.Automatic false)

(* Calls that did not wait, since the last turn of the main loop. *)
let plain_calls = ref 0
let plain_calls_max = 16

let deliver files datum (outcome : Outcome.t) =
  match datum with
  | Watchers ->
    files.watch <- None;
    files.watch_is_ready <- true
  | Call call ->
    call.outcome <- Some outcome;
    Stdlib.Queue.push call files.ready

let answer_all files =
  while not (Stdlib.Queue.is_empty files.ready) do
    let call = Stdlib.Queue.pop files.ready in
    match call.outcome with Some outcome -> call.answer outcome | None -> ()
  done

let make_files host =
  let files =
    {
      loop = Loop.create ~mode:host.mode ();
      ready = Stdlib.Queue.create ();
      calls = Hashtbl.create 16;
      numbers = 0;
      watch = None;
      watch_is_ready = false;
      process = Unix.getpid ();
    }
  in
  host.files <- Some files;
  files

(* As Lwt cancels its jobs in a forked child: after a pause, so that nothing of it runs before an exec. The
   parent's loop stays as it is, and with it the memory that the parent's kernel writes. *)
let abandon host =
  match host.files with
  | None -> ()
  | Some files ->
    host.files <- None;
    let calls = Hashtbl.fold (fun _ call calls -> call :: calls) files.calls [] in
    if calls <> [] then
      Lwt.on_success (Lwt.pause ()) (fun () -> List.iter (fun call -> call.reject Lwt.Canceled) calls)

(* ---- the engine ---- *)

(* Turns without the loop until it is looked after: it closes files that were dropped. *)
let idle_turns_max = 256
let second = 1_000_000_000

class engine ?(mode = Loop.Automatic) () =
  let host = new_host mode true in
  object (self)
    inherit Identity.engine
    val watchers = Watchers.create ()
    val timers = Timers.create ()
    val mutable idle_turns = 0
    initializer current := host

    method private cleanup =
      if !current == host then current := new_host mode false;
      Watchers.close watchers;
      match host.files with
      | None -> ()
      | Some files -> (
        host.files <- None;
        try Loop.free files.loop with Unix.Unix_error (EPERM, _, _) -> ())

    method private register_readable fd f =
      let watcher = Watchers.add watchers fd ~writing:false f in
      lazy (Watchers.stop watchers watcher)

    method private register_writable fd f =
      let watcher = Watchers.add watchers fd ~writing:true f in
      lazy (Watchers.stop watchers watcher)

    method private register_timer delay repeat f =
      let timer = Timers.add timers delay repeat f in
      lazy (Timers.stop timers timer)

    (* Before the set of watchers is closed: the loop may not use its number any more. *)
    method private unwatch () =
      match host.files with
      | Some ({ watch = Some ticket; _ } as files) ->
        Loop.cancel files.loop ticket;
        while files.watch <> None do
          ignore (Loop.wait ~timeout_ns:second files.loop (deliver files) : int)
        done
      | _ -> ()

    (* The loop has requests under way, and watches the watchers: one system call for both. *)
    method private sleep_in_loop files timeout_ns =
      let timeout_ns =
        if files.watch <> None then timeout_ns
        else
          match
            Loop.submit files.loop (Request.poll_number (Watchers.number watchers)
              ~events:Flags.pollin) Watchers
          with
          | ticket ->
            files.watch <- Some ticket;
            timeout_ns
          | exception Unix.Unix_error (EAGAIN, _, _) ->
            (* As many requests are under way as may be. *)
            files.watch_is_ready <- true;
            if timeout_ns < 0 then 1_000_000 else min timeout_ns 1_000_000
      in
      ignore (Loop.wait ~timeout_ns files.loop (deliver files) : int);
      if files.watch_is_ready then begin
        files.watch_is_ready <- false;
        Watchers.look watchers
      end
      else 0

    method iter block =
      plain_calls := 0;
      Timers.begin_turn timers;
      let always_ready = Watchers.flush watchers ~before:self#unwatch in
      let timeout_ns may_sleep = if may_sleep then Timers.next timers else 0 in
      let found =
        match host.files with
        | Some files
          when Loop.under_way files.loop > (if files.watch = None then 0 else 1)
               || (not (Stdlib.Queue.is_empty files.ready))
               || idle_turns >= idle_turns_max ->
          let may_sleep = block && (not always_ready) && Stdlib.Queue.is_empty files.ready
            && idle_turns < idle_turns_max in
          idle_turns <- 0;
          self#sleep_in_loop files (timeout_ns may_sleep)
        | _ -> (
          idle_turns <- idle_turns + 1;
          match timeout_ns (block && not always_ready) with
          | 0 -> Watchers.look watchers
          | timeout_ns -> Watchers.wait watchers ~timeout_ns)
      in
      Timers.turn timers;
      Watchers.turn watchers found;
      match host.files with Some files -> answer_all files | None -> ()

    method! fork =
      abandon host;
      Watchers.renew watchers
  end

let install ?mode () = Lwt_engine.set (new engine ?mode ())

(* ---- requests ---- *)

let is_forked files = files.process <> Unix.getpid ()

(* With another engine, the loop is looked after before each sleep of that one, whose sleep it ends by a
   descriptor. *)
let hook host files =
  let descriptor = Loop.pollable files.loop in
  let event = Lwt_engine.on_readable descriptor ignore in
  let node = ref None in
  let stop () =
    Option.iter Lwt_main.Enter_iter_hooks.remove !node;
    Lwt_engine.stop_event event;
    Unix.close descriptor;
    host.driven <- false
  in
  let turn () =
    plain_calls := 0;
    if is_forked files then begin
      stop ();
      abandon host
    end
    else begin
      while Loop.wait ~timeout_ns:0 files.loop (deliver files) > 0 do
        ()
      done;
      if not (Stdlib.Queue.is_empty files.ready) then begin
        answer_all files;
        (* The promise that the main loop waits for is perhaps resolved: it looks again before it sleeps. *)
        ignore (Lwt.pause () : unit Lwt.t)
      end
      else if host != !current && Hashtbl.length files.calls = 0 then begin
        (* An engine has taken over. *)
        stop ();
        host.files <- None;
        Loop.free files.loop
      end
    end
  in
  host.driven <- true;
  node := Some (Lwt_main.Enter_iter_hooks.add_last turn)

let rec files_of host =
  match host.files with
  | Some files when host.driven -> files
  | Some files when is_forked files ->
    abandon host;
    files_of host
  | Some files ->
    hook host files;
    files
  | None ->
    ignore (make_files host : files);
    files_of host

let close_dropped files (outcome : Outcome.t) =
  match outcome.file with
  | None -> ()
  | Some file -> (
    let call = { outcome = None; answer = ignore; reject = ignore } in
    (* If it cannot be submitted, the collector closes the file. *)
    try ignore (Loop.submit files.loop (Request.close file) (Call call) : Loop.ticket)
      with Unix.Unix_error _ -> ())

let rec start host request call =
  let files = files_of host in
  match Loop.submit files.loop request (Call call) with
  | ticket ->
    if Loop.is_done ticket then ignore (Loop.take files.loop (deliver files) : int);
    (files, ticket)
  | exception Unix.Unix_error (EPERM, _, _) when is_forked files ->
    abandon host;
    start host request call

let submit ?(finish = ignore) request =
  let call = { outcome = None; answer = ignore; reject = ignore } in
  match start !current request call with
  | exception error ->
    finish ();
    Lwt.fail error
  | files, ticket -> (
    match call.outcome with
    | Some outcome ->
      finish ();
      Lwt.return outcome
    | None ->
      let promise, resolver = Lwt.task () in
      let number = files.numbers in
      files.numbers <- number + 1;
      Hashtbl.add files.calls number call;
      call.reject <- (fun error -> if Lwt.is_sleeping promise then Lwt.wakeup_later_exn resolver error);
      call.answer <-
        (fun outcome ->
          Hashtbl.remove files.calls number;
          finish ();
          if Lwt.is_sleeping promise then Lwt.wakeup resolver outcome else close_dropped files outcome);
      Lwt.on_cancel promise (fun () -> if not (is_forked files) then Loop.cancel files.loop ticket);
      promise)

let perform ?finish request = submit ?finish request >|= fun outcome -> Outcome.get request outcome

let under_way () =
  match !current.files with Some files when not (is_forked files) -> Hashtbl.length files.calls | _ -> 0

let why_no_ring () = Loop.why_no_ring (files_of !current).loop

(* ---- files ---- *)

(* The result of a call that did not wait. *)
let plain value =
  incr plain_calls;
  if !plain_calls < plain_calls_max then Lwt.return value
  else begin
    plain_calls := 0;
    (* It is done: a cancellation comes too late. *)
    Lwt.no_cancel (Lwt.pause () >|= fun () -> value)
  end

let guard f = try f () with (Unix.Unix_error _ | Invalid_argument _) as error -> Lwt.fail error

(* The most bytes of one call. *)
let chunk = 256 * 1024

(* A pipe or a socket that is in non-blocking mode and not ready: waits until it is, and performs the
   request again. *)
let rec perform_ready file events request =
  submit request >>= fun outcome ->
  if outcome.Outcome.value = -Flags.eagain then
    perform (Request.poll file ~events) >>= fun _ -> perform_ready file events request
  else Lwt.return (Outcome.get request outcome)

let release buf = if not (Buf.is_used buf) then Buf.give buf

(* By a request, into a buffer of the library's own: the caller may use its memory after a cancellation. *)
let read_later file len offset blit =
  let len = min len chunk in
  let buf = Buf.take len in
  Lwt.finalize
    (fun () ->
      perform_ready file Flags.pollin (Request.read file buf ~pos:0 ~len ~offset) >|= fun count ->
      blit buf count;
      count)
    (fun () ->
      release buf;
      Lwt.return_unit)

let write_later file len offset blit =
  let len = min len chunk in
  let buf = Buf.take len in
  blit buf len;
  Lwt.finalize
    (fun () -> perform_ready file Flags.pollout (Request.write file buf ~pos:0 ~len ~offset))
    (fun () ->
      release buf;
      Lwt.return_unit)

let read_memory file memory pos len offset =
  guard (fun () ->
      let count = File.try_read file memory ~pos ~len ~offset in
      if count >= 0 then plain count
      else
        let target = Buf.of_bigarray memory in
        read_later file len offset (fun buf count -> Buf.copy buf 0 target pos count))

let write_memory file memory pos len offset =
  guard (fun () ->
      let count = File.try_write file memory ~pos ~len ~offset in
      if count >= 0 then plain count
      else
        let source = Buf.of_bigarray memory in
        write_later file len offset (fun buf len -> Buf.copy source pos buf 0 len))

(* OCaml's bytes go 32 KiB at a time: the next part, as long as none waits. *)
let rec read_parts file bytes pos len offset total =
  let offset' = if offset < 0 then offset else offset + total in
  match File.try_read_bytes file bytes ~pos:(pos + total) ~len:(len - total) ~offset:offset' with
  | exception (Unix.Unix_error _ as error) -> if total > 0 then total else raise error
  | count when count < 0 -> if total > 0 then total else count
  | count ->
    let total = total + count in
    if count < 32 * 1024 || total = len || total >= chunk then
      total else read_parts file bytes pos len offset total

let rec write_parts file bytes pos len offset total =
  let offset' = if offset < 0 then offset else offset + total in
  match File.try_write_bytes file bytes ~pos:(pos + total) ~len:(len - total) ~offset:offset' with
  | exception (Unix.Unix_error _ as error) -> if total > 0 then total else raise error
  | count when count < 0 -> if total > 0 then total else count
  | count ->
    let total = total + count in
    if count < 32 * 1024 || total = len || total >= chunk then
      total else write_parts file bytes pos len offset total

let read_bytes file bytes pos len offset =
  guard (fun () ->
      let count = read_parts file bytes pos len offset 0 in
      if count >= 0 then plain count
      else read_later file len offset (fun buf count -> Buf.blit_to_bytes buf 0 bytes pos count))

let write_bytes file bytes pos len offset =
  guard (fun () ->
      let count = write_parts file bytes pos len offset 0 in
      if count >= 0 then plain count
      else write_later file len offset (fun buf len -> Buf.blit_of_bytes bytes pos buf 0 len))

let seek_set file operation offset =
  if offset < 0 then raise (Unix.Unix_error (EINVAL, operation, File.name file));
  offset

module File = struct
  type t = File.t

  let openfile path flags perm =
    let numbers = Flags.of_open_flags flags in
    guard (fun () ->
        match File.try_open path ~flags:numbers with
        | Some file -> plain file
        | None ->
          let request = Request.open_ path ~flags:numbers ~perm in
          submit request >|= Outcome.file request)

  let close file = perform (Request.close file) >|= ignore
  let read file bytes pos len = read_bytes file bytes pos len Flags.current_position
  let write file bytes pos len = write_bytes file bytes pos len Flags.current_position
  let write_string file string pos len = write file (Bytes.unsafe_of_string string) pos len

  let pread file bytes ~file_offset pos len =
    guard (fun () -> read_bytes file bytes pos len (seek_set file "pread" file_offset))

  let pwrite file bytes ~file_offset pos len =
    guard (fun () -> write_bytes file bytes pos len (seek_set file "pwrite" file_offset))

  let read_bigarray file memory pos len = read_memory file memory pos len Flags.current_position
  let write_bigarray file memory pos len = write_memory file memory pos len Flags.current_position

  let pread_bigarray file memory ~file_offset pos len =
    guard (fun () -> read_memory file memory pos len (seek_set file "pread" file_offset))

  let pwrite_bigarray file memory ~file_offset pos len =
    guard (fun () -> write_memory file memory pos len (seek_set file "pwrite" file_offset))

  let lseek file offset command = Unix.LargeFile.lseek (File.number file) offset command
  let fsync file = perform (Request.sync file) >|= ignore
  let fdatasync file = perform (Request.sync ~data:true file) >|= ignore
  let ftruncate file size = guard (fun () -> perform (Request.truncate file size) >|= ignore)

  let fstat file =
    guard (fun () ->
        match File.try_fstat file with
        | Some stat -> plain stat
        | None ->
          let buf = Buf.take Stat.size in
          Lwt.finalize
            (fun () -> perform (Request.fstat file buf) >|= fun _ -> Stat.of_buf buf)
            (fun () ->
              release buf;
              Lwt.return_unit))
end

(* ---- channels ---- *)

let of_file (type m) ?buffer ?close ~(mode : m Lwt_io.mode) file =
  let close = match close with Some close -> close | None -> fun () -> File.close file in
  let seek offset command = guard (fun () -> Lwt.return (File.lseek file offset command)) in
  let transfer = match mode with Lwt_io.Input -> File.read_bigarray file | Output ->
    File.write_bigarray file in
  Lwt_io.make ?buffer ~close ~seek ~mode transfer

let open_file (type m) ?buffer ?flags ?perm ~(mode : m Lwt_io.mode) path =
  let usual_flags, usual_perm =
    match mode with
    | Lwt_io.Input -> ([ Unix.O_RDONLY; O_NONBLOCK ], 0)
    | Output -> ([ Unix.O_WRONLY; O_CREAT; O_TRUNC; O_NONBLOCK ], 0o666)
  in
  File.openfile path (Option.value flags ~default:usual_flags) (Option.value perm ~default:usual_perm)
  >|= fun file -> of_file ?buffer ~mode file

let with_file ?buffer ?flags ?perm ~mode path f =
  open_file ?buffer ?flags ?perm ~mode path >>= fun channel ->
  Lwt.finalize (fun () -> f channel) (fun () -> Lwt_io.close channel)

(* ---- trees ---- *)

let eremoteio = Flags.error 121
let ecanceled = Flags.error 125

let rec failures tree found =
  match Tree.failure tree with None -> List.rev found | Some failure -> failures tree (failure :: found)

let rec finish_tree tree operation path =
  match Tree.wait ~timeout_ns:0 tree with
  | Running ->
    let descriptor = Tree.pollable tree in
    let promise, resolver = Lwt.task () in
    let at_end event =
      Lwt_engine.stop_event event;
      Unix.close descriptor;
      if Lwt.is_sleeping promise then Lwt.wakeup resolver ()
      else
        (* It was canceled. A tree is kept until its end was seen. *)
        try ignore (Tree.wait ~timeout_ns:0 tree : Tree.state) with Unix.Unix_error _ -> ()
    in
    ignore (Lwt_engine.on_readable descriptor at_end : Lwt_engine.event);
    Lwt.on_cancel promise (fun () -> Tree.cancel tree);
    promise >>= fun () -> finish_tree tree operation path
  | Finished -> Lwt.return (Tree.counts tree, failures tree [])
  | Failed error when error = eremoteio -> Lwt.return (Tree.counts tree, failures tree [])
  | Failed error -> Lwt.fail (if error = ecanceled then Lwt.Canceled else Unix.Unix_error (error,
    operation, path))

let copy_tree ?options from destination =
  guard (fun () -> finish_tree (Tree.copy ?options from destination) "copy_tree" from)

let remove_tree path = guard (fun () -> finish_tree (Tree.remove path) "remove_tree" path)
