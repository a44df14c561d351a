#!/usr/bin/env bash
# Create (or reuse) a virtual environment with the locked CPU dependencies and this project in editable mode.
#   bash scripts/setup.sh [DIRECTORY]        default: .venv
# Environment: PYTHON (a Python 3.11 interpreter), RSIPO_TORCH_INDEX (where to take a CPU build of torch from).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=python_environment.sh
source scripts/python_environment.sh

venv=${1:-.venv}
lock=requirements/cpu.lock
inputs=(pyproject.toml scripts/setup.sh scripts/python_environment.sh)
end_if_up_to_date
find_python
need_disk 4

echo "setup: building $venv from $lock (about 5 minutes the first time)"
make_environment
torch=$(grep '^torch==' "$lock")
"${pip[@]}" install --no-deps ${RSIPO_TORCH_INDEX:+--index-url "$RSIPO_TORCH_INDEX"} "$torch"
"${pip[@]}" install --no-deps -r <(grep -v '^torch==' "$lock")
"${pip[@]}" install --no-deps --no-build-isolation -e .
"$venv/bin/python" - <<'PY' || fail "this torch is a CUDA build; set RSIPO_TORCH_INDEX to PyTorch's index of CPU wheels and run again"
import sys, torch
sys.exit(torch.version.cuda is not None)
PY
finish
