(* The scheduler of one domain: fibers, timers, and a loop of libsakia.

   A request, step by step:

   1. [request] submits it. If its result is there at once, no fiber is switched; after [calls_max] such
      calls, or [turn_ns], the fiber first goes to the end of the queue.
   2. Otherwise the fiber is suspended. The table has it by the request's token, with the memory that the
      request uses. From now on a cancellation of the fiber cancels the request, and does not resume the
      fiber.
   3. The result comes once, whatever happened. The token is free again, the fiber has no hook for
      cancellation any more, and goes to the queue: with the value, if there is one, even if it was canceled
      meanwhile; otherwise with the cancellation, or with the error.

   All of that is done by the domain's thread. Other threads, signal handlers and finalizers put a fiber into
   the queue, which takes no lock, and then look at [needs_wake]. The domain sets that flag before it looks at
   the queue for the last time ahead of a sleep. So either this look finds the fiber, or the other side finds
   the flag, and wakes the loop. A wake that comes too early ends the next sleep at once, which is harmless.

   At the end the loop is stopped: what is under way is canceled, and its memory is given back. What the
   kernel does not give back within a second stays alive for ever. *)

module Suspended = Eio_utils.Suspended
module Zzz = Eio_utils.Zzz
module Lf_queue = Eio_utils.Lf_queue
module Fiber_context = Eio.Private.Fiber_context
module Trace = Eio.Private.Trace
module Thread_pool = Eio_unix.Private.Thread_pool

