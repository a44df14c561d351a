#!/usr/bin/env bash
# The SFT data of search-based QA, with the retriever running: the base model answers the sampled questions, the external LLM of
# .env writes a skill for each trajectory.
#   OUTPUT_DIR=DIR TRAIN_DATA=sft_tasks.parquet MODEL_PATH=FOLDER [RESUME=true] bash scripts/sft/search/prepare_data.sh [KEY=VALUE ...]
#   OUTPUT_DIR=DIR NUM_TASKS=12 bash scripts/sft/search/prepare_data.sh          the embedded policy, templates instead of an LLM
# Also: NUM_TASKS (500, where DIR holds no sample yet), NUM_ROLLOUTS (8), SEED (0), ANNOTATOR (external, offline).
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
# shellcheck source-path=SCRIPTDIR
source "$here/../../rsipo/env.sh"
benchmark=search rsipo_overrides=()
if [[ -n ${TRAIN_DATA:-} ]]; then
  rsipo_overrides=("env.train_data='$(realpath "$TRAIN_DATA")'")
elif [[ -n ${MODEL_PATH:-} ]]; then
  echo "prepare_data: set TRAIN_DATA to the sft_tasks.parquet that scripts/data/search_train_*.py made" >&2
  exit 2
fi
# shellcheck source-path=SCRIPTDIR
source "$here/../prepare.sh"
