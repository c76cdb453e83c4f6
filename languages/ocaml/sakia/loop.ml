type 'a entry = { datum : 'a; request : Request.t }

type 'a t = {
  raw : Raw.loop;
  (* Requests under way, by token: what their memory belongs to is alive by this. *)
  mutable entries : 'a entry array;
  (* How often a token was used, for tickets. *)
  mutable uses : int array;
  (* Tokens that are not in use. *)
  mutable free : int array;
  mutable free_count : int;
  (* Results that were taken and not delivered: from [next] to [count]. *)
  area : Buf.memory;
  mutable next : int;
  mutable count : int;
  (* Results are being delivered, or waited for. *)
  mutable busy : bool;
  mutable stopped : bool;
  (* Tokens of requests that did not end. *)
  leaked : (int, unit) Hashtbl.t;
  mutable root : int;
}

type mode = Automatic | Ring | Poll
type ticket = int

let token_bits = 24

(* No request has this ticket. *)
let done_ = -1
let no_entry : 'a. unit -> 'a entry = fun () -> Obj.magic 0
let fail error operation = Raw.fail error operation ""

let mine it operation =
  let refusal = Raw.loop_refusal it.raw in
  if refusal <> 0 then fail refusal operation

let create ?(mode = Automatic) ?(plain_calls = true) ?(under_way_max = 0) () =
  if under_way_max < 0 || under_way_max > 1 lsl token_bits then invalid_arg "Sakia.Loop.create";
  let flags =
    (match mode with Automatic -> 0 | Ring -> 1 | Poll -> 2) lor if plain_calls then 0 else 4
  in
  let area = Outcome.area () in
  let raw : Raw.loop = Raw.check_object "loop" "" (Raw.loop_new under_way_max flags) in
  let it =
    {
      raw;
    entries = [||];
    uses = [||];
    free = [||];
    free_count = 0;
    area;
    next = 0;
    count = 0;
    busy = false;
    stopped = false;
    leaked = Hashtbl.create 1;
    root = 0;
  }
  in
  it.root <- Raw.Roots.add it;
  it

let why_no_ring it =
  mine it "why_no_ring";
  match Raw.loop_why_no_ring it.raw with "" -> None | why -> Some why

(* Called when no token is free. A signal handler may come at each allocation, and grow the loop itself. *)
let grow it =
  let old = Array.length it.entries in
  let room = max 16 (2 * old) in
  if room > 1 lsl token_bits then fail (-Flags.eagain) "submit";
  let entries = Array.make room (no_entry ()) and uses = Array.make room 0 in
  let free = Array.init room (fun i -> room - 1 - i) in
  if Array.length it.entries = old then begin
    ignore (Raw.check "submit" "" (Raw.loop_room it.raw room) : int);
    Array.blit it.entries 0 entries 0 old;
    Array.blit it.uses 0 uses 0 old;
    it.entries <- entries;
    it.uses <- uses;
    it.free <- free;
    it.free_count <- room - old
  end

(* The handler of a signal runs at each allocation, in each turn of a [while], and where a function begins that
   ends with the call of another: it may raise there. A token that is released, and then once more, would be in
   use twice. So nothing of this is in here, nor in {!Request.return}: a call is not the last thing. *)
let release it token =
  let request = it.entries.(token).request in
  it.entries.(token) <- no_entry ();
  it.uses.(token) <- it.uses.(token) + 1;
  it.free.(it.free_count) <- token;
  it.free_count <- it.free_count + 1;
  Request.return request;
  ()

let submit it request datum =
  mine it "submit";
  let entry = { datum; request } in
  Request.lend request;
  (try while it.free_count = 0 do grow it done
   with error ->
     Request.return request;
     raise error);
  (* From here to the submission no signal handler runs, which may submit. *)
  let last = it.free_count - 1 in
  let token = it.free.(last) in
  it.free_count <- last;
  it.entries.(token) <- entry;
  let encoded = Request.encoded request in
  let result =
    if Request.is_large request then Raw.loop_submit_large it.raw token encoded
    else Raw.loop_submit it.raw token encoded
  in
  if result < 0 then begin
    release it token;
    Raw.fail result (Request.name request) (Request.what request)
  end;
  if result = 0 then done_ else (it.uses.(token) lsl token_bits) lor token

let is_done ticket = ticket = done_

let cancel it ticket =
  mine it "cancel";
  let token = ticket land ((1 lsl token_bits) - 1) in
  if token < Array.length it.uses && it.uses.(token) =
    ticket lsr token_bits && Obj.is_block (Obj.repr it.entries.(token))
  then ignore (Raw.check "cancel" "" (Raw.loop_cancel it.raw token) : int)

let under_way it = Raw.check "under_way" "" (Raw.loop_under_way it.raw)

