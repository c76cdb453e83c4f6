(* Domains, each with a loop of its own, and the effects that need the modules of this backend. *)

open Eio.Std
module Fd = Eio_unix.Fd
module Trace = Eio.Private.Trace

let own ~sw ~close_unix fd = Fd.of_unix ~sw ~seekable:false ~close_unix fd
let stream fd = (Flow.of_fd fd :> _ Eio_unix.Net.stream_socket)

let pair ~sw domain kind protocol wrap =
  let a, b = Unix.socketpair ~cloexec:true domain kind protocol in
  let a = own ~sw ~close_unix:true a in
  (wrap a, wrap (own ~sw ~close_unix:true b))

let answer k f =
  match f () with
  | x -> Effect.Deep.continue k x
  | exception Unix.Unix_error (code, name, arg) -> Effect.Deep.discontinue k (Eio_unix.Err.v code name arg)
  | exception ex -> Effect.Deep.discontinue k ex

let handler : Sched.handler =
  let effc (type a) (e : a Effect.t) : ((a, Sched.exit) Effect.Deep.continuation -> Sched.exit) option =
    match e with
    | Eio_unix.Private.Get_monotonic_clock -> Some (fun k -> Effect.Deep.continue k Time.mono_clock)
    | Eio_unix.Private.Import_file fd -> Some (fun k -> answer k (fun () -> (Flow.of_fd fd :> _ r)))
    | Eio_unix.Net.Import_socket_stream (sw, close_unix, fd) ->
      Some (fun k -> answer k (fun () -> stream (own ~sw ~close_unix fd)))
    | Eio_unix.Net.Import_socket_listening (sw, close_unix, fd) ->
      Some (fun k -> answer k (fun () -> Net.listening_socket (own ~sw ~close_unix fd)))
    | Eio_unix.Net.Import_socket_datagram (sw, close_unix, fd) ->
      Some (fun k -> answer k (fun () -> Net.datagram_socket (own ~sw ~close_unix fd)))
    | Eio_unix.Net.Socketpair_stream (sw, domain, protocol) ->
      Some (fun k -> answer k (fun () -> pair ~sw domain Unix.SOCK_STREAM protocol stream))
    | Eio_unix.Net.Socketpair_datagram (sw, domain, protocol) ->
      Some (fun k -> answer k (fun () -> pair ~sw domain Unix.SOCK_DGRAM protocol Net.datagram_socket))
    | Eio_unix.Private.Pipe sw ->
      Some
        (fun k ->
          answer k (fun () ->
              let r, w = Process.pipe ~sw in
              ((Flow.of_fd r :> Eio_unix.source_ty r), (Flow.of_fd w :> Eio_unix.sink_ty r))))
    | _ -> None
  in
  { effc }

let run_loop main arg = Sched.run ~extra:handler main arg

let outcome f x =
  match f x with
  | x -> Ok x
  | exception ex -> Error (ex, Printexc.get_raw_backtrace ())

let result = function
  | Ok x -> x
  | Error (ex, bt) -> Printexc.raise_with_backtrace ex bt

module Impl = struct
  type t = unit

  (* Suspends the fiber until the new domain has run [f] to its end, its loop included. *)
  let on_domain prepare =
    let domain = ref None in
    Eio.Private.Suspend.enter "run-domain" (fun context enqueue ->
        let f = prepare context in
        domain :=
          Some
            (Domain.spawn (fun () ->
                 Trace.domain_spawn ~parent:(Eio.Private.Fiber_context.tid context);
                 Fun.protect f ~finally:(fun () -> enqueue (Ok ())))));
    Trace.with_span "Domain.join" @@ fun () -> result (Domain.join (Option.get !domain))

  let run_raw () f = on_domain (fun _ -> fun () -> outcome f ())

  let run () f =
    on_domain (fun context ->
        let cancelled, resolver = Promise.create () in
        Eio.Private.Fiber_context.set_cancel_fn context (Promise.resolve resolver);
        fun () -> run_loop (outcome (fun () -> f ~cancelled)) ())
end

let manager : Eio.Domain_manager.ty r = Eio.Resource.T ((), Eio.Domain_manager.Pi.mgr (module Impl))
