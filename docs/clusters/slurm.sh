#!/bin/bash
# Trains with one worker on each node of a Slurm job: sbatch --nodes=4 docs/clusters/slurm.sh
#SBATCH --job-name=tfcap
#SBATCH --ntasks-per-node=1
#SBATCH --requeue
# Slurm sends SIGTERM two minutes before the end of the job: the workers save a checkpoint.
#SBATCH --signal=TERM@120

cat > "worker.$SLURM_JOB_ID.sh" <<'WORKER'
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed 's/.*/"&:12345"/' | paste -sd, -)
export TF_CONFIG="{\"cluster\": {\"worker\": [$hosts]}, \"task\": {\"type\": \"worker\", \"index\": $SLURM_PROCID}}"
exec python -m tfcap.train --experiment=xtransformer --model_dir=runs/xtransformer \
  --params_override=runtime.distribution_strategy=multi_worker_mirrored
WORKER
# When one worker is lost, the others notice it and end by themselves: Slurm waits for them.
srun --kill-on-bad-exit=0 --wait=120 bash "worker.$SLURM_JOB_ID.sh"
code=$?
case "$code" in
  0 | 2 | 3 | 130) exit "$code" ;;  # done, wrong usage, bad data, Ctrl-C
esac
# A worker was lost or the job was preempted: the same command goes on from the last checkpoint. A
# fault that comes back at every start ends the job in the end.
[ "${SLURM_RESTART_COUNT:-0}" -lt 20 ] || exit "$code"
scontrol requeue "$SLURM_JOB_ID"
exit "$code"
