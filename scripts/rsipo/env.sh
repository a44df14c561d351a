# Sourced by every script here: paths from .env, a Python environment, and thread settings. Defines `rsipo_root`.
rsipo_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

# What is set already wins over .env.
if [[ -f $rsipo_root/.env ]]; then
  while IFS='=' read -r rsipo_name rsipo_value || [[ -n $rsipo_name ]]; do
    rsipo_name=${rsipo_name#export }
    [[ $rsipo_name =~ ^[A-Za-z_][A-Za-z0-9_]*$ && -z ${!rsipo_name+set} ]] || continue
    rsipo_value=${rsipo_value%$'\r'}
    if [[ $rsipo_value =~ ^\"([^\"]*)\" || $rsipo_value =~ ^\'([^\']*)\' ]]; then
      rsipo_value=${BASH_REMATCH[1]}
    fi
    [[ $rsipo_value != ./* ]] || rsipo_value=$rsipo_root/${rsipo_value#./}
    export "$rsipo_name=${rsipo_value/#\~/$HOME}"
  done <"$rsipo_root/.env"
fi
export RSIPO_WORK=${RSIPO_WORK:-$rsipo_root/outputs}
export MODELS_ROOT=${MODELS_ROOT:-$RSIPO_WORK/models}

# Two processes with spinning OpenMP threads on two cores slow each other tenfold.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-PASSIVE}
export TOKENIZERS_PARALLELISM=${TOKENIZERS_PARALLELISM:-false}

# An active environment is used as it is when it holds what the command needs; otherwise the project's own is made and used.
# hardware=cpu_vllm needs vLLM, which has an environment of its own. (The arguments are those of the script that sources this.)
rsipo_needs=rsipo,verl rsipo_venv=$rsipo_root/.venv rsipo_setup=$rsipo_root/scripts/setup.sh
for rsipo_word in "$@"; do
  if [[ $rsipo_word == hardware=cpu_vllm ]]; then
    rsipo_needs=rsipo,verl,vllm rsipo_venv=$rsipo_root/.venv-vllm rsipo_setup=$rsipo_root/scripts/setup_vllm_cpu.sh
  fi
done
rsipo_has_all='import sys; from importlib.util import find_spec; sys.exit(not all(map(find_spec, sys.argv[1].split(","))))'
if [[ -z ${VIRTUAL_ENV:-}${CONDA_PREFIX:-} ]] || ! python -c "$rsipo_has_all" "$rsipo_needs" >/dev/null 2>&1; then
  if [[ -n ${VIRTUAL_ENV:-}${CONDA_PREFIX:-} ]]; then
    echo "env: the active environment does not have ${rsipo_needs//,/, }; using $rsipo_venv instead" >&2
  fi
  bash "$rsipo_setup" "$rsipo_venv"
  # shellcheck disable=SC1091
  source "$rsipo_venv/bin/activate"
fi
