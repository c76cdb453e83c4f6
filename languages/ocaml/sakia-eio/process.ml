open Eio.Std
module Fd = Eio_unix.Fd
module Fork_action = Eio_unix.Private.Fork_action

(* A child is waited for by a descriptor of it; where the kernel has none, by a thread. *)
type t = {
  pid : int;
  status : Unix.process_status Promise.t;
  lock : Mutex.t; (* while it is free, the child was waited for if and only if [status] is resolved *)
}

let signal t number =
  Mutex.lock t.lock;
  Fun.protect ~finally:(fun () -> Mutex.unlock t.lock) @@ fun () ->
  if not (Promise.is_resolved t.status) then Unix.kill t.pid number

let rec wait_for pid =
  match Unix.waitpid [] pid with
  | _, status -> status
  | exception Unix.Unix_error (EINTR, _, _) -> wait_for pid

let reap t resolver =
  Mutex.lock t.lock;
  Promise.resolve resolver (wait_for t.pid);
  Mutex.unlock t.lock

(* Waits until the child has ended, without waiting for it. *)
let await_end t fd =
  match fd with
  | Some fd -> Fd.use_exn "await_exit" fd (fun fd -> Eio_unix.await_readable fd)
  | None ->
    let rec look pause =
      match Unix.kill t.pid 0 with
      | exception Unix.Unix_error _ -> ()
      | () ->
        (* A child that has ended is still there. *)
        let ended =
          match In_channel.with_open_bin (Printf.sprintf "/proc/%d/stat" t.pid) In_channel.input_all with
          | text -> (
            match String.rindex_opt text ')' with
            | Some at -> at + 2 < String.length text && text.[at + 2] = 'Z'
            | None -> true)
          | exception Sys_error _ -> true
        in
        if not ended then (
          Eio_unix.sleep pause;
          look (Float.min 0.05 (2. *. pause)))
    in
    look 0.001

(* Kills the child if the switch ends first. *)
let watch ~sw t fd resolver =
  Fiber.fork_daemon ~sw (fun () ->
      let reap () =
        reap t resolver;
        Option.iter Fd.close fd;
        `Stop_daemon
      in
      match await_end t fd with
      | () -> Eio.Cancel.protect reap
      | exception (Eio.Cancel.Cancelled _ as ex) ->
        ignore ex;
        Eio.Cancel.protect (fun () ->
            signal t Sys.sigkill;
            await_end t fd;
            reap ()))

let rec read_all flow text =
  let buf = Cstruct.create 256 in
  match Flow.read flow buf with
  | 0 -> text
  | count -> read_all flow (text ^ Cstruct.to_string buf ~len:count)

let pipe ~sw =
  let r, w = Unix.pipe ~cloexec:true () in
  Unix.set_nonblock r;
  Unix.set_nonblock w;
  let own fd = Fd.of_unix ~sw ~seekable:false ~blocking:false ~close_unix:true fd in
  let r = own r in
  (r, own w)

let spawn ~sw actions =
  Switch.run ~name:"spawn" @@ fun launch ->
  let errors_r, errors_w = pipe ~sw:launch in
  Fork_action.with_actions actions @@ fun actions ->
  Switch.check sw;
  let status, resolver = Promise.create () in
  let pid = Fd.use_exn "spawn" errors_w (fun errors -> Raw.spawn errors actions) in
  let t = { pid; status; lock = Mutex.create () } in
  let fd =
    match Raw.pidfd pid with
    | number when number < 0 -> None
    | number -> Some (Fd.of_unix ~sw ~seekable:false ~close_unix:true (Raw.descriptor number))
  in
  watch ~sw t fd resolver;
  Fd.close errors_w;
  (* A successful exec closes the other end. *)
  match read_all (Flow.make errors_r) "" with
  | "" -> t
  | error -> Fork_action.report_spawn_error error

module Process_impl = struct
  type nonrec t = t
  type tag = [ `Generic | `Unix ]

  let pid t = t.pid
  let signal = signal

  let await t =
    match Promise.await t.status with
    | Unix.WEXITED code -> `Exited code
    | Unix.WSIGNALED number -> `Signaled number
    | Unix.WSTOPPED _ -> assert false
end

let process =
  let handler = Eio.Process.Pi.process (module Process_impl) in
  fun t -> Eio.Resource.T (t, handler)

module Manager = struct
  module T = struct
    type t = unit

    let actions ?pgid ?uid ?gid ?login_tty ~env ~fds ~executable args =
      let terminal, fds =
        match login_tty with
        | None -> ([], fds)
        | Some tty ->
          ([ Fork_action.login_tty tty ], List.map (fun n -> (n, tty, `Blocking)) [ 0; 1; 2 ] @ fds)
      in
      let opt make = function None -> [] | Some x -> [ make x ] in
      opt Fork_action.setgid gid @ opt Fork_action.setuid uid @ opt Fork_action.setpgid pgid @ terminal
      @ [ Fork_action.inherit_fds fds; Fork_action.execve executable ~argv:(Array.of_list args) ~env ]

    let spawn_unix () ~sw ?cwd ?pgid ?uid ?gid ?login_tty ~env ~fds ~executable args =
      let actions = actions ?pgid ?uid ?gid ?login_tty ~env ~fds ~executable args in
      match cwd with
      | None -> process (spawn ~sw actions)
      | Some ((dir, path) : Eio.Fs.dir_ty Eio.Path.t) -> (
        match Fs.place_of dir with
        | None -> invalid_arg "cwd is not a directory of this backend"
        | Some place ->
          Switch.run ~name:"spawn" @@ fun launch ->
          let flags = Raw.o_path lor Raw.o_directory in
          let fd = Fs.openat ~sw:launch place path ~flags ~mode:0 in
          process (spawn ~sw (Fork_action.fchdir fd :: actions)))
  end

  include Eio_unix.Process.Make_mgr (T)
end

let manager : Eio_unix.Process.mgr_ty r = Eio.Resource.T ((), Eio_unix.Process.Pi.mgr_unix (module Manager))
