#!/usr/bin/env bash
# Create (or reuse) a virtual environment with the locked CPU dependencies and this project in editable mode.
#   bash scripts/setup.sh [DIRECTORY]        default: .venv
# Environment: PYTHON (a Python 3.11 interpreter), RSIPO_TORCH_INDEX (where to take a CPU build of torch from).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() { echo "setup: $*" >&2; exit 1; }

venv=${1:-.venv}
lock=requirements/cpu.lock
stamp="$venv/.rsipo-lock"
wanted=$(cat "$lock" pyproject.toml scripts/setup.sh | sha256sum | cut -d' ' -f1)
if [[ -f $stamp && $(<"$stamp") == "$wanted" ]]; then exit 0; fi

python=${PYTHON:-}
if [[ -z $python ]]; then
  for candidate in python3.11 python3 python; do
    if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
      python=$candidate; break
    fi
  done
fi
[[ -n $python ]] || fail "the locked CPU environment is for Python 3.11, which was not found; install it or set PYTHON=/path/to/python3.11"
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || fail "$python is $("$python" -V 2>&1); the locked CPU environment is for Python 3.11"
"$python" -c 'import venv, ensurepip' 2>/dev/null || fail "$python has no venv module; on Debian: apt-get install python3-venv"
command -v g++ >/dev/null || fail "fast-downward-textworld is built from source and needs a C++ compiler; on Debian: apt-get install build-essential"
free_kib=$(df -Pk . | awk 'NR == 2 {print $4}')
((free_kib > 4 * 1024 * 1024)) || fail "the environment needs 4 GiB of free disk here, $((free_kib / 1024)) MiB are free"

echo "setup: building $venv from $lock (about 5 minutes the first time)"
[[ -x $venv/bin/python ]] || "$python" -m venv "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check --quiet)
"${pip[@]}" install "pip==25.3"
torch=$(grep '^torch==' "$lock")
"${pip[@]}" install --no-deps ${RSIPO_TORCH_INDEX:+--index-url "$RSIPO_TORCH_INDEX"} "$torch"
"${pip[@]}" install --no-deps -r <(grep -v '^torch==' "$lock")
"${pip[@]}" install --no-deps --no-build-isolation -e .
"$venv/bin/python" - <<'PY' || fail "this torch is a CUDA build; set RSIPO_TORCH_INDEX to PyTorch's index of CPU wheels and run again"
import sys, torch
sys.exit(torch.version.cuda is not None)
PY
echo "$wanted" >"$stamp"
echo "setup: done"
