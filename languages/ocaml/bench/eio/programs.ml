(* The programs that are measured, written once for all backends: EIO_BACKEND chooses. Each prints what it has
   done, so that runs can be compared, and its voluntary switches of threads. *)

open Eio.Std

let ( / ) = Eio.Path.( / )

let switches () =
  let line = In_channel.with_open_bin "/proc/self/status" In_channel.input_all |> String.split_on_char '\n' in
  let number line = Scanf.sscanf_opt line "voluntary_ctxt_switches: %d" Fun.id in
  List.find_map number line |> Option.value ~default:0

let path env name : _ Eio.Path.t = env#fs / name

(* Positional reads of 4 KiB that the kernel has in memory. *)
let hot env file count =
  Eio.Path.with_open_in (path env file) @@ fun file ->
  let buf = Cstruct.create 4096 and sum = ref 0 in
  let blocks = Stdlib.(Optint.Int63.to_int (Eio.File.size file) / 4096) in
  for i = 1 to count do
    let file_offset = Optint.Int63.of_int (4096 * (i mod blocks)) in
    sum := !sum + Eio.File.pread file ~file_offset [ buf ] + Cstruct.get_uint8 buf 0
  done;
  Printf.printf "sum %d\n" !sum

(* A file in blocks of 32 KiB; the first byte of each is added. *)
let file_sum env file =
  Eio.Path.with_open_in (path env file) @@ fun file ->
  let buf = Cstruct.create 32768 and sum = ref 0 and bytes = ref 0 in
  (try
     while true do
       let count = Eio.Flow.single_read file buf in
       bytes := !bytes + count;
       sum := !sum + Cstruct.get_uint8 buf 0
     done
   with End_of_file -> ());
  Printf.printf "bytes %d sum %d\n" !bytes !sum

let loopback = `Tcp (Eio.Net.Ipaddr.V4.loopback, 0)

let with_server env f =
  Switch.run @@ fun sw ->
  let listener = Eio.Net.listen env#net ~sw ~backlog:1024 ~reuse_addr:true loopback in
  f ~sw listener (Eio.Net.listening_addr listener)

(* One connection that carries so many MiB; its bytes are counted. *)
let tcp_sum env mebibytes =
  with_server env @@ fun ~sw:_ listener address ->
  let total = ref 0 in
  Fiber.both
    (fun () ->
      Switch.run @@ fun sw ->
      let connection, _ = Eio.Net.accept ~sw listener in
      let buf = Cstruct.create 32768 in
      try
        while true do
          total := !total + Eio.Flow.single_read connection buf
        done
      with End_of_file -> ())
    (fun () ->
      Switch.run @@ fun sw ->
      let connection = Eio.Net.connect ~sw env#net address in
      let block = Cstruct.create 65536 in
      for _ = 1 to mebibytes * 16 do
        Eio.Flow.write connection [ block ]
      done;
      Eio.Flow.shutdown connection `Send);
  Printf.printf "bytes %d\n" !total

(* Connections that each send a message and wait for its echo, so many times. *)
let echo env connections count =
  with_server env @@ fun ~sw listener address ->
  Fiber.fork_daemon ~sw (fun () ->
      let rec serve () =
        Eio.Net.accept_fork ~sw listener ~on_error:raise (fun connection _ ->
            let buf = Cstruct.create 256 in
            try
              while true do
                let count = Eio.Flow.single_read connection buf in
                Eio.Flow.write connection [ Cstruct.sub buf 0 count ]
              done
            with End_of_file -> ());
        serve ()
      in
      serve ());
  let answered = ref 0 in
  Fiber.List.iter
    (fun _ ->
      Switch.run @@ fun sw ->
      let connection = Eio.Net.connect ~sw env#net address in
      let message = Cstruct.create 64 and buf = Cstruct.create 64 in
      for _ = 1 to count do
        Eio.Flow.write connection [ message ];
        Eio.Flow.read_exact connection buf;
        incr answered
      done)
    (List.init connections Fun.id);
  Printf.printf "answers %d\n" !answered

(* The article's recursive copy, with a limit of fibers in each directory. *)
let rec copy ~fibers from into =
  let stat = Eio.Path.stat ~follow:false from in
  match stat.kind with
  | `Directory ->
    Eio.Path.mkdir ~perm:stat.perm into;
    let one name = copy ~fibers (from / name) (into / name) in
    Fiber.List.iter ~max_fibers:fibers one (Eio.Path.read_dir from)
  | `Regular_file ->
    Eio.Path.with_open_in from @@ fun from ->
    Eio.Path.with_open_out ~create:(`Exclusive stat.perm) into @@ fun into -> Eio.Flow.copy from into
  | _ -> failwith "neither a directory nor a regular file"

let yields count =
  for _ = 1 to count do
    Fiber.yield ()
  done;
  Printf.printf "yields %d\n" count

(* A tree with so many files and directories in each directory. *)
let rec make_tree dir ~fan_out ~levels ~bytes =
  Unix.mkdir dir 0o755;
  let data = String.make bytes 'a' in
  for i = 1 to fan_out do
    Out_channel.with_open_bin (Printf.sprintf "%s/f%d" dir i) (fun out -> Out_channel.output_string out data);
    if levels > 1 then make_tree (Printf.sprintf "%s/d%d" dir i) ~fan_out ~levels:(levels - 1) ~bytes
  done

let () =
  let on_eio f =
    match Sys.getenv_opt "EIO_BACKEND" with
    | Some "linux" ->
      let block_size = Option.bind (Sys.getenv_opt "BLOCK_SIZE") int_of_string_opt in
      Eio_linux.run ?block_size f
    | _ -> Eio_sakia_main.run f
  in
  let int = int_of_string in
  (match Sys.argv with
   | [| _; "hot"; file; count |] -> on_eio (fun env -> hot env file (int count))
   | [| _; "file_sum"; file |] -> on_eio (fun env -> file_sum env file)
   | [| _; "tcp_sum"; mebibytes |] -> on_eio (fun env -> tcp_sum env (int mebibytes))
   | [| _; "echo"; connections; count |] -> on_eio (fun env -> echo env (int connections) (int count))
   | [| _; "copy"; fibers; from; into |] ->
     on_eio (fun env -> copy ~fibers:(int fibers) (path env from) (path env into))
   | [| _; "copy_tree"; from; into |] ->
     on_eio (fun env -> ignore (Eio_sakia.copy_tree (path env from) (path env into) : Sakia.Tree.counts))
   | [| _; "yields"; count |] -> on_eio (fun _ -> yields (int count))
   | [| _; "make_tree"; dir; fan_out; levels; bytes |] ->
     make_tree dir ~fan_out:(int fan_out) ~levels:(int levels) ~bytes:(int bytes)
   | _ -> failwith "usage: programs NAME ARGUMENT...; see the end of programs.ml");
  Printf.printf "switches %d\n" (switches ())
