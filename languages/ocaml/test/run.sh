#!/bin/sh
# Runs a test program in the environments in which it must give the same results: on a ring and with io_uring
# refused, without locked memory, with few descriptors, and with a minor heap so small that the collector runs
# all the time.
set -e
patience=300

run() {
    echo "== $1"
    shift
    "$@" || { echo "failed: $*"; exit 1; }
}

case $1 in
*/*) program=$1 ;;
*) program=./$1 ;;
esac
run "as the machine is" timeout $patience "$program"
run "io_uring refused" env SAKIA_DRIVER=poll timeout $patience "$program"
run "no locked memory" sh -c "ulimit -l 0; exec timeout $patience $program"
run "64 descriptors" sh -c "ulimit -n 64; exec timeout $patience $program"
run "64 descriptors, io_uring refused" sh -c "ulimit -n 64; SAKIA_DRIVER=poll exec timeout $patience $program"
run "a tiny minor heap" env OCAMLRUNPARAM=s=256,b timeout $patience "$program" --compact
