#!/usr/bin/env bash
# Send a training run to a Ray cluster that is up, through its dashboard, and follow its log.
#   RAY_API_SERVER_ADDRESS=http://HEAD:8265 bash scripts/cluster/ray_job_submit.sh NODES alfworld MODEL [KEY=VALUE ...]
# The project must be installed on every node. RSIPO_WORK, MODELS_ROOT, ALFWORLD_DATA and RSIPO_RESUME_MODE are passed on when they
# are set. RSIPO_PRINT_ONLY=1 prints the command and sends nothing.
set -euo pipefail
[[ $# -ge 3 ]] || { echo "ray_job_submit: the form is NODES ENV MODEL [KEY=VALUE ...]" >&2; exit 2; }
nodes=$1; shift
variables='"RSIPO_RAY_ADDRESS": "auto"'
for name in RSIPO_WORK MODELS_ROOT ALFWORLD_DATA RSIPO_RESUME_MODE; do
  [[ -z ${!name:-} ]] || variables+=", \"$name\": \"${!name}\""
done
command=(ray job submit --runtime-env-json "{\"env_vars\": {$variables}}" --
  rsipo train "$@" trainer.nnodes="$nodes" trainer.n_gpus_per_node="${RSIPO_GPUS_PER_NODE:-8}")
if [[ ${RSIPO_PRINT_ONLY:-0} == 1 ]]; then printf '%q ' "${command[@]}"; echo; exit 0; fi
exec "${command[@]}"
