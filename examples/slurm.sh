#!/usr/bin/env bash
# A Slurm job that outlives its time limit: sbatch examples/slurm.sh RUN.toml
# Two minutes before the limit Slurm signals this script, which has the ranks save and puts the job back into the
# queue; there it goes on from the checkpoint. docs/clusters.md explains the lines.
#SBATCH --job-name=strait
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
set -u
run_file=${1:?the run file, as in: sbatch examples/slurm.sh RUN.toml}
strait=${STRAIT:-build/release/strait}
most_restarts=20

srun --mpi=pmix --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" "$strait" train "$run_file" \
  --set "output.run_dir=runs/slurm-$SLURM_JOB_ID" --set checkpoint.resume=auto &
step=$!
asked_to_stop=no
trap 'asked_to_stop=yes; kill -USR1 "$step"' USR1

# A signal ends `wait` early; the step is over when it no longer exists.
while
  wait "$step"
  status=$?
  kill -0 "$step" 2>/dev/null
do :; done

case $asked_to_stop:$status in
  no:0) echo "done" ;;
  # Saved as asked; or a lost peer (4), a full disk (6), a rank killed from outside (128 + 9 or 15).
  yes:0 | *:4 | *:6 | *:137 | *:143)
    if [[ ${SLURM_RESTART_COUNT:-0} -ge $most_restarts ]]; then
      echo "exit status $status after $most_restarts restarts; not again" >&2
      exit "$status"
    fi
    echo "exit status $status; back into the queue"
    scontrol requeue "$SLURM_JOB_ID"
    ;;
  *) exit "$status" ;;
esac
