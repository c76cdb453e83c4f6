#!/bin/sh
# Runs the programs of the guide on this script: `check.sh SUM SERVE`.
set -eu
one=$1 two=$2
case $one in */*) ;; *) one=./$one two=./$two ;; esac
expected=$(cksum < "$0" | cut -d' ' -f2)
for driver in auto poll; do
    found=$(SAKIA_DRIVER=$driver "$one" "$0")
    [ "$found" = "$expected bytes" ] || { echo "sum: $found, not $expected bytes" >&2; exit 1; }
    found=$(SAKIA_DRIVER=$driver "$two" "$0" | tail -n 1)
    [ "$found" = "done" ] || { echo "serve: $found" >&2; exit 1; }
done
