let run f =
  match Sys.getenv_opt "EIO_BACKEND" with
  | None | Some ("" | "sakia") -> Eio_sakia.run f
  | Some ("linux" | "io-uring") -> Eio_linux.run f
  | Some "posix" -> Eio_posix.run f
  | Some other -> invalid_arg ("EIO_BACKEND is neither sakia, linux nor posix: " ^ other)
