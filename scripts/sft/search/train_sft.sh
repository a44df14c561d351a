#!/usr/bin/env bash
# Fine-tunes the base model on the SFT data of search-based QA (samples up to 12288 tokens) and exports it.
#   DATA_DIR=DIR MODEL_PATH=FOLDER EXPORT_MODEL_DIR=DIR [RESUME=true] bash scripts/sft/search/train_sft.sh [KEY=VALUE ...]
# Without MODEL_PATH: the embedded policy. --dry-run checks everything and starts nothing. Overrides: scripts/sft/README.md.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
# shellcheck source-path=SCRIPTDIR
source "$here/../../rsipo/env.sh"
benchmark=search
# shellcheck source-path=SCRIPTDIR
source "$here/../train.sh"
