(* Error numbers as eio's exceptions. *)

let fail value call arg = raise (Eio_unix.Err.v (Raw.error (-value)) call arg)

(* Runs a function of Unix. *)
let run f x =
  try f x with Unix.Unix_error (code, name, arg) -> raise (Eio_unix.Err.v code name arg)
