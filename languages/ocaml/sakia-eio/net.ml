open Eio.Std
module Fd = Eio_unix.Fd

let owned ~sw fd = Fd.of_unix ~sw ~seekable:false ~close_unix:true fd

let socket ~sw domain kind =
  Switch.check sw;
  owned ~sw (Err.run (Unix.socket ~cloexec:true domain kind) 0)

let domain_of = function
  | `Unix _ -> Unix.PF_UNIX
  | `UdpV4 -> Unix.PF_INET
  | `UdpV6 -> Unix.PF_INET6
  | `Tcp (host, _) | `Udp (host, _) ->
    Eio.Net.Ipaddr.fold host ~v4:(fun _ -> Unix.PF_INET) ~v6:(fun _ -> Unix.PF_INET6)

module Listening_socket = struct
  type t = { fd : Fd.t; hook : Switch.hook (* removes the name of a Unix socket *) }
  type tag = [ `Generic | `Unix ]

  let fd t = t.fd

  let close t =
    Switch.remove_hook t.hook;
    Fd.close t.fd

  (* Another domain may take the connection first, so the descriptor is non-blocking. *)
  let accept t ~sw =
    Fd.use_exn "accept" t.fd @@ fun fd ->
    let accepted = ref None in
    Io.plainly "accept" (Raw.number fd) Raw.pollin (fun () ->
        Switch.check sw;
        match Unix.accept ~cloexec:true fd with
        | connection -> accepted := Some connection; 0
        | exception Unix.Unix_error ((EAGAIN | EWOULDBLOCK), _, _) -> Raw.eagain
        | exception Unix.Unix_error (EINTR, _, _) -> Raw.eintr
        | exception Unix.Unix_error (code, name, arg) -> raise (Eio_unix.Err.v code name arg))
    |> Io.checked "accept" "" |> ignore;
    let client, address = Option.get !accepted in
    ((Flow.of_fd (owned ~sw client) :> _ Eio.Net.stream_socket), Eio_unix.Net.sockaddr_of_unix_stream address)

  let listening_addr t =
    Fd.use_exn "listening_addr" t.fd (fun fd -> Eio_unix.Net.sockaddr_of_unix_stream (Unix.getsockname fd))

  let setsockopt t opt v = Eio_unix.Private.setsockopt t.fd opt v
  let getsockopt t opt = Eio_unix.Private.getsockopt t.fd opt
end

let listening_handler = Eio_unix.Pi.listening_socket_handler (module Listening_socket)

let with_hook hook fd =
  Fd.use_exn "listen" fd Unix.set_nonblock;
  Eio.Resource.T ({ Listening_socket.fd; hook }, listening_handler)

let listening_socket fd = with_hook Switch.null_hook fd

module Datagram_socket = struct
  type t = Fd.t
  type tag = [ `Generic | `Unix ]

  let fd t = t
  let close = Fd.close

  let send t ?dst bufs =
    let dst = Option.map Eio_unix.Net.sockaddr_to_unix dst in
    Fd.use_exn "send" t @@ fun fd ->
    let number = Raw.number fd in
    let sent =
      Io.plainly "send" number Raw.pollout (fun () -> Raw.try_send_message number [] dst bufs)
      |> Io.checked "sendmsg" ""
    in
    assert (sent = Cstruct.lenv bufs)

  let recv t buf =
    Fd.use_exn "recv" t @@ fun fd ->
    let number = Raw.number fd in
    let from = ref None in
    let count =
      Io.plainly "recv" number Raw.pollin (fun () ->
          let count, address, _ = Raw.try_receive_message number 0 [ buf ] in
          from := address;
          count)
      |> Io.checked "recvmsg" ""
    in
    (* A Unix socket without a name has an empty address. *)
    let address = Option.value !from ~default:(Unix.ADDR_UNIX "") in
    (Eio_unix.Net.sockaddr_of_unix_datagram address, count)

  let shutdown t command =
    let command =
      match command with
      | `Receive -> Unix.SHUTDOWN_RECEIVE
      | `Send -> Unix.SHUTDOWN_SEND
      | `All -> Unix.SHUTDOWN_ALL
    in
    Fd.use_exn "shutdown" t @@ fun fd ->
    try Unix.shutdown fd command with
    | Unix.Unix_error (ENOTCONN, _, _) -> ()
    | Unix.Unix_error (code, name, arg) -> raise (Eio_unix.Err.v code name arg)

  let setsockopt t opt v = Eio_unix.Private.setsockopt t opt v
  let getsockopt t opt = Eio_unix.Private.getsockopt t opt
