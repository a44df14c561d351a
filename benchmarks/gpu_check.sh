#!/usr/bin/env bash
# The GPU check: fits in ten minutes on one GPU, needs no network, no model and no Ray cluster.
#   bash benchmarks/gpu_check.sh [OUT_DIR]        numbers as JSON into OUT_DIR (default: ./gpu_check)
# Needs torch, transformers and, for this project's side, veRL (whose import needs the Ray package, not a cluster).
set -euo pipefail
out=$(mkdir -p "${1:-gpu_check}" && cd "${1:-gpu_check}" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PYTHONPATH=$PWD:$PWD/verl${PYTHONPATH:+:$PYTHONPATH} TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv || echo "gpu_check: no nvidia-smi, so this is not a GPU machine" >&2
timeout 270 python benchmarks/gpu_check.py --size 0.5b --out "$out/0.5b.json"
timeout 300 python benchmarks/gpu_check.py --size 1.7b --out "$out/1.7b.json"
