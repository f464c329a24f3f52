#!/bin/sh
# The demo with models of five architectures, three seeds each: a line for each with held-out accuracy before and after.
# To be called in the folder of the repository: sh examples/families/run.sh [OPTIONS OF tandem demo]
set -eu
here=$(dirname "$0")
for seed in 1 2 3; do
    for config in "$here"/*.json; do
        name=$(basename "$config" .json)
        figures=$(tandem demo --model-config "$config" --output-dir "runs/families/$name-$seed" --seed "$seed" "$@") || figures="has not learned"
        echo "$name $seed $figures"
    done
done
