(** Whole trees, on threads of the library. A function suspends the calling fiber, in any domain, until the
    work has ended; {!Eio_sakia.copy_tree} says the rest. *)

val copy :
  ?options:Sakia.Tree.option_ list ->
  ?threads:int ->
  ?limit:int ->
  ?progress:(Sakia.Tree.counts -> unit) ->
  ?failure:(Sakia.Tree.failure -> unit) ->
  _ Eio.Path.t ->
  _ Eio.Path.t ->
  Sakia.Tree.counts

val remove :
  ?threads:int ->
  ?limit:int ->
  ?progress:(Sakia.Tree.counts -> unit) ->
  ?failure:(Sakia.Tree.failure -> unit) ->
  _ Eio.Path.t ->
  Sakia.Tree.counts
