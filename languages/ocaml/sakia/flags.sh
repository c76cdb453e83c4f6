#!/bin/sh
# Asks pkg-config for libsakia, and writes its flags for dune: for the C compiler and for the linker. A check
# of the stubs adds its own by SAKIA_OCAML_CFLAGS and SAKIA_OCAML_LIBS.
set -e
pkg-config --print-errors --exists 'sakia >= 0.1' || {
    echo 'libsakia is not installed, or PKG_CONFIG_PATH does not lead to its sakia.pc' >&2
    exit 1
}
echo "($(pkg-config --cflags sakia) $SAKIA_OCAML_CFLAGS)" > c_flags.sexp
echo "($(pkg-config --libs sakia) $SAKIA_OCAML_LIBS)" > c_library_flags.sexp
