type t = { raw : Raw.tree; what : string; mutable root : int }

type option_ = Archive | Force | Follow | One_file_system | Durable | Verify | Dry_run | Keep | Update

type counts = {
  files : int;
  directories : int;
  symlinks : int;
  hard_links : int;
  others : int;
  skipped : int;
  bytes : int;
  failures : int;
}

type failure = { operation : string; path : string; error : Unix.error }
type state = Running | Finished | Failed of Unix.error

let flag = function
  | Archive -> 1
  | Force -> 2
  | Follow -> 4
  | One_file_system -> 8
  | Durable -> 16
  | Verify -> 32
  | Dry_run -> 64
  | Keep -> 128
  | Update -> 256

let make operation from destination flags threads limit =
  if threads < 0 || threads > 1024 || limit < 0 || limit > 0xffffffff then
    invalid_arg ("Sakia.Tree." ^ operation);
  let raw : Raw.tree = Raw.check_object operation from (Raw.tree_new from destination flags threads limit) in
  let it = { raw; what = from; root = 0 } in
  (* Rooted until its end was seen: the collector would wait for the end otherwise. *)
  it.root <- Raw.Roots.add it;
  it

let copy ?(options = []) ?(threads = 0) ?(limit = 0) from destination =
  let flags = List.fold_left (fun all it -> all lor flag it) 0 options in
  make "copy" from (Obj.repr destination) flags threads limit

let remove ?(threads = 0) ?(limit = 0) path = make "remove" path Raw.none 0 threads limit

let counts it =
  let numbers = Bigarray.Array1.create Bigarray.int64 Bigarray.c_layout 8 in
  ignore (Raw.check "counts" it.what (Raw.tree_counts it.raw numbers) : int);
  let number i = Int64.to_int (Bigarray.Array1.get numbers i) in
  {
    files = number 0;
    directories = number 1;
    symlinks = number 2;
    hard_links = number 3;
    others = number 4;
    skipped = number 5;
    bytes = number 6;
    failures = number 7;
  }

let failure it =
  let failure = Raw.tree_failure it.raw in
  if Obj.is_int failure then begin
    ignore (Raw.check "failure" it.what (Obj.obj failure : int) : int);
    None
  end
  else
    let operation, path, error = (Obj.obj failure : string * string * int) in
    Some { operation; path; error = Raw.error_of_code error }

let ended it =
  Raw.Roots.remove it.root

let wait ?(timeout_ns = -1) it =
  match Raw.tree_wait it.raw timeout_ns with
  | 0 -> Running
  | 1 ->
    ended it;
    Finished
  | error ->
    if error = -Flags.eperm then Raw.fail error "wait" it.what;
    ended it;
    Failed (Raw.error_of_code (-error))

let pollable it = Raw.fd_to (Raw.check "pollable" it.what (Raw.tree_pollable it.raw))
let cancel it = ignore (Raw.check "cancel" it.what (Raw.tree_cancel it.raw) : int)
