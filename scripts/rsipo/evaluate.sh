#!/usr/bin/env bash
# Evaluate a policy: every game of the panel once per round, no skill in the prompt.
#   bash scripts/rsipo/evaluate.sh                              the newest embedded run, on its generated games
#   bash scripts/rsipo/evaluate.sh alfworld MODEL [STEP]        a run's checkpoint; without STEP the newest
#   RSIPO_EVAL_HF=1 bash scripts/rsipo/evaluate.sh alfworld MODEL     a Hugging Face folder under $MODELS_ROOT
# Further arguments: --tasks N, --subset, --panel FILE, --out DIR, --policy walkthrough|nonsense, KEY=VALUE.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
exec rsipo evaluate "$@"