(* Delivers what is in the area. A result counts as delivered before its function is called. *)
let deliver it f =
  let delivered = ref 0 in
  while it.next < it.count do
    let index = it.next in
    let token = Outcome.token it.area index in
    let entry = it.entries.(token) in
    let outcome = Outcome.make entry.request it.area index in
    (* No handler runs from here to the call. *)
    Outcome.commit outcome it.area index;
    it.next <- index + 1;
    if not outcome.more then release it token;
    incr delivered;
    f entry.datum outcome
  done;
  !delivered

(* What follows ends with [busy] unset, however it ends. *)
let enter it operation =
  mine it operation;
  if it.busy then fail (-Flags.ebusy) operation;
  it.busy <- true

let taken it operation count =
  if count < 0 then fail count operation;
  it.next <- 0;
  it.count <- count

let take_some it operation =
  if it.next = it.count then taken it operation (Raw.loop_take it.raw it.area Outcome.room)

(* Takes until nothing is left, at most as many as there were: functions submit what ends at once. *)
let take it f =
  enter it "take";
  match
    let left = ref (Raw.loop_under_way it.raw) and total = ref 0 in
    take_some it "take";
    while it.next < it.count do
      let count = deliver it f in
      total := !total + count;
      left := !left - count;
      if count = Outcome.room && !left > 0 then take_some it "take"
    done;
    !total
  with
  | total ->
    it.busy <- false;
    total
  | exception error ->
    it.busy <- false;
    raise error

let wait ?(timeout_ns = -1) it f =
  enter it "wait";
  match
    take_some it "wait";
    if it.next = it.count then
      taken it "wait"
        (if timeout_ns = 0 then Raw.loop_poll it.raw it.area Outcome.room
        else Raw.loop_wait it.raw it.area Outcome.room timeout_ns);
    deliver it f
  with
  | total ->
    it.busy <- false;
    total
  | exception error ->
    it.busy <- false;
    raise error

let pollable it =
  mine it "pollable";
  Raw.fd_to (Raw.check "pollable" "" (Raw.loop_pollable it.raw))

let waker it =
  mine it "waker";
  Waker.of_object (Raw.check_object "waker" "" (Raw.loop_waker it.raw))

let blit_received it received ~pos buf ~dst ~len =
  if
    Outcome.is_given received || len < 0 || pos < 0
    || pos > Outcome.received_length received - len
    || dst < 0
    || dst > Buf.length buf - len
  then invalid_arg "Sakia.Loop.blit_received";
  ignore
    (Raw.check "blit_received" "" (Raw.loop_received it.raw (Outcome.address received) pos
      (Buf.memory buf) dst len) : int)

let give_back it received =
  mine it "give_back";
  if Outcome.is_given received then invalid_arg "Sakia.Loop.give_back";
  ignore (Raw.check "give_back" "" (Raw.loop_give_back it.raw (Outcome.lent received)) : int);
  Outcome.set_given received

let stop ?(limit_ns = -1) it =
  mine it "stop";
  if it.busy then fail (-Flags.ebusy) "stop";
  let room = Raw.check "stop" "" (Raw.loop_under_way it.raw) in
  let tokens = Bigarray.Array1.create Bigarray.int64 Bigarray.c_layout (max 1 room) in
  let count = Raw.check "stop" "" (Raw.loop_stop it.raw limit_ns tokens room) in
  let leaked =
    List.init (min count room) (fun i ->
        let token = Int64.to_int (Bigarray.Array1.get tokens i) in
        let entry = it.entries.(token) in
        if not (Hashtbl.mem it.leaked token) then begin
          ignore (Raw.Roots.add entry : int);
          Hashtbl.add it.leaked token ()
        end;
        entry.datum)
  in
  (* Not before: [free] returns the memory of requests that are not known to have leaked, which the kernel may
     still use if the handler of a signal has raised here. *)
  it.stopped <- true;
  leaked

let free it =
  mine it "free";
  if it.busy then fail (-Flags.ebusy) "free";
  if not it.stopped then ignore (stop ~limit_ns:1_000_000_000 it : _ list);
  while it.next < it.count do
    Raw.file_drop it.area it.next;
    it.next <- it.next + 1
  done;
  ignore (Raw.check "free" "" (Raw.loop_free it.raw) : int);
  (* Buffers of results that were not taken are no request's any more. *)
  let return token entry =
    if Obj.is_block (Obj.repr entry) && not (Hashtbl.mem it.leaked token) then Request.return entry.request
  in
  Array.iteri return it.entries;
  it.entries <- [||];
  Raw.Roots.remove it.root

let with_loop ?mode f =
  let it = create ?mode () in
  match f it with
  | result ->
    free it;
    result
  | exception error ->
    (try free it with Unix.Unix_error _ -> ());
    raise error
