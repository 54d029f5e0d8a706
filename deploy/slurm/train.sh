#!/usr/bin/env bash
# Trains on GPU nodes beside reducers on CPU nodes: one heterogeneous job. Change the numbers, then
#
#     sbatch deploy/slurm/train.sh train.py --epochs 3
#
# The home directory must be one that all nodes see.
#SBATCH --job-name=train
#SBATCH --partition=gpu --nodes=8 --ntasks-per-node=1 --gpus-per-node=1
#SBATCH hetjob
#SBATCH --partition=cpu --nodes=8 --ntasks-per-node=1 --cpus-per-task=4 --mem=6G
set -euo pipefail

random_hex() { head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n'; }

umask 077
secrets=$(mktemp -d "$HOME/.slipstream-$SLURM_JOB_ID-XXXXXX")
reducers=
finish() {
  if [ -n "$reducers" ]; then
    kill "$reducers" 2>/dev/null || true
    wait "$reducers" 2>/dev/null || true
  fi
  rm -rf "$secrets"
}
trap finish EXIT
random_hex > "$secrets/job"
random_hex > "$secrets/reducers"

port=$((20000 + SLURM_JOB_ID % 10000)) # two jobs may share a CPU node
srun --het-group=1 slipstream reducer --bind 0.0.0.0 --port "$port" --memory 4G \
  --secret-file "$secrets/reducers" --drain-seconds 1 &
reducers=$!

# A job has at most 32. Those that are up later than the ranks are used as soon as they are.
SLIPSTREAM_REDUCERS=$(scontrol show hostnames "$SLURM_JOB_NODELIST_HET_GROUP_1" |
  sed -n "1,32s/\$/:$port/p" | paste -sd, -)
export SLIPSTREAM_REDUCERS
export SLIPSTREAM_SECRET_FILE="$secrets/job" SLIPSTREAM_REDUCER_SECRET_FILE="$secrets/reducers"
srun --het-group=0 python "$@"
