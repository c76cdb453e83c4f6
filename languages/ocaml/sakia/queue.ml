type 'a entry = { datum : 'a; request : Request.t }

(* Results in memory of the library's form. *)
type rows = { area : Buf.memory; mutable next : int; mutable count : int }

type 'a t = {
  raw : Raw.queue;
  lock : Mutex.t;
  (* Requests under way, by token. No token is used twice. Under the lock. *)
  entries : (int, 'a entry) Hashtbl.t;
  mutable tokens : int;
  (* Results that an exception has left, of a function or of a signal's handler. Under the lock. *)
  mutable left : ('a * Outcome.t) list;
  mutable left_rows : rows list;
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
  let it = { raw; lock = Mutex.create (); entries = Hashtbl.create 64; tokens = 0; left = []; left_rows = []; root = 0 } in
  it.root <- Raw.Roots.add it;
  it

let why_no_ring it = match Raw.queue_why_no_ring it.raw with "" -> None | why -> Some why

let add it entry =
  locked it (fun () ->
      let token = it.tokens in
      it.tokens <- token + 1;
      Hashtbl.add it.entries token entry;
      token)

(* Ends a request, once. *)
let release it token =
  let entry =
    locked it (fun () ->
        let entry = Hashtbl.find_opt it.entries token in
        Hashtbl.remove it.entries token;
        entry)
  in
  Option.iter (fun entry -> Request.return entry.request) entry

let no_rows = { area = Bigarray.Array1.create Bigarray.char Bigarray.c_layout 0; next = 0; count = 0 }

(* Returns the results in the rows that a function returns. The handler of a signal may raise at each
   allocation: then all are left for the next call. So what takes results away allocates nothing afterwards. *)
let gather it get =
  let rows = ref no_rows and results = ref [] and ended = ref (-1) in
  match
    rows := get ();
    while !rows.next < !rows.count do
      let { area; next = index; _ } = !rows in
      let token = Outcome.token area index in
      let entry = locked it (fun () -> Hashtbl.find it.entries token) in
      let outcome = Outcome.make entry.request area index in
      let longer = (entry.datum, outcome) :: !results in
      Outcome.commit outcome area index;
      results := longer;
      !rows.next <- index + 1;
      if not outcome.more then begin
        ended := token;
        release it token;
        ended := -1
      end
    done;
    let gathered = List.rev !results in
    if !rows != no_rows then Outcome.give_area !rows.area;
    gathered
  with
  | gathered -> gathered
  | exception error ->
    if !ended >= 0 then release it !ended;
    let gathered = List.rev !results and rows = !rows in
    locked it (fun () ->
        it.left <- it.left @ gathered;
        if rows.next < rows.count then it.left_rows <- it.left_rows @ [ rows ]);
    raise error

let submit it request datum =
  Request.lend request;
  let token = add it { datum; request } in
  let rows = { area = Outcome.take_area (); next = 0; count = 0 } in
  let result = ref 0 and ticket = ref 0L in
  let submit () =
    result :=
      Raw.queue_submit it.raw token (Request.encoded request) rows.area (Request.is_large request);
    if !result > 0 then rows.count <- 1 else if !result = 0 then ticket := get_64 rows.area 48;
    rows
  in
  match gather it submit with
  | [ (_, outcome) ] -> Done outcome
  | _ ->
    if !result = 0 then Under_way !ticket
    else begin
      release it token;
      Raw.fail !result (Request.name request) (Request.what request)
    end

let cancel it ticket = ignore (Raw.check "cancel" "" (Raw.queue_cancel it.raw ticket) : int)
let under_way it = Raw.check "under_way" "" (Raw.queue_under_way it.raw)

(* Delivers the results that a function returns, and returns their number. None is lost by an exception. *)
let deliver it f results =
  let rest = ref [] and count = ref 0 in
  let rec next () =
    match !rest with
    | [] -> ()
    | (datum, outcome) :: others ->
      rest := others;
      incr count;
      f datum outcome;
      next ()
  in
  match
    rest := results ();
    next ()
  with
  | () -> !count
  | exception error ->
    let left = !rest in
    locked it (fun () -> it.left <- left @ it.left);
    raise error

(* Results that an exception has left. *)
let rec left it =
  let results =
    locked it (fun () ->
        let left = it.left in
        it.left <- [];
        left)
  in
  match results with
  | [] when it.left_rows <> [] -> (
    let pop () =
      locked it (fun () ->
          match it.left_rows with
          | [] -> no_rows
          | rows :: rest ->
            it.left_rows <- rest;
            rows)
    in
    match gather it pop with [] -> left it | results -> results)
  | results -> results

let collect it operation call =
  let rows = { area = Outcome.take_area (); next = 0; count = 0 } and count = ref 0 in
  let fill () =
    count := call rows.area;
    rows.count <- max 0 !count;
    rows
  in
  let results = gather it fill in
  ignore (Raw.check operation "" !count : int);
  results

let take it f =
  deliver it f (fun () ->
      match left it with
      | [] -> collect it "take" (fun area -> Raw.queue_take it.raw area Outcome.room)
      | left -> left)

let wait ?(timeout_ns = -1) it f =
  match take it f with
  | 0 ->
    deliver it f (fun () ->
        collect it "wait" (fun area -> Raw.queue_wait it.raw area Outcome.room timeout_ns))
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
