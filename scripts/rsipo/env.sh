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

# An active environment is used as it is when it holds this project; otherwise the project's own is made and used.
if [[ -z ${VIRTUAL_ENV:-}${CONDA_PREFIX:-} ]] || ! python -c 'import rsipo, verl' >/dev/null 2>&1; then
  if [[ -n ${VIRTUAL_ENV:-}${CONDA_PREFIX:-} ]]; then
    echo "env: the active environment has no rsipo installed; using $rsipo_root/.venv instead" >&2
  fi
  bash "$rsipo_root/scripts/setup.sh" "$rsipo_root/.venv"
  # shellcheck disable=SC1091
  source "$rsipo_root/.venv/bin/activate"
fi
