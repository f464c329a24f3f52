#!/bin/sh
# A worker for the run in a folder, on this host, started again a few times if it fails.
#
# usage: worker.sh FOLDER     FOLDER is that of run.sbatch
set -eu

folder=${1:?usage: worker.sh FOLDER}
for _ in 1 2 3 4; do
  # The file is read anew each time: after a requeue the run is on another host.
  if tandem worker --join "$(cat "$folder/join")" --token-file "$folder/secrets/token" --tls-ca "$folder/secrets/ca.pem" \
    --store "$folder/store" --cache "${TMPDIR:-/tmp}/tandem-cache" --threads "${SLURM_CPUS_PER_TASK:-1}" --retry-for 600; then
    exit 0
  fi
  sleep "${TANDEM_PAUSE:-10}"
done
exit 1
