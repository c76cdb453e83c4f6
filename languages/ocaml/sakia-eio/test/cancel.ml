(* Cancellations before, during and after the kernel's work: `cancel SEED COUNT`.

   A fiber begins an operation, and its context is canceled at a random point. The operation either has its
   effect and its value, or neither: bytes are never lost, connections never dropped, and nothing is left
   under way. *)

open Eio.Std

exception Stop

type outcome = Value of int | Canceled

type counts = { mutable before : int; mutable during : int; mutable after : int; mutable too_late : int }

(* Runs [f] in a context of its own, and [act] beside it, which is given a function that cancels it. Also
   returns whether that came before [f] had returned. *)
let beside f act =
  let context = ref None and outcome = ref Canceled and in_time = ref false in
  Fiber.both
    (fun () ->
      try
        Eio.Cancel.sub (fun it ->
            context := Some it;
            outcome := Value (f ());
            context := None)
      with Eio.Cancel.Cancelled Stop -> ())
    (fun () ->
      act (fun () ->
          Option.iter
            (fun it ->
              in_time := true;
              Eio.Cancel.cancel it Stop)
            !context));
  (!outcome, !in_time)

let one = Cstruct.of_string "x"

type pair = { name : string; receive : unit -> int; send : unit -> unit; drain : unit -> int }

(* A byte that was not received stays there. *)
let stream_pair name source sink ~fd_in ~fd_out =
  let buf = Cstruct.create 1 in
  let raw = Bytes.create 16 in
  Unix.set_nonblock fd_in;
  {
    name;
    receive = (fun () -> Eio.Flow.single_read source buf);
    send =
      (fun () ->
        ignore sink;
        assert (Unix.write fd_out raw 0 1 = 1));
    drain =
      (fun () ->
        match Unix.read fd_in raw 0 16 with
        | count -> count
        | exception Unix.Unix_error ((EAGAIN | EWOULDBLOCK), _, _) -> 0);
  }

let number resource = Eio_unix.Fd.use_exn "fd" (Option.get (Eio_unix.Resource.fd_opt resource)) Fun.id

let pairs ~sw env =
  let pipe_r, pipe_w = Eio_unix.pipe sw in
  let a, b = Eio_unix.Net.socketpair_stream ~sw () in
  let c, d = Eio_unix.Net.socketpair_datagram ~sw ~domain:Unix.PF_UNIX () in
  let message = Cstruct.create 8 and raw = Bytes.create 8 in
  let datagrams =
    {
      name = "datagram";
      receive = (fun () -> snd (Eio.Net.recv c message));
      send = (fun () -> assert (Unix.write (number d) raw 0 1 = 1));
      drain =
        (fun () ->
          let rec all sum =
            match Unix.recv (number c) raw 0 8 [] with
            | count -> all (sum + count)
            | exception Unix.Unix_error ((EAGAIN | EWOULDBLOCK), _, _) -> sum
          in
          Unix.set_nonblock (number c);
          all 0);
    }
  in
  let listener = Eio.Net.listen ~sw ~backlog:64 env#net (`Tcp (Eio.Net.Ipaddr.V4.loopback, 0)) in
  let address =
    match Eio.Net.listening_addr listener with
    | `Tcp (_, port) -> Unix.ADDR_INET (Unix.inet_addr_loopback, port)
    | `Unix _ -> assert false
  in
  let connections =
    {
      name = "accept";
      receive =
        (fun () ->
          let connection, _ = Eio.Net.accept ~sw listener in
          Eio.Flow.close connection;
          1);
      send =
        (fun () ->
          let fd = Unix.socket ~cloexec:true PF_INET SOCK_STREAM 0 in
          Unix.connect fd address;
          Unix.close fd);
      drain =
        (fun () ->
          let rec all sum =
            match Unix.accept ~cloexec:true (number listener) with
            | fd, _ -> Unix.close fd; all (sum + 1)
            | exception Unix.Unix_error ((EAGAIN | EWOULDBLOCK), _, _) -> sum
          in
          all 0);
    }
  in
  let readiness =
    {
      name = "readable";
      receive = (fun () -> Eio_unix.await_readable (number pipe_r); Unix.read (number pipe_r) raw 0 1);
      send = (fun () -> assert (Unix.write (number pipe_w) raw 0 1 = 1));
      drain =
        (fun () ->
          match Unix.read (number pipe_r) raw 0 8 with
          | count -> count
          | exception Unix.Unix_error ((EAGAIN | EWOULDBLOCK), _, _) -> 0);
    }
  in
  [|
    stream_pair "pipe" pipe_r pipe_w ~fd_in:(number pipe_r) ~fd_out:(number pipe_w);
    stream_pair "socket" a b ~fd_in:(number a) ~fd_out:(number b);
    datagrams;
    readiness;
    connections;
  |]

