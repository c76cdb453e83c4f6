open Eio.Std

let ( / ) = Eio.Path.( / )

let () =
  Eio_sakia_main.run @@ fun env ->
  let dir = env#cwd / "smoke" in
  Eio.Path.rmtree ~missing_ok:true dir;
  Eio.Path.mkdir ~perm:0o700 dir;
  Eio.Path.save ~create:(`Or_truncate 0o600) (dir / "a") (String.make 100_000 'x');
  assert (String.length (Eio.Path.load (dir / "a")) = 100_000);
  Switch.run (fun sw ->
      let a = Eio.Path.open_in ~sw (dir / "a") in
      let b = Eio.Path.open_out ~sw ~create:(`Exclusive 0o600) (dir / "b") in
      Eio.Flow.copy a b);
  assert (String.length (Eio.Path.load (dir / "b")) = 100_000);
  assert (List.sort compare (Eio.Path.read_dir dir) = [ "a"; "b" ]);
  Fiber.both
    (fun () -> Eio.Time.sleep env#clock 0.01)
    (fun () ->
      Switch.run (fun sw ->
          let r, w = Eio_unix.pipe sw in
          Fiber.both
            (fun () -> Eio.Flow.copy_string "hello" w; Eio.Flow.close w)
            (fun () -> assert (Eio.Flow.read_all r = "hello"))));
  let length () = String.length (Eio.Path.load (dir / "a")) in
  assert (Eio.Domain_manager.run env#domain_mgr length = 100_000);
  assert (Eio.Process.parse_out env#process_mgr Eio.Buf_read.line [ "echo"; "hi" ] = "hi");
  Eio.Path.rmtree dir;
  print_endline "ok"
