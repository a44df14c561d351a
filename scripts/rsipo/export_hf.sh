#!/usr/bin/env bash
# Merge a training checkpoint into a Hugging Face model, and upload it where HF_REPO is given.
#   bash scripts/rsipo/export_hf.sh RUN_DIR [STEP] [HF_REPO] [--dtype fp32] [--out DIR] [--overwrite] [--public]
# RUN_DIR is a run's folder or its name under $RSIPO_WORK/runs; STEP a number or latest; HF_REPO has the form OWNER/NAME.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
exec rsipo export "$@"
