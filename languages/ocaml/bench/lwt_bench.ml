(* File sum, TCP sum and echo on Lwt: on libev with the pool of threads, without it, and on Sakia.

   Each measurement is a process of its own; variants alternate, and medians are compared. Processor time is
   the measure: wall time depends on what else the machine does. Cases that lose are printed as those that
   win. *)

open Lwt.Infix

external usage : unit -> int * int * int = "bench_usage"
external pin : bool -> unit = "bench_pin"

let block = 32 * 1024
let fail format = Printf.ksprintf failwith format

(* ---- the programs ---- *)

let sum_of_first_bytes read =
  let rec sum total =
    read () >>= fun (count, first) -> if count = 0 then Lwt.return total else sum (total + first)
  in
  sum 0

(* The first byte of each block of a file, read through a channel. *)
let file_sum open_file path =
  let buffer = Lwt_bytes.create block and bytes = Bytes.create block in
  open_file buffer path >>= fun channel ->
  sum_of_first_bytes (fun () ->
      Lwt_io.read_into channel bytes 0 block >|= fun count -> (count, Char.code (Bytes.get bytes 0)))
  >>= fun total ->
  Lwt_io.close channel >|= fun () -> total

let file_sum_unix path =
  let fd = Unix.openfile path [ Unix.O_RDONLY ] 0 and bytes = Bytes.create block in
  let rec sum total =
    match Unix.read fd bytes 0 block with 0 -> total | _ -> sum (total + Char.code (Bytes.get bytes 0))
  in
  let total = sum 0 in
  Unix.close fd;
  total

(* The program reads at offsets of its own: 4 KiB, all over the file. *)
let positional_lwt path reads =
  Lwt_unix.openfile path [ Unix.O_RDONLY ] 0 >>= fun fd ->
  let bytes = Bytes.create 4096 in
  let rec go i total =
    if i = reads then Lwt.return total
    else
      Lwt_unix.pread fd bytes ~file_offset:(i * 7919 mod 4096 * 4096) 0 4096 >>= fun _ ->
      go (i + 1) (total + Char.code (Bytes.get bytes 0))
  in
  go 0 0

let positional_sakia path reads =
  Sakia_lwt.File.openfile path [ Unix.O_RDONLY ] 0 >>= fun file ->
  let bytes = Bytes.create 4096 in
  let rec go i total =
    if i = reads then Lwt.return total
    else
      Sakia_lwt.File.pread file bytes ~file_offset:(i * 7919 mod 4096 * 4096) 0 4096 >>= fun _ ->
      go (i + 1) (total + Char.code (Bytes.get bytes 0))
  in
  go 0 0

let tcp_sum fd =
  let bytes = Bytes.create (128 * 1024) in
  let rec sum total =
    Lwt_unix.read fd bytes 0 (Bytes.length bytes) >>= fun count ->
    if count = 0 then Lwt.return total else sum (total + count)
  in
  sum 0

let echo fd =
  let bytes = Bytes.create 4096 in
  let rec write pos count =
    if count = 0 then Lwt.return_unit
    else Lwt_unix.write fd bytes pos count >>= fun written -> write (pos + written) (count - written)
  in
  let rec go total =
    Lwt_unix.read fd bytes 0 4096 >>= fun count ->
    if count = 0 then Lwt.return total else write 0 count >>= fun () -> go (total + count)
  in
  go 0

(* ---- one run: `lwt_bench run VARIANT PROGRAM ARGUMENT...` ---- *)

let accept_all listener count serve =
  let rec go n sums =
    if n = 0 then Lwt_list.fold_left_s (fun total sum -> sum >|= ( + ) total) 0 sums
    else Lwt_unix.accept listener >>= fun (fd, _) -> go (n - 1) (serve fd :: sums)
  in
  go count []

(* The listening socket is descriptor 3 of the run, which its parent has given it. *)
let inherited () : Lwt_unix.file_descr = Lwt_unix.of_unix_file_descr (Obj.magic 3 : Unix.file_descr)

