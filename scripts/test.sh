#!/usr/bin/env bash
# Install into the project's own environment and run the checks.
#   bash scripts/test.sh [PYTEST ARGUMENTS]           linter, type checker, and every test that needs no vLLM
#   bash scripts/test.sh --vllm [PYTEST ARGUMENTS]    the tests of veRL's vLLM servers, in an environment that has them
# Environment: RSIPO_TEST_VENV (default .venv-test), RSIPO_TEST_VENV_VLLM (default .venv-vllm): where to install.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
lane=cpu
if [[ ${1:-} == --vllm ]]; then lane=vllm; shift; fi
if [[ $lane == vllm ]]; then
  venv=${RSIPO_TEST_VENV_VLLM:-.venv-vllm}
  bash scripts/setup_vllm_cpu.sh "$venv"
else
  venv=${RSIPO_TEST_VENV:-.venv-test}
  bash scripts/setup.sh "$venv"
fi
venv=$(cd "$venv" && pwd)
export PATH="$venv/bin:$PATH" VIRTUAL_ENV="$venv"
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
export RAY_USAGE_STATS_ENABLED=0 RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0
if [[ $lane == vllm ]]; then
  # A server that hangs must not hang the tests: pytest's own limit for each test, and this one around them all.
  exec timeout --kill-after=60 1800 python -m pytest -m vllm_cpu tests/vllm_lane "$@"
fi
ruff check .
mypy
# All of them in two processes, by files (tests/conftest.py). A selection in one.
if (($#)); then exec python -m pytest "$@"; fi
exec python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations=25
