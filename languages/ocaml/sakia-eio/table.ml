type job =
  | Nobody
  | Waiting of int Eio_utils.Suspended.t
  | Watching of { fiber : unit Eio_utils.Suspended.t; call : string }

type t = {
  mutable jobs : job array;
  mutable kept : Obj.t array;
  mutable next : int array; (* of a free token: another free one, or -1 *)
  mutable free : int;
  mutable used : int;
}

let size_first = 64
let nothing = Obj.repr 0
let numbered from until =
  Array.init (until - from) (fun i -> if from + i + 1 < until then from + i + 1 else -1)

let create () =
  {
    jobs = Array.make size_first Nobody;
    kept = Array.make size_first nothing;
    next = numbered 0 size_first;
    free = 0;
    used = 0;
  }

let grow t =
  let size = Array.length t.jobs in
  let jobs = Array.append t.jobs (Array.make size Nobody) in
  let kept = Array.append t.kept (Array.make size nothing) in
  let next = Array.append t.next (numbered size (2 * size)) in
  (* After all that a signal's handler may end. *)
  t.jobs <- jobs;
  t.kept <- kept;
  t.next <- next;
  t.free <- size

let reserve t kept =
  if t.free < 0 then grow t;
  let token = t.free in
  t.free <- Array.unsafe_get t.next token;
  t.kept.(token) <- kept;
  t.used <- t.used + 1;
  token

let release t token =
  t.kept.(token) <- nothing;
  t.next.(token) <- t.free;
  t.free <- token;
  t.used <- t.used - 1

let used t = t.used
let job t token = t.jobs.(token)
let kept t token = t.kept.(token)
let set t token job = t.jobs.(token) <- job

let take t token =
  let job = job t token in
  t.jobs.(token) <- Nobody;
  release t token;
  job
