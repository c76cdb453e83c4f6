type pool = { size : int; mutable free : Cstruct.buffer list; mutable count : int }

type t = { stats : pool; names : pool; blocks : pool; entries : pool }

let kept_max = 64
let pool size = { size; free = []; count = 0 }
let names_size = 4096

let create () =
  { stats = pool 256; names = pool names_size; blocks = pool (32 lsl 10); entries = pool (64 lsl 10) }

let take pool =
  match pool.free with
  | [] -> Bigarray.(Array1.create char c_layout pool.size)
  | it :: free ->
    pool.free <- free;
    pool.count <- pool.count - 1;
    it

let give pool it =
  if pool.count < kept_max then (
    pool.free <- it :: pool.free;
    pool.count <- pool.count + 1)

let use pool f =
  let it = take pool in
  match f it with
  | x -> give pool it; x
  | exception ex ->
    let bt = Printexc.get_raw_backtrace () in
    give pool it;
    Printexc.raise_with_backtrace ex bt