end

let datagram_handler = Eio_unix.Pi.datagram_handler (module Datagram_socket)
let datagram_socket fd = Eio.Resource.T (fd, datagram_handler)

(* Removes a socket that an earlier program has left. *)
let remove_old path =
  match Unix.lstat path with
  | { st_kind = S_SOCK; _ } -> Unix.unlink path
  | _ | (exception Unix.Unix_error (ENOENT, _, _)) -> ()

let bind ~reuse_addr ~reuse_port fd address =
  Fd.use_exn "bind" fd @@ fun fd ->
  if reuse_addr then Unix.setsockopt fd SO_REUSEADDR true;
  if reuse_port then Unix.setsockopt fd SO_REUSEPORT true;
  Unix.bind fd address

module Impl = struct
  type t = unit
  type tag = [ `Generic | `Unix ]

  let listen () ~reuse_addr ~reuse_port ~backlog ~sw (address : Eio.Net.Sockaddr.stream) =
    Err.run
      (fun () ->
        (match address with
         | `Unix path when reuse_addr -> remove_old path
         | _ -> ());
        let fd = socket ~sw (domain_of address) Unix.SOCK_STREAM in
        bind ~reuse_addr ~reuse_port fd (Eio_unix.Net.sockaddr_to_unix address);
        Fd.use_exn "listen" fd (fun fd -> Unix.listen fd backlog);
        let hook =
          match address with
          | `Unix path when path <> "" && path.[0] <> '\000' ->
            Switch.on_release_cancellable sw (fun () -> Unix.unlink path)
          | _ -> Switch.null_hook
        in
        (with_hook hook fd :> _ Eio.Net.listening_socket_ty r))
      ()

  let rec set_options fd : Eio.Net.Sockopt.settings -> unit = function
    | [] -> ()
    | (option, v) :: rest ->
      Eio_unix.Private.setsockopt fd option v;
      set_options fd rest

  let connect () ~bind_to ~options ~sw address =
    let fd = socket ~sw (domain_of address) Unix.SOCK_STREAM in
    set_options fd options;
    Option.iter
      (fun address ->
        Err.run (bind ~reuse_addr:false ~reuse_port:false fd) (Eio_unix.Net.sockaddr_to_unix address))
      bind_to;
    let address = Eio_unix.Net.sockaddr_to_unix address in
    let t = Sched.get () in
    Fd.use_exn "connect" fd (fun fd ->
        Sched.request t "connect" ~kept:() (fun loop token -> Raw.connect loop (Raw.number fd) address token)
        |> Io.checked "connect" "" |> ignore);
    (Flow.of_fd fd :> tag Eio.Net.stream_socket_ty r)

  let datagram_socket () ~reuse_addr ~reuse_port ~sw address =
    Err.run
      (fun () ->
        (match address with
         | `Unix path when reuse_addr -> remove_old path
         | _ -> ());
        let fd = socket ~sw (domain_of address) Unix.SOCK_DGRAM in
        (match address with
         | (`Udp _ | `Unix _) as address ->
           bind ~reuse_addr ~reuse_port fd (Eio_unix.Net.sockaddr_to_unix address)
         | `UdpV4 | `UdpV6 -> ());
        (datagram_socket fd :> tag Eio.Net.datagram_socket_ty r))
      ()

  let getaddrinfo () ~service node =
    Eio_unix.run_in_systhread ~label:"getaddrinfo" @@ fun () ->
    Err.run (fun () -> Eio_unix.Private.getaddrinfo ~service node) ()

  let getnameinfo () = Eio_unix.Net.getnameinfo
end

let v : Impl.tag Eio.Net.ty r = Eio.Resource.T ((), Eio.Net.Pi.network (module Impl))
