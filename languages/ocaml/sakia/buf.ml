type memory = Raw.memory

type t = {
  memory : memory;
  (* Its place in the pool; negative for memory of the program's. *)
  size_class : int;
  (* Requests that use it; [-1] in the pool. Those of a queue end on any domain. *)
  users : int Atomic.t;
}

(* Classes of 4 KiB, 8 KiB, and so on to 1 MiB. *)
let classes = 9
let class_size n = 4096 lsl n

let class_of size =
  let rec find n = if n = classes || size <= class_size n then n else find (n + 1) in
  find 0

(* A pool keeps at most this many bytes of a class, but at least eight buffers. *)
let keep n = max 8 (min 64 (2 * 1024 * 1024 / class_size n))

type stack = { mutable count : int; items : t array }

let make size = Bigarray.Array1.create Bigarray.char Bigarray.c_layout size
let nothing = { memory = make 0; size_class = -1; users = Atomic.make 0 }

let pool =
  Local.make (fun () -> Array.init classes (fun n -> { count = 0; items = Array.make (keep n) nothing }))

let take size =
  if size < 0 then invalid_arg "Sakia.Buf.take";
  let n = class_of size in
  if n = classes then { memory = make size; size_class = classes; users = Atomic.make 0 }
  else
    let stack = (Local.get pool).(n) in
    (* No allocation, and so no other thread, comes between. *)
    let last = stack.count - 1 in
    if last >= 0 then begin
      stack.count <- last;
      let it = stack.items.(last) in
      stack.items.(last) <- nothing;
      Atomic.set it.users 0;
      it
    end
    else { memory = make (class_size n); size_class = n; users = Atomic.make 0 }

let give it =
  if it.size_class < 0 || not (Atomic.compare_and_set it.users 0 (-1)) then invalid_arg "Sakia.Buf.give";
  if it.size_class < classes then begin
    let stack = (Local.get pool).(it.size_class) in
    let count = stack.count in
    if count < Array.length stack.items then begin
      stack.items.(count) <- it;
      stack.count <- count + 1
    end
  end

let own size = { memory = make size; size_class = classes; users = Atomic.make 0 }
let is_used it = Atomic.get it.users > 0
let of_bigarray memory = { memory; size_class = -1; users = nothing.users }
let memory it = it.memory
let length it = Bigarray.Array1.dim it.memory

let rec lend it =
  if it.size_class >= 0 then begin
    let users = Atomic.get it.users in
    if users < 0 then invalid_arg "Sakia: a buffer that was given back";
    if not (Atomic.compare_and_set it.users users (users + 1)) then lend it
  end

let return it = if it.size_class >= 0 then ignore (Atomic.fetch_and_add it.users (-1) : int)

let with_buffer size f =
  let it = take size in
  let finish () = if Atomic.get it.users = 0 then give it in
  match f it with
  | result ->
    finish ();
    result
  | exception error ->
    finish ();
    raise error

external blit_to : memory -> (int[@untagged]) -> bytes -> (int[@untagged]) -> (int[@untagged]) -> unit
  = "sakia_ml_blit_to_byte" "sakia_ml_blit_to"
  [@@noalloc]

external blit_of : bytes -> (int[@untagged]) -> memory -> (int[@untagged]) -> (int[@untagged]) -> unit
  = "sakia_ml_blit_of_byte" "sakia_ml_blit_of"
  [@@noalloc]

let check name it pos len other other_pos =
  if len < 0 || pos < 0 || pos > length it - len || other_pos < 0 || other_pos > other - len then
    invalid_arg name

let blit_to_bytes it pos bytes bytes_pos len =
  check "Sakia.Buf.blit_to_bytes" it pos len (Bytes.length bytes) bytes_pos;
  blit_to it.memory pos bytes bytes_pos len

let blit_of_bytes bytes bytes_pos it pos len =
  check "Sakia.Buf.blit_of_bytes" it pos len (Bytes.length bytes) bytes_pos;
  blit_of bytes bytes_pos it.memory pos len

let blit_of_string string string_pos it pos len =
  check "Sakia.Buf.blit_of_string" it pos len (String.length string) string_pos;
  blit_of (Bytes.unsafe_of_string string) string_pos it.memory pos len

let copy it pos other other_pos len =
  check "Sakia.Buf.copy" it pos len (length other) other_pos;
  if len > 0 then
    Bigarray.Array1.blit (Bigarray.Array1.sub it.memory pos len)
      (Bigarray.Array1.sub other.memory other_pos len)

let sub_string it pos len =
  check "Sakia.Buf.sub_string" it pos len len 0;
  let bytes = Bytes.create len in
  blit_to it.memory pos bytes 0 len;
  Bytes.unsafe_to_string bytes
