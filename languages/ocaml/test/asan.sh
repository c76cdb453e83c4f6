#!/bin/sh
# Builds the stubs with AddressSanitizer, and runs the tests of the bindings with compactions and a minor heap
# so small that the collector runs all the time, on a ring and without: `test/asan.sh BUILD_FOLDER`.
set -eu
cd "$(dirname "$0")/.."
export DUNE_BUILD_DIR="$1"
export SAKIA_OCAML_CFLAGS="-fsanitize=address -fno-omit-frame-pointer -g" SAKIA_OCAML_LIBS=-lasan
dune build ./test/test_sakia.exe
# OCaml's runtime has signal stacks of its own, and keeps its memory at the end.
export ASAN_OPTIONS=use_sigaltstack=0,detect_leaks=0 OCAMLRUNPARAM=s=256,b
LD_PRELOAD="$(cc -print-file-name=libasan.so)"
for driver in auto poll; do
    echo "== AddressSanitizer, SAKIA_DRIVER=$driver"
    env LD_PRELOAD="$LD_PRELOAD" SAKIA_DRIVER=$driver timeout 300 \
        "$DUNE_BUILD_DIR/default/test/test_sakia.exe" --compact
done
