#!/usr/bin/env bash
# Train by RSIPO.
#   bash scripts/rsipo/run_rsipo.sh                               the embedded run: generated games, tiny policy, two cores
#   bash scripts/rsipo/run_rsipo.sh search                        the same on questions about an invented world, with its own retriever
#   bash scripts/rsipo/run_rsipo.sh alfworld MODEL [--dry-run] [KEY=VALUE ...]    Table 2 on eight GPUs
#   RSIPO_SEARCH_TRAIN_DATA=FILE bash scripts/rsipo/run_rsipo.sh search MODEL     the same, with start_retriever.sh running
# MODEL is a folder name under $MODELS_ROOT. Further arguments are Hydra overrides. RSIPO_RESUME_MODE=auto resumes.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
exec rsipo train "$@"
