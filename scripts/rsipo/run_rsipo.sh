#!/usr/bin/env bash
# Train by RSIPO.
#   bash scripts/rsipo/run_rsipo.sh                               the embedded run: generated games, tiny policy, two cores
#   bash scripts/rsipo/run_rsipo.sh alfworld MODEL [--dry-run] [KEY=VALUE ...]    Table 2 on eight GPUs
# MODEL is a folder name under $MODELS_ROOT. Further arguments are Hydra overrides. RSIPO_RESUME_MODE=auto resumes.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
exec rsipo train "$@"
