#!/usr/bin/env bash
# One run on whole machines of a Slurm cluster: a Ray node on each, the run on the first.
#
#   sbatch --nodes=1 configs/cluster/slurm.sh configs/laminar/gsm8k-7b.toml
#   sbatch --nodes=4 configs/cluster/slurm.sh configs/laminar/math-32b.toml --set pipeline.steps=100
#
# What stands behind the configuration goes to `tailrace run`. The job's directory, with the environment (.venv), runs, models and
# data, is on a file system that all machines see, and so is your home, where Ray keeps the token of its clusters, without which
# nobody gets in. Five minutes before its time is over the run stops in order; a job of the same RUN goes on with it:
#
#   RUN=runs/first sbatch --nodes=4 configs/cluster/slurm.sh configs/laminar/math-32b.toml
#
#SBATCH --job-name=tailrace
#SBATCH --exclusive
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --mem=0
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@300
#SBATCH --output=tailrace-%j.log
set -euo pipefail

if (($# == 0)); then
  echo "slurm.sh: found no configuration, expected one, such as configs/laminar/gsm8k-7b.toml" >&2
  exit 2
fi
: "${SLURM_JOB_ID:?slurm.sh: found no job, expected to be started by sbatch}"
: "${SLURM_NNODES:?slurm.sh: found no number of machines, expected to be started by sbatch}"
port=${RAY_PORT:-6379}
run=${RUN:-runs/$SLURM_JOB_ID}
tailrace=${TAILRACE:-.venv/bin/tailrace}
ray=${RAY:-.venv/bin/ray}
machines=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
first=${machines%%$'\n'*}
address=$(srun --nodes=1 --ntasks=1 --nodelist="$first" hostname --ip-address | awk '{print $1}')

# Whoever reaches a Ray without tokens runs programs as you, on every machine.
export RAY_AUTH_MODE=token
"$ray" get-auth-token --generate > /dev/null
# Ray's processes must not outlive the job: Slurm ends what srun started.
echo "slurm.sh: Ray on $SLURM_NNODES machines, the first is $first ($address:$port)"
srun --nodes=1 --ntasks=1 --nodelist="$first" --overlap \
  "$ray" start --head --block --node-ip-address="$address" --port="$port" --disable-usage-stats &
if ((SLURM_NNODES > 1)); then
  srun --nodes=$((SLURM_NNODES - 1)) --ntasks=$((SLURM_NNODES - 1)) --exclude="$first" --overlap \
    bash -c 'until "$0" start --block --address="$1" --disable-usage-stats; do sleep 2; done' "$ray" "$address:$port" &
fi
joined="import ray, sys; ray.init('auto', log_to_driver=False); print(sum(node['Alive'] for node in ray.nodes()))"
for ((second = 0; second < ${JOIN_S:-300}; second += 5)); do
  count=$(srun --nodes=1 --ntasks=1 --nodelist="$first" --overlap "$(dirname "$ray")/python" -c "$joined" 2>/dev/null || true)
  if [[ $count == "$SLURM_NNODES" ]]; then break; fi
  sleep 5
done
if [[ $count != "$SLURM_NNODES" ]]; then
  echo "slurm.sh: found ${count:-no} machines in the Ray cluster after ${JOIN_S:-300} s, expected $SLURM_NNODES" >&2
  exit 1
fi

if [[ -e $run/events.jsonl ]]; then
  command=("$tailrace" run --resume "$run" --plain --ray-address auto)
else
  command=("$tailrace" run "$@" --run-dir "$run" --plain --ray-address auto
    --set relay.host=node --set "relay.count=$SLURM_NNODES")
fi
srun --nodes=1 --ntasks=1 --nodelist="$first" --overlap "${command[@]}" &
running=$!
trap 'kill -TERM "$running"' TERM INT  # the run stops in order, and can be resumed
status=0
wait "$running" || status=$?
if kill -0 "$running" 2>/dev/null; then  # the first wait ended with the signal
  wait "$running" && status=0 || status=$?
fi
exit "$status"
