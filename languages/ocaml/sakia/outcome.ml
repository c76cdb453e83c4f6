type received = { address : nativeint; length : int; lent : int64; mutable given : bool }
type t = { value : int; file : File.t option; more : bool; received : received option }

external get_64 : Buf.memory -> int -> int64 = "%caml_bigstring_get64"

let bytes = 48
let room = 64
let area () = Bigarray.Array1.create Bigarray.char Bigarray.c_layout (room * bytes)
let areas : Buf.memory list ref Local.key = Local.make (fun () -> ref [])

let take_area () =
  let free = Local.get areas in
  match !free with
  | area :: rest ->
    free := rest;
    area
  | [] -> area ()

let give_area area =
  let free = Local.get areas in
  (* The list is allocated before it is looked at again: another thread may come at an allocation. *)
  let rec add () =
    let old = !free in
    let longer = area :: old in
    if !free == old then free := longer else add ()
  in
  add ()

let field area index at = get_64 area ((index * bytes) + at)
let token area index = Int64.to_int (field area index 0)
let has_more area index = Int64.to_int (field area index 24) land 1 <> 0

let make request area index =
  let value = Int64.to_int (field area index 8) in
  let file =
    if Int64.equal (field area index 16) 0L then None
    else Some (File.of_handle (Request.what request) (Raw.file_none ()))
  in
  let lent = field area index 40 in
  let received =
    if Int64.equal lent 0L then None
    else Some { address = Int64.to_nativeint (field area index 32); length = value; lent; given = false }
  in
  { value; file; more = has_more area index; received }

let commit it area index = match it.file with None -> () | Some file ->
  Raw.file_take (File.handle file) area index

let get request it =
  if it.value >= 0 then it.value else Raw.fail it.value (Request.name request) (Request.what request)

let file request it =
  ignore (get request it : int);
  match it.file with Some file -> file | None -> invalid_arg "Sakia.Outcome.file"

let is_canceled it = it.value = -Flags.ecanceled
let received_length it = it.length
let address it = it.address
let lent it = it.lent
let is_given it = it.given
let set_given it = it.given <- true
