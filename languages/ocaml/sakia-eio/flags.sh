#!/bin/sh
# Writes the flags of libsakia, by pkg-config, for dune.
set -e
pkg-config --print-errors --exists 'sakia >= 0.1'
echo "($(pkg-config --cflags sakia) $SAKIA_OCAML_CFLAGS)" > c_flags.sexp
echo "($(pkg-config --libs sakia))" > c_library_flags.sexp
