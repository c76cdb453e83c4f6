#!/bin/sh
# Builds the stubs with AddressSanitizer, and runs the tests of the bindings and of Lwt's part with compactions
# and a minor heap so small that the collector runs all the time, on a ring and without:
# `test/asan.sh BUILD_FOLDER`.
set -eu
cd "$(dirname "$0")/.."
export DUNE_BUILD_DIR="$1"
export SAKIA_OCAML_CFLAGS="-fsanitize=address -fno-omit-frame-pointer -g" SAKIA_OCAML_LIBS=-lasan
dune build ./test/test_sakia.exe ./test/test_lwt.exe
# OCaml's runtime has signal stacks of its own, and keeps its memory at the end.
export ASAN_OPTIONS=use_sigaltstack=0,detect_leaks=0 OCAMLRUNPARAM=s=256,b
LD_PRELOAD="$(cc -print-file-name=libasan.so)"
for driver in auto poll; do
    for program in test_sakia test_lwt; do
        echo "== AddressSanitizer, $program, SAKIA_DRIVER=$driver"
        env LD_PRELOAD="$LD_PRELOAD" SAKIA_DRIVER=$driver timeout 300 \
            "$DUNE_BUILD_DIR/default/test/$program.exe" --compact
    done
done
