#!/bin/sh
# `tandem train` where something starts it again by itself: begins a run, or goes on with the one that is there.
#
# usage: train.sh OUTPUT_DIR RUN.toml [FLAG]...
set -eu

if [ $# -lt 2 ]; then
  echo "usage: train.sh OUTPUT_DIR RUN.toml [FLAG]..." >&2
  exit 2
fi
output=$1
shift

if [ -n "$(find "$output" -maxdepth 1 -name 'checkpoint-*' 2>/dev/null | head -n 1)" ]; then
  exec tandem train "$@" --output_dir "$output" --resume_from_checkpoint latest
fi
# A run that ended before its first checkpoint is nothing to go on from. It is put aside, unless somebody is at work in it.
if [ -e "$output/run.lock" ] && flock --nonblock "$output/run.lock" true; then
  aside="$output.$(date +%s)"
  echo "$output has no checkpoint; it is now $aside" >&2
  mv "$output" "$aside"
fi
exec tandem train "$@" --output_dir "$output"