let turns n =
  for _ = 1 to n do
    Fiber.yield ()
  done

let round rng counts pair =
  let sent = ref 0 in
  let send () = pair.send (); incr sent in
  let int n = Random.State.int rng n in
  let kind = int 8 in
  let outcome, in_time =
    beside pair.receive (fun cancel ->
        match kind with
        | 0 -> (* nothing is there, and the kernel waits *) turns (int 3); cancel ()
        | 1 -> (* the kernel has an effect after it was asked to cancel *) turns (int 3); cancel (); send ()
        | 2 -> (* some turns between *) turns (int 2); send (); turns (int 3); cancel ()
        | 3 -> (* it comes, and the cancellation right after it *) turns (int 3); send (); cancel ()
        | _ -> (* the scheduler has the value, and has not resumed the fiber yet *)
          turns (1 + int 2); send (); turns 1; cancel ())
  in
  let got = match outcome with Value n -> n | Canceled -> 0 in
  let left = pair.drain () in
  if got + left <> !sent then
    failwith (Printf.sprintf "%s: sent %d, received %d, left %d" pair.name !sent got left);
  match outcome with
  | Value _ when not in_time -> counts.too_late <- counts.too_late + 1
  | Value _ -> counts.after <- counts.after + 1
  | Canceled -> counts.during <- counts.during + 1

(* The context is canceled before the operation begins: it has no effect. *)
let round_before counts pair =
  pair.send ();
  let outcome =
    try
      Eio.Cancel.sub (fun context ->
          Eio.Cancel.cancel context Stop;
          Value (pair.receive ()))
    with Eio.Cancel.Cancelled Stop -> Canceled
  in
  if outcome <> Canceled then failwith (pair.name ^ ": an operation of a canceled fiber had a value");
  if pair.drain () <> 1 then failwith (pair.name ^ ": an operation of a canceled fiber had an effect");
  counts.before <- counts.before + 1

let under_way () =
  match Sys.getenv_opt "EIO_BACKEND" with
  | None | Some "sakia" -> Eio_sakia.under_way ()
  | _ -> 0

let () =
  let seed, count =
    match Sys.argv with
    | [| _; seed; count |] -> (int_of_string seed, int_of_string count)
    | _ -> (1, 20_000)
  in
  Printf.printf "seed %d\n%!" seed;
  let rng = Random.State.make [| seed |] in
  let counts = { before = 0; during = 0; after = 0; too_late = 0 } in
  Eio_sakia_main.run (fun env ->
      Switch.run (fun sw ->
          let pairs = pairs ~sw env in
          while counts.before + counts.during + counts.after < count do
            let pair = pairs.(Random.State.int rng (Array.length pairs)) in
            if Random.State.int rng 10 < 3 then round_before counts pair else round rng counts pair
          done);
      if under_way () <> 0 then failwith "requests are left under way");
  Printf.printf "%d cancellations: %d before, %d during, %d after the kernel's work; %d came too late\n" count
    counts.before counts.during counts.after counts.too_late;
  let fifth = count / 5 in
  if counts.before < fifth || counts.during < fifth || counts.after < fifth then
    failwith "one of the three has less than a fifth"
