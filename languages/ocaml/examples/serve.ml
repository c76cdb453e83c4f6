(* A server of a file's lines, on Lwt. Its sockets and timers are Lwt's own; its file is Sakia's. *)

open Lwt.Infix

let () = Sakia_lwt.install ()

let serve path (input, output) =
  Lwt_io.read_line input >>= fun word ->
  Sakia_lwt.with_file ~mode:Lwt_io.Input path (fun file ->
      Lwt_io.read_lines file
      |> Lwt_stream.filter (fun line -> String.length line >= String.length word)
      |> Lwt_io.write_lines output)
  >>= fun () ->
  Lwt_io.close output

let () =
  Lwt_main.run
    (let any = Unix.ADDR_INET (Unix.inet_addr_loopback, 0) in
     Lwt_io.establish_server_with_client_address any (fun _ channels -> serve Sys.argv.(1) channels)
     >>= fun server ->
     (match Sakia_lwt.why_no_ring () with
     | None -> Lwt_io.printl "files: on a ring"
     | Some why -> Lwt_io.printlf "files: on epoll and threads: %s" why)
     >>= fun () ->
     Lwt_io.shutdown_server server >>= fun () -> Lwt_io.printl "done")
