open Eio.Std

let env =
  let stdin = (Flow.of_fd Eio_unix.Fd.stdin :> Eio_unix.source_ty r) in
  let stdout = (Flow.of_fd Eio_unix.Fd.stdout :> Eio_unix.sink_ty r) in
  let stderr = (Flow.of_fd Eio_unix.Fd.stderr :> Eio_unix.sink_ty r) in
  object (_ : Eio_unix.Stdenv.base)
    method stdin = stdin
    method stdout = stdout
    method stderr = stderr
    method debug = Eio.Private.Debug.v
    method clock = Time.clock
    method mono_clock = Time.mono_clock
    method net = Net.v
    method process_mgr = Process.manager
    method domain_mgr = Domains.manager
    method cwd = Fs.cwd
    method fs = Fs.fs
    method secure_random = Flow.secure_random
    method backend_id = "sakia"
  end

let run_limited ~under_way_max main =
  Atomic.set Sched.under_way_max under_way_max;
  (* A write to a closed connection is an error of the write. *)
  Sys.(set_signal sigpipe Signal_ignore);
  Domains.run_loop main env

let run main = run_limited ~under_way_max:(1 lsl 20) main
let why_no_ring () = Sched.why_no_ring (Sched.get ())
let copy_tree = Trees.copy
let remove_tree = Trees.remove
let under_way () = Sched.under_way (Sched.get ())
