(** eio on Sakia: fibers on a ring of the kernel or, where the machine offers none, on epoll and threads.

    A program changes one line, [Eio_main.run] to [Eio_sakia.run], and nothing else. *)

val run : (Eio_unix.Stdenv.base -> 'a) -> 'a
(** [run main] runs a fiber, and all that it forks, until all have ended. *)

val run_limited : under_way_max:int -> (Eio_unix.Stdenv.base -> 'a) -> 'a
(** As {!run}, with a limit for the requests of a domain that are under way at the same time, 2{^20}
    otherwise. The fibers of others wait until some have ended. *)

val why_no_ring : unit -> string option
(** Why the running domain's loop has no ring; [None] if it has one. Only within {!run}. *)

(** {1 Whole trees}

    On threads of the library, as [cp -a] and [rm -r]; the fiber waits, and others run. A path below a
    confined directory stays below it. A cancellation stops the work: entries in progress are completed or
    removed. *)

val copy_tree :
  ?options:Sakia.Tree.option_ list ->
  ?threads:int ->
  ?limit:int ->
  ?progress:(Sakia.Tree.counts -> unit) ->
  ?failure:(Sakia.Tree.failure -> unit) ->
  _ Eio.Path.t ->
  _ Eio.Path.t ->
  Sakia.Tree.counts
(** [copy_tree from into] copies a tree; [into] is the copy itself, not a directory for it.
    @param threads one per processor if not given.
    @param limit the most entries in progress; 64 if not given.
    @param progress is called ten times a second, with the counts so far.
    @param failure is called for each entry that could not be copied; the others are copied nevertheless.
    @raise Eio.Io the first failure if [failure] is not given; with it [EREMOTEIO] if there was one.
      Below a confined directory also [Symlink], for a path that is a link itself.
    @raise Invalid_argument {!Sakia.Tree.Follow} with a confined path, or a path of another backend. *)

val remove_tree :
  ?threads:int ->
  ?limit:int ->
  ?progress:(Sakia.Tree.counts -> unit) ->
  ?failure:(Sakia.Tree.failure -> unit) ->
  _ Eio.Path.t ->
  Sakia.Tree.counts
(** Removes a tree, as {!copy_tree} copies one. No link is followed. *)

(** {1 For tests} *)

val under_way : unit -> int
(** The requests of the running domain that have not ended. *)
