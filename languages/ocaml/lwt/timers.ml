type timer = {
  mutable due : int;
  mutable order : int;
  delay : int;
  repeat : bool;
  call : unit -> unit;
  mutable stopped : bool;
  (* In the heap. *)
  mutable queued : bool;
}

(* A binary heap. Stopped timers stay in it until they are due, or are too many. *)
type t = {
  mutable heap : timer array;
  mutable count : int;
  mutable stopped_count : int;
  mutable fresh : timer list;
  mutable orders : int;
}

external now : unit -> (int[@untagged]) = "sakia_lwt_now_byte" "sakia_lwt_now" [@@noalloc]

let nothing =
  { due = 0; order = 0; delay = 0; repeat = false; call = ignore; stopped = true; queued = false }

let create () = { heap = Array.make 16 nothing; count = 0; stopped_count = 0; fresh = []; orders = 0 }
let before a b = a.due < b.due || (a.due = b.due && a.order < b.order)

let rec up heap i timer =
  let parent = (i - 1) / 2 in
  if i > 0 && before timer heap.(parent) then begin
    heap.(i) <- heap.(parent);
    up heap parent timer
  end
  else heap.(i) <- timer

let rec down heap count i timer =
  let left = (2 * i) + 1 in
  if left >= count then heap.(i) <- timer
  else begin
    let child = if left + 1 < count && before heap.(left + 1) heap.(left) then left + 1 else left in
    if before heap.(child) timer then begin
      heap.(i) <- heap.(child);
      down heap count child timer
    end
    else heap.(i) <- timer
  end

let push it timer =
  if it.count = Array.length it.heap then begin
    let heap = Array.make (2 * it.count) nothing in
    Array.blit it.heap 0 heap 0 it.count;
    it.heap <- heap
  end;
  it.count <- it.count + 1;
  timer.queued <- true;
  up it.heap (it.count - 1) timer

let pop it =
  let first = it.heap.(0) in
  it.count <- it.count - 1;
  let last = it.heap.(it.count) in
  it.heap.(it.count) <- nothing;
  if it.count > 0 then down it.heap it.count 0 last;
  first.queued <- false;
  if first.stopped then it.stopped_count <- it.stopped_count - 1;
  first

let arm it timer =
  timer.due <- now () + timer.delay;
  timer.order <- it.orders;
  it.orders <- it.orders + 1;
  it.fresh <- timer :: it.fresh

(* About 146 years: what is longer does not end. *)
let longest = max_int / 2

let nanoseconds delay =
  let it = delay *. 1e9 in
  if not (it > 0.) then 0 else if it >= float_of_int longest then longest else int_of_float (ceil it)

let add it delay repeat call =
  let timer =
    { due = 0; order = 0; delay = nanoseconds delay; repeat; call; stopped = false; queued = false }
  in
  arm it timer;
  timer

let stop it timer =
  if not timer.stopped then begin
    timer.stopped <- true;
    if timer.queued then begin
      it.stopped_count <- it.stopped_count + 1;
      if it.stopped_count > 64 && it.stopped_count > it.count / 2 then begin
        let live = List.filter (fun timer -> not timer.stopped) (Array.to_list
          (Array.sub it.heap 0 it.count)) in
        it.heap <- Array.make (Array.length it.heap) nothing;
        it.count <- 0;
        it.stopped_count <- 0;
        List.iter (push it) live
      end
    end
  end

let begin_turn it =
  if it.fresh <> [] then begin
    let fresh = it.fresh in
    it.fresh <- [];
    List.iter (fun timer -> if not timer.stopped then push it timer) fresh
  end

let rec next it =
  if it.count = 0 then -1
  else if it.heap.(0).stopped then begin
    ignore (pop it : timer);
    next it
  end
  else max 0 (it.heap.(0).due - now ())

let turn it =
  if it.count > 0 then begin
    let time = now () in
    while it.count > 0 && (it.heap.(0).stopped || it.heap.(0).due <= time) do
      let timer = pop it in
      if not timer.stopped then begin
        if timer.repeat then arm it timer;
        timer.call ()
      end
    done
  end
