#!/bin/sh
# Makes mazes and a warm start, and trains: sh examples/maze/run.sh [SEED] [OPTIONS OF THE RUN], in the folder of the
# repository.
set -eu
here=$(dirname "$0")
seed=${1:-42}
[ $# -eq 0 ] || shift
made=$PWD/runs/maze

if [ ! -d "$made/warm" ]; then
    python3 "$here/make.py" "$made" --seed "$seed"
    [ -d "$made/model" ] || cp -r "$here/../small_model" "$made/model"
    tandem sft --model "$made/model" --data "$made/warm.jsonl" --output "$made/warm" --init-seed "$seed" \
        --max-steps 500 --batch-size 16 --learning-rate 2e-3 --lr-scheduler-type cosine --warmup-steps 50
fi
# `evaluation after step 0` is the warm start's share of mazes.
tandem train "$here/run.toml" --seed "$seed" "$@"