let run variant program arguments =
  if variant = "sakia" then Sakia_lwt.install ();
  let channel buffer path =
    if variant = "sakia" then Sakia_lwt.open_file ~buffer ~mode:Lwt_io.Input path
    else Lwt_io.open_file ~buffer ~flags:[ Unix.O_RDONLY ] ~mode:Lwt_io.Input path
  in
  let go =
    match (program, arguments) with
    | "file", [ path ] when variant = "unix" -> fun () -> Lwt.return (file_sum_unix path)
    | "file", [ path ] -> fun () -> file_sum channel path
    | "positional", [ path; reads ] when variant = "sakia" -> fun () ->
      positional_sakia path (int_of_string reads)
    | "positional", [ path; reads ] -> fun () -> positional_lwt path (int_of_string reads)
    | "tcp", [] -> fun () -> accept_all (inherited ()) 1 tcp_sum
    | "echo", [ connections ] -> fun () -> accept_all (inherited ()) (int_of_string connections) echo
    | _ -> fail "no such run"
  in
  (* The first turn sets things up, and is not measured. *)
  Lwt_main.run (Lwt.pause ());
  let cpu, voluntary, other = usage () in
  let total = Lwt_main.run (go ()) in
  let cpu', voluntary', other' = usage () in
  Printf.printf "%d %d %d %d\n" total (cpu' - cpu) (voluntary' - voluntary) (other' - other)

(* ---- the other side of the connections ---- *)

let connect address =
  let fd = Unix.socket Unix.PF_INET Unix.SOCK_STREAM 0 in
  Unix.connect fd address;
  Unix.setsockopt fd Unix.TCP_NODELAY true;
  fd

let send_stream address bytes =
  let fd = connect address and piece = Bytes.make (128 * 1024) 'x' in
  let rec send left = if left > 0 then send (left - Unix.write fd piece 0 (min left (Bytes.length piece))) in
  send bytes;
  Unix.close fd

(* Each round a message to each connection, and then the answers. *)
let ping address connections rounds =
  let fds = List.init connections (fun _ -> connect address) and message = Bytes.make 64 'x' in
  let rec receive fd left = if left > 0 then receive fd (left - Unix.read fd message 0 left) in
  for _ = 1 to rounds do
    List.iter (fun fd -> ignore (Unix.write fd message 0 64 : int)) fds;
    List.iter (fun fd -> receive fd 64) fds
  done;
  List.iter Unix.close fds

(* ---- measuring ---- *)

type result = { total : int; cpu : int; voluntary : int; other : int }

let environment variant =
  let others = List.filter (fun it -> not (String.length it > 4 && String.sub it 0 4 =
    "LWT_")) (Array.to_list (Unix.environment ())) in
  Array.of_list (if variant = "none" then "LWT_ASYNC_METHOD=none" :: others else others)

(* Starts a run, below `prefix`; with a listening socket as descriptor 3. *)
let start prefix variant program arguments ~listener =
  let output, input = Unix.pipe ~cloexec:true () in
  let words = prefix @ [ Sys.executable_name; "run"; variant; program ] @ arguments in
  (match Unix.fork () with
  | 0 ->
    (try
       Unix.dup2 ~cloexec:false input Unix.stdout;
       (* Both ends of a connection on one processor, or on two, are different programs. *)
       if listener <> None then pin true;
       (match listener with Some fd -> Unix.dup2 ~cloexec:false fd (Obj.magic 3 : Unix.file_descr) | None
         -> ());
       Unix.execvpe (List.hd words) (Array.of_list words) (environment variant)
     with _ -> Unix._exit 127)
  | pid ->
    Unix.close input;
    fun () ->
      let channel = Unix.in_channel_of_descr output in
      let line = try input_line channel with End_of_file -> "" in
      close_in channel;
      match Unix.waitpid [] pid with
      | _, Unix.WEXITED 0 ->
        Scanf.sscanf line "%d %d %d %d" (fun total cpu voluntary other -> { total; cpu; voluntary; other })
      | _ -> fail "a run of %s %s failed" variant program)

type case = {
  title : string;
  program : string;
  arguments : string list;
  variants : string list;
  (* The other side, if there is one. *)
  peer : (Unix.sockaddr -> unit) option;
  mebibytes : float;
  (* What system calls are counted per: how many, and of what. *)
  units : int * string;
}

let one ?(prefix = []) case variant =
  match case.peer with
  | None -> start prefix variant case.program case.arguments ~listener:None ()
  | Some peer ->
    let listener = Unix.socket ~cloexec:true Unix.PF_INET Unix.SOCK_STREAM 0 in
    Unix.bind listener (Unix.ADDR_INET (Unix.inet_addr_loopback, 0));
    Unix.listen listener 128;
    let finish = start prefix variant case.program case.arguments ~listener:(Some listener) in
    (match Unix.fork () with
    | 0 ->
      pin false;
      (try peer (Unix.getsockname listener) with _ -> Unix._exit 1);
      Unix._exit 0
    | peer ->
      Unix.close listener;
      let result = finish () in
      (match Unix.waitpid [] peer with
      | _, Unix.WEXITED 0 -> ()
      | _ -> fail "the other side of %s failed" case.title);
      result)

let median list =
  let sorted = Array.of_list (List.sort compare list) in
  sorted.(Array.length sorted / 2)

(* The number of system calls of a run, by strace; none if there is no strace. *)
let has_strace = lazy (Sys.command "strace -V >/dev/null 2>&1" = 0)

let calls case variant =
  if not (Lazy.force has_strace) then None
  else
  let file = Filename.temp_file "sakia" "strace" in
  let count =
    match one ~prefix:[ "strace"; "-f"; "-c"; "-o"; file ] case variant with
    | exception _ -> None
    | _ ->
      let channel = open_in file in
      let rec find () =
        match input_line channel with
        | exception End_of_file -> None
        | line -> (
          match List.filter (( <> ) "") (String.split_on_char ' ' line) with
          | "100.00" :: rest when List.mem "total" rest -> int_of_string_opt (List.nth rest 2)
          | _ -> find ())
      in
      let count = find () in
      close_in channel;
      count
  in
  Sys.remove file;
  count

let measure rounds case =
  let results = Hashtbl.create 8 in
  let expected = ref None in
  for round = 0 to rounds - 1 do
    (* Another variant begins each round. *)
    let count = List.length case.variants in
    List.iteri
      (fun i _ ->
        let variant = List.nth case.variants ((i + round) mod count) in
        let result = one case variant in
        (match !expected with
        | None -> expected := Some result.total
        | Some total when total = result.total -> ()
        | Some total -> fail "%s: %s has %d, another %d" case.title variant result.total total);
        Hashtbl.add results (variant, round) result)
      case.variants
  done;
  Printf.printf "\n%s\n%-8s %12s %8s %8s %8s %14s %16s\n%!" case.title "" "CPU ms" "of first" "lowest"
    "highest"
    "switches/MiB" ("calls/" ^ snd case.units);
  let first = List.hd case.variants in
  List.iter
    (fun variant ->
      let all f = List.init rounds (fun round -> f round (Hashtbl.find results (variant, round))) in
      let ratios =
        all (fun round result -> float_of_int result.cpu /. float_of_int (Hashtbl.find results (first,
          round)).cpu)
      in
      let switches = median (all (fun _ result -> float_of_int (result.voluntary + result.other))) in
      let calls =
        match calls case variant with
        | None -> "-"
        | Some count -> Printf.sprintf "%.2f" (float_of_int count /. float_of_int (fst case.units))
      in
      Printf.printf "%-8s %12.1f %8.3f %8.3f %8.3f %14.2f %16s\n%!" variant
        (float_of_int (median (all (fun _ result -> result.cpu))) /. 1e6)
        (median ratios)
        (List.fold_left min infinity ratios)
        (List.fold_left max 0. ratios)
        (switches /. case.mebibytes)
        calls)
    case.variants

let make_file path mebibytes =
  let channel = open_out_bin path in
  let piece = Bytes.init (1024 * 1024) (fun i -> Char.chr (i * 131 / 4096 land 255)) in
  for _ = 1 to mebibytes do
    output_bytes channel piece
  done;
  close_out channel

let cases folder ~size ~messages =
  let path = Filename.concat folder "sakia-bench-file" in
  make_file path size;
  let mebibytes = float_of_int size in
  let echo connections =
    let rounds = messages / connections in
    {
      title = Printf.sprintf "Echo of 64 bytes, %d connection(s), %d messages" connections
        (rounds * connections);
      program = "echo";
      arguments = [ string_of_int connections ];
      variants = [ "libev"; "sakia" ];
      peer = Some (fun address -> ping address connections rounds);
      mebibytes = float_of_int (64 * rounds * connections) /. 1048576.;
      units = (rounds * connections, "message");
    }
  in
  ( path,
    [
      {
        title = Printf.sprintf "File sum, channel, %d MiB in blocks of 32 KiB, first byte of each" size;
        program = "file";
        arguments = [ path ];
        variants = [ "none"; "pool"; "sakia"; "unix" ];
        peer = None;
        mebibytes;
        units = (size * 32, "block");
      };
      {
        title = Printf.sprintf "Positional reads of 4 KiB, %d" messages;
        program = "positional";
        arguments = [ path; string_of_int messages ];
        variants = [ "none"; "pool"; "sakia" ];
        peer = None;
        mebibytes = float_of_int (messages * 4) /. 1024.;
        units = (messages, "read");
      };
      {
        title = Printf.sprintf "TCP sum, %d MiB" size;
        program = "tcp";
        arguments = [];
        variants = [ "libev"; "sakia" ];
        peer = Some (fun address -> send_stream address (size * 1048576));
        mebibytes;
        units = (size * 8, "128 KiB");
      };
      echo 1;
      echo 64;
    ] )

let () =
  Sys.set_signal Sys.sigpipe Sys.Signal_ignore;
  match Array.to_list Sys.argv with
  | _ :: "run" :: variant :: program :: arguments -> run variant program arguments
  | _ ->
    let rounds = ref 9 and folder = ref (Filename.get_temp_dir_name ()) and quick = ref false in
    let only = ref "" in
    Arg.parse
      [
        ("--rounds", Arg.Set_int rounds, "N of each variant, alternated (9)");
        ("--folder", Arg.Set_string folder, "DIR for the file");
        ("--only", Arg.Set_string only, "PROGRAM file, positional, tcp or echo");
        ("--quick", Arg.Set quick, " small, to see that it works");
      ]
      (fun word -> raise (Arg.Bad word))
      "lwt_bench [OPTION]...";
    let size, messages = if !quick then (16, 1024) else (512, 100_000) in
    let path, cases = cases !folder ~size ~messages in
    List.iter (fun case -> if !only = "" || !only = case.program then measure !rounds case) cases;
    Sys.remove path