type exit = [ `Exit_scheduler ]

type runnable =
  | Turn : runnable (* a look at timers and results *)
  | Resume : 'a Suspended.t * 'a -> runnable
  | Fail : 'a Suspended.t * exn -> runnable

(* The plain calls of the running fiber since it was resumed. *)
type budget = { mutable calls : int; mutable since : int }

type t = {
  loop : Raw.loop;
  waker : Raw.waker;
  why_no_ring : string option;
  thread : int; (* of the domain: only it uses the loop *)
  results : bytes;
  table : Table.t;
  queue : runnable Lf_queue.t;
  needs_wake : bool Atomic.t;
  timers : Zzz.t;
  threads : Thread_pool.t;
  pools : Pools.t;
  budget : budget;
  mutable current : Fiber_context.t; (* the running fiber *)
  mutable main_runs : bool;
  mutable is_quiet : bool; (* the last sleep brought nothing *)
  for_room : (unit -> unit) Queue.t; (* what to do when fewer requests are under way *)
}

type _ Effect.t += Enter : (t -> 'a Suspended.t -> exit) -> 'a Effect.t | Get : t Effect.t

let pools t = t.pools
let why_no_ring t = t.why_no_ring
let under_way t = Table.used t.table

(* Plain calls of a fiber in a row, and their time. *)
let calls_max = 8
let turn_ns = 50_000

(* A sleep of this length may miss a signal, which is handled at its end. *)
let unguarded_ns = 1_000_000

(* A domain may run schedulers on several of its threads. *)
let of_domain : t option Domain.DLS.key = Domain.DLS.new_key (fun () -> None)

let get () =
  match Domain.DLS.get of_domain with
  | Some t when t.thread = Thread.id (Thread.self ()) -> t
  | _ -> Effect.perform Get

(* Safe from threads, domains, signal handlers and finalizers. *)
let enqueue t item =
  Lf_queue.push t.queue item;
  if Atomic.get t.needs_wake then (
    Atomic.set t.needs_wake false;
    Raw.wake t.waker)

let enqueue_value t k v = enqueue t (Resume (k, v))
let enqueue_error t k ex = enqueue t (Fail (k, ex))

let resumed t (k : _ Suspended.t) =
  t.current <- k.fiber;
  t.budget.calls <- 0

(* The end of a request for a fiber: a value wins over a cancellation. *)
let finish t (k : _ Suspended.t) value ~ok ~error =
  Fiber_context.clear_cancel_fn k.fiber;
  let item =
    if value >= 0 then Resume (k, ok value)
    else
      match Fiber_context.get_error k.fiber with
      | Some ex -> Fail (k, ex)
      | None -> error k value
  in
  Lf_queue.push t.queue item

let deliver t token value =
  match Table.take t.table token with
  | Nobody -> ()
  | Waiting fiber ->
    finish t fiber value ~ok:Fun.id ~error:(fun k value -> Resume (k, value))
  | Watching { fiber; call } ->
    finish t fiber value ~ok:ignore ~error:(fun k value ->
        Fail (k, Unix.Unix_error (Raw.error (-value), call, "")))

let number_at results place = Int64.to_int (Bytes.get_int64_ne results place)

let deliver_all t count =
  for i = 0 to count - 1 do
    deliver t (number_at t.results (16 * i)) (number_at t.results ((16 * i) + 8))
  done;
  for _ = 1 to min count (Queue.length t.for_room) do
    Queue.pop t.for_room ()
  done

let is_idle t = (not t.main_runs) && Table.used t.table = 0 && Queue.is_empty t.for_room

(* Runs the next fiber; returns when there is nothing left to run or to wait for. *)
let rec next t : exit =
  match Lf_queue.pop t.queue with
  | None -> assert false (* the turn is always in it *)
  | Some (Resume (k, v)) ->
    resumed t k;
    Fiber_context.clear_cancel_fn k.fiber;
    Suspended.continue k v
  | Some (Fail (k, ex)) ->
    resumed t k;
    Fiber_context.clear_cancel_fn k.fiber;
    Suspended.discontinue k ex
  | Some Turn -> turn t

(* Timers go first, then results that are there, and then a wait. *)
and turn t =
  let now = Mtime_clock.now () in
  match Zzz.pop ~now t.timers with
  | `Due (Fiber k) ->
    Lf_queue.push t.queue Turn;
    resumed t k;
    Suspended.continue k ()
  | `Due (Fn f) ->
    Lf_queue.push t.queue Turn;
    f ();
    next t
  | `Nothing when is_idle t && Lf_queue.is_empty t.queue ->
    Lf_queue.close t.queue;
    `Exit_scheduler
  | (`Nothing | `Wait_until _) as due ->
    let timeout =
      match due with
      | `Nothing -> -1
      | `Wait_until time -> Int64.to_int (Int64.sub (Mtime.to_uint64_ns time) (Mtime.to_uint64_ns now))
    in
    deliver_all t (look t timeout);
    Lf_queue.push t.queue Turn;
    next t

(* Results that are there, or that come within the timeout if nobody else can run. A sleep that may be long is
   guarded against signals just ahead of it; a first short one is not, which is cheaper where something comes
   soon. *)
and look t timeout =
  match if Table.used t.table = 0 then 0 else Raw.take t.loop t.results with
  | 0 when not (Lf_queue.is_empty t.queue) ->
    t.is_quiet <- false;
    if Table.used t.table = 0 then 0 else Raw.wait t.loop t.results 0 false
  | 0 ->
    Atomic.set t.needs_wake true;
    let timeout = if Lf_queue.is_empty t.queue then timeout else 0 in
    let is_long = timeout < 0 || timeout > unguarded_ns in
    Trace.suspend_domain Begin;
    let count =
      if is_long && not t.is_quiet then Raw.wait t.loop t.results unguarded_ns false
      else Raw.wait t.loop t.results timeout is_long
    in
    Trace.suspend_domain End;
    Atomic.set t.needs_wake false;
    t.is_quiet <- count = 0;
    count
  | count -> count

let enter op f =
  Trace.suspend_fiber op;
  Effect.perform (Enter f)

let pass () =
  Effect.perform
    (Enter
       (fun t k ->
         Lf_queue.push t.queue (Resume (k, ()));
         next t))

let check t =
  match Fiber_context.get_error t.current with
  | Some ex -> raise ex
  | None -> ()

(* The clock is read from the second call on. *)
let before_call t =
  let budget = t.budget in
  let calls = budget.calls + 1 in
  budget.calls <- calls;
  if calls = 2 then budget.since <- Raw.now ()
  else if calls > calls_max || (calls > 2 && Raw.now () - budget.since > turn_ns) then (
    pass ();
    budget.calls <- 1);
  check t

let suspend op token =
  enter op (fun t k ->
      Table.set t.table token (Waiting k);
      (match Fiber_context.get_error k.fiber with
       | Some _ -> Raw.cancel t.loop token
       | None -> Fiber_context.set_cancel_fn k.fiber (fun _ -> Raw.cancel t.loop token));
      next t)

(* A fiber that waits for room among the requests under way. *)
let await_room op =
  enter op (fun t k ->
      Queue.push (fun () -> Lf_queue.push t.queue (Resume (k, ()))) t.for_room;
      next t)

let rec request t op ~kept submit =
  before_call t;
  let token = Table.reserve t.table (Obj.repr kept) in
  match submit t.loop token with
  | value when value > Raw.pending -> Table.release t.table token; value
  | value when value = Raw.pending -> suspend op token
  | _ ->
    Table.release t.table token;
    await_room op;
    request t op ~kept submit
  | exception ex ->
    Table.release t.table token;
    raise ex

let poll t op fd events =
  request t op ~kept:() (fun loop token -> Raw.file loop Raw.op_poll fd events 0 token)

let sleep_until time =
  enter "sleep" (fun t k ->
      match Fiber_context.get_error k.fiber with
      | Some ex -> resumed t k; Suspended.discontinue k ex
      | None ->
        let node = Zzz.add t.timers time (Fiber k) in
        Fiber_context.set_cancel_fn k.fiber (fun ex ->
            Zzz.remove t.timers node;
            enqueue_error t k ex);
        next t)

(* Memory of requests that the kernel did not give back, for ever. *)
let leaked : Obj.t list Atomic.t = Atomic.make []

let rec leak kept =
  let before = Atomic.get leaked in
  if not (Atomic.compare_and_set leaked before (kept :: before)) then leak kept

let stop_limit_ns = 1_000_000_000

let stop t =
  let tokens = Raw.stop t.loop stop_limit_ns in
  Raw.leave_waker t.waker;
  Array.iter
    (fun token ->
      let kept = Table.kept t.table token in
      if Obj.is_block kept then leak kept)
    tokens

let under_way_max = Atomic.make (1 lsl 20)

let with_scheduler f =
  let loop = Raw.loop (Atomic.get under_way_max) in
  let waker =
    try Raw.waker loop
    with ex ->
      ignore (Raw.stop loop 0 : int array);
      raise ex
  in
  let timers = Zzz.create () in
  let queue = Lf_queue.create () in
  Lf_queue.push queue Turn;
  let t =
    {
      loop;
      waker;
      why_no_ring = (match Raw.why_no_ring loop with "" -> None | why -> Some why);
      thread = Thread.id (Thread.self ());
      results = Bytes.create (16 * Raw.results_max);
      table = Table.create ();
      queue;
      needs_wake = Atomic.make false;
      timers;
      threads = Thread_pool.create ~sleep_q:timers;
      pools = Pools.create ();
      budget = { calls = 0; since = 0 };
      current = Fiber_context.make_root ();
      main_runs = true;
      is_quiet = false;
      for_room = Queue.create ();
    }
  in
  let outer = Domain.DLS.get of_domain in
  Domain.DLS.set of_domain (Some t);
  Fun.protect
    ~finally:(fun () ->
      Domain.DLS.set of_domain outer;
      stop t)
    (fun () -> f t)

type handler = { effc : 'a. 'a Effect.t -> (('a, exit) Effect.Deep.continuation -> exit) option }

(* Waits for readiness on behalf of a suspended fiber. *)
let rec watch t k call fd events =
  let token = Table.reserve t.table (Obj.repr ()) in
  let value = Raw.file t.loop Raw.op_poll (Raw.number fd) events 0 token in
  if value = Raw.pending then (
    Table.set t.table token (Watching { fiber = k; call });
    Fiber_context.set_cancel_fn k.Suspended.fiber (fun _ -> Raw.cancel t.loop token))
  else (
    Table.release t.table token;
    if value = Raw.full then Queue.push (fun () -> watch t k call fd events) t.for_room
    else
      finish t k value ~ok:ignore ~error:(fun k value ->
          Fail (k, Unix.Unix_error (Raw.error (-value), call, ""))))

let await_events t k call fd events =
  (match Fiber_context.get_error k.Suspended.fiber with
   | Some ex -> Lf_queue.push t.queue (Fail (k, ex))
   | None -> watch t k call fd events);
  next t

let run ~(extra : handler) main arg =
  with_scheduler @@ fun t ->
  let rec fork ~new_fiber:fiber f =
    let open Effect.Deep in
    Trace.fiber (Fiber_context.tid fiber);
    t.current <- fiber;
    match_with f ()
      {
        retc =
          (fun () ->
            Fiber_context.destroy fiber;
            next t);
        exnc =
          (fun ex ->
            let bt = Printexc.get_raw_backtrace () in
            Fiber_context.destroy fiber;
            Printexc.raise_with_backtrace ex bt);
        effc =
          (fun (type a) (e : a Effect.t) : ((a, exit) continuation -> exit) option ->
            match e with
            | Get -> Some (fun k -> continue k t)
            | Enter f -> Some (fun k -> f t { Suspended.k; fiber })
            | Eio.Private.Effects.Get_context -> Some (fun k -> continue k fiber)
            | Eio.Private.Effects.Suspend f ->
              Some
                (fun k ->
                  let k = { Suspended.k; fiber } in
                  f fiber (function
                    | Ok v -> enqueue_value t k v
                    | Error ex -> enqueue_error t k ex);
                  next t)
            | Eio.Private.Effects.Fork (new_fiber, f) ->
              Some
                (fun k ->
                  Lf_queue.push_head t.queue (Resume ({ Suspended.k; fiber }, ()));
                  fork ~new_fiber f)
            | Thread_pool.Run_in_systhread f ->
              Some
                (fun k ->
                  let k = { Suspended.k; fiber } in
                  let enqueue x = enqueue_value t k (x, t.threads) in
                  Thread_pool.submit t.threads ~ctx:fiber ~enqueue f;
                  next t)
            | Eio_unix.Private.Await_readable fd ->
              let events = Raw.pollin lor Raw.pollerr in
              Some (fun k -> await_events t { Suspended.k; fiber } "await_readable" fd events)
            | Eio_unix.Private.Await_writable fd ->
              let events = Raw.pollout lor Raw.pollerr in
              Some (fun k -> await_events t { Suspended.k; fiber } "await_writable" fd events)
            | e -> extra.effc e);
      }
  in
  let result = ref None in
  let `Exit_scheduler =
    Domain_local_await.using ~prepare_for_await:Eio_utils.Dla.prepare_for_await ~while_running:(fun () ->
        fork ~new_fiber:(Fiber_context.make_root ()) (fun () ->
            Fun.protect
              ~finally:(fun () -> t.main_runs <- false)
              (fun () -> Thread_pool.run t.threads (fun () -> result := Some (main arg)))))
  in
  match !result with
  | Some result -> result
  | None -> failwith "sakia-eio: the scheduler ended before its main fiber"
