open Eio.Std

module Mono_clock = struct
  type t = unit
  type time = Mtime.t

  let now () = Mtime_clock.now ()
  let sleep_until () time = Sched.sleep_until time
end

let mono_clock : Eio.Time.Mono.ty r = Eio.Resource.T ((), Eio.Time.Pi.clock (module Mono_clock))

module Clock = struct
  type t = unit
  type time = float

  let now () = Unix.gettimeofday ()
  let sleep_until () time = Eio.Time.Mono.sleep mono_clock (time -. Unix.gettimeofday ())
end

let clock : float Eio.Time.clock_ty r = Eio.Resource.T ((), Eio.Time.Pi.clock (module Clock))
