type 'a entry = { datum : 'a; request : Request.t }

type 'a t = {
  raw : Raw.queue;
  lock : Mutex.t;
  (* Requests under way, by token. No token is used twice. Under the lock. *)
  entries : (int, 'a entry) Hashtbl.t;
  mutable tokens : int;
  (* Results that a function's exception has left. Under the lock. *)
  mutable left : ('a * Outcome.t) list;
  mutable root : int;
}

type ticket = int64
type 'a submitted = Done of Outcome.t | Under_way of ticket

external get_64 : Buf.memory -> int -> int64 = "%caml_bigstring_get64"

let locked it f =
  Mutex.lock it.lock;
  match f () with
  | result ->
    Mutex.unlock it.lock;
    result
  | exception error ->
    Mutex.unlock it.lock;
    raise error

let create ?(mode = Loop.Automatic) ?(plain_calls = true) ?(under_way_max = 0) ?(threads = 0) () =
  if under_way_max < 0 || under_way_max > 0xffffffff || threads < 0 || threads > 64 then
    invalid_arg "Sakia.Queue.create";
  let flags = (match mode with Automatic -> 0 | Ring -> 1 | Poll -> 2) lor if plain_calls then 0 else 4 in
  let raw : Raw.queue = Raw.check_object "queue" "" (Raw.queue_new under_way_max flags threads) in
  let it = { raw; lock = Mutex.create (); entries = Hashtbl.create 64; tokens = 0; left = []; root = 0 } in
  it.root <- Raw.Roots.add it;
  it

let why_no_ring it = match Raw.queue_why_no_ring it.raw with "" -> None | why -> Some why

let add it entry =
  locked it (fun () ->
      let token = it.tokens in
      it.tokens <- token + 1;
      Hashtbl.add it.entries token entry;
      token)

let remove it token =
  locked it (fun () ->
      let entry = Hashtbl.find it.entries token in
      Hashtbl.remove it.entries token;
      entry)

let with_area f =
  let area = Outcome.take_area () in
  match f area with
  | result ->
    Outcome.give_area area;
    result
  | exception error ->
    Outcome.give_area area;
    raise error

let outcome_of entry area index =
  let outcome = Outcome.make entry.request area index in
  Outcome.commit outcome area index;
  outcome

(* A queue has no requests with more than one result but those that go on. *)
let finish it area index =
  let token = Outcome.token area index in
  if Outcome.has_more area index then begin
    let entry = locked it (fun () -> Hashtbl.find it.entries token) in
    (entry.datum, outcome_of entry area index)
  end
  else begin
    let entry = remove it token in
    Request.return entry.request;
    (entry.datum, outcome_of entry area index)
  end

let submit it request datum =
  Request.lend request;
  let token = add it { datum; request } in
  with_area (fun area ->
      let result = Raw.queue_submit it.raw token (Request.encoded request) area (Request.is_large request) in
      if result < 0 then begin
        ignore (remove it token : _ entry);
        Request.return request;
        Raw.fail result (Request.name request) (Request.what request)
      end
      else if result > 0 then Done (snd (finish it area 0))
      else Under_way (get_64 area 48))

let cancel it ticket = ignore (Raw.check "cancel" "" (Raw.queue_cancel it.raw ticket) : int)
let under_way it = Raw.check "under_way" "" (Raw.queue_under_way it.raw)

(* Delivers results, of which none is lost by an exception. *)
let rec deliver it f = function
  | [] -> ()
  | (datum, outcome) :: rest -> (
    match f datum outcome with
    | () -> deliver it f rest
    | exception error ->
      locked it (fun () -> it.left <- rest @ it.left);
      raise error)

let left it =
  locked it (fun () ->
      let left = it.left in
      it.left <- [];
      left)

let collect it call operation =
  with_area (fun area ->
      let count = Raw.check operation "" (call area) in
      List.init count (finish it area))

let take it f =
  let results = match left it with [] -> collect it (fun area ->
    Raw.queue_take it.raw area Outcome.room) "take" | left -> left in
  deliver it f results;
  List.length results

let wait ?(timeout_ns = -1) it f =
  match take it f with
  | 0 ->
    let results = collect it (fun area -> Raw.queue_wait it.raw area Outcome.room timeout_ns) "wait" in
    deliver it f results;
    List.length results
  | count -> count

let pollable it = Raw.fd_to (Raw.check "pollable" "" (Raw.queue_pollable it.raw))
let waker it = Waker.of_object (Raw.check_object "waker" "" (Raw.queue_waker it.raw))

let stop ?(limit_ns = -1) it =
  let room = Raw.check "stop" "" (Raw.queue_under_way it.raw) in
  let tokens = Bigarray.Array1.create Bigarray.int64 Bigarray.c_layout (max 1 room) in
  let count = Raw.check "stop" "" (Raw.queue_stop it.raw limit_ns tokens room) in
  let leaked =
    locked it (fun () ->
        List.filter_map
          (fun i -> Hashtbl.find_opt it.entries (Int64.to_int (Bigarray.Array1.get tokens i)))
          (List.init (min count room) Fun.id))
  in
  (* With leaked requests the queue stays, too: its end would wait for them again, in a finalizer. *)
  if count = 0 then Raw.Roots.remove it.root
  else List.iter (fun entry -> ignore (Raw.Roots.add entry : int)) leaked;
  List.map (fun entry -> entry.datum) leaked
