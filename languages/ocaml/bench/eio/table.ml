(* Tables of processor time: `table DIRECTORY ROUNDS [CASE ...]`. The contenders take turns in each round, and
   a number is the median of the rounds' ratios to Eio_linux; in brackets its quartiles. DIRECTORY has room
   for 2 GiB; put it on the file system in question. *)

type contender = { name : string; environment : string list; command : string -> string list }

let programs = Filename.concat (Filename.dirname Sys.executable_name) "programs.exe"
let on ?(name = "") backend arguments =
  {
    name = (if name = "" then backend else name);
    environment = [ "EIO_BACKEND=" ^ backend ];
    command = (fun dir -> programs :: arguments dir);
  }

type case = {
  case : string;
  mebibytes : float;
  prepare : string -> unit;
  contenders : contender list;
  clean : string -> unit; (* after each run *)
}

let shell command = if Sys.command command <> 0 then failwith command
let null = Unix.openfile "/dev/null" [ O_RDWR; O_CLOEXEC ] 0

(* Processor seconds of a child and of its children, and what it printed. *)
let measured contender dir =
  let command = Array.of_list (contender.command dir) in
  let environment = Array.append (Array.of_list contender.environment) (Unix.environment ()) in
  let r, w = Unix.pipe ~cloexec:true () in
  let before = Unix.times () and start = Unix.gettimeofday () in
  let pid = Unix.create_process_env command.(0) command environment null w Unix.stderr in
  Unix.close w;
  let output = In_channel.input_all (Unix.in_channel_of_descr r) in
  Unix.close r;
  (match Unix.waitpid [] pid with
   | _, WEXITED 0 -> ()
   | _, status ->
     let ended =
       match status with
       | WEXITED code -> Printf.sprintf "exited with %d" code
       | WSIGNALED number | WSTOPPED number -> Printf.sprintf "was ended by signal %d of OCaml" number
     in
     failwith (Printf.sprintf "%s %s: %s" contender.name (String.concat " " (Array.to_list command)) ended));
  let after = Unix.times () in
  let processor = after.tms_cutime +. after.tms_cstime -. before.tms_cutime -. before.tms_cstime in
  let switches =
    String.split_on_char '\n' output
    |> List.find_map (fun line -> Scanf.sscanf_opt line "switches %d" Fun.id)
  in
  (processor, Unix.gettimeofday () -. start, switches)

let backends arguments = List.map (fun backend -> on backend arguments) [ "linux"; "posix"; "sakia" ]

let same name mebibytes ?(prepare = ignore) arguments =
  { case = name; mebibytes; prepare; contenders = backends arguments; clean = ignore }

let file dir = Filename.concat dir "file"
let source dir = Filename.concat dir "source"
let copy dir = Filename.concat dir "copy"

let make_file mebibytes dir =
  shell (Printf.sprintf "head -c %dM /dev/zero > %s && cat %s > /dev/null" mebibytes (file dir) (file dir))

let tree name ~levels ~bytes ~mebibytes =
  {
    case = name;
    mebibytes;
    prepare =
      (fun dir ->
        let make = Printf.sprintf "rm -rf %s; %s make_tree %s 5 %d %d > /dev/null" in
        shell (make (source dir) programs (source dir) levels bytes));
    contenders =
      backends (fun dir -> [ "copy"; "2"; source dir; copy dir ])
      @ [
          on ~name:"copy_tree" "sakia" (fun dir -> [ "copy_tree"; source dir; copy dir ]);
          { name = "cp -r"; environment = []; command = (fun dir -> [ "cp"; "-r"; source dir; copy dir ]) };
        ]
      @ (match Sys.getenv_opt "SAKIA" with
         | None -> []
         | Some sakia ->
           let command dir = [ sakia; "cp"; "-r"; source dir; copy dir ] in
           [ { name = "sakia cp"; environment = []; command } ]);
    clean = (fun dir -> shell ("rm -rf " ^ copy dir));
  }

let cases =
  [
    same "hot 4 KiB reads" 4000. ~prepare:(make_file 1) (fun dir -> [ "hot"; file dir; "1000000" ]);
    same "file sum, 32 KiB" 1024. ~prepare:(make_file 1024) (fun dir -> [ "file_sum"; file dir ]);
    same "TCP sum" 1024. (fun _ -> [ "tcp_sum"; "1024" ]);
    same "echo, 1 connection" 1. (fun _ -> [ "echo"; "1"; "60000" ]);
    same "echo, 64 connections" 1. (fun _ -> [ "echo"; "64"; "2000" ]);
    tree "small: 3,905 files of 4 KiB" ~levels:5 ~bytes:4096 ~mebibytes:15.3;
    tree "copy: 97,655 files of 4 KiB" ~levels:7 ~bytes:4096 ~mebibytes:381.5;
    tree "copy: 780 files of 1 MB" ~levels:4 ~bytes:1_000_000 ~mebibytes:743.9;
  ]

let quantile q values =
  let sorted = Array.of_list (List.sort compare values) in
  let at = q *. float (Array.length sorted - 1) in
  let low = int_of_float at in
  let high = min (low + 1) (Array.length sorted - 1) in
  sorted.(low) +. ((at -. float low) *. (sorted.(high) -. sorted.(low)))

let run dir rounds case =
  case.prepare dir;
  let measure contender =
    let it = measured contender dir in
    case.clean dir;
    it
  in
  ignore (List.map measure case.contenders) (* to warm up *);
  let rounds = List.init rounds (fun _ -> List.map measure case.contenders) in
  Printf.printf "\n%s\n%-10s %9s %24s %12s %14s\n" case.case "" "seconds" "of linux" "wall" "switches/MiB";
  List.iteri
    (fun i contender ->
      let results = List.map (fun round -> List.nth round i) rounds in
      let processor (it, _, _) = it and wall (_, it, _) = it in
      let ratio by round = by (List.nth round i) /. Float.max 1e-6 (by (List.hd round)) in
      let ratios by = List.map (ratio by) rounds in
      let all = ratios processor in
      let switches =
        match results with
        | (_, _, Some _) :: _ ->
          let of_one (_, _, switches) = float (Option.value switches ~default:0) /. case.mebibytes in
          Printf.sprintf "%.2f" (quantile 0.5 (List.map of_one results))
        | _ -> ""
      in
      Printf.printf "%-10s %9.3f %8.2f [%.2f, %.2f] %12.2f %14s\n%!" contender.name
        (quantile 0.5 (List.map processor results))
        (quantile 0.5 all) (quantile 0.25 all) (quantile 0.75 all)
        (quantile 0.5 (ratios wall))
        switches)
    case.contenders;
  shell (Printf.sprintf "rm -rf %s %s %s" (file dir) (source dir) (copy dir))

let () =
  match Array.to_list Sys.argv with
  | _ :: dir :: rounds :: names ->
    let is_of case name = String.starts_with ~prefix:name case.case in
    let wanted case = names = [] || List.exists (is_of case) names in
    List.iter (run dir (int_of_string rounds)) (List.filter wanted cases)
  | _ -> failwith "usage: table DIRECTORY ROUNDS [CASE ...]"
