(* Memory of a program's own, of which nothing but what it was given to, and a weak pointer, know. *)

let size = 8192

type bytes = (char, Bigarray.int8_unsigned_elt, Bigarray.c_layout) Bigarray.Array1.t
type t = { freed : bool ref; weak : bytes Weak.t }

(* Calls a function with new memory, which is filled with dashes. *)
let give f =
  let give () =
    let memory = Bigarray.Array1.create Bigarray.char Bigarray.c_layout size in
    Bigarray.Array1.fill memory '-';
    let freed = ref false and weak = Weak.create 1 in
    Gc.finalise (fun _ -> freed := true) memory;
    Weak.set weak 0 (Some memory);
    f memory;
    { freed; weak }
  in
  (* Nothing of it stays in the caller's frame. *)
  (Sys.opaque_identity give) ()

let collect () =
  (* The first finds what is unreachable and calls finalizers, and the others free what those had. *)
  for _ = 1 to 3 do
    Gc.compact ()
  done

let is_freed it = !(it.freed)

let last it =
  match Weak.get it.weak 0 with
  | Some memory -> Bigarray.Array1.get memory (size - 1)
  | None -> failwith "memory that is needed is gone"

(* Waits for half a minute until the last byte is this one. *)
let becomes it byte =
  let rec look tries =
    last it = byte
    || tries > 0
       && begin
            Unix.sleepf 0.01;
            look (tries - 1)
          end
  in
  look 3000
