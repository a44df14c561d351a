#!/usr/bin/env bash
# The SFT data of ALFWorld: the base model plays the sampled games, the external LLM of .env writes a skill for each trajectory.
#   OUTPUT_DIR=DIR MODEL_PATH=FOLDER [RESUME=true] bash scripts/sft/alfworld/prepare_data.sh [KEY=VALUE ...]
#   OUTPUT_DIR=DIR NUM_TASKS=12 bash scripts/sft/alfworld/prepare_data.sh        the embedded policy, templates instead of an LLM
# Also: NUM_TASKS (500, where DIR holds no sample yet), NUM_ROLLOUTS (8), SEED (0), ANNOTATOR (external, offline).
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
# shellcheck source-path=SCRIPTDIR
source "$here/../../rsipo/env.sh"
benchmark=alfworld rsipo_overrides=()
# shellcheck source-path=SCRIPTDIR
source "$here/../prepare.sh"
