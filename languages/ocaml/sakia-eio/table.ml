type job =
  | Nobody
  | Waiting of { fiber : int Eio_utils.Suspended.t; kept : Obj.t }
  | Watching of { fiber : unit Eio_utils.Suspended.t; call : string }

type t = {
  mutable jobs : job array;
  mutable next : int array; (* of a free token: another free one, or -1 *)
  mutable free : int;
  mutable used : int;
}

let size_first = 64
let numbered from until =
  Array.init (until - from) (fun i -> if from + i + 1 < until then from + i + 1 else -1)

let create () =
  { jobs = Array.make size_first Nobody; next = numbered 0 size_first; free = 0; used = 0 }

let grow t =
  let size = Array.length t.jobs in
  t.jobs <- Array.append t.jobs (Array.make size Nobody);
  t.next <- Array.append t.next (numbered size (2 * size));
  t.free <- size

let reserve t =
  if t.free < 0 then grow t;
  let token = t.free in
  t.free <- Array.unsafe_get t.next token;
  t.used <- t.used + 1;
  token

let release t token =
  t.next.(token) <- t.free;
  t.free <- token;
  t.used <- t.used - 1

let used t = t.used
let job t token = t.jobs.(token)
let set t token job = t.jobs.(token) <- job

let take t token =
  let job = job t token in
  t.jobs.(token) <- Nobody;
  release t token;
  job
