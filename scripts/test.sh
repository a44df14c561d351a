#!/usr/bin/env bash
# Install into the project's own environment and run the checks: linter, type checker, tests.
#   bash scripts/test.sh [PYTEST ARGUMENTS]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=${RSIPO_TEST_VENV:-.venv-test}
bash scripts/setup.sh "$venv"
venv=$(cd "$venv" && pwd)
export PATH="$venv/bin:$PATH" VIRTUAL_ENV="$venv"
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
export RAY_USAGE_STATS_ENABLED=0 RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0
ruff check .
mypy
exec python -m pytest "$@"
