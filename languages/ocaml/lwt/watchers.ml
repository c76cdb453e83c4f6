type watcher = { entry : entry; writing : bool; call : unit -> unit; mutable active : bool }

and entry = {
  fd : int;
  mutable readers : watcher list;
  mutable writers : watcher list;
  (* What the kernel was told: 1 for reading, 2 for writing. Nothing is told of watchers that stop, since the
     descriptor is most often closed then: an event that is not wanted tells that it was not. *)
  mutable armed : int;
  (* How often the descriptor was added. An event of an earlier one with the same number has another. *)
  mutable generation : int;
  mutable dirty : bool;
  (* A watcher was added, perhaps to another file with the same number. *)
  mutable fresh : bool;
  mutable always_ready : bool;
}

type pairs = (int64, Bigarray.int64_elt, Bigarray.c_layout) Bigarray.Array1.t

type t = {
  mutable set : int;
  mutable entries : entry option array;
  mutable dirty : entry list;
  mutable always : entry list;
  pairs : pairs;
  (* The set has events of a file whose number is closed: they can be removed only with it. *)
  mutable stale : bool;
}

external epoll_create : unit -> int = "sakia_lwt_epoll_create"

external epoll_control : int -> int -> int -> int -> int -> int = "sakia_lwt_epoll_control" [@@noalloc]

external epoll_look : (int[@untagged]) -> pairs -> (int[@untagged]) -> (int[@untagged])
  = "sakia_lwt_epoll_look_byte" "sakia_lwt_epoll_look"
  [@@noalloc]

external epoll_wait : int -> pairs -> int -> int -> int = "sakia_lwt_epoll_wait"
external fd_of : Unix.file_descr -> int = "%identity"
external fd_to : int -> Unix.file_descr = "%identity"

let room = 256
let add_, modify, delete = (0, 1, 2)
let fail error call = raise (Unix.Unix_error (Sakia.Flags.error (-error), call, ""))

let create_set () =
  let set = epoll_create () in
  if set < 0 then fail set "epoll_create" else set

let create () =
  {
    set = create_set ();
    entries = [||];
    dirty = [];
    always = [];
    pairs = Bigarray.Array1.create Bigarray.int64 Bigarray.c_layout (2 * room);
    stale = false;
  }

let number it = fd_to it.set

let entry_of it fd =
  if fd < 0 then raise (Unix.Unix_error (Unix.EBADF, "watch", ""));
  if fd >= Array.length it.entries then begin
    let entries = Array.make (max 64 (2 * (fd + 1))) None in
    Array.blit it.entries 0 entries 0 (Array.length it.entries);
    it.entries <- entries
  end;
  match it.entries.(fd) with
  | Some entry -> entry
  | None ->
    let entry =
      {
        fd;
        readers = [];
        writers = [];
        armed = 0;
        generation = 0;
        dirty = false;
        fresh = false;
        always_ready = false;
      }
    in
    it.entries.(fd) <- Some entry;
    entry

let change it (entry : entry) =
  if not entry.dirty then begin
    entry.dirty <- true;
    it.dirty <- entry :: it.dirty
  end

let add it fd ~writing call =
  let entry = entry_of it (fd_of fd) in
  let watcher = { entry; writing; call; active = true } in
  if writing then entry.writers <- entry.writers @ [ watcher ]
    else entry.readers <- entry.readers @ [ watcher ];
  entry.fresh <- true;
  change it entry;
  watcher

let stop it watcher =
  if watcher.active then begin
    watcher.active <- false;
    let entry = watcher.entry in
    let others list = List.filter (fun other -> other != watcher) list in
    if watcher.writing then entry.writers <- others entry.writers else entry.readers <- others entry.readers;
    change it entry
  end

let wanted entry = (if entry.readers = [] then 0 else 1) lor if entry.writers = [] then 0 else 2
let data entry = (entry.generation lsl 32) lor entry.fd

let enoent = -Sakia.Flags.enoent
let eexist = -17
let enospc = -28
let enomem = -12

let not_watched it entry error =
  if error = enospc || error = enomem then fail error "epoll_ctl";
  (* A regular file, or a descriptor that is closed: its user's next call on it tells. *)
  entry.armed <- 0;
  if not entry.always_ready then begin
    entry.always_ready <- true;
    it.always <- entry :: it.always
  end

let rec arm it entry events tries =
  let operation = if entry.armed = 0 then add_ else modify in
  if operation = add_ then entry.generation <- (entry.generation + 1) land 0x3fffffff;
  let error = epoll_control it.set operation entry.fd events (data entry) in
  if error = 0 then entry.armed <- events
  else if error = enoent && tries > 0 then begin
    entry.armed <- 0;
    arm it entry events (tries - 1)
  end
  else if error = eexist && tries > 0 then begin
    entry.armed <- events;
    arm it entry events (tries - 1)
  end
  else not_watched it entry error

let settle it (entry : entry) =
  entry.dirty <- false;
  let events = wanted entry in
  if entry.always_ready && (events = 0 || entry.fresh) then begin
    entry.always_ready <- false;
    it.always <- List.filter (fun other -> other != entry) it.always
  end;
  if events <> 0 && (entry.fresh || entry.armed <> events) && not entry.always_ready then
    arm it entry events 2;
  entry.fresh <- false

let renew it =
  let old = it.set in
  it.set <- create_set ();
  (try Unix.close (fd_to old) with Unix.Unix_error _ -> ());
  it.stale <- false;
  let again = function
    | None -> ()
    | Some entry ->
      entry.armed <- 0;
      if wanted entry <> 0 then begin
        entry.fresh <- true;
        change it entry
      end
  in
  Array.iter again it.entries

let flush it ~before =
  if it.stale then begin
    before ();
    renew it
  end;
  while it.dirty <> [] do
    match it.dirty with
    | entry :: rest ->
      it.dirty <- rest;
      settle it entry
    | [] -> ()
  done;
  it.always <> []

let eintr = -Sakia.Flags.eintr

let found count =
  if count >= 0 then count else if count = eintr then 0 else fail count "epoll_wait"

let wait it ~timeout_ns =
  (* Rounded up: a timer that is not due yet would cause a second wait. *)
  let timeout = if timeout_ns < 0 then -1 else min ((timeout_ns + 999_999) / 1_000_000) 0x3fffffff in
  found (epoll_wait it.set it.pairs room timeout)

let look it = found (epoll_look it.set it.pairs room)
let call watcher = if watcher.active then watcher.call ()

(* An event for which there is no watcher. *)
let drop it (entry : entry) =
  if entry.dirty then ()
  else if epoll_control it.set delete entry.fd 0 0 = 0 then entry.armed <- 0
  else it.stale <- true

(* From the last to the first, as libev does: programs that were tuned on it see the same order. *)
let turn it count =
  for i = count - 1 downto 0 do
    let events = Int64.to_int (Bigarray.Array1.get it.pairs (2 * i)) in
    let data = Int64.to_int (Bigarray.Array1.get it.pairs ((2 * i) + 1)) in
    match it.entries.(data land 0xffffffff) with
    | None -> it.stale <- true
    | Some entry ->
      if entry.generation <> data lsr 32 then it.stale <- true
      else if wanted entry = 0 then drop it entry
      else begin
        if events land 1 <> 0 then List.iter call entry.readers;
        if events land 2 <> 0 then List.iter call entry.writers
      end
  done;
  if it.always <> [] then
    List.iter
      (fun entry ->
        List.iter call entry.readers;
        List.iter call entry.writers)
      it.always

let close it = try Unix.close (fd_to it.set) with Unix.Unix_error _ -> ()
